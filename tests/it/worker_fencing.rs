//! A worker that lost its lease changes nothing, however late it goes on; a server that crashed has forgotten nothing that matters.

use monalisa::sql::runs;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::support::{RELAY, RELAY_ALONE, SHORT, World, checks::Counters, pg_server::PgServer, wait_for};

#[tokio::test]
async fn a_worker_frozen_past_its_lease_records_nothing_when_it_goes_on() {
    for draining in [false, true] {
        let world = World::new().await;
        let _relay = world.start(RELAY_ALONE).await;
        let mut first = world.start(&[SHORT, ("QUEUES", "default"), ("MONALISA_STOP_TIMEOUT_MS", "7000")]).await;
        let mut runs = Vec::new();
        for payload in [r#"{"s":1}"#, r#"{"s":1,"end":"transient"}"#, r#"{"s":1,"end":"permanent"}"#, r#"{"s":60}"#] {
            runs.push(world.dispatch("t.first", payload).await);
        }
        world.count_is("select count(*) from work.task_runs where status = 'running'", 4).await;
        first.signal("STOP");
        let mut second = world.start(&[SHORT, ("QUEUES", "default"), ("MONALISA_STOP_TIMEOUT_MS", "7000")]).await;
        for run in &runs[..3] {
            world.run_is(*run, "succeeded").await;
        }
        let taken_over = "select count(*) from work.run_events where event = 'lost'";
        world.count_is(taken_over, 4).await;
        let before: Vec<String> = trails(&world).await;
        if draining {
            first.signal("TERM");
        }
        first.signal("CONT");
        if draining {
            assert!(first.exit().await.success());
        } else {
            let settled = "lease was lost";
            let noticed = async || first.lines().iter().any(|line| line.contains(settled) || line.contains("interrupted")).then_some(());
            wait_for("the first worker to notice", noticed).await;
            assert!(first.stop().await.success());
        }
        assert_eq!(trails(&world).await, before, "draining: {draining}");
        for run in &runs[..3] {
            assert_eq!(world.trail(*run).await, ["started", "lost", "started", "succeeded"]);
            assert_eq!((world.effects(*run).await, world.counters(*run).await), (1, Counters { crashes: 1, ..Counters::default() }));
        }
        world.run_is(runs[3], "running").await;
        assert!(second.stop().await.success());
        world.run_is(runs[3], "queued").await;
        world.nothing_is_open().await;
        world.messages_are("default-dlq", 0).await;
    }
}

/// State, counters and trail of every run.
async fn trails(world: &World) -> Vec<String> {
    let all = "select r.unit || r.status || r.failures || r.crashes || r.interruptions || r.worker || r.token is null
                      || (select string_agg(e.event, ',' order by e.id) from work.run_events e where e.run_id = r.run_id)
                 from work.task_runs r order by r.run_id";
    world.db.query(all, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn a_worker_frozen_past_its_lease_that_nobody_took_over_does_it_once() {
    let world = World::new().await;
    let worker = world.start(&[RELAY, SHORT]).await;
    let run = world.dispatch("t.obedient", "{}").await;
    worker.log("the handler waits to be told").await;
    worker.signal("STOP");
    // Nobody else is there to take it over.
    let lapsed = "select count(*) from work.task_runs where lease_expires_at < clock_timestamp() - interval '1 s'";
    world.count_is(lapsed, 1).await;
    worker.signal("CONT");
    world.run_is(run, "succeeded").await;
    assert_eq!(world.effects(run).await, 1);
    assert_eq!(world.counters(run).await.failures, 0);
    world.messages_are("default", 0).await;
    world.nothing_is_open().await;
}

#[tokio::test]
async fn a_server_that_crashes_between_a_start_and_its_effect_forgets_both() {
    let server = PgServer::start(&["wal_writer_delay=10s", "fsync=on", "autovacuum=off"]);
    let world = World::with_server(&server).await;
    let _worker = world.start(&[RELAY, SHORT]).await;
    let run = world.dispatch("t.sleep", r#"{"s":2}"#).await;
    world.run_is(run, "running").await;
    server.crash();
    server.go();
    let db = crate::support::connect(&world.url(None)).await;
    let asked = "select status from work.task_runs where run_id = $1";
    wait_for("the run to succeed", async || {
        let status: String = db.query_one(asked, &[&run]).await.unwrap().get(0);
        (status == "succeeded").then_some(())
    })
    .await;
    let ended = "select (select count(*) from public.effects), r.failures, r.crashes,
                        (select string_agg(event, ',' order by id) from work.run_events where run_id = r.run_id)
                   from work.task_runs r";
    let row = db.query_one(ended, &[]).await.unwrap();
    let seen: (i64, i32, i32, String) = (row.get(0), row.get(1), row.get(2), row.get(3));
    // Forgotten, unless something else was flushed meanwhile; then it was interrupted.
    let trail = seen.3.trim_start_matches("started,interrupted,");
    assert_eq!((seen.0, seen.1, seen.2, trail), (1, 0, 0, "started,succeeded"), "{seen:?}");
    world.messages_are("default", 0).await;
}

/// Tries to start one run by a message of this generation; whether it was started.
async fn starts(world: &World, run: Uuid, generation: i32, alone: bool) -> bool {
    let token = vec![Uuid::new_v4()];
    let start: [&(dyn ToSql + Sync); 7] = [&vec![run], &vec![generation], &token, &vec![60.0_f64], &alone, &"w", &"on"];
    !world.db.query(runs::START.text, &start).await.unwrap().is_empty()
}

#[tokio::test]
async fn what_was_judged_is_checked_again_under_the_lock() {
    let world = World::new().await;
    let set = async |run: Uuid, values: &str| {
        world.db.execute(&format!("update work.task_runs set {values} where run_id = $1"), &[&run]).await.unwrap();
    };
    let run = world.dispatch("t.ok", "{}").await;
    set(run, "available_at = clock_timestamp() + interval '1 hour'").await;
    assert!(!starts(&world, run, 1, false).await, "it is not due");
    set(run, "available_at = clock_timestamp(), crashes = 2").await;
    assert!(!starts(&world, run, 1, false).await, "a suspect has company");
    set(run, "crashes = 3, failures = 2").await;
    assert!(!starts(&world, run, 1, true).await, "its five are used up");
    set(run, "crashes = 2, failures = 2").await;
    assert!(starts(&world, run, 1, true).await);
    assert!(world.db.query(runs::CONDEMN.text, &[&run]).await.unwrap().is_empty(), "its holder lives");
    assert!(world.db.query(runs::DEFER.text, &[&run, &"w"]).await.unwrap().is_empty(), "its holder lives");
    assert!(world.db.query(runs::POSTPONE.text, &[&vec![run], &vec![1.0_f64]]).await.unwrap().is_empty(), "it waits no more");
    set(run, "lease_expires_at = clock_timestamp()").await;
    assert_eq!(world.db.query(runs::CONDEMN.text, &[&run]).await.unwrap().len(), 1);
    let reopen = async |mark: i32| world.one(runs::REOPEN.text, &[&run, &mark, &"w"]).await.get::<_, Option<i32>>("generation");
    assert_eq!(reopen(0).await, None, "a letter of an older generation");
    assert_eq!(reopen(1).await, Some(2));
    assert_eq!(reopen(1).await, None, "it was reopened before");
    assert!(!starts(&world, run, 1, true).await, "a message of an older generation");
    assert!(starts(&world, run, 2, false).await);
    assert!(!starts(&world, run, 2, false).await, "it is held");
}
