//! The schedules fired in the process, for development.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio_postgres::Client;

use super::{Decided, fire_due, known};
use crate::{
    drive::{Next, Part, Repeated},
    error::Error,
    worker::Worker,
};

/// Longest sleep: a catalogue that is loaded meanwhile is noticed within it.
pub(crate) const LONGEST: Duration = Duration::from_secs(5);
/// Sleep after a schedule that could not be fired.
const AGAIN: Duration = Duration::from_secs(1);

pub(crate) struct Scheduler {
    worker: Arc<Worker>,
    trouble: Repeated,
}

/// What a round through the schedules came to.
struct Round {
    fired: bool,
    /// How long nothing is due.
    rest: Duration,
}

impl Scheduler {
    pub(crate) fn new(worker: Arc<Worker>) -> Scheduler {
        Scheduler { worker, trouble: Repeated::new(Duration::from_secs(60)) }
    }

    async fn round(&mut self, client: &mut Client) -> Result<Round, Error> {
        let asked = Instant::now();
        let mut round = Round { fired: false, rest: LONGEST };
        for known in known(client, None).await? {
            match fire_due(client, &known).await {
                Ok(done) => round.fired |= matches!(done, Some((_, Decided::Fired(_)))),
                Err(error) if error.session_is_gone() => return Err(error),
                Err(error) => {
                    if let Some(failures) = self.trouble.tell(1) {
                        tracing::error!(schedule = known.name, %error, failures, "a schedule was not fired; the others go on");
                    }
                    round.rest = round.rest.min(AGAIN);
                    continue;
                }
            }
            let next = known.schedule()?.occurrences(known.anchor, known.now).next();
            // A little later: it is due then by the clock of PostgreSQL too.
            let rest = next.and_then(|next| (next.at - known.now).to_std().ok()).map(|rest| rest + Duration::from_millis(2));
            round.rest = rest.map_or(round.rest, |rest| round.rest.min(rest));
        }
        round.rest = round.rest.saturating_sub(asked.elapsed());
        Ok(round)
    }
}

impl Part for Scheduler {
    fn name(&self) -> &'static str {
        "scheduler"
    }

    async fn tick(&mut self) -> Result<Next, Error> {
        let mut session = self.worker.pools.control().await?;
        let round = self.round(&mut session).await;
        let round = session.end(round)?;
        if round.fired {
            self.worker.wakes.wake();
        }
        Ok(Next::Idle(round.rest))
    }
}
