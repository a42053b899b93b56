//! Start and stop of a role, top to bottom.
//!
//! Order of the start: TLS, logs, metrics, signals, health server; then the role connects and spawns its tasks. Order
//! of the end: tasks drain, the server stops (so that probes see the drain), the last traces and metrics are sent.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio_util::task::AbortOnDropHandle;

use crate::config::{self, Settings};
use crate::crypto::install_crypto;
use crate::drain::{Ended, Rule, Shutdown, TaskError, Tasks, listen};
use crate::health::{Health, Server};
use crate::metrics::Metrics;
use crate::telemetry::{self, Telemetry, TelemetryError, Terminal};

/// Grace of roles that hold nothing for long: grants end within seconds.
const SHORT_GRACE: Duration = Duration::from_secs(10);

/// How often the process proves that its event loop turns.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(1);

/// What differs between roles.
#[derive(Debug, Clone)]
pub struct FrameOptions {
    /// Name of the role: `producer`, `scheduler`, `worker` ...
    pub role: &'static str,
    /// Where to serve health and metrics; `None` for not at all.
    pub http_addr: Option<SocketAddr>,
    /// Time between the first signal and stopping at once.
    pub grace: Duration,
    /// Logs and traces.
    pub telemetry: config::Telemetry,
}

impl FrameOptions {
    /// The producer's frame: open calls of the HTTP API get `producer.drain_ms` to end. Submissions end within
    /// seconds.
    pub fn producer(settings: &Settings) -> Self {
        Self {
            grace: Duration::from_millis(settings.producer.drain_ms),
            ..Self::new("producer", settings, settings.producer.http_addr)
        }
    }

    /// The scheduler's frame.
    pub fn scheduler(settings: &Settings) -> Self {
        Self::new("scheduler", settings, settings.scheduler.http_addr)
    }

    /// The worker's frame: running jobs get `worker.drain_ms` to finish.
    pub fn worker(settings: &Settings) -> Self {
        Self {
            grace: Duration::from_millis(settings.worker.drain_ms),
            ..Self::new("worker", settings, settings.worker.http_addr)
        }
    }

    fn new(role: &'static str, settings: &Settings, http_addr: Option<SocketAddr>) -> Self {
        Self {
            role,
            http_addr,
            grace: SHORT_GRACE,
            telemetry: settings.telemetry.clone(),
        }
    }
}

/// Why a process could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Logs or traces.
    #[error("cannot set up telemetry")]
    Telemetry(#[source] TelemetryError),
    /// The health server's address.
    #[error("cannot listen on {addr}")]
    Http {
        /// The address.
        addr: SocketAddr,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Signal handlers.
    #[error("cannot listen for signals")]
    Signals(#[source] io::Error),
}

/// A started process: what every role needs, and the tasks it runs.
///
/// Whatever can fail after the start belongs into a task, connecting included: then probes answer while it goes on, a
/// signal can end it, and its failure is logged, traced and turned into the exit code in one way.
///
/// ```no_run
/// # use fairlane_runtime::{FrameOptions, Frame, Rule, config};
/// # async fn main_of_worker() -> anyhow::Result<()> {
/// let settings = config::load(None, config::process_env(), &[])?.settings;
/// let mut frame = Frame::start(FrameOptions::worker(&settings)).await?;
/// let nats = frame.health.check("nats");
/// let shutdown = frame.shutdown.clone();
/// frame.spawn("credits", Rule::Essential, async move {
///     nats.set(true);
///     shutdown.draining().cancelled().await;
///     Ok(())
/// });
/// frame.run().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Frame {
    /// Name of the role.
    pub role: &'static str,
    /// The metrics of this process.
    pub metrics: Metrics,
    /// Readiness, liveness and HTTP routes.
    pub health: Health,
    /// The two steps of a shutdown.
    pub shutdown: Shutdown,
    tasks: Tasks,
    server: Option<Server>,
    telemetry: Telemetry,
    background: Vec<AbortOnDropHandle<()>>,
}

impl Frame {
    /// Starts everything around the role. Must be called once per process, inside a tokio runtime.
    ///
    /// # Errors
    /// If telemetry, signals or the HTTP address cannot be set up.
    pub async fn start(options: FrameOptions) -> Result<Self, StartError> {
        install_crypto();
        let mut telemetry = telemetry::init(options.role, &options.telemetry, Terminal::detect())
            .map_err(StartError::Telemetry)?;
        let (signals, listening) = listen().map_err(StartError::Signals)?;
        let shutdown = Shutdown::new();
        let metrics = Metrics::new(options.role);
        let health = Health::new(shutdown.clone(), metrics.clone());
        let server = match options.http_addr {
            None => None,
            Some(addr) => {
                let server = health.serve(addr).await;
                Some(server.map_err(|source| StartError::Http { addr, source })?)
            }
        };
        let driving = tokio::spawn(shutdown.clone().drive(signals, options.grace));
        let beating = tokio::spawn(beat(health.clone()));
        telemetry.push(metrics.clone());
        let counting = tokio::spawn(telemetry.count_drops(metrics.clone()));
        let http = server
            .as_ref()
            .map(|server| tracing::field::display(server.addr()));
        let version = env!("CARGO_PKG_VERSION");
        tracing::info!(role = options.role, version, http, "started");
        Ok(Self {
            role: options.role,
            metrics,
            health,
            tasks: Tasks::new(shutdown.clone()),
            shutdown,
            server,
            telemetry,
            background: vec![
                listening,
                AbortOnDropHandle::new(driving),
                AbortOnDropHandle::new(beating),
                AbortOnDropHandle::new(counting),
            ],
        })
    }

    /// The address of the HTTP server, if there is one.
    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.server.as_ref().map(Server::addr)
    }

    /// Adds a task, see [`Tasks::spawn`].
    pub fn spawn(
        &mut self,
        name: &'static str,
        rule: Rule,
        task: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) {
        self.tasks.spawn(name, rule, task);
    }

    /// Runs until every task has ended, then stops the server and sends the last traces.
    ///
    /// # Errors
    /// If an essential task failed. Being cut off at the end of the grace period is not an error: the work was handed
    /// back or will be found.
    pub async fn run(self) -> Result<Ended, TaskError> {
        let ended = self.tasks.run().await;
        self.shutdown.begin();
        if let Some(server) = self.server {
            server.stop().await;
        }
        tracing::info!(role = self.role, "stopped");
        self.telemetry.shutdown().await;
        drop(self.background);
        ended
    }
}

/// Proves that the event loop runs tasks.
async fn beat(health: Health) {
    let heartbeat = health.heartbeat("event_loop");
    let mut every = tokio::time::interval(HEARTBEAT_EVERY);
    loop {
        every.tick().await;
        heartbeat.beat();
    }
}
