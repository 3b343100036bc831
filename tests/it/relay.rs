//! The relay: what SQS took is marked, nothing else is; a queue that refuses holds up no other.

use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::support::{AT_ONCE, RELAY_ALONE, World, in_time, wait_for};

const SENT: &str = "select count(*) from work.outbox_messages where sent_at is not null";

/// A row without a run, as somebody might write it by hand.
async fn hand_made(world: &World, queue: &str, envelope: &str) -> Uuid {
    let run = Uuid::new_v4();
    world
        .db
        .execute(
            "insert into work.outbox_messages (tenant_id, run_id, queue, envelope, available_at)
             values (1, $1, $2, $3::text::jsonb, clock_timestamp())",
            &[&run, &queue, &envelope],
        )
        .await
        .unwrap();
    run
}

#[tokio::test]
async fn only_what_sqs_named_as_taken_is_marked_and_the_rest_goes_out_later() {
    let world = World::new().await;
    world.sqs.fault(r#"{"op":"SendMessageBatch","mode":"fail_entries","entries":[3],"times":1,"code":"InternalError"}"#).unwrap();
    world.db.batch_execute("select work.dispatch('t.ok', '{}', 1) from generate_series(1, 10)").await.unwrap();
    let _relay = world.start(RELAY_ALONE).await;
    world.count_is(SENT, 10).await;
    assert_eq!(world.count("select sum(attempts) from work.outbox_messages").await, 1);
    assert_eq!(world.sqs.calls()["entries"]["SendMessageBatch"], 11, "the nine were not sent again");
    world.messages_are("default", 10).await;
}

#[tokio::test]
async fn an_entry_in_neither_list_stays_pending() {
    let world = World::new().await;
    // Taken by SQS, but reported as failed: the ambiguous case is sent again.
    world.sqs.fault(r#"{"op":"SendMessageBatch","mode":"fail_entries","entries":[0],"times":1,"queued_anyway":true}"#).unwrap();
    let run = world.dispatch("t.ok", "{}").await;
    // The spare copy may meet its run while it is held; it comes back when the lease would end.
    let _workers = world.start(&[("MONALISA_RELAY", "true"), ("MONALISA_VISIBILITY_SECONDS", "default=6")]).await;
    world.run_is(run, "succeeded").await;
    world.count_is(SENT, 1).await;
    world.messages_are("default", 0).await;
    assert_eq!((world.effects(run).await, world.trail(run).await.len()), (1, 2), "the spare copy changes nothing");
}

#[tokio::test]
async fn a_lost_answer_costs_a_copy_and_nothing_else() {
    let world = World::new().await;
    world.sqs.fault(r#"{"op":"SendMessageBatch","mode":"lost_answer","times":1}"#).unwrap();
    world.db.batch_execute("select work.dispatch('t.ok', '{}', 1) from generate_series(1, 10)").await.unwrap();
    let _workers = world.start(&[("MONALISA_RELAY", "true"), ("MONALISA_VISIBILITY_SECONDS", "default=6")]).await;
    world.count_is("select count(*) from work.task_runs where status = 'succeeded'", 10).await;
    world.messages_are("default", 0).await;
    assert_eq!(world.count("select count(*) from public.effects").await, 10);
    assert_eq!(world.count("select count(*) from work.run_events").await, 20);
}

#[tokio::test]
async fn a_queue_that_refuses_holds_up_no_other_and_is_probed_with_pauses() {
    let world = World::new().await;
    world.sqs.fault(r#"{"op":"SendMessageBatch","queue_contains":"t-bulk","mode":"error","status":500,"code":"InternalError"}"#).unwrap();
    let relay = world.start(RELAY_ALONE).await;
    for _ in 0..30 {
        world.db.batch_execute("select work.dispatch('t.platform')").await.unwrap();
    }
    let refused = || {
        let calls = world.sqs.calls();
        calls["calls"].as_array().unwrap().iter().filter(|call| call["queue"].as_str().is_some_and(|queue| queue.ends_with("bulk"))).count()
    };
    wait_for("a refusal", async || (refused() > 0).then_some(())).await;
    let began = Instant::now();
    world.dispatch("t.ok", "{}").await;
    world.count_is(SENT, 1).await;
    in_time(began, AT_ONCE);
    wait_for("some probes", async || (began.elapsed() > Duration::from_secs(4)).then_some(())).await;
    assert!(refused() <= 24, "{} calls", refused());
    let lines = relay.lines().iter().filter(|line| line.contains("sending failed")).count();
    assert!((1..=8).contains(&lines), "{lines} lines");
    assert_eq!(world.count("select count(*) from work.platform_outbox_messages where sent_at is not null").await, 0);
    assert!(world.count("select sum(attempts) from work.platform_outbox_messages").await >= 3, "the tries are counted");
    world.sqs.clear_faults();
    let healed = Instant::now();
    world.count_is("select count(*) from work.platform_outbox_messages where sent_at is not null", 30).await;
    in_time(healed, Duration::from_secs(10));
}

#[tokio::test]
async fn a_dead_letter_waits_for_its_queue_and_holds_up_nothing() {
    let world = World::new().await;
    world.sqs.fault(r#"{"op":"SendMessageBatch","queue_contains":"default-dlq","mode":"error","status":500}"#).unwrap();
    let _workers = world.workers().await;
    let failed = world.dispatch("t.permanent", r#"{"msg":"no such account"}"#).await;
    world.run_is(failed, "failed").await;
    let pending = "select count(*) from work.outbox_messages where sent_at is null and envelope ? 'deadLetter' and attempts > 0";
    world.count_is(pending, 1).await;
    for _ in 0..10 {
        let run = world.dispatch("t.ok", "{}").await;
        world.run_is(run, "succeeded").await;
    }
    world.sqs.clear_faults();
    world.messages_are("default-dlq", 1).await;
    world.messages_are("default", 0).await;
    assert_eq!(world.trail(failed).await, ["started", "failed"], "the handler did not run again for it");
}

#[tokio::test]
async fn rows_that_can_never_be_sent_stay_pending_behind_all_others() {
    let world = World::new().await;
    // Over what a message may hold: SQS refuses each.
    let large = format!(r#"{{"x":"{}"}}"#, "y".repeat(1_100_000));
    for _ in 0..5 {
        hand_made(&world, "default", &large).await;
    }
    let _relay = world.start(&[RELAY_ALONE, &[("MONALISA_RELAY_BATCH", "3")]].concat()).await;
    for _ in 0..20 {
        world.dispatch("t.ok", "{}").await;
    }
    world.count_is(SENT, 20).await;
    let tried = "select count(*) from work.outbox_messages where sent_at is null and attempts >= 2";
    world.count_is(tried, 5).await;
    assert_eq!(
        world.count("select count(*) from work.outbox_messages where sent_at is null and available_at > now() + interval '61 s'").await,
        0
    );
}

#[tokio::test]
async fn batches_are_cut_by_their_bytes() {
    let world = World::new().await;
    let envelope = format!(r#"{{"x":"{}"}}"#, "y".repeat(100_000));
    for _ in 0..10 {
        hand_made(&world, "default", &envelope).await;
    }
    let _relay = world.start(RELAY_ALONE).await;
    world.count_is(SENT, 10).await;
    let calls = world.sqs.calls();
    let sizes: Vec<u64> = calls["calls"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|call| call["action"] == "SendMessageBatch")
        .map(|call| call["entries"].as_u64().unwrap())
        .collect();
    assert_eq!(sizes.iter().sum::<u64>(), 10);
    assert!(sizes.iter().all(|size| *size <= 2), "256 KiB hold two of these: {sizes:?}");
}

#[tokio::test]
async fn a_critical_row_overtakes_a_backlog() {
    let world = World::new().await;
    world
        .db
        .batch_execute(
            "insert into work.platform_outbox_messages (run_id, queue, envelope, available_at)
             select gen_random_uuid(), 'bulk', '{}', clock_timestamp() from generate_series(1, 30000)",
        )
        .await
        .unwrap();
    world.sqs.fault(r#"{"op":"SendMessageBatch","queue_contains":"t-bulk","mode":"delay","delay_ms":20}"#).unwrap();
    let _relay = world.start(RELAY_ALONE).await;
    let bulk = "select count(*) from work.platform_outbox_messages where sent_at is not null";
    wait_for("the backlog to move", async || (world.count(bulk).await > 0).then_some(())).await;
    for _ in 0..5 {
        world.dispatch("t.urgent", "{}").await;
    }
    world.count_is(SENT, 5).await;
    assert!(world.count(bulk).await < 30_000, "the backlog is still there");
    let waits = "select percentile_cont(0.5) within group (order by extract(epoch from sent_at - available_at)) from work.outbox_messages";
    let wait: f64 = world.one(waits, &[]).await.get(0);
    assert!(wait < 5.0, "{wait} s");
}

#[tokio::test]
async fn two_relays_share_the_rows_and_a_killed_one_loses_none() {
    let world = World::new().await;
    let mut first = world.start(RELAY_ALONE).await;
    let _second = world.start(RELAY_ALONE).await;
    world.sqs.fault(r#"{"op":"SendMessageBatch","mode":"delay","delay_ms":5}"#).unwrap();
    world.db.batch_execute("select work.dispatch('t.ok', '{}', 1) from generate_series(1, 3000)").await.unwrap();
    wait_for("half of them", async || (world.count(SENT).await > 1_000).then_some(())).await;
    first.kill();
    world.count_is(SENT, 3_000).await;
    assert!(
        world.sqs.calls()["entries"]["SendMessageBatch"].as_u64().unwrap() < 3_000 + 2 * 500 + 1,
        "only what was in a pass is sent twice"
    );
    assert_eq!(world.count("select count(*) from work.outbox_messages where attempts > 0").await, 0, "a killed pass counts nothing");
}

#[tokio::test]
async fn without_valkey_or_with_a_dead_one_everything_still_runs() {
    let world = World::new().await;
    let dead = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("redis://{}/", dead.local_addr().unwrap());
    for valkey in ["", "redis://127.0.0.1:1/", silent.as_str()] {
        let mut workers = world.start(&[("MONALISA_RELAY", "true"), ("MONALISA_VALKEY_URL", valkey)]).await;
        let run = world.dispatch("t.permanent", r#"{"msg":"x"}"#).await;
        world.run_is(run, "failed").await;
        let began = Instant::now();
        assert!(workers.stop().await.success());
        in_time(began, Duration::from_secs(10));
    }
}
