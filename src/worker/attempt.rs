//! One attempt: the handler, then what it became. Only the holder of the lease records anything (I3).
//!
//! Crash points: before the commit of effect or record the lease lapses and the run is taken over (`lost`); after it the message
//! comes back and is judged as over. A COMMIT whose answer is lost is decided by a fenced update on another session, which waits
//! for the row lock of the unanswered one (I2).

use std::{
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use tokio::{task::JoinError, time::timeout};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::{
    error::{self, Error},
    failure::{TaskError, panic_text, storable},
    ledger::{self, Failure, Recorded, Started},
    pools::{self, Left, Session},
    run::{EffectTransaction, TaskRun},
    sqs::MAX_HIDDEN,
};

use super::{
    Worker,
    holds::{Hold, Lost},
    settle::Settle,
    slots::{Permit, Slot},
};

/// The fifth receive is the last that may return by visibility; the sixth would not be started.
const LAST_RECEIVE: i32 = 5;
/// Longest wait before the next attempt, whatever the handler asked for: what a calendar cannot hold could not be recorded.
const LONGEST_WAIT: Duration = Duration::from_secs(366 * 86_400);
/// How long a handler that is told to end may take to do so by itself.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// Wait after the first interruption; doubled at each.
const INTERRUPTED_PAUSE: Duration = Duration::from_secs(1);

pub(crate) struct Attempt {
    pub(crate) worker: Arc<Worker>,
    pub(crate) slot: Arc<Slot>,
    pub(crate) hold: Hold,
    pub(crate) receives: i32,
    pub(crate) started: Started,
    /// What the handler leaves of its sessions when it is dropped.
    pub(crate) left: Left,
}

/// How a handler ended.
#[allow(clippy::large_enum_variant, reason = "one lives on the stack of each attempt")]
pub(crate) enum Ended {
    Returned(Result<Option<String>, TaskError>, Option<EffectTransaction>),
    /// Its lease was taken over, or may have been: nothing of it may be recorded but what the token still allows.
    LeaseLost(Lost),
    /// The stop budget is used up.
    Cut,
}

/// Why an attempt whose handler did its work is not finished.
#[derive(Debug)]
pub(crate) enum NotFinished {
    /// Another holds the lease, or nobody.
    LeaseLost,
    /// PostgreSQL could not do it; nothing is wrong with the attempt.
    Interrupted(String),
    /// PostgreSQL refused what the handler wrote.
    Failed(TaskError),
}

impl From<Error> for NotFinished {
    fn from(error: Error) -> NotFinished {
        if error.is_lease_lost() {
            return NotFinished::LeaseLost;
        }
        let (gone, ended) = (error.session_is_gone(), error.is_transaction_ended());
        match error {
            Error::Postgres { source, .. } if !gone => {
                let error = TaskError::from(source);
                NotFinished::Failed(if ended { error.with_code("TRANSACTION_ENDED") } else { error })
            }
            error => NotFinished::Interrupted(error.to_string()),
        }
    }
}

/// What the runtime does with the message.
pub(crate) enum Fate {
    Settle(Settle),
    /// It is not ours any more, or what became of it is unknown: it comes back and is judged.
    Leave,
}

impl Attempt {
    /// Runs the handler, finishes the run and settles its message.
    pub(crate) async fn run(self, permit: Permit) {
        let span = tracing::info_span!("run", run_id = %self.started.run_id, unit = self.slot.unit.name, attempt = self.started.attempt());
        async {
            let began = Instant::now();
            match &self.started.lost_worker {
                Some(lost_worker) => tracing::warn!(lost_worker, "taken over: the lease of the worker that had it lapsed"),
                None => tracing::debug!("started"),
            }
            let (fate, permit) = self.conclude(self.task_run(), permit).await;
            // The slot is free while SQS is told, however long that takes, unless very many wait for it already.
            let unsettled = self.worker.unsettled.acquire().await;
            self.slot.ended(began.elapsed());
            drop(permit);
            match fate {
                Fate::Settle(what) => self.worker.settle(&self.hold, what).await,
                Fate::Leave => self.worker.holds.release(&self.hold).await,
            }
            drop(unsettled);
        }
        .instrument(span)
        .await;
    }

    /// What the handler sees of it.
    pub(crate) fn task_run(&self) -> TaskRun {
        TaskRun::new(
            self.started.clone(),
            self.slot.unit,
            tracing::Span::current(),
            CancellationToken::new(),
            self.worker.state.clone(),
            self.worker.pools.clone(),
            self.left.clone(),
        )
    }

    /// Runs the handler and finishes the run; what is left to do is the message.
    pub(crate) async fn conclude(&self, run: TaskRun, permit: Permit) -> (Fate, Option<Permit>) {
        // The permit is kept until the run is finished: its effect still holds a connection.
        let (ended, permit) = self.handle(run, self.slot.unit.timeout(), permit).await;
        let finish = async {
            match ended {
                Ended::Returned(Ok(outcome), effect) => self.succeed(outcome, effect).await,
                Ended::Returned(Err(error), effect) => self.fail(error, effect).await,
                Ended::LeaseLost(Lost::Taken) => Fate::Leave,
                Ended::LeaseLost(Lost::Lapsed) => self.interrupt("neither SQS nor PostgreSQL kept the lease in time").await,
                Ended::Cut => self.give_back().await,
            }
        };
        let fate = self.worker.unless_given_up(finish).await.unwrap_or_else(|| {
            tracing::error!("PostgreSQL did not answer before the stop: the lease lapses, which counts as a crash");
            Fate::Settle(Settle::Hide(Duration::ZERO))
        });
        (fate, permit)
    }

    /// The handler's end within this time; with its permit where it has really ended, else the permit stays with it.
    pub(crate) async fn handle(&self, run: TaskRun, limit: Duration, permit: Permit) -> (Ended, Option<Permit>) {
        let cancelled = run.cancellation();
        let handler = self.slot.unit.handler;
        let payload = self.started.payload.clone();
        let mut task = self.worker.handlers.spawn(
            async move {
                // A panic ends this attempt alone.
                let result = AssertUnwindSafe(async { handler(&payload, &run).await }).catch_unwind().await;
                let result = result.unwrap_or_else(|panic| Err(panicked(&*panic)));
                (result, run.into_effect(), permit)
            }
            .in_current_span(),
        );
        let ended = tokio::select! {
            joined = &mut task => return match joined {
                Ok((result, effect, permit)) => (Ended::Returned(result, effect), Some(permit)),
                Err(error) => (Ended::Returned(Err(ended_badly(error)), None), None),
            },
            () = tokio::time::sleep(limit) => {
                Ended::Returned(Err(TaskError::transient(format!("it took longer than {} s", limit.as_secs())).with_code("TIMED_OUT")), None)
            }
            lost = self.hold.lost() => Ended::LeaseLost(lost),
            () = self.worker.cut.cancelled() => Ended::Cut,
        };
        cancelled.cancel();
        if timeout(LAST_WORDS, &mut task).await.is_err() {
            // Dropped at its next await, its effect with it; a handler that blocks its thread keeps its permit until then.
            task.abort();
            drop(timeout(LAST_WORDS, &mut task).await);
        }
        (ended, None)
    }

    /// Commits the effect together with `succeeded`.
    async fn succeed(&self, outcome: Option<String>, effect: Option<EffectTransaction>) -> Fate {
        let outcome = outcome.map(storable_json);
        let finished = match effect {
            Some(effect) => self.commit(effect.into_session(), outcome.as_deref()).await,
            None => self.succeed_alone(outcome.as_deref()).await.map(|()| false),
        };
        match finished {
            Ok(enqueued) => {
                tracing::info!("succeeded");
                if enqueued {
                    self.worker.wakes.wake();
                }
                Fate::Settle(Settle::Delete)
            }
            Err(error) => match NotFinished::from(error) {
                NotFinished::LeaseLost => {
                    tracing::warn!("not finished by this attempt: its lease was lost, or it was finished already and the answer was lost");
                    Fate::Leave
                }
                NotFinished::Interrupted(reason) => self.interrupt(&reason).await,
                NotFinished::Failed(error) => self.record(error).await,
            },
        }
    }

    /// Finishes in the effect transaction; whether that schedules other work. After an error it is over: rolled back, or its session is closed.
    async fn commit(&self, session: Session, outcome: Option<&str>) -> Result<bool, Error> {
        let limit = pools::effect_limit(self.slot.unit.timeout());
        let enqueued = match ledger::succeed(&session, &self.started, outcome, limit).await {
            Ok(enqueued) => enqueued,
            Err(error) => {
                if !error.session_is_gone() {
                    session.roll_back().await;
                }
                return Err(error);
            }
        };
        // What is deferred to the commit is the handler's, and may take as long as its statements.
        let committed = pools::answered_within(limit, "effect commit", session.batch_execute("commit")).await;
        let committed = if committed.is_ok() { session.end(committed) } else { committed };
        committed.map(|()| enqueued)
    }

    /// Finishes without an effect. What the handler did elsewhere is done: the finish is tried until it is answered, rather than the run.
    async fn succeed_alone(&self, outcome: Option<&str>) -> Result<(), Error> {
        let finished = self.worker.until_answered("finishing a run", || async {
            let session = self.worker.pools.record().await?;
            let finished = ledger::succeed_alone(&*session, &self.started, outcome).await;
            match session.end(finished) {
                Err(error) if error.session_is_gone() || error.is_locked() => Err(error),
                decided => Ok(decided),
            }
        });
        finished.await.unwrap_or_else(|| Err(Error::Other("the process stops".to_owned())))
    }

    /// Rolls the effect back and records the failure on another session: the record never depends on the one that failed.
    async fn fail(&self, error: TaskError, effect: Option<EffectTransaction>) -> Fate {
        let mut gone = error.session_gone();
        if let Some(effect) = effect {
            gone |= !effect.into_session().roll_back().await;
        }
        // Whatever the handler made of it, its time-out included: on a session that answers nothing it could not do its work.
        gone |= !self.left.answered().await;
        if gone && !error.is_permanent() { self.interrupt(&error.text()).await } else { self.record(error).await }
    }

    async fn record(&self, error: TaskError) -> Fate {
        let failures = u32::try_from(self.started.attempt()).unwrap_or(1);
        let backoff = error.wait().unwrap_or_else(|| self.worker.backoff.after(failures)).min(LONGEST_WAIT);
        let left = MAX_HIDDEN.saturating_sub(self.hold.received.elapsed() + Duration::from_secs(60));
        let failure = Failure::of(&error, backoff, self.receives >= LAST_RECEIVE || backoff > left);
        let recorded = self
            .worker
            .until_answered("recording a failure", || async {
                let mut session = self.worker.pools.record().await?;
                let recorded = ledger::fail(&mut session, self.started.run_id, self.started.token, &failure).await;
                session.end(recorded)
            })
            .await;
        let (code, text) = (&failure.code, &failure.text);
        match recorded {
            Some(Recorded::Failed) => {
                tracing::error!(code, error = text, "failed; its dead letter is on the way");
                self.worker.wakes.wake();
                Fate::Settle(Settle::Delete)
            }
            Some(Recorded::Retrying) => {
                tracing::warn!(code, error = text, retry_in_ms = backoff.as_millis() as u64, "failed; it will be tried again");
                if failure.through_outbox {
                    self.worker.wakes.wake();
                    Fate::Settle(Settle::Delete)
                } else {
                    Fate::Settle(Settle::Hide(backoff))
                }
            }
            // An answer that was lost after its commit looks the same: the message comes back and is judged.
            Some(Recorded::LeaseLost) | None => Fate::Leave,
        }
    }

    /// The database session was lost, or a COMMIT was not answered: given back, not counted as a failure, at most twenty times.
    async fn interrupt(&self, reason: &str) -> Fate {
        let reason = storable(reason, 500);
        let runs = [(self.started.run_id, self.started.token)];
        let given = self
            .worker
            .until_answered("giving back an interrupted run", || async {
                let mut session = self.worker.pools.record().await?;
                let given = ledger::give_back(&mut session, &runs, &reason, INTERRUPTED_PAUSE, true).await;
                session.end(given)
            })
            .await;
        match given {
            Some(given) if !given.is_empty() => {
                if let Some(count) = self.worker.trouble() {
                    tracing::warn!(reason, count, "interrupted; given back");
                }
                self.worker.wakes.wake();
                Fate::Settle(Settle::Delete)
            }
            // Not given back: it was committed after all, or taken over, or interrupted too often. Only in the last case is
            // the lease still ours, and then it counts as a failure.
            Some(_) => Box::pin(self.record(TaskError::transient(reason).with_code("INTERRUPTED"))).await,
            None => Fate::Leave,
        }
    }

    /// The process stops: the run returns to its queue by a new message, and this one goes.
    async fn give_back(&self) -> Fate {
        let runs = [(self.started.run_id, self.started.token)];
        let reason = "the process stopped before the run was finished";
        let given = self
            .worker
            .until_answered("giving a run back", || async {
                let mut session = self.worker.pools.record().await?;
                let given = match ledger::give_back(&mut session, &runs, reason, Duration::ZERO, false).await {
                    // A relay holds the outbox row: the run is queued all the same, and this message brings it back at once.
                    Err(error) if error.is_locked() => {
                        let given = ledger::give_back_by_visibility(&*session, &runs, reason).await;
                        given.map(|given| (given, Settle::Hide(Duration::ZERO)))
                    }
                    given => given.map(|given| (given, Settle::Delete)),
                };
                session.end(given)
            })
            .await;
        match given {
            Some((given, _)) if given.is_empty() => Fate::Leave,
            Some((_, what)) => {
                tracing::info!("given back: the process stops");
                self.worker.wakes.wake();
                Fate::Settle(what)
            }
            None => Fate::Leave,
        }
    }
}

/// What a handler returned, as `jsonb` takes it.
pub(crate) fn storable_json(text: String) -> String {
    text.replace("\\u0000", "\\ufffd")
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> TaskError {
    TaskError::transient(panic_text(panic)).with_code("PANIC")
}

fn ended_badly(error: JoinError) -> TaskError {
    TaskError::transient(error::chain(&error)).with_code("PANIC")
}
