//! Valkey: the only user of its types. A wake is a hint; a lost one costs the relay at most a sweep, never a message.

use std::time::Duration;

#[cfg(feature = "workers")]
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use tokio::sync::Mutex;

use crate::{error::Error, secret::Secret};

/// The list that APIs push to after their commit.
pub const WAKE_KEY: &str = "monalisa:outbox:wake";

/// How many wakes the list keeps at most; one is enough.
const LIST_LIMIT: isize = 15;
const TIMEOUT: Duration = Duration::from_millis(500);

/// Pushes wakes. Never fails and never waits longer than half a second, whatever Valkey does.
pub struct Waker {
    client: redis::Client,
    connection: Mutex<Option<MultiplexedConnection>>,
}

impl Waker {
    /// Opens no connection yet. The error does not quote the URL.
    pub fn new(url: &Secret) -> Result<Waker, Error> {
        let client = redis::Client::open(url.expose()).map_err(|_| Error::Valkey("the URL cannot be read".to_owned()))?;
        Ok(Waker { client, connection: Mutex::new(None) })
    }

    /// Wakes the relay. The list stays short, however many push and nobody pops.
    pub async fn wake(&self) {
        let pushed = tokio::time::timeout(TIMEOUT, async {
            let mut slot = self.connection.lock().await;
            let mut connection = match slot.take() {
                Some(connection) => connection,
                None => self.client.get_multiplexed_async_connection().await?,
            };
            redis::pipe()
                .cmd("LPUSH")
                .arg(WAKE_KEY)
                .arg(1)
                .ignore()
                .cmd("LTRIM")
                .arg(WAKE_KEY)
                .arg(0)
                .arg(LIST_LIMIT)
                .ignore()
                .exec_async(&mut connection)
                .await?;
            *slot = Some(connection);
            redis::RedisResult::Ok(())
        });
        match pushed.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(error = error.category(), "a wake was not pushed; the sweep finds the row"),
            Err(_) => tracing::debug!("a wake was not pushed in time; the sweep finds the row"),
        }
    }
}

/// Waits for wakes, on a connection of its own.
#[cfg(feature = "workers")]
pub(crate) struct Sleeper {
    client: redis::Client,
    connection: Option<MultiplexedConnection>,
}

/// How long one BLPOP waits before it is asked anew: a dead peer is noticed after this.
#[cfg(feature = "workers")]
const POP_SECONDS: f64 = 5.0;

#[cfg(feature = "workers")]
impl Sleeper {
    pub(crate) fn new(url: &Secret) -> Result<Sleeper, Error> {
        let client = redis::Client::open(url.expose()).map_err(|_| Error::Valkey("the URL cannot be read".to_owned()))?;
        Ok(Sleeper { client, connection: None })
    }

    /// Waits for a wake: true when one came, false when none came in five seconds. Further wakes in the list are thrown away.
    pub(crate) async fn wait(&mut self) -> Result<bool, Error> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                // The client's default answer limit of 500 ms would end every BLPOP; the limit here is above its wait.
                let config = AsyncConnectionConfig::new()
                    .set_connection_timeout(Some(Duration::from_secs(1)))
                    .set_response_timeout(Some(Duration::from_secs_f64(POP_SECONDS + 2.0)));
                self.client.get_multiplexed_async_connection_with_config(&config).await.map_err(valkey)?
            }
        };
        // In one go: what came after the pop is deleted, and told as a wake too.
        let (popped, deleted): (Option<(String, redis::Value)>, i64) = redis::pipe()
            .cmd("BLPOP")
            .arg(WAKE_KEY)
            .arg(POP_SECONDS)
            .cmd("DEL")
            .arg(WAKE_KEY)
            .query_async(&mut connection)
            .await
            .map_err(valkey)?;
        self.connection = Some(connection);
        Ok(popped.is_some() || deleted > 0)
    }
}

#[cfg(feature = "workers")]
fn valkey(error: redis::RedisError) -> Error {
    Error::Valkey(match error.code() {
        Some(code) => format!("{} ({code})", error.category()),
        None => error.category().to_owned(),
    })
}
