//! Messages in hand and their heartbeat: visibility first, then the leases, at a third of the visibility.
//!
//! Everything that was received is here until it is settled: running, waiting for a slot, draining. A settle begins only after the
//! heartbeat of its message has ended, so that a late one overwrites no backoff and no delete.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    database,
    drive::{Next, Part},
    error::Error,
    ledger::{self, Lease},
    queue::Queue,
    sqs::BATCH_ENTRIES,
};

use super::Worker;

/// All messages in hand.
#[derive(Default)]
pub(crate) struct Holds {
    held: Mutex<HashMap<u64, Entry>>,
    next: AtomicU64,
}

struct Entry {
    queue: Queue,
    receipt: String,
    lease: Option<(Uuid, Uuid)>,
    lost: CancellationToken,
    /// When the visibility was last set, from before the request.
    extended: Instant,
    /// Held while a heartbeat of this message is under way.
    beating: Arc<tokio::sync::Mutex<()>>,
}

/// One message in hand.
#[derive(Debug, Clone)]
pub(crate) struct Hold {
    id: u64,
    pub(crate) queue: Queue,
    pub(crate) receipt: String,
    /// Cancelled when the lease is known to be lost.
    pub(crate) lost: CancellationToken,
    /// When it was received, from before the answer came.
    pub(crate) received: Instant,
}

impl Holds {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Entry>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a received message in hand.
    pub(crate) fn take(&self, queue: Queue, receipt: String, received: Instant) -> Hold {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let lost = CancellationToken::new();
        let entry = Entry { queue, receipt: receipt.clone(), lease: None, lost: lost.clone(), extended: received, beating: Arc::default() };
        self.lock().insert(id, entry);
        Hold { id, queue, receipt, lost, received }
    }

    /// From now on the heartbeat extends this lease too.
    pub(crate) fn lease(&self, hold: &Hold, run_id: Uuid, token: Uuid) {
        if let Some(entry) = self.lock().get_mut(&hold.id) {
            entry.lease = Some((run_id, token));
        }
    }

    /// How long ago the message's visibility was last set.
    pub(crate) fn age(&self, hold: &Hold) -> Duration {
        self.lock().get(&hold.id).map_or(hold.received, |entry| entry.extended).elapsed()
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
}

impl Part for Heart {
    fn name(&self) -> &'static str {
        "heartbeat"
    }

    async fn tick(&mut self) -> Result<Next, Error> {
        self.worker.beat(self.queue).await
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
        if beating.is_empty() {
            return Ok(pause);
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
                    let mut held = self.holds.lock();
                    for (index, (id, ..)) in batch.iter().enumerate() {
                        if let Some(entry) = held.get_mut(id)
                            && !refused.iter().any(|(refused, _)| *refused == index)
                        {
                            entry.extended = began;
                        }
                    }
                    if let Some((_, code)) = refused.first() {
                        tracing::warn!(%queue, count = refused.len(), code, "SQS refused to extend the visibility of messages in hand");
                    }
                }
                Err(error) => problem = Some(error),
            }
        }
        let leases: Vec<Lease> = beating
            .iter()
            .filter_map(|(_, _, lease, _)| *lease)
            .map(|(run_id, token)| Lease { run_id, token, lease: self.lease(queue, began.elapsed()) })
            .collect();
        if !leases.is_empty() {
            let connection = database::get(&self.pools.control).await?;
            for run_id in ledger::extend(&connection, &leases).await? {
                self.lose(run_id, &leases);
            }
        }
        match problem {
            Some(error) => Err(error),
            None => Ok(pause),
        }
    }

    /// The lease of a run is no longer ours: its handler is cancelled, and neither ledger nor message is touched.
    fn lose(&self, run_id: Uuid, leases: &[Lease]) {
        let token = leases.iter().find(|lease| lease.run_id == run_id).map(|lease| lease.token);
        for entry in self.holds.lock().values() {
            if entry.lease.is_some_and(|(id, held)| id == run_id && Some(held) == token) {
                tracing::warn!(%run_id, "the lease was lost; the handler is cancelled");
                entry.lost.cancel();
            }
        }
    }
}
