//! Units that misbehave on request. Each inserts one row into `public.effects` through its effect transaction where it succeeds.

mod payloads;
mod reports;
mod scheduled;
mod stress;

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use monalisa::{Event, TaskError, TaskRun, subscriber, task};
use serde::{Deserialize, Serialize};

fn main() -> ExitCode {
    monalisa::Workers::new().service("test-workers").rates_in_seconds().main()
}

async fn effect(run: &TaskRun, note: &str) -> Result<(), TaskError> {
    let transaction = run.transaction().await?;
    transaction.execute("insert into public.effects (run_id, note) values ($1, $2)", &[&run.run_id(), &note]).await?;
    Ok(())
}

/// Anything goes.
#[derive(Serialize, Deserialize)]
struct Plain {
    #[serde(default)]
    note: String,
}

task! { payload: Plain, handler: ok, name: "t.ok", queue: "default" }

async fn ok(payload: Plain, run: &TaskRun) -> Result<&'static str, TaskError> {
    effect(run, &payload.note).await?;
    Ok("done")
}

/// On the most urgent queue.
#[derive(Serialize, Deserialize)]
struct Urgent {}

task! { payload: Urgent, handler: urgent, name: "t.urgent", queue: "critical" }

async fn urgent(_: Urgent, run: &TaskRun) -> Result<(), TaskError> {
    effect(run, "urgent").await
}

/// Says what it sees of its run.
#[derive(Serialize, Deserialize)]
struct Look {
    digits: Digits,
}

/// A number digit for digit.
#[derive(Serialize, Deserialize)]
struct Digits(f64);

task! { payload: Look, handler: look, name: "t.look", queue: "default" }

async fn look(payload: Look, run: &TaskRun) -> Result<String, TaskError> {
    let transaction = run.transaction().await?;
    let row = transaction
        .query_one(
            "select current_setting('app.tenant_id'), current_setting('app.system_process'), current_setting('transaction_isolation')",
            &[],
        )
        .await?;
    run.progress(40).await;
    let (tenant, process, isolation): (String, String, String) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    Ok(format!("{tenant}|{process}|{isolation}|{}|{}|{}", run.attempt(), run.name(), payload.digits.0))
}

/// Sleeps, then does it.
#[derive(Serialize, Deserialize)]
struct Sleep {
    s: f64,
}

task! { payload: Sleep, handler: sleep, name: "t.sleep", queue: "default" }

async fn sleep(payload: Sleep, run: &TaskRun) -> Result<(), TaskError> {
    effect(run, "before the sleep").await?;
    tokio::time::sleep(Duration::from_secs_f64(payload.s)).await;
    Ok(())
}

/// Blocks its thread, then does it.
#[derive(Serialize, Deserialize)]
struct Block {
    s: f64,
}

task! { payload: Block, handler: block, name: "t.block", queue: "default" }

async fn block(payload: Block, run: &TaskRun) -> Result<(), TaskError> {
    std::thread::sleep(Duration::from_secs_f64(payload.s));
    effect(run, "blocked").await
}

/// Blocks its thread while its effect transaction is being opened.
#[derive(Serialize, Deserialize)]
struct BlockOpening {
    s: f64,
}

task! { payload: BlockOpening, handler: block_opening, name: "t.block_opening", queue: "default" }

async fn block_opening(payload: BlockOpening, run: &TaskRun) -> Result<(), TaskError> {
    let mut opening = Box::pin(run.transaction());
    if tokio::time::timeout(Duration::ZERO, &mut opening).await.is_err() {
        std::thread::sleep(Duration::from_secs_f64(payload.s));
        opening.await?;
    }
    effect(run, "opened").await
}

/// One at a time in a process.
#[derive(Serialize, Deserialize)]
struct Single {
    s: f64,
}

task! { payload: Single, handler: single, name: "t.single", queue: "default", concurrency: 1 }

async fn single(payload: Single, run: &TaskRun) -> Result<(), TaskError> {
    tokio::time::sleep(Duration::from_secs_f64(payload.s)).await;
    effect(run, "single").await
}

/// Takes longer than it may.
#[derive(Serialize, Deserialize)]
struct Slow {}

task! { payload: Slow, handler: slow, name: "t.slow", queue: "default", timeout_seconds: 1 }

async fn slow(_: Slow, run: &TaskRun) -> Result<(), TaskError> {
    effect(run, "too late").await?;
    tokio::time::sleep(Duration::from_secs(600)).await;
    Ok(())
}

/// Fails so many times, then does it.
#[derive(Serialize, Deserialize)]
struct Transient {
    n: i32,
}

task! { payload: Transient, handler: transient, name: "t.transient", queue: "default" }

async fn transient(payload: Transient, run: &TaskRun) -> Result<(), TaskError> {
    effect(run, "transient").await?;
    if run.attempt() <= payload.n {
        return Err(TaskError::transient("not yet").retry_after(Duration::from_millis(50)));
    }
    Ok(())
}

/// Fails at once.
#[derive(Serialize, Deserialize)]
struct Permanent {
    msg: String,
}

task! { payload: Permanent, handler: permanent, name: "t.permanent", queue: "default" }

async fn permanent(payload: Permanent, run: &TaskRun) -> Result<(), TaskError> {
    effect(run, "permanent").await?;
    Err(TaskError::not_found(payload.msg))
}

/// Panics.
#[derive(Serialize, Deserialize)]
struct Panic {}

task! { payload: Panic, handler: panicking, name: "t.panic", queue: "default" }

async fn panicking(_: Panic, _: &TaskRun) -> Result<(), TaskError> {
    panic!("the handler lost its head");
}

/// Asks for a wait that never ends.
#[derive(Serialize, Deserialize)]
struct Patient {}

task! { payload: Patient, handler: patient, name: "t.patient", queue: "default" }

async fn patient(_: Patient, _: &TaskRun) -> Result<(), TaskError> {
    Err(TaskError::transient("not in this age").retry_after(Duration::MAX))
}

/// Kills its process.
#[derive(Serialize, Deserialize)]
struct Abort {}

task! { payload: Abort, handler: abort, name: "t.abort", queue: "default" }

async fn abort(_: Abort, _: &TaskRun) -> Result<(), TaskError> {
    std::process::abort();
}

/// Runs SQL in the effect transaction, after its effect; then waits, and ends as asked.
#[derive(Serialize, Deserialize)]
struct Sql {
    q: String,
    #[serde(default)]
    swallow: bool,
    #[serde(default)]
    s: f64,
    #[serde(default)]
    permanent: bool,
    #[serde(default)]
    panic: bool,
    /// Seconds it waits for its statement before it fails by itself.
    patience: Option<f64>,
}

task! { payload: Sql, handler: sql, name: "t.sql", queue: "default" }

async fn sql(payload: Sql, run: &TaskRun) -> Result<(), TaskError> {
    effect(run, "sql").await?;
    let patience = payload.patience.map_or(Duration::MAX, Duration::from_secs_f64);
    let Ok(done) = tokio::time::timeout(patience, run.transaction().await?.batch_execute(&payload.q)).await else {
        return Err(TaskError::transient("the handler waits no longer"));
    };
    tokio::time::sleep(Duration::from_secs_f64(payload.s)).await;
    match done {
        Err(error) if payload.panic => panic!("it is stored: {error:?}"),
        _ if payload.permanent => Err(TaskError::validation("it is no use")),
        Err(error) if !payload.swallow => Err(error.into()),
        _ => Ok(()),
    }
}

/// Sleeps; the first attempt ends as asked, the others well.
#[derive(Serialize, Deserialize)]
struct First {
    s: f64,
    #[serde(default)]
    end: String,
}

task! { payload: First, handler: first, name: "t.first", queue: "default" }

async fn first(payload: First, run: &TaskRun) -> Result<(), TaskError> {
    effect(run, "first").await?;
    tokio::time::sleep(Duration::from_secs_f64(payload.s)).await;
    match payload.end.as_str() {
        "transient" if run.attempt() == 1 => Err(TaskError::transient("the first attempt fails")),
        "permanent" if run.attempt() == 1 => Err(TaskError::validation("the first attempt fails")),
        _ => Ok(()),
    }
}

/// Writes nothing.
#[derive(Serialize, Deserialize)]
struct Idle {}

task! { payload: Idle, handler: idle, name: "t.idle", queue: "default" }

async fn idle(_: Idle, _: &TaskRun) -> Result<(), TaskError> {
    Ok(())
}

/// The first attempt blocks its thread for longer than it may take, and does not hear when it is told to end.
#[derive(Serialize, Deserialize)]
struct Deaf {
    s: f64,
}

task! { payload: Deaf, handler: deaf, name: "t.deaf", queue: "default", concurrency: 1, timeout_seconds: 1 }

async fn deaf(payload: Deaf, run: &TaskRun) -> Result<(), TaskError> {
    if run.attempt() == 1 {
        std::thread::sleep(Duration::from_secs_f64(payload.s));
    }
    effect(run, "deaf").await
}

/// The first attempt waits until it is told to end, and says so.
#[derive(Serialize, Deserialize)]
struct Obedient {}

task! { payload: Obedient, handler: obedient, name: "t.obedient", queue: "default" }

async fn obedient(_: Obedient, run: &TaskRun) -> Result<(), TaskError> {
    effect(run, "obedient").await?;
    let calls: i64 = run.transaction().await?.query_one("select nextval('public.calls')", &[]).await?.try_get(0)?;
    if calls == 1 {
        let _told = Told;
        tracing::info!("the handler waits to be told");
        run.cancelled().await;
        tracing::info!("the handler hears it and tidies up");
    }
    Ok(())
}

/// Says when the handler ends, which is dropped where it waits.
struct Told;

impl Drop for Told {
    fn drop(&mut self) {
        tracing::info!("the handler was told to end");
    }
}

/// Panics with something that panics when it is dropped, and so on.
#[derive(Serialize, Deserialize)]
struct Bomb {}

task! { payload: Bomb, handler: bomb, name: "t.bomb", queue: "default" }

async fn bomb(_: Bomb, _: &TaskRun) -> Result<(), TaskError> {
    std::panic::panic_any(Nested(2));
}

struct Nested(u32);

impl Drop for Nested {
    fn drop(&mut self) {
        if self.0 > 0 {
            std::panic::panic_any(Nested(self.0 - 1));
        }
    }
}

/// Fails with a text that is hard to keep.
#[derive(Serialize, Deserialize)]
struct Noisy {
    end: String,
    #[serde(default)]
    permanent: bool,
}

task! { payload: Noisy, handler: noisy, name: "t.noisy", queue: "default" }

async fn noisy(payload: Noisy, run: &TaskRun) -> Result<(), TaskError> {
    effect(run, "noisy").await?;
    let text = match payload.end.as_str() {
        "long" => "é😀".repeat(350_000),
        _ => "a\0b\u{1}c\u{fffe}\u{ffff}\u{85}\u{2028}\u{202e}d\u{10ffff}".to_owned(),
    };
    if payload.end == "panic" {
        std::panic::panic_any(text);
    }
    Err(if payload.permanent { TaskError::validation(text) } else { TaskError::transient(text) })
}

/// Holds everything that a run may hold, in the middle of statements, until it is dropped.
#[derive(Serialize, Deserialize)]
struct Greedy {
    #[serde(default)]
    end: String,
}

task! { payload: Greedy, handler: greedy, name: "t.greedy", queue: "default", timeout_seconds: 1 }

async fn greedy(payload: Greedy, run: &TaskRun) -> Result<(), TaskError> {
    effect(run, "greedy").await?;
    let own = run.connection().await?;
    own.batch_execute("begin; create temp table mine (i int)").await?;
    run.progress(50).await;
    match payload.end.as_str() {
        "panic" => panic!("with both hands full"),
        "return" => Ok(()),
        _ => {
            let (one, other) = (own.batch_execute("select pg_sleep(60)"), run.transaction().await?.batch_execute("select pg_sleep(60)"));
            tokio::try_join!(one, other)?;
            Ok(())
        }
    }
}

/// Reports so often while its effect is open, with a pause after each; how long that took.
#[derive(Serialize, Deserialize)]
struct Progress {
    reports: u32,
    #[serde(default)]
    s: f64,
}

task! { payload: Progress, handler: progress, name: "t.progress", queue: "default" }

async fn progress(payload: Progress, run: &TaskRun) -> Result<f64, TaskError> {
    effect(run, "progress").await?;
    let began = Instant::now();
    for report in 1..=payload.reports {
        run.progress((u64::from(report) * 99 / u64::from(payload.reports)) as u8).await;
        if payload.s > 0.0 {
            tokio::time::sleep(Duration::from_secs_f64(payload.s)).await;
        }
    }
    Ok(began.elapsed().as_secs_f64())
}

/// Work without a tenant.
#[derive(Serialize, Deserialize)]
struct Platform {}

task! { payload: Platform, handler: platform, name: "t.platform", queue: "bulk", context: "platform" }

async fn platform(_: Platform, run: &TaskRun) -> Result<(), TaskError> {
    effect(run, "platform").await
}

/// An event with two subscribers, one of which always fails.
#[derive(Serialize, Deserialize)]
struct Happened {
    #[serde(default)]
    note: String,
}

impl Event for Happened {
    const TYPE: &'static str = "test.happened";
}

subscriber! { event: Happened, handler: happened_well, name: "t.happened_well", queue: "default" }
subscriber! { event: Happened, handler: happened_badly, name: "t.happened_badly", queue: "default" }

async fn happened_well(event: Happened, run: &TaskRun) -> Result<(), TaskError> {
    effect(run, &event.note).await
}

async fn happened_badly(event: Happened, run: &TaskRun) -> Result<(), TaskError> {
    effect(run, &event.note).await?;
    Err(TaskError::validation("this subscriber always fails"))
}
