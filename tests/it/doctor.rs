//! Boot checks, and `workers doctor`, which makes them too and says what of the work does not move.

use aws_sdk_sqs::types::QueueAttributeName;

use crate::{
    config::refused,
    support::{RELAY, World, connect, wait_for},
};

const MAIL: [(&str, &str); 2] = [("MONALISA_SMTP_URL", "smtp://127.0.0.1:25"), ("MONALISA_SMTP_FROM", "no-reply@example.org")];

/// Runs the doctor; whether it found all that is needed, and what it said.
fn doctor(world: &World) -> (bool, String) {
    doctor_with(world, &[])
}

/// The same with other variables.
fn doctor_with(world: &World, changes: &[(&str, &str)]) -> (bool, String) {
    let done = world.command_with("test-workers", &["doctor"], &[&[RELAY], &MAIL[..], changes].concat());
    (done.status.success(), String::from_utf8(done.stdout).unwrap())
}

async fn set(world: &World, queue: &str, name: QueueAttributeName, value: &str) {
    let url = world.sqs.queue_url(&format!("t-{queue}"));
    world.queues().await.set_queue_attributes().queue_url(url).attributes(name, value).send().await.expect("set");
}

async fn arn(world: &World, queue: &str) -> String {
    let url = world.sqs.queue_url(&format!("t-{queue}"));
    let all =
        world.queues().await.get_queue_attributes().queue_url(url).attribute_names(QueueAttributeName::QueueArn).send().await.unwrap();
    all.attributes.unwrap()[&QueueAttributeName::QueueArn].clone()
}

#[tokio::test]
async fn where_all_is_well_the_doctor_says_so() {
    let world = World::new().await;
    let _workers = world.workers().await;
    let run = world.dispatch("t.ok", "{}").await;
    world.run_is(run, "succeeded").await;
    world.db.batch_execute("update work.units set schedule_anchor = clock_timestamp() where schedule is not null").await.unwrap();
    let (well, said) = doctor(&world);
    assert!(well, "{said}");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 9, "{said}");
    assert!(lines.iter().all(|line| line.starts_with("ok ")), "{said}");
}

#[tokio::test]
async fn schedules_that_nobody_fires_or_that_cannot_be_read_are_named() {
    let world = World::new().await;
    world
        .db
        .batch_execute(
            "update work.units set schedule_anchor = clock_timestamp() where schedule is not null;
             update work.units set schedule_anchor = clock_timestamp() - interval '20 minutes 30 seconds', schedule = 'rate(1 hour)' where name = 't.tick';
             update work.units set schedule = 'cron(0 9 * * 1)' where name = 't.nightly'",
        )
        .await
        .unwrap();
    let (well, said) = doctor(&world);
    assert!(well && said.contains("schedules: t.tick was due 20 minutes ago, and nothing has fired it"), "{said}");
    assert!(
        said.contains("workers schedule fire --due") && said.contains("schedules: t.nightly") && said.contains("cron(0 9 ? * 2 *)"),
        "{said}"
    );
    assert!(!said.contains("t.tock") && !said.contains("maintenance.purge was due"), "{said}");
    assert!(world.command("test-workers", &["schedule", "fire", "t.tick"]).status.success());
    assert!(!doctor(&world).1.contains("t.tick was due"));
}

#[tokio::test]
async fn queues_that_do_not_fit_are_all_told_at_once_with_the_mend() {
    let world = World::new().await;
    let policy = |arn: &str, receives: i32| format!(r#"{{"deadLetterTargetArn":"{arn}","maxReceiveCount":{receives}}}"#);
    let letters = arn(&world, "default-dlq").await;
    set(&world, "default", QueueAttributeName::RedrivePolicy, &policy(&letters, 3)).await;
    set(&world, "bulk", QueueAttributeName::MaximumMessageSize, "1024").await;
    set(&world, "critical", QueueAttributeName::RedrivePolicy, &policy(&letters, 7)).await;
    set(&world, "critical", QueueAttributeName::VisibilityTimeout, "7").await;
    set(&world, "maintenance-dlq", QueueAttributeName::MessageRetentionPeriod, "3600").await;
    let url = world.sqs.queue_url("t-bulk-dlq");
    world.queues().await.delete_queue().queue_url(url).send().await.unwrap();
    let fatal = [
        "t-default moves messages to the dead-letter queue after 3 receives",
        "t-bulk takes messages of at most 1024",
        "t-bulk-dlq does not exist",
    ];
    let text = refused(&world, &[]).await;
    for what in fatal {
        assert!(text.contains(what), "{what}: {text}");
    }
    let (well, said) = doctor(&world);
    assert!(!well);
    let warnings =
        ["t-critical hides messages for 7 s", "default-dlq, which is not its dead-letter queue", "its dead-letter queue for 1 h"];
    for what in fatal.iter().chain(&warnings) {
        assert!(said.contains(what), "{what}: {said}");
    }
    // The mend mends, all but what a queue's size is.
    assert!(world.command("workers", &["queues", "create"]).status.success());
    set(&world, "bulk", QueueAttributeName::MaximumMessageSize, "1048576").await;
    assert!(doctor(&world).0, "{}", doctor(&world).1);
}

#[tokio::test]
async fn a_role_that_may_not_have_the_connections_is_refused_with_both_numbers() {
    let world = World::new().await;
    let role = format!("narrow_{}", uuid::Uuid::new_v4().simple());
    world.db.batch_execute(&format!("create role {role} login connection limit 6; grant monalisa_worker to {role}")).await.unwrap();
    let url = world.url(Some(&role));
    let changes = [("DATABASE_URL", url.as_str()), ("QUEUES", "bulk"), ("MONALISA_CONCURRENCY", "t.platform=4")];
    let text = refused(&world, &changes).await;
    assert!(text.contains("may have 6 connections and this process opens up to 10"), "{text}");
    for way_out in [
        &*format!("alter role {role} connection limit 10"),
        "lower MONALISA_CONCURRENCY",
        "DATABASE_POOL_SIZE, which is 10 here, to at most 6",
    ] {
        assert!(text.contains(way_out), "{way_out}: {text}");
    }
    world.db.batch_execute(&format!("alter role {role} connection limit 10")).await.unwrap();
    let worker = world.start(&changes).await;
    drop(worker);
    wait_for("its sessions to end", async || world.db.batch_execute(&format!("drop role {role}")).await.ok()).await;
}

#[tokio::test]
async fn what_does_not_move_is_named() {
    let world = World::new().await;
    // Work that no relay carries, and a row that SQS refuses.
    world
        .db
        .batch_execute(
            "select work.dispatch('t.ok', '{}', 1) from generate_series(1, 3);
             update work.outbox_messages set available_at = available_at - interval '10 minutes';
             update work.task_runs set available_at = available_at - interval '10 minutes';
             update work.outbox_messages set attempts = 12 where id = (select min(id) from work.outbox_messages)",
        )
        .await
        .unwrap();
    world.send("bulk-dlq", "hello").await;
    let (well, said) = doctor(&world);
    assert!(well, "nothing keeps a process from starting: {said}");
    for what in [
        "3 rows of work.outbox_messages for the queue default are due, the oldest for 6",
        "was not taken by SQS 12 times",
        "work of the queue default waits for 6",
        "a worker last came that far never",
        "about 1 dead letters of the queue bulk",
    ] {
        assert!(said.contains(what), "{what}: {said}");
    }
    // Sent, and lost by SQS: the queue was served past them.
    world
        .db
        .batch_execute(
            "update work.outbox_messages set sent_at = clock_timestamp() - interval '9 minutes', attempts = 0;
             update work.queue_seen set seen_until = clock_timestamp()",
        )
        .await
        .unwrap();
    let (_, said) = doctor(&world);
    assert!(said.contains("3 unfinished runs of the queue default have no message"), "{said}");
    assert_eq!(world.count("select count(*) from work.task_runs where repairs > 0").await, 0, "it changes nothing");
}

#[tokio::test]
async fn whatever_the_boot_would_refuse_or_warn_of_is_said_with_the_mend() {
    let world = World::new().await;
    let nobody = "127.0.0.1:9";
    let api = world.url(Some("test_api"));
    let away = format!("postgres://postgres@{nobody}/monalisa");
    let sqs = format!("http://{nobody}");
    for (changes, well, what, mend) in [
        (&[("MONALISA_SMTP_URL", ""), ("MONALISA_SMTP_FROM", "")][..], true, "no mail server is configured", "set MONALISA_SMTP_URL"),
        (&[("MONALISA_RELAI", "true")], true, "MONALISA_RELAI", "correct it or take it away"),
        (&[("DATABASE_URL", &api)], false, "the role in DATABASE_URL may not work here", "grant monalisa_worker to it"),
        (&[("DATABASE_URL", &away)], false, "PROBLEM  database: ", "check DATABASE_URL, its role, and the server"),
        (&[("MONALISA_SQS_ENDPOINT", &sqs)], false, "PROBLEM  queues: ", "check MONALISA_SQS_ENDPOINT"),
        (&[("MONALISA_VALKEY_URL", "redis://127.0.0.1:9/")], true, "warning  valkey: ", "check MONALISA_VALKEY_URL"),
    ] {
        let (found, said) = doctor_with(&world, changes);
        assert!(found == well && said.contains(what) && said.contains(mend), "{changes:?}: {said}");
        // One thing that is wrong hides no other.
        assert!(["environment", "database", "queues", "valkey"].iter().all(|what| said.contains(&format!(" {what}"))), "{said}");
    }
    for (change, well, what, mend) in [
        (
            "update work.schema_history set version = version + 100",
            true,
            "newer than this program: version 102, and 2 here",
            "deploy the program",
        ),
        ("update work.catalogues set hash = 'another'", true, "not those that the database holds", "run workers migrate"),
        (
            "delete from work.schema_history where version = 101; update work.schema_history set version = 0",
            false,
            "the schema is at version 0",
            "workers migrate",
        ),
        ("drop schema work cascade", false, "has no schema `work` yet", "workers migrate"),
    ] {
        world.db.batch_execute(change).await.unwrap();
        let (found, said) = doctor(&world);
        assert!(found == well && said.contains(what) && said.contains(mend), "{change}: {said}");
    }
    let refused = world.command_with("test-workers", &["doctor"], &[("QUEUES", "urgent"), ("MONALISA_SQS_WAIT_SECONDS", "99")]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && said.contains("QUEUES") && said.contains("MONALISA_SQS_WAIT_SECONDS"), "{said}");
}

#[tokio::test]
async fn a_server_that_takes_no_writes_is_named() {
    let world = World::new().await;
    let name: String = world.one("select current_database()::text", &[]).await.get(0);
    world.db.batch_execute(&format!("alter database {name} set default_transaction_read_only = on")).await.unwrap();
    let (well, said) = doctor(&world);
    assert!(well && said.contains("takes no writes here") && said.contains("the address of the primary"), "{said}");
}

/// The fenced blocks of a language in the page for ops.
fn blocks(language: &str) -> Vec<String> {
    let page = include_str!("../../docs/when-something-is-wrong.md");
    let blocks = page.split("```").skip(1).step_by(2);
    blocks.filter_map(|block| block.strip_prefix(language)?.strip_prefix('\n')).map(str::to_owned).collect()
}

#[tokio::test]
async fn every_command_and_query_of_the_page_for_ops_works() {
    let world = World::new().await;
    let workers = world.workers().await;
    world.dispatch("t.permanent", r#"{"msg":"no such account"}"#).await;
    world.dispatch("t.permanent", r#"{"msg":"no such account"}"#).await;
    world.messages_are("default-dlq", 2).await;
    drop(workers);
    world.dispatch("t.ok", "{}").await;
    let operator = connect(&world.url(Some("test_operator"))).await;
    let of = async |status: &str| {
        world.one("select run_id from work.task_runs where status = $1 limit 1", &[&status]).await.get::<_, uuid::Uuid>(0)
    };
    let (queued, failed) = (of("queued").await, of("failed").await);
    for query in blocks("sql") {
        let query =
            query.replace("cancel('<run id>'", &format!("cancel('{queued}'")).replace("retry('<run id>'", &format!("retry('{failed}'"));
        operator.batch_execute(&query).await.unwrap_or_else(|error| panic!("{query}: {error:?}"));
    }
    assert_eq!(world.count("select count(*) from work.run_events where event in ('cancelled', 'retried')").await, 2);
    let commands = blocks("sh").concat();
    assert!(commands.lines().count() >= 5);
    for command in commands.lines() {
        // A shell reads it as a person's would.
        let words = std::process::Command::new("bash").args(["-c", &format!("printf '%s\\n' {command}")]).output().unwrap();
        let words = String::from_utf8(words.stdout).unwrap();
        let (program, arguments) = words.split_once('\n').unwrap();
        let role = if arguments.starts_with("dlq") { "test_operator" } else { "test_worker" };
        let url = world.url(Some(role));
        let done = world.command_with(program, &arguments.lines().collect::<Vec<_>>(), &[RELAY, ("DATABASE_URL", &url)]);
        assert!(done.status.success(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
    }
    // One was retried by hand, its letter thrown away; the other reopened by the redrive.
    assert_eq!(
        world.count("select count(*) from work.task_runs where unit = 't.permanent' and status = 'queued' and generation = 2").await,
        2
    );
    world.messages_are("default-dlq", 0).await;
}
