//! Scheduled units. Nothing fires them but a scheduler that a test starts.

use monalisa::{TaskError, TaskRun, task};
use serde::{Deserialize, Serialize};

use crate::effect;

/// Each minute, one at a time.
#[derive(Serialize, Deserialize)]
struct Tick {}

task! { payload: Tick, handler: tick, name: "t.tick", queue: "maintenance", concurrency: 1, context: "system", schedule: "rate(1 minute)" }

async fn tick(_: Tick, run: &TaskRun) -> Result<String, TaskError> {
    effect(run, "tick").await?;
    Ok(run.scheduled_for().map(|at| at.to_rfc3339()).unwrap_or_default())
}

/// Each minute, however many are unfinished.
#[derive(Serialize, Deserialize)]
struct Tock {}

task! { payload: Tock, handler: tock, name: "t.tock", queue: "maintenance", concurrency: 1, context: "platform", schedule: "rate(1 minute)", overlap: "allow" }

async fn tock(_: Tock, run: &TaskRun) -> Result<(), TaskError> {
    effect(run, "tock").await
}

/// At a time that New York does not have on one day of the year.
#[derive(Serialize, Deserialize)]
struct Nightly {}

task! {
    payload: Nightly,
    handler: nightly,
    name: "t.nightly",
    queue: "maintenance",
    context: "system",
    schedule: "cron(30 2 * * ? *)",
    schedule_timezone: "America/New_York",
    concurrency: 1,
}

async fn nightly(_: Nightly, run: &TaskRun) -> Result<(), TaskError> {
    effect(run, "nightly").await
}
