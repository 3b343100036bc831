//! Loading a catalogue: refused as a whole or taken over as a whole, each service only its own units.

use serde_json::{Value, json};

use crate::support::{World, refusal};

async fn load(world: &World, catalogue: &Value, service: &str) -> Result<Vec<(String, String)>, tokio_postgres::Error> {
    let rows = world.db.query("select change, unit from work.load_catalogue($1, $2)", &[catalogue, &service]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

fn tasks(tasks: &[Value]) -> Value {
    json!({"version": 1, "tasks": tasks, "subscriptions": []})
}

fn changes(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(change, unit)| ((*change).to_owned(), (*unit).to_owned())).collect()
}

const CONTENT: &str = "select md5(string_agg(u::text, ';' order by u.name)) || (select md5(string_agg(c::text, ';' order by c.service)) from work.catalogues c)
                         from work.units u";

#[tokio::test]
async fn a_catalogue_that_is_not_valid_is_refused_and_changes_nothing() {
    let world = World::without_queues().await;
    let task = |name: &str| json!({"name": name, "queue": "bulk"});
    let subscription = |name: &str, context: &str| json!({"name": name, "queue": "bulk", "type": "a.b", "version": 1, "context": context});
    let mut wrong = vec![
        json!([]),
        json!({"tasks": []}),
        json!({"tasks": {}, "subscriptions": []}),
        json!({"tasks": [1], "subscriptions": []}),
        tasks(&[task("o.a"), task("o.a")]),
        tasks(&[task("t.ok")]),
        json!({"tasks": [], "subscriptions": [subscription("o.a", "tenant"), subscription("o.b", "system")]}),
        json!({"tasks": [], "subscriptions": [{"name": "o.a", "queue": "bulk", "version": "one", "type": "a.b"}]}),
    ];
    for name in ["", "O.a", "o..a", "1o", "o.a.", "o-a", &"o".repeat(65)] {
        wrong.push(tasks(&[task(name)]));
    }
    for (field, value) in [
        ("queue", json!("urgent")),
        ("queue", json!(null)),
        ("context", json!("user")),
        ("overlap", json!("queue")),
        ("timeout_seconds", json!(0)),
        ("timeout_seconds", json!(39_601)),
        ("schedule", json!("rate(1 hour)")), // of a task with a tenant
    ] {
        let mut task = task("o.a");
        task[field] = value;
        wrong.push(tasks(&[task]));
    }
    let before: String = world.one(CONTENT, &[]).await.get(0);
    let long = "s".repeat(65);
    let good = tasks(&[task("o.good")]);
    let services = ["", "two words", "-x", &long].map(|service| (&good, service));
    for (catalogue, service) in wrong.iter().map(|catalogue| (catalogue, "other")).chain(services) {
        let error = refusal(load(&world, catalogue, service).await);
        assert_eq!(error.code().code(), "ML009", "{service}: {catalogue}: {error:?}");
        assert!(error.message().starts_with("CATALOG_INVALID: ") && error.hint().is_some_and(|hint| hint.len() > 10), "{error:?}");
    }
    assert_eq!(world.one(CONTENT, &[]).await.get::<_, String>(0), before);
}

#[tokio::test]
async fn a_load_adds_changes_retires_and_restores_the_units_of_its_service_alone() {
    let world = World::without_queues().await;
    let first = json!({"name": "o.first", "queue": "bulk"});
    let second = json!({"name": "o.second", "queue": "bulk"});
    let moved = json!({"name": "o.first", "queue": "critical"});
    let both = tasks(&[second.clone(), first]);
    assert_eq!(load(&world, &both, "other").await.unwrap(), changes(&[("added", "o.first"), ("added", "o.second")]));
    assert_eq!(load(&world, &both, "other").await.unwrap(), []);
    assert_eq!(
        load(&world, &tasks(std::slice::from_ref(&moved)), "other").await.unwrap(),
        changes(&[("changed", "o.first"), ("retired", "o.second")])
    );
    assert_eq!(load(&world, &tasks(std::slice::from_ref(&moved)), "other").await.unwrap(), [], "a retired one is not retired again");
    assert_eq!(load(&world, &tasks(&[moved, second]), "other").await.unwrap(), changes(&[("restored", "o.second")]));
    assert_eq!(load(&world, &tasks(&[]), "empty").await.unwrap(), []);
    let sql =
        "select string_agg(concat_ws(' ', name, queue, retired_at is null), ', ' order by name) from work.units where service = 'other'";
    assert_eq!(world.one(sql, &[]).await.get::<_, String>(0), "o.first critical t, o.second bulk t");
    assert_eq!(world.count("select count(*) from work.units where service = 'test-workers' and retired_at is not null").await, 0);
}

#[tokio::test]
async fn a_unit_that_its_service_retired_may_move_to_another() {
    let world = World::without_queues().await;
    let unit = tasks(&[json!({"name": "o.moving", "queue": "bulk"})]);
    load(&world, &unit, "here").await.unwrap();
    assert_eq!(refusal(load(&world, &unit, "there").await).code().code(), "ML009");
    load(&world, &tasks(&[]), "here").await.unwrap();
    assert_eq!(load(&world, &unit, "there").await.unwrap(), changes(&[("restored", "o.moving")]));
    let owner: String = world.one("select service from work.units where name = 'o.moving'", &[]).await.get(0);
    assert_eq!(owner, "there");
}

#[tokio::test]
async fn programs_of_two_services_share_a_database_and_what_ships() {
    // The template was migrated by test-workers; the stock program is another service.
    let world = World::without_queues().await;
    let migrated = world.command("workers", &["migrate"]);
    assert!(migrated.status.success(), "{}", String::from_utf8_lossy(&migrated.stderr));
    let owners = "select string_agg(distinct service, ',' order by service) from work.units where retired_at is null";
    assert_eq!(world.one(owners, &[]).await.get::<_, String>(0), "monalisa,test-workers");
    assert!(world.command("test-workers", &["migrate"]).status.success());
    assert_eq!(world.count("select count(*) from work.units where retired_at is not null").await, 0);
    let foreign = tasks(&[json!({"name": "o.a", "queue": "bulk", "service": "test-workers"})]);
    assert_eq!(refusal(load(&world, &foreign, "other").await).code().code(), "ML009", "only what ships names a service");
}

#[tokio::test]
async fn a_producer_learns_whether_its_catalogue_is_the_one_that_was_loaded() {
    let world = World::without_queues().await;
    let file = std::env::temp_dir().join(format!("{}.json", uuid::Uuid::new_v4()));
    assert!(world.command("test-workers", &["tasks", "generate", file.to_str().unwrap()]).status.success());
    let mut catalogue = monalisa::Catalogue::from_file(&file).unwrap();
    std::fs::remove_file(file).unwrap();
    let api = crate::support::connect(&world.url(Some("test_api"))).await;
    assert!(catalogue.compare(&api).await.unwrap());
    catalogue.tasks.pop();
    assert!(!catalogue.compare(&api).await.unwrap());
}

#[tokio::test]
async fn a_rate_keeps_its_anchor_until_it_changes() {
    let world = World::without_queues().await;
    let scheduled = |rate: &str| tasks(&[json!({"name": "o.tick", "queue": "maintenance", "context": "system", "schedule": rate})]);
    let anchor = async |rate: &str| {
        load(&world, &scheduled(rate), "other").await.unwrap();
        let sql = "select schedule_anchor::text, schedule_timezone from work.units where name = 'o.tick'";
        let row = world.one(sql, &[]).await;
        assert_eq!(row.get::<_, &str>(1), "UTC");
        row.get::<_, String>(0)
    };
    let first = anchor("rate(1 hour)").await;
    assert_eq!(anchor("rate(1 hour)").await, first);
    assert_ne!(anchor("rate(2 hours)").await, first);
}

#[tokio::test]
async fn what_a_load_would_change_and_orphan_is_shown_beforehand() {
    let world = World::without_queues().await;
    let diff = |program: &str| {
        let output = world.command(program, &["tasks", "diff"]);
        (output.status.success(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (fine, said, _) = diff("test-workers");
    assert!(fine && said.contains("is the one that is loaded"), "{said}");
    // A unit that only the database has, with work, and one without.
    world
        .db
        .batch_execute(
            "insert into work.units select (jsonb_populate_record(u, '{\"name\": \"t.gone\"}')).* from work.units u where name = 't.ok';
             insert into work.units select (jsonb_populate_record(u, '{\"name\": \"t.gone_too\"}')).* from work.units u where name = 't.ok';
             update work.units set queue = 'bulk' where name = 't.look';
             select work.dispatch('t.gone', '{}', 1), work.dispatch('t.gone', '{}', 1)",
        )
        .await
        .unwrap();
    let before = world.one("select json_agg(u order by name)::text from work.units u", &[]).await.get::<_, String>(0);
    let (fine, said, why) = diff("test-workers");
    assert!(!fine && why.contains("let it finish"), "{why}");
    for line in ["retired   t.gone\n", "retired   t.gone_too\n", "changed   t.look\n", "orphaned  t.gone: 2 runs queued"] {
        assert!(said.contains(line), "{said}");
    }
    assert!(!said.contains("orphaned  t.gone_too"), "{said}");
    let after = world.one("select json_agg(u order by name)::text from work.units u", &[]).await.get::<_, String>(0);
    assert_eq!(before, after, "nothing was changed");
}

#[tokio::test]
async fn subscribers_that_changed_their_context_under_new_names_are_published_to() {
    let world = World::without_queues().await;
    let load = async |subscribers: &str| {
        let catalogue = format!(r#"{{"version":1,"tasks":[],"subscriptions":{subscribers}}}"#);
        world.db.execute("select work.load_catalogue($1::text::jsonb, 'changing')", &[&catalogue]).await.unwrap();
    };
    load(r#"[{"name":"a.old","queue":"default","context":"tenant","type":"changing.happened","version":1}]"#).await;
    load(r#"[{"name":"b.new","queue":"default","context":"platform","type":"changing.happened","version":1}]"#).await;
    let published = world.db.query("select unit from work.publish('changing.happened')", &[]).await.unwrap();
    assert_eq!(published.iter().map(|row| row.get::<_, String>(0)).collect::<Vec<_>>(), ["b.new"]);
}
