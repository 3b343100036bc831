//! What a handler sees of its run.

use std::{
    any::{Any, TypeId},
    collections::HashMap,
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use chrono::{DateTime, TimeDelta, Utc};
use deadpool_postgres::Object;
use tokio::sync::{OnceCell, Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;
use tracing::Span;
use uuid::Uuid;

use crate::{
    error::Error,
    failure::TaskError,
    ledger::{self, Started},
    pools::{self, Left, Pools, Session},
    unit::Unit,
};

/// At most one progress report in this time reaches the database.
const PROGRESS_PAUSE: Duration = Duration::from_secs(1);

/// Application state that handlers share, by type.
pub(crate) type State = HashMap<TypeId, Arc<dyn Any + Send + Sync>>;

/// One attempt of a run, as its handler sees it; never the envelope.
pub struct TaskRun {
    started: Started,
    unit: &'static Unit,
    began: Instant,
    span: Span,
    cancelled: CancellationToken,
    state: Arc<State>,
    pools: Pools,
    left: Left,
    effect: OnceCell<EffectTransaction>,
    record: Semaphore,
    reported: Mutex<Option<Instant>>,
    #[cfg(feature = "testing")]
    clock: crate::testing::Clock,
}

impl TaskRun {
    pub(crate) fn new(
        started: Started,
        unit: &'static Unit,
        span: Span,
        cancelled: CancellationToken,
        state: Arc<State>,
        pools: Pools,
        left: Left,
    ) -> TaskRun {
        TaskRun {
            started,
            unit,
            began: Instant::now(),
            span,
            cancelled,
            state,
            pools,
            left,
            effect: OnceCell::new(),
            record: Semaphore::new(1),
            reported: Mutex::new(None),
            #[cfg(feature = "testing")]
            clock: crate::testing::Clock::default(),
        }
    }

    /// The same with this clock, and with an effect transaction that is open already, where there is one.
    #[cfg(feature = "testing")]
    pub(crate) fn in_test(mut self, clock: crate::testing::Clock, effect: Option<Session>) -> TaskRun {
        self.clock = clock;
        self.effect = OnceCell::new_with(effect.map(EffectTransaction));
        self
    }

    /// What tells its handler to end.
    pub(crate) fn cancellation(&self) -> CancellationToken {
        self.cancelled.clone()
    }

    /// Identity of the run everywhere. Give it to other systems as idempotency key: every attempt has the same.
    pub fn run_id(&self) -> Uuid {
        self.started.run_id
    }

    /// Name of the unit.
    pub fn name(&self) -> &'static str {
        self.unit.name
    }

    /// Which of its five tries this is, from 1: failures + crashes + 1.
    pub fn attempt(&self) -> i32 {
        self.started.attempt()
    }

    /// The tenant; `None` for platform and system work.
    pub fn tenant_id(&self) -> Option<i64> {
        self.started.tenant_id
    }

    /// The occurrence a schedule fired it for.
    pub fn scheduled_for(&self) -> Option<DateTime<Utc>> {
        self.started.scheduled_for
    }

    /// Trace context of the caller, where it gave one.
    pub fn traceparent(&self) -> Option<&str> {
        self.started.traceparent.as_deref()
    }

    /// The time by the database's clock: at the start, plus what has passed since by a clock that never jumps.
    pub fn now(&self) -> DateTime<Utc> {
        let now = self.started.started_at + TimeDelta::from_std(self.began.elapsed()).unwrap_or_default();
        #[cfg(feature = "testing")]
        let now = now + self.clock.moved();
        now
    }

    /// The span with run and unit. `tracing` macros in the handler are in it already; enter it in threads of your own.
    pub fn logger(&self) -> &Span {
        &self.span
    }

    /// Resolves when the attempt should end: its lease is lost, its time is up, or the process stops. What it wrote is rolled back. A
    /// handler that has not ended half a second later is dropped at its next await.
    pub async fn cancelled(&self) {
        self.cancelled.cancelled().await;
    }

    /// Whether the attempt should end; for loops that do not await.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.is_cancelled()
    }

    /// Application state given to [`Workers::state`](crate::Workers::state); an error names the type that was not given.
    pub fn state<T: Send + Sync + 'static>(&self) -> Result<Arc<T>, TaskError> {
        self.state.get(&TypeId::of::<T>()).cloned().and_then(|state| state.downcast::<T>().ok()).ok_or_else(|| {
            TaskError::transient(format!("no application state of type {} was given to Workers::state", std::any::type_name::<T>()))
                .with_code("STATE_MISSING")
        })
    }

    /// The effect transaction, opened when first asked for. What is written through it is committed together with the run's
    /// `succeeded`, or not at all. Do not commit or roll it back: the attempt would fail.
    ///
    /// It is `READ COMMITTED`, with `app.tenant_id` (empty for platform and system work) and `app.system_process` set locally.
    pub async fn transaction(&self) -> Result<&EffectTransaction, TaskError> {
        self.effect
            .get_or_try_init(|| {
                let (pools, left, started, limit) =
                    (self.pools.clone(), self.left.clone(), self.started.clone(), pools::effect_limit(self.unit.timeout()));
                self.pools.aside(async move {
                    let session = pools.effect().await?.lent(&left);
                    ledger::open_effect(&session, started.tenant_id, &started.unit, started.token, limit).await?;
                    Ok(EffectTransaction(session))
                })
            })
            .await
            .map_err(|error: Error| TaskError::interrupted(format!("the effect transaction could not be opened: {error}")))
    }

    /// A connection for transactions of the handler's own, outside the effect: what they commit stays, whatever becomes of the run.
    /// One at a time; it is closed when dropped.
    pub async fn connection(&self) -> Result<RunConnection<'_>, TaskError> {
        let permit = self.record.acquire().await.map_err(|_| TaskError::transient("the run has ended"))?;
        let (pools, left) = (self.pools.clone(), self.left.clone());
        let session = self.pools.aside(async move { Ok(pools.record().await?.lent(&left)) }).await;
        Ok(RunConnection { session: session.map_err(|error| TaskError::interrupted(error.to_string()))?, _permit: permit })
    }

    /// Reports progress, 0 to 100. Visible at once, whatever the effect transaction does; at most once a second reaches the
    /// database, and none while the handler holds [`connection`](Self::connection). A report that cannot be written is no error.
    pub async fn progress(&self, percent: u8) {
        {
            let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
            if reported.is_some_and(|at| at.elapsed() < PROGRESS_PAUSE) {
                return;
            }
            *reported = Some(Instant::now());
        }
        let Ok(_permit) = self.record.try_acquire() else { return };
        let (pools, run_id, token) = (self.pools.clone(), self.started.run_id, self.started.token);
        let written = self.pools.aside(async move {
            let session = pools.record().await?;
            let written = ledger::progress(&*session, run_id, token, i32::from(percent.min(100))).await;
            session.end(written)
        });
        if let Err(error) = written.await {
            tracing::debug!(%error, "progress was not written");
        }
    }

    /// Ends the handler's view: what was started, and the effect transaction where one was opened.
    pub(crate) fn into_effect(self) -> Option<EffectTransaction> {
        self.effect.into_inner()
    }
}

/// The effect transaction of an attempt; use it as a [`tokio_postgres::Client`].
pub struct EffectTransaction(Session);

impl EffectTransaction {
    pub(crate) fn into_session(self) -> Session {
        self.0
    }
}

impl Deref for EffectTransaction {
    type Target = tokio_postgres::Client;

    fn deref(&self) -> &tokio_postgres::Client {
        &self.0
    }
}

/// A connection lent to a handler for transactions of its own; use it as a [`deadpool_postgres::Client`]. Closed when dropped.
pub struct RunConnection<'a> {
    session: Session,
    _permit: SemaphorePermit<'a>,
}

impl Deref for RunConnection<'_> {
    type Target = Object;

    fn deref(&self) -> &Object {
        &self.session
    }
}

impl DerefMut for RunConnection<'_> {
    fn deref_mut(&mut self) -> &mut Object {
        &mut self.session
    }
}
