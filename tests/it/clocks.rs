//! Machines whose clocks are wrong: PostgreSQL's clock alone decides (I6).

use std::{
    path::PathBuf,
    process::Command,
    sync::OnceLock,
    time::{Duration, Instant},
};

use crate::support::{Process, SOON, World, stretched};

const HOUR: i64 = 3_600;
const SENT: &str = "select count(*) from work.outbox_messages where sent_at is not null";

/// A library that moves the wall clock of the process it is loaded into.
fn library() -> &'static str {
    static BUILT: OnceLock<String> = OnceLock::new();
    BUILT.get_or_init(|| {
        let library: PathBuf = std::env::current_exe().unwrap().with_file_name(format!("skewed_clock_{}.so", std::process::id()));
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/support/skewed_clock.c");
        let built = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).args([source, "-ldl"]).status();
        assert!(built.expect("a C compiler").success());
        library.to_str().unwrap().to_owned()
    })
}

/// A process whose clock is so many seconds off; its own log shows that it is.
pub async fn skewed(world: &World, seconds: i64, changes: &[(&str, &str)]) -> Process {
    let seconds_text = seconds.to_string();
    let process = world.start(&[changes, &[("LD_PRELOAD", library()), ("SKEW_SECONDS", &seconds_text)]].concat()).await;
    let line = process.log("ready").await;
    let at: chrono::DateTime<chrono::Utc> = line["timestamp"].as_str().unwrap().parse().unwrap();
    let off = (at - chrono::Utc::now()).num_seconds();
    assert!((off - seconds).abs() < 60, "its clock is off by {off} s");
    process
}

#[tokio::test]
async fn a_relay_whose_clock_is_wrong_sends_what_is_due_and_nothing_before() {
    for (skew, name) in [(-2 * HOUR, "behind"), (2 * HOUR, "ahead")] {
        let world = World::new().await;
        let _relay = skewed(&world, skew, &[("MONALISA_RELAY", "true"), ("QUEUES", "bulk")]).await;
        world.dispatch("t.ok", "{}").await;
        world.sent_within(1, SOON).await;
        let began = Instant::now();
        world
            .db
            .batch_execute("select work.dispatch('t.ok', '{}', 1, delay => '3 s'), work.dispatch('t.ok', '{}', 1, delay => '1 hour')")
            .await
            .unwrap();
        world.count_is(SENT, 2).await;
        assert!((Duration::from_secs(3)..stretched(SOON)).contains(&began.elapsed()), "{name}: {:?}", began.elapsed());
        let early = "select count(*) from work.outbox_messages where sent_at < available_at or sent_at > clock_timestamp()";
        assert_eq!(world.count(early).await, 0, "{name}");
    }
}

#[tokio::test]
async fn a_worker_whose_clock_is_wrong_keeps_its_leases_and_takes_none_of_others() {
    let world = World::new().await;
    let short = ("MONALISA_VISIBILITY_SECONDS", "critical=4,default=4,bulk=4,maintenance=4");
    let _relay = world.start(&[("MONALISA_RELAY", "true"), ("QUEUES", "bulk")]).await;
    let _ahead = skewed(&world, HOUR, &[short]).await;
    let first = world.dispatch("t.sleep", r#"{"s":6}"#).await;
    world.run_is(first, "running").await;
    let _behind = skewed(&world, -HOUR, &[short]).await;
    let second = world.dispatch("t.sleep", r#"{"s":6}"#).await;
    for run in [first, second] {
        world.run_is(run, "succeeded").await;
        assert_eq!(world.trail(run).await, ["started", "succeeded"]);
    }
    let transient = world.dispatch("t.transient", r#"{"n":1}"#).await;
    world.run_is(transient, "succeeded").await;
    let odd = "select count(*) from (select at - lag(at) over (partition by run_id order by id) as step,
               at - clock_timestamp() as future from work.run_events) e where step < '0' or step > '1 minute' or future > '0'";
    assert_eq!(world.count(odd).await, 0, "the times of events agree with their order");
}

#[tokio::test]
async fn a_purge_whose_clock_is_eight_days_ahead_takes_only_what_is_old() {
    let world = World::new().await;
    world
        .db
        .batch_execute(
            "insert into work.outbox_messages (tenant_id, run_id, queue, envelope, sent_at, available_at)
             select 1, gen_random_uuid(), 'default', '{}', clock_timestamp() - age, clock_timestamp() - age
               from unnest(array['6 d 20 h', '7 d 1 h']::interval[]) age;
             insert into work.idempotency_keys (tenant_id, key, run_ids, request_hash, expires_at)
             values (1, 'lapses', '{}', '', clock_timestamp() + interval '1 hour'), (1, 'lapsed', '{}', '', clock_timestamp() - interval '1 hour')",
        )
        .await
        .unwrap();
    let _worker = skewed(&world, 8 * 24 * HOUR, &[("MONALISA_RELAY", "true")]).await;
    let run = world.one("select work.dispatch('maintenance.purge')", &[]).await.get(0);
    world.run_is(run, "succeeded").await;
    let left = world.one("select array(select key from work.idempotency_keys), (select count(*) from work.outbox_messages)", &[]).await;
    assert_eq!((left.get::<_, Vec<String>>(0), left.get::<_, i64>(1)), (vec!["lapses".to_owned()], 1));
}
