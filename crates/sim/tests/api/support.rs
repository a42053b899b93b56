//! A client, and small ways to say what a test sends and expects.

use std::time::Duration;

use fairlane_sim::{CallRecord, Sim, SimConfig, SimHandle};
use reqwest::{Client, RequestBuilder, Response};
use serde_json::{Value, json};

pub(crate) const HAIKU: &str = "claude-haiku-4-5";
/// How long a condition may take to come true. Generous, because machines can be busy.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

pub(crate) struct World {
    pub(crate) sim: SimHandle,
    pub(crate) client: Client,
}

impl World {
    pub(crate) async fn start(config: SimConfig) -> Self {
        // A second installation in the same process is refused and changes nothing.
        let _already = rustls::crypto::ring::default_provider().install_default();
        Self {
            sim: Sim::start(config).await.unwrap(),
            client: Client::builder().no_proxy().build().unwrap(),
        }
    }

    pub(crate) async fn instant() -> Self {
        Self::start(SimConfig::instant()).await
    }

    pub(crate) fn post(&self, path: &str) -> RequestBuilder {
        self.client
            .post(format!("{}{path}", self.sim.url()))
            .header("x-api-key", "sk-test-1234")
            .header("anthropic-version", "2023-06-01")
    }

    pub(crate) fn get(&self, path: &str) -> RequestBuilder {
        self.client
            .get(format!("{}{path}", self.sim.url()))
            .header("x-api-key", "sk-test-1234")
            .header("anthropic-version", "2023-06-01")
    }

    /// Sends one body to the messages endpoint.
    pub(crate) async fn send(&self, body: &Value) -> Response {
        self.post("/v1/messages").json(body).send().await.unwrap()
    }

    /// Sends a prompt and reads the JSON answer.
    pub(crate) async fn ask(&self, text: &str) -> (u16, Value) {
        let response = self.send(&prompt(text)).await;
        (response.status().as_u16(), response.json().await.unwrap())
    }

    /// Sends a prompt as a stream and reads all events.
    pub(crate) async fn stream(&self, text: &str) -> Vec<Value> {
        let response = self.send(&streamed(text)).await;
        assert_eq!(response.status(), 200);
        events(&response.text().await.unwrap())
    }

    /// The last record, once there are `count`.
    pub(crate) async fn record(&self, count: u64) -> CallRecord {
        self.until("the call to be booked", || {
            self.sim.stats().totals.calls >= count
        })
        .await;
        self.sim.log().pop().unwrap()
    }

    pub(crate) async fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let waiting = async {
            while !is_so() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let waited = tokio::time::timeout(LIMIT, waiting).await;
        assert!(waited.is_ok(), "waited {LIMIT:?} for {what}");
    }

    pub(crate) async fn fault(&self, spec: Value) {
        let response = self.post("/sim/faults").json(&spec).send().await.unwrap();
        assert_eq!(response.status(), 200, "{:?}", response.text().await);
    }
}

pub(crate) fn prompt(text: &str) -> Value {
    json!({"model": HAIKU, "max_tokens": 128, "messages": [{"role": "user", "content": text}]})
}

pub(crate) fn streamed(text: &str) -> Value {
    let mut body = prompt(text);
    body["stream"] = true.into();
    body
}

/// Reads whole events; what comes after the last blank line is not one.
pub(crate) fn events(text: &str) -> Vec<Value> {
    text.split_inclusive("\n\n")
        .filter(|event| event.ends_with("\n\n"))
        .map(|event| {
            let data = event.lines().find_map(|line| line.strip_prefix("data: "));
            serde_json::from_str(data.unwrap()).unwrap()
        })
        .collect()
}

pub(crate) fn kinds(events: &[Value]) -> Vec<&str> {
    let mut kinds: Vec<&str> = events
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect();
    kinds.dedup();
    kinds
}

pub(crate) fn header<'a>(response: &'a Response, name: &str) -> Option<&'a str> {
    response.headers().get(name)?.to_str().ok()
}

pub(crate) fn number(response: &Response, name: &str) -> u64 {
    header(response, name)
        .unwrap_or_else(|| panic!("no header {name}"))
        .parse()
        .unwrap()
}
