//! `work.dispatch_many`: a run for each payload in their order, all of them or none.

use std::time::{Duration, Instant};

use monalisa::{Options, Task, dispatch_many};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::support::{World, connect, refusal};

#[derive(Serialize, Deserialize)]
struct Greet {
    note: String,
}

impl Task for Greet {
    const NAME: &'static str = "t.ok";
}

#[tokio::test]
async fn each_payload_gets_a_run_in_its_order() {
    let world = World::new().await;
    let _workers = world.workers().await;
    let producer = connect(&world.url(Some("test_api"))).await;
    let sql = r#"select work.dispatch_many('t.ok', array['{"note":"a"}', '{"note":"b"}', '{"note":"c"}']::jsonb[], 1)"#;
    let runs: Vec<Uuid> = producer.query_one(sql, &[]).await.unwrap().get(0);
    for (run, note) in runs.iter().zip(["a", "b", "c"]) {
        world.run_is(*run, "succeeded").await;
        let row = world
            .one("select e.note, r.tenant_id from public.effects e join work.task_runs r using (run_id) where run_id = $1", &[run])
            .await;
        assert_eq!((row.get::<_, &str>(0), row.get::<_, i64>(1)), (note, 1));
    }
    assert!(runs.is_sorted(), "the ids are in the order of the payloads: {runs:?}");
    world.exactly_once(3).await;
    // Work without a tenant, later, and none at all.
    let later = "select work.dispatch_many('t.platform', array['{}', '{}']::jsonb[], delay => '1 hour')";
    let runs: Vec<Uuid> = producer.query_one(later, &[]).await.unwrap().get(0);
    let waiting = "select count(*) from work.platform_outbox_messages o join work.task_runs r using (run_id)
                    where r.run_id = any ($1) and o.sent_at is null and r.available_at = o.available_at
                      and r.available_at > clock_timestamp() + interval '59 min'";
    assert_eq!(world.one(waiting, &[&runs]).await.get::<_, i64>(0), 2);
    let none: Vec<Uuid> = producer.query_one("select work.dispatch_many('t.ok', '{}', 1)", &[]).await.unwrap().get(0);
    assert!(none.is_empty(), "{none:?}");
}

#[tokio::test]
async fn one_that_is_refused_refuses_all_and_is_named() {
    let world = World::without_queues().await;
    let cases = [
        ("ML006", "number 2 of 3", "'t.ok', array['{}', '[1]', '{}']::jsonb[], 1"),
        ("ML006", "number 3 of 3", "'t.ok', array['{}', '{}', null]::jsonb[], 1"),
        ("ML006", "the payloads are null", "'t.ok', null, 1"),
        ("ML007", "number 2 of 2", "'t.ok', array['{}', jsonb_build_object('s', repeat('x', 1048576))], 1"),
        ("ML001", "there is no task named", "'t.okk', array['{}']::jsonb[], 1"),
        ("ML004", "needs a tenant", "'t.ok', array['{}']::jsonb[]"),
        ("ML004", "takes no tenant", "'t.platform', array['{}']::jsonb[], 1"),
        ("ML005", "", "'t.ok', array['{}']::jsonb[], 1, '1 hour', now()"),
        ("23503", "", "'t.ok', array['{}', '{}']::jsonb[], 4711"),
    ];
    for (code, text, arguments) in cases {
        let error = refusal(world.db.query(&format!("select work.dispatch_many({arguments})"), &[]).await);
        assert_eq!(error.code().code(), code, "{arguments}: {error:?}");
        assert!(error.message().contains(text), "{arguments}: {}", error.message());
        assert!(code == "23503" || error.hint().is_some(), "{arguments} has no hint");
        assert_ne!(error.detail(), Some(""), "{arguments}");
    }
    let large = "select work.dispatch_many('t.ok', array[jsonb_build_object('s', repeat('x', 1048576))], 1)";
    assert!(refusal(world.db.query(large, &[]).await).detail().is_some_and(|detail| detail.contains("1048576 bytes")));
    assert_eq!(world.count("select count(*) from work.task_runs").await, 0);
}

#[tokio::test]
async fn the_cost_of_one_is_the_same_among_many() {
    let world = World::without_queues().await;
    let many = |count: i32| {
        let sql = "select cardinality(work.dispatch_many('t.ok', array_agg(jsonb_build_object('note', repeat('x', 200), 'i', i)), 1)) from generate_series(1, $1) i";
        let world = &world;
        async move {
            let began = Instant::now();
            assert_eq!(world.one(sql, &[&count]).await.get::<_, i32>(0), count);
            began.elapsed()
        }
    };
    many(100).await;
    let (few, all) = (many(1_000).await, many(10_000).await);
    println!("1,000 in {few:?}, 10,000 in {all:?}");
    assert!(all < few * 30 + Duration::from_millis(500), "1,000 took {few:?}, 10,000 took {all:?}");
    assert_eq!(
        world.count("select count(*) from work.outbox_messages o join work.task_runs r using (run_id) where o.sent_at is null").await,
        11_100
    );
}

#[tokio::test]
async fn the_rust_client_dispatches_many_in_the_callers_transaction() {
    let world = World::without_queues().await;
    let mut api = connect(&world.url(Some("test_api"))).await;
    let greetings: Vec<Greet> = ["one", "two"].map(|note| Greet { note: note.to_owned() }).into();
    let transaction = api.transaction().await.unwrap();
    let runs = dispatch_many(&transaction, &greetings, &Options::tenant(1)).await.unwrap();
    assert_eq!(runs.len(), 2);
    transaction.rollback().await.unwrap();
    assert_eq!(world.count("select count(*) from work.task_runs").await, 0);
    let runs = dispatch_many(&api, &greetings, &Options { delay: Some(Duration::from_secs(60)), ..Options::tenant(1) }).await.unwrap();
    let notes = "select array_agg(payload ->> 'note' order by array_position($1, run_id)) from work.task_runs where available_at > clock_timestamp()";
    assert_eq!(world.one(notes, &[&runs]).await.get::<_, Vec<String>>(0), ["one", "two"]);
    let keyed = Options { idempotency_key: Some("a key".to_owned()), ..Options::tenant(1) };
    let refused = dispatch_many(&api, &greetings, &keyed).await.unwrap_err().to_string();
    assert!(refused.contains("no idempotency key"), "{refused}");
}
