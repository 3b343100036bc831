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
            let mut push = redis::pipe();
            push.cmd("LPUSH").arg(WAKE_KEY).arg(1).ignore();
            push.cmd("LTRIM").arg(WAKE_KEY).arg(0).arg(LIST_LIMIT).ignore();
            match push.exec_async(&mut connection).await {
                // Somebody put another type there, which a relay that waits already does not see.
                Err(error) if code(&error).as_deref() == Some("WRONGTYPE") => {
                    redis::cmd("DEL").arg(WAKE_KEY).exec_async(&mut connection).await?;
                    push.exec_async(&mut connection).await?;
                }
                pushed => pushed?,
            }
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

/// The code that Valkey answered with; of several commands, the first one that failed.
fn code(error: &redis::RedisError) -> Option<String> {
    let refused = error.clone().into_server_errors()?;
    refused.first().map(|(_, refused)| refused.code().to_owned())
}

/// Waits for wakes, on a connection of its own.
#[cfg(feature = "workers")]
pub(crate) struct Sleeper {
    client: redis::Client,
    connection: Option<MultiplexedConnection>,
    /// Whether wakes may have been lost since the last answer.
    deaf: bool,
}

/// How long one BLPOP waits before it is asked anew: a dead peer is noticed after this.
#[cfg(feature = "workers")]
const POP_SECONDS: f64 = 5.0;

#[cfg(feature = "workers")]
impl Sleeper {
    pub(crate) fn new(url: &Secret) -> Result<Sleeper, Error> {
        let client = redis::Client::open(url.expose()).map_err(|_| Error::Valkey("the URL cannot be read".to_owned()))?;
        Ok(Sleeper { client, connection: None, deaf: false })
    }

    /// Waits for a wake: true when one came, false when none came in five seconds. Further wakes in the list are thrown away. The first
    /// connection after one that failed counts as a wake: meanwhile wakes may have met a dead server, or been given to a dead listener.
    pub(crate) async fn wait(&mut self) -> Result<bool, Error> {
        let heard = self.listen().await;
        self.deaf = heard.is_err();
        heard
    }

    async fn listen(&mut self) -> Result<bool, Error> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                // The client's default answer limit of 500 ms would end every BLPOP; the limit here is above its wait.
                let config = AsyncConnectionConfig::new()
                    .set_connection_timeout(Some(Duration::from_secs(1)))
                    .set_response_timeout(Some(Duration::from_secs_f64(POP_SECONDS + 2.0)));
                let connection = self.client.get_multiplexed_async_connection_with_config(&config).await.map_err(valkey)?;
                if self.deaf {
                    self.connection = Some(connection);
                    return Ok(true);
                }
                connection
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
    Error::Valkey(match code(&error) {
        Some(code) => format!("{} ({code})", error.category()),
        None => error.category().to_owned(),
    })
}
