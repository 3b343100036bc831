//! `sql/ops/archive_runs.sql`, through psql as a DBA runs it.

use std::process::{Command, Output, Stdio};

use crate::support::{RELAY, World, refusal, wait_for};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/sql/ops/archive_runs.sql");

/// psql with the script; each variable as `name=value`.
fn psql(world: &World, role: Option<&str>, variables: &[&str]) -> Command {
    let mut psql = Command::new("psql");
    psql.args(["-X", "-v", "VERBOSITY=verbose", "-f", SCRIPT]).args(variables.iter().flat_map(|variable| ["-v", variable]));
    psql.arg(world.url(role)).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    psql
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn archived(world: &World, variables: &[&str]) -> String {
    let output = psql(world, None, variables).output().expect("psql is installed");
    assert!(output.status.success(), "{}", said(&output));
    said(&output)
}

/// Runs of so many days ago, with two events each and an outbox row, as they were left by dispatches of that time.
async fn runs(world: &World, number: i64, created_days: i32, finished_days: Option<i32>, unit: &str, outbox: &str) {
    let finished = finished_days.map_or("null".to_owned(), |days| format!("now() - interval '{days} days'"));
    let status = if finished_days.is_none() { "queued" } else { "failed" };
    world
        .db
        .batch_execute(&format!(
            "set session_replication_role = replica;
             with r as (
               insert into work.task_runs (run_id, tenant_id, unit, kind, queue, context, payload, status, created_at, available_at, finished_at)
               select overlay(work.uuid_v7()::text placing regexp_replace(lpad(to_hex(ms), 12, '0'), '(.{{8}})', '\\1-') from 1 for 13)::uuid,
                      1, '{unit}', 'task', 'bulk', 'tenant', '{{\"n\": 1}}', '{status}', t.at, t.at, {finished}
                 from generate_series(1, {number}) i,
                      lateral (select now() - interval '{created_days} days' - i * interval '1 s' as at) t,
                      lateral (select (extract(epoch from t.at) * 1000)::bigint as ms) m
               returning run_id, created_at),
             e as (
               insert into work.run_events (run_id, tenant_id, event, attempt, generation, at, detail)
               select r.run_id, 1, e.event, 1, 1, r.created_at, jsonb_build_object('of', r.run_id) from r, unnest(array['started', 'failed']) e (event))
             insert into work.outbox_messages (tenant_id, run_id, queue, envelope, available_at, sent_at)
             select 1, r.run_id, 'bulk', '{{}}', r.created_at, {outbox} from r;
             set session_replication_role = origin"
        ))
        .await
        .unwrap();
}

/// What must not change by it: everything of both places together, and what it leaves alone.
async fn sums(world: &World, with_archive: bool) -> Vec<String> {
    let both = |table: &str, columns: &str| {
        let of = |schema: &str| format!("select {columns} from {schema}.{table}");
        if with_archive { format!("{} union all {}", of("work"), of("work_archive")) } else { of("work") }
    };
    let run = "run_id, tenant_id, unit, status, generation, payload, created_at, finished_at, schedule, scheduled_for, last_error";
    let event = "id, run_id, tenant_id, event, attempt, generation, at, worker, detail";
    let mut sums = Vec::new();
    for rows in [
        both("task_runs", run),
        both("run_events", event),
        "select * from work.outbox_messages".to_owned(),
        "select * from work.platform_outbox_messages".to_owned(),
        "select * from work.idempotency_keys".to_owned(),
    ] {
        let sum = format!("select count(*) || ' ' || coalesce(md5(string_agg(x::text, '|' order by x::text)), '') from ({rows}) x");
        sums.push(world.one(&sum, &[]).await.get(0));
    }
    sums
}

const LEFT: &str =
    "select string_agg(unit || ' ' || n, ', ' order by unit) from (select unit, count(*) n from work.task_runs group by unit) u";

#[tokio::test]
async fn the_archive_takes_runs_that_finished_long_ago_with_their_trail_and_nothing_else() {
    let world = World::without_queues().await;
    runs(&world, 1_200, 120, Some(119), "old.sent", "now() - interval '119 days'").await;
    runs(&world, 5, 120, Some(119), "old.pending", "null").await;
    runs(&world, 10, 120, None, "old.waits", "now() - interval '119 days'").await;
    runs(&world, 10, 120, Some(80), "old.late", "now() - interval '80 days'").await;
    runs(&world, 100, 80, Some(79), "young", "now() - interval '79 days'").await;
    // Three occurrences of a schedule: the last one is what tells a scheduler that it was fired.
    runs(&world, 3, 200, Some(199), "scheduled", "now() - interval '199 days'").await;
    world
        .db
        .batch_execute(
            "update work.task_runs set schedule = 'a.schedule', scheduled_for = created_at, context = 'system', tenant_id = null where unit = 'scheduled';
             insert into work.idempotency_keys (tenant_id, key, run_ids, request_hash, expires_at)
             select 1, run_id::text, array[run_id], '', now() from work.task_runs where unit like 'old%'",
        )
        .await
        .unwrap();
    let before = sums(&world, false).await;
    let told = archived(&world, &["batch=100", "pause=0"]);
    assert!(told.contains("1202 runs and 2404 events moved; nothing is left"), "{told}");
    assert_eq!(sums(&world, true).await, before);
    let left: String = world.one(LEFT, &[]).await.get(0);
    assert_eq!(left, "old.late 10, old.pending 5, old.waits 10, scheduled 1, young 100");
    let last = "select count(*) from work_archive.task_runs where scheduled_for > (select max(scheduled_for) from work.task_runs)";
    assert_eq!(world.count(last).await, 0, "the last occurrence is the one that stays");
    assert_eq!(
        world
            .count("select count(*) from work.run_events e where not exists (select from work.task_runs r where r.run_id = e.run_id)")
            .await,
        0
    );
    let acts = "select array_agg(action || ' ' || reason || coalesce(' ' || (detail ->> 'runs'), '') order by id) from work.actions";
    let acts: Vec<String> = world.one(acts, &[]).await.get(0);
    assert_eq!(acts, ["archive runs finished more than 90 days ago", "archive runs ended finished more than 90 days ago 1202"]);

    // Again, with fewer days; and once more, with a column that the ledger has got meanwhile.
    assert!(archived(&world, &["pause=0"]).contains("0 runs and 0 events moved"));
    world
        .db
        .batch_execute("alter table work.task_runs add column later text; alter table work.run_events add column later text")
        .await
        .unwrap();
    assert!(archived(&world, &["days=78", "pause=0"]).contains("110 runs and 220 events moved"));
    assert_eq!(sums(&world, true).await, before);
}

#[tokio::test]
async fn the_trail_lets_go_only_of_what_the_archive_holds() {
    let world = World::without_queues().await;
    runs(&world, 3, 120, Some(119), "old", "now()").await;
    archived(&world, &["days=119", "pause=0", "minutes=0"]);
    assert_eq!(world.count("select count(*) from work.run_events").await, 6, "no time, nothing moved");
    let held = "insert into work_archive.run_events (id, run_id, tenant_id, event, attempt, generation, at, detail)
                select id, run_id, tenant_id, event, attempt, generation, at, detail from work.run_events order by id limit 2";
    world.db.batch_execute(held).await.unwrap();
    world
        .db
        .batch_execute("update work_archive.run_events set detail = '{}' where id = (select min(id) from work_archive.run_events)")
        .await
        .unwrap();
    let delete = "delete from work.run_events where id = (select min(id) + $1 from work.run_events)";
    for other in [0_i64, 2, 3] {
        let refused = refusal(world.db.execute(delete, &[&other]).await);
        assert_eq!(refused.code().code(), "ML013", "{refused:?}");
    }
    assert_eq!(world.db.execute(delete, &[&1_i64]).await.unwrap(), 1);
    let refused = refusal(world.db.execute("update work.run_events set worker = 'x'", &[]).await);
    assert_eq!(refused.code().code(), "ML013");
    // An archive of somebody else's is none.
    world.db.batch_execute("update work_archive.run_events a set detail = e.detail from work.run_events e where e.id = a.id; alter table work_archive.run_events owner to test_api").await.unwrap();
    assert_eq!(refusal(world.db.execute(delete, &[&0_i64]).await).code().code(), "ML013");
}

#[tokio::test]
async fn an_archive_is_refused_for_young_runs_by_others_than_the_owner_and_into_a_foreign_schema() {
    let world = World::without_queues().await;
    let refused = |role: Option<&str>, variables: &[&str], why: &str| {
        let output = psql(&world, role, variables).output().expect("psql is installed");
        let said = said(&output);
        assert!(
            output.status.code() == Some(3) && said.contains("ML034: ARCHIVE_REFUSED") && said.contains(why) && said.contains("HINT:"),
            "{said}"
        );
    };
    refused(None, &["days=14"], "14 days are too few");
    refused(Some("test_worker"), &[], "test_worker is not the owner");
    world.db.batch_execute("create schema work_archive authorization test_worker").await.unwrap();
    refused(None, &[], "schema work_archive belongs to test_worker");
    assert_eq!(world.count("select count(*) from work.actions").await, 0);
}

#[tokio::test]
async fn the_first_archives_may_be_several_at_once() {
    let world = World::without_queues().await;
    runs(&world, 200, 120, Some(119), "old", "now() - interval '119 days'").await;
    let at_once: Vec<_> = (0..6).map(|_| psql(&world, None, &["batch=20"]).spawn().expect("psql is installed")).collect();
    for archive in at_once {
        let output = archive.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
    }
    assert_eq!(world.count("select count(*) from work_archive.task_runs").await, 200);
}

#[tokio::test]
async fn an_archive_that_is_killed_goes_on_where_it_was_beside_others_and_the_work() {
    let world = World::new().await;
    let old = 4_000;
    runs(&world, old, 120, Some(119), "old", "now() - interval '119 days'").await;
    let before = sums(&world, false).await;
    let mut first = psql(&world, None, &["batch=100", "pause=0.2"]).spawn().expect("psql is installed");
    let moved = "select count(*) from work_archive.task_runs";
    wait_for("some batches to be moved", async || {
        (world.one("select to_regclass('work_archive.task_runs') is not null", &[]).await.get(0) && world.count(moved).await > 300)
            .then_some(())
    })
    .await;
    let killed =
        "select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = current_database() and application_name = 'psql'";
    assert_eq!(world.count(killed).await, 1);
    assert!(!first.wait().unwrap().success());
    let now = world.count(moved).await;
    assert!(0 < now && now < old, "{now} are moved");
    assert_eq!(sums(&world, true).await, before);

    let _workers = world.start(&[RELAY]).await;
    let mut others: Vec<_> = (0..2).map(|_| psql(&world, None, &["batch=50", "pause=0.02"]).spawn().expect("psql is installed")).collect();
    for _ in 0..100 {
        world.dispatch("t.ok", "{}").await;
    }
    for other in &mut others {
        assert!(other.wait().unwrap().success());
    }
    archived(&world, &["pause=0"]);
    world.count_is("select count(*) from work.task_runs where status = 'succeeded'", 100).await;
    assert_eq!(world.count("select count(*) from work.task_runs").await, 100);
    assert_eq!((world.count(moved).await, world.count("select count(*) from work_archive.run_events").await), (old, 2 * old));
    assert_eq!(world.count("select deadlocks from pg_stat_database where datname = current_database()").await, 0);
}

#[tokio::test]
async fn an_archive_reads_large_tables_by_their_indexes_alone() {
    let world = World::without_queues().await;
    runs(&world, 500, 120, Some(119), "old", "now() - interval '119 days'").await;
    runs(&world, 30_000, 20, Some(19), "young", "now() - interval '19 days'").await;
    world.db.batch_execute("update work.task_runs set schedule = 's', scheduled_for = created_at, tenant_id = null, context = 'system' where random() < 0.01").await.unwrap();
    let platform = "insert into work.platform_outbox_messages (run_id, queue, envelope, available_at, sent_at)
                    select gen_random_uuid(), queue, envelope, available_at, sent_at from work.outbox_messages";
    world.db.batch_execute(platform).await.unwrap();
    world
        .db
        .batch_execute("vacuum analyze work.task_runs, work.run_events, work.outbox_messages, work.platform_outbox_messages")
        .await
        .unwrap();
    let plans = "-c session_preload_libraries=auto_explain -c auto_explain.log_min_duration=0 -c auto_explain.log_nested_statements=on \
                 -c auto_explain.log_level=notice -c plan_cache_mode=force_generic_plan";
    let output = psql(&world, None, &["batch=50", "pause=0"]).env("PGOPTIONS", plans).output().expect("psql is installed");
    let said = said(&output);
    assert!(output.status.success() && said.contains("nothing is left"));
    for line in said.lines().filter(|line| line.contains("Seq Scan")) {
        for table in ["task_runs", "run_events", "outbox_messages"] {
            assert!(!line.contains(table), "{line}");
        }
    }
    for index in [
        "task_runs_pkey",
        "task_runs_origin_key",
        "run_events_run_id_idx",
        "outbox_messages_run_id_key",
        "platform_outbox_messages_run_id_key",
    ] {
        assert!(said.contains(index), "{index} is not used");
    }
}
