//! A Redis of a test's own, whose counters nobody else moves.

use std::{net::TcpListener, path::PathBuf};

use super::{Process, wait_for};

pub struct RedisServer {
    port: u16,
    process: Process,
}

impl RedisServer {
    pub async fn start(options: &[&str]) -> RedisServer {
        RedisServer::start_on(free_port(), options).await
    }

    async fn start_on(port: u16, options: &[&str]) -> RedisServer {
        let program = ["valkey-server", "redis-server"].into_iter().find_map(find).expect("Valkey or Redis is installed");
        let port = port.to_string();
        let mut arguments = vec!["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
        arguments.extend(options);
        let server = RedisServer { port: port.parse().expect("a port"), process: Process::spawn(&program, &arguments, Vec::new()) };
        wait_for("the Redis to accept connections", async || tokio::net::TcpStream::connect(("127.0.0.1", server.port)).await.ok()).await;
        server
    }

    /// SIGSTOP, SIGCONT and their like.
    pub fn signal(&self, name: &str) {
        self.process.signal(name);
    }

    /// kill -9, and the same port again after so long.
    pub async fn restart_after(&mut self, pause: std::time::Duration) {
        self.process.kill();
        tokio::time::sleep(pause).await;
        *self = RedisServer::start_on(self.port, &[]).await;
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub async fn connect(&self) -> redis::aio::MultiplexedConnection {
        redis::Client::open(self.url()).expect("a URL").get_multiplexed_async_connection().await.expect("it answers")
    }
}

/// Below the range from which outgoing connections take theirs, so that none of them is faster.
pub fn free_port() -> u16 {
    loop {
        let port = 12_000 + (uuid::Uuid::new_v4().as_u128() % 8_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

fn find(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// A number of `INFO`, such as `blocked_clients`, or `calls` of `cmdstat_blpop`.
pub async fn info(connection: &mut redis::aio::MultiplexedConnection, name: &str) -> u64 {
    let text: String = redis::cmd("INFO").arg("everything").query_async(connection).await.expect("it answers");
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap_or("0");
    value.trim_start_matches("calls=").split([',', '\r']).next().and_then(|number| number.parse().ok()).expect("a number")
}
