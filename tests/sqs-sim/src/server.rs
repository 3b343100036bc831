//! The HTTP server.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream, ToSocketAddrs};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};

use crate::api::{Ending, call};
use crate::calls::Calls;
use crate::error::answer;
use crate::sim::{ACCOUNT, Options, Sim};
use crate::sync::lock;

/// A running server; it stops when dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    sim: Arc<Sim>,
    task: JoinHandle<()>,
}

impl Server {
    /// Starts a server that behaves as AWS does; port 0 takes a free one.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub async fn start(address: impl ToSocketAddrs) -> io::Result<Self> {
        Self::start_with(address, Options::default()).await
    }

    /// Starts a server with these options.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub async fn start_with(address: impl ToSocketAddrs, options: Options) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let sim = Arc::new(Sim::new(address, options));
        let task = tokio::spawn(accept(listener, Arc::clone(&sim)));
        Ok(Self { address, sim, task })
    }

    /// The URL to give an SDK as its endpoint.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The URL of the queue `name`, which need not exist.
    #[must_use]
    pub fn queue_url(&self, name: &str) -> String {
        format!("{}/{ACCOUNT}/{name}", self.endpoint())
    }

    /// Adds one fault rule or an array of them, as `POST /_fault` does.
    ///
    /// # Errors
    /// When the JSON is not such a rule.
    pub fn fault(&self, rules: &str) -> serde_json::Result<()> {
        lock(&self.sim.faults).add(rules.as_bytes())
    }

    /// Takes all fault rules away.
    pub fn clear_faults(&self) {
        lock(&self.sim.faults).clear();
    }

    /// What `GET /_calls` shows.
    #[must_use]
    pub fn calls(&self) -> serde_json::Value {
        serde_json::to_value(&*lock(&self.sim.calls)).unwrap_or_default()
    }

    /// Forgets the calls so far.
    pub fn forget_calls(&self) {
        *lock(&self.sim.calls) = Calls::default();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Serves connections until aborted; they end with it.
async fn accept(listener: TcpListener, sim: Arc<Sim>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection(stream, Arc::clone(&sim)));
                }
                // Out of file handles, most likely: let some connections end.
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(50)).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Serves one connection until it closes or a fault resets it.
async fn connection(stream: TcpStream, sim: Arc<Sim>) {
    // Without it answers would wait for acknowledgements; failing to set it harms nothing else.
    let _ = stream.set_nodelay(true);
    let reset = Arc::new(Notify::new());
    let service = service_fn(|request| {
        let (sim, reset) = (Arc::clone(&sim), Arc::clone(&reset));
        async move { Ok::<_, Infallible>(serve(&sim, request, &reset).await) }
    });
    let mut connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        // A client that goes away is not this server's error.
        _ = &mut connection => {}
        () = reset.notified() => {
            let stream = connection.into_parts().io.into_inner();
            // Closing with unsent data and zero linger sends a reset; without it the client sees a close.
            let _ = stream.set_zero_linger();
        }
    }
}

async fn serve(sim: &Arc<Sim>, request: Request<Incoming>, reset: &Notify) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let Ok(body) = body.collect().await else {
        return status(StatusCode::BAD_REQUEST, "The body could not be read.");
    };
    let body = body.to_bytes();
    match (&head.method, head.uri.path()) {
        (&Method::GET, "/_health") => status(StatusCode::OK, "{}"),
        (&Method::GET, "/_calls") => answer(serde_json::to_vec(&*lock(&sim.calls)).unwrap_or_default()),
        (&Method::DELETE, "/_calls") => {
            *lock(&sim.calls) = Calls::default();
            status(StatusCode::OK, "{}")
        }
        (&Method::GET, "/_fault") => answer(lock(&sim.faults).show()),
        (&Method::POST, "/_fault") => match lock(&sim.faults).add(&body) {
            Ok(()) => status(StatusCode::OK, "{}"),
            Err(error) => status(StatusCode::BAD_REQUEST, &error.to_string()),
        },
        (&Method::DELETE, "/_fault") => {
            lock(&sim.faults).clear();
            status(StatusCode::OK, "{}")
        }
        (&Method::POST, _) => match call(sim, &head.headers, body).await {
            Ending::Answer(response) => response,
            Ending::Reset => {
                reset.notify_one();
                std::future::pending().await
            }
        },
        _ => status(StatusCode::NOT_FOUND, "POST an AWS call, or see /_health, /_calls and /_fault."),
    }
}

fn status(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    let mut response = answer(text.to_owned());
    *response.status_mut() = status;
    response
}
