//! The page for API teams: every command on it is run, and every piece of code stands in an example.

use std::{path::PathBuf, process::Output};

use tokio_postgres::{Client, SimpleQueryMessage};

use crate::{
    docs::{blocks, read},
    examples::{command, make_reports, python, root, said},
    support::{World, binary, connect, refusal},
};

const PAGE: &str = "docs/for-api-teams.md";

/// The words after the language: `run=owner` and the like.
fn word<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

/// Runs a block; whatever it asks is answered with yes.
async fn run(client: &Client, code: &str) {
    let answers = client.simple_query(code).await.unwrap_or_else(|error| panic!("{code}\n{error:?}"));
    for answer in answers {
        if let SimpleQueryMessage::Row(row) = answer {
            assert!((0..row.len()).all(|column| row.get(column) != Some("f")), "{code}\n{row:?}");
        }
    }
}

#[tokio::test]
async fn the_sql_of_the_page_runs_or_is_refused_as_it_says() {
    let world = World::new().await;
    make_reports(&world).await;
    let api = connect(&world.url(Some("test_api"))).await;
    let (mut ran, mut refused) = (0, 0);
    for (info, code) in blocks(&read(PAGE)) {
        match (word(&info, "run"), word(&info, "fails")) {
            (Some("producer"), Some(state)) => {
                let error = refusal(api.batch_execute(&code).await);
                assert_eq!(error.code().code(), state, "{code}\n{error:?}");
                assert!(error.hint().is_some());
                refused += 1;
            }
            (Some("producer"), None) => run(&api, &code).await,
            (Some("owner"), None) => run(&world.db, &code).await,
            _ => continue,
        }
        ran += 1;
    }
    assert!(ran >= 11 && refused == 3, "{ran} blocks ran, {refused} were refused");
    // What stands on it was scheduled: one by its key, one of a list, two later, one of an event, one by the setting.
    let runs = "select string_agg(unit || ' ' || tenant_id || ' ' || (available_at > now() + interval '1 hour'), ', ' order by run_id) from work.task_runs";
    let (now, later) = ("reports.export 1 false", "reports.export 1 true");
    let expected = [now, now, later, later, "identity.login_notification_email 1 false", now].join(", ");
    assert_eq!(world.one(runs, &[]).await.get::<_, String>(0), expected);
    let _workers = world.workers().await;
    world.count_is("select count(*) from work.task_runs where unit = 'reports.export' and status = 'succeeded'", 3).await;
}

/// Runs a block of shell as the page stands, from the root of the repository.
fn shell(code: &str, environment: &[(&str, String)]) -> Output {
    let mut folders = vec![binary("workers").parent().unwrap().to_owned(), python().parent().unwrap().to_owned()];
    folders.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    command("bash")
        .args(["-euo", "pipefail", "-c", code])
        .env("PATH", std::env::join_paths(folders).unwrap())
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .current_dir(root())
        .output()
        .unwrap()
}

#[tokio::test]
async fn a_use_case_is_tested_without_workers_by_the_commands_of_the_page() {
    let world = World::empty().await;
    let environment = [("TEST_DATABASE_URL", world.url(None)), ("API_ROLE", "test_api".to_owned())];
    // The role is there, as in any database of the server; the first command makes its group where it is missing.
    World::without_queues().await;
    let mut told = String::new();
    for (info, code) in blocks(&read(PAGE)) {
        if word(&info, "run") == Some("test-database") {
            let output = shell(&code, &environment);
            told += &said(&output);
            told += &String::from_utf8(output.stderr).unwrap();
        }
    }
    assert!(told.contains(" added  | reports.export"), "{told}");
    assert!(told.contains("Ran 3 tests") && told.contains("\nOK"), "{told}");
    assert_eq!(world.count("select count(*) from work.task_runs").await, 0, "everything was rolled back");
}

#[tokio::test]
async fn the_wake_of_the_page_is_pushed() {
    let world = World::empty().await;
    let (_, code) = blocks(&read(PAGE)).into_iter().find(|(info, _)| word(info, "run") == Some("wake")).unwrap();
    said(&shell(&code, &[("MONALISA_VALKEY_URL", world.redis_url().to_owned())]));
    let mut valkey = redis::Client::open(world.redis_url()).unwrap().get_multiplexed_async_connection().await.unwrap();
    let length: i64 = redis::cmd("LLEN").arg(monalisa::WAKE_KEY).query_async(&mut valkey).await.unwrap();
    assert_eq!(length, 1);
}

#[test]
fn the_code_of_the_page_stands_in_the_examples() {
    let trimmed = |text: &str| text.lines().map(|line| format!("{}\n", line.trim())).collect::<String>();
    let mut shown = 0;
    for (info, code) in blocks(&read(PAGE)) {
        let known = ["producer", "owner", "wake", "test-database"];
        match word(&info, "from") {
            Some(file) => {
                assert!(trimmed(&read(PathBuf::from(file))).contains(&trimmed(&code)), "this is not in {file}:\n{code}");
                shown += 1;
            }
            None => assert!(word(&info, "run").is_some_and(|who| known.contains(&who)), "say who runs it: {info}\n{code}"),
        }
    }
    assert!(shown >= 8, "{shown} pieces are shown");
}
