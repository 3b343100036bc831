//! Nobody's own objects are run or read in place of ours: a schema full of traps stands before `pg_catalog` in the caller's path, and
//! temporary tables have the names of our tables.

use std::collections::BTreeSet;

use tokio_postgres::Client;
use uuid::Uuid;

use crate::support::{World, connect, refusal};

/// A trap for each operator of `pg_catalog` and each function that ours call, with the same arguments; each that is stepped into counts, and
/// a rollback does not take that back.
const TRAPS: &str = r"
    create schema evil;
    create sequence evil.stepped;
    set check_function_bodies = off;
    do $$
    declare
      f record;
      o record;
    begin
      for f in
        select distinct on (p.proname, p.proargtypes) p.proname, oidvectortypes(p.proargtypes) as arguments, p.proretset, format_type(p.prorettype, null) as result
          from pg_proc p
         where p.pronamespace = 'pg_catalog'::regnamespace
           and (exists (select from pg_operator u where u.oprcode = p.oid)
                or exists (select from pg_proc w where w.pronamespace = 'work'::regnamespace and position(p.proname in w.prosrc) > 0))
           and not exists (select from unnest(p.proargtypes::oid[] || p.prorettype) t join pg_type y on y.oid = t
                            where y.typtype = 'p' and y.typname !~ '^any(element|array|nonarray|compatible|compatiblearray|compatiblenonarray|range|multirange|enum)$' and y.typname not in ('void', 'record'))
      loop
        begin
          execute format('create function evil.%I(%s) returns %s%s language plpgsql set search_path = pg_catalog
                            as ''begin perform nextval(''''evil.stepped''''); raise exception ''''a trap''''; end''',
                         f.proname, f.arguments, case when f.proretset then 'setof ' else '' end, f.result);
        exception when others then null;
        end;
      end loop;
      for o in
        select p.oprname, p.oprleft, p.oprright, c.proname from pg_operator p join pg_proc c on c.oid = p.oprcode where p.oprnamespace = 'pg_catalog'::regnamespace
      loop
        begin
          execute format('create operator evil.%s (function = evil.%I%s%s)', o.oprname, o.proname,
                         case when o.oprleft <> 0 then ', leftarg = ' || format_type(o.oprleft, null) else '' end,
                         case when o.oprright <> 0 then ', rightarg = ' || format_type(o.oprright, null) else '' end);
        exception when others then null;
        end;
      end loop;
    end $$;
    create function evil.format(text, anyelement) returns text language sql as $$ select nextval('evil.stepped')::text $$;
    create function evil.jsonb_build_object(text, anyelement) returns jsonb language sql as $$ select to_jsonb(nextval('evil.stepped')) $$;
    create domain evil.text as pg_catalog.int4;
    create domain evil.uuid as pg_catalog.int4;
    create domain evil.jsonb as pg_catalog.int4;
    create domain evil.int8 as pg_catalog.text;
    create domain evil.timestamptz as pg_catalog.text;
    create domain evil.record_of_mine as pg_catalog.text;
    grant usage on schema evil to public;
    grant usage on sequence evil.stepped to public;
";

/// A session of a role that walks into every trap, with tables of its own that are named as ours.
async fn trapped(world: &World, role: &str) -> Client {
    let client = connect(&world.url(Some(role))).await;
    let tables = world
        .db
        .query("select quote_ident(relname) from pg_class where relnamespace = 'work'::regnamespace and relkind in ('r', 'v')", &[])
        .await
        .unwrap();
    assert!(tables.len() > 15);
    for table in &tables {
        client.batch_execute(&format!("create temp table {} (a_trap int)", table.get::<_, &str>(0))).await.unwrap();
    }
    // Names of what stands in `with` and of row types too.
    client
        .batch_execute("create temp table run (a_trap int); create temp table tenant (a_trap int); create temp table tenants (a_trap int)")
        .await
        .unwrap();
    client.batch_execute("set search_path = evil, pg_temp, pg_catalog").await.unwrap();
    client
}

async fn stepped(world: &World) -> bool {
    world.one("select is_called from evil.stepped", &[]).await.get(0)
}

#[tokio::test]
async fn no_function_that_runs_with_the_owners_rights_runs_or_reads_what_its_caller_put_in_its_way() {
    let world = World::without_queues().await;
    world.db.batch_execute(TRAPS).await.unwrap();
    let traps = "select count(*) from pg_proc where pronamespace = 'evil'::regnamespace";
    assert!(world.count(traps).await > 800, "{} functions are trapped", world.count(traps).await);
    let traps = "select count(*) from pg_operator where oprnamespace = 'evil'::regnamespace";
    assert!(world.count(traps).await > 500, "{} operators are trapped", world.count(traps).await);
    // The traps work: this very session steps into them.
    let api = trapped(&world, "test_api").await;
    for statement in ["select clock_timestamp()", "select 1 + 1", "select length('a')", "select 1 from units where a_trap is null"] {
        let fails = api.batch_execute(statement).await.is_err();
        assert_eq!(fails, !statement.contains("units"), "{statement}");
    }
    assert!(stepped(&world).await);
    world.db.batch_execute("alter sequence evil.stepped restart").await.unwrap();

    let (operator, worker) = (trapped(&world, "test_operator").await, trapped(&world, "test_worker").await);
    let owner = trapped(&world, "test_owner").await;
    let run = world.dispatch("t.ok", "{}").await;
    let failed = world.dispatch("t.ok", "{}").await;
    let held = world.dispatch("t.ok", "{}").await;
    let token = Uuid::new_v4();
    world
        .db
        .batch_execute(&format!(
            "update work.task_runs set status = 'failed', finished_at = now(), last_error = 'NOT_FOUND: x' where run_id = '{failed}';
             update work.task_runs set status = 'running', token = '{token}', lease_expires_at = now() + interval '1 hour', started_at = now() where run_id = '{held}'"
        ))
        .await
        .unwrap();
    let mut called = BTreeSet::new();
    for (client, call) in [
        (
            &api,
            "work.dispatch('t.ok', '{\"a\": 1}', 1, '1 minute', null, 'a key', '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01')"
                .to_owned(),
        ),
        (&api, "work.dispatch('t.ok', '{\"a\": 1}', 1, '1 minute', null, 'a key', 'rubbish')".to_owned()),
        (&api, "work.dispatch('t.platform')".to_owned()),
        (&api, "work.dispatch_many('t.ok', '{\"{}\",\"{}\"}', 1)".to_owned()),
        (&api, "work.publish('test.happened', '{}', 1, 1, null, '2030-01-01 00:00:00+00', 'another key')".to_owned()),
        (&api, "work.publish('test.happened', '{}', 1, 1, null, '2030-01-01 00:00:00+00', 'another key')".to_owned()),
        (&api, "work.publish('nobody.listens', '{}', 1, 1)".to_owned()),
        (&api, format!("work.run('{run}')")),
        (&api, "work.catalogue_state('{}')".to_owned()),
        (&operator, format!("work.runs('{run}')")),
        (&operator, "work.runs()".to_owned()),
        (&operator, format!("work.trail('{run}')")),
        (&operator, "work.queue_status()".to_owned()),
        (&operator, "work.outbox_status()".to_owned()),
        (&operator, "work.unit_status()".to_owned()),
        (&operator, "work.failures()".to_owned()),
        (&operator, format!("work.cancel('{run}', 'a reason')")),
        (&operator, format!("work.retry('{run}', 'a reason')")),
        (&operator, format!("work.redrive('{failed}', 1, 'a reason')")),
        (&operator, format!("work.renew('{failed}')")),
        (&operator, "work.fire('maintenance.purge', pg_catalog.clock_timestamp())".to_owned()),
        (&operator, "work.decide_occurrence('maintenance.purge', pg_catalog.clock_timestamp())".to_owned()),
        (&operator, "work.audit('purge', 'all', 'a reason', '{}')".to_owned()),
        (&worker, format!("work.succeed('{held}', '{token}', '{{}}')")),
        (
            &owner,
            "work.load_catalogue('{\"tasks\": [{\"name\": \"o.one\", \"queue\": \"bulk\"}], \"subscriptions\": []}', 'other')".to_owned(),
        ),
    ] {
        let statement = format!("begin; set local work.token = '{token}'; select * from {call}; commit");
        client.batch_execute(&statement).await.unwrap_or_else(|error| panic!("{call}: {error:?}"));
        called.insert(call.split(['.', '(']).nth(1).unwrap().to_owned());
    }
    for (client, view) in ["queue_status", "outbox_status", "unit_status", "failures", "runs", "trail", "operator_actions", "table_health"]
        .map(|view| (&operator, view))
    {
        client.batch_execute(&format!("select * from work.{view}")).await.unwrap_or_else(|error| panic!("{view}: {error:?}"));
    }
    for refused in [
        "work.dispatch('t.okk', '{}', 1)",
        "work.dispatch('t.ok', '[]', 1)",
        "work.dispatch('t.ok', '{}', 1, '-1 s')",
        "work.dispatch('t.ok', '{\"b\": 1}', 1, idempotency_key => 'a key')",
    ] {
        let error = refusal(api.batch_execute(&format!("select {refused}")).await);
        assert!(error.code().code().starts_with("ML"), "{refused}: {error:?}");
    }
    // The policies too.
    worker
        .batch_execute("select run_id from work.task_runs; select id from work.run_events; select id from work.outbox_messages")
        .await
        .unwrap();
    assert!(!stepped(&world).await, "somebody stepped into a trap");
    let definers = "select p.proname::text from pg_proc p where p.pronamespace = 'work'::regnamespace and p.prosecdef";
    let definers: BTreeSet<String> = world.db.query(definers, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(called, definers, "each was called");
    world.run_is(held, "succeeded").await;
}

/// The words and signs of a text of SQL, without comments; a text between quotes is one word.
fn words(source: &str) -> Vec<String> {
    let source: String = source.lines().map(|line| line.split_once("--").map_or(line, |(code, _)| code).to_owned() + "\n").collect();
    let mut words: Vec<String> = Vec::new();
    let mut quoted = false;
    for part in source.split('\'') {
        if quoted {
            words.push("''".to_owned());
        } else {
            let mut word = String::new();
            for letter in part.chars() {
                if letter.is_alphanumeric() || letter == '_' {
                    word.extend(letter.to_lowercase());
                    continue;
                }
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                if !letter.is_whitespace() {
                    words.push(letter.to_string());
                }
            }
            if !word.is_empty() {
                words.push(word);
            }
        }
        quoted = !quoted;
    }
    words
}

/// Names of tables in a function's text that are said without their schema, and stand for no `with` and no variable of it.
fn unqualified(source: &str) -> BTreeSet<String> {
    let words = words(source);
    let at = |place: usize| words.get(place).map_or("", String::as_str);
    let mut with = BTreeSet::new();
    for place in 1..words.len() {
        if at(place) == "as" && (at(place + 1) == "(" || (at(place + 1) == "materialized" && at(place + 2) == "(")) {
            with.insert(at(place - 1).to_owned());
        }
    }
    let mut found = BTreeSet::new();
    for place in 0..words.len() {
        let before = place.checked_sub(1).map_or("", at);
        let names_a_table = match at(place) {
            // Not `is distinct from`, and not `extract(epoch from …)` or `substring(… from 1 for 3)`.
            "from" | "join" => {
                before != "distinct" && before != "epoch" && !(at(place + 2) == "for" && at(place + 3).starts_with(char::is_numeric))
            }
            "update" => !matches!(before, "for" | "key" | "do" | "before"),
            "into" => before == "insert",
            "table" => before == "lock",
            _ => false,
        };
        let mut next = place + 1;
        while matches!(at(next), "lateral" | "only" | "rows") {
            next += 1;
        }
        let name = at(next);
        let qualified_or_called = at(next + 1) == "." || at(next + 1) == "(" && matches!(at(place), "from" | "join");
        if names_a_table && name.starts_with(|c: char| c.is_alphabetic()) && !qualified_or_called && name != "from" && !with.contains(name)
        {
            found.insert(name.to_owned());
        }
    }
    found
}

#[test]
fn a_table_without_its_schema_is_noticed() {
    for (source, expected) in [
        ("select 1 from units u", "units"),
        ("select 1 from work.units u join task_runs t on true", "task_runs"),
        ("insert into actions (a) values ('from here')", "actions"),
        ("update units set a = 1", "units"),
        ("delete from outbox_messages o", "outbox_messages"),
    ] {
        assert_eq!(unqualified(source), BTreeSet::from([expected.to_owned()]), "{source}");
    }
    let fine = "with r as (update work.units u set a = 1 returning 1) insert into work.x select extract(epoch from clock_timestamp()) from r for update -- from units";
    assert_eq!(unqualified(fine), BTreeSet::new());
}

#[tokio::test]
async fn every_function_names_its_tables_with_their_schema_and_looks_in_temporary_ones_last() {
    let world = World::without_queues().await;
    let rows = world
        .db
        .query("select proname::text, prosrc, array_to_string(proconfig, ';'), prosecdef from pg_proc where pronamespace = 'work'::regnamespace", &[])
        .await
        .unwrap();
    assert!(rows.len() > 30);
    for row in &rows {
        let (name, source, settings): (&str, &str, Option<&str>) = (row.get(0), row.get(1), row.get(2));
        let path = settings.unwrap_or_default().split(';').find_map(|setting| setting.strip_prefix("search_path="));
        assert_eq!(path, Some("pg_catalog, pg_temp"), "{name}");
        assert_eq!(unqualified(source), BTreeSet::new(), "{name}");
    }
    // What stands in views, policies and defaults was looked up when they were made.
    let elsewhere = "select count(*) from pg_trigger t join pg_proc p on p.oid = t.tgfoid
                      where t.tgrelid in (select oid from pg_class where relnamespace = 'work'::regnamespace) and not t.tgisinternal and p.pronamespace <> 'work'::regnamespace";
    assert_eq!(world.count(elsewhere).await, 0);
}

/// An operator for each two types that none of PostgreSQL's fits exactly, and functions that fit better than one for any types, in `public`.
const BETTER_FITS: &str = r"
    create sequence public.stepped_worker;
    create sequence public.stepped_other;
    grant usage on sequence public.stepped_worker, public.stepped_other to public;
    create function public.step() returns void language sql set search_path = pg_catalog as
      $$ select nextval(case when current_user = 'test_worker' then 'public.stepped_worker' else 'public.stepped_other' end) $$;
    set search_path = pg_catalog;
    do $do$
    declare
      v_types text[] := '{int2,int4,int8,float8,numeric,text,interval,timestamptz,timestamp,bool,uuid,jsonb,name}';
      v_left text;
      v_right text;
      v_op text;
    begin
      foreach v_left in array v_types loop
        foreach v_right in array v_types loop
          foreach v_op in array '{+,-,*,/,<,<=,>,>=,=,<>,||}'::text[] loop
            if not exists (select from pg_operator where oprnamespace = 'pg_catalog'::regnamespace and oprname = v_op
                              and oprleft = v_left::regtype and oprright = v_right::regtype) then
              execute format('create function public.%I(%s, %s) returns %s language plpgsql as $$ begin perform public.step(); return null; end $$',
                             'trap' || v_op, v_left, v_right, case when v_op in ('+', '-', '*', '/', '||') then v_left else 'bool' end);
              execute format('create operator public.%s (function = public.%I, leftarg = %s, rightarg = %s)', v_op, 'trap' || v_op, v_left, v_right);
            end if;
          end loop;
        end loop;
      end loop;
      foreach v_left in array '{text,name,int4,int8,uuid,jsonb}'::text[] loop
        execute format('create function public.format(text, %s) returns text language plpgsql as $$ begin perform public.step(); return null; end $$', v_left);
        execute format('create function public.format(text, %s, text) returns text language plpgsql as $$ begin perform public.step(); return null; end $$', v_left);
        execute format('create function public.jsonb_build_object(text, %s) returns jsonb language plpgsql as $$ begin perform public.step(); return null; end $$', v_left);
      end loop;
    end $do$;
    reset search_path;
";

#[tokio::test]
async fn nobody_who_may_create_in_public_is_run_by_a_migration_the_archive_or_the_workers() {
    let world = World::new().await;
    world.db.batch_execute(BETTER_FITS).await.unwrap();
    let called = async |who: &str| world.one(&format!("select is_called from public.stepped_{who}"), &[]).await.get::<_, bool>(0);
    let migrate = world.command_with("workers", &["migrate"], &[("DATABASE_URL", &world.url(None))]);
    assert!(migrate.status.success(), "{}", String::from_utf8_lossy(&migrate.stderr));
    assert!(!called("other").await, "by the migration");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/sql/ops/archive_runs.sql");
    let archive = std::process::Command::new("psql").args(["-X", "-f", script]).arg(world.url(None)).output().unwrap();
    assert!(archive.status.success(), "{}", String::from_utf8_lossy(&archive.stderr));
    assert!(!called("other").await, "by the archive");
    // They do work: whoever does not fit exactly steps into them.
    world.db.batch_execute("select format('%s', 'x'::text)").await.unwrap();
    assert!(called("other").await);

    let environment = [("MONALISA_RELAY", "true"), ("MONALISA_LOCAL_SCHEDULER", "true"), ("MONALISA_STOP_TIMEOUT_MS", "6500")];
    let mut worker = world.start(&environment).await;
    let mut ended = Vec::new();
    for (unit, payload, end) in [
        ("t.ok", "{}", "succeeded"),
        ("t.idle", "{}", "succeeded"),
        ("t.permanent", r#"{"msg":"x"}"#, "failed"),
        ("t.sql", r#"{"q":"select 1/0"}"#, "retrying"),
        ("t.sql", r#"{"q":"do $$ begin raise exception 'x' using errcode = '57P01'; end $$"}"#, "queued"),
    ] {
        ended.push((world.dispatch(unit, payload).await, end));
    }
    for (run, end) in &ended {
        match *end {
            "queued" => world.count_is("select count(*) from work.run_events where event = 'interrupted'", 1).await,
            "retrying" => world.count_is("select count(*) from work.run_events where event = 'retrying'", 1).await,
            end => world.run_is(*run, end).await,
        }
    }
    let purge = world.one("select work.dispatch('maintenance.purge')", &[]).await.get(0);
    world.run_is(purge, "succeeded").await;
    let drained = world.dispatch("t.sleep", r#"{"s":20}"#).await;
    world.run_is(drained, "running").await;
    worker.stop().await;
    assert_eq!(world.trail(drained).await, ["started", "given_back"]);
    assert!(!called("worker").await, "by the workers");
}
