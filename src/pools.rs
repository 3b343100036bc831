//! Connections of the process, by purpose, and the limit within which PostgreSQL has to answer on them.
//!
//! Who needs one takes a [`Session`], works on it, and ends it with the answer. A session goes back to its pool only so: one that was lost,
//! did not answer, or whose user left in the middle of something, is closed, and what it was doing is cancelled.

use std::{
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use deadpool_postgres::{HookError, Object, Pool, PoolError};
use futures_util::future::{join, join_all};
use tokio::{runtime::Handle, task::JoinHandle, time::timeout};

use crate::{
    database::{CONNECT_TIMEOUT, Database},
    error::{Error, postgres_text},
};

/// How long an answer to a statement of the runtime's own is waited for. PostgreSQL limits what it waits for itself (locks) to less; a
/// peer that takes bytes and answers nothing is noticed by nobody else.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How much longer than its work a session may be idle in a transaction, or in a statement.
const MARGIN: Duration = Duration::from_secs(30);
/// How long a rollback is waited for before whatever it waits for is cancelled.
const ROLLBACK_TIMEOUT: Duration = Duration::from_secs(1);

/// The answer to a statement, within [`ANSWER_TIMEOUT`].
pub(crate) async fn answered<T>(
    statement: &'static str,
    answer: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, Error> {
    answered_within(ANSWER_TIMEOUT, statement, answer).await
}

/// The answer to a statement that may take long, within this time.
pub(crate) async fn answered_within<T>(
    limit: Duration,
    statement: &'static str,
    answer: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, Error> {
    match timeout(limit, answer).await {
        Ok(answer) => answer.map_err(Error::postgres(statement)),
        Err(_) => Err(Error::Unanswered { statement, limit }),
    }
}

/// The pools of the process, so that no part waits on another's.
#[derive(Clone)]
pub(crate) struct Pools {
    /// One connection, or one a queue where there is room.
    relay: Pool,
    /// Judging, starting and heartbeats.
    control: Pool,
    /// Effect transactions: one a slot.
    effect: Pool,
    /// Records of failures, progress, handlers' own transactions: one a slot.
    record: Pool,
    database: Arc<Database>,
    runtime: Handle,
}

/// How long a statement of an effect transaction, its commit included, may take: longer than its handler may.
pub(crate) fn effect_limit(timeout: Duration) -> Duration {
    timeout + MARGIN
}

impl Pools {
    /// Makes the pools; opens no connection yet. `longest` is the longest timeout of a unit. Connections are driven on `runtime`.
    pub(crate) fn new(
        database: &Database,
        plan: PoolPlan,
        send_timeout: Duration,
        longest: Duration,
        runtime: &Handle,
    ) -> Result<Pools, Error> {
        Ok(Pools {
            relay: database.pool("relay", plan.relay, send_timeout + Duration::from_secs(5), runtime)?,
            control: database.pool("control", plan.control, MARGIN, runtime)?,
            effect: database.pool("effect", plan.slots.max(1), effect_limit(longest), runtime)?,
            record: database.pool("record", plan.slots.max(1), effect_limit(longest), runtime)?,
            database: Arc::new(database.clone()),
            runtime: runtime.clone(),
        })
    }

    pub(crate) async fn relay(&self) -> Result<Session, Error> {
        self.session(&self.relay).await
    }

    pub(crate) async fn control(&self) -> Result<Session, Error> {
        self.session(&self.control).await
    }

    pub(crate) async fn effect(&self) -> Result<Session, Error> {
        self.session(&self.effect).await
    }

    pub(crate) async fn record(&self) -> Result<Session, Error> {
        self.session(&self.record).await
    }

    async fn session(&self, pool: &Pool) -> Result<Session, Error> {
        let connection = Some(get(pool).await?);
        Ok(Session { connection, database: self.database.clone(), runtime: self.runtime.clone(), left: None })
    }

    /// Does it where no handler that blocks its thread holds it up. If the caller is cancelled it goes on to its end, and what it made is
    /// dropped there.
    pub(crate) async fn aside<T: Send + 'static>(&self, work: impl Future<Output = Result<T, Error>> + Send + 'static) -> Result<T, Error> {
        self.runtime.spawn(work).await.unwrap_or_else(|ended| Err(Error::Other(ended.to_string())))
    }
}

/// A connection of a pool, or why there is none.
pub(crate) async fn get(pool: &Pool) -> Result<Object, Error> {
    pool.get().await.map_err(|error| match error {
        PoolError::Backend(error) | PoolError::PostCreateHook(HookError::Backend(error)) => Error::Pool(postgres_text(&error)),
        other => Error::Pool(other.to_string()),
    })
}

/// A connection out of its pool.
pub(crate) struct Session {
    connection: Option<Object>,
    database: Arc<Database>,
    runtime: Handle,
    left: Option<Left>,
}

/// Sessions that a handler left as they were, and that are closed now.
#[derive(Debug, Clone, Default)]
pub(crate) struct Left(Arc<Mutex<Vec<JoinHandle<bool>>>>);

impl Left {
    /// Whether PostgreSQL answered once more on each of them.
    pub(crate) async fn answered(&self) -> bool {
        let closed = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        join_all(closed).await.into_iter().all(|answered| answered.unwrap_or(false))
    }
}

impl Session {
    /// Notes where it is left to.
    pub(crate) fn lent(mut self, left: &Left) -> Session {
        self.left = Some(left.clone());
        self
    }

    /// Gives it back, unless the answer says that it is of no further use: lost, unanswered, or on a server that is read-only now.
    pub(crate) fn end<T>(mut self, answer: Result<T, Error>) -> Result<T, Error> {
        if !answer.as_ref().is_err_and(Error::session_is_gone) {
            // Dropped as it is, it returns to its pool.
            drop(self.connection.take());
        }
        answer
    }

    /// Rolls its transaction back and gives it back; whether PostgreSQL answered. One that does not is closed.
    pub(crate) async fn roll_back(self) -> bool {
        match timeout(ROLLBACK_TIMEOUT, self.batch_execute("rollback")).await {
            Ok(Ok(())) => self.end(Ok(())).is_ok(),
            _ => self.close().await,
        }
    }

    /// Closes it and cancels what it was doing, so that its locks go with it; whether PostgreSQL answered once more.
    async fn close(mut self) -> bool {
        match self.closed() {
            Some(closed) => closed.await.unwrap_or(false),
            None => false,
        }
    }

    /// The same beside whatever goes on here.
    fn closed(&mut self) -> Option<JoinHandle<bool>> {
        let connection = Object::take(self.connection.take()?);
        let database = self.database.clone();
        Some(self.runtime.spawn(async move {
            if connection.is_closed() {
                return false;
            }
            let cancel = connection.cancel_token();
            let rollback = timeout(CONNECT_TIMEOUT, connection.batch_execute("rollback"));
            join(rollback, database.cancel(&cancel)).await.0.is_ok_and(|answer| answer.is_ok())
        }))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The closing goes on by itself.
        if let Some(closed) = self.closed()
            && let Some(Left(left)) = &self.left
        {
            left.lock().unwrap_or_else(PoisonError::into_inner).push(closed);
        }
    }
}

#[allow(clippy::expect_used, reason = "only what consumes or drops it leaves it empty")]
impl Deref for Session {
    type Target = Object;

    fn deref(&self) -> &Object {
        self.connection.as_ref().expect("held until it is ended or closed")
    }
}

#[allow(clippy::expect_used, reason = "as above")]
impl DerefMut for Session {
    fn deref_mut(&mut self) -> &mut Object {
        self.connection.as_mut().expect("held until it is ended or closed")
    }
}

/// How many connections each purpose gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PoolPlan {
    /// For the relay.
    pub(crate) relay: usize,
    /// For judging, starting and heartbeats.
    pub(crate) control: usize,
    /// For effects, and as many again for records.
    pub(crate) slots: usize,
}

impl PoolPlan {
    /// Shares out the pool; the error shows the number configured and the number needed.
    pub(crate) fn new(configured: Option<usize>, slots: usize) -> Result<PoolPlan, String> {
        let needed = 2 * slots + 2;
        let size = configured.unwrap_or(needed);
        if size < needed {
            return Err(format!(
                "DATABASE_POOL_SIZE is {size}, but {needed} connections are needed: 2 for each of the {slots} slots (the concurrency of the \
                 units on the consumed queues), 1 for the relay and 1 for control; raise it to {needed} or lower MONALISA_CONCURRENCY"
            ));
        }
        let spare = size - needed;
        let relay = if spare >= 3 { 4 } else { 1 };
        Ok(PoolPlan { relay, control: 1 + (spare - (relay - 1)).min(2), slots })
    }

    /// All connections.
    pub(crate) fn total(&self) -> usize {
        self.relay + self.control + 2 * self.slots
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_is_shared_out_by_purpose() {
        assert_eq!(PoolPlan::new(None, 4), Ok(PoolPlan { relay: 1, control: 1, slots: 4 }));
        assert_eq!(PoolPlan::new(Some(13), 4), Ok(PoolPlan { relay: 4, control: 1, slots: 4 }));
        let refused = PoolPlan::new(Some(9), 4).expect_err("one too few");
        assert!(refused.contains("is 9") && refused.contains("10 connections"), "{refused}");
    }
}
