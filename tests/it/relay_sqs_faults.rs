//! The relay while SQS fails it: tries are few and counted, the log is short, and it works again soon after.

use std::time::{Duration, Instant};

use crate::support::{AT_ONCE, Proxy, RELAY_ALONE, SOON, World, in_time, stretched, wait_for};

async fn three(world: &World) {
    world.db.batch_execute("select work.dispatch('t.ok', '{}', 1) from generate_series(1, 3)").await.unwrap();
}

/// The times of the sends to a queue so far, in milliseconds.
fn sends(world: &World, queue: &str) -> Vec<u64> {
    let calls = world.sqs.calls();
    let calls = calls["calls"].as_array().unwrap().iter();
    let calls = calls.filter(|call| call["action"] == "SendMessageBatch" && call["queue"] == format!("t-{queue}"));
    calls.map(|call| call["at_ms"].as_u64().unwrap()).collect()
}

/// Most calls within any second.
fn most_in_a_second(times: &[u64]) -> usize {
    times.iter().map(|from| times.iter().filter(|at| (*from..from + 1_000).contains(*at)).count()).max().unwrap_or(0)
}

/// Rows wait while this rule stands, at a small cost, and go out soon after.
async fn weathers(rule: &str) -> World {
    let world = World::new().await;
    let relay = world.start(RELAY_ALONE).await;
    three(&world).await;
    world.sent_within(3, SOON).await;
    world.sqs.forget_calls();
    let cost = relay.cost();
    world.sqs.fault(rule).unwrap();
    three(&world).await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    // A second wave changes nothing: its queue is left alone.
    three(&world).await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    cost.is_small();
    let tries = sends(&world, "default");
    assert!(most_in_a_second(&tries) <= 2, "{rule}: sends at {tries:?}");
    assert_eq!(world.count("select count(*) from work.outbox_messages where sent_at is not null").await, 3);
    assert!(world.count("select max(attempts)::int8 from work.outbox_messages").await >= 1, "{rule}: tries are counted");
    world.sqs.clear_faults();
    world.sent_within(9, SOON).await;
    world
}

#[tokio::test]
async fn a_refusal_an_error_and_a_throttle_are_weathered() {
    let rules = [
        r#"{"op":"SendMessageBatch","mode":"error","status":403,"code":"AccessDenied"}"#,
        r#"{"op":"SendMessageBatch","mode":"error","status":500,"code":"InternalError"}"#,
        r#"{"op":"SendMessageBatch","mode":"throttle"}"#,
        r#"{"op":"SendMessageBatch","mode":"drop_request"}"#,
    ];
    let worlds = futures_util::future::join_all(rules.map(weathers)).await;
    for world in worlds {
        world.messages_are("default", 9).await;
    }
}

#[tokio::test]
async fn an_sqs_that_never_answers_is_weathered() {
    let world = weathers(r#"{"op":"SendMessageBatch","mode":"never_answer"}"#).await;
    world.messages_are("default", 9).await;
}

#[tokio::test]
async fn lost_answers_cost_copies_and_no_effect() {
    let world = weathers(r#"{"op":"SendMessageBatch","mode":"lost_answer"}"#).await;
    let copies = world.messages_sent();
    assert!(copies <= 6 + 3 * 8, "{copies} messages");
    // A copy that is received while its run is held comes back when the lease would end.
    let _workers = world.start(&[("MONALISA_RELAY", "true"), ("MONALISA_VISIBILITY_SECONDS", "default=6")]).await;
    world.count_is("select count(*) from work.task_runs where status = 'succeeded'", 9).await;
    world.messages_are("default", 0).await;
    assert_eq!(world.count("select count(*) from public.effects").await, 9);
}

#[tokio::test]
async fn an_endpoint_that_refuses_connections_is_weathered() {
    let world = World::new().await;
    let proxy = Proxy::to(&world.sqs.endpoint()).await;
    let relay = world
        .start(&[RELAY_ALONE, &[("MONALISA_SQS_ENDPOINT", proxy.through(&world.sqs.endpoint()).trim_end_matches('/'))]].concat())
        .await;
    let cost = relay.cost();
    proxy.refuse().await;
    proxy.cut().await;
    three(&world).await;
    world
        .db
        .batch_execute("update work.outbox_messages set attempts = 2147483647 where id = (select min(id) from work.outbox_messages)")
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_secs(8)).await;
    cost.is_small();
    proxy.accept().await;
    world.sent_within(3, SOON).await;
    assert_eq!(world.count("select max(attempts)::int8 from work.outbox_messages").await, 2_147_483_647, "the count stays at its top");
    assert_eq!(world.messages_sent(), 3);
}

#[tokio::test]
async fn a_slow_sqs_is_not_taken_for_a_dead_one() {
    let world = World::new().await;
    world.sqs.fault(r#"{"op":"SendMessageBatch","mode":"error","status":500,"times":1}"#).unwrap();
    // Slower than the first probe waits, within what a send may take.
    world.sqs.fault(r#"{"op":"SendMessageBatch","mode":"delay","delay_ms":1200}"#).unwrap();
    let _relay = world.start(RELAY_ALONE).await;
    three(&world).await;
    world.sent_within(3, Duration::from_secs(15)).await;
    assert_eq!(world.messages("default").await.0, 4, "one copy, of the probe that no pass waited for");
}

#[tokio::test]
async fn probes_of_a_hung_queue_cost_the_others_half_a_second() {
    let world = World::new().await;
    world.sqs.fault(r#"{"op":"SendMessageBatch","queue_contains":"t-bulk","mode":"never_answer"}"#).unwrap();
    let relay = world.start(RELAY_ALONE).await;
    world.db.batch_execute("select work.dispatch('t.platform')").await.unwrap();
    relay.log("sending failed").await;
    let (mut sent, mut longest) = (0, Duration::ZERO);
    let probes = || sends(&world, "bulk").len();
    while probes() < 3 {
        let began = Instant::now();
        world.dispatch("t.urgent", "{}").await;
        sent += 1;
        world.count_is("select count(*) from work.outbox_messages where sent_at is not null", sent).await;
        longest = longest.max(began.elapsed());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(longest < stretched(Duration::from_secs(3)), "{longest:?}");
}

#[tokio::test]
async fn a_queue_that_is_deleted_and_made_again_is_used_again() {
    let world = World::new().await;
    let relay = world.start(RELAY_ALONE).await;
    let cost = relay.cost();
    world.queues().await.delete_queue().queue_url(world.sqs.queue_url("t-default")).send().await.unwrap();
    three(&world).await;
    world.dispatch("t.urgent", "{}").await;
    world.sent_within(1, AT_ONCE).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    cost.is_small();
    assert!(most_in_a_second(&sends(&world, "default")) <= 2);
    assert!(world.command("workers", &["queues", "create"]).status.success());
    world.sent_within(4, SOON).await;
    world.messages_are("default", 3).await;
}

/// Rows by hand, due for a minute.
async fn by_hand(world: &World, rows: i32, envelope: &str) {
    let sql = "insert into work.outbox_messages (tenant_id, run_id, queue, envelope, available_at)
               select 1, gen_random_uuid(), 'default', $2::text::jsonb, clock_timestamp() - interval '1 minute' from generate_series(1, $1)";
    world.db.execute(sql, &[&rows, &envelope]).await.unwrap();
}

#[tokio::test]
async fn rows_over_the_limit_of_a_message_in_numbers_hold_up_no_other() {
    let world = World::new().await;
    by_hand(&world, 25, &format!(r#"{{"x":"{}"}}"#, "y".repeat(1_100_000))).await;
    let relay = world.start(&[RELAY_ALONE, &[("MONALISA_RELAY_BATCH", "10")]].concat()).await;
    let cost = relay.cost();
    world.db.batch_execute("select work.dispatch('t.ok', '{}', 1) from generate_series(1, 20)").await.unwrap();
    world.sent_within(20, SOON).await;
    world.count_is("select count(*) from work.outbox_messages where sent_at is null and attempts >= 2", 25).await;
    cost.is_quiet();
    world.dispatch("t.ok", "{}").await;
    world.sent_within(21, AT_ONCE).await;
    assert!(world.messages_sent() <= 21, "what is too large is not sent in vain");
}

#[tokio::test]
async fn rows_for_which_a_whole_call_is_refused_hold_up_no_other() {
    let world = World::new().await;
    let rule = r#"{"op":"SendMessageBatch","body_contains":"odd","mode":"error","status":400,"code":"InvalidMessageContents"}"#;
    world.sqs.fault(rule).unwrap();
    by_hand(&world, 25, r#"{"x":"odd"}"#).await;
    let relay = world.start(&[RELAY_ALONE, &[("MONALISA_RELAY_BATCH", "10")]].concat()).await;
    let cost = relay.cost();
    world.db.batch_execute("select work.dispatch('t.ok', '{}', 1) from generate_series(1, 20)").await.unwrap();
    world.sent_within(20, SOON).await;
    world.count_is("select count(*) from work.outbox_messages where sent_at is null and attempts >= 2", 25).await;
    cost.is_quiet();
    world.dispatch("t.ok", "{}").await;
    world.sent_within(21, AT_ONCE).await;
    world.sqs.clear_faults();
    world.sent_within(46, Duration::from_secs(61)).await;
}

#[tokio::test]
async fn refused_rows_in_numbers_hold_up_no_other_and_wakes_do_not_hurry_them() {
    let world = World::new().await;
    world.sqs.fault(r#"{"op":"SendMessageBatch","mode":"fail_entries","entry_contains":"t.permanent"}"#).unwrap();
    world.db.batch_execute("select work.dispatch('t.permanent', '{\"msg\":\"x\"}', 1) from generate_series(1, 25)").await.unwrap();
    let relay = world.start(&[RELAY_ALONE, &[("MONALISA_RELAY_BATCH", "20")]].concat()).await;
    let cost = relay.cost();
    wait_for("the first refusal", async || (!sends(&world, "default").is_empty()).then_some(())).await;
    for _ in 0..20 {
        world.dispatch("t.ok", "{}").await;
    }
    world.sent_within(20, SOON).await;
    let client = monalisa::Client::new(Some(world.redis_url())).unwrap();
    let tries = "select coalesce(sum(attempts), 0)::int8 from work.outbox_messages";
    for _ in 0..60 {
        client.wake().await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // In 6 s a row is tried at 0, 0.5, 1.5, 3.5 s, or at half of these pauses.
    assert!(world.count(tries).await <= 25 * 6, "{} tries", world.count(tries).await);
    let began = Instant::now();
    world.dispatch("t.ok", "{}").await;
    world.sent_within(21, AT_ONCE).await;
    in_time(began, AT_ONCE);
    cost.is_small();
    world.sqs.clear_faults();
    world.count_is("select count(*) from work.outbox_messages where sent_at is null", 0).await;
}

#[tokio::test]
async fn entries_in_neither_list_and_in_both_are_sent_again_and_no_other() {
    let world = World::new().await;
    for rule in [
        r#"{"op":"SendMessageBatch","mode":"omit_entries","entries":[1,2],"times":1}"#,
        r#"{"op":"SendMessageBatch","mode":"omit_entries","entries":[0],"times":1,"queued_anyway":true}"#,
        r#"{"op":"SendMessageBatch","mode":"double_entries","entries":[0],"times":1}"#,
    ] {
        world.sqs.fault(rule).unwrap();
    }
    world.db.batch_execute("select work.dispatch('t.ok', '{}', 1) from generate_series(1, 5)").await.unwrap();
    let _relay = world.start(RELAY_ALONE).await;
    world.sent_within(5, SOON).await;
    // Five; the two that were left out; one of these whose answer was left out; the one that was in both lists.
    assert_eq!(world.messages_sent(), 9);
    world.messages_are("default", 7).await;
    assert_eq!(world.count("select sum(attempts)::int8 from work.outbox_messages").await, 4, "each counts as a failed try");
}
