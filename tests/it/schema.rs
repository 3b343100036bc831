//! The tables: columns and constraints of the outboxes to the letter, the guards of the ledger and the trail.

use std::collections::BTreeMap;

use monalisa::sql::{INDEXES, REAPPLIED};

use crate::support::{World, refusal};

/// Name, type, nullability, default, identity.
type Column = (String, String, bool, Option<String>, String);

async fn columns(world: &World, table: &str) -> Vec<Column> {
    let rows = world
        .db
        .query(
            "select a.attname::text, format_type(a.atttypid, a.atttypmod), not a.attnotnull, pg_get_expr(d.adbin, d.adrelid), a.attidentity::text
               from pg_attribute a left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
              where a.attrelid = $1::text::regclass and a.attnum > 0 and not a.attisdropped order by a.attnum",
            &[&table],
        )
        .await
        .unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1), row.get(2), row.get(3), row.get(4))).collect()
}

async fn constraints(world: &World, table: &str) -> Vec<(String, String)> {
    let sql = "select conname::text, pg_get_constraintdef(oid) from pg_constraint where conrelid = $1::text::regclass order by conname";
    world.db.query(sql, &[&table]).await.unwrap().iter().map(|row| (row.get(0), row.get(1))).collect()
}

fn column(name: &str, kind: &str, nullable: bool, default: Option<&str>, identity: &str) -> Column {
    (name.to_owned(), kind.to_owned(), nullable, default.map(str::to_owned), identity.to_owned())
}

fn outbox_columns() -> Vec<Column> {
    vec![
        column("id", "bigint", false, None, "a"), // a: generated always as identity
        column("tenant_id", "bigint", false, None, ""),
        column("run_id", "uuid", false, None, ""),
        column("queue", "text", false, None, ""),
        column("envelope", "jsonb", false, None, ""),
        column("available_at", "timestamp with time zone", false, None, ""),
        column("sent_at", "timestamp with time zone", true, None, ""),
        column("attempts", "integer", false, Some("0"), ""),
        column("created_at", "timestamp with time zone", false, Some("clock_timestamp()"), ""),
    ]
}

fn outbox_constraints(table: &str) -> Vec<(String, String)> {
    [
        ("attempts_check", "CHECK ((attempts >= 0))"),
        ("envelope_check", "CHECK ((jsonb_typeof(envelope) = 'object'::text))"),
        ("pkey", "PRIMARY KEY (id)"),
        ("queue_check", "CHECK ((queue = ANY (ARRAY['critical'::text, 'default'::text, 'bulk'::text, 'maintenance'::text])))"),
        ("run_id_key", "UNIQUE (run_id)"),
    ]
    .map(|(name, definition)| (format!("{table}_{name}"), definition.to_owned()))
    .to_vec()
}

#[tokio::test]
async fn the_tenant_outbox_has_its_columns_and_constraints_and_no_others() {
    let world = World::without_queues().await;
    assert_eq!(columns(&world, "work.outbox_messages").await, outbox_columns());
    let mut expected = outbox_constraints("outbox_messages");
    expected.push(("outbox_messages_tenant_id_fkey".to_owned(), "FOREIGN KEY (tenant_id) REFERENCES tenants(id)".to_owned()));
    assert_eq!(constraints(&world, "work.outbox_messages").await, expected);
}

#[tokio::test]
async fn the_platform_outbox_is_the_same_without_a_tenant() {
    let world = World::without_queues().await;
    let mut expected = outbox_columns();
    expected.retain(|column| column.0 != "tenant_id");
    assert_eq!(columns(&world, "work.platform_outbox_messages").await, expected);
    assert_eq!(constraints(&world, "work.platform_outbox_messages").await, outbox_constraints("platform_outbox_messages"));
}

#[tokio::test]
async fn every_table_and_column_says_what_it_is() {
    let world = World::without_queues().await;
    let bare = world
        .db
        .query(
            "select c.relname || coalesce('.' || a.attname, '')
               from pg_class c
               left join lateral (
                 select null::name as attname, 0 as attnum
                 union all select attname, attnum from pg_attribute where attrelid = c.oid and attnum > 0 and not attisdropped) a on true
              where c.relnamespace = 'work'::regnamespace and c.relkind in ('r', 'p', 'v', 'm')
                and coalesce(case a.attnum when 0 then obj_description(c.oid, 'pg_class') else col_description(c.oid, a.attnum) end, '') = ''
              order by 1",
            &[],
        )
        .await
        .unwrap();
    let bare: Vec<String> = bare.iter().map(|row| row.get(0)).collect();
    assert!(bare.is_empty(), "without a comment: {bare:?}");
}

#[tokio::test]
async fn every_function_view_and_index_says_what_it_is_and_those_with_a_file_in_its_first_line() {
    let world = World::without_queues().await;
    let sql = "
        select 'functions/' || proname, obj_description(oid, 'pg_proc') from pg_proc where pronamespace = 'work'::regnamespace
        union all
        select case relkind when 'v' then 'views/' else 'indexes/' end || relname, obj_description(oid, 'pg_class')
          from pg_class where relnamespace = 'work'::regnamespace and relkind in ('v', 'i')";
    let said: BTreeMap<String, Option<String>> =
        world.db.query(sql, &[]).await.unwrap().iter().map(|row| (row.get(0), row.get(1))).collect();
    let bare: Vec<&String> =
        said.iter().filter(|(_, comment)| comment.as_ref().is_none_or(|text| text.len() < 10)).map(|(name, _)| name).collect();
    assert!(bare.is_empty() && said.len() > 60, "without a comment: {bare:?}");
    let mut compared = 0;
    for statement in REAPPLIED.iter().copied().chain(INDEXES.iter().map(|index| index.statement)) {
        if let Some(Some(comment)) = said.get(statement.name) {
            assert!(statement.text.lines().next().unwrap().ends_with(&format!(": {comment}")), "{}: {comment}", statement.name);
            compared += 1;
        }
    }
    assert!(compared > 45, "{compared} have a file");
}

#[tokio::test]
async fn tenants_are_made_where_there_are_none() {
    let world = World::empty().await;
    assert!(world.command("workers", &["migrate"]).status.success());
    assert_eq!(columns(&world, "public.tenants").await, [column("id", "bigint", false, None, "")]);
    assert_eq!(constraints(&world, "public.tenants").await, [("tenants_pkey".to_owned(), "PRIMARY KEY (id)".to_owned())]);
}

#[tokio::test]
async fn tenants_of_the_application_are_left_alone() {
    let world = World::empty().await;
    let table =
        "create table public.tenants (id bigint generated always as identity primary key, name text not null, plan text default 'free');
                 insert into public.tenants (name) values ('first'), ('second')";
    world.db.batch_execute(table).await.unwrap();
    let (before, constrained) = (columns(&world, "public.tenants").await, constraints(&world, "public.tenants").await);
    let migrated = world.command("workers", &["migrate"]);
    assert!(migrated.status.success(), "{}", String::from_utf8_lossy(&migrated.stderr));
    assert_eq!((columns(&world, "public.tenants").await, constraints(&world, "public.tenants").await), (before, constrained));
    assert_eq!(world.count("select count(*) from public.tenants where plan = 'free'").await, 2);
    let refused = refusal(world.db.execute("insert into work.outbox_messages (tenant_id, run_id, queue, envelope, available_at) values (3, gen_random_uuid(), 'bulk', '{}', now())", &[]).await);
    assert_eq!(refused.code().code(), "23503");
}

#[tokio::test]
async fn the_trail_cannot_be_changed_by_anybody() {
    let world = World::without_queues().await;
    world
        .db
        .batch_execute("insert into work.run_events (run_id, event, attempt, generation) values (gen_random_uuid(), 'started', 1, 1)")
        .await
        .unwrap();
    // The world's own session is a superuser's: no privilege stops it, the triggers do.
    for change in ["update work.run_events set worker = 'x'", "delete from work.run_events", "truncate work.run_events"] {
        let refused = refusal(world.db.execute(change, &[]).await);
        assert_eq!(refused.code().code(), "ML013", "{change}");
        assert!(refused.message().starts_with("TRAIL_APPEND_ONLY: ") && refused.hint().is_some(), "{refused:?}");
    }
    assert_eq!(world.count("select count(*) from work.run_events where worker is null").await, 1);
    world.db.batch_execute("set role monalisa_worker").await.unwrap();
    for change in ["update work.run_events set worker = 'x'", "delete from work.run_events", "truncate work.run_events"] {
        assert_eq!(refusal(world.db.execute(change, &[]).await).code().code(), "42501", "{change}");
    }
}

const STATES: [&str; 7] = ["queued", "running", "retrying", "succeeded", "failed", "cancelled", "skipped"];

/// The other columns of a run that the checks tie to its status.
fn with(status: &str) -> String {
    let held = if status == "running" { "gen_random_uuid(), now()" } else { "null, null" };
    let finished = if matches!(status, "queued" | "running" | "retrying") { "null" } else { "now()" };
    format!("'{status}', {held}, {finished}")
}

async fn listed(world: &World, from: Option<&str>, to: &str) -> bool {
    let sql = "select exists (select from work.transitions() where from_status is not distinct from $1 and to_status = $2)";
    world.one(sql, &[&from, &to]).await.get(0)
}

fn check(refused: Result<u64, tokio_postgres::Error>, allowed: bool, what: &str) {
    match refused {
        Ok(rows) => assert!(allowed && rows == 1, "{what} is not listed but went through ({rows} rows)"),
        Err(error) => {
            let error = error.as_db_error().unwrap_or_else(|| panic!("{error:?}"));
            assert!(!allowed && error.code().code() == "ML012", "{what}: {error:?}");
            assert!(error.message().starts_with("TRANSITION_REFUSED: ") && error.hint().is_some(), "{error:?}");
        }
    }
}

#[tokio::test]
async fn a_run_changes_its_state_only_as_the_list_says() {
    let world = World::without_queues().await;
    let columns = "status, token, lease_expires_at, finished_at";
    let insert = |status: &str| {
        format!(
            "insert into work.task_runs (run_id, unit, kind, queue, context, payload, {columns})
             values (gen_random_uuid(), 't.x', 'task', 'bulk', 'system', '{{}}', {})",
            with(status)
        )
    };
    let mut allowed = 0;
    for from in STATES {
        world.db.batch_execute("truncate work.task_runs; set session_replication_role = replica").await.unwrap();
        for _ in STATES {
            world.db.execute(&insert(from), &[]).await.unwrap();
        }
        world.db.batch_execute("set session_replication_role = origin").await.unwrap();
        for to in STATES.into_iter().filter(|to| *to != from) {
            let update = format!(
                "update work.task_runs set ({columns}) = row ({}) where run_id = (select run_id from work.task_runs where status = '{from}' limit 1)",
                with(to)
            );
            let may = listed(&world, Some(from), to).await;
            allowed += u32::from(may);
            check(world.db.execute(&update, &[]).await, may, &format!("{from} to {to}"));
        }
        // An update that leaves the status alone is no transition, whatever the status.
        world.db.execute(&format!("update work.task_runs set repairs = 1 where status = '{from}'"), &[]).await.unwrap();
        check(world.db.execute(&insert(from), &[]).await, listed(&world, None, from).await, &format!("new to {from}"));
    }
    assert_eq!(allowed, 14);
}

#[tokio::test]
async fn the_list_of_transitions_is_the_specified_one() {
    let world = World::without_queues().await;
    let sql = "select string_agg(concat_ws(' ', name || ':', coalesce(from_status, 'new'), to_status), '; ' order by name, from_status, to_status)
                 from work.transitions()";
    let expected = "cancel: queued cancelled; cancel: retrying cancelled; cancel: running cancelled; enqueue: new queued; \
                    fail: queued failed; fail: retrying failed; fail: running failed; give back: retrying queued; give back: running queued; \
                    reopen: cancelled queued; reopen: failed queued; retry later: running retrying; start: queued running; \
                    start: retrying running; succeed: running succeeded; suppress: new skipped; take over: running running";
    assert_eq!(world.one(sql, &[]).await.get::<_, String>(0), expected);
}
