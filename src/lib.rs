//! Background work for teams with PostgreSQL and SQS.
//!
//! An API schedules work by calling a SQL function in its own transaction; a relay carries it to SQS after the commit; workers run
//! the handler and commit its effect together with the run's `succeeded`. PostgreSQL is the truth, SQS only delivers, Valkey only
//! wakes.
//!
//! - To **schedule** work from Rust: [`dispatch`], [`publish`], and [`Client`] which wakes the relay. An API needs no more than that:
//!   with `default-features = false` this crate is without AWS, mail and the command line.
//! - To **handle** work: `task!`, `subscriber!`, `TaskRun`, `TaskError`.
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

mod address;
mod catalogue;
mod client;
mod error;
mod payload;
mod secret;
pub mod sql;
mod tls;
mod wake;

pub use catalogue::{Catalogue, Subscription, TaskEntry};
pub use client::{Client, Options, Published, dispatch, dispatch_many, publish};
pub use error::Error;
pub use payload::{Event, Task};
pub use secret::Secret;
pub use wake::{WAKE_KEY, Waker};

// Everything a process of workers is made of; an API goes without.
#[cfg(feature = "workers")]
mod checks;
#[cfg(feature = "workers")]
mod cli;
#[cfg(feature = "workers")]
pub mod config;
#[cfg(feature = "workers")]
pub mod database;
#[cfg(feature = "workers")]
mod decode;
#[cfg(feature = "workers")]
mod dlq;
#[cfg(feature = "workers")]
mod doctor;
#[cfg(feature = "workers")]
mod drive;
#[cfg(feature = "workers")]
pub mod envelope;
#[cfg(feature = "workers")]
mod failure;
#[cfg(feature = "workers")]
mod health;
#[cfg(feature = "workers")]
pub mod ledger;
#[cfg(feature = "workers")]
mod migrate;
#[cfg(feature = "workers")]
mod nearest;
#[cfg(feature = "workers")]
mod new;
#[cfg(feature = "workers")]
pub mod outbox;
#[cfg(feature = "workers")]
mod pools;
#[cfg(feature = "workers")]
mod process;
#[cfg(feature = "workers")]
mod queue;
#[cfg(feature = "workers")]
mod relay;
#[cfg(feature = "workers")]
mod run;
#[cfg(feature = "workers")]
pub mod schedule;
#[cfg(feature = "workers")]
mod scheduler;
#[cfg(feature = "workers")]
mod sqs;
#[cfg(feature = "workers")]
mod sslmode;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(feature = "workers")]
mod unit;
#[cfg(feature = "workers")]
pub mod units;
#[cfg(feature = "workers")]
mod worker;

#[cfg(feature = "workers")]
pub use cli::Workers;
#[cfg(feature = "workers")]
pub use failure::TaskError;
#[cfg(feature = "workers")]
pub use migrate::{Migrated, migrate};
#[cfg(feature = "workers")]
pub use queue::Queue;
#[cfg(feature = "workers")]
pub use run::{EffectTransaction, RunConnection, TaskRun};
#[cfg(feature = "workers")]
pub use unit::{Handler, Kind, Unit, Units};

#[doc(hidden)]
#[cfg(feature = "workers")]
pub mod __private {
    pub use crate::decode::{decode, encode};
    pub use futures_util::future::BoxFuture;
    pub use inventory;
}
