//! The units of `payloads.rs` as they were a deploy before, in a program of their own.

use std::process::ExitCode;

use monalisa::{Event, TaskError, TaskRun, subscriber, task};
use serde::{Deserialize, Serialize};

fn main() -> ExitCode {
    monalisa::Workers::new().service("test-workers").main()
}

async fn effect(run: &TaskRun, note: &str) -> Result<(), TaskError> {
    let transaction = run.transaction().await?;
    transaction.execute("insert into public.effects (run_id, note) values ($1, $2)", &[&run.run_id(), &note]).await?;
    Ok(())
}

#[derive(Serialize, Deserialize)]
struct SendReceipt {
    order_id: i64,
    mail: String,
}

task! { payload: SendReceipt, handler: send_receipt, name: "p.send_receipt", queue: "default" }

async fn send_receipt(receipt: SendReceipt, run: &TaskRun) -> Result<(), TaskError> {
    effect(run, &format!("before: {} to {}", receipt.order_id, receipt.mail)).await
}

#[derive(Serialize, Deserialize)]
struct Remind {
    order_id: i64,
}

task! { payload: Remind, handler: remind, name: "p.remind", queue: "default" }

async fn remind(reminder: Remind, run: &TaskRun) -> Result<(), TaskError> {
    effect(run, &format!("before: reminder of {}", reminder.order_id)).await
}

#[derive(Serialize, Deserialize)]
struct Sold {
    euros: i64,
}

impl Event for Sold {
    const TYPE: &'static str = "test.sold";
}

subscriber! { event: Sold, handler: count_sale, name: "p.count_sale", queue: "default" }

async fn count_sale(sold: Sold, run: &TaskRun) -> Result<(), TaskError> {
    effect(run, &format!("before: {} euros", sold.euros)).await
}
