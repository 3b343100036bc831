//! Slots: how many runs of each unit may be under way in this process, and who waits for one.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, OwnedSemaphorePermit, RwLock, Semaphore, watch};

use crate::{
    queue::Queue,
    unit::{Unit, Units},
};

/// Bounds of the time for which a run is sent back whose unit is full here.
pub(super) const SHORTEST_TURN: Duration = Duration::from_secs(1);
const LONGEST_TURN: Duration = Duration::from_secs(15 * 60);
/// For so long a suspect may keep its process from starting anything; doubled each time that others did not end meanwhile.
const SHORTEST_PATIENCE: Duration = Duration::from_secs(30);
const LONGEST_PATIENCE: Duration = Duration::from_secs(240);

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
    /// How many suspects hold the gate or wait for it.
    suspects: watch::Sender<usize>,
    /// Suspects that waited in vain, one after the other.
    in_vain: AtomicU32,
}

/// The slots of one unit.
pub(crate) struct Slot {
    pub(crate) unit: &'static Unit,
    queue: Option<Queue>,
    concurrency: u32,
    free: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
    turns: Mutex<Turns>,
}

/// The pace of a unit here, and until when its turns are given away.
#[derive(Debug, Default)]
struct Turns {
    /// Time from one run's end to the next one's, lately.
    pace: Duration,
    /// When the latest run ended, or the first one started since then.
    quiet_since: Option<Instant>,
    last: Option<Instant>,
}

/// A place for a message that waits here.
pub(crate) struct Place {
    _of_unit: Option<OwnedSemaphorePermit>,
    _of_all: OwnedSemaphorePermit,
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
    Alone(OwnedRwLockWriteGuard<()>, Suspect),
}

/// Keeps the gate closed for others, from when a suspect begins to wait until its run has ended.
struct Suspect(watch::Sender<usize>);

impl Suspect {
    fn new(suspects: &watch::Sender<usize>) -> Suspect {
        suspects.send_modify(|count| *count += 1);
        Suspect(suspects.clone())
    }
}

impl Drop for Suspect {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
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
        matches!(self.gate, Gate::Alone(..))
    }
}

impl Slots {
    /// Slots of every unit; `total` counts those on the consumed queues.
    pub(crate) fn new(units: &Units, overrides: &BTreeMap<String, u32>, queues: &[Queue]) -> Slots {
        let concurrency = |unit: &Unit| overrides.get(unit.name).copied().unwrap_or(unit.concurrency);
        let queue = |unit: &Unit| unit.queue.parse::<Queue>().ok();
        let consumed = units.iter().filter(|unit| queue(unit).is_some_and(|queue| queues.contains(&queue)));
        let total: usize = consumed.map(|unit| concurrency(unit) as usize).sum();
        let waiting = (total / 2).max(1);
        let slot = |unit: &'static Unit| Slot {
            unit,
            queue: queue(unit),
            concurrency: concurrency(unit),
            free: Arc::new(Semaphore::new(concurrency(unit) as usize)),
            // One unit leaves places to the others.
            waiting: Arc::new(Semaphore::new(waiting.div_ceil(2))),
            turns: Mutex::default(),
        };
        let units: HashMap<&'static str, Arc<Slot>> = units.iter().map(|unit| (unit.name, Arc::new(slot(unit)))).collect();
        let mut names: Vec<&'static str> = units.keys().copied().collect();
        names.sort_unstable();
        Slots {
            units,
            names,
            total,
            waiting: Arc::new(Semaphore::new(waiting)),
            freed: watch::Sender::new(()),
            gate: Arc::default(),
            suspects: watch::Sender::default(),
            in_vain: AtomicU32::new(0),
        }
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

    /// Free slots of the units on this queue; none while a suspect waits until it is alone, or is. A queue without any unit is asked for
    /// one message at a time: what is there still needs judging.
    pub(crate) fn free(&self, queue: Queue) -> usize {
        if *self.suspects.borrow() > 0 {
            return 0;
        }
        let mut on_queue = self.units.values().filter(|slot| slot.queue == Some(queue)).peekable();
        if on_queue.peek().is_none() {
            return 1;
        }
        on_queue.map(|slot| slot.free.available_permits()).sum()
    }

    /// The longest timeout of a unit.
    pub(crate) fn longest_timeout(&self) -> Duration {
        self.units.values().map(|slot| slot.unit.timeout()).max().unwrap_or(Duration::from_secs(60))
    }

    /// A place to wait in, unless those who wait already fill half of the process's slots, or those of the same unit half of that.
    pub(crate) fn place(&self, unit: Option<&str>) -> Option<Place> {
        let of_unit = unit.and_then(|unit| self.get(unit)).map(|slot| slot.waiting.clone().try_acquire_owned());
        Some(Place { _of_unit: of_unit.transpose().ok()?, _of_all: self.waiting.clone().try_acquire_owned().ok()? })
    }

    /// For how long a run of this unit, which is full, would be sent back.
    pub(crate) fn turn(&self, unit: &str) -> Duration {
        self.get(unit).map_or(SHORTEST_TURN, |slot| slot.turn())
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
            true => {
                let suspect = Suspect::new(&self.suspects);
                let alone = Gate::Alone(self.gate.clone().write_owned().await, suspect);
                self.in_vain.store(0, Ordering::Relaxed);
                alone
            }
            false => Gate::Shared(self.gate.clone().read_owned().await),
        };
        Some(self.permit_of(slot, gate))
    }

    /// Resolves, with the time that it took, when a suspect has kept the process waiting for long enough: a handler here takes too long, or
    /// never ends. For four times as long the others go on.
    pub(crate) async fn out_of_patience(&self) -> Duration {
        let patience = SHORTEST_PATIENCE.saturating_mul(1 << self.in_vain.load(Ordering::Relaxed).min(20)).min(LONGEST_PATIENCE);
        tokio::time::sleep(patience).await;
        self.in_vain.fetch_add(1, Ordering::Relaxed);
        patience
    }

    /// Resolves when a suspect wants to be alone here.
    pub(crate) async fn closed(&self) {
        // The sender is ours: it lasts.
        drop(self.suspects.subscribe().wait_for(|count| *count > 0).await);
    }

    fn permit_of(&self, slot: OwnedSemaphorePermit, gate: Gate) -> Permit {
        Permit { gate, _slot: slot, _freed: Freed(self.freed.clone()) }
    }
}

impl Slot {
    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A run of this unit begins.
    pub(crate) fn begun(&self) {
        if self.free.available_permits() + 1 >= self.concurrency as usize {
            self.turns().quiet_since = Some(Instant::now());
        }
    }

    /// A run of this unit took so long.
    pub(crate) fn ended(&self, took: Duration) {
        let mut turns = self.turns();
        let each = took / self.concurrency.max(1);
        turns.pace = if turns.pace.is_zero() { each } else { (turns.pace * 7 + each) / 8 };
        turns.quiet_since = Some(Instant::now());
    }

    /// When a run that finds the unit full is due: those that found it full before go first, whether they wait here or were sent back,
    /// at the unit's recent pace; and not before the unit has been quiet for twice as long as it is now: a run that takes longer than
    /// others did puts everybody off, but for no longer than it takes itself.
    fn turn(&self) -> Duration {
        let mut turns = self.turns();
        let now = Instant::now();
        // Beyond the longest turn there is no order any more.
        let next = (turns.last.unwrap_or(now).max(now) + turns.pace).min(now + LONGEST_TURN);
        turns.last = Some(next);
        let quiet = turns.quiet_since.map_or(Duration::ZERO, |since| now - since);
        next.duration_since(now).max(quiet).clamp(SHORTEST_TURN, LONGEST_TURN)
    }
}
