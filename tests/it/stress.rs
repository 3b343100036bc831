//! Everything at once: processes that die, hang, drain and lose answers, copies, lost messages, operators and purges, as a seed has it.
//!
//! `make stress SEED=… RUNS=…`. The processes repair nothing, so that whatever loses its carrier stays visible (I11); what SQS was made to
//! lose is repaired on the way and at the end, by the statements of the repair. Then `stress/proof.sql` finds no breach.

mod schedule;

use std::time::{Duration, Instant};

use monalisa::sql::{outbox, runs};
use tokio::task::JoinSet;
use tokio_postgres::Transaction;
use uuid::Uuid;

use self::schedule::{GIVE_BACK, PROCESSES, QUEUES, Step, Task, schedule};
use crate::support::{PATIENCE, Process, Proxy, World, connect, wait_for};

/// How long a fault waits for the moment it is made for.
const MOMENT: Duration = Duration::from_secs(1);
/// How long a drain may take until it gives back.
const DRAIN: Duration = Duration::from_millis(2_500);
/// Longer than a lease and the visibility of a message.
const FREEZE: Duration = Duration::from_secs(3);
/// Between two repairs at the end.
const REPAIR_PAUSE: Duration = Duration::from_secs(2);
const VISIBILITY: (&str, &str) = ("MONALISA_VISIBILITY_SECONDS", "critical=2,default=2,bulk=2,maintenance=2");
const UNFINISHED: &str = "status in ('queued', 'running', 'retrying')";
const PENDING: &str = "exists (select from work.outbox_messages where sent_at is null)
                       or exists (select from work.platform_outbox_messages where sent_at is null)";

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text:?}")))
}

#[tokio::test]
async fn whatever_fails_in_whatever_order_every_invariant_holds() {
    let (seed, runs) = (number("SEED", 1), number("RUNS", 120));
    println!("SEED={seed} RUNS={runs}");
    let mut stress = Stress::start().await;
    for (pause, step) in schedule(seed, runs as usize) {
        tokio::time::sleep(pause).await;
        stress.take(step).await;
    }
    let settled = stress.settle().await;
    stress.prove().await;
    assert!(settled, "a queue still holds messages");
}

/// A process behind a proxy of its own.
struct Place {
    proxy: Proxy,
    process: Process,
}

struct Stress {
    world: World,
    places: Vec<Place>,
    /// Processes that drain.
    leaving: Vec<Process>,
    /// What the processes that are gone have logged.
    said: Vec<String>,
    /// Bodies that were sent, with their queues.
    bodies: Vec<(String, String)>,
    /// Operators' acts, which may wait for a process that is frozen.
    acts: JoinSet<()>,
    began: Instant,
    frozen: Option<Frozen>,
}

/// A process that is frozen or parted, since when, and the leases it held then.
struct Frozen {
    at: usize,
    since: Instant,
    tokens: Vec<Uuid>,
}

impl Stress {
    async fn start() -> Stress {
        let world = World::new().await;
        world.db.batch_execute(include_str!("stress/setup.sql")).await.expect("the tables of the stress");
        let mut places = Vec::new();
        for place in 0..PROCESSES {
            let proxy = world.pg_proxy().await;
            let process = spawn(&world, &proxy, place);
            places.push(Place { proxy, process });
        }
        for place in &places {
            place.process.log("ready").await;
        }
        let (leaving, said, bodies, acts) = (Vec::new(), Vec::new(), Vec::new(), JoinSet::new());
        Stress { world, places, leaving, said, bodies, acts, began: Instant::now(), frozen: None }
    }

    /// A fault at the boot of a process ends it; whoever runs it starts it again.
    fn revive(&mut self) {
        for at in 0..PROCESSES {
            if self.places[at].process.has_exited() {
                let gone = self.replace(at);
                self.said.extend(gone.lines());
            }
        }
    }

    async fn take(&mut self, step: Step) {
        self.revive();
        let told = match &step {
            Step::Dispatch(tasks, commit) => format!("Dispatch of {}{}", tasks.len(), if *commit { "" } else { ", rolled back" }),
            step => format!("{step:?}"),
        };
        let done = match step {
            Step::Dispatch(tasks, commit) => self.dispatch(&tasks, commit).await,
            Step::Kill(at) => self.kill(at),
            Step::KillAt(at, statement) => self.kill_at(at, statement).await,
            Step::Freeze(at) => self.freeze(at).await,
            Step::Part(at) => self.part(at).await,
            Step::Thaw => self.thaw().await,
            Step::Drain(at) => self.drain(at),
            Step::LoseAnswer(at, statement) => {
                let proxy = &self.places[at].proxy;
                if is_word(statement) {
                    proxy.swallow_answer_to_just(statement)
                } else {
                    proxy.swallow_answer_to(statement)
                }
                true
            }
            Step::Cut(at) => {
                self.places[at].proxy.cut().await;
                true
            }
            Step::CutInCommit => self.cut_in_commit().await,
            Step::Sqs(rule) => self.world.sqs.fault(rule).is_ok(),
            Step::Copies(pick) => self.copies(pick).await,
            Step::Lose(queue) => self.lose(queue).await,
            Step::Redrive(queue) => self.redrive(queue).await,
            Step::Cancel(pick) => self.act("cancel", pick).await,
            Step::Retry(pick) => self.act("retry", pick).await,
            Step::Purge(pick) => self.purge_beside_a_retry(pick).await,
            Step::Repair => self.repair().await,
        };
        println!("{:7.3} {told}{}", self.began.elapsed().as_secs_f64(), if done { "" } else { " (nothing was there for it)" });
    }

    async fn dispatch(&mut self, tasks: &[Task], commit: bool) -> bool {
        let units: Vec<&str> = tasks.iter().map(|task| task.unit).collect();
        let payloads: Vec<&str> = tasks.iter().map(|task| task.payload.as_str()).collect();
        let tenants: Vec<i64> = tasks.iter().map(|task| task.tenant).collect();
        let mut client = connect(&self.world.url(None)).await;
        let transaction = client.transaction().await.unwrap();
        let sql = "insert into public.dispatched (run_id)
                   select work.dispatch(t.unit, t.payload::jsonb, t.tenant) from unnest($1::text[], $2::text[], $3::int8[]) t (unit, payload, tenant)
                   returning run_id";
        let rows = transaction.query(sql, &[&units, &payloads, &tenants]).await.unwrap();
        if commit {
            transaction.commit().await.unwrap();
        } else {
            transaction.rollback().await.unwrap();
            let ids: Vec<Uuid> = rows.iter().map(|row| row.get(0)).collect();
            self.world.db.execute("insert into public.rolled_back select unnest($1::uuid[])", &[&ids]).await.unwrap();
        }
        true
    }

    /// Another process takes the place of one that is gone.
    fn replace(&mut self, at: usize) -> Process {
        let Place { proxy, process } = &mut self.places[at];
        std::mem::replace(process, spawn(&self.world, proxy, at))
    }

    fn kill(&mut self, at: usize) -> bool {
        self.places[at].process.kill();
        let killed = self.replace(at);
        self.said.extend(killed.lines());
        true
    }

    async fn kill_at(&mut self, at: usize, statement: &str) -> bool {
        let drains = statement == GIVE_BACK;
        if drains {
            self.signal(at, "TERM");
        }
        let held = self.hold(at, statement, if drains { DRAIN } else { MOMENT }).await;
        self.places[at].process.kill();
        self.places[at].proxy.release();
        self.kill(at);
        held
    }

    async fn freeze(&mut self, at: usize) -> bool {
        let held = self.hold(at, "insert into public.effects", MOMENT).await;
        self.signal(at, "STOP");
        self.places[at].proxy.release();
        self.frozen = Some(Frozen { at, since: Instant::now(), tokens: self.leases(at).await });
        held
    }

    /// Its handler ends, its finish is on its way, and copies let others take its runs over: only the fence is in the way of the finish.
    async fn part(&mut self, at: usize) -> bool {
        let held = self.hold(at, "insert into public.effects", FREEZE).await;
        self.places[at].proxy.freeze();
        self.places[at].proxy.release();
        self.frozen = Some(Frozen { at, since: Instant::now(), tokens: self.leases(at).await });
        let sql =
            "select o.queue, o.envelope::text from work.outbox_messages o join work.task_runs r using (run_id) where r.token = any ($1)";
        let tokens = &self.frozen.as_ref().expect("it was just parted").tokens;
        for row in self.world.db.query(sql, &[tokens]).await.unwrap() {
            self.send(row.get(0), row.get(1)).await;
        }
        held
    }

    /// The leases that a process holds.
    async fn leases(&self, at: usize) -> Vec<Uuid> {
        let pid = self.places[at].process.id().to_string();
        let sql = "select token from work.task_runs where status = 'running' and worker like '%-' || $1 || '-%'";
        self.world.db.query(sql, &[&pid]).await.unwrap().iter().map(|row| row.get(0)).collect()
    }

    async fn thaw(&mut self) -> bool {
        let Some(Frozen { at, since, tokens }) = self.frozen.take() else { return false };
        tokio::time::sleep(FREEZE.saturating_sub(since.elapsed())).await;
        let sql = "select count(*) from work.task_runs where token = any ($1)";
        let taken = within(MOMENT, async || self.world.one(sql, &[&tokens]).await.get::<_, i64>(0) == 0).await;
        self.places[at].proxy.thaw();
        self.signal(at, "CONT") && taken && !tokens.is_empty()
    }

    /// Whether the process came to wait for the answer to this statement.
    async fn hold(&self, at: usize, statement: &str, limit: Duration) -> bool {
        let proxy = &self.places[at].proxy;
        let before = proxy.held();
        if is_word(statement) {
            proxy.hold_answer_to_just(statement)
        } else {
            proxy.hold_answer_to(statement)
        }
        within(limit, async || proxy.held() > before).await
    }

    fn signal(&self, at: usize, name: &str) -> bool {
        self.places[at].process.signal(name);
        true
    }

    fn drain(&mut self, at: usize) -> bool {
        self.signal(at, "TERM");
        let leaving = self.replace(at);
        self.leaving.push(leaving);
        true
    }

    async fn cut_in_commit(&mut self) -> bool {
        let sql = "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'monalisa effect'
                      and query = 'commit' and wait_event = 'PgSleep'";
        let committing = within(MOMENT, async || self.world.count(sql).await > 0).await;
        for (at, place) in self.places.iter().enumerate() {
            if self.frozen.as_ref().is_none_or(|frozen| frozen.at != at) {
                place.proxy.cut().await;
            }
        }
        committing
    }

    /// The body of a run that there is, and one that was sent before, whatever has become of its run.
    async fn copies(&mut self, pick: usize) -> bool {
        let sql = "select o.queue, o.envelope::text from public.dispatched d join work.outbox_messages o using (run_id) order by d.seq";
        let rows = self.world.db.query(sql, &[]).await.unwrap();
        self.bodies.extend(rows.get(pick % rows.len().max(1)).map(|row| (row.get(0), row.get(1))));
        for (queue, body) in [self.bodies.last(), self.bodies.get(pick % self.bodies.len().max(1))].into_iter().flatten() {
            self.send(queue, body).await;
        }
        !rows.is_empty()
    }

    async fn send(&self, queue: &str, body: &str) {
        let url = self.world.sqs.queue_url(&format!("t-{queue}"));
        self.world.queues().await.send_message().queue_url(url).message_body(body).send().await.expect("sent");
    }

    /// Takes messages out of a queue, as SQS hands them out.
    async fn receive(&self, queue: &str) -> Vec<(String, String)> {
        let url = self.world.sqs.queue_url(&format!("t-{queue}"));
        let receive = self.world.queues().await.receive_message().queue_url(url).max_number_of_messages(10).visibility_timeout(2);
        // A fault may meet this call too.
        let messages = receive.send().await.ok().and_then(|answer| answer.messages).unwrap_or_default();
        messages.into_iter().filter_map(|message| message.body.zip(message.receipt_handle)).collect()
    }

    async fn delete(&self, queue: &str, receipt: &str) {
        let url = self.world.sqs.queue_url(&format!("t-{queue}"));
        let _ = self.world.queues().await.delete_message().queue_url(url).receipt_handle(receipt).send().await;
    }

    async fn lose(&mut self, queue: &str) -> bool {
        let messages = self.receive(queue).await;
        for (body, receipt) in &messages {
            let sql = "insert into public.lost select (($1::text)::jsonb ->> 'runId')::uuid";
            self.world.db.execute(sql, &[body]).await.unwrap();
            self.delete(queue, receipt).await;
        }
        !messages.is_empty()
    }

    async fn redrive(&mut self, queue: &str) -> bool {
        let letters = self.receive(&format!("{queue}-dlq")).await;
        for (body, receipt) in &letters {
            self.send(queue, body).await;
            self.delete(&format!("{queue}-dlq"), receipt).await;
        }
        !letters.is_empty()
    }

    async fn act(&mut self, act: &'static str, pick: usize) -> bool {
        // Among those that it changes; where there is none, any.
        let sql = "select run_id, case $1 when 'cancel' then r.finished_at is null else r.status in ('failed', 'cancelled') end as meant
                     from public.dispatched d join work.task_runs r using (run_id) order by meant desc, d.seq";
        let runs = self.world.db.query(sql, &[&act]).await.unwrap();
        let meant = runs.iter().filter(|row| row.get("meant")).count();
        let among = if meant > 0 { meant } else { runs.len() };
        let Some(run) = runs.get(pick % among.max(1)).map(|row| row.get::<_, Uuid>("run_id")) else { return false };
        let url = self.world.url(Some("test_operator"));
        self.acts.spawn(async move {
            let operator = connect(&url).await;
            operator.batch_execute("set lock_timeout = '20s'").await.unwrap();
            let done = operator.query_one(&format!("select work.{act}($1, 'a stress')"), &[&run]).await;
            let refused = done.err().and_then(|error| error.code().map(|code| code.code().to_owned()));
            // Refused for its state, or a process that is frozen holds what it needs.
            assert!(refused.is_none() || matches!(refused.as_deref(), Some("ML019" | "55P03")), "{refused:?}");
        });
        true
    }

    async fn purge_beside_a_retry(&mut self, pick: usize) -> bool {
        let sql = "select run_id from work.outbox_messages o join work.task_runs r using (run_id)
                    where o.sent_at is not null and r.status in ('failed', 'cancelled') order by run_id";
        let mut reopenable = Vec::new();
        let found = within(MOMENT, async || {
            reopenable = self.world.db.query(sql, &[]).await.unwrap();
            !reopenable.is_empty()
        });
        if !found.await {
            return false;
        }
        let run: Uuid = reopenable[pick % reopenable.len()].get(0);
        let age = "update work.outbox_messages o set sent_at = o.sent_at - interval '8 days' from work.task_runs r
                    where r.run_id = o.run_id and o.sent_at is not null and (r.status = 'succeeded' or r.run_id = $1)";
        self.world.db.execute(age, &[&run]).await.unwrap();
        let mut operator = connect(&self.world.url(Some("test_operator"))).await;
        let retry: Transaction<'_> = operator.transaction().await.unwrap();
        if retry.query_one("select work.retry($1, 'beside a purge')", &[&run]).await.is_err() {
            return false;
        }
        let purger = connect(&self.world.url(Some("test_worker"))).await;
        let pid: i32 = purger.query_one("select pg_backend_pid()", &[]).await.unwrap().get(0);
        let purging = async {
            purger.query(outbox::PURGE.text, &[&None::<&str>, &1_000_i64]).await.unwrap();
        };
        let committing = async {
            // At once where the purge passes the row over; a purge that waits for it would delete it after this commit.
            let waits = "select count(*) from pg_stat_activity where pid = $1 and (state = 'idle' and query like '-- outbox/purge%' or wait_event_type = 'Lock')";
            wait_for("the purge", async || (self.world.one(waits, &[&pid]).await.get::<_, i64>(0) > 0).then_some(())).await;
            retry.commit().await.unwrap();
        };
        tokio::join!(purging, committing);
        true
    }

    /// What the service of a relay does each minute, for runs whose message was lost.
    async fn repair(&self) -> bool {
        let mut client = connect(&self.world.url(Some("test_worker"))).await;
        let ids: Vec<Uuid> = {
            let rows = self.world.db.query("select run_id from public.lost", &[]).await.unwrap();
            rows.iter().map(|row| row.get(0)).collect()
        };
        let transaction = client.transaction().await.unwrap();
        let sql = format!(
            "select run_id from work.task_runs where run_id = any ($1) and {UNFINISHED}
                and coalesce(lease_expires_at, available_at) < clock_timestamp() - interval '1 second' order by run_id for no key update skip locked"
        );
        let lost: Vec<Uuid> = transaction.query(&sql, &[&ids]).await.unwrap().iter().map(|row| row.get(0)).collect();
        let repaired: Vec<Uuid> = transaction.query(runs::REPAIR.text, &[&lost]).await.unwrap().iter().map(|row| row.get(0)).collect();
        transaction.query(runs::REISSUE.text, &[&repaired]).await.unwrap();
        transaction.commit().await.unwrap();
        !repaired.is_empty()
    }

    /// The faults end. What lost its message to SQS waits for a repair, everything else comes to its end by itself; false where it does not.
    async fn settle(&mut self) -> bool {
        self.world.sqs.clear_faults();
        self.revive();
        while let Some(done) = self.acts.join_next().await {
            done.expect("an act of an operator");
        }
        for mut process in std::mem::take(&mut self.leaving) {
            let ended = process.exit().await;
            let lines = process.all_lines().await;
            // One that met a fault in its boot never was ready, and says so.
            assert!(ended.success() || !lines.iter().any(|line| line.contains("\"ready\"")), "{lines:#?}");
            self.said.extend(lines);
        }
        let unfinished = format!(
            "select exists (select from work.task_runs where {UNFINISHED} and run_id not in (select run_id from public.lost)) or {PENDING}"
        );
        if !self.rests(&unfinished, PATIENCE).await {
            return false;
        }
        println!("{:7.3} everything but what was lost is finished", self.began.elapsed().as_secs_f64());
        let unfinished = format!("select exists (select from work.task_runs where {UNFINISHED}) or {PENDING}");
        let mut settled = false;
        let began = Instant::now();
        while !settled && began.elapsed() < PATIENCE {
            self.repair().await;
            settled = self.rests(&unfinished, REPAIR_PAUSE).await;
        }
        println!("{:7.3} settled", self.began.elapsed().as_secs_f64());
        settled
    }

    /// Waits until this is no more true and the queues are empty.
    async fn rests(&self, unfinished: &str, limit: Duration) -> bool {
        let began = Instant::now();
        while began.elapsed() < limit {
            let mut rests = !self.world.one(unfinished, &[]).await.get::<_, bool>(0);
            for queue in QUEUES {
                rests = rests && self.world.messages(queue).await == (0, 0);
            }
            if rests {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        false
    }

    async fn prove(&mut self) {
        for place in &mut self.places {
            place.process.kill();
            self.said.extend(place.process.lines());
        }
        let breaches = self.world.db.query(include_str!("stress/proof.sql"), &[]).await.expect("the proof runs");
        let mut told = Vec::new();
        for breach in &breaches {
            let (invariant, what, run): (&str, &str, Uuid) = (breach.get(0), breach.get(1), breach.get(2));
            told.push(format!("{invariant}: {what}; run {run}: {:?}", self.world.trail(run).await));
        }
        assert!(told.is_empty(), "{told:#?}");
        // No statement of the runtime ever tries a transition that the guard has to refuse, and no part of it panics.
        let wrong: Vec<&String> =
            self.said.iter().filter(|line| line.contains("TRANSITION_REFUSED") || line.contains("panicked")).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
        let refused = "select case when is_called then last_value else 0 end from public.refused";
        assert_eq!(self.world.count(refused).await, 0, "a final run was to be changed");
        let events = self.world.db.query("select event, count(*) from work.run_events group by 1 order by 1", &[]).await.unwrap();
        println!(
            "{}",
            events.iter().map(|row| format!("{} {}", row.get::<_, &str>(0), row.get::<_, i64>(1))).collect::<Vec<_>>().join(", ")
        );
    }
}

/// A process of the stress. It takes no run for lost.
fn spawn(world: &World, proxy: &Proxy, place: usize) -> Process {
    let url = proxy.through(&world.url(Some("test_worker")));
    let relay = if place < 2 { "true" } else { "false" };
    world.spawn(
        "test-workers",
        &[
            VISIBILITY,
            ("DATABASE_URL", &url),
            ("MONALISA_RELAY", relay),
            ("MONALISA_REPAIR_AFTER_SECONDS", "2592000"),
            // A run whose unit is full waits for 15 s: so long a stress does not last.
            ("MONALISA_CONCURRENCY", "s.work=12,s.parent=6,s.child=4"),
            ("MONALISA_STOP_TIMEOUT_MS", "6500"),
            ("MONALISA_BACKOFF_MAX_MS", "500"),
            ("MONALISA_RELAY_SEND_TIMEOUT_MS", "1000"),
        ],
    )
}

/// A word is the whole of a statement; anything else stands in one. Headers of others speak of commits too.
fn is_word(statement: &str) -> bool {
    statement.bytes().all(|byte| byte.is_ascii_alphabetic())
}

/// Whether it comes true soon.
async fn within(limit: Duration, mut ask: impl AsyncFnMut() -> bool) -> bool {
    let began = Instant::now();
    while began.elapsed() < limit {
        if ask().await {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    false
}
