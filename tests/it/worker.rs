//! Workers that die, stop, sleep or meet what they do not know.

use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::support::{RELAY, SHORT, World, in_time, wait_for};

async fn counters(world: &World, run: Uuid) -> (i32, i32, i32) {
    let row = world.one("select failures, crashes, deferrals from work.task_runs where run_id = $1", &[&run]).await;
    (row.get(0), row.get(1), row.get(2))
}

#[tokio::test]
async fn a_killed_worker_loses_nothing_and_its_effect_is_not_doubled() {
    let world = World::new().await;
    let mut first = world.start(&[RELAY, SHORT]).await;
    let run = world.dispatch("t.sleep", r#"{"s":2}"#).await;
    world.run_is(run, "running").await;
    first.kill();
    let _second = world.start(&[RELAY, SHORT]).await;
    world.run_is(run, "succeeded").await;
    assert_eq!(world.trail(run).await, ["started", "lost", "started", "succeeded"]);
    assert_eq!((world.effects(run).await, counters(&world, run).await), (1, (0, 1, 0)));
    world.messages_are("default", 0).await;
}

#[tokio::test]
async fn a_drain_lets_running_work_finish_and_receives_nothing_more() {
    let world = World::new().await;
    let mut worker = world.start(&[RELAY]).await;
    let run = world.dispatch("t.sleep", r#"{"s":2}"#).await;
    world.run_is(run, "running").await;
    worker.signal("TERM");
    let stopping = worker.log("stopping").await["timestamp"].as_str().unwrap().parse::<chrono::DateTime<chrono::Utc>>().unwrap();
    assert!(worker.exit().await.success());
    world.run_is(run, "succeeded").await;
    assert_eq!(world.effects(run).await, 1);
    let calls = world.sqs.calls();
    let receives = calls["calls"].as_array().unwrap().iter().filter(|call| call["action"] == "ReceiveMessage");
    let last = receives.filter_map(|call| call["at_ms"].as_i64()).max().unwrap();
    // One may have been on its way when the signal came; a poll takes a second.
    assert!(last < stopping.timestamp_millis() + 500, "a receive began {} ms after the signal", last - stopping.timestamp_millis());
    world.messages_are("default", 0).await;
}

#[tokio::test]
async fn what_a_drain_cannot_finish_returns_at_once_and_counts_nothing() {
    let world = World::new().await;
    let mut first = world.start(&[RELAY, ("MONALISA_STOP_TIMEOUT_MS", "7000")]).await;
    let run = world.dispatch("t.sleep", r#"{"s":30}"#).await;
    world.run_is(run, "running").await;
    assert!(first.stop().await.success());
    world.run_is(run, "queued").await;
    assert_eq!(world.trail(run).await, ["started", "given_back"]);
    assert_eq!((world.effects(run).await, counters(&world, run).await), (0, (0, 0, 0)));
    // With a visibility of two minutes only a new message can bring it back this soon.
    let began = Instant::now();
    let mut second = world.start(&[RELAY, ("MONALISA_STOP_TIMEOUT_MS", "7000")]).await;
    world.run_is(run, "running").await;
    in_time(began, Duration::from_secs(10));
    second.kill();
}

#[tokio::test]
async fn long_work_keeps_its_message_and_lease_even_when_it_blocks_every_thread() {
    let world = World::new().await;
    let _first = world.start(&[RELAY, SHORT]).await;
    let runs = [
        world.dispatch("t.sleep", r#"{"s":7}"#).await,
        world.dispatch("t.block", r#"{"s":7}"#).await,
        world.dispatch("t.block", r#"{"s":7}"#).await,
        world.dispatch("t.block", r#"{"s":7}"#).await,
    ];
    for run in runs {
        world.run_is(run, "running").await;
    }
    let _second = world.start(&[SHORT]).await;
    for run in runs {
        world.run_is(run, "succeeded").await;
        assert_eq!(world.trail(run).await, ["started", "succeeded"]);
        assert_eq!(world.effects(run).await, 1);
    }
}

#[tokio::test]
async fn an_effect_is_opened_also_while_every_thread_is_blocked() {
    let world = World::new().await;
    let _worker = world.workers().await;
    let run = world.dispatch("t.block_opening", r#"{"s":6}"#).await;
    world.run_is(run, "succeeded").await;
    assert_eq!(world.trail(run).await, ["started", "succeeded"]);
}

#[tokio::test]
async fn a_worker_that_slept_past_its_lease_changes_nothing() {
    let world = World::new().await;
    let first = world.start(&[SHORT]).await;
    let _relay = world.start(&[RELAY, ("QUEUES", "bulk"), SHORT]).await;
    let run = world.dispatch("t.sleep", r#"{"s":1}"#).await;
    world.run_is(run, "running").await;
    first.signal("STOP");
    let _second = world.start(&[SHORT]).await;
    world.run_is(run, "succeeded").await;
    first.signal("CONT");
    let lost = async || {
        let lines = first.lines();
        lines.iter().any(|line| line.contains("lease was lost")).then_some(())
    };
    wait_for("the first worker to notice", lost).await;
    assert_eq!(world.trail(run).await, ["started", "lost", "started", "succeeded"]);
    assert_eq!(world.effects(run).await, 1);
    world.messages_are("default", 0).await;
}

#[tokio::test]
async fn copies_of_a_message_have_one_effect() {
    let world = World::new().await;
    let run = world.dispatch("t.sleep", r#"{"s":1}"#).await;
    let envelope: String = world.one("select envelope::text from work.outbox_messages where run_id = $1", &[&run]).await.get(0);
    for _ in 0..5 {
        world.send("default", &envelope).await;
    }
    let _workers = world.start(&[RELAY, SHORT]).await;
    let _others = world.start(&[SHORT]).await;
    world.run_is(run, "succeeded").await;
    world.messages_are("default", 0).await;
    assert_eq!((world.effects(run).await, counters(&world, run).await), (1, (0, 0, 0)));
    assert_eq!(world.trail(run).await, ["started", "succeeded"]);
}

#[tokio::test]
async fn bodies_that_are_not_ours_end_in_the_dead_letter_queue_with_a_reason() {
    let world = World::new().await;
    let _workers = world.workers().await;
    for body in ["hello", r#"{"Service":"Amazon S3","Event":"s3:TestEvent"}"#, "[]", "null", r#"{"run_id":42}"#] {
        world.send("default", body).await;
    }
    world.send("default", &format!(r#"{{"runId":"{}","generation":1}}"#, Uuid::new_v4())).await;
    let run = world.dispatch("t.ok", "{}").await;
    world.run_is(run, "succeeded").await;
    world.messages_are("default", 0).await;
    world.messages_are("default-dlq", 6).await;
    let listed = world.command("workers", &["dlq", "show", "--error", "NO_SUCH_RUN"]);
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.contains("NO_SUCH_RUN") && listed.contains("\n1 dead letters"), "{listed}");
    for letter in world.dead_letters("default").await {
        let attributes = letter.message_attributes().unwrap();
        let code = attributes["code"].string_value().unwrap();
        assert!(matches!(code, "UNREADABLE" | "NO_SUCH_RUN"), "{code}");
        assert!(!attributes["reason"].string_value().unwrap().is_empty());
    }
}

#[tokio::test]
async fn a_unit_this_process_does_not_know_is_set_back_and_counts_nothing() {
    let world = World::new().await;
    let mut old = world.spawn("workers", &[RELAY]);
    old.log("ready").await;
    let run = world.dispatch("t.ok", "{}").await;
    let deferred = async || (counters(&world, run).await == (0, 0, 1)).then_some(());
    wait_for("a deferral", deferred).await;
    assert_eq!(world.trail(run).await, ["deferred"]);
    world.run_is(run, "queued").await;
    let wait: f64 = world.one("select extract(epoch from available_at - clock_timestamp())::float8 from work.task_runs", &[]).await.get(0);
    assert!((10.0..=15.0).contains(&wait), "{wait} s");
    old.stop().await;
    let _new = world.workers().await;
    world.run_is(run, "succeeded").await;
    assert_eq!(world.trail(run).await, ["deferred", "started", "succeeded"]);
    world.messages_are("default-dlq", 0).await;
}

#[tokio::test]
async fn copies_of_a_message_whose_unit_is_unknown_defer_it_once() {
    let world = World::new().await;
    let run = world.dispatch("t.ok", "{}").await;
    let envelope: String = world.one("select envelope::text from work.outbox_messages where run_id = $1", &[&run]).await.get(0);
    for _ in 0..6 {
        world.send("default", &envelope).await;
    }
    let old = world.spawn("workers", &[RELAY]);
    old.log("ready").await;
    wait_for("all of them to be let go", async || (world.messages("default").await == (0, 7)).then_some(())).await;
    wait_for("the deferral", async || (counters(&world, run).await == (0, 0, 1)).then_some(())).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!((counters(&world, run).await, world.trail(run).await), ((0, 0, 1), vec!["deferred".to_owned()]));
}

#[tokio::test]
async fn the_sixth_deferral_fails_the_run_with_its_reason() {
    let world = World::new().await;
    let run = world.dispatch("t.ok", "{}").await;
    world.db.execute("update work.task_runs set deferrals = 5 where run_id = $1", &[&run]).await.unwrap();
    let old = world.spawn("workers", &[RELAY]);
    old.log("ready").await;
    world.run_is(run, "failed").await;
    let error: String = world.one("select last_error from work.task_runs where run_id = $1", &[&run]).await.get(0);
    assert!(error.starts_with("UNIT_NOT_REGISTERED: "), "{error}");
    world.messages_are("default-dlq", 1).await;
    world.messages_are("default", 0).await;
}

#[tokio::test]
async fn a_full_unit_holds_up_no_other_and_keeps_to_its_concurrency() {
    let world = World::new().await;
    let _workers = world.workers().await;
    for _ in 0..12 {
        world.dispatch("t.single", r#"{"s":0.5}"#).await;
    }
    wait_for("the first", async || (world.count("select count(*) from work.task_runs where status = 'running'").await > 0).then_some(()))
        .await;
    let began = Instant::now();
    for _ in 0..20 {
        world.dispatch("t.ok", "{}").await;
    }
    world.count_is("select count(*) from work.task_runs where unit = 't.ok' and status = 'succeeded'", 20).await;
    in_time(began, Duration::from_secs(5));
    world.count_is("select count(*) from work.task_runs where unit = 't.single' and status = 'succeeded'", 12).await;
    let overlaps = world
        .count(
            "select count(*) from work.task_runs a join work.task_runs b on a.run_id < b.run_id and a.unit = 't.single' and b.unit = 't.single'
              and a.started_at < b.finished_at and b.started_at < a.finished_at",
        )
        .await;
    assert_eq!(overlaps, 0);
    world.count_is("select count(*) from public.effects", 32).await;
}

#[tokio::test]
async fn a_concurrency_above_the_ten_of_a_receive_is_reached_and_no_receive_is_refused() {
    let world = World::new().await;
    for _ in 0..32 {
        world.dispatch("t.single", r#"{"s":3}"#).await;
    }
    let worker = world.start(&[RELAY, ("QUEUES", "default"), ("MONALISA_CONCURRENCY", "t.single=16")]).await;
    world.count_is("select count(*) from work.task_runs where status = 'running'", 16).await;
    world.count_is("select count(*) from work.task_runs where status = 'succeeded'", 32).await;
    let overlapping = "select max(n) from (select count(*) as n from work.task_runs a join work.task_runs b
                         on b.started_at <= a.started_at and a.started_at < b.finished_at group by a.run_id) t";
    assert_eq!(world.count(overlapping).await, 16);
    let took = "select extract(epoch from max(finished_at) - min(started_at))::float8 from work.task_runs";
    let took: f64 = world.one(took, &[]).await.get(0);
    assert!((6.0..20.0).contains(&took), "two rounds of 3 s took {took} s");
    assert!(worker.lines().iter().all(|line| !line.contains("ReceiveMessage")), "{:#?}", worker.lines());
}

#[tokio::test]
async fn times_are_those_of_the_moment_and_not_of_the_transaction() {
    let mut world = World::new().await;
    let _workers = world.workers().await;
    let transaction = world.db.transaction().await.unwrap();
    transaction.batch_execute("select pg_sleep(6)").await.unwrap();
    let run: Uuid = transaction.query_one(r#"select work.dispatch('t.sleep', '{"s":1}', 1)"#, &[]).await.unwrap().get(0);
    transaction.commit().await.unwrap();
    world.run_is(run, "succeeded").await;
    let times = "select extract(epoch from s.at - r.available_at)::float8, extract(epoch from e.at - s.at)::float8
                   from work.task_runs r join work.run_events s on s.run_id = r.run_id and s.event = 'started'
                   join work.run_events e on e.run_id = r.run_id and e.event = 'succeeded' where r.run_id = $1";
    let row = world.one(times, &[&run]).await;
    let (waited, took): (f64, f64) = (row.get(0), row.get(1));
    assert!(waited < 5.9, "it waited {waited} s, the transaction's sleep included");
    assert!((0.95..10.0).contains(&took), "a second's work took {took} s");
}

#[tokio::test]
async fn a_run_that_kills_its_process_fails_at_the_fifth_crash_with_a_dead_letter() {
    let world = World::new().await;
    let _relay = world.start(&[RELAY, ("QUEUES", "bulk")]).await;
    let run = world.dispatch("t.abort", "{}").await;
    for crash in 1..=5 {
        let mut worker = world.start(&[("MONALISA_VISIBILITY_SECONDS", "default=2"), ("QUEUES", "default")]).await;
        worker.exit().await;
        let starts: i32 = world.one("select starts from work.task_runs where run_id = $1", &[&run]).await.get(0);
        assert_eq!(starts, crash);
    }
    let _judge = world.start(&[("QUEUES", "default")]).await;
    world.run_is(run, "failed").await;
    assert_eq!(counters(&world, run).await, (0, 5, 0));
    let trail = world.trail(run).await;
    assert_eq!(trail.iter().filter(|event| *event == "lost").count(), 5, "{trail:?}");
    assert_eq!(trail.last().map(String::as_str), Some("failed"));
    world.messages_are("default-dlq", 1).await;
    world.messages_are("default", 0).await;
}

#[tokio::test]
async fn a_dead_letter_that_comes_back_opens_a_new_generation() {
    let world = World::new().await;
    let _workers = world.workers().await;
    let run = world.dispatch("t.permanent", r#"{"msg":"no such account"}"#).await;
    world.run_is(run, "failed").await;
    world.messages_are("default-dlq", 1).await;
    let letter = world.dead_letters("default").await[0].body().unwrap().to_owned();
    world.send("default", &letter).await;
    let second = async || (world.trail(run).await.len() == 5).then_some(());
    wait_for("the second failure", second).await;
    assert_eq!(world.trail(run).await, ["started", "failed", "redriven", "started", "failed"]);
    let row = world.one("select generation, failures, status from work.task_runs where run_id = $1", &[&run]).await;
    assert_eq!((row.get::<_, i32>(0), row.get::<_, i32>(1), row.get::<_, &str>(2)), (2, 1, "failed"));
    // The same letter again is of an older generation now, and changes nothing.
    world.send("default", &letter).await;
    world.messages_are("default", 0).await;
    assert_eq!(world.trail(run).await.len(), 5);
}
