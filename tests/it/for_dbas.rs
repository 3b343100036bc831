//! The page for DBAs: its queries run, and what it says of vacuum, publications and dumps is so.

use crate::{
    docs::{blocks, read},
    support::{RELAY, World, refusal},
};

#[tokio::test]
async fn every_query_and_command_of_the_page_for_dbas_works() {
    let world = World::new().await;
    world.db.batch_execute("create extension pg_stat_statements").await.unwrap();
    let workers = world.start(&[RELAY]).await;
    for _ in 0..10 {
        world.dispatch("t.ok", "{}").await;
    }
    world.db.batch_execute("select work.dispatch('t.ok', '{}', 7)").await.unwrap();
    world.count_is("select count(*) from work.task_runs where status = 'succeeded'", 11).await;
    let mut ran = 0;
    for (info, code) in blocks(&read("docs/for-dbas.md")) {
        match info.as_str() {
            "sql run=owner" => {
                let answer = world.db.simple_query(&code).await.unwrap_or_else(|error| panic!("{code}\n{error:?}"));
                let rows = answer.iter().filter(|message| matches!(message, tokio_postgres::SimpleQueryMessage::Row(_))).count();
                assert!(rows > 0 || !code.starts_with("select") || code.contains("monalisa migrate"), "it shows nothing:\n{code}");
            }
            "sh run=archive" => {
                let done = std::process::Command::new("bash")
                    .args(["-c", &code])
                    .env("DATABASE_URL", world.url(None))
                    .current_dir(env!("CARGO_MANIFEST_DIR"))
                    .output()
                    .unwrap();
                let said = String::from_utf8_lossy(&done.stderr);
                assert!(done.status.success() && said.contains("nothing is left"), "{said}");
            }
            other => panic!("say who runs it: {other}"),
        }
        ran += 1;
    }
    assert!(ran >= 14, "{ran} ran");
    assert_eq!(world.count("select count(*) from work.task_runs where payload = '{\"erased\": true}'").await, 1);
    drop(workers);
}

#[tokio::test]
async fn a_publication_of_all_tables_needs_the_identity_that_the_page_for_dbas_names() {
    let world = World::without_queues().await;
    world.db.batch_execute("create publication everything for all tables").await.unwrap();
    world.dispatch("t.ok", "{}").await;
    let with_a_key = "select work.dispatch('t.ok', '{}', 1, idempotency_key => 'k')";
    assert_eq!(refusal(world.db.query(with_a_key, &[]).await).code().code(), "55000");
    let page = read("docs/for-dbas.md");
    let (_, identity) = blocks(&page).into_iter().find(|(_, code)| code.contains("replica identity")).expect("it is named");
    world.db.batch_execute(&identity).await.unwrap();
    world.db.batch_execute(with_a_key).await.unwrap();
    // Every other table that is written has a key.
    let without = "select coalesce(string_agg(c.relname, ', '), '') from pg_class c
                    where c.relnamespace = 'work'::regnamespace and c.relkind = 'r' and c.relreplident = 'd'
                      and not exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary)";
    assert_eq!(world.one(without, &[]).await.get::<_, String>(0), "");
}
