//! What a receipt handle can do, and for how long.

use std::time::Duration;

use aws_sdk_sqs::types::{ChangeMessageVisibilityBatchRequestEntry, DeleteMessageBatchRequestEntry, QueueAttributeName};
use sqs_sim::{ExpiredHandle, Options};
use tokio::time::sleep;

use crate::support::{World, code, handle, world, world_with};

async fn change(world: &World, queue: &str, handle: &str, seconds: i32) -> Result<(), String> {
    let change = world.sqs.change_message_visibility().queue_url(queue).receipt_handle(handle).visibility_timeout(seconds);
    let result = change.send().await;
    if result.is_ok() { Ok(()) } else { Err(code(result)) }
}

async fn delete(world: &World, queue: &str, handle: &str) {
    world.sqs.delete_message().queue_url(queue).receipt_handle(handle).send().await.unwrap();
}

async fn counts(world: &World, queue: &str) -> (String, String) {
    let visible = world.attribute(queue, QueueAttributeName::ApproximateNumberOfMessages).await;
    (visible, world.attribute(queue, QueueAttributeName::ApproximateNumberOfMessagesNotVisible).await)
}

#[tokio::test]
async fn garbage_and_another_queues_handle_are_refused() {
    let world = world().await;
    let (queue, other) = (world.queue("q", &[]).await, world.queue("other", &[]).await);
    world.send(&other, "x").await;
    let foreign = world.receive_one(&other, 30).await;
    for bad in ["garbage", handle(&foreign)] {
        let deleted = world.sqs.delete_message().queue_url(&queue).receipt_handle(bad).send().await.unwrap_err().into_service_error();
        assert!(deleted.is_receipt_handle_is_invalid(), "{deleted:?}");
        assert_eq!(change(&world, &queue, bad, 10).await.unwrap_err(), "ReceiptHandleIsInvalid");
    }
}

#[tokio::test]
async fn a_bad_handle_fails_only_its_own_entry_of_a_batch() {
    let world = world().await;
    let queue = world.queue("q", &[]).await;
    world.send(&queue, "x").await;
    let message = world.receive_one(&queue, 30).await;

    let entry = |id: &str, handle: &str, seconds: i32| {
        let entry = ChangeMessageVisibilityBatchRequestEntry::builder().id(id).receipt_handle(handle);
        entry.visibility_timeout(seconds).build().unwrap()
    };
    let changed = world.sqs.change_message_visibility_batch().queue_url(&queue).entries(entry("good", handle(&message), 20));
    let changed = changed.entries(entry("bad", "garbage", 20)).entries(entry("range", handle(&message), 43_201)).send().await.unwrap();
    assert_eq!(changed.successful()[0].id(), "good");
    let failed: Vec<_> = changed.failed().iter().map(|failed| (failed.id(), failed.code())).collect();
    assert_eq!(failed, [("bad", "ReceiptHandleIsInvalid"), ("range", "InvalidParameterValue")]);

    let entry = |id: &str, handle: &str| DeleteMessageBatchRequestEntry::builder().id(id).receipt_handle(handle).build().unwrap();
    let deleted = world.sqs.delete_message_batch().queue_url(&queue).entries(entry("bad", "garbage"));
    let deleted = deleted.entries(entry("good", handle(&message))).send().await.unwrap();
    assert_eq!(deleted.successful()[0].id(), "good");
    assert_eq!((deleted.failed()[0].id(), deleted.failed()[0].code()), ("bad", "ReceiptHandleIsInvalid"));
    assert_eq!(counts(&world, &queue).await, ("0".to_owned(), "0".to_owned()));
}

#[tokio::test]
async fn a_visibility_timeout_is_within_twelve_hours_of_the_receive() {
    let world = world().await;
    let queue = world.queue("q", &[]).await;
    world.send(&queue, "x").await;
    let message = world.receive_one(&queue, 30).await;
    assert_eq!(change(&world, &queue, handle(&message), 43_201).await.unwrap_err(), "InvalidParameterValue");
    assert_eq!(change(&world, &queue, handle(&message), -1).await.unwrap_err(), "InvalidParameterValue");
    sleep(Duration::from_millis(1050)).await;
    let beyond = world.sqs.change_message_visibility().queue_url(&queue).receipt_handle(handle(&message)).visibility_timeout(43_200);
    let beyond = beyond.send().await.unwrap_err().into_service_error();
    assert!(
        beyond.to_string().contains("beyond the limit") || format!("{beyond:?}").contains("beyond the limit [43200 seconds]"),
        "{beyond:?}"
    );
    assert_eq!(change(&world, &queue, handle(&message), 43_198).await, Ok(()));
}

#[tokio::test]
async fn visibility_zero_gives_a_message_back_at_once() {
    let world = world().await;
    let queue = world.queue("q", &[]).await;
    world.send(&queue, "x").await;
    let message = world.receive_one(&queue, 30).await;
    assert!(world.peek(&queue).await.is_empty());
    assert_eq!(change(&world, &queue, handle(&message), 0).await, Ok(()));
    assert_eq!(world.peek(&queue).await.len(), 1);
}

#[tokio::test]
async fn a_change_on_an_expired_handle_is_accepted_and_changes_nothing() {
    let world = world().await;
    let queue = world.queue("q", &[]).await;
    world.send(&queue, "x").await;
    let expired = world.receive_one(&queue, 0).await;
    assert_eq!(change(&world, &queue, handle(&expired), 30).await, Ok(()));
    // It was visible all the time; now the handle is superseded too, and cannot free what another consumer holds.
    let current = world.receive_one(&queue, 30).await;
    assert_ne!(handle(&expired), handle(&current));
    assert_eq!(change(&world, &queue, handle(&expired), 0).await, Ok(()));
    assert!(world.peek(&queue).await.is_empty());
}

#[tokio::test]
async fn a_switch_makes_an_expired_handle_an_error() {
    let world = world_with(Options { expired_handle: ExpiredHandle::Refuse, ..Options::default() }).await;
    let queue = world.queue("q", &[]).await;
    world.send(&queue, "x").await;
    let message = world.receive_one(&queue, 0).await;
    let change = world.sqs.change_message_visibility().queue_url(&queue).receipt_handle(handle(&message)).visibility_timeout(9);
    let refused = change.send().await.unwrap_err().into_service_error();
    assert!(refused.is_message_not_inflight(), "{refused:?}");
}

#[tokio::test]
async fn deleting_twice_succeeds_and_a_deleted_message_cannot_be_extended() {
    let world = world().await;
    let queue = world.queue("q", &[]).await;
    world.send(&queue, "x").await;
    let message = world.receive_one(&queue, 30).await;
    delete(&world, &queue, handle(&message)).await;
    delete(&world, &queue, handle(&message)).await;
    assert_eq!(change(&world, &queue, handle(&message), 10).await.unwrap_err(), "InvalidParameterValue");
}

#[tokio::test]
async fn an_old_handle_deletes_nothing() {
    let world = world().await;
    let queue = world.queue("q", &[]).await;
    world.send(&queue, "x").await;
    let old = world.receive_one(&queue, 0).await;
    let current = world.receive_one(&queue, 30).await;
    delete(&world, &queue, handle(&old)).await;
    assert_eq!(change(&world, &queue, handle(&current), 0).await, Ok(()));
    assert_eq!(world.peek(&queue).await.len(), 1);
}

#[tokio::test]
async fn the_latest_handle_deletes_also_after_its_timeout() {
    let world = world().await;
    let queue = world.queue("q", &[]).await;
    for body in ["first", "second"] {
        world.send(&queue, body).await;
    }
    let messages = world.receive(&queue, 0).await;
    // An empty long poll elsewhere makes the engine notice that the timeouts are over.
    delete(&world, &queue, handle(&messages[0])).await;
    sleep(Duration::from_millis(1100)).await;
    delete(&world, &queue, handle(&messages[1])).await;
    assert_eq!(counts(&world, &queue).await, ("0".to_owned(), "0".to_owned()));
    assert!(world.receive(&queue, 30).await.is_empty());
}
