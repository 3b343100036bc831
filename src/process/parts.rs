//! The parts of a process, as health and their watchdog see them.

use std::{panic::AssertUnwindSafe, time::Duration};

use futures_util::FutureExt;
use tokio_util::sync::CancellationToken;

use crate::{config::Config, drive::Pulse, relay::Relay, scheduler};

/// The parts of the process: their progress, which health reads, and whether one of them has died.
pub(super) struct Parts {
    pulses: Vec<(String, Pulse)>,
    pub(super) died: CancellationToken,
}

impl Parts {
    /// `connections` of the relay say how many loops it has.
    pub(super) fn new(config: &Config, connections: usize) -> Parts {
        let mut names = vec!["database".to_owned()];
        for queue in &config.queues {
            names.push(format!("poller:{queue}"));
            names.push(format!("heartbeat:{queue}"));
        }
        if config.local_scheduler {
            names.push("scheduler".to_owned());
        }
        if config.relay {
            names.extend(Relay::lanes(connections).iter().map(|lane| Relay::lane_name(lane)));
        }
        Parts { pulses: names.into_iter().map(|name| (name, Pulse::default())).collect(), died: CancellationToken::new() }
    }

    /// A part that panics takes the process down, loudly: what it held lapses, and another process goes on.
    pub(super) fn loud<F: Future<Output = ()> + Send>(&self, name: &'static str, part: F) -> impl Future<Output = ()> + Send + use<F> {
        let died = self.died.clone();
        async move {
            if AssertUnwindSafe(part).catch_unwind().await.is_err() {
                tracing::error!(part = name, "a part of the process panicked: this is a bug of monalisa; the process exits");
                died.cancel();
            }
        }
    }

    /// The pulses of the relay's loops.
    pub(super) fn relays(&self) -> impl Iterator<Item = &Pulse> {
        self.pulses.iter().filter(|(name, _)| name.starts_with("relay")).map(|(_, pulse)| pulse)
    }

    pub(super) fn pulse(&self, name: &str) -> Pulse {
        self.pulses.iter().find(|(known, _)| known == name).map_or_else(Pulse::default, |(_, pulse)| pulse.clone())
    }

    /// How old each pulse may be: a poll, a heartbeat or a sweep, and a good margin.
    pub(super) fn bounds(&self, config: &Config) -> Vec<(String, Pulse, Duration)> {
        let margin = Duration::from_secs(30);
        self.pulses
            .iter()
            .map(|(name, pulse)| {
                let bound = match name.split_once(':') {
                    Some(("poller", _)) => config.wait + margin,
                    None if name == "database" => config.wait + margin,
                    None if name == "scheduler" => scheduler::LONGEST + margin,
                    None | Some(("relay", _)) => config.relay_settings.sweep + config.relay_settings.send_timeout + margin,
                    Some((_, queue)) => queue.parse().map_or(margin, |queue| config.visibility.of(queue) / 3) + margin,
                };
                (name.clone(), pulse.clone(), bound)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_part_that_panics_takes_the_process_down() {
        let parts = Parts { pulses: Vec::new(), died: CancellationToken::new() };
        parts.loud("fine", async {}).await;
        assert!(!parts.died.is_cancelled());
        parts.loud("broken", async { panic!("a bug") }).await;
        assert!(parts.died.is_cancelled());
    }
}
