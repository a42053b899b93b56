//! Reading a stream in order, for ever: the machinery under watches and indexes.
//!
//! A private consumer in the server's memory delivers without acks. When anything is wrong (a
//! gap, silence, a reconnect, a leader change) the consumer is thrown away and a new one is made
//! from where the reader says; whoever reads decides what to skip. Restarting is cheap, so there is
//! only this one way to recover.

use std::time::Duration;

use async_nats::Message;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::api;
use crate::client::Nats;
use crate::requests::{Delivered, Requests, Signal};

/// The server forgets a consumer nobody pulls from for this long.
const INACTIVE_NS: u64 = 60_000_000_000;
/// Life of one pull request.
const EXPIRES: Duration = Duration::from_secs(30);
/// Pause before the second attempt to open; doubles up to the maximum.
const RETRY_DELAY_MIN: Duration = Duration::from_millis(50);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(2);
/// How long the first attempt waits for answers; doubles up to the maximum.
const PATIENCE_MIN: Duration = Duration::from_secs(1);
const PATIENCE_MAX: Duration = Duration::from_secs(30);
/// Failed attempts before the log calls it a warning.
const QUIET_ATTEMPTS: u32 = 3;

/// What to read.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) stream: String,
    pub(crate) filter: String,
    pub(crate) headers_only: bool,
    /// Messages under way between server and reader, at most.
    pub(crate) window: usize,
}

/// Which messages to read on (re)opening.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// All that are stored.
    First,
    /// Those with a higher sequence; all, if the stream is another one than before.
    After(u64),
    /// Those stored at this time, in unix milliseconds, or later; likewise.
    Since(u64),
}

/// What happened.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly every step is a message; a box would cost each one an allocation"
)]
pub(crate) enum Step {
    /// Reading begins or begins again. `recreated`: this stream is not the one read before, its
    /// sequences mean something else. `pending`: messages that are waiting.
    Opened { recreated: bool, pending: u64 },
    /// The next message.
    Message(Message, Delivered),
    /// Nothing is waiting.
    Idle,
    /// Reading was interrupted and begins again with the next step.
    Lost,
}

/// A reader of one source.
#[derive(Debug)]
pub(crate) struct Reader {
    nats: Nats,
    source: Source,
    session: Option<Session>,
    /// Creation time and last sequence of the stream when last opened.
    identity: Option<Identity>,
    /// Highest stream sequence delivered.
    last_seq: u64,
}

#[derive(Debug)]
struct Session {
    consumer: String,
    requests: Requests,
    consumer_seq: u64,
}

#[derive(Debug, PartialEq, Eq)]
struct Identity {
    created: String,
}

impl Reader {
    pub(crate) fn new(nats: Nats, source: Source) -> Self {
        Self {
            nats,
            source,
            session: None,
            identity: None,
            last_seq: 0,
        }
    }

    /// Waits for what happens next. `start` says where to begin if reading has to begin (again).
    pub(crate) async fn step(&mut self, start: Start) -> Step {
        if self.session.is_none() {
            return self.open_until_it_works(start).await;
        }
        match self.deliver().await {
            Ok(step) => step,
            Err(reason) => {
                tracing::debug!(stream = %self.source.stream, %reason, "reading is interrupted");
                self.close().await;
                Step::Lost
            }
        }
    }

    /// Deletes the consumer. Nobody waits for the answer: a server on its way down would not give
    /// one, and it forgets the consumer by itself after a while.
    pub(crate) async fn close(&mut self) {
        let Some(session) = self.session.take() else {
            return;
        };
        let stream = &self.source.stream;
        let call = format!("$JS.API.CONSUMER.DELETE.{stream}.{}", session.consumer);
        let nobody = self.nats.client.new_inbox();
        let sent = self
            .nats
            .client
            .publish_with_reply(call, nobody, Bytes::new())
            .await;
        if let Err(error) = sent {
            tracing::debug!(%error, "cannot delete a reader's consumer");
        }
    }

    async fn deliver(&mut self) -> Result<Step, String> {
        let session = self.session.as_mut().ok_or("not open")?;
        loop {
            // Ask again when half of the window has arrived, so that delivery never pauses.
            let outstanding = session.requests.outstanding();
            if outstanding <= self.source.window / 2 {
                session
                    .requests
                    .ask(self.source.window - outstanding)
                    .await?;
            }
            match session.requests.next().await {
                Signal::Message(message) => {
                    let reply = message.reply.as_deref().unwrap_or_default();
                    let delivered = Delivered::parse(reply).ok_or_else(|| {
                        format!("a message came with the reply subject {reply:?}")
                    })?;
                    session.consumer_seq += 1;
                    if delivered.consumer_seq != session.consumer_seq {
                        return Err(format!(
                            "message {} of the consumer is missing",
                            session.consumer_seq
                        ));
                    }
                    self.last_seq = delivered.stream_seq;
                    return Ok(Step::Message(message, delivered));
                }
                Signal::Idle => return Ok(Step::Idle),
                Signal::Ended(_) => {}
                Signal::Lost(reason) => return Err(reason),
            }
        }
    }

    async fn open_until_it_works(&mut self, start: Start) -> Step {
        let mut connections = self.nats.connections();
        let mut delay = RETRY_DELAY_MIN;
        let mut patience = PATIENCE_MIN;
        for attempt in 1_u32.. {
            connections.mark_unchanged();
            let opened = tokio::select! {
                opened = timeout(patience, self.open(start)) => {
                    opened.unwrap_or_else(|_| Err(format!("no answer within {patience:?}")))
                }
                // What was asked on the old connection may never be answered.
                Ok(()) = connections.changed() => continue,
            };
            match opened {
                Ok(step) => return step,
                Err(reason) if attempt <= QUIET_ATTEMPTS => {
                    tracing::debug!(stream = %self.source.stream, %reason, "cannot read yet");
                }
                Err(reason) => {
                    tracing::warn!(stream = %self.source.stream, attempt, %reason, "cannot read");
                }
            }
            tokio::time::sleep(delay.mul_f64(rand::random_range(0.5..1.0))).await;
            delay = (delay * 2).min(RETRY_DELAY_MAX);
            patience = (patience * 2).min(PATIENCE_MAX);
        }
        Step::Lost
    }

    async fn open(&mut self, start: Start) -> Result<Step, String> {
        let stream = &self.source.stream;
        let call = format!("STREAM.INFO.{stream}");
        let info = api::insist(|| api::call::<StreamInfo>(&self.nats, &call, &Value::Null, None));
        let info = info.await.map_err(|error| error.to_string())?;
        let identity = Identity {
            created: info.created,
        };
        // A lower last sequence under the same creation time is a stream restored from a backup.
        let recreated = self
            .identity
            .as_ref()
            .is_some_and(|known| *known != identity)
            || info.state.last_seq < self.last_seq;
        let start = if recreated { Start::First } else { start };
        let consumer = consumer_name(&self.nats.client.new_inbox());
        let mut requests = Requests::open(&self.nats, stream, &consumer, EXPIRES).await?;
        let pending = self.create(&consumer, start).await?;
        requests.ask(self.source.window).await?;
        if recreated {
            self.last_seq = 0;
        }
        self.identity = Some(identity);
        self.session = Some(Session {
            consumer,
            requests,
            consumer_seq: 0,
        });
        Ok(Step::Opened { recreated, pending })
    }

    async fn create(&self, consumer: &str, start: Start) -> Result<u64, String> {
        let Source {
            stream,
            filter,
            headers_only,
            ..
        } = &self.source;
        let mut config = json!({
            "name": consumer,
            "ack_policy": "none",
            "deliver_policy": "all",
            "filter_subject": filter,
            "headers_only": headers_only,
            "inactive_threshold": INACTIVE_NS,
            "mem_storage": true,
            "num_replicas": 1,
            "replay_policy": "instant",
        });
        match start {
            Start::First => {}
            Start::After(seq) => {
                config["deliver_policy"] = "by_start_sequence".into();
                config["opt_start_seq"] = (seq + 1).into();
            }
            Start::Since(unix_ms) => {
                config["deliver_policy"] = "by_start_time".into();
                config["opt_start_time"] = instant(unix_ms).into();
            }
        }
        let call = format!("CONSUMER.CREATE.{stream}.{consumer}.{filter}");
        let body = json!({"stream_name": stream, "config": config, "action": "create"});
        let info: ConsumerInfo = api::call(&self.nats, &call, &body, None)
            .await
            .map_err(|error| error.to_string())?;
        Ok(info.num_pending)
    }
}

#[derive(Deserialize)]
struct StreamInfo {
    created: String,
    state: StreamState,
}

#[derive(Deserialize)]
struct StreamState {
    last_seq: u64,
}

#[derive(Deserialize)]
struct ConsumerInfo {
    #[serde(default)]
    num_pending: u64,
}

/// A time as the server reads it. One too far ahead to be written means the end of all time, and
/// nothing is that late.
fn instant(unix_ms: u64) -> String {
    let known = i64::try_from(unix_ms)
        .ok()
        .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    known.unwrap_or(jiff::Timestamp::MAX).to_string()
}

/// The unique part of an inbox makes a unique consumer name.
fn consumer_name(inbox: &str) -> String {
    let unique = inbox.rsplit('.').next().unwrap_or(inbox);
    format!("fl-{unique}")
}
