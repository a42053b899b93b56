//! Pull requests under way on one inbox: what was asked for, what came, and signs of trouble.
//!
//! Written by hand because the library's batches can hang with a heartbeat, and lose a delivery
//! when their future is dropped; its way to drain a subscription loses what is on its way. Here
//! nothing is cancelled: the subscription outlives every turn of the caller's select loop and every
//! reconnect, and each request ends by being filled or by a status.

use std::time::Duration;

use async_nats::{Message, StatusCode, Subscriber};
use futures::StreamExt;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::client::Nats;
use crate::publish::chain;

/// How often the server says that it is there when it has nothing to deliver.
const HEARTBEAT: Duration = Duration::from_millis(900);
/// Silence after which the requests are taken for lost: two and a half heartbeats.
const SILENCE_MAX: Duration = Duration::from_millis(2_250);

/// What arrived on the inbox.
#[derive(Debug)]
pub(crate) enum Signal {
    /// A message of the stream.
    Message(Message),
    /// The server has nothing to deliver now.
    Idle,
    /// A request ended with this many messages undelivered; None means all of them.
    Ended(Option<usize>),
    /// Nothing will come any more on these requests.
    Lost(String),
}

/// Requests on one consumer.
#[derive(Debug)]
pub(crate) struct Requests {
    nats: Nats,
    next_subject: String,
    inbox: String,
    expires: Duration,
    subscriber: Subscriber,
    connections: watch::Receiver<u64>,
    outstanding: usize,
    silent_until: Instant,
    ended: bool,
}

impl Requests {
    /// Subscribes an inbox for requests on `consumer` of `stream` that each live for `expires`.
    pub(crate) async fn open(
        nats: &Nats,
        stream: &str,
        consumer: &str,
        expires: Duration,
    ) -> Result<Self, String> {
        let mut connections = nats.connections();
        connections.mark_unchanged();
        let inbox = nats.client.new_inbox();
        let subscriber = nats
            .client
            .subscribe(inbox.clone())
            .await
            .map_err(|error| chain(&error))?;
        Ok(Self {
            nats: nats.clone(),
            next_subject: format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"),
            inbox,
            expires,
            subscriber,
            connections,
            outstanding: 0,
            silent_until: Instant::now() + SILENCE_MAX,
            ended: false,
        })
    }

    /// Messages asked for and not yet arrived.
    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// True if the subscription is gone, so that a new one is needed.
    pub(crate) fn ended(&self) -> bool {
        self.ended
    }

    /// Asks for `count` more messages.
    pub(crate) async fn ask(&mut self, count: usize) -> Result<(), String> {
        let body = json!({
            "batch": count,
            "expires": nanos(self.expires),
            "idle_heartbeat": nanos(HEARTBEAT),
        });
        let (subject, inbox) = (self.next_subject.clone(), self.inbox.clone());
        let sent = self
            .nats
            .client
            .publish_with_reply(subject, inbox, body.to_string().into())
            .await;
        sent.map_err(|error| chain(&error))?;
        if self.outstanding == 0 {
            self.silent_until = Instant::now() + SILENCE_MAX;
        }
        self.outstanding += count;
        Ok(())
    }

    /// What arrives next. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Signal {
        let waiting = self.outstanding > 0;
        let message = tokio::select! {
            // What is buffered comes first: silence counts only when there is nothing to read.
            biased;
            message = self.subscriber.next() => message,
            changed = self.connections.changed() => {
                return Signal::Lost(match changed {
                    Ok(()) => "the connection was made anew".to_owned(),
                    Err(_) => "the connection is closed".to_owned(),
                });
            }
            () = sleep_until(self.silent_until), if waiting => {
                return Signal::Lost(format!("no sign of the consumer for {SILENCE_MAX:?}"));
            }
        };
        let Some(message) = message else {
            self.ended = true;
            return Signal::Lost("the subscription ended".to_owned());
        };
        self.silent_until = Instant::now() + SILENCE_MAX;
        let signal = signal(message);
        match &signal {
            Signal::Message(_) => self.outstanding = self.outstanding.saturating_sub(1),
            Signal::Ended(Some(unfilled)) => {
                self.outstanding = self.outstanding.saturating_sub(*unfilled);
            }
            Signal::Ended(None) | Signal::Lost(_) => self.outstanding = 0,
            Signal::Idle => {}
        }
        signal
    }

    /// Begins anew on the same inbox after [`Signal::Lost`]. Requests from before may still be
    /// alive on the server: what they bring is a delivery like any other.
    pub(crate) fn reset(&mut self) {
        self.connections.mark_unchanged();
        self.outstanding = 0;
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// What a message on a pull inbox means.
fn signal(message: Message) -> Signal {
    let Some(status) = message.status else {
        return Signal::Message(message);
    };
    let text = message.description.as_deref().unwrap_or_default();
    match status {
        StatusCode::OK => Signal::Message(message),
        StatusCode::IDLE_HEARTBEAT => Signal::Idle,
        StatusCode::NOT_FOUND | StatusCode::TIMEOUT => Signal::Ended(unfilled(&message)),
        StatusCode::REQUEST_TERMINATED if ends_only_the_request(text) => {
            Signal::Ended(unfilled(&message))
        }
        StatusCode::NO_RESPONDERS => Signal::Lost("the consumer is not there".to_owned()),
        other => Signal::Lost(format!("status {other}: {text}")),
    }
}

fn ends_only_the_request(text: &str) -> bool {
    text == "Batch Completed" || text.starts_with("Message Size Exceeds")
}

fn unfilled(message: &Message) -> Option<usize> {
    message
        .headers
        .as_ref()?
        .get("Nats-Pending-Messages")?
        .as_str()
        .parse()
        .ok()
}

/// What the reply subject of a delivered message says about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Delivered {
    /// Sequence in the stream.
    pub(crate) stream_seq: u64,
    /// Sequence in this consumer, counting from 1 without gaps.
    pub(crate) consumer_seq: u64,
    /// Which delivery of the message this is, from 1.
    pub(crate) count: u64,
    /// When the server stored it, unix milliseconds.
    pub(crate) stored_ms: u64,
    /// Messages the consumer still has to deliver after this one.
    pub(crate) pending: u64,
}

impl Delivered {
    /// Reads `$JS.ACK.<stream>.<consumer>.<count>.<seq>.<cseq>.<ns>.<pending>`, or the newer form
    /// with domain and account in front and more tokens behind.
    pub(crate) fn parse(reply: &str) -> Option<Self> {
        let tokens: Vec<&str> = reply.strip_prefix("$JS.ACK.")?.split('.').collect();
        let numbers = match tokens.len() {
            7 => &tokens[2..7],
            9.. => &tokens[4..9],
            _ => return None,
        };
        let number = |at: usize| numbers[at].parse::<u64>().ok();
        Some(Self {
            count: number(0)?,
            stream_seq: number(1)?,
            consumer_seq: number(2)?,
            stored_ms: number(3)? / 1_000_000,
            pending: number(4)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use async_nats::HeaderMap;

    use super::*;

    fn message(status: u16, text: &str, unfilled: Option<&str>) -> Message {
        let headers = unfilled.map(|count| {
            let mut headers = HeaderMap::new();
            headers.insert("Nats-Pending-Messages", count);
            headers
        });
        Message {
            subject: "inbox".into(),
            reply: None,
            payload: Default::default(),
            headers,
            status: (status != 0).then(|| StatusCode::from_u16(status).unwrap()),
            description: Some(text.to_owned()),
            length: 0,
        }
    }

    #[test]
    fn statuses_tell_the_end_of_a_request_from_the_loss_of_the_consumer() {
        let of = |status, text, unfilled| signal(message(status, text, unfilled));
        assert!(matches!(of(0, "", None), Signal::Message(_)));
        assert!(matches!(of(100, "Idle Heartbeat", None), Signal::Idle));
        assert!(matches!(
            of(408, "Request Timeout", Some("7")),
            Signal::Ended(Some(7))
        ));
        assert!(matches!(of(404, "No Messages", None), Signal::Ended(None)));
        assert!(matches!(
            of(409, "Batch Completed", Some("0")),
            Signal::Ended(Some(0))
        ));
        for text in [
            "Consumer Deleted",
            "Leadership Change",
            "Server Shutdown",
            "anything new",
        ] {
            assert!(matches!(of(409, text, None), Signal::Lost(_)), "{text}");
        }
        assert!(matches!(of(503, "", None), Signal::Lost(_)));
    }

    #[test]
    fn both_forms_of_the_reply_subject_are_read() {
        let expected = Delivered {
            stream_seq: 100,
            consumer_seq: 7,
            count: 3,
            stored_ms: 1_790_230_470_084,
            pending: 42,
        };
        for reply in [
            "$JS.ACK.events.durable.3.100.7.1790230470084404000.42",
            "$JS.ACK._.szMpdrwD.events.durable.3.100.7.1790230470084404000.42",
            "$JS.ACK.hub.szMpdrwD.events.durable.3.100.7.1790230470084404000.42.token.more",
        ] {
            assert_eq!(Delivered::parse(reply), Some(expected), "{reply}");
        }
        for reply in [
            "",
            "_INBOX.x",
            "$JS.ACK.a.b.1.2.3.4",
            "$JS.ACK.a.b.1.x.3.4.5",
        ] {
            assert_eq!(Delivered::parse(reply), None, "{reply}");
        }
    }
}
