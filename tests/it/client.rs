//! The Rust client, in the transaction of an API, with its catalogue.

use std::time::Duration;

use monalisa::{Catalogue, Client, Event, Options, Task, dispatch, publish};
use serde::{Deserialize, Serialize};

use crate::support::{World, connect};

#[derive(Serialize, Deserialize)]
struct Greet {
    note: String,
    sum: i64,
}

impl Task for Greet {
    const NAME: &'static str = "t.ok";
}

#[derive(Serialize, Deserialize)]
struct Unknown {}

impl Task for Unknown {
    const NAME: &'static str = "t.nowhere";
}

#[derive(Serialize, Deserialize)]
struct Happened {
    note: String,
}

impl Event for Happened {
    const TYPE: &'static str = "test.happened";
}

fn greet() -> Greet {
    Greet { note: "ä 😀".to_owned(), sum: i64::MAX }
}

#[tokio::test]
async fn what_is_scheduled_is_committed_with_the_callers_transaction_or_not_at_all() {
    let world = World::without_queues().await;
    let mut api = connect(&world.url(Some("test_api"))).await;
    let client = Client::new(Some(world.redis_url())).unwrap();
    for commits in [false, true] {
        let transaction = api.transaction().await.unwrap();
        let traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".to_owned();
        let options = Options { delay: Some(Duration::from_secs(3_600)), traceparent: Some(traceparent), ..Options::tenant(3) };
        let run = dispatch(&transaction, &greet(), &options).await.unwrap();
        let published = publish(&transaction, &Happened { note: "x".to_owned() }, &Options::tenant(3)).await.unwrap();
        let units: Vec<&str> = published.iter().map(|published| published.unit.as_str()).collect();
        assert_eq!(units, ["t.happened_badly", "t.happened_well"]);
        if commits {
            client.commit(transaction).await.unwrap();
        } else {
            transaction.rollback().await.unwrap();
        }
        let expected = if commits { 3 } else { 0 };
        for table in ["task_runs", "outbox_messages"] {
            assert_eq!(world.count(&format!("select count(*) from work.{table} where tenant_id = 3")).await, expected, "{table}");
        }
        if commits {
            let sql = "select payload::text, extract(epoch from available_at - created_at)::float8, traceparent is not null
                         from work.task_runs where run_id = $1";
            let row = world.one(sql, &[&run]).await;
            assert_eq!(row.get::<_, &str>(0), r#"{"sum": 9223372036854775807, "note": "ä 😀"}"#);
            assert!((3_599.0..3_601.0).contains(&row.get::<_, f64>(1)) && row.get::<_, bool>(2));
        }
    }
}

#[tokio::test]
async fn a_refusal_carries_its_code_and_its_hint() {
    let world = World::without_queues().await;
    let api = connect(&world.url(Some("test_api"))).await;
    let code = async |options: Options| {
        let error = dispatch(&api, &greet(), &options).await.unwrap_err();
        (error.sqlstate().map(|state| state.code().to_owned()).unwrap_or_default(), error.to_string())
    };
    let (state, text) = code(Options::default()).await;
    assert_eq!(state, "ML004");
    assert!(text.starts_with("enqueue/dispatch: RUN_CONTEXT_MISMATCH: ") && text.contains("app.tenant_id"), "{text}");
    assert_eq!(code(Options::tenant(999)).await.0, "23503");
    let (state, text) = code(Options { delay: Some(Duration::MAX), ..Options::tenant(1) }).await;
    assert!(state == "ML005" && text.contains("beyond the calendar"), "{text}");
    let unknown = dispatch(&api, &Unknown {}, &Options::tenant(1)).await.unwrap_err();
    assert_eq!(unknown.sqlstate().unwrap().code(), "ML001");
}

#[tokio::test]
async fn the_same_key_gives_the_first_runs_through_the_client_too() {
    let world = World::without_queues().await;
    let api = connect(&world.url(Some("test_api"))).await;
    let options = |key: &str| Options { idempotency_key: Some(key.to_owned()), ..Options::tenant(1) };
    let first = dispatch(&api, &greet(), &options("a")).await.unwrap();
    assert_eq!(dispatch(&api, &greet(), &options("a")).await.unwrap(), first);
    let event = Happened { note: "x".to_owned() };
    let rows = publish(&api, &event, &options("b")).await.unwrap();
    assert_eq!(publish(&api, &event, &options("b")).await.unwrap(), rows);
    assert_eq!(rows.len(), 2);
}

#[tokio::test]
async fn an_api_finds_its_tasks_in_the_catalogue_file_or_does_not_start() {
    let world = World::without_queues().await;
    let path = std::env::temp_dir().join(format!("tasks-{}.json", uuid::Uuid::new_v4()));
    let made = world.command("test-workers", &["tasks", "generate", path.to_str().unwrap()]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let catalogue = Catalogue::from_file(&path).unwrap();
    assert!(catalogue.require::<Greet>().is_ok());
    let missing = catalogue.require::<Unknown>().unwrap_err().to_string();
    assert!(missing.contains("t.nowhere"), "{missing}");
    assert!(catalogue.compare(&world.db).await.unwrap(), "the database holds the same");
    let mut other = catalogue.clone();
    other.tasks.pop();
    assert!(!other.compare(&world.db).await.unwrap());

    // One of one's own names what it needs; the rest is what the database takes for it.
    let small = r#"{"tasks": [{"name": "t.ok", "queue": "bulk"}], "subscriptions": [{"name": "t.s", "queue": "bulk", "type": "a.b"}]}"#;
    std::fs::write(&path, small).unwrap();
    let small = Catalogue::from_file(&path).unwrap();
    assert!(small.require::<Greet>().is_ok());
    world.db.batch_execute("truncate work.catalogues, work.units").await.unwrap();
    let taken = async |text: &str| {
        world.one("select count(*) from work.load_catalogue($1::text::jsonb, 'own')", &[&text]).await;
        let units =
            "select string_agg(concat_ws(' ', name, context, overlap, timeout_seconds, event_version), ', ' order by name) from work.units";
        world.one(units, &[]).await.get::<_, String>(0)
    };
    let given = taken(&std::fs::read_to_string(&path).unwrap()).await;
    assert_eq!(taken(&small.to_json().unwrap()).await, given);
    assert_eq!(given, "t.ok tenant skip 60, t.s tenant skip 60 1");

    std::fs::write(&path, "{\"tasks\": 1}").unwrap();
    for path in [path.as_path(), std::path::Path::new("/nowhere/tasks.json")] {
        let refused = Catalogue::from_file(path).unwrap_err().to_string();
        assert!(refused.contains(path.to_str().unwrap()) && refused.contains("workers tasks generate"), "{refused}");
    }
    std::fs::remove_file(path).unwrap();
}
