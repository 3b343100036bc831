//! Units for the stress: what they do is told by their payload, so that it is a function of its seed.

use std::time::Duration;

use monalisa::{Options, TaskError, TaskRun, task};
use serde::{Deserialize, Serialize};

/// What a run does.
#[derive(Serialize, Deserialize)]
struct Work {
    /// Milliseconds between its effect and its end.
    ms: u64,
    /// So many attempts of each generation fail first.
    #[serde(default)]
    fails: i32,
    /// It fails for good then.
    #[serde(default)]
    permanent: bool,
    /// It has no effect.
    #[serde(default)]
    quiet: bool,
    /// Its commit takes a moment.
    #[serde(default)]
    slow: bool,
}

task! { payload: Work, handler: work, name: "s.work", queue: "critical" }

async fn work(payload: Work, run: &TaskRun) -> Result<(), TaskError> {
    if !payload.quiet {
        crate::effect(run, if payload.slow { "slow" } else { "" }).await?;
    }
    tokio::time::sleep(Duration::from_millis(payload.ms)).await;
    if run.attempt() <= payload.fails {
        return Err(TaskError::transient("not yet").retry_after(Duration::from_millis(100)));
    }
    if payload.permanent {
        return Err(TaskError::validation("never"));
    }
    Ok(())
}

/// Schedules a child in its effect transaction.
#[derive(Serialize, Deserialize)]
struct Parent {
    ms: u64,
}

/// The run of a parent.
#[derive(Serialize, Deserialize)]
struct Child {
    parent: String,
}

task! { payload: Parent, handler: parent, name: "s.parent", queue: "critical" }
task! { payload: Child, handler: child, name: "s.child", queue: "maintenance", context: "platform", concurrency: 2 }

async fn parent(payload: Parent, run: &TaskRun) -> Result<(), TaskError> {
    let transaction = run.transaction().await?;
    monalisa::dispatch(&**transaction, &Child { parent: run.run_id().to_string() }, &Options::default()).await?;
    crate::effect(run, "").await?;
    tokio::time::sleep(Duration::from_millis(payload.ms)).await;
    Ok(())
}

async fn child(_: Child, run: &TaskRun) -> Result<(), TaskError> {
    crate::effect(run, "").await
}
