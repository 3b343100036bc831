//! A worker without queues: the runtime of attempts, with nothing that brings messages or takes them away.

use std::{
    sync::{Arc, Mutex, OnceLock},
    time::{Duration, Instant},
};

use tokio::{runtime::Runtime, sync::Semaphore};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    config::{Backoff, SqsConfig, Visibility},
    drive::{Pulse, Repeated},
    error::Error,
    ledger::Started,
    pools::{Left, Pools},
    process,
    queue::Queue,
    run::State,
    sqs::Queues,
    unit::Units,
    worker::{
        Wakes, Worker,
        attempt::Attempt,
        holds::Holds,
        outage::Outage,
        seen::Seen,
        settle::Settlers,
        slots::{Permit, Slots},
    },
};

use super::LEASE;

/// As the defaults of a worker.
const BACKOFF: Backoff = Backoff { base: Duration::from_secs(5), max: Duration::from_secs(900) };

/// The runtime of connections: whatever a test or a handler does to its thread, they go on.
pub(super) fn machinery() -> Result<&'static Runtime, Error> {
    static MACHINERY: OnceLock<Option<Runtime>> = OnceLock::new();
    runtime(&MACHINERY, "monalisa")
}

/// The runtime of handlers.
fn handlers() -> Result<&'static Runtime, Error> {
    static HANDLERS: OnceLock<Option<Runtime>> = OnceLock::new();
    runtime(&HANDLERS, "handler")
}

fn runtime(cell: &'static OnceLock<Option<Runtime>>, name: &'static str) -> Result<&'static Runtime, Error> {
    // Made once, whoever is first: one too many could not be dropped in a test's own runtime.
    let made = cell.get_or_init(|| process::runtime(name, process::threads()).ok());
    made.as_ref().ok_or_else(|| Error::Other("no threads for the tests of handlers".to_owned()))
}

/// Does it on the runtime of connections, so that what it opens outlives the test's own runtime.
pub(super) async fn aside<T: Send + 'static>(work: impl Future<Output = Result<T, Error>> + Send + 'static) -> Result<T, Error> {
    machinery()?.spawn(work).await.unwrap_or_else(|ended| Err(Error::Other(ended.to_string())))
}

/// A worker for one or more attempts.
pub(super) async fn make(units: &Units, state: State, pools: Pools) -> Result<Arc<Worker>, Error> {
    // Nothing is ever asked of it.
    let nowhere = SqsConfig {
        region: Some("us-east-1".to_owned()),
        url_prefix: String::new(),
        endpoint: Some("http://127.0.0.1:9".to_owned()),
        local_credentials: true,
        fair_queues: false,
    };
    let sqs = Queues::connect(&nowhere).await;
    Ok(Arc::new(Worker {
        id: "test".to_owned(),
        settlers: Settlers::start(&sqs, &[], drop),
        sqs,
        visibility: Visibility::default(),
        backoff: BACKOFF,
        wait: Duration::from_secs(1),
        state: Arc::new(state),
        slots: Slots::new(units, &Default::default(), &Queue::ALL),
        holds: Holds::default(),
        seen: Seen::default(),
        trouble: Mutex::new(Repeated::new(Duration::from_secs(1))),
        outage: Outage::default(),
        database: Pulse::default(),
        wakes: Wakes::new(None),
        handlers: handlers()?.handle().clone(),
        unsettled: Semaphore::new(1),
        tasks: TaskTracker::new(),
        stops_at: OnceLock::new(),
        stop: CancellationToken::new(),
        cut: CancellationToken::new(),
        given_up: CancellationToken::new(),
        pools,
    }))
}

/// An attempt of a run that was started, and its right to run.
pub(super) async fn attempt(worker: &Arc<Worker>, started: Started, queue: Queue) -> Option<(Attempt, Permit)> {
    let slot = worker.slots.get(&started.unit)?.clone();
    let permit = worker.slots.permit(&started.unit, true).await?;
    let hold = worker.holds.take(queue, String::new(), Instant::now(), LEASE);
    Some((Attempt { worker: worker.clone(), slot, hold, receives: 1, started, left: Left::default() }, permit))
}
