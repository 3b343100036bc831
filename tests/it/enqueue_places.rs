//! Where a caller may enqueue from: triggers, savepoints, constraints that are checked at the commit; and where it is told that it may not:
//! read-only transactions and standbys.

use monalisa::Client as Waking;
use uuid::Uuid;

use crate::support::{AT_ONCE, RELAY_ALONE, World, connect, pg_server::PgServer, refusal, wait_for};

/// Orders, each of which makes work in three ways: by the row, by the statement, and at the commit.
const ORDERS: &str = "
    create table public.orders (id int primary key, tenant_id bigint not null, unit text not null default 't.ok');
    create function public.order_placed() returns trigger language plpgsql as
      $$ begin perform work.dispatch(new.unit, jsonb_build_object('order', new.id), new.tenant_id, idempotency_key => 'order-' || new.id); return null; end $$;
    create trigger placed after insert on public.orders for each row execute function public.order_placed();
    create function public.orders_placed() returns trigger language plpgsql as
      $$ begin perform work.dispatch_many('t.urgent', array(select jsonb_build_object('order', id) from added), 1); return null; end $$;
    create trigger all_placed after insert on public.orders referencing new table as added for each statement execute function public.orders_placed();
    create function public.order_committed() returns trigger language plpgsql as
      $$ begin perform work.publish('test.happened', jsonb_build_object('order', new.id), tenant_id => new.tenant_id); return null; end $$;
    create constraint trigger committed after insert on public.orders deferrable initially deferred for each row execute function public.order_committed();
    grant insert, select on public.orders to test_api, test_nobody;
";

/// Runs of each unit, with their outbox rows.
async fn runs(world: &World) -> String {
    let sql = "select coalesce(string_agg(unit || ' ' || n, ', ' order by unit), '')
                 from (select unit, count(*) as n from work.task_runs r join work.outbox_messages o using (run_id, tenant_id) group by unit) g";
    world.one(sql, &[]).await.get(0)
}

#[tokio::test]
async fn triggers_enqueue_in_the_transaction_that_fires_them_also_at_its_commit() {
    let world = World::without_queues().await;
    world.db.batch_execute(ORDERS).await.unwrap();
    let api = connect(&world.url(Some("test_api"))).await;
    let insert = "insert into public.orders select i, 1 from generate_series(1, 3) i";
    api.batch_execute(&format!("begin; {insert}; rollback")).await.unwrap();
    assert_eq!(runs(&world).await, "");
    api.batch_execute(&format!("begin; {insert}")).await.unwrap();
    assert_eq!(runs(&world).await, "", "nothing is seen before the commit");
    api.batch_execute("commit").await.unwrap();
    assert_eq!(runs(&world).await, "t.happened_badly 3, t.happened_well 3, t.ok 3, t.urgent 3");
    // What is refused refuses the row that asked for it, and says why.
    let refused = refusal(api.batch_execute("insert into public.orders values (4, 1, 't.okk')").await);
    assert_eq!(refused.code().code(), "ML001");
    assert!(
        refused.hint().is_some_and(|hint| hint.contains("t.ok")) && refused.where_().is_some_and(|place| place.contains("order_placed")),
        "{refused:?}"
    );
    let refused = refusal(api.batch_execute("insert into public.orders values (4, 999)").await);
    assert_eq!(refused.code().code(), "23503");
    assert_eq!(api.query_one("select count(*) from public.orders", &[]).await.unwrap().get::<_, i64>(0), 3);
    assert_eq!(runs(&world).await, "t.happened_badly 3, t.happened_well 3, t.ok 3, t.urgent 3");
}

#[tokio::test]
async fn a_trigger_enqueues_with_the_rights_of_whoever_writes_the_table_or_of_its_owner() {
    let world = World::without_queues().await;
    world.db.batch_execute(ORDERS).await.unwrap();
    let writer = connect(&world.url(Some("test_nobody"))).await;
    let insert = "insert into public.orders values (1, 1)";
    let refused = refusal(writer.batch_execute(insert).await);
    assert_eq!((refused.code().code(), refused.message()), ("42501", "permission denied for schema work"));
    for function in ["order_placed", "orders_placed", "order_committed"] {
        let owners = format!("alter function public.{function}() security definer set search_path = pg_catalog, pg_temp");
        world.db.batch_execute(&owners).await.unwrap();
    }
    writer.batch_execute(insert).await.unwrap();
    assert_eq!(runs(&world).await, "t.happened_badly 1, t.happened_well 1, t.ok 1, t.urgent 1");
}

#[tokio::test]
async fn what_a_rollback_to_a_savepoint_takes_back_never_goes_out_and_the_rest_does_at_the_wake() {
    let world = World::new().await;
    let relay = world.start(&[RELAY_ALONE, &[("MONALISA_RELAY_SWEEP_MS", "600000")]].concat()).await;
    let mut api = connect(&world.url(Some("test_api"))).await;
    let mut transaction = api.transaction().await.unwrap();
    let kept: Uuid = transaction.query_one("select work.dispatch('t.ok', '{}', 1)", &[]).await.unwrap().get(0);
    let inner = transaction.transaction().await.unwrap();
    let lost: Uuid = inner.query_one("select work.dispatch('t.ok', '{}', 1, idempotency_key => 'k')", &[]).await.unwrap().get(0);
    inner.batch_execute("select work.publish('test.happened', '{}', 1, 1), work.dispatch('t.platform')").await.unwrap();
    inner.rollback().await.unwrap();
    // One that is refused, which a savepoint saves the transaction from.
    let inner = transaction.transaction().await.unwrap();
    assert_eq!(refusal(inner.query_one("select work.dispatch('t.okk', '{}', 1)", &[]).await).code().code(), "ML001");
    inner.rollback().await.unwrap();
    let inner = transaction.transaction().await.unwrap();
    let again: Uuid = inner.query_one("select work.dispatch('t.ok', '{}', 1, idempotency_key => 'k')", &[]).await.unwrap().get(0);
    inner.commit().await.unwrap();
    assert_ne!(again, lost, "the key was free again");
    Waking::new(Some(world.redis_url())).unwrap().commit(transaction).await.unwrap();
    world.sent_within(2, AT_ONCE).await;
    let sent: Vec<Uuid> =
        world.db.query("select run_id from work.outbox_messages order by id", &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(sent, [kept, again]);
    assert_eq!(world.count("select count(*) from work.task_runs").await, 2);
    assert_eq!(world.count("select count(*) from work.platform_outbox_messages").await, 0);
    world.messages_are("default", 2).await;
    drop(relay);
}

/// Calls that enqueue, also where nobody listens.
const CALLS: [&str; 4] = [
    "select work.dispatch('t.ok', '{}', 1)",
    "select work.dispatch_many('t.ok', '{}', 1)",
    "select work.publish('test.happened', '{}', 1, 1)",
    "select work.publish('nobody.listens', '{}', 1, 1)",
];

#[tokio::test]
async fn a_read_only_transaction_is_told_so_and_how_to_begin_another() {
    let world = World::without_queues().await;
    let api = connect(&world.url(Some("test_api"))).await;
    for (setting, begin) in [
        ("", "begin read only"),
        ("", "begin; set transaction read only"),
        ("", "begin isolation level serializable read only deferrable"),
        ("set default_transaction_read_only = on", "begin"),
    ] {
        api.batch_execute(setting).await.unwrap();
        for call in CALLS {
            let refused = refusal(api.batch_execute(&format!("{begin}; {call}")).await);
            assert_eq!(refused.code().code(), "ML032", "{begin}; {call}");
            assert_eq!(refused.message(), "READ_ONLY: this transaction is read-only, and nothing can be enqueued in it");
            assert!(refused.hint().is_some_and(|hint| hint.contains("begin read write")), "{refused:?}");
            api.batch_execute("rollback").await.unwrap();
        }
    }
    // The hint helps, and reading needs none.
    api.batch_execute("begin read only; select * from work.run(gen_random_uuid()); rollback").await.unwrap();
    api.batch_execute("begin read write; select work.dispatch('t.ok', '{}', 1); commit").await.unwrap();
    assert_eq!(runs(&world).await, "t.ok 1");
}

#[tokio::test]
async fn a_handler_that_enqueues_where_nothing_can_be_written_is_interrupted_and_not_failed() {
    let world = World::new().await;
    let _workers = world.workers().await;
    let run = world.dispatch("t.sql", r#"{"q": "set transaction_read_only = on; select work.dispatch('t.ok')"}"#).await;
    let sql = format!("select (interruptions > 0 and failures = 0)::int::int8 from work.task_runs where run_id = '{run}'");
    wait_for("it to be interrupted", async || (world.count(&sql).await == 1).then_some(())).await;
    assert_eq!(world.count("select count(*) from work.run_events where event in ('failed', 'retrying')").await, 0);
}

#[tokio::test]
async fn a_standby_says_what_it_is_and_still_shows_how_a_run_stands() {
    let primary = PgServer::start(&[]);
    let world = World::with_server(&primary).await;
    let standby = primary.standby();
    let url = world.url(Some("test_api")).replace(&primary.port().to_string(), &standby.port().to_string());
    let api = connect(&url).await;
    for call in CALLS {
        let refused = refusal(api.batch_execute(call).await);
        assert_eq!(
            (refused.code().code(), refused.message()),
            ("ML032", "READ_ONLY: this server is a standby, and nothing can be enqueued on it"),
            "{call}"
        );
        assert!(refused.hint().is_some_and(|hint| hint.contains("target_session_attrs=read-write")), "{refused:?}");
    }
    let run = world.dispatch("t.ok", "{}").await;
    api.batch_execute("set app.tenant_id = '1'").await.unwrap();
    let row = wait_for("the run on the standby", async || api.query_opt("select status from work.run($1)", &[&run]).await.unwrap()).await;
    assert_eq!(row.get::<_, &str>(0), "queued");
    // And what observers look at.
    let observer = connect(&url.replace("test_api", "test_observer")).await;
    for view in ["queue_status", "outbox_status", "unit_status", "failures", "runs", "trail", "table_health"] {
        observer.batch_execute(&format!("select * from work.{view}")).await.unwrap_or_else(|error| panic!("{view}: {error:?}"));
    }
}
