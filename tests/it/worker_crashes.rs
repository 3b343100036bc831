//! kill -9 at every point where an attempt waits.

use crate::support::{Process, Proxy, RELAY_ALONE, World, wait_for};

const SHORT: (&str, &str) = ("MONALISA_VISIBILITY_SECONDS", "default=2");
const DEFAULT: (&str, &str) = ("QUEUES", "default");

async fn behind(world: &World, proxy: &Proxy) -> Process {
    world.start(&[SHORT, DEFAULT, ("DATABASE_URL", &proxy.through(&world.url(Some("test_worker"))))]).await
}

#[tokio::test]
async fn a_worker_killed_at_any_statement_loses_nothing() {
    let world = World::new().await;
    let proxy = world.pg_proxy().await;
    let _relay = world.start(RELAY_ALONE).await;
    let once = vec!["started", "succeeded"];
    let lost = vec!["started", "lost", "started", "succeeded"];
    let retried = vec!["started", "retrying", "started", "succeeded"];
    let cases = [
        ("runs/judge:", "t.ok", &once),
        ("runs/start:", "t.ok", &lost),
        ("runs/open_effect:", "t.ok", &lost),
        ("insert into public.effects", "t.ok", &lost),
        ("runs/succeed:", "t.ok", &lost),
        ("commit", "t.ok", &once),
        ("runs/fail:", "t.transient", &lost),
        ("COMMIT", "t.transient", &retried),
    ];
    for (held, (statement, unit, trail)) in (1..).zip(cases) {
        let mut worker = behind(&world, &proxy).await;
        if statement.eq_ignore_ascii_case("commit") {
            proxy.hold_answer_to_just(statement);
        } else {
            proxy.hold_answer_to(statement);
        }
        let run = world.dispatch(unit, r#"{"n":1}"#).await;
        wait_for(statement, async || (proxy.held() == held).then_some(())).await;
        worker.kill();
        proxy.release();
        let mut other = world.start(&[SHORT, DEFAULT]).await;
        world.ended_well(run, trail).await;
        let counters = world.counters(run).await;
        let count = |name: &str| trail.iter().filter(|event| **event == name).count() as i32;
        assert_eq!((counters.failures, counters.crashes), (count("retrying"), count("lost")), "{statement}");
        assert!(other.stop().await.success());
    }
    world.exactly_once(8).await;
}

#[tokio::test]
async fn a_worker_killed_before_its_delete_leaves_a_message_that_is_over() {
    let world = World::new().await;
    let _relay = world.start(RELAY_ALONE).await;
    let mut worker = world.start(&[SHORT, DEFAULT]).await;
    world.sqs.fault(r#"{"op":"DeleteMessageBatch","mode":"never_answer"}"#).unwrap();
    let run = world.dispatch("t.ok", "{}").await;
    let asked = || world.sqs.calls()["counts"]["DeleteMessageBatch"].as_u64().unwrap_or(0);
    wait_for("the delete", async || (asked() > 0).then_some(())).await;
    worker.kill();
    world.sqs.clear_faults();
    let _other = world.start(&[SHORT, DEFAULT]).await;
    world.ended_well(run, &["started", "succeeded"]).await;
    world.exactly_once(1).await;
}
