//! What goes wrong at the worst moment: answers lost, sessions ended, queues frozen, processes stopped and killed under load.

use std::time::{Duration, Instant};

use monalisa::sql::{outbox, runs};
use uuid::Uuid;

use crate::{
    health::get,
    support::{
        RELAY, RELAY_ALONE, SHORT, World,
        checks::{Counters, UNFINISHED},
        connect, in_time, refusal, wait_for,
    },
};

fn pause() -> Duration {
    Duration::from_millis(50 + u64::from(Uuid::new_v4().as_bytes()[0]) * 2)
}

#[tokio::test]
async fn a_message_is_not_deleted_for_a_full_unit_when_its_run_was_started_meanwhile() {
    let world = World::new().await;
    // Half of the slots are soon filled by waiting messages; whatever comes then is sent back through the outbox.
    let few =
        ("MONALISA_CONCURRENCY", "t.ok=1,t.look=1,t.sleep=1,t.block=1,t.slow=1,t.transient=1,t.permanent=1,t.panic=1,t.abort=1,t.sql=1");
    let mut first = world.start(&[RELAY, SHORT, few, ("QUEUES", "default")]).await;
    // The unit is known to need a second for each, and then one run goes on and on: who comes late has a long turn.
    let before = [world.dispatch("t.single", r#"{"s":1}"#).await, world.dispatch("t.single", r#"{"s":1}"#).await];
    for run in before {
        world.run_is(run, "succeeded").await;
    }
    let far = "select count(*) from work.task_runs where available_at > clock_timestamp() + interval '60 s'";
    wait_for("a full unit with a long turn", async || {
        for _ in 0..5 {
            world.dispatch("t.single", r#"{"s":300}"#).await;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        (world.count(far).await > 0).then_some(())
    })
    .await;
    let mut other = connect(&world.url(None)).await;
    let locked = other.transaction().await.unwrap();
    let run: Uuid = locked.query_one("select work.dispatch('t.single', '{\"s\":0}', 1, delay => '1 second')", &[]).await.unwrap().get(0);
    locked.commit().await.unwrap();
    let locked = other.transaction().await.unwrap();
    locked.execute("select from work.task_runs where run_id = $1 for update", &[&run]).await.unwrap();
    let waits = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'
                  and application_name like 'monalisa%'";
    wait_for("the worker to send it back", async || (world.count(waits).await > 0).then_some(())).await;
    // Another worker got hold of a copy, started it, and dies.
    locked
        .execute(
            "update work.task_runs set status = 'running', starts = 1, token = gen_random_uuid(), started_at = clock_timestamp(),
               lease_expires_at = clock_timestamp() + interval '2 s', worker = 'another' where run_id = $1",
            &[&run],
        )
        .await
        .unwrap();
    locked.commit().await.unwrap();
    wait_for("the worker to go on", async || (world.count(waits).await == 0).then_some(())).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    first.kill();
    // The others stand in nobody's way: the run had a crash, and waits until it is alone.
    world.db.execute("select work.cancel(run_id, 'in the way') from work.task_runs where run_id <> $1", &[&run]).await.unwrap();
    let _second = world.start(&[SHORT, few, ("QUEUES", "default")]).await;
    world.run_is(run, "succeeded").await;
    assert_eq!(world.trail(run).await, ["started", "lost", "started", "succeeded"]);
}

#[tokio::test]
async fn a_lease_lasts_until_the_next_heartbeat_however_long_sqs_was_away() {
    let world = World::new().await;
    world
        .db
        .batch_execute(
            "create table public.leases (length float8);
             create function public.note_lease() returns trigger language plpgsql security definer as $$ begin
               insert into public.leases values (extract(epoch from new.lease_expires_at - clock_timestamp())); return null; end $$;
             create trigger note_lease after update on work.task_runs for each row
               when (new.status = 'running' and old.status <> 'running') execute function public.note_lease();",
        )
        .await
        .unwrap();
    world.sqs.fault(r#"{"op":"ChangeMessageVisibilityBatch","mode":"error","status":500}"#).unwrap();
    let _worker = world.start(&[RELAY, SHORT]).await;
    for _ in 0..2 {
        world.dispatch("t.single", r#"{"s":5}"#).await;
    }
    world.count_is("select count(*) from work.task_runs where status = 'succeeded'", 2).await;
    let shortest: f64 = world.one("select min(length) from public.leases", &[]).await.get(0);
    assert!(shortest > 1.0, "a lease of {shortest} s where the heartbeat comes each second");
    world.exactly_once(2).await;
}

#[tokio::test]
async fn a_wait_that_no_calendar_holds_is_cut_and_holds_up_nothing() {
    let world = World::new().await;
    let _workers = world.workers().await;
    let run = world.dispatch("t.patient", "{}").await;
    world.run_is(run, "retrying").await;
    assert_eq!(world.trail(run).await, ["started", "retrying"]);
    world.messages_are("default", 0).await;
}

#[tokio::test]
async fn neither_a_deferral_nor_a_full_unit_shortens_a_backoff() {
    let world = World::new().await;
    let run = world.dispatch("t.ok", "{}").await;
    world
        .db
        .execute("update work.task_runs set available_at = clock_timestamp() + interval '10 minutes' where run_id = $1", &[&run])
        .await
        .unwrap();
    // Judged before its attempt failed elsewhere.
    assert!(world.db.query(runs::DEFER.text, &[&run, &"w"]).await.unwrap().is_empty(), "to be judged again: it is not due");
    assert_eq!(world.counters(run).await, Counters::default());
    world.one(runs::POSTPONE.text, &[&vec![run], &vec![1.0]]).await;
    let wait: f64 = world.one("select extract(epoch from available_at - clock_timestamp())::float8 from work.task_runs", &[]).await.get(0);
    assert!(wait > 590.0, "{wait} s");
}

#[tokio::test]
async fn a_lapsed_lease_met_by_a_worker_that_does_not_know_the_unit_makes_no_sixth_try() {
    let world = World::new().await;
    let run = world.dispatch("t.ok", "{}").await;
    world
        .db
        .execute(
            "update work.task_runs set status = 'running', failures = 4, starts = 5, token = gen_random_uuid(),
               started_at = clock_timestamp(), lease_expires_at = clock_timestamp() where run_id = $1",
            &[&run],
        )
        .await
        .unwrap();
    // It was judged before the attempt that lapsed now had begun.
    assert!(world.db.query(runs::DEFER.text, &[&run, &"w"]).await.unwrap().is_empty(), "to be judged again: it is condemned");
    let _workers = world.workers().await;
    world.run_is(run, "failed").await;
    assert_eq!(world.trail(run).await, ["started", "lost", "failed"]);
}

#[tokio::test]
async fn a_run_parked_at_infinity_stops_no_other() {
    let world = World::new().await;
    let parked = world.dispatch("t.ok", "{}").await;
    let envelope: String = world.one("select envelope::text from work.outbox_messages where run_id = $1", &[&parked]).await.get(0);
    world.db.execute("update work.task_runs set available_at = 'infinity' where run_id = $1", &[&parked]).await.unwrap();
    world.send("default", &envelope).await;
    let _workers = world.workers().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let run = world.dispatch("t.ok", "{}").await;
    world.run_is(run, "succeeded").await;
    world.run_is(parked, "queued").await;
}

#[tokio::test]
async fn a_session_that_became_read_only_is_used_no_more_and_its_runs_wait_longer_each_time() {
    let world = World::new().await;
    let _workers = world.workers().await;
    let run = world.dispatch("t.sql", r#"{"q":"set transaction read only"}"#).await;
    let interrupted = "select count(*) from work.run_events where event = 'interrupted'";
    world.count_is(interrupted, 3).await;
    let last: f64 = world
        .one("select extract(epoch from available_at - clock_timestamp())::float8 from work.task_runs where run_id = $1", &[&run])
        .await
        .get(0);
    assert!(last > 2.0, "after the third interruption it waits {last} s");
    let sessions = "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'monalisa effect'";
    world.count_is(sessions, 0).await;
    let row = world.one("select failures, crashes from work.task_runs where run_id = $1", &[&run]).await;
    assert_eq!((row.get::<_, i32>(0), row.get::<_, i32>(1)), (0, 0));
}

#[tokio::test]
async fn deletes_that_are_refused_hold_up_no_retry() {
    let world = World::new().await;
    world.sqs.fault(r#"{"op":"DeleteMessageBatch","mode":"never_answer"}"#).unwrap();
    let _workers = world.workers().await;
    for _ in 0..40 {
        world.dispatch("t.ok", "{}").await;
    }
    world.count_is("select count(*) from work.task_runs where status = 'succeeded'", 40).await;
    let began = Instant::now();
    let run = world.dispatch("t.transient", r#"{"n":2}"#).await;
    world.run_is(run, "succeeded").await;
    // Its message is hidden twice for 50 ms; with two minutes of visibility nothing else brings it back.
    // Behind the deletes it would wait for several calls of five seconds.
    in_time(began, Duration::from_secs(15));
}

#[tokio::test]
async fn deletes_that_are_refused_for_a_while_leave_nothing_behind() {
    let world = World::new().await;
    world.sqs.fault(r#"{"op":"DeleteMessageBatch","mode":"throttle"}"#).unwrap();
    let _workers = world.start(&[RELAY, SHORT]).await;
    for _ in 0..15 {
        world.dispatch("t.ok", "{}").await;
    }
    world.count_is("select count(*) from work.task_runs where status = 'succeeded'", 15).await;
    tokio::time::sleep(Duration::from_secs(6)).await;
    world.sqs.clear_faults();
    world.messages_are("default", 0).await;
    world.messages_are("default-dlq", 0).await;
    world.exactly_once(15).await;
    assert_eq!(world.count("select sum(starts) from work.task_runs").await, 15, "no handler ran again");
}

#[tokio::test]
async fn a_slow_send_puts_off_no_row_that_was_committed_late() {
    let world = World::new().await;
    // Its transaction commits long after its row became due, so that only a look at everything finds it.
    let mut other = connect(&world.url(None)).await;
    let late = other.transaction().await.unwrap();
    late.execute("select work.dispatch('t.ok', '{}', 1)", &[]).await.unwrap();
    world.sqs.fault(r#"{"op":"SendMessageBatch","mode":"delay","delay_ms":3000,"times":1}"#).unwrap();
    let run = world.dispatch("t.ok", "{}").await;
    let _workers = world.workers().await;
    world.run_is(run, "succeeded").await;
    tokio::time::sleep(Duration::from_secs(11)).await;
    late.commit().await.unwrap();
    let began = Instant::now();
    world.count_is("select count(*) from work.task_runs where status = 'succeeded'", 2).await;
    in_time(began, Duration::from_secs(8));
}

#[tokio::test]
async fn a_drain_that_meets_a_restart_of_postgresql_counts_no_crash() {
    let world = World::new().await;
    let mut worker = world.start(&[RELAY, ("MONALISA_STOP_TIMEOUT_MS", "8000")]).await;
    let run = world.dispatch("t.sleep", r#"{"s":60}"#).await;
    world.run_is(run, "running").await;
    let name: String = world.one("select current_database()::text", &[]).await.get(0);
    let admin = connect(&world.url(None).replace(&name, "postgres")).await;
    worker.signal("TERM");
    let cut = Instant::now() + Duration::from_secs(3);
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    admin.batch_execute(&format!("alter database {name} allow_connections false")).await.unwrap();
    admin
        .execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = $1 and application_name like 'monalisa%'",
            &[&name],
        )
        .await
        .unwrap();
    tokio::time::sleep_until((cut + Duration::from_secs(1)).into()).await;
    admin.batch_execute(&format!("alter database {name} allow_connections true")).await.unwrap();
    worker.exit().await;
    world.run_is(run, "queued").await;
    assert_eq!(world.trail(run).await, ["started", "given_back"]);
}

#[tokio::test]
async fn a_handler_that_changes_its_role_or_session_disturbs_nobody_not_even_itself() {
    let world = World::new().await;
    let _workers = world.start(&[RELAY, ("MONALISA_CONCURRENCY", "t.sql=1,t.ok=1,t.look=1,t.sleep=1")]).await;
    world.db.batch_execute("grant test_api to test_worker").await.unwrap();
    for q in ["set local role test_api", "set role test_api", "set search_path = pg_temp", "select pg_advisory_lock(1)"] {
        let run = world.one("select work.dispatch('t.sql', jsonb_build_object('q', $1::text), 1)", &[&q]).await.get(0);
        world.run_is(run, "succeeded").await;
        assert_eq!(world.trail(run).await, ["started", "succeeded"], "{q}");
    }
    for _ in 0..10 {
        let run = world.dispatch("t.sql", r#"{"q":"select pg_sleep(0.01)"}"#).await;
        world.run_is(run, "succeeded").await;
        assert_eq!(world.trail(run).await, ["started", "succeeded"]);
    }
}

#[tokio::test]
async fn a_run_whose_tenant_is_gone_fails_with_that_reason_and_frees_its_slot() {
    let world = World::new().await;
    let _workers = world.start(&[RELAY, ("MONALISA_CONCURRENCY", "t.permanent=1")]).await;
    let run: Uuid = world.one("select work.dispatch('t.permanent', '{\"msg\":\"x\"}', 20, delay => '1 second')", &[]).await.get(0);
    world
        .db
        .batch_execute(
            "create function public.lose_tenant() returns trigger language plpgsql security definer as $$ begin
               delete from work.outbox_messages where run_id = new.run_id; delete from public.tenants where id = 20; return null; end $$;
             create trigger lose_tenant after update on work.task_runs for each row
               when (new.status = 'running' and old.status <> 'running') execute function public.lose_tenant();",
        )
        .await
        .unwrap();
    world.run_is(run, "failed").await;
    let error: String = world.one("select last_error from work.task_runs where run_id = $1", &[&run]).await.get(0);
    assert!(error.starts_with("TENANT_GONE: "), "{error}");
    world.messages_are("default", 0).await;
    world.messages_are("default-dlq", 0).await;
    let next = world.dispatch("t.permanent", r#"{"msg":"x"}"#).await;
    world.run_is(next, "failed").await;
}

#[tokio::test]
async fn sessions_that_are_ended_at_random_cost_no_failure_and_no_effect() {
    let world = World::new().await;
    let _workers = [world.start(&[RELAY, SHORT]).await, world.start(&[SHORT]).await];
    world.load(200).await;
    let mut ended = 0;
    while world.count(UNFINISHED).await > 0 {
        tokio::time::sleep(pause()).await;
        if ended < 15 {
            world
                .db
                .batch_execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name like 'monalisa%'")
                .await
                .unwrap();
            ended += 1;
        }
    }
    world.count_is("select count(*) from work.outbox_messages where sent_at is null", 0).await;
    world.messages_are("default", 0).await;
    world.exactly_once(200).await;
    assert_eq!(world.count("select sum(failures) from work.task_runs").await, 0, "{ended} ends");
    assert_eq!(world.count("select count(*) from work.run_events where event in ('failed', 'retrying')").await, 0);
    world.nothing_is_open().await;
}

#[tokio::test]
async fn an_sqs_that_answers_nothing_for_a_while_costs_nothing_but_time() {
    let world = World::new().await;
    let _workers = [world.start(&[RELAY]).await, world.start(&[]).await];
    world.load(100).await;
    world.count_is("select least(count(*), 20) from work.task_runs where status = 'succeeded'", 20).await;
    for rule in [r#"{"mode":"never_answer"}"#, r#"{"mode":"drop_request"}"#] {
        world.sqs.fault(rule).unwrap();
        world.load(20).await;
        tokio::time::sleep(Duration::from_secs(7)).await;
        world.sqs.clear_faults();
    }
    world.count_is(UNFINISHED, 0).await;
    world.count_is("select count(*) from work.outbox_messages where sent_at is null", 0).await;
    world.exactly_once(140).await;
    assert_eq!(world.count("select sum(failures + crashes) from work.task_runs").await, 0);
}

#[tokio::test]
async fn stops_at_any_moment_use_up_nothing() {
    let world = World::new().await;
    world.load(300).await;
    let stop = ("MONALISA_STOP_TIMEOUT_MS", "6100");
    for _ in 0..10 {
        let mut worker = world.start(&[RELAY, stop]).await;
        tokio::time::sleep(pause()).await;
        let code = worker.stop().await;
        assert!(code.success(), "{code}");
        let held = world.count("select count(*) from work.task_runs where status = 'running'").await;
        assert_eq!(held, 0, "a stopped process holds no run");
        if world.count(UNFINISHED).await < 50 {
            world.load(100).await;
        }
    }
    let _last = world.start(&[RELAY]).await;
    world.count_is(UNFINISHED, 0).await;
    world.count_is("select count(*) from work.outbox_messages where sent_at is null", 0).await;
    world.messages_are("default", 0).await;
    world.exactly_once(world.count("select count(*) from work.task_runs").await).await;
    assert_eq!(world.count("select sum(failures + crashes + interruptions) from work.task_runs").await, 0);
    world.nothing_is_open().await;
}

#[tokio::test]
async fn panics_time_outs_cuts_and_kills_leave_no_session_in_a_transaction() {
    let world = World::new().await;
    let mut first = world.start(&[RELAY, SHORT, ("MONALISA_STOP_TIMEOUT_MS", "6500")]).await;
    for unit in ["t.panic", "t.slow", "t.transient"] {
        let run = world.dispatch(unit, r#"{"n":9}"#).await;
        world.run_is(run, "failed").await;
    }
    for _ in 0..3 {
        world.dispatch("t.sleep", r#"{"s":30}"#).await;
        world.dispatch("t.sql", r#"{"q":"select pg_sleep(30)"}"#).await;
    }
    world.count_is("select count(*) from work.task_runs where status = 'running'", 6).await;
    assert!(first.stop().await.success());
    let sessions = "select count(*) from pg_stat_activity where datname = current_database() and application_name like 'monalisa%'";
    world.count_is(sessions, 0).await;
    let mut second = world.start(&[RELAY, SHORT]).await;
    world.count_is("select count(*) from work.task_runs where status = 'running'", 6).await;
    second.kill();
    world.nothing_is_open().await;
    assert_eq!(world.count("select count(*) from public.effects").await, 0);
}

#[tokio::test]
async fn kills_and_copies_under_load_lose_nothing_and_double_nothing() {
    let world = World::new().await;
    let short = [RELAY, SHORT, ("QUEUES", "default")];
    let mut workers = Vec::new();
    for place in 0..3 {
        workers.push(world.start(if place < 2 { &short } else { &short[1..] }).await);
    }
    world.load(400).await;
    let copy = "select envelope::text from work.outbox_messages order by random() limit 20";
    for round in 0..12 {
        tokio::time::sleep(pause()).await;
        for row in world.db.query(copy, &[]).await.unwrap() {
            world.send("default", row.get(0)).await;
        }
        let place = round % 3;
        workers[place].kill();
        workers[place] = world.start(if place < 2 { &short } else { &short[1..] }).await;
    }
    wait_for("everything to end", async || (world.count(UNFINISHED).await == 0).then_some(())).await;
    world.count_is("select count(*) from work.outbox_messages where sent_at is null", 0).await;
    world.messages_are("default", 0).await;
    world.exactly_once(400).await;
    assert_eq!(world.count("select sum(failures) from work.task_runs").await, 0);
}

#[tokio::test]
async fn who_lost_the_lease_changes_nothing() {
    let world = World::new().await;
    let run = world.dispatch("t.ok", "{}").await;
    let (old, new) = (Uuid::new_v4(), Uuid::new_v4());
    for token in [old, new] {
        let started =
            world.db.query(runs::START.text, &[&vec![run], &vec![1], &vec![token], &vec![0.0_f64], &false, &"w", &"on"]).await.unwrap();
        assert_eq!(started.len(), 1, "each lease lapses at once");
    }
    let before: String = world.one("select r::text from work.task_runs r", &[]).await.get(0);
    let none: Option<&str> = None;
    let late = world.db.query(runs::SUCCEED_ALONE.text, &[&run, &old, &none]).await;
    assert_eq!(refusal(late).code().code(), "ML011");
    let failed = world.db.query(runs::FAIL.text, &[&run, &old, &"LATE", &"too late", &true, &0.0_f64]).await.unwrap();
    let given = world.db.query(runs::GIVE_BACK.text, &[&vec![run], &vec![old], &"too late", &0.0_f64, &false]).await.unwrap();
    world.db.query(runs::PROGRESS.text, &[&run, &old, &50]).await.unwrap();
    let extended = world.one(runs::EXTEND.text, &[&vec![run], &vec![old], &vec![60.0_f64]]).await;
    assert_eq!((failed.len(), given.len()), (0, 0));
    assert!(extended.get::<_, bool>("lost") && !extended.get::<_, bool>("renewed"));
    let after: String = world.one("select r::text from work.task_runs r", &[]).await.get(0);
    assert_eq!(before, after);
    assert_eq!(world.trail(run).await, ["started", "lost"]);
    world.db.query(runs::SUCCEED_ALONE.text, &[&run, &new, &none]).await.unwrap();
    world.run_is(run, "succeeded").await;
}

#[tokio::test]
async fn a_handler_that_ends_the_effect_transaction_itself_does_not_succeed() {
    let world = World::new().await;
    let _workers = world.workers().await;
    for q in ["commit", "rollback", "commit; begin", "rollback and chain", "commit and chain"] {
        let run: Uuid = world.one("select work.dispatch('t.sql', jsonb_build_object('q', $1::text), 1)", &[&q]).await.get(0);
        wait_for("a failure", async || (world.trail(run).await.len() >= 2).then_some(())).await;
        assert_eq!(world.trail(run).await[..2], ["started", "retrying"], "{q}");
        let error: String = world.one("select last_error from work.task_runs where run_id = $1", &[&run]).await.get(0);
        assert!(error.starts_with("TRANSACTION_ENDED: "), "{q}: {error}");
    }
}

#[tokio::test]
async fn a_message_of_an_older_generation_starts_nothing() {
    let world = World::new().await;
    let run = world.dispatch("t.ok", "{}").await;
    let envelope: String = world.one("select envelope::text from work.outbox_messages", &[]).await.get(0);
    world.db.execute("update work.task_runs set generation = 2 where run_id = $1", &[&run]).await.unwrap();
    let token = vec![Uuid::new_v4()];
    let start: [&(dyn tokio_postgres::types::ToSql + Sync); 7] = [&vec![run], &vec![1], &token, &vec![60.0_f64], &false, &"w", &"on"];
    assert!(world.db.query(runs::START.text, &start).await.unwrap().is_empty());
    world.send("default", &envelope).await;
    let _worker = world.start(&[]).await;
    world.messages_are("default", 0).await;
    world.run_is(run, "queued").await;
    assert_eq!(world.trail(run).await, [] as [&str; 0]);
}

#[tokio::test]
async fn a_row_is_marked_once_and_a_claim_waits_for_no_other() {
    let world = World::new().await;
    world.dispatch("t.ok", "{}").await;
    let id: i64 = world.one("select id from work.outbox_messages", &[]).await.get(0);
    let mut other = connect(&world.url(None)).await;
    let claim = other.transaction().await.unwrap();
    let none: (Option<&str>, Option<i64>, Option<f64>) = (None, None, None);
    let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 5] = [&"default", &none.0, &none.1, &none.2, &10_i64];
    assert_eq!(claim.query(outbox::CLAIM.text, &parameters).await.unwrap().len(), 1);
    world.db.batch_execute("set lock_timeout = '1s'").await.unwrap();
    assert!(world.db.query(outbox::CLAIM.text, &parameters).await.unwrap().is_empty(), "somebody holds it");
    assert_eq!(claim.execute(outbox::MARK_SENT.text, &[&vec![id]]).await.unwrap(), 1);
    assert_eq!(claim.execute(outbox::MARK_SENT.text, &[&vec![id]]).await.unwrap(), 0, "a mark is made once");
    claim.commit().await.unwrap();
}

#[tokio::test]
async fn a_heartbeat_that_arrives_late_overwrites_no_backoff() {
    let world = World::new().await;
    world.sqs.fault(r#"{"op":"ChangeMessageVisibilityBatch","mode":"delay","delay_ms":700,"times":1}"#).unwrap();
    let _worker = world.start(&[RELAY, ("MONALISA_VISIBILITY_SECONDS", "default=6")]).await;
    world.db.batch_execute("select pg_advisory_lock(4711)").await.unwrap();
    world.dispatch("t.sql", r#"{"q":"select pg_advisory_xact_lock(4711); select 1/0"}"#).await;
    // The handler fails while a heartbeat is on its way; that arrives before its message would be back.
    let beats = || world.sqs.calls()["counts"]["ChangeMessageVisibilityBatch"].as_u64().unwrap_or(0);
    wait_for("a heartbeat to begin", async || (beats() > 0).then_some(())).await;
    world.db.batch_execute("select pg_advisory_unlock(4711)").await.unwrap();
    wait_for("the second attempt", async || (world.count("select max(starts)::bigint from work.task_runs").await > 1).then_some(())).await;
    let wait: f64 = world
        .one(
            "select extract(epoch from r.started_at - e.at)::float8 from work.task_runs r join work.run_events e using (run_id)
              where e.event = 'retrying' order by e.id limit 1",
            &[],
        )
        .await
        .get(0);
    assert!(wait < 5.0, "a backoff of 100 ms took {wait} s");
}

#[tokio::test]
async fn a_worker_killed_in_its_commit_has_not_deleted_its_message() {
    let world = World::new().await;
    world
        .db
        .batch_execute(
            "create function public.slow() returns trigger language plpgsql as 'begin perform pg_sleep(30); return null; end';
             create constraint trigger slow after insert on public.effects deferrable initially deferred for each row execute function public.slow()",
        )
        .await
        .unwrap();
    let mut first = world.start(&[RELAY, SHORT]).await;
    let run = world.dispatch("t.ok", "{}").await;
    let committing = "select count(*) from pg_stat_activity where datname = current_database() and state = 'active' and query = 'commit'";
    world.count_is(committing, 1).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    first.kill();
    world
        .db
        .batch_execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name = 'monalisa effect';
             drop trigger slow on public.effects",
        )
        .await
        .unwrap();
    let _second = world.start(&[RELAY, SHORT]).await;
    world.run_is(run, "succeeded").await;
    assert_eq!(world.trail(run).await, ["started", "lost", "started", "succeeded"]);
    world.messages_are("default", 0).await;
    world.exactly_once(1).await;
}

#[tokio::test]
async fn a_session_lost_in_the_commit_is_decided_by_the_fence() {
    let world = World::new().await;
    world
        .db
        .batch_execute(
            "create function public.slow() returns trigger language plpgsql as 'begin perform pg_sleep(2); return null; end';
             create constraint trigger slow after insert on public.effects deferrable initially deferred for each row execute function public.slow()",
        )
        .await
        .unwrap();
    let _worker = world.start(&[RELAY]).await;
    let run = world.dispatch("t.ok", "{}").await;
    let committing = "select count(*) from pg_stat_activity where datname = current_database() and state = 'active' and query = 'commit'";
    world.count_is(committing, 1).await;
    world
        .db
        .batch_execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name = 'monalisa effect'")
        .await
        .unwrap();
    world.run_is(run, "succeeded").await;
    assert_eq!(world.trail(run).await, ["started", "interrupted", "started", "succeeded"]);
    world.messages_are("default", 0).await;
    world.exactly_once(1).await;
}

/// Receives the one message of the default queue so many times by hand, and lets go of it.
async fn received_before(world: &World, times: u32) {
    let url = world.sqs.queue_url("t-default");
    for _ in 0..times {
        let answer = world.queues().await.receive_message().queue_url(&url).visibility_timeout(0).send().await.unwrap();
        assert_eq!(answer.messages().len(), 1);
    }
}

#[tokio::test]
async fn a_failure_at_the_fifth_receive_and_any_sixth_receive_return_through_the_outbox() {
    let cases = [
        (4, "t.transient", r#"{"n":1}"#, vec!["started", "retrying", "started", "succeeded"]),
        (5, "t.ok", "{}", vec!["started", "succeeded"]),
    ];
    for (receives, unit, payload, trail) in cases {
        let world = World::new().await;
        let mut relay = world.start(&[RELAY, ("QUEUES", "bulk")]).await;
        let run = world.dispatch(unit, payload).await;
        world.messages_are("default", 1).await;
        received_before(&world, receives).await;
        let sent = || world.sqs.calls()["entries"]["SendMessageBatch"].as_u64().unwrap();
        assert_eq!(sent(), 1);
        let _worker = world.start(&[]).await;
        world.run_is(run, "succeeded").await;
        assert_eq!(world.trail(run).await, trail, "{receives}");
        assert_eq!(sent(), 2, "{receives}: sent anew");
        world.messages_are("default", 0).await;
        world.messages_are("default-dlq", 0).await;
        relay.kill();
    }
}

#[tokio::test]
async fn a_suspect_runs_alone_and_its_neighbours_finish() {
    let world = World::new().await;
    let _worker = world.start(&[RELAY, SHORT]).await;
    for _ in 0..4 {
        world.dispatch("t.sleep", r#"{"s":1.5}"#).await;
    }
    world.count_is("select count(*) from work.task_runs where status = 'running'", 4).await;
    for _ in 0..3 {
        let run: Uuid =
            world.one("select work.dispatch('t.sql', '{\"q\":\"select pg_sleep(0.5)\"}', 1, delay => '0.3 seconds')", &[]).await.get(0);
        world.db.execute("update work.task_runs set crashes = 2 where run_id = $1", &[&run]).await.unwrap();
    }
    for _ in 0..20 {
        world.dispatch("t.sleep", r#"{"s":0.1}"#).await;
    }
    world.count_is(UNFINISHED, 0).await;
    let beside = "select count(*) from work.task_runs a join work.task_runs b on a.run_id <> b.run_id
                   where a.crashes = 2 and a.started_at < b.finished_at and b.started_at < a.finished_at";
    assert_eq!(world.count(beside).await, 0, "a suspect had company");
    world.messages_are("default", 0).await;
    world.exactly_once(27).await;
}

#[tokio::test]
async fn a_suspect_that_waits_keeps_nothing_from_other_workers() {
    let world = World::new().await;
    let _relay = world.start(RELAY_ALONE).await;
    let first = world.start(&[("QUEUES", "default")]).await;
    let long = world.dispatch("t.sleep", r#"{"s":25}"#).await;
    world.run_is(long, "running").await;
    // What it receives together with the suspect waits behind it.
    let together = "select work.dispatch('t.ok', '{}', 1, run_at => now() + interval '0.5 seconds') from generate_series(1, 5)";
    let together: Vec<Uuid> = world.db.query(together, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    let suspect = together[0];
    world.db.execute("update work.task_runs set crashes = 2 where run_id = $1", &[&suspect]).await.unwrap();
    wait_for("the first worker to hold the suspect", async || (world.messages("default").await.1 >= 2).then_some(())).await;
    let _second = world.start(&[("QUEUES", "default")]).await;
    let began = Instant::now();
    let mut others = Vec::new();
    for _ in 0..40 {
        others.push(world.dispatch("t.ok", "{}").await);
    }
    for run in others.iter().chain(&together[1..]) {
        world.run_is(*run, "succeeded").await;
    }
    in_time(began, Duration::from_secs(8));
    let by_first =
        "select count(*) from work.task_runs where run_id = any ($1) and worker = (select worker from work.task_runs where run_id = $2)";
    assert_eq!(world.one(by_first, &[&others, &long]).await.get::<_, i64>(0), 0, "it starts nothing beside the suspect");
    for run in [long, suspect] {
        world.run_is(run, "succeeded").await;
    }
    // And then it takes part again.
    let run = world.dispatch("t.ok", "{}").await;
    world.run_is(run, "succeeded").await;
    drop(first);
}

#[tokio::test]
async fn a_run_that_somebody_holds_locked_goes_to_no_dead_letter_queue() {
    let world = World::new().await;
    let mut other = connect(&world.url(None)).await;
    let run = world.dispatch("t.ok", "{}").await;
    let locked = other.transaction().await.unwrap();
    locked.execute("select from work.task_runs where run_id = $1 for update", &[&run]).await.unwrap();
    let _workers = world.workers().await;
    let received =
        || world.sqs.calls()["calls"].as_array().unwrap().iter().filter(|call| call["action"] == "ChangeMessageVisibilityBatch").count();
    wait_for("it to be let go twice", async || (received() >= 2).then_some(())).await;
    // Where it came back each second, SQS would take it away by then.
    tokio::time::sleep(Duration::from_secs(22)).await;
    assert_eq!(world.messages("default-dlq").await, (0, 0));
    locked.rollback().await.unwrap();
    world.run_is(run, "succeeded").await;
    assert_eq!(world.trail(run).await, ["started", "succeeded"]);
}

#[tokio::test]
async fn a_suspect_that_waits_for_long_lets_its_process_go_on() {
    let world = World::new().await;
    let worker = world.start(&[RELAY]).await;
    let long = world.dispatch("t.sleep", r#"{"s":50}"#).await;
    world.run_is(long, "running").await;
    let suspect: Uuid = world.one("select work.dispatch('t.ok', '{}', 1, delay => '0.3 seconds')", &[]).await.get(0);
    world.db.execute("update work.task_runs set crashes = 2 where run_id = $1", &[&suspect]).await.unwrap();
    wait_for("the suspect to wait", async || (world.messages("default").await == (0, 2)).then_some(())).await;
    let began = Instant::now();
    let other = world.dispatch("t.urgent", "{}").await;
    // Meanwhile PostgreSQL is asked all the same: health knows.
    let port = worker.health_port().await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let report: serde_json::Value = serde_json::from_str(&get(port, "/healthz").1).unwrap();
    let age = report["parts"]["database"]["secondsSinceProgress"].as_f64().unwrap();
    assert!(age < 5.0, "{report}");
    assert_eq!(world.trail(other).await.len(), 0, "nothing starts while a suspect waits");
    world.run_is(other, "succeeded").await;
    in_time(began, Duration::from_secs(35));
    assert_eq!(world.counters(suspect).await, Counters { crashes: 2, ..Counters::default() });
    let wait: f64 = world
        .one("select extract(epoch from available_at - clock_timestamp())::float8 from work.task_runs where run_id = $1", &[&suspect])
        .await
        .get(0);
    assert!((100.0..=120.0).contains(&wait), "its turn comes in {wait} s");
    assert!(worker.lines().iter().any(|line| line.contains("waits to be alone here")));
}

#[tokio::test]
async fn handlers_that_block_their_threads_hold_up_no_other() {
    let world = World::new().await;
    let _worker = world.start(&[RELAY, ("MONALISA_CONCURRENCY", "t.block=12")]).await;
    for _ in 0..12 {
        world.dispatch("t.block", r#"{"s":20}"#).await;
    }
    world.count_is("select count(*) from work.task_runs where status = 'running'", 12).await;
    let began = Instant::now();
    for _ in 0..5 {
        let run = world.dispatch("t.ok", "{}").await;
        world.run_is(run, "succeeded").await;
    }
    in_time(began, Duration::from_secs(5));
}

#[tokio::test]
async fn a_server_that_is_out_of_disk_or_memory_costs_no_attempt() {
    let world = World::new().await;
    let exhausted = "create table public.exhausted as select '53100' as code; grant select on public.exhausted to public;
                     create function public.work_or_not() returns void language plpgsql as $$ declare v_code text; begin
                       select code into v_code from public.exhausted;
                       if v_code <> '' then raise exception 'could not extend file' using errcode = v_code; end if;
                     end $$";
    world.db.batch_execute(exhausted).await.unwrap();
    let _worker = world.start(&[RELAY]).await;
    let run = world.dispatch("t.sql", r#"{"q":"select public.work_or_not()"}"#).await;
    for code in ["53200", "58030", ""] {
        let before = world.counters(run).await.interruptions;
        wait_for("an interruption", async || (world.counters(run).await.interruptions > before).then_some(())).await;
        world.db.execute("update public.exhausted set code = $1", &[&code]).await.unwrap();
    }
    world.run_is(run, "succeeded").await;
    assert_eq!((world.counters(run).await.failures, world.counters(run).await.crashes), (0, 0));
}
