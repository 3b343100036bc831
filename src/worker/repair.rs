//! Repair: unfinished runs whose message SQS itself has lost get a new one (I11). Never part of a normal path.
//!
//! Done by the service of the relay, once a minute, queue by queue, a batch of runs a transaction. A run that was not lost after all gets
//! one copy more, which changes nothing; the bound doubles at each repair, so there are few. A crash leaves a batch repaired or not.

use std::{collections::HashMap, sync::Arc, time::Duration};

use crate::{
    config::RepairAfter,
    drive::{Next, Part},
    error::Error,
    ledger::{self, Cursor},
    queue::Queue,
};

use super::Worker;

/// Runs that are examined in one transaction.
const BATCH: i64 = 1_000;
/// Batches of a queue in one tick; the next tick goes on where this one ended.
const BATCHES: usize = 10;
/// Pause between ticks, or the shortest bound where that is shorter.
const PACE: Duration = Duration::from_secs(60);

pub(crate) struct Repairer {
    worker: Arc<Worker>,
    after: RepairAfter,
    /// Queues that were not examined to the end, and where to go on.
    cursors: HashMap<Queue, Cursor>,
}

impl Repairer {
    pub(crate) fn new(worker: Arc<Worker>, after: RepairAfter) -> Repairer {
        Repairer { worker, after, cursors: HashMap::new() }
    }

    /// Examines the unfinished runs of a queue, oldest first.
    async fn repair(&mut self, queue: Queue) -> Result<(), Error> {
        for _ in 0..BATCHES {
            let cursor = self.cursors.remove(&queue);
            let mut session = self.worker.pools.control().await?;
            let repaired = ledger::repair(&mut session, queue, self.after.of(queue), cursor.as_ref(), BATCH).await;
            let repaired = session.end(repaired)?;
            if !repaired.runs.is_empty() {
                let (count, failed, first) = (repaired.runs.len(), repaired.failed, repaired.runs[0]);
                tracing::warn!(%queue, count, failed, first_run_id = %first, "repaired: the queue was served past runs that nothing brings; they are sent anew");
                self.worker.wakes.wake().await;
            }
            match repaired.next {
                Some(next) => self.cursors.insert(queue, next),
                None => break,
            };
        }
        Ok(())
    }
}

impl Part for Repairer {
    fn name(&self) -> &'static str {
        "repair"
    }

    async fn tick(&mut self) -> Result<Next, Error> {
        let mut done = Ok(());
        for queue in Queue::ALL {
            let repaired = self.repair(queue).await;
            let gone = repaired.as_ref().is_err_and(Error::session_is_gone);
            // Runs of one queue that cannot be repaired hold up no other queue.
            done = repaired.and(done);
            if gone {
                break;
            }
        }
        let shortest = Queue::ALL.map(|queue| self.after.of(queue)).into_iter().min();
        done.map(|()| Next::Idle(shortest.map_or(PACE, |bound| bound.min(PACE))))
    }
}
