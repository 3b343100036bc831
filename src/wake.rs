//! Valkey: the only user of its types. A wake is a hint; a lost one costs the relay at most a sweep, never a message.

use std::time::Duration;

use redis::{AsyncConnectionConfig, ErrorKind, aio::MultiplexedConnection};
use tokio::sync::Mutex;

use crate::{
    address,
    error::{Error, explained},
    secret::Secret,
    tls,
};

/// The list that APIs push to after their commit.
pub const WAKE_KEY: &str = "monalisa:outbox:wake";

/// How many wakes the list keeps at most; one is enough.
const LIST_LIMIT: isize = 15;
pub(crate) const TIMEOUT: Duration = Duration::from_millis(500);

/// Pushes wakes. Never fails and never waits longer than half a second, whatever Valkey does.
pub struct Waker {
    client: redis::Client,
    connection: Mutex<Option<MultiplexedConnection>>,
}

impl Waker {
    /// Opens no connection yet. The error does not quote the URL.
    pub fn new(url: &Secret) -> Result<Waker, Error> {
        Ok(Waker { client: client(url).map_err(Error::Valkey)?, connection: Mutex::new(None) })
    }

    /// Wakes the relay. The list stays short, however many push and nobody pops.
    pub async fn wake(&self) {
        if let Err(error) = self.push(TIMEOUT).await {
            tracing::debug!(%error, "a wake was not pushed; the sweep finds the row");
        }
    }

    /// The same within this time; or why Valkey did not take it.
    pub(crate) async fn push(&self, limit: Duration) -> Result<(), Error> {
        let pushed = tokio::time::timeout(limit, async {
            let mut slot = self.connection.lock().await;
            let mut connection = match slot.take() {
                Some(connection) => connection,
                None => connect(&self.client, &AsyncConnectionConfig::new()).await?,
            };
            let mut push = redis::pipe();
            push.cmd("LPUSH").arg(WAKE_KEY).arg(1).ignore();
            push.cmd("LTRIM").arg(WAKE_KEY).arg(0).arg(LIST_LIMIT).ignore();
            push.exec_async(&mut connection).await?;
            *slot = Some(connection);
            redis::RedisResult::Ok(())
        });
        match pushed.await {
            Ok(pushed) => pushed.map_err(valkey),
            Err(_) => Err(Error::Valkey(format!("no answer in {} s", limit.as_secs_f64()))),
        }
    }
}

/// A client of the Valkey at this URL, not connected yet; or why there cannot be one, without the URL.
pub(crate) fn client(url: &Secret) -> Result<redis::Client, String> {
    let shape = |problem: String| format!("{problem}; it has the form rediss://user:password@host:6379/0; {}", address::ENCODE);
    let mut url = address::parse(url.expose(), &["redis", "rediss"]).map_err(shape)?;
    let roots = address::take(&mut url, tls::AUTHORITIES);
    let encrypted = url.scheme() == "rediss";
    let client = match roots {
        Some(_) if !encrypted => return Err(format!("{} goes together with rediss://", tls::AUTHORITIES)),
        None => redis::Client::open(url),
        Some(roots) if roots == "system" => redis::Client::open(url),
        Some(roots) => {
            let root_cert = Some(tls::authorities(&roots)?.1);
            redis::Client::build_with_tls(url, redis::TlsCertificates { client_tls: None, root_cert })
        }
    };
    // What the driver says of a URL may quote it.
    client.map_err(|_| shape("not a URL of Valkey".to_owned()))
}

async fn connect(client: &redis::Client, config: &AsyncConnectionConfig) -> redis::RedisResult<MultiplexedConnection> {
    tls::choose_provider();
    client.get_multiplexed_async_connection_with_config(config).await
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
        Ok(Sleeper { client: client(url).map_err(Error::Valkey)?, connection: None, looks: None, deaf: false })
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
        connect(&self.client, &config).await.map_err(valkey)
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

fn valkey(error: redis::RedisError) -> Error {
    // The code that Valkey answered with; of several commands, of the first one that failed.
    let refused = error.clone().into_server_errors();
    Error::Valkey(match refused.as_ref().and_then(|refused| refused.first()) {
        Some((_, refused)) => format!("{} ({})", error.category(), refused.code()),
        None if matches!(error.kind(), ErrorKind::Io | ErrorKind::Client) => format!("{}: {}", error.category(), explained(&error)),
        None => error.category().to_owned(),
    })
}
