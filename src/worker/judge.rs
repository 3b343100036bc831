//! The verdicts are PostgreSQL's (`sql/runs/judge.sql`); here each is carried out.

use std::{collections::HashSet, sync::Arc, time::Duration};

use futures_util::{
    FutureExt,
    future::{BoxFuture, join3},
};
use uuid::Uuid;

use crate::{
    error::Error,
    ledger::{self, Deferred, Delivery, Verdict},
    sqs::MAX_HIDDEN,
};

use super::{
    Worker, jittered,
    poll::{NOT_NOW, Offer},
    settle::Settle,
};

/// A message without a run may have come before its commit is visible everywhere: it is looked at three times.
const NO_RUN_RECEIVES: i32 = 3;

impl Worker {
    /// Judges messages and carries the verdicts out. While PostgreSQL is away they stay in hand under heartbeat.
    pub(super) async fn judge(self: &Arc<Self>, offers: Vec<Offer>) {
        if offers.is_empty() {
            return;
        }
        let deliveries: Vec<Delivery> = offers.iter().map(|offer| offer.delivery).collect();
        let verdicts = self
            .until_answered("judging messages", || async {
                let session = self.pools.control().await?;
                let verdicts = ledger::judge(&*session, &deliveries, self.slots.known(), self.outage.spare()).await;
                session.end(verdicts)
            })
            .await;
        let Some(verdicts) = verdicts else {
            for offer in &offers {
                self.settle(&offer.hold, Settle::Hide(Duration::ZERO)).await;
            }
            return;
        };
        let mut ready = Vec::new();
        let mut full = Vec::new();
        let mut others: Vec<BoxFuture<'_, ()>> = Vec::new();
        let mut runs = HashSet::new();
        for (offer, verdict) in offers.into_iter().zip(verdicts) {
            let (unit, suspect) = match verdict {
                Verdict::Ready(unit) => (unit, false),
                Verdict::Suspect(unit) => (unit, true),
                verdict => {
                    others.push(self.carry_out(offer, verdict).boxed());
                    continue;
                }
            };
            if !runs.insert(offer.delivery.run_id) {
                // A second copy in one batch: its run is about to be held.
                let time = jittered(self.lease(offer.hold.queue, Duration::ZERO));
                others.push(async move { self.settle(&offer.hold, Settle::Hide(time)).await }.boxed());
                continue;
            }
            match self.slots.permit_now(&unit, suspect) {
                Some(permit) => ready.push((offer, permit)),
                None => {
                    let turn = self.slots.turn(&unit);
                    match self.slots.place(Some(&unit)) {
                        Some(place) => self.start_later(offer, unit, suspect, place),
                        None => full.push((offer, jittered(turn))),
                    }
                }
            }
        }
        // What may start does not wait for what the others need, which goes one by one: there are few connections for it.
        let others = async {
            for other in others {
                other.await;
            }
        };
        join3(self.start(ready), self.postpone(full), others).await;
    }

    async fn carry_out(self: &Arc<Self>, offer: Offer, verdict: Verdict) {
        let Offer { hold, delivery } = offer;
        // One whose receives run out must not come back soon: at the eighth SQS takes it away.
        let not_now = if verdict == Verdict::Spent { self.visibility.of(hold.queue) } else { NOT_NOW };
        if verdict == Verdict::NoRun && delivery.receives >= NO_RUN_RECEIVES {
            let body = serde_json::json!({ "runId": delivery.run_id, "generation": delivery.generation }).to_string();
            return self.refuse(hold, body, "NO_SUCH_RUN", "the ledger holds no run of this id".to_owned()).await;
        }
        let done = async {
            match verdict {
                Verdict::Over => Ok(Settle::Delete),
                Verdict::Ready(_) | Verdict::Suspect(_) => Ok(Settle::Hide(jittered(Duration::from_secs(1)))),
                Verdict::NoRun => Ok(Settle::Hide(NOT_NOW)),
                Verdict::Redriven => {
                    let mut session = self.pools.control().await?;
                    let reopened = ledger::reopen(&mut session, delivery.run_id, delivery.mark, &self.id).await;
                    if session.end(reopened)? {
                        tracing::info!(run_id = %delivery.run_id, "a dead letter came back: the run is reopened");
                    }
                    self.wakes.wake();
                    Ok(Settle::Delete)
                }
                Verdict::Spent => self.renew(delivery.run_id).await,
                Verdict::Wait(time) => {
                    let time = jittered(time);
                    let left = MAX_HIDDEN.saturating_sub(hold.received.elapsed() + Duration::from_secs(60));
                    if time > left { self.renew(delivery.run_id).await } else { Ok(Settle::Hide(time)) }
                }
                Verdict::Condemned => {
                    let mut session = self.pools.control().await?;
                    let condemned = ledger::condemn(&mut session, delivery.run_id).await;
                    if !session.end(condemned)? {
                        return Ok(Settle::Hide(jittered(Duration::from_secs(1))));
                    }
                    tracing::error!(run_id = %delivery.run_id, code = "WORKER_LOST", "the run failed: its worker died too often");
                    self.wakes.wake();
                    Ok(Settle::Delete)
                }
                Verdict::Unknown(unit) => {
                    let mut session = self.pools.control().await?;
                    let deferred = ledger::defer(&mut session, delivery.run_id, &self.id).await;
                    match session.end(deferred)? {
                        Deferred::Until(time) => {
                            tracing::warn!(run_id = %delivery.run_id, unit, code = "UNIT_NOT_REGISTERED", delay_s = time.as_secs(),
                                "this process does not know the unit; deploy workers that do");
                            Ok(Settle::Hide(time))
                        }
                        Deferred::Failed => {
                            tracing::error!(run_id = %delivery.run_id, unit, code = "UNIT_NOT_REGISTERED", "the run failed: no worker knows its unit");
                            self.wakes.wake();
                            Ok(Settle::Delete)
                        }
                        Deferred::Changed => Ok(Settle::Hide(jittered(Duration::from_secs(1)))),
                    }
                }
            }
        };
        let what = match self.unless_given_up(done).await {
            Some(Ok(what)) => what,
            // Nothing was committed, or it was and the next judgement finds it so: the message comes back soon.
            Some(Err(error)) => {
                tracing::error!(run_id = %delivery.run_id, %error, "a verdict could not be carried out; the message comes back");
                Settle::Hide(not_now)
            }
            None => Settle::Hide(Duration::ZERO),
        };
        self.settle(&hold, what).await;
    }

    /// The run gets a new message through the outbox; this one may go.
    async fn renew(&self, run_id: Uuid) -> Result<Settle, Error> {
        let mut session = self.pools.control().await?;
        let renewed = ledger::renew(&mut session, &[run_id]).await;
        session.end(renewed)?;
        self.wakes.wake();
        Ok(Settle::Delete)
    }

    /// Too many messages wait here already: these return in their turn, through the outbox where their runs still wait.
    pub(super) async fn postpone(&self, full: Vec<(Offer, Duration)>) {
        if full.is_empty() {
            return;
        }
        let turns: Vec<(Uuid, Duration)> = full.iter().map(|(offer, turn)| (offer.delivery.run_id, *turn)).collect();
        let postponed = async {
            let mut session = self.pools.control().await?;
            let postponed = ledger::postpone(&mut session, &turns).await;
            session.end(postponed)
        };
        let postponed = match self.unless_given_up(postponed).await {
            Some(Ok(postponed)) => postponed,
            Some(Err(error)) => {
                tracing::warn!(count = turns.len(), %error, "runs whose unit is full were not postponed; their messages come back");
                Vec::new()
            }
            None => Vec::new(),
        };
        for (offer, turn) in full {
            // One that waits no more was started or finished meanwhile, or its lease lapsed. This message may be its only one: it is judged
            // again soon.
            let what = if postponed.contains(&offer.delivery.run_id) { Settle::Delete } else { Settle::Hide(turn.min(jittered(NOT_NOW))) };
            self.settle(&offer.hold, what).await;
        }
    }
}
