//! What is checked before anything starts.

use crate::{
    catalogue::Catalogue,
    checks::{self, Finding},
    config::{Config, Reader},
    error::Error,
    migrate,
    pools::PoolPlan,
    sqs::Queues,
    unit::Units,
    units::identity_login_notification_email::Mailer,
    worker::slots::Slots,
};

/// The environment, and what follows from it and the units.
pub(crate) struct Configured {
    pub(crate) config: Config,
    pub(crate) slots: Slots,
    pub(crate) plan: PoolPlan,
    pub(crate) mailer: Mailer,
}

/// Reads the environment and compares it with the units: all problems at once. Within a runtime, which the mailer needs.
pub(crate) fn configure(units: &Units) -> Result<Configured, Error> {
    let mut checked = None;
    let config = Config::checked(Reader::of_environment(), |config| {
        let mut problems = Vec::new();
        let unknown: Vec<&String> = config.concurrency.keys().filter(|name| units.get(name).is_none()).collect();
        if !unknown.is_empty() {
            problems.push(format!("MONALISA_CONCURRENCY names units that this program does not have: {unknown:?}"));
        }
        let slots = Slots::new(units, &config.concurrency, &config.queues);
        let plan = PoolPlan::new(config.pool_size, slots.total()).map_err(|problem| problems.push(problem)).ok();
        let mailer = Mailer::new(&config.smtp).map_err(|problem| problems.push(problem)).ok();
        checked = plan.zip(mailer).map(|(plan, mailer)| (slots, plan, mailer));
        problems
    })?;
    let (slots, plan, mailer) = checked.ok_or_else(|| Error::Other("settings that were refused were used".to_owned()))?;
    Ok(Configured { config, slots, plan, mailer })
}

/// Checks database and queues; what the process cannot work with is one error, the rest are warnings.
pub(super) async fn check_surroundings(config: &Config, plan: PoolPlan, sqs: &Queues, units: &Units) -> Result<(), Error> {
    let database = config.database.connect("boot").await?;
    let mut findings: Vec<Finding> = migrate::check(&database).await?.into_iter().collect();
    findings.extend(checks::of_database(&database, plan.total()).await?);
    findings.extend(checks::of_units(&database, &Catalogue::of(units), &config.queues).await?);
    let states = checks::queue_states(sqs, &config.used_queues()).await?;
    findings.extend(checks::of_queues(sqs, &states, &config.visibility));
    let (fatal, warnings): (Vec<_>, Vec<_>) = findings.into_iter().partition(|finding| finding.fatal);
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    if fatal.is_empty() {
        return Ok(());
    }
    Err(Error::Config(fatal.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")))
}

/// Host and process, with some chance in it: process ids repeat in containers.
pub(super) fn worker_id() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    let chance: u16 = rand::random();
    format!("{}-{}-{chance:04x}", if host.is_empty() { "worker" } else { host }, std::process::id())
}
