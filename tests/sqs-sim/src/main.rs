//! `sqs-sim`: the simulated SQS as a process of its own.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use sqs_sim::{ExpiredHandle, Mode, Options, Server};
use tokio::signal::unix::{SignalKind, signal};

/// An SQS for development and tests. Nothing is stored on disk: a restart forgets every queue.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Where to listen.
    #[arg(long, default_value = "127.0.0.1:45660", value_name = "ADDRESS")]
    listen: SocketAddr,
    /// Accept messages and forget them, for benchmarks.
    #[arg(long)]
    null: bool,
    /// How long each send takes in null mode.
    #[arg(long, default_value_t = 0, value_name = "N", requires = "null")]
    latency_ms: u64,
    /// What a change of visibility answers once the handle's timeout is over.
    #[arg(long, value_enum, default_value_t = Expired::Ok)]
    expired_handle: Expired,
}

#[derive(Clone, Copy, ValueEnum)]
enum Expired {
    /// Success, without effect, as AWS does.
    Ok,
    /// `MessageNotInflight`.
    Error,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let options = Options {
        expired_handle: match arguments.expired_handle {
            Expired::Ok => ExpiredHandle::Accept,
            Expired::Error => ExpiredHandle::Refuse,
        },
        mode: if arguments.null { Mode::Null(Duration::from_millis(arguments.latency_ms)) } else { Mode::Keep },
    };
    match run(arguments.listen, options).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sqs-sim: {}: {error}", arguments.listen);
            ExitCode::FAILURE
        }
    }
}

/// Serves until the process is told to stop.
async fn run(listen: SocketAddr, options: Options) -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let server = Server::start_with(listen, options).await?;
    println!("sqs-sim: {}", server.endpoint());
    tokio::select! {
        _ = terminate.recv() => Ok(()),
        interrupted = tokio::signal::ctrl_c() => interrupted,
    }
}
