//! What the relay costs PostgreSQL when vacuum can remove nothing.

use crate::support::{World, connect, wait_for};

/// Buffers that one statement on the outbox touched, on average since the last reset.
const COST: &str = "select coalesce(sum(shared_blks_hit + shared_blks_read) / sum(calls), 0)::int8 from pg_stat_statements
                     where query ~ '^-- (platform_)?outbox/(due|claim):' and dbid = (select oid from pg_database where datname = current_database())";

async fn send(world: &World, rows: i64) {
    let before = world.count("select count(*) from work.platform_outbox_messages where sent_at is not null").await;
    world.db.batch_execute(&format!("select work.dispatch('t.platform') from generate_series(1, {rows})")).await.unwrap();
    world.count_is("select count(*) from work.platform_outbox_messages where sent_at is not null", before + rows).await;
}

#[tokio::test]
async fn a_claim_costs_no_more_while_a_transaction_elsewhere_keeps_every_dead_row() {
    let world = World::new().await;
    world.db.batch_execute("create extension pg_stat_statements").await.unwrap();
    let holder = connect(&world.url(None)).await;
    holder.batch_execute("begin isolation level repeatable read; select count(*) from work.units").await.unwrap();
    let relay = [("MONALISA_RELAY", "true"), ("QUEUES", "maintenance"), ("MONALISA_VALKEY_URL", ""), ("MONALISA_RELAY_SWEEP_MS", "20")];
    let _relay = world.start(&relay).await;
    // The entries of ten thousand sent rows stay in the index, and their due times lie behind what is looked at.
    send(&world, 10_000).await;
    wait_for("their due times to be long past", async || {
        let age = "select count(*) from work.platform_outbox_messages where available_at > clock_timestamp() - interval '12 s'";
        (world.count(age).await == 0).then_some(())
    })
    .await;
    world.db.batch_execute("select pg_stat_statements_reset()").await.unwrap();
    for _ in 0..20 {
        send(&world, 1).await;
    }
    let cost = world.count(COST).await;
    assert!(cost < 100, "{cost} buffers a statement");
    let whole = "explain (analyze, buffers, format json) select from work.platform_outbox_messages
                  where sent_at is null and queue = 'bulk' and available_at >= '-infinity' and available_at <= now() order by available_at, id limit 500";
    let plan: serde_json::Value = world.one(whole, &[]).await.get(0);
    let whole = plan[0]["Plan"]["Shared Hit Blocks"].as_i64().unwrap() + plan[0]["Plan"]["Shared Read Blocks"].as_i64().unwrap();
    assert!(whole > 500, "without the lower bound it would be {whole}: the dead entries are there");
}

#[tokio::test]
async fn a_claim_costs_no_more_at_the_end_of_a_backlog_that_became_due_at_one_time() {
    let world = World::new().await;
    world.db.batch_execute("create extension pg_stat_statements; select pg_stat_statements_reset()").await.unwrap();
    let holder = connect(&world.url(None)).await;
    holder.batch_execute("begin isolation level repeatable read; select count(*) from work.units").await.unwrap();
    let dispatch =
        "select work.dispatch('t.platform', run_at => '2026-01-01'), count(*) from generate_series(1, 20000) group by generate_series.*";
    world.db.batch_execute(dispatch).await.unwrap();
    world.db.batch_execute("update work.platform_outbox_messages set available_at = '2026-01-01'").await.unwrap();
    let relay =
        [("MONALISA_RELAY", "true"), ("QUEUES", "maintenance"), ("MONALISA_RELAY_BATCH", "200"), ("MONALISA_RELAY_SWEEP_MS", "60000")];
    let _relay = world.start(&relay).await;
    let claims = "select coalesce(sum(shared_blks_hit + shared_blks_read), 0)::int8, coalesce(sum(calls), 0)::int8 from pg_stat_statements
                   where query ~ '^-- platform_outbox/claim:' and dbid = (select oid from pg_database where datname = current_database())";
    let sent = "select count(*) from work.platform_outbox_messages where sent_at is not null";
    let after = async |rows: i64| {
        wait_for("the backlog to move", async || (world.count(sent).await >= rows).then_some(())).await;
        let row = world.one(claims, &[]).await;
        (row.get::<_, i64>(0), row.get::<_, i64>(1))
    };
    let (first, middle, end) = (after(4_000).await, after(16_000).await, after(20_000).await);
    let (early, late) = (first.0 / first.1, (end.0 - middle.0) / (end.1 - middle.1).max(1));
    assert!(late < early * 3, "{late} buffers a claim at the end, {early} in the beginning");
}
