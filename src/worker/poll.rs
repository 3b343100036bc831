//! Receive and judge: what to do with each message that SQS hands out.
//!
//! The verdicts are PostgreSQL's (`sql/runs/judge.sql`); here each is carried out. A crash anywhere leaves the message undeleted or
//! its run terminal or pending in the outbox (I11): it comes back and is judged again.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use chrono::{DateTime, Utc};
use futures_util::{
    FutureExt,
    future::{BoxFuture, join, join_all},
};
use tokio::sync::{OwnedSemaphorePermit, watch};
use uuid::Uuid;

use crate::{
    database,
    drive::{Next, Part, Pause},
    envelope::Envelope,
    error::Error,
    ledger::{self, Deferred, Delivery, Start, Started, Verdict},
    queue::Queue,
    sqs::{BATCH_ENTRIES, MAX_HIDDEN},
};

use super::{Worker, attempt::Attempt, holds::Hold, settle::Settle};

/// A message without a run may have come before its commit is visible everywhere: it is looked at three times.
const NO_RUN_RECEIVES: i32 = 3;
const NO_RUN_PAUSE: Duration = Duration::from_secs(5);
/// How long a run waits in the outbox whose unit is full here.
const FULL_PAUSE: Duration = Duration::from_secs(15);

/// Polls one queue.
pub(crate) struct Poller {
    pub(crate) worker: Arc<Worker>,
    pub(crate) queue: Queue,
    /// A slot became free.
    pub(crate) freed: watch::Receiver<()>,
}

impl Part for Poller {
    fn name(&self) -> &'static str {
        "poller"
    }

    async fn tick(&mut self) -> Result<Next, Error> {
        self.worker.poll(self.queue).await
    }

    async fn woken(&mut self) {
        if self.freed.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

/// A message in hand that could be read.
#[derive(Debug, Clone)]
struct Offer {
    hold: Hold,
    delivery: Delivery,
}

/// The right to start a run: a slot of its unit, and the gate.
struct Permit {
    slot: OwnedSemaphorePermit,
    gate: Gate,
}

enum Gate {
    Shared(tokio::sync::OwnedRwLockReadGuard<()>),
    Alone(tokio::sync::OwnedRwLockWriteGuard<()>),
}

impl Worker {
    /// One receive of a queue, and what follows from it.
    pub(crate) async fn poll(self: &Arc<Self>, queue: Queue) -> Result<Next, Error> {
        let free = self.slots.free(queue);
        if free == 0 {
            // Whoever frees a slot wakes this poller.
            return Ok(Next::Idle(Duration::from_secs(1)));
        }
        // While PostgreSQL cannot be reached nothing is received.
        let asked_at = self.reach_database(queue).await?;
        if self.stop.is_cancelled() {
            return Ok(Next::Busy);
        }
        let asked = Instant::now();
        let messages = self.sqs.receive(queue, free.min(BATCH_ENTRIES), self.wait, self.visibility.of(queue)).await?;
        if messages.is_empty() {
            self.seen.note(queue, asked_at);
            // Some engines answer at once instead of waiting: they are asked at most ten times a second.
            let rest = Duration::from_millis(100).saturating_sub(asked.elapsed());
            return Ok(if rest.is_zero() { Next::Busy } else { Next::Idle(rest) });
        }
        let received = Instant::now();
        let mut offers = Vec::new();
        let mut foreign = Vec::new();
        for message in messages {
            let hold = self.holds.take(queue, message.receipt.clone(), received);
            match Envelope::read(&message.body) {
                Ok(envelope) => {
                    let delivery = Delivery {
                        run_id: envelope.run_id,
                        generation: envelope.generation,
                        mark: envelope.mark(),
                        receives: message.receives,
                    };
                    offers.push(Offer { hold, delivery });
                }
                Err(reason) => foreign.push((hold, message, reason)),
            }
        }
        // Side by side: a dead-letter queue that hangs holds up no run.
        let refusing = join_all(foreign.iter().map(|(hold, message, reason)| self.refuse(hold, &message.body, "UNREADABLE", reason)));
        let judging = async {
            if !self.stop.is_cancelled() {
                return self.judge(offers).await;
            }
            for offer in &offers {
                self.settle(&offer.hold, Settle::Hide(Duration::ZERO)).await;
            }
        };
        join(judging, refusing).await;
        Ok(Next::Busy)
    }

    /// Writes down how far the queue was served, and reads the database clock before the next receive.
    async fn reach_database(&self, queue: Queue) -> Result<DateTime<Utc>, Error> {
        let connection = database::get(&self.pools.control).await?;
        let now = ledger::serve(&connection, queue, self.seen.until(queue)).await;
        match now {
            Ok(_) => self.database.beat(),
            // It may lead to a server that has become read-only for good: the next receive has a new one.
            Err(_) => self.pools.discard(connection),
        }
        now
    }

    /// Ends the heartbeat of a message, then deletes or hides it.
    pub(crate) async fn settle(&self, hold: &Hold, what: Settle) {
        self.holds.release(hold).await;
        self.settlers.settle(hold, what).await;
    }

    /// A body that no run stands behind: kept in the dead-letter queue with the reason, then deleted.
    async fn refuse(&self, hold: &Hold, body: &str, code: &str, reason: &str) {
        tracing::warn!(queue = %hold.queue, code, reason, "a message that is not ours goes to the dead-letter queue");
        match self.sqs.send_unreadable(hold.queue, body, code, reason).await {
            Ok(()) => self.settle(hold, Settle::Delete).await,
            Err(error) => {
                tracing::error!(queue = %hold.queue, %error, "the dead-letter queue did not take it; it is tried again when it comes back");
                self.settle(hold, Settle::Hide(NO_RUN_PAUSE)).await;
            }
        }
    }

    /// Judges messages and carries the verdicts out. While PostgreSQL is away they stay in hand under heartbeat.
    async fn judge(self: &Arc<Self>, offers: Vec<Offer>) {
        if offers.is_empty() {
            return;
        }
        let deliveries: Vec<Delivery> = offers.iter().map(|offer| offer.delivery).collect();
        let verdicts = self
            .until_answered("judging messages", || async {
                let connection = database::get(&self.pools.control).await?;
                ledger::judge(&connection, &deliveries, self.slots.known()).await
            })
            .await;
        let Some(verdicts) = verdicts else {
            for offer in &offers {
                self.settle(&offer.hold, Settle::Hide(Duration::ZERO)).await;
            }
            return;
        };
        let mut ready = Vec::new();
        let mut others: Vec<BoxFuture<'_, ()>> = Vec::new();
        let mut runs = HashSet::new();
        for (offer, verdict) in offers.into_iter().zip(verdicts) {
            let (unit, suspect) = match verdict {
                Verdict::Ready(unit) => (unit, false),
                Verdict::Suspect(unit) => (unit, true),
                verdict => {
                    others.push(self.carry_out(offer, verdict).boxed());
                    continue;
                }
            };
            if !runs.insert(offer.delivery.run_id) {
                // A second copy in one batch: its run is about to be held.
                let time = jittered(self.lease(offer.hold.queue, Duration::ZERO));
                others.push(async move { self.settle(&offer.hold, Settle::Hide(time)).await }.boxed());
                continue;
            }
            match self.permit_now(&unit, suspect) {
                Some(permit) => ready.push((offer, permit)),
                None if self.slots.enter_waiting() => self.start_later(offer, unit, suspect),
                None => others.push(self.postpone(offer).boxed()),
            }
        }
        // What may start does not wait for what the others need, which goes one by one: there are few connections for it.
        let others = async {
            for other in others {
                other.await;
            }
        };
        join(self.start(ready), others).await;
    }

    /// Runs a database step until it is answered; `None` when the process stops first. Errors are logged with growing pauses.
    pub(crate) async fn until_answered<T, F>(&self, what: &str, step: impl Fn() -> F) -> Option<T>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let mut pause = Pause::new(Duration::from_secs(5));
        loop {
            match step().await {
                Ok(answer) => return Some(answer),
                Err(error) => {
                    let wait = pause.next();
                    tracing::error!(%error, pause_ms = wait.as_millis() as u64, "{what} failed; trying again after a pause");
                    tokio::select! {
                        () = self.cut.cancelled() => return None,
                        () = tokio::time::sleep(wait) => {}
                    }
                }
            }
        }
    }

    async fn carry_out(self: &Arc<Self>, offer: Offer, verdict: Verdict) {
        let Offer { hold, delivery } = &offer;
        let done: Result<Settle, Error> = async {
            match verdict {
                Verdict::Over => Ok(Settle::Delete),
                Verdict::Ready(_) | Verdict::Suspect(_) => Ok(Settle::Hide(jittered(Duration::from_secs(1)))),
                Verdict::NoRun if delivery.receives < NO_RUN_RECEIVES => Ok(Settle::Hide(NO_RUN_PAUSE)),
                Verdict::NoRun => {
                    let body = serde_json::json!({ "runId": delivery.run_id, "generation": delivery.generation }).to_string();
                    let sent = self.sqs.send_unreadable(hold.queue, &body, "NO_SUCH_RUN", "the ledger holds no run of this id").await;
                    sent.map(|()| Settle::Delete)
                }
                Verdict::Redriven => {
                    let mut connection = database::get(&self.pools.control).await?;
                    if ledger::reopen(&mut connection, delivery.run_id, delivery.mark, &self.id).await? {
                        tracing::info!(run_id = %delivery.run_id, "a dead letter came back: the run is reopened");
                    }
                    self.wakes.wake().await;
                    Ok(Settle::Delete)
                }
                Verdict::Spent => self.renew(delivery.run_id).await,
                Verdict::Wait(time) => {
                    let time = jittered(time);
                    let left = MAX_HIDDEN.saturating_sub(hold.received.elapsed() + Duration::from_secs(60));
                    if time > left { self.renew(delivery.run_id).await } else { Ok(Settle::Hide(time)) }
                }
                Verdict::Condemned => {
                    let mut connection = database::get(&self.pools.control).await?;
                    if !ledger::condemn(&mut connection, delivery.run_id).await? {
                        return Ok(Settle::Hide(jittered(Duration::from_secs(1))));
                    }
                    tracing::error!(run_id = %delivery.run_id, code = "WORKER_LOST", "the run failed: its worker died too often");
                    self.wakes.wake().await;
                    Ok(Settle::Delete)
                }
                Verdict::Unknown(unit) => {
                    let mut connection = database::get(&self.pools.control).await?;
                    match ledger::defer(&mut connection, delivery.run_id, &self.id).await? {
                        Deferred::Until(time) => {
                            tracing::warn!(run_id = %delivery.run_id, unit, code = "UNIT_NOT_REGISTERED", delay_s = time.as_secs(),
                                "this process does not know the unit; deploy workers that do");
                            Ok(Settle::Hide(time))
                        }
                        Deferred::Failed => {
                            tracing::error!(run_id = %delivery.run_id, unit, code = "UNIT_NOT_REGISTERED", "the run failed: no worker knows its unit");
                            self.wakes.wake().await;
                            Ok(Settle::Delete)
                        }
                        Deferred::Changed => Ok(Settle::Hide(jittered(Duration::from_secs(1)))),
                    }
                }
            }
        }
        .await;
        match done {
            Ok(what) => self.settle(hold, what).await,
            Err(error) => {
                // Nothing was committed, or it was and the next judgement finds it so: the message comes back soon.
                tracing::error!(run_id = %delivery.run_id, %error, "a verdict could not be carried out; the message comes back");
                self.settle(hold, Settle::Hide(NO_RUN_PAUSE)).await;
            }
        }
    }

    /// The run gets a new message through the outbox; this one may go.
    async fn renew(&self, run_id: Uuid) -> Result<Settle, Error> {
        let mut connection = database::get(&self.pools.control).await?;
        ledger::renew(&mut connection, &[run_id]).await?;
        self.wakes.wake().await;
        Ok(Settle::Delete)
    }

    /// Too many messages wait here already: this one returns after a while, through the outbox where its run still waits.
    async fn postpone(&self, offer: Offer) {
        let postponed = async {
            let mut connection = database::get(&self.pools.control).await?;
            ledger::postpone(&mut connection, offer.delivery.run_id, jittered(FULL_PAUSE)).await
        };
        let what = match postponed.await {
            Ok(true) => Settle::Delete,
            // It waits no more: started or finished meanwhile, or its lease lapsed. This message may be its only one and is judged again.
            Ok(false) => Settle::Hide(jittered(FULL_PAUSE)),
            Err(error) => {
                tracing::warn!(run_id = %offer.delivery.run_id, %error, "a run whose unit is full was not postponed; its message comes back");
                Settle::Hide(jittered(FULL_PAUSE))
            }
        };
        self.settle(&offer.hold, what).await;
    }

    /// Waits in the background for a slot (and, for a suspect, until nothing else runs here), under heartbeat.
    fn start_later(self: &Arc<Self>, offer: Offer, unit: String, suspect: bool) {
        let worker = self.clone();
        self.tasks.spawn(async move {
            let permit = tokio::select! {
                () = worker.stop.cancelled() => None,
                permit = worker.permit(&unit, suspect) => permit,
            };
            worker.slots.leave_waiting();
            match permit {
                Some(permit) => worker.start(vec![(offer, permit)]).await,
                None => worker.settle(&offer.hold, Settle::Hide(Duration::ZERO)).await,
            }
        });
    }

    /// A slot that is free now and the gate open; never for a suspect, which waits for the others to end.
    fn permit_now(&self, unit: &str, suspect: bool) -> Option<Permit> {
        let slot = self.slots.get(unit)?.free.clone().try_acquire_owned().ok()?;
        let gate = self.slots.gate.clone().try_read_owned().ok()?;
        (!suspect).then_some(Permit { slot, gate: Gate::Shared(gate) })
    }

    async fn permit(&self, unit: &str, suspect: bool) -> Option<Permit> {
        let slot = self.slots.get(unit)?.free.clone().acquire_owned().await.ok()?;
        let gate = match suspect {
            true => Gate::Alone(self.slots.gate.clone().write_owned().await),
            false => Gate::Shared(self.slots.gate.clone().read_owned().await),
        };
        Some(Permit { slot, gate })
    }

    /// Takes the leases in one statement, committed before any handler. What did not start was changed meanwhile: it comes back.
    async fn start(self: &Arc<Self>, ready: Vec<(Offer, Permit)>) {
        if ready.is_empty() {
            return;
        }
        let alone = ready.iter().all(|(_, permit)| matches!(permit.gate, Gate::Alone(_)));
        let starts: Vec<Start> = ready
            .iter()
            .map(|(offer, _)| Start {
                delivery: offer.delivery,
                token: Uuid::new_v4(),
                lease: self.lease(offer.hold.queue, self.holds.age(&offer.hold)),
            })
            .collect();
        let started = async {
            let connection = database::get(&self.pools.control).await?;
            ledger::start(&connection, &starts, alone, &self.id).await
        };
        let mut started: Vec<Started> = match started.await {
            Ok(started) => started,
            Err(error) => {
                // The answer may be lost after the commit: what was started is given back by its token.
                tracing::error!(%error, "a start failed; its runs are given back");
                self.give_back_starts(&starts).await;
                for (offer, _) in &ready {
                    self.settle(&offer.hold, Settle::Hide(jittered(NO_RUN_PAUSE))).await;
                }
                return;
            }
        };
        for ((offer, permit), start) in ready.into_iter().zip(starts) {
            match started.iter().position(|run| run.token == start.token) {
                Some(place) => {
                    let run = started.swap_remove(place);
                    if offer.delivery.receives == 1 {
                        self.seen.note(offer.hold.queue, run.due_at);
                    }
                    self.attempt(offer, permit, run);
                }
                None => self.settle(&offer.hold, Settle::Hide(jittered(Duration::from_secs(1)))).await,
            }
        }
    }

    async fn give_back_starts(&self, starts: &[Start]) {
        let runs: Vec<(Uuid, Uuid)> = starts.iter().map(|start| (start.delivery.run_id, start.token)).collect();
        let given = self
            .until_answered("giving back runs whose start was not answered", || async {
                let mut connection = database::get(&self.pools.control).await?;
                ledger::give_back(&mut connection, &runs, "the start was not answered", Duration::ZERO, false).await
            })
            .await;
        if given.is_some_and(|given| !given.is_empty()) {
            self.wakes.wake().await;
        }
    }

    fn attempt(self: &Arc<Self>, offer: Offer, permit: Permit, started: Started) {
        let Some(slot) = self.slots.get(&started.unit) else { return };
        self.holds.lease(&offer.hold, started.run_id, started.token);
        let attempt = Attempt { worker: self.clone(), unit: slot.unit, hold: offer.hold, receives: offer.delivery.receives, started };
        let worker = self.clone();
        self.tasks.spawn(async move {
            let Permit { slot, gate } = permit;
            attempt.run(slot).await;
            match gate {
                Gate::Shared(gate) => drop(gate),
                Gate::Alone(gate) => drop(gate),
            }
            worker.slots.freed.send_replace(());
        });
    }
}

/// A little longer, so that copies of one message do not come back in step.
fn jittered(time: Duration) -> Duration {
    time + Duration::from_millis(rand::random_range(100..1_000)).min(Duration::from_millis(100) + time / 4)
}
