//! A stop costs nothing: what was not started is there at once, what was is finished or given back, and nothing holds the stop up.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{Process, RELAY, RELAY_ALONE, SHORT, World, checks::Counters, in_time, wait_for};

const DEFAULT: (&str, &str) = ("QUEUES", "default");
/// Two seconds for what is under way.
const SOON: (&str, &str) = ("MONALISA_STOP_TIMEOUT_MS", "7000");

fn receives(world: &World) -> u64 {
    world.sqs.calls()["counts"]["ReceiveMessage"].as_u64().unwrap_or(0)
}

#[tokio::test]
async fn a_message_that_a_receive_under_way_brings_after_the_signal_is_visible_at_once() {
    let world = World::new().await;
    let run = world.dispatch("t.ok", "{}").await;
    let envelope: String = world.one("select envelope::text from work.outbox_messages where run_id = $1", &[&run]).await.get(0);
    let mut worker = world.start(&[DEFAULT, ("MONALISA_SQS_WAIT_SECONDS", "3")]).await;
    let before = receives(&world);
    wait_for("a receive to begin", async || (receives(&world) > before).then_some(())).await;
    worker.signal("TERM");
    worker.log("stopping").await;
    let begun = receives(&world);
    world.send("default", &envelope).await;
    let began = Instant::now();
    assert!(worker.exit().await.success());
    in_time(began, Duration::from_secs(5));
    assert_eq!(world.messages("default").await, (1, 0), "with a visibility of two minutes");
    assert_eq!(receives(&world), begun, "no receive began after the signal");
    assert_eq!(world.trail(run).await, [] as [&str; 0]);
}

#[tokio::test]
async fn no_receive_begins_when_the_signal_comes_while_postgresql_is_asked() {
    let world = World::new().await;
    let proxy = world.pg_proxy().await;
    let mut worker = world.start(&[DEFAULT, ("DATABASE_URL", &proxy.through(&world.url(Some("test_worker"))))]).await;
    proxy.freeze();
    wait_for("the poller to ask", async || (proxy.stuck() > 0).then_some(())).await;
    let before = receives(&world);
    worker.signal("TERM");
    worker.log("stopping").await;
    proxy.thaw();
    assert!(worker.exit().await.success());
    assert_eq!(receives(&world), before);
}

#[tokio::test]
async fn messages_that_wait_for_a_slot_are_there_for_others_as_soon_as_the_process_stops() {
    let world = World::new().await;
    let _relay = world.start(RELAY_ALONE).await;
    let mut worker = world.start(&[DEFAULT]).await;
    for _ in 0..4 {
        world.dispatch("t.single", r#"{"s":6}"#).await;
    }
    world.count_is("select count(*) from work.task_runs where status = 'running'", 1).await;
    wait_for("all to be in hand", async || (world.messages("default").await == (0, 4)).then_some(())).await;
    worker.signal("TERM");
    let began = Instant::now();
    wait_for("those that wait", async || (world.messages("default").await == (3, 1)).then_some(())).await;
    in_time(began, Duration::from_secs(2));
    assert!(worker.exit().await.success());
    world.count_is("select count(*) from work.task_runs where status = 'succeeded'", 1).await;
    world.nothing_is_open().await;
}

#[tokio::test]
async fn a_handler_deaf_to_its_end_holds_no_stop_and_commits_nothing_later() {
    let world = World::new().await;
    let _relay = world.start(RELAY_ALONE).await;
    let mut first = world.start(&[DEFAULT, SOON]).await;
    let run = world.dispatch("t.block", r#"{"s":5}"#).await;
    world.run_is(run, "running").await;
    let began = Instant::now();
    assert!(first.stop().await.success());
    in_time(began, Duration::from_secs(5));
    assert_eq!(world.trail(run).await, ["started", "given_back"]);
    let reason: String = world.one("select detail ->> 'reason' from work.run_events where event = 'given_back'", &[]).await.get(0);
    assert!(reason.contains("stopped"), "{reason}");
    let _second = world.start(&[DEFAULT]).await;
    world.ended_well(run, &["started", "given_back", "started", "succeeded"]).await;
    assert_eq!(world.counters(run).await, Counters::default());
}

#[tokio::test]
async fn a_second_signal_exits_at_once_and_the_run_is_taken_over() {
    let world = World::new().await;
    let _relay = world.start(RELAY_ALONE).await;
    let mut first = world.start(&[DEFAULT, SHORT]).await;
    let run = world.dispatch("t.first", r#"{"s":4}"#).await;
    world.run_is(run, "running").await;
    first.signal("TERM");
    first.log("stopping").await;
    first.signal("INT");
    let began = Instant::now();
    assert!(first.exit().await.success(), "stopped by a signal");
    in_time(began, Duration::from_secs(2));
    assert_eq!((world.trail(run).await.len(), world.effects(run).await), (0, 0));
    let _second = world.start(&[DEFAULT, SHORT]).await;
    world.ended_well(run, &["started", "lost", "started", "succeeded"]).await;
}

#[tokio::test]
async fn a_connection_that_stays_open_on_the_health_port_holds_no_stop_up() {
    let world = World::new().await;
    let _relay = world.start(RELAY_ALONE).await;
    let mut worker = world.start(&[DEFAULT]).await;
    let port = worker.health_port().await;
    let mut open = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let mut ask = async || {
        open.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let mut answer = vec![0; 64 * 1024];
        let count = open.read(&mut answer).await.unwrap();
        String::from_utf8_lossy(&answer[..count]).into_owned()
    };
    wait_for("readiness", async || ask().await.starts_with("HTTP/1.1 200").then_some(())).await;
    let run = world.dispatch("t.sleep", r#"{"s":2}"#).await;
    world.run_is(run, "running").await;
    worker.signal("TERM");
    worker.log("stopping").await;
    let draining = ask().await;
    assert!(draining.starts_with("HTTP/1.1 503") && draining.contains("draining"), "{draining}");
    let began = Instant::now();
    assert!(worker.exit().await.success());
    in_time(began, Duration::from_secs(5));
    world.ended_well(run, &["started", "succeeded"]).await;
}

/// The seconds of the lease that are left.
async fn lease(world: &World) -> f64 {
    let left = "select coalesce(max(extract(epoch from lease_expires_at - clock_timestamp())), 0)::float8 from work.task_runs";
    world.one(left, &[]).await.get(0)
}

#[tokio::test]
async fn a_drain_that_begins_while_postgresql_hangs_lets_its_messages_go() {
    let world = World::new().await;
    let _relay = world.start(RELAY_ALONE).await;
    let proxy = world.pg_proxy().await;
    let mut worker = world.start(&[DEFAULT, SOON, ("DATABASE_URL", &proxy.through(&world.url(Some("test_worker"))))]).await;
    let run = world.dispatch("t.first", r#"{"s":5}"#).await;
    world.run_is(run, "running").await;
    proxy.freeze();
    worker.signal("TERM");
    worker.exit().await;
    assert_eq!(world.messages("default").await, (1, 0), "with a visibility of two minutes");
}

/// A worker in a drain with a run under way that was cut off from PostgreSQL, or hears nothing from it any more.
async fn without_postgresql(world: &World, frozen: bool) -> Process {
    let proxy = world.pg_proxy().await;
    // The drain lasts long enough to be cut off in the middle of it.
    let budget = ("MONALISA_STOP_TIMEOUT_MS", "9000");
    let mut worker = world.start(&[DEFAULT, budget, ("DATABASE_URL", &proxy.through(&world.url(Some("test_worker"))))]).await;
    let run = world.dispatch("t.first", r#"{"s":8}"#).await;
    world.run_is(run, "running").await;
    assert!(lease(world).await > 60.0, "of a visibility of two minutes");
    worker.signal("TERM");
    wait_for("the lease to be shortened", async || (lease(world).await < 10.0).then_some(())).await;
    if frozen {
        proxy.freeze();
    } else {
        proxy.refuse().await;
        proxy.cut().await;
    }
    let began = Instant::now();
    worker.exit().await;
    in_time(began, Duration::from_secs(11));
    worker
}

#[tokio::test]
async fn a_drain_without_postgresql_lets_its_messages_go_and_its_lease_ends_with_it() {
    for frozen in [false, true] {
        let world = World::new().await;
        let _relay = world.start(RELAY_ALONE).await;
        without_postgresql(&world, frozen).await;
        assert_eq!(world.messages("default").await, (1, 0), "frozen: {frozen}");
        let began = Instant::now();
        let _second = world.start(&[DEFAULT]).await;
        let run = world.one("select run_id from work.task_runs", &[]).await.get(0);
        wait_for("the run to be taken over", async || (world.trail(run).await.len() > 1).then_some(())).await;
        in_time(began, Duration::from_secs(13));
        // Nobody could write down that it was given back: this is the one stop that counts.
        assert_eq!(world.counters(run).await, Counters { crashes: 1, ..Counters::default() });
        world.ended_well(run, &["started", "lost", "started", "succeeded"]).await;
    }
}

#[tokio::test]
async fn a_drain_keeps_the_heartbeat_of_what_is_under_way() {
    let world = World::new().await;
    let mut first = world.start(&[RELAY, DEFAULT, SHORT, ("MONALISA_STOP_TIMEOUT_MS", "20000")]).await;
    let run = world.dispatch("t.sleep", r#"{"s":8}"#).await;
    world.run_is(run, "running").await;
    let holder = world.worker_of(run).await;
    let _second = world.start(&[DEFAULT, SHORT]).await;
    assert!(first.stop().await.success());
    world.ended_well(run, &["started", "succeeded"]).await;
    assert_eq!(world.worker_of(run).await, holder);
}
