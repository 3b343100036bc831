//! Rows that are odd, or become visible late: they go out, or hold up no other.

use std::time::Duration;

use uuid::Uuid;

use crate::support::{RELAY_ALONE, SOON, World, connect};

async fn by_hand(world: &World, queue: &str, envelope: &str) -> Uuid {
    let run = Uuid::new_v4();
    let sql = "insert into work.outbox_messages (tenant_id, run_id, queue, envelope, available_at)
               values (1, $1, $2, $3::text::jsonb, clock_timestamp() - interval '1 minute')";
    world.db.execute(sql, &[&run, &queue, &envelope]).await.unwrap();
    run
}

#[tokio::test]
async fn odd_envelopes_hold_up_no_other() {
    let world = World::new().await;
    let deep = |depth: usize| format!(r#"{{"x":{}{}}}"#, "[".repeat(depth), "]".repeat(depth));
    let sent = [
        "{}".to_owned(),
        deep(100),
        deep(3_000),
        r#"{"deadLetter":null}"#.to_owned(),
        r#"{"v":1e+400,"n":-0.00000000000000000000000000001,"i":123456789012345678901234567890}"#.to_owned(),
        r#"{"runId":17,"generation":"x"}"#.to_owned(),
        format!(r#"{{"x":"{}"}}"#, "é".repeat(100_000)),
        r#"{"text":"\"deadLetter\":1 \\ \" \u2028 \ud83d\ude00"}"#.to_owned(),
    ];
    let letters = [
        r#"{"deadLetter":true}"#.to_owned(),
        r#"{"deadLetter":{}}"#.to_owned(),
        r#"{"deadLetter":[1,2]}"#.to_owned(),
        r#"{"deadLetter":{"generation":1e300,"code":"","text":{"a":1},"attempt":"three","at":null}}"#.to_owned(),
    ];
    let refused = [
        format!(r#"{{"x":"{}"}}"#, '\u{FFFF}'),
        format!(r#"{{"x":"{}"}}"#, '\u{FFFE}'),
        format!(r#"{{"deadLetter":{{"text":"{}"}}}}"#, '\u{FFFF}'),
        format!(r#"{{"deadLetter":{{"text":"x"}},"x":"{}"}}"#, "y".repeat(1_048_576)),
    ];
    for envelope in refused.iter().chain(&sent).chain(&letters) {
        by_hand(&world, "default", envelope).await;
    }
    let relay = world.start(RELAY_ALONE).await;
    let cost = relay.cost();
    for _ in 0..5 {
        world.dispatch("t.ok", "{}").await;
    }
    let all = (sent.len() + letters.len() + 5) as i64;
    world.sent_within(all, SOON).await;
    world.messages_are("default", sent.len() as i64 + 5).await;
    world.messages_are("default-dlq", letters.len() as i64).await;
    world.count_is("select count(*) from work.outbox_messages where sent_at is null and attempts >= 2", refused.len() as i64).await;
    world.dispatch("t.ok", "{}").await;
    world.sent_within(all + 1, SOON).await;
    cost.is_small();
}

#[tokio::test]
async fn a_count_of_tries_at_its_top_stays_there_and_the_row_goes_out() {
    let world = World::new().await;
    world.sqs.fault(r#"{"op":"SendMessageBatch","mode":"fail_entries","times":1}"#).unwrap();
    for _ in 0..3 {
        world.dispatch("t.ok", "{}").await;
    }
    let top = "update work.outbox_messages set attempts = 2147483647 where id <> (select max(id) from work.outbox_messages)";
    world.db.batch_execute(top).await.unwrap();
    let _relay = world.start(RELAY_ALONE).await;
    world.count_is("select count(*) from work.outbox_messages where attempts = 1", 1).await;
    // The pause of a row is at most a minute, however often it was tried.
    let far = "select count(*) from work.outbox_messages where available_at > clock_timestamp() + interval '61 s'";
    assert_eq!(world.count(far).await, 0);
    world.db.batch_execute("update work.outbox_messages set available_at = clock_timestamp() where sent_at is null").await.unwrap();
    world.sent_within(3, SOON).await;
    assert_eq!(world.count("select count(*) from work.outbox_messages where attempts = 2147483647").await, 2);
}

#[tokio::test]
async fn bytes_are_counted_and_not_characters() {
    let world = World::new().await;
    // Ten of 200 kB, each legal, together over what a call may hold.
    let sql = "select work.dispatch('t.ok', jsonb_build_object('note', repeat('é', 100000)), 1) from generate_series(1, 10)";
    world.db.batch_execute(sql).await.unwrap();
    for _ in 0..10 {
        by_hand(&world, "default", &format!(r#"{{"x":"{}"}}"#, "é".repeat(100_000))).await;
    }
    let _relay = world.start(RELAY_ALONE).await;
    world.sent_within(20, SOON).await;
    assert_eq!(world.count("select sum(attempts)::int8 from work.outbox_messages").await, 0);
    assert_eq!(world.messages_sent(), 20);
}

#[tokio::test]
async fn transactions_that_commit_late_and_out_of_order_are_carried_soon_after() {
    tokio::join!(late(200), late(60_000));
}

async fn late(sweep: u32) {
    let world = World::new().await;
    let client = monalisa::Client::new(Some(world.redis_url())).unwrap();
    let relay = world.start(&[RELAY_ALONE, &[("MONALISA_RELAY_SWEEP_MS", &sweep.to_string())]].concat()).await;
    let mut late = connect(&world.url(Some("test_api"))).await;
    let transaction = late.transaction().await.unwrap();
    transaction.batch_execute("select work.dispatch('t.ok', '{}', 1), work.dispatch('t.urgent', '{}', 1)").await.unwrap();
    let cost = relay.cost();
    // With these wakes the full looks fall on each tenth of them, at five seconds: the last one here is between two.
    for _ in 0..26 {
        world.dispatch("t.ok", "{}").await;
        world.dispatch("t.urgent", "{}").await;
        client.wake().await;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    world.sent_within(52, SOON).await;
    transaction.commit().await.unwrap();
    client.wake().await;
    world.sent_within(54, SOON).await;
    cost.is_small();
    assert_eq!(world.messages_sent(), 54);
}
