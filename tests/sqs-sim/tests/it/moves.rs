//! The queue's own redrive.

use aws_sdk_sqs::types::{MessageSystemAttributeName, QueueAttributeName};

use crate::delivery::with_dead_letters;
use crate::support::{World, bodies, code, system, world};

const DEAD: &str = "arn:aws:sqs:us-east-1:000000000000:q-dlq";
const SOURCE: &str = "arn:aws:sqs:us-east-1:000000000000:q";

/// The outcome of the only task.
async fn outcome(world: &World) -> (String, Option<String>) {
    loop {
        let tasks = world.sqs.list_message_move_tasks().source_arn(DEAD).send().await.unwrap();
        let task = &tasks.results()[0];
        if task.status() != Some("RUNNING") {
            return (task.status().unwrap().to_owned(), task.failure_reason().map(str::to_owned));
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_dead_lettered_message_returns_as_a_new_one() {
    let world = world().await;
    let (queue, _) = with_dead_letters(&world).await;
    world.send(&queue, "x").await;
    let old = world.receive_one(&queue, 0).await;
    world.receive_one(&queue, 0).await;
    assert!(world.peek(&queue).await.is_empty());
    world.sqs.start_message_move_task().source_arn(DEAD).send().await.unwrap();
    assert_eq!(outcome(&world).await, ("COMPLETED".to_owned(), None));
    let new = world.receive_one(&queue, 0).await;
    assert_ne!(new.message_id(), old.message_id());
    assert_eq!(system(&new, MessageSystemAttributeName::ApproximateReceiveCount), Some("1"));
}

#[tokio::test]
async fn a_message_sent_to_the_dead_letter_queue_needs_a_destination() {
    let world = world().await;
    let (queue, dead) = with_dead_letters(&world).await;
    world.send(&dead, "x").await;
    world.sqs.start_message_move_task().source_arn(DEAD).send().await.unwrap();
    assert_eq!(outcome(&world).await, ("FAILED".to_owned(), Some("CouldNotDetermineMessageSource".to_owned())));
    assert_eq!(world.attribute(&dead, QueueAttributeName::ApproximateNumberOfMessages).await, "1");

    world.sqs.start_message_move_task().source_arn(DEAD).destination_arn(SOURCE).send().await.unwrap();
    assert_eq!(outcome(&world).await, ("COMPLETED".to_owned(), None));
    assert_eq!(bodies(&world.receive(&queue, 30).await), ["x"]);
}

#[tokio::test]
async fn only_a_dead_letter_queue_can_be_moved_from_and_one_task_at_a_time() {
    let world = world().await;
    let (_, dead) = with_dead_letters(&world).await;
    assert_eq!(code(world.sqs.start_message_move_task().source_arn(SOURCE).send().await), "InvalidParameterValue");
    assert_eq!(
        code(world.sqs.start_message_move_task().source_arn("arn:aws:sqs:us-east-1:000000000000:no").send().await),
        "ResourceNotFoundException"
    );
    for body in ["a", "b", "c"] {
        world.send(&dead, body).await;
    }
    let start = || world.sqs.start_message_move_task().source_arn(DEAD).destination_arn(SOURCE).max_number_of_messages_per_second(1);
    let task = start().send().await.unwrap().task_handle.unwrap();
    assert_eq!(code(start().send().await), "UnsupportedOperation");
    world.sqs.cancel_message_move_task().task_handle(task).send().await.unwrap();
    assert_eq!(outcome(&world).await.0, "CANCELLED");
}
