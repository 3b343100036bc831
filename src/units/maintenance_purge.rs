//! `maintenance.purge`: removes outbox rows sent more than seven days ago, and expired idempotency keys.

use std::time::{Duration, Instant};

use deadpool_postgres::Object;
use serde::{Deserialize, Serialize};

use crate::{
    error::Error,
    failure::TaskError,
    outbox::{self, Table},
    run::TaskRun,
};

/// Rows of the first batch, and of the smallest and the largest one; each batch is a transaction of its own.
const FIRST: i64 = 1_000;
const SMALLEST: i64 = 100;
const LARGEST: i64 = 5_000;
/// A batch that is quicker than this is followed by a larger one, a slower one than that by a smaller one.
const QUICK: Duration = Duration::from_millis(100);
const SLOW: Duration = Duration::from_millis(400);
/// A batch that takes longer is given up, and a smaller one is tried.
const LONGEST_BATCH: &str = "set statement_timeout = '10s'";
/// After each batch so many times as long as it took: most of the disk and the processors is for others.
const REST: u32 = 3;
const LONGEST_REST: Duration = Duration::from_secs(2);
/// What is left after this long is left to the next purge. It is shared out fairly, and less than the time of an attempt.
const LONGEST: Duration = Duration::from_secs(720);

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
    /// Whether nothing is left that could go; else the next purge goes on.
    pub drained: bool,
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

/// Safe beside live traffic and other purgers: rows that anybody holds are left alone, pending ones, runs and the trail are never touched.
/// Killed, it has lost no more than the batch it was at. A table that cannot be purged holds up no other; its error fails the attempt.
async fn purge(_: Purge, run: &TaskRun) -> Result<Purged, TaskError> {
    let connection = run.connection().await?;
    connection.batch_execute(LONGEST_BATCH).await?;
    let end = Instant::now() + LONGEST;
    let mut parts = [Rows::Sent(Table::Tenant), Rows::Sent(Table::Platform), Rows::ExpiredKeys].map(|rows| Part::new(&connection, rows));
    let (mut drained, mut failed) = (true, None);
    for (place, part) in parts.iter_mut().enumerate() {
        let share = end.saturating_duration_since(Instant::now()) / (3 - place as u32);
        match part.drain(Instant::now() + share).await {
            Ok(to_the_end) => drained &= to_the_end,
            Err(error) => {
                tracing::error!(%error, "a table could not be purged; it holds up no other");
                failed.get_or_insert(error);
            }
        }
    }
    let [outbox_messages, platform_outbox_messages, idempotency_keys] = parts.each_ref().map(|part| part.removed);
    let batches: u32 = parts.iter().map(|part| part.batches).sum();
    let longest_ms = parts.iter().map(|part| part.longest.as_millis() as u64).max();
    tracing::info!(outbox_messages, platform_outbox_messages, idempotency_keys, drained, batches, longest_ms, "purged");
    failed.map_or(Ok(Purged { outbox_messages, platform_outbox_messages, idempotency_keys, drained }), |error| Err(error.into()))
}

/// What a purge removes from, batch by batch.
#[derive(Clone, Copy)]
enum Rows {
    Sent(Table),
    ExpiredKeys,
}

/// The purge of one table: where its next batch begins, how large it is, and what became of those before.
struct Part<'a> {
    connection: &'a Object,
    rows: Rows,
    cursor: Option<String>,
    limit: i64,
    removed: u64,
    batches: u32,
    longest: Duration,
}

impl<'a> Part<'a> {
    fn new(connection: &'a Object, rows: Rows) -> Part<'a> {
        Part { connection, rows, cursor: None, limit: FIRST, removed: 0, batches: 0, longest: Duration::ZERO }
    }

    /// Batch after batch until one is not full, or the time is up; whether nothing is left.
    async fn drain(&mut self, end: Instant) -> Result<bool, Error> {
        loop {
            let began = Instant::now();
            let done = self.batch().await;
            let took = began.elapsed();
            match done {
                Err(error) if error.is_out_of_time() && self.limit > SMALLEST => self.limit = (self.limit / 4).max(SMALLEST),
                Err(error) => return Err(error),
                Ok(more) => {
                    self.batches += 1;
                    self.longest = self.longest.max(took);
                    if !more {
                        return Ok(true);
                    }
                    if took < QUICK {
                        self.limit = (self.limit * 2).min(LARGEST);
                    } else if took > SLOW {
                        self.limit = (self.limit / 2).max(SMALLEST);
                    }
                }
            }
            if Instant::now() > end {
                return Ok(false);
            }
            tokio::time::sleep((took * REST).min(LONGEST_REST)).await;
        }
    }

    /// Whether there may be more.
    async fn batch(&mut self) -> Result<bool, Error> {
        let cursor = self.cursor.as_deref();
        let done = match self.rows {
            Rows::Sent(table) => outbox::purge(self.connection, table, cursor, self.limit).await,
            Rows::ExpiredKeys => outbox::purge_keys(self.connection, cursor, self.limit).await,
        }?;
        self.removed += done.removed;
        self.cursor = done.reached.or(self.cursor.take());
        Ok(done.more)
    }
}
