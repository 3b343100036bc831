//! Configuration at boot: what cannot be used is refused by name, and no password is ever printed.

use std::{io::ErrorKind, process::ExitStatus};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::support::{World, redis_server::RedisServer};

/// Runs it to its end at the most talkative level; its exit and all it said.
pub async fn refused(world: &World, changes: &[(&str, &str)]) -> String {
    let mut all = vec![("RUST_LOG", "debug"), ("MONALISA_RELAY", "true")];
    all.extend(changes);
    let mut workers = world.spawn("test-workers", &all);
    let status: ExitStatus = workers.exit().await;
    let text = workers.all_lines().await.join("\n");
    assert_eq!(status.code(), Some(1), "{text}");
    assert!(!text.contains("Hunter2"), "a password is printed: {text}");
    text
}

async fn message(stream: &mut TcpStream, tagged: bool) -> std::io::Result<Vec<u8>> {
    if tagged {
        stream.read_u8().await?;
    }
    let length = stream.read_u32().await?;
    let mut body = vec![0; length as usize - 4];
    stream.read_exact(&mut body).await?;
    Ok(body)
}

/// A PostgreSQL that asks for the password in clear, refuses it, and tells which it was.
async fn asking_for_passwords() -> (u16, tokio::sync::mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (tell, told) = tokio::sync::mpsc::channel(10);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let talk = async {
                message(&mut stream, false).await?;
                stream.write_all(b"R\0\0\0\x08\0\0\0\x03").await?;
                let password = message(&mut stream, true).await?;
                let refusal = b"SFATAL\0VFATAL\0C28P01\0Mpassword authentication failed for user \"u\"\0\0";
                stream.write_u8(b'E').await?;
                stream.write_u32(refusal.len() as u32 + 4).await?;
                stream.write_all(refusal).await?;
                String::from_utf8(password).map_err(|error| std::io::Error::new(ErrorKind::InvalidData, error))
            };
            if let Ok(password) = talk.await {
                let _ = tell.send(password).await;
            }
        }
    });
    (port, told)
}

#[tokio::test]
async fn a_password_with_the_characters_of_urls_arrives_as_it_is() {
    let world = World::new().await;
    let (port, mut told) = asking_for_passwords().await;
    let url = format!("postgres://u:p%40s%3As%2Fw%3Fo%23r%25d@127.0.0.1:{port}/d?sslmode=disable");
    let text = refused(&world, &[("DATABASE_URL", &url)]).await;
    assert_eq!(told.recv().await.unwrap(), "p@s:s/w?o#r%d\0");
    assert!(!text.contains("p@s:s/w?o#r%d") && !text.contains("p%40s"), "{text}");
    assert!(text.contains("127.0.0.1") && text.contains("as u") && text.contains("28P01"), "{text}");

    let role = format!("odd_{}", uuid::Uuid::new_v4().simple());
    let make = format!("create role {role} login password 'p@s:s/w?o#r%d'; grant test_worker to {role}");
    world.db.batch_execute(&make).await.unwrap();
    let mut url = url::Url::parse(&world.url(Some(&role))).unwrap();
    url.set_password(Some("p@s:s/w?o#r%d")).unwrap();
    let workers = world.start(&[("DATABASE_URL", url.as_str().replace("%d", "%25d").as_str())]).await;
    drop(workers);
    world.db.batch_execute(&format!("drop owned by {role}; drop role {role}")).await.unwrap();
}

#[tokio::test]
async fn a_database_that_cannot_be_reached_is_named_by_host_and_user_only() {
    let world = World::new().await;
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let (asking, mut told) = asking_for_passwords().await;
    for (url, host) in [
        ("postgres://somebody:Hunter2@nowhere.invalid/d".to_owned(), "nowhere.invalid"),
        (format!("postgres://somebody:Hunter2@127.0.0.1:{closed}/d"), "127.0.0.1"),
        (format!("postgres://somebody:Hunter2%zz@127.0.0.1:{asking}/d?sslmode=disable"), "127.0.0.1"),
    ] {
        let text = refused(&world, &[("DATABASE_URL", &url)]).await;
        assert!(text.contains(host) && text.contains("somebody"), "{text}");
    }
    assert!(told.recv().await.unwrap().starts_with("Hunter2"), "the password was tried");
}

#[tokio::test]
async fn a_malformed_address_is_named_by_its_variable_and_not_quoted() {
    let world = World::new().await;
    for (name, value) in [
        ("DATABASE_URL", "postgres://u:Hunter2%zz@127.0.0.1:port/d"),
        ("DATABASE_URL", "postgres://u:Hun/ter2:Hunter2@h/d?sslmode=always"),
        ("DATABASE_URL", "postgres://u:12#Hunter2@h/d?sslmode=verify-full"),
        ("DATABASE_URL", "postgres://u:12?Hunter2=a@h/d"),
        ("DATABASE_URL", "postgres://u:a@b/Hunter2@h/d"),
        ("DATABASE_URL", "mysql://u:Hunter2@h/d"),
        ("DATABASE_URL", "postgres://u:Hunter2@h/d?unheard_of=1"),
        ("DATABASE_URL", "u:Hunter2@h"),
        ("DATABASE_URL", "host=h user=u password=Hunter2"),
        ("MONALISA_VALKEY_URL", "redis://:Hunter2@127.0.0.1:port/"),
        ("MONALISA_VALKEY_URL", "http://:Hunter2@h"),
        ("MONALISA_VALKEY_URL", ":Hunter2@h"),
        ("MONALISA_VALKEY_URL", "redis://u:12#Hunter2@h/"),
        ("MONALISA_VALKEY_URL", "redis://u:12?Hunter2@h/"),
        ("MONALISA_VALKEY_URL", "rediss://:Hunter2@h/#insecure"),
        ("MONALISA_SMTP_URL", "smtp://u:Hunter2@h:port"),
        ("MONALISA_SMTP_URL", "Hunter2"),
        ("MONALISA_SMTP_URL", "smtp://u:12#Hunter2@h"),
    ] {
        let text = refused(&world, &[(name, value), ("MONALISA_SMTP_FROM", "a@b.test")]).await;
        assert!(text.contains(name), "{name}={value}: {text}");
    }
}

#[tokio::test]
async fn a_wrong_password_of_valkey_is_an_error_line_without_it_and_the_work_goes_on() {
    let world = World::new().await;
    let redis = RedisServer::start(&["--requirepass", "another"]).await;
    let url = redis.url().replace("redis://", "redis://:Hunter2@");
    let workers = world.start(&[("MONALISA_RELAY", "true"), ("MONALISA_VALKEY_URL", &url), ("RUST_LOG", "debug")]).await;
    let line = workers.log("failed; trying again after a pause").await;
    assert_eq!(line["part"], "wake");
    let run = world.dispatch("t.ok", "{}").await;
    world.run_is(run, "succeeded").await;
    let text = workers.lines().join("\n");
    assert!(!text.contains("Hunter2"), "{text}");
}

#[tokio::test]
async fn missing_queues_are_named_and_nothing_starts() {
    let world = World::without_queues().await;
    let text = refused(&world, &[("MONALISA_RELAY", "false"), ("QUEUES", "critical,bulk")]).await;
    for name in ["t-critical", "t-critical-dlq", "t-bulk", "t-bulk-dlq", "workers queues create"] {
        assert!(text.contains(name), "{text}");
    }
    assert!(!text.contains("t-default"), "{text}");
    let text = refused(&world, &[("QUEUES", "critical")]).await;
    assert!(text.contains("t-maintenance"), "a relay sends to every queue: {text}");
}

#[tokio::test]
async fn a_pool_that_is_too_small_is_refused_with_both_numbers_and_the_smallest_one_starts() {
    let world = World::new().await;
    // t.platform alone is on this queue, with 3 at a time.
    let changes = [("QUEUES", "bulk"), ("MONALISA_CONCURRENCY", "t.platform=3")];
    let text = refused(&world, &[changes[0], changes[1], ("DATABASE_POOL_SIZE", "7")]).await;
    assert!(text.contains("DATABASE_POOL_SIZE is 7, but 8 connections are needed"), "{text}");
    let workers = world.start(&[changes[0], changes[1], ("DATABASE_POOL_SIZE", "8")]).await;
    assert_eq!(workers.log("ready").await["slots"], 3);
}

#[tokio::test]
async fn with_the_smallest_pool_nobody_waits_for_a_connection_in_vain() {
    let world = World::new().await;
    let changes = [("QUEUES", "default,maintenance"), ("MONALISA_RELAY", "true"), ("MONALISA_CONCURRENCY", "t.transient=4")];
    // Many handlers fail at one moment, beside sweeps, a purge and probes.
    world.db.batch_execute("select work.dispatch('t.transient', '{\"n\": 2}', 1) from generate_series(1, 40)").await.unwrap();
    world.db.batch_execute("select work.dispatch('maintenance.purge')").await.unwrap();
    let worker = world.start(&changes).await;
    world.count_is("select count(*) from work.task_runs where status = 'succeeded'", 41).await;
    let wrong: Vec<String> = worker.lines().into_iter().filter(|line| line.contains("no connection to PostgreSQL")).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(world.count("select sum(crashes + interruptions) from work.task_runs").await, 0);
}

#[tokio::test]
async fn a_name_that_is_not_ours_is_a_warning_with_the_nearest_one() {
    let world = World::new().await;
    let workers = world.start(&[("MONALISA_RELAI", "true")]).await;
    let line = workers.log("MONALISA_RELAI is not a variable of ours").await;
    assert_eq!(line["level"], "WARN");
    assert!(line["message"].as_str().unwrap().ends_with("did you mean MONALISA_RELAY?"), "{line}");
}

#[tokio::test]
async fn a_scheduler_in_the_process_is_refused_in_production() {
    let world = World::new().await;
    for name in ["NODE_ENV", "MONALISA_ENV"] {
        let text = refused(&world, &[("MONALISA_LOCAL_SCHEDULER", "true"), (name, "production")]).await;
        assert!(text.contains("MONALISA_LOCAL_SCHEDULER is for development and refused in production"), "{text}");
    }
}

#[tokio::test]
async fn every_problem_is_told_at_once() {
    let world = World::new().await;
    let changes = [
        ("DATABASE_URL", ""),
        ("QUEUES", "urgent"),
        ("MONALISA_RELAY", "yes"),
        ("MONALISA_SQS_WAIT_SECONDS", "0"),
        ("MONALISA_STOP_TIMEOUT_MS", "abc"),
        ("MONALISA_VISIBILITY_SECONDS", "critical=1"),
        ("MONALISA_SQS_ENDPOINT", "tcp://10.0.0.1:80"),
        ("MONALISA_CONCURRENCY", "t.unheard_of=2"),
        ("MONALISA_SMTP_URL", "nowhere"),
    ];
    let text = refused(&world, &changes).await;
    for (name, _) in changes {
        assert!(text.contains(name), "{name} is not named: {text}");
    }
    assert!(text.contains("service links"), "{text}");
}
