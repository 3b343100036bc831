//! Each way in which a call can go wrong.

use std::time::{Duration, Instant};

use aws_sdk_sqs::config::retry::RetryConfig;
use aws_sdk_sqs::error::SdkError;
use aws_sdk_sqs::types::{DeleteMessageBatchRequestEntry, QueueAttributeName};
use serde_json::json;

use crate::support::{World, bodies, client, code, entry, handle, short, world};

async fn waiting(world: &World, queue: &str) -> String {
    world.attribute(queue, QueueAttributeName::ApproximateNumberOfMessages).await
}

#[tokio::test]
async fn error_and_throttle_refuse_without_effect() {
    let world = world().await;
    let queue = world.queue("q", &[]).await;
    world.fault(json!({"op": "SendMessage", "mode": "error", "times": 1})).await;
    world.fault(json!({"op": "SendMessage", "mode": "error", "times": 1, "status": 403, "code": "AccessDenied"})).await;
    world.fault(json!({"op": "SendMessage", "mode": "throttle", "times": 1})).await;
    let send = || world.sqs.send_message().queue_url(&queue).message_body("x").send();
    let refused = send().await.unwrap_err();
    assert_eq!(refused.raw_response().unwrap().status().as_u16(), 500);
    assert_eq!(short(aws_sdk_sqs::error::ProvideErrorMetadata::code(&refused).unwrap()), "InternalError");
    let refused = send().await.unwrap_err();
    assert_eq!(refused.raw_response().unwrap().status().as_u16(), 403);
    assert_eq!(code(Err::<(), _>(refused)), "AccessDenied");
    assert!(send().await.unwrap_err().into_service_error().is_request_throttled());
    assert_eq!(waiting(&world, &queue).await, "0");
    send().await.unwrap();
}

#[tokio::test]
async fn a_delay_is_served_late() {
    let world = world().await;
    let queue = world.queue("q", &[]).await;
    world.fault(json!({"mode": "delay", "delay_ms": 200, "times": 1})).await;
    let started = Instant::now();
    world.send(&queue, "x").await;
    assert!(started.elapsed() >= Duration::from_millis(200));
    assert_eq!(waiting(&world, &queue).await, "1");
}

#[tokio::test]
async fn a_dropped_request_does_nothing_and_a_lost_answer_did_everything() {
    let world = world().await;
    let queue = world.queue("q", &[]).await;
    for (mode, expected) in [("drop_request", "0"), ("lost_answer", "1")] {
        world.fault(json!({"op": "SendMessage", "mode": mode, "times": 1})).await;
        let lost = world.sqs.send_message().queue_url(&queue).message_body("x").send().await.unwrap_err();
        assert!(matches!(lost, SdkError::DispatchFailure(_)), "{mode}: {lost:?}");
        assert_eq!(waiting(&world, &queue).await, expected, "{mode}");
    }
}

#[tokio::test]
async fn a_retry_after_a_lost_answer_leaves_two_copies() {
    let world = world().await;
    let queue = world.queue("q", &[]).await;
    let patient = client(&world.server, RetryConfig::standard().with_initial_backoff(Duration::from_millis(1))).await;
    world.fault(json!({"op": "SendMessageBatch", "mode": "lost_answer", "times": 1})).await;
    patient.send_message_batch().queue_url(&queue).entries(entry("a", "x")).send().await.unwrap();
    assert_eq!(waiting(&world, &queue).await, "2");
}

#[tokio::test]
async fn a_receive_whose_answer_is_lost_hides_its_messages() {
    let world = world().await;
    let queue = world.queue("q", &[]).await;
    world.send(&queue, "x").await;
    world.fault(json!({"op": "ReceiveMessage", "mode": "lost_answer", "times": 1})).await;
    world.sqs.receive_message().queue_url(&queue).send().await.unwrap_err();
    assert!(world.peek(&queue).await.is_empty());
    assert_eq!(world.attribute(&queue, QueueAttributeName::ApproximateNumberOfMessagesNotVisible).await, "1");
}

#[tokio::test]
async fn a_call_without_an_answer_lasts_until_the_client_gives_up() {
    let world = world().await;
    let queue = world.queue("q", &[]).await;
    for (anyway, expected) in [(false, "0"), (true, "1")] {
        world.fault(json!({"op": "SendMessage", "mode": "never_answer", "times": 1, "queued_anyway": anyway})).await;
        let send = world.sqs.send_message().queue_url(&queue).message_body("x").send();
        assert!(tokio::time::timeout(Duration::from_millis(150), send).await.is_err());
        assert_eq!(waiting(&world, &queue).await, expected, "{anyway}");
    }
}

#[tokio::test]
async fn chosen_entries_fail_and_are_sent_only_if_the_rule_says_so() {
    let world = world().await;
    let queue = world.queue("q", &[]).await;
    let batch = || {
        let batch = world.sqs.send_message_batch().queue_url(&queue);
        batch.entries(entry("a", "red")).entries(entry("b", "green")).entries(entry("c", "blue"))
    };
    world
        .fault(json!([
            {"op": "SendMessageBatch", "mode": "fail_entries", "entries": [1], "times": 1},
            {"op": "SendMessageBatch", "mode": "fail_entries", "entry_contains": "blue", "code": "InvalidMessageContents", "times": 1},
            {"op": "SendMessageBatch", "mode": "fail_entries", "queued_anyway": true, "times": 1},
        ]))
        .await;

    let output = batch().send().await.unwrap();
    assert_eq!(output.successful().iter().map(|entry| entry.id()).collect::<Vec<_>>(), ["a", "c"]);
    let failed = &output.failed()[0];
    assert_eq!((failed.id(), failed.code(), failed.sender_fault()), ("b", "InternalError", false));

    let output = batch().send().await.unwrap();
    let failed = &output.failed()[0];
    assert_eq!((failed.id(), failed.code(), failed.sender_fault()), ("c", "InvalidMessageContents", true));
    assert_eq!(waiting(&world, &queue).await, "4");

    let output = batch().send().await.unwrap();
    assert_eq!((output.successful().len(), output.failed().len()), (0, 3));
    assert_eq!(waiting(&world, &queue).await, "7");
}

#[tokio::test]
async fn rules_choose_by_queue_by_text_and_by_order() {
    let world = world().await;
    let (red, blue) = (world.queue("red", &[]).await, world.queue("blue", &[]).await);
    world
        .fault(json!({"mode": "error", "op": "SendMessage", "queue_contains": "red", "body_contains": "{\"n\":1}", "skip": 1, "times": 1}))
        .await;
    let send = |queue: &str, body: &str| world.sqs.send_message().queue_url(queue).message_body(body).send();
    send(&blue, r#"{"n":1}"#).await.unwrap();
    send(&red, r#"{"n":2}"#).await.unwrap();
    send(&red, r#"{"n":1}"#).await.unwrap();
    assert_eq!(code(send(&red, r#"{"n":1}"#).await), "InternalError");
    send(&red, r#"{"n":1}"#).await.unwrap();

    let shown = world.http("GET", "/_fault", "").await;
    assert!(shown.contains("\"hits\":1"), "{shown}");
    let calls = world.calls().await;
    let met: Vec<_> = calls["calls"].as_array().unwrap().iter().filter(|call| call["fault"] == "error").collect();
    assert_eq!(met.len(), 1);
}

#[tokio::test]
async fn a_rule_finds_the_message_behind_a_receipt_handle() {
    let world = world().await;
    let queue = world.queue("q", &[]).await;
    for body in ["keep", "lose"] {
        world.send(&queue, body).await;
    }
    let messages = world.receive(&queue, 30).await;
    assert_eq!(bodies(&messages), ["keep", "lose"]);
    world.fault(json!({"op": "DeleteMessageBatch", "body_contains": "lose", "mode": "drop_request"})).await;
    let delete = |index: usize| {
        let entry = DeleteMessageBatchRequestEntry::builder().id("a").receipt_handle(handle(&messages[index])).build().unwrap();
        world.sqs.delete_message_batch().queue_url(&queue).entries(entry).send()
    };
    delete(0).await.unwrap();
    delete(1).await.unwrap_err();
    world.server.clear_faults();
    delete(1).await.unwrap();
}

#[tokio::test]
async fn a_rule_that_cannot_be_read_is_refused() {
    let world = world().await;
    for bad in ["{}", r#"{"mode":"explode"}"#, r#"{"mode":"error","tmies":1}"#] {
        assert!(world.server.fault(bad).is_err(), "{bad}");
        assert!(world.http("POST", "/_fault", bad).await.starts_with("HTTP/1.1 400"), "{bad}");
    }
}
