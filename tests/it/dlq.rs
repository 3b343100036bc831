//! `workers dlq`: dead letters are looked at, taken back and thrown away.

use std::process::Output;

use aws_sdk_sqs::{
    Client,
    types::{Message, QueueAttributeName},
};
use serde_json::Value;
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
    // Who throws it away sends its run again, and the next one is moved as well.
    let told = dlq(&world, &["purge", "--reason", "in the way", "--yes"]);
    assert!(told.contains("0 dead letters deleted") && told.contains("1 unfinished ones sent again"), "{told}");
    wait_for("the second move", async || {
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
    let ended = "select count(*) from work.actions where action = 'dlq purge ended' and target = 'bulk' and detail->>'deleted' = '1'";
    assert_eq!(world.count(ended).await, 1);
    for wrong in [&["redrive"][..], &["show", "--older-than", "soon"], &["show", "--queue", "urgent"], &["redrive", "--reason", " "]] {
        assert!(!run(&world, wrong).status.success() || wrong.len() == 3, "{wrong:?}");
    }
}

/// What the audit says of the commands, oldest first.
async fn audit(world: &World) -> Vec<(String, String, Value)> {
    let sql = "select action, actor || ': ' || reason || ': ' || target, detail from work.actions where action like 'dlq %' order by id";
    world.db.query(sql, &[]).await.unwrap().iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect()
}

#[tokio::test]
async fn a_command_that_is_killed_half_way_stands_in_the_audit() {
    let world = World::new().await;
    for number in 0..15 {
        world.send("bulk-dlq", &format!("not ours {number}")).await;
    }
    // The first ten are deleted, and the answer to the second delete never comes.
    world.sqs.fault(r#"{"op":"DeleteMessageBatch","mode":"never_answer","skip":1}"#).unwrap();
    let operator = world.url(Some("test_operator"));
    let arguments = ["dlq", "purge", "--queue", "bulk", "--newer-than", "1h", "--limit", "15", "--reason", "nothing of ours", "--yes"];
    let mut purge = world.spawn_with("workers", &arguments, &[("DATABASE_URL", &operator)]);
    wait_for("the second delete", async || (world.sqs.calls()["counts"]["DeleteMessageBatch"].as_u64() >= Some(2)).then_some(())).await;
    purge.kill();
    let (left, hidden) = world.messages("bulk-dlq").await;
    assert!(left + hidden < 15, "some are gone");
    let trace = audit(&world).await;
    let [(action, who, meant)] = &trace[..] else { panic!("{trace:?}") };
    assert_eq!((&**action, &**who), ("dlq purge", "test_operator: nothing of ours: bulk"));
    assert_eq!((&meant["newer_than_s"], &meant["limit"], meant.get("unit")), (&3_600.into(), &15.into(), None), "{meant}");

    // One that comes to its end says so, and tells the outcome; also where it ends with an error.
    world.sqs.clear_faults();
    world.sqs.fault(r#"{"op":"ReceiveMessage","mode":"error","status":403,"code":"AccessDenied"}"#).unwrap();
    assert!(!run(&world, &["redrive", "--queue", "default", "--reason", "all"]).status.success());
    world.sqs.clear_faults();
    world.send("maintenance-dlq", "not ours either").await;
    dlq(&world, &["purge", "--queue", "maintenance", "--reason", "really", "--yes"]);
    let trace = audit(&world).await;
    let actions: Vec<&str> = trace.iter().map(|(action, ..)| &**action).collect();
    assert_eq!(actions, ["dlq purge", "dlq redrive", "dlq redrive ended", "dlq purge", "dlq purge ended"]);
    assert_eq!((&trace[2].2["command"], &trace[4].2["command"]), (&trace[1].2["command"], &trace[3].2["command"]));
    assert!(trace[2].2["failed"].as_str().is_some_and(|error| error.contains("AccessDenied")), "{trace:?}");
    assert_eq!((&trace[4].2["deleted"], trace[4].2.get("failed")), (&1.into(), None), "{trace:?}");
}

#[tokio::test]
async fn a_command_without_a_reason_touches_no_letter() {
    let world = World::new().await;
    world.send("bulk-dlq", "not ours").await;
    for act in [&["purge", "--yes", "--reason", " "][..], &["redrive", "--reason", ""]] {
        let refused = run(&world, act);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && said.contains("REASON_MISSING"), "{act:?}: {said}");
        world.messages_are("bulk-dlq", 1).await;
    }
    assert_eq!(audit(&world).await, []);
}

/// Runs that have failed for want of a table that is there now, so that they would succeed; their letters are in the dead-letter queue.
async fn mended(world: &World, runs: i64) -> Vec<Uuid> {
    let mut failed = Vec::new();
    for _ in 0..runs {
        failed.push(world.dispatch("t.sql", r#"{"q":"insert into public.wanted values (1)"}"#).await);
    }
    world.count_is("select count(*) from work.task_runs where status = 'failed'", runs).await;
    world.messages_are("default-dlq", runs).await;
    // A worker that is killed now has nothing in hand any more.
    world.messages_are("default", 0).await;
    world.db.batch_execute("create table public.wanted (n int); grant insert on public.wanted to test_worker").await.unwrap();
    failed
}

/// Takes every letter out of the dead-letter queue, as the console does; the caller sends them on and deletes them.
async fn letters(world: &World, client: &Client, count: usize) -> Vec<Message> {
    let url = world.sqs.queue_url("t-default-dlq");
    let mut letters: Vec<Message> = Vec::new();
    wait_for("all letters", async || {
        let receive =
            client.receive_message().queue_url(&url).max_number_of_messages(10).visibility_timeout(300).message_attribute_names("All");
        letters.extend(receive.send().await.unwrap().messages.unwrap_or_default());
        (letters.len() >= count).then_some(())
    })
    .await;
    letters
}

async fn delete(world: &World, client: &Client, letter: &Message) {
    let url = world.sqs.queue_url("t-default-dlq");
    client.delete_message().queue_url(url).receipt_handle(letter.receipt_handle().unwrap()).send().await.unwrap();
}

/// Sends it on, with its attributes or without.
async fn forward(world: &World, client: &Client, letter: &Message, queue: &str, body: &str, attributes: bool) {
    let url = world.sqs.queue_url(&format!("t-{queue}"));
    let attributes = letter.message_attributes.clone().filter(|_| attributes);
    client.send_message().queue_url(url).message_body(body).set_message_attributes(attributes).send().await.unwrap();
}

/// The same JSON, pretty, its keys in the opposite order, and every letter of every text as an escape.
fn encoded_anew(body: &str) -> String {
    fn write(value: &Value, into: &mut String) {
        let text = |text: &str, into: &mut String| {
            let escaped: String = text.encode_utf16().map(|unit| format!("\\u{unit:04X}")).collect();
            into.push_str(&format!("\"{escaped}\""));
        };
        match value {
            Value::Object(fields) => {
                into.push_str(" {\r\n");
                for (place, (name, value)) in fields.iter().rev().enumerate() {
                    into.push_str(if place > 0 { " ,\n\t" } else { "" });
                    text(name, into);
                    into.push_str(" :\t");
                    write(value, into);
                }
                into.push_str("\n} \n");
            }
            Value::String(string) => text(string, into),
            other => into.push_str(&other.to_string()),
        }
    }
    let mut anew = String::new();
    write(&serde_json::from_str(body).unwrap(), &mut anew);
    anew
}

#[tokio::test]
async fn a_letter_moved_by_hand_in_any_form_reopens_its_run_once() {
    let world = World::new().await;
    let _workers = world.workers().await;
    let runs = mended(&world, 8).await;
    let client = world.queues().await;
    for (form, letter) in letters(&world, &client, 8).await.iter().enumerate() {
        let body = letter.body().unwrap();
        let anew = encoded_anew(body);
        assert!(!anew.contains("runId"), "{anew}");
        // Each of these is a message: to which queue, with which body, with attributes or without.
        let moves: &[(&str, &str, bool)] = match form {
            0 => &[("default", body, true)],
            1 => &[("default", body, false)],
            2 => &[("default", &anew, true)],
            3 => &[("default", &anew, false)],
            4 => &[("bulk", body, true)],
            5 => &[("default", body, true), ("default", body, true)],
            6 => &[("critical", body, true), ("maintenance", &anew, false)],
            _ => &[("default", body, false), ("bulk", body, true), ("default", &anew, true)],
        };
        for (queue, body, attributes) in moves {
            forward(&world, &client, letter, queue, body, *attributes).await;
        }
        delete(&world, &client, letter).await;
    }
    for run in &runs {
        world.run_is(*run, "succeeded").await;
    }
    for queue in ["critical", "default", "bulk", "maintenance", "default-dlq", "bulk-dlq"] {
        world.messages_are(queue, 0).await;
    }
    for run in runs {
        let trail = world.trail(run).await;
        assert_eq!(trail.iter().filter(|event| *event == "redriven").count(), 1, "{trail:?}");
        assert_eq!(trail[trail.len() - 3..], ["redriven", "started", "succeeded"]);
        assert_eq!(world.effects(run).await, 1);
    }
    assert_eq!(world.count("select count(*) from public.wanted").await, 8);
}

#[tokio::test]
async fn a_letter_moved_by_hand_after_its_run_went_on_otherwise_is_over() {
    let world = World::new().await;
    let workers = world.workers().await;
    let runs = mended(&world, 4).await;
    let client = world.queues().await;
    let letters = letters(&world, &client, 4).await;
    let [retried, cancelled, reopened, running] = runs[..] else { panic!("four") };
    drop(workers);
    // Each went on in another way: retried, retried and cancelled, reopened by a copy of the letter, retried and running.
    for run in [retried, cancelled, running] {
        world.one("select work.retry($1, 'the table is there')", &[&run]).await;
    }
    world.one("select work.cancel($1, 'not wanted any more')", &[&cancelled]).await;
    world.one("select work.redrive($1, 1, 'the table is there')", &[&reopened]).await;
    // Whoever would write into the table waits.
    world.db.batch_execute("begin; lock table public.wanted in exclusive mode").await.unwrap();
    let look = crate::support::connect(&world.url(None)).await;
    let _workers = world.workers().await;
    wait_for("three handlers to be in their statements", async || {
        let waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query like 'insert%'";
        (look.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0) == 3).then_some(())
    })
    .await;
    for letter in &letters {
        forward(&world, &client, letter, "default", letter.body().unwrap(), true).await;
        delete(&world, &client, letter).await;
    }
    // Those that are over are deleted though their runs go on: three messages are in hand, and no more are there.
    wait_for("the letters to be deleted", async || (world.messages("default").await == (0, 3)).then_some(())).await;
    world.db.batch_execute("commit").await.unwrap();
    for run in [retried, reopened, running] {
        world.run_is(run, "succeeded").await;
        assert_eq!(world.effects(run).await, 1);
    }
    world.messages_are("default", 0).await;
    world.run_is(cancelled, "cancelled").await;
    assert_eq!(world.count("select count(*) from work.task_runs where generation = 2").await, 4);
    assert_eq!(world.count("select count(*) from work.run_events where event = 'redriven'").await, 1);
    // And once more, now that all is over.
    for letter in &letters {
        forward(&world, &client, letter, "bulk", letter.body().unwrap(), true).await;
    }
    world.messages_are("bulk", 0).await;
    assert_eq!(world.count("select count(*) from work.task_runs where generation = 2").await, 4);
    assert_eq!(world.count("select count(*) from public.wanted").await, 3);
}

#[tokio::test]
async fn a_move_task_of_sqs_itself_reopens_each_run_once_while_workers_run() {
    let world = World::new().await;
    let _workers = world.workers().await;
    let runs = mended(&world, 12).await;
    let client = world.queues().await;
    let arn = async |queue: &str| {
        let url = world.sqs.queue_url(queue);
        let all = client.get_queue_attributes().queue_url(url).attribute_names(QueueAttributeName::QueueArn).send().await.unwrap();
        all.attributes.unwrap()[&QueueAttributeName::QueueArn].clone()
    };
    let (source, destination) = (arn("t-default-dlq").await, arn("t-default").await);
    client.start_message_move_task().source_arn(&source).destination_arn(destination).send().await.unwrap();
    wait_for("the task to end", async || {
        let tasks = client.list_message_move_tasks().source_arn(&source).send().await.unwrap();
        let task = tasks.results.unwrap_or_default().remove(0);
        assert_ne!(task.status.as_deref(), Some("FAILED"), "{task:?}");
        (task.status.as_deref() == Some("COMPLETED")).then_some(())
    })
    .await;
    for run in &runs {
        world.run_is(*run, "succeeded").await;
        assert_eq!(world.effects(*run).await, 1);
    }
    assert_eq!(world.count("select count(*) from work.run_events where event = 'redriven'").await, 12);
    for queue in ["default", "default-dlq"] {
        world.messages_are(queue, 0).await;
    }
}
