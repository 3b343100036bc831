//! A PgBouncer of a test's own, in transaction mode: a server connection is lent for a transaction at a time.

use std::path::PathBuf;

use uuid::Uuid;

use super::{pg_server::as_postgres, redis_server::free_port, wait_for};

pub struct PgBouncer {
    port: u16,
    folder: PathBuf,
}

impl PgBouncer {
    /// In front of the database of this URL, for a role; it opens so many connections to it at most.
    pub async fn start(url: &str, role: &str, connections: u32) -> PgBouncer {
        let program = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer", "/usr/local/bin/pgbouncer"]
            .into_iter()
            .find(|path| PathBuf::from(path).is_file());
        let program = program.expect("PgBouncer is installed: scripts/setup does it");
        let target = url::Url::parse(url).expect("a URL");
        let (host, port) = (target.host_str().expect("a host"), target.port().unwrap_or(5432));
        let database = target.path().trim_start_matches('/').to_owned();
        let bouncer =
            PgBouncer { port: free_port(), folder: PathBuf::from(format!("/tmp/monalisa-pgbouncer-{}", Uuid::new_v4().simple())) };
        let folder = bouncer.folder.display();
        as_postgres(&format!(
            "umask 077; mkdir {folder}; echo '\"{role}\" \"\"' > {folder}/users; cat > {folder}/ini <<END
[databases]
{database} = host={host} port={port} dbname={database}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = {connections}
max_client_conn = 500
logfile = {folder}/log
pidfile = {folder}/pid
END
{program} -q -d {folder}/ini",
            bouncer.port
        ));
        wait_for("PgBouncer to accept connections", async || tokio::net::TcpStream::connect(("127.0.0.1", bouncer.port)).await.ok()).await;
        bouncer
    }

    /// The same URL through it.
    pub fn through(&self, url: &str) -> String {
        let mut url = url::Url::parse(url).expect("a URL");
        url.set_host(Some("127.0.0.1"))
            .and_then(|()| url.set_port(Some(self.port)).map_err(|()| url::ParseError::InvalidPort))
            .expect("a port");
        url.into()
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        as_postgres(&format!("kill $(cat {0}/pid); rm -rf {0}", self.folder.display()));
    }
}
