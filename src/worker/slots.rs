//! Slots: how many runs of each unit may be under way in this process, and who waits for one.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, OwnedSemaphorePermit, RwLock, Semaphore, watch};

use crate::{
    queue::Queue,
    unit::{Unit, Units},
};

/// Bounds of the time for which a run is sent back whose unit is full here.
const SHORTEST_TURN: Duration = Duration::from_secs(15);
const LONGEST_TURN: Duration = Duration::from_secs(15 * 60);

/// The slots of all units.
pub(crate) struct Slots {
    units: HashMap<&'static str, Arc<Slot>>,
    names: Vec<&'static str>,
    total: usize,
    /// Places for messages that wait here: half of the slots.
    waiting: Arc<Semaphore>,
    /// Changes when a slot becomes free.
    pub(crate) freed: watch::Sender<()>,
    /// Held for reading by each run; a suspect holds it alone.
    gate: Arc<RwLock<()>>,
}

/// The slots of one unit.
pub(crate) struct Slot {
    pub(crate) unit: &'static Unit,
    queue: Option<Queue>,
    concurrency: u32,
    free: Arc<Semaphore>,
    turns: Mutex<Turns>,
}

/// The pace of a unit here, and until when its turns are given away.
#[derive(Debug, Default)]
struct Turns {
    /// Time from one run's end to the next one's, lately.
    pace: Duration,
    last: Option<Instant>,
}

/// The right to run: a slot of the unit, and the gate. It belongs to the handler and ends with it, however long that outlives its attempt.
pub(crate) struct Permit {
    gate: Gate,
    _slot: OwnedSemaphorePermit,
    // Dropped after the slot: who is woken finds it free.
    _freed: Freed,
}

#[allow(dead_code, reason = "they are held, not read")]
enum Gate {
    Shared(OwnedRwLockReadGuard<()>),
    Alone(OwnedRwLockWriteGuard<()>),
}

struct Freed(watch::Sender<()>);

impl Drop for Freed {
    fn drop(&mut self) {
        self.0.send_replace(());
    }
}

impl Permit {
    /// Whether nothing else runs in this process.
    pub(crate) fn is_alone(&self) -> bool {
        matches!(self.gate, Gate::Alone(_))
    }
}

impl Slots {
    /// Slots of every unit; `total` counts those on the consumed queues.
    pub(crate) fn new(units: &Units, overrides: &BTreeMap<String, u32>, queues: &[Queue]) -> Slots {
        let units: HashMap<&'static str, Arc<Slot>> = units
            .iter()
            .map(|unit| {
                let concurrency = overrides.get(unit.name).copied().unwrap_or(unit.concurrency);
                let free = Arc::new(Semaphore::new(concurrency as usize));
                (unit.name, Arc::new(Slot { unit, queue: unit.queue.parse().ok(), concurrency, free, turns: Mutex::default() }))
            })
            .collect();
        let consumed = |slot: &&Arc<Slot>| slot.queue.is_some_and(|queue| queues.contains(&queue));
        let total: usize = units.values().filter(consumed).map(|slot| slot.free.available_permits()).sum();
        let mut names: Vec<&'static str> = units.keys().copied().collect();
        names.sort_unstable();
        let waiting = Arc::new(Semaphore::new((total / 2).max(1)));
        Slots { units, names, total, waiting, freed: watch::Sender::new(()), gate: Arc::default() }
    }

    /// Slots of the units on the consumed queues.
    pub(crate) fn total(&self) -> usize {
        self.total
    }

    /// Names of the units this process runs.
    pub(crate) fn known(&self) -> &[&'static str] {
        &self.names
    }

    pub(crate) fn get(&self, unit: &str) -> Option<&Arc<Slot>> {
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

    /// A place to wait in, unless those who wait already fill half of the process's slots.
    pub(crate) fn place(&self) -> Option<OwnedSemaphorePermit> {
        self.waiting.clone().try_acquire_owned().ok()
    }

    /// A slot that is free now and the gate open; never for a suspect, which waits for the others to end.
    pub(crate) fn permit_now(&self, unit: &str, suspect: bool) -> Option<Permit> {
        if suspect {
            return None;
        }
        let slot = self.get(unit)?.free.clone().try_acquire_owned().ok()?;
        let gate = self.gate.clone().try_read_owned().ok()?;
        Some(self.permit_of(slot, Gate::Shared(gate)))
    }

    /// Waits for a slot, and then for the gate; a suspect until nothing else runs here, while nothing else starts.
    pub(crate) async fn permit(&self, unit: &str, suspect: bool) -> Option<Permit> {
        let slot = self.get(unit)?.free.clone().acquire_owned().await.ok()?;
        let gate = match suspect {
            true => Gate::Alone(self.gate.clone().write_owned().await),
            false => Gate::Shared(self.gate.clone().read_owned().await),
        };
        Some(self.permit_of(slot, gate))
    }

    fn permit_of(&self, slot: OwnedSemaphorePermit, gate: Gate) -> Permit {
        Permit { gate, _slot: slot, _freed: Freed(self.freed.clone()) }
    }
}

impl Slot {
    /// A run of this unit took so long.
    pub(crate) fn ended(&self, took: Duration) {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        let each = took / self.concurrency.max(1);
        turns.pace = if turns.pace.is_zero() { each } else { (turns.pace * 7 + each) / 8 };
    }

    /// For how long a run is sent back that finds the unit full: those sent back before it go first, at the unit's recent pace.
    pub(crate) fn turn(&self) -> Duration {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let next = turns.last.unwrap_or(now).max(now) + turns.pace;
        // Beyond the longest turn there is no order any more.
        let next = next.min(now + LONGEST_TURN);
        turns.last = Some(next);
        next.duration_since(now).max(SHORTEST_TURN)
    }
}
