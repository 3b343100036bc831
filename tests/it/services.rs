//! Two programs with units of their own on one database: each loads and retires only its own, and each consumes queues of its own.

use crate::support::{World, connect};

/// The catalogue of `example-workers` beside that of `test-workers`.
async fn two_services() -> World {
    let world = World::new().await;
    let migrated = world.command("example-workers", &["migrate"]);
    assert!(migrated.status.success(), "{}", String::from_utf8_lossy(&migrated.stderr));
    assert!(String::from_utf8_lossy(&migrated.stdout).contains("added     sessions.record"));
    world
        .db
        .batch_execute(
            "create table public.sessions_recorded (run_id uuid primary key, email text not null);
             grant insert on public.sessions_recorded to test_worker",
        )
        .await
        .unwrap();
    world
}

const OWNERS: &str =
    "select string_agg(distinct concat_ws(' ', service, retired_at is null), ', ' order by concat_ws(' ', service, retired_at is null))
                        from work.units";

#[tokio::test]
async fn each_service_loads_and_retires_only_its_own_units_and_its_diff_shows_no_other() {
    let world = two_services().await;
    let diff = |program: &str| {
        let output = world.command(program, &["tasks", "diff"]);
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };
    for program in ["test-workers", "example-workers", "workers"] {
        // The last one is of the same service as the second, and has none of its units.
        let (fine, said) = diff(program);
        assert!(fine, "{said}");
        assert_eq!(said.contains("retired   sessions.record\n"), program == "workers", "{program}: {said}");
        assert!(!said.contains(" t."), "{program}: {said}");
    }
    for program in ["test-workers", "example-workers", "test-workers"] {
        assert!(world.command(program, &["migrate"]).status.success());
        assert_eq!(world.one(OWNERS, &[]).await.get::<_, String>(0), "monalisa t, test-workers t, workers t");
    }
    // Work of the one is orphaned only by the program of the one that lacks it.
    let sql = "select count(*) from work.publish('identity.session_started', '{\"email\": \"a@example.org\"}', tenant_id => 1)";
    assert_eq!(world.count(sql).await, 2);
    assert!(diff("test-workers").0);
    let (fine, said) = diff("workers");
    assert!(!fine && said.contains("orphaned  sessions.record: 1 runs queued"), "{said}");
    assert!(!said.contains("orphaned  identity."), "what ships is in every program: {said}");
    assert!(world.command("workers", &["migrate"]).status.success());
    assert_eq!(world.one(OWNERS, &[]).await.get::<_, String>(0), "monalisa t, test-workers t, workers f");
}

#[tokio::test]
async fn two_services_that_share_no_queue_run_each_others_nothing_and_all_of_their_own() {
    let world = two_services().await;
    let api = connect(&world.url(Some("test_api"))).await;
    let publish = "select * from work.publish('identity.session_started', '{\"email\": \"a@example.org\"}', tenant_id => 1)
                     where unit = 'sessions.record'";
    for _ in 0..5 {
        api.query_one(publish, &[]).await.unwrap();
        api.query_one("select work.dispatch('t.urgent', tenant_id => 1), work.dispatch('t.platform')", &[]).await.unwrap();
    }
    // One relay carries the rows of both.
    let _first = world.start(&[("QUEUES", "critical,bulk,maintenance"), ("MONALISA_RELAY", "true")]).await;
    let second = world.spawn("example-workers", &[("QUEUES", "default")]);
    second.log("ready").await;
    for unit in ["sessions.record", "t.urgent", "t.platform"] {
        world.count_is(&format!("select count(*) from work.task_runs where unit = '{unit}' and status = 'succeeded'"), 5).await;
    }
    assert_eq!(world.count("select count(*) from public.sessions_recorded").await, 5);
    assert_eq!(world.count("select count(*) from work.run_events where event = 'deferred'").await, 0);
    assert_eq!(world.count("select count(*) from work.task_runs where deferrals > 0").await, 0);
}

#[tokio::test]
async fn a_process_says_at_its_boot_and_in_the_doctor_which_units_of_its_queues_it_does_not_have() {
    let world = two_services().await;
    let process = world.spawn("example-workers", &[("QUEUES", "bulk")]);
    let told = process.log("the queue bulk carries units that this program does not have").await["message"].to_string();
    assert!(told.contains("t.platform (test-workers)") && told.contains("UNIT_NOT_REGISTERED"), "{told}");
    process.log("ready").await;
    let told = process.lines().iter().filter(|line| line.contains("carries units")).count();
    assert_eq!(told, 1, "of the consumed queues alone: {:#?}", process.lines());

    let doctor = |program: &str, queues: &str| {
        let done = world.command_with(program, &["doctor"], &[("QUEUES", queues), ("DATABASE_URL", &world.url(Some("test_worker")))]);
        (done.status.success(), String::from_utf8(done.stdout).unwrap())
    };
    let (well, said) = doctor("test-workers", "default,critical");
    assert!(
        well && said
            .contains("warning  catalogue: the queue default carries units that this program does not have: reports.generate (workers), sessions.record (workers)"),
        "{said}"
    );
    let (_, said) = doctor("test-workers", "critical,bulk");
    assert!(said.contains("ok       catalogue"), "{said}");
}
