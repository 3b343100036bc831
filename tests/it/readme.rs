//! The Rust code of the README that is not in `tests/example`, and of the page on schedules, word for word: `docs.rs` compares it, the
//! compiler checks it.

use monalisa::{TaskError, TaskRun, task};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct GenerateReport {
    report_id: i64,
}

/// As an API declares a task that its workers have.
impl monalisa::Task for GenerateReport {
    const NAME: &'static str = "reports.generate";
}

#[derive(Serialize, Deserialize)]
struct CloseTheDay {}

task! {
    payload: CloseTheDay,
    handler: close_the_day,
    name: "books.close_the_day",
    queue: "bulk",
    context: "platform",
    schedule: "cron(30 18 ? * MON-FRI *)",
    schedule_timezone: "America/Sao_Paulo",
    overlap: "skip",
}

async fn close_the_day(_: CloseTheDay, run: &TaskRun) -> Result<(), TaskError> {
    let day = run.scheduled_for().unwrap_or(run.now());
    run.transaction().await?.execute("insert into closed_days (day) values ($1::timestamptz)", &[&day]).await?;
    Ok(())
}

use monalisa::{Client, Options};

async fn create_report(db: &mut tokio_postgres::Client, work: &Client, tenant_id: i64) -> Result<i64, Box<dyn std::error::Error>> {
    let transaction = db.transaction().await?;
    let report_id: i64 = transaction.query_one("insert into reports default values returning id", &[]).await?.get(0);
    let options = Options { idempotency_key: Some(format!("report-{report_id}")), ..Options::tenant(tenant_id) };
    match monalisa::dispatch(&transaction, &GenerateReport { report_id }, &options).await {
        Ok(run_id) => println!("run {run_id}"),
        Err(error) if error.sqlstate().is_some_and(|state| state.code() == "ML008") => return Err("asked for twice".into()),
        Err(error) => return Err(error.into()),
    }
    // Commits, then wakes the relay. The error is that of the commit alone.
    work.commit(transaction).await?;
    Ok(report_id)
}

fn check_catalogue() -> Result<monalisa::Catalogue, monalisa::Error> {
    let catalogue = monalisa::Catalogue::from_environment()?;
    catalogue.require::<GenerateReport>()?;
    Ok(catalogue)
}
