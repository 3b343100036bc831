//! `/healthz` and `/livez`, asked as a probe would.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use crate::support::{Process, RELAY, SHORT, World, connect, in_time, wait_for};

/// Status and body of a GET.
pub fn get(port: u16, path: &str) -> (u16, String) {
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
    in_time(began, Duration::from_secs(6));
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
    in_time(began, Duration::from_secs(5));
}

/// What `/healthz` says of a part, and the status.
fn part(port: u16, name: &str) -> (u16, bool, String) {
    let (status, body) = get(port, "/healthz");
    let report: serde_json::Value = serde_json::from_str(&body).expect("JSON");
    let part = &report["parts"][name];
    (status, part["ok"].as_bool().unwrap_or_else(|| panic!("no {name} in {body}")), part["error"].as_str().unwrap_or_default().to_owned())
}

/// Health turns bad and names this part with a reason, and is well again once the fault has ended. The process is alive all the time.
async fn turns_bad_and_back(world: &World, worker: &Process, name: &str, reason: &str, heal: impl FnOnce()) {
    let port = worker.health_port().await;
    assert_eq!(get(port, "/healthz").0, 200, "{name}");
    let (status, _, error) = wait_for(&format!("{name} to be bad"), async || Some(part(port, name)).filter(|(_, ok, _)| !ok)).await;
    assert_eq!((status, get(port, "/livez").0), (503, 200), "{name}");
    assert!(error.contains(reason), "{name}: {error:?}");
    let probes: Vec<_> = (0..50).map(|_| std::thread::spawn(move || get(port, "/healthz").0)).collect();
    assert!(probes.into_iter().all(|probe| probe.join().is_ok_and(|status| status == 503)), "many probes at once, each within a second");
    heal();
    wait_for(&format!("{name} to be well"), async || (get(port, "/healthz").0 == 200).then_some(())).await;
    world.nothing_is_open().await;
}

#[tokio::test]
async fn whatever_hangs_turns_health_within_its_bound_and_is_named_and_well_again_afterwards() {
    let default = ("QUEUES", "default");
    let brief = ("MONALISA_RELAY_SEND_TIMEOUT_MS", "1000");
    let fault = |world: &World, rule: &str| world.sqs.fault(rule).unwrap();
    let receives = async {
        let world = World::new().await;
        let worker = world.start(&[default]).await;
        wait_for("readiness", async || (get(worker.health_port().await, "/healthz").0 == 200).then_some(())).await;
        fault(&world, r#"{"op":"ReceiveMessage","mode":"never_answer"}"#);
        turns_bad_and_back(&world, &worker, "poller:default", "ReceiveMessage", || world.sqs.clear_faults()).await;
    };
    let database = async {
        let world = World::new().await;
        let proxy = world.pg_proxy().await;
        let worker = world.start(&[default, RELAY, brief, ("DATABASE_URL", &proxy.through(&world.url(Some("test_worker"))))]).await;
        wait_for("readiness", async || (get(worker.health_port().await, "/healthz").0 == 200).then_some(())).await;
        proxy.freeze();
        turns_bad_and_back(&world, &worker, "database", "", || proxy.thaw()).await;
    };
    let sends = async {
        let world = World::new().await;
        let worker = world.start(&[default, RELAY, brief]).await;
        wait_for("readiness", async || (get(worker.health_port().await, "/healthz").0 == 200).then_some(())).await;
        // What another queue takes meanwhile hides nothing.
        let api = connect(&world.url(None)).await;
        let others = tokio::spawn(async move {
            while api.execute("select work.dispatch('t.urgent', '{}', 1)", &[]).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        });
        fault(&world, r#"{"op":"SendMessageBatch","queue_contains":"t-default","mode":"error","status":500,"code":"InternalError"}"#);
        world.dispatch("t.ok", "{}").await;
        turns_bad_and_back(&world, &worker, "relay", "SendMessageBatch", || world.sqs.clear_faults()).await;
        others.abort();
    };
    let heartbeats = async {
        let world = World::new().await;
        let worker = world.start(&[default, RELAY, SHORT]).await;
        let run = world.dispatch("t.single", r#"{"s":50}"#).await;
        world.run_is(run, "running").await;
        wait_for("readiness", async || (get(worker.health_port().await, "/healthz").0 == 200).then_some(())).await;
        fault(&world, r#"{"op":"ChangeMessageVisibilityBatch","mode":"error","status":500,"code":"InternalError"}"#);
        turns_bad_and_back(&world, &worker, "heartbeat:default", "ChangeMessageVisibilityBatch", || world.sqs.clear_faults()).await;
    };
    tokio::join!(receives, database, sends, heartbeats);
}

#[tokio::test]
async fn a_scheduler_in_the_process_has_its_own_health() {
    let world = World::new().await;
    let proxy = world.pg_proxy().await;
    let url = proxy.through(&world.url(Some("test_worker")));
    let worker = world.start(&[("QUEUES", "bulk"), ("MONALISA_LOCAL_SCHEDULER", "true"), ("DATABASE_URL", &url)]).await;
    let port = worker.health_port().await;
    wait_for("readiness", async || (get(port, "/healthz").0 == 200).then_some(())).await;
    proxy.freeze();
    turns_bad_and_back(&world, &worker, "scheduler", "", || proxy.thaw()).await;
}

#[tokio::test]
async fn each_loop_of_the_relay_has_its_own_health() {
    let world = World::new().await;
    // Room for a connection a queue.
    let worker = world.start(&[("QUEUES", "bulk"), RELAY, ("MONALISA_CONCURRENCY", "t.platform=1"), ("DATABASE_POOL_SIZE", "10")]).await;
    let port = worker.health_port().await;
    wait_for("readiness", async || (get(port, "/healthz").0 == 200).then_some(())).await;
    for queue in ["critical", "default", "bulk", "maintenance"] {
        assert!(part(port, &format!("relay:{queue}")).1);
    }
}
