//! PostgreSQL: the address with its TLS mode, and connections with the runtime's own settings.

use std::{fmt, str::FromStr, sync::Arc, time::Duration};

use deadpool_postgres::{Hook, HookError, Manager, ManagerConfig, Pool, RecyclingMethod, Runtime};
use futures_util::future::BoxFuture;
use tokio::{runtime::Handle, task::JoinHandle};
use tokio_postgres::{CancelToken, Client, NoTls, Socket, config::SslMode, error::SqlState, tls::MakeTlsConnect};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::{
    address,
    error::{Error, chain, postgres_text},
    sslmode, tls,
};

/// How long a connection may take to be made, and how long a silent peer is waited for.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The same of each address, where a name or the URL has several: the others have their chance.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(2);
const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);

/// Where PostgreSQL is and how to get there.
#[derive(Clone, Default)]
pub struct Database {
    config: tokio_postgres::Config,
    tls: Option<Arc<rustls::ClientConfig>>,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.label())
    }
}

impl Database {
    /// Reads a `postgres://` URL. `sslmode` is one of the five forms of libpq, `sslrootcert` a file with the authorities to trust.
    /// The error never quotes the URL.
    pub fn parse(text: &str) -> Result<Database, String> {
        let shape = |problem: String| {
            format!("{problem}; it has the form postgres://user:password@host:5432/database?sslmode=verify-full; {}", address::ENCODE)
        };
        let mut url = address::parse(text, &["postgres", "postgresql"]).map_err(shape)?;
        let mode = address::take(&mut url, "sslmode").unwrap_or_else(|| "prefer".to_owned());
        let roots = address::take(&mut url, tls::AUTHORITIES);
        let mut config = tokio_postgres::Config::from_str(url.as_str()).map_err(|problem| shape(chain(&problem)))?;
        config.ssl_mode(match mode.as_str() {
            "disable" => SslMode::Disable,
            "prefer" => SslMode::Prefer,
            "require" | "verify-ca" | "verify-full" => SslMode::Require,
            _ => return Err("sslmode is one of disable, prefer, require, verify-ca, verify-full".to_owned()),
        });
        let verify = match (mode.as_str(), &roots) {
            ("disable", _) => None,
            ("verify-full", _) => Some(sslmode::Verify::Full),
            // As in libpq: with an authority at hand, require checks the chain too.
            ("verify-ca", _) | ("require", Some(_)) => Some(sslmode::Verify::Chain),
            _ => Some(sslmode::Verify::Nothing),
        };
        let tls = verify.map(|verify| sslmode::client(verify, roots.as_deref())).transpose()?.map(Arc::new);
        config
            .connect_timeout(ADDRESS_TIMEOUT)
            .keepalives_idle(Duration::from_secs(10))
            .keepalives_interval(Duration::from_secs(5))
            .keepalives_retries(3)
            .tcp_user_timeout(SILENCE_TIMEOUT);
        Ok(Database { config, tls })
    }

    /// Host, database and user; for messages.
    pub fn label(&self) -> String {
        let hosts: Vec<String> = self
            .config
            .get_hosts()
            .iter()
            .map(|host| match host {
                tokio_postgres::config::Host::Tcp(name) => name.clone(),
                #[cfg(unix)]
                tokio_postgres::config::Host::Unix(path) => path.display().to_string(),
            })
            .collect();
        format!(
            "database {} on {} as {}",
            self.config.get_dbname().or(self.config.get_user()).unwrap_or("?"),
            hosts.join(","),
            self.config.get_user().unwrap_or("?")
        )
    }

    /// One connection outside the pools, for commands; its work runs on the current runtime.
    pub async fn connect(&self, purpose: &str) -> Result<Client, Error> {
        self.open(purpose, PINNED).await
    }

    /// The same for statements of others: names mean what they mean to the role.
    #[cfg(feature = "testing")]
    pub(crate) async fn connect_for_others(&self, purpose: &str) -> Result<Client, Error> {
        self.open(purpose, "").await
    }

    async fn open(&self, purpose: &str, path: &str) -> Result<Client, Error> {
        let mut config = self.config.clone();
        config.application_name(format!("monalisa {purpose}"));
        let driver = Driver { tls: self.tls.clone(), runtime: Handle::current() };
        // The driver's own limit ends with the connection of TCP.
        let opened = tokio::time::timeout(CONNECT_TIMEOUT, async {
            let (client, _) = driver.open(&config).await?;
            client.batch_execute(&format!("{}; {path}", session_settings(Duration::from_secs(60)))).await?;
            Ok(client)
        });
        opened
            .await
            .map_err(|_| self.unreachable(&unanswered()))?
            .map_err(|error: tokio_postgres::Error| self.unreachable(&postgres_text(&error)))
    }

    /// Asks PostgreSQL to end what a session is doing. It may have ended already, or its server may be gone: nothing to cancel then.
    pub(crate) async fn cancel(&self, session: &CancelToken) {
        let cancelled = async {
            match &self.tls {
                None => session.cancel_query(NoTls).await,
                Some(tls) => session.cancel_query(MakeRustlsConnect::new((**tls).clone())).await,
            }
        };
        drop(tokio::time::timeout(CONNECT_TIMEOUT, cancelled).await);
    }

    fn unreachable(&self, reason: &str) -> Error {
        Error::Pool(format!("{}: {reason}", self.label()))
    }

    /// A pool for one purpose. Connections are driven on `runtime`, so that a handler that blocks its thread stops none.
    pub(crate) fn pool(&self, purpose: &'static str, size: usize, idle_in_transaction: Duration, runtime: &Handle) -> Result<Pool, Error> {
        let mut config = self.config.clone();
        config.application_name(format!("monalisa {purpose}"));
        let driver = Driver { tls: self.tls.clone(), runtime: runtime.clone() };
        let manager = Manager::from_connect(config, driver, ManagerConfig { recycling_method: RecyclingMethod::Fast });
        // Handlers write names of their own.
        let path = if ["effect", "record"].contains(&purpose) { "" } else { PINNED };
        let settings = Arc::new(format!("{}; {path}", session_settings(idle_in_transaction)));
        Pool::builder(manager)
            .max_size(size)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(CONNECT_TIMEOUT))
            .create_timeout(Some(CONNECT_TIMEOUT))
            .recycle_timeout(Some(CONNECT_TIMEOUT))
            .post_create(Hook::async_fn(move |client, _| {
                let settings = settings.clone();
                Box::pin(async move {
                    let set = tokio::time::timeout(CONNECT_TIMEOUT, client.batch_execute(&settings)).await;
                    set.map_err(|_| HookError::message(unanswered()))?.map_err(HookError::Backend)
                })
            }))
            .build()
            .map_err(|error| Error::Other(format!("pool {purpose}: {error}")))
    }
}

/// Where somebody may create functions and operators in `public`, none of them is taken for one of PostgreSQL's that fits less exactly.
/// Every other name in our statements has its schema.
const PINNED: &str = "set search_path = pg_catalog, pg_temp";

fn unanswered() -> String {
    format!("no answer in {} s", CONNECT_TIMEOUT.as_secs())
}

/// What each session of the runtime sets, whatever defaults a DBA gave the role.
fn session_settings(idle_in_transaction: Duration) -> String {
    format!(
        "set session characteristics as transaction isolation level read committed; \
         set statement_timeout = '60s'; set lock_timeout = '5s'; \
         set idle_in_transaction_session_timeout = '{}ms'; set timezone = 'UTC'; set client_min_messages = 'warning'; {}",
        idle_in_transaction.as_millis(),
        against_defaults(false)
    )
}

/// Defaults of a DBA that not every server knows, or that may only be raised: a message is deleted after its commit, so that must be on
/// disk; and a transaction takes as long as its handler may.
pub(crate) fn against_defaults(local: bool) -> String {
    format!(
        "select set_config('synchronous_commit', 'on', {local}) where current_setting('synchronous_commit') = 'off'; \
         select set_config('transaction_timeout', '0', {local}) where current_setting('transaction_timeout', true) is not null"
    )
}

/// Opens connections and drives them on the runtime it is given.
struct Driver {
    tls: Option<Arc<rustls::ClientConfig>>,
    runtime: Handle,
}

impl Driver {
    async fn open(&self, config: &tokio_postgres::Config) -> Result<(Client, JoinHandle<()>), tokio_postgres::Error> {
        let Some(tls) = &self.tls else { return self.open_with(config, NoTls).await };
        let encrypted = self.open_with(config, MakeRustlsConnect::new((**tls).clone())).await;
        match encrypted {
            // As libpq: `prefer` goes without where the server lets this user in only so.
            Err(error)
                if config.get_ssl_mode() == SslMode::Prefer && error.code() == Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION) =>
            {
                self.open_with(config.clone().ssl_mode(SslMode::Disable), NoTls).await.map_err(|_| error)
            }
            other => other,
        }
    }

    async fn open_with<T>(&self, config: &tokio_postgres::Config, tls: T) -> Result<(Client, JoinHandle<()>), tokio_postgres::Error>
    where
        T: MakeTlsConnect<Socket>,
        T::Stream: Send + 'static,
    {
        let (client, connection) = config.connect(tls).await?;
        // What a lost connection says reaches whoever uses it; nothing to log here.
        Ok((client, self.runtime.spawn(async move { drop(connection.await) })))
    }
}

impl deadpool_postgres::Connect for Driver {
    fn connect(&self, config: &tokio_postgres::Config) -> BoxFuture<'_, Result<(Client, JoinHandle<()>), tokio_postgres::Error>> {
        let config = config.clone();
        Box::pin(async move { self.open(&config).await })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sslmode_of_libpq_is_understood() {
        for mode in ["disable", "prefer", "require", "verify-ca", "verify-full"] {
            let parsed = Database::parse(&format!("postgres://u@h/d?sslmode={mode}"));
            assert!(parsed.is_ok(), "{mode}: {:?}", parsed.err());
        }
        assert!(Database::parse("postgres://u@h/d?sslmode=allow").is_err());
    }

    #[test]
    fn a_password_with_every_url_character_is_read() {
        let database = Database::parse("postgres://u:p%40s%3As%2Fw%3Fo%23r%25d@h/d").expect("usable");
        assert_eq!(database.config.get_password(), Some("p@s:s/w?o#r%d".as_bytes()));
    }

    #[test]
    fn a_special_character_as_it_is_is_read_or_refused_without_the_password() {
        for odd in (' '..='~').chain("żé漢😀".chars()) {
            for password in [format!("Hunter{odd}zz"), format!("12{odd}Hunter"), format!("{odd}Hunter"), format!("Hunter@{odd}a=b")] {
                match Database::parse(&format!("postgres://u:{password}@h/d?sslmode=require")) {
                    Ok(database) => {
                        assert_eq!(database.config.get_password(), Some(password.as_bytes()));
                        assert_eq!((database.label().as_str(), database.config.get_ssl_mode()), ("database d on h as u", SslMode::Require));
                    }
                    Err(problem) => {
                        assert!("/?#".contains(odd) && problem.contains("%2F") && !problem.contains("Hunter"), "{odd}: {problem}")
                    }
                }
            }
        }
    }
}
