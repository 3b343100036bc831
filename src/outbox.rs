//! The outbox, one short function per SQL file. Both tables have the same statements; [`Table`] says which.

use std::time::{Duration, Instant};

use deadpool_postgres::{GenericClient, Object};
use uuid::Uuid;

use crate::{
    error::Error,
    pools,
    queue::Queue,
    sql::{self, Statement},
};

/// One of the two outbox tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// `work.outbox_messages`: runs with a tenant.
    Tenant,
    /// `work.platform_outbox_messages`: every other run.
    Platform,
}

impl Table {
    /// Both, in the order of a pass.
    pub const BOTH: [Table; 2] = [Table::Tenant, Table::Platform];

    fn pick(self, tenant: Statement, platform: Statement) -> Statement {
        match self {
            Table::Tenant => tenant,
            Table::Platform => platform,
        }
    }
}

/// A row that this pass holds.
#[derive(Debug, Clone)]
pub struct Row {
    /// Key of the row.
    pub id: i64,
    /// The run it carries.
    pub run_id: Uuid,
    /// Tenant, for fair queues.
    pub tenant_id: Option<i64>,
    /// Body of the message.
    pub envelope: String,
    /// Failed sends so far.
    pub attempts: i32,
    /// Since when it is due, as PostgreSQL writes it: it may be infinite, which no type of ours can say.
    pub available_at: String,
}

/// How far before: rows of transactions that took longer to commit wait for the next full look.
const LOOKBACK: Duration = Duration::from_secs(10);

/// How far back a claim looks; see the note in `sql/outbox/claim.sql`.
#[derive(Debug, Clone, PartialEq)]
pub enum From {
    /// Everything.
    TheStart,
    /// From the last row of the pass before on, by its time and id: a backlog is being worked off.
    Row(String, i64),
    /// From a little before the look that found the queue drained.
    Drained(Instant),
}

impl From {
    fn bounds(&self) -> (Option<&str>, Option<i64>, Option<f64>) {
        match self {
            From::TheStart => (None, None, None),
            From::Row(available_at, id) => (Some(available_at.as_str()), Some(*id), None),
            From::Drained(at) => (None, None, Some((at.elapsed() + LOOKBACK).as_secs_f64())),
        }
    }
}

/// Locks the oldest due rows of one queue, until the transaction of `client` ends.
pub async fn claim(client: &impl GenericClient, table: Table, queue: Queue, from: &From, limit: i64) -> Result<Vec<Row>, Error> {
    let statement = table.pick(sql::outbox::CLAIM, sql::platform_outbox::CLAIM);
    let (cursor, last, lookback) = from.bounds();
    let read = async {
        let prepared = client.prepare_cached(statement.text).await?;
        let rows = client
            .query(
                &prepared,
                &[
                    /* queue */ &queue.as_str(),
                    /* cursor */ &cursor,
                    /* last */ &last,
                    /* lookback_s */ &lookback,
                    /* limit */ &limit,
                ],
            )
            .await?;
        rows.iter()
            .map(|row| {
                Ok(Row {
                    id: row.try_get("id")?,
                    run_id: row.try_get("run_id")?,
                    tenant_id: row.try_get("tenant_id")?,
                    envelope: row.try_get("envelope")?,
                    attempts: row.try_get("attempts")?,
                    available_at: row.try_get("available_at")?,
                })
            })
            .collect::<Result<_, tokio_postgres::Error>>()
    };
    pools::answered(statement.name, read).await
}

/// Marks claimed rows as sent. Only in the claiming transaction.
pub async fn mark_sent(client: &impl GenericClient, table: Table, ids: &[i64]) -> Result<(), Error> {
    let statement = table.pick(sql::outbox::MARK_SENT, sql::platform_outbox::MARK_SENT);
    let write = async {
        let prepared = client.prepare_cached(statement.text).await?;
        client.execute(&prepared, &[/* ids */ &ids]).await
    };
    expect_rows(statement, ids.len(), pools::answered(statement.name, write).await?)
}

/// A claimed row that was not sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NotSent {
    /// Key of the row.
    pub id: i64,
    /// Not offered again before this has passed.
    pub pause: Duration,
    /// Whether a send of it failed, or it was only left alone beside one.
    pub tried: bool,
}

/// Pauses claimed rows that were not sent and counts the failed sends. Only in the claiming transaction.
pub async fn mark_failed(client: &impl GenericClient, table: Table, rows: &[NotSent]) -> Result<(), Error> {
    let statement = table.pick(sql::outbox::MARK_FAILED, sql::platform_outbox::MARK_FAILED);
    let ids: Vec<i64> = rows.iter().map(|row| row.id).collect();
    let pauses: Vec<f64> = rows.iter().map(|row| row.pause.as_secs_f64()).collect();
    let tries: Vec<i32> = rows.iter().map(|row| i32::from(row.tried)).collect();
    let write = async {
        let prepared = client.prepare_cached(statement.text).await?;
        client.execute(&prepared, &[/* ids */ &ids, /* pauses */ &pauses, /* tries */ &tries]).await
    };
    expect_rows(statement, ids.len(), pools::answered(statement.name, write).await?)
}

/// How a queue of one table stands.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Due {
    /// The queue.
    pub queue: Queue,
    /// Whether a row is due.
    pub now: bool,
    /// How long until the next row becomes due; `None` where nothing waits.
    pub wait: Option<Duration>,
}

/// Which queues have rows to claim, looking as far back as their claims would.
pub async fn due(client: &impl GenericClient, table: Table, looks: &[(Queue, From)]) -> Result<Vec<Due>, Error> {
    let statement = table.pick(sql::outbox::DUE, sql::platform_outbox::DUE);
    let names: Vec<&str> = looks.iter().map(|(queue, _)| queue.as_str()).collect();
    let (cursors, lasts, lookbacks): (Vec<_>, Vec<_>, Vec<_>) = looks.iter().map(|(_, from)| from.bounds()).collect();
    let read = async {
        let prepared = client.prepare_cached(statement.text).await?;
        client.query(&prepared, &[/* queues */ &names, /* cursors */ &cursors, /* lasts */ &lasts, /* lookback_s */ &lookbacks]).await
    };
    let rows = pools::answered(statement.name, read).await?;
    let read = |row: &tokio_postgres::Row| -> Result<Option<Due>, tokio_postgres::Error> {
        let queue = row.try_get::<_, &str>("queue")?.parse().ok();
        let (now, wait) = (row.try_get("due")?, row.try_get::<_, Option<f64>>("wait_s")?);
        let wait = wait.map(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX));
        Ok(queue.map(|queue| Due { queue, now, wait }))
    };
    rows.iter().filter_map(|row| read(row).transpose()).collect::<Result<_, _>>().map_err(Error::postgres(statement.name))
}

/// What one batch of a purge did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Purged {
    /// Rows that are gone.
    pub removed: u64,
    /// Whether the batch was full, so that there may be more.
    pub more: bool,
    /// Where the next batch begins, as PostgreSQL writes it; `None` where nothing was found.
    pub reached: Option<String>,
}

/// Deletes one batch of rows sent more than seven days ago, from the cursor on.
pub async fn purge(client: &Object, table: Table, cursor: Option<&str>, limit: i64) -> Result<Purged, Error> {
    purge_batch(client, table.pick(sql::outbox::PURGE, sql::platform_outbox::PURGE), cursor, limit).await
}

/// Deletes the expired idempotency keys of finished runs among the next ones, from the cursor on.
pub async fn purge_keys(client: &Object, cursor: Option<&str>, limit: i64) -> Result<Purged, Error> {
    purge_batch(client, sql::idempotency::PURGE, cursor, limit).await
}

async fn purge_batch(client: &Object, statement: Statement, cursor: Option<&str>, limit: i64) -> Result<Purged, Error> {
    let write = async {
        let prepared = client.prepare_cached(statement.text).await?;
        let row = client.query_one(&prepared, &[/* cursor */ &cursor, /* limit */ &limit]).await?;
        let removed = row.try_get::<_, i64>("removed")?.unsigned_abs();
        Ok(Purged { removed, more: row.try_get("more")?, reached: row.try_get("reached")? })
    };
    // It belongs to a handler, which has its own limits.
    write.await.map_err(Error::postgres(statement.name))
}

/// Rows that the pass holds cannot be changed by anybody else; another count is a bug, and the pass must not commit.
fn expect_rows(statement: Statement, expected: usize, changed: u64) -> Result<(), Error> {
    if changed == expected as u64 {
        return Ok(());
    }
    Err(Error::Other(format!("{}: {changed} rows changed where this pass holds {expected}", statement.name)))
}
