//! Every failure ends: at once, at the fifth attempt, or with a reason; what it says can be stored, sent and shown.

use monalisa::sql::runs;
use uuid::Uuid;

use crate::support::{Process, RELAY, World, checks::Counters, wait_for};

async fn sql(world: &World, q: &str) -> Uuid {
    world.one("select work.dispatch('t.sql', jsonb_build_object('q', $1::text), 1)", &[&q]).await.get(0)
}

/// Five attempts, the last of them final, and one dead letter.
async fn failed_at_the_fifth(world: &World, run: Uuid) {
    world.run_is(run, "failed").await;
    let trail = world.trail(run).await;
    assert_eq!(trail[..8].iter().filter(|event| *event == "retrying").count(), 4, "{trail:?}");
    assert_eq!(trail[8..], ["started", "failed"]);
    assert_eq!(world.counters(run).await, Counters { failures: 5, ..Counters::default() });
    assert_eq!(world.effects(run).await, 0);
    world.messages_are("default", 0).await;
    world.messages_are("default-dlq", 1).await;
    world.nothing_is_open().await;
}

#[tokio::test]
async fn a_handler_is_called_exactly_five_times() {
    let world = World::new().await;
    let _workers = world.workers().await;
    let run = sql(&world, "select nextval('public.calls'); select 1/0").await;
    failed_at_the_fifth(&world, run).await;
    assert_eq!(world.count("select last_value from public.calls").await, 5);
}

#[tokio::test]
async fn without_receive_counts_a_run_ends_all_the_same_and_the_log_says_so() {
    let world = World::new().await;
    world.sqs.fault(r#"{"op":"ReceiveMessage","mode":"omit_attributes"}"#).unwrap();
    let workers = world.workers().await;
    let run = sql(&world, "select nextval('public.calls'); select 1/0").await;
    failed_at_the_fifth(&world, run).await;
    assert_eq!(world.count("select last_value from public.calls").await, 5);
    let good = world.dispatch("t.ok", "{}").await;
    world.ended_well(good, &["started", "succeeded"]).await;
    world.send("default", &format!(r#"{{"runId":"{}","generation":1}}"#, Uuid::new_v4())).await;
    world.messages_are("default-dlq", 2).await;
    world.messages_are("default", 0).await;
    workers.log("SQS gave no ApproximateReceiveCount").await;
    // Five attempts, their dead letter, the good one, and the message that no run stands behind.
    assert_eq!(world.messages_sent(), 8);
}

#[tokio::test]
async fn an_error_text_of_any_length_and_with_any_character_is_kept_and_sent() {
    let world = World::new().await;
    let _workers = world.workers().await;
    for end in ["long", "odd", "panic"] {
        let permanent = end != "panic";
        let payload = format!(r#"{{"end":"{end}","permanent":{permanent}}}"#);
        let run = world.dispatch("t.noisy", &payload).await;
        world.run_is(run, "failed").await;
        let error = world.last_error(run).await;
        assert!(error.len() < 4_200 && !error.contains('\u{1}'), "{} bytes", error.len());
        assert_eq!(error.ends_with("… (cut)"), end == "long", "{end}");
        assert_eq!(world.effects(run).await, 0);
    }
    world.messages_are("default-dlq", 3).await;
    world.messages_are("default", 0).await;
    for letter in world.dead_letters("default").await {
        let body: serde_json::Value = serde_json::from_str(letter.body().unwrap()).unwrap();
        let text = letter.message_attributes().unwrap()["text"].string_value().unwrap();
        assert!(text.contains('é') || text.contains("b\u{fffd}c"), "{text}");
        assert!(!body["deadLetter"]["text"].as_str().unwrap().is_empty());
    }
    assert_eq!(world.count("select count(*) from work.task_runs where failures = 1").await, 2, "a permanent one is called once");
}

#[tokio::test]
async fn a_payload_that_does_not_fit_names_the_field_and_calls_no_handler() {
    let world = World::new().await;
    let _workers = world.workers().await;
    let run = world.dispatch("t.sql", r#"{"q":"select nextval('public.calls')","s":"long"}"#).await;
    world.run_is(run, "failed").await;
    assert_eq!(world.trail(run).await, ["started", "failed"]);
    assert_eq!(world.last_error(run).await, "PAYLOAD_UNDECODABLE: the payload does not fit at s: expected f64");
    assert_eq!(world.count("select is_called::int::bigint from public.calls").await, 0);
    world.messages_are("default-dlq", 1).await;
}

#[tokio::test]
async fn a_dead_letter_queue_that_refuses_for_a_while_gets_its_letter_and_no_handler_runs_again() {
    let world = World::new().await;
    let _workers = world.workers().await;
    world.sqs.fault(r#"{"op":"SendMessageBatch","queue_contains":"dlq","mode":"error","status":500}"#).unwrap();
    let run = world.dispatch("t.permanent", r#"{"msg":"no such account"}"#).await;
    world.run_is(run, "failed").await;
    let pending = "select coalesce(max(attempts), 0)::bigint from work.outbox_messages where sent_at is null and envelope ? 'deadLetter'";
    wait_for("some refusals", async || (world.count(pending).await >= 3).then_some(())).await;
    world.messages_are("default", 0).await;
    // Everything else goes on.
    let other = world.dispatch("t.ok", "{}").await;
    world.ended_well(other, &["started", "succeeded"]).await;
    world.sqs.clear_faults();
    world.messages_are("default-dlq", 1).await;
    assert_eq!(world.trail(run).await, ["started", "failed"]);
    assert_eq!(world.count("select starts::bigint from work.task_runs where status = 'failed'").await, 1);
}

#[tokio::test]
async fn serialization_failures_and_deadlocks_are_tried_again() {
    let world = World::new().await;
    world.db.batch_execute("create table public.pairs (i int primary key, n int default 0); insert into public.pairs values (1), (2); grant select, update on public.pairs to test_worker").await.unwrap();
    let _workers = world.workers().await;
    let raised = "do $$ begin if nextval('public.calls') = 1 then raise exception 'try again' using errcode = '40001'; end if; end $$";
    let run = sql(&world, raised).await;
    world.ended_well(run, &["started", "retrying", "started", "succeeded"]).await;
    assert!(world.last_error(run).await.starts_with("SQL_40001: "));
    let lock = |one: i32, other: i32| {
        format!(
            "update public.pairs set n = n + 1 where i = {one}; select pg_sleep(1); update public.pairs set n = n + 1 where i = {other}"
        )
    };
    let runs = [sql(&world, &lock(1, 2)).await, sql(&world, &lock(2, 1)).await];
    let mut failures = 0;
    for run in runs {
        world.run_is(run, "succeeded").await;
        assert_eq!(world.effects(run).await, 1);
        failures += world.counters(run).await.failures;
    }
    assert!(failures >= 1, "there was a deadlock");
    assert_eq!(world.count("select count(*) from public.pairs where n = 2").await, 2, "each effect is there once");
}

#[tokio::test]
async fn deferrals_of_an_unknown_unit_grow_and_the_sixth_fails() {
    let world = World::new().await;
    let run = world.dispatch("t.ok", "{}").await;
    let mut delays = Vec::new();
    for _ in 0..6 {
        delays.push(world.one(runs::DEFER.text, &[&run, &"w"]).await.get::<_, Option<f64>>("delay_s"));
        world.db.batch_execute("update work.task_runs set available_at = clock_timestamp()").await.unwrap();
    }
    assert_eq!(delays, [Some(15.0), Some(60.0), Some(240.0), Some(900.0), Some(3_600.0), None]);
    assert_eq!(world.trail(run).await, ["deferred", "deferred", "deferred", "deferred", "deferred", "failed"]);
    assert_eq!(world.counters(run).await, Counters { deferrals: 5, ..Counters::default() });
    assert!(world.last_error(run).await.starts_with("UNIT_NOT_REGISTERED: "));
}

async fn says_nothing(process: &Process, secret: &str) {
    for line in process.all_lines().await {
        assert!(!line.contains(secret), "{line}");
    }
}

#[tokio::test]
async fn no_payload_and_no_detail_of_an_error_stands_in_a_log_or_in_the_ledger() {
    let world = World::new().await;
    world.db.batch_execute("create table public.cards (card text primary key); insert into public.cards values ('SECRET-4111'); grant insert on public.cards to test_worker").await.unwrap();
    let mut workers = world.workers().await;
    let twice = "insert into public.cards values (reverse('1114-TERCES'))";
    world
        .db
        .execute("select work.dispatch('t.sql', jsonb_build_object('q', $1::text, 'card', 'SECRET-4111'), 1)", &[&twice])
        .await
        .unwrap();
    // The message of the first quotes the value, and the panic its error with the row in it.
    let unreadable = r#"{"q":"select reverse('1114-TERCES')::int"}"#;
    let stored = r#"{"q":"insert into public.cards values (reverse('1114-TERCES'))","panic":true}"#;
    for (unit, payload) in [
        ("t.sql", unreadable),
        ("t.sql", stored),
        ("t.permanent", r#"{"msg":"no","card":"SECRET-4111"}"#),
        ("t.panic", r#"{"card":"SECRET-4111"}"#),
        ("t.sleep", r#"{"s":"SECRET-4111"}"#),
    ] {
        world.dispatch(unit, payload).await;
    }
    world.count_is("select count(*) from work.task_runs where status = 'failed'", 6).await;
    world.messages_are("default-dlq", 6).await;
    let told = "select count(*) from work.task_runs where last_error like any (array['%type integer: \"…\"%', 'PANIC: it is stored: …'])";
    assert_eq!(world.count(told).await, 2, "what is no value is told");
    workers.stop().await;
    says_nothing(&workers, "SECRET-4111").await;
    let unknown = world.spawn("workers", &[RELAY]);
    world.dispatch("t.ok", r#"{"card":"SECRET-4111"}"#).await;
    unknown.log("this process does not know the unit").await;
    says_nothing(&unknown, "SECRET-4111").await;
    let kept = "select count(*) from work.task_runs r where to_jsonb(r) - 'payload' @? '$.** ? (@ like_regex \"SECRET\")'
                   or exists (select from work.run_events e where e.run_id = r.run_id and e::text like '%SECRET%')";
    assert_eq!(world.count(kept).await, 0);
}
