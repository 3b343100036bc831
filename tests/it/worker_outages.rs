//! PostgreSQL, SQS or both are away from a worker for a while: nothing is charged to any run, nothing is received that cannot be dealt
//! with, and the work goes on soon after.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use uuid::Uuid;

use crate::support::{
    Process, RELAY, RELAY_ALONE, SHORT, SOON, World,
    checks::{Counters, UNFINISHED},
    connect, in_time,
    pg_server::PgServer,
    wait_for,
};

const DEFAULT: (&str, &str) = ("QUEUES", "default");
const SUCCEEDED: &str = "select count(*) from work.task_runs where status = 'succeeded'";

fn receives(world: &World) -> u64 {
    world.sqs.calls()["counts"]["ReceiveMessage"].as_u64().unwrap_or(0)
}

/// Fifty runs, some of which are under way.
async fn under_way(world: &World) {
    world.load(50).await;
    wait_for("some to be done", async || (world.count(SUCCEEDED).await >= 5).then_some(())).await;
}

/// After the fault has ended: a new run is done soon, and so is what was there before. Nobody was charged for it.
async fn nothing_was_charged(world: &World) {
    let began = Instant::now();
    let run = world.dispatch("t.ok", "{}").await;
    world.run_is(run, "succeeded").await;
    // Ten seconds, and more on a machine on which many other tests open many connections.
    in_time(began, SOON * 3);
    world.count_is(UNFINISHED, 0).await;
    let runs = world.count("select count(*) from work.task_runs").await;
    world.exactly_once(runs).await;
    assert_eq!(world.count("select sum(failures + crashes) from work.task_runs").await, 0);
    world.messages_are("default", 0).await;
    world.nothing_is_open().await;
}

/// While PostgreSQL is away from this worker it costs little and receives nothing: who cannot judge a message leaves it to others.
async fn waits_quietly(world: &World, worker: &Process, away: Duration) {
    // A long poll that is under way takes a second.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (received, cost) = (receives(world), worker.cost());
    tokio::time::sleep(away).await;
    cost.is_small();
    assert_eq!(receives(world), received, "messages were received that nobody could judge");
}

#[tokio::test]
async fn a_postgresql_that_is_gone_or_frozen_costs_no_attempt_and_nothing_is_received_meanwhile() {
    let gone = async {
        let world = World::new().await;
        let proxy = world.pg_proxy().await;
        let worker = world.start(&[RELAY, DEFAULT, SHORT, ("DATABASE_URL", &proxy.through(&world.url(Some("test_worker"))))]).await;
        under_way(&world).await;
        proxy.refuse().await;
        proxy.cut().await;
        waits_quietly(&world, &worker, Duration::from_secs(8)).await;
        proxy.accept().await;
        nothing_was_charged(&world).await;
    };
    let frozen = async {
        let world = World::new().await;
        let proxy = world.pg_proxy().await;
        let worker = world.start(&[RELAY, DEFAULT, SHORT, ("DATABASE_URL", &proxy.through(&world.url(Some("test_worker"))))]).await;
        under_way(&world).await;
        // Longer than any statement of the runtime's own is waited for; what is sent meanwhile arrives afterwards.
        proxy.freeze();
        waits_quietly(&world, &worker, Duration::from_secs(13)).await;
        proxy.thaw();
        nothing_was_charged(&world).await;
    };
    tokio::join!(gone, frozen);
}

#[tokio::test]
async fn a_postgresql_that_restarts_costs_no_attempt() {
    let server = PgServer::start(&[]);
    let mut world = World::with_server(&server).await;
    let _workers = [world.start(&[RELAY, DEFAULT, SHORT]).await, world.start(&[DEFAULT, SHORT]).await];
    for mode in ["fast", "immediate"] {
        under_way(&world).await;
        server.restart(mode);
        world.db = connect(&world.url(None)).await;
        nothing_was_charged(&world).await;
    }
}

#[tokio::test]
async fn sessions_that_became_read_only_in_a_failover_are_replaced() {
    let server = PgServer::start(&[]);
    let world = World::with_server(&server).await;
    let _workers = [world.start(&[RELAY, DEFAULT, SHORT]).await, world.start(&[DEFAULT, SHORT]).await];
    under_way(&world).await;
    // Sessions that are open become read-only; new ones can write.
    world
        .db
        .batch_execute("alter role test_worker set default_transaction_read_only = off; set default_transaction_read_only = off")
        .await
        .unwrap();
    world.db.batch_execute("alter system set default_transaction_read_only = on").await.unwrap();
    world.db.batch_execute("select pg_reload_conf()").await.unwrap();
    world.load(20).await;
    nothing_was_charged(&world).await;
}

#[tokio::test]
async fn tables_that_are_altered_under_load_cost_no_attempt() {
    let world = World::new().await;
    let _workers = [world.start(&[RELAY, DEFAULT, SHORT]).await, world.start(&[DEFAULT, SHORT]).await];
    for alter in [
        "alter table work.outbox_messages add column x int",
        "alter table work.task_runs add column y int",
        "alter table work.task_runs alter column unit type varchar(200)",
        "alter table work.task_runs alter column worker type varchar(2000)",
        "alter table work.task_runs alter column last_error type varchar(20000)",
        "alter table work.outbox_messages drop column x; alter table work.task_runs drop column y",
    ] {
        under_way(&world).await;
        wait_for("the table to be altered", async || world.db.batch_execute(&format!("set lock_timeout = '1s'; {alter}")).await.ok()).await;
    }
    world.count_is(UNFINISHED, 0).await;
    nothing_was_charged(&world).await;
}

#[tokio::test]
async fn limits_that_a_dba_sets_for_the_role_end_no_handler() {
    let world = World::new().await;
    let name = world.one("select current_database()::text", &[]).await.get::<_, String>(0);
    for limit in
        ["idle_in_transaction_session_timeout = '1s'", "statement_timeout = '1s'", "lock_timeout = '10ms'", "idle_session_timeout = '1s'"]
    {
        world.db.batch_execute(&format!("alter role test_worker in database {name} set {limit}")).await.unwrap();
    }
    if world.count("select current_setting('server_version_num')::int8").await >= 170_000 {
        world.db.batch_execute(&format!("alter role test_worker in database {name} set transaction_timeout = '1s'")).await.unwrap();
    }
    let worker = world.start(&[RELAY, DEFAULT, SHORT]).await;
    let runs = [
        world.dispatch("t.sleep", r#"{"s":3}"#).await,
        world.dispatch("t.sql", r#"{"q":"select pg_sleep(3)"}"#).await,
        world.dispatch("t.single", r#"{"s":3}"#).await,
    ];
    for run in runs {
        world.ended_well(run, &["started", "succeeded"]).await;
        assert_eq!(world.counters(run).await, Counters::default());
    }
    worker.cost().is_quiet();
    nothing_was_charged(&world).await;
}

#[tokio::test]
async fn a_role_that_loses_its_connections_works_with_what_is_left() {
    let server = PgServer::start(&[]);
    let world = World::with_server(&server).await;
    let worker = world.start(&[RELAY, DEFAULT, SHORT]).await;
    under_way(&world).await;
    let end = "select count(pg_terminate_backend(pid)) from pg_stat_activity where usename = 'test_worker'";
    world.db.batch_execute("alter role test_worker connection limit 3").await.unwrap();
    world.count(end).await;
    let cost = worker.cost();
    tokio::time::sleep(Duration::from_secs(5)).await;
    cost.is_small();
    world.db.batch_execute("alter role test_worker connection limit -1").await.unwrap();
    nothing_was_charged(&world).await;
}

/// A run of this unit meets a statement that is carried out and never answered, on a connection that stays open: it ends all the same.
async fn is_given_up(statement: &str, just: bool, unit: &str, payload: &str, trail: &[&str]) {
    let world = World::new().await;
    let proxy = world.pg_proxy().await;
    let url = proxy.through(&world.url(Some("test_worker")));
    let mut environment = vec![RELAY, DEFAULT, ("DATABASE_URL", &*url)];
    if unit == "t.idle" {
        // Whether it was committed is not known here: its message comes back and is judged.
        environment.push(SHORT);
    }
    let _worker = world.start(&environment).await;
    if just {
        proxy.hold_answer_to_just(statement)
    } else {
        proxy.hold_answer_to(statement)
    }
    let run = world.dispatch(unit, payload).await;
    world.run_is(run, "succeeded").await;
    // PostgreSQL shows what it committed before its answer is on its way.
    wait_for(statement, async || (proxy.held() > 0).then_some(())).await;
    assert_eq!((world.trail(run).await, proxy.held()), (trail.iter().map(ToString::to_string).collect(), 1), "{statement}");
    let failures = trail.iter().filter(|event| **event == "retrying").count() as i32;
    assert_eq!((world.counters(run).await.failures, world.counters(run).await.crashes), (failures, 0), "{statement}");
    world.messages_are("default", 0).await;
    world.nothing_is_open().await;
}

#[tokio::test]
async fn a_statement_that_is_never_answered_is_given_up() {
    let once: &[&str] = &["started", "succeeded"];
    let again: &[&str] = &["started", "given_back", "started", "succeeded"];
    let retried: &[&str] = &["started", "retrying", "started", "succeeded"];
    let cases = [
        ("outbox/due:", false, "t.ok", "{}", once),
        ("outbox/claim:", false, "t.ok", "{}", once),
        ("outbox/mark_sent:", false, "t.ok", "{}", once),
        ("queues/serve:", false, "t.ok", "{}", once),
        ("runs/judge:", false, "t.ok", "{}", once),
        ("runs/start:", false, "t.ok", "{}", again),
        ("runs/succeed_alone:", false, "t.idle", "{}", once),
        ("runs/fail:", false, "t.transient", r#"{"n":1}"#, retried),
    ];
    join_all(cases.map(|(statement, just, unit, payload, trail)| is_given_up(statement, just, unit, payload, trail))).await;
}

/// The first attempt of a run meets a session that answers nothing any more; how it ended.
async fn first_end(unit: &str, payload: &str, held: &str) -> (World, Uuid) {
    let world = World::new().await;
    let proxy = world.pg_proxy().await;
    let _worker = world.start(&[RELAY, DEFAULT, SHORT, ("DATABASE_URL", &proxy.through(&world.url(Some("test_worker"))))]).await;
    proxy.hold_answer_to(held);
    let run = world.dispatch(unit, payload).await;
    let ends = "select count(*) from work.run_events where run_id = $1 and event not in ('started')";
    wait_for("the first attempt to end", async || (world.one(ends, &[&run]).await.get::<_, i64>(0) > 0).then_some(())).await;
    (world, run)
}

#[tokio::test]
async fn a_handler_whose_session_answers_nothing_more_is_interrupted_and_has_not_failed() {
    // It takes longer than it may, or gives up by itself.
    let cases = [("t.slow", "{}", "insert into public.effects"), ("t.sql", r#"{"q":"select 4711","patience":0.5}"#, "select 4711")];
    join_all(cases.map(async |(unit, payload, held)| {
        let (world, run) = first_end(unit, payload, held).await;
        assert_eq!(world.trail(run).await[..2], ["started", "interrupted"], "{unit}");
        assert_eq!(world.counters(run).await.failures, 0, "{unit}");
    }))
    .await;
    // A statement that is only slow is the handler's own failure.
    let world = World::new().await;
    let _worker = world.start(&[RELAY, DEFAULT, SHORT]).await;
    let run = world.dispatch("t.sql", r#"{"q":"select pg_sleep(60)","patience":0.5}"#).await;
    world.run_is(run, "retrying").await;
    assert!(world.last_error(run).await.contains("waits no longer"), "{}", world.last_error(run).await);
}

/// A worker goes through a fault of SQS while there is work, at a small cost.
async fn weathers(rule: &str) {
    let world = World::new().await;
    let worker = world.start(&[RELAY, DEFAULT, SHORT]).await;
    under_way(&world).await;
    world.sqs.fault(rule).unwrap();
    world.load(10).await;
    // What is under way is finished first; that is work and no cost of the fault.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let cost = worker.cost();
    tokio::time::sleep(Duration::from_secs(4)).await;
    cost.is_small();
    world.sqs.clear_faults();
    nothing_was_charged(&world).await;
}

#[tokio::test]
async fn a_worker_weathers_whatever_sqs_does_to_its_calls() {
    let refused = |op: &str| format!(r#"{{"op":"{op}","mode":"error","status":403,"code":"AccessDenied"}}"#);
    let failed = |op: &str| format!(r#"{{"op":"{op}","mode":"error","status":500,"code":"InternalError"}}"#);
    let throttled = |op: &str| format!(r#"{{"op":"{op}","mode":"throttle"}}"#);
    let silent = |op: &str| format!(r#"{{"op":"{op}","mode":"never_answer"}}"#);
    for op in ["ReceiveMessage", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"] {
        join_all([refused(op), failed(op), throttled(op), silent(op)].map(async |rule| weathers(&rule).await)).await;
    }
}

#[tokio::test]
async fn a_queue_that_is_deleted_and_made_again_is_polled_again() {
    let world = World::new().await;
    let worker = world.start(&[RELAY, DEFAULT, SHORT]).await;
    let run = world.dispatch("t.ok", "{}").await;
    world.run_is(run, "succeeded").await;
    let (queues, url) = (world.queues().await, world.sqs.queue_url("t-default"));
    queues.delete_queue().queue_url(&url).send().await.unwrap();
    let cost = worker.cost();
    tokio::time::sleep(Duration::from_secs(5)).await;
    cost.is_small();
    let made = world.command("workers", &["queues", "create"]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    nothing_was_charged(&world).await;
}

#[tokio::test]
async fn a_lease_that_lapsed_in_an_outage_is_left_to_its_worker_for_a_while() {
    let world = World::new().await;
    let (of_first, of_second) = (world.pg_proxy().await, world.pg_proxy().await);
    let [first, second] = [&of_first, &of_second].map(|proxy| proxy.through(&world.url(Some("test_worker"))));
    let _relay = world.start(RELAY_ALONE).await;
    let _first = world.start(&[DEFAULT, SHORT, ("DATABASE_URL", &first)]).await;
    let run = world.dispatch("t.single", r#"{"s":2}"#).await;
    world.run_is(run, "running").await;
    let second = world.start(&[DEFAULT, SHORT, ("DATABASE_URL", &second)]).await;
    for proxy in [&of_first, &of_second] {
        proxy.refuse().await;
        proxy.cut().await;
    }
    world.sqs.fault(r#"{"mode":"error","status":500,"code":"InternalError"}"#).unwrap();
    world.count_is("select count(*) from work.task_runs where lease_expires_at < clock_timestamp() - interval '8 s'", 1).await;
    // The second is back first, and is offered the run.
    world.sqs.clear_faults();
    of_second.accept().await;
    second.log("works again").await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(world.trail(run).await, [] as [&str; 0]);
    of_first.accept().await;
    world.ended_well(run, &["started", "interrupted", "started", "succeeded"]).await;
    assert_eq!(world.counters(run).await, Counters { interruptions: 1, ..Counters::default() });
}

#[tokio::test]
async fn postgresql_and_sqs_away_at_once_cost_no_attempt() {
    let world = World::new().await;
    let proxy = world.pg_proxy().await;
    let _relay = world.start(RELAY_ALONE).await;
    let worker = world.start(&[DEFAULT, SHORT, ("DATABASE_URL", &proxy.through(&world.url(Some("test_worker"))))]).await;
    under_way(&world).await;
    world.sqs.fault(r#"{"mode":"error","status":500,"code":"InternalError"}"#).unwrap();
    proxy.refuse().await;
    proxy.cut().await;
    let cost = worker.cost();
    tokio::time::sleep(Duration::from_secs(8)).await;
    cost.is_small();
    // In one order and in the other.
    world.sqs.clear_faults();
    tokio::time::sleep(Duration::from_secs(2)).await;
    proxy.accept().await;
    nothing_was_charged(&world).await;
    under_way(&world).await;
    proxy.freeze();
    world.sqs.fault(r#"{"mode":"never_answer"}"#).unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    proxy.thaw();
    tokio::time::sleep(Duration::from_secs(1)).await;
    world.sqs.clear_faults();
    nothing_was_charged(&world).await;
}

#[tokio::test]
async fn what_is_deleted_from_its_queue_is_on_disk_whatever_the_server_does_by_default() {
    let server = PgServer::start(&["synchronous_commit=off", "wal_writer_delay=10s", "fsync=on"]);
    let world = World::with_server(&server).await;
    let url = world.url(None);
    let worker = world.start(&[RELAY, DEFAULT]).await;
    let runs =
        [world.dispatch("t.ok", "{}").await, world.dispatch("t.idle", "{}").await, world.dispatch("t.permanent", r#"{"msg":"x"}"#).await];
    // The dispatches themselves are the API's affair.
    world.db.batch_execute("set synchronous_commit = on; select txid_current()").await.unwrap();
    for (run, end) in runs.iter().zip(["succeeded", "succeeded", "failed"]) {
        world.run_is(*run, end).await;
    }
    world.messages_are("default", 0).await;
    server.crash();
    drop(worker);
    server.go();
    let db = connect(&url).await;
    let ended = "select count(*) from work.task_runs where status in ('succeeded', 'failed')";
    assert_eq!(db.query_one(ended, &[]).await.unwrap().get::<_, i64>(0), 3);
}
