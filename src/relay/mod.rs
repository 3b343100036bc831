//! The relay: carries due outbox rows to SQS. Any number may run; each row is held by one pass at a time.
//!
//! A pass is one transaction: claim, send, mark, commit. Killed anywhere before the commit it leaves the rows pending, so that they
//! are sent again (a second copy changes nothing, I2); a row is marked only where SQS named it as taken (I1). A target that fails
//! as a whole is left alone with growing pauses and then probed with one message, while the others go on (I5).

mod batch;
mod lane;
mod look;
mod target;

use std::{
    collections::HashMap,
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use deadpool_postgres::Object;
use futures_util::{StreamExt, stream};
use tokio_postgres::IsolationLevel;

use crate::{
    config::RelayConfig,
    drive::{Next, Repeated, growing},
    envelope,
    error::Error,
    outbox::{self, From, NotSent, Row, Table},
    pools::{self, Pools},
    queue::Queue,
    sqs::{Queues, Sent, Target},
};

pub(crate) use self::lane::{Lane, Listener};
use self::{
    batch::{Batch, batches, message},
    look::Look,
    target::Health,
};

/// Calls of one pass under way at a time.
const CONCURRENT_SENDS: usize = 16;
/// A send is not begun with less time than this.
const SHORTEST_SEND: Duration = Duration::from_millis(50);
/// Longest pause of a row that SQS refused.
const ROW_PAUSE: Duration = Duration::from_secs(60);
/// Refusals of rows are told at most so often.
const REFUSALS_TOLD: Duration = Duration::from_secs(1);

/// One loop of the relay, over all queues or over one.
pub(crate) struct Relay {
    pools: Pools,
    sqs: Queues,
    settings: RelayConfig,
    fair: bool,
    queues: Vec<Queue>,
    targets: HashMap<Target, Health>,
    looks: HashMap<(Queue, Table), Look>,
    refusals: Repeated,
}

impl Relay {
    pub(crate) fn new(pools: Pools, sqs: Queues, settings: RelayConfig, fair: bool, queues: Vec<Queue>) -> Relay {
        Relay { pools, sqs, settings, fair, queues, targets: HashMap::new(), looks: HashMap::new(), refusals: Repeated::new(REFUSALS_TOLD) }
    }

    /// The loops a relay is made of: one a queue where the pool has a connection for each, else one for all.
    pub(crate) fn lanes(connections: usize) -> Vec<Vec<Queue>> {
        if connections >= Queue::ALL.len() { Queue::ALL.map(|queue| vec![queue]).to_vec() } else { vec![Queue::ALL.to_vec()] }
    }

    /// One round: a pass of each queue and table that has rows due, critical ones between all others. At rest it costs two statements.
    pub(crate) async fn tick(&mut self) -> Result<Next, Error> {
        for health in self.targets.values_mut() {
            health.listen().await;
        }
        let mut session = self.pools.relay().await?;
        let done = self.round(&mut session).await;
        if done.as_ref().is_err_and(Error::took_too_long) {
            self.looks.values_mut().for_each(Look::took_too_long);
        }
        session.end(done)
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
        let looks = self.looks.iter().filter(|((queue, _), _)| !self.is_paused(*queue)).filter_map(|(_, look)| look.full_in());
        Ok(Next::Idle(pauses.chain(looks).chain(waits).fold(self.settings.sweep, Duration::min)))
    }

    /// For health and logs.
    pub(crate) fn lane_name(queues: &[Queue]) -> String {
        match queues {
            [queue] => format!("relay:{queue}"),
            _ => "relay".to_owned(),
        }
    }

    /// Why nothing could be sent, while there is anything to send to a target that fails.
    fn trouble(&self) -> Option<&str> {
        self.targets.values().find_map(Health::trouble)
    }

    fn look(&mut self, queue: Queue, table: Table) -> &mut Look {
        self.looks.entry((queue, table)).or_insert_with(Look::new)
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
        let limit = if self.health(Target::Main(queue)).is_doubtful() { 1 } else { self.settings.batch };
        let from = self.look(queue, table).from();

        let begin = connection.build_transaction().isolation_level(IsolationLevel::ReadCommitted);
        let transaction = pools::answered("relay begin", begin.start()).await?;
        let rows = outbox::claim(&transaction, table, queue, &from, limit).await?;
        let cost = began.elapsed();
        self.look(queue, table).claimed(&from);
        if rows.is_empty() {
            pools::answered("relay rollback", transaction.rollback()).await?;
            let look = self.look(queue, table);
            look.looked(&from, began, cost, None);
            look.missed();
            return Ok(false);
        }
        let outcome = self.send(queue, &rows, began).await;
        if !outcome.sent.is_empty() {
            outbox::mark_sent(&transaction, table, &outcome.sent).await?;
        }
        if !outcome.not_sent.is_empty() {
            outbox::mark_failed(&transaction, table, &outcome.not_sent).await?;
        }
        pools::answered("relay commit", transaction.commit()).await?;
        if outcome.sent.len() + outcome.not_sent.len() == rows.len() {
            let full = rows.len() as i64 == limit;
            self.look(queue, table).looked(&from, began, cost, rows.last().filter(|_| full));
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

    /// Sends rows in batches. After a failure no further one is begun, nor when the time of the pass is nearly over.
    async fn send_all(&self, target: Target, rows: &[&Row], began: Instant) -> Vec<Answer> {
        let deadline = began + self.settings.send_timeout;
        let stopped = AtomicBool::new(false);
        let sends = batches(rows.iter().map(|row| message(row, self.fair))).into_iter().map(async |Batch { place, messages, .. }| {
            let left = deadline.saturating_duration_since(Instant::now());
            if stopped.load(Ordering::Relaxed) || left < SHORTEST_SEND {
                return (place, None);
            }
            let answer = self.sqs.send(target, &messages, left).await;
            stopped.fetch_or(answer.is_err(), Ordering::Relaxed);
            (place, Some(answer))
        });
        stream::iter(sends).buffer_unordered(CONCURRENT_SENDS).collect().await
    }

    async fn probe(&mut self, target: Target, row: &Row) -> Vec<Answer> {
        let (sqs, limit, message) = (self.sqs.clone(), self.settings.send_timeout, message(row, self.fair));
        vec![(0..1, Some(self.health(target).probe(sqs, target, message, limit).await))]
    }

    async fn send_to(&mut self, target: Target, rows: &[&Row], began: Instant, outcome: &mut Outcome) {
        if let Some(pause) = self.health(target).pause() {
            outcome.not_sent.extend(rows.iter().map(|row| NotSent { id: row.id, pause, tried: false }));
            return;
        }
        let answers = match self.health(target).is_doubtful() {
            true => self.probe(target, rows[0]).await,
            false => self.send_all(target, rows, began).await,
        };
        let error = answers.iter().find_map(|(_, answer)| answer.as_ref().and_then(|answer| answer.as_ref().err()));
        let pause = match error {
            Some(error) => {
                let pause = self.targets.entry(target).or_default().failed(format!("{target}: {error}"));
                tracing::error!(%target, %error, pause_ms = pause.as_millis() as u64, "sending failed; the rows stay pending");
                pause
            }
            None => {
                self.health(target).answered();
                Duration::ZERO
            }
        };
        let mut refusals = 0;
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
                                refusals += 1;
                                refused = Some((row, reason));
                            }
                        }
                    }
                }
            }
        }
        if let Some((row, reason)) = refused
            && let Some(count) = self.refusals.tell(refusals)
        {
            let (queue, attempts) = (target.to_string(), row.attempts);
            tracing::warn!(queue, count, run_id = %row.run_id, attempts, reason, "SQS refused messages; they stay pending");
        }
    }
}

/// Which rows a batch held, and what SQS answered; `None` where it was not sent.
type Answer = (Range<usize>, Option<Result<Vec<Sent>, Error>>);

#[derive(Debug, Default)]
struct Outcome {
    sent: Vec<i64>,
    not_sent: Vec<NotSent>,
}

/// Half a second at first, doubled at each refusal, up to a minute.
fn row_pause(attempts: i32) -> Duration {
    growing(attempts.try_into().unwrap_or_default()).min(ROW_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_of_a_row_grows_to_its_limit() {
        assert_eq!((row_pause(0), row_pause(3), row_pause(i32::MAX)), (Duration::from_millis(500), Duration::from_secs(4), ROW_PAUSE));
    }
}
