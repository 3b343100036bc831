//! Enqueueing by SQL: what is refused and how, what is written, and who may do it.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{World, connect, listening, refusal};

/// Every statement is refused with this code and name, has a hint, and leaves nothing.
async fn refused(world: &World, code: &str, name: &str, statements: &[&str]) {
    for statement in statements {
        let error = refusal(world.db.query(*statement, &[]).await);
        assert_eq!(error.code().code(), code, "{statement}: {error:?}");
        assert!(error.message().starts_with(&format!("{name}: ")), "{statement}: {}", error.message());
        assert!(error.hint().is_some_and(|hint| hint.len() > 10), "{statement} has no hint");
    }
    nothing_is_written(world).await;
}

async fn nothing_is_written(world: &World) {
    for table in ["task_runs", "outbox_messages", "platform_outbox_messages", "idempotency_keys", "run_events"] {
        assert_eq!(world.count(&format!("select count(*) from work.{table}")).await, 0, "{table}");
    }
}

#[tokio::test]
async fn a_name_that_is_no_task_is_refused_with_the_nearest_names() {
    let world = World::without_queues().await;
    let unknown = [
        "select work.dispatch('t.okk', '{}', 1)",
        "select work.dispatch(null, '{}', 1)",
        "select work.dispatch('t.happened_well', '{}', 1)",
    ];
    refused(&world, "ML001", "UNIT_NOT_IN_CATALOG", &unknown).await;
    let near = refusal(world.db.query(unknown[0], &[]).await);
    assert!(near.hint().unwrap().contains("t.ok"), "{near:?}");
    let subscriber = refusal(world.db.query(unknown[2], &[]).await);
    assert!(subscriber.hint().unwrap().contains("work.publish('test.happened'"), "{subscriber:?}");
}

#[tokio::test]
async fn without_a_catalogue_everything_is_refused() {
    let world = World::without_queues().await;
    world.db.batch_execute("delete from work.units; delete from work.catalogues").await.unwrap();
    refused(
        &world,
        "ML002",
        "CATALOG_NOT_LOADED",
        &["select work.dispatch('t.ok', '{}', 1)", "select work.publish('test.happened', '{}', 1, 1)"],
    )
    .await;
}

#[tokio::test]
async fn an_event_without_type_or_version_is_refused_and_not_taken_for_one_that_nobody_hears() {
    let world = World::without_queues().await;
    let nulls = ["select work.publish(null, '{}', 1, 1)", "select work.publish('test.happened', '{}', null, 1, idempotency_key => 'k')"];
    refused(&world, "ML016", "EVENT_INVALID", &nulls).await;
}

#[tokio::test]
async fn a_retired_unit_is_warned_about_for_seven_days_and_then_refused() {
    let world = World::without_queues().await;
    let retire = "update work.units set retired_at = clock_timestamp() - $1::text::interval where name = 't.ok'";
    world.db.execute(retire, &[&"8 days"]).await.unwrap();
    refused(&world, "ML003", "UNIT_RETIRED", &["select work.dispatch('t.ok', '{}', 1)"]).await;
    world.db.execute(retire, &[&"6 days 23 hours"]).await.unwrap();
    let (client, mut heard) = listening(&world.url(None)).await;
    client.query("select work.dispatch('t.ok', '{}', 1)", &[]).await.unwrap();
    let warning = heard.try_recv().unwrap();
    assert_eq!(warning.severity(), "WARNING");
    assert!(warning.message().starts_with("UNIT_RETIRED: t.ok") && warning.hint().is_some(), "{warning:?}");
    assert_eq!(world.count("select count(*) from work.outbox_messages").await, 1);
}

#[tokio::test]
async fn a_retired_subscriber_gets_its_runs_for_seven_days_with_a_warning() {
    let world = World::without_queues().await;
    let (client, mut heard) = listening(&world.url(None)).await;
    let publish = "select count(*) from work.publish('test.happened', '{}', 1, 1)";
    for (retired, runs) in [("6 days 23 hours", 2), ("8 days", 1)] {
        let sql = format!("update work.units set retired_at = clock_timestamp() - interval '{retired}' where name = 't.happened_well'");
        world.db.batch_execute(&sql).await.unwrap();
        let made: i64 = client.query_one(publish, &[]).await.unwrap().get(0);
        assert_eq!(made, runs, "{retired}");
        let warned = heard.try_recv().is_ok_and(|warning| warning.message().starts_with("UNIT_RETIRED: t.happened_well"));
        assert_eq!(warned, runs == 2, "{retired}");
    }
}

#[tokio::test]
async fn a_tenant_that_does_not_fit_the_unit_is_refused() {
    let world = World::without_queues().await;
    let name = "RUN_CONTEXT_MISMATCH";
    let without = ["select work.dispatch('t.ok')", "select work.dispatch('t.platform', '{}', 1)", "select work.publish('test.happened')"];
    refused(&world, "ML004", name, &without).await;
    world.db.batch_execute("set app.tenant_id = '2'").await.unwrap();
    refused(&world, "ML004", name, &["select work.dispatch('t.ok', '{}', 1)", "select work.publish('test.happened', '{}', 1, 1)"]).await;
    for wrong in ["two", "2.5", "9223372036854775808", "99999999999999999999"] {
        world.db.batch_execute(&format!("set app.tenant_id = '{wrong}'")).await.unwrap();
        refused(&world, "ML004", name, &["select work.dispatch('t.ok')"]).await;
    }
}

#[tokio::test]
async fn a_time_that_never_comes_or_is_said_twice_is_refused() {
    let world = World::without_queues().await;
    let wrong = [
        "select work.dispatch('t.ok', '{}', 1, delay => '1 second', run_at => now())",
        "select work.dispatch('t.ok', '{}', 1, delay => '-1 second')",
        "select work.dispatch('t.ok', '{}', 1, delay => '300000 years')",
        "select work.dispatch('t.ok', '{}', 1, run_at => 'infinity')",
        "select work.dispatch('t.ok', '{}', 1, run_at => '-infinity')",
        "select work.publish('test.happened', '{}', 1, 1, delay => '-1 second')",
    ];
    refused(&world, "ML005", "DELAY_INVALID", &wrong).await;
}

#[tokio::test]
async fn a_payload_that_is_no_object_or_too_large_is_refused() {
    let world = World::without_queues().await;
    let wrong = [
        "select work.dispatch('t.ok', '[1]', 1)",
        "select work.dispatch('t.ok', '\"text\"', 1)",
        "select work.dispatch('t.ok', null, 1)",
        "select work.publish('test.happened', '1', 1, 1)",
    ];
    refused(&world, "ML006", "PAYLOAD_INVALID", &wrong).await;
    let large = "select work.dispatch('t.ok', jsonb_build_object('secret', repeat('x', 1048576)), 1)";
    let publish = "select work.publish('test.happened', jsonb_build_object('secret', repeat('x', 1048576)), 1, 1)";
    refused(&world, "ML007", "PAYLOAD_TOO_LARGE", &[large, publish]).await;
    let error = refusal(world.db.query(large, &[]).await);
    assert!(error.detail().unwrap().contains("1048590 bytes") && error.detail().unwrap().contains("1048576 bytes"), "{error:?}");
    // What is exactly as large as the limit goes through.
    world.db.batch_execute("select work.dispatch('t.ok', jsonb_build_object('secret', repeat('x', 1048576 - 14)), 1)").await.unwrap();
    world.db.batch_execute("truncate work.task_runs, work.outbox_messages; set work.payload_max_bytes = 10").await.unwrap();
    refused(&world, "ML007", "PAYLOAD_TOO_LARGE", &["select work.dispatch('t.ok', '{\"note\": \"\"}', 1)"]).await;
    // It is a number of bytes, and whoever raises it for a session comes to an end of it.
    for setting in ["2MB", "-1", "1e9"] {
        world.db.batch_execute(&format!("set work.payload_max_bytes = '{setting}'")).await.unwrap();
        refused(&world, "ML036", "SETTING_INVALID", &["select work.dispatch('t.ok', '{}', 1)"]).await;
    }
    world.db.batch_execute("set work.payload_max_bytes = 999999999").await.unwrap();
    let huge = "select work.dispatch('t.ok', jsonb_build_object('secret', repeat('x', 16777216)), 1)";
    refused(&world, "ML007", "PAYLOAD_TOO_LARGE", &[huge]).await;
}

#[tokio::test]
async fn a_tenant_that_does_not_exist_is_refused_by_its_key() {
    let world = World::without_queues().await;
    for statement in ["select work.dispatch('t.ok', '{}', 999)", "select work.publish('test.happened', '{}', 1, 999)"] {
        assert_eq!(refusal(world.db.query(statement, &[]).await).code().code(), "23503");
    }
    nothing_is_written(&world).await;
}

#[tokio::test]
async fn a_malformed_traceparent_is_dropped_with_a_warning_and_a_good_one_travels() {
    let world = World::without_queues().await;
    let (client, mut heard) = listening(&world.url(None)).await;
    let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let zero = "00-00000000000000000000000000000000-00f067aa0ba902b7-01";
    for (traceparent, kept) in [(good, true), ("rubbish", false), (zero, false), (&good.to_uppercase(), false)] {
        let run: Uuid = client.query_one("select work.dispatch('t.ok', '{}', 1, traceparent => $1)", &[&traceparent]).await.unwrap().get(0);
        let sql = "select r.traceparent, o.envelope ->> 'traceparent' from work.task_runs r join work.outbox_messages o using (run_id) where run_id = $1";
        let row = world.one(sql, &[&run]).await;
        let expected = kept.then_some(traceparent);
        assert_eq!((row.get::<_, Option<&str>>(0), row.get::<_, Option<&str>>(1)), (expected, expected));
        match heard.try_recv() {
            Ok(warning) => {
                assert!(!kept && warning.message().starts_with("TRACEPARENT_DROPPED: ") && warning.hint().is_some(), "{warning:?}")
            }
            Err(_) => assert!(kept, "{traceparent} was dropped in silence"),
        }
    }
}

#[tokio::test]
async fn the_tenant_of_the_session_is_the_default_and_platform_work_ignores_it() {
    let world = World::without_queues().await;
    for tenant in ["7", "1234567890123456789"] {
        world
            .db
            .batch_execute(&format!("insert into public.tenants values ({tenant}) on conflict do nothing; set app.tenant_id = '{tenant}'"))
            .await
            .unwrap();
        world.db.batch_execute("select work.dispatch('t.ok'); select work.publish('test.happened')").await.unwrap();
        let rows = format!(
            "select count(*) from work.task_runs r join work.outbox_messages o using (run_id, tenant_id) where tenant_id = {tenant}"
        );
        assert_eq!(world.count(&rows).await, 3);
    }
    world.db.batch_execute("select work.dispatch('t.platform')").await.unwrap();
    let rows = "select count(*) from work.platform_outbox_messages join work.task_runs r using (run_id, queue) where r.tenant_id is null";
    assert_eq!(world.count(rows).await, 1);
}

#[tokio::test]
async fn an_event_reaches_the_subscribers_of_its_very_type_and_version() {
    let world = World::without_queues().await;
    let subscription = |name: &str, kind: &str, version: i32| json!({"name": name, "type": kind, "version": version, "queue": "bulk"});
    let catalogue = json!({"tasks": [], "subscriptions": [
        subscription("o.first", "thing.made", 1), subscription("o.second", "thing.made", 2), subscription("o.also", "thing.made", 2),
        subscription("o.other", "thing.made_up", 2)]});
    world.one("select count(*) from work.load_catalogue($1, 'other')", &[&catalogue]).await;
    for (version, expected) in [("1", vec!["o.first"]), ("2", vec!["o.also", "o.second"]), ("3", vec![])] {
        let rows =
            world.db.query(&format!("select unit, run_id from work.publish('thing.made', '{{}}', {version}, 1)"), &[]).await.unwrap();
        let units: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
        assert_eq!(units, expected, "version {version}");
        for row in &rows {
            let sql = "select r.unit, r.queue, o.envelope -> 'event' from work.task_runs r join work.outbox_messages o using (run_id) where run_id = $1";
            let run = world.one(sql, &[&row.get::<_, Uuid>(1)]).await;
            assert_eq!((run.get::<_, &str>(0), run.get::<_, &str>(1)), (row.get(0), "bulk"));
            assert_eq!(run.get::<_, Value>(2), json!({"type": "thing.made", "version": version.parse::<i32>().unwrap()}));
        }
    }
    assert_eq!(world.count("select count(*) from work.outbox_messages").await, 3);
}

#[tokio::test]
async fn a_payload_is_kept_digit_for_digit_and_never_travels() {
    let world = World::without_queues().await;
    let digits = "1".repeat(60);
    let payload = format!(
        "{{\"money\": 1.10, \"huge\": 1{}, \"long\": {digits}.{digits}, \"text\": \"ä 😀 \\\\ \\n\", \"deep\": {{\"list\": [null, true, [], {{}}]}}, \"none\": null}}",
        "0".repeat(400)
    );
    let written = payload.replace(&format!("1{}", "0".repeat(400)), "1e400");
    let run = world.dispatch("t.ok", &written).await;
    let row = world.one("select payload::text, payload = $2::text::jsonb from work.task_runs where run_id = $1", &[&run, &payload]).await;
    let kept: &str = row.get(0);
    for part in
        ["\"money\": 1.10", &format!("{digits}.{digits}"), &format!("1{}", "0".repeat(400)), "ä 😀 \\\\ \\n", "[null, true, [], {}]"]
    {
        assert!(kept.contains(part), "{part} is not in {kept}");
    }
    assert!(row.get::<_, bool>(1));
    let envelope: Value = world.one("select envelope from work.outbox_messages where run_id = $1", &[&run]).await.get(0);
    let fields: Vec<&str> = envelope.as_object().unwrap().keys().map(String::as_str).collect();
    let mut expected =
        ["v", "runId", "generation", "unit", "kind", "queue", "context", "tenantId", "scheduledFor", "event", "enqueuedAt", "traceparent"];
    expected.sort_unstable();
    assert_eq!(fields, expected);
    let run = json!(run.to_string());
    assert_eq!(
        (&envelope["v"], &envelope["runId"], &envelope["generation"], &envelope["tenantId"]),
        (&json!(1), &run, &json!(1), &json!(1))
    );
    assert_eq!(
        (&envelope["kind"], &envelope["unit"], &envelope["queue"], &envelope["context"]),
        (&json!("task"), &json!("t.ok"), &json!("default"), &json!("tenant"))
    );
}

#[tokio::test]
async fn a_run_is_shown_to_its_tenant_alone() {
    let world = World::without_queues().await;
    let api = connect(&world.url(Some("test_api"))).await;
    let run = world.dispatch("t.ok", "{}").await;
    let platform: Uuid = world.one("select work.dispatch('t.platform')", &[]).await.get(0);
    for (setting, own, others) in [("", 0, 1), ("1", 1, 0), ("2", 0, 0)] {
        api.batch_execute(&format!("set app.tenant_id = '{setting}'")).await.unwrap();
        assert_eq!(api.query("select * from work.run($1)", &[&run]).await.unwrap().len(), own, "tenant {setting:?}");
        assert_eq!(api.query("select * from work.run($1)", &[&platform]).await.unwrap().len(), others, "tenant {setting:?}");
    }
    api.batch_execute("set app.tenant_id = '1'").await.unwrap();
    let row = api
        .query_one("select status, attempt, failures, progress, last_error, finished_at is null from work.run($1)", &[&run])
        .await
        .unwrap();
    assert_eq!((row.get::<_, &str>(0), row.get::<_, i32>(1), row.get::<_, i32>(2), row.get::<_, bool>(5)), ("queued", 1, 0, true));
}

#[tokio::test]
async fn a_producer_enqueues_and_is_refused_every_table() {
    let world = World::without_queues().await;
    let api = connect(&world.url(Some("test_api"))).await;
    api.batch_execute(
        "select work.dispatch('t.ok', '{}', 1); select work.publish('test.happened', '{}', 1, 1); select work.dispatch('t.platform')",
    )
    .await
    .unwrap();
    assert_eq!(world.count("select count(*) from work.outbox_messages").await, 3);
    let tables = world
        .db
        .query("select relname::text from pg_class where relnamespace = 'work'::regnamespace and relkind = 'r'", &[])
        .await
        .unwrap();
    assert!(tables.len() >= 10);
    for table in tables.iter().map(|row| row.get::<_, &str>(0)) {
        for statement in [
            format!("select from work.{table}"),
            format!("insert into work.{table} default values"),
            format!("delete from work.{table}"),
            format!("truncate work.{table}"),
        ] {
            assert_eq!(refusal(api.execute(&statement, &[]).await).code().code(), "42501", "{statement}");
        }
    }
}

#[tokio::test]
async fn a_delay_of_days_and_months_is_the_same_in_every_time_zone() {
    let world = World::without_queues().await;
    for zone in ["UTC", "America/New_York", "Pacific/Kiritimati", "Australia/Lord_Howe"] {
        world.db.batch_execute(&format!("set timezone = '{zone}'")).await.unwrap();
        for delay in ["60 days", "130 days", "200 days 7 hours", "290 days", "400 days", "1 month"] {
            let run: uuid::Uuid = world.one("select work.dispatch('t.ok', '{}', 1, delay => $1::text::interval)", &[&delay]).await.get(0);
            let off = "select extract(epoch from (available_at at time zone 'UTC') - (created_at at time zone 'UTC' + $2::text::interval))::float8
                         from work.task_runs where run_id = $1";
            let off: f64 = world.one(off, &[&run, &delay]).await.get(0);
            assert!(off.abs() < 60.0, "{delay} in {zone} is off by {off} s");
        }
    }
}
