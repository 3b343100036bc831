//! For the tests of handlers: this crate with the feature `testing`, as a dev-dependency.
//!
//! ```toml
//! [dev-dependencies]
//! monalisa = { path = "../monalisa", features = ["testing"] }
//! ```
//!
//! A [`TestDatabase`] is a database of the test's own on the server of `DATABASE_URL`: with the schema, the units of this program and the
//! tables of your setup. It needs no SQS, and goes with the test. There are two ways to run a handler on it, both by the code and the SQL of
//! the worker:
//!
//! - [`TestDatabase::task`] runs **one attempt in a transaction that is rolled back**, and tells what the worker would make of it.
//! - [`TestDatabase::run_due`] runs **everything that is due**, one after the other, and commits it. [`TestDatabase::forward`] lets time
//!   pass.
//!
//! ```no_run
//! # use monalisa::{TaskError, TaskRun, task};
//! use monalisa::testing::TestDatabase;
//! # #[derive(serde::Serialize, serde::Deserialize)]
//! # struct GenerateReport { report_id: i64 }
//! # task! { payload: GenerateReport, handler: generate_report, name: "reports.generate", queue: "default" }
//! # async fn generate_report(_: GenerateReport, _: &TaskRun) -> Result<(), TaskError> { Ok(()) }
//!
//! # async fn example() -> Result<(), monalisa::Error> {
//! let db = TestDatabase::new("create table reports (id bigint primary key, finished_at timestamptz); insert into reports values (7)").await?;
//!
//! // One attempt. What the handler wrote can be looked at, and goes with `tried`.
//! let tried = db.task(&GenerateReport { report_id: 7 }).attempt(2).run().await?;
//! assert_eq!(tried.error(), None);
//! tried.query_one("select finished_at from reports where id = 7 and finished_at is not null", &[]).await.unwrap();
//!
//! // The whole, from the dispatch to the commit.
//! db.execute(r#"select work.dispatch('reports.generate', '{"report_id": 7}', tenant_id => 1)"#, &[]).await.unwrap();
//! let ran = db.run_due().await?;
//! assert_eq!(ran[0].status, "succeeded");
//! # Ok(())
//! # }
//! ```
//!
//! # Errors
//!
//! [`Error`] means that the test could not be carried out: no `DATABASE_URL`, a setup that PostgreSQL refuses, a payload that cannot be
//! enqueued. What a handler answers is never an error here but the result, in [`End`].

mod database;
mod trial;
mod worker;

use std::{
    any::TypeId,
    ops::Deref,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use chrono::TimeDelta;
use tokio_postgres::Client;
use uuid::Uuid;

use crate::{
    client,
    database::Database,
    error::Error,
    ledger::{self, Delivery, Start, Verdict},
    payload::{Event, Task},
    pools::{PoolPlan, Pools},
    queue::Queue,
    run::State,
    sql,
    unit::{Kind, Unit, Units},
    worker::Worker,
};

use database::Own;
pub use trial::{End, Scheduled, Trial, Tried};

/// Most attempts of one [`TestDatabase::run_due`].
const MOST_ATTEMPTS: usize = 500;
/// Attempts that may be under way at a time, each with its connections.
const SLOTS: usize = 16;
/// Nothing keeps a lease alive here: it lasts as long as any attempt may.
const LEASE: Duration = Duration::from_secs(86_400);

/// A clock that tests move: it is what [`TaskRun::now`](crate::TaskRun::now) shows. PostgreSQL's own does not move with it.
#[derive(Debug, Clone, Default)]
pub struct Clock(Arc<Mutex<TimeDelta>>);

impl Clock {
    /// From now on it is so much later, for handlers that run already too.
    pub fn advance(&self, by: Duration) {
        let mut moved = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *moved += TimeDelta::from_std(by).unwrap_or(TimeDelta::MAX / 4);
    }

    pub(crate) fn moved(&self) -> TimeDelta {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A database to test handlers on; as a [`tokio_postgres::Client`] it is an ordinary session, whose statements commit.
pub struct TestDatabase(Arc<Shared>);

struct Shared {
    client: Client,
    pools: Pools,
    units: Units,
    state: Mutex<State>,
    clock: Clock,
    url: String,
    // Dropped last: sessions are gone by then, or are ended.
    _own: Option<Own>,
}

/// What [`TestDatabase::run_due`] made of a run in one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    /// The run.
    pub run_id: Uuid,
    /// Its unit.
    pub unit: String,
    /// Which of its five tries it was, from 1.
    pub attempt: i32,
    /// Its state after that: `succeeded`, `retrying`, `failed`, or `queued` where it was given back.
    pub status: String,
    /// `CODE: text` of its last failure.
    pub last_error: Option<String>,
}

impl TestDatabase {
    /// A database of its own on the server of `DATABASE_URL`, dropped at the end. `setup` is SQL that makes your tables, before the schema
    /// `work` comes. Where it makes no `public.tenants`, there is a minimal one with the tenants 1 to 9.
    ///
    /// The first one of a kind takes a second; it stays on the server as a template, which later ones are copied from. The role needs
    /// `createdb`, and on a server without the roles of monalisa `createrole`.
    pub async fn new(setup: &str) -> Result<TestDatabase, Error> {
        let server = std::env::var("DATABASE_URL").map_err(|_| {
            Error::Config("DATABASE_URL is not set: the tests need a PostgreSQL, such as that of eval \"$(scripts/stack env)\"".to_owned())
        })?;
        let units = Units::discover().map_err(Error::Config)?;
        let (url, own) = database::make(&server, &units, setup).await?;
        TestDatabase::at(url, units, Some(own)).await
    }

    /// A database that is there: [`task`](Self::task) leaves nothing in it, but [`run_due`](Self::run_due) runs whatever is due in it, and
    /// [`forward`](Self::forward) moves all that waits. It has the schema and the units of this program: `migrate` it with your binary.
    pub async fn existing(url: &str) -> Result<TestDatabase, Error> {
        TestDatabase::at(url.to_owned(), Units::discover().map_err(Error::Config)?, None).await
    }

    async fn at(url: String, units: Units, own: Option<Own>) -> Result<TestDatabase, Error> {
        let database = Database::parse(&url).map_err(Error::Config)?;
        let longest = units.iter().map(Unit::timeout).max().unwrap_or_default();
        let plan = PoolPlan { relay: 1, control: 2, slots: SLOTS };
        let pools = Pools::new(&database, plan, Duration::from_secs(5), longest, worker::machinery()?.handle())?;
        let client = worker::aside(async move { database.connect_for_others("test").await }).await?;
        let (state, clock) = (Mutex::default(), Clock::default());
        Ok(TestDatabase(Arc::new(Shared { client, pools, units, state, clock, url, _own: own })))
    }

    /// The same with application state, as given to [`Workers::state`](crate::Workers::state).
    #[must_use]
    pub fn state<T: Send + Sync + 'static>(self, state: T) -> TestDatabase {
        self.0.state().insert(TypeId::of::<T>(), Arc::new(state));
        self
    }

    /// Its address, for code that connects by itself.
    pub fn url(&self) -> &str {
        &self.0.url
    }

    /// The clock of handlers that run here.
    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// One attempt of a task, which is rolled back.
    pub fn task<T: Task>(&self, payload: &T) -> Trial {
        self.trial(T::NAME, client::json(payload), |kind| kind == Kind::Task)
    }

    /// One attempt of this subscriber of an event, which is rolled back.
    pub fn subscriber<E: Event>(&self, name: &str, event: &E) -> Trial {
        self.trial(name, client::json(event), |kind| kind == Kind::Subscriber { event: E::TYPE, version: E::VERSION })
    }

    /// One attempt of a task or a subscriber with a payload as text, such as one that an older program has enqueued.
    pub fn unit(&self, name: &str, payload: &str) -> Trial {
        self.trial(name, Ok(payload.to_owned()), |_| true)
    }

    fn trial(&self, name: &str, payload: Result<String, Error>, is_right: impl Fn(Kind) -> bool) -> Trial {
        let unit = self.0.units.get(name).filter(|unit| is_right(unit.kind));
        let unit = unit.ok_or_else(|| Error::Other(format!("this program has no unit {name} of this kind, event and version")));
        Trial::new(self.0.clone(), unit.and_then(|unit| Ok((unit, payload?))))
    }

    /// Runs what is due, in the order of its time, one attempt after the other, until nothing is due: also what handlers schedule meanwhile.
    /// A run that is to be tried again waits for its time; see [`forward`](Self::forward). It is an error where five hundred attempts are
    /// not enough: a handler may dispatch itself.
    pub async fn run_due(&self) -> Result<Vec<Ran>, Error> {
        let shared = self.0.clone();
        worker::aside(async move { shared.run_due().await }).await
    }

    /// Lets time pass: the [`clock`](Self::clock) goes on, and whatever waits for its time, by a delay or for its next attempt, is due that
    /// much sooner; ten thousand runs at most. PostgreSQL's own clock stays as it is.
    pub async fn forward(&self, by: Duration) -> Result<(), Error> {
        self.0.clock.advance(by);
        let moved = self.query_one(sql::testing::FORWARD.text, &[/* seconds */ &by.as_secs_f64()]).await;
        moved.map(drop).map_err(Error::postgres(sql::testing::FORWARD.name))
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A worker for one or more attempts.
    async fn worker(&self) -> Result<Arc<Worker>, Error> {
        let state = self.state().clone();
        worker::make(&self.units, state, self.pools.clone()).await
    }

    async fn run_due(&self) -> Result<Vec<Ran>, Error> {
        let worker = self.worker().await?;
        let (mut ran, mut passed) = (Vec::new(), Vec::new());
        while let Some((delivery, queue)) = self.due(&worker, &passed).await? {
            if ran.len() >= MOST_ATTEMPTS {
                return Err(Error::Other(format!("{MOST_ATTEMPTS} attempts were not enough: does a handler dispatch itself?")));
            }
            match self.run(&worker, delivery, queue).await? {
                Some(run) => ran.push(run),
                None => passed.push(delivery.run_id),
            }
        }
        Ok(ran)
    }

    async fn due(&self, worker: &Worker, passed: &[Uuid]) -> Result<Option<(Delivery, Queue)>, Error> {
        let row = self.client.query_opt(sql::testing::DUE.text, &[/* known */ &worker.slots.known(), /* but_not */ &passed]).await;
        let read = row.and_then(|row| {
            row.map(|row| {
                let delivery = Delivery { run_id: row.try_get("run_id")?, generation: row.try_get("generation")?, mark: 0, receives: 2 };
                Ok((delivery, row.try_get::<_, String>("queue")?))
            })
            .transpose()
        });
        let due = read.map_err(Error::postgres(sql::testing::DUE.name))?;
        due.map(|(delivery, queue)| Ok((delivery, queue.parse().map_err(Error::Other)?))).transpose()
    }

    /// One run through its judgement, start, handler and finish; `None` where it may not start, or somebody else was faster.
    async fn run(&self, worker: &Arc<Worker>, delivery: Delivery, queue: Queue) -> Result<Option<Ran>, Error> {
        let mut session = self.pools.control().await?;
        let verdicts = ledger::judge(&*session, &[delivery], worker.slots.known(), Duration::ZERO).await?;
        let unit = match verdicts.into_iter().next() {
            Some(Verdict::Ready(unit) | Verdict::Suspect(unit)) => unit,
            Some(Verdict::Condemned) => {
                let condemned = ledger::condemn(&mut session, delivery.run_id).await;
                session.end(condemned)?;
                return Ok(None);
            }
            _ => return session.end(Ok(None)),
        };
        let start = Start { delivery, token: Uuid::new_v4(), lease: LEASE };
        let started = ledger::start(&*session, &[start], true, &worker.id).await;
        let Some(started) = session.end(started)?.pop() else { return Ok(None) };
        let run = started.attempt();
        let Some((attempt, permit)) = worker::attempt(worker, started, queue).await else { return Ok(None) };
        attempt.conclude(attempt.task_run().in_test(self.clock.clone(), None), permit).await;
        let row = self.client.query_one(sql::testing::ENDED.text, &[&delivery.run_id]).await;
        let read = row.and_then(|row| {
            Ok(Ran { run_id: delivery.run_id, unit, attempt: run, status: row.try_get("status")?, last_error: row.try_get("last_error")? })
        });
        read.map(Some).map_err(Error::postgres(sql::testing::ENDED.name))
    }
}

impl Deref for TestDatabase {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.0.client
    }
}
