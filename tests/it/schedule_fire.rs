//! `work.fire`: an occurrence gets one run, whoever asks and however often; overlap by an index; refusals with a hint.

use tokio::task::JoinSet;
use tokio_postgres::Client;
use uuid::Uuid;

use crate::support::{AT_ONCE, SHORT, World, connect, listening, refusal};

const ISOLATION: [&str; 3] = ["read committed", "repeatable read", "serializable"];
const T1: &str = "2026-01-02T03:00:00Z";
const T2: &str = "2026-01-02T03:01:00Z";
const T3: &str = "2026-01-02T03:02:00Z";

async fn fire(client: &Client, schedule: &str, at: &str) -> Result<Option<Uuid>, tokio_postgres::Error> {
    client.query_one("select work.fire($1, $2::text::timestamptz)", &[&schedule, &at]).await.map(|row| row.get(0))
}

/// Fires in a transaction of this isolation level, again and again while PostgreSQL says that it cannot be serialized.
async fn fire_isolated(url: String, isolation: &'static str, schedule: &'static str, at: String) -> Option<Uuid> {
    let client = connect(&url).await;
    loop {
        client.batch_execute(&format!("begin isolation level {isolation}")).await.unwrap();
        // The snapshot is there before the others begin to write.
        client.query_one("select count(*) from work.runs", &[]).await.unwrap();
        let fired = fire(&client, schedule, &at).await;
        let committed = match &fired {
            Ok(_) => client.batch_execute("commit").await,
            Err(_) => client.batch_execute("rollback").await,
        };
        match (fired, committed) {
            (Ok(run), Ok(())) => return run,
            (Err(error), _) | (_, Err(error)) => assert_eq!(error.code().map(|code| code.code()), Some("40001"), "{error:?}"),
        }
    }
}

async fn all_at_once(world: &World, isolation: &'static str, schedule: &'static str, times: &[&str]) -> Vec<Option<Uuid>> {
    let mut schedulers = JoinSet::new();
    for at in times {
        schedulers.spawn(fire_isolated(world.url(Some("test_operator")), isolation, schedule, (*at).to_owned()));
    }
    schedulers.join_all().await
}

/// Decision, occurrence, and which run suppressed it, in order.
async fn history(client: &Client, schedule: &str) -> Vec<(String, String, Option<Uuid>)> {
    let sql = "select decision, to_char(scheduled_for at time zone 'UTC', 'HH24:MI'), suppressed_by
                 from work.schedule_history where schedule = $1 order by scheduled_for, decision";
    client.query(sql, &[&schedule]).await.unwrap().iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect()
}

#[tokio::test]
async fn ten_schedulers_at_once_fire_an_occurrence_once_at_every_isolation_level() {
    for schedule in ["t.tick", "t.tock"] {
        for isolation in ISOLATION {
            let world = World::without_queues().await;
            let fired = all_at_once(&world, isolation, schedule, &[T1; 10]).await;
            assert_eq!(fired.iter().flatten().count(), 1, "{schedule}, {isolation}: {fired:?}");
            let sql = "select count(*), count(*) filter (where status = 'queued'), (select count(*) from work.platform_outbox_messages) from work.task_runs";
            let row = world.one(sql, &[]).await;
            assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1), row.get::<_, i64>(2)), (1, 1, 1), "{schedule}, {isolation}");
        }
    }
}

#[tokio::test]
async fn ten_occurrences_at_once_make_one_run_that_suppresses_the_others_at_every_isolation_level() {
    for isolation in ISOLATION {
        let world = World::without_queues().await;
        let times: Vec<String> = (0..10).map(|minute| format!("2026-01-02T03:0{minute}:00Z")).collect();
        let fired = all_at_once(&world, isolation, "t.tick", &times.iter().map(String::as_str).collect::<Vec<_>>()).await;
        let runs: Vec<Uuid> = fired.into_iter().flatten().collect();
        assert_eq!(runs.len(), 1, "{isolation}");
        let told = history(&world.db, "t.tick").await;
        assert_eq!(told.len(), 10, "{isolation}: each is recorded: {told:?}");
        for (decision, at, by) in &told {
            let expected = if decision == "fired" { None } else { Some(runs[0]) };
            assert!(matches!(decision.as_str(), "fired" | "skipped") && *by == expected, "{isolation}: {at} {decision} {by:?}");
        }
        assert_eq!(world.count("select count(*) from work.run_events where event = 'skipped'").await, 9);
        assert_eq!(world.count("select count(*) from work.platform_outbox_messages").await, 1, "what is skipped is sent to nobody");
        // With overlap allow they all run.
        let fired = all_at_once(&world, isolation, "t.tock", &times.iter().map(String::as_str).collect::<Vec<_>>()).await;
        assert_eq!(fired.into_iter().flatten().count(), 10, "{isolation}");
    }
}

#[tokio::test]
async fn an_occurrence_is_skipped_while_an_earlier_run_is_unfinished_and_the_record_says_which() {
    let world = World::new().await;
    let first = fire(&world.db, "t.tick", T1).await.unwrap().expect("fired");
    let (listener, mut _heard) = listening(&world.url(Some("test_operator"))).await;
    assert_eq!(fire(&listener, "t.tick", T2).await.unwrap(), None);
    assert_eq!(fire(&listener, "t.tick", T1).await.unwrap(), None, "it has a run");
    assert_eq!(fire(&listener, "t.tick", T2).await.unwrap(), None, "it was skipped, and stays so");
    let skipped = world.one("select run_id, status, finished_at is not null, exclusive, scheduled_for::text, payload::text from work.task_runs where scheduled_for = $1::text::timestamptz", &[&T2]).await;
    assert_eq!((skipped.get::<_, &str>(1), skipped.get::<_, bool>(2)), ("skipped", true));
    assert_eq!(world.trail(skipped.get(0)).await, ["skipped"]);

    let workers = world.workers().await;
    world.run_is(first, "succeeded").await;
    let saw: String = world.one("select outcome #>> '{}' from work.task_runs where run_id = $1", &[&first]).await.get(0);
    assert_eq!(saw, "2026-01-02T03:00:00+00:00", "the handler sees the occurrence");
    let third = fire(&world.db, "t.tick", T3).await.unwrap().expect("nothing suppresses it any more");
    world.run_is(third, "succeeded").await;
    assert_eq!(fire(&world.db, "t.tick", T2).await.unwrap(), None);
    drop(workers);
    let expected = [("fired", "03:00", None), ("skipped", "03:01", Some(first)), ("fired", "03:02", None)];
    assert_eq!(history(&world.db, "t.tick").await, expected.map(|(decision, at, by)| (decision.to_owned(), at.to_owned(), by)));
    world.db.batch_execute("set role monalisa_observer; set app.tenant_id = '3'").await.unwrap();
    assert_eq!(history(&world.db, "t.tick").await.len(), 3, "observers read it");
}

#[tokio::test]
async fn a_scheduler_that_waits_for_another_fires_where_that_one_rolls_back() {
    let world = World::without_queues().await;
    for (at, end, fires) in [(T1, "rollback", true), (T2, "commit", false)] {
        let first = connect(&world.url(Some("test_worker"))).await;
        first.batch_execute("begin").await.unwrap();
        assert!(fire(&first, "t.tock", at).await.unwrap().is_some());
        let second = tokio::spawn(fire_isolated(world.url(Some("test_operator")), "read committed", "t.tock", at.to_owned()));
        let waits = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
        world.count_is(waits, 1).await;
        first.batch_execute(end).await.unwrap();
        assert_eq!(second.await.unwrap().is_some(), fires, "after its {end}");
    }
    assert_eq!(world.count("select count(*) from work.task_runs").await, 2);
}

#[tokio::test]
async fn a_run_that_ends_while_the_next_is_fired_suppresses_it_or_not_and_nothing_in_between() {
    let world = World::without_queues().await;
    let first = fire(&world.db, "t.tick", T1).await.unwrap().expect("fired");
    world.db.batch_execute(&format!("begin; select work.cancel('{first}', 'a test')")).await.unwrap();
    let second = tokio::spawn(fire_isolated(world.url(Some("test_operator")), "read committed", "t.tick", T2.to_owned()));
    let looker = connect(&world.url(None)).await;
    crate::support::wait_for("it to wait", async || {
        let waits = "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
        looker.query_opt(waits, &[]).await.unwrap()
    })
    .await;
    world.db.batch_execute("commit").await.unwrap();
    assert!(second.await.unwrap().is_some(), "the first is over");
    assert_eq!(history(&world.db, "t.tick").await.iter().filter(|(decision, ..)| decision == "fired").count(), 2);
}

#[tokio::test]
async fn what_cannot_be_fired_is_refused_with_a_hint_and_leaves_nothing() {
    let world = World::without_queues().await;
    world.db.batch_execute("update work.units set retired_at = now() - interval '8 days' where name = 't.tock'").await.unwrap();
    let ahead = world.one("select (now() + interval '25 hours')::text", &[]).await.get::<_, String>(0);
    for (call, code, words) in [
        ("'t.tikc', now()".to_owned(), "ML001", "t.tick"),
        ("null, now()".to_owned(), "ML001", "there is no task"),
        ("'t.happened_well', now()".to_owned(), "ML001", "subscriber"),
        ("'t.ok', now()".to_owned(), "ML030", "has no schedule"),
        ("'t.tock', now()".to_owned(), "ML003", "retired"),
        ("'t.tick', null".to_owned(), "ML031", "is null"),
        ("'t.tick', 'infinity'".to_owned(), "ML031", "infinity"),
        ("'t.tick', '-infinity'".to_owned(), "ML031", "infinity"),
        (format!("'t.tick', '{ahead}'"), "ML031", "more than a day ahead"),
        ("'t.tick', '<aws.scheduler.scheduled-time>'".to_owned(), "22007", "invalid input syntax"),
        (r"'t.tick', '\u003caws.scheduler.scheduled-time\u003e'".to_owned(), "22007", "invalid input syntax"),
        ("'t.tick', ''".to_owned(), "22007", "invalid input syntax"),
    ] {
        let error = refusal(world.db.query(&format!("select work.fire({call})"), &[]).await);
        let said = format!("{} {}", error.message(), error.hint().unwrap_or_default());
        assert!(error.code().code() == code && said.contains(words), "{call}: {error:?}");
        assert!(code == "22007" || error.hint().is_some_and(|hint| hint.len() > 20), "{call}: {error:?}");
    }
    world.db.batch_execute("begin read only").await.unwrap();
    assert_eq!(refusal(fire(&world.db, "t.tick", T1).await).code().code(), "25006");
    world.db.batch_execute("rollback").await.unwrap();
    assert_eq!(world.count("select count(*) from work.task_runs").await, 0);
    // A retired one is fired for a week, with a warning.
    world.db.batch_execute("update work.units set retired_at = now() - interval '6 days' where name = 't.tock'").await.unwrap();
    let (client, mut heard) = listening(&world.url(None)).await;
    assert!(fire(&client, "t.tock", T1).await.unwrap().is_some());
    assert!(heard.try_recv().unwrap().message().starts_with("UNIT_RETIRED"));
}

#[tokio::test]
async fn workers_and_operators_may_fire_and_the_tenant_of_the_session_plays_no_part() {
    let world = World::without_queues().await;
    let refused = fire(&connect(&world.url(Some("test_api"))).await, "t.tick", T1).await;
    assert_eq!(refusal(refused).code().code(), "42501", "a producer");
    for (role, at) in [("test_worker", T1), ("test_operator", T2)] {
        let client = connect(&world.url(Some(role))).await;
        client.batch_execute("set app.tenant_id = '5'").await.unwrap();
        let run = fire(&client, "t.tock", at).await.unwrap().expect(role);
        let row = world.one("select tenant_id, context, schedule, exclusive from work.task_runs where run_id = $1", &[&run]).await;
        assert_eq!((row.get::<_, Option<i64>>(0), row.get::<_, &str>(1)), (None, "platform"), "{role}");
        let carried: i64 = world.one("select count(*) from work.platform_outbox_messages where run_id = $1", &[&run]).await.get(0);
        assert_eq!(carried, 1, "{role}");
    }
    // The time zone of a session changes no occurrence.
    world.db.batch_execute("set timezone = 'Asia/Tokyo'; set datestyle = 'german, dmy'").await.unwrap();
    assert_eq!(fire(&world.db, "t.tock", T1).await.unwrap(), None);
    let envelope: String = world.one("select envelope ->> 'scheduledFor' from work.platform_outbox_messages limit 1", &[]).await.get(0);
    assert!(envelope.starts_with("2026-01-02T"), "{envelope}");
}

#[tokio::test]
async fn a_lost_run_suppresses_no_longer_than_the_bound_of_repair() {
    let world = World::new().await;
    let relay = world.start(&[("MONALISA_RELAY", "true"), SHORT, ("QUEUES", "bulk")]).await;
    let lost = fire(&world.db, "t.tick", T1).await.unwrap().expect("fired");
    world.messages_are("maintenance", 1).await;
    world.queues().await.purge_queue().queue_url(world.sqs.queue_url("t-maintenance")).send().await.expect("purged");
    assert_eq!(fire(&world.db, "t.tick", T2).await.unwrap(), None, "it is unfinished");
    let _worker = world.start(&[SHORT, ("QUEUES", "maintenance")]).await;
    world.run_is(lost, "succeeded").await;
    assert!(world.trail(lost).await.contains(&"repaired".to_owned()), "{:?}", world.trail(lost).await);
    let next = fire(&world.db, "t.tick", T3).await.unwrap().expect("nothing suppresses it any more");
    world.run_is(next, "succeeded").await;
    drop(relay);
}

#[tokio::test]
async fn a_scheduled_run_that_is_run_again_suppresses_nothing() {
    let world = World::without_queues().await;
    let first = fire(&world.db, "t.tick", T1).await.unwrap().expect("fired");
    world.db.batch_execute(&format!("select work.cancel('{first}', 'a test')")).await.unwrap();
    let second = fire(&world.db, "t.tick", T2).await.unwrap().expect("fired");
    world.db.batch_execute(&format!("select work.retry('{first}', 'a test')")).await.unwrap();
    let unfinished = "select count(*) from work.task_runs where status = 'queued'";
    assert_eq!(world.count(unfinished).await, 2, "an operator's retry stands beside {second}");
}

#[tokio::test]
async fn firing_costs_the_same_with_many_occurrences_behind_it() {
    let world = World::without_queues().await;
    world
        .db
        .batch_execute(
            "set session_replication_role = replica;
             insert into work.task_runs (run_id, unit, kind, queue, context, payload, schedule, scheduled_for, status, finished_at)
             select gen_random_uuid(), 't.tick', 'task', 'maintenance', 'system', '{}', 't.tick', now() - i * interval '1 minute', 'succeeded', now()
               from generate_series(2, 100000) i;
             set session_replication_role = origin;
             analyze work.task_runs",
        )
        .await
        .unwrap();
    let began = std::time::Instant::now();
    for minute in 0..20 {
        fire(&world.db, "t.tick", &format!("2026-01-02T05:{minute:02}:00Z")).await.unwrap();
    }
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
}
