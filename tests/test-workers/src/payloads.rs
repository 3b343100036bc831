//! The units of `before.rs` a deploy later, beside payloads of both times.

use monalisa::{Event, TaskError, TaskRun, subscriber, task};
use serde::{Deserialize, Serialize};

use super::effect;

/// A field has another name, and one is new.
#[derive(Serialize, Deserialize)]
struct SendReceipt {
    order_id: i64,
    #[serde(alias = "mail")]
    email: String,
    #[serde(default = "once")]
    copies: u32,
    #[serde(default)]
    language: Language,
}

fn once() -> u32 {
    1
}

/// What a later program may add is read as the one that is not known.
#[derive(Serialize, Deserialize, Default, Debug)]
#[serde(rename_all = "lowercase")]
enum Language {
    #[default]
    English,
    #[serde(other)]
    Unknown,
}

task! { payload: SendReceipt, handler: send_receipt, name: "p.send_receipt", queue: "default" }

async fn send_receipt(receipt: SendReceipt, run: &TaskRun) -> Result<(), TaskError> {
    effect(run, &format!("{} to {}, {} in {:?}", receipt.order_id, receipt.email, receipt.copies, receipt.language)).await
}

/// The task has a new name.
#[derive(Serialize, Deserialize)]
struct RemindCustomer {
    order_id: i64,
}

task! { payload: RemindCustomer, handler: remind_customer, name: "p.remind_customer", queue: "default" }

async fn remind_customer(reminder: RemindCustomer, run: &TaskRun) -> Result<(), TaskError> {
    effect(run, &format!("reminder of {}", reminder.order_id)).await
}

/// Under its old name it is there until nothing enqueues it any more.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct Remind(RemindCustomer);

task! { payload: Remind, handler: remind, name: "p.remind", queue: "default" }

async fn remind(reminder: Remind, run: &TaskRun) -> Result<(), TaskError> {
    remind_customer(reminder.0, run).await
}

/// The event has a new version, whose amount is another one.
#[derive(Serialize, Deserialize)]
struct Sold {
    cents: i64,
}

impl Event for Sold {
    const TYPE: &'static str = "test.sold";
    const VERSION: i32 = 2;
}

subscriber! { event: Sold, handler: count_sale, name: "p.count_sale_2", queue: "default" }

async fn count_sale(sold: Sold, run: &TaskRun) -> Result<(), TaskError> {
    effect(run, &format!("{} cents", sold.cents)).await
}

/// The first version goes on under the name that its runs have.
#[derive(Serialize, Deserialize)]
struct SoldBefore {
    euros: i64,
}

impl Event for SoldBefore {
    const TYPE: &'static str = "test.sold";
}

subscriber! { event: SoldBefore, handler: count_sale_before, name: "p.count_sale", queue: "default" }

async fn count_sale_before(sold: SoldBefore, run: &TaskRun) -> Result<(), TaskError> {
    count_sale(Sold { cents: sold.euros * 100 }, run).await
}
