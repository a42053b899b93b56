//! The HTTP server of a role: `/livez`, `/readyz`, `/metrics`, and whatever the role mounts beside them.
//!
//! Liveness asks one question: do the loops of this process still turn? It never looks at NATS or Claude, because
//! restarting a process does not mend them. Readiness is a list of named conditions, each of which must hold. The server
//! starts before anything is connected, so that a slow NATS does not look like a crash; the role's own routes answer
//! 503 until they are mounted.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::handler::Handler;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{any_service, get};
use axum::{Json, Router};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::drain::Shutdown;
use crate::metrics::Metrics;

/// A loop that has not turned for this long is stuck.
pub const HEARTBEAT_MAX_AGE: Duration = Duration::from_secs(30);

/// The condition that stops holding when the process drains.
const NOT_DRAINING: &str = "not_draining";

/// How long open connections may take to end when the server stops.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// What this process tells about itself. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Health {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    started: Instant,
    heartbeat_max_age: Duration,
    shutdown: Shutdown,
    metrics: Metrics,
    checks: Mutex<BTreeMap<&'static str, bool>>,
    beats: Mutex<Vec<Arc<BeatState>>>,
    mounted: RwLock<Option<Router>>,
}

#[derive(Debug)]
struct BeatState {
    name: &'static str,
    /// Milliseconds after `started`.
    last_ms: AtomicU64,
}

impl Health {
    /// Nothing registered yet: alive, and ready unless draining.
    pub fn new(shutdown: Shutdown, metrics: Metrics) -> Self {
        Self::with_max_age(shutdown, metrics, HEARTBEAT_MAX_AGE)
    }

    fn with_max_age(shutdown: Shutdown, metrics: Metrics, heartbeat_max_age: Duration) -> Self {
        Self {
            shared: Arc::new(Shared {
                started: Instant::now(),
                heartbeat_max_age,
                shutdown,
                metrics,
                checks: Mutex::default(),
                beats: Mutex::default(),
                mounted: RwLock::default(),
            }),
        }
    }

    /// Adds a condition of readiness; it does not hold until it is set. Asking again gives the same condition.
    pub fn check(&self, name: &'static str) -> Check {
        self.shared.checks().entry(name).or_insert(false);
        Check {
            name,
            shared: Arc::clone(&self.shared),
        }
    }

    /// Adds a loop to liveness. It must beat at least every 30 s; dropping the handle ends the watch.
    pub fn heartbeat(&self, name: &'static str) -> Heartbeat {
        let state = Arc::new(BeatState {
            name,
            last_ms: AtomicU64::new(self.shared.now_ms()),
        });
        self.shared.beats().push(Arc::clone(&state));
        Heartbeat {
            state,
            shared: Arc::clone(&self.shared),
        }
    }

    /// Serves `routes` beside the health endpoints from now on, in place of what was mounted before.
    pub fn mount(&self, routes: Router) {
        *self
            .shared
            .mounted
            .write()
            .unwrap_or_else(PoisonError::into_inner) = Some(routes);
    }

    /// Loops that have not turned for too long.
    pub fn late(&self) -> Vec<&'static str> {
        let now_ms = self.shared.now_ms();
        let max_ms = millis(self.shared.heartbeat_max_age);
        self.shared
            .beats()
            .iter()
            .filter(|beat| now_ms.saturating_sub(beat.last_ms.load(Ordering::Relaxed)) > max_ms)
            .map(|beat| beat.name)
            .collect()
    }

    /// All conditions of readiness and whether they hold.
    pub fn checks(&self) -> BTreeMap<&'static str, bool> {
        let mut checks = self.shared.checks().clone();
        checks.insert(NOT_DRAINING, !self.shared.shutdown.is_draining());
        checks
    }

    /// Starts the server; port 0 picks a free one, see [`Server::addr`].
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub async fn serve(&self, addr: SocketAddr) -> io::Result<Server> {
        let listener = TcpListener::bind(addr).await?;
        let addr = listener.local_addr()?;
        let stop = CancellationToken::new();
        let serving = axum::serve(listener, self.router())
            .with_graceful_shutdown(stop.clone().cancelled_owned());
        let task = tokio::spawn(async move { serving.await });
        Ok(Server { addr, stop, task })
    }

    fn router(&self) -> Router {
        Router::new()
            .route("/livez", get(livez))
            .route("/readyz", get(readyz))
            .route("/metrics", get(metrics))
            .fallback(mounted)
            .with_state(self.clone())
    }
}

impl Shared {
    fn now_ms(&self) -> u64 {
        millis(self.started.elapsed())
    }

    // In all three a panic elsewhere cannot leave the value half changed, so poison is ignored.
    fn checks(&self) -> MutexGuard<'_, BTreeMap<&'static str, bool>> {
        self.checks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn beats(&self) -> MutexGuard<'_, Vec<Arc<BeatState>>> {
        self.beats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mounted(&self) -> Option<Router> {
        let mounted = self.mounted.read().unwrap_or_else(PoisonError::into_inner);
        mounted.clone()
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// One condition of readiness.
#[derive(Debug, Clone)]
pub struct Check {
    name: &'static str,
    shared: Arc<Shared>,
}

impl Check {
    /// Says whether the condition holds now.
    pub fn set(&self, holds: bool) {
        self.shared.checks().insert(self.name, holds);
    }
}

/// The sign of life of one loop.
#[derive(Debug)]
pub struct Heartbeat {
    state: Arc<BeatState>,
    shared: Arc<Shared>,
}

impl Heartbeat {
    /// The loop turns.
    pub fn beat(&self) {
        let now_ms = self.shared.now_ms();
        self.state.last_ms.store(now_ms, Ordering::Relaxed);
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.shared
            .beats()
            .retain(|beat| !Arc::ptr_eq(beat, &self.state));
    }
}

/// A running server.
#[derive(Debug)]
#[must_use = "call stop() at the end"]
pub struct Server {
    addr: SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<io::Result<()>>,
}

impl Server {
    /// The address it listens on.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Takes no new connections and waits a moment for open requests to end. What is open after that, such as an event
    /// stream, ends with the process.
    pub async fn stop(mut self) {
        self.stop.cancel();
        match tokio::time::timeout(CLOSE_TIMEOUT, &mut self.task).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error))) => tracing::warn!(%error, "http server ended with an error"),
            Ok(Err(error)) => tracing::warn!(%error, "http server ended with an error"),
            Err(_) => {
                tracing::info!("leaving http connections that are still open");
                self.task.abort();
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn status(good: bool) -> StatusCode {
    if good {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    }
}

async fn livez(State(health): State<Health>) -> Response {
    let late = health.late();
    let body = Json(json!({ "alive": late.is_empty(), "late": late }));
    (status(late.is_empty()), body).into_response()
}

async fn readyz(State(health): State<Health>) -> Response {
    let checks = health.checks();
    let ready = checks.values().all(|holds| *holds);
    let body = Json(json!({ "ready": ready, "checks": checks }));
    (status(ready), body).into_response()
}

async fn metrics(State(health): State<Health>) -> Response {
    let content_type = [(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)];
    (content_type, health.shared.metrics.render()).into_response()
}

async fn mounted(State(health): State<Health>, request: Request) -> Response {
    match health.shared.mounted() {
        Some(routes) => any_service(routes).call(request, ()).await,
        None => {
            let body = Json(json!({ "error": "still starting, or no such path in this role" }));
            (StatusCode::SERVICE_UNAVAILABLE, body).into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    const ANY_PORT: &str = "127.0.0.1:0";

    struct Probe {
        health: Health,
        shutdown: Shutdown,
        server: Server,
    }

    impl Probe {
        async fn with_max_age(max_age: Duration) -> Self {
            crate::crypto::install_crypto();
            let shutdown = Shutdown::new();
            let metrics = Metrics::new("worker");
            let health = Health::with_max_age(shutdown.clone(), metrics, max_age);
            let server = health.serve(ANY_PORT.parse().unwrap()).await.unwrap();
            Self {
                health,
                shutdown,
                server,
            }
        }

        async fn new() -> Self {
            Self::with_max_age(HEARTBEAT_MAX_AGE).await
        }

        async fn get(&self, path: &str) -> (u16, String) {
            let url = format!("http://{}{path}", self.server.addr());
            let answer = reqwest::get(url).await.unwrap();
            (answer.status().as_u16(), answer.text().await.unwrap())
        }

        async fn json(&self, path: &str) -> (u16, Value) {
            let (status, body) = self.get(path).await;
            (status, serde_json::from_str(&body).unwrap())
        }
    }

    #[tokio::test]
    async fn ready_only_while_every_condition_holds() {
        let probe = Probe::new().await;
        let nats = probe.health.check("nats");
        let expected = json!({ "ready": false, "checks": { "nats": false, "not_draining": true } });
        assert_eq!(probe.json("/readyz").await, (503, expected));
        nats.set(true);
        let expected = json!({ "ready": true, "checks": { "nats": true, "not_draining": true } });
        assert_eq!(probe.json("/readyz").await, (200, expected));
        probe.shutdown.begin();
        let expected = json!({ "ready": false, "checks": { "nats": true, "not_draining": false } });
        assert_eq!(probe.json("/readyz").await, (503, expected));
        // A draining process is alive: it must not be restarted while it finishes its jobs.
        assert_eq!(probe.json("/livez").await.0, 200);
        probe.server.stop().await;
    }

    #[tokio::test]
    async fn asking_for_a_condition_again_does_not_unset_it() {
        let probe = Probe::new().await;
        probe.health.check("nats").set(true);
        let _again = probe.health.check("nats");
        assert!(probe.health.checks()["nats"]);
        probe.server.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_is_late_after_thirty_seconds_without_a_beat() {
        let health = Health::new(Shutdown::new(), Metrics::new("worker"));
        let beat = health.heartbeat("loop");
        tokio::time::advance(HEARTBEAT_MAX_AGE).await;
        assert!(health.late().is_empty());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(health.late(), ["loop"]);
        beat.beat();
        assert!(health.late().is_empty());
        tokio::time::advance(HEARTBEAT_MAX_AGE * 2).await;
        drop(beat);
        assert!(health.late().is_empty());
    }

    #[tokio::test]
    async fn a_stuck_loop_is_named_by_livez() {
        let probe = Probe::with_max_age(Duration::ZERO).await;
        let _beat = probe.health.heartbeat("loop");
        // With an age of zero the beat is late as soon as a millisecond has passed.
        let late = async {
            loop {
                let (status, body) = probe.json("/livez").await;
                if status == 503 {
                    return body;
                }
            }
        };
        let body = tokio::time::timeout(Duration::from_secs(10), late)
            .await
            .unwrap();
        assert_eq!(body, json!({ "alive": false, "late": ["loop"] }));
        probe.server.stop().await;
    }

    #[tokio::test]
    async fn metrics_are_prometheus_text() {
        let probe = Probe::new().await;
        let url = format!("http://{}/metrics", probe.server.addr());
        let answer = reqwest::get(url).await.unwrap();
        let content_type = answer.headers()["content-type"].to_str().unwrap();
        assert!(
            content_type.starts_with("text/plain; version=0.0.4"),
            "{content_type}"
        );
        let body = answer.text().await.unwrap();
        assert!(body.contains("fairlane_build_info{"), "{body}");
        probe.server.stop().await;
    }

    #[tokio::test]
    async fn a_roles_own_routes_answer_once_they_are_mounted() {
        let probe = Probe::new().await;
        assert_eq!(probe.get("/v1/jobs").await.0, 503);
        let routes = Router::new().route("/v1/jobs", get(|| async { "jobs" }));
        probe.health.mount(routes);
        assert_eq!(probe.get("/v1/jobs").await, (200, "jobs".to_owned()));
        assert_eq!(probe.get("/nothing").await.0, 404);
        assert_eq!(probe.get("/livez").await.0, 200);
        probe.server.stop().await;
    }

    #[tokio::test]
    async fn stopping_waits_for_open_requests() {
        let probe = Probe::new().await;
        let (arrived, mut arrivals) = tokio::sync::mpsc::channel(1);
        let answered = Arc::new(AtomicU64::new(0));
        let (stopping, done) = (probe.server.stop.clone(), Arc::clone(&answered));
        let slow = get(move || async move {
            arrived.send(()).await.expect("the test is listening");
            stopping.cancelled().await;
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            done.store(1, Ordering::Relaxed);
            "answered"
        });
        probe.health.mount(Router::new().route("/slow", slow));
        let url = format!("http://{}/slow", probe.server.addr());
        let request = tokio::spawn(reqwest::get(url));
        arrivals.recv().await.unwrap();
        probe.server.stop().await;
        assert_eq!(answered.load(Ordering::Relaxed), 1);
        let answer = request.await.unwrap().unwrap();
        assert_eq!(answer.text().await.unwrap(), "answered");
    }

    #[tokio::test]
    async fn a_request_that_never_ends_does_not_hold_up_the_end() {
        let probe = Probe::new().await;
        let (arrived, mut arrivals) = tokio::sync::mpsc::channel(1);
        let forever = get(move || {
            let arrived = arrived.clone();
            async move {
                arrived.send(()).await.expect("the test is listening");
                std::future::pending::<()>().await;
            }
        });
        probe.health.mount(Router::new().route("/forever", forever));
        let url = format!("http://{}/forever", probe.server.addr());
        let request = tokio::spawn(reqwest::get(url));
        arrivals.recv().await.unwrap();
        tokio::time::timeout(CLOSE_TIMEOUT * 5, probe.server.stop())
            .await
            .expect("stop ends by itself");
        request.abort();
    }

    #[tokio::test]
    async fn a_taken_address_is_an_error() {
        let probe = Probe::new().await;
        let error = probe.health.serve(probe.server.addr()).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        probe.server.stop().await;
    }
}
