//! Messages in hand and their heartbeat: visibility first, then the leases, at a third of the visibility.
//!
//! Everything that was received is here until it is settled: running, waiting for a slot, draining. A settle begins only after the
//! heartbeat of its message has ended, so that a late one overwrites no backoff and no delete.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    drive::{Next, Part},
    error::Error,
    ledger::{self, Beaten, Lease},
    queue::Queue,
    sqs::BATCH_ENTRIES,
};

use super::Worker;

/// All messages in hand.
#[derive(Debug, Clone, Default)]
pub(crate) struct Holds(Arc<Held>);

#[derive(Debug, Default)]
struct Held {
    entries: Mutex<HashMap<u64, Entry>>,
    next: AtomicU64,
}

#[derive(Debug)]
struct Entry {
    queue: Queue,
    receipt: String,
    lease: Option<Kept>,
    lost: CancellationToken,
    /// When the visibility was last set, from before the request.
    extended: Instant,
    visibility: Duration,
    /// Held while a heartbeat of this message is under way.
    beating: Arc<tokio::sync::Mutex<()>>,
}

/// A lease that this process took.
#[derive(Debug, Clone, Copy)]
struct Kept {
    run_id: Uuid,
    token: Uuid,
    /// Until when it is surely ours, by this process's clock, from before the request that said so.
    until: Instant,
}

/// One message in hand. Whatever becomes of its owner, its heartbeat ends with it.
#[derive(Debug)]
pub(crate) struct Hold {
    id: u64,
    pub(crate) queue: Queue,
    pub(crate) receipt: String,
    /// When it was received.
    pub(crate) received: Instant,
    lost: CancellationToken,
    holds: Holds,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.holds.lock().remove(&self.id);
    }
}

/// Why a lease is not ours any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    /// PostgreSQL said that another holds it, or nobody.
    Taken,
    /// Neither SQS nor PostgreSQL has answered for so long that another may hold it.
    Lapsed,
}

impl Hold {
    /// Resolves when the lease is lost. As long as SQS hides the message or the lease lasts, nobody takes the run over.
    pub(crate) async fn lost(&self) -> Lost {
        loop {
            tokio::select! {
                () = self.lost.cancelled() => return Lost::Taken,
                () = tokio::time::sleep_until(self.holds.kept_until(self).into()) => {
                    if self.holds.kept_until(self) <= Instant::now() {
                        tracing::warn!("the lease was lost by this process's clock; the handler is cancelled");
                        return Lost::Lapsed;
                    }
                }
            }
        }
    }
}

impl Entry {
    fn hidden_until(&self) -> Instant {
        self.extended + self.visibility
    }
}

impl Holds {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Entry>> {
        self.0.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a received message in hand.
    pub(crate) fn take(&self, queue: Queue, receipt: String, received: Instant, visibility: Duration) -> Hold {
        let id = self.0.next.fetch_add(1, Ordering::Relaxed);
        let hold = Hold { id, queue, receipt, received, lost: CancellationToken::new(), holds: self.clone() };
        let (receipt, lost) = (hold.receipt.clone(), hold.lost.clone());
        self.lock().insert(id, Entry { queue, receipt, lease: None, lost, extended: received, visibility, beating: Arc::default() });
        hold
    }

    /// From now on the heartbeat extends this lease too.
    pub(crate) fn lease(&self, hold: &Hold, run_id: Uuid, token: Uuid, until: Instant) {
        if let Some(entry) = self.lock().get_mut(&hold.id) {
            entry.lease = Some(Kept { run_id, token, until });
        }
    }

    /// How long ago the message's visibility was last set.
    pub(crate) fn age(&self, hold: &Hold) -> Duration {
        self.lock().get(&hold.id).map_or(hold.received, |entry| entry.extended).elapsed()
    }

    fn kept_until(&self, hold: &Hold) -> Instant {
        let kept = |entry: &Entry| entry.lease.map_or(entry.hidden_until(), |lease| lease.until.max(entry.hidden_until()));
        self.lock().get(&hold.id).map_or(hold.received, kept)
    }

    /// SQS said that it hides these messages from `began` on. Of one that was visible again by then it says so too, and does nothing.
    fn extended(&self, ids: impl Iterator<Item = u64>, began: Instant) {
        let mut held = self.lock();
        for id in ids {
            if let Some(entry) = held.get_mut(&id).filter(|entry| began < entry.hidden_until()) {
                entry.extended = began;
            }
        }
    }

    /// Ends the heartbeat of a message; returns when none of it is under way.
    pub(crate) async fn release(&self, hold: &Hold) {
        let entry = self.lock().remove(&hold.id);
        if let Some(entry) = entry {
            drop(entry.beating.lock().await);
        }
    }

    /// How many messages are in hand.
    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }
}

/// Beats for the messages of one queue.
pub(crate) struct Heart {
    pub(crate) worker: Arc<Worker>,
    pub(crate) queue: Queue,
    /// It has heard of the stop.
    pub(crate) stopping: bool,
}

impl Part for Heart {
    fn name(&self) -> &'static str {
        "heartbeat"
    }

    async fn tick(&mut self) -> Result<Next, Error> {
        self.worker.beat(self.queue).await
    }

    /// A stop makes the leases shorter.
    async fn woken(&mut self) {
        if self.stopping {
            std::future::pending::<()>().await;
        }
        self.worker.stop.cancelled().await;
        self.stopping = true;
    }
}

impl Worker {
    /// One heartbeat of a queue's messages.
    pub(crate) async fn beat(&self, queue: Queue) -> Result<Next, Error> {
        let visibility = self.visibility.of(queue);
        let pause = Next::Idle(visibility / 3);
        let began = Instant::now();
        let mut beating = Vec::new();
        for (id, entry) in self.holds.lock().iter().filter(|(_, entry)| entry.queue == queue) {
            if let Ok(guard) = entry.beating.clone().try_lock_owned() {
                beating.push((*id, entry.receipt.clone(), entry.lease, guard));
            }
        }
        let mut problem = None;
        let batches: Vec<_> = beating.chunks(BATCH_ENTRIES).collect();
        // Side by side: a queue that answers slowly must not put off the leases of many messages.
        let answers = join_all(batches.iter().map(|batch| async {
            let messages: Vec<(String, Duration)> = batch.iter().map(|(_, receipt, _, _)| (receipt.clone(), visibility)).collect();
            self.sqs.hide(queue, &messages).await
        }));
        for (batch, answer) in batches.iter().zip(answers.await) {
            match answer {
                Ok(refused) => {
                    let is_refused = |index: &usize| refused.iter().any(|(refused, _)| refused == index);
                    let taken = batch.iter().enumerate().filter(|(index, _)| !is_refused(index));
                    self.holds.extended(taken.map(|(_, (id, ..))| *id), began);
                    if let Some((_, code)) = refused.first() {
                        tracing::warn!(%queue, count = refused.len(), code, "SQS refused to extend the visibility of messages in hand");
                    }
                }
                Err(error) => problem = Some(error),
            }
        }
        let lease = self.lease(queue, began.elapsed());
        // Only what goes to SQS must end before a settle; leases are fenced by their tokens, and PostgreSQL may hang.
        let leases: Vec<Lease> =
            beating.iter().filter_map(|(_, _, kept, _)| *kept).map(|Kept { run_id, token, .. }| Lease { run_id, token, lease }).collect();
        drop(batches);
        drop(beating);
        if !leases.is_empty() {
            let asked = Instant::now();
            for beaten in self.extend(&leases, visibility / 6).await? {
                self.beaten(&beaten, asked + lease);
            }
        }
        match problem {
            Some(error) => Err(error),
            None => Ok(pause),
        }
    }

    /// Extends leases within this time: a PostgreSQL that hangs must not put off the next heartbeat of the messages.
    async fn extend(&self, leases: &[Lease], limit: Duration) -> Result<Vec<Beaten>, Error> {
        let extended = async {
            let session = self.pools.control().await?;
            let beaten = ledger::extend(&*session, leases).await;
            session.end(beaten)
        };
        let late = Error::Pool("a heartbeat was not answered in time".to_owned());
        tokio::time::timeout(limit, extended).await.unwrap_or(Err(late))
    }

    /// A lease lasts until then; or it is no longer ours: its handler is cancelled, and neither ledger nor message is touched.
    fn beaten(&self, beaten: &Beaten, until: Instant) {
        for entry in self.holds.lock().values_mut() {
            let Some(kept) = entry.lease.as_mut().filter(|kept| kept.token == beaten.token) else { continue };
            if beaten.lost {
                tracing::warn!(run_id = %kept.run_id, "the lease was lost; the handler is cancelled");
                entry.lost.cancel();
            } else if beaten.renewed {
                kept.until = until;
            }
        }
    }
}
