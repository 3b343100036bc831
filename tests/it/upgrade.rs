//! An upgrade from the first schema, with data in it and beside the work.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use monalisa::sql::{REAPPLIED, ROLES};
use tokio::task::JoinHandle;

use crate::support::{PREPARE, RELAY, World, connect};

/// Forty thousand runs, as a release of the first schema would have left them.
const DATA: &str = "
    set session_replication_role = replica;
    insert into work.task_runs (run_id, tenant_id, unit, kind, queue, context, payload, status, finished_at, created_at, available_at)
    select work.uuid_v7(), i % 20 + 1, 't.ok', 'task', 'default', 'tenant', '{}', 'succeeded', t.at, t.at, t.at
      from generate_series(1, 40000) i, lateral (select now() - i * interval '10 s' as at) t;
    insert into work.outbox_messages (tenant_id, run_id, queue, envelope, available_at, sent_at)
    select tenant_id, run_id, queue, '{}', available_at, available_at from work.task_runs;
    insert into work.run_events (run_id, tenant_id, event, attempt, generation, at)
    select run_id, tenant_id, event, 1, 1, created_at from work.task_runs, unnest(array['started', 'succeeded']) event;
    set session_replication_role = origin";

/// The first schema as its migration made it, with functions to enqueue by and a catalogue, but none of what came later.
async fn first_schema() -> World {
    let (newest, world) = (World::without_queues().await, World::empty().await);
    world.db.batch_execute(ROLES.text).await.unwrap();
    world.db.batch_execute(include_str!("../../migrations/V1__schema.sql")).await.unwrap();
    let history =
        "create table work.schema_history (version int4 primary key, name varchar(255), applied_on varchar(255), checksum varchar(255))";
    world.db.batch_execute(history).await.unwrap();
    let row = newest.one("select name, applied_on, checksum from work.schema_history where version = 1", &[]).await;
    let (name, applied_on, checksum): (&str, &str, &str) = (row.get(0), row.get(1), row.get(2));
    world.db.execute("insert into work.schema_history values (1, $1, $2, $3)", &[&name, &applied_on, &checksum]).await.unwrap();
    world.db.batch_execute("set check_function_bodies = off").await.unwrap();
    for function in REAPPLIED.iter().filter(|statement| statement.name.starts_with("functions/")) {
        world.db.batch_execute(function.text).await.unwrap();
    }
    world.db.batch_execute(PREPARE).await.unwrap();
    world.db.batch_execute(DATA).await.unwrap();
    let catalogue = String::from_utf8(world.command("test-workers", &["tasks", "generate", "-"]).stdout).unwrap();
    world.db.execute("select work.load_catalogue($1::text::jsonb, 'test-workers')", &[&catalogue]).await.unwrap();
    world
}

/// Somebody who dispatches all the time, until told; how long each took.
fn caller(world: &World) -> (Arc<AtomicBool>, JoinHandle<Vec<Duration>>) {
    let (end, url) = (Arc::new(AtomicBool::new(false)), world.url(None));
    let ended = end.clone();
    let calling = tokio::spawn(async move {
        let client = connect(&url).await;
        let mut took = Vec::new();
        while !ended.load(Ordering::Relaxed) {
            let began = Instant::now();
            client.batch_execute("select work.dispatch('t.ok', '{}', 1)").await.unwrap();
            took.push(began.elapsed());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        took
    });
    (end, calling)
}

/// A transaction that has read the tables, and stays open; and its pid.
async fn reader(world: &World) -> (tokio_postgres::Client, i32) {
    let client = connect(&world.url(None)).await;
    client.batch_execute("set application_name = 'a long report'; begin isolation level repeatable read").await.unwrap();
    for table in ["outbox_messages", "platform_outbox_messages", "task_runs", "run_events", "units"] {
        client.batch_execute(&format!("select count(*) from work.{table}")).await.unwrap();
    }
    let pid = client.query_one("select pg_backend_pid()", &[]).await.unwrap().get(0);
    (client, pid)
}

#[tokio::test]
async fn an_upgrade_from_the_first_schema_waits_for_a_long_reader_and_holds_nobody_up_for_long() {
    let world = first_schema().await;
    let made = world.command("workers", &["queues", "create"]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let (reader, pid) = reader(&world).await;
    let (end, calling) = caller(&world);
    let mut migrate = world.spawn_with("test-workers", &["migrate"], &[("DATABASE_URL", &world.url(None))]);
    let told = migrate.log("the migration waits for").await;
    let expected = format!("pid {pid} (role postgres, application \"a long report\", idle in transaction, its transaction began");
    assert!(told["message"].as_str().unwrap().contains(&expected), "{told}");
    // It gives the table up, and comes back to it.
    migrate.log("a table is in use for long").await;
    let waits = "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'monalisa migrate' and wait_event_type = 'Lock'";
    world.count_is(waits, 0).await;
    world.count_is(waits, 1).await;
    reader.batch_execute("commit").await.unwrap();
    assert!(migrate.exit().await.success(), "{:#?}", migrate.lines());
    end.store(true, Ordering::Relaxed);
    let took = calling.await.unwrap();
    let (longest, behind) = (took.iter().max().unwrap(), took.iter().filter(|took| **took > Duration::from_millis(500)).count());
    assert!(*longest < Duration::from_secs(5), "a dispatch took {longest:?}");
    assert!(behind > 0, "nobody was in its way: this proves nothing");
    // All is there: what was, what came meanwhile, and what the newest schema has.
    assert_eq!(world.count("select count(*) from work.task_runs").await, 40_000 + took.len() as i64);
    let same = "select array(select concat_ws(' ', c.relname, i.indisvalid::text) from pg_index i join pg_class c on c.oid = i.indexrelid
                              join pg_class t on t.oid = i.indrelid where t.relnamespace = 'work'::regnamespace order by 1)
                    || array(select concat_ws(' ', tablename, policyname) from pg_policies where schemaname = 'work' order by 1)
                    || array(select concat_ws(' ', tgrelid::regclass, tgname) from pg_trigger
                              where tgrelid::regclass::text like 'work.%' and not tgisinternal order by 1)
                    || array(select version::text from work.schema_history order by version)";
    let newest = World::without_queues().await;
    assert_eq!(world.one(same, &[]).await.get::<_, Vec<String>>(0), newest.one(same, &[]).await.get::<_, Vec<String>>(0));
    let _workers = world.start(&[RELAY]).await;
    world.count_is("select count(*) from work.task_runs where status <> 'succeeded'", 0).await;
}

#[tokio::test]
async fn a_migration_behind_a_reader_that_stays_gives_up_and_says_who_it_is() {
    let world = first_schema().await;
    let (_reader, pid) = reader(&world).await;
    let mut migrate = world.spawn_with("test-workers", &["migrate"], &[("DATABASE_URL", &world.url(None))]);
    assert_eq!(migrate.exit().await.code(), Some(1));
    let lines = migrate.all_lines().await;
    let said = |line: &&String| line.contains(&format!("it waited for the session with pid {pid}")) && line.contains("a long report");
    assert!(lines.iter().any(|line| said(&line)), "{lines:#?}");
    assert_eq!(world.count("select count(*) from pg_policies where schemaname = 'work'").await, 0, "nothing is half done");
}
