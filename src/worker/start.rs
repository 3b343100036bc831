//! Start: a slot and the gate, then the lease, then the attempt.

use std::{
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use uuid::Uuid;

use crate::{
    error::Error,
    ledger::{self, Start, Started},
    pools::Left,
};

use super::{
    Worker,
    attempt::Attempt,
    jittered,
    poll::{NOT_NOW, Offer},
    settle::Settle,
    slots::{Permit, Place, SHORTEST_TURN},
};

/// For so long a start may arrive whose answer was lost: twice what the kernel goes on sending to a silent peer.
const LATE_START: Duration = Duration::from_secs(60);

/// How long a message is let go whose run somebody holds locked: 1, 7, 17, 31, 49 s. An operator's transaction may stay open for a
/// while, and at the eighth receive SQS takes the message away.
fn locked(receives: i32) -> Duration {
    let receives = u64::from(receives.clamp(1, 6).unsigned_abs());
    Duration::from_secs(2 * receives * receives - 1)
}

impl Worker {
    /// Waits in the background for a slot (and, for a suspect, until nothing else runs here), under heartbeat. What waits when a suspect
    /// comes is left to other processes, since the longest handler here may take hours; nor does the process wait for that.
    pub(super) fn start_later(self: &Arc<Self>, offer: Offer, unit: String, suspect: bool, place: Place) {
        let worker = self.clone();
        self.tasks.spawn(async move {
            let permit = tokio::select! {
                () = worker.stop.cancelled() => None,
                permit = worker.slots.permit(&unit, suspect) => permit,
                () = worker.slots.closed(), if !suspect => {
                    drop(place);
                    return worker.postpone(vec![(offer, jittered(SHORTEST_TURN))]).await;
                }
                waited = worker.slots.out_of_patience(), if suspect => {
                    drop(place);
                    let (run_id, waited_s) = (offer.delivery.run_id, waited.as_secs());
                    tracing::warn!(%run_id, waited_s, "a run that crashed twice waits to be alone here, and others did not end: it waits its turn again");
                    return worker.postpone(vec![(offer, waited * 4)]).await;
                }
            };
            drop(place);
            match permit {
                Some(permit) => worker.start(vec![(offer, permit)]).await,
                None => worker.settle(&offer.hold, Settle::Hide(Duration::ZERO)).await,
            }
        });
    }

    /// Takes the leases in one statement, committed before any handler. What did not start was changed meanwhile: it comes back.
    pub(super) async fn start(self: &Arc<Self>, ready: Vec<(Offer, Permit)>) {
        if ready.is_empty() {
            return;
        }
        // Until there is a connection nothing is asked, and there is nothing to give back.
        let session = tokio::select! {
            biased;
            () = self.stop.cancelled() => None,
            session = self.until_answered("taking a connection for a start", || self.pools.control()) => session,
        };
        let Some(session) = session else {
            for (offer, _) in &ready {
                self.settle(&offer.hold, Settle::Hide(Duration::ZERO)).await;
            }
            return;
        };
        let alone = ready.iter().all(|(_, permit)| permit.is_alone());
        let asked = Instant::now();
        let starts: Vec<Start> = ready
            .iter()
            .map(|(offer, _)| Start {
                delivery: offer.delivery,
                token: Uuid::new_v4(),
                lease: self.lease(offer.hold.queue, self.holds.age(&offer.hold)),
            })
            .collect();
        let answer = self.unless_given_up(async {
            let started = ledger::start(&*session, &starts, alone, &self.id).await;
            session.end(started)
        });
        let mut started: Vec<Started> = match answer.await.unwrap_or_else(|| Err(Error::Other("the process stops".to_owned()))) {
            Ok(started) => started,
            Err(error) => {
                // The answer may be lost after the commit: what was started is given back by its token.
                if let Some(failures) = self.trouble() {
                    tracing::error!(%error, failures, "a start failed; its runs are given back");
                }
                let missing = self.give_back_starts(starts.iter().map(|start| (start.delivery.run_id, start.token)).collect()).await;
                let pause = if self.stop.is_cancelled() { Duration::ZERO } else { jittered(NOT_NOW) };
                for (offer, _) in &ready {
                    self.settle(&offer.hold, Settle::Hide(pause)).await;
                }
                self.await_late_starts(missing);
                return;
            }
        };
        for ((offer, permit), start) in ready.into_iter().zip(starts) {
            match started.iter().position(|run| run.token == start.token) {
                Some(place) => {
                    let run = started.swap_remove(place);
                    if offer.delivery.receives == 1 {
                        self.seen.note(offer.hold.queue, run.due_at);
                    }
                    self.attempt(offer, permit, run, asked + start.lease);
                }
                None => self.settle(&offer.hold, Settle::Hide(jittered(locked(offer.delivery.receives)))).await,
            }
        }
    }

    /// Gives runs back whose start was not answered; returns those that this token has not started, so far.
    async fn give_back_starts(&self, mut runs: Vec<(Uuid, Uuid)>) -> Vec<(Uuid, Uuid)> {
        let given = self
            .until_answered("giving back runs whose start was not answered", || async {
                let mut session = self.pools.control().await?;
                let given = ledger::give_back(&mut session, &runs, "the start was not answered", Duration::ZERO, false).await;
                session.end(given)
            })
            .await
            .unwrap_or_default();
        if !given.is_empty() {
            self.wakes.wake();
        }
        runs.retain(|(run_id, _)| !given.contains(run_id));
        runs
    }

    /// A session that is lost may still deliver what was sent to it. Nobody would hold what such a late start takes, and it would count
    /// as a crash: it is given back as long as it may arrive.
    fn await_late_starts(self: &Arc<Self>, mut missing: Vec<(Uuid, Uuid)>) {
        let worker = self.clone();
        self.tasks.spawn(async move {
            let (began, mut pause) = (Instant::now(), Duration::from_secs(1));
            while !missing.is_empty() && began.elapsed() < LATE_START {
                tokio::select! {
                    () = worker.stop.cancelled() => return,
                    () = tokio::time::sleep(pause) => {}
                }
                missing = worker.give_back_starts(missing).await;
                pause = (pause * 2).min(Duration::from_secs(10));
            }
        });
    }

    fn attempt(self: &Arc<Self>, offer: Offer, permit: Permit, started: Started, until: Instant) {
        let Some(slot) = self.slots.get(&started.unit).cloned() else { return };
        self.holds.lease(&offer.hold, started.run_id, started.token, until);
        slot.begun();
        let receives = offer.delivery.receives;
        let attempt = Attempt { worker: self.clone(), slot, hold: offer.hold, receives, started, left: Left::default() };
        self.tasks.spawn(async move {
            // What it holds ends with it: without a heartbeat the lease lapses, and the run is taken over.
            if AssertUnwindSafe(attempt.run(permit)).catch_unwind().await.is_err() {
                tracing::error!("an attempt panicked outside its handler: its lease lapses and its run is taken over");
            }
        });
    }
}
