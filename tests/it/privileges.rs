//! Who may do what: every object of the schema against every role, as PostgreSQL's catalogue says it and as PostgreSQL acts.

use std::{collections::BTreeMap, fmt::Write as _, path::Path};

use tokio_postgres::Client;
use uuid::Uuid;

use crate::support::{World, connect, refusal};

/// Whoever is in no group, and the groups.
const ROLES: [&str; 6] =
    ["test_nobody", "monalisa_producer", "monalisa_worker", "monalisa_observer", "monalisa_operator", "monalisa_owner"];

/// The letters of PostgreSQL's access lists.
const RIGHTS: &str = "
    with object as (
      select 1 as place, 'schema' as kind, oid, nspname::text as name from pg_namespace where nspname = 'work'
      union all
      select case c.relkind when 'S' then 4 when 'v' then 3 else 2 end, case c.relkind when 'S' then 'sequence' when 'v' then 'view' else 'table' end,
             c.oid, c.oid::regclass::text
        from pg_class c where c.relnamespace = 'work'::regnamespace and c.relkind in ('r', 'p', 'v', 'm', 'f', 'S')
      union all
      select 5, 'function', p.oid, p.oid::regprocedure::text from pg_proc p where p.pronamespace = 'work'::regnamespace)
    select o.kind, o.name, r.role,
           coalesce((select string_agg(letter, '' order by ord)
              from (values (1, 'select', 'r'), (2, 'insert', 'a'), (3, 'update', 'w'), (4, 'delete', 'd'), (5, 'truncate', 'D'), (6, 'references', 'x'),
                           (7, 'trigger', 't'), (8, 'usage', 'U'), (9, 'create', 'C'), (10, 'execute', 'X')) p (ord, name, letter)
             where case when o.kind = 'schema' and p.ord in (8, 9) then has_schema_privilege(r.role, o.oid, p.name)
                        when o.kind in ('table', 'view') and p.ord <= 7 then has_table_privilege(r.role, o.oid, p.name)
                        when o.kind = 'sequence' and p.ord in (1, 3, 8) then has_sequence_privilege(r.role, o.oid, p.name)
                        when o.kind = 'function' and p.ord = 10 then has_function_privilege(r.role, o.oid, p.name) end), '') as rights
      from object o cross join unnest($1::text[]) with ordinality r (role, place)
     order by o.place, o.name, r.place";

/// Kind and name of each object, with the rights of each role.
async fn rights(world: &World) -> BTreeMap<(String, String), Vec<String>> {
    let mut found: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for row in world.db.query(RIGHTS, &[&ROLES.as_slice()]).await.unwrap() {
        found.entry((row.get("kind"), row.get("name"))).or_default().push(row.get("rights"));
    }
    found
}

#[tokio::test]
async fn each_role_has_the_rights_that_were_agreed_on_each_object_and_nobody_else_has_any() {
    let world = World::without_queues().await;
    let rights = rights(&world).await;
    let mut found =
        format!("{:<100}", "r select, a insert, w update, d delete, D truncate, x references, t trigger, U usage, C create, X execute");
    let line = |text: &mut String, name: &str, cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|cell| format!("{:<9}", if cell.is_empty() { "-" } else { cell })).collect();
        let _ = write!(text, "\n{name:<100} {}", cells.join(" ").trim_end());
    };
    line(&mut found, "", &ROLES.map(|role| role.split_once('_').unwrap().1.to_owned()));
    for ((kind, name), cells) in &rights {
        assert_eq!(cells[0], "", "whoever is in no group has rights on {kind} {name}");
        line(&mut found, &format!("{kind} {name}"), cells);
    }
    found.push('\n');
    assert!(rights.len() > 50, "{found}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/privileges.txt");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &found).unwrap();
    }
    let agreed = std::fs::read_to_string(&path).unwrap_or_default();
    let missing = agreed.lines().filter(|line| !found.lines().any(|other| other == *line)).map(|line| format!("- {line}"));
    let added = found.lines().filter(|line| !agreed.lines().any(|other| other == *line)).map(|line| format!("+ {line}"));
    let changes: Vec<String> = missing.chain(added).collect();
    assert!(changes.is_empty(), "if it is meant, run this test with UPDATE=1 and commit tests/it/privileges.txt:\n{}", changes.join("\n"));
    // Nothing is given by the column, where the table above would not show it.
    let columns = "select count(*) from pg_attribute a join pg_class c on c.oid = a.attrelid
                    where c.relnamespace = 'work'::regnamespace and a.attacl is not null and cardinality(a.attacl) > 0";
    assert_eq!(world.count(columns).await, 0);
}

/// What PostgreSQL says to it; nothing of it stays.
async fn refused(client: &Client, statement: &str) -> bool {
    client.batch_execute("savepoint s").await.unwrap();
    let answer = client.batch_execute(statement).await;
    client.batch_execute("rollback to s").await.unwrap();
    match answer {
        Ok(()) => false,
        Err(error) => {
            let error = error.as_db_error().unwrap_or_else(|| panic!("{statement}: {error:?}"));
            error.code().code() == "42501" && error.message().starts_with("permission denied")
        }
    }
}

#[tokio::test]
async fn whatever_a_role_has_no_right_to_is_refused_when_it_tries_and_the_rest_is_not() {
    let world = World::without_queues().await;
    let rights = rights(&world).await;
    let sql = "select c.oid::regclass::text, (select attname::text from pg_attribute a where a.attrelid = c.oid and a.attnum > 0
                                                 and not a.attisdropped and a.attidentity = '' order by a.attnum limit 1)
                 from pg_class c where c.relnamespace = 'work'::regnamespace and c.relkind in ('r', 'v')";
    let column: BTreeMap<String, String> = world.db.query(sql, &[]).await.unwrap().iter().map(|row| (row.get(0), row.get(1))).collect();
    let sql = "select p.oid::regprocedure::text, p.proname || '(' || coalesce((select string_agg('null::' || format_type(t, null), ', ' order by ord)
                 from unnest(p.proargtypes) with ordinality a (t, ord)), '') || ')' from pg_proc p where p.pronamespace = 'work'::regnamespace";
    let call: BTreeMap<String, String> = world.db.query(sql, &[]).await.unwrap().iter().map(|row| (row.get(0), row.get(1))).collect();

    let mut wrong = Vec::new();
    let (mut may, mut may_not) = (0, 0);
    for (place, role) in ROLES.iter().enumerate() {
        world.db.batch_execute(&format!("begin; set local role {role}; set local client_min_messages = error")).await.unwrap();
        for ((kind, name), cells) in &rights {
            let tries: Vec<(char, String)> = match kind.as_str() {
                "schema" => vec![('C', "create table work.of_mine ()".to_owned())],
                "table" => vec![
                    ('r', format!("select from {name} limit 1")),
                    ('a', format!("insert into {name} default values")),
                    ('w', format!("update {name} set {} = default where false", column[name])),
                    ('d', format!("delete from {name} where false")),
                    ('D', format!("truncate {name}")),
                ],
                "view" => vec![('r', format!("select * from {name} limit 1"))],
                "sequence" => vec![('U', format!("select nextval('{name}')"))],
                _ => vec![('X', format!("select work.{}", call[name]))],
            };
            for (letter, statement) in tries {
                let allowed = cells[place].contains(letter);
                *(if allowed { &mut may } else { &mut may_not }) += 1;
                if refused(&world.db, &statement).await == allowed {
                    wrong.push(format!("{role}, who has {:?}: {statement}", cells[place]));
                }
            }
        }
        world.db.batch_execute("rollback").await.unwrap();
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(may > 100 && may_not > 300, "{may} and {may_not} were tried");
}

#[tokio::test]
async fn whoever_is_in_no_group_meets_a_closed_schema() {
    let world = World::without_queues().await;
    let nobody = connect(&world.url(Some("test_nobody"))).await;
    for statement in [
        "select work.dispatch('t.ok', '{}', 1)",
        "select * from work.run(gen_random_uuid())",
        "select from work.task_runs",
        "select * from work.queue_status",
        "select * from work.transitions()",
        "create table work.of_mine ()",
        "create function work.of_mine() returns int language sql as 'select 1'",
    ] {
        let error = refusal(nobody.batch_execute(statement).await);
        assert_eq!((error.code().code(), error.message()), ("42501", "permission denied for schema work"), "{statement}");
    }
}

#[tokio::test]
async fn rights_that_an_older_version_or_a_hand_gave_to_the_five_roles_or_to_all_go_with_a_migration_and_those_of_other_roles_stay() {
    let world = World::without_queues().await;
    let other = format!("other_{}", Uuid::new_v4().simple());
    world
        .db
        .batch_execute(&format!(
            "grant select on work.task_runs, work.run_events to monalisa_observer; grant select (payload) on work.task_runs to monalisa_operator;
             grant insert on work.outbox_messages to monalisa_producer; grant delete on work.run_events to monalisa_worker;
             grant execute on function work.reissue(uuid[]) to public; grant usage on all sequences in schema work to public; grant create on schema work to public;
             create role {other}; grant usage on schema work to {other}; grant select on work.actions, work.queue_status to {other};
             grant execute on function work.dispatch(text, jsonb, bigint, interval, timestamptz, text, text) to {other}"
        ))
        .await
        .unwrap();
    let migrated = world.command("test-workers", &["migrate"]);
    assert!(migrated.status.success(), "{}", String::from_utf8_lossy(&migrated.stderr));
    let agreed = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/privileges.txt")).unwrap();
    for ((kind, name), cells) in rights(&world).await {
        let line = agreed.lines().find(|line| line.starts_with(&format!("{kind} {name} "))).unwrap_or_else(|| panic!("{name}"));
        let words: Vec<&str> = line[100..].split_whitespace().collect();
        let cells: Vec<&str> = cells.iter().map(|cell| if cell.is_empty() { "-" } else { cell }).collect();
        assert_eq!(words, cells, "{kind} {name}");
    }
    let kept = format!(
        "select (has_table_privilege('{other}', 'work.actions', 'select') and has_table_privilege('{other}', 'work.queue_status', 'select')
           and has_function_privilege('{other}', 'work.dispatch(text, jsonb, bigint, interval, timestamptz, text, text)', 'execute'))::int::int8"
    );
    assert_eq!(world.count(&kept).await, 1);
    world.db.batch_execute(&format!("drop owned by {other}; drop role {other}")).await.unwrap();
}

/// The state of a run as this session sees it.
async fn seen(api: &Client, run: Uuid) -> Option<String> {
    api.query_opt("select status from work.run($1)", &[&run]).await.unwrap().map(|row| row.get(0))
}

#[tokio::test]
async fn a_producer_enqueues_and_reads_the_state_of_its_own_tenants_runs_and_can_do_nothing_else() {
    let world = World::without_queues().await;
    let api = connect(&world.url(Some("test_api"))).await;
    let platform: Uuid = api.query_one("select work.dispatch('t.platform')", &[]).await.unwrap().get(0);
    let mut runs = Vec::new();
    for tenant in ["1", "2"] {
        api.batch_execute(&format!("set app.tenant_id = '{tenant}'")).await.unwrap();
        let one: Uuid = api.query_one("select work.dispatch('t.ok', idempotency_key => 'a key')", &[]).await.unwrap().get(0);
        let many: Vec<Uuid> = api.query_one("select work.dispatch_many('t.ok', array['{}', '{}']::jsonb[])", &[]).await.unwrap().get(0);
        let published = api.query("select run_id from work.publish('test.happened')", &[]).await.unwrap();
        let all: Vec<Uuid> = [one].into_iter().chain(many).chain(published.iter().map(|row| row.get(0))).collect();
        assert_eq!(all.len(), 5);
        runs.push(all);
    }
    assert_ne!(runs[0][0], runs[1][0], "the key of one tenant is not that of the other");
    // Set, foreign, unset and empty, which a session has after a transaction that set it.
    for (setting, own, platforms) in [
        ("set app.tenant_id = '1'", Some(0), false),
        ("set app.tenant_id = '2'", Some(1), false),
        ("reset app.tenant_id", None, true),
        ("set app.tenant_id = ''", None, true),
    ] {
        api.batch_execute(setting).await.unwrap();
        for (tenant, all) in runs.iter().enumerate() {
            for run in all {
                assert_eq!(seen(&api, *run).await.is_some(), own == Some(tenant), "{setting}: a run of tenant {}", tenant + 1);
            }
        }
        assert_eq!(seen(&api, platform).await.is_some(), platforms, "{setting}");
        let foreign = api.query_one("select work.dispatch('t.ok', tenant_id => 2)", &[]).await;
        match own {
            Some(0) => assert_eq!(refusal(foreign).code().code(), "ML004", "{setting}"),
            // Where the session says nothing, the caller does.
            _ => assert!(foreign.is_ok(), "{setting}"),
        }
    }
    for garbage in ["two", "1; drop table work.task_runs", "1e3", "0x1", " 1", "99999999999999999999"] {
        api.query_one("select set_config('app.tenant_id', $1, false)", &[&garbage]).await.unwrap();
        for call in
            ["select work.dispatch('t.ok')", "select work.publish('test.happened')", &*format!("select * from work.run('{}')", runs[0][0])]
        {
            let error = refusal(api.query(call, &[]).await);
            assert_eq!(error.code().code(), "ML004", "{garbage:?}: {call}");
            assert!(!error.message().contains(garbage), "what it held is not repeated: {error:?}");
        }
    }
    api.batch_execute("set app.tenant_id = '1'").await.unwrap();
    let before = world.count("select count(*) from work.task_runs").await;
    for attempt in [
        &*format!("select work.cancel('{}', 'why not')", runs[0][0]),
        &*format!("select work.retry('{}', 'why not')", runs[0][0]),
        &*format!("select work.redrive('{}', 1, 'why not')", runs[0][0]),
        "select work.audit('purge', 'all', 'why not', '{}')",
        "select * from work.runs",
        &*format!("select * from work.trail('{}')", runs[0][0]),
        "select * from work.queue_status",
        "select work.setting_tenant()",
        "select work.load_catalogue('{\"tasks\": [], \"subscriptions\": []}', 'mine')",
        "create or replace function work.uuid_v7() returns uuid language sql as 'select gen_random_uuid()'",
        "create view work.mine as select 1",
        "comment on table work.task_runs is 'mine'",
        "alter table work.task_runs disable trigger all",
        "do $$ begin lock table work.task_runs in access share mode; end $$",
        "set role monalisa_worker",
        "set role monalisa_operator",
        "grant monalisa_worker to test_api",
        "alter role monalisa_producer superuser",
    ] {
        assert_eq!(refusal(api.batch_execute(attempt).await).code().code(), "42501", "{attempt}");
    }
    assert_eq!(world.count("select count(*) from work.task_runs").await, before);
}
