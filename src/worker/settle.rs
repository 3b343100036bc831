//! What becomes of a message at the end: deleted, or hidden for a while. Both in batches, two settlers for each queue.
//!
//! A delete that cannot be made is given up after a few tries: the message comes back, is judged as over, and is deleted then.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use futures_util::future::join_all;
use tokio::sync::{mpsc, oneshot};

use crate::{
    drive::Repeated,
    queue::Queue,
    sqs::{BATCH_ENTRIES, Queues},
};

use super::holds::Hold;

/// How long the first message of a batch waits for others.
const LINGER: Duration = Duration::from_millis(20);
const TRIES: u32 = 4;
/// Messages of a queue that could not be settled are told of at most so often.
const UNSETTLED_TOLD: Duration = Duration::from_secs(5);

/// What to do with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settle {
    Delete,
    /// Hide it for so long from now; zero gives it to anybody at once.
    Hide(Duration),
}

/// What a settler is asked for.
enum Order {
    Delete(String),
    Hide(String, Duration),
    /// Tell when everything before this is settled.
    Flush(oneshot::Sender<()>),
}

/// The settlers of all queues. Deletes and hides go their own ways: deletes that are refused and tried again hold up no retry.
pub(crate) struct Settlers {
    deletes: HashMap<Queue, mpsc::Sender<Order>>,
    hides: HashMap<Queue, mpsc::Sender<Order>>,
}

impl Settlers {
    /// Starts two settlers for each queue; they end when this is dropped and everything is settled.
    pub(crate) fn start(sqs: &Queues, queues: &[Queue], spawn: impl Fn(futures_util::future::BoxFuture<'static, ()>)) -> Settlers {
        let start = |queue: &Queue| {
            let (sender, orders) = mpsc::channel(1_000);
            spawn(Box::pin(settle(sqs.clone(), *queue, orders)));
            (*queue, sender)
        };
        Settlers { deletes: queues.iter().map(start).collect(), hides: queues.iter().map(start).collect() }
    }

    /// Hands a message over; its heartbeat must have ended. Waits only where a thousand others wait already.
    pub(crate) async fn settle(&self, hold: &Hold, what: Settle) {
        let receipt = hold.receipt.clone();
        let (settlers, order) = match what {
            Settle::Delete => (&self.deletes, Order::Delete(receipt)),
            Settle::Hide(time) => (&self.hides, Order::Hide(receipt, time)),
        };
        if let Some(sender) = settlers.get(&hold.queue) {
            let _ = sender.send(order).await;
        }
    }

    /// Waits until everything handed over before is settled.
    pub(crate) async fn flush(&self) {
        for sender in self.hides.values().chain(self.deletes.values()) {
            let (done, settled) = oneshot::channel();
            if sender.send(Order::Flush(done)).await.is_ok() {
                let _ = settled.await;
            }
        }
    }
}

async fn settle(sqs: Queues, queue: Queue, mut orders: mpsc::Receiver<Order>) {
    let mut batch: Vec<Order> = Vec::new();
    let unsettled = Mutex::new(Repeated::new(UNSETTLED_TOLD));
    loop {
        if orders.recv_many(&mut batch, 100).await == 0 {
            return;
        }
        if batch.len() < BATCH_ENTRIES && batch.iter().all(|order| matches!(order, Order::Delete(_))) {
            // Deletes can wait a moment for company; a message that is hidden or given back cannot.
            let _ = tokio::time::timeout(LINGER, async {
                while batch.len() < BATCH_ENTRIES
                    && let Some(order) = orders.recv().await
                {
                    let urgent = matches!(order, Order::Flush(_));
                    batch.push(order);
                    if urgent {
                        break;
                    }
                }
            })
            .await;
        }
        let mut deletes = Vec::new();
        let mut hides = Vec::new();
        let mut waiting = Vec::new();
        for order in batch.drain(..) {
            match order {
                Order::Delete(receipt) => deletes.push(receipt),
                Order::Hide(receipt, time) => hides.push((receipt, time)),
                Order::Flush(done) => waiting.push(done),
            }
        }
        let deleting = join_all(deletes.chunks(BATCH_ENTRIES).map(|chunk| delete(&sqs, queue, chunk.to_vec(), &unsettled)));
        let hiding = join_all(hides.chunks(BATCH_ENTRIES).map(|chunk| hide(&sqs, queue, chunk.to_vec(), &unsettled)));
        tokio::join!(deleting, hiding);
        for done in waiting {
            let _ = done.send(());
        }
    }
}

async fn delete(sqs: &Queues, queue: Queue, mut receipts: Vec<String>, unsettled: &Mutex<Repeated>) {
    for attempt in 1..=TRIES {
        let problem = match sqs.delete(queue, &receipts).await {
            Ok(refused) if refused.is_empty() => return,
            Ok(refused) => {
                receipts = refused.iter().filter_map(|(index, _)| receipts.get(*index).cloned()).collect();
                refused.into_iter().map(|(_, code)| code).next().unwrap_or_default()
            }
            Err(error) => error.to_string(),
        };
        if attempt == TRIES {
            if let Some(count) = told(unsettled, receipts.len()) {
                tracing::warn!(%queue, count, problem, "messages were not deleted; they come back and are deleted then");
            }
        } else {
            tokio::time::sleep(Duration::from_millis(200 << attempt)).await;
        }
    }
}

/// A hide that fails is not tried again: the message comes back when its visibility ends, and is judged anew.
async fn hide(sqs: &Queues, queue: Queue, messages: Vec<(String, Duration)>, unsettled: &Mutex<Repeated>) {
    let (count, problem) = match sqs.hide(queue, &messages).await {
        Ok(refused) if refused.is_empty() => return,
        Ok(refused) => (refused.len(), refused.into_iter().map(|(_, code)| code).next().unwrap_or_default()),
        Err(error) => (messages.len(), error.to_string()),
    };
    if let Some(count) = told(unsettled, count) {
        tracing::warn!(%queue, count, problem, "messages were not hidden; they come back when their visibility ends");
    }
}

fn told(unsettled: &Mutex<Repeated>, count: usize) -> Option<usize> {
    unsettled.lock().unwrap_or_else(PoisonError::into_inner).tell(count)
}
