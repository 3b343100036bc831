//! Receiving, waiting, and the dead-letter queue.

use std::time::{Duration, Instant};

use aws_sdk_sqs::types::{MessageSystemAttributeName, QueueAttributeName};
use tokio::time::sleep;

use crate::support::{World, bodies, code, handle, system, world};

#[tokio::test]
async fn the_numbers_of_a_receive_have_ranges() {
    let world = world().await;
    let queue = world.queue("q", &[]).await;
    let receive = || world.sqs.receive_message().queue_url(&queue);
    for (name, receive) in [
        ("max 0", receive().max_number_of_messages(0)),
        ("max 11", receive().max_number_of_messages(11)),
        ("wait 21", receive().wait_time_seconds(21)),
        ("wait -1", receive().wait_time_seconds(-1)),
        ("visibility 43201", receive().visibility_timeout(43_201)),
        ("visibility -1", receive().visibility_timeout(-1)),
    ] {
        assert_eq!(code(receive.send().await), "InvalidParameterValue", "{name}");
    }
}

#[tokio::test]
async fn a_long_poll_ends_when_a_message_comes() {
    let world = world().await;
    let queue = world.queue("q", &[]).await;
    let started = Instant::now();
    let (received, ()) = tokio::join!(world.receive(&queue, 30), async {
        sleep(Duration::from_millis(100)).await;
        world.send(&queue, "x").await;
    });
    assert_eq!(bodies(&received), ["x"]);
    assert!(started.elapsed() < Duration::from_millis(600), "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_long_poll_ends_as_soon_as_a_message_becomes_visible() {
    let world = world().await;
    let queue = world.queue("q", &[]).await;
    world.send(&queue, "x").await;
    world.receive_one(&queue, 1).await;
    let started = Instant::now();
    let receive = world.sqs.receive_message().queue_url(&queue).wait_time_seconds(2);
    let again = receive.clone().visibility_timeout(30).send().await.unwrap().messages.unwrap();
    let waited = started.elapsed().as_millis();
    assert!((900..1500).contains(&waited), "{waited} ms");

    // A message given back, too.
    let free = world.sqs.change_message_visibility().queue_url(&queue).receipt_handle(handle(&again[0])).visibility_timeout(0);
    let (again, ()) = tokio::join!(receive.send(), async {
        sleep(Duration::from_millis(100)).await;
        free.send().await.unwrap();
    });
    assert_eq!(again.unwrap().messages.unwrap().len(), 1);
    assert!(started.elapsed() < Duration::from_millis(2200), "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_delayed_message_comes_after_its_delay() {
    let world = world().await;
    let queue = world.queue("q", &[(QueueAttributeName::ReceiveMessageWaitTimeSeconds, "2")]).await;
    world.sqs.send_message().queue_url(&queue).message_body("x").delay_seconds(1).send().await.unwrap();
    let started = Instant::now();
    // The queue's own wait is the default of a receive.
    let received = world.sqs.receive_message().queue_url(&queue).send().await.unwrap();
    let waited = started.elapsed().as_millis();
    assert_eq!(received.messages.unwrap().len(), 1);
    assert!((900..1500).contains(&waited), "{waited} ms");
}

#[tokio::test]
async fn an_undeleted_message_comes_again_with_a_higher_count() {
    let world = world().await;
    let queue = world.queue("q", &[]).await;
    world.send(&queue, "x").await;
    let first = world.receive_one(&queue, 1).await;
    assert!(world.peek(&queue).await.is_empty());
    sleep(Duration::from_millis(1050)).await;
    let second = world.receive_one(&queue, 1).await;
    assert_eq!(first.message_id(), second.message_id());
    assert_eq!(system(&second, MessageSystemAttributeName::ApproximateReceiveCount), Some("2"));
}

/// Two queues; the first hands over to the second what would be received a third time.
pub(crate) async fn with_dead_letters(world: &World) -> (String, String) {
    let dead = world.queue("q-dlq", &[]).await;
    let policy = r#"{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:000000000000:q-dlq","maxReceiveCount":2}"#;
    (world.queue("q", &[(QueueAttributeName::RedrivePolicy, policy)]).await, dead)
}

#[tokio::test]
async fn a_message_moves_to_the_dead_letter_queue_only_at_the_receive_after_the_last() {
    let world = world().await;
    let (queue, dead) = with_dead_letters(&world).await;
    world.send(&queue, "x").await;
    let first = world.receive_one(&queue, 0).await;
    world.receive_one(&queue, 0).await;
    // Twice received and visible again, but nobody polls.
    sleep(Duration::from_millis(1100)).await;
    assert!(world.peek(&dead).await.is_empty());
    assert!(world.peek(&queue).await.is_empty());

    let moved = world.receive_one(&dead, 30).await;
    assert_eq!(moved.message_id(), first.message_id());
    assert_eq!(system(&moved, MessageSystemAttributeName::ApproximateReceiveCount), Some("3"));
    let source = system(&moved, MessageSystemAttributeName::DeadLetterQueueSourceArn);
    assert_eq!(source, Some("arn:aws:sqs:us-east-1:000000000000:q"));
    assert_eq!(system(&moved, MessageSystemAttributeName::SentTimestamp), system(&first, MessageSystemAttributeName::SentTimestamp));

    // The handles of before do nothing to it.
    world.sqs.delete_message().queue_url(&queue).receipt_handle(handle(&first)).send().await.unwrap();
    let delete = world.sqs.delete_message().queue_url(&dead).receipt_handle(handle(&moved));
    delete.send().await.unwrap();
    assert_eq!(world.attribute(&dead, QueueAttributeName::ApproximateNumberOfMessagesNotVisible).await, "0");
}

#[tokio::test]
async fn purging_the_source_keeps_what_was_dead_lettered() {
    let world = world().await;
    let (queue, dead) = with_dead_letters(&world).await;
    world.send(&queue, "x").await;
    world.receive_one(&queue, 0).await;
    world.receive_one(&queue, 0).await;
    assert!(world.peek(&queue).await.is_empty());
    world.sqs.purge_queue().queue_url(&queue).send().await.unwrap();
    assert_eq!(bodies(&world.receive(&dead, 30).await), ["x"]);
}
