//! Enqueueing through PgBouncer in transaction mode: many clients, few connections, and each transaction on whichever is free.

use std::collections::BTreeSet;

use monalisa::{Event, Options, Task, dispatch, dispatch_many, publish};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio_postgres::{Client, SimpleQueryMessage};
use uuid::Uuid;

use crate::support::{World, connect, pg_bouncer::PgBouncer, refusal};

#[derive(Serialize, Deserialize)]
struct Plain {
    caller: i64,
}

impl Task for Plain {
    const NAME: &'static str = "t.ok";
}

impl Event for Plain {
    const TYPE: &'static str = "test.happened";
}

const CLIENTS: i64 = 24;
const CONNECTIONS: u32 = 3;

/// Columns of the first row, by the simple protocol, which leaves nothing behind.
async fn simple(client: &Client, sql: &str) -> Vec<String> {
    let answers = client.simple_query(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    let row = answers.into_iter().find_map(|answer| match answer {
        SimpleQueryMessage::Row(row) => Some((0..row.len()).map(|n| row.get(n).unwrap_or_default().to_owned()).collect()),
        _ => None,
    });
    row.unwrap_or_default()
}

#[tokio::test]
async fn many_clients_enqueue_over_few_connections_and_no_tenant_and_no_statement_is_left_in_them() {
    let world = World::without_queues().await;
    let direct = world.url(Some("test_api"));
    let bouncer = PgBouncer::start(&direct, "test_api", CONNECTIONS).await;
    let url = bouncer.through(&direct);
    let mut clients = JoinSet::new();
    for caller in 0..CLIENTS {
        let mut client = connect(&url).await;
        clients.spawn(async move {
            let (tenant, mut processes, mut committed) = (caller % 4 + 1, BTreeSet::new(), 0_i64);
            for round in 0..8 {
                // Between transactions: whichever connection it is, nobody left a tenant in it.
                let before = simple(&client, "select pg_backend_pid(), coalesce(current_setting('app.tenant_id', true), '')").await;
                assert_eq!(before[1], "", "a tenant was left in a connection");
                processes.insert(before[0].clone());
                let transaction = client.transaction().await.unwrap();
                transaction.batch_execute(&format!("set local app.tenant_id = '{tenant}'")).await.unwrap();
                let payload = Plain { caller };
                let run = dispatch(&transaction, &payload, &Options::default()).await.unwrap();
                let many = dispatch_many(&transaction, &[Plain { caller }, Plain { caller }], &Options::default()).await.unwrap();
                let published = publish(&transaction, &payload, &Options::default()).await.unwrap();
                assert_eq!((many.len(), published.len()), (2, 2));
                // A statement that is prepared, used and closed in its transaction stays on one connection.
                let statement = transaction.prepare("select status from work.run($1)").await.unwrap();
                for run in [run, many[0], published[1].run_id] {
                    assert_eq!(transaction.query(&statement, &[&run]).await.unwrap().len(), 1);
                }
                drop(statement);
                match round % 3 {
                    0 => transaction.rollback().await.unwrap(),
                    // An error in it, and whoever held it is gone.
                    1 => {
                        let foreign = format!("select work.dispatch('t.ok', tenant_id => {})", tenant % 4 + 1);
                        assert_eq!(refusal(transaction.batch_execute(&foreign).await).code().code(), "ML004");
                    }
                    _ => {
                        transaction.commit().await.unwrap();
                        committed += 5;
                    }
                }
            }
            // Without a transaction of its own each call is one, in one trip: no connection has to be kept for it.
            for _ in 0..3 {
                let options = Options { idempotency_key: Some(format!("key of {caller}")), ..Options::tenant(tenant) };
                let run: Uuid = dispatch(&client, &Plain { caller }, &options).await.unwrap();
                let again = dispatch(&client, &Plain { caller }, &options).await.unwrap();
                assert_eq!(run, again);
            }
            assert_eq!(refusal(client.batch_execute("select work.dispatch('t.ok')").await).code().code(), "ML004", "nobody's tenant");
            (processes, committed + 1)
        });
    }
    let (mut processes, mut committed) = (BTreeSet::new(), 0);
    for (seen, made) in clients.join_all().await {
        processes.extend(seen);
        committed += made;
    }
    assert!(processes.len() <= CONNECTIONS as usize && processes.len() > 1, "{processes:?}");
    assert_eq!(world.count("select count(*) from work.task_runs r join work.outbox_messages o using (run_id, tenant_id)").await, committed);
    let others = "select count(*) from work.task_runs where tenant_id <> (payload ->> 'caller')::int8 % 4 + 1";
    assert_eq!(world.count(others).await, 0, "work of one tenant under another");
    // All connections at once, looked at.
    let mut held = Vec::new();
    let mut left = BTreeSet::new();
    for _ in 0..processes.len() {
        let client = connect(&url).await;
        client.batch_execute("begin").await.unwrap();
        let sql = "select pg_backend_pid(), coalesce(current_setting('app.tenant_id', true), ''), (select count(*) from pg_prepared_statements), (select count(*) from pg_locks where pid = pg_backend_pid() and locktype = 'advisory')";
        let row = simple(&client, sql).await;
        assert_eq!(row[1..], ["", "0", "0"], "tenant, statements, locks of {}", row[0]);
        left.insert(row[0].clone());
        held.push(client);
    }
    assert_eq!(left, processes);
}

#[tokio::test]
async fn a_key_that_is_waited_for_through_a_pooler_is_found_when_its_holder_commits() {
    let world = World::without_queues().await;
    let direct = world.url(Some("test_api"));
    let bouncer = PgBouncer::start(&direct, "test_api", 2).await;
    let url = bouncer.through(&direct);
    let mut first = connect(&url).await;
    let options = Options { idempotency_key: Some("one".to_owned()), ..Options::tenant(1) };
    let transaction = first.transaction().await.unwrap();
    let run = dispatch(&transaction, &Plain { caller: 1 }, &options).await.unwrap();
    let second = connect(&url).await;
    let waiting = tokio::spawn(async move { dispatch(&second, &Plain { caller: 1 }, &options).await.unwrap() });
    world.count_is("select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'", 1).await;
    transaction.commit().await.unwrap();
    assert_eq!(waiting.await.unwrap(), run);
    assert_eq!(world.count("select count(*) from work.task_runs").await, 1);
}
