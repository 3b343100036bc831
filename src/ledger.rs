//! The ledger of runs, one short function per SQL file, and the transactions made of them.
//!
//! Locks go run row first, then outbox row. Whoever changes a run so that it needs a message re-issues it in the same transaction.

use std::time::Duration;

use chrono::{DateTime, Utc};
use deadpool_postgres::{GenericClient, Object, Transaction};
use futures_util::future::try_join;
use tokio_postgres::{IsolationLevel, Row};
use uuid::Uuid;

use crate::{
    database::against_defaults,
    error::Error,
    failure::TaskError,
    pools,
    queue::Queue,
    sql::{self, Statement},
};

/// How long a re-issue waits for a relay that holds the outbox row.
const REISSUE_LOCK_TIMEOUT: &str = "set local lock_timeout = '2s'";

/// Nobody has reason to hold the outbox row of a run that nothing brings; who does is not waited for.
const REPAIR_LIMITS: &str = "set local lock_timeout = '200ms'; set local statement_timeout = '8s'";

/// A message as the judge sees it.
#[derive(Debug, Clone, Copy)]
pub struct Delivery {
    /// The run it is about.
    pub run_id: Uuid,
    /// The generation it was sent for.
    pub generation: i32,
    /// `deadLetter.generation`, 0 without one.
    pub mark: i32,
    /// How often SQS handed it out.
    pub receives: i32,
}

/// What to do with a message; the order of judgement stands in `sql/runs/judge.sql`.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// There is no such run.
    NoRun,
    /// It is of an older generation, or its run is final: delete it.
    Over,
    /// An operator's redrive of a failed run.
    Redriven,
    /// It was received so often that SQS would soon move it away: re-issue, delete.
    Spent,
    /// Running under a live lease, or not due before that: hide it so long.
    Wait(Duration),
    /// Its worker died and its five are used up.
    Condemned,
    /// This process does not know its unit.
    Unknown(String),
    /// It may start, but only alone in its process.
    Suspect(String),
    /// It may start.
    Ready(String),
}

/// A run whose lease this process took.
#[derive(Debug, Clone)]
pub struct Started {
    /// The run.
    pub run_id: Uuid,
    /// The lease.
    pub token: Uuid,
    /// Name of the unit.
    pub unit: String,
    /// Tenant; `None` for platform and system work.
    pub tenant_id: Option<i64>,
    /// Generation of the run.
    pub generation: i32,
    /// Failed attempts before this one.
    pub failures: i32,
    /// Crashed attempts before this one.
    pub crashes: i32,
    /// The payload as text, digit for digit.
    pub payload: String,
    /// The occurrence a schedule fired it for.
    pub scheduled_for: Option<DateTime<Utc>>,
    /// Trace context of the caller.
    pub traceparent: Option<String>,
    /// When it started, by the database clock.
    pub started_at: DateTime<Utc>,
    /// Since when it was due.
    pub due_at: DateTime<Utc>,
    /// The worker whose lease had lapsed, where this is a take-over.
    pub lost_worker: Option<String>,
}

impl Started {
    /// Which of its five tries this is, from 1.
    pub fn attempt(&self) -> i32 {
        self.failures + self.crashes + 1
    }
}

/// What a failure became.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    /// It will be tried again.
    Retrying,
    /// It is final, and its dead letter is pending in the outbox.
    Failed,
    /// The lease was lost: nothing was recorded, and the message is not ours to touch.
    LeaseLost,
}

async fn rows(
    client: &impl GenericClient,
    statement: Statement,
    parameters: &[&(dyn tokio_postgres::types::ToSql + Sync)],
) -> Result<Vec<Row>, Error> {
    pools::answered(statement.name, query(client, statement, parameters)).await
}

async fn query(
    client: &impl GenericClient,
    statement: Statement,
    parameters: &[&(dyn tokio_postgres::types::ToSql + Sync)],
) -> Result<Vec<Row>, tokio_postgres::Error> {
    let prepared = client.prepare_cached(statement.text).await?;
    client.query(&prepared, parameters).await
}

/// Judges messages, in their order. Lapsed leases are spared so long.
pub async fn judge(client: &impl GenericClient, deliveries: &[Delivery], known: &[&str], spare: Duration) -> Result<Vec<Verdict>, Error> {
    let run_ids: Vec<Uuid> = deliveries.iter().map(|delivery| delivery.run_id).collect();
    let generations: Vec<i32> = deliveries.iter().map(|delivery| delivery.generation).collect();
    let marks: Vec<i32> = deliveries.iter().map(|delivery| delivery.mark).collect();
    let receives: Vec<i32> = deliveries.iter().map(|delivery| delivery.receives).collect();
    let judged =
        rows(client, sql::runs::JUDGE, &[&run_ids, &generations, &marks, &receives, &known, /* spare_s */ &spare.as_secs_f64()]).await?;
    judged.iter().map(verdict).collect::<Result<_, _>>().map_err(Error::postgres(sql::runs::JUDGE.name))
}

fn verdict(row: &Row) -> Result<Verdict, tokio_postgres::Error> {
    let unit = || row.try_get::<_, String>("unit");
    Ok(match row.try_get("verdict")? {
        "no_run" => Verdict::NoRun,
        "redriven" => Verdict::Redriven,
        "spent" => Verdict::Spent,
        "held" | "early" => Verdict::Wait(Duration::try_from_secs_f64(row.try_get("wait_s")?).unwrap_or_default()),
        "condemned" => Verdict::Condemned,
        "unknown" => Verdict::Unknown(unit()?),
        "suspect" => Verdict::Suspect(unit()?),
        "ready" => Verdict::Ready(unit()?),
        _ => Verdict::Over,
    })
}

/// A run to start, with the lease it is to have.
#[derive(Debug, Clone, Copy)]
pub struct Start {
    /// The message that offers it.
    pub delivery: Delivery,
    /// The new token.
    pub token: Uuid,
    /// How long the lease lasts.
    pub lease: Duration,
}

/// Takes the lease of runs that may start; those missing from the answer are judged again.
pub async fn start(client: &impl GenericClient, starts: &[Start], alone: bool, worker: &str) -> Result<Vec<Started>, Error> {
    let run_ids: Vec<Uuid> = starts.iter().map(|start| start.delivery.run_id).collect();
    let generations: Vec<i32> = starts.iter().map(|start| start.delivery.generation).collect();
    let tokens: Vec<Uuid> = starts.iter().map(|start| start.token).collect();
    let leases: Vec<f64> = starts.iter().map(|start| start.lease.as_secs_f64()).collect();
    // A start may stay unflushed only at its message's first receive: a crash of the server then forgets it without a trace.
    let flush = if starts.iter().all(|start| start.delivery.receives == 1) { "off" } else { "on" };
    let started = rows(client, sql::runs::START, &[&run_ids, &generations, &tokens, &leases, /* alone */ &alone, &worker, &flush]).await?;
    started
        .iter()
        .map(|row| {
            Ok(Started {
                run_id: row.try_get("run_id")?,
                token: row.try_get("token")?,
                unit: row.try_get("unit")?,
                tenant_id: row.try_get("tenant_id")?,
                generation: row.try_get("generation")?,
                failures: row.try_get("failures")?,
                crashes: row.try_get("crashes")?,
                payload: row.try_get("payload")?,
                scheduled_for: row.try_get("scheduled_for")?,
                traceparent: row.try_get("traceparent")?,
                started_at: row.try_get("started_at")?,
                due_at: row.try_get("due_at")?,
                lost_worker: row.try_get("lost_worker")?,
            })
        })
        .collect::<Result<_, _>>()
        .map_err(Error::postgres(sql::runs::START.name))
}

/// A lease to extend.
#[derive(Debug, Clone, Copy)]
pub struct Lease {
    /// The run.
    pub run_id: Uuid,
    /// The token this process holds.
    pub token: Uuid,
    /// How long it is to last from now.
    pub lease: Duration,
}

/// What a heartbeat found of a lease. One that is being finished just now is neither renewed nor lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beaten {
    /// The token this process holds.
    pub token: Uuid,
    /// It lasts from now on as long as was asked.
    pub renewed: bool,
    /// Somebody else holds it, or nobody.
    pub lost: bool,
}

/// Extends leases.
pub async fn extend(client: &impl GenericClient, leases: &[Lease]) -> Result<Vec<Beaten>, Error> {
    let run_ids: Vec<Uuid> = leases.iter().map(|lease| lease.run_id).collect();
    let tokens: Vec<Uuid> = leases.iter().map(|lease| lease.token).collect();
    let seconds: Vec<f64> = leases.iter().map(|lease| lease.lease.as_secs_f64()).collect();
    let answer = rows(client, sql::runs::EXTEND, &[&run_ids, &tokens, &seconds]).await?;
    let beaten =
        answer.iter().map(|row| Ok(Beaten { token: row.try_get("token")?, renewed: row.try_get("renewed")?, lost: row.try_get("lost")? }));
    beaten.collect::<Result<_, _>>().map_err(Error::postgres(sql::runs::EXTEND.name))
}

/// A new transaction, free of what an earlier handler left in the session: role, settings, cursors, temporary tables, locks.
const BEGIN_EFFECT: &str = "begin isolation level read committed read write; close all; set session authorization default; reset all; \
                            unlisten *; discard temp; select pg_advisory_unlock_all()";

/// Opens the effect transaction on a connection of its own; the caller ends it or discards the connection.
pub(crate) async fn open_effect(connection: &Object, tenant: Option<i64>, unit: &str, token: Uuid, idle: Duration) -> Result<(), Error> {
    let settings = format!(
        "set local idle_in_transaction_session_timeout = {0}; set local statement_timeout = {0}; set local lock_timeout = 0; \
         set local timezone = 'UTC'; set local client_min_messages = 'warning'; {1}",
        idle.as_millis(),
        against_defaults(true)
    );
    pools::answered("effect begin", connection.batch_execute(&format!("{BEGIN_EFFECT}; {settings}"))).await?;
    let tenant = tenant.map(|id| id.to_string()).unwrap_or_default();
    rows(connection, sql::runs::OPEN_EFFECT, &[&tenant, &unit, &token.to_string()]).await.map(drop)
}

/// Writes `succeeded` into the effect transaction; raises inside the server unless the token is current and the transaction is ours.
/// The handler may have changed its role; whoever it is now may not finish runs. Both statements go in one round trip.
/// Whoever holds the run row, such as an operator, is waited for within this limit.
pub(crate) async fn succeed(connection: &Object, run: &Started, outcome: Option<&str>, limit: Duration) -> Result<bool, Error> {
    let parameters: &[&(dyn tokio_postgres::types::ToSql + Sync)] = &[&run.run_id, &run.token, &outcome];
    let both = try_join(connection.batch_execute("set local role none"), query(connection, sql::runs::SUCCEED, parameters));
    let ((), finished) = pools::answered_within(limit, sql::runs::SUCCEED.name, both).await?;
    Ok(finished.first().is_some_and(|row| row.try_get("enqueued").unwrap_or_default()))
}

/// Finishes a run whose handler used no effect transaction.
pub(crate) async fn succeed_alone(client: &impl GenericClient, run: &Started, outcome: Option<&str>) -> Result<(), Error> {
    rows(client, sql::runs::SUCCEED_ALONE, &[&run.run_id, &run.token, &outcome]).await.map(drop)
}

/// What a failed attempt is recorded with.
#[derive(Debug, Clone)]
pub struct Failure {
    /// Capital letters, digits and underscores.
    pub code: String,
    /// Cut and cleaned text.
    pub text: String,
    /// Whether it fails at once.
    pub permanent: bool,
    /// Wait before the next attempt.
    pub backoff: Duration,
    /// Whether the next attempt comes through the outbox, because SQS cannot hide the message that long or again.
    pub through_outbox: bool,
}

impl Failure {
    /// What is recorded of this error.
    pub(crate) fn of(error: &TaskError, backoff: Duration, through_outbox: bool) -> Failure {
        Failure { code: error.code(), text: error.text(), permanent: error.is_permanent(), backoff, through_outbox }
    }
}

/// Records a failed attempt, and in the same transaction the dead letter, or the message of the next attempt where it comes
/// through the outbox.
pub(crate) async fn fail(connection: &mut Object, run_id: Uuid, token: Uuid, failure: &Failure) -> Result<Recorded, Error> {
    let transaction = begin(connection).await?;
    let recorded = record_failure(&transaction, run_id, token, failure).await?;
    if recorded != Recorded::LeaseLost {
        commit(transaction, sql::runs::FAIL.name).await?;
    }
    Ok(recorded)
}

/// The same in a transaction of the caller's.
pub(crate) async fn record_failure(client: &impl GenericClient, run_id: Uuid, token: Uuid, failure: &Failure) -> Result<Recorded, Error> {
    let delay = failure.backoff.as_secs_f64();
    let answer =
        rows(client, sql::runs::FAIL, &[&run_id, &token, &failure.code, &failure.text, &failure.permanent, /* delay_s */ &delay]).await?;
    let Some(row) = answer.first() else { return Ok(Recorded::LeaseLost) };
    let failed = row.try_get::<_, &str>("status").map_err(Error::postgres(sql::runs::FAIL.name))? == "failed";
    if failed || failure.through_outbox {
        reissue(client, &[run_id]).await?;
    }
    Ok(if failed { Recorded::Failed } else { Recorded::Retrying })
}

/// Gives runs back with a reason, re-issued in the same transaction; returns those whose messages may be deleted now.
pub(crate) async fn give_back(
    connection: &mut Object,
    runs: &[(Uuid, Uuid)],
    reason: &str,
    delay: Duration,
    interrupted: bool,
) -> Result<Vec<Uuid>, Error> {
    let transaction = begin(connection).await?;
    let given = give_back_rows(&transaction, runs, reason, delay, interrupted).await?;
    reissue(&transaction, &given).await?;
    commit(transaction, sql::runs::GIVE_BACK.name).await?;
    Ok(given)
}

/// Gives runs back without a new message: for a drain whose outbox row stays locked; visibility 0 then returns the message.
pub(crate) async fn give_back_by_visibility(client: &impl GenericClient, runs: &[(Uuid, Uuid)], reason: &str) -> Result<Vec<Uuid>, Error> {
    give_back_rows(client, runs, reason, Duration::ZERO, false).await
}

async fn give_back_rows(
    client: &impl GenericClient,
    runs: &[(Uuid, Uuid)],
    reason: &str,
    delay: Duration,
    interrupted: bool,
) -> Result<Vec<Uuid>, Error> {
    let (run_ids, tokens): (Vec<Uuid>, Vec<Uuid>) = runs.iter().copied().unzip();
    let delay = delay.as_secs_f64();
    let given =
        rows(client, sql::runs::GIVE_BACK, &[&run_ids, &tokens, &reason, /* delay_s */ &delay, /* interrupted */ &interrupted]).await?;
    ids(&given, sql::runs::GIVE_BACK)
}

/// What a deferral became.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Deferred {
    /// Hide the message so long.
    Until(Duration),
    /// The sixth time: failed, its dead letter pending.
    Failed,
    /// Somebody else holds it, or it is final: judge again.
    Changed,
}

/// Sets back a run whose unit this process does not know.
pub(crate) async fn defer(connection: &mut Object, run_id: Uuid, worker: &str) -> Result<Deferred, Error> {
    let transaction = begin(connection).await?;
    let answer = rows(&transaction, sql::runs::DEFER, &[&run_id, &worker]).await?;
    let Some(row) = answer.first() else { return Ok(Deferred::Changed) };
    let delay: Option<f64> = row.try_get("delay_s").map_err(Error::postgres(sql::runs::DEFER.name))?;
    if delay.is_none() {
        reissue(&transaction, &[run_id]).await?;
    }
    commit(transaction, sql::runs::DEFER.name).await?;
    Ok(delay.map_or(Deferred::Failed, |seconds| Deferred::Until(Duration::from_secs_f64(seconds))))
}

/// Fails a run whose worker died and whose five are used up; false where somebody else judged it first.
pub(crate) async fn condemn(connection: &mut Object, run_id: Uuid) -> Result<bool, Error> {
    let transaction = begin(connection).await?;
    let condemned = !rows(&transaction, sql::runs::CONDEMN, &[&run_id]).await?.is_empty();
    if condemned {
        reissue(&transaction, &[run_id]).await?;
    }
    commit(transaction, sql::runs::CONDEMN.name).await?;
    Ok(condemned)
}

/// Reopens the failed run of a redriven dead letter; false where it was reopened before.
pub(crate) async fn reopen(connection: &mut Object, run_id: Uuid, mark: i32, worker: &str) -> Result<bool, Error> {
    let transaction = begin(connection).await?;
    let answer = rows(&transaction, sql::runs::REOPEN, &[&run_id, &mark, &worker]).await?;
    let generation = answer.first().map(|row| row.try_get::<_, Option<i32>>("generation")).transpose();
    let generation = generation.map_err(Error::postgres(sql::runs::REOPEN.name))?.flatten();
    commit(transaction, sql::runs::REOPEN.name).await?;
    Ok(generation.is_some())
}

/// Notes that a queue was served so far, where that is news, and reads the database clock.
pub(crate) async fn serve(client: &impl GenericClient, queue: Queue, seen: Option<DateTime<Utc>>) -> Result<DateTime<Utc>, Error> {
    let answer = rows(client, sql::queues::SERVE, &[&queue.as_str(), &seen]).await?;
    let now = answer.first().map(|row| row.try_get("now")).transpose().map_err(Error::postgres(sql::queues::SERVE.name))?;
    now.ok_or_else(|| Error::Other(format!("{} answered nothing", sql::queues::SERVE.name)))
}

/// Where a look at unfinished runs ended: the time as PostgreSQL writes it, since it may be infinite, and the run, unless it was the end of
/// its window.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Cursor {
    available_at: String,
    run_id: Option<Uuid>,
}

/// Which unfinished runs are examined, newest first.
#[derive(Debug, Clone)]
pub(crate) struct Look {
    /// Of which queue.
    pub(crate) queue: Queue,
    /// How far the queue must have been served past a run whose message is lost.
    pub(crate) bound: Duration,
    /// Where the look before ended.
    pub(crate) after: Option<Cursor>,
    /// How far back it goes from there; none: to the oldest.
    pub(crate) window: Option<Duration>,
    /// How many at most.
    pub(crate) limit: i64,
    /// How long it may take.
    pub(crate) within: Duration,
}

/// What a look found.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Looked {
    /// How many runs were there.
    pub(crate) examined: usize,
    /// Those whose message is lost. After a repair: those that are sent anew, those that failed included.
    pub(crate) lost: Vec<Uuid>,
    /// How many of them a repair has failed with `WORKER_LOST`: their dead letters are pending.
    pub(crate) failed: usize,
    /// Where the next look goes on; `None` at the end.
    pub(crate) next: Option<Cursor>,
}

/// Examines unfinished runs and locks those whose message is lost.
async fn stranded(transaction: &Transaction<'_>, look: &Look) -> Result<Looked, Error> {
    // What is set is this transaction's.
    let limit = format!("set local statement_timeout = {}", look.within.as_millis());
    pools::answered("look limit", transaction.batch_execute(&limit)).await?;
    let (cursor, last) = (look.after.as_ref().map(|after| after.available_at.as_str()), look.after.as_ref().and_then(|after| after.run_id));
    let (bound, window) = (look.bound.as_secs_f64(), look.window.map(|window| window.as_secs_f64()));
    let parameters: &[&(dyn tokio_postgres::types::ToSql + Sync)] =
        &[&look.queue.as_str(), /* bound_s */ &bound, &cursor, &last, /* window_s */ &window, &look.limit];
    let answer = rows(transaction, sql::runs::STRANDED, parameters).await?;
    let mut looked = Looked { examined: 0, lost: Vec::new(), failed: 0, next: None };
    for row in &answer {
        let read = || -> Result<_, tokio_postgres::Error> {
            Ok((Cursor { available_at: row.try_get("available_at")?, run_id: row.try_get("run_id")? }, row.try_get::<_, bool>("stranded")?))
        };
        let (cursor, stranded) = read().map_err(Error::postgres(sql::runs::STRANDED.name))?;
        looked.examined += usize::from(cursor.run_id.is_some());
        looked.lost.extend(cursor.run_id.filter(|_| stranded));
        let end = cursor.run_id.is_none() && cursor.available_at == "-infinity";
        looked.next = Some(cursor).filter(|_| !end);
    }
    Ok(looked)
}

/// Examines unfinished runs and re-issues those whose message is lost, in one transaction.
pub(crate) async fn repair(connection: &mut Object, look: &Look) -> Result<Looked, Error> {
    let transaction = begin(connection).await?;
    let mut looked = stranded(&transaction, look).await?;
    if !looked.lost.is_empty() {
        pools::answered("repair limit", transaction.batch_execute(REPAIR_LIMITS)).await?;
        let repaired = rows(&transaction, sql::runs::REPAIR, &[&looked.lost]).await?;
        looked.lost = ids(&repaired, sql::runs::REPAIR)?;
        looked.failed = repaired.iter().filter(|row| row.try_get::<_, &str>("status").is_ok_and(|status| status == "failed")).count();
        reissue(&transaction, &looked.lost).await?;
    }
    commit(transaction, sql::runs::REPAIR.name).await?;
    Ok(looked)
}

/// What a repair would do; it changes nothing, and what it locks is let go at once.
pub(crate) async fn count_stranded(connection: &mut Object, look: &Look) -> Result<Looked, Error> {
    let transaction = begin(connection).await?;
    let looked = stranded(&transaction, look).await?;
    pools::answered("look rollback", transaction.rollback()).await?;
    Ok(looked)
}

/// Re-issues unfinished runs as they are; a message of one that is final needs no successor.
pub(crate) async fn renew(connection: &mut Object, run_ids: &[Uuid]) -> Result<(), Error> {
    let transaction = begin(connection).await?;
    let unfinished = ids(&rows(&transaction, sql::runs::LOCK_UNFINISHED, &[&run_ids]).await?, sql::runs::LOCK_UNFINISHED)?;
    reissue(&transaction, &unfinished).await?;
    commit(transaction, sql::runs::LOCK_UNFINISHED.name).await
}

/// Sends waiting runs back through the outbox, each with a delay, because their units are full here; returns those that still waited.
pub(crate) async fn postpone(connection: &mut Object, turns: &[(Uuid, Duration)]) -> Result<Vec<Uuid>, Error> {
    let transaction = begin(connection).await?;
    let (run_ids, delays): (Vec<Uuid>, Vec<f64>) = turns.iter().map(|(run_id, delay)| (*run_id, delay.as_secs_f64())).unzip();
    let postponed = ids(&rows(&transaction, sql::runs::POSTPONE, &[&run_ids, &delays]).await?, sql::runs::POSTPONE)?;
    reissue(&transaction, &postponed).await?;
    commit(transaction, sql::runs::POSTPONE.name).await?;
    Ok(postponed)
}

/// Writes what a handler reports.
pub(crate) async fn progress(client: &impl GenericClient, run_id: Uuid, token: Uuid, percent: i32) -> Result<(), Error> {
    rows(client, sql::runs::PROGRESS, &[&run_id, &token, &percent]).await.map(drop)
}

async fn begin(connection: &mut Object) -> Result<Transaction<'_>, Error> {
    let begin = async {
        let transaction = connection.build_transaction().isolation_level(IsolationLevel::ReadCommitted).start().await?;
        transaction.batch_execute(REISSUE_LOCK_TIMEOUT).await?;
        Ok(transaction)
    };
    pools::answered("begin", begin).await
}

async fn commit(transaction: Transaction<'_>, statement: &'static str) -> Result<(), Error> {
    pools::answered(statement, transaction.commit()).await
}

async fn reissue(client: &impl GenericClient, run_ids: &[Uuid]) -> Result<(), Error> {
    if run_ids.is_empty() {
        return Ok(());
    }
    rows(client, sql::runs::REISSUE, &[&run_ids]).await.map(drop)
}

fn ids(rows: &[Row], statement: Statement) -> Result<Vec<Uuid>, Error> {
    rows.iter().map(|row| row.try_get("run_id")).collect::<Result<_, _>>().map_err(Error::postgres(statement.name))
}
