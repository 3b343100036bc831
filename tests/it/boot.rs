//! Before a process is ready: what hangs is given up, a signal is heard, and an odd environment is told or does no harm.

use std::{
    ffi::OsString,
    net::{TcpListener, TcpStream},
    os::unix::ffi::OsStringExt,
    process::Command,
    time::{Duration, Instant},
};

use crate::support::{World, binary, in_time, redis_server::free_port, wait_for};

#[tokio::test]
async fn a_database_that_falls_silent_after_the_login_is_given_up_and_a_process_that_waits_for_it_can_be_stopped() {
    let world = World::new().await;
    let proxy = world.pg_proxy().await;
    let database = ("DATABASE_URL", proxy.through(&world.url(Some("test_worker"))));
    let database = [(database.0, database.1.as_str())];
    // A pooler that is paused, or a server that is frozen: one statement, then another.
    for statement in ["set session characteristics", "-- ops/connections"] {
        proxy.hold_answer_to(statement);
        let began = Instant::now();
        let said = world.command_with("workers", &["doctor"], &database);
        in_time(began, Duration::from_secs(20));
        assert_eq!(said.status.code(), Some(1), "{statement}");
        let told = String::from_utf8_lossy(&said.stdout).into_owned();
        assert!(told.contains("no answer in"), "{statement}: {told}");
        proxy.release();
    }

    let before = proxy.held();
    proxy.hold_answer_to("-- ops/connections");
    let port = free_port().to_string();
    let mut process = world.spawn("test-workers", &[database[0], ("MONALISA_HEALTH_PORT", &port)]);
    wait_for("the boot to wait for PostgreSQL", async || (proxy.held() > before).then_some(())).await;
    assert!(TcpStream::connect(format!("127.0.0.1:{port}")).is_ok(), "probes are answered meanwhile");
    process.signal("TERM");
    let began = Instant::now();
    assert!(process.exit().await.success());
    in_time(began, Duration::from_secs(3));
    proxy.release();
}

#[tokio::test]
async fn an_address_that_answers_nothing_does_not_hide_the_next_one() {
    let world = World::new().await;
    let full = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = full.local_addr().unwrap();
    // Whoever comes after these is not answered at all.
    let waiting = |_: &i32| TcpStream::connect_timeout(&address, Duration::from_millis(200)).ok();
    let waiting: Vec<TcpStream> = (0..10_000).map(|number| waiting(&number)).take_while(Option::is_some).flatten().collect();
    let mut url = url::Url::parse(&world.url(Some("test_worker"))).unwrap();
    let port = url.port().unwrap();
    url.set_port(Some(address.port())).unwrap();
    url.query_pairs_mut().append_pair("host", "127.0.0.1").append_pair("port", &port.to_string());
    let worker = world.start(&[("DATABASE_URL", url.as_str()), ("MONALISA_RELAY", "true")]).await;
    let run = world.dispatch("t.ok", "{}").await;
    world.run_is(run, "succeeded").await;
    drop((worker, waiting));
}

#[tokio::test]
async fn variables_that_are_not_ours_may_hold_anything_and_ours_are_named() {
    let world = World::new().await;
    let odd = || OsString::from_vec(vec![b'a', 0xff, b'b']);
    let migrate = |name: &str| {
        let mut command = Command::new(binary("workers"));
        command.arg("migrate").env_clear().envs(world.environment()).env("DATABASE_URL", world.url(None)).env(name, odd());
        command.output().unwrap()
    };
    assert!(migrate("SOMEBODY_ELSES").status.success());
    let refused = migrate("DATABASE_URL");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!((refused.status.code(), said.contains("DATABASE_URL is not UTF-8 text")), (Some(1), true), "{said}");

    // An empty filter is none, and one that cannot be read is told.
    let worker = world.start(&[("RUST_LOG", " ")]).await;
    drop(worker);
    let worker = world.start(&[("RUST_LOG", "info,,foo=bar=baz")]).await;
    assert_eq!(worker.log("RUST_LOG cannot be read").await["level"], "WARN");
}

#[tokio::test]
async fn a_database_that_cannot_hold_every_text_is_refused() {
    let world = World::without_queues().await;
    let name = format!("latin_{}", uuid::Uuid::new_v4().simple());
    let make = format!("create database {name} template template0 encoding 'LATIN1' locale 'C'");
    world.db.batch_execute(&make).await.unwrap();
    let mut url = url::Url::parse(&world.url(None)).unwrap();
    url.set_path(&name);
    let refused = world.command_with("workers", &["migrate"], &[("DATABASE_URL", url.as_str())]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("LATIN1") && said.contains("UTF8"), "{said}");
    world.db.batch_execute(&format!("drop database {name}")).await.unwrap();
}
