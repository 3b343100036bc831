//! Progress: seen while the run goes on, in nobody's way, and never more than what is true.

use monalisa::sql;
use uuid::Uuid;

use crate::support::{World, connect, wait_for};

/// As the API sees it.
async fn progress(api: &tokio_postgres::Client, run: Uuid) -> (String, i32) {
    let row = api.query_one("select status, progress from work.run($1)", &[&run]).await.unwrap();
    (row.get(0), row.get(1))
}

async fn api(world: &World) -> tokio_postgres::Client {
    let api = connect(&world.url(Some("test_api"))).await;
    api.batch_execute("set app.tenant_id = '1'").await.unwrap();
    api
}

#[tokio::test]
async fn progress_is_seen_while_the_effect_is_open_and_a_cancel_waits_for_nothing() {
    let world = World::new().await;
    let _workers = world.workers().await;
    let api = api(&world).await;
    let run = world.dispatch("t.progress", r#"{"reports": 500, "s": 0.1}"#).await;
    let more_than = async |before: i32| {
        wait_for(&format!("more than {before} percent"), async || match progress(&api, run).await {
            (status, percent) if ["queued", "running"].contains(&status.as_str()) => (percent > before).then_some(percent),
            (status, _) => panic!("{status}"),
        })
        .await
    };
    let first = more_than(0).await;
    let second = more_than(first).await;
    assert_eq!(world.effects(run).await, 0, "the effect is still open");
    let open = "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'monalisa effect'
                   and state = 'idle in transaction'";
    assert_eq!(world.count(open).await, 1);

    // Nobody holds the run's row for the time of its handler.
    world.db.batch_execute("set lock_timeout = '3s'").await.unwrap();
    world.one("select work.cancel($1, 'a test')", &[&run]).await;
    let (status, at_the_end) = progress(&api, run).await;
    assert!(status == "cancelled" && at_the_end >= second, "{status} {at_the_end}");
    world.nothing_is_open().await;
    assert_eq!(progress(&api, run).await, ("cancelled".to_owned(), at_the_end), "a late report changes nothing");
    assert_eq!(world.effects(run).await, 0);
}

#[tokio::test]
async fn a_late_report_changes_no_run_that_has_ended_or_is_anothers() {
    let world = World::new().await;
    let _workers = world.workers().await;
    let token = async |run: Uuid| {
        wait_for("the run to be started", async || {
            world.one("select token from work.task_runs where run_id = $1", &[&run]).await.get::<_, Option<Uuid>>(0)
        })
        .await
    };
    let report = async |run: Uuid, token: Uuid| world.db.query(sql::runs::PROGRESS.text, &[&run, &token, &33]).await.unwrap();
    let percent = async |run: Uuid| world.one("select progress from work.task_runs where run_id = $1", &[&run]).await.get::<_, i32>(0);
    let run = world.dispatch("t.sleep", r#"{"s": 1.0}"#).await;
    let lease = token(run).await;
    report(run, Uuid::new_v4()).await;
    assert_eq!(percent(run).await, 0, "another's token");
    report(run, lease).await;
    assert_eq!(percent(run).await, 33);
    world.run_is(run, "succeeded").await;
    report(run, lease).await;
    assert_eq!(percent(run).await, 100, "it has ended");
}

#[tokio::test]
async fn reports_in_a_tight_loop_cost_nothing_and_reach_the_database_once_a_second() {
    let world = World::new().await;
    world
        .db
        .batch_execute(
            "create table public.reports (run_id uuid, progress int);
             create function public.note_report() returns trigger language plpgsql security definer as
               $$ begin insert into public.reports values (new.run_id, new.progress); return null; end $$;
             create trigger note_report after update of progress on work.task_runs for each row
               when (old.status = 'running' and new.status = 'running') execute function public.note_report()",
        )
        .await
        .unwrap();
    let _workers = world.workers().await;
    let fast = world.dispatch("t.progress", r#"{"reports": 2000000}"#).await;
    let slow = world.dispatch("t.progress", r#"{"reports": 250, "s": 0.01}"#).await;
    for (run, most_per_report) in [(fast, 0.000_01), (slow, 0.3)] {
        world.run_is(run, "succeeded").await;
        let row = world.one("select outcome::text::float8, (select count(*) from reports r where r.run_id = t.run_id) from work.task_runs t where run_id = $1", &[&run]).await;
        let (took, reached): (f64, i64) = (row.get(0), row.get(1));
        assert!(reached >= 1 && reached as f64 <= took + 2.0, "{reached} reports reached the database in {took} s");
        assert!(took < most_per_report * if run == fast { 2_000_000.0 } else { 250.0 }, "{took} s");
        assert_eq!(world.one("select progress from work.task_runs where run_id = $1", &[&run]).await.get::<_, i32>(0), 100);
    }
}
