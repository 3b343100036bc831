//! The worker: receives messages, takes leases, runs handlers, finishes runs, deletes messages.
//!
//! Read it as the message travels: [`poll`] receives, [`judge`] carries out the verdicts, [`start`] takes the leases, [`attempt`] runs
//! and finishes, [`settle`] deletes or hides; [`slots`] says how much at a time, [`holds`] keeps everything in hand alive, and
//! [`outage`] knows whether PostgreSQL is there. What [`seen`] says of the queues, [`repair`] acts on. Whoever deletes a message has first committed what makes it superfluous (I11).

pub(crate) mod attempt;
pub(crate) mod holds;
pub(crate) mod judge;
pub(crate) mod outage;
pub(crate) mod poll;
pub(crate) mod repair;
pub(crate) mod seen;
pub(crate) mod settle;
pub(crate) mod slots;
pub(crate) mod start;

use std::{
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use tokio::{
    runtime::Handle,
    sync::{Semaphore, watch},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    config::{Backoff, Visibility},
    drive::{Pause, Pulse, Repeated},
    error::Error,
    pools::Pools,
    queue::Queue,
    run::State,
    sqs::Queues,
    wake::Waker,
};

use holds::{Hold, Holds};
use outage::Outage;
use seen::Seen;
use settle::{Settle, Settlers};
use slots::Slots;

/// What the parts of a worker share.
pub(crate) struct Worker {
    /// Name of this process in the ledger.
    pub(crate) id: String,
    pub(crate) pools: Pools,
    pub(crate) sqs: Queues,
    pub(crate) visibility: Visibility,
    pub(crate) backoff: Backoff,
    pub(crate) wait: Duration,
    pub(crate) state: Arc<State>,
    pub(crate) slots: Slots,
    pub(crate) holds: Holds,
    pub(crate) seen: Seen,
    pub(crate) settlers: Settlers,
    pub(crate) wakes: Wakes,
    /// Whatever could not be written, of all messages in hand.
    pub(crate) trouble: Mutex<Repeated>,
    /// Whether PostgreSQL is out of reach.
    pub(crate) outage: Outage,
    /// When PostgreSQL last answered a poller.
    pub(crate) database: Pulse,
    /// Handlers run here, so that one that blocks its thread stops nothing of the runtime.
    pub(crate) handlers: Handle,
    /// Places for messages of runs that ended, of which SQS is not told yet.
    pub(crate) unsettled: Semaphore,
    /// Attempts, and messages that wait for a slot.
    pub(crate) tasks: TaskTracker,
    /// When the stop budget ends, once a stop has begun.
    pub(crate) stops_at: OnceLock<Instant>,
    /// No new receive, no new start.
    pub(crate) stop: CancellationToken,
    /// The stop budget is used up: what is unfinished is given back.
    pub(crate) cut: CancellationToken,
    /// PostgreSQL had its chance since the cut: what it has not answered is left as it is, and the messages are let go.
    pub(crate) given_up: CancellationToken,
}

/// Tells relays that a row is pending: the one in this process, and through Valkey any other.
pub(crate) struct Wakes {
    pub(crate) local: watch::Sender<()>,
    others: watch::Sender<()>,
    valkey: Option<Arc<Waker>>,
}

impl Wakes {
    /// Pushes to Valkey in the background, so that one that hangs holds up no work; within a runtime.
    pub(crate) fn new(valkey: Option<Waker>) -> Wakes {
        let wakes = Wakes { local: watch::Sender::new(()), others: watch::Sender::new(()), valkey: valkey.map(Arc::new) };
        if let Some(valkey) = wakes.valkey.clone() {
            let mut asked = wakes.others.subscribe();
            tokio::spawn(async move {
                while asked.changed().await.is_ok() {
                    valkey.wake().await;
                }
            });
        }
        wakes
    }

    pub(crate) fn wake(&self) {
        self.local.send_replace(());
        self.others.send_replace(());
    }

    /// The last one of a process, which the background may not come to any more.
    pub(crate) async fn last(&self) {
        if let Some(valkey) = &self.valkey {
            valkey.wake().await;
        }
    }
}

impl Worker {
    /// The lease of a start or a heartbeat now: the visibility less a margin and less what has passed since SQS began to count; never
    /// shorter than until the next heartbeat, however long SQS refused to extend the visibility. A process that stops needs it only
    /// until its budget ends: should it fail to give a run back, others need not wait for longer.
    pub(crate) fn lease(&self, queue: Queue, since: Duration) -> Duration {
        let visibility = self.visibility.of(queue);
        let margin = (visibility / 6).min(Duration::from_secs(5));
        let lease = visibility.saturating_sub(margin).saturating_sub(since).max(visibility / 2);
        self.stops_at.get().map_or(lease, |end| lease.min(end.saturating_duration_since(Instant::now())))
    }

    /// Ends the heartbeat of a message, then deletes or hides it.
    pub(crate) async fn settle(&self, hold: &Hold, what: Settle) {
        self.holds.release(hold).await;
        self.settlers.settle(hold, what).await;
    }

    /// Runs a step that waits for PostgreSQL; `None` when the process has waited long enough since its cut.
    pub(crate) async fn unless_given_up<T>(&self, step: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.given_up.cancelled() => None,
            answer = step => Some(answer),
        }
    }

    /// One more failure of PostgreSQL; how many there were, where it is time to tell. There is one line for all that wait for it here:
    /// there may be a hundred.
    pub(crate) fn trouble(&self) -> Option<usize> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).tell(1)
    }

    /// Runs a database step until it is answered; `None` when the process gives up first. Errors are logged with growing pauses.
    pub(crate) async fn until_answered<T, F>(&self, what: &str, step: impl Fn() -> F) -> Option<T>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let mut pause = Pause::new(Duration::from_secs(5));
        let answered = async {
            loop {
                let back = self.outage.over();
                match step().await {
                    Ok(answer) => {
                        self.outage.answered();
                        return answer;
                    }
                    Err(error) => {
                        self.outage.failed(&error);
                        let wait = pause.next();
                        if let Some(failures) = self.trouble() {
                            tracing::error!(%error, failures, pause_ms = wait.as_millis() as u64, "{what} failed; trying again after a pause");
                        }
                        tokio::select! {
                            () = tokio::time::sleep(wait) => {}
                            () = back => {}
                        }
                    }
                }
            }
        };
        self.unless_given_up(answered).await
    }
}

/// A little longer, so that copies of one message do not come back in step.
fn jittered(time: Duration) -> Duration {
    time + Duration::from_millis(rand::random_range(100..1_000)).min(Duration::from_millis(100) + time / 4)
}
