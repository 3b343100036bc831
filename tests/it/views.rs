//! The views of observers and operators: what they tell, what they cost, and that who reads one holds up no migration.

use std::time::Duration;

use crate::support::{World, connect};

#[tokio::test]
async fn the_views_tell_what_waits_what_is_held_up_and_what_fails() {
    let world = World::without_queues().await;
    world
        .db
        .batch_execute(
            "select work.dispatch('t.ok', '{}', 1) from generate_series(1, 6); select work.dispatch('t.ok', '{}', 2, '1 hour') from generate_series(1, 2);
             select work.dispatch('t.platform');
             update work.task_runs set available_at = available_at - interval '10 minutes' where available_at < now() + interval '1 minute';
             update work.outbox_messages set available_at = available_at - interval '10 minutes' where available_at < now() + interval '1 minute';
             update work.outbox_messages set attempts = 12 where id = (select min(id) from work.outbox_messages);
             with r as (select run_id, row_number() over (order by run_id) as n from work.task_runs where unit = 't.ok')
             update work.task_runs t
                set status = case n when 1 then 'failed' when 2 then 'failed' else 'running' end, last_error = case n when 1 then 'NOT_FOUND: x' when 2 then null end,
                    finished_at = case when n <= 2 then clock_timestamp() - n * interval '50 minutes' end, started_at = now(), worker = 'w',
                    token = case when n > 2 then gen_random_uuid() end, lease_expires_at = case when n > 2 then now() + (n - 3.5) * interval '1 minute' end
               from r where r.run_id = t.run_id and n <= 4;
             update work.queue_seen set seen_until = now() where queue = 'bulk';
             update work.queue_controls set paused = true where queue = 'default'",
        )
        .await
        .unwrap();
    let observer = connect(&world.url(Some("test_observer"))).await;
    let told = async |sql: &str| observer.query_one(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}")).get::<_, String>(0);
    assert_eq!(
        told("select string_agg(concat_ws(' ', queue, waiting, round(oldest_waiting_s), delayed, running, lapsed, seen_until is not null, paused), '; ') from work.queue_status").await,
        "critical 0 0 0 0 f f; default 2 600 2 2 1 f t; bulk 1 600 0 0 0 t f; maintenance 0 0 0 0 f f"
    );
    assert_eq!(
        told("select string_agg(concat_ws(' ', outbox, queue, due, round(oldest_due_s), delayed, refused, most_attempts), '; ') from work.outbox_status where most_attempts is not null").await,
        "outbox_messages default 6 600 2 1 12; platform_outbox_messages bulk 1 0 0 0 0"
    );
    assert_eq!(
        told("select string_agg(concat_ws(' ', unit, service, kind, queue, context, queued, running, retrying, round(oldest_due_s), retired_at is null), '; ') from work.unit_status where queued > 0").await,
        "t.ok test-workers task default tenant 4 2 0 600 t; t.platform test-workers task bulk platform 1 0 0 600 t"
    );
    assert_eq!(
        told("select string_agg(concat_ws(' ', unit, code, failed_1h, failed_24h), '; ' order by code) from work.failures").await,
        "t.ok NOT_FOUND 1 1; t.ok UNKNOWN 0 1"
    );
    // Work of a unit that is in no catalogue any more is there all the same.
    world.db.batch_execute("update work.task_runs set unit = 'gone.away' where unit = 't.platform'").await.unwrap();
    assert_eq!(told("select unit || ' ' || queued from work.unit_status where service is null").await, "gone.away 1");

    observer.batch_execute("set app.tenant_id = '1'").await.unwrap();
    assert_eq!(
        told("select string_agg(concat_ws(' ', status, attempt, worker), '; ' order by run_id) from work.runs").await,
        "failed 1 w; failed 1 w; running 1 w; running 1 w; queued 1; queued 1"
    );
    let run = told("select run_id::text from work.runs order by created_at limit 1").await;
    assert_eq!(told(&format!("select concat_ws(' ', unit, tenant_id, last_error) from work.runs('{run}')")).await, "t.ok 1 NOT_FOUND: x");
    let operator = connect(&world.url(Some("test_operator"))).await;
    operator.batch_execute(&format!("select work.retry('{run}', 'the account is there now')")).await.unwrap();
    assert_eq!(
        told(&format!("select concat_ws(' ', event, generation, detail ->> 'reason') from work.trail('{run}')")).await,
        "retried 2 the account is there now"
    );
    assert_eq!(
        told("select concat_ws(' ', actor, action, reason) from work.operator_actions").await,
        "test_operator retry the account is there now"
    );
    let tables = "select string_agg(table_name, ' ' order by table_name) from work.table_health where table_bytes > 0 and index_bytes > 0";
    assert!(told(tables).await.contains("outbox_messages platform_outbox_messages queue_controls"));
}

#[tokio::test]
async fn a_migration_waits_for_nobody_who_reads_a_view_and_makes_a_changed_one_anew() {
    let world = World::without_queues().await;
    let observer = connect(&world.url(Some("test_observer"))).await;
    observer
        .batch_execute("begin; select * from work.queue_status; select * from work.runs; select * from work.table_health")
        .await
        .unwrap();
    let began = std::time::Instant::now();
    let migrated = world.command("test-workers", &["migrate"]);
    assert!(migrated.status.success(), "{}", String::from_utf8_lossy(&migrated.stderr));
    assert!(began.elapsed() < Duration::from_secs(25), "it waited for the reader: {:?}", began.elapsed());
    observer.batch_execute("rollback").await.unwrap();
    // One that a hand changed and one of another version are as their files have it afterwards.
    world.db.batch_execute("create or replace view work.table_health as select ''::name::text as table_name, 0::int8 as live_rows, 0::int8 as dead_rows, 0::numeric as dead_pct, 0::numeric as hot_update_pct, 0::int8 as table_bytes, 0::int8 as index_bytes, null::timestamptz as last_vacuum, null::timestamptz as last_analyze; comment on rule \"_RETURN\" on work.table_health is 'another version'; drop view work.failures").await.unwrap();
    let migrated = world.command("test-workers", &["migrate"]);
    assert!(migrated.status.success(), "{}", String::from_utf8_lossy(&migrated.stderr));
    assert!(world.count("select count(*) from work.table_health").await >= 10);
    assert_eq!(world.count("select count(*) from work.failures").await, 0);
    let secured = "select count(*) from pg_class where relnamespace = 'work'::regnamespace and relkind = 'v' and not coalesce(reloptions @> '{security_barrier=true}', false)";
    assert_eq!(world.count(secured).await, 0);
}

#[tokio::test]
async fn a_table_that_a_view_shows_can_be_altered_and_the_view_still_reads() {
    let world = World::without_queues().await;
    world.dispatch("t.ok", "{}").await;
    world
        .db
        .batch_execute(
            "alter table work.task_runs add column mine int; alter table work.task_runs alter column unit type varchar(200);
             alter table work.task_runs alter column last_error type varchar(20000); alter table work.outbox_messages alter column queue type varchar(20);
             alter table work.run_events alter column worker type varchar(300)",
        )
        .await
        .unwrap();
    let observer = connect(&world.url(Some("test_observer"))).await;
    observer.batch_execute("set app.tenant_id = '1'").await.unwrap();
    for view in ["queue_status", "outbox_status", "unit_status", "runs", "table_health"] {
        let rows = observer.query(&format!("select * from work.{view}"), &[]).await.unwrap_or_else(|error| panic!("{view}: {error:?}"));
        assert!(!rows.is_empty(), "{view}");
    }
    observer.batch_execute("select * from work.failures; select * from work.trail").await.unwrap();
}
