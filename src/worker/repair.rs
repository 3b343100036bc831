//! Repair: unfinished runs whose message SQS itself has lost get a new one (I11). Never part of a normal path.
//!
//! Done by the service of the relay, once a minute, queue by queue, a look at some runs a transaction. A run that was not lost after all
//! gets one copy more, which changes nothing; the bound doubles at each repair, so there are few. A crash leaves a look repaired or not.
//!
//! The cost is that of a look, however large the ledger: a pass through a million unfinished runs is a thousand looks with rests between
//! them. Where a transaction elsewhere keeps the index entries of finished runs alive, a look goes less far back.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use deadpool_postgres::Object;

use crate::{
    config::RepairAfter,
    drive::{Next, Part},
    error::Error,
    ledger::{self, Cursor, Look, Looked},
    queue::Queue,
};

use super::Worker;

/// Runs that are examined in one transaction.
const RUNS: i64 = 1_000;
/// A look that takes longer is given up, and goes less far back the next time. The pool may have one connection for this and for starts.
const LONGEST: Duration = Duration::from_millis(500);
/// The same where it cannot go less far back.
const LONGEST_AT_LEAST: Duration = Duration::from_secs(8);
/// A look that takes less goes further back the next time.
const CHEAP: Duration = Duration::from_millis(50);
/// How far back the shortest look goes.
const SHORTEST: Duration = Duration::from_secs(1);
/// What goes back further than this goes to the oldest.
const FURTHEST: Duration = Duration::from_secs(64 * 86_400);
/// Between the looks of a pass so many times as long as they took.
const REST: u32 = 9;
/// Pause between passes, or the shortest bound where that is shorter.
const PACE: Duration = Duration::from_secs(60);

/// A pass through the unfinished runs of a queue, newest first, look by look.
#[derive(Debug)]
pub(crate) struct Pass {
    queue: Queue,
    bound: Duration,
    next: Option<Cursor>,
    window: Option<Duration>,
    runs: i64,
}

impl Pass {
    pub(crate) fn new(queue: Queue, bound: Duration) -> Pass {
        Pass { queue, bound, next: None, window: None, runs: RUNS }
    }

    /// Whether there is more to examine; else the next look begins anew.
    pub(crate) fn goes_on(&self) -> bool {
        self.next.is_some()
    }

    fn look(&self) -> Look {
        let within = if self.window == Some(SHORTEST) { LONGEST_AT_LEAST } else { LONGEST };
        Look { queue: self.queue, bound: self.bound, after: self.next.clone(), window: self.window, limit: self.runs, within }
    }

    /// What the look took decides how far the next one goes; none where it was given up.
    fn looked(&mut self, took: Option<Duration>) {
        self.window = match (self.window, took) {
            (window, None) => Some((window.unwrap_or(FURTHEST) / 16).max(SHORTEST)),
            (Some(window), Some(took)) if took < CHEAP => Some(window * 2).filter(|window| *window <= FURTHEST),
            (window, Some(_)) => window,
        };
    }

    fn end(&mut self, began: Instant, looked: Result<Looked, Error>) -> Result<Option<Looked>, Error> {
        match looked {
            Ok(looked) => {
                self.looked(Some(began.elapsed()));
                self.next.clone_from(&looked.next);
                self.runs = (self.runs * 2).min(RUNS);
                Ok(Some(looked))
            }
            Err(error) if error.is_out_of_time() && self.window != Some(SHORTEST) => {
                self.looked(None);
                Ok(None)
            }
            Err(error) if !error.session_is_gone() && self.runs > 1 => {
                tracing::warn!(queue = %self.queue, %error, runs = self.runs, "runs were not repaired; fewer are tried at a time");
                self.runs = (self.runs / 10).max(1);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Examines some runs and sends those anew whose message is lost; none where that is to be tried again with fewer of them.
    async fn repair(&mut self, connection: &mut Object) -> Result<Option<Looked>, Error> {
        let (began, look) = (Instant::now(), self.look());
        let looked = match ledger::repair(connection, &look).await {
            Err(error) if !error.session_is_gone() && look.limit == 1 => {
                let looked = ledger::count_stranded(connection, &look).await?;
                let run_id = looked.lost.first().map(ToString::to_string);
                tracing::error!(queue = %self.queue, run_id, %error, "this run was not repaired; the pass goes on behind it");
                Ok(Looked { lost: Vec::new(), ..looked })
            }
            looked => looked,
        };
        self.end(began, looked)
    }

    /// The same, and changes nothing.
    pub(crate) async fn count(&mut self, connection: &mut Object) -> Result<Option<Looked>, Error> {
        let began = Instant::now();
        let looked = ledger::count_stranded(connection, &self.look()).await;
        self.end(began, looked)
    }
}

/// What a pass did so far.
#[derive(Debug, Default)]
struct Sum {
    looks: u32,
    examined: usize,
    repaired: usize,
    took: Duration,
    longest: Duration,
}

/// The passes of a queue, one after the other.
struct Passes {
    pass: Pass,
    sum: Sum,
    /// When the next look is due.
    due: Instant,
}

pub(crate) struct Repairer {
    worker: Arc<Worker>,
    passes: [Passes; 4],
    pace: Duration,
}

impl Repairer {
    pub(crate) fn new(worker: Arc<Worker>, after: RepairAfter) -> Repairer {
        let passes = Queue::ALL.map(|queue| Passes { pass: Pass::new(queue, after.of(queue)), sum: Sum::default(), due: Instant::now() });
        let shortest = Queue::ALL.map(|queue| after.of(queue)).into_iter().min();
        Repairer { worker, passes, pace: shortest.map_or(PACE, |bound| bound.min(PACE)) }
    }
}

impl Passes {
    /// One look, and when the next one is due.
    async fn step(&mut self, worker: &Worker, pace: Duration) -> Result<(), Error> {
        let queue = self.pass.queue;
        let mut session = worker.pools.control().await?;
        let began = Instant::now();
        let looked = self.pass.repair(&mut session).await;
        let looked = session.end(looked)?;
        let took = began.elapsed();
        self.sum.looks += 1;
        self.sum.took += took;
        self.sum.longest = self.sum.longest.max(took);
        let cut = looked.is_none();
        if let Some(looked) = looked {
            self.sum.examined += looked.examined;
            self.sum.repaired += looked.lost.len();
            if let Some(first) = looked.lost.first() {
                let (count, failed) = (looked.lost.len(), looked.failed);
                tracing::warn!(%queue, count, failed, first_run_id = %first, "repaired: the queue was served past runs that nothing brings; they are sent anew");
                worker.wakes.wake();
            }
        }
        if cut || self.pass.goes_on() {
            self.due = Instant::now() + took * REST;
            return Ok(());
        }
        self.due = Instant::now() + pace;
        let Sum { looks, examined, repaired, took, longest } = std::mem::take(&mut self.sum);
        if looks > 1 {
            let (took_ms, longest_ms) = (took.as_millis() as u64, longest.as_millis() as u64);
            tracing::info!(%queue, looks, examined, repaired, took_ms, longest_ms, "every unfinished run of the queue was examined for a lost message");
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
        // After an outage whoever holds a lapsed lease has the time to revive it: nobody died.
        let spared = self.worker.outage.spare();
        if !spared.is_zero() {
            return Ok(Next::Idle(spared));
        }
        for passes in &mut self.passes {
            if passes.due > Instant::now() {
                continue;
            }
            let step = passes.step(&self.worker, self.pace).await;
            let gone = step.as_ref().is_err_and(Error::session_is_gone);
            // Runs of one queue that cannot be repaired hold up no other queue.
            done = step.and(done);
            if gone {
                break;
            }
        }
        let due = self.passes.iter().map(|passes| passes.due).min();
        done.map(|()| Next::Idle(due.map_or(PACE, |due| due.saturating_duration_since(Instant::now()))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_goes_less_far_back_after_one_that_took_too_long_and_further_after_a_cheap_one() {
        let mut pass = Pass::new(Queue::Bulk, Duration::from_secs(60));
        pass.looked(Some(Duration::from_millis(1)));
        assert_eq!(pass.window, None, "to the oldest, where that is cheap");
        pass.looked(None);
        assert_eq!(pass.window, Some(FURTHEST / 16));
        for _ in 0..10 {
            pass.looked(None);
        }
        assert_eq!((pass.window, pass.look().within), (Some(SHORTEST), LONGEST_AT_LEAST));
        pass.looked(Some(CHEAP));
        assert_eq!(pass.window, Some(SHORTEST), "neither cheap nor too long");
        for _ in 0..30 {
            pass.looked(Some(Duration::from_millis(1)));
        }
        assert_eq!(pass.window, None);
    }
}
