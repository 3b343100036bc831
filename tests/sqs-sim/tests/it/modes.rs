//! The null mode and the hooks that are not faults.

use std::time::{Duration, Instant};

use sqs_sim::{Mode, Options};

use crate::support::{entry, world, world_with};

#[tokio::test]
async fn the_null_mode_accepts_everything_late_and_keeps_nothing() {
    let latency = Duration::from_millis(50);
    let world = world_with(Options { mode: Mode::Null(latency), ..Options::default() }).await;
    let queue = world.server.queue_url("any");
    let started = Instant::now();
    world.send(&queue, "x").await;
    let batch = world.sqs.send_message_batch().queue_url(&queue).entries(entry("a", "x")).entries(entry("b", "y"));
    let output = batch.send().await.unwrap();
    assert!(started.elapsed() >= latency * 2);
    assert_eq!(output.successful().iter().map(|entry| entry.id()).collect::<Vec<_>>(), ["a", "b"]);
    assert!(output.failed().is_empty());
    assert!(world.peek(&queue).await.is_empty());
}

#[tokio::test]
async fn the_server_says_that_it_is_well() {
    let world = world().await;
    assert!(world.http("GET", "/_health", "").await.starts_with("HTTP/1.1 200"));
    assert!(world.http("GET", "/elsewhere", "").await.starts_with("HTTP/1.1 404"));
}

#[tokio::test]
async fn calls_are_counted_and_logged() {
    let world = world().await;
    let queue = world.queue("q", &[]).await;
    world.sqs.send_message_batch().queue_url(&queue).entries(entry("a", "x")).entries(entry("b", "y")).send().await.unwrap();
    world.receive(&queue, 30).await;
    let calls = world.calls().await;
    assert_eq!(calls["counts"]["SendMessageBatch"], 1);
    assert_eq!(calls["entries"]["SendMessageBatch"], 2);
    let last = calls["calls"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (&last["action"], &last["queue"], &last["max"], &last["wait"]),
        (&"ReceiveMessage".into(), &"q".into(), &10.into(), &1.into())
    );
    assert!(last["at_ms"].as_u64().unwrap() > 1_700_000_000_000);

    assert_eq!(world.server.calls(), calls);
    world.http("DELETE", "/_calls", "").await;
    assert_eq!(world.calls().await["counts"], serde_json::json!({}));
}
