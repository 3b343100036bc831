//! `workers dlq`: dead letters are looked at, taken back and thrown away.

use std::process::Output;

use uuid::Uuid;

use crate::support::{RELAY, World, wait_for};

/// Runs the command as an operator and returns what it said.
fn dlq(world: &World, arguments: &[&str]) -> String {
    let done = run(world, arguments);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

fn run(world: &World, arguments: &[&str]) -> Output {
    world.command_as("test_operator", "workers", &[&["dlq"], arguments].concat())
}

/// Runs that failed for good, their letters in the dead-letter queue.
async fn failed(world: &World, runs: i64) -> Vec<Uuid> {
    let mut failed = Vec::new();
    for _ in 0..runs {
        failed.push(world.dispatch("t.permanent", r#"{"msg":"no such account"}"#).await);
    }
    world.count_is("select count(*) from work.task_runs where status = 'failed'", runs).await;
    world.messages_are("default-dlq", runs).await;
    failed
}

#[tokio::test]
async fn letters_are_listed_and_only_listed_until_told_otherwise() {
    let world = World::new().await;
    let _workers = world.workers().await;
    let runs = failed(&world, 3).await;
    let listed = dlq(&world, &["show"]);
    for run in &runs {
        let line = listed.lines().find(|line| line.contains(&run.to_string())).unwrap_or_else(|| panic!("{listed}"));
        for part in ["default", "t.permanent", "NOT_FOUND", "no such account"] {
            assert!(line.contains(part), "{line}");
        }
    }
    assert!(listed.ends_with("3 dead letters\n"), "{listed}");
    let dry = dlq(&world, &["redrive", "--reason", "try", "--dry-run"]);
    assert!(dry.contains("3 dead letters match; nothing was done"), "{dry}");
    let dry = dlq(&world, &["purge", "--reason", "old"]);
    assert!(dry.contains("nothing was done") && dry.contains("--yes"), "{dry}");
    assert_eq!(world.count("select count(*) from work.task_runs where generation > 1").await, 0);
    world.messages_are("default-dlq", 3).await;
}

#[tokio::test]
async fn a_redrive_reopens_each_run_once_though_it_is_repeated_and_in_parallel() {
    let world = World::new().await;
    let workers = world.workers().await;
    let runs = failed(&world, 25).await;
    drop(workers);
    let again = std::thread::scope(|scope| {
        let commands = [0; 3].map(|_| scope.spawn(|| dlq(&world, &["redrive", "--reason", "the account is there now", "--rate", "1000"])));
        commands.map(|command| command.join().unwrap())
    });
    assert_eq!(world.count("select count(*) from work.task_runs where generation = 2 and status = 'queued'").await, 25, "{again:?}");
    assert_eq!(world.count("select count(*) from work.run_events where event = 'redriven'").await, 25);
    let acts =
        "select count(*) from work.actions where action = 'redrive' and actor = 'test_operator' and reason = 'the account is there now'";
    assert_eq!(world.count(acts).await, 25);
    let told = dlq(&world, &["redrive", "--reason", "again"]);
    assert!(told.starts_with("0 runs reopened"), "{told}");
    world.messages_are("default-dlq", 0).await;
    // They run, and fail again: a letter of the new generation each.
    let _workers = world.workers().await;
    world.messages_are("default-dlq", 25).await;
    assert_eq!(world.trail(runs[0]).await, ["started", "failed", "redriven", "started", "failed"]);
}

#[tokio::test]
async fn a_letter_that_came_back_by_another_way_first_is_thrown_away() {
    let world = World::new().await;
    let _workers = world.workers().await;
    let [run] = failed(&world, 1).await[..] else { panic!("one") };
    world.one("select work.retry($1, 'now')", &[&run]).await;
    world.messages_are("default-dlq", 2).await;
    let told = dlq(&world, &["redrive", "--reason", "both"]);
    assert!(told.contains("1 runs reopened, 0 unfinished ones sent again, 1 letters of finished"), "{told}");
    world.messages_are("default-dlq", 1).await;
    assert_eq!(world.one("select generation from work.task_runs where run_id = $1", &[&run]).await.get::<_, i32>(0), 3);
}

#[tokio::test]
async fn a_message_that_sqs_moved_by_itself_is_sent_again() {
    let world = World::new().await;
    let relay = world.start(&[RELAY, ("QUEUES", "maintenance")]).await;
    let run = world.dispatch("t.ok", "{}").await;
    world.messages_are("default", 1).await;
    // What SQS does after seven receives that nobody answered for.
    let (client, url) = (world.queues().await, world.sqs.queue_url("t-default"));
    wait_for("the move", async || {
        client.receive_message().queue_url(&url).visibility_timeout(0).send().await.unwrap();
        (world.messages("default-dlq").await.0 == 1).then_some(())
    })
    .await;
    let listed = dlq(&world, &["show"]);
    assert!(listed.contains("MOVED_BY_SQS") && listed.contains(&run.to_string()), "{listed}");
    let told = dlq(&world, &["redrive", "--reason", "a consumer of somebody else's"]);
    assert!(told.contains("1 unfinished ones sent again"), "{told}");
    world.messages_are("default-dlq", 0).await;
    let _workers = world.start(&[]).await;
    world.run_is(run, "succeeded").await;
    drop(relay);
}

#[tokio::test]
async fn filters_choose_and_what_is_not_ours_stays_until_it_is_purged() {
    let world = World::new().await;
    let _workers = world.workers().await;
    failed(&world, 2).await;
    world.send("bulk-dlq", "hello").await;
    world.send("default-dlq", &format!(r#"{{"runId":"{}","generation":1}}"#, Uuid::new_v4())).await;
    for (filter, matched) in [
        (&["--queue", "bulk"][..], 1),
        (&["--unit", "t.permanent"], 2),
        (&["--unit", "t.other"], 0),
        (&["--error", "NOT_FOUND"], 2),
        (&["--older-than", "1h"], 0),
        (&["--newer-than", "1h"], 4),
        (&["--limit", "3"], 3),
    ] {
        let listed = dlq(&world, &[&["show"], filter].concat());
        assert!(listed.ends_with(&format!("{matched} dead letters\n")), "{filter:?}: {listed}");
    }
    let told = dlq(&world, &["redrive", "--reason", "all", "--unit", ""]);
    assert!(told.contains("0 runs reopened") && told.contains("2 left"), "{told}");
    let told = dlq(&world, &["purge", "--reason", "nothing of ours", "--queue", "bulk", "--yes"]);
    assert!(told.contains("1 dead letters deleted"), "{told}");
    world.messages_are("bulk-dlq", 0).await;
    world.messages_are("default-dlq", 3).await;
    assert_eq!(
        world.count("select count(*) from work.actions where action = 'purge' and target = 'bulk' and detail->>'deleted' = '1'").await,
        1
    );
    for wrong in [&["redrive"][..], &["show", "--older-than", "soon"], &["show", "--queue", "urgent"], &["redrive", "--reason", " "]] {
        assert!(!run(&world, wrong).status.success() || wrong.len() == 3, "{wrong:?}");
    }
}
