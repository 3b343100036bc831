//! What operators do to runs: cancel and retry, in every state, beside workers and relays that are in the middle of something.

use std::time::{Duration, Instant};

use tokio_postgres::Client;
use uuid::Uuid;

use crate::support::{RELAY, SHORT, World, checks::UNFINISHED, connect, in_time, refusal, wait_for};

const PENDING: &str = "select (select count(*) from work.outbox_messages where sent_at is null)
                            + (select count(*) from work.platform_outbox_messages where sent_at is null)";

/// A session of an operator, who may call the functions and write no table.
async fn operator(world: &World) -> Client {
    connect(&world.url(Some("test_operator"))).await
}

async fn cancel(client: &Client, run: Uuid) -> Result<String, tokio_postgres::Error> {
    Ok(client.query_one("select work.cancel($1, 'the customer left')", &[&run]).await?.get(0))
}

async fn retry(client: &Client, run: Uuid) -> Result<String, tokio_postgres::Error> {
    Ok(client.query_one("select work.retry($1, 'the disk is larger now')", &[&run]).await?.get(0))
}

/// Puts a run into a state by hand, with what the checks ask for.
async fn put(world: &World, run: Uuid, status: &str) {
    world
        .db
        .batch_execute(&format!(
            "set session_replication_role = replica;
             update work.task_runs set status = '{status}',
                    token = case '{status}' when 'running' then gen_random_uuid() end,
                    lease_expires_at = case '{status}' when 'running' then clock_timestamp() + interval '1 hour' end,
                    started_at = clock_timestamp(), worker = 'w', failures = 1,
                    finished_at = case when '{status}' in ('queued', 'running', 'retrying') then null else clock_timestamp() end
              where run_id = '{run}';
             set session_replication_role = origin"
        ))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_cancel_acts_in_every_unfinished_state_and_changes_no_finished_run() {
    let world = World::without_queues().await;
    let operator = operator(&world).await;
    for (status, becomes, trail) in [
        ("queued", "cancelled", &["cancelled"] as &[&str]),
        ("retrying", "cancelled", &["cancelled"]),
        ("running", "cancelled", &["started", "cancelled"]),
        ("succeeded", "succeeded", &[]),
        ("failed", "failed", &[]),
        ("cancelled", "cancelled", &[]),
        ("skipped", "skipped", &[]),
    ] {
        for unit in ["t.ok", "t.platform"] {
            let tenant = (unit == "t.ok").then_some(1_i64);
            let run: Uuid = world.one("select work.dispatch($1, tenant_id => $2)", &[&unit, &tenant]).await.get(0);
            put(&world, run, status).await;
            assert_eq!(cancel(&operator, run).await.unwrap(), becomes, "{status}");
            world.run_is(run, becomes).await;
            assert_eq!(world.trail(run).await, trail, "{status}");
            // A finished run keeps what is pending: its dead letter.
            assert_eq!(world.count(PENDING).await, i64::from(trail.is_empty()), "{status}");
            world.db.batch_execute("delete from work.outbox_messages; delete from work.platform_outbox_messages").await.unwrap();
            let sql = "select actor, action, reason, detail ->> 'was' from work.actions where target = $1::uuid::text";
            let act = world.one(sql, &[&run]).await;
            let act: [&str; 4] = [act.get(0), act.get(1), act.get(2), act.get(3)];
            assert_eq!(act, ["test_operator", "cancel", "the customer left", status]);
        }
    }
    let detail: String =
        world.one("select detail::text from work.run_events where event = 'cancelled' order by id limit 1", &[]).await.get(0);
    assert_eq!(detail, r#"{"by": "test_operator", "was": "queued", "reason": "the customer left"}"#);
}

#[tokio::test]
async fn a_retry_opens_a_new_generation_of_a_failed_or_cancelled_run_and_refuses_any_other() {
    let world = World::without_queues().await;
    let operator = operator(&world).await;
    for status in ["queued", "running", "retrying", "succeeded", "failed", "cancelled", "skipped"] {
        let run = world.dispatch("t.ok", "{}").await;
        put(&world, run, status).await;
        let retried = retry(&operator, run).await;
        let sql = "select generation, failures, crashes, available_at > started_at as anew,
                          (select envelope ->> 'generation' from work.outbox_messages o where o.run_id = r.run_id and o.sent_at is null) as sent
                     from work.task_runs r where run_id = $1";
        let row = world.one(sql, &[&run]).await;
        let (generation, failures): (i32, i32) = (row.get("generation"), row.get("failures"));
        if matches!(status, "failed" | "cancelled") {
            assert_eq!(retried.unwrap(), "queued");
            assert_eq!((generation, failures, row.get("anew"), row.get("sent")), (2, 0, true, Some("2")), "{status}");
            assert_eq!(world.trail(run).await, ["retried"]);
            let act = world.one("select actor, action from work.actions where target = $1::uuid::text", &[&run]).await;
            assert_eq!((act.get(0), act.get(1)), ("test_operator", "retry"));
        } else {
            let refused = refusal(retried);
            assert_eq!((refused.code().code(), refused.message()), ("ML019", &*format!("RETRY_REFUSED: run {run} is {status}")));
            assert!(refused.hint().is_some());
            assert_eq!((generation, failures), (1, 1), "{status}");
            world.run_is(run, status).await;
        }
    }
    assert_eq!(world.count("select count(*) from work.actions").await, 2, "what was refused is no act");
}

#[tokio::test]
async fn an_act_names_a_run_that_is_there_and_says_why() {
    let world = World::without_queues().await;
    let operator = operator(&world).await;
    let run = world.dispatch("t.ok", "{}").await;
    for act in ["cancel", "retry"] {
        for (arguments, code, name) in [
            ("gen_random_uuid(), 'why'", "ML017", "RUN_NOT_FOUND: "),
            ("null, 'why'", "ML017", "RUN_NOT_FOUND: "),
            (&*format!("'{run}', null"), "ML018", "REASON_MISSING: "),
            (&*format!("'{run}', E' \\n'"), "ML018", "REASON_MISSING: "),
            (&*format!("'{run}', repeat('x', 1001)"), "ML018", "REASON_MISSING: "),
        ] {
            let refused = refusal(operator.query_one(&format!("select work.{act}({arguments})"), &[]).await);
            assert_eq!(refused.code().code(), code, "{act} {arguments}");
            assert!(refused.message().starts_with(name) && refused.hint().is_some(), "{refused:?}");
        }
    }
    world.run_is(run, "queued").await;
    assert_eq!(world.count("select count(*) from work.actions").await, 0);
}

#[tokio::test]
async fn only_operators_act_and_they_write_no_table() {
    let world = World::without_queues().await;
    let run = world.dispatch("t.ok", "{}").await;
    for role in ["test_worker", "test_api"] {
        let client = connect(&world.url(Some(role))).await;
        assert_eq!(refusal(cancel(&client, run).await).code().code(), "42501", "{role}");
        assert_eq!(refusal(retry(&client, run).await).code().code(), "42501", "{role}");
    }
    let operator = operator(&world).await;
    for sql in ["update work.task_runs set status = 'cancelled'", "delete from work.actions", "select payload from work.task_runs"] {
        assert_eq!(refusal(operator.query(sql, &[]).await).code().code(), "42501", "{sql}");
    }
    assert_eq!(cancel(&operator, run).await.unwrap(), "cancelled");
}

#[tokio::test]
async fn a_running_handler_is_told_of_a_cancel_and_its_effect_never_commits() {
    let world = World::new().await;
    let worker = world.start(&[RELAY, SHORT]).await;
    let operator = operator(&world).await;
    let run = world.dispatch("t.obedient", "{}").await;
    worker.log("the handler waits to be told").await;
    let sessions = "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'monalisa effect'
                      and state = 'idle in transaction'";
    world.count_is(sessions, 1).await;
    let began = Instant::now();
    assert_eq!(cancel(&operator, run).await.unwrap(), "cancelled");
    worker.log("the lease was lost; the handler is cancelled").await;
    // It may end by itself before it is dropped.
    worker.log("the handler hears it and tidies up").await;
    world.count_is(sessions, 0).await;
    in_time(began, Duration::from_secs(5));
    // Its message comes back when its visibility ends, is judged as over and deleted.
    world.messages_are("default", 0).await;
    assert_eq!((world.effects(run).await, world.trail(run).await), (0, vec!["started".to_owned(), "cancelled".to_owned()]));
    assert_eq!(retry(&operator, run).await.unwrap(), "queued");
    world.run_is(run, "succeeded").await;
    assert_eq!(world.effects(run).await, 1);
}

#[tokio::test]
async fn a_finish_that_began_before_a_cancel_wins_and_one_that_comes_after_it_raises() {
    let world = World::without_queues().await;
    let operator = operator(&world).await;
    let held = async || -> (Uuid, Uuid) {
        let run = world.dispatch("t.ok", "{}").await;
        put(&world, run, "running").await;
        (run, world.one("select token from work.task_runs where run_id = $1", &[&run]).await.get(0))
    };
    let finish = async |client: &Client, run: Uuid, token: Uuid| {
        client.batch_execute(&format!("begin; set local work.token = '{token}'")).await.unwrap();
        client.execute("select work.succeed($1, $2, null)", &[&run, &token]).await
    };
    let worker = connect(&world.url(Some("test_worker"))).await;
    let (run, token) = held().await;
    finish(&worker, run, token).await.unwrap();
    let cancelling = cancel(&operator, run);
    let committing = async {
        let waits = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
        world.count_is(waits, 1).await;
        worker.batch_execute("commit").await.unwrap();
    };
    let (cancelled, ()) = tokio::join!(cancelling, committing);
    assert_eq!(cancelled.unwrap(), "succeeded");

    let (run, token) = held().await;
    assert_eq!(cancel(&operator, run).await.unwrap(), "cancelled");
    assert_eq!(refusal(finish(&worker, run, token).await).code().code(), "ML011");
}

#[tokio::test]
async fn cancels_beside_starts_finishes_and_drains_end_each_run_once() {
    let world = World::new().await;
    let operator = operator(&world).await;
    let mut first = world.start(&[RELAY, SHORT, ("MONALISA_STOP_TIMEOUT_MS", "7000")]).await;
    let _second = world.start(&[RELAY, SHORT]).await;
    world.load(200).await;
    let some = "select run_id from work.task_runs where status in ('queued', 'running', 'retrying') order by random() limit 4";
    let mut cancelled = 0;
    for round in 0..20 {
        if round == 8 {
            first.signal("TERM");
        }
        for row in world.db.query(some, &[]).await.unwrap() {
            cancelled += i64::from(cancel(&operator, row.get(0)).await.unwrap() == "cancelled");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(first.exit().await.success());
    world.count_is(UNFINISHED, 0).await;
    assert_eq!(world.count("select count(*) from work.task_runs where status = 'cancelled'").await, cancelled);
    assert!((1..200).contains(&cancelled), "{cancelled}");
    let wrong = "select count(*) from work.task_runs r where (r.status = 'succeeded')::int <> (select count(*) from public.effects e where e.run_id = r.run_id)
                   or (select count(*) from work.run_events e where e.run_id = r.run_id and e.event in ('succeeded', 'cancelled')) <> 1
                   or r.failures + r.crashes > 0";
    assert_eq!(world.count(wrong).await, 0);
    world.messages_are("default", 0).await;
    world.nothing_is_open().await;
}

#[tokio::test]
async fn a_cancel_waits_for_no_relay_and_the_message_that_goes_out_starts_nothing() {
    let world = World::new().await;
    let operator = operator(&world).await;
    let run = world.dispatch("t.ok", "{}").await;
    world.sqs.fault(r#"{"op":"SendMessageBatch","mode":"delay","delay_ms":2000}"#).unwrap();
    let _workers = world.workers().await;
    wait_for("the relay to send", async || (world.messages_sent() > 0).then_some(())).await;
    let began = Instant::now();
    assert_eq!(cancel(&operator, run).await.unwrap(), "cancelled");
    in_time(began, Duration::from_secs(1));
    world.count_is("select count(*) from work.outbox_messages where sent_at is not null", 1).await;
    world.messages_are("default", 0).await;
    assert_eq!(world.trail(run).await, ["cancelled"]);
    // Reopened it is sent anew, and succeeds once.
    world.sqs.clear_faults();
    assert_eq!(retry(&operator, run).await.unwrap(), "queued");
    world.run_is(run, "succeeded").await;
    assert_eq!((world.effects(run).await, world.trail(run).await.len()), (1, 4));
}

#[tokio::test]
async fn the_dead_letter_of_a_retried_run_is_stale_when_it_comes_back() {
    let world = World::new().await;
    let _workers = world.start(&[RELAY, SHORT]).await;
    let operator = operator(&world).await;
    let run = world.dispatch("t.permanent", r#"{"msg":"no"}"#).await;
    world.run_is(run, "failed").await;
    world.messages_are("default-dlq", 1).await;
    assert_eq!(retry(&operator, run).await.unwrap(), "queued");
    world.messages_are("default-dlq", 2).await;
    let letters = world.dead_letters("default").await;
    assert!(letters.iter().all(|letter| letter.body.as_ref().is_some_and(|body| body.contains("deadLetter"))), "{letters:#?}");
    let first =
        letters.iter().filter_map(|letter| letter.body.as_deref()).find(|body| body.contains(r#""generation": 1"#)).expect("the first");
    world.send("default", first).await;
    world.messages_are("default", 0).await;
    assert_eq!(world.trail(run).await, ["started", "failed", "retried", "started", "failed"], "the old letter reopens nothing");
    let newest =
        letters.iter().filter_map(|letter| letter.body.as_deref()).find(|body| body.contains(r#""generation": 2"#)).expect("the second");
    world.send("default", newest).await;
    world.count_is("select count(*) from work.run_events where event = 'failed'", 3).await;
    assert_eq!(world.trail(run).await[5..], ["redriven", "started", "failed"]);
}

#[tokio::test]
async fn a_letter_of_a_generation_that_a_restored_run_has_not_reached_reopens_it_once() {
    let world = World::without_queues().await;
    let run = world.dispatch("t.ok", "{}").await;
    put(&world, run, "failed").await;
    let reopen =
        async |mark: i32| -> Option<i32> { world.one(monalisa::sql::runs::REOPEN.text, &[&run, &mark, &"w"]).await.get("generation") };
    assert_eq!(reopen(4).await, Some(5), "above the letter, so that a copy of it is old");
    put(&world, run, "failed").await;
    assert_eq!(reopen(4).await, None);
    // One that is far ahead was made by hand, and would bring the run to no end of its generations.
    assert_eq!((reopen(1_006).await, reopen(i32::MAX).await), (None, None));
    for mark in ["null", "0", "-1", "1006", "2147483647"] {
        let error = refusal(world.db.query(&format!("select work.redrive('{run}', {mark}, 'a reason')"), &[]).await);
        assert_eq!((error.code().code(), error.hint().is_some()), ("ML035", true), "{mark}");
    }
    let judge = async |mark: i32| -> String {
        let sql = monalisa::sql::runs::JUDGE.text;
        world.one(sql, &[&vec![run], &vec![1], &vec![mark], &vec![1], &vec!["t.ok"], &0.0]).await.get("verdict")
    };
    assert_eq!((judge(5).await.as_str(), judge(1_006).await.as_str()), ("redriven", "done"));
    assert_eq!(reopen(1_005).await, Some(1_006));
}
