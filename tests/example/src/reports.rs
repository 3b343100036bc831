//! `reports.generate`: finishes a report.

use monalisa::{TaskError, TaskRun, task};
use serde::{Deserialize, Serialize};

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
    let changed = effect.execute("update reports set finished_at = now() where id = $1", &[&payload.report_id]).await?;
    if changed == 0 {
        return Err(TaskError::not_found(format!("there is no report {}", payload.report_id)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use monalisa::testing::{End, TestDatabase};

    use super::*;

    #[tokio::test]
    async fn a_report_is_finished_and_a_missing_one_fails_for_good() {
        let db = TestDatabase::new(include_str!("../schema.sql")).await.unwrap();
        db.execute("insert into reports values (7)", &[]).await.unwrap();

        // One attempt, in a transaction that is rolled back with `tried`.
        let tried = db.task(&GenerateReport { report_id: 7 }).run().await.unwrap();
        assert_eq!(tried.error(), None);
        let finished = tried.query_one("select finished_at is not null from reports where id = 7", &[]).await.unwrap();
        assert!(finished.get::<_, bool>(0));

        let tried = db.task(&GenerateReport { report_id: 8 }).run().await.unwrap();
        assert!(matches!(&tried.end, End::Failed(error) if error.code() == "NOT_FOUND"), "{tried:?}");
    }
}
