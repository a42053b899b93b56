//! A producer at work on a server of its own, and looks at what it left there.

#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test binary uses its part; a test may panic"
)]

use async_nats::HeaderMap;
use bytes::Bytes;
use fairlane_core::{JobId, Priority, TenantId};
use fairlane_nats::embedded::ServerOptions;
use fairlane_nats::jobs::StoredMessage;
use fairlane_nats::objects::ObjectOptions;
use fairlane_nats::records::Records;
use fairlane_nats::{Nats, Revision};
use fairlane_producer::Producer;
use fairlane_runtime::config::Settings;
use fairlane_runtime::{Metrics, Shutdown};
use fairlane_support::{LIMIT, TestNats, eventually, within};
use fairlane_wire::job::key_hash;
use fairlane_wire::letter::Letter;
use fairlane_wire::names::{Namespace, header};
use fairlane_wire::record::JobRecord;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

pub(crate) fn tenant(name: &str) -> TenantId {
    TenantId::parse(name).unwrap()
}

pub(crate) fn id(name: &str) -> JobId {
    JobId::parse(name).unwrap()
}

pub(crate) fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.append(*name, *value);
    }
    headers
}

/// A good submission.
pub(crate) fn job(id: &str) -> Value {
    json!({
        "id": id,
        "origin": "user_action",
        "kind": "tagging",
        "request": {
            "model": "claude-haiku-4-5",
            "max_tokens": 64,
            "messages": [{"role": "user", "content": "five tags, please"}],
        },
    })
}

/// A good submission with a key.
pub(crate) fn keyed(id: &str, key: &str) -> Value {
    let mut job = job(id);
    job["idempotency_key"] = key.into();
    job
}

/// A running producer.
pub(crate) struct Running {
    shutdown: Shutdown,
    task: JoinHandle<()>,
    pub(crate) metrics: Metrics,
}

impl Running {
    pub(crate) async fn drain(self) {
        self.shutdown.begin();
        within(LIMIT, "the producer to drain", self.task)
            .await
            .unwrap();
    }

    /// Ends it as a crash would, at the end of a test.
    pub(crate) fn end(self) {
        self.task.abort();
    }

    pub(crate) async fn stop_now(self) {
        self.shutdown.stop();
        within(LIMIT, "the producer to stop", self.task)
            .await
            .unwrap();
    }
}

/// Starts a producer on a connection.
pub(crate) fn start_with(nats: &Nats, settings: &Settings) -> Running {
    let metrics = Metrics::new("producer");
    let producer = Producer::new(settings, nats, metrics.clone()).unwrap();
    let shutdown = Shutdown::new();
    let asked = shutdown.clone();
    let task = tokio::spawn(async move { producer.serve(&asked).await });
    Running {
        shutdown,
        task,
        metrics,
    }
}

/// A server, and everything a test asks of it.
pub(crate) struct World {
    pub(crate) server: TestNats,
    pub(crate) nats: Nats,
    pub(crate) records: Records,
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with(ServerOptions::default(), &ObjectOptions::default()).await
    }

    pub(crate) async fn with(server: ServerOptions, objects: &ObjectOptions) -> Self {
        let server = TestNats::with(server, objects).await;
        let nats = server.nats.clone();
        let keep = std::time::Duration::from_secs(3_600);
        Self {
            records: Records::new(&nats, keep),
            nats,
            server,
        }
    }

    pub(crate) fn start(&self) -> Running {
        start_with(&self.nats, &Settings::default())
    }

    /// Publishes as anybody could; returns the sequence.
    pub(crate) async fn publish(&self, token: &str, headers: HeaderMap, body: &[u8]) -> u64 {
        let subject = format!("fl.submit.{token}");
        let body = Bytes::copy_from_slice(body);
        let sent = self
            .nats
            .jetstream
            .publish_with_headers(subject, headers, body);
        sent.await.unwrap().await.unwrap().sequence
    }

    pub(crate) async fn submit(&self, body: &Value) -> u64 {
        let body = body.to_string();
        self.publish("acme", HeaderMap::new(), body.as_bytes())
            .await
    }

    async fn count(&self, stream: &str) -> u64 {
        let info = self.nats.jetstream.get_stream(stream).await.unwrap();
        info.cached_info().state.messages
    }

    pub(crate) async fn waiting(&self) -> u64 {
        self.count(&self.nats.names.submit_stream()).await
    }

    /// Waits until every submission was acknowledged.
    pub(crate) async fn settled(&self) {
        eventually(LIMIT, "no submissions", async || {
            match self.waiting().await {
                0 => Ok(()),
                left => Err(format!("{left} are left")),
            }
        })
        .await;
    }

    async fn messages(&self, stream: &str) -> Vec<StoredMessage> {
        let info = self.nats.jetstream.get_stream(stream).await.unwrap();
        let last = info.cached_info().state.last_sequence;
        let mut messages = Vec::new();
        for seq in 1..=last {
            messages.extend(self.nats.jobs().get(stream, seq).await.unwrap());
        }
        messages
    }

    pub(crate) async fn jobs(&self) -> Vec<StoredMessage> {
        self.messages(&self.nats.names.jobs_stream()).await
    }

    pub(crate) async fn letters(&self) -> Vec<StoredMessage> {
        self.messages(&self.nats.names.dlq_stream()).await
    }

    pub(crate) async fn record(&self, job: &str) -> Option<JobRecord> {
        let slot = self.records.get(&tenant("acme"), &id(job)).await.unwrap();
        slot.record
    }

    /// Writes a record as a worker would.
    pub(crate) async fn put_record(&self, record: &JobRecord) {
        let slot = self.records.get(&record.tenant, &record.job).await.unwrap();
        self.records.save(record, slot.revision).await.unwrap();
    }

    // The steps of accepting, one by one, as a producer that then dies.

    pub(crate) async fn take_key(&self, job: &str, key: &str) {
        let keys = self.nats.bucket(&self.nats.names.idem_bucket());
        let value = json!({"job": job}).to_string();
        let name = format!("acme.{}", key_hash(key));
        let life = Some(std::time::Duration::from_secs(3_600));
        keys.put_if(&name, value.into(), Revision::ABSENT, life)
            .await
            .unwrap();
    }

    pub(crate) async fn key_owner(&self, key: &str) -> Option<String> {
        let keys = self.nats.bucket(&self.nats.names.idem_bucket());
        let name = format!("acme.{}", key_hash(key));
        let entry = keys.get(&name).await.unwrap()?;
        let owner: Value = serde_json::from_slice(entry.value()?).unwrap();
        Some(owner["job"].as_str().unwrap().to_owned())
    }

    pub(crate) async fn queue(&self, key: &str, body: &Value) -> u64 {
        let lane = self
            .nats
            .names
            .job_subject(Priority::Critical, &tenant("acme"));
        let message_id = format!("acme:{}", key_hash(key));
        let jobs = self.nats.jobs();
        let stored = jobs.publish(
            &lane,
            Some(&message_id),
            headers(&[("Fl-Job", body["id"].as_str().unwrap())]),
            body.to_string().into(),
        );
        stored.await.unwrap().seq
    }
}

pub(crate) fn get<'a>(message: &'a StoredMessage, name: &str) -> Option<&'a str> {
    message.headers.get(name).map(|value| value.as_str())
}

pub(crate) fn letter_of(message: &StoredMessage) -> Letter {
    serde_json::from_str(get(message, header::LETTER).unwrap()).unwrap()
}

/// Headers beside the record of a job.
pub(crate) async fn record_headers(nats: &Nats, job: &str) -> HeaderMap {
    let bucket = nats.names.status_bucket();
    let key = Namespace::status_key(&tenant("acme"), &id(job));
    let stream = nats
        .jetstream
        .get_stream(format!("KV_{bucket}"))
        .await
        .unwrap();
    let message = stream
        .get_last_raw_message_by_subject(&Namespace::kv_subject(&bucket, &key))
        .await
        .unwrap();
    message.headers
}

/// Publishes with a header block that no client library would write.
pub(crate) async fn publish_raw(world: &World, block: &[u8], body: &[u8]) {
    let address = world.server.url().strip_prefix("nats://").unwrap();
    let mut tcp = TcpStream::connect(address).await.unwrap();
    let (header, all) = (block.len(), block.len() + body.len());
    let connect = "CONNECT {\"verbose\":false,\"headers\":true}\r\n";
    let publish = format!("HPUB fl.submit.acme {header} {all}\r\n");
    let parts = [
        connect.as_bytes(),
        publish.as_bytes(),
        block,
        body,
        b"\r\nPING\r\n",
    ];
    tcp.write_all(&parts.concat()).await.unwrap();
    let answered = async {
        let mut heard = Vec::new();
        while !heard.windows(4).any(|word| word == b"PONG") {
            let count = tcp.read_buf(&mut heard).await.unwrap();
            assert!(count > 0, "{}", heard.escape_ascii());
        }
    };
    within(LIMIT, "the server to take the message", answered).await;
}
