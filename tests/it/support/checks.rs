//! What must be true after every fault.

use uuid::Uuid;

use super::{World, wait_for};

pub const UNFINISHED: &str = "select count(*) from work.task_runs where status in ('queued', 'running', 'retrying')";
/// Whether a handler has called.
pub const CALLED: &str = "select is_called::int::bigint from public.calls";
const OPEN: &str = "select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in transaction%'
                     and application_name like 'monalisa%'";

/// What a run has used up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    pub failures: i32,
    pub crashes: i32,
    pub deferrals: i32,
    pub interruptions: i32,
}

impl World {
    pub async fn counters(&self, run: Uuid) -> Counters {
        let row = self.one("select failures, crashes, deferrals, interruptions from work.task_runs where run_id = $1", &[&run]).await;
        Counters { failures: row.get(0), crashes: row.get(1), deferrals: row.get(2), interruptions: row.get(3) }
    }

    pub async fn last_error(&self, run: Uuid) -> String {
        self.one("select coalesce(last_error, '') from work.task_runs where run_id = $1", &[&run]).await.get(0)
    }

    /// Dispatches runs that take a moment, some in SQL and some asleep.
    pub async fn load(&self, runs: i32) {
        let dispatch = "select case when i % 2 = 0 then work.dispatch('t.sleep', jsonb_build_object('s', 0.02 * (i % 7)), 1 + i % 5)
                                    else work.dispatch('t.sql', '{\"q\":\"select pg_sleep(0.03)\"}', 1 + i % 5) end
                          from generate_series(1, $1) i";
        self.db.execute(dispatch, &[&runs]).await.unwrap();
    }

    /// The worker that a run started on last.
    pub async fn worker_of(&self, run: Uuid) -> String {
        self.one("select worker from work.task_runs where run_id = $1", &[&run]).await.get(0)
    }

    /// This run has succeeded after these events, its effect is there once, and no message is left of it.
    pub async fn ended_well(&self, run: Uuid, trail: &[&str]) {
        self.run_is(run, "succeeded").await;
        assert_eq!(self.trail(run).await, trail);
        self.messages_are("default", 0).await;
        assert_eq!(self.effects(run).await, 1);
        self.nothing_is_open().await;
    }

    /// No session of the runtime is in a transaction while nothing runs.
    pub async fn nothing_is_open(&self) {
        wait_for("every transaction to end", async || (self.count(OPEN).await == 0).then_some(())).await;
    }

    /// Nothing lost and nothing doubled: each run has succeeded, its effect is there once, its trail says so, and no transaction is open.
    pub async fn exactly_once(&self, runs: i64) {
        for (what, sql, expected) in [
            ("runs that succeeded", "select count(*) from work.task_runs where status = 'succeeded'", runs),
            ("effects", "select count(*) from public.effects", runs),
            ("effects of different runs", "select count(distinct run_id) from public.effects", runs),
            (
                "effects without a run that succeeded",
                "select count(*) from public.effects e left join work.task_runs r using (run_id) where r.status is distinct from 'succeeded'",
                0,
            ),
            ("successes in the trail", "select count(*) from work.run_events where event = 'succeeded'", runs),
            (
                "events after the success",
                "select count(*) from work.run_events s join work.run_events e on e.run_id = s.run_id and e.id > s.id where s.event = 'succeeded'",
                0,
            ),
            (
                "attempts that have no end in the trail, or no beginning",
                "select count(*) from (
                   select count(*) filter (where event = 'started') as starts,
                          count(*) filter (where event in ('succeeded', 'failed', 'retrying', 'interrupted', 'given_back', 'lost')) as ends
                     from work.run_events group by run_id) t where starts <> ends",
                0,
            ),
            ("more than five", "select count(*) from work.task_runs where failures + crashes > 5", 0),
            ("rows that were not sent", "select count(*) from work.outbox_messages where sent_at is null", 0),
        ] {
            assert_eq!(self.count(sql).await, expected, "{what}");
        }
        self.nothing_is_open().await;
    }
}
