//! When a long poll looks again: at once when a message comes, and as soon as one becomes visible.
//!
//! The engine's own long polls notice an ended visibility timeout within a second only; these do within milliseconds.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::sync::lock;

/// Due times are kept in steps of so many milliseconds, so that a burst of messages shares a few.
const STEP: u64 = 5;
/// The longest sleep: what nobody announced, such as a queue's default delay, is found by then.
const LONGEST: Duration = Duration::from_secs(1);

/// The wakes of one queue's long polls.
#[derive(Debug)]
pub(crate) struct Wake {
    began: Instant,
    /// The steps since `began` at which messages become visible.
    due: Mutex<BTreeSet<u64>>,
    notify: Notify,
}

impl Wake {
    /// Nothing is due.
    pub(crate) fn new() -> Self {
        Self { began: Instant::now(), due: Mutex::default(), notify: Notify::new() }
    }

    /// A message is there.
    pub(crate) fn now(&self) {
        self.notify.notify_waiters();
    }

    /// A message will be there at `at`.
    pub(crate) fn at(&self, at: Instant) {
        let step = self.step(at) + 1;
        let mut due = lock(&self.due);
        let coming = due.split_off(&self.step(Instant::now()));
        *due = coming;
        let sooner = due.first().is_none_or(|first| step < *first);
        due.insert(step);
        drop(due);
        if sooner {
            self.notify.notify_waiters();
        }
    }

    /// What to take hold of before looking, for [`Wake::sleep`].
    pub(crate) fn listen(&self) -> Notified<'_> {
        self.notify.notified()
    }

    /// Sleeps until a message may be there that was not when the queue was looked at, at `looked`, or until `deadline`.
    pub(crate) async fn sleep(&self, news: Notified<'_>, looked: Instant, deadline: Instant) {
        let next = lock(&self.due).range(self.step(looked) + 1..).next().copied();
        let due = next.map_or(deadline, |step| self.began + Duration::from_millis(step * STEP));
        let until = due.min(deadline).min(looked + LONGEST);
        // Both ends are the same to the caller: look again.
        let _ = tokio::time::timeout_at(until.into(), news).await;
    }

    fn step(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.began).as_millis();
        u64::try_from(since).unwrap_or(u64::MAX) / STEP
    }
}
