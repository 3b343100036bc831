//! What is checked before anything starts.

use std::collections::BTreeSet;

use crate::{
    config::Config,
    database::PoolPlan,
    error::Error,
    queue::Queue,
    sqs::{Queues, Target},
    unit::Units,
    units::identity_login_notification_email::Mailer,
};

/// Checks what needs no other system; all problems at once.
pub(super) fn check_settings(config: &Config, units: &Units, slots: usize) -> Result<(PoolPlan, Mailer), Error> {
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let mut problems = Vec::new();
    let unknown: Vec<&String> = config.concurrency.keys().filter(|name| units.get(name).is_none()).collect();
    if !unknown.is_empty() {
        problems.push(format!("MONALISA_CONCURRENCY names units that this program does not have: {unknown:?}"));
    }
    let plan = PoolPlan::new(config.pool_size, slots).map_err(|problem| problems.push(problem)).ok();
    let mailer = Mailer::new(&config.smtp).map_err(|problem| problems.push(problem)).ok();
    let (Some(plan), Some(mailer), true) = (plan, mailer, problems.is_empty()) else {
        return Err(Error::Config(problems.join("\n")));
    };
    if !mailer.is_configured() {
        tracing::warn!(
            "no mail server is configured: identity.login_notification_email fails with SMTP_NOT_CONFIGURED; set MONALISA_SMTP_URL"
        );
    }
    Ok((plan, mailer))
}

/// Checks that every queue it is to use exists.
pub(super) async fn check_queues(sqs: &Queues, config: &Config) -> Result<(), Error> {
    let mut missing = Vec::new();
    let relayed: BTreeSet<_> = if config.relay { Queue::ALL.into_iter().collect() } else { BTreeSet::new() };
    for queue in relayed.into_iter().chain(config.queues.iter().copied()).collect::<BTreeSet<_>>() {
        for target in [Target::Main(queue), Target::DeadLetters(queue)] {
            let exists = sqs.exists(target).await.map_err(|error| {
                Error::Other(format!(
                    "{error}; asked for {}: check MONALISA_SQS_ENDPOINT (unset for AWS), MONALISA_SQS_REGION and the AWS credentials \
                     (MONALISA_SQS_LOCAL_CREDENTIALS=true for a local engine)",
                    sqs.url(target)
                ))
            })?;
            if !exists {
                missing.push(sqs.url(target));
            }
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::Config(format!("these queues do not exist: {}; make them with workers queues create", missing.join(", "))))
}

/// Host and process, with some chance in it: process ids repeat in containers.
pub(super) fn worker_id() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    let chance: u16 = rand::random();
    format!("{}-{}-{chance:04x}", if host.is_empty() { "worker" } else { host }, std::process::id())
}
