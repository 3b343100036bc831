//! Scheduling work from Rust, in the caller's transaction.
//!
//! Statements are sent with the types of their parameters, in one trip and without a name: nothing of them stays in the session, so that they
//! go through a pooler in transaction mode, whichever.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use tokio_postgres::{GenericClient, types::Type};
use uuid::Uuid;

use crate::{
    error::Error,
    payload::{Event, Task},
    secret::Secret,
    sql,
    wake::Waker,
};

/// What may be said of new work besides its payload. The default is: now, for the session's tenant.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The tenant; without it the session's `app.tenant_id`.
    pub tenant_id: Option<i64>,
    /// Not before this has passed; not together with `run_at`.
    pub delay: Option<Duration>,
    /// Not before this time; a time in the past means now.
    pub run_at: Option<DateTime<Utc>>,
    /// The same key and payload within 24 h answer with the first run.
    pub idempotency_key: Option<String>,
    /// W3C trace context.
    pub traceparent: Option<String>,
}

impl Options {
    /// Work of this tenant.
    pub fn tenant(tenant_id: i64) -> Options {
        Options { tenant_id: Some(tenant_id), ..Options::default() }
    }

    /// The delay in seconds. A longer one than an interval holds becomes the longest, which is beyond the calendar and refused.
    fn delay_s(&self) -> Option<f64> {
        self.delay.map(|delay| delay.as_secs_f64().min(9.2233e12))
    }
}

/// A run that a publish made for a subscriber.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// Name of the subscriber.
    pub unit: String,
    /// Its run.
    pub run_id: Uuid,
}

/// Schedules a run of a task in the caller's transaction: committed with it, or not at all. Returns the run's id.
///
/// Errors carry an SQLSTATE of class `ML` and a hint; as any error of PostgreSQL they abort the transaction. After the commit wake
/// the relay with [`Client::wake`]; without a wake the row goes out at the next sweep.
pub async fn dispatch<T: Task>(client: &impl GenericClient, payload: &T, options: &Options) -> Result<Uuid, Error> {
    dispatch_json(client, T::NAME, &json(payload)?, options).await
}

/// The same with the payload as text.
pub(crate) async fn dispatch_json(client: &impl GenericClient, task: &str, payload: &str, options: &Options) -> Result<Uuid, Error> {
    let delay = options.delay_s();
    let row = client
        .query_typed_one(
            sql::enqueue::DISPATCH.text,
            &[
                (/* unit */ &task, Type::TEXT),
                (/* payload */ &payload, Type::TEXT),
                (/* tenant_id */ &options.tenant_id, Type::INT8),
                (/* delay_s */ &delay, Type::FLOAT8),
                (/* run_at */ &options.run_at, Type::TIMESTAMPTZ),
                (/* idempotency_key */ &options.idempotency_key, Type::TEXT),
                (/* traceparent */ &options.traceparent, Type::TEXT),
            ],
        )
        .await;
    row.and_then(|row| row.try_get("run_id")).map_err(Error::postgres(sql::enqueue::DISPATCH.name))
}

/// Schedules a run of a task for each payload in the caller's transaction, in one statement: all of them or none. Returns the ids in the
/// order of the payloads.
///
/// Of the options it takes tenant, delay and time; a key or a trace context is of one run, and refused here.
pub async fn dispatch_many<T: Task>(client: &impl GenericClient, payloads: &[T], options: &Options) -> Result<Vec<Uuid>, Error> {
    if options.idempotency_key.is_some() || options.traceparent.is_some() {
        return Err(Error::Other("dispatch_many takes no idempotency key and no traceparent: dispatch one by one".to_owned()));
    }
    let payloads: Vec<String> = payloads.iter().map(json).collect::<Result<_, _>>()?;
    let delay = options.delay_s();
    let row = client
        .query_typed_one(
            sql::enqueue::DISPATCH_MANY.text,
            &[
                (/* unit */ &T::NAME, Type::TEXT),
                (/* payloads */ &payloads, Type::TEXT_ARRAY),
                (/* tenant_id */ &options.tenant_id, Type::INT8),
                (/* delay_s */ &delay, Type::FLOAT8),
                (/* run_at */ &options.run_at, Type::TIMESTAMPTZ),
            ],
        )
        .await;
    row.and_then(|row| row.try_get("run_ids")).map_err(Error::postgres(sql::enqueue::DISPATCH_MANY.name))
}

/// Schedules a run of each subscriber of an event in the caller's transaction; none where nobody subscribes.
pub async fn publish<E: Event>(client: &impl GenericClient, event: &E, options: &Options) -> Result<Vec<Published>, Error> {
    publish_json(client, E::TYPE, E::VERSION, &json(event)?, options).await
}

/// The same with the payload as text.
pub(crate) async fn publish_json(
    client: &impl GenericClient,
    event_type: &str,
    version: i32,
    payload: &str,
    options: &Options,
) -> Result<Vec<Published>, Error> {
    let delay = options.delay_s();
    let rows = client
        .query_typed(
            sql::enqueue::PUBLISH.text,
            &[
                (/* event_type */ &event_type, Type::TEXT),
                (/* payload */ &payload, Type::TEXT),
                (/* version */ &version, Type::INT4),
                (/* tenant_id */ &options.tenant_id, Type::INT8),
                (/* delay_s */ &delay, Type::FLOAT8),
                (/* run_at */ &options.run_at, Type::TIMESTAMPTZ),
                (/* idempotency_key */ &options.idempotency_key, Type::TEXT),
                (/* traceparent */ &options.traceparent, Type::TEXT),
            ],
        )
        .await
        .map_err(Error::postgres(sql::enqueue::PUBLISH.name))?;
    rows.iter()
        .map(|row| Ok(Published { unit: row.try_get("unit")?, run_id: row.try_get("run_id")? }))
        .collect::<Result<_, _>>()
        .map_err(Error::postgres(sql::enqueue::PUBLISH.name))
}

pub(crate) fn json(payload: &impl Serialize) -> Result<String, Error> {
    let text = serde_json::to_string(payload).map_err(|error| Error::Other(format!("the payload cannot be written as JSON: {error}")))?;
    if has_nul(&text) {
        return Err(Error::Other("the payload holds a character NUL (\\u0000), which PostgreSQL cannot store: take it out".to_owned()));
    }
    Ok(text)
}

/// Whether a text in this JSON holds a NUL.
fn has_nul(json: &str) -> bool {
    let mut rest = json;
    while let Some(place) = rest.find('\\') {
        let escape = &rest[place + 1..];
        if escape.starts_with("u0000") {
            return true;
        }
        rest = escape.get(1..).unwrap_or_default();
    }
    false
}

/// Wakes the relay after commits. Cheap to share; without Valkey it does nothing.
#[derive(Default)]
pub struct Client {
    waker: Option<Waker>,
}

impl Client {
    /// A client that wakes through this Valkey or Redis, or through none.
    pub fn new(valkey_url: Option<&str>) -> Result<Client, Error> {
        Ok(Client { waker: valkey_url.map(|url| Waker::new(&Secret::new(url))).transpose()? })
    }

    /// Commits a transaction in which work was scheduled, then wakes the relay. The error is that of the commit alone.
    pub async fn commit(&self, transaction: tokio_postgres::Transaction<'_>) -> Result<(), tokio_postgres::Error> {
        transaction.commit().await?;
        self.wake().await;
        Ok(())
    }

    /// Wakes the relay: at most half a second, and never an error. Call it after the commit, not before.
    pub async fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_with_a_nul_is_refused_by_name() {
        for (payload, refused) in [("a\0b", true), ("\\u0000", false), ("\\\0", true), ("plain \u{1} \"\\", false)] {
            assert_eq!(json(&payload).is_err_and(|error| error.to_string().contains("NUL")), refused, "{payload:?}");
        }
    }
}
