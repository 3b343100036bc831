//! The relay: carries due outbox rows to SQS. Any number may run; each row is held by one pass at a time.
//!
//! A pass is one transaction: claim, send, mark, commit. Killed anywhere before the commit it leaves the rows pending, so that they
//! are sent again (a second copy changes nothing, I2); a row is marked only where SQS named it as taken (I1). A target that fails
//! as a whole is left alone with growing pauses and then probed with one message, while the others go on (I5).

use std::{
    collections::HashMap,
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use deadpool_postgres::{Object, Pool};
use futures_util::{StreamExt, stream};
use tokio::sync::watch;
use tokio_postgres::IsolationLevel;

use crate::{
    config::RelayConfig,
    database,
    drive::{Next, Part, growing},
    envelope,
    error::Error,
    outbox::{self, From, NotSent, Row, Table},
    queue::Queue,
    sqs::{BATCH_BYTES, BATCH_ENTRIES, Outgoing, Queues, Sent, Target},
    wake::Sleeper,
};

/// Calls of one pass under way at a time.
const CONCURRENT_SENDS: usize = 16;
/// A send is not begun with less time than this.
const SHORTEST_SEND: Duration = Duration::from_millis(50);
/// Longest pause of a target that failed as a whole.
const TARGET_PAUSE: Duration = Duration::from_secs(8);
/// Longest pause of a row that SQS refused.
const ROW_PAUSE: Duration = Duration::from_secs(60);
/// Deadline of a probe of a failed target, so that it costs the others little.
const PROBE_DEADLINE: Duration = Duration::from_millis(500);
/// Each so-manyth probe has the whole deadline of a send: a target that has become slow is not taken for a dead one for ever.
const PATIENT_PROBE: u32 = 4;
/// Refusals of rows are told at most so often.
const REFUSALS_TOLD: Duration = Duration::from_secs(1);
/// A drained queue is claimed from so far back: rows of transactions that took longer to commit wait for the next full look.
const LOOKBACK: Duration = Duration::from_secs(10);
/// Full looks come at least so far apart, and take at most a twentieth of the time.
const FULL_LOOK: Duration = Duration::from_secs(5);

/// One loop of the relay, over all queues or over one.
pub(crate) struct Relay {
    pool: Pool,
    sqs: Queues,
    settings: RelayConfig,
    fair: bool,
    queues: Vec<Queue>,
    targets: HashMap<Target, Health>,
    looks: HashMap<(Queue, Table), Look>,
    refusals: Refusals,
}

/// Refusals that no log line has told yet.
#[derive(Debug, Default)]
struct Refusals {
    count: usize,
    told: Option<Instant>,
}

/// Whether a target takes messages.
#[derive(Debug, Default)]
struct Health {
    failures: u32,
    until: Option<Instant>,
}

impl Health {
    fn pause(&self) -> Option<Duration> {
        self.until.map(|until| until.saturating_duration_since(Instant::now())).filter(|pause| !pause.is_zero())
    }

    fn failed(&mut self) -> Duration {
        let pause = growing(self.failures).min(TARGET_PAUSE);
        self.failures = self.failures.saturating_add(1);
        self.until = Some(Instant::now() + pause);
        pause
    }

    /// How long the next send may take.
    fn patience(&self, limit: Duration) -> Duration {
        if self.failures.is_multiple_of(PATIENT_PROBE) { limit } else { PROBE_DEADLINE.min(limit) }
    }
}

/// From where the next claim of a queue and table looks.
#[derive(Debug)]
struct Look {
    next: NextLook,
    full_at: Instant,
    /// Whether rows may be due that the last look did not see or could not have.
    partial: bool,
}

#[derive(Debug, Clone, PartialEq)]
enum NextLook {
    Full,
    After(String),
    Since(Instant),
}

impl Look {
    fn from(&self) -> From {
        match &self.next {
            _ if Instant::now() >= self.full_at => From::TheStart,
            NextLook::Full => From::TheStart,
            NextLook::After(row) => From::Row(row.clone()),
            NextLook::Since(drained) => From::Ago(drained.elapsed() + LOOKBACK),
        }
    }

    /// `cost` is what the look took of PostgreSQL's time, not of SQS's.
    fn looked(&mut self, from: &From, began: Instant, cost: Duration, last: Option<String>) {
        self.partial = *from != From::TheStart;
        if !self.partial {
            self.full_at = Instant::now() + FULL_LOOK.max(cost * 20);
        }
        self.next = last.map_or(NextLook::Since(began), NextLook::After);
    }
}

impl Relay {
    pub(crate) fn new(pool: Pool, sqs: Queues, settings: RelayConfig, fair: bool, queues: Vec<Queue>) -> Relay {
        Relay { pool, sqs, settings, fair, queues, targets: HashMap::new(), looks: HashMap::new(), refusals: Refusals::default() }
    }

    /// The loops a relay is made of: one a queue where the pool has a connection for each, else one for all.
    pub(crate) fn lanes(connections: usize) -> Vec<Vec<Queue>> {
        if connections >= Queue::ALL.len() { Queue::ALL.map(|queue| vec![queue]).to_vec() } else { vec![Queue::ALL.to_vec()] }
    }

    /// One round: a pass of each queue and table that has rows due, critical ones between all others. At rest it costs two statements.
    pub(crate) async fn tick(&mut self) -> Result<Next, Error> {
        let mut connection = database::get(&self.pool).await?;
        let done = self.round(&mut connection).await;
        if done.is_err() {
            // It may be lost, or lead to a server that has become read-only for good: the next round has a new one.
            drop(Object::take(connection));
        }
        done
    }

    async fn round(&mut self, connection: &mut Object) -> Result<Next, Error> {
        let mut waits = Vec::new();
        let mut due = Vec::new();
        let began = Instant::now();
        let looks = Table::BOTH.map(|table| self.queues.clone().into_iter().map(|queue| (queue, self.look(queue, table).from())).collect());
        let [tenant, platform]: &[Vec<(Queue, From)>; 2] = &looks;
        // Both are on their way at once.
        let (tenant, platform) =
            tokio::try_join!(outbox::due(connection, Table::Tenant, tenant), outbox::due(connection, Table::Platform, platform))?;
        for ((table, states), looks) in Table::BOTH.into_iter().zip([tenant, platform]).zip(looks) {
            for (state, (queue, from)) in states.into_iter().zip(looks) {
                waits.extend(state.wait);
                if state.now {
                    due.push((queue, table));
                } else {
                    self.look(queue, table).looked(&from, began, began.elapsed(), None);
                }
            }
        }
        due.sort();
        let mut moved = false;
        for (queue, table) in due {
            moved |= self.pass(connection, queue, table).await?;
            if queue > self.queues[0] {
                for table in Table::BOTH {
                    moved |= self.pass(connection, self.queues[0], table).await?;
                }
            }
        }
        if moved {
            return Ok(Next::Busy);
        }
        let pauses = self.targets.values().filter_map(Health::pause);
        // A transaction that was open for long may have committed behind the last look; the sweep may be far away.
        let looks = self.looks.iter().filter(|((queue, _), look)| look.partial && !self.is_paused(*queue));
        let looks = looks.map(|(_, look)| look.full_at.saturating_duration_since(Instant::now()));
        Ok(Next::Idle(pauses.chain(looks).chain(waits).fold(self.settings.sweep, Duration::min)))
    }

    fn look(&mut self, queue: Queue, table: Table) -> &mut Look {
        self.looks.entry((queue, table)).or_insert_with(|| Look { next: NextLook::Full, full_at: Instant::now(), partial: false })
    }

    fn is_paused(&self, queue: Queue) -> bool {
        self.targets.get(&Target::Main(queue)).is_some_and(|health| health.pause().is_some())
    }

    fn health(&mut self, target: Target) -> &mut Health {
        self.targets.entry(target).or_default()
    }

    /// Claim, send, mark, commit: whether any row was claimed. On an error the transaction rolls back, and the rows stay as they were.
    async fn pass(&mut self, connection: &mut Object, queue: Queue, table: Table) -> Result<bool, Error> {
        if self.is_paused(queue) {
            return Ok(false);
        }
        let began = Instant::now();
        let probe = self.health(Target::Main(queue)).failures > 0;
        let limit = if probe { 1 } else { self.settings.batch };
        let from = self.look(queue, table).from();

        let transaction = connection
            .build_transaction()
            .isolation_level(IsolationLevel::ReadCommitted)
            .start()
            .await
            .map_err(Error::postgres("relay begin"))?;
        let rows = outbox::claim(&transaction, table, queue, &from, limit).await?;
        let cost = began.elapsed();
        // Until this pass has committed everything it claimed, its rows are looked for again.
        self.look(queue, table).next = NextLook::Full;
        if rows.is_empty() {
            transaction.rollback().await.map_err(Error::postgres("relay rollback"))?;
            let look = self.look(queue, table);
            look.looked(&from, began, cost, None);
            // Somebody else holds what was due; it may die with it.
            look.partial = true;
            return Ok(false);
        }
        let outcome = self.send(queue, &rows, began).await;
        if !outcome.sent.is_empty() {
            outbox::mark_sent(&transaction, table, &outcome.sent).await?;
        }
        if !outcome.not_sent.is_empty() {
            outbox::mark_failed(&transaction, table, &outcome.not_sent).await?;
        }
        transaction.commit().await.map_err(Error::postgres("relay commit"))?;
        if outcome.sent.len() + outcome.not_sent.len() == rows.len() {
            let full = rows.len() as i64 == limit;
            self.look(queue, table).looked(&from, began, cost, rows.last().filter(|_| full).map(|row| row.available_at.clone()));
        }
        Ok(true)
    }

    /// Sends claimed rows, each to its target. Rows that are in neither list of the outcome were not tried and stay due.
    async fn send(&mut self, queue: Queue, rows: &[Row], began: Instant) -> Outcome {
        let mut outcome = Outcome::default();
        let (letters, main): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| envelope::dead_letter(&row.envelope).is_some());
        for (target, rows) in [(Target::Main(queue), main), (Target::DeadLetters(queue), letters)] {
            if !rows.is_empty() {
                self.send_to(target, &rows, began, &mut outcome).await;
            }
        }
        outcome
    }

    async fn send_to(&mut self, target: Target, rows: &[&Row], began: Instant, outcome: &mut Outcome) {
        if let Some(pause) = self.health(target).pause() {
            outcome.not_sent.extend(rows.iter().map(|row| NotSent { id: row.id, pause, tried: false }));
            return;
        }
        let probe = self.health(target).failures > 0;
        let rows = if probe { &rows[..1] } else { rows };
        let longest = self.settings.send_timeout;
        let limit = self.health(target).patience(longest);
        let deadline = began + self.settings.send_timeout;
        let fair = self.fair;
        let batches = batches(rows.iter().map(|row| message(row, fair)));
        let stopped = AtomicBool::new(false);
        let sends = batches.into_iter().map(|batch| send_batch(&self.sqs, target, batch, deadline, limit, &stopped));
        let answers: Vec<Answer> = stream::iter(sends).buffer_unordered(CONCURRENT_SENDS).collect().await;

        let error = answers.iter().find_map(|(_, answer)| answer.as_ref().and_then(|answer| answer.as_ref().err()));
        let pause = match error {
            Some(error) => {
                let pause = self.targets.entry(target).or_default().failed();
                tracing::error!(%target, %error, pause_ms = pause.as_millis() as u64, "sending failed; the rows stay pending");
                pause
            }
            None => {
                *self.health(target) = Health::default();
                Duration::ZERO
            }
        };
        let mut refused: Option<(&Row, String)> = None;
        // One for all, so that rows that were refused together are tried together again.
        let jitter = rand::random_range(0.5..=1.0);
        for (place, answer) in answers {
            let batch = &rows[place];
            match answer {
                None => {}
                Some(Err(_)) => {
                    outcome.not_sent.extend(batch.iter().map(|row| NotSent { id: row.id, pause, tried: true }));
                }
                Some(Ok(sent)) => {
                    for (row, sent) in batch.iter().zip(sent) {
                        match sent {
                            Sent::Taken => outcome.sent.push(row.id),
                            Sent::Refused(reason) => {
                                outcome.not_sent.push(NotSent { id: row.id, pause: row_pause(row.attempts).mul_f64(jitter), tried: true });
                                self.refusals.count += 1;
                                refused = Some((row, reason));
                            }
                        }
                    }
                }
            }
        }
        if let Some((row, reason)) = refused
            && self.refusals.told.is_none_or(|told| told.elapsed() >= REFUSALS_TOLD)
        {
            let count = std::mem::take(&mut self.refusals.count);
            self.refusals.told = Some(Instant::now());
            let (queue, attempts) = (target.to_string(), row.attempts);
            tracing::warn!(queue, count, run_id = %row.run_id, attempts, reason, "SQS refused messages; they stay pending");
        }
    }
}

/// Which rows a batch held, and what SQS answered; `None` where it was not sent.
type Answer = (Range<usize>, Option<Result<Vec<Sent>, Error>>);

/// Sends one batch, unless a send of the same target failed meanwhile or the deadline is too near: then it answers nothing.
async fn send_batch(sqs: &Queues, target: Target, batch: Batch, deadline: Instant, limit: Duration, stopped: &AtomicBool) -> Answer {
    let left = deadline.saturating_duration_since(Instant::now()).min(limit);
    if stopped.load(Ordering::Relaxed) || left < SHORTEST_SEND {
        return (batch.place, None);
    }
    let answer = sqs.send(target, &batch.messages, left).await;
    stopped.fetch_or(answer.is_err(), Ordering::Relaxed);
    (batch.place, Some(answer))
}

#[derive(Debug, Default)]
struct Outcome {
    sent: Vec<i64>,
    not_sent: Vec<NotSent>,
}

/// Half a second at first, doubled at each refusal, up to a minute.
fn row_pause(attempts: i32) -> Duration {
    growing(attempts.try_into().unwrap_or_default()).min(ROW_PAUSE)
}

fn message(row: &Row, fair: bool) -> Outgoing {
    Outgoing {
        attributes: envelope::dead_letter(&row.envelope).unwrap_or_default(),
        body: row.envelope.clone(),
        group: row.tenant_id.filter(|_| fair).map(|id| id.to_string()),
    }
}

/// Messages of one call, and where in the pass they stand.
struct Batch {
    place: Range<usize>,
    bytes: usize,
    messages: Vec<Outgoing>,
}

/// Batches of at most ten messages and 256 KiB; one that is larger than that goes alone, for SQS to judge.
fn batches(messages: impl Iterator<Item = Outgoing>) -> Vec<Batch> {
    let mut batches: Vec<Batch> = Vec::new();
    for (place, message) in messages.enumerate() {
        let bytes = message.bytes();
        match batches.last_mut() {
            Some(batch) if batch.messages.len() < BATCH_ENTRIES && batch.bytes + bytes <= BATCH_BYTES => {
                batch.place.end = place + 1;
                batch.bytes += bytes;
                batch.messages.push(message);
            }
            _ => batches.push(Batch { place: place..place + 1, bytes, messages: vec![message] }),
        }
    }
    batches
}

/// A relay loop with what ends its pauses.
pub(crate) struct Lane {
    pub(crate) relay: Relay,
    pub(crate) woken: watch::Receiver<()>,
}

impl Part for Lane {
    fn name(&self) -> &'static str {
        "relay"
    }

    async fn tick(&mut self) -> Result<Next, Error> {
        self.relay.tick().await
    }

    async fn woken(&mut self) {
        if self.woken.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

/// Waits for wakes and passes them on to every loop of the relay.
pub(crate) struct Listener {
    pub(crate) sleeper: Sleeper,
    pub(crate) wake: watch::Sender<()>,
}

impl Part for Listener {
    fn name(&self) -> &'static str {
        "wake"
    }

    async fn tick(&mut self) -> Result<Next, Error> {
        if self.sleeper.wait().await? {
            self.wake.send_replace(());
        }
        Ok(Next::Busy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outgoing(bytes: usize) -> Outgoing {
        Outgoing { attributes: Vec::new(), body: "x".repeat(bytes), group: None }
    }

    #[test]
    fn batches_keep_to_ten_messages_and_to_their_bytes() {
        let places = |messages: Vec<Outgoing>| batches(messages.into_iter()).into_iter().map(|batch| batch.place).collect::<Vec<_>>();
        assert_eq!(places((0..25).map(|_| outgoing(100)).collect()), [0..10, 10..20, 20..25]);
        assert_eq!(places(vec![outgoing(200_000), outgoing(62_144), outgoing(1)]), [0..2, 2..3], "exactly 256 KiB fits");
        assert_eq!(places(vec![outgoing(1), outgoing(300_000), outgoing(1)]), [0..1, 1..2, 2..3], "an oversized one goes alone");
    }

    #[test]
    fn pauses_grow_to_their_limits() {
        let mut health = Health::default();
        let pauses: Vec<u128> = (0..7).map(|_| health.failed().as_millis()).collect();
        assert_eq!(pauses, [500, 1_000, 2_000, 4_000, 8_000, 8_000, 8_000]);
        assert_eq!((row_pause(0), row_pause(3), row_pause(i32::MAX)), (Duration::from_millis(500), Duration::from_secs(4), ROW_PAUSE));
    }

    #[test]
    fn each_fourth_probe_is_patient() {
        let limit = Duration::from_secs(5);
        let patient: Vec<bool> = (0..9).map(|failures| Health { failures, until: None }.patience(limit) == limit).collect();
        assert_eq!(patient, [true, false, false, false, true, false, false, false, true]);
    }

    #[test]
    fn a_claim_looks_back_only_as_far_as_it_must() {
        let now = Instant::now();
        let mut look = Look { next: NextLook::Full, full_at: now + Duration::from_secs(60), partial: false };
        assert_eq!(look.from(), From::TheStart);
        look.looked(&From::TheStart, now, Duration::ZERO, Some("2026-01-01".to_owned()));
        assert_eq!(look.from(), From::Row("2026-01-01".to_owned()));
        look.looked(&From::Row(String::new()), now, Duration::ZERO, None);
        assert!(look.partial && matches!(look.from(), From::Ago(time) if time >= LOOKBACK));
        look.full_at = Instant::now();
        assert_eq!(look.from(), From::TheStart, "now and then everything is looked at");
    }
}
