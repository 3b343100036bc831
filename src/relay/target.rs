//! Whether a target takes messages, and how it is asked again once it did not.

use std::time::{Duration, Instant};

use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use crate::{
    drive::growing,
    error::Error,
    sqs::{Outgoing, Queues, Sent, Target},
};

/// Longest pause of a target that failed as a whole.
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// After its pause a target that failed is probed within this time, if there is anything to send.
const PROBE_DUE: Duration = Duration::from_secs(2);
/// How long a pass waits for a probe, so that a failed target costs the others little.
const PROBE_PATIENCE: Duration = Duration::from_millis(500);

/// A queue or dead-letter queue, as the relay has come to know it.
#[derive(Debug, Default)]
pub(super) struct Health {
    failures: u32,
    until: Option<Instant>,
    /// Why the last send failed.
    error: Option<String>,
    late: Option<Late>,
}

/// A probe that no pass waits for any more. If it is answered after all the target is slow, not dead.
#[derive(Debug)]
struct Late {
    answered: AbortOnDropHandle<bool>,
    until: Instant,
}

impl Health {
    /// Whether the last send failed: then one message is sent to find out.
    pub(super) fn is_doubtful(&self) -> bool {
        self.failures > 0
    }

    /// Why it is left alone, or was until just now: its rows become due a little later than it may be asked again.
    pub(super) fn trouble(&self) -> Option<&str> {
        self.error.as_deref().filter(|_| self.until.is_some_and(|until| until + PROBE_DUE > Instant::now()))
    }

    /// How long it is left alone.
    pub(super) fn pause(&self) -> Option<Duration> {
        let until = self.until.max(self.late.as_ref().map(|late| late.until));
        until.map(|until| until.saturating_duration_since(Instant::now())).filter(|pause| !pause.is_zero())
    }

    /// A send failed as a whole: half a second at first, doubled at each failure.
    pub(super) fn failed(&mut self, error: String) -> Duration {
        let pause = growing(self.failures).min(LONGEST_PAUSE);
        self.failures = self.failures.saturating_add(1);
        self.until = Some(Instant::now() + pause);
        self.error = Some(error);
        pause
    }

    /// A send was answered.
    pub(super) fn answered(&mut self) {
        *self = Health::default();
    }

    /// Sends one message and waits only briefly; the call itself has the whole time of a send. Its message may then arrive although the
    /// row stays pending: one copy.
    pub(super) async fn probe(&mut self, sqs: Queues, target: Target, message: Outgoing, limit: Duration) -> Result<Vec<Sent>, Error> {
        let mut call = tokio::spawn(async move { sqs.send(target, &[message], limit).await });
        let until = Instant::now() + limit;
        if let Ok(answer) = timeout(PROBE_PATIENCE, &mut call).await {
            return answer.unwrap_or_else(|ended| Err(Error::Other(ended.to_string())));
        }
        let answered = AbortOnDropHandle::new(tokio::spawn(async move { matches!(call.await, Ok(Ok(_))) }));
        self.late = Some(Late { answered, until });
        Err(Error::Sqs { action: "SendMessageBatch", text: format!("a probe was not answered in {} ms", PROBE_PATIENCE.as_millis()) })
    }

    /// Hears of a probe that no pass waited for.
    pub(super) async fn listen(&mut self) {
        if let Some(late) = self.late.take_if(|late| late.answered.is_finished())
            && late.answered.await.unwrap_or(false)
        {
            self.answered();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_limit() {
        let mut health = Health::default();
        let pauses: Vec<u128> = (0..7).map(|_| health.failed(String::new()).as_millis()).collect();
        assert_eq!(pauses, [500, 1_000, 2_000, 4_000, 8_000, 8_000, 8_000]);
    }
}
