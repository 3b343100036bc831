//! Whether PostgreSQL is out of reach, as this process sees it.
//!
//! When it is back, whoever waits for it goes on at once. And since other processes may have been cut off with this one, leases that
//! lapsed meanwhile are not taken over before their holders have had the time to give them back: nobody died (I7).

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::{Notify, futures::Notified};

use crate::error::Error;

/// For so long after an outage lapsed leases are spared: twice the longest pause of a process that waits for PostgreSQL.
const SPARED: Duration = Duration::from_secs(10);
/// What takes less, while other steps are answered, is no outage: a single connection that could not be had.
const SHORTEST: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct Outage {
    state: Mutex<State>,
    over: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Since when nothing was answered.
    out_of_reach_since: Option<Instant>,
    back_since: Option<Instant>,
}

impl State {
    fn is_outage(&self) -> bool {
        self.out_of_reach_since.is_some_and(|since| since.elapsed() > SHORTEST)
    }
}

impl Outage {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A step failed.
    pub(crate) fn failed(&self, error: &Error) {
        if error.is_out_of_reach() {
            self.state().out_of_reach_since.get_or_insert_with(Instant::now);
        }
    }

    /// A step was answered.
    pub(crate) fn answered(&self) {
        let mut state = self.state();
        if state.is_outage() {
            state.back_since = Some(Instant::now());
            self.over.notify_waiters();
        }
        state.out_of_reach_since = None;
    }

    /// Resolves when PostgreSQL is back.
    pub(crate) fn over(&self) -> Notified<'_> {
        self.over.notified()
    }

    /// How long lapsed leases are to be spared from now on.
    pub(crate) fn spare(&self) -> Duration {
        let state = self.state();
        match state.back_since {
            _ if state.is_outage() => SPARED,
            Some(since) => SPARED.saturating_sub(since.elapsed()),
            None => Duration::ZERO,
        }
    }
}
