//! Two callers of one key, whatever becomes of the first and whatever isolation they have: each ends with the runs of one call or with an
//! error to try again on, never without a run and never with two.

use tokio::task::JoinSet;
use tokio_postgres::Client;
use uuid::Uuid;

use crate::support::{World, connect, refusal, wait_for};

const LEVELS: [&str; 3] = ["read committed", "repeatable read", "serializable"];

/// A task, and an event with two subscribers.
const CALLS: [(&str, i64); 2] = [
    ("select work.dispatch('t.ok', '{}', 1, idempotency_key => 'one') as run_id", 1),
    ("select run_id from work.publish('test.happened', '{}', 1, 1, idempotency_key => 'one') order by unit", 2),
];

async fn call(client: &Client, sql: &str) -> Result<Vec<Uuid>, tokio_postgres::Error> {
    Ok(client.query(sql, &[]).await?.iter().map(|row| row.get(0)).collect())
}

async fn begun(world: &World, level: &str) -> Client {
    let client = connect(&world.url(Some("test_api"))).await;
    // With a snapshot from now.
    client.batch_execute(&format!("begin isolation level {level}; select 1")).await.unwrap();
    client
}

/// The key stands for these runs, each of which is there once, with its outbox row.
async fn stands(world: &World, runs: &[Uuid], expected: i64) {
    assert_eq!(runs.len() as i64, expected);
    let sql = "select count(*) from work.task_runs r join work.outbox_messages o using (run_id, tenant_id, queue)";
    assert_eq!(world.count(sql).await, expected, "what is there");
    assert_eq!(world.count("select count(*) from work.task_runs").await, expected);
    let sql = "select count(*) from work.task_runs r where run_id = any ($1) and exists (select from work.idempotency_keys k where r.run_id = any (k.run_ids))";
    assert_eq!(world.one(sql, &[&runs]).await.get::<_, i64>(0), expected, "what the caller was told");
}

/// What becomes of the first.
#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    Commits,
    RollsBack,
    IsKilled,
}

#[tokio::test]
async fn a_second_caller_ends_with_the_runs_of_one_call_whatever_becomes_of_the_first_at_every_isolation_level() {
    for (sql, expected) in CALLS {
        for level in LEVELS {
            for end in [End::Commits, End::RollsBack, End::IsKilled] {
                let world = World::without_queues().await;
                let (first, second) = (begun(&world, level).await, begun(&world, level).await);
                let process: i32 = first.query_one("select pg_backend_pid()", &[]).await.unwrap().get(0);
                let runs = call(&first, sql).await.unwrap();
                let waiting = tokio::spawn(async move { (call(&second, sql).await, second) });
                let waits = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
                world.count_is(waits, 1).await;
                match end {
                    End::Commits => first.batch_execute("commit").await.unwrap(),
                    End::RollsBack => first.batch_execute("rollback").await.unwrap(),
                    End::IsKilled => drop(world.one("select pg_terminate_backend($1)", &[&process]).await),
                }
                let (answer, second) = waiting.await.unwrap();
                let found = match answer {
                    Err(error) => {
                        // Its snapshot is older than the first one's commit: an error that every driver knows to repeat on.
                        let error = refusal::<()>(Err(error));
                        assert_eq!(error.code().code(), "40001", "{level}, {end:?}: {error:?}");
                        assert!(error.message().starts_with("could not serialize access"), "{error:?}");
                        assert!(end == End::Commits && level != "read committed", "{level}, {end:?}");
                        second.batch_execute(&format!("rollback; begin isolation level {level}")).await.unwrap();
                        call(&second, sql).await.unwrap()
                    }
                    Ok(found) => {
                        assert!(end != End::Commits || level == "read committed", "{level}: it sees a run that its snapshot does not hold");
                        found
                    }
                };
                second.batch_execute("commit").await.unwrap();
                assert_eq!(found == runs, end == End::Commits, "{level}, {end:?}");
                stands(&world, &found, expected).await;
                let later = begun(&world, level).await;
                assert_eq!(call(&later, sql).await.unwrap(), found, "{level}, {end:?}: who calls later");
            }
        }
    }
}

#[tokio::test]
async fn a_snapshot_older_than_the_first_call_is_told_to_try_again_and_finds_it_then() {
    for (sql, expected) in CALLS {
        for level in LEVELS {
            let world = World::without_queues().await;
            let early = begun(&world, level).await;
            let api = connect(&world.url(Some("test_api"))).await;
            let runs = call(&api, sql).await.unwrap();
            match call(&early, sql).await {
                Ok(found) => assert_eq!((level, found), ("read committed", runs.clone())),
                Err(error) => {
                    assert_eq!(refusal::<()>(Err(error)).code().code(), "40001", "{level}");
                    assert_ne!(level, "read committed");
                }
            }
            early.batch_execute(&format!("rollback; begin isolation level {level}")).await.unwrap();
            assert_eq!(call(&early, sql).await.unwrap(), runs, "{level}");
            early.batch_execute("commit").await.unwrap();
            stands(&world, &runs, expected).await;
        }
    }
}

#[tokio::test]
async fn many_callers_of_one_key_who_try_again_when_told_to_make_one_call_of_it() {
    for (sql, expected) in CALLS {
        for level in LEVELS {
            let world = World::without_queues().await;
            let mut callers = JoinSet::new();
            for caller in 0..8 {
                let client = connect(&world.url(Some("test_api"))).await;
                callers.spawn(async move {
                    loop {
                        client.batch_execute(&format!("begin isolation level {level}")).await.unwrap();
                        let answer = call(&client, sql).await;
                        // Some change their mind once.
                        if answer.is_ok() && caller % 4 == 3 {
                            client.batch_execute("rollback").await.unwrap();
                            client.batch_execute(&format!("begin isolation level {level}")).await.unwrap();
                        }
                        let answer = if answer.is_ok() && caller % 4 == 3 { call(&client, sql).await } else { answer };
                        let ended = client.batch_execute("commit").await;
                        match (answer, ended) {
                            (Ok(runs), Ok(())) => return runs,
                            (Err(error), _) | (_, Err(error)) => assert_eq!(refusal::<()>(Err(error)).code().code(), "40001", "{level}"),
                        }
                    }
                });
            }
            let answers = callers.join_all().await;
            assert!(answers.iter().all(|runs| *runs == answers[0]), "{level}: {answers:?}");
            stands(&world, &answers[0], expected).await;
        }
    }
}

#[tokio::test]
async fn a_key_that_was_taken_behind_a_savepoint_is_free_again_after_the_rollback_to_it() {
    for (sql, expected) in CALLS {
        let world = World::without_queues().await;
        let first = begun(&world, "read committed").await;
        first.batch_execute("savepoint s").await.unwrap();
        let lost = call(&first, sql).await.unwrap();
        let url = world.url(Some("test_api"));
        let waiting = tokio::spawn(async move { call(&connect(&url).await, sql).await.unwrap() });
        let waits = "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
        wait_for("the second to wait", async || world.db.query_opt(waits, &[]).await.unwrap()).await;
        first.batch_execute("rollback to s").await.unwrap();
        // While the first transaction is still open.
        let found = waiting.await.unwrap();
        assert_ne!(found, lost);
        assert_eq!(call(&first, sql).await.unwrap(), found);
        first.batch_execute("commit").await.unwrap();
        stands(&world, &found, expected).await;
    }
}

#[tokio::test]
async fn two_callers_of_an_expired_key_take_it_over_once() {
    for (sql, expected) in CALLS {
        for level in LEVELS {
            let world = World::without_queues().await;
            let old = call(&world.db, sql).await.unwrap();
            world
                .db
                .batch_execute(
                    "update work.task_runs set status = 'cancelled', finished_at = now();
                     update work.idempotency_keys set expires_at = clock_timestamp() - interval '1 second'",
                )
                .await
                .unwrap();
            let (first, second) = (begun(&world, level).await, begun(&world, level).await);
            let taken = call(&first, sql).await.unwrap();
            assert_ne!(taken, old);
            let waiting = tokio::spawn(async move { (call(&second, sql).await, second) });
            world
                .count_is("select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'", 1)
                .await;
            first.batch_execute("commit").await.unwrap();
            let (answer, second) = waiting.await.unwrap();
            match answer {
                Ok(found) => assert_eq!((level, &found), ("read committed", &taken)),
                Err(error) => {
                    assert_eq!(refusal::<()>(Err(error)).code().code(), "40001", "{level}");
                    second.batch_execute("rollback").await.unwrap();
                    assert_eq!(call(&second, sql).await.unwrap(), taken, "{level}");
                }
            }
            assert_eq!(world.count("select count(*) from work.task_runs where status = 'queued'").await, expected);
        }
    }
}
