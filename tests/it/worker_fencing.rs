//! A worker that lost its lease changes nothing, however late it goes on; a server that crashed has forgotten nothing that matters.

use crate::support::{
    RELAY, RELAY_ALONE, SHORT, World,
    checks::{CALLED, Counters},
    pg_server::PgServer,
    wait_for,
};

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
            let settled = "the lease was lost";
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
async fn a_worker_frozen_past_its_lease_that_nobody_took_over_counts_no_crash() {
    let world = World::new().await;
    let worker = world.start(&[RELAY, SHORT]).await;
    let run = world.dispatch("t.obedient", "{}").await;
    world.count_is(CALLED, 1).await;
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
