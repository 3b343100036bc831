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

mod catalogue;
mod client;
mod error;
mod payload;
mod secret;
pub mod sql;
mod wake;

pub use catalogue::{Catalogue, Subscription, TaskEntry};
pub use client::{Client, Options, Published, dispatch, publish};
pub use error::Error;
pub use payload::{Event, Task};
pub use secret::Secret;
pub use wake::{WAKE_KEY, Waker};

// Everything a process of workers is made of; an API goes without.
#[cfg(feature = "workers")]
mod cli;
#[cfg(feature = "workers")]
pub mod config;
#[cfg(feature = "workers")]
pub mod database;
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
pub mod outbox;
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
mod sqs;
#[cfg(feature = "workers")]
mod tls;
#[cfg(feature = "workers")]
mod unit;
#[cfg(feature = "workers")]
pub mod units;
#[cfg(feature = "workers")]
mod worker;

#[cfg(feature = "workers")]
pub use failure::TaskError;
#[cfg(feature = "workers")]
pub use migrate::{Migrated, migrate};
#[cfg(feature = "workers")]
pub use process::Workers;
#[cfg(feature = "workers")]
pub use queue::Queue;
#[cfg(feature = "workers")]
pub use run::{EffectTransaction, RunConnection, TaskRun};
#[cfg(feature = "workers")]
pub use unit::{Handler, Kind, Unit, Units};

#[doc(hidden)]
#[cfg(feature = "workers")]
pub mod __private {
    pub use crate::unit::{decode, encode};
    pub use futures_util::future::BoxFuture;
    pub use inventory;
}
