//! Rows of tenants: who sees which, and that the tenant of one transaction is not there in the next one of its session.

use std::collections::BTreeSet;

use tokio_postgres::Client;
use uuid::Uuid;

use crate::support::{RELAY, World, connect, refusal, wait_for};

/// Rows that a session sees of the tables with tenants, and whose they are.
async fn seen(client: &Client, table: &str) -> Result<Vec<Option<i64>>, tokio_postgres::Error> {
    let rows = client.query(&format!("select distinct tenant_id from work.{table} order by 1"), &[]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Runs, events and outbox rows of two tenants, and of none.
async fn fill(world: &World) {
    world
        .db
        .batch_execute(
            "select work.dispatch('t.ok', '{}', 1), work.dispatch('t.ok', '{}', 2), work.dispatch('t.platform');
             insert into work.run_events (run_id, tenant_id, event, attempt, generation) select run_id, tenant_id, 'started', 1, 1 from work.task_runs",
        )
        .await
        .unwrap();
}

/// What may stand in `app.tenant_id`, and whose rows are seen then by whoever is bound to it.
const SETTINGS: [(&str, &[Option<i64>]); 6] = [
    ("reset app.tenant_id", &[None]),
    ("set app.tenant_id = ''", &[None]),
    ("set app.tenant_id = '1'", &[Some(1)]),
    ("set app.tenant_id = '2'", &[Some(2)]),
    ("set app.tenant_id = '3'", &[]),
    ("set app.tenant_id = '-1'", &[]),
];

#[tokio::test]
async fn rows_of_tenants_are_seen_by_owner_and_worker_and_by_whoever_says_that_tenant() {
    let world = World::without_queues().await;
    fill(&world).await;
    // A role of the application's, that somebody lets read the tables: the policies hold for it too.
    let role = format!("reader_{}", Uuid::new_v4().simple());
    world
        .db
        .batch_execute(&format!(
            "create role {role} login; grant usage on schema work to {role}; grant execute on function work.setting_tenant() to {role};
             grant select, update, delete on work.task_runs, work.run_events, work.outbox_messages to {role}"
        ))
        .await
        .unwrap();
    let everything = [Some(1), Some(2), None];
    for table in ["task_runs", "run_events", "outbox_messages"] {
        let without_tenant = table != "outbox_messages";
        for user in ["test_worker", "test_owner", &role] {
            let client = connect(&world.url(Some(user))).await;
            for (setting, bound) in SETTINGS {
                client.batch_execute(setting).await.unwrap();
                let expected = if user == role { bound } else { &everything };
                let expected: Vec<Option<i64>> = expected.iter().copied().filter(|tenant| without_tenant || tenant.is_some()).collect();
                assert_eq!(seen(&client, table).await.unwrap(), expected, "{user}, {table}: {setting}");
            }
            client.batch_execute("set app.tenant_id = 'two'").await.unwrap();
            match seen(&client, table).await {
                Ok(rows) => assert!(user != role, "{user} sees {rows:?} of {table} by a setting that is no tenant"),
                Err(error) => assert_eq!(error.code().unwrap().code(), "ML004", "{user}, {table}"),
            }
        }
        // What it may read it may not write: no policy lets it.
        let client = connect(&world.url(Some(&role))).await;
        client.batch_execute("set app.tenant_id = '1'").await.unwrap();
        for change in [format!("update work.{table} set tenant_id = 2"), format!("delete from work.{table}")] {
            assert_eq!(client.execute(&change, &[]).await.unwrap(), 0, "{change}");
        }
        for user in ["test_observer", "test_operator", "test_api", "test_nobody"] {
            let client = connect(&world.url(Some(user))).await;
            assert_eq!(refusal(seen(&client, table).await).code().code(), "42501", "{user} reads {table}");
        }
    }
    world.db.batch_execute(&format!("drop owned by {role}; drop role {role}")).await.unwrap();
}

#[tokio::test]
async fn the_policies_stand_on_the_three_tables_with_tenants_and_the_outbox_without_has_none() {
    let world = World::without_queues().await;
    let secured =
        "select string_agg(relname, ' ' order by relname) from pg_class where relnamespace = 'work'::regnamespace and relrowsecurity";
    assert_eq!(world.one(secured, &[]).await.get::<_, String>(0), "outbox_messages run_events task_runs");
    let policies = "select count(*) from pg_policies where schemaname = 'work'";
    assert_eq!(world.count(policies).await, 6);
}

#[tokio::test]
async fn a_view_of_rows_shows_one_tenants_and_a_view_of_counts_those_of_all() {
    let world = World::without_queues().await;
    fill(&world).await;
    world
        .db
        .batch_execute("update work.task_runs set status = 'failed', finished_at = now(), last_error = 'NOT_FOUND: account 7 of Ana'")
        .await
        .unwrap();
    world
        .db
        .batch_execute(
            "select work.dispatch('t.ok', '{\"secret\": \"of Ana\"}', 1), work.dispatch('t.ok', '{}', 2), work.dispatch('t.platform')",
        )
        .await
        .unwrap();
    for user in ["test_observer", "test_operator"] {
        let client = connect(&world.url(Some(user))).await;
        for (setting, bound) in SETTINGS {
            client.batch_execute(setting).await.unwrap();
            for view in ["runs", "trail"] {
                assert_eq!(seen(&client, view).await.unwrap(), bound, "{user}, {view}: {setting}");
            }
            let counts = async |sql: &str| client.query_one(sql, &[]).await.unwrap().get::<_, String>(0);
            assert_eq!(
                counts("select string_agg(queue || ' ' || waiting, ', ') from work.queue_status where waiting > 0").await,
                "default 2, bulk 1",
                "{user}: {setting}"
            );
            assert_eq!(
                counts("select string_agg(outbox || ' ' || due, ', ' order by outbox) from work.outbox_status where due > 0").await,
                "outbox_messages 4, platform_outbox_messages 2"
            );
            assert_eq!(
                counts("select string_agg(unit || ' ' || queued, ', ' order by unit) from work.unit_status where queued > 0").await,
                "t.ok 2, t.platform 1"
            );
            assert_eq!(
                counts("select string_agg(unit || ' ' || code || ' ' || failed_1h, ', ' order by unit) from work.failures").await,
                "t.ok NOT_FOUND 2, t.platform NOT_FOUND 1"
            );
        }
        client.batch_execute("set app.tenant_id = 'two'").await.unwrap();
        for view in ["runs", "trail"] {
            assert_eq!(refusal(seen(&client, view).await).code().code(), "ML004", "{user}, {view}");
        }
        // Of a run that one knows the id of, too.
        for (tenant, sees) in [("1", true), ("2", false)] {
            client.batch_execute(&format!("set app.tenant_id = '{tenant}'")).await.unwrap();
            let run: Uuid = world.one("select run_id from work.task_runs where tenant_id = 1 limit 1", &[]).await.get(0);
            for function in ["runs", "trail"] {
                let rows = client.query(&format!("select tenant_id from work.{function}($1)"), &[&run]).await.unwrap();
                assert!(rows.len() as i64 <= 1 && (function == "trail" || rows.len() == usize::from(sees)), "{function}, tenant {tenant}");
                assert!(sees || rows.is_empty(), "{function}, tenant {tenant}");
            }
        }
    }
    // No payload, no outcome and no token is in any of them.
    let columns = "select string_agg(c.relname || '.' || a.attname, ' ') from pg_attribute a join pg_class c on c.oid = a.attrelid
                    where c.relnamespace = 'work'::regnamespace and c.relkind = 'v' and a.attnum > 0 and a.attname in ('payload', 'outcome', 'token', 'envelope')";
    assert_eq!(world.one(columns, &[]).await.get::<_, Option<String>>(0), None);
}

#[tokio::test]
async fn a_workers_session_carries_no_tenant_from_one_run_into_the_next() {
    let world = World::new().await;
    // Each effect says in which session it was written, and which tenant that held.
    world
        .db
        .batch_execute(
            "create function public.whose() returns trigger language plpgsql as
               $$ begin new.note := pg_backend_pid() || '|' || current_setting('app.tenant_id'); return new; end $$;
             create trigger whose before insert on public.effects for each row execute function public.whose()",
        )
        .await
        .unwrap();
    let worker = world.start(&[RELAY, ("QUEUES", "default,bulk")]).await;
    // One after the other, so that one session is taken again and again: tenants, none, and now and then one that fails.
    for round in 0..8_i64 {
        let (unit, payload, ended) =
            if round % 4 == 3 { ("t.permanent", "{\"msg\": \"as asked\"}", "failed") } else { ("t.ok", "{}", "succeeded") };
        let tenant = world.one("select work.dispatch($1, $2::text::jsonb, $3)", &[&unit, &payload, &(round % 3 + 1)]).await;
        world.run_is(tenant.get(0), ended).await;
        let platform = world.one("select work.dispatch('t.platform')", &[]).await;
        world.run_is(platform.get(0), "succeeded").await;
    }
    drop(worker);
    let sql = "select r.tenant_id, split_part(e.note, '|', 1), split_part(e.note, '|', 2) from public.effects e join work.task_runs r using (run_id) order by e.at";
    let rows = world.db.query(sql, &[]).await.unwrap();
    let (mut with_tenant, mut taken_again) = (BTreeSet::new(), 0);
    for row in &rows {
        let (tenant, process, setting): (Option<i64>, String, String) = (row.get(0), row.get(1), row.get(2));
        assert_eq!(setting, tenant.map(|tenant| tenant.to_string()).unwrap_or_default());
        match tenant {
            Some(_) => drop(with_tenant.insert(process)),
            None => taken_again += i32::from(with_tenant.contains(&process)),
        }
    }
    assert_eq!(rows.len(), 14);
    assert!(taken_again >= 3, "{taken_again} runs without a tenant came after one with a tenant: this proves nothing");
}

#[tokio::test]
async fn a_session_of_an_apis_pool_carries_no_tenant_from_one_transaction_into_the_next() {
    let world = World::without_queues().await;
    let config: tokio_postgres::Config = world.url(Some("test_api")).parse().unwrap();
    let manager = deadpool_postgres::Manager::new(config, tokio_postgres::NoTls);
    let pool = deadpool_postgres::Pool::builder(manager).max_size(2).build().unwrap();
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..6_i64 {
        let pool = pool.clone();
        callers.spawn(async move {
            let (tenant, mut runs): (i64, Vec<Uuid>) = (caller % 3 + 1, Vec::new());
            for round in 0..12 {
                let mut session = pool.get().await.unwrap();
                let before = session.query_one("select nullif(current_setting('app.tenant_id', true), '')", &[]).await.unwrap();
                assert_eq!(before.get::<_, Option<String>>(0), None, "a tenant was left in a session of the pool");
                // Whoever sets nothing sees nobody's run, and enqueues for nobody.
                for run in &runs {
                    assert!(session.query_opt("select from work.run($1)", &[run]).await.unwrap().is_none());
                }
                assert_eq!(refusal(session.query_one("select work.dispatch('t.ok')", &[]).await).code().code(), "ML004");
                let transaction = session.transaction().await.unwrap();
                transaction.query_one("select set_config('app.tenant_id', $1, true)", &[&tenant.to_string()]).await.unwrap();
                let run: Uuid = transaction.query_one("select work.dispatch('t.ok')", &[]).await.unwrap().get(0);
                assert!(transaction.query_opt("select from work.run($1)", &[&run]).await.unwrap().is_some());
                match round % 4 {
                    0 => transaction.rollback().await.unwrap(),
                    // An error in it, and whoever held it is gone.
                    1 => drop(transaction.batch_execute("select 1 / 0").await.unwrap_err()),
                    2 => drop(transaction),
                    _ => {
                        transaction.commit().await.unwrap();
                        runs.push(run);
                    }
                }
            }
            runs.len() as i64
        });
    }
    let committed: i64 = callers.join_all().await.into_iter().sum();
    assert_eq!(committed, 18);
    let rows = "select count(*) from work.task_runs r join work.outbox_messages o using (run_id, tenant_id)";
    wait_for("what was left to be rolled back", async || (world.count(rows).await == committed).then_some(())).await;
}
