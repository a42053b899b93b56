//! Word that a job has ended, from where it is left to whoever is to hear it: over a real server, and to
//! a real HTTP listener.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap as HttpHeaders, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use common::{World, id, job, start_with, tenant};
use fairlane_producer::Producer;
use fairlane_producer::callbacks::{CallbackError, Callbacks};
use fairlane_runtime::config::{Secret, Settings};
use fairlane_runtime::{Metrics, Shutdown};
use fairlane_support::{LIMIT, eventually, within};
use fairlane_wire::record::{JobRecord, Phase};
use fairlane_wire::{Callback, Ended};
use futures::StreamExt;
use hmac::{Hmac, Mac};
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

const SECRET: &str = "a secret of the two of us";

/// What came to the listener: when it says it was sent, how it was signed, and the body.
type Post = (String, String, String);

/// A listener that turns the first posts away, and a place that nobody may be sent to.
#[derive(Debug, Clone, Default)]
struct Hooks {
    turn_away: usize,
    posts: Arc<Mutex<Vec<Post>>>,
}

impl Hooks {
    /// Listens; returns the address.
    async fn listen(&self) -> String {
        let router = Router::new()
            .route("/hook", axum::routing::post(Self::take))
            .route(
                "/moved",
                axum::routing::post(|| async { Redirect::temporary("/hook") }),
            )
            .with_state(self.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        format!("http://{address}")
    }

    async fn take(State(hooks): State<Self>, headers: HttpHeaders, body: String) -> Response {
        let header = |name: &str| headers[name].to_str().unwrap().to_owned();
        assert_eq!(header("content-type"), "application/json");
        let mut posts = hooks.posts.lock().await;
        posts.push((
            header("fairlane-timestamp"),
            header("fairlane-signature"),
            body,
        ));
        if posts.len() <= hooks.turn_away {
            return StatusCode::SERVICE_UNAVAILABLE.into_response();
        }
        StatusCode::NO_CONTENT.into_response()
    }
}

fn settings(base: &str) -> Settings {
    let mut settings = Settings::default();
    settings.producer.callback_urls = Some(format!("{base}/"));
    settings.producer.callback_secret = Some(Secret::new(SECRET));
    settings
}

/// A producer's part that delivers callbacks.
struct Delivering {
    shutdown: Shutdown,
    task: JoinHandle<anyhow::Result<()>>,
    metrics: Metrics,
}

impl Delivering {
    fn start(world: &World, settings: &Settings) -> Self {
        let metrics = Metrics::new("producer");
        let producer = Producer::new(settings, &world.nats, metrics.clone()).unwrap();
        let callbacks = Callbacks::new(settings, &producer, metrics.clone()).unwrap();
        let shutdown = Shutdown::new();
        let task = tokio::spawn(callbacks.serve(shutdown.clone()));
        Self {
            shutdown,
            task,
            metrics,
        }
    }

    async fn drain(self) {
        self.shutdown.begin();
        let ended = within(LIMIT, "callbacks to drain", self.task).await;
        ended.unwrap().unwrap();
    }

    async fn counts(&self, outcome: &str, count: u32) {
        let line = format!("fairlane_callbacks_total{{outcome=\"{outcome}\"}} {count}");
        eventually(LIMIT, &line, async || {
            let text = self.metrics.render();
            if text.contains(&line) {
                Ok(())
            } else {
                Err(text)
            }
        })
        .await;
    }
}

fn ended(phase: Phase) -> Option<Ended> {
    let record = JobRecord::new(tenant("acme"), id("wp-1"), phase, 1);
    Ended::of(&record, Some(7))
}

async fn waiting(world: &World) -> u64 {
    let stream = world.nats.names.callbacks_stream();
    let mut stream = world.nats.jetstream.get_stream(stream).await.unwrap();
    stream.info().await.unwrap().state.messages
}

async fn gone(world: &World) {
    eventually(LIMIT, "no callbacks", async || match waiting(world).await {
        0 => Ok(()),
        left => Err(format!("{left} are left")),
    })
    .await;
}

#[tokio::test]
async fn a_post_is_signed_and_repeated_until_it_is_taken() {
    let world = World::new().await;
    let hooks = Hooks {
        turn_away: 2,
        ..Hooks::default()
    };
    let base = hooks.listen().await;
    let delivering = Delivering::start(&world, &settings(&base));
    let to = Callback::Url(format!("{base}/hook"));
    world
        .nats
        .call_back(Some(&to), ended(Phase::Done), "7")
        .await;
    delivering.counts("delivered", 1).await;
    gone(&world).await;
    delivering.counts("retried", 2).await;

    let posts = hooks.posts.lock().await.clone();
    assert_eq!(posts.len(), 3, "{posts:?}");
    for (timestamp, signature, body) in posts {
        let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).unwrap();
        mac.update(format!("{timestamp}.{body}").as_bytes());
        let code = mac.finalize().into_bytes();
        let hex: String = code.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(signature, format!("v1={hex}"));
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(
            body,
            json!({"job": "wp-1", "tenant": "acme", "phase": "done", "record": "acme.wp-1", "sequence": 7})
        );
    }
    delivering.drain().await;
}

#[tokio::test]
async fn a_redirect_is_not_followed_and_what_is_not_allowed_any_more_is_dropped() {
    let world = World::new().await;
    let hooks = Hooks::default();
    let base = hooks.listen().await;
    let delivering = Delivering::start(&world, &settings(&base));
    let moved = Callback::Url(format!("{base}/moved"));
    world
        .nats
        .call_back(Some(&moved), ended(Phase::Done), "7")
        .await;
    let elsewhere = Callback::Url("http://127.0.0.1:1/hook".to_owned());
    world
        .nats
        .call_back(Some(&elsewhere), ended(Phase::Done), "8")
        .await;
    delivering.counts("dropped", 1).await;
    delivering.counts("retried", 1).await;
    assert_eq!(hooks.posts.lock().await.len(), 0);
    delivering.drain().await;
}

#[tokio::test]
async fn word_over_nats_comes_once_although_it_was_left_twice() {
    let world = World::new().await;
    let subject = "fl.callback.acme.ended";
    let mut heard = world.nats.client.subscribe(subject).await.unwrap();
    world.nats.client.flush().await.unwrap();
    let to = Callback::Subject(subject.to_owned());
    for _ in 0..2 {
        world
            .nats
            .call_back(Some(&to), ended(Phase::Done), "7")
            .await;
    }
    assert_eq!(waiting(&world).await, 1);
    let delivering = Delivering::start(&world, &Settings::default());
    let message = within(LIMIT, "word", heard.next()).await.unwrap();
    let said: Ended = serde_json::from_slice(&message.payload).unwrap();
    assert_eq!(Some(said), ended(Phase::Done));
    gone(&world).await;
    delivering.drain().await;
}

#[tokio::test]
async fn a_job_that_is_refused_says_so_to_whoever_it_names() {
    let world = World::new().await;
    let subject = "fl.callback.acme.ended";
    let mut heard = world.nats.client.subscribe(subject).await.unwrap();
    world.nats.client.flush().await.unwrap();
    let delivering = Delivering::start(&world, &Settings::default());
    let running = world.start();
    let mut refused = job("wp-2");
    refused["request"]["model"] = "claude-nobody".into();
    refused["callback"] = json!({"subject": subject});
    world.submit(&refused).await;
    let message = within(LIMIT, "word", heard.next()).await.unwrap();
    assert_eq!(
        serde_json::from_slice::<Value>(&message.payload).unwrap(),
        json!({"job": "wp-2", "tenant": "acme", "phase": "failed", "reason": "unknown_model", "record": "acme.wp-2"})
    );
    running.drain().await;
    delivering.drain().await;
}

#[tokio::test]
async fn an_address_that_is_not_allowed_is_refused_and_named() {
    let world = World::new().await;
    let running = start_with(&world.nats, &settings("https://hooks.example"));
    for (name, callback) in [
        ("wp-3", json!({"url": "https://evil.example/"})),
        ("wp-4", json!({"subject": "fl.callback.other.ended"})),
        ("wp-5", json!({"url": "https://hooks.example/a"})),
    ] {
        let mut job = job(name);
        job["callback"] = callback;
        world.submit(&job).await;
    }
    world.settled().await;
    for (name, field, value) in [
        ("wp-3", "callback.url", "https://evil.example/"),
        ("wp-4", "callback.subject", "fl.callback.other.ended"),
    ] {
        let failure = world.record(name).await.unwrap().failure.unwrap();
        assert_eq!(failure.field.as_deref(), Some(field));
        assert!(failure.message.contains(value), "{failure:?}");
        assert!(failure.fix.is_some());
    }
    assert_eq!(
        waiting(&world).await,
        0,
        "nobody is told at such an address"
    );
    let jobs = world.jobs().await;
    assert_eq!(jobs.len(), 1);
    assert_eq!(
        common::get(&jobs[0], "Fl-Callback"),
        Some("url https://hooks.example/a")
    );
    running.drain().await;
}

#[tokio::test]
async fn addresses_without_a_secret_stop_the_start() {
    let world = World::new().await;
    let mut settings = settings("https://hooks.example");
    settings.producer.callback_secret = None;
    let producer = Producer::new(&settings, &world.nats, Metrics::new("producer")).unwrap();
    let new = Callbacks::new(&settings, &producer, Metrics::new("producer"));
    assert!(matches!(new, Err(CallbackError::NoSecret)), "{new:?}");
}
