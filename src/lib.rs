//! Background work for teams with PostgreSQL and SQS.
//!
//! An API schedules work by calling a SQL function in its own transaction; a relay carries it to SQS after the commit; workers run
//! the handler and commit its effect together with the run's `succeeded`. PostgreSQL is the truth, SQS only delivers, Valkey only
//! wakes.
//!
//! - To **schedule** work from Rust: [`dispatch`], [`publish`], or [`Client`] which also wakes the relay.
//! - To **handle** work: [`task!`], [`subscriber!`], [`TaskRun`], [`TaskError`].
//! - To **run** it: a binary whose `main` is `monalisa::Workers::new().main()`.

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
