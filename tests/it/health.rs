//! `/healthz` and `/livez`, asked as a probe would.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use crate::support::{World, wait_for};

/// Status and body of a GET.
fn get(port: u16, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer within a second");
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    (status, answer.split("\r\n\r\n").nth(1).unwrap_or_default().to_owned())
}

#[tokio::test]
async fn readiness_names_each_part_and_ends_with_the_drain() {
    let world = World::new().await;
    let mut worker = world.start(&[("MONALISA_RELAY", "true"), ("QUEUES", "default")]).await;
    let port = worker.health_port().await;
    let ready = wait_for("readiness", async || Some(get(port, "/healthz")).filter(|(status, _)| *status == 200)).await;
    let report: serde_json::Value = serde_json::from_str(&ready.1).expect("JSON");
    let parts: Vec<&String> = report["parts"].as_object().unwrap().keys().collect();
    assert_eq!(parts, ["database", "heartbeat:default", "poller:default", "relay"]);
    assert_eq!(get(port, "/livez").0, 200);

    // One connection that stays open holds up neither the probes nor the stop.
    let mut idle = TcpStream::connect(("127.0.0.1", port)).unwrap();
    idle.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let run = world.dispatch("t.sleep", r#"{"s":2}"#).await;
    world.run_is(run, "running").await;
    worker.signal("TERM");
    worker.log("stopping").await;
    assert_eq!((get(port, "/healthz").0, get(port, "/livez").0), (503, 200));
    let began = Instant::now();
    assert!(worker.exit().await.success());
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
    world.run_is(run, "succeeded").await;
}

#[tokio::test]
async fn a_database_that_does_not_answer_turns_no_probe_slow() {
    let world = World::new().await;
    let worker = world.start(&[("QUEUES", "default")]).await;
    let port = worker.health_port().await;
    for _ in 0..8 {
        world.dispatch("t.sql", r#"{"q":"select pg_sleep(2)"}"#).await;
    }
    let began = Instant::now();
    for _ in 0..50 {
        get(port, "/healthz");
    }
    assert!(began.elapsed() < Duration::from_secs(5));
}
