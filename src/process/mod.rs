//! A whole process: its [`boot`] checks, its [`parts`], and the order in which they stop.

mod boot;
mod parts;

use std::{
    any::TypeId,
    sync::{Arc, Mutex, OnceLock},
    time::{Duration, Instant},
};

use tokio::{runtime::Runtime, signal::unix::SignalKind, sync::Semaphore};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    checks,
    config::Config,
    drive::{Pulse, Repeated, drive},
    error::Error,
    health::{self, Health, Phase},
    pools::Pools,
    relay::{Lane, Listener, Relay},
    run::State,
    scheduler::Scheduler,
    sqs::Queues,
    unit::Units,
    units::identity_login_notification_email::Mailer,
    wake::{Sleeper, Waker},
    worker::{
        Wakes, Worker,
        holds::{Heart, Holds},
        outage::Outage,
        poll::Poller,
        repair::Repairer,
        seen::Seen,
        settle::Settlers,
    },
};

pub(crate) use boot::{Configured, configure};
use boot::{check_surroundings, worker_id};
use parts::Parts;

/// What of the stop budget is kept for giving back, settling and closing after the drain.
const STOP_RESERVE: Duration = Duration::from_secs(5);
/// How long a stopping process tries to reach PostgreSQL after the drain; part of that reserve.
const LAST_PATIENCE: Duration = Duration::from_secs(3);
/// Messages of runs that ended, of which SQS is not told yet, before slots wait for it.
const MOST_UNSETTLED: usize = 1_000;
/// Longest pause of a part after errors.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The same of the listener for wakes: a wake that comes meanwhile is answered within two seconds.
const LONGEST_DEAFNESS: Duration = Duration::from_millis(1_500);

/// Threads for handlers at most.
const MOST_THREADS: usize = 256;

/// Runs the workers until SIGTERM or SIGINT.
pub(crate) fn work(state: State, units: Units) -> Result<(), Error> {
    let machinery = runtime("monalisa", threads())?;
    let configured = machinery.block_on(async { configure(&units) })?;
    // A handler that blocks its thread, as it should not, holds up no other.
    let handlers = runtime("handler", configured.slots.total().clamp(threads(), MOST_THREADS))?;
    let done = machinery.block_on(run(state, units, configured, &handlers));
    // A handler that blocks its thread must not hold up the exit.
    handlers.shutdown_background();
    machinery.shutdown_background();
    done
}

/// As many threads as it takes to use the processors.
pub(crate) fn threads() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from).clamp(2, 8)
}

pub(crate) fn runtime(name: &'static str, threads: usize) -> Result<Runtime, Error> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name(name)
        .enable_all()
        .build()
        .map_err(|error| Error::Other(format!("no threads: {error}")))
}

async fn run(state: State, units: Units, configured: Configured, handlers: &Runtime) -> Result<(), Error> {
    let mut signals = Signals::new()?;
    let process = tokio::select! {
        started = Process::start(state, &units, configured, handlers) => started?,
        () = signals.next() => {
            tracing::info!("stopped before it was ready");
            return Ok(());
        }
    };
    tokio::select! {
        () = signals.next() => {}
        () = process.parts.died.cancelled() => return Err(Error::Other("a part of the process died; its last log line says which".to_owned())),
    }
    let budget = process.config.stop_timeout;
    tracing::info!(
        budget_ms = budget.as_millis() as u64,
        long_poll_ms = process.config.wait.as_millis() as u64,
        "stopping: nothing new is received or started; a long poll under way is waited for, a second signal exits at once"
    );
    process.health.set(Phase::Draining);
    let early = tokio::select! {
        () = process.drain() => {
            tracing::info!("stopped");
            return Ok(());
        }
        () = signals.next() => "a second signal",
        () = tokio::time::sleep(budget) => "the stop budget is used up",
    };
    tracing::error!("{early}: exiting at once; leases lapse and their runs are taken over");
    Ok(())
}

/// What runs, and how to stop it.
struct Process {
    config: Config,
    worker: Arc<Worker>,
    parts: Parts,
    health: Arc<Health>,
    pollers: TaskTracker,
    background: TaskTracker,
    stop_relay: CancellationToken,
    stop_beats: CancellationToken,
}

impl Process {
    /// Checks what it was told against what is there, then starts every part.
    async fn start(mut state: State, units: &Units, configured: Configured, handlers: &Runtime) -> Result<Process, Error> {
        let Configured { config, slots, plan, mailer } = configured;
        for warning in &config.warnings {
            tracing::warn!("{warning}");
        }
        if let Some(warning) = checks::of_mail(mailer.is_configured()) {
            tracing::warn!("{warning}");
        }
        state.insert(TypeId::of::<Mailer>(), Arc::new(mailer));
        let listener = health::bind(config.health_port).await?;
        let health_port = listener.local_addr().map_or(config.health_port, |address| address.port());
        let parts = Parts::new(&config, plan.relay);
        let health = Health::new(parts.bounds(&config));
        tokio::spawn(parts.loud("health", health::serve(health.clone(), listener)));
        let sqs = Queues::connect(&config.sqs).await;
        check_surroundings(&config, plan, &sqs, units).await?;

        let longest = slots.longest_timeout();
        let machinery = tokio::runtime::Handle::current();
        let pools = Pools::new(&config.database, plan, config.relay_settings.send_timeout, longest, &machinery)?;
        let background = TaskTracker::new();
        let worker = Arc::new(Worker {
            id: worker_id(),
            sqs: sqs.clone(),
            visibility: config.visibility,
            backoff: config.backoff,
            wait: config.wait,
            state: Arc::new(state),
            slots,
            holds: Holds::default(),
            seen: Seen::default(),
            settlers: Settlers::start(&sqs, &config.queues, |settler| drop(tokio::spawn(parts.loud("settler", settler)))),
            trouble: Mutex::new(Repeated::new(Duration::from_secs(1))),
            outage: Outage::default(),
            database: parts.pulse("database"),
            wakes: Wakes::new(config.valkey.as_ref().map(Waker::new).transpose()?),
            handlers: handlers.handle().clone(),
            unsettled: Semaphore::new(MOST_UNSETTLED),
            tasks: TaskTracker::new(),
            stops_at: OnceLock::new(),
            stop: CancellationToken::new(),
            cut: CancellationToken::new(),
            given_up: CancellationToken::new(),
            pools,
        });
        let process = Process {
            worker,
            parts,
            health,
            background,
            pollers: TaskTracker::new(),
            stop_relay: CancellationToken::new(),
            stop_beats: CancellationToken::new(),
            config,
        };
        if process.config.relay {
            process.start_relay(plan.relay)?;
        }
        if process.config.local_scheduler {
            let scheduler = Scheduler::new(process.worker.clone());
            let driven = drive(scheduler, process.worker.stop.clone(), process.parts.pulse("scheduler"), LONGEST_PAUSE);
            process.background.spawn(process.parts.loud("scheduler", driven));
        }
        process.start_workers();
        process.health.set(Phase::Ready);
        tracing::info!(
            worker = process.worker.id,
            queues = process.config.queues.iter().map(|queue| queue.as_str()).collect::<Vec<_>>().join(","),
            relay = process.config.relay,
            scheduler = process.config.local_scheduler,
            slots = process.worker.slots.total(),
            health_port,
            database = process.config.database.label(),
            "ready"
        );
        Ok(process)
    }

    /// A poller and a heartbeat for each queue.
    fn start_workers(&self) {
        let worker = &self.worker;
        for queue in self.config.queues.iter().copied() {
            let poller = Poller { worker: worker.clone(), queue, freed: worker.slots.freed.subscribe() };
            let driven = drive(poller, worker.stop.clone(), self.parts.pulse(&format!("poller:{queue}")), LONGEST_PAUSE);
            self.pollers.spawn(self.parts.loud("poller", driven));
            let heart = Heart { worker: worker.clone(), queue, stopping: false };
            let limit = (self.config.visibility.of(queue) / 6).min(LONGEST_PAUSE);
            let driven = drive(heart, self.stop_beats.clone(), self.parts.pulse(&format!("heartbeat:{queue}")), limit);
            self.background.spawn(self.parts.loud("heartbeat", driven));
        }
    }

    /// The loops of the relay, the one that listens for wakes, and the one that repairs.
    fn start_relay(&self, connections: usize) -> Result<(), Error> {
        let (config, worker, stop) = (&self.config, &self.worker, &self.stop_relay);
        for queues in Relay::lanes(connections) {
            let pulse = self.parts.pulse(&Relay::lane_name(&queues));
            let relay = Relay::new(worker.pools.clone(), worker.sqs.clone(), config.relay_settings, config.sqs.fair_queues, queues);
            let lane = Lane { relay, woken: worker.wakes.local.subscribe() };
            let driven = drive(lane, stop.clone(), pulse, LONGEST_PAUSE);
            self.background.spawn(self.parts.loud("relay", driven));
        }
        let repairer = Repairer::new(worker.clone(), config.repair_after);
        let driven = drive(repairer, worker.stop.clone(), Pulse::default(), LONGEST_PAUSE);
        self.background.spawn(self.parts.loud("repair", driven));
        if let Some(url) = &config.valkey {
            let listener = Listener { sleeper: Sleeper::new(url)?, wake: worker.wakes.local.clone() };
            let listening = drive(listener, stop.clone(), Pulse::default(), LONGEST_DEAFNESS);
            let stop = stop.clone();
            self.background.spawn(self.parts.loud("wake", async move {
                tokio::select! {
                    () = listening => {}
                    // A wake that is popped and lost costs a sweep at most.
                    () = stop.cancelled() => {}
                }
            }));
        }
        Ok(())
    }

    /// Receives end first, then attempts (in their budget, then cut), then what is settled, then heartbeats; the relay goes last.
    async fn drain(&self) {
        let worker = &self.worker;
        let began = Instant::now();
        let cut_at = began + self.config.stop_timeout.saturating_sub(STOP_RESERVE);
        let _ = worker.stops_at.set(began + self.config.stop_timeout);
        worker.stop.cancel();
        self.pollers.close();
        worker.tasks.close();
        let ended = async || {
            self.pollers.wait().await;
            worker.tasks.wait().await;
        };
        if tokio::time::timeout_at(cut_at.into(), ended()).await.is_err() {
            tracing::warn!(messages = worker.holds.count(), "the drain is over: what is unfinished is given back");
            worker.cut.cancel();
            if tokio::time::timeout(LAST_PATIENCE, ended()).await.is_err() {
                worker.given_up.cancel();
                ended().await;
            }
        }
        // Other processes carry what was given back here.
        tokio::join!(worker.settlers.flush(), worker.wakes.last());
        self.stop_beats.cancel();
        if self.config.relay {
            self.carry_the_rest().await;
        }
        self.stop_relay.cancel();
        self.background.close();
        // Settlers have nothing left and end with the worker itself. A pass of the relay that is cut off leaves its rows pending.
        let _ = tokio::time::timeout(Duration::from_secs(1), self.background.wait()).await;
    }

    /// Two more rounds of the relay carry what was just given back: one may have begun before.
    async fn carry_the_rest(&self) {
        for _ in 0..2 {
            let before: Vec<u64> = self.parts.relays().map(Pulse::beats).collect();
            self.worker.wakes.local.send_replace(());
            let round = async {
                while self.parts.relays().map(Pulse::beats).zip(&before).any(|(beats, before)| beats == *before) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            let _ = tokio::time::timeout(Duration::from_millis(500), round).await;
        }
    }
}

struct Signals {
    term: tokio::signal::unix::Signal,
    int: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> Result<Signals, Error> {
        let listen = |kind| tokio::signal::unix::signal(kind).map_err(|error| Error::Other(format!("signals: {error}")));
        Ok(Signals { term: listen(SignalKind::terminate())?, int: listen(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.int.recv() => {}
        }
    }
}
