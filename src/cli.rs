//! The command line.

use std::{
    io::{IsTerminal, Write},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use crate::{
    catalogue::Catalogue,
    config::{Config, Reader},
    error::Error,
    migrate,
    process::Workers,
    queue::Queue,
    sqs::{Queues, Target},
    unit::Units,
};

/// Retention of a main queue and of its dead-letter queue.
const RETENTION: Duration = Duration::from_secs(4 * 86_400);
const DEAD_LETTER_RETENTION: Duration = Duration::from_secs(14 * 86_400);

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
}

#[derive(Debug, Subcommand)]
enum QueuesCommand {
    /// Make the four queues and their dead-letter queues, or correct their attributes
    Create,
}

/// Parses the arguments and runs the command; the exit code is 0, 1 (failed) or 2 (usage).
pub(crate) fn main(workers: Workers) -> ExitCode {
    let arguments = Arguments::parse();
    start_logs();
    let done = match arguments.command {
        None | Some(Command::Run) => Config::from_environment().and_then(|config| workers.run(config)),
        Some(Command::Migrate) => wait(migrate_database(workers.service_name())),
        Some(Command::Tasks(TasksCommand::Generate { path })) => generate(&path),
        Some(Command::Tasks(TasksCommand::Check)) => check(),
        Some(Command::Queues(QueuesCommand::Create)) => wait(create_queues()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("workers: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Logs go to standard error: pretty on a terminal, else JSON; MONALISA_LOG_FORMAT and RUST_LOG change that.
fn start_logs() {
    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new("info,deadpool=error,refinery_core=warn,refinery_core::traits::missing=off"));
    let terminal = std::io::stderr().is_terminal();
    let pretty = match std::env::var("MONALISA_LOG_FORMAT").as_deref() {
        Ok("json") => false,
        Ok("pretty") => true,
        _ => terminal,
    };
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(terminal);
    // A second subscriber, in a program that has set its own, is no reason to stop.
    let _ = if pretty { logs.compact().try_init() } else { logs.json().flatten_event(true).with_span_list(false).try_init() };
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

fn catalogue() -> Result<Catalogue, Error> {
    Units::discover().map(|units| Catalogue::of(&units)).map_err(Error::Config)
}

async fn migrate_database(service: &'static str) -> Result<(), Error> {
    let mut read = Reader::new(std::env::vars());
    let database = read.database();
    read.finish()?;
    let migrated = migrate::migrate(&database.unwrap_or_default(), &catalogue()?, service).await?;
    for name in &migrated.applied {
        say(&format!("applied   {name}"));
    }
    for (change, unit) in &migrated.catalogue {
        say(&format!("{change:<9} {unit}"));
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

async fn create_queues() -> Result<(), Error> {
    let mut read = Reader::new(std::env::vars());
    let (config, visibility) = (read.sqs(), read.visibility());
    read.finish()?;
    let sqs = Queues::connect(&config).await;
    for queue in Queue::ALL {
        let letters = Target::DeadLetters(queue);
        let done = sqs.create(letters, visibility.of(queue), DEAD_LETTER_RETENTION, None).await?;
        say(&format!("{done:<9} {}", sqs.url(letters)));
        let arn = sqs.arn(letters).await?;
        let done = sqs.create(Target::Main(queue), visibility.of(queue), RETENTION, Some(&arn)).await?;
        say(&format!("{done:<9} {}", sqs.url(Target::Main(queue))));
    }
    Ok(())
}
