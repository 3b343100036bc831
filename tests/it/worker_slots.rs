//! Nothing holds its neighbours up: neither a full unit, nor copies, nor what runs long, nor a handler that does not end, nor a
//! dead-letter queue that hangs.

use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::support::{RELAY, RELAY_ALONE, World, checks::Counters, in_time, wait_for};

const DEFAULT: (&str, &str) = ("QUEUES", "default");

/// Dispatches so many runs of a unit at once.
async fn many(world: &World, unit: &str, payload: &str, runs: i32) {
    let all = "select count(work.dispatch($1, $2::text::jsonb, 1)) from generate_series(1, $3)";
    world.db.query_one(all, &[&unit, &payload, &runs]).await.unwrap();
}

fn succeeded(unit: &str) -> String {
    format!("select count(*) from work.task_runs where unit = '{unit}' and status = 'succeeded'")
}

#[tokio::test]
async fn a_thousand_runs_of_a_full_unit_hold_up_no_other() {
    let world = World::new().await;
    let _workers = world.start(&[RELAY, DEFAULT]).await;
    many(&world, "t.single", r#"{"s":0.2}"#, 1_000).await;
    wait_for("the unit to be full", async || (world.messages("default").await.1 > 1).then_some(())).await;
    let began = Instant::now();
    many(&world, "t.ok", "{}", 30).await;
    world.count_is(&succeeded("t.ok"), 30).await;
    // One after the other the thousand take more than 200 s.
    in_time(began, Duration::from_secs(70));
    // Those that are sent back come one after the other, and not all again in 15 seconds.
    wait_for("all to be sent back", async || (world.messages("default").await.0 == 0).then_some(())).await;
    let last = "select extract(epoch from max(available_at) - clock_timestamp())::float8 from work.task_runs where status = 'queued'";
    let last: f64 = world.one(last, &[]).await.get(0);
    assert!(last > 60.0 && last <= 901.0, "the last of a thousand runs of 0.2 s comes back in {last} s");
    let pace = "select count(*) from work.task_runs where unit = 't.single' and status = 'succeeded'";
    let before = world.count(pace).await;
    wait_for("the unit to go on", async || (world.count(pace).await > before + 10).then_some(())).await;
}

#[tokio::test]
async fn a_run_that_takes_long_holds_up_nothing_and_an_idle_queue_neither() {
    let world = World::new().await;
    let few = ("MONALISA_CONCURRENCY", "t.sleep=1,t.ok=3");
    let _workers = world.start(&[RELAY, few, ("MONALISA_SQS_WAIT_SECONDS", "10"), ("MONALISA_STOP_TIMEOUT_MS", "20000")]).await;
    let long = world.dispatch("t.sleep", r#"{"s":60}"#).await;
    world.run_is(long, "running").await;
    let began = Instant::now();
    many(&world, "t.ok", "{}", 50).await;
    world.count_is(&succeeded("t.ok"), 50).await;
    // A poll that waits for each batch of three, or for the long run, takes far longer.
    in_time(began, Duration::from_secs(30));
}

#[tokio::test]
async fn copies_of_a_run_that_is_held_let_go_at_once_and_are_no_failure() {
    let world = World::new().await;
    let _workers = world.start(&[RELAY, ("MONALISA_CONCURRENCY", "t.sleep=2,t.ok=2")]).await;
    let run = world.dispatch("t.sleep", r#"{"s":8}"#).await;
    world.run_is(run, "running").await;
    let envelope: String = world.one("select envelope::text from work.outbox_messages where run_id = $1", &[&run]).await.get(0);
    for _ in 0..8 {
        world.send("default", &envelope).await;
    }
    let began = Instant::now();
    many(&world, "t.ok", "{}", 10).await;
    world.count_is(&succeeded("t.ok"), 10).await;
    in_time(began, Duration::from_secs(5));
    world.run_is(run, "succeeded").await;
    assert_eq!((world.effects(run).await, world.trail(run).await.len(), world.counters(run).await), (1, 2, Counters::default()));
}

#[tokio::test]
async fn a_handler_that_outlives_its_time_keeps_its_slot_and_the_gate_until_it_ends() {
    let world = World::new().await;
    let _workers = world.start(&[RELAY, DEFAULT]).await;
    let deaf = world.dispatch("t.deaf", r#"{"s":5}"#).await;
    world.run_is(deaf, "running").await;
    let began = "select extract(epoch from clock_timestamp())::float8";
    let began: f64 = world.one(began, &[]).await.get(0);
    world.run_is(deaf, "retrying").await;
    assert_eq!(world.last_error(deaf).await, "TIMED_OUT: it took longer than 1 s");
    let suspect: Uuid = world.one("select work.dispatch('t.ok', '{}', 1, delay => '0.1 seconds')", &[]).await.get(0);
    world.db.execute("update work.task_runs set crashes = 2 where run_id = $1", &[&suspect]).await.unwrap();
    for run in [deaf, suspect] {
        world.run_is(run, "succeeded").await;
        let started: f64 =
            world.one("select extract(epoch from started_at)::float8 from work.task_runs where run_id = $1", &[&run]).await.get(0);
        assert!(started - began > 4.0, "started {} s after the deaf one, which ends after 5", started - began);
    }
    assert_eq!(world.trail(deaf).await, ["started", "retrying", "started", "succeeded"]);
}

#[tokio::test]
async fn panics_time_outs_and_returns_with_full_hands_give_everything_back() {
    let world = World::new().await;
    let mut worker = world.start(&[RELAY, DEFAULT, ("MONALISA_CONCURRENCY", "t.greedy=2")]).await;
    for end in ["panic", "sleep"] {
        many(&world, "t.greedy", &format!(r#"{{"end":"{end}"}}"#), 6).await;
    }
    world.count_is("select count(*) from work.task_runs where status = 'failed'", 12).await;
    world.nothing_is_open().await;
    many(&world, "t.greedy", r#"{"end":"return"}"#, 10).await;
    world.count_is(&succeeded("t.greedy"), 10).await;
    world.nothing_is_open().await;
    assert_eq!(world.count("select sum(failures) from work.task_runs where status = 'failed'").await, 60);
    world.messages_are("default-dlq", 12).await;
    let began = Instant::now();
    assert!(worker.stop().await.success());
    in_time(began, Duration::from_secs(5));
}

#[tokio::test]
async fn a_dead_letter_queue_that_hangs_holds_up_no_start() {
    let world = World::new().await;
    world.sqs.fault(r#"{"op":"SendMessageBatch","queue_contains":"dlq","mode":"never_answer"}"#).unwrap();
    let _relay = world.start(RELAY_ALONE).await;
    let _worker = world.start(&[DEFAULT]).await;
    for number in 0..3 {
        world.send("default", &format!("not ours: {number}")).await;
    }
    let gone = |world: &World| world.sqs.calls()["counts"]["SendMessageBatch"].as_u64().unwrap_or(0);
    wait_for("the worker to send them away", async || (gone(&world) >= 3).then_some(())).await;
    for _ in 0..10 {
        let began = Instant::now();
        let run = world.dispatch("t.ok", "{}").await;
        world.run_is(run, "succeeded").await;
        in_time(began, Duration::from_secs(2));
    }
    world.sqs.clear_faults();
    world.messages_are("default-dlq", 3).await;
    world.messages_are("default", 0).await;
}
