//! `smtp-sink`: the development mail server as a process.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use smtp_sink::Sink;
use tokio::signal::unix::{SignalKind, signal};

/// A mail server for development: it accepts every mail and stores it as a file.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Where to listen.
    #[arg(long, default_value = "127.0.0.1:45625", value_name = "ADDRESS")]
    listen: SocketAddr,
    /// Where to store mails.
    #[arg(long, value_name = "DIR")]
    mail_dir: PathBuf,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("smtp-sink: {}, {}: {error}", arguments.listen, arguments.mail_dir.display());
            ExitCode::FAILURE
        }
    }
}

/// Serves until the process is told to stop.
async fn run(arguments: &Arguments) -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let sink = Sink::start(arguments.listen, &arguments.mail_dir).await?;
    println!("smtp-sink: smtp://{}, mails in {}", sink.address(), arguments.mail_dir.display());
    tokio::select! {
        _ = terminate.recv() => Ok(()),
        interrupted = tokio::signal::ctrl_c() => interrupted,
    }
}
