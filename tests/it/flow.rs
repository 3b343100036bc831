//! The straight path: dispatch, outbox, relay, SQS, start, handler, finish, delete.

use crate::support::{World, wait_for};
use uuid::Uuid;

#[tokio::test]
async fn a_committed_dispatch_succeeds_once_and_leaves_no_message() {
    let world = World::new().await;
    let _workers = world.workers().await;
    let run = world.dispatch("t.ok", r#"{"note":"hello"}"#).await;
    world.run_is(run, "succeeded").await;
    assert_eq!(world.effects(run).await, 1);
    assert_eq!(world.trail(run).await, ["started", "succeeded"]);
    let outcome: String = world.one("select outcome::text from work.task_runs where run_id = $1", &[&run]).await.get(0);
    assert_eq!(outcome, "\"done\"");
    world.messages_are("default", 0).await;
    world.messages_are("default-dlq", 0).await;
}

#[tokio::test]
async fn a_rolled_back_dispatch_leaves_nothing() {
    let mut world = World::new().await;
    let _workers = world.workers().await;
    let transaction = world.db.transaction().await.unwrap();
    let gone: Uuid = transaction.query_one("select work.dispatch('t.ok', '{}', 1)", &[]).await.unwrap().get(0);
    transaction.rollback().await.unwrap();
    let kept = world.dispatch("t.ok", "{}").await;
    world.run_is(kept, "succeeded").await;
    for table in ["task_runs", "outbox_messages", "run_events"] {
        let rows: i64 = world.one(&format!("select count(*) from work.{table} where run_id = $1"), &[&gone]).await.get(0);
        assert_eq!(rows, 0, "{table}");
    }
    assert_eq!(world.effects(gone).await, 0);
}

#[tokio::test]
async fn one_subscriber_fails_for_good_and_the_other_succeeds() {
    let world = World::new().await;
    let _workers = world.workers().await;
    let rows =
        world.db.query("select unit, run_id from work.publish('test.happened', '{\"note\":\"x\"}', tenant_id => 3)", &[]).await.unwrap();
    assert_eq!(rows.len(), 2);
    let run = |unit: &str| rows.iter().find(|row| row.get::<_, &str>(0) == unit).map(|row| row.get::<_, Uuid>(1)).unwrap();
    let (well, badly) = (run("t.happened_well"), run("t.happened_badly"));
    world.run_is(well, "succeeded").await;
    world.run_is(badly, "failed").await;
    assert_eq!((world.effects(well).await, world.effects(badly).await), (1, 0));
    assert_eq!(world.trail(badly).await, ["started", "failed"]);
    world.messages_are("default-dlq", 1).await;
    world.messages_are("default", 0).await;
    let letters = world.dead_letters("default").await;
    let body: serde_json::Value = serde_json::from_str(letters[0].body().unwrap()).unwrap();
    assert_eq!(body["runId"], badly.to_string());
    assert_eq!(body["deadLetter"]["code"], "VALIDATION");
    assert_eq!(body["deadLetter"]["text"], "this subscriber always fails");
    assert_eq!((&body["deadLetter"]["generation"], &body["deadLetter"]["attempt"]), (&1.into(), &1.into()));
    let attributes = letters[0].message_attributes().unwrap();
    assert_eq!(attributes["code"].string_value(), Some("VALIDATION"));
    assert!(attributes.contains_key("worker") && attributes.contains_key("at"));
}

#[tokio::test]
async fn a_transient_failure_is_tried_again_and_its_effect_is_rolled_back() {
    let world = World::new().await;
    let _workers = world.workers().await;
    let run = world.dispatch("t.transient", r#"{"n":2}"#).await;
    world.run_is(run, "succeeded").await;
    assert_eq!(world.effects(run).await, 1);
    assert_eq!(world.trail(run).await, ["started", "retrying", "started", "retrying", "started", "succeeded"]);
    let failures: i32 = world.one("select failures from work.task_runs where run_id = $1", &[&run]).await.get(0);
    assert_eq!(failures, 2);
}

#[tokio::test]
async fn the_fifth_failure_is_final_and_has_a_dead_letter() {
    let world = World::new().await;
    let _workers = world.workers().await;
    let runs =
        [world.dispatch("t.transient", r#"{"n":99}"#).await, world.dispatch("t.panic", "{}").await, world.dispatch("t.slow", "{}").await];
    for run in runs {
        world.run_is(run, "failed").await;
        let trail = world.trail(run).await;
        assert_eq!(trail.iter().filter(|event| *event == "started").count(), 5, "{trail:?}");
        assert_eq!(trail.last().map(String::as_str), Some("failed"));
        assert_eq!(world.effects(run).await, 0);
    }
    let codes = world.db.query("select last_error from work.task_runs order by unit", &[]).await.unwrap();
    let codes: Vec<String> = codes.iter().map(|row| row.get::<_, String>(0).split(':').next().unwrap().to_owned()).collect();
    assert_eq!(codes, ["PANIC", "TIMED_OUT", "TRANSIENT"]);
    world.messages_are("default-dlq", 3).await;
    world.messages_are("default", 0).await;
}

#[tokio::test]
async fn a_swallowed_sql_error_is_no_success() {
    let world = World::new().await;
    let _workers = world.workers().await;
    let run = world.dispatch("t.sql", r#"{"q":"select 1/0","swallow":true}"#).await;
    wait_for("a recorded failure", async || (!world.trail(run).await.is_empty()).then_some(())).await;
    assert_eq!(world.trail(run).await[..2], ["started", "retrying"]);
    let error: String = world.one("select last_error from work.task_runs where run_id = $1", &[&run]).await.get(0);
    assert!(error.starts_with("SQL_25P02"), "{error}");
    assert_eq!(world.effects(run).await, 0);
}

#[tokio::test]
async fn a_delay_of_any_length_is_kept_and_ends_on_time() {
    let world = World::new().await;
    let _workers = world.workers().await;
    let soon: Uuid = world.one("select work.dispatch('t.ok', '{}', 1, delay => '1.5 seconds')", &[]).await.get(0);
    let late: Uuid = world.one("select work.dispatch('t.ok', '{}', 1, delay => '400 days')", &[]).await.get(0);
    let past: Uuid = world.one("select work.dispatch('t.ok', '{}', 1, run_at => now() - interval '1 day')", &[]).await.get(0);
    world.run_is(past, "succeeded").await;
    world.run_is(soon, "succeeded").await;
    let wait: f64 = world
        .one("select extract(epoch from started_at - available_at)::float8 from work.task_runs where run_id = $1", &[&soon])
        .await
        .get(0);
    assert!((0.0..1.0).contains(&wait), "started {wait} s after it was due");
    world.run_is(late, "queued").await;
    let pending: i64 = world.one("select count(*) from work.outbox_messages where run_id = $1 and sent_at is null", &[&late]).await.get(0);
    assert_eq!(pending, 1);
}

#[tokio::test]
async fn a_handler_sees_its_run_and_the_tenant_in_its_transaction() {
    let world = World::new().await;
    let _workers = world.workers().await;
    let run = world.dispatch("t.look", r#"{"digits":1.50}"#).await;
    world.run_is(run, "succeeded").await;
    let outcome: String = world.one("select outcome #>> '{}' from work.task_runs where run_id = $1", &[&run]).await.get(0);
    assert_eq!(outcome, "1|t.look|read committed|1|t.look|1.5");
    let platform: Uuid = world.one("select work.dispatch('t.platform')", &[]).await.get(0);
    world.run_is(platform, "succeeded").await;
    assert_eq!(world.effects(platform).await, 1);
}
