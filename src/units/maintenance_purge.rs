//! `maintenance.purge`: removes outbox rows sent more than seven days ago, and expired idempotency keys.

use deadpool_postgres::Object;
use serde::{Deserialize, Serialize};

use crate::{
    error::Error,
    failure::TaskError,
    outbox::{self, Table},
    run::TaskRun,
};

/// Rows a batch removes at most; each batch is a transaction of its own.
const BATCH: i64 = 5_000;

/// The payload: nothing.
#[derive(Debug, Serialize, Deserialize)]
pub struct Purge {}

/// What a purge removed.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Purged {
    /// Rows of `outbox_messages`.
    pub outbox_messages: u64,
    /// Rows of `platform_outbox_messages`.
    pub platform_outbox_messages: u64,
    /// Rows of `idempotency_keys`.
    pub idempotency_keys: u64,
}

crate::task! {
    payload: Purge,
    handler: purge,
    name: "maintenance.purge",
    queue: "maintenance",
    context: "system",
    overlap: "skip",
    schedule: "rate(1 hour)",
    timeout_seconds: 900,
    concurrency: 1,
}

/// What a purge removes from, batch by batch.
#[derive(Clone, Copy)]
enum Rows {
    Sent(Table),
    ExpiredKeys,
}

/// Safe beside live traffic and other purgers: rows that anybody holds are left alone, pending ones, runs and the trail are never touched.
async fn purge(_: Purge, run: &TaskRun) -> Result<Purged, TaskError> {
    let connection = run.connection().await?;
    let purged = Purged {
        outbox_messages: remove(&connection, Rows::Sent(Table::Tenant)).await?,
        platform_outbox_messages: remove(&connection, Rows::Sent(Table::Platform)).await?,
        idempotency_keys: remove(&connection, Rows::ExpiredKeys).await?,
    };
    tracing::info!(
        outbox_messages = purged.outbox_messages,
        platform_outbox_messages = purged.platform_outbox_messages,
        idempotency_keys = purged.idempotency_keys,
        "purged"
    );
    Ok(purged)
}

/// Batch after batch until one is not full.
async fn remove(connection: &Object, rows: Rows) -> Result<u64, Error> {
    let mut removed = 0;
    loop {
        let batch = match rows {
            Rows::Sent(table) => outbox::purge(connection, table, BATCH).await?,
            Rows::ExpiredKeys => outbox::purge_keys(connection, BATCH).await?,
        };
        removed += batch;
        if batch < BATCH.unsigned_abs() {
            return Ok(removed);
        }
    }
}
