//! MONALISA_LOCAL_SCHEDULER: schedules fired in the process, by PostgreSQL's clock, however many fire them and however they are disturbed.

use std::time::Duration;

use tokio_postgres::types::ToSql;

use crate::{
    clocks::skewed,
    support::{Process, RELAY, SOON, World, wait_for},
};

const HERE: (&str, &str) = ("MONALISA_LOCAL_SCHEDULER", "true");
/// A process with next to nothing but the scheduler.
const ALONE: &[(&str, &str)] = &[HERE, ("QUEUES", "bulk")];
const HOUR: i64 = 3_600;

/// Sets when a schedule began, so many seconds ago. The others begin an hour ahead.
async fn began(world: &World, schedule: &str, ago: f64) {
    let sql = "update work.units set schedule_anchor = case when name = $1 then date_trunc('second', clock_timestamp()) - $2 * interval '1 second'
                                                            else clock_timestamp() + interval '1 hour' end
                where schedule is not null and (name = $1 or schedule_anchor < clock_timestamp() + interval '1 minute')";
    let parameters: [&(dyn ToSql + Sync); 2] = [&schedule, &ago];
    world.db.execute(sql, &parameters).await.unwrap();
}

/// Nothing of any schedule is due for an hour.
async fn quiet(world: &World) {
    began(world, "", 0.0).await;
}

/// Occurrences that were fired before they were due, or later than they should be.
async fn unpunctual(world: &World) -> i64 {
    let sql = "select count(*) from work.task_runs
                where schedule is not null and (created_at < scheduled_for or created_at > scheduled_for + $1 * interval '1 second')";
    world.one(sql, &[&SOON.as_secs_f64()]).await.get(0)
}

async fn runs(world: &World, schedule: &str) -> i64 {
    world.one("select count(*) from work.task_runs where schedule = $1", &[&schedule]).await.get(0)
}

#[tokio::test]
async fn a_due_schedule_is_fired_on_time_and_its_task_runs() {
    let world = World::new().await;
    quiet(&world).await;
    let worker = world.start(&[HERE, RELAY]).await;
    assert_eq!(worker.log("ready").await["scheduler"], true);
    // The first, whose time was 48 s ago, late; the second at its time.
    began(&world, "t.tick", 48.0).await;
    world.count_is("select count(*) from work.task_runs where schedule = 't.tick' and status = 'succeeded'", 2).await;
    let late: f64 = world.one("select extract(epoch from max(created_at - scheduled_for) filter (where scheduled_for > created_at - interval '30 s'))::float8 from work.task_runs", &[]).await.get(0);
    assert!((0.0..SOON.as_secs_f64()).contains(&late), "{late} s late");
    assert_eq!(world.count("select count(*) from public.effects where note = 'tick'").await, 2);
    let fired = worker.log("fired").await;
    assert_eq!((&fired["schedule"], fired["scheduled_for"].is_string()), (&"t.tick".into(), true));
}

#[tokio::test]
async fn many_schedulers_with_wrong_clocks_fire_each_occurrence_once_and_on_time() {
    let world = World::new().await;
    quiet(&world).await;
    let processes = [
        world.start(ALONE).await,
        skewed(&world, HOUR, ALONE).await,
        skewed(&world, -HOUR, ALONE).await,
        skewed(&world, 8 * 24 * HOUR, ALONE).await,
    ];
    began(&world, "t.tock", 48.0).await;
    // Six more, by the command.
    let commands: Vec<Process> = (0..6)
        .map(|_| world.spawn_with("test-workers", &["schedule", "fire", "--due"], &[("DATABASE_URL", &world.url(Some("test_worker")))]))
        .collect();
    for mut command in commands {
        assert!(command.exit().await.success());
    }
    world.count_is("select count(*) from work.task_runs where schedule = 't.tock'", 2).await;
    // Whoever comes a little later finds that it is decided.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!((runs(&world, "t.tock").await, unpunctual(&world).await), (2, 1), "the first was 48 s late");
    let times = "select count(*) from (select scheduled_for, count(*) from work.task_runs where schedule is not null group by 1 having count(*) > 1) twice";
    assert_eq!(world.count(times).await, 0);
    assert!(
        world.count("select count(*) from work.task_runs where created_at < scheduled_for").await == 0,
        "nothing is fired before its time"
    );
    for process in &processes {
        let wrong: Vec<String> = process.lines().into_iter().filter(|line| line.contains("ERROR")).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}

/// So much time goes by for the schedule of `t.tock`: what was becomes so much older.
async fn go_by(world: &World, time: &str) {
    let older = format!(
        "update work.units set schedule_anchor = schedule_anchor - interval '{time}' where name = 't.tock';
         update work.task_runs set scheduled_for = scheduled_for - interval '{time}', created_at = created_at - interval '{time}'"
    );
    world.db.batch_execute(&older).await.unwrap();
}

#[tokio::test]
async fn after_a_suspension_one_late_run_comes_and_the_missed_are_told_and_noted() {
    let world = World::new().await;
    began(&world, "t.tock", 10.0).await;
    let scheduler = world.start(ALONE).await;
    world.count_is("select count(*) from work.task_runs where schedule = 't.tock'", 1).await;
    scheduler.signal("STOP");
    go_by(&world, "10 minutes").await;
    scheduler.signal("CONT");
    world.count_is("select count(*) from work.task_runs where schedule = 't.tock'", 2).await;
    let told = scheduler.log("missed").await;
    assert_eq!((&told["schedule"], &told["count"], &told["level"]), (&"t.tock".into(), &9.into(), &"WARN".into()));
    let noted =
        world.one("select decision, occurrences, until - scheduled_for = interval '8 minutes' from work.schedule_decisions", &[]).await;
    assert_eq!((noted.get::<_, &str>(0), noted.get::<_, i32>(1), noted.get::<_, bool>(2)), ("missed", 9, true));
    let late: bool =
        world.one("select max(scheduled_for) > clock_timestamp() - interval '2 minutes' from work.task_runs", &[]).await.get(0);
    assert!(late, "the latest one");
}

#[tokio::test]
async fn frequent_restarts_neither_starve_a_schedule_nor_double_it() {
    let world = World::new().await;
    began(&world, "t.tock", 40.0).await;
    for _ in 0..4 {
        let mut scheduler = world.start(ALONE).await;
        scheduler.kill();
    }
    let scheduler = world.start(ALONE).await;
    wait_for("the second occurrence", async || (runs(&world, "t.tock").await == 2).then_some(())).await;
    drop(scheduler);
    let late = "select count(*) from work.task_runs where scheduled_for > created_at - interval '30 s' and created_at > scheduled_for + interval '15 s'";
    assert_eq!(world.count(late).await, 0, "at its time, not a minute after the last restart");
}

#[tokio::test]
async fn an_occurrence_is_skipped_while_the_run_before_it_goes_on() {
    let world = World::new().await;
    quiet(&world).await;
    // Nobody runs it here.
    let scheduler = world.start(ALONE).await;
    began(&world, "t.tick", 48.0).await;
    let skipped = scheduler.log("skipped").await;
    let first: uuid::Uuid = world.one("select run_id from work.task_runs where status = 'queued'", &[]).await.get(0);
    assert_eq!(skipped["suppressed_by"], first.to_string());
    assert_eq!(unpunctual(&world).await, 1, "the first alone was late");
}

#[tokio::test]
async fn without_the_switch_nothing_is_fired() {
    let world = World::new().await;
    began(&world, "t.tick", 55.0).await;
    let worker = world.start(&[RELAY]).await;
    let run = world.dispatch("t.sleep", r#"{"s":7}"#).await;
    world.run_is(run, "succeeded").await;
    assert_eq!(runs(&world, "t.tick").await, 0);
    assert_eq!(worker.log("ready").await["scheduler"], false);
}

#[tokio::test]
async fn a_scheduler_goes_on_after_an_outage_of_postgresql_and_fires_the_latest() {
    let world = World::new().await;
    let proxy = world.pg_proxy().await;
    began(&world, "t.tock", 10.0).await;
    let scheduler = world.start(&[&[("DATABASE_URL", proxy.through(&world.url(Some("test_worker"))).as_str())], ALONE].concat()).await;
    world.count_is("select count(*) from work.task_runs where schedule = 't.tock'", 1).await;
    proxy.refuse().await;
    proxy.cut().await;
    scheduler.log("failed; trying again after a pause").await;
    go_by(&world, "2 minutes").await;
    proxy.accept().await;
    world.count_is("select count(*) from work.task_runs where schedule = 't.tock'", 2).await;
    assert_eq!(world.count("select occurrences::bigint from work.schedule_decisions where decision = 'missed'").await, 1);
}

#[tokio::test]
async fn ten_schedulers_killed_at_any_moment_leave_no_occurrence_half_decided() {
    let world = World::new().await;
    began(&world, "t.tock", 630.0).await;
    world.db.batch_execute("update work.units set overlap = 'skip' where name = 't.tock'").await.unwrap();
    for round in 0..10_u64 {
        let mut command =
            world.spawn_with("test-workers", &["schedule", "fire", "--due"], &[("DATABASE_URL", &world.url(Some("test_worker")))]);
        tokio::time::sleep(Duration::from_millis(20 * round)).await;
        command.kill();
    }
    let mut last = world.spawn_with("test-workers", &["schedule", "fire", "--due"], &[("DATABASE_URL", &world.url(Some("test_worker")))]);
    assert!(last.exit().await.success());
    let row = world.one("select count(*), (select count(*) from work.platform_outbox_messages), (select occurrences from work.schedule_decisions) from work.task_runs", &[]).await;
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1), row.get::<_, i32>(2)), (1, 1, 10), "run, outbox row and note go together");
}
