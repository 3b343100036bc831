//! What the worker commits is decided by the fence where the answer is lost, and late statements find nothing to do.

use uuid::Uuid;

use crate::support::{Process, Proxy, RELAY_ALONE, SHORT, World, checks::Counters, wait_for};

/// A relay that nothing disturbs, and a worker behind a proxy.
async fn behind_a_proxy(world: &World, changes: &[(&str, &str)]) -> (Process, Process, Proxy) {
    let proxy = world.pg_proxy().await;
    let url = proxy.through(&world.url(Some("test_worker")));
    let relay = world.start(RELAY_ALONE).await;
    let mut environment = vec![SHORT, ("DATABASE_URL", &*url), ("QUEUES", "default")];
    environment.extend(changes);
    let worker = world.start(&environment).await;
    (relay, worker, proxy)
}

#[tokio::test]
async fn a_lost_answer_is_decided_by_the_fence() {
    let world = World::new().await;
    let (_relay, _worker, proxy) = behind_a_proxy(&world, &[]).await;
    let once = ["started", "succeeded"];
    let interrupted = ["started", "interrupted", "started", "succeeded"];
    let retried = ["started", "retrying", "started", "succeeded"];
    let cases: [(&str, &str, &str, &[&str]); 5] = [
        ("runs/start:", "t.ok", "{}", &["started", "given_back", "started", "succeeded"]),
        ("runs/succeed:", "t.ok", "{}", &interrupted),
        ("commit", "t.ok", "{}", &once),
        ("runs/fail:", "t.transient", r#"{"n":1}"#, &retried),
        ("COMMIT", "t.transient", r#"{"n":1}"#, &retried),
    ];
    for (place, (statement, unit, payload, trail)) in (1..).zip(cases) {
        if statement.ends_with(':') {
            proxy.swallow_answer_to(statement);
        } else {
            proxy.swallow_answer_to_just(statement);
        }
        let run = world.dispatch(unit, payload).await;
        world.ended_well(run, trail).await;
        assert_eq!(proxy.swallowed(), place, "{statement}");
        let counters = world.counters(run).await;
        let failures = trail.iter().filter(|event| **event == "retrying").count() as i32;
        let interruptions = trail.iter().filter(|event| **event == "interrupted").count() as i32;
        assert_eq!(counters, Counters { failures, interruptions, ..Counters::default() }, "{statement}");
    }
}

#[tokio::test]
async fn a_lost_answer_to_a_success_without_an_effect_is_decided_by_the_fence() {
    let world = World::new().await;
    let (_relay, _worker, proxy) = behind_a_proxy(&world, &[]).await;
    proxy.swallow_answer_to("runs/succeed_alone:");
    let run = world.dispatch("t.idle", "{}").await;
    world.run_is(run, "succeeded").await;
    world.messages_are("default", 0).await;
    assert_eq!((world.trail(run).await, proxy.swallowed()), (vec!["started".to_owned(), "succeeded".to_owned()], 1));
    assert_eq!(world.counters(run).await, Counters::default());
    world.nothing_is_open().await;
}

#[tokio::test]
async fn a_lost_answer_to_a_run_given_back_in_a_drain_counts_nothing() {
    for (statement, place) in [("runs/give_back:", 1), ("COMMIT", 2)] {
        let world = World::new().await;
        let (_relay, mut worker, proxy) = behind_a_proxy(&world, &[("MONALISA_STOP_TIMEOUT_MS", "7000")]).await;
        let run = world.dispatch("t.sleep", r#"{"s":3}"#).await;
        world.run_is(run, "running").await;
        if place == 1 {
            proxy.swallow_answer_to(statement);
        } else {
            proxy.swallow_answer_to_just(statement);
        }
        assert!(worker.stop().await.success());
        world.run_is(run, "queued").await;
        assert_eq!((world.trail(run).await, proxy.swallowed()), (vec!["started".to_owned(), "given_back".to_owned()], 1), "{statement}");
        let _other = world.start(&[SHORT]).await;
        world.ended_well(run, &["started", "given_back", "started", "succeeded"]).await;
        assert_eq!(world.counters(run).await, Counters::default());
    }
}

#[tokio::test]
async fn a_start_that_arrives_after_its_session_was_given_up_counts_no_crash() {
    let world = World::new().await;
    let (_relay, worker, proxy) = behind_a_proxy(&world, &[("MONALISA_VISIBILITY_SECONDS", "default=30")]).await;
    proxy.deliver_late("runs/start:");
    let hidden = || world.sqs.calls()["counts"]["ChangeMessageVisibilityBatch"].as_u64().unwrap_or(0);
    let before = hidden();
    let run = world.dispatch("t.ok", "{}").await;
    worker.log("a start failed").await;
    wait_for("the message to be let go", async || (hidden() > before).then_some(())).await;
    // The network delivers it now, though nobody waits for its answer any more.
    proxy.release();
    world.ended_well(run, &["started", "given_back", "started", "succeeded"]).await;
    assert_eq!(world.counters(run).await, Counters::default());
}

/// An effect that fails at its COMMIT, the first time only.
const FAILS_AT_COMMIT: &str = "
    create function public.fail_once() returns trigger language plpgsql security definer as $$ begin
      if nextval('public.calls') = 1 then raise exception 'not yet' using errcode = '23514'; end if; return null; end $$;
    create constraint trigger fail_once after insert on public.effects deferrable initially deferred
      for each row execute function public.fail_once()";

#[tokio::test]
async fn a_constraint_that_fails_at_the_commit_fails_the_attempt() {
    let world = World::new().await;
    world.db.batch_execute(FAILS_AT_COMMIT).await.unwrap();
    let _workers = world.workers().await;
    let run = world.dispatch("t.ok", "{}").await;
    world.ended_well(run, &["started", "retrying", "started", "succeeded"]).await;
    assert!(world.last_error(run).await.starts_with("SQL_23514: not yet"), "{}", world.last_error(run).await);
    assert_eq!(world.counters(run).await, Counters { failures: 1, ..Counters::default() });
}

async fn sql(world: &World, q: &str, rest: &str) -> Uuid {
    world.one("select work.dispatch('t.sql', jsonb_build_object('q', $1::text) || $2::text::jsonb, 1)", &[&q, &rest]).await.get(0)
}

#[tokio::test]
async fn an_effect_session_that_the_server_ends_is_an_interruption_and_no_failure() {
    let world = World::new().await;
    let _workers = world.workers().await;
    let ended = "select case when nextval('public.calls') = 1 then pg_terminate_backend(pg_backend_pid()) end";
    let idle =
        "select set_config('idle_in_transaction_session_timeout', case nextval('public.calls') when 1 then '100ms' else '0' end, true)";
    // In a statement, while the handler works elsewhere, and where the handler does not look at the error.
    for (q, rest) in [(ended, "{}"), (idle, r#"{"s":1.5}"#), (ended, r#"{"swallow":true}"#)] {
        world.db.batch_execute("alter sequence public.calls restart").await.unwrap();
        let run = sql(&world, q, rest).await;
        world.ended_well(run, &["started", "interrupted", "started", "succeeded"]).await;
        assert_eq!(world.counters(run).await, Counters { interruptions: 1, ..Counters::default() }, "{q}");
    }
}

#[tokio::test]
async fn a_failure_is_recorded_though_its_own_session_is_gone() {
    let world = World::new().await;
    let _workers = world.workers().await;
    let run = sql(&world, "select pg_terminate_backend(pg_backend_pid())", r#"{"permanent":true}"#).await;
    world.run_is(run, "failed").await;
    assert_eq!(world.trail(run).await, ["started", "failed"]);
    assert_eq!(world.last_error(run).await, "VALIDATION: it is no use");
    world.messages_are("default-dlq", 1).await;
    world.nothing_is_open().await;
}

#[tokio::test]
async fn the_twenty_first_interruption_is_a_failure() {
    let world = World::new().await;
    let run = sql(&world, "select pg_terminate_backend(pg_backend_pid())", "{}").await;
    world.db.execute("update work.task_runs set interruptions = 20 where run_id = $1", &[&run]).await.unwrap();
    let _workers = world.workers().await;
    world.run_is(run, "failed").await;
    assert!(world.last_error(run).await.starts_with("INTERRUPTED: "), "{}", world.last_error(run).await);
    assert_eq!(world.counters(run).await, Counters { failures: 5, interruptions: 20, ..Counters::default() });
    world.messages_are("default-dlq", 1).await;
    world.messages_are("default", 0).await;
}

#[tokio::test]
async fn a_verdict_whose_commit_is_not_answered_is_carried_out_once() {
    let world = World::new().await;
    let (_relay, _worker, proxy) = behind_a_proxy(&world, &[]).await;
    // A redriven dead letter.
    let run = world.dispatch("t.first", r#"{"s":0,"end":"permanent"}"#).await;
    world.run_is(run, "failed").await;
    world.messages_are("default-dlq", 1).await;
    world.messages_are("default", 0).await;
    let letter = world.dead_letters("default").await[0].body().unwrap().to_owned();
    world.db.execute("update work.task_runs set payload = '{\"s\":0}' where run_id = $1", &[&run]).await.unwrap();
    proxy.swallow_answer_to_just("COMMIT");
    world.send("default", &letter).await;
    world.ended_well(run, &["started", "failed", "redriven", "started", "succeeded"]).await;
    assert_eq!(proxy.swallowed(), 1);
    // A run whose five are used up.
    let run: Uuid = world.one("select work.dispatch('t.ok', '{}', 1, delay => '0.3 seconds')", &[]).await.get(0);
    let dying = "update work.task_runs set status = 'running', crashes = 4, starts = 5, token = gen_random_uuid(), worker = 'dead',
                   started_at = clock_timestamp(), lease_expires_at = clock_timestamp() where run_id = $1";
    world.db.execute(dying, &[&run]).await.unwrap();
    proxy.swallow_answer_to_just("COMMIT");
    world.run_is(run, "failed").await;
    world.messages_are("default", 0).await;
    assert_eq!((world.trail(run).await.len(), proxy.swallowed()), (3, 2));
    world.nothing_is_open().await;
}
