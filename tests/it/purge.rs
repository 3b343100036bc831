//! `maintenance.purge`: what goes and what stays, what a batch costs, and that neither failures nor restarts keep it from its end.

use monalisa::sql::{Statement, idempotency, outbox, platform_outbox};
use serde_json::Value;
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use crate::support::{RELAY, SHORT, World, connect, wait_for};

const PURGERS: (&str, &str) = ("MONALISA_CONCURRENCY", "maintenance.purge=3");
const OLD: &str = "select count(*) from work.outbox_messages where sent_at < clock_timestamp() - interval '168 hours'";

/// Rows of both outboxes that were sent some time ago, one each second.
async fn sent(world: &World, rows: i64, ago: &str) {
    world
        .db
        .batch_execute(&format!(
            "insert into work.outbox_messages (tenant_id, run_id, queue, envelope, available_at, sent_at)
             select 1, gen_random_uuid(), 'bulk', '{{}}', t.at, t.at
               from generate_series(1, {rows}) i, lateral (select clock_timestamp() - interval '{ago}' - i * interval '1 s' as at) t
              order by random();
             insert into work.platform_outbox_messages (run_id, queue, envelope, available_at, sent_at)
             select run_id, queue, envelope, available_at, sent_at from work.outbox_messages where sent_at < clock_timestamp() - interval '{ago}'
                 on conflict do nothing;
             analyze work.outbox_messages, work.platform_outbox_messages"
        ))
        .await
        .unwrap();
}

/// Each batch of a purge takes a while, and how many rows went in it is noted.
async fn batches_are_noted(world: &World, and: &str) {
    world
        .db
        .batch_execute(&format!(
            "create table public.batches (id bigint generated always as identity, rows bigint not null);
             grant insert on public.batches to public;
             create function public.note() returns trigger language plpgsql as $$
             declare v_rows bigint := (select count(*) from gone);
             begin insert into public.batches (rows) values (v_rows); {and}; return null; end $$;
             create trigger note after delete on work.outbox_messages referencing old table as gone
               for each statement execute function public.note()"
        ))
        .await
        .unwrap();
}

async fn dispatch_purge(world: &World) -> Uuid {
    world.one("select work.dispatch('maintenance.purge')", &[]).await.get(0)
}

async fn outcome(world: &World, run: Uuid) -> Value {
    world.run_is(run, "succeeded").await;
    world.one("select outcome from work.task_runs where run_id = $1", &[&run]).await.get(0)
}

#[tokio::test]
async fn three_purgers_at_once_take_each_old_row_once_and_nothing_else() {
    let world = World::new().await;
    let old = 20_000;
    sent(&world, old, "7 days").await;
    sent(&world, 1_000, "6 days 23 hours").await;
    // Not sent, however old; the relay leaves them alone since they are due later.
    let pending = "insert into work.outbox_messages (tenant_id, run_id, queue, envelope, available_at, created_at)
                   select 1, gen_random_uuid(), 'bulk', '{}', now() + interval '1 day', now() - interval '30 days' from generate_series(1, 1000)";
    world.db.batch_execute(pending).await.unwrap();
    let waiting = world.one("select work.dispatch('t.ok', '{}', 1, delay => '1 day', idempotency_key => 'waits')", &[]).await;
    let waiting: Uuid = waiting.get(0);
    world.db.batch_execute("update work.idempotency_keys set expires_at = now() - interval '1 hour'").await.unwrap();
    let keys = "insert into work.idempotency_keys (tenant_id, key, run_ids, request_hash, expires_at)
                select 1, i::text, '{}', '', now() + i * interval '1 minute' from generate_series(-1500, 500) i";
    world.db.batch_execute(keys).await.unwrap();
    batches_are_noted(&world, "perform pg_sleep(0.15)").await;

    let _workers = world.start(&[RELAY, PURGERS]).await;
    let purges = [dispatch_purge(&world).await, dispatch_purge(&world).await, dispatch_purge(&world).await];
    for _ in 0..30 {
        world.dispatch("t.ok", "{}").await;
    }
    let mut removed = [0; 3];
    for run in purges {
        let outcome = outcome(&world, run).await;
        assert!(
            outcome["drained"].as_bool().unwrap() && outcome["outbox_messages"].as_i64().unwrap() > 0,
            "all three had a share: {outcome}"
        );
        for (sum, part) in removed.iter_mut().zip(["outbox_messages", "platform_outbox_messages", "idempotency_keys"]) {
            *sum += outcome[part].as_i64().unwrap();
        }
    }
    assert_eq!(removed, [old, old, 1_501], "rows of both outboxes and keys");
    assert_eq!(world.count(OLD).await, 0);
    world.count_is("select count(*) from work.outbox_messages where sent_at is not null", 1_000 + 30).await;
    assert_eq!(world.count("select count(*) from work.outbox_messages where sent_at is null").await, 1_000 + 1);
    assert_eq!(world.count("select count(*) from work.platform_outbox_messages where envelope = '{}'").await, 1_000);
    let left = "select count(*) from work.idempotency_keys where expires_at < now()";
    assert_eq!(world.count(left).await, 1, "the key of the run that waits");
    let again = world.one("select work.dispatch('t.ok', '{}', 1, delay => '1 day', idempotency_key => 'waits')", &[]).await;
    assert_eq!(again.get::<_, Uuid>(0), waiting, "it still protects it");
    let largest = world.count("select max(rows) from public.batches").await;
    assert!(largest <= 5_000, "a batch of {largest} rows");
    assert_eq!(world.count("select deadlocks from pg_stat_database where datname = current_database()").await, 0);
}

/// A session with the statement of a table, in the generic plan that a process has in the end.
async fn prepared(world: &World, statement: Statement) -> Client {
    let client = connect(&world.url(None)).await;
    client.batch_execute(&format!("set plan_cache_mode = force_generic_plan; prepare purge as {}", statement.text)).await.unwrap();
    client
}

/// Buffers that a batch touches.
async fn buffers(client: &Client, cursor: &str, limit: i64) -> i64 {
    let plan: Value =
        client.query_one(&format!("explain (analyze, buffers, format json) execute purge ({cursor}, {limit})"), &[]).await.unwrap().get(0);
    ["Shared Hit Blocks", "Shared Read Blocks"].iter().map(|kind| plan[0]["Plan"][kind].as_i64().unwrap()).sum()
}

#[tokio::test]
async fn a_purge_that_finds_nothing_costs_a_probe_of_each_table() {
    let world = World::without_queues().await;
    sent(&world, 20_000, "1 hour").await;
    let keys = "insert into work.idempotency_keys (tenant_id, key, run_ids, request_hash, expires_at)
                select 1, i::text, '{}', '', now() + i * interval '1 minute' from generate_series(1, 20000) i";
    world.db.batch_execute(keys).await.unwrap();
    world.db.batch_execute("vacuum analyze work.outbox_messages, work.platform_outbox_messages, work.idempotency_keys").await.unwrap();
    for statement in [outbox::PURGE, platform_outbox::PURGE, idempotency::PURGE] {
        let client = prepared(&world, statement).await;
        buffers(&client, "null", 1_000).await;
        let cost = buffers(&client, "null", 1_000).await;
        assert!(cost <= 4, "{}: {cost} buffers", statement.name);
    }
}

#[tokio::test]
async fn batches_cost_the_same_while_a_transaction_elsewhere_keeps_every_dead_row() {
    let world = World::without_queues().await;
    sent(&world, 20_000, "8 days").await;
    let holder = connect(&world.url(None)).await;
    holder.batch_execute("begin isolation level repeatable read; select count(*) from work.units").await.unwrap();
    let client = prepared(&world, outbox::PURGE).await;
    // At the end of each: what a batch of a hundred touches from there on, and from the beginning; both taken back.
    let (mut cursor, mut costs) = ("null".to_owned(), Vec::new());
    let from_the_start = loop {
        client.batch_execute("begin").await.unwrap();
        costs.push(buffers(&client, &cursor, 100).await);
        client.batch_execute("rollback; begin").await.unwrap();
        let from_the_start = buffers(&client, "null", 100).await;
        client.batch_execute("rollback").await.unwrap();
        let row = client.query_one(&format!("execute purge ({cursor}, 4000)"), &[]).await.unwrap();
        if !row.get::<_, bool>("more") {
            break from_the_start;
        }
        cursor = format!("'{}'", row.get::<_, &str>("reached"));
    };
    assert!(costs.len() >= 5, "{costs:?}");
    let (first, last) = (costs[0], costs[costs.len() - 2]);
    assert!(last < first + first / 2 + 50, "a batch of a hundred: {costs:?} buffers");
    assert!(from_the_start > 10 * last, "without the cursor it would be {from_the_start}: the dead entries are there");
    assert_eq!(world.count(OLD).await, 0);
}

#[tokio::test]
async fn keys_of_runs_that_wait_stay_and_a_batch_examines_no_more_than_its_share_of_them() {
    let world = World::without_queues().await;
    world
        .db
        .batch_execute(
            "select work.dispatch('t.ok', '{}', 1, delay => '1 year', idempotency_key => 'k' || i) from generate_series(1, 3000) i;
             update work.idempotency_keys set expires_at = now() - interval '1 day' + substr(key, 2)::int * interval '1 s';
             insert into work.idempotency_keys (tenant_id, key, run_ids, request_hash, expires_at)
             select 1, 'over' || i, array[gen_random_uuid()], '', now() - interval '1 hour' from generate_series(1, 500) i;
             analyze work.idempotency_keys, work.task_runs",
        )
        .await
        .unwrap();
    let client = prepared(&world, idempotency::PURGE).await;
    let (mut cursor, mut removed, mut batches) = ("null".to_owned(), Vec::new(), 0);
    loop {
        batches += 1;
        assert!(batches < 100, "it goes round and round");
        client.batch_execute("begin").await.unwrap();
        let cost = buffers(&client, &cursor, 300).await;
        client.batch_execute("rollback").await.unwrap();
        assert!(cost < 8_000, "{cost} buffers for 300 keys");
        let row: Row = client.query_one(&format!("execute purge ({cursor}, 300)"), &[]).await.unwrap();
        removed.push(row.get::<_, i64>("removed"));
        if !row.get::<_, bool>("more") {
            break;
        }
        cursor = format!("'{}'", row.get::<_, &str>("reached"));
    }
    // Ten batches of keys that stay; then those that expired at one instant, which cannot be parted.
    assert_eq!(removed, [vec![0; 10], vec![500, 0]].concat());
    assert_eq!(world.count("select count(*) from work.idempotency_keys").await, 3_000);
}

#[tokio::test]
async fn a_batch_that_takes_too_long_is_followed_by_a_smaller_one() {
    let world = World::new().await;
    sent(&world, 2_000, "8 days").await;
    batches_are_noted(&world, "perform pg_sleep(v_rows * 0.001)").await;
    let _workers = world.start(&[RELAY]).await;
    let run = dispatch_purge(&world).await;
    assert_eq!(outcome(&world, run).await["outbox_messages"], 2_000);
    let sizes: Vec<i64> =
        world.db.query("select rows from public.batches order by id", &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(sizes[..3], [1_000, 500, 250], "{sizes:?}");
    assert!(sizes[2..].iter().all(|size| *size <= 250), "{sizes:?}");
}

#[tokio::test]
async fn a_batch_that_does_not_come_to_its_end_is_given_up_for_a_smaller_one() {
    let world = World::new().await;
    sent(&world, 600, "8 days").await;
    batches_are_noted(&world, "if v_rows > 300 then perform pg_sleep(600); end if; perform pg_sleep(0.15)").await;
    let _workers = world.start(&[RELAY]).await;
    let run = dispatch_purge(&world).await;
    assert_eq!(outcome(&world, run).await["outbox_messages"], 600);
    assert_eq!(world.count("select max(rows) from public.batches").await, 250);
    assert_eq!(world.trail(run).await, ["started", "succeeded"], "no attempt failed for it");
}

#[tokio::test]
async fn a_purge_that_fails_is_tried_again_soon_and_one_table_holds_up_no_other() {
    let world = World::new().await;
    sent(&world, 100, "8 days").await;
    world.db.batch_execute("revoke delete on work.outbox_messages from monalisa_worker").await.unwrap();
    let workers = world.start(&[RELAY, ("MONALISA_BACKOFF_BASE_MS", "2000")]).await;
    let run = dispatch_purge(&world).await;
    let error = workers.log("a table could not be purged").await;
    assert_eq!(error["level"], "ERROR");
    world.run_is(run, "retrying").await;
    assert_eq!(
        world.count("select count(*) from work.platform_outbox_messages where envelope = '{}'").await,
        0,
        "the other table was purged"
    );
    assert_eq!(world.count(OLD).await, 100);
    world.db.batch_execute("grant delete on work.outbox_messages to monalisa_worker").await.unwrap();
    outcome(&world, run).await;
    assert_eq!(world.count(OLD).await, 0);
    let last: String = world.one("select last_error from work.task_runs where run_id = $1", &[&run]).await.get(0);
    assert!(last.starts_with("SQL_42501: "), "{last}");
}

#[tokio::test]
async fn a_purge_that_is_killed_or_drained_again_and_again_keeps_what_it_removed_and_comes_to_its_end() {
    let world = World::new().await;
    let old = 20_000;
    sent(&world, old, "8 days").await;
    world.db.batch_execute("create table public.pause as select 0.15 as s; grant select on public.pause to public").await.unwrap();
    batches_are_noted(&world, "perform pg_sleep(s) from public.pause").await;
    let run = dispatch_purge(&world).await;
    let mut before = old;
    // A drain has a second and a half, and each batch takes some tenths.
    let short = ("MONALISA_STOP_TIMEOUT_MS", "6500");
    for end in ["TERM", "KILL", "TERM"] {
        let mut workers = world.start(&[RELAY, SHORT, short]).await;
        let gone = async || (world.count(OLD).await < before).then_some(());
        wait_for("a batch to be gone", gone).await;
        workers.signal(end);
        workers.exit().await;
        let now = world.count(OLD).await;
        assert!(0 < now && now < before, "{now} of {before} are left after {end}");
        before = now;
    }
    world.db.batch_execute("update public.pause set s = 0").await.unwrap();
    let _workers = world.start(&[RELAY, SHORT]).await;
    outcome(&world, run).await;
    assert_eq!(world.count(OLD).await, 0);
    assert_eq!(world.count("select sum(rows)::int8 from public.batches").await, old, "no row went twice, none was left");
    let counted = world.one("select failures, crashes from work.task_runs where run_id = $1", &[&run]).await;
    assert_eq!((counted.get::<_, i32>(0), counted.get::<_, i32>(1)), (0, 1), "a deploy costs nothing");
}

#[tokio::test]
async fn the_time_zone_of_a_session_moves_no_row_across_the_seven_days() {
    let world = World::new().await;
    let ages = "insert into work.outbox_messages (tenant_id, run_id, queue, envelope, available_at, sent_at)
                select 1, gen_random_uuid(), 'bulk', '{}', now(), clock_timestamp() - make_interval(mins => age) from unnest(array[167 * 60 + 30, 168 * 60 + 30]) age";
    // Zones whose clocks went forward, or back, three days ago.
    for (forward, back) in [(-3, 100), (100, -3)] {
        world.db.batch_execute(ages).await.unwrap();
        let client = connect(&world.url(Some("test_worker"))).await;
        let day = "extract(doy from date '2023-01-01' + (extract(doy from now())::int + $1 + 364) % 365)::int";
        let rule = async |days: i32| world.one(&format!("select {day}"), &[&days]).await.get::<_, i32>(0);
        let zone = format!("set timezone = 'STD0SUM,J{}/0,J{}/0'", rule(forward).await, rule(back).await);
        client.batch_execute(&zone).await.unwrap();
        let moved = client.query_one("select (now() - interval '7 days') = (now() - interval '168 hours')", &[]).await.unwrap();
        assert!(!moved.get::<_, bool>(0), "{zone}: this proves nothing");
        let row = client.query_one(outbox::PURGE.text, &[&None::<&str>, &1_000_i64]).await.unwrap();
        assert_eq!(row.get::<_, i64>("removed"), 1, "{zone}");
        assert_eq!(world.count("select count(*) from work.outbox_messages").await, 1);
        world.db.batch_execute("delete from work.outbox_messages").await.unwrap();
    }
    // The whole way, with other zones for worker and caller.
    world.db.batch_execute(ages).await.unwrap();
    let name: String = world.one("select current_database()::text", &[]).await.get(0);
    for (role, zone) in [("test_worker", "Asia/Tokyo"), ("test_api", "America/New_York")] {
        world.db.batch_execute(&format!("alter role {role} in database {name} set timezone = '{zone}'")).await.unwrap();
    }
    let caller = connect(&world.url(Some("test_api"))).await;
    for (key, expires) in [("lapsed", "- interval '1 hour'"), ("lapses", "+ interval '1 hour'")] {
        caller.batch_execute(&format!("select work.dispatch('t.ok', '{{}}', 1, idempotency_key => '{key}')")).await.unwrap();
        world
            .db
            .batch_execute(&format!("update work.idempotency_keys set expires_at = now() {expires} where key = '{key}'"))
            .await
            .unwrap();
    }
    let _workers = world.start(&[RELAY]).await;
    world.count_is("select count(*) from work.task_runs where status = 'succeeded'", 2).await;
    let run: Uuid = caller.query_one("select work.dispatch('maintenance.purge')", &[]).await.unwrap().get(0);
    let outcome = outcome(&world, run).await;
    assert_eq!((&outcome["outbox_messages"], &outcome["idempotency_keys"]), (&1.into(), &1.into()), "{outcome}");
    assert_eq!(world.one("select key from work.idempotency_keys", &[]).await.get::<_, &str>(0), "lapses");
}

#[tokio::test]
async fn a_purge_comes_however_often_its_process_is_replaced() {
    let world = World::new().await;
    let rate = "update work.units set schedule = 'rate(3 seconds)', schedule_anchor = clock_timestamp() where name = 'maintenance.purge'";
    world.db.batch_execute(rate).await.unwrap();
    for _ in 0..2 {
        sent(&world, 100, "8 days").await;
        // No process lasts as long as it is from one purge to the next.
        wait_for("the next purge", async || {
            let mut workers = world.start(&[RELAY, ("MONALISA_LOCAL_SCHEDULER", "true")]).await;
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
            workers.kill();
            (world.count(OLD).await == 0).then_some(())
        })
        .await;
    }
    let fired = "select count(*) from work.task_runs where schedule = 'maintenance.purge' and scheduled_for <= created_at";
    assert!(world.count(fired).await >= 2);
}

#[tokio::test]
async fn keys_are_purged_at_the_same_cost_beside_a_backlog_that_statistics_do_not_know() {
    let world = World::without_queues().await;
    let runs = "insert into work.task_runs (run_id, tenant_id, unit, kind, queue, context, payload, status, finished_at)
                select gen_random_uuid(), 1, 't.ok', 'task', 'default', 'tenant', '{}', $2, case $2 when 'succeeded' then now() end
                  from generate_series(1, $1)";
    let prepare = "alter table work.task_runs set (autovacuum_enabled = off); set session_replication_role = replica";
    world.db.batch_execute(prepare).await.unwrap();
    world.db.execute(runs, &[&50_000_i32, &"succeeded"]).await.unwrap();
    world.db.execute(runs, &[&20_i32, &"queued"]).await.unwrap();
    world.db.batch_execute("analyze work.task_runs").await.unwrap();
    world.db.execute(runs, &[&20_000_i32, &"queued"]).await.unwrap();
    let keys = "insert into work.idempotency_keys (tenant_id, key, run_ids, request_hash, expires_at)
                select 1, i::text, array[gen_random_uuid()], '', now() - interval '1 hour' - i * interval '1 ms' from generate_series(1, 400) i;
                analyze work.idempotency_keys";
    world.db.batch_execute(keys).await.unwrap();
    let client = prepared(&world, idempotency::PURGE).await;
    let plan: Value = client.query_one("explain (analyze, format json) execute purge (null, 400)", &[]).await.unwrap().get(0);
    fn rows(node: &Value) -> f64 {
        let number = |name: &str| node[name].as_f64().unwrap_or_default();
        let own =
            (number("Actual Rows") + number("Rows Removed by Filter") + number("Rows Removed by Join Filter")) * number("Actual Loops");
        own + node["Plans"].as_array().into_iter().flatten().map(rows).sum::<f64>()
    }
    let read = rows(&plan[0]["Plan"]);
    assert!(read < 20_000.0, "{read} rows for 400 keys: {plan:#}");
    assert_eq!(world.count("select count(*) from work.idempotency_keys").await, 0);
}
