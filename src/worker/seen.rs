//! How far each queue has been served, as this process saw it: what repair judges by (`work.queue_seen`).
//!
//! A run that is started at its message's first receive shows that what was due before it had been offered; an empty long poll shows it of
//! everything that was due when it began. Times are of the database clock. What a crash forgets here is shown again by the next receive.

use std::sync::{Mutex, MutexGuard, PoisonError};

use chrono::{DateTime, Utc};

use crate::queue::Queue;

/// Everything due before these times was offered to a worker.
#[derive(Debug, Default)]
pub(crate) struct Seen(Mutex<[Option<DateTime<Utc>>; 4]>);

impl Seen {
    fn lock(&self) -> MutexGuard<'_, [Option<DateTime<Utc>>; 4]> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The queue was served so far.
    pub(crate) fn note(&self, queue: Queue, until: DateTime<Utc>) {
        let mut seen = self.lock();
        let known = &mut seen[queue as usize];
        *known = (*known).max(Some(until));
    }

    pub(crate) fn until(&self, queue: Queue) -> Option<DateTime<Utc>> {
        self.lock()[queue as usize]
    }
}
