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
