//! Receive: one long poll of a queue, then what SQS handed out is judged.
//!
//! A crash anywhere leaves the message undeleted or its run terminal or pending in the outbox (I11): it comes back and is judged again.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use chrono::{DateTime, Utc};
use futures_util::future::{join, join_all};
use tokio::sync::watch;

use crate::{
    drive::{Next, Part},
    envelope::Envelope,
    error::Error,
    ledger::{self, Delivery},
    queue::Queue,
    sqs::BATCH_ENTRIES,
};

use super::{Worker, holds::Hold, settle::Settle};

/// How long a message is let go that could not be dealt with.
pub(super) const NOT_NOW: Duration = Duration::from_secs(5);

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
#[derive(Debug)]
pub(super) struct Offer {
    pub(super) hold: Hold,
    pub(super) delivery: Delivery,
}

impl Worker {
    /// One receive of a queue, and what follows from it.
    pub(crate) async fn poll(self: &Arc<Self>, queue: Queue) -> Result<Next, Error> {
        let free = self.slots.free(queue);
        // Whoever frees a slot wakes this poller. Health asks for PostgreSQL all the same.
        let full = Ok(Next::Idle(Duration::from_secs(1)));
        if free == 0 && self.database.read().0.is_some_and(|age| age < self.wait) {
            return full;
        }
        // While PostgreSQL cannot be reached nothing is received; after a stop neither.
        let asked_at = tokio::select! {
            biased;
            () = self.stop.cancelled() => return Ok(Next::Busy),
            reached = self.reach_database(queue) => reached?,
        };
        if free == 0 {
            return full;
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
            let hold = self.holds.take(queue, message.receipt, received, self.visibility.of(queue));
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
                Err(reason) => foreign.push((hold, message.body, reason)),
            }
        }
        let refusing = join_all(foreign.into_iter().map(|(hold, body, reason)| self.refuse(hold, body, "UNREADABLE", reason)));
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
        let session = self.pools.control().await.inspect_err(|error| self.outage.failed(error))?;
        let now = ledger::serve(&*session, queue, self.seen.until(queue)).await;
        let now = session.end(now)?;
        self.outage.answered();
        self.database.beat();
        Ok(now)
    }

    /// A body that no run stands behind: kept in the dead-letter queue with the reason, then deleted. It waits in the background where
    /// there is a place, so that a dead-letter queue that hangs holds up no run.
    pub(super) async fn refuse(self: &Arc<Self>, hold: Hold, body: String, code: &'static str, reason: String) {
        tracing::warn!(queue = %hold.queue, code, reason, "a message that is not ours goes to the dead-letter queue");
        let worker = self.clone();
        let refused = async move {
            match worker.sqs.send_unreadable(hold.queue, &body, code, &reason).await {
                Ok(()) => worker.settle(&hold, Settle::Delete).await,
                Err(error) => {
                    tracing::error!(queue = %hold.queue, %error, "the dead-letter queue did not take it; it is tried again when it comes back");
                    worker.settle(&hold, Settle::Hide(NOT_NOW)).await;
                }
            }
        };
        match self.slots.place(None) {
            Some(place) => drop(self.tasks.spawn(async move {
                refused.await;
                drop(place);
            })),
            None => refused.await,
        }
    }
}
