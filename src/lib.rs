//! Background work for teams with PostgreSQL and SQS.
//!
//! An API schedules work by calling a SQL function in its own transaction; a relay carries it to SQS after the commit; workers run
//! the handler and commit its effect together with the run's `succeeded`. PostgreSQL is the truth, SQS only delivers, Valkey only
//! wakes.
//!
//! - To **schedule** work from Rust: [`dispatch`], [`publish`], or [`Client`] which also wakes the relay.
//! - To **handle** work: [`task!`], [`subscriber!`], [`TaskRun`], [`TaskError`].
//! - To **run** it: a binary whose `main` is `monalisa::Workers::new().main()`.
//!
//! # Units of measure
//!
//! Durations are [`std::time::Duration`]; options of units that are plain numbers carry the unit in their name
//! (`timeout_seconds`). Times are UTC and come from PostgreSQL's clock. Progress is percent, 0 to 100. Sizes are bytes.
//!
//! # Errors
//!
//! [`Error`] is what PostgreSQL, SQS, Valkey or the configuration said. For a call of [`dispatch`] or [`publish`] look at
//! [`Error::sqlstate`]: the codes of class `ML` are listed in `docs/errors.md` of the repository. Such an error has aborted the
//! caller's transaction. A lost wake is never an error.
//!
//! `TaskError` is what a handler answers with. Any error converts with `?` and is tried again; a permanent one is said.
//!
//! # A handler that panics, blocks or is dropped
//!
//! A panic fails the attempt with `PANIC`. A handler runs on a runtime of its own, so one that blocks its thread stops no heartbeat.
//! At its time-out, when its lease is lost and when the process must stop, the handler is dropped at its next await, and what it
//! wrote through `TaskRun::transaction` is rolled back.
//!
//! # What is stable
//!
//! The items at the top of this crate. The modules are public for tests and tools and may change with any version.

mod catalogue;
mod cli;
mod client;
pub mod config;
pub mod database;
mod drive;
pub mod envelope;
mod error;
mod failure;
mod health;
pub mod ledger;
mod migrate;
pub mod outbox;
mod process;
mod queue;
mod relay;
mod run;
pub mod schedule;
pub mod sql;
mod sqs;
mod tls;
mod unit;
pub mod units;
mod wake;
mod worker;

pub use catalogue::Catalogue;
pub use client::{Client, Options, Published, dispatch, publish};
pub use error::Error;
pub use failure::TaskError;
pub use migrate::{Migrated, migrate};
pub use process::Workers;
pub use queue::Queue;
pub use run::{EffectTransaction, RunConnection, TaskRun};
pub use unit::{Event, Handler, Kind, Task, Unit, Units};
pub use wake::{WAKE_KEY, Waker};

#[doc(hidden)]
pub mod __private {
    pub use crate::unit::{decode, encode};
    pub use futures_util::future::BoxFuture;
    pub use inventory;
}
