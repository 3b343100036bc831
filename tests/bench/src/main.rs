//! `bench engine` measures the SQS engine alone; `bench start` measures from commit to handler start on running workers; `bench dispatch`
//! measures a dispatch with its commit. They measure one at a time, as often as MEASUREMENTS says; `bench load` dispatches at an even pace.
//! Each prints `median p95 longest` in milliseconds.

mod engine;
mod load;
mod start;

use std::{error::Error, process::ExitCode, time::Duration};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> ExitCode {
    let measured = match std::env::args().nth(1).as_deref() {
        Some("engine") => engine::measure().await,
        Some("start") => start::measure().await,
        Some("dispatch") => start::measure_dispatch().await,
        Some("load") => load::measure().await,
        _ => Err("bench engine | bench start | bench dispatch | bench load".into()),
    };
    match measured.and_then(|times| summary(times).ok_or_else(|| "nothing was measured".into())) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn summary(mut times: Vec<f64>) -> Option<String> {
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times.get(((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1))).copied();
    Some(format!("{:.1} {:.1} {:.1}", at(0.5)?, at(0.95)?, at(1.0)?))
}

fn variable(name: &str) -> Result<String> {
    std::env::var(name).map_err(|_| format!("{name} is not set").into())
}

fn measurements() -> usize {
    number("MEASUREMENTS", 100)
}

fn number(name: &str, otherwise: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Lets everything come to rest, and meets a sweep in any of its phases.
async fn rest() {
    tokio::time::sleep(Duration::from_millis(rand::random_range(100..400))).await;
}
