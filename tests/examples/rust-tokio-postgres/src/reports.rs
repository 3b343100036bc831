//! The use case: a report is asked for.

use monalisa::{Client, Options, Task};
use serde::{Deserialize, Serialize};
use tokio_postgres::Transaction;
use uuid::Uuid;

/// What the workers need to know. API and workers share this type, or each declares it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct GenerateReport {
    report_id: i64,
    format: String,
}

impl Task for GenerateReport {
    const NAME: &'static str = "reports.export";
}

/// Why there is no report.
#[derive(Debug)]
pub(crate) enum Refused {
    /// It was asked for in another format: an API answers with 409.
    AlreadyAskedFor,
    /// Anything else.
    Failed(monalisa::Error),
    /// PostgreSQL refused a statement of ours, or the commit.
    Database(tokio_postgres::Error),
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refused::AlreadyAskedFor => write!(f, "the report was asked for in another format"),
            Refused::Failed(error) => error.fmt(f),
            Refused::Database(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Refused {}

impl From<monalisa::Error> for Refused {
    fn from(error: monalisa::Error) -> Refused {
        match error.sqlstate() {
            Some(state) if state.code() == "ML008" => Refused::AlreadyAskedFor, // IDEMPOTENCY_CONFLICT
            _ => Refused::Failed(error),
        }
    }
}

impl From<tokio_postgres::Error> for Refused {
    fn from(error: tokio_postgres::Error) -> Refused {
        Refused::Database(error)
    }
}

/// The report and its work, in the caller's transaction: both or neither.
pub(crate) async fn schedule_report(transaction: &Transaction<'_>, tenant_id: i64, report_id: i64, format: &str) -> Result<Uuid, Refused> {
    transaction.execute("select set_config('app.tenant_id', $1, true)", &[&tenant_id.to_string()]).await?;
    let insert = "insert into reports (id, format) values ($1, $2) on conflict (id) do nothing";
    transaction.execute(insert, &[&report_id, &format]).await?;
    let payload = GenerateReport { report_id, format: format.to_owned() };
    let options = Options { idempotency_key: Some(format!("report-{report_id}")), ..Options::default() };
    Ok(monalisa::dispatch(transaction, &payload, &options).await?)
}

/// The use case: one transaction, then the wake.
pub(crate) async fn request_report(
    db: &mut tokio_postgres::Client,
    work: &Client,
    tenant_id: i64,
    report_id: i64,
    format: &str,
) -> Result<Uuid, Refused> {
    let transaction = db.transaction().await?;
    let run_id = schedule_report(&transaction, tenant_id, report_id, format).await?;
    // Commits, then wakes the relay; a wake that fails is no error.
    work.commit(transaction).await?;
    Ok(run_id)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use monalisa::{Catalogue, database::Database};
    use serde_json::{Value, json};
    use tokio_postgres::NoTls;

    use super::*;

    /// A database for the tests, on the server of DATABASE_URL: the schema, and the catalogue that the workers' team gave us.
    async fn test_database() -> tokio_postgres::Client {
        let url = std::env::var("DATABASE_URL").expect("DATABASE_URL is set");
        let (server, _) = url.rsplit_once('/').expect("a database in DATABASE_URL");
        let own = format!("{server}/monalisa_example");
        let (admin, connection) = tokio_postgres::connect(&url, NoTls).await.expect("PostgreSQL answers");
        tokio::spawn(connection);
        admin.batch_execute("drop database if exists monalisa_example with (force)").await.expect("dropped");
        admin.batch_execute("create database monalisa_example").await.expect("made");

        let tasks = Catalogue::from_file(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../tasks_for_tests.json")).expect("a catalogue");
        monalisa::migrate(&Database::parse(&own).expect("a URL"), &tasks, "workers").await.expect("migrated");

        let (db, connection) = tokio_postgres::connect(&own, NoTls).await.expect("PostgreSQL answers");
        tokio::spawn(connection);
        let prepare = "create table reports (id bigint primary key, format text not null); insert into tenants values (1)";
        db.batch_execute(prepare).await.expect("prepared");
        db
    }

    /// How many runs of this unit with this payload the transaction has scheduled.
    async fn scheduled(transaction: &Transaction<'_>, unit: &str, payload: Value) -> i64 {
        let query = "select count(*) from work.task_runs where unit = $1 and payload = $2::text::jsonb and created_at >= now()";
        transaction.query_one(query, &[&unit, &payload.to_string()]).await.expect("counted").get(0)
    }

    #[tokio::test]
    async fn a_report_schedules_exactly_one_run_and_another_format_is_refused() {
        let mut db = test_database().await;
        let transaction = db.transaction().await.expect("begun");
        for _ in 0..2 {
            schedule_report(&transaction, 1, 7, "pdf").await.expect("scheduled");
        }
        assert_eq!(scheduled(&transaction, "reports.export", json!({"report_id": 7, "format": "pdf"})).await, 1);
        assert_eq!(scheduled(&transaction, "reports.export", json!({"report_id": 8, "format": "pdf"})).await, 0);
        let refused = schedule_report(&transaction, 1, 7, "csv").await.expect_err("refused");
        assert!(matches!(refused, Refused::AlreadyAskedFor), "{refused}");
        transaction.rollback().await.expect("rolled back");
    }
}
