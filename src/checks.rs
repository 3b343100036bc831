//! What a process needs of its surroundings, compared with what is there: the boot check, and `workers doctor`.

use std::fmt;

use futures_util::future::try_join_all;
use tokio_postgres::{Client, Row};

use crate::{
    catalogue::Catalogue,
    config::Visibility,
    error::Error,
    pools::answered,
    queue::Queue,
    sql,
    sqs::{MAX_RECEIVES, QueueState, Queues, Target, Wanted},
};

/// Largest message of ours: an envelope with a dead letter whose text is cut, and room.
const LARGEST_MESSAGE: u64 = 32 * 1024;

/// Something that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    /// Whether the process cannot do its work like this; else it is a warning.
    pub(crate) fatal: bool,
    /// What is wrong.
    pub(crate) what: String,
    /// What to do.
    pub(crate) mend: String,
}

impl Finding {
    pub(crate) fn fatal(what: impl Into<String>, mend: impl Into<String>) -> Finding {
        Finding { fatal: true, what: what.into(), mend: mend.into() }
    }

    pub(crate) fn warning(what: impl Into<String>, mend: impl Into<String>) -> Finding {
        Finding { fatal: false, what: what.into(), mend: mend.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.what, self.mend)
    }
}

/// What PostgreSQL allows this role, compared with the pool of the process.
pub(crate) async fn of_database(client: &Client, pool: usize) -> Result<Vec<Finding>, Error> {
    let read = async {
        let row = client.query_one(sql::ops::CONNECTIONS.text, &[]).await?;
        Ok((
            row.try_get::<_, String>("role")?,
            row.try_get::<_, i32>("role_limit")?,
            row.try_get::<_, i32>("server_limit")?,
            row.try_get("version")?,
            row.try_get("read_only")?,
        ))
    };
    let (role, of_role, of_server, version, read_only): (_, _, _, i32, bool) = answered(sql::ops::CONNECTIONS.name, read).await?;
    let mut findings = Vec::new();
    if version < 150_000 {
        findings.push(Finding::fatal(format!("PostgreSQL is version {}", version / 10_000), "15 or later is needed"));
    }
    if read_only {
        findings.push(Finding::warning(
            "PostgreSQL takes no writes here: it is a standby, or default_transaction_read_only is on",
            "give DATABASE_URL the address of the primary, or wait for the end of the failover; until then nothing is received",
        ));
    }
    let mend = |raise: String, limit: i32| {
        format!(
            "either {raise} (while a deploy has two of them, {}), or lower MONALISA_CONCURRENCY and with it DATABASE_POOL_SIZE, which is \
             {pool} here, to at most {limit}",
            2 * pool
        )
    };
    if usize::try_from(of_role).is_ok_and(|limit| limit < pool) {
        let what = format!("the role {role} may have {of_role} connections and this process opens up to {pool}");
        findings.push(Finding::fatal(what, mend(format!("alter role {role} connection limit {pool}"), of_role)));
    }
    if usize::try_from(of_server).is_ok_and(|limit| limit < pool) {
        let what = format!("the server allows {of_server} connections (max_connections) and this process opens up to {pool}");
        findings.push(Finding::warning(what, mend(format!("raise max_connections so that {pool} are left for this process"), of_server)));
    }
    Ok(findings)
}

/// Units on the consumed queues that this program does not have.
pub(crate) async fn of_units(client: &Client, catalogue: &Catalogue, queues: &[Queue]) -> Result<Vec<Finding>, Error> {
    let queues: Vec<&str> = queues.iter().map(|queue| queue.as_str()).collect();
    let units: Vec<&str> = catalogue.units().collect();
    let statement = sql::catalogue::STRANGERS;
    let rows = answered(statement.name, client.query(statement.text, &[/* queues */ &queues, /* units */ &units])).await?;
    let read = |row: &Row| -> Result<Finding, tokio_postgres::Error> {
        let (queue, units): (String, Vec<String>) = (row.try_get("queue")?, row.try_get("units")?);
        Ok(Finding::warning(
            format!("the queue {queue} carries units that this program does not have: {}", units.join(", ")),
            "consume a queue only where all of its units run: each run of these that comes here is set back by 15 s to 60 min, and the \
             sixth time it fails with UNIT_NOT_REGISTERED",
        ))
    };
    rows.iter().map(read).collect::<Result<_, _>>().map_err(Error::postgres(sql::catalogue::STRANGERS.name))
}

/// What comes of it when no mail server is configured.
pub(crate) fn of_mail(configured: bool) -> Option<Finding> {
    let what = "no mail server is configured: identity.login_notification_email fails with SMTP_NOT_CONFIGURED";
    (!configured).then(|| Finding::warning(what, "set MONALISA_SMTP_URL"))
}

/// How these queues and their dead-letter queues are, in their order.
pub(crate) async fn queue_states(sqs: &Queues, queues: &[Queue]) -> Result<Vec<(Target, Option<QueueState>)>, Error> {
    let targets = queues.iter().flat_map(|queue| [Target::Main(*queue), Target::DeadLetters(*queue)]);
    let states = try_join_all(targets.map(async |target| sqs.state(target).await.map(|state| (target, state)))).await;
    states.map_err(|error| {
        Error::Other(format!(
            "{error}; asked for {}…: check MONALISA_SQS_ENDPOINT (unset for AWS), MONALISA_SQS_REGION and the AWS credentials \
             (MONALISA_SQS_LOCAL_CREDENTIALS=true for a local engine)",
            queues.first().map(|queue| sqs.url(Target::Main(*queue))).unwrap_or_default()
        ))
    })
}

/// What is wrong with queues as they are.
pub(crate) fn of_queues(sqs: &Queues, states: &[(Target, Option<QueueState>)], visibility: &Visibility) -> Vec<Finding> {
    let mut findings = Vec::new();
    let letters_of = |queue| states.iter().find(|(target, _)| *target == Target::DeadLetters(queue)).and_then(|(_, state)| state.as_ref());
    for (target, state) in states {
        let url = sqs.url(*target);
        let Some(state) = state else {
            findings.push(Finding::fatal(format!("the queue {url} does not exist"), "make it with workers queues create"));
            continue;
        };
        if let Some(bytes) = state.max_bytes.filter(|bytes| *bytes < LARGEST_MESSAGE) {
            let what = format!("the queue {url} takes messages of at most {bytes} bytes, and a dead letter may have {LARGEST_MESSAGE}");
            findings.push(Finding::fatal(what, "raise its MaximumMessageSize; 1048576 is the default of AWS"));
        }
        let Target::Main(queue) = *target else { continue };
        findings.extend(of_redrive(&url, state, letters_of(queue)));
        let wanted = Wanted::of(*target, visibility);
        if let Some(found) = state.visibility.filter(|found| *found != wanted.visibility) {
            findings.push(Finding::warning(
                format!(
                    "the queue {url} hides messages for {} s by default, this process for {} s",
                    found.as_secs(),
                    wanted.visibility.as_secs()
                ),
                format!("run workers queues create, or set MONALISA_VISIBILITY_SECONDS={queue}={}", found.as_secs()),
            ));
        }
        let letters = letters_of(queue).and_then(|letters| letters.retention);
        if let (Some(found), Some(letters)) = (state.retention, letters)
            && (found < wanted.retention || letters <= found)
        {
            findings.push(Finding::warning(
                format!(
                    "the queue {url} keeps messages for {} h and its dead-letter queue for {} h; {} h and longer than that are advised",
                    found.as_secs() / 3_600,
                    letters.as_secs() / 3_600,
                    wanted.retention.as_secs() / 3_600
                ),
                "run workers queues create",
            ));
        }
    }
    findings
}

/// What SQS does with messages that are received again and again.
fn of_redrive(url: &str, state: &QueueState, letters: Option<&QueueState>) -> Option<Finding> {
    let mend = "run workers queues create";
    let Some((target, receives)) = &state.redrive else {
        return Some(Finding::warning(
            format!("the queue {url} has no redrive policy: a message that kills whoever reads it returns for days"),
            mend,
        ));
    };
    if *receives < MAX_RECEIVES {
        return Some(Finding::fatal(
            format!(
                "the queue {url} moves messages to the dead-letter queue after {receives} receives (maxReceiveCount), before the five attempts \
                 of a run are used up; it must be {MAX_RECEIVES} or more"
            ),
            mend,
        ));
    }
    let strange = letters.is_some_and(|letters| letters.arn != *target);
    strange.then(|| Finding::warning(format!("the queue {url} moves messages to {target}, which is not its dead-letter queue"), mend))
}
