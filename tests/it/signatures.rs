//! A function gets another signature under its callers: calls by position and by name, prepared before, in open transactions and in loops,
//! go on as they are.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::task::JoinSet;
use uuid::Uuid;

use crate::support::{World, connect};

/// The function of a made-up release before this one: it takes no traceparent.
fn older() -> String {
    let now = include_str!("../../sql/functions/dispatch.sql");
    let older = now
        .replace(
            "  idempotency_key text        default null,\n  traceparent     text        default null\n",
            "  idempotency_key text        default null\n",
        )
        .replace("work.checked_traceparent(dispatch.traceparent)", "null");
    assert!(!older.contains("traceparent") && older.len() < now.len());
    older
}

/// As the database was before this release; `role` is one of the application's own, to which somebody granted the function.
async fn downgrade(world: &World, role: &str) {
    let old = "work.dispatch(text, jsonb, bigint, interval, timestamptz, text)";
    world
        .db
        .batch_execute(&format!(
            "begin; drop function work.dispatch(text, jsonb, bigint, interval, timestamptz, text, text); {};
             revoke all on function {old} from public; grant execute on function {old} to monalisa_producer, {role}; commit",
            older()
        ))
        .await
        .unwrap();
}

const SIGNATURES: &str = "select string_agg(pg_get_function_identity_arguments(oid), '; ') from pg_proc where pronamespace = 'work'::regnamespace and proname = 'dispatch'";
const OLD: &str = "unit text, payload jsonb, tenant_id bigint, delay interval, run_at timestamp with time zone, idempotency_key text";

fn migrate(world: &World) {
    let migrated = world.command("test-workers", &["migrate"]);
    assert!(migrated.status.success(), "{}", String::from_utf8_lossy(&migrated.stderr));
}

#[tokio::test]
async fn callers_of_an_older_signature_go_on_while_and_after_a_migration_gives_it_another_argument() {
    let world = World::without_queues().await;
    let role = format!("other_{}", Uuid::new_v4().simple());
    world.db.batch_execute(&format!("create role {role} login; grant usage on schema work to {role}")).await.unwrap();
    downgrade(&world, &role).await;
    assert_eq!(world.one(SIGNATURES, &[]).await.get::<_, String>(0), OLD);
    world
        .db
        .batch_execute(
            "create function public.of_the_application(n int) returns uuid language plpgsql as
               $$ begin return work.dispatch('t.ok', jsonb_build_object('n', n), 1, null, null, 'key of ' || n); end $$",
        )
        .await
        .unwrap();
    let api = connect(&world.url(Some("test_api"))).await;
    let mut prepared = Vec::new();
    for call in [
        "select work.dispatch('t.ok')",
        "select work.dispatch('t.ok', '{\"a\": 1}')",
        "select work.dispatch('t.ok', '{}', 1, null, null, null)",
        "select work.dispatch(unit => 't.ok', tenant_id => 1)",
        "select work.dispatch('t.ok', '{}', run_at => now(), idempotency_key => 'k')",
        "select work.dispatch(idempotency_key => 'k2', unit => 't.ok', delay => '1 hour', payload => '{\"b\": 2}')",
        "select public.of_the_application(7)",
        "select d.run_id from work.dispatch('t.ok') d (run_id)",
    ] {
        prepared.push((call, api.prepare(call).await.unwrap()));
    }
    let all = async || {
        let mut runs: Vec<Uuid> = Vec::new();
        for (call, statement) in &prepared {
            api.batch_execute("set app.tenant_id = '1'").await.unwrap();
            // More than five times, so that its plan is kept.
            for _ in 0..7 {
                runs.push(api.query_one(statement, &[]).await.unwrap_or_else(|error| panic!("{call}: {error:?}")).get(0));
            }
        }
        runs
    };
    let before = all().await;

    // A transaction that is open meanwhile, and callers that never rest.
    let mut open = connect(&world.url(Some("test_api"))).await;
    let transaction = open.transaction().await.unwrap();
    let statement = transaction.prepare("select work.dispatch('t.ok', $1, tenant_id => 2)").await.unwrap();
    let payload = serde_json::json!({"in": "between"});
    transaction.query_one(&statement, &[&payload]).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let mut callers = JoinSet::new();
    for caller in 0..4 {
        let (stop, url) = (stop.clone(), world.url(Some(if caller == 0 { &role } else { "test_api" })));
        callers.spawn(async move {
            let session = connect(&url).await;
            let statement = session.prepare("select work.dispatch('t.ok', '{}', 3)").await.unwrap();
            let mut calls = 0_i64;
            while !stop.load(Ordering::Relaxed) {
                // Prepared once, and looked up anew each time.
                session.query_one(&statement, &[]).await.unwrap();
                session.batch_execute("select work.dispatch(unit => 't.ok', tenant_id => 3)").await.unwrap();
                calls += 2;
            }
            calls
        });
    }
    for round in 0..3 {
        world.count_is("select (count(*) > 0)::int::int8 from work.task_runs where tenant_id = 3", 1).await;
        if round > 0 {
            downgrade(&world, &role).await;
        }
        migrate(&world);
        let now = format!("{OLD}, traceparent text");
        assert_eq!(world.one(SIGNATURES, &[]).await.get::<_, String>(0), now, "one of a name");
    }
    stop.store(true, Ordering::Relaxed);
    let calls: i64 = callers.join_all().await.into_iter().sum();
    assert_eq!(
        world.count("select count(*) from work.task_runs r join work.outbox_messages using (run_id) where r.tenant_id = 3").await,
        calls
    );
    transaction.query_one(&statement, &[&payload]).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(world.count("select count(*) from work.task_runs where tenant_id = 2").await, 2);

    let after = all().await;
    // Under a key the call of the new one finds the run of the old one.
    let keyed: Vec<usize> = (0..before.len()).filter(|n| before[*n] == after[*n]).collect();
    assert_eq!(keyed.len(), 3 * 7, "{keyed:?}");
    let traced = "select work.dispatch('t.ok', '{}', 1, null, null, null, '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01')";
    api.query_one(traced, &[]).await.unwrap();
    world.db.batch_execute(&format!("drop owned by {role}; drop role {role}")).await.unwrap();
}

#[tokio::test]
async fn what_was_made_with_an_older_signature_is_named_and_nothing_of_the_migration_stays() {
    let world = World::without_queues().await;
    let role = format!("other_{}", Uuid::new_v4().simple());
    world.db.batch_execute(&format!("create role {role}")).await.unwrap();
    downgrade(&world, &role).await;
    world.db.batch_execute("create view public.makes_one as select work.dispatch('t.ok', '{}', 1) as run_id").await.unwrap();
    let migrated = world.command("test-workers", &["migrate"]);
    let said = String::from_utf8_lossy(&migrated.stderr).into_owned();
    assert!(
        !migrated.status.success()
            && said.contains("SIGNATURE_IN_USE: ")
            && said.contains("ML033")
            && said.contains("view public.makes_one"),
        "{said}"
    );
    assert!(said.contains("make it anew") && !said.contains("CASCADE"), "{said}");
    assert_eq!(world.one(SIGNATURES, &[]).await.get::<_, String>(0), OLD);
    world.db.batch_execute("select run_id from public.makes_one; drop view public.makes_one").await.unwrap();
    migrate(&world);
    world
        .db
        .batch_execute(
            "create view public.makes_one as select work.dispatch('t.ok', '{}', 1) as run_id; select run_id from public.makes_one",
        )
        .await
        .unwrap();
    assert_eq!(world.count("select count(*) from work.outbox_messages").await, 2);
    world.db.batch_execute(&format!("drop owned by {role}; drop role {role}")).await.unwrap();
}
