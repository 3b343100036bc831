//! The task that the examples for API teams schedule.

use monalisa::{TaskError, TaskRun, task};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct GenerateReport {
    report_id: i64,
    format: String,
}

task! { payload: GenerateReport, handler: generate, name: "reports.export", queue: "default", concurrency: 1 }

async fn generate(payload: GenerateReport, run: &TaskRun) -> Result<(), TaskError> {
    let sql = "update public.reports set finished_at = clock_timestamp() where id = $1 and format = $2";
    let changed = run.transaction().await?.execute(sql, &[&payload.report_id, &payload.format]).await?;
    if changed == 0 {
        return Err(TaskError::not_found(format!("there is no report {}", payload.report_id)));
    }
    Ok(())
}
