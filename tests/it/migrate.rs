//! `workers migrate`: by many at once, killed in the middle, against a newer schema, beside a long reader.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::support::{World, connect, in_time, wait_for};

/// Runs `workers migrate` and takes back what it printed.
async fn migrated(world: &World) -> String {
    let mut command = std::process::Command::new(crate::support::binary("workers"));
    command.arg("migrate").env_clear().envs(world.environment()).env("DATABASE_URL", world.url(None));
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Every migration stands in the history once, the schema is usable, and nobody holds the lock any more.
async fn is_migrated_once(world: &World) {
    let twice = "select count(*) from (select version from work.schema_history group by version having count(*) > 1) twice";
    assert_eq!(world.count(twice).await, 0);
    assert!(world.count("select count(*) from work.schema_history").await > 0);
    world
        .db
        .batch_execute("insert into public.tenants values (1) on conflict do nothing; select work.dispatch('maintenance.purge')")
        .await
        .unwrap();
    let locks = "select count(*) from pg_locks where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())";
    wait_for("the advisory lock to be given back", async || (world.count(locks).await == 0).then_some(())).await;
}

#[tokio::test]
async fn any_number_of_processes_may_migrate_an_empty_database_at_once() {
    for _ in 0..3 {
        let world = std::sync::Arc::new(World::empty().await);
        let mut processes = JoinSet::new();
        for _ in 0..5 {
            let world = world.clone();
            processes.spawn(async move { migrated(&world).await });
        }
        let outputs = processes.join_all().await;
        let applied: usize = outputs.iter().map(|output| output.lines().filter(|line| line.starts_with("applied")).count()).sum();
        assert_eq!(applied as i64, world.count("select count(*) from work.schema_history").await, "{outputs:#?}");
        is_migrated_once(&world).await;
    }
}

#[tokio::test]
async fn a_migration_that_is_killed_leaves_nothing_half_done_and_no_lock() {
    let world = std::sync::Arc::new(World::empty().await);
    // Whoever migrates first stops in the middle of the migration, at this table.
    world.db.batch_execute("create table public.tenants (id bigint primary key)").await.unwrap();
    world.db.batch_execute("begin; lock table public.tenants").await.unwrap();
    let mut first = world.spawn_with("workers", &["migrate"], &[("DATABASE_URL", &world.url(None))]);
    let watch = connect(&world.url(None)).await;
    let waits = async |sql: &str, number: i64| {
        wait_for(&format!("{number} to wait"), async || {
            (watch.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) == number).then_some(())
        })
        .await;
    };
    let at_the_table = "select count(*) from pg_locks l join pg_stat_activity a using (pid)
                         where a.datname = current_database() and not l.granted and l.locktype = 'relation'";
    waits(at_the_table, 1).await;
    let mut others = JoinSet::new();
    for _ in 0..4 {
        let world = world.clone();
        others.spawn(async move { migrated(&world).await });
    }
    let for_their_turn =
        "select count(*) from pg_stat_activity where datname = current_database() and query like 'select pg_try_advisory_lock%'";
    waits(for_their_turn, 4).await;
    first.kill();
    world.db.batch_execute("rollback").await.unwrap();
    let outputs = others.join_all().await;
    let applied: usize = outputs.iter().map(|output| output.lines().filter(|line| line.starts_with("applied")).count()).sum();
    assert_eq!(applied as i64, world.count("select count(*) from work.schema_history").await, "{outputs:#?}");
    is_migrated_once(&world).await;
}

const NEWER: &str = "insert into work.schema_history (version, name, applied_on, checksum)
                     select max(version) + 1, 'later', '2026-01-01T00:00:00Z', '1' from work.schema_history";

#[tokio::test]
async fn a_newer_schema_is_a_warning_and_no_reason_to_stop() {
    let world = World::new().await;
    world.db.batch_execute(NEWER).await.unwrap();
    let workers = world.start(&[]).await;
    let warning = workers.log("the schema is newer than this program").await;
    assert_eq!(warning["level"], "WARN");
    let newest = world.count("select max(version)::bigint from work.schema_history").await;
    let said = format!("version {newest}, and {} here", newest - 1);
    assert!(warning["message"].as_str().unwrap().contains(&said), "{warning}");
    // That version has a function with one more parameter, and a view with one more column.
    let newer =
        "create function work.cancel(run_id uuid, reason text, labels jsonb default null) returns text language sql as 'select null::text';
                 drop function work.cancel(uuid, text);
                 create or replace view work.queue_status as select s.*, 1 as newer from work.queue_status() s";
    world.db.batch_execute(newer).await.unwrap();
    let mut migrate = world.spawn_with("test-workers", &["migrate"], &[("DATABASE_URL", &world.url(None))]);
    assert!(migrate.exit().await.success());
    assert_eq!(world.count("select count(*) from pg_proc where proname = 'cancel' and 'labels' = any (proargnames)").await, 1);
    world.db.batch_execute("select newer from work.queue_status").await.unwrap();
    let lines = migrate.all_lines().await;
    assert!(
        lines.iter().any(|line| line.contains("the schema is newer")) && !lines.iter().any(|line| line.contains("ERROR")),
        "{lines:#?}"
    );
    assert_eq!(world.count("select count(*) from work.schema_history").await, newest);
}

#[tokio::test]
async fn an_older_schema_or_none_is_refused_by_the_name_of_the_remedy() {
    let world = World::new().await;
    world.db.batch_execute("delete from work.schema_history where version > 1; update work.schema_history set version = 0").await.unwrap();
    for (change, said) in
        [("", "the schema is at version 0"), ("truncate work.schema_history", "no schema"), ("drop schema work cascade", "no schema")]
    {
        world.db.batch_execute(change).await.unwrap();
        let mut workers = world.spawn("test-workers", &[]);
        assert_eq!(workers.exit().await.code(), Some(1));
        let text = workers.all_lines().await.join("\n");
        assert!(text.contains(said) && text.contains("make migrate"), "{change}: {text}");
    }
    // What a first load would change is told all the same.
    let difference = world.command_with("workers", &["tasks", "diff"], &[("DATABASE_URL", &world.url(None))]);
    let said = String::from_utf8_lossy(&difference.stdout).into_owned();
    assert!(difference.status.success() && said.contains("added     maintenance.purge"), "{said}");
}

#[tokio::test]
async fn a_migration_lets_others_pass_while_a_long_reader_holds_its_table() {
    let world = World::without_queues().await;
    // Something that takes the outbox for itself: its policies are made anew.
    world.db.batch_execute("drop policy runtime on work.outbox_messages; drop policy tenant on work.outbox_messages").await.unwrap();
    let reader = connect(&world.url(None)).await;
    reader.batch_execute("begin; select count(*) from work.outbox_messages").await.unwrap();
    let mut migrate = world.spawn_with("test-workers", &["migrate"], &[("DATABASE_URL", &world.url(None))]);
    wait_for("the migration to wait for the table", async || {
        let sql = "select from pg_locks where relation = 'work.outbox_messages'::regclass and not granted";
        world.db.query_opt(sql, &[]).await.unwrap()
    })
    .await;
    let began = Instant::now();
    world.dispatch("t.ok", "{}").await;
    in_time(began, Duration::from_millis(6_500));
    assert!(began.elapsed() > Duration::from_millis(500), "nobody was in its way: this proves nothing");
    migrate.log("a table is in use for long").await;
    reader.batch_execute("commit").await.unwrap();
    assert!(migrate.exit().await.success());
    assert_eq!(world.count("select count(*) from pg_policies where schemaname = 'work' and tablename = 'outbox_messages'").await, 2);
    is_migrated_once(&world).await;
}

#[tokio::test]
async fn an_index_is_made_beside_the_work_also_where_it_was_left_half_made() {
    let world = World::without_queues().await;
    let old =
        "create index task_runs_unfinished_idx on work.task_runs (queue, available_at) where status in ('queued', 'running', 'retrying')";
    world.db.batch_execute(old).await.unwrap();
    let broken = "update pg_index set indisvalid = false where indexrelid = 'work.task_runs_unfinished_due_idx'::regclass";
    world.db.batch_execute(broken).await.unwrap();
    // A transaction that wrote and stays open: an index that is made waits for it.
    let caller = connect(&world.url(None)).await;
    caller.batch_execute("begin; select work.dispatch('t.ok', '{}', 1)").await.unwrap();
    let mut migrate = world.spawn_with("test-workers", &["migrate"], &[("DATABASE_URL", &world.url(None))]);
    migrate.log("making an index").await;
    let told = migrate.log("the migration waits for the session with pid").await;
    let pid: i32 = caller.query_one("select pg_backend_pid()", &[]).await.unwrap().get(0);
    assert!(told["message"].as_str().unwrap().contains(&format!("pid {pid} (role postgres")), "{told}");
    let waits = "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'monalisa migrate' and wait_event_type = 'Lock'";
    world.count_is(waits, 1).await;
    // Another migration waits for its turn, and neither stands in the other's way.
    let mut second = world.spawn_with("test-workers", &["migrate"], &[("DATABASE_URL", &world.url(None))]);
    let began = Instant::now();
    world.dispatch("t.ok", "{}").await;
    in_time(began, Duration::from_secs(2));
    assert_eq!(world.count(waits).await, 1, "nobody is waited for: this proves nothing");
    caller.batch_execute("commit").await.unwrap();
    assert!(migrate.exit().await.success() && second.exit().await.success());
    let indexes = "select string_agg(c.relname || ' ' || i.indisvalid, ', ') from pg_index i join pg_class c on c.oid = i.indexrelid
                    where i.indrelid = 'work.task_runs'::regclass and c.relname like '%unfinished%'";
    assert_eq!(world.one(indexes, &[]).await.get::<_, String>(0), "task_runs_unfinished_due_idx true");
    is_migrated_once(&world).await;
}

#[tokio::test]
async fn logins_that_migrate_may_change_and_who_may_not_is_told_who_may() {
    let world = World::empty().await;
    let [first, second] = ["first", "second"].map(|name| format!("{name}_{}", uuid::Uuid::new_v4().simple()));
    let database: String = world.one("select current_database()::text", &[]).await.get(0);
    let roles = format!(
        "create role {first} login; create role {second} login; alter database {database} owner to {first};
         grant create on schema public to {first}; grant create on database {database} to {second}"
    );
    world.db.batch_execute(&roles).await.unwrap();
    let migrate = |role: &str| world.command_with("workers", &["migrate"], &[("DATABASE_URL", &world.url(Some(role)))]);
    let done = migrate(&first);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let refused = migrate(&second);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && said.contains(&format!("belongs to {first}")) && said.contains(&format!("grant {first} to {second}")),
        "{said}"
    );
    world.db.batch_execute(&format!("grant {first} to {second}; drop function work.cancel(uuid, text)")).await.unwrap();
    let done = migrate(&second);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let others = "select count(*) from pg_proc p where p.pronamespace = 'work'::regnamespace and pg_get_userbyid(p.proowner) <> $1";
    assert_eq!(world.one(others, &[&first]).await.get::<_, i64>(0), 0);
    world
        .db
        .batch_execute(&format!(
            "alter database {database} owner to postgres; drop owned by {first}, {second} cascade; drop role {first}, {second}"
        ))
        .await
        .unwrap();
}
