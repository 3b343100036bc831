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
        self.push().await;
    }

    /// The same; whether Valkey took it.
    pub(crate) async fn push(&self) -> bool {
        let pushed = tokio::time::timeout(TIMEOUT, async {
            let mut slot = self.connection.lock().await;
            let mut connection = match slot.take() {
                Some(connection) => connection,
                None => self.client.get_multiplexed_async_connection().await?,
            };
            let mut push = redis::pipe();
            push.cmd("LPUSH").arg(WAKE_KEY).arg(1).ignore();
            push.cmd("LTRIM").arg(WAKE_KEY).arg(0).arg(LIST_LIMIT).ignore();
            push.exec_async(&mut connection).await?;
            *slot = Some(connection);
            redis::RedisResult::Ok(())
        });
        match pushed.await {
            Ok(Ok(())) => return true,
            Ok(Err(error)) => tracing::debug!(error = error.category(), "a wake was not pushed; the sweep finds the row"),
            Err(_) => tracing::debug!("a wake was not pushed in time; the sweep finds the row"),
        }
        false
    }
}

/// Waits for wakes, on a connection of its own.
#[cfg(feature = "workers")]
pub(crate) struct Sleeper {
    client: redis::Client,
    connection: Option<MultiplexedConnection>,
    /// Another connection, for looks at the key while the first one waits.
    looks: Option<MultiplexedConnection>,
    /// Whether wakes may have been lost since the last answer.
    deaf: bool,
}

/// How long one BLPOP waits before it is asked anew: a dead peer is noticed after this.
#[cfg(feature = "workers")]
const POP_SECONDS: f64 = 5.0;
/// How often the key is looked at meanwhile: where it has got another type, nobody can push, and a BLPOP under way does not see it.
#[cfg(feature = "workers")]
const LOOK: Duration = Duration::from_secs(1);

#[cfg(feature = "workers")]
impl Sleeper {
    pub(crate) fn new(url: &Secret) -> Result<Sleeper, Error> {
        let client = redis::Client::open(url.expose()).map_err(|_| Error::Valkey("the URL cannot be read".to_owned()))?;
        Ok(Sleeper { client, connection: None, looks: None, deaf: false })
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
                let connection = self.connect().await?;
                if self.deaf {
                    self.connection = Some(connection);
                    return Ok(true);
                }
                connection
            }
        };
        let mut looks = match self.looks.take() {
            Some(looks) => looks,
            None => self.connect().await?,
        };
        // In one go: what came after the pop is deleted, and told as a wake too.
        let mut pop = redis::pipe();
        pop.cmd("BLPOP").arg(WAKE_KEY).arg(POP_SECONDS).cmd("DEL").arg(WAKE_KEY);
        let popped = pop.query_async::<(Option<(String, redis::Value)>, i64)>(&mut connection);
        tokio::select! {
            popped = popped => {
                let (popped, deleted) = popped.map_err(valkey)?;
                (self.connection, self.looks) = (Some(connection), Some(looks));
                Ok(popped.is_some() || deleted > 0)
            }
            replaced = replace_other_type(&mut looks) => {
                replaced.map_err(valkey)?;
                // The pop that is given up goes with its connection: on it the next wake would be lost.
                self.looks = Some(looks);
                Ok(true)
            }
        }
    }

    async fn connect(&self) -> Result<MultiplexedConnection, Error> {
        // The client's default answer limit of 500 ms would end every BLPOP; the limit here is above its wait.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(Duration::from_secs(1)))
            .set_response_timeout(Some(Duration::from_secs_f64(POP_SECONDS + 2.0)));
        self.client.get_multiplexed_async_connection_with_config(&config).await.map_err(valkey)
    }
}

/// Ends when the wake key had another type and was deleted: pushes that it refused count as a wake.
#[cfg(feature = "workers")]
async fn replace_other_type(connection: &mut MultiplexedConnection) -> redis::RedisResult<()> {
    loop {
        tokio::time::sleep(LOOK).await;
        let found: String = redis::cmd("TYPE").arg(WAKE_KEY).query_async(connection).await?;
        if found != "list" && found != "none" {
            return redis::cmd("DEL").arg(WAKE_KEY).exec_async(connection).await;
        }
    }
}

#[cfg(feature = "workers")]
fn valkey(error: redis::RedisError) -> Error {
    // The code that Valkey answered with; of several commands, of the first one that failed.
    let refused = error.clone().into_server_errors();
    Error::Valkey(match refused.as_ref().and_then(|refused| refused.first()) {
        Some((_, refused)) => format!("{} ({})", error.category(), refused.code()),
        None => error.category().to_owned(),
    })
}
