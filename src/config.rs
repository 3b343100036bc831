//! Configuration from environment variables. All problems are reported at once; secrets are never printed.
//!
//! The table of variables stands in the README; `workers --help` names it. Values are read once, at boot.

use std::{collections::BTreeMap, fmt, str::FromStr, time::Duration};

use crate::{database::Database, error::Error, nearest::distance, queue::Queue, secret::Secret, wake};

/// Everything a process is told from outside.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where PostgreSQL is.
    pub database: Database,
    /// Size of the connection pool as configured; `None` takes what the units need.
    pub pool_size: Option<usize>,
    /// Queues to consume, critical first.
    pub queues: Vec<Queue>,
    /// Whether the relay runs in this process.
    pub relay: bool,
    /// Whether this process fires the schedules; for development.
    pub local_scheduler: bool,
    /// Where the queues are.
    pub sqs: SqsConfig,
    /// How long a receive waits for messages.
    pub wait: Duration,
    /// How long the process has from SIGTERM to its exit.
    pub stop_timeout: Duration,
    /// Port of `/healthz` and `/livez`.
    pub health_port: u16,
    /// Valkey or Redis, where there is one.
    pub valkey: Option<Secret>,
    /// Mail server and sender, where configured.
    pub smtp: SmtpConfig,
    /// Overrides of the concurrency of units, by name.
    pub concurrency: BTreeMap<String, u32>,
    /// How long SQS hides a received message, by queue.
    pub visibility: Visibility,
    /// When repair takes an unfinished run for lost.
    pub repair_after: RepairAfter,
    /// Backoff of retries.
    pub backoff: Backoff,
    /// How the relay works.
    pub relay_settings: RelayConfig,
    /// Unusable or unknown settings that do not stop the boot.
    pub warnings: Vec<String>,
}

/// Where the queues are and how to get there.
#[derive(Debug, Clone)]
pub struct SqsConfig {
    /// AWS region, or the one of the AWS configuration.
    pub region: Option<String>,
    /// Put before the queue's name to make its URL.
    pub url_prefix: String,
    /// Another endpoint than AWS's, for local engines.
    pub endpoint: Option<String>,
    /// Fixed local credentials instead of the AWS chain.
    pub local_credentials: bool,
    /// Whether messages carry the tenant as MessageGroupId.
    pub fair_queues: bool,
}

/// Mail settings.
#[derive(Debug, Clone, Default)]
pub struct SmtpConfig {
    /// `smtp://` or `smtps://`, with user and password where needed.
    pub url: Option<Secret>,
    /// The sender's address.
    pub from: Option<String>,
}

/// Backoff of transient failures: doubled at each, with jitter, up to a limit.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    /// After the first failure.
    pub base: Duration,
    /// At most.
    pub max: Duration,
}

impl Backoff {
    /// The wait after so many failures (1 after the first): between half of it and the whole, at random.
    pub fn after(self, failures: u32) -> Duration {
        let doubled = self.base.saturating_mul(1 << failures.saturating_sub(1).min(20));
        doubled.min(self.max).mul_f64(rand::random_range(0.5..=1.0))
    }
}

/// How the relay works.
#[derive(Debug, Clone, Copy)]
pub struct RelayConfig {
    /// Rows a claim takes at most.
    pub batch: i64,
    /// Pause between sweeps when nothing wakes it.
    pub sweep: Duration,
    /// Deadline of one send.
    pub send_timeout: Duration,
}

/// Visibility by queue.
#[derive(Debug, Clone, Copy)]
pub struct Visibility([Duration; 4]);

impl Visibility {
    /// How long SQS hides a message of this queue after a receive.
    pub fn of(&self, queue: Queue) -> Duration {
        self.0[queue as usize]
    }
}

impl Default for Visibility {
    fn default() -> Self {
        Visibility(Queue::ALL.map(Queue::default_visibility))
    }
}

/// By queue: how far it must have been served past an unfinished run before repair sends that anew; at least twice the visibility, since
/// a message that a dying worker held comes back within that.
#[derive(Debug, Clone, Copy)]
pub struct RepairAfter([Duration; 4]);

impl RepairAfter {
    /// The bound of this queue.
    pub fn of(&self, queue: Queue) -> Duration {
        self.0[queue as usize]
    }
}

/// Every variable that is read; an unknown `MONALISA_*` name is compared with these.
const KNOWN: &[&str] = &[
    "DATABASE_URL",
    "DATABASE_POOL_SIZE",
    "QUEUES",
    "NODE_ENV",
    "MONALISA_RELAY",
    "MONALISA_LOCAL_SCHEDULER",
    "MONALISA_SQS_REGION",
    "MONALISA_SQS_QUEUE_URL_PREFIX",
    "MONALISA_SQS_ENDPOINT",
    "MONALISA_SQS_LOCAL_CREDENTIALS",
    "MONALISA_SQS_WAIT_SECONDS",
    "MONALISA_STOP_TIMEOUT_MS",
    "MONALISA_HEALTH_PORT",
    "MONALISA_VALKEY_URL",
    "MONALISA_TASKS_CATALOG",
    "MONALISA_ENV",
    "MONALISA_SMTP_URL",
    "MONALISA_SMTP_FROM",
    "MONALISA_CONCURRENCY",
    "MONALISA_VISIBILITY_SECONDS",
    "MONALISA_BACKOFF_BASE_MS",
    "MONALISA_BACKOFF_MAX_MS",
    "MONALISA_RELAY_BATCH",
    "MONALISA_RELAY_SWEEP_MS",
    "MONALISA_RELAY_SEND_TIMEOUT_MS",
    "MONALISA_REPAIR_AFTER_SECONDS",
    "MONALISA_FAIR_QUEUES",
    "MONALISA_LOG_FORMAT",
];

/// Reads variables one by one and keeps the problems.
pub(crate) struct Reader {
    variables: BTreeMap<String, String>,
    problems: Vec<String>,
    warnings: Vec<String>,
}

impl Reader {
    pub(crate) fn new(variables: impl IntoIterator<Item = (String, String)>) -> Self {
        let variables = variables.into_iter().filter(|(_, value)| !value.trim().is_empty()).collect();
        let mut reader = Reader { variables, problems: Vec::new(), warnings: Vec::new() };
        reader.check_names();
        reader
    }

    /// Reads those of this process.
    pub(crate) fn of_environment() -> Self {
        let mut odd = Vec::new();
        let readable = std::env::vars_os().filter_map(|(name, value)| {
            // One that is not ours may be of any bytes.
            let (name, value) = (name.into_string().ok()?, value.into_string());
            value.map_err(|_| odd.push(name.clone())).ok().map(|value| (name, value))
        });
        let mut reader = Reader::new(readable.collect::<Vec<_>>());
        let ours = odd.into_iter().filter(|name| KNOWN.contains(&name.as_str()));
        reader.problems.extend(ours.map(|name| format!("{name} is not UTF-8 text")));
        reader
    }

    /// The problems so far as one error, or nothing.
    pub(crate) fn finish(self) -> Result<Vec<String>, Error> {
        if self.problems.is_empty() { Ok(self.warnings) } else { Err(Error::Config(self.problems.join("\n"))) }
    }

    fn check_names(&mut self) {
        for (name, value) in &self.variables {
            if name.starts_with("MONALISA_") && value.starts_with("tcp://") {
                self.problems.push(format!(
                    "{name} holds a tcp:// address: Kubernetes sets it for a service named like that (service links); rename the service or \
                     set enableServiceLinks: false in the pod"
                ));
            } else if name.starts_with("MONALISA_") && !name.starts_with("MONALISA_DEV_") && !KNOWN.contains(&name.as_str()) {
                let near = KNOWN.iter().min_by_key(|known| distance(known, name)).copied().unwrap_or_default();
                self.warnings.push(format!("{name} is not a variable of ours and is ignored; did you mean {near}?"));
            }
        }
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(|value| value.trim())
    }

    fn required(&mut self, name: &'static str, what: &str) -> Option<String> {
        let value = self.text(name).map(str::to_owned);
        if value.is_none() {
            self.problems.push(format!("{name} is not set: {what}"));
        }
        value
    }

    fn flag(&mut self, name: &'static str, default: bool) -> bool {
        match self.text(name) {
            None => default,
            Some("true") => true,
            Some("false") => false,
            Some(_) => {
                self.problems.push(format!("{name} is neither true nor false"));
                default
            }
        }
    }

    fn number<T>(&mut self, name: &'static str, default: T, low: T, high: T, unit: &str) -> T
    where
        T: FromStr + PartialOrd + fmt::Display + Copy,
    {
        let Some(text) = self.text(name) else { return default };
        match text.parse::<T>() {
            Ok(value) if value >= low && value <= high => value,
            _ => {
                self.problems.push(format!("{name} is not a whole number from {low} to {high} ({unit})"));
                default
            }
        }
    }

    /// `name=value,…` with whole numbers.
    fn pairs(&mut self, name: &'static str, low: u32, high: u32) -> BTreeMap<String, u32> {
        let mut pairs = BTreeMap::new();
        let text = self.text(name).unwrap_or_default().to_owned();
        for part in text.split(',').filter(|part| !part.trim().is_empty()) {
            let pair = part.split_once('=').and_then(|(key, value)| Some((key.trim().to_owned(), value.trim().parse::<u32>().ok()?)));
            match pair {
                Some((key, value)) if (low..=high).contains(&value) => {
                    pairs.insert(key, value);
                }
                _ => self.problems.push(format!("{name} is a list of name=number with numbers from {low} to {high}; {part:?} is not")),
            }
        }
        pairs
    }

    /// Where PostgreSQL is.
    pub(crate) fn database(&mut self) -> Option<Database> {
        let url = self.required("DATABASE_URL", "postgres://user:password@host:5432/database")?;
        Database::parse(&url).map_err(|problem| self.problems.push(format!("DATABASE_URL: {problem}"))).ok()
    }

    /// Where the queues are.
    pub(crate) fn sqs(&mut self) -> SqsConfig {
        let endpoint = self.text("MONALISA_SQS_ENDPOINT").map(str::to_owned);
        if let Some(endpoint) = &endpoint
            && !url::Url::parse(endpoint).is_ok_and(|url| matches!(url.scheme(), "http" | "https"))
        {
            self.problems.push("MONALISA_SQS_ENDPOINT is not an http:// or https:// URL".to_owned());
        }
        SqsConfig {
            region: self.text("MONALISA_SQS_REGION").map(str::to_owned),
            url_prefix: self
                .required(
                    "MONALISA_SQS_QUEUE_URL_PREFIX",
                    "what stands before the queue's name in its URL, such as https://sqs.eu-west-1.amazonaws.com/123456789012/prod-",
                )
                .unwrap_or_default(),
            endpoint,
            local_credentials: self.flag("MONALISA_SQS_LOCAL_CREDENTIALS", false),
            fair_queues: self.flag("MONALISA_FAIR_QUEUES", true),
        }
    }

    /// Where Valkey is, if anywhere.
    pub(crate) fn valkey(&mut self) -> Option<Secret> {
        let url = self.text("MONALISA_VALKEY_URL").map(Secret::new)?;
        wake::client(&url).map_err(|problem| self.problems.push(format!("MONALISA_VALKEY_URL: {problem}"))).ok()?;
        Some(url)
    }

    /// Per-queue visibility.
    pub(crate) fn visibility(&mut self) -> Visibility {
        let mut visibility = Visibility::default();
        for (name, seconds) in self.pairs("MONALISA_VISIBILITY_SECONDS", 2, 43_200) {
            match name.parse::<Queue>() {
                Ok(queue) => visibility.0[queue as usize] = Duration::from_secs(seconds.into()),
                Err(problem) => self.problems.push(format!("MONALISA_VISIBILITY_SECONDS: {problem}")),
            }
        }
        visibility
    }

    /// The bound of repair: twice the visibility of each queue, or one for all that is no less.
    fn repair_after(&mut self, visibility: &Visibility) -> RepairAfter {
        let least = Queue::ALL.map(|queue| visibility.of(queue) * 2);
        if self.text("MONALISA_REPAIR_AFTER_SECONDS").is_none() {
            return RepairAfter(least);
        }
        let seconds = self.number("MONALISA_REPAIR_AFTER_SECONDS", 1_800, 1, 2_592_000, "seconds");
        if let Some(queue) =
            Queue::ALL.into_iter().filter(|queue| seconds < least[*queue as usize].as_secs()).max_by_key(|queue| least[*queue as usize])
        {
            self.problems.push(format!(
                "MONALISA_REPAIR_AFTER_SECONDS ({seconds} s) is less than twice the visibility of the queue {queue} ({} s): work that a dying \
                 worker held would be sent twice; give at least {} or leave it out",
                visibility.of(queue).as_secs(),
                least[queue as usize].as_secs()
            ));
        }
        RepairAfter([Duration::from_secs(seconds); 4])
    }

    fn queues(&mut self) -> Vec<Queue> {
        let text = self.required("QUEUES", "the queues to consume, such as critical,default,bulk,maintenance").unwrap_or_default();
        let mut queues = Vec::new();
        for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            match name.parse::<Queue>() {
                Ok(queue) if !queues.contains(&queue) => queues.push(queue),
                Ok(_) => {}
                Err(problem) => self.problems.push(format!("QUEUES: {problem}")),
            }
        }
        queues.sort();
        queues
    }

    fn production(&self) -> bool {
        ["MONALISA_ENV", "NODE_ENV"].iter().any(|name| self.text(name) == Some("production"))
    }
}

impl Config {
    /// Reads a list of variables; the error holds every problem, a line each.
    pub fn from_variables(variables: impl IntoIterator<Item = (String, String)>) -> Result<Config, Error> {
        Config::checked(Reader::new(variables), |_| Vec::new())
    }

    /// The same with further problems, found where what was read is compared with something else.
    pub(crate) fn checked(mut read: Reader, check: impl FnOnce(&Config) -> Vec<String>) -> Result<Config, Error> {
        let database = read.database();
        let valkey = read.valkey();
        let wait = Duration::from_secs(read.number("MONALISA_SQS_WAIT_SECONDS", 20, 1, 20, "seconds of long poll"));
        let stop_timeout = Duration::from_millis(read.number("MONALISA_STOP_TIMEOUT_MS", 30_000, 6_000, 3_600_000, "milliseconds"));
        if stop_timeout <= wait + Duration::from_secs(5) {
            read.problems.push(format!(
                "MONALISA_STOP_TIMEOUT_MS ({} ms) less 5 s must exceed the long poll MONALISA_SQS_WAIT_SECONDS ({} s): raise the first or \
                 lower the second",
                stop_timeout.as_millis(),
                wait.as_secs()
            ));
        }
        let local_scheduler = read.flag("MONALISA_LOCAL_SCHEDULER", false);
        if local_scheduler && read.production() {
            read.problems.push(
                "MONALISA_LOCAL_SCHEDULER is for development and refused in production: let an external scheduler run workers schedule fire \
                 --due each minute, or call work.fire"
                    .to_owned(),
            );
        }
        if let Some(format) = read.text("MONALISA_LOG_FORMAT")
            && !matches!(format, "json" | "pretty")
        {
            read.problems.push("MONALISA_LOG_FORMAT is neither json nor pretty".to_owned());
        }
        let base = read.number("MONALISA_BACKOFF_BASE_MS", 5_000, 1, 3_600_000, "milliseconds");
        let max = read.number("MONALISA_BACKOFF_MAX_MS", 900_000, 1, 86_400_000, "milliseconds");
        let visibility = read.visibility();
        let repair_after = read.repair_after(&visibility);
        let sweep = if valkey.is_some() { 5_000 } else { 200 };
        let config = Config {
            pool_size: read.text("DATABASE_POOL_SIZE").is_some().then(|| read.number("DATABASE_POOL_SIZE", 2, 2, 10_000, "connections")),
            queues: read.queues(),
            relay: read.flag("MONALISA_RELAY", false),
            local_scheduler,
            sqs: read.sqs(),
            wait,
            stop_timeout,
            health_port: read.number("MONALISA_HEALTH_PORT", 8081, 0, u16::MAX, "port"),
            smtp: SmtpConfig {
                url: read.text("MONALISA_SMTP_URL").map(Secret::new),
                from: read.text("MONALISA_SMTP_FROM").map(str::to_owned),
            },
            concurrency: read.pairs("MONALISA_CONCURRENCY", 1, 1_000),
            visibility,
            repair_after,
            backoff: Backoff { base: Duration::from_millis(base), max: Duration::from_millis(max.max(base)) },
            relay_settings: RelayConfig {
                batch: read.number("MONALISA_RELAY_BATCH", 500, 1, 10_000, "rows"),
                sweep: Duration::from_millis(read.number("MONALISA_RELAY_SWEEP_MS", sweep, 10, 600_000, "milliseconds")),
                send_timeout: Duration::from_millis(read.number("MONALISA_RELAY_SEND_TIMEOUT_MS", 5_000, 100, 60_000, "milliseconds")),
            },
            valkey,
            database: database.unwrap_or_default(),
            warnings: Vec::new(),
        };
        read.problems.extend(check(&config));
        let warnings = read.finish()?;
        Ok(Config { warnings, ..config })
    }

    /// The queues this process needs, critical first: a relay sends to all of them.
    pub(crate) fn used_queues(&self) -> Vec<Queue> {
        if self.relay { Queue::ALL.to_vec() } else { self.queues.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        let base = [("DATABASE_URL", "postgres://u@h/d"), ("QUEUES", "default"), ("MONALISA_SQS_QUEUE_URL_PREFIX", "http://h/0/p-")];
        base.iter().chain(pairs).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn problem(pairs: &[(&str, &str)]) -> String {
        Config::from_variables(variables(pairs)).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn defaults_are_those_of_the_table() {
        let config = Config::from_variables(variables(&[])).expect("usable");
        assert_eq!(config.queues, [Queue::Default]);
        assert_eq!((config.wait.as_secs(), config.stop_timeout.as_millis(), config.health_port), (20, 30_000, 8081));
        assert_eq!(config.relay_settings.sweep.as_millis(), 200, "without Valkey");
        assert_eq!(config.visibility.of(Queue::Bulk).as_secs(), 900);
        let with = Config::from_variables(variables(&[("MONALISA_VALKEY_URL", "redis://h")])).expect("usable");
        assert_eq!(with.relay_settings.sweep.as_millis(), 5_000);
    }

    #[test]
    fn every_problem_is_reported_at_once() {
        let error = Config::from_variables([("QUEUES".to_owned(), "urgent".to_owned())]).expect_err("nothing else is set").to_string();
        for name in ["DATABASE_URL", "QUEUES", "MONALISA_SQS_QUEUE_URL_PREFIX"] {
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn numbers_out_of_range_name_the_variable_and_the_range() {
        for value in ["0", "-1", "abc", "21"] {
            let text = problem(&[("MONALISA_SQS_WAIT_SECONDS", value)]);
            assert!(text.contains("MONALISA_SQS_WAIT_SECONDS") && text.contains("1 to 20"), "{text}");
        }
    }

    #[test]
    fn a_stop_budget_below_the_long_poll_is_refused() {
        assert!(problem(&[("MONALISA_STOP_TIMEOUT_MS", "20000")]).contains("must exceed the long poll"));
    }

    #[test]
    fn repair_waits_for_twice_the_visibility_at_least() {
        let config = Config::from_variables(variables(&[("MONALISA_VISIBILITY_SECONDS", "critical=10")])).expect("usable");
        assert_eq!(Queue::ALL.map(|queue| config.repair_after.of(queue).as_secs()), [20, 240, 1_800, 600]);
        let text = problem(&[("MONALISA_REPAIR_AFTER_SECONDS", "1799")]);
        assert!(
            text.contains("MONALISA_REPAIR_AFTER_SECONDS (1799 s)") && text.contains("bulk (900 s)") && text.contains("1800"),
            "{text}"
        );
        let config = Config::from_variables(variables(&[("MONALISA_REPAIR_AFTER_SECONDS", "1800")])).expect("usable");
        assert_eq!(config.repair_after.of(Queue::Critical).as_secs(), 1_800);
    }

    #[test]
    fn a_service_link_is_named_and_a_misspelt_name_is_a_warning() {
        assert!(problem(&[("MONALISA_HEALTH_PORT", "tcp://10.0.0.1:80")]).contains("service links"));
        let config = Config::from_variables(variables(&[("MONALISA_RELAI", "true")])).expect("usable");
        assert!(config.warnings[0].contains("did you mean MONALISA_RELAY"), "{:?}", config.warnings);
    }

    #[test]
    fn a_secret_is_never_printed() {
        let text = problem(&[("MONALISA_VALKEY_URL", "http://:Hunter2@h"), ("DATABASE_URL", "postgres://u:Hunter2%zz@h:x/d")]);
        assert!(text.contains("MONALISA_VALKEY_URL") && text.contains("DATABASE_URL") && !text.contains("Hunter2"), "{text}");
        let config = Config::from_variables(variables(&[("DATABASE_URL", "postgres://u:Hunter2@h/d")])).expect("usable");
        assert!(!format!("{config:?}").contains("Hunter2"));
    }

    #[test]
    fn backoff_doubles_up_to_its_limit() {
        let backoff = Backoff { base: Duration::from_secs(1), max: Duration::from_secs(60) };
        assert!((500..=1_000).contains(&backoff.after(1).as_millis()));
        assert!((2_000..=4_000).contains(&backoff.after(3).as_millis()));
        assert!(backoff.after(400) <= Duration::from_secs(60));
    }
}
