//! One attempt of a handler in a transaction that is never committed.
//!
//! The run is enqueued, shaped, started, handled and finished by the statements of the worker, in one transaction. A guard in it refuses to
//! be committed, and outside of it the session takes no writes: not even a handler that ends the transaction leaves anything.

use std::{fmt, ops::Deref, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use deadpool_postgres::Object;
use futures_util::future::BoxFuture;
use serde_json::Value;
use tokio_postgres::Row;
use uuid::Uuid;

use crate::{
    client::{self, Options},
    error::Error,
    failure::TaskError,
    ledger::{self, Delivery, Failure, Recorded, Start, Started},
    pools::{self, Session},
    run::EffectTransaction,
    sql,
    unit::{Kind, Unit},
    worker::attempt::{Ended, NotFinished, storable_json},
};

use super::{LEASE, Shared, worker};

/// Raises as the finish does where the handler has ended the transaction, once it is committed or its constraints are checked.
const GUARD: &str = "create temp table monalisa_guard (armed bool) on commit drop;
    create function pg_temp.monalisa_refuse_commit() returns trigger language plpgsql as $$
    begin
      if current_setting('monalisa.tried', true) is distinct from 'on' then
        raise exception 'TRANSACTION_ENDED: the handler committed the effect transaction itself' using errcode = 'ML010';
      end if;
      return null;
    end $$;
    create constraint trigger monalisa_guard after insert on monalisa_guard
      deferrable initially deferred for each row execute function pg_temp.monalisa_refuse_commit();
    insert into monalisa_guard values (true)";

/// What is deferred to the commit is checked now; the guard lets it.
const CHECK_DEFERRED: &str = "set local monalisa.tried = 'on'; set constraints all immediate";

/// An attempt that is yet to be made: the first one, of tenant 1 where the unit wants a tenant, unless told otherwise.
pub struct Trial {
    shared: Arc<Shared>,
    of: Result<(&'static Unit, String), Error>,
    tenant: Option<i64>,
    attempt: i32,
    scheduled_for: Option<DateTime<Utc>>,
    at: Option<DateTime<Utc>>,
    given: String,
    timeout: Option<Duration>,
    cancel: Option<BoxFuture<'static, ()>>,
}

/// How an attempt ended, as the worker would record it.
#[derive(Debug, Clone, PartialEq)]
pub enum End {
    /// The effect would be committed, with what the handler returned (null for `()`).
    Succeeded(Value),
    /// The effect is rolled back, and the run would be tried again.
    Retrying(TaskError),
    /// The effect is rolled back, and the run has failed for good: the error is permanent, or it was the fifth attempt.
    Failed(TaskError),
    /// The effect is rolled back, and the run would return to its queue with none of its five used up: it was told to end, or its session
    /// was lost. The text says why.
    GivenBack(String),
}

/// A run that the handler dispatched, or one of a subscriber of what it published.
#[derive(Debug, Clone, PartialEq)]
pub struct Scheduled {
    /// The run.
    pub run_id: Uuid,
    /// Its unit.
    pub unit: String,
    /// Type and version of the event, for a subscriber's.
    pub event: Option<(String, i32)>,
    /// Its tenant; `None` for platform and system work.
    pub tenant_id: Option<i64>,
    /// The queue that it travels on.
    pub queue: String,
    /// Its payload.
    pub payload: Value,
    /// When it is due.
    pub available_at: DateTime<Utc>,
}

/// An attempt that was made. As a [`tokio_postgres::Client`] it is the transaction as the handler left it: with its effect where it
/// succeeded, without it otherwise. It is rolled back when this is dropped.
pub struct Tried {
    /// The run's id, as the handler saw it.
    pub run_id: Uuid,
    /// How it ended.
    pub end: End,
    session: Session,
    before: Outboxes,
}

impl fmt::Debug for Tried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tried").field("run_id", &self.run_id).field("end", &self.end).finish_non_exhaustive()
    }
}

/// The newest rows of both outboxes.
#[derive(Debug, Clone, Copy)]
struct Outboxes {
    tenant: i64,
    platform: i64,
}

/// A run under way in a transaction that is open.
struct Prepared {
    session: Session,
    started: Started,
    before: Outboxes,
}

impl Trial {
    pub(super) fn new(shared: Arc<Shared>, of: Result<(&'static Unit, String), Error>) -> Trial {
        let tenant = of.as_ref().is_ok_and(|(unit, _)| unit.context == "tenant").then_some(1);
        Trial { shared, of, tenant, attempt: 1, scheduled_for: None, at: None, given: String::new(), timeout: None, cancel: None }
    }

    /// The tenant of the run; the row in `public.tenants` must be there.
    #[must_use]
    pub fn tenant(mut self, tenant_id: i64) -> Trial {
        self.tenant = Some(tenant_id);
        self
    }

    /// Which of its five tries it is, from 1: so many less one have failed before.
    #[must_use]
    pub fn attempt(mut self, attempt: i32) -> Trial {
        self.attempt = attempt;
        self
    }

    /// The occurrence of its schedule that it was fired for.
    #[must_use]
    pub fn scheduled_for(mut self, time: DateTime<Utc>) -> Trial {
        self.scheduled_for = Some(time);
        self
    }

    /// When it starts, as `run.now()` shows it; from there the [`clock`](super::TestDatabase::clock) goes on.
    #[must_use]
    pub fn at(mut self, time: DateTime<Utc>) -> Trial {
        self.at = Some(time);
        self
    }

    /// SQL that is carried out in the transaction before the handler, and rolled back with it.
    #[must_use]
    pub fn given(mut self, sql: &str) -> Trial {
        self.given = format!("{}{sql};\n", self.given);
        self
    }

    /// How long it may take, instead of the unit's `timeout_seconds`.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Trial {
        self.timeout = Some(limit);
        self
    }

    /// The attempt is told to end when this resolves, as where its process stops: `run.cancelled()` resolves, and half a second later the
    /// handler is dropped. `async {}` tells it before it begins.
    #[must_use]
    pub fn cancel_when(mut self, when: impl Future<Output = ()> + Send + 'static) -> Trial {
        self.cancel = Some(Box::pin(when));
        self
    }

    /// Makes the attempt. An error means that it could not be made; what the handler answered is in [`Tried::end`].
    pub async fn run(self) -> Result<Tried, Error> {
        worker::aside(self.carried_out()).await
    }

    async fn carried_out(mut self) -> Result<Tried, Error> {
        let (unit, payload) = self.of?;
        if !(1..=5).contains(&self.attempt) {
            return Err(Error::Other(format!("a run has the attempts 1 to 5; {} is none", self.attempt)));
        }
        let plan = Plan {
            unit,
            payload,
            tenant: self.tenant,
            failures: self.attempt - 1,
            scheduled_for: self.scheduled_for,
            given: self.given,
            limit: self.timeout.unwrap_or(unit.timeout()),
        };
        let Prepared { session, mut started, before } = plan.prepare(&self.shared).await?;
        let run_id = started.run_id;
        started.started_at = self.at.unwrap_or(started.started_at);
        let queue = unit.queue.parse().map_err(Error::Other)?;
        let worker = self.shared.worker().await?;
        let attempt = worker::attempt(&worker, started.clone(), queue).await;
        let (attempt, permit) = attempt.ok_or_else(|| Error::Other(format!("there is no slot for {}", unit.name)))?;
        if let Some(cancel) = self.cancel.take() {
            let cut = worker.cut.clone();
            tokio::spawn(async move {
                cancel.await;
                cut.cancel();
            });
        }
        let run = attempt.task_run().in_test(self.shared.clock.clone(), Some(session.lent(&attempt.left)));
        let (ended, _) = attempt.handle(run, plan.limit, permit).await;
        let (answer, effect) = match ended {
            Ended::Returned(answer, effect) => (answer.map_err(NotFinished::Failed), effect),
            Ended::LeaseLost(_) => (Err(NotFinished::LeaseLost), None),
            Ended::Cut => (Err(NotFinished::Interrupted("the attempt was told to end".to_owned())), None),
        };
        let effect = effect.map(EffectTransaction::into_session);
        let (problem, session) = match (answer, effect) {
            (Ok(outcome), Some(session)) => match finish(&session, &started, outcome, plan.limit).await {
                Ok(outcome) => return Ok(Tried { run_id, end: End::Succeeded(outcome), session, before }),
                Err(error) => (NotFinished::from(error), Some(session)),
            },
            (Ok(_), None) => (NotFinished::Interrupted("the session was lost".to_owned()), None),
            (Err(problem), session) => (problem, session),
        };
        let left = attempt.left.answered().await;
        let (kept, ended) = match session {
            Some(session) => roll_back(session).await,
            None => (None, false),
        };
        let problem = match problem {
            // The guard's answer to a commit; or what comes where writes are refused once the transaction has ended.
            NotFinished::Failed(error) if error.code() == "SQL_ML010" || ended && !error.is_permanent() => {
                NotFinished::Failed(error.with_code("TRANSACTION_ENDED"))
            }
            NotFinished::Failed(error) if !error.is_permanent() && (error.session_gone() || !left) => {
                NotFinished::Interrupted(error.text())
            }
            problem => problem,
        };
        // Without the transaction the run stands as before the handler only in another one.
        let Prepared { session, started, before } = match kept {
            Some(session) => Prepared { session, started, before },
            None => plan.prepare(&self.shared).await?,
        };
        let end = recorded(&session, &started, problem).await?;
        Ok(Tried { run_id, end, session, before })
    }
}

/// What an attempt is made of.
struct Plan {
    unit: &'static Unit,
    payload: String,
    tenant: Option<i64>,
    failures: i32,
    scheduled_for: Option<DateTime<Utc>>,
    given: String,
    limit: Duration,
}

impl Plan {
    /// A transaction in which the run is enqueued and started, and nothing has been done yet.
    async fn prepare(&self, shared: &Shared) -> Result<Prepared, Error> {
        let (limit, token) = (pools::effect_limit(self.limit), Uuid::new_v4());
        let session = shared.pools.effect().await?;
        let run = |statement, sql: String| {
            let session = &session;
            async move { pools::answered_within(limit, statement, session.batch_execute(&sql)).await }
        };
        run("test session", "set default_transaction_read_only = on".to_owned()).await?;
        ledger::open_effect(&session, self.tenant, self.unit.name, token, limit).await?;
        run("given", self.given.clone()).await?;
        run("test guard", GUARD.to_owned()).await?;
        let run_id = self.enqueue(&session).await?;
        let schedule = self.scheduled_for.map(|_| self.unit.name);
        let shaped = session.execute(sql::testing::SHAPE.text, &[&run_id, &self.failures, &schedule, &self.scheduled_for]).await;
        shaped.map_err(Error::postgres(sql::testing::SHAPE.name))?;
        let delivery = Delivery { run_id, generation: 1, mark: 0, receives: 2 };
        let started = ledger::start(&*session, &[Start { delivery, token, lease: LEASE }], true, "test").await?.pop();
        let started = started.ok_or_else(|| Error::Other("the run could not be started".to_owned()))?;
        let row = session.query_one(sql::testing::OUTBOX_END.text, &[]).await;
        let before = row.and_then(|row| Ok(Outboxes { tenant: row.try_get("tenant")?, platform: row.try_get("platform")? }));
        let before = before.map_err(Error::postgres(sql::testing::OUTBOX_END.name))?;
        run("savepoint", "savepoint monalisa_handler".to_owned()).await?;
        Ok(Prepared { session, started, before })
    }

    async fn enqueue(&self, client: &tokio_postgres::Client) -> Result<Uuid, Error> {
        let options = Options { tenant_id: self.tenant, ..Options::default() };
        match self.unit.kind {
            Kind::Task => client::dispatch_json(client, self.unit.name, &self.payload, &options).await,
            Kind::Subscriber { event, version } => {
                let published = client::publish_json(client, event, version, &self.payload, &options).await?;
                let own = published.into_iter().find(|run| run.unit == self.unit.name).map(|run| run.run_id);
                own.ok_or_else(|| Error::Other(format!("the database does not know the subscriber {}: migrate it", self.unit.name)))
            }
        }
    }
}

/// Finishes as a worker does, up to the commit; what the handler returned.
async fn finish(session: &Session, started: &Started, outcome: Option<String>, limit: Duration) -> Result<Value, Error> {
    let (outcome, limit) = (outcome.map(storable_json), pools::effect_limit(limit));
    ledger::succeed(session, started, outcome.as_deref(), limit).await?;
    pools::answered_within(limit, "deferred constraints", session.batch_execute(CHECK_DEFERRED)).await?;
    let outcome = outcome.as_deref().map(serde_json::from_str).transpose();
    outcome.map(Option::unwrap_or_default).map_err(|error| Error::Other(error.to_string()))
}

/// The session with what the handler did rolled back, where that can be; and whether the handler has ended the transaction.
async fn roll_back(session: Session) -> (Option<Session>, bool) {
    let rolled_back = pools::answered("rollback", session.batch_execute("rollback to savepoint monalisa_handler")).await;
    match rolled_back {
        Ok(()) => (Some(session), false),
        // There is no transaction, or another one.
        Err(error) => (None, error.sqlstate().is_some_and(|state| ["25P01", "3B001"].contains(&state.code()))),
    }
}

/// Records why it is not finished, and says what that makes of the run.
async fn recorded(session: &Object, started: &Started, problem: NotFinished) -> Result<End, Error> {
    let (run_id, token) = (started.run_id, started.token);
    let reason = match problem {
        NotFinished::Failed(error) => {
            let failure = Failure::of(&error, error.wait().unwrap_or_default(), false);
            return match ledger::record_failure(session, run_id, token, &failure).await? {
                Recorded::Retrying => Ok(End::Retrying(error)),
                Recorded::Failed => Ok(End::Failed(error)),
                Recorded::LeaseLost => Ok(End::GivenBack("the lease was lost".to_owned())),
            };
        }
        NotFinished::LeaseLost => return Ok(End::GivenBack("the lease was lost".to_owned())),
        NotFinished::Interrupted(reason) => reason,
    };
    ledger::give_back_by_visibility(session, &[(run_id, token)], &reason).await?;
    Ok(End::GivenBack(reason))
}

impl Tried {
    /// What the handler returned, where it succeeded; null for `()`.
    pub fn outcome(&self) -> Option<&Value> {
        match &self.end {
            End::Succeeded(outcome) => Some(outcome),
            _ => None,
        }
    }

    /// What it failed with, where it failed: for now or for good.
    pub fn error(&self) -> Option<&TaskError> {
        match &self.end {
            End::Retrying(error) | End::Failed(error) => Some(error),
            _ => None,
        }
    }

    /// What the handler dispatched and published, in that order; the last thousand. Of a publish it shows a run a subscriber. Nothing where it
    /// failed: that is rolled back too.
    pub async fn scheduled(&self) -> Result<Vec<Scheduled>, Error> {
        let rows = self.query(sql::testing::SCHEDULED.text, &[&self.before.tenant, &self.before.platform]).await;
        let read = rows.and_then(|rows| rows.iter().map(Scheduled::read).collect());
        read.map_err(Error::postgres(sql::testing::SCHEDULED.name))
    }
}

impl Scheduled {
    fn read(row: &Row) -> Result<Scheduled, tokio_postgres::Error> {
        let event: Option<String> = row.try_get("event_type")?;
        let payload: String = row.try_get("payload")?;
        Ok(Scheduled {
            run_id: row.try_get("run_id")?,
            unit: row.try_get("unit")?,
            event: event.zip(row.try_get("event_version")?),
            tenant_id: row.try_get("tenant_id")?,
            queue: row.try_get("queue")?,
            payload: serde_json::from_str(&payload).unwrap_or_default(),
            available_at: row.try_get("available_at")?,
        })
    }
}

impl Deref for Tried {
    type Target = tokio_postgres::Client;

    fn deref(&self) -> &tokio_postgres::Client {
        &self.session
    }
}
