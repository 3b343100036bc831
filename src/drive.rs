//! The one background loop: everything that runs on is a tick that is safe to repeat.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio_util::sync::CancellationToken;

use crate::error::Error;

/// The trouble of a part is told at most so often: a process has some ten parts.
const TROUBLE_TOLD: Duration = Duration::from_secs(10);

/// What a tick says about the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// There is more: at once.
    Busy,
    /// Nothing to do: after this pause, unless something wakes it.
    Idle(Duration),
}

/// When a part last made progress; `/healthz` reads it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pulse(Arc<Mutex<Progress>>);

#[derive(Debug, Default)]
struct Progress {
    beats: u64,
    last: Option<Instant>,
    error: Option<String>,
}

impl Pulse {
    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Progress was made.
    pub(crate) fn beat(&self) {
        let mut progress = self.lock();
        *progress = Progress { beats: progress.beats + 1, last: Some(Instant::now()), error: None };
    }

    /// How often progress was made.
    pub(crate) fn beats(&self) -> u64 {
        self.lock().beats
    }

    fn failed(&self, error: &str) {
        self.lock().error = Some(error.to_owned());
    }

    /// How long ago progress was made (`None`: never), and the error since.
    pub(crate) fn read(&self) -> (Option<Duration>, Option<String>) {
        let progress = self.lock();
        (progress.last.map(|at| at.elapsed()), progress.error.clone())
    }
}

/// Half a second, doubled at each failure.
pub(crate) fn growing(failures: u32) -> Duration {
    Duration::from_millis(500).saturating_mul(1 << failures.min(20))
}

/// Pauses after errors: doubled, with jitter, up to a limit.
#[derive(Debug)]
pub(crate) struct Pause {
    limit: Duration,
    failures: u32,
}

impl Pause {
    pub(crate) fn new(limit: Duration) -> Self {
        Pause { limit, failures: 0 }
    }

    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// The next pause: 0.5 s or a little more at first, then up to the limit and never above it.
    pub(crate) fn next(&mut self) -> Duration {
        let pause = growing(self.failures);
        self.failures = self.failures.saturating_add(1);
        pause.mul_f64(rand::random_range(1.0..1.25)).min(self.limit.mul_f64(rand::random_range(0.75..1.0)))
    }
}

/// Something that goes wrong again and again: told at once, then no more often than it needs to be read.
#[derive(Debug)]
pub(crate) struct Repeated {
    every: Duration,
    told: Option<Instant>,
    untold: usize,
}

impl Repeated {
    pub(crate) fn new(every: Duration) -> Self {
        Repeated { every, told: None, untold: 0 }
    }

    /// It happened so often: the number since it was last told, where it is time to tell it.
    pub(crate) fn tell(&mut self, times: usize) -> Option<usize> {
        self.untold += times;
        if self.told.is_some_and(|told| told.elapsed() < self.every) {
            return None;
        }
        self.told = Some(Instant::now());
        Some(std::mem::take(&mut self.untold))
    }
}

/// Something that runs on.
pub(crate) trait Part: Send {
    /// For logs.
    fn name(&self) -> &'static str;

    /// One step, safe to repeat after an error; never dropped in the middle.
    fn tick(&mut self) -> impl Future<Output = Result<Next, Error>> + Send;

    /// Why a tick that went well made no progress all the same.
    fn trouble(&self) -> Option<&str> {
        None
    }

    /// Ends an idle pause early.
    fn woken(&mut self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }
}

/// Runs a part's ticks until cancelled. An error is logged here, one line in ten seconds, and followed by a growing pause of at least
/// half a second, the try itself and its pause together at most `limit` or little more.
pub(crate) async fn drive(mut part: impl Part, stop: CancellationToken, pulse: Pulse, limit: Duration) {
    let mut pause = Pause::new(limit);
    let mut trouble = Repeated::new(TROUBLE_TOLD);
    let mut told = false;
    while !stop.is_cancelled() {
        let began = Instant::now();
        let idle = match part.tick().await {
            Ok(next) => {
                pause.reset();
                match part.trouble() {
                    None => pulse.beat(),
                    Some(trouble) => pulse.failed(trouble),
                }
                if std::mem::take(&mut told) {
                    tracing::info!(part = part.name(), "works again");
                }
                match next {
                    Next::Busy => {
                        // A tick that never waits must not starve its neighbours.
                        tokio::task::yield_now().await;
                        continue;
                    }
                    Next::Idle(idle) => idle,
                }
            }
            Err(error) => {
                // What it took to fail is part of the pause: a peer that hangs is not left alone for longer than one that refuses.
                let pause = pause.next();
                let wait = pause.saturating_sub(began.elapsed()).max(pause.min(growing(0)));
                if let Some(failures) = trouble.tell(1) {
                    told = true;
                    let pause_ms = wait.as_millis() as u64;
                    tracing::error!(part = part.name(), %error, failures, pause_ms, "failed; trying again after a pause");
                }
                pulse.failed(&error.to_string());
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = tokio::time::sleep(wait) => {}
                }
                continue;
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(idle) => {}
            () = part.woken() => {}
        }
    }
}
