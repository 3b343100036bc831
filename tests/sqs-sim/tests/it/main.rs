//! The simulated SQS as the AWS SDK meets it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod attributes;
mod batches;
mod delivery;
mod faults;
mod handles;
mod messages;
mod modes;
mod moves;
mod queues;
mod support;
