//! The worker: receives messages, takes leases, runs handlers, finishes runs, deletes messages.
//!
//! Read it as the message travels: [`poll`] receives and judges, [`attempt`] runs and finishes, [`settle`] deletes or hides,
//! [`holds`] keeps everything in hand alive meanwhile. What [`seen`] says of the queues, [`repair`] acts on. Whoever deletes a message has first committed what makes it superfluous (I11).

pub(crate) mod attempt;
pub(crate) mod holds;
pub(crate) mod poll;
pub(crate) mod repair;
pub(crate) mod seen;
pub(crate) mod settle;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::{RwLock, Semaphore, watch},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    config::{Backoff, Visibility},
    database::Pools,
    drive::Pulse,
    queue::Queue,
    run::State,
    sqs::Queues,
    unit::{Unit, Units},
    wake::Waker,
};

use holds::Holds;
use seen::Seen;
use settle::Settlers;

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
    /// When PostgreSQL last answered a poller.
    pub(crate) database: Pulse,
    /// Handlers run here, so that one that blocks its thread stops nothing of the runtime.
    pub(crate) handlers: Handle,
    /// Attempts, and messages that wait for a slot.
    pub(crate) tasks: TaskTracker,
    /// No new receive, no new start.
    pub(crate) stop: CancellationToken,
    /// The stop budget is used up: what is unfinished is given back.
    pub(crate) cut: CancellationToken,
}

/// Tells relays that a row is pending: the one in this process, and through Valkey any other.
pub(crate) struct Wakes {
    pub(crate) local: watch::Sender<()>,
    pub(crate) valkey: Option<Waker>,
}

impl Wakes {
    pub(crate) async fn wake(&self) {
        self.local.send_replace(());
        if let Some(valkey) = &self.valkey {
            valkey.wake().await;
        }
    }
}

/// The slots: how many runs of each unit may be under way in this process.
pub(crate) struct Slots {
    units: HashMap<&'static str, Slot>,
    names: Vec<&'static str>,
    total: usize,
    waiting: AtomicUsize,
    /// Changes when a slot becomes free.
    pub(crate) freed: watch::Sender<()>,
    /// Held for reading by each attempt; a suspect holds it alone.
    pub(crate) gate: Arc<RwLock<()>>,
}

/// The slots of one unit.
pub(crate) struct Slot {
    pub(crate) unit: &'static Unit,
    queue: Option<Queue>,
    pub(crate) free: Arc<Semaphore>,
}

impl Slots {
    /// Slots of every unit; `total` counts those on the consumed queues.
    pub(crate) fn new(units: &Units, overrides: &std::collections::BTreeMap<String, u32>, queues: &[Queue]) -> Slots {
        let units: HashMap<&'static str, Slot> = units
            .iter()
            .map(|unit| {
                let concurrency = overrides.get(unit.name).copied().unwrap_or(unit.concurrency) as usize;
                let queue = unit.queue.parse().ok();
                (unit.name, Slot { unit, queue, free: Arc::new(Semaphore::new(concurrency)) })
            })
            .collect();
        let consumed = |slot: &&Slot| slot.queue.is_some_and(|queue| queues.contains(&queue));
        let total = units.values().filter(consumed).map(|slot| slot.free.available_permits()).sum();
        let mut names: Vec<&'static str> = units.keys().copied().collect();
        names.sort_unstable();
        Slots { units, names, total, waiting: AtomicUsize::new(0), freed: watch::Sender::new(()), gate: Arc::new(RwLock::new(())) }
    }

    /// Slots of the units on the consumed queues.
    pub(crate) fn total(&self) -> usize {
        self.total
    }

    /// Names of the units this process runs.
    pub(crate) fn known(&self) -> &[&'static str] {
        &self.names
    }

    pub(crate) fn get(&self, unit: &str) -> Option<&Slot> {
        self.units.get(unit)
    }

    /// Free slots of the units on this queue. A queue without any is asked for one message at a time: what is there still needs judging.
    pub(crate) fn free(&self, queue: Queue) -> usize {
        let mut on_queue = self.units.values().filter(|slot| slot.queue == Some(queue)).peekable();
        if on_queue.peek().is_none() {
            return 1;
        }
        on_queue.map(|slot| slot.free.available_permits()).sum()
    }

    /// The longest timeout of a unit.
    pub(crate) fn longest_timeout(&self) -> Duration {
        Duration::from_secs(self.units.values().map(|slot| u64::from(slot.unit.timeout_seconds)).max().unwrap_or(60))
    }

    /// Enters the messages that wait for a slot, unless they already fill half of the process's slots.
    pub(crate) fn enter_waiting(&self) -> bool {
        self.waiting
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |waiting| (waiting < (self.total / 2).max(1)).then_some(waiting + 1))
            .is_ok()
    }

    pub(crate) fn leave_waiting(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Worker {
    /// The lease of a start now: the visibility less a margin and less what has passed since SQS began to count; never shorter than
    /// until the next heartbeat, however long SQS refused to extend the visibility.
    pub(crate) fn lease(&self, queue: Queue, since: Duration) -> Duration {
        let visibility = self.visibility.of(queue);
        let margin = (visibility / 6).min(Duration::from_secs(5));
        visibility.saturating_sub(margin).saturating_sub(since).max(visibility / 2)
    }
}
