//! What is in hand stays ours as long as SQS or PostgreSQL says so, and not for longer; a late heartbeat undoes nothing.

use std::time::Duration;

use crate::support::{
    RELAY, RELAY_ALONE, SHORT, World,
    checks::{CALLED, Counters},
    wait_for,
};

const DEFAULT: (&str, &str) = ("QUEUES", "default");
const LAPSED: &str = "select count(*) from work.task_runs where lease_expires_at < clock_timestamp() - interval '1 s'";

#[tokio::test]
async fn a_message_that_waits_for_a_slot_is_kept_from_others() {
    let world = World::new().await;
    let _first = world.start(&[RELAY, DEFAULT, SHORT]).await;
    let runs = [world.dispatch("t.single", r#"{"s":7}"#).await, world.dispatch("t.single", r#"{"s":0}"#).await];
    world.count_is("select count(*) from work.task_runs where status = 'running'", 1).await;
    wait_for("both to be in hand", async || (world.messages("default").await == (0, 2)).then_some(())).await;
    let _second = world.start(&[DEFAULT, SHORT]).await;
    for run in runs {
        world.ended_well(run, &["started", "succeeded"]).await;
    }
    assert_eq!(world.worker_of(runs[0]).await, world.worker_of(runs[1]).await);
}

#[tokio::test]
async fn a_postgresql_that_hangs_past_the_lease_costs_nothing_while_sqs_hides_the_message() {
    let world = World::new().await;
    let proxy = world.pg_proxy().await;
    let _relay = world.start(RELAY_ALONE).await;
    let _first = world.start(&[DEFAULT, SHORT, ("DATABASE_URL", &proxy.through(&world.url(Some("test_worker"))))]).await;
    let run = world.dispatch("t.sql", r#"{"q":"select nextval('public.calls')","s":9}"#).await;
    world.count_is(CALLED, 1).await;
    proxy.freeze();
    let _second = world.start(&[DEFAULT, SHORT]).await;
    world.count_is(LAPSED, 1).await;
    // More than a visibility later nobody has taken it over.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(world.trail(run).await, [] as [&str; 0]);
    proxy.thaw();
    world.ended_well(run, &["started", "succeeded"]).await;
    assert_eq!(world.counters(run).await, Counters::default());
}

#[tokio::test]
async fn a_worker_cut_off_from_sqs_and_postgresql_ends_its_handlers_by_its_own_clock() {
    for sqs in [
        r#"{"op":"ChangeMessageVisibilityBatch","mode":"never_answer"}"#,
        r#"{"op":"ChangeMessageVisibilityBatch","mode":"error","status":500}"#,
    ] {
        let world = World::new().await;
        let proxy = world.pg_proxy().await;
        let _relay = world.start(RELAY_ALONE).await;
        let worker = world.start(&[DEFAULT, SHORT, ("DATABASE_URL", &proxy.through(&world.url(Some("test_worker"))))]).await;
        let run = world.dispatch("t.obedient", "{}").await;
        worker.log("the handler waits to be told").await;
        world.sqs.fault(sqs).unwrap();
        proxy.freeze();
        worker.log("the handler was told to end").await;
        world.sqs.clear_faults();
        proxy.thaw();
        world.run_is(run, "succeeded").await;
        assert_eq!((world.effects(run).await, world.counters(run).await.failures), (1, 0));
        world.messages_are("default", 0).await;
        world.nothing_is_open().await;
    }
}

#[tokio::test]
async fn a_heartbeat_for_a_handle_that_expired_proves_nothing() {
    let world = World::new().await;
    let proxy = world.pg_proxy().await;
    let _relay = world.start(RELAY_ALONE).await;
    let worker = world.start(&[DEFAULT, SHORT, ("DATABASE_URL", &proxy.through(&world.url(Some("test_worker"))))]).await;
    let run = world.dispatch("t.obedient", "{}").await;
    worker.log("the handler waits to be told").await;
    // SQS refuses until the message has long been visible again, while PostgreSQL goes on extending the lease.
    world.sqs.fault(r#"{"op":"ChangeMessageVisibilityBatch","mode":"error","status":500}"#).unwrap();
    world.count_is("select count(*) from work.task_runs where lease_expires_at > started_at + interval '8 s'", 1).await;
    // Then it says yes to a handle that has expired, and PostgreSQL says nothing.
    proxy.freeze();
    world.sqs.clear_faults();
    worker.log("the handler was told to end").await;
    proxy.thaw();
    world.run_is(run, "succeeded").await;
    assert_eq!((world.effects(run).await, world.counters(run).await.failures), (1, 0));
    world.messages_are("default", 0).await;
}

#[tokio::test]
async fn a_heartbeat_that_arrives_after_the_delete_is_no_error() {
    let world = World::new().await;
    world.sqs.fault(r#"{"op":"ChangeMessageVisibilityBatch","mode":"delay","delay_ms":2500,"times":1}"#).unwrap();
    let worker = world.start(&[RELAY, ("MONALISA_VISIBILITY_SECONDS", "default=6")]).await;
    let run = world.dispatch("t.sleep", r#"{"s":2.5}"#).await;
    world.ended_well(run, &["started", "succeeded"]).await;
    let problems: Vec<String> =
        worker.lines().into_iter().filter(|line| line.contains("\"ERROR\"") || line.contains("SQS refused")).collect();
    assert!(problems.is_empty(), "{problems:#?}");
}

#[tokio::test]
async fn an_attempt_that_panics_outside_its_handler_keeps_nothing() {
    let world = World::new().await;
    let worker = world.start(&[RELAY, ("MONALISA_VISIBILITY_SECONDS", "default=2"), ("MONALISA_CONCURRENCY", "t.bomb=1")]).await;
    let run = world.dispatch("t.bomb", "{}").await;
    worker.log("an attempt panicked outside its handler").await;
    // Its heartbeat is over and its slot free: it is taken over, to the fifth time.
    world.run_is(run, "failed").await;
    assert_eq!(world.counters(run).await, Counters { crashes: 5, ..Counters::default() });
    assert!(world.last_error(run).await.starts_with("WORKER_LOST: "), "{}", world.last_error(run).await);
    world.messages_are("default", 0).await;
    world.messages_are("default-dlq", 1).await;
    let next = world.dispatch("t.ok", "{}").await;
    world.ended_well(next, &["started", "succeeded"]).await;
}
