//! Every statement that changes a run, on a run of every state: it makes the transitions of its name and no other, and none is refused.

use std::collections::BTreeSet;

use monalisa::sql::runs;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::support::World;

const STATES: [&str; 7] = ["queued", "running", "retrying", "succeeded", "failed", "cancelled", "skipped"];

/// Keeps each change of a status, and each new lease of a running run.
const RECORD: &str = "
    create table public.changes (change text);
    create function public.record_change() returns trigger language plpgsql security definer as $$ begin
      insert into public.changes values (concat_ws(' ', case when tg_op = 'INSERT' then 'new' else old.status end, new.status)); return null; end $$;
    create trigger record_insert after insert on work.task_runs for each row execute function public.record_change();
    create trigger record_update after update on work.task_runs for each row
      when (old.status <> new.status or old.token <> new.token) execute function public.record_change();";

/// A run in this state, its lease lapsed where it runs.
async fn run(world: &World, status: &str, columns: &str) -> (Uuid, Uuid) {
    let (run, token) = (world.dispatch("t.ok", "{}").await, Uuid::new_v4());
    let sql = format!(
        "set session_replication_role = replica;
         update work.outbox_messages set sent_at = created_at where run_id = '{run}';
         update work.task_runs set status = '{status}', started_at = created_at, available_at = created_at, last_error = 'BROKEN: text',
                token = case when '{status}' = 'running' then '{token}'::uuid end,
                lease_expires_at = case when '{status}' = 'running' then created_at end,
                finished_at = case when '{status}' in ('queued', 'running', 'retrying') then null else created_at end {columns}
          where run_id = '{run}';
         set session_replication_role = origin;
         delete from public.changes"
    );
    world.db.batch_execute(&sql).await.unwrap();
    (run, token)
}

type Parameters = Vec<Box<dyn ToSql + Sync>>;

/// A statement, what else is set in the run, its parameters, and the changes it makes, state by state.
struct Case {
    name: &'static str,
    text: &'static str,
    columns: &'static str,
    parameters: fn(Uuid, Uuid) -> Parameters,
    changes: &'static [&'static str],
}

fn fail(run: Uuid, token: Uuid, permanent: bool) -> Parameters {
    vec![Box::new(run), Box::new(token), Box::new("BROKEN"), Box::new("text"), Box::new(permanent), Box::new(5_f64)]
}

fn cases() -> Vec<Case> {
    let case = |name, text, columns, parameters, changes| Case { name, text, columns, parameters, changes };
    vec![
        case(
            "start",
            runs::START.text,
            "",
            |run, _| {
                vec![
                    Box::new(vec![run]),
                    Box::new(vec![1]),
                    Box::new(vec![Uuid::new_v4()]),
                    Box::new(vec![50_f64]),
                    Box::new(false),
                    Box::new("w"),
                    Box::new("on"),
                ]
            },
            &["queued running", "running running", "retrying running"],
        ),
        case(
            "succeed",
            runs::SUCCEED_ALONE.text,
            "",
            |run, token| vec![Box::new(run), Box::new(token), Box::new(None::<String>)],
            &["running succeeded"],
        ),
        case("fail for a while", runs::FAIL.text, "", |run, token| fail(run, token, false), &["running retrying"]),
        case("fail for good", runs::FAIL.text, "", |run, token| fail(run, token, true), &["running failed"]),
        case("fail the fifth time", runs::FAIL.text, ", failures = 4", |run, token| fail(run, token, false), &["running failed"]),
        case(
            "give back",
            runs::GIVE_BACK.text,
            "",
            |run, token| vec![Box::new(vec![run]), Box::new(vec![token]), Box::new("why"), Box::new(0_f64), Box::new(false)],
            &["running queued"],
        ),
        case("defer", runs::DEFER.text, "", |run, _| vec![Box::new(run), Box::new("w")], &["running queued"]),
        case(
            "defer the sixth time",
            runs::DEFER.text,
            ", deferrals = 5",
            |run, _| vec![Box::new(run), Box::new("w")],
            &["queued failed", "running failed", "retrying failed"],
        ),
        case("condemn", runs::CONDEMN.text, ", crashes = 4", |run, _| vec![Box::new(run)], &["running failed"]),
        case("redrive", runs::REOPEN.text, "", |run, _| vec![Box::new(run), Box::new(1), Box::new("w")], &["failed queued"]),
        case("postpone", runs::POSTPONE.text, "", |run, _| vec![Box::new(vec![run]), Box::new(vec![5_f64])], &[]),
        case("progress", runs::PROGRESS.text, "", |run, token| vec![Box::new(run), Box::new(token), Box::new(50)], &[]),
        case("reissue", runs::REISSUE.text, "", |run, _| vec![Box::new(vec![run])], &[]),
        case("repair", runs::REPAIR.text, "", |run, _| vec![Box::new(vec![run])], &["running queued"]),
        case("repair of the fifth crash", runs::REPAIR.text, ", crashes = 4", |run, _| vec![Box::new(vec![run])], &["running failed"]),
        case(
            "cancel",
            "select work.cancel($1, 'why')",
            "",
            |run, _| vec![Box::new(run)],
            &["queued cancelled", "running cancelled", "retrying cancelled"],
        ),
        case("retry", "select work.retry($1, 'why')", "", |run, _| vec![Box::new(run)], &["failed queued", "cancelled queued"]),
    ]
}

#[tokio::test]
async fn every_statement_makes_its_own_transitions_in_every_state_and_no_other() {
    let world = World::without_queues().await;
    world.db.batch_execute(RECORD).await.unwrap();
    world.dispatch("t.ok", "{}").await;
    let mut made = BTreeSet::from([world.one("select change from public.changes", &[]).await.get::<_, String>(0)]);
    for case in cases() {
        let mut changes = BTreeSet::new();
        for status in STATES {
            // It is given what runs/stranded has locked.
            if case.name.starts_with("repair") && !matches!(status, "queued" | "running" | "retrying") {
                continue;
            }
            let (run, token) = run(&world, status, case.columns).await;
            let parameters = (case.parameters)(run, token);
            let parameters: Vec<&(dyn ToSql + Sync)> = parameters.iter().map(|parameter| &**parameter).collect();
            if let Err(error) = world.db.query(case.text, &parameters).await {
                let code = error.code().map(|code| code.code().to_owned());
                // A finish without its lease, and a retry of what is not to be retried.
                assert!(matches!(code.as_deref(), Some("ML011" | "ML019")), "{} of a run that is {status}: {error:?}", case.name);
            }
            let rows = world.db.query("select change from public.changes", &[]).await.unwrap();
            changes.extend(rows.iter().map(|row| row.get::<_, String>(0)));
        }
        let expected: BTreeSet<String> = case.changes.iter().map(|change| (*change).to_owned()).collect();
        assert_eq!(changes, expected, "{}", case.name);
        made.extend(changes);
    }
    // A schedule is fired twice, the second time while the first run is unfinished.
    for time in ["2026-01-02T03:00:00Z", "2026-01-02T04:00:00Z"] {
        world.db.batch_execute("truncate public.changes").await.unwrap();
        world.one("select work.fire('t.tick', $1::text::timestamptz)", &[&time]).await;
        made.insert(world.one("select change from public.changes", &[]).await.get::<_, String>(0));
    }
    let rows = world.db.query("select concat_ws(' ', coalesce(from_status, 'new'), to_status) from work.transitions()", &[]).await.unwrap();
    let listed: BTreeSet<String> = rows.iter().map(|row| row.get(0)).collect();
    let unused: Vec<&String> = listed.difference(&made).collect();
    assert_eq!(unused, ["retrying queued"], "no statement makes this yet: a retry at once");
    assert!(made.is_subset(&listed), "{made:?}");
}
