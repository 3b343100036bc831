//! The Rust code of the README, word for word: `docs.rs` compares it, the compiler and the test below check it.

use std::process::ExitCode;

use monalisa::{TaskError, TaskRun, task};
use serde::{Deserialize, Serialize};

fn main() -> ExitCode {
    monalisa::Workers::new().main()
}

#[derive(Serialize, Deserialize)]
struct GenerateReport {
    report_id: i64,
}

task! {
    payload: GenerateReport,
    handler: generate_report,
    name: "reports.generate",
    queue: "default",
}

async fn generate_report(payload: GenerateReport, run: &TaskRun) -> Result<(), TaskError> {
    let effect = run.transaction().await?;
    finish_report(effect, payload.report_id).await
}

/// The work itself takes a connection, so that a test can call it.
async fn finish_report(db: &tokio_postgres::Client, report_id: i64) -> Result<(), TaskError> {
    let changed = db.execute("update reports set finished_at = now() where id = $1", &[&report_id]).await?;
    if changed == 0 {
        return Err(TaskError::not_found(format!("there is no report {report_id}")));
    }
    Ok(())
}

#[tokio::test]
async fn a_report_is_finished_and_a_missing_one_is_a_permanent_error() {
    let url = std::env::var("DATABASE_URL").expect("DATABASE_URL is set");
    let (db, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.expect("PostgreSQL answers");
    tokio::spawn(connection);
    let table = "create temp table reports (id bigint primary key, finished_at timestamptz)";
    db.batch_execute(&format!("{table}; insert into reports values (7)")).await.expect("a table of this session");

    finish_report(&db, 7).await.expect("it is there");
    let error = finish_report(&db, 8).await.expect_err("it is not there");
    assert!(error.is_permanent() && error.code() == "NOT_FOUND");
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
