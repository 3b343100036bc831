//! Schedules work from Rust with `sqlx`, in a transaction of your own.
//!
//! ```text
//! DATABASE_URL=… MONALISA_VALKEY_URL=… example-sqlx 7
//! ```

use serde_json::json;
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let report_id: i64 = std::env::args().nth(1).ok_or("give the id of a report")?.parse()?;
    let pool = PgPool::connect(&std::env::var("DATABASE_URL")?).await?;
    let work = monalisa::Client::new(std::env::var("MONALISA_VALKEY_URL").ok().as_deref())?;

    println!("scheduled {}", request_report(&pool, &work, 1, report_id, "pdf").await?);
    // The same key and payload: the first run, and no second one.
    println!("again {}", request_report(&pool, &work, 1, report_id, "pdf").await?);
    match request_report(&pool, &work, 1, report_id, "csv").await {
        // IDEMPOTENCY_CONFLICT: this report was asked for in another format; an API answers with 409.
        Err(sqlx::Error::Database(refused)) if refused.code().as_deref() == Some("ML008") => println!("refused ML008"),
        other => println!("{other:?}"),
    }
    // A rollback leaves nothing: no report, no run, no message.
    let mut transaction = pool.begin().await?;
    println!("rolled_back {}", schedule_report(&mut transaction, 1, report_id + 1, "pdf").await?);
    transaction.rollback().await?;
    Ok(())
}

/// The report and its work, in the caller's transaction: both or neither.
async fn schedule_report(db: &mut PgConnection, tenant_id: i64, report_id: i64, format: &str) -> Result<Uuid, sqlx::Error> {
    sqlx::query("select set_config('app.tenant_id', $1, true)").bind(tenant_id.to_string()).execute(&mut *db).await?;
    sqlx::query("insert into reports (id, format) values ($1, $2) on conflict (id) do nothing")
        .bind(report_id)
        .bind(format)
        .execute(&mut *db)
        .await?;
    sqlx::query_scalar("select work.dispatch('reports.export', $1, idempotency_key => $2)")
        .bind(json!({ "report_id": report_id, "format": format }))
        .bind(format!("report-{report_id}"))
        .fetch_one(&mut *db)
        .await
}

/// The use case: one transaction, then the wake.
async fn request_report(pool: &PgPool, work: &monalisa::Client, tenant_id: i64, report_id: i64, format: &str) -> Result<Uuid, sqlx::Error> {
    let mut transaction = pool.begin().await?;
    let run_id = schedule_report(&mut transaction, tenant_id, report_id, format).await?;
    transaction.commit().await?;
    // After the commit. It never fails and takes at most half a second.
    work.wake().await;
    Ok(run_id)
}
