//! `workers schedule`: list, next, fire; and the page about schedules, whose commands are run.

use std::process::Output;

use crate::support::{World, connect};

fn schedule(world: &World, arguments: &[&str]) -> Output {
    world.command_as("test_worker", "test-workers", &[&["schedule"], arguments].concat())
}

/// What it printed; it has succeeded.
fn said(world: &World, arguments: &[&str]) -> String {
    let output = schedule(world, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Sets when a schedule began, so many seconds ago; a minute's rate has occurrences each 60 s from there.
async fn began(world: &World, schedule: &str, ago: f64) {
    let sql = "update work.units set schedule_anchor = date_trunc('second', clock_timestamp()) - $2 * interval '1 second' where name = $1";
    world.db.execute(sql, &[&schedule, &ago]).await.unwrap();
}

/// The schedules of the test units alone, which began an hour ahead: nothing of them is due.
async fn quiet(world: &World) {
    world
        .db
        .batch_execute("update work.units set schedule_anchor = clock_timestamp() + interval '1 hour' where schedule is not null")
        .await
        .unwrap();
}

#[tokio::test]
async fn what_is_due_is_fired_once_the_latest_of_each_and_the_missed_are_noted() {
    let world = World::without_queues().await;
    quiet(&world).await;
    began(&world, "t.tick", 150.0).await;
    began(&world, "t.tock", 30.0).await;
    // Ten schedulers of the operating system at one moment.
    let commands: Vec<_> = (0..10)
        .map(|_| world.spawn_with("test-workers", &["schedule", "fire", "--due"], &[("DATABASE_URL", &world.url(Some("test_worker")))]))
        .collect();
    for mut command in commands {
        assert!(command.exit().await.success());
    }
    let runs = "select string_agg(format('%s %s', schedule, round(extract(epoch from created_at - scheduled_for) / 60)), ', ' order by schedule) from work.task_runs";
    // The latest of t.tick is 30 s old or a little more.
    let fired: String = world.one(runs, &[]).await.get(0);
    assert!(fired.starts_with("t.tick ") && fired.contains(", t.tock ") && fired.matches("t.").count() == 2, "{fired}");
    let missed = world
        .one(
            "select schedule, decision, occurrences, until - scheduled_for = interval '1 minute', local_time from work.schedule_decisions",
            &[],
        )
        .await;
    assert_eq!((missed.get::<_, &str>(0), missed.get::<_, &str>(1)), ("t.tick", "missed"));
    assert_eq!((missed.get::<_, i32>(2), missed.get::<_, bool>(3)), (2, true), "150 s and 90 s ago");
    assert!(missed.get::<_, &str>(4).ends_with("(2) UTC"), "{}", missed.get::<_, &str>(4));
    assert_eq!(said(&world, &["fire", "--due"]), "", "nothing more is due");
    assert_eq!(world.count("select count(*) from work.schedule_history").await, 3);
}

#[tokio::test]
async fn one_schedule_is_fired_by_name_with_a_time_or_at_its_latest() {
    let world = World::without_queues().await;
    quiet(&world).await;
    assert!(said(&world, &["fire", "t.tock"]).starts_with("nothing of t.tock is due; it comes at 20"));
    began(&world, "t.tock", 30.0).await;
    assert!(said(&world, &["fire", "t.tock"]).starts_with("fired    t.tock 20"));
    assert!(said(&world, &["fire", "t.tock"]).starts_with("nothing of t.tock is due"), "the latest has a run");
    let fired = said(&world, &["fire", "t.tick", "2026-01-02T03:00:00Z"]);
    assert!(fired.starts_with("fired    t.tick 2026-01-02T03:00:00Z: run "), "{fired}");
    assert_eq!(
        said(&world, &["fire", "t.tick", "2026-01-02T00:00:00-03:00"]),
        "exists   t.tick 2026-01-02T03:00:00Z: it was decided before\n"
    );
    let run = fired.trim_end().rsplit(' ').next().unwrap();
    assert_eq!(
        said(&world, &["fire", "t.tick", "2026-01-02T03:01:00Z"]),
        format!("skipped  t.tick 2026-01-02T03:01:00Z: its run {run} is unfinished\n")
    );
    // A time that its cron does not have is fired, and said.
    let odd = schedule(&world, &["fire", "t.nightly", "2026-01-02T03:00:00Z"]);
    assert!(odd.status.success() && String::from_utf8_lossy(&odd.stderr).contains("this is none of the times of cron(30 2 * * ? *)"));
    let even = schedule(&world, &["fire", "t.nightly", "2026-01-02T07:30:00Z"]);
    assert!(even.status.success() && !String::from_utf8_lossy(&even.stderr).contains("none of the times"));
}

#[tokio::test]
async fn what_is_no_time_is_refused_and_never_replaced_by_the_present() {
    let world = World::without_queues().await;
    for text in [
        "",
        "now",
        "2026-01-02",
        "2026-01-02T03:00:00",
        "<aws.scheduler.scheduled-time>",
        r"\u003caws.scheduler.scheduled-time\u003e",
        "1767322800",
    ] {
        let refused = schedule(&world, &["fire", "t.tick", text]);
        let why = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{text}: {why}");
        assert!(why.contains("never replaced by the present") && why.contains("placeholder") == text.contains("aws"), "{text}: {why}");
    }
    for (arguments, code) in
        [(&["fire"][..], 2), (&["fire", "t.tick", "--due"], 2), (&["next"], 2), (&["next", "t.tick", "--count", "0"], 2)]
    {
        assert_eq!(schedule(&world, arguments).status.code(), Some(code), "{arguments:?}");
    }
    for (arguments, words) in [
        (&["next", "t.tikc"][..], "did you mean t.tick?"),
        (&["fire", "t.tikc"], "did you mean t.tick?"),
        (&["fire", "t.tikc", "2026-01-02T03:00:00Z"], "ML001"),
        (&["fire", "t.ok", "2026-01-02T03:00:00Z"], "ML030"),
        (&["fire", "t.tick", "9999-01-02T03:00:00Z"], "ML031"),
    ] {
        let refused = schedule(&world, arguments);
        let why = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(1) && why.contains(words), "{arguments:?}: {why}");
    }
    assert_eq!(world.count("select count(*) from work.task_runs").await, 0);
}

#[tokio::test]
async fn the_coming_times_are_shown_in_utc_and_local_with_what_the_clock_does() {
    let world = World::without_queues().await;
    assert_eq!(
        said(&world, &["next", "t.nightly", "--after", "2026-03-06T12:00:00Z", "--count", "3"]),
        "t.nightly  cron(30 2 * * ? *)  America/New_York\n\
         2026-03-07T07:30:00Z  2026-03-07 02:30:00 -05:00\n\
         -                     2026-03-08 02:30            does not come: the clock is put forward\n\
         2026-03-09T06:30:00Z  2026-03-09 02:30:00 -04:00\n\
         2026-03-10T06:30:00Z  2026-03-10 02:30:00 -04:00\n"
    );
    let shows = async |expression: &str, after: &str, count: &str| {
        world.db.execute("update work.units set schedule = $1 where name = 't.nightly'", &[&expression]).await.unwrap();
        said(&world, &["next", "t.nightly", "--after", after, "--count", count]).lines().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(
        shows("cron(30 1 * * ? *)", "2026-11-01T00:00:00Z", "2").await,
        [
            "2026-11-01T05:30:00Z  2026-11-01 01:30:00 -04:00  the clock is put back: the first time",
            "-                     2026-11-01 01:30            comes again, and does not fire again: the clock is put back",
            "2026-11-02T06:30:00Z  2026-11-02 01:30:00 -05:00"
        ]
    );
    assert_eq!(
        shows("cron(0 * * * ? *)", "2026-11-01T04:30:00Z", "3").await,
        [
            "2026-11-01T05:00:00Z  2026-11-01 01:00:00 -04:00  the clock is put back: the first time",
            "2026-11-01T06:00:00Z  2026-11-01 01:00:00 -05:00  the clock is put back: the second time",
            "2026-11-01T07:00:00Z  2026-11-01 02:00:00 -05:00"
        ]
    );
    assert_eq!(
        shows("cron(0 9 1 1 ? 2027)", "2026-11-01T04:30:00Z", "3").await,
        ["2027-01-01T14:00:00Z  2027-01-01 09:00:00 -05:00", "no further times"]
    );
    let listed = said(&world, &["list"]);
    let line = listed.lines().find(|line| line.starts_with("t.nightly")).unwrap();
    assert!(line.contains("cron(0 9 1 1 ? 2027)") && line.contains("America/New_York") && line.contains("skip"), "{listed}");
    assert!(listed.lines().next().unwrap().starts_with("SCHEDULE") && listed.contains("maintenance.purge"), "{listed}");
}

#[tokio::test]
async fn what_the_clock_does_is_noted_and_one_schedule_that_cannot_be_read_holds_up_no_other() {
    let world = World::without_queues().await;
    quiet(&world).await;
    // A zone and a time of the day such that the clock was put forward over it in the last days is not to be had at all times: the day is made one.
    let notes = async || {
        let sql = "select string_agg(format('%s %s %s', decision, occurrences, local_time), '; ' order by scheduled_for) from work.schedule_decisions";
        world.one(sql, &[]).await.get::<_, Option<String>>(0).unwrap_or_default()
    };
    world
        .db
        .batch_execute(
            "update work.units set schedule = 'cron(30 2 8 3 ? 2026)', schedule_anchor = '2026-03-01T00:00:00Z' where name = 't.nightly';
             update work.units set schedule = 'cron(0 9 * * 1)', schedule_anchor = '2026-03-01T00:00:00Z' where name = 't.tick'",
        )
        .await
        .unwrap();
    began(&world, "t.tock", 30.0).await;
    let done = schedule(&world, &["fire", "--due"]);
    let (out, why) = (String::from_utf8(done.stdout).unwrap(), String::from_utf8(done.stderr).unwrap());
    assert!(done.status.code() == Some(1) && out.starts_with("fired    t.tock "), "{out}{why}");
    assert!(why.contains("t.tick") && why.contains("write cron(0 9 ? * 2 *)"), "{why}");
    assert_eq!(notes().await, "absent 1 2026-03-08 02:30 America/New_York");
    let absent = world.one("select scheduled_for = '2026-03-08T07:00:00Z' from work.schedule_history where decision = 'absent'", &[]).await;
    assert!(absent.get::<_, bool>(0), "when the clock was put forward");
    let _ = schedule(&world, &["fire", "--due"]);
    assert_eq!(world.count("select count(*) from work.schedule_decisions").await, 1, "once");
    world
        .db
        .batch_execute("update work.units set schedule = 'cron(0,30 1 2 11 ? 2025)', schedule_anchor = '2025-11-01T00:00:00Z' where name = 't.nightly'")
        .await
        .unwrap();
    let _ = schedule(&world, &["fire", "--due"]);
    assert!(
        notes().await.starts_with("missed 1 2025-11-02 01:00 America/New_York; repeated 2 2025-11-02 01:00 to 2025-11-02 01:30 (2)"),
        "{}",
        notes().await
    );
    let fired: String = world.one("select scheduled_for::text from work.task_runs where schedule = 't.nightly'", &[]).await.get(0);
    assert!(fired.starts_with("2025-11-02 05:30:00"), "{fired}");
}

#[tokio::test]
async fn an_occurrence_that_was_fired_ahead_of_its_time_holds_up_none_before_it() {
    let world = World::without_queues().await;
    quiet(&world).await;
    began(&world, "t.tock", 30.0).await;
    world.db.batch_execute("select work.fire('t.tock', clock_timestamp() + interval '23 hours')").await.unwrap();
    assert!(said(&world, &["fire", "--due"]).starts_with("fired    t.tock 20"));
}

#[tokio::test]
async fn a_schedule_that_is_changed_or_comes_back_begins_anew() {
    let world = World::without_queues().await;
    quiet(&world).await;
    began(&world, "t.tock", 150.0).await;
    let anchor = async || world.one("select schedule_anchor::text from work.units where name = 't.tock'", &[]).await.get::<_, String>(0);
    let migrate = || assert!(world.command("test-workers", &["migrate"]).status.success());
    let old = anchor().await;
    migrate();
    assert_eq!(anchor().await, old, "a deploy changes nothing");
    for change in ["schedule_timezone = 'Asia/Tokyo'", "schedule = 'rate(2 minutes)'", "retired_at = now()"] {
        world.db.batch_execute(&format!("update work.units set {change} where name = 't.tock'")).await.unwrap();
        let old = anchor().await;
        migrate();
        assert_ne!(anchor().await, old, "{change}");
    }
}

#[tokio::test]
async fn the_catalogue_carries_the_time_zone_and_says_what_is_wrong_with_a_schedule() {
    let world = World::without_queues().await;
    let catalogue: serde_json::Value = serde_json::from_slice(&world.command("test-workers", &["tasks", "generate", "-"]).stdout).unwrap();
    let task = |name: &str| catalogue["tasks"].as_array().unwrap().iter().find(|task| task["name"] == name).unwrap();
    assert_eq!((&task("t.nightly")["timezone"], &task("t.tick")["timezone"]), (&"America/New_York".into(), &"UTC".into()));
    assert!(task("t.ok").get("timezone").is_none());
    let loaded = world.one("select schedule, schedule_timezone from work.units where name = 't.nightly'", &[]).await;
    assert_eq!((loaded.get::<_, &str>(0), loaded.get::<_, &str>(1)), ("cron(30 2 * * ? *)", "America/New_York"));
}

/// The fenced blocks of a language in the page about schedules.
fn blocks(language: &str) -> Vec<String> {
    let page = include_str!("../../docs/schedules.md");
    let blocks = page.split("```").skip(1).step_by(2);
    blocks.filter_map(|block| block.strip_prefix(language)?.strip_prefix('\n')).map(str::to_owned).collect()
}

#[tokio::test]
async fn every_command_and_query_of_the_page_about_schedules_works() {
    let world = World::without_queues().await;
    let commands = blocks("sh").concat();
    assert!(commands.lines().count() >= 5, "{commands}");
    for command in commands.lines() {
        // A shell reads it as a person's would.
        let words = std::process::Command::new("bash").args(["-c", &format!("printf '%s\\n' {command}")]).output().unwrap();
        let words = String::from_utf8(words.stdout).unwrap();
        let (program, arguments) = words.split_once('\n').unwrap();
        let done = world.command_as("test_worker", program, &arguments.lines().collect::<Vec<_>>());
        assert!(done.status.success(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
    }
    let operator = connect(&world.url(Some("test_operator"))).await;
    let queries = blocks("sql");
    assert!(queries.len() >= 2, "{queries:?}");
    for query in queries {
        operator.batch_execute(&query).await.unwrap_or_else(|error| panic!("{query}: {error:?}"));
    }
    assert!(world.count("select count(*) from work.task_runs where schedule = 'maintenance.purge'").await >= 2);
    let compiled = include_str!("readme.rs");
    let rust = blocks("rust");
    assert!(rust.len() == 1 && compiled.contains(rust[0].trim()), "this is not in tests/it/readme.rs: {rust:?}");
}
