//! The product against real PostgreSQL, real Redis and the real AWS SDK on an SQS engine. `make test` starts what is needed.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs, unreachable_pub, dead_code)]

mod catalogue;
mod client;
mod config;
mod docs;
mod docs_guarantees;
mod enqueue;
mod enqueue_faults;
mod faults;
mod flow;
mod health;
mod idempotency;
mod migrate;
mod operator;
mod readme;
mod relay;
mod relay_cost;
mod relay_faults;
mod relay_rows;
mod relay_sqs_faults;
mod relay_two;
mod relay_wake_faults;
mod repair;
mod schema;
mod sql_files;
mod sql_functions;
mod sql_plans;
mod stress;
mod support;
mod transitions;
mod wake;
mod worker;
