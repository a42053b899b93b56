//! The HTTP API for programs: the Messages API as official clients speak it, and jobs.
//!
//! A call of the Messages API becomes an ordinary job, so it gets the fairness, the limits and the retries
//! of every other; any producer can take it, any worker run it, and its record says what became of it.
//!
//! | module | what it is | IO |
//! |---|---|---|
//! | `error` | errors as callers of the Claude API know them | none |
//! | `translate` | a call as a submission | none |
//! | `relay`, `replay` | an answer in parts: as it is written, or as if it were | none |
//! | `gate` | how many calls may be open | none |
//! | `keys` | who calls | watches the tenants' records |
//! | `follow` | a job from its submission to its end | NATS |
//! | `frame` | what every call goes through | |
//! | `routes` | all paths, and the OpenAPI document made of the same list | |
//! | `messages`, `batches`, `count`, `models` | what clients of the Claude API call | NATS |
//! | `jobs`, `tenants`, `dead` | what programs of this fleet call | NATS |
//! | `fleet` | all that is going on, at once or as it changes | asks the leader |
//! | `desk` | the part for people who look after the fleet, in a server of somebody else | |
//! | `server` | connections | sockets |

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test may panic"))]

mod batches;
mod count;
mod dead;
mod desk;
mod error;
mod fleet;
mod follow;
mod frame;
mod gate;
mod jobs;
mod keys;
mod messages;
mod models;
mod relay;
mod replay;
mod routes;
mod server;
mod tenants;
mod translate;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use fairlane_core::models::Catalog;
use fairlane_letters::price::Prices;
use fairlane_letters::ready::Judge;
use fairlane_nats::{Nats, Records};
use fairlane_runtime::config::Settings;
use fairlane_runtime::{Shutdown, catalog, install_crypto};
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

pub use error::documented as documented_errors;

use batches::Tallies;
use dead::AnyJudge;
pub use desk::Desk;
use fleet::Feed;
use gate::Gate;
use keys::{Keys, TokensFile};
use server::Server;

/// Connections beyond the calls that may be open: those that are idle.
const IDLE_CONNECTIONS: usize = 1_000;
/// Batches that are taken in at the same time.
const LARGE_AT_ONCE: usize = 2;

/// What all calls share.
#[derive(Debug)]
pub(crate) struct Shared {
    nats: Nats,
    /// Where what operators ask is done; None if this server cannot.
    operators: Option<Nats>,
    /// The setting that would give it the operator's key.
    operators_key: &'static str,
    records: Records,
    keys: Keys,
    gate: Arc<Gate>,
    catalog: Catalog,
    judge: AnyJudge,
    prices: Prices,
    feed: Feed,
    tallies: Tallies,
    /// Who holds one may read a body as large as that of a batch.
    large: Arc<Semaphore>,
    results_keep_ms: u64,
    is_tls: bool,
    wait_max: Duration,
    body_bytes_max: usize,
    origins: Vec<String>,
    /// Address of a trace, with `{trace}` in the place of its id.
    trace_url: Option<String>,
    shutdown: Shutdown,
    /// What goes on after its call: streams, and jobs that are called off.
    tasks: TaskTracker,
}

impl Shared {
    /// What the calls of a process share that is configured so; without TLS.
    ///
    /// # Errors
    /// If the model table cannot be used.
    fn new(
        settings: &Settings,
        nats: &Nats,
        operators: Option<Nats>,
        judge: Arc<dyn Judge + Send + Sync>,
        shutdown: Shutdown,
    ) -> anyhow::Result<Self> {
        let producer = &settings.producer;
        let catalog = catalog(&settings.models).context("the model table")?;
        let origins = producer.api_origins.as_deref().unwrap_or_default();
        let origins = origins
            .split(',')
            .map(|origin| origin.trim().trim_end_matches('/'));
        Ok(Self {
            nats: nats.clone(),
            operators,
            operators_key: "producer.operator_nkey_file",
            records: Records::new(nats, Duration::from_millis(settings.results.keep_ms)),
            keys: Keys::default(),
            prices: Prices::new(catalog.clone()),
            catalog,
            judge: AnyJudge(judge),
            feed: Feed::default(),
            tallies: Tallies::default(),
            large: Arc::new(Semaphore::new(LARGE_AT_ONCE)),
            results_keep_ms: settings.results.keep_ms,
            is_tls: false,
            gate: Gate::new(producer.api_calls_max, producer.api_calls_per_tenant_max),
            wait_max: Duration::from_millis(producer.api_wait_max_ms),
            body_bytes_max: usize::try_from(producer.body_bytes_max).unwrap_or(usize::MAX),
            origins: origins
                .filter(|origin| !origin.is_empty())
                .map(str::to_owned)
                .collect(),
            trace_url: settings.scheduler.console_trace_url.clone(),
            shutdown,
            tasks: TaskTracker::new(),
        })
    }

    /// The connection for what operators ask.
    ///
    /// # Errors
    /// `permission_error` if this server has none.
    pub(crate) fn for_operators(&self) -> error::Result<&Nats> {
        self.operators.as_ref().ok_or_else(|| {
            let text = format!(
                "this server has no right to do that on NATS; set {}, or use the fairlane command",
                self.operators_key
            );
            error::ApiError::new(error::Kind::Permission, text)
        })
    }
}

/// The API of one process.
#[derive(Debug)]
pub struct Api {
    shared: Arc<Shared>,
    server: Server,
    tokens: Option<TokensFile>,
}

impl Api {
    /// Listens on `producer.api_addr`. None if that is not set. What operators ask is done on the connection
    /// `operators`, and refused without one. `judge` says whether a repaired letter would be accepted.
    ///
    /// # Errors
    /// If the address, the certificate or the tokens cannot be used.
    pub async fn bind(
        settings: &Settings,
        nats: &Nats,
        operators: Option<Nats>,
        judge: Arc<dyn Judge + Send + Sync>,
        shutdown: Shutdown,
    ) -> anyhow::Result<Option<Self>> {
        let producer = &settings.producer;
        let Some(addr) = producer.api_addr else {
            return Ok(None);
        };
        install_crypto();
        let tokens = producer.api_tokens_file.clone();
        let tokens = tokens.map(|path| TokensFile::new("producer.api_tokens_file", path));
        let tls = producer.api_tls_cert_file.as_deref();
        let tls = tls.zip(producer.api_tls_key_file.as_deref());
        let connections_max = producer.api_calls_max as usize + IDLE_CONNECTIONS;
        let server = Server::bind(addr, tls, connections_max).await?;
        let mut shared = Shared::new(settings, nats, operators, judge, shutdown)?;
        shared.is_tls = tls.is_some();
        let shared = Arc::new(shared);
        if let Some(tokens) = &tokens {
            shared.keys.read_tokens(tokens)?;
        }
        Ok(Some(Self {
            shared,
            server,
            tokens,
        }))
    }

    /// Where it listens.
    ///
    /// # Errors
    /// If the system does not tell.
    pub fn addr(&self) -> anyhow::Result<SocketAddr> {
        self.server.addr().context("the API has no address")
    }

    /// Serves until the process drains, and lets open calls come to their end.
    pub async fn serve(self) {
        let Self {
            shared,
            server,
            tokens,
        } = self;
        let router = routes::router(&shared);
        let following = shared
            .keys
            .follow_all(&shared.nats, tokens, &shared.shutdown);
        let looking = batches::look_after(shared.clone());
        shared.tasks.spawn(looking);
        let serving = async {
            server.serve(router, &shared.shutdown).await;
            shared.tasks.close();
            shared.tasks.wait().await;
        };
        let mut following = std::pin::pin!(following);
        let mut serving = std::pin::pin!(serving);
        tokio::select! {
            () = &mut serving => {}
            () = &mut following => serving.await,
        }
    }
}

/// Unix milliseconds of this machine's clock.
fn now_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
