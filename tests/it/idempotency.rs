//! Idempotency keys: one request under a key makes its runs once, and never none.

use crate::support::{World, connect, refusal, wait_for};
use uuid::Uuid;

async fn keyed(world: &World, tenant: i64, payload: &str) -> Result<Uuid, tokio_postgres::Error> {
    let sql = "select work.dispatch('t.ok', $1::text::jsonb, $2, idempotency_key => 'order-1')";
    world.db.query_one(sql, &[&payload, &tenant]).await.map(|row| row.get(0))
}

#[tokio::test]
async fn the_same_request_under_a_key_answers_with_the_first_run() {
    let world = World::without_queues().await;
    let first = keyed(&world, 1, r#"{"a":1,"b":2}"#).await.unwrap();
    assert_eq!(keyed(&world, 1, r#"{ "b":2, "a":1 }"#).await.unwrap(), first, "the order of fields is no difference");
    let other = keyed(&world, 2, r#"{"a":1,"b":2}"#).await.unwrap();
    assert_ne!(other, first, "a key counts within its tenant");
    assert_eq!(world.count("select count(*) from work.task_runs").await, 2);
    assert_eq!(world.count("select count(*) from work.outbox_messages").await, 2);
    let platform = "select work.dispatch('t.platform', idempotency_key => 'order-1')";
    let runs: (Uuid, Uuid) = (world.one(platform, &[]).await.get(0), world.one(platform, &[]).await.get(0));
    assert_eq!(runs.0, runs.1, "work without a tenant shares one space of keys");
}

#[tokio::test]
async fn another_request_under_a_used_key_is_a_conflict_and_writes_nothing() {
    let world = World::without_queues().await;
    let first = keyed(&world, 1, "{}").await.unwrap();
    let event = "select work.publish('test.happened', '{}', 1, 1, idempotency_key => 'order-1')";
    let task = "select work.dispatch('t.urgent', '{}', 1, idempotency_key => 'order-1')";
    let payload = "select work.dispatch('t.ok', '{\"a\":1.0}', 1, idempotency_key => 'order-1')";
    for statement in [event, task, payload] {
        let error = refusal(world.db.query(statement, &[]).await);
        assert_eq!(error.code().code(), "ML008", "{statement}");
        assert!(error.message().starts_with("IDEMPOTENCY_CONFLICT: ") && error.hint().is_some(), "{error:?}");
        assert!(error.detail().unwrap().contains(&first.to_string()), "{error:?}");
    }
    assert_eq!(world.count("select count(*) from work.task_runs").await, 1);
}

#[tokio::test]
async fn a_key_that_is_empty_or_too_long_is_refused() {
    let world = World::without_queues().await;
    for key in [String::new(), "k".repeat(201)] {
        for call in
            ["work.dispatch('t.ok', '{}', 1, idempotency_key => $1)", "work.publish('test.happened', '{}', 1, 1, idempotency_key => $1)"]
        {
            let error = refusal(world.db.query(&format!("select {call}"), &[&key]).await);
            assert_eq!(error.code().code(), "ML015", "{call}");
            assert!(error.message().starts_with("IDEMPOTENCY_KEY_INVALID: ") && error.hint().is_some(), "{error:?}");
        }
    }
    assert_eq!(world.count("select count(*) from work.idempotency_keys").await, 0);
    let longest = world.db.query("select work.dispatch('t.ok', '{}', 1, idempotency_key => $1)", &[&"ä".repeat(200)]).await;
    assert_eq!(longest.unwrap().len(), 1);
}

#[tokio::test]
async fn an_event_under_a_key_answers_with_its_first_rows() {
    let world = World::without_queues().await;
    let publish = async |kind: &str| {
        let sql = "select unit, run_id from work.publish($1, '{}', 1, 1, idempotency_key => 'key of ' || $1) order by unit";
        let rows = world.db.query(sql, &[&kind]).await.unwrap();
        rows.iter().map(|row| (row.get(0), row.get(1))).collect::<Vec<(String, Uuid)>>()
    };
    let first = publish("test.happened").await;
    assert_eq!(first.len(), 2);
    assert_eq!(publish("test.happened").await, first);
    for _ in 0..2 {
        assert_eq!(publish("nobody.listens").await, []);
    }
    assert_eq!(world.count("select count(*) from work.task_runs").await, 2);
    let other = "select work.publish('nobody.listens', '{\"a\":1}', 1, 1, idempotency_key => 'key of nobody.listens')";
    assert_eq!(refusal(world.db.query(other, &[]).await).code().code(), "ML008", "the key is kept though nobody listened");
}

#[tokio::test]
async fn an_expired_key_makes_a_new_run_once_the_first_has_ended_and_not_before() {
    let world = World::without_queues().await;
    let first = keyed(&world, 1, "{}").await.unwrap();
    let expire = "update work.idempotency_keys set expires_at = clock_timestamp() - interval '1 second'";
    world.db.batch_execute(expire).await.unwrap();
    assert_eq!(keyed(&world, 1, "{}").await.unwrap(), first, "its run still waits");
    world.db.batch_execute("update work.task_runs set status = 'cancelled', finished_at = now()").await.unwrap();
    let second = keyed(&world, 1, r#"{"other":true}"#).await.unwrap();
    assert_ne!(second, first);
    assert_eq!(keyed(&world, 1, r#"{"other":true}"#).await.unwrap(), second, "it counts anew");
    assert_eq!(world.count("select count(*) from work.idempotency_keys where expires_at > now() + interval '23 hours'").await, 1);
}

#[tokio::test]
async fn a_second_caller_waits_for_the_first_and_never_ends_without_a_run() {
    for first_commits in [true, false] {
        let world = World::without_queues().await;
        world.db.batch_execute("begin").await.unwrap();
        let first = keyed(&world, 1, "{}").await.unwrap();
        let second = connect(&world.url(Some("test_api"))).await;
        let waiting = tokio::spawn(async move {
            let sql = "select work.dispatch('t.ok', '{}', 1, idempotency_key => 'order-1')";
            second.query_one(sql, &[]).await.unwrap().get::<_, Uuid>(0)
        });
        let watch = connect(&world.url(None)).await;
        wait_for("the second caller to wait", async || {
            let sql = "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
            watch.query_opt(sql, &[]).await.unwrap()
        })
        .await;
        world.db.batch_execute(if first_commits { "commit" } else { "rollback" }).await.unwrap();
        let run = waiting.await.unwrap();
        assert_eq!(run == first, first_commits);
        let rows = world.one("select count(*) from work.outbox_messages where run_id = $1", &[&run]).await;
        assert_eq!(rows.get::<_, i64>(0), 1, "there is a row for the run it got, whoever wrote it");
        assert_eq!(world.count("select count(*) from work.task_runs").await, 1);
    }
}
