//! Enqueueing while PostgreSQL fails the caller: all of a transaction or nothing, and a repeated call makes no second run.

use crate::support::{World, connect, refusal, wait_for};

const KEYED: &str = "select work.dispatch('t.ok', '{}', 1, idempotency_key => 'once')::text";

/// Run rows, outbox rows and keys.
async fn rows(world: &World) -> [i64; 3] {
    let mut rows = [0; 3];
    for (slot, table) in rows.iter_mut().zip(["task_runs", "outbox_messages", "idempotency_keys"]) {
        *slot = world.count(&format!("select count(*) from work.{table}")).await;
    }
    rows
}

#[tokio::test]
async fn a_lost_answer_to_the_callers_commit_and_its_repeat_make_one_run() {
    let world = World::without_queues().await;
    let proxy = world.pg_proxy().await;
    let mut api = connect(&proxy.through(&world.url(Some("test_api")))).await;
    let transaction = api.transaction().await.unwrap();
    let first: String = transaction.query_one(KEYED, &[]).await.unwrap().get(0);
    proxy.swallow_answer_to("COMMIT");
    assert!(transaction.commit().await.is_err_and(|error| error.is_closed()), "the caller does not know");
    let committed = async || (rows(&world).await == [1, 1, 1]).then_some(());
    wait_for("the commit, which nobody answered", committed).await;
    assert_eq!(proxy.swallowed(), 1);
    let again = connect(&proxy.through(&world.url(Some("test_api")))).await;
    let second: String = again.query_one(KEYED, &[]).await.unwrap().get(0);
    assert_eq!((second, rows(&world).await), (first, [1, 1, 1]));
}

#[tokio::test]
async fn a_caller_that_is_cut_off_before_its_commit_leaves_nothing() {
    let world = World::without_queues().await;
    let proxy = world.pg_proxy().await;
    let sessions = "select count(*) from pg_stat_activity where datname = current_database() and usename = 'test_api'";
    for killed in [false, true] {
        let mut api = connect(&proxy.through(&world.url(Some("test_api")))).await;
        let transaction = api.transaction().await.unwrap();
        transaction.query_one(KEYED, &[]).await.unwrap();
        transaction.batch_execute("select work.publish('test.happened', '{}', 1, 1), work.dispatch('t.platform')").await.unwrap();
        if killed {
            let kill =
                "select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = current_database() and usename = 'test_api'";
            assert_eq!(world.count(kill).await, 1);
        } else {
            proxy.cut().await;
        }
        assert!(transaction.commit().await.is_err());
        world.count_is(sessions, 0).await;
        assert_eq!(rows(&world).await, [0, 0, 0]);
    }
    // The key is free: its first holder never was.
    let api = connect(&world.url(Some("test_api"))).await;
    api.query_one(KEYED, &[]).await.unwrap();
    assert_eq!(rows(&world).await, [1, 1, 1]);
}

#[tokio::test]
async fn a_caller_that_waits_for_the_key_of_one_that_is_cut_off_gets_it() {
    let world = World::without_queues().await;
    let proxy = world.pg_proxy().await;
    let mut first = connect(&proxy.through(&world.url(Some("test_api")))).await;
    let transaction = first.transaction().await.unwrap();
    let lost: String = transaction.query_one(KEYED, &[]).await.unwrap().get(0);
    let second = connect(&world.url(Some("test_api"))).await;
    let waiting = tokio::spawn(async move { second.query_one(KEYED, &[]).await.map(|row| row.get::<_, String>(0)) });
    let waits = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    wait_for("the second to wait", async || (world.count(waits).await == 1).then_some(())).await;
    proxy.cut().await;
    let made = waiting.await.unwrap().unwrap();
    assert_ne!(made, lost);
    assert_eq!(rows(&world).await, [1, 1, 1]);
}

#[tokio::test]
async fn a_read_only_server_refuses_and_leaves_nothing() {
    let world = World::without_queues().await;
    let api = connect(&world.url(Some("test_api"))).await;
    api.batch_execute("set default_transaction_read_only = on").await.unwrap();
    for call in
        [KEYED, "select work.dispatch('t.ok', '{}', 1)::text", "select count(*)::text from work.publish('test.happened', '{}', 1, 1)"]
    {
        assert_eq!(refusal(api.query_one(call, &[]).await).code().code(), "ML032", "{call}");
    }
    assert_eq!(rows(&world).await, [0, 0, 0]);
    api.batch_execute("set default_transaction_read_only = off").await.unwrap();
    api.query_one(KEYED, &[]).await.unwrap();
    assert_eq!(rows(&world).await, [1, 1, 1]);
}

#[tokio::test]
async fn the_settings_of_the_callers_session_change_no_time_and_no_envelope() {
    let world = World::without_queues().await;
    let api = connect(&world.url(Some("test_api"))).await;
    api.batch_execute(
        "set timezone = 'Asia/Tokyo'; set datestyle = 'SQL, DMY'; set intervalstyle = 'sql_standard'; set extra_float_digits = -10;
         set search_path = pg_temp; set standard_conforming_strings = off; set bytea_output = 'escape'",
    )
    .await
    .unwrap();
    api.query_one("select work.dispatch('t.ok', '{}', 1, run_at => timestamptz '2030-01-01 00:00:00+00')::text", &[]).await.unwrap();
    api.query_one("select work.dispatch('t.ok', '{}', 1, delay => interval '1:00:00')::text", &[]).await.unwrap();
    let right = "select count(*) from work.outbox_messages o join work.task_runs r using (run_id)
                  where o.available_at = r.available_at
                    and (o.envelope ->> 'enqueuedAt')::timestamptz = r.created_at
                    and (r.available_at = '2030-01-01 00:00:00+00' or r.available_at - r.created_at between '59 minutes' and '61 minutes')";
    assert_eq!(world.count(right).await, 2);
}
