//! `workers doctor`: every boot check, and what of the work does not move; each with what to do. It changes nothing.

use std::time::{Duration, Instant};

use chrono::{TimeDelta, Utc};
use serde_json::Value;
use tokio_postgres::error::SqlState;

use crate::{
    catalogue::Catalogue,
    checks::{self, Finding},
    config::Config,
    database::CONNECT_TIMEOUT,
    error::Error,
    migrate,
    pools::{self, PoolPlan},
    queue::Queue,
    schedule::due,
    scheduler, sql,
    sqs::{Queues, Target},
    wake::{self, Waker},
    worker::repair::Pass,
};

/// A row that is due for longer than this waits for a relay that is not there, or that SQS refuses.
const PENDING_LONG: f64 = 60.0;
/// A queue whose work waits for so long, and that nobody has served for half of it, has no worker.
const UNSERVED: f64 = 120.0;
/// Clocks that differ by more make AWS refuse signatures, from 15 minutes on.
const SKEW: Duration = Duration::from_secs(60);
/// A schedule that is due for longer is fired by nobody.
const UNFIRED: TimeDelta = TimeDelta::minutes(5);
/// How long the unfinished runs of a queue are examined for lost messages.
const EXAMINED: Duration = Duration::from_secs(5);

/// The program that is examined.
pub(crate) struct Program<'a> {
    pub(crate) config: &'a Config,
    pub(crate) plan: PoolPlan,
    pub(crate) catalogue: &'a Catalogue,
    /// Whether it can send mail.
    pub(crate) mail: bool,
}

/// Looks at everything; `say` gets a line for each thing. Whether all that is needed is there.
pub(crate) async fn examine(program: &Program<'_>, say: impl Fn(&str)) -> bool {
    let config = program.config;
    let mut well = true;
    let mut told = |what: &str, found: Result<Vec<Finding>, Error>| {
        let findings = found.unwrap_or_else(|error| vec![unanswered(&error)]);
        if findings.is_empty() {
            say(&format!("ok       {what}"));
        }
        for finding in findings {
            well &= !finding.fatal;
            say(&format!("{:<8} {what}: {}", if finding.fatal { "PROBLEM" } else { "warning" }, finding.what));
            say(&format!("         {}", finding.mend));
        }
    };
    let warnings = config.warnings.iter().map(|warning| Finding::warning(warning.clone(), "correct it or take it away"));
    told("environment", Ok(warnings.chain(checks::of_mail(program.mail)).collect()));
    told("database", database_is_well(program).await);
    told("queues", queues_are_well(config).await);
    told("valkey", valkey_is_well(config).await);
    match config.database.pool("doctor", 1, Duration::from_secs(60), &tokio::runtime::Handle::current()) {
        Ok(pool) => match pools::get(&pool).await {
            Ok(mut connection) => {
                told("catalogue", catalogue_is_loaded(&connection, program).await);
                told("outbox", outbox_is_well(&connection).await);
                told("served", queues_are_served(&connection).await);
                told("schedules", schedules_are_fired(&connection).await);
                told("lost messages", nothing_is_lost(&mut connection, config).await);
            }
            Err(error) => told("work", Err(error)),
        },
        Err(error) => told("work", Err(error)),
    }
    well
}

/// What could not be asked.
fn unanswered(error: &Error) -> Finding {
    let mend = match error {
        Error::Pool(_) | Error::Unanswered { .. } | Error::Postgres { .. } => "check DATABASE_URL, its role, and the server",
        Error::Sqs { .. } => "check MONALISA_SQS_ENDPOINT, MONALISA_SQS_REGION and the AWS credentials",
        _ => "until then nothing more can be said of it",
    };
    Finding::fatal(error.to_string(), mend)
}

async fn database_is_well(program: &Program<'_>) -> Result<Vec<Finding>, Error> {
    let client = program.config.database.connect("doctor").await?;
    let mut findings = checks::of_database(&client, program.plan.total()).await?;
    match migrate::check(&client).await {
        Ok(newer) => findings.extend(newer),
        Err(error) => findings.push(unanswered(&error)),
    }
    let asked = Utc::now();
    let there = async { client.query_one(sql::ops::CLOCK.text, &[]).await?.try_get("now") };
    let there: chrono::DateTime<Utc> = pools::answered(sql::ops::CLOCK.name, there).await?;
    let skew = (there - asked).abs();
    if skew.to_std().is_ok_and(|skew| skew > SKEW) {
        findings.push(Finding::warning(
            format!("the clock of this machine and that of PostgreSQL are {} s apart", skew.num_seconds()),
            "set them by NTP; all times of runs are PostgreSQL's, but AWS refuses what is signed 15 minutes off",
        ));
    }
    Ok(findings)
}

/// Only what the database's catalogue holds can be dispatched, and only what a program has can be run.
async fn catalogue_is_loaded(client: &tokio_postgres::Client, program: &Program<'_>) -> Result<Vec<Finding>, Error> {
    let mut findings = checks::of_units(client, program.catalogue, &program.config.queues).await?;
    let compared = tokio::time::timeout(CONNECT_TIMEOUT, program.catalogue.compare(client)).await;
    if !compared.unwrap_or(Err(Error::Unanswered { statement: sql::catalogue::MATCHES.name, limit: CONNECT_TIMEOUT }))? {
        let what = "the units of this program are not those that the database holds: what it lacks cannot be dispatched";
        findings.push(Finding::warning(what, "run workers migrate with this program, before the API is deployed"));
    }
    Ok(findings)
}

async fn queues_are_well(config: &Config) -> Result<Vec<Finding>, Error> {
    let sqs = Queues::connect(&config.sqs).await;
    let states = checks::queue_states(&sqs, &config.used_queues()).await?;
    let mut findings = checks::of_queues(&sqs, &states, &config.visibility);
    for (target, state) in &states {
        if let (Target::DeadLetters(queue), Some(state)) = (target, state)
            && state.visible > 0
        {
            let hidden = if state.hidden > 0 { format!(" and {} in somebody's hands", state.hidden) } else { String::new() };
            let what = format!("about {} dead letters of the queue {queue}{hidden}", state.visible);
            let mend = format!("look with workers dlq show --queue {queue}, then workers dlq redrive or purge");
            findings.push(Finding::warning(what, mend));
        }
    }
    Ok(findings)
}

async fn valkey_is_well(config: &Config) -> Result<Vec<Finding>, Error> {
    let Some(url) = &config.valkey else { return Ok(Vec::new()) };
    // The first one makes the connection, and may take longer.
    let waker = Waker::new(url)?;
    let pushed = match waker.push(CONNECT_TIMEOUT).await {
        Ok(()) => waker.push(wake::TIMEOUT).await,
        refused => refused,
    };
    let Err(error) = pushed else { return Ok(Vec::new()) };
    let what = format!("it takes no wake: {error}, 5 s unless set otherwise");
    Ok(vec![Finding::warning(what, "check MONALISA_VALKEY_URL and the server; nothing is lost without it")])
}

/// Rows that wait for a relay, and rows that SQS refuses.
async fn outbox_is_well(client: &tokio_postgres::Client) -> Result<Vec<Finding>, Error> {
    let rows = pools::answered(sql::ops::OUTBOX_HEALTH.name, client.query(sql::ops::OUTBOX_HEALTH.text, &[])).await?;
    let mut findings = Vec::new();
    let read = |row: &tokio_postgres::Row| -> Result<_, tokio_postgres::Error> {
        let (table, queue): (String, String) = (row.try_get("outbox")?, row.try_get("queue")?);
        let (pending, oldest): (i64, Option<f64>) = (row.try_get("pending")?, row.try_get("oldest_s")?);
        Ok((table, queue, pending, oldest, row.try_get::<_, Option<Value>>("refused")?))
    };
    for row in &rows {
        let (table, queue, pending, oldest, refused) = read(row).map_err(Error::postgres(sql::ops::OUTBOX_HEALTH.name))?;
        if let Some(oldest) = oldest.filter(|oldest| *oldest > PENDING_LONG) {
            let count = if pending > 10_000 { "more than 10000".to_owned() } else { pending.to_string() };
            findings.push(Finding::warning(
                format!("{count} rows of work.{table} for the queue {queue} are due, the oldest for {oldest:.0} s"),
                "run a relay (MONALISA_RELAY=true in one service), and look for its errors in the log",
            ));
        }
        for row in refused.as_ref().and_then(Value::as_array).into_iter().flatten() {
            findings.push(Finding::warning(
                format!("row {} of work.{table} (run {}) was not taken by SQS {} times", row["id"], row["run_id"], row["attempts"]),
                "while SQS is out of reach it waits for that; else the relay's log has the reason (SQS refused messages), and a row written by hand that \
                 can never be sent may be deleted by its id",
            ));
        }
    }
    Ok(findings)
}

async fn queues_are_served(client: &tokio_postgres::Client) -> Result<Vec<Finding>, Error> {
    let rows = pools::answered(sql::ops::QUEUE_HEALTH.name, client.query(sql::ops::QUEUE_HEALTH.text, &[])).await?;
    let read = |row: &tokio_postgres::Row| -> Result<_, tokio_postgres::Error> {
        Ok((row.try_get::<_, String>("queue")?, row.try_get::<_, Option<f64>>("seen_s")?, row.try_get::<_, Option<f64>>("waiting_s")?))
    };
    let mut findings = Vec::new();
    for row in &rows {
        let (queue, seen, waiting) = read(row).map_err(Error::postgres(sql::ops::QUEUE_HEALTH.name))?;
        if let Some(waiting) = waiting.filter(|waiting| *waiting > UNSERVED)
            && seen.is_none_or(|seen| seen > UNSERVED / 2.0)
        {
            let seen = seen.map_or_else(|| "never".to_owned(), |seen| format!("{seen:.0} s ago"));
            findings.push(Finding::warning(
                format!("work of the queue {queue} waits for {waiting:.0} s, and a worker last came that far {seen}"),
                format!("run workers with {queue} in QUEUES, or more of them"),
            ));
        }
    }
    Ok(findings)
}

/// Schedules that are due and that nobody fires.
async fn schedules_are_fired(client: &tokio_postgres::Client) -> Result<Vec<Finding>, Error> {
    let mut findings = Vec::new();
    for known in scheduler::known(client, None).await? {
        let schedule = match known.schedule() {
            Ok(schedule) => schedule,
            Err(error) => {
                findings.push(Finding::warning(error.to_string(), "correct it where the task is declared, and run workers migrate"));
                continue;
            }
        };
        let due = due(&schedule, known.anchor, known.last, known.now).latest.filter(|latest| known.now - latest.at > UNFIRED);
        if let Some(latest) = due {
            findings.push(Finding::warning(
                format!("{} was due {} minutes ago, and nothing has fired it", known.name, (known.now - latest.at).num_minutes()),
                "run workers schedule fire --due each minute; docs/schedules.md shows how",
            ));
        }
    }
    Ok(findings)
}

/// What repair would send anew.
async fn nothing_is_lost(connection: &mut deadpool_postgres::Object, config: &Config) -> Result<Vec<Finding>, Error> {
    let mut findings = Vec::new();
    for queue in Queue::ALL {
        let (mut lost, mut examined, began) = (0, 0, Instant::now());
        let mut pass = Pass::new(queue, config.repair_after.of(queue));
        loop {
            let looked = match pass.count(connection).await {
                // It locks what it looks at, and nothing is repaired there anyway.
                Err(error) if error.sqlstate() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION) => return Ok(findings),
                looked => looked?,
            };
            let cut = looked.is_none();
            if let Some(looked) = looked {
                lost += looked.lost.len();
                examined += looked.examined;
            }
            if !cut && !pass.goes_on() || began.elapsed() > EXAMINED {
                break;
            }
        }
        let cut = if pass.goes_on() { format!(" of the {examined} newest") } else { String::new() };
        if lost > 0 {
            findings.push(Finding::warning(
                format!("{lost}{cut} unfinished runs of the queue {queue} have no message: their queue was served past them"),
                "the service with MONALISA_RELAY=true sends them anew each minute; if they stay, see its log",
            ));
        }
    }
    Ok(findings)
}
