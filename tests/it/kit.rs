//! The test kit for handlers: what it says of an attempt is what a worker records, and an attempt leaves nothing.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use chrono::{DateTime, Utc};
use monalisa::{
    Event, Options, TaskError, TaskRun, subscriber, task,
    testing::{End, TestDatabase},
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::support::{World, connect};

const SETUP: &str = "create table notes (text text, constraint notes_once unique (text) deferrable initially deferred)";

/// Does as it is told.
#[derive(Serialize, Deserialize)]
struct Act {
    what: String,
}

task! { payload: Act, handler: act, name: "kit.act", queue: "default", timeout_seconds: 1 }

/// What handlers said of their runs.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<String>>>);

impl Heard {
    fn say(&self, text: impl Into<String>) {
        self.0.lock().unwrap().push(text.into());
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

async fn act(payload: Act, run: &TaskRun) -> Result<Option<String>, TaskError> {
    let effect = run.transaction().await?;
    effect.execute("insert into notes values ($1)", &[&payload.what]).await?;
    match payload.what.as_str() {
        "write" => return Ok(Some(format!("attempt {}", run.attempt()))),
        "transient" => return Err(TaskError::transient("not yet").retry_after(Duration::from_secs(3_600))),
        "permanent" => return Err(TaskError::not_found("it is gone")),
        "panic" => panic!("the handler lost its head"),
        "sleep" => tokio::time::sleep(Duration::from_secs(60)).await,
        "block" => std::thread::sleep(Duration::from_millis(1_300)),
        "swallow" => drop(effect.batch_execute("select 1/0").await),
        "break a constraint" => effect.batch_execute("insert into notes values ('break a constraint')").await?,
        "a constraint that is not deferred" => effect.batch_execute("select nobody").await?,
        "commit" => effect.batch_execute("commit").await?,
        "commit and hide it" => drop(effect.batch_execute("commit").await),
        "roll back" => effect.batch_execute("rollback").await?,
        "roll back and write" => effect.batch_execute("rollback; insert into notes values ('outside')").await?,
        "begin anew" => effect.batch_execute("rollback; begin read write; insert into notes values ('anew')").await?,
        "wait to be told" => {
            run.cancelled().await;
            run.state::<Heard>()?.say("told");
            std::future::pending::<()>().await;
        }
        other => return Err(TaskError::validation(format!("nobody can {other}"))),
    }
    Ok(None)
}

fn told(what: &str) -> Act {
    Act { what: what.to_owned() }
}

#[tokio::test]
async fn one_attempt_shows_its_effect_and_leaves_nothing() {
    let db = TestDatabase::new(SETUP).await.unwrap();
    let tried = db.task(&told("write")).attempt(3).given("insert into notes values ('given')").run().await.unwrap();
    assert_eq!(tried.end, End::Succeeded(json!("attempt 3")));
    let count = "select count(*) from notes";
    assert_eq!(tried.query_one(count, &[]).await.unwrap().get::<_, i64>(0), 2, "what was given, and the effect");
    let state = tried.query_one("select status, outcome from work.task_runs where run_id = $1", &[&tried.run_id]).await.unwrap();
    assert_eq!((state.get::<_, &str>(0), state.get::<_, serde_json::Value>(1)), ("succeeded", json!("attempt 3")));
    assert_eq!(db.query_one(count, &[]).await.unwrap().get::<_, i64>(0), 0, "nobody else sees it");
    drop(tried);
    for table in ["notes", "work.task_runs", "work.outbox_messages", "work.run_events"] {
        let rows = db.query_one(&format!("select count(*) from {table}"), &[]).await.unwrap();
        assert_eq!(rows.get::<_, i64>(0), 0, "{table}");
    }
}

/// Whatever an attempt may be, in one transaction that is rolled back and for real: both say the same.
#[tokio::test]
async fn an_attempt_is_judged_as_by_a_worker() {
    for attempt in [1, 5] {
        let db = TestDatabase::new(SETUP).await.unwrap().state(Heard::default());
        for (what, retrying) in [
            ("write", None),
            ("transient", Some(("TRANSIENT", true))),
            ("permanent", Some(("NOT_FOUND", false))),
            ("panic", Some(("PANIC", true))),
            ("sleep", Some(("TIMED_OUT", true))),
            ("block", Some(("TIMED_OUT", true))),
            ("swallow", Some(("SQL_25P02", true))),
            ("break a constraint", Some(("SQL_23505", true))),
            ("a constraint that is not deferred", Some(("SQL_42703", true))),
            ("commit", Some(("TRANSACTION_ENDED", true))),
            ("commit and hide it", Some(("TRANSACTION_ENDED", true))),
            ("roll back", Some(("TRANSACTION_ENDED", true))),
            ("roll back and write", Some(("TRANSACTION_ENDED", true))),
            ("begin anew", Some(("TRANSACTION_ENDED", true))),
            ("fly", Some(("VALIDATION", false))),
        ] {
            let mut tried = db.task(&told(what)).attempt(attempt).run().await.unwrap();
            // A PostgreSQL that does not answer to the rollback for a second is no failure of the handler's.
            for _ in 0..3 {
                if matches!(tried.end, End::GivenBack(_)) {
                    tried = db.task(&told(what)).attempt(attempt).run().await.unwrap();
                }
            }
            let said = match &tried.end {
                End::Succeeded(_) => "succeeded",
                End::Retrying(_) => "retrying",
                End::Failed(_) => "failed",
                End::GivenBack(reason) => panic!("{what}: {reason}"),
            };
            let expected = match retrying {
                None => ("succeeded", None),
                Some((code, true)) if attempt < 5 => ("retrying", Some(code.to_owned())),
                Some((code, _)) => ("failed", Some(code.to_owned())),
            };
            assert_eq!((said, tried.error().map(TaskError::code)), expected, "{what}: {tried:?}");
            let effects: i64 = tried.query_one("select count(*) from notes", &[]).await.unwrap().get(0);
            assert_eq!(effects, i64::from(what == "write"), "{what}: after a failure the effect is rolled back");
            let status = tried.query_one("select status from work.task_runs where unit = 'kit.act'", &[]).await.unwrap();
            assert_eq!(status.get::<_, &str>(0), said, "{what}: the ledger in the transaction");
            drop(tried);
            let left: i64 =
                db.query_one("select (select count(*) from notes) + (select count(*) from work.task_runs)", &[]).await.unwrap().get(0);
            assert_eq!(left, 0, "{what} left something");

            // And now for real.
            db.execute("select work.dispatch('kit.act', jsonb_build_object('what', $1::text), 1)", &[&what]).await.unwrap();
            db.execute("update work.task_runs set failures = $1", &[&(attempt - 1)]).await.unwrap();
            let ran = db.run_due().await.unwrap();
            assert_eq!((ran.len(), ran[0].attempt, ran[0].status.as_str()), (1, attempt, said), "{what}: {ran:?}");
            let code = ran[0].last_error.as_ref().map(|text| text.split(':').next().unwrap().to_owned());
            assert_eq!(code, expected.1, "{what}: {ran:?}");
            db.batch_execute("truncate notes, work.task_runs, work.outbox_messages").await.unwrap();
        }
    }
}

#[tokio::test]
async fn an_attempt_that_is_told_to_end_is_given_back() {
    let heard = Heard::default();
    let db = TestDatabase::new(SETUP).await.unwrap().state(heard.clone());
    let trial = db.task(&told("wait to be told")).timeout(Duration::from_secs(60));
    let tried = trial.cancel_when(async { tokio::time::sleep(Duration::from_millis(50)).await }).run().await.unwrap();
    assert!(matches!(&tried.end, End::GivenBack(reason) if reason.contains("told to end")), "{tried:?}");
    assert_eq!((tried.outcome(), tried.error()), (None, None));
    assert_eq!(heard.take(), ["told"]);
    let row = tried.query_one("select status, failures from work.task_runs", &[]).await.unwrap();
    assert_eq!((row.get::<_, &str>(0), row.get::<_, i32>(1)), ("queued", 0));
    assert_eq!(tried.query_one("select count(*) from notes", &[]).await.unwrap().get::<_, i64>(0), 0);
}

#[tokio::test]
async fn a_payload_that_does_not_fit_fails_before_the_handler() {
    let db = TestDatabase::new(SETUP).await.unwrap();
    let tried = db.unit("kit.act", r#"{"that": "write"}"#).run().await.unwrap();
    let error = tried.error().unwrap();
    assert!(matches!(tried.end, End::Failed(_)) && error.code() == "PAYLOAD_UNDECODABLE", "{tried:?}");
    assert!(error.text().contains("missing field `what`"), "{}", error.text());
    // What cannot be enqueued is an error of the test.
    let error = db.unit("kit.act", "[]").run().await.unwrap_err();
    assert_eq!(error.sqlstate().unwrap().code(), "ML006");
    for (what, trial) in [
        ("kit.nothing", db.unit("kit.nothing", "{}")),
        ("kit.heard", db.subscriber("kit.heard", &Other {})),
        ("a run has the attempts", db.task(&told("write")).attempt(6)),
    ] {
        let error = trial.run().await.unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
}

/// Another version of the event that `kit.heard` subscribes to.
#[derive(Serialize, Deserialize)]
struct Other {}

impl Event for Other {
    const TYPE: &'static str = "kit.happened";
    const VERSION: i32 = 2;
}

#[derive(Serialize, Deserialize)]
struct Happened {
    n: i64,
}

impl Event for Happened {
    const TYPE: &'static str = "kit.happened";
}

subscriber! { event: Happened, handler: heard, name: "kit.heard", queue: "bulk" }

async fn heard(event: Happened, run: &TaskRun) -> Result<(), TaskError> {
    run.state::<Heard>()?.say(format!("{} {} of tenant {:?}", run.name(), event.n, run.tenant_id()));
    Ok(())
}

/// Schedules others: so many, one after the other.
#[derive(Serialize, Deserialize)]
struct Chain {
    n: i64,
    #[serde(default)]
    fail: bool,
}

task! { payload: Chain, handler: chain, name: "kit.chain", queue: "critical" }

async fn chain(payload: Chain, run: &TaskRun) -> Result<(), TaskError> {
    let effect = run.transaction().await?;
    run.state::<Heard>()?.say(format!("{} {}", run.name(), payload.n));
    if payload.n > 0 {
        let options = Options { delay: Some(Duration::from_secs(3_600)), ..Options::default() };
        monalisa::dispatch(&**effect, &Chain { n: payload.n - 1, fail: false }, &options).await?;
    }
    // In a savepoint, as a handler may that tries something.
    effect.batch_execute("savepoint s").await?;
    monalisa::publish(&**effect, &Happened { n: payload.n }, &Options::default()).await?;
    effect.batch_execute("release savepoint s").await?;
    if payload.fail { Err(TaskError::transient("after all")) } else { Ok(()) }
}

#[tokio::test]
async fn what_a_handler_schedules_is_told_with_its_payload_its_tenant_and_its_time() {
    let db = TestDatabase::new("").await.unwrap().state(Heard::default());
    let other = connect(db.url()).await;
    let before = Utc::now();
    let tried = db.task(&Chain { n: 5, fail: false }).tenant(3).run().await.unwrap();
    // What somebody else commits meanwhile is not of this attempt.
    other.execute("select work.dispatch('kit.chain', '{\"n\": 1}', 2)", &[]).await.unwrap();
    let scheduled = tried.scheduled().await.unwrap();
    let told: Vec<_> = scheduled.iter().map(|run| (run.unit.as_str(), run.event.clone(), run.tenant_id, run.queue.as_str())).collect();
    assert_eq!(told, [("kit.chain", None, Some(3), "critical"), ("kit.heard", Some(("kit.happened".to_owned(), 1)), Some(3), "bulk")]);
    assert_eq!((&scheduled[0].payload, &scheduled[1].payload), (&json!({"n": 4, "fail": false}), &json!({"n": 5})));
    let delay = scheduled[0].available_at - before;
    assert!(
        delay >= chrono::TimeDelta::minutes(59) && scheduled[1].available_at - before < chrono::TimeDelta::minutes(59),
        "{scheduled:?}"
    );
    // Nothing of an attempt that failed.
    let failed = db.task(&Chain { n: 5, fail: true }).run().await.unwrap();
    assert_eq!((failed.error().unwrap().text().as_str(), failed.scheduled().await.unwrap()), ("after all", Vec::new()));
    drop((tried, failed));
    let runs: i64 = db.query_one("select count(*) from work.task_runs", &[]).await.unwrap().get(0);
    assert_eq!(runs, 1, "that of the other session");
}

/// Says what it sees of its run.
#[derive(Serialize, Deserialize)]
struct Look {}

task! { payload: Look, handler: look, name: "kit.look", queue: "bulk", context: "platform", schedule: "rate(1 day)" }

async fn look(_: Look, run: &TaskRun) -> Result<(Option<i64>, i32, Option<DateTime<Utc>>, DateTime<Utc>), TaskError> {
    let before = run.now();
    run.state::<Heard>()?.say("looking");
    while run.now() - before < chrono::TimeDelta::hours(1) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok((run.tenant_id(), run.attempt(), run.scheduled_for(), run.now()))
}

#[tokio::test]
async fn a_handler_sees_the_attempt_the_occurrence_and_the_clock_that_the_test_gives_it() {
    let heard = Heard::default();
    let db = TestDatabase::new("").await.unwrap().state(heard.clone());
    let (occurrence, start) = ("2026-03-01T06:00:00Z".parse::<DateTime<Utc>>().unwrap(), "2026-03-01T06:00:07Z".parse().unwrap());
    let trial = db.task(&Look {}).attempt(4).scheduled_for(occurrence).at(start);
    let (tried, ()) = tokio::join!(trial.run(), async {
        crate::support::wait_for("the handler to look", async || (!heard.take().is_empty()).then_some(())).await;
        db.clock().advance(Duration::from_secs(2 * 3_600));
    });
    let tried = tried.unwrap();
    let (tenant, attempt, scheduled_for, now): (Option<i64>, i32, DateTime<Utc>, DateTime<Utc>) =
        serde_json::from_value(tried.outcome().expect("it succeeded").clone()).unwrap();
    assert_eq!((tenant, attempt, scheduled_for), (None, 4, occurrence));
    let passed = now - start;
    assert!(passed >= chrono::TimeDelta::hours(2) && passed < chrono::TimeDelta::hours(3), "{passed}");
}

#[tokio::test]
async fn everything_due_is_run_in_its_order_until_nothing_is_due() {
    let heard = Heard::default();
    let db = TestDatabase::new(SETUP).await.unwrap().state(heard.clone());
    db.batch_execute(
        "select work.dispatch('kit.chain', '{\"n\": 2}', 1, run_at => now() - interval '1 minute');
         update work.task_runs set available_at = now() - interval '1 minute';
         select work.dispatch('kit.chain', '{\"n\": 0}', 2)",
    )
    .await
    .unwrap();
    let ran = db.run_due().await.unwrap();
    assert!(ran.iter().all(|run| run.status == "succeeded"), "{ran:?}");
    assert_eq!(heard.take(), ["kit.chain 2", "kit.chain 0", "kit.heard 2 of tenant Some(1)", "kit.heard 0 of tenant Some(2)"]);
    assert_eq!(db.run_due().await.unwrap(), [], "the next one is due in an hour");
    db.forward(Duration::from_secs(3_600)).await.unwrap();
    db.run_due().await.unwrap();
    assert_eq!(heard.take(), ["kit.chain 1", "kit.heard 1 of tenant Some(1)"]);

    db.forward(Duration::from_secs(3_600)).await.unwrap();
    db.run_due().await.unwrap();
    assert_eq!(heard.take(), ["kit.chain 0", "kit.heard 0 of tenant Some(1)"]);

    // A failure is tried again when its time has come, five times in all.
    db.execute("select work.dispatch('kit.act', '{\"what\": \"transient\"}', 1)", &[]).await.unwrap();
    for attempt in 1..=5 {
        let ran = db.run_due().await.unwrap();
        let status = if attempt < 5 { "retrying" } else { "failed" };
        assert_eq!((ran.len(), ran[0].attempt, ran[0].status.as_str()), (1, attempt, status));
        assert_eq!(ran[0].last_error.as_deref(), Some("TRANSIENT: not yet"));
        assert_eq!(db.run_due().await.unwrap(), [], "it waits for its time");
        db.forward(Duration::from_secs(3_600)).await.unwrap();
    }
    let trail: String = db
        .query_one("select string_agg(e.event, ' ' order by e.id) from work.run_events e join work.task_runs r using (run_id) where r.unit = 'kit.act'", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(trail, format!("{}started failed", "started retrying ".repeat(4)));
}

/// Dispatches itself.
#[derive(Serialize, Deserialize)]
struct Endless {}

task! { payload: Endless, handler: endless, name: "kit.endless", queue: "bulk" }

async fn endless(_: Endless, run: &TaskRun) -> Result<(), TaskError> {
    monalisa::dispatch(&**run.transaction().await?, &Endless {}, &Options::default()).await?;
    Ok(())
}

#[tokio::test]
async fn a_handler_that_dispatches_itself_does_not_run_for_ever() {
    let db = TestDatabase::new("").await.unwrap();
    db.execute("select work.dispatch('kit.endless', '{}', 1)", &[]).await.unwrap();
    let error = db.run_due().await.unwrap_err().to_string();
    assert!(error.contains("does a handler dispatch itself?"), "{error}");
}

#[tokio::test]
async fn a_database_that_is_there_may_be_used_and_an_own_one_goes_with_its_test() {
    let own = TestDatabase::new("").await.unwrap();
    let name: String = own.query_one("select current_database()::text", &[]).await.unwrap().get(0);
    let world = World::without_queues().await;
    world.db.batch_execute(SETUP).await.unwrap();
    // Its catalogue is that of another program.
    let there = TestDatabase::existing(&world.url(None)).await.unwrap();
    let error = there.task(&told("write")).run().await.unwrap_err();
    assert_eq!(error.sqlstate().unwrap().code(), "ML001");
    world.db.execute("update work.units set name = 'kit.act' where name = 't.idle'", &[]).await.unwrap();
    let tried = there.task(&told("write")).run().await.unwrap();
    assert_eq!(tried.outcome(), Some(&json!("attempt 1")));
    drop((tried, there));
    assert_eq!(world.count("select (select count(*) from notes) + (select count(*) from work.task_runs)").await, 0);
    let is_there = async || {
        let sql = "select count(*) from pg_database where datname = $1";
        world.one(sql, &[&name]).await.get::<_, i64>(0)
    };
    assert_eq!(is_there().await, 1);
    drop(own);
    assert_eq!(is_there().await, 0);
}
