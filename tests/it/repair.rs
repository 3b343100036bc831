//! Repair: what SQS has lost comes back, and nothing else is touched.

use monalisa::sql::{queues, runs};
use uuid::Uuid;

use crate::support::{World, connect, wait_for};

const RELAY: (&str, &str) = ("MONALISA_RELAY", "true");
/// Visibility in seconds, short enough for a test; repair waits for twice as long.
const SHORT: (&str, &str) = ("MONALISA_VISIBILITY_SECONDS", "critical=2,default=2,bulk=2,maintenance=2");

async fn number(world: &World, run: Uuid, column: &str) -> i32 {
    world.one(&format!("select {column} from work.task_runs where run_id = $1"), &[&run]).await.get(0)
}

/// A run as it is when its message was sent and lost, so many seconds ago.
async fn lost(world: &World, unit: &str, ago: i32) -> Uuid {
    let tenant = (unit != "t.platform").then_some(1_i64);
    let run: Uuid = world.one("select work.dispatch($1, '{\"s\":0}', $2)", &[&unit, &tenant]).await.get(0);
    age(world, run, ago).await;
    run
}

async fn age(world: &World, run: Uuid, ago: i32) {
    let at = format!("clock_timestamp() - {ago} * interval '1 second'");
    world
        .db
        .batch_execute(&format!(
            "update work.task_runs set available_at = {at}, created_at = {at} where run_id = '{run}';
             update work.outbox_messages set sent_at = {at} where run_id = '{run}';
             update work.platform_outbox_messages set sent_at = {at} where run_id = '{run}'"
        ))
        .await
        .unwrap();
}

/// A lease that lapsed so many seconds ago, or will lapse.
async fn lapse(world: &World, run: Uuid, ago: i32, crashes: i32) {
    let sql = "update work.task_runs set status = 'running', token = gen_random_uuid(), worker = 'gone', starts = 1, crashes = $3,
                      started_at = clock_timestamp() - interval '1 hour', lease_expires_at = clock_timestamp() - $2 * interval '1 second'
                where run_id = $1";
    world.db.execute(sql, &[&run, &f64::from(ago), &crashes]).await.unwrap();
}

async fn served(world: &World, ago: i32) {
    let sql = "update work.queue_seen set seen_until = clock_timestamp() - $1 * interval '1 second'";
    world.db.execute(sql, &[&f64::from(ago)]).await.unwrap();
}

/// Which of the runs of this queue are stranded, as a repair with a bound of 100 s finds them.
async fn stranded(world: &World, queue: &str) -> Vec<Uuid> {
    let rows =
        world.db.query(runs::STRANDED.text, &[&queue, &100_f64, &None::<&str>, &None::<Uuid>, &None::<f64>, &1_000_i64]).await.unwrap();
    rows.iter().filter(|row| row.get("stranded")).map(|row| row.get("run_id")).collect()
}

#[tokio::test]
async fn runs_whose_messages_sqs_has_lost_are_sent_anew() {
    let world = World::new().await;
    let relay = world.start(&[RELAY, SHORT, ("QUEUES", "maintenance")]).await;
    let waiting = world.dispatch("t.ok", "{}").await;
    let platform: Uuid = world.one("select work.dispatch('t.platform')", &[]).await.get(0);
    let running = world.dispatch("t.ok", "{}").await;
    world.messages_are("default", 2).await;
    world.messages_are("bulk", 1).await;
    // Both queues are emptied by hand, and one run was running in a process that died.
    for queue in ["default", "bulk"] {
        world.queues().await.purge_queue().queue_url(world.sqs.queue_url(&format!("t-{queue}"))).send().await.expect("purged");
    }
    lapse(&world, running, 0, 0).await;
    let _worker = world.start(&[SHORT]).await;
    for run in [waiting, platform, running] {
        world.run_is(run, "succeeded").await;
        assert_eq!(world.effects(run).await, 1);
    }
    relay.log("repaired").await;
    assert_eq!(world.trail(waiting).await, ["repaired", "started", "succeeded"]);
    assert_eq!(world.trail(running).await, ["started", "lost", "repaired", "started", "succeeded"]);
    assert_eq!((number(&world, running, "crashes").await, number(&world, waiting, "crashes").await), (1, 0));
}

#[tokio::test]
async fn a_run_that_lost_its_message_and_its_fifth_worker_fails_with_a_dead_letter() {
    let world = World::new().await;
    let run = lost(&world, "t.ok", 1_000).await;
    lapse(&world, run, 900, 4).await;
    let _workers = world.start(&[RELAY, SHORT]).await;
    world.run_is(run, "failed").await;
    world.messages_are("default-dlq", 1).await;
    let letter = world.dead_letters("default").await.remove(0);
    assert!(letter.body.is_some_and(|body| body.contains("WORKER_LOST")));
    assert_eq!(world.trail(run).await, ["started", "lost", "failed"]);
    assert_eq!((number(&world, run, "crashes").await, world.effects(run).await), (5, 0));
}

#[tokio::test]
async fn repair_takes_only_what_the_queue_was_served_past_and_nothing_brings() {
    let world = World::without_queues().await;
    let gone = [lost(&world, "t.ok", 200).await, lost(&world, "t.ok", 200).await, lost(&world, "t.ok", 200).await];
    lapse(&world, gone[1], 150, 0).await;
    // Its outbox row was purged long ago.
    world.db.execute("delete from work.outbox_messages where run_id = $1", &[&gone[2]]).await.unwrap();
    let live = lost(&world, "t.ok", 200).await;
    lapse(&world, live, -1, 0).await;
    let lately_lapsed = lost(&world, "t.ok", 200).await;
    lapse(&world, lately_lapsed, 50, 0).await;
    let _within_the_bound = lost(&world, "t.ok", 50).await;
    let pending = lost(&world, "t.ok", 200).await;
    world.db.execute("update work.outbox_messages set sent_at = null where run_id = $1", &[&pending]).await.unwrap();
    let sent_late = lost(&world, "t.ok", 200).await;
    world.db.execute("update work.outbox_messages set sent_at = clock_timestamp() where run_id = $1", &[&sent_late]).await.unwrap();
    let repaired_before = lost(&world, "t.ok", 180).await;
    world.db.execute("update work.task_runs set repairs = 1 where run_id = $1", &[&repaired_before]).await.unwrap();
    let finished = lost(&world, "t.ok", 200).await;
    world.db.execute("update work.task_runs set status = 'cancelled', finished_at = now() where run_id = $1", &[&finished]).await.unwrap();
    let held = lost(&world, "t.ok", 200).await;
    let mut other = connect(&world.url(None)).await;
    let locked = other.transaction().await.unwrap();
    locked.execute("select from work.task_runs where run_id = $1 for update", &[&held]).await.unwrap();
    let platform = lost(&world, "t.platform", 200).await;
    let platform_pending = lost(&world, "t.platform", 200).await;
    world.db.execute("update work.platform_outbox_messages set sent_at = null where run_id = $1", &[&platform_pending]).await.unwrap();

    assert_eq!(stranded(&world, "default").await, [] as [Uuid; 0], "nobody has served a queue yet");
    served(&world, 150).await;
    assert_eq!(stranded(&world, "default").await, [] as [Uuid; 0], "not so far past them");
    served(&world, 0).await;
    let mut found = stranded(&world, "default").await;
    found.sort_unstable();
    let mut expected = gone.to_vec();
    expected.sort_unstable();
    assert_eq!(found, expected);
    assert_eq!(stranded(&world, "bulk").await, [platform]);
    // At a server whose clock is behind that of the one before.
    served(&world, -100_000).await;
    assert_eq!(stranded(&world, "default").await.len(), 3);
}

#[tokio::test]
async fn a_row_that_became_pending_just_before_the_lock_is_seen() {
    let world = World::without_queues().await;
    let run = lost(&world, "t.ok", 200).await;
    world.db.execute("update work.outbox_messages set sent_at = null where run_id = $1", &[&run]).await.unwrap();
    assert!(world.db.query(runs::REPAIR.text, &[&vec![run]]).await.unwrap().is_empty());
    assert_eq!((world.trail(run).await.len(), number(&world, run, "repairs").await), (0, 0));
}

/// The stranded runs of the default queue, in looks of so many runs and so many seconds back, until there is no more or all are found.
async fn pass(world: &World, window: Option<f64>, limit: i64, all: usize) -> Vec<Uuid> {
    let (mut found, mut cursor, mut looks) = (Vec::new(), None::<(String, Option<Uuid>)>, 0);
    while cursor != Some(("-infinity".to_owned(), None)) && (window.is_none() || found.len() < all) && looks < 500 {
        let (at, last) = (cursor.as_ref().map(|cursor| &*cursor.0), cursor.as_ref().and_then(|cursor| cursor.1));
        let rows = world.db.query(runs::STRANDED.text, &[&"default", &100_f64, &at, &last, &window, &limit]).await.unwrap();
        found.extend(rows.iter().filter(|row| row.get("stranded")).map(|row| row.get::<_, Uuid>("run_id")));
        cursor = rows.last().map(|row| (row.get("available_at"), row.get("run_id")));
        looks += 1;
    }
    found.sort_unstable();
    found
}

#[tokio::test]
async fn a_repair_goes_on_where_it_stopped_also_among_runs_of_one_time() {
    let world = World::without_queues().await;
    let mut expected = Vec::new();
    for _ in 0..25 {
        expected.push(lost(&world, "t.ok", 0).await);
    }
    world
        .db
        .batch_execute("update work.task_runs set available_at = '-infinity'; update work.outbox_messages set sent_at = '-infinity'")
        .await
        .unwrap();
    served(&world, 0).await;
    expected.sort_unstable();
    for limit in [10, 25, 26] {
        assert_eq!(pass(&world, None, limit, 25).await, expected, "{limit} at a time");
    }
}

#[tokio::test]
async fn windows_of_any_length_leave_out_no_run() {
    let world = World::without_queues().await;
    let mut expected = Vec::new();
    for ago in [200, 201, 201, 201, 290, 300, 301, 1_000] {
        expected.push(lost(&world, "t.ok", ago).await);
    }
    // Due at exactly the times at which windows of ten seconds end.
    world.db.batch_execute("update work.task_runs set available_at = date_trunc('minute', available_at)").await.unwrap();
    served(&world, 0).await;
    expected.sort_unstable();
    for window in [10.0, 60.0, 3_600.0] {
        assert_eq!(pass(&world, Some(window), 2, 8).await, expected, "{window} s back");
    }
}

#[tokio::test]
async fn a_look_that_takes_too_long_is_given_up_and_the_pass_still_comes_to_its_end() {
    let world = World::new().await;
    let run = lost(&world, "t.ok", 1_000).await;
    served(&world, 0).await;
    // A look waits for this lock until it is given up; nothing else of an idle process does.
    let mut other = connect(&world.url(None)).await;
    let held = other.transaction().await.unwrap();
    held.batch_execute("lock table work.task_runs in access exclusive mode").await.unwrap();
    let relay = world.start(&[RELAY]).await;
    let look = "select pid::text || query_start::text as look from pg_stat_activity
                 where datname = current_database() and query like '-- runs/stranded%' and wait_event_type = 'Lock'";
    let mut seen = std::collections::BTreeSet::new();
    wait_for("three looks that are given up", async || {
        seen.extend(world.db.query(look, &[]).await.unwrap().iter().map(|row| row.get::<_, String>(0)));
        (seen.len() >= 3).then_some(())
    })
    .await;
    held.rollback().await.unwrap();
    world.run_is(run, "succeeded").await;
    assert_eq!(world.trail(run).await, ["repaired", "started", "succeeded"]);
    let told = relay.log("every unfinished run of the queue was examined").await;
    assert!(told["looks"].as_u64() > Some(1), "{told}");
    assert!(relay.lines().iter().all(|line| !line.contains("57014")), "it is no error");
}

#[tokio::test]
async fn a_run_that_cannot_be_repaired_holds_up_no_other() {
    let world = World::new().await;
    let mut runs = Vec::new();
    for number in 0..30 {
        runs.push(lost(&world, "t.ok", 1_000 - number).await);
    }
    served(&world, 0).await;
    // Somebody left a transaction open that holds one outbox row in the middle.
    let held = runs.remove(15);
    let other = connect(&world.url(None)).await;
    other.batch_execute(&format!("begin; select from work.outbox_messages where run_id = '{held}' for update")).await.unwrap();
    let relay = world.start(&[RELAY, SHORT]).await;
    for run in &runs {
        world.run_is(*run, "succeeded").await;
    }
    let told = relay.log("this run was not repaired; the pass goes on behind it").await;
    assert_eq!(told["run_id"], held.to_string(), "{told}");
    world.run_is(held, "queued").await;
    other.batch_execute("rollback").await.unwrap();
    world.run_is(held, "succeeded").await;
}

/// So many runs of the default queue that were served past under a live lease: half of them due at one time each second, half all at once.
async fn held(world: &World, from: i64, to: i64) {
    world
        .db
        .batch_execute(&format!(
            "set session_replication_role = replica;
             insert into work.task_runs (run_id, tenant_id, unit, kind, queue, context, payload, status, token, lease_expires_at, available_at)
             select work.uuid_v7(), 1, 't.ok', 'task', 'default', 'tenant', '{{}}', 'running', gen_random_uuid(), now() + interval '1 hour',
                    case when i % 2 = 0 then now() - interval '1 day' else now() - interval '1 hour' - i * interval '500 ms' end
               from generate_series({from} + 1, {to}) i;
             insert into work.outbox_messages (tenant_id, run_id, queue, envelope, available_at, sent_at)
             select 1, r.run_id, 'default', '{{}}', r.available_at, r.available_at from work.task_runs r
                 on conflict do nothing;
             set session_replication_role = origin;
             update work.queue_seen set seen_until = now()"
        ))
        .await
        .unwrap();
    world.db.batch_execute("vacuum analyze work.task_runs, work.outbox_messages").await.unwrap();
}

/// The buffers that a look touches which goes on after so many runs, in a generic plan.
async fn buffers(client: &tokio_postgres::Client, after: i64, window: &str) -> i64 {
    let cursor = "select available_at::text, run_id::text from work.task_runs where queue = 'default'
                   order by available_at desc, run_id desc offset $1 limit 1";
    let (at, run): (String, String) = match client.query_opt(cursor, &[&after]).await.unwrap() {
        Some(row) if after > 0 => (format!("'{}'", row.get::<_, &str>(0)), format!("'{}'", row.get::<_, &str>(1))),
        _ => ("null".to_owned(), "null".to_owned()),
    };
    let look = format!("explain (analyze, buffers, format json) execute look ('default', 100, {at}, {run}, {window}, 1000)");
    let plan: serde_json::Value = client.query_one(&look, &[]).await.unwrap().get(0);
    plan[0]["Plan"]["Shared Hit Blocks"].as_i64().unwrap() + plan[0]["Plan"]["Shared Read Blocks"].as_i64().unwrap()
}

/// A session with the statement as the repair has it in the end.
async fn prepared(world: &World) -> tokio_postgres::Client {
    let client = connect(&world.url(None)).await;
    client.batch_execute(&format!("set plan_cache_mode = force_generic_plan; prepare look as {}", runs::STRANDED.text)).await.unwrap();
    client
}

#[tokio::test]
async fn a_look_of_the_repair_costs_the_same_however_many_runs_are_unfinished() {
    let world = World::without_queues().await;
    let client = prepared(&world).await;
    let few = 10_000;
    held(&world, 0, few).await;
    let small = [buffers(&client, 0, "null").await, buffers(&client, few - 1_500, "null").await];
    let many = 100_000;
    held(&world, few, many).await;
    // At the beginning, in the middle of those that are due each at its time, and early and late among those that are due at one time.
    let mut large = Vec::new();
    for after in [0, many / 4, many * 6 / 10, many - 1_500] {
        large.push(buffers(&client, after, "null").await);
    }
    let (least, most) = (small.iter().min().unwrap(), large.iter().max().unwrap());
    assert!(*most < 2 * least && *most < 12_000, "of 10,000 runs {small:?} buffers, of 100,000 {large:?}");
}

#[tokio::test]
async fn a_look_of_the_repair_is_bounded_while_a_transaction_elsewhere_keeps_every_dead_row() {
    let world = World::without_queues().await;
    let client = prepared(&world).await;
    held(&world, 0, 10).await;
    let holder = connect(&world.url(None)).await;
    holder.batch_execute("begin isolation level repeatable read; select count(*) from work.units").await.unwrap();
    // Fifty thousand runs come, are started and finish, twenty a second; nothing of them can be removed.
    world
        .db
        .batch_execute(
            "set session_replication_role = replica;
             insert into work.task_runs (run_id, tenant_id, unit, kind, queue, context, payload, available_at)
             select work.uuid_v7(), 1, 't.ok', 'task', 'default', 'tenant', '{}', now() - interval '150 s' - i * interval '50 ms'
               from generate_series(1, 50000) i order by random();
             update work.task_runs set status = 'succeeded', finished_at = now() where status = 'queued';
             set session_replication_role = origin",
        )
        .await
        .unwrap();
    world.db.batch_execute("vacuum analyze work.task_runs").await.unwrap();
    let (whole, window) = (buffers(&client, 0, "null").await, buffers(&client, 0, "60").await);
    assert!(whole > 30_000, "to the oldest it is {whole}: the dead entries are there");
    assert!(window < 3_000, "back by a minute it is {window}");
    holder.batch_execute("rollback").await.unwrap();
}

#[tokio::test]
async fn workers_note_how_far_they_served_a_queue_and_write_at_most_once_a_second() {
    let world = World::new().await;
    let seen = "select count(*) from work.queue_seen where seen_until > clock_timestamp() - interval '4 s'";
    assert_eq!(world.count(seen).await, 0);
    let _workers = [world.start(&[RELAY]).await, world.start(&[]).await, world.start(&[]).await];
    world.count_is(seen, 4).await;
    let updates = "select sum(n_tup_upd)::int8 from pg_stat_user_tables where schemaname = 'work' and relname = 'queue_seen'";
    let began = std::time::Instant::now();
    for _ in 0..300 {
        world.dispatch("t.ok", "{}").await;
    }
    world.count_is("select count(*) from work.task_runs where status = 'succeeded'", 300).await;
    let seconds = began.elapsed().as_secs() as i64 + 8;
    let written = world.count(updates).await;
    assert!(written <= 4 * seconds, "{written} updates of four queues by three processes in {seconds} s");
    // A queue with work but no empty receive is known by what was started.
    let default = "select extract(epoch from max(r.available_at) - max(q.seen_until))::float8
                     from work.queue_seen q join work.task_runs r using (queue) where queue = 'default'";
    let behind: f64 = world.one(default, &[]).await.get(0);
    assert!(behind < 5.0, "{behind} s");
}

#[tokio::test]
async fn what_was_seen_never_goes_back_and_waits_for_nobody() {
    let world = World::without_queues().await;
    let serve = "select seen_until = '2026-01-02' from work.queue_seen where queue = 'bulk'";
    let at = |text: &str| text.parse::<chrono::DateTime<chrono::Utc>>().unwrap();
    for seen in ["2026-01-02T00:00:00Z", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00.9Z"] {
        world.one(queues::SERVE.text, &[&"bulk", &Some(at(seen))]).await;
        assert!(world.one(serve, &[]).await.get::<_, bool>(0), "{seen}");
    }
    let worker = connect(&world.url(Some("test_worker"))).await;
    world.db.batch_execute("begin; update work.queue_seen set seen_until = seen_until").await.unwrap();
    worker.batch_execute("set lock_timeout = '1ms'").await.unwrap();
    worker.query_one(queues::SERVE.text, &[&"bulk", &Some(at("2026-02-01T00:00:00Z"))]).await.unwrap();
    world.db.batch_execute("rollback").await.unwrap();
}
