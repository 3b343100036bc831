//! Two relays beside a slow SQS: short transactions, and neither holds up the other nor an enqueue.

use std::time::{Duration, Instant};

use crate::support::{AT_ONCE, RELAY_ALONE, World, connect, in_time, stretched, wait_for};

#[tokio::test]
async fn a_slow_sqs_makes_no_long_transaction_and_slows_no_enqueue() {
    let world = World::new().await;
    world.sqs.fault(r#"{"op":"SendMessageBatch","queue_contains":"t-default","mode":"delay","delay_ms":60000}"#).unwrap();
    world.db.batch_execute("select work.dispatch('t.ok', '{}', 1) from generate_series(1, 100)").await.unwrap();
    let changes = [RELAY_ALONE, &[("MONALISA_RELAY_BATCH", "40")]].concat();
    let (first, second) = tokio::join!(world.start(&changes), world.start(&changes));
    let free = "select count(*) from (select from work.outbox_messages where sent_at is null for update skip locked) free";
    // Each holds 40 of its own.
    world.count_is(free, 20).await;

    let (costs, began) = ([first.cost(), second.cost()], Instant::now());
    let api = connect(&world.url(Some("test_api"))).await;
    let (mut waits, mut oldest) = (Vec::new(), 0.0);
    while began.elapsed() < Duration::from_secs(15) {
        let asked = Instant::now();
        api.batch_execute("select work.dispatch('t.ok', '{}', 1)").await.unwrap();
        waits.push(asked.elapsed());
        let age = "select coalesce(max(extract(epoch from clock_timestamp() - xact_start)), 0)::float8 from pg_stat_activity
                    where datname = current_database() and application_name = 'monalisa relay'";
        oldest = f64::max(oldest, world.one(age, &[]).await.get(0));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    waits.sort();
    let p95 = waits[waits.len() * 95 / 100];
    assert!(p95 < stretched(Duration::from_millis(50)), "an enqueue took {p95:?}");
    assert!((3.0..30.0).contains(&oldest), "the oldest transaction was {oldest} s old");
    costs.iter().for_each(|cost| cost.is_small());
    assert!(world.count("select count(*) from work.outbox_messages where attempts > 0").await >= 40, "the tries are kept");
    // Another queue is not held up.
    let urgent = Instant::now();
    world.dispatch("t.urgent", "{}").await;
    world.sent_within(1, Duration::from_secs(6)).await;
    in_time(urgent, Duration::from_secs(6));
    world.sqs.clear_faults();
    world.sent_within(world.count("select count(*) from work.outbox_messages").await, Duration::from_secs(10)).await;
}

#[tokio::test]
async fn rows_of_a_relay_that_was_killed_or_frozen_go_to_the_other() {
    let world = World::new().await;
    world.sqs.fault(r#"{"op":"SendMessageBatch","mode":"delay","delay_ms":4900,"times":1}"#).unwrap();
    let first = world.start(RELAY_ALONE).await;
    world.db.batch_execute("select work.dispatch('t.ok', '{}', 1) from generate_series(1, 10)").await.unwrap();
    wait_for("the send", async || (world.messages_sent() == 10).then_some(())).await;
    // Frozen in the middle of its send: PostgreSQL ends its transaction.
    first.signal("STOP");
    let _second = world.start(RELAY_ALONE).await;
    world.db.batch_execute("select work.dispatch('t.ok', '{}', 1) from generate_series(1, 10)").await.unwrap();
    world.sent_within(10, AT_ONCE).await;
    world.sent_within(20, Duration::from_secs(20)).await;
    let marks = "select max(sent_at)::text from work.outbox_messages";
    let before: String = world.one(marks, &[]).await.get(0);
    first.signal("CONT");
    tokio::time::sleep(Duration::from_secs(2)).await;
    let after: String = world.one(marks, &[]).await.get(0);
    assert_eq!(before, after, "its marks are refused");
    assert_eq!(world.messages_sent(), 30);
    let run = world.dispatch("t.ok", "{}").await;
    world.sent_within(21, Duration::from_secs(10)).await;
    assert_ne!(run, uuid::Uuid::nil());
}
