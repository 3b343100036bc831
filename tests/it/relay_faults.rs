//! The relay while PostgreSQL fails it, and when it is killed: nothing is lost, nothing is sent twice without cause.

use std::time::Duration;

use crate::support::{Process, Proxy, RELAY_ALONE, SOON, World, wait_for};

/// A relay whose sessions run through a proxy.
async fn behind(world: &World, proxy: &Proxy) -> Process {
    world.start(&[RELAY_ALONE, &[("DATABASE_URL", &proxy.through(&world.url(Some("test_worker"))))]].concat()).await
}

/// Dispatches ten runs in one transaction.
async fn ten(world: &World) {
    world.db.batch_execute("select work.dispatch('t.ok', '{}', 1) from generate_series(1, 10)").await.unwrap();
}

async fn held(proxy: &Proxy, answers: u64) {
    wait_for("an answer to be held", async || (proxy.held() == answers).then_some(())).await;
}

/// Whether the relay has begun a transaction and does nothing in it.
async fn has_begun(world: &World) -> bool {
    let begun = "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'monalisa relay'
                  and state = 'idle in transaction' and query ilike 'start%'";
    for _ in 0..3 {
        if world.count(begun).await == 0 {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    true
}

/// Starts workers and expects one effect of each run, whatever was sent twice.
async fn each_runs_once(world: &World, runs: i64) {
    // A copy that is received while its run is held comes back when the lease would end.
    let _workers = world.start(&[("MONALISA_RELAY", "true"), ("MONALISA_VISIBILITY_SECONDS", "default=6")]).await;
    world.count_is("select count(*) from work.task_runs where status = 'succeeded'", runs).await;
    for queue in ["default", "default-dlq"] {
        world.messages_are(queue, 0).await;
    }
    assert_eq!(world.count("select count(*) from public.effects").await, runs);
    assert_eq!(world.count("select count(*) from work.run_events").await, 2 * runs, "one start and one success each");
}

#[tokio::test]
async fn a_lost_answer_to_the_commit_of_a_pass_sends_nothing_twice() {
    let (world, proxy) = {
        let world = World::new().await;
        let proxy = world.pg_proxy().await;
        (world, proxy)
    };
    let relay = behind(&world, &proxy).await;
    proxy.swallow_answer_to("COMMIT");
    ten(&world).await;
    world.sent_within(10, SOON).await;
    ten(&world).await;
    world.sent_within(20, SOON).await;
    assert_eq!((proxy.swallowed(), world.messages_sent()), (1, 20));
    let lines = relay.lines();
    assert_eq!(lines.iter().filter(|line| line.contains("\"ERROR\"")).count(), 1, "{lines:#?}");
    assert_eq!(world.count("select count(*) from work.outbox_messages where attempts > 0").await, 0);
}

#[tokio::test]
async fn a_relay_killed_between_send_and_commit_costs_copies_and_no_effect() {
    let world = World::new().await;
    let proxy = world.pg_proxy().await;
    let mut relay = behind(&world, &proxy).await;
    proxy.hold_answer_to("outbox/mark_sent");
    ten(&world).await;
    held(&proxy, 1).await;
    assert_eq!(world.messages("default").await, (10, 0), "SQS has taken the batch");
    relay.kill();
    each_runs_once(&world, 10).await;
    assert_eq!(world.messages_sent(), 20, "each was sent twice at most");
    assert_eq!(world.count("select count(*) from work.outbox_messages where attempts > 0").await, 0, "a killed pass counts nothing");
}

#[tokio::test]
async fn a_relay_killed_at_any_statement_loses_nothing() {
    let world = World::new().await;
    let proxy = world.pg_proxy().await;
    let points = ["outbox/due", "START TRANSACTION", "outbox/claim", "outbox/mark_sent", "COMMIT"];
    let (mut rows, mut answers, mut again) = (0, 0, 10);
    for point in points {
        let mut relay = behind(&world, &proxy).await;
        loop {
            proxy.hold_answer_to(point);
            ten(&world).await;
            (rows, answers) = (rows + 10, answers + 1);
            held(&proxy, answers).await;
            if point != "START TRANSACTION" || has_begun(&world).await {
                break;
            }
            // Repair, which the same process does, began a transaction before the relay.
            proxy.release();
            world.sent_within(rows, SOON).await;
        }
        relay.kill();
        proxy.release();
        let sessions = "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'monalisa relay'";
        world.count_is(sessions, 0).await;
        let sent = world.count("select count(*) from work.outbox_messages where sent_at is not null").await;
        assert!(sent == rows - 10 || point == "COMMIT" && sent == rows, "{point}: {sent} of {rows}");
        // What was held was a commit of the repair, and the relay may have sent meanwhile.
        again += if point == "COMMIT" && sent < rows { 10 } else { 0 };
        // The next life of it takes up what was left.
        let _next = world.start(RELAY_ALONE).await;
        world.sent_within(rows, SOON).await;
    }
    let sent = world.messages_sent() as i64 - rows;
    assert!((10..=again).contains(&sent), "{sent} were sent again: only what was killed between send and commit is");
}

#[tokio::test]
async fn a_relay_killed_while_sqs_fails_keeps_the_count_of_its_tries() {
    let world = World::new().await;
    world.sqs.fault(r#"{"op":"SendMessageBatch","mode":"error","status":500,"code":"InternalError"}"#).unwrap();
    let run = world.dispatch("t.ok", "{}").await;
    let mut relay = world.start(RELAY_ALONE).await;
    world.count_is("select attempts::int8 from work.outbox_messages", 3).await;
    world.sqs.clear_faults();
    world.sqs.fault(r#"{"op":"SendMessageBatch","mode":"delay","delay_ms":3000}"#).unwrap();
    let calls = world.messages_sent();
    wait_for("the next send", async || (world.messages_sent() > calls).then_some(())).await;
    relay.kill();
    assert!(world.count("select attempts::int8 from work.outbox_messages where sent_at is null").await >= 3);
    let idle = "select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in transaction%'";
    world.count_is(idle, 0).await;
    world.sqs.clear_faults();
    let _workers = world.workers().await;
    world.run_is(run, "succeeded").await;
    assert_eq!(world.effects(run).await, 1);
}

#[tokio::test]
async fn a_frozen_postgresql_is_waited_for() {
    let world = World::new().await;
    let proxy = world.pg_proxy().await;
    let relay = behind(&world, &proxy).await;
    ten(&world).await;
    world.sent_within(10, SOON).await;
    let cost = relay.cost();
    proxy.freeze();
    ten(&world).await;
    tokio::time::sleep(Duration::from_secs(7)).await;
    cost.is_small();
    proxy.thaw();
    world.sent_within(20, SOON).await;
    assert_eq!(world.messages_sent(), 20);
}

#[tokio::test]
async fn sessions_that_freeze_and_are_cut_are_replaced() {
    let world = World::new().await;
    let proxy = world.pg_proxy().await;
    let relay = behind(&world, &proxy).await;
    let cost = relay.cost();
    proxy.freeze();
    ten(&world).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    proxy.cut().await;
    // New sessions hear nothing either.
    tokio::time::sleep(Duration::from_secs(6)).await;
    cost.is_small();
    proxy.thaw();
    world.sent_within(10, SOON).await;
    assert_eq!(world.messages_sent(), 10);
}

#[tokio::test]
async fn a_postgresql_that_is_gone_is_tried_with_pauses() {
    let world = World::new().await;
    let proxy = world.pg_proxy().await;
    let relay = behind(&world, &proxy).await;
    proxy.hold_answer_to("outbox/claim");
    ten(&world).await;
    held(&proxy, 1).await;
    let (cost, connections) = (relay.cost(), proxy.connections());
    proxy.refuse().await;
    proxy.cut().await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    cost.is_small();
    proxy.accept().await;
    world.sent_within(10, SOON).await;
    assert_eq!(world.messages_sent(), 10);
    assert!(proxy.connections() - connections < 8, "{}", proxy.connections() - connections);
}

#[tokio::test]
async fn terminated_sessions_are_replaced() {
    let world = World::new().await;
    let relay = world.start(RELAY_ALONE).await;
    let cost = relay.cost();
    let terminate =
        "select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = current_database() and usename = 'test_worker'";
    for _ in 0..10 {
        ten(&world).await;
        world.count(terminate).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    cost.is_small();
    world.sent_within(100, SOON).await;
    // At worst each of the ten times ends a pass that held everything until then, between its send and its commit.
    assert!(world.messages_sent() <= 100 + 10 * 100, "{} messages", world.messages_sent());
    each_runs_once(&world, 100).await;
}

#[tokio::test]
async fn a_server_that_was_read_only_for_a_while_is_written_to_again() {
    let world = World::new().await;
    let relay = world.start(RELAY_ALONE).await;
    let name = world.one("select current_database()::text", &[]).await.get::<_, String>(0);
    let terminate =
        "select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = current_database() and usename = 'test_worker'";
    ten(&world).await;
    world.sent_within(10, SOON).await;
    let cost = relay.cost();
    world.db.batch_execute(&format!("alter database {name} set default_transaction_read_only = on")).await.unwrap();
    world.count(terminate).await;
    ten(&world).await;
    tokio::time::sleep(Duration::from_secs(6)).await;
    cost.is_small();
    assert!(relay.lines().iter().any(|line| line.contains("25006")), "{:#?}", relay.lines());
    // The sessions of the time in between stay read-only: as those of a server that was demoted.
    world
        .db
        .batch_execute(&format!("set default_transaction_read_only = off; alter database {name} reset default_transaction_read_only"))
        .await
        .unwrap();
    world.sent_within(20, SOON).await;
    assert_eq!(world.messages_sent(), 20);
}

#[tokio::test]
async fn the_time_zone_and_the_isolation_level_of_the_role_change_nothing() {
    let world = World::new().await;
    let name = world.one("select current_database()::text", &[]).await.get::<_, String>(0);
    let sql = format!(
        "alter role test_worker in database {name} set timezone = 'Asia/Tokyo';
         alter role test_worker in database {name} set default_transaction_isolation = 'serializable';
         alter role test_worker in database {name} set datestyle = 'SQL, DMY'"
    );
    world.db.batch_execute(&sql).await.unwrap();
    let _relay = world.start(&[RELAY_ALONE, &[("MONALISA_RELAY_BATCH", "3")]].concat()).await;
    let later = "select work.dispatch('t.ok', '{}', 1, delay => '2 seconds')";
    world.db.batch_execute(later).await.unwrap();
    for _ in 0..4 {
        ten(&world).await;
    }
    world.sent_within(41, SOON).await;
    // In another time zone it would be hours.
    let early = "select count(*) from work.outbox_messages where sent_at < available_at or sent_at > available_at + interval '1 minute'";
    assert_eq!((world.count(early).await, world.messages_sent()), (0, 41));
    world.db.batch_execute(&format!("alter role test_worker in database {name} reset all")).await.unwrap();
}

#[tokio::test]
async fn a_look_at_everything_that_takes_too_long_is_put_off_and_what_became_due_lately_goes_out() {
    let world = World::new().await;
    let proxy = world.pg_proxy().await;
    let [old, new] = [world.dispatch("t.ok", "{}").await, world.dispatch("t.ok", "{}").await];
    world.db.execute("update work.outbox_messages set available_at = now() - interval '1 day' where run_id = $1", &[&old]).await.unwrap();
    // The first look of a process is at everything.
    proxy.hold_answer_to("-- outbox/due");
    let _relay = behind(&world, &proxy).await;
    held(&proxy, 1).await;
    let sent =
        async |run| world.one("select sent_at is not null from work.outbox_messages where run_id = $1", &[run]).await.get::<_, bool>(0);
    wait_for("the new one to go out", async || sent(&new).await.then_some(())).await;
    assert!(!sent(&old).await, "everything is looked at again soon enough");
    wait_for("the old one to go out", async || sent(&old).await.then_some(())).await;
}
