//! What drives the relay: its loops, and the one that listens for wakes.

use tokio::sync::watch;

use crate::{
    drive::{Next, Part},
    error::Error,
    wake::Sleeper,
};

use super::Relay;

/// A relay loop with what ends its pauses.
pub(crate) struct Lane {
    pub(crate) relay: Relay,
    pub(crate) woken: watch::Receiver<()>,
}

impl Part for Lane {
    fn name(&self) -> &'static str {
        "relay"
    }

    async fn tick(&mut self) -> Result<Next, Error> {
        self.relay.tick().await
    }

    fn trouble(&self) -> Option<&str> {
        self.relay.trouble()
    }

    async fn woken(&mut self) {
        if self.woken.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

/// Waits for wakes and passes them on to every loop of the relay.
pub(crate) struct Listener {
    pub(crate) sleeper: Sleeper,
    pub(crate) wake: watch::Sender<()>,
}

impl Part for Listener {
    fn name(&self) -> &'static str {
        "wake"
    }

    async fn tick(&mut self) -> Result<Next, Error> {
        if self.sleeper.wait().await? {
            self.wake.send_replace(());
        }
        Ok(Next::Busy)
    }
}
