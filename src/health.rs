//! `/healthz` for readiness, `/livez` for liveness. Neither touches PostgreSQL, SQS or Valkey: they read what the parts left behind.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use serde_json::{Map, Value, json};
use warp::{Filter, http::StatusCode};

use crate::{drive::Pulse, error::Error};

/// How far the process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    Starting,
    Ready,
    Draining,
}

/// The parts of a process and when each last made progress.
pub(crate) struct Health {
    phase: AtomicU8,
    parts: Vec<(String, Pulse, Duration)>,
}

impl Health {
    /// `parts`: name, pulse, and how old the pulse may be.
    pub(crate) fn new(parts: Vec<(String, Pulse, Duration)>) -> Arc<Health> {
        Arc::new(Health { phase: AtomicU8::new(Phase::Starting as u8), parts })
    }

    pub(crate) fn set(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    /// Whether it is ready, and what to say.
    fn report(&self) -> (bool, Value) {
        let phase = self.phase.load(Ordering::Relaxed);
        let mut ready = phase == Phase::Ready as u8;
        let mut parts = Map::new();
        for (name, pulse, bound) in &self.parts {
            let (age, error) = pulse.read();
            let fine = age.is_some_and(|age| age <= *bound);
            ready &= fine;
            parts.insert(
                name.clone(),
                json!({
                    "ok": fine,
                    "secondsSinceProgress": age.map(|age| (age.as_secs_f64() * 10.0).round() / 10.0),
                    "boundSeconds": bound.as_secs(),
                    "error": error,
                }),
            );
        }
        let phase = match phase {
            0 => "starting",
            1 => "ready",
            _ => "draining",
        };
        (ready, json!({ "status": if ready { "ok" } else { "unavailable" }, "phase": phase, "parts": parts }))
    }
}

/// Binds the port; the error names it.
pub(crate) async fn bind(port: u16) -> Result<tokio::net::TcpListener, Error> {
    tokio::net::TcpListener::bind(SocketAddr::from(([0, 0, 0, 0], port)))
        .await
        .map_err(|error| Error::Config(format!("MONALISA_HEALTH_PORT {port} cannot be listened on: {error}; another process, or one that still drains, has it: wait for that, or choose another")))
}

/// Serves until the process exits, which does not wait for connections that stay open.
pub(crate) async fn serve(health: Arc<Health>, listener: tokio::net::TcpListener) {
    let healthz = warp::path!("healthz").and(warp::get()).map(move || {
        let (ready, report) = health.report();
        let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        warp::reply::with_status(warp::reply::json(&report), status)
    });
    let livez = warp::path!("livez").and(warp::get()).map(|| warp::reply::json(&json!({ "status": "ok" })));
    warp::serve(healthz.or(livez)).incoming(listener).run().await;
}
