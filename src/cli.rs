//! The command line.

use std::{
    any::TypeId,
    io::{IsTerminal, Write},
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
};

use clap::{Parser, Subcommand};
use tracing::{Metadata, level_filters::LevelFilter};
use tracing_subscriber::{EnvFilter, filter::filter_fn, layer::SubscriberExt, util::SubscriberInitExt};

use crate::{
    catalogue::Catalogue,
    config::Reader,
    dlq::{self, Act, Filter},
    doctor::{self, Program},
    error::Error,
    failure::panic_text,
    migrate::{self, Orphans},
    new,
    process::{self, Configured},
    queue::Queue,
    run::State,
    scheduler::command::{self, ScheduleCommand},
    sqs::Queues,
    unit::Units,
    wake::Waker,
};

/// A program of workers: the command line with the units linked into it.
///
/// ```no_run
/// fn main() -> std::process::ExitCode {
///     monalisa::Workers::new().main()
/// }
/// ```
#[derive(Default)]
pub struct Workers {
    state: State,
    service: Option<&'static str>,
}

impl Workers {
    /// With the units that ship and those of the crates linked in.
    pub fn new() -> Workers {
        Workers::default()
    }

    /// Application state for handlers, one value a type: [`TaskRun::state`](crate::TaskRun::state) returns it.
    #[must_use]
    pub fn state<T: Send + Sync + 'static>(mut self, state: T) -> Workers {
        self.state.insert(TypeId::of::<T>(), Arc::new(state));
        self
    }

    /// Name under which the catalogue is loaded, where several services share a database; default `workers`.
    #[must_use]
    pub fn service(mut self, name: &'static str) -> Workers {
        self.service = Some(name);
        self
    }

    /// Lets schedules have rates in seconds, as `rate(3 seconds)`, in this process. EventBridge refuses them, and so does every program that
    /// does not call this: it is for programs that only tests run.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn rates_in_seconds(self) -> Workers {
        crate::schedule::accept_seconds();
        self
    }

    /// Runs the command line: `workers` alone runs the workers, `workers --help` tells the rest.
    pub fn main(self) -> ExitCode {
        main(self)
    }

    fn service_name(&self) -> &'static str {
        self.service.unwrap_or("workers")
    }
}

/// Background work for PostgreSQL and SQS. Without a command it runs the workers.
///
/// It is configured by environment variables: DATABASE_URL, QUEUES, MONALISA_RELAY, MONALISA_SQS_QUEUE_URL_PREFIX and others; the
/// README lists them all.
#[derive(Debug, Parser)]
#[command(name = "workers", version)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the workers, and the relay where MONALISA_RELAY=true, until SIGTERM (the default)
    Run,
    /// Bring the schema up to date and load the catalogue of units; safe to run from any number of processes at once
    Migrate,
    /// The catalogue of units
    #[command(subcommand)]
    Tasks(TasksCommand),
    /// The SQS queues
    #[command(subcommand)]
    Queues(QueuesCommand),
    /// The dead-letter queues
    #[command(subcommand)]
    Dlq(DlqCommand),
    /// The schedules of tasks
    #[command(subcommand)]
    Schedule(ScheduleCommand),
    /// Make a crate for units of your own: a three-line main, a task and a subscriber with their tests. Overwrites nothing
    New {
        /// A folder that is not there yet; its name is the crate's
        path: PathBuf,
        /// The clone of monalisa that it builds on; by default the one that this program was built in
        #[arg(long, value_name = "PATH")]
        monalisa: Option<PathBuf>,
    },
    /// Check everything that a process here would need, and what of the work does not move; each with what to do. Changes nothing
    Doctor,
}

#[derive(Debug, Subcommand)]
enum TasksCommand {
    /// Write tasks.json, which APIs load from MONALISA_TASKS_CATALOG
    Generate {
        /// Where to write it; - for standard output
        #[arg(default_value = "tasks.json")]
        path: PathBuf,
    },
    /// Check the units (names, options, schedules) without a database
    Check,
    /// Show what loading this program's catalogue would change, and unfinished work that no unit of it would run. Changes nothing; ends
    /// with 1 where there is such work
    Diff,
}

#[derive(Debug, Subcommand)]
enum QueuesCommand {
    /// Make the four queues and their dead-letter queues, or correct their attributes
    Create,
}

#[derive(Debug, Subcommand)]
enum DlqCommand {
    /// List dead letters: age, queue, run, unit, code, text. Each is received and given back, which counts as a receive
    Show {
        #[command(flatten)]
        filter: Filter,
    },
    /// Run what failed again: a new generation with five new attempts. Letters of runs that finished otherwise are thrown away
    Redrive {
        #[command(flatten)]
        filter: Filter,
        /// Why; kept in the audit and in the trail of each run
        #[arg(long)]
        reason: String,
        /// Runs a second at most
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        rate: u32,
        /// Only list them
        #[arg(long)]
        dry_run: bool,
    },
    /// Throw dead letters away; their runs stay failed
    Purge {
        #[command(flatten)]
        filter: Filter,
        /// Why; kept in the audit
        #[arg(long)]
        reason: String,
        /// Really do it; else they are only listed
        #[arg(long)]
        yes: bool,
    },
}

/// Parses the arguments and runs the command; the exit code is 0, 1 (failed) or 2 (usage).
fn main(workers: Workers) -> ExitCode {
    let arguments = Arguments::parse();
    start_logs();
    // A panic is a log line like any other; what a handler's panic becomes is recorded in its run.
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(place, "panicked: {}", panic_text(panic.payload()));
    }));
    let done = match arguments.command {
        None | Some(Command::Run) => run(workers.state),
        Some(Command::Migrate) => wait(migrate_database(workers.service_name())),
        Some(Command::Tasks(TasksCommand::Generate { path })) => generate(&path),
        Some(Command::Tasks(TasksCommand::Check)) => check(),
        Some(Command::Tasks(TasksCommand::Diff)) => wait(difference(workers.service_name())),
        Some(Command::Queues(QueuesCommand::Create)) => wait(create_queues()),
        Some(Command::Dlq(command)) => wait(dead_letters(command)),
        Some(Command::Schedule(command)) => wait(schedules(command)),
        Some(Command::New { path, monalisa }) => new::make(&path, monalisa, say),
        Some(Command::Doctor) => wait(examine()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("workers: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Other crates say only what matters.
const DEFAULT_FILTER: &str = "info,deadpool=error,refinery_core=warn,refinery_core::traits::missing=off,tokio_postgres=warn";

/// What these crates say beyond such a level is not printed, whatever RUST_LOG asks for: it holds parameters of statements, payloads
/// among them, and the id of the AWS key.
const CAPPED: [(&str, LevelFilter); 3] =
    [("tokio_postgres", LevelFilter::WARN), ("aws_smithy_runtime", LevelFilter::INFO), ("aws_sigv4", LevelFilter::INFO)];

fn is_printable(what: &Metadata<'_>) -> bool {
    CAPPED.iter().all(|(target, most)| !what.target().starts_with(target) || what.level() <= most)
}

/// Logs go to standard error: pretty on a terminal, else JSON; MONALISA_LOG_FORMAT and RUST_LOG change that.
fn start_logs() {
    // An empty one would silence errors too.
    let asked = std::env::var(EnvFilter::DEFAULT_ENV).ok().filter(|asked| !asked.trim().is_empty());
    let filter = asked.as_ref().map(EnvFilter::try_new).transpose();
    let unread = filter.as_ref().err().map(ToString::to_string);
    let filter = filter.ok().flatten().unwrap_or_else(|| EnvFilter::new(DEFAULT_FILTER));
    let terminal = std::io::stderr().is_terminal();
    let pretty = match std::env::var("MONALISA_LOG_FORMAT").as_deref() {
        Ok("json") => false,
        Ok("pretty") => true,
        _ => terminal,
    };
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(terminal);
    // A second subscriber, in a program that has set its own, is no reason to stop.
    let _ = if pretty {
        logs.compact().finish().with(filter_fn(is_printable)).try_init()
    } else {
        logs.json().flatten_event(true).with_span_list(false).finish().with(filter_fn(is_printable)).try_init()
    };
    if let Some(problem) = unread {
        tracing::warn!(problem, "RUST_LOG cannot be read and is ignored; it has the form info,monalisa=debug");
    }
}

/// Prints a line; who listened to it may be gone, which is no error.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn wait(work: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::Other(format!("no runtime: {error}")))?
        .block_on(work)
}

fn run(state: State) -> Result<(), Error> {
    process::work(state, Units::discover().map_err(Error::Config)?)
}

async fn examine() -> Result<(), Error> {
    let units = Units::discover().map_err(Error::Config)?;
    let Configured { config, plan, mailer, .. } = process::configure(&units)?;
    let program = Program { config: &config, plan, catalogue: &Catalogue::of(&units), mail: mailer.is_configured() };
    if doctor::examine(&program, say).await {
        return Ok(());
    }
    Err(Error::Other("workers could not run here; see the problems above".to_owned()))
}

fn catalogue() -> Result<Catalogue, Error> {
    Units::discover().map(|units| Catalogue::of(&units)).map_err(Error::Config)
}

async fn migrate_database(service: &'static str) -> Result<(), Error> {
    let mut read = Reader::of_environment();
    let database = read.database();
    read.finish()?;
    let migrated = migrate::migrate(&database.unwrap_or_default(), &catalogue()?, service).await?;
    for name in &migrated.applied {
        say(&format!("applied   {name}"));
    }
    for (change, unit) in &migrated.catalogue {
        say(&format!("{change:<9} {unit}"));
    }
    let retired = migrated.catalogue.iter().filter(|(change, _)| change == "retired").count();
    if retired > 0 {
        say(&format!(
            "{retired} units were loaded for {service} by another program or version and are retired now: enqueueing them is refused in 7 days; \
             migrate with the program that has them to restore them"
        ));
    }
    say(&format!("the schema is at version {}, the catalogue of {service} is loaded", migrated.version));
    Ok(())
}

fn generate(path: &std::path::Path) -> Result<(), Error> {
    let json = catalogue()?.to_json()?;
    if path.as_os_str() == "-" {
        say(&json);
        return Ok(());
    }
    std::fs::write(path, json + "\n").map_err(|error| Error::Other(format!("{} cannot be written: {error}", path.display())))?;
    say(&format!("wrote {}", path.display()));
    Ok(())
}

fn check() -> Result<(), Error> {
    let catalogue = catalogue()?;
    say(&format!("{} tasks and {} subscriptions are valid", catalogue.tasks.len(), catalogue.subscriptions.len()));
    Ok(())
}

async fn difference(service: &'static str) -> Result<(), Error> {
    let mut read = Reader::of_environment();
    let database = read.database();
    read.finish()?;
    let difference = migrate::difference(&database.unwrap_or_default(), &catalogue()?, service).await?;
    if difference.changes.is_empty() {
        say(&format!("the catalogue of {service} is the one that is loaded"));
    }
    for (change, unit) in &difference.changes {
        say(&format!("{change:<9} {unit}"));
    }
    for Orphans { unit, status, count, oldest } in &difference.orphans {
        say(&format!("orphaned  {unit}: {count} runs {status}, the oldest for {} s", oldest.as_secs()));
    }
    if difference.orphans.is_empty() {
        return Ok(());
    }
    Err(Error::Other(
        "there is unfinished work of units that this program does not have: let it finish under the program that has them, or cancel it, \
         before you deploy this one"
            .to_owned(),
    ))
}

async fn create_queues() -> Result<(), Error> {
    let mut read = Reader::of_environment();
    let (config, visibility) = (read.sqs(), read.visibility());
    read.finish()?;
    let sqs = Queues::connect(&config).await;
    for queue in Queue::ALL {
        for (target, done) in sqs.create(queue, &visibility).await? {
            say(&format!("{done:<9} {}", sqs.url(target)));
        }
    }
    Ok(())
}

async fn dead_letters(command: DlqCommand) -> Result<(), Error> {
    let mut read = Reader::of_environment();
    let (config, database, valkey) = (read.sqs(), read.database(), read.valkey());
    read.finish()?;
    let (filter, act, dry_run) = match command {
        DlqCommand::Show { filter } => (filter, Act::Show, false),
        DlqCommand::Redrive { filter, reason, rate, dry_run } => (filter, Act::Redrive { reason, per_second: rate }, dry_run),
        DlqCommand::Purge { filter, reason, yes } => (filter, Act::Purge { reason }, !yes),
    };
    let database = database.unwrap_or_default().connect("dlq").await?;
    let outcome = dlq::handle(&Queues::connect(&config).await, &database, &filter, &act, dry_run, say).await?;
    if let (Some(url), Act::Redrive { .. }) = (valkey, &act) {
        Waker::new(&url)?.wake().await;
    }
    say(&outcome.summary(&act, dry_run));
    if dry_run && matches!(act, Act::Purge { .. }) && outcome.matched > 0 {
        say("add --yes to delete them");
    }
    Ok(())
}

async fn schedules(command: ScheduleCommand) -> Result<(), Error> {
    let mut read = Reader::of_environment();
    let (database, valkey) = (read.database(), read.valkey());
    read.finish()?;
    let mut client = database.unwrap_or_default().connect("schedule").await?;
    let fired = command::handle(&mut client, command, say).await;
    if let (Some(url), Ok(true)) = (valkey, &fired) {
        Waker::new(&url)?.wake().await;
    }
    fired.map(drop)
}
