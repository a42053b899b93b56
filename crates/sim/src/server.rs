//! Serving: routes, start, and an end in three steps (no new calls, a grace period, then everything breaks).

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context;
use axum::{
    Router,
    extract::{Request as HttpRequest, State},
    routing::{delete, get, post},
};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::{
    admin,
    call::Call,
    catalog,
    config::SimConfig,
    conn::{Acceptor, Conn},
    failure::Failure,
    fault::{FaultError, FaultSpec},
    log::{CallRecord, Endpoint},
    messages,
    respond::{self, Reply},
    state::{Shared, Stats},
};

/// How often buffered log lines are written to the file.
const FLUSH_EVERY: Duration = Duration::from_millis(50);

/// Serves the simulator on `listener` until `stop`. Then no new connections are accepted, calls in flight get
/// `stop_grace_ms` to finish, what is left is broken off, and the log file is flushed.
///
/// # Errors
/// The configuration is wrong, the log file cannot be opened, or its last lines cannot be written.
pub async fn serve(
    config: SimConfig,
    listener: TcpListener,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    run(Arc::new(Shared::new(config, stop)?), listener).await
}

async fn run(shared: Arc<Shared>, listener: TcpListener) -> anyhow::Result<()> {
    let acceptor = Acceptor {
        listener,
        conns: Arc::clone(&shared.conns),
    };
    let app = routes(Arc::clone(&shared)).into_make_service_with_connect_info::<Conn>();
    let serving = axum::serve(acceptor, app)
        .with_graceful_shutdown(shared.stop.clone().cancelled_owned())
        .into_future();
    let ended = tokio::select! {
        ended = serving => ended.context("serving the simulator"),
        never = break_off_late(&shared) => never,
        never = flush_often(&shared) => never,
    };
    let flushed = shared.flush_log().context("writing the last log lines");
    ended.and(flushed)
}

/// Breaks every connection when the grace period is over. Never ends by itself.
async fn break_off_late(shared: &Shared) -> anyhow::Result<()> {
    shared.stop.cancelled().await;
    tokio::time::sleep(Duration::from_millis(shared.config.stop_grace_ms)).await;
    loop {
        // Again and again: a connection may have been accepted while the others were being broken.
        shared.conns.abort_all();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Writes log lines to the file in small batches. Never ends by itself.
async fn flush_often(shared: &Shared) -> anyhow::Result<()> {
    if shared.config.log_file.is_none() {
        return std::future::pending().await;
    }
    let mut every = tokio::time::interval(FLUSH_EVERY);
    let mut reported = false;
    loop {
        every.tick().await;
        if let Err(error) = shared.flush_log()
            && !reported
        {
            tracing::error!(%error, "cannot write the simulator's log file; lost lines are counted in /sim/stats");
            reported = true;
        }
    }
}

fn routes(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/v1/messages", post(messages::create).fallback(unknown))
        .route(
            "/v1/messages/count_tokens",
            post(messages::count_tokens).fallback(unknown),
        )
        .route("/v1/models", get(catalog::list).fallback(unknown))
        .route("/v1/models/{id}", get(catalog::one).fallback(unknown))
        .route(
            "/sim/faults",
            get(admin::list_faults)
                .post(admin::add_faults)
                .delete(admin::clear_faults),
        )
        .route("/sim/faults/{id}", delete(admin::remove_fault))
        .route("/sim/log", get(admin::log))
        .route("/sim/stats", get(admin::stats))
        .route("/sim/reset", post(admin::reset))
        .route("/sim/health", get(admin::health))
        .fallback(unknown)
        .with_state(shared)
}

/// A path or method that does not exist.
async fn unknown(State(shared): State<Arc<Shared>>, http: HttpRequest) -> Reply {
    let (parts, _body) = http.into_parts();
    let call = Call::begin(shared, Endpoint::Other, &parts);
    let known = matches!(
        parts.uri.path(),
        "/v1/messages" | "/v1/messages/count_tokens" | "/v1/models"
    );
    let failure = if known {
        Failure::new(405, format!("method {} is not allowed here", parts.method))
    } else {
        Failure::new(404, "Not Found")
    };
    respond::failed(call, &failure)
}

/// Starts simulators inside a process.
#[derive(Debug)]
pub struct Sim;

impl Sim {
    /// Starts a simulator on a free loopback port.
    ///
    /// # Errors
    /// As [`serve`], or no port can be opened.
    pub async fn start(config: SimConfig) -> anyhow::Result<SimHandle> {
        let listener = TcpListener::bind(("127.0.0.1", 0))
            .await
            .context("opening a loopback port for the simulator")?;
        let addr = listener
            .local_addr()
            .context("asking for the simulator's port")?;
        let shared = Arc::new(Shared::new(config, CancellationToken::new())?);
        let task = tokio::spawn(run(Arc::clone(&shared), listener));
        Ok(SimHandle { addr, shared, task })
    }
}

/// A simulator that runs in this process. Dropping it stops it without waiting.
#[derive(Debug)]
pub struct SimHandle {
    addr: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<anyhow::Result<()>>,
}

impl SimHandle {
    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The base URL, without a slash at the end.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Every call still in memory, in the order they ended.
    #[must_use]
    pub fn log(&self) -> Vec<CallRecord> {
        self.log_since(0)
    }

    /// The calls after that position.
    #[must_use]
    pub fn log_since(&self, since: u64) -> Vec<CallRecord> {
        self.shared.read_log(since, usize::MAX)
    }

    /// A summary.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// Adds faults and returns their ids; all of them or none.
    ///
    /// # Errors
    /// Names the first value that cannot be used.
    pub fn add_faults(&self, specs: Vec<FaultSpec>) -> Result<Vec<u64>, FaultError> {
        self.shared.add_faults(specs)
    }

    /// Removes every fault.
    pub fn clear_faults(&self) {
        self.shared.remove_faults(None);
    }

    /// Forgets all calls, prompts and cached prefixes, and fills the buckets. Faults stay.
    pub fn reset(&self) {
        self.shared.reset();
    }

    /// Stops it and waits until it has ended.
    ///
    /// # Errors
    /// As [`serve`].
    pub async fn shutdown(mut self) -> anyhow::Result<()> {
        self.shared.stop.cancel();
        (&mut self.task).await.context("the simulator's task")?
    }
}

impl Drop for SimHandle {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}
