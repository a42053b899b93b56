//! Taking work from a durable consumer: bounded, never cancelled, acknowledged for certain.
//!
//! - At most `in_flight_max` deliveries are under way; a slot comes back when its [`Delivery`]
//!   is dropped. The puller asks only for what it has slots for.
//! - Each message is reported as in progress the moment it arrives. Without that, a server that
//!   restarts would deliver a message again at once if it had waited in the queue for longer than
//!   the ack wait.
//! - An ack is a request. The library's acks look successful when nobody takes them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_nats::{HeaderMap, Message, RequestErrorKind};
use bytes::Bytes;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;

use crate::client::Nats;
use crate::publish::chain;
use crate::requests::{Delivered, Requests, Signal};

/// Pause after the requests were lost, jittered.
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// Life of one pull request. Short, because a request cannot be taken back: stopping waits for it
/// to end, so that no message is sent to somebody who is gone.
const EXPIRES: Duration = Duration::from_secs(2);
/// How long stopping waits for the last requests to end.
const DRAIN_MAX: Duration = Duration::from_secs(4);

/// How much a puller takes.
#[derive(Debug, Clone, Copy)]
pub struct PullOptions {
    /// Deliveries under way at once, at least 1.
    pub in_flight_max: usize,
}

impl Default for PullOptions {
    fn default() -> Self {
        Self { in_flight_max: 256 }
    }
}

/// Why an acknowledgement may not count. The message will then be delivered again.
#[derive(Debug, thiserror::Error)]
pub enum AckError {
    #[error(
        "message {seq}: nobody took the acknowledgement; the consumer is gone or was made anew"
    )]
    NotTaken { seq: u64 },
    #[error("message {seq}: no answer to the acknowledgement in time; it may or may not count")]
    Unknown { seq: u64 },
    #[error("message {seq}: the acknowledgement could not be sent: {text}")]
    NotSent { seq: u64, text: String },
}

/// A message handed out by a consumer. Dropping it without an answer leaves it to the ack wait.
#[derive(Debug)]
pub struct Delivery {
    /// Sequence in the stream.
    pub seq: u64,
    /// Subject it was published to.
    pub subject: String,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub payload: Bytes,
    /// Which delivery of this message it is, from 1.
    pub count: u64,
    /// When the server stored it, unix milliseconds.
    pub stored_ms: u64,
    reply: String,
    nats: Nats,
    _slot: Slot,
}

impl Delivery {
    /// Done: the message leaves the queue. Returns when the server has said so.
    ///
    /// # Errors
    /// [`AckError`].
    pub async fn ack(&self) -> Result<(), AckError> {
        self.answer("+ACK".into()).await
    }

    /// Hopeless: the message leaves the queue and the server announces why.
    ///
    /// # Errors
    /// [`AckError`].
    pub async fn term(&self, reason: &str) -> Result<(), AckError> {
        self.answer(format!("+TERM {reason}")).await
    }

    /// Not now: deliver it again after `delay`.
    ///
    /// # Errors
    /// [`AckError`].
    pub async fn nak(&self, delay: Duration) -> Result<(), AckError> {
        self.answer(nak(delay)).await
    }

    /// Still at it: starts the ack wait anew. Unchecked, to be repeated well within the ack wait.
    ///
    /// # Errors
    /// [`AckError::NotSent`].
    pub async fn progress(&self) -> Result<(), AckError> {
        progress(&self.nats, &self.reply)
            .await
            .map_err(|text| AckError::NotSent {
                seq: self.seq,
                text,
            })
    }

    async fn answer(&self, answer: String) -> Result<(), AckError> {
        let seq = self.seq;
        match self
            .nats
            .client
            .request(self.reply.clone(), answer.into())
            .await
        {
            Ok(_) => Ok(()),
            Err(error) => Err(match error.kind() {
                RequestErrorKind::NoResponders => AckError::NotTaken { seq },
                RequestErrorKind::TimedOut => AckError::Unknown { seq },
                RequestErrorKind::InvalidSubject
                | RequestErrorKind::MaxPayloadExceeded
                | RequestErrorKind::Other => AckError::NotSent {
                    seq,
                    text: chain(&error),
                },
            }),
        }
    }
}

fn nak(delay: Duration) -> String {
    if delay.is_zero() {
        return "-NAK".to_owned();
    }
    format!(r#"-NAK {{"delay":{}}}"#, delay.as_nanos())
}

async fn progress(nats: &Nats, reply: &str) -> Result<(), String> {
    let sent = nats.client.publish(reply.to_owned(), "+WPI".into()).await;
    sent.map_err(|error| chain(&error))
}

/// Makes the server deliver a message again at once. Unchecked: the ack wait does the same later.
async fn hand_back(nats: &Nats, reply: String) {
    let nak = nak(Duration::ZERO);
    if let Err(error) = nats.client.publish(reply, nak.into()).await {
        tracing::debug!(%error, "cannot hand back a message; the ack wait will");
    }
}

/// Counts deliveries under way.
#[derive(Debug, Default)]
struct Slots {
    used: AtomicUsize,
    freed: Notify,
}

/// One delivery under way; gives itself back.
#[derive(Debug)]
struct Slot(Arc<Slots>);

impl Slot {
    fn take(slots: &Arc<Slots>) -> Self {
        slots.used.fetch_add(1, Ordering::Relaxed);
        Self(slots.clone())
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.used.fetch_sub(1, Ordering::Relaxed);
        self.0.freed.notify_one();
    }
}

/// A running puller.
#[derive(Debug)]
pub struct Puller {
    deliveries: mpsc::Receiver<Delivery>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Puller {
    /// Begins to take work from the durable `consumer` of `stream`.
    #[must_use]
    pub fn start(nats: &Nats, stream: &str, consumer: &str, options: PullOptions) -> Self {
        let in_flight_max = options.in_flight_max.max(1);
        let (sender, deliveries) = mpsc::channel(in_flight_max);
        let (stop, stopped) = watch::channel(false);
        let pull = Pull {
            nats: nats.clone(),
            stream: stream.to_owned(),
            consumer: consumer.to_owned(),
            in_flight_max,
            slots: Arc::default(),
            sender,
            stopped,
        };
        Self {
            deliveries,
            stop,
            task: tokio::spawn(pull.run()),
        }
    }

    /// The next delivery; None after [`Puller::drain`]. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Delivery> {
        self.deliveries.recv().await
    }

    /// Stops asking for work and hands back, for immediate redelivery elsewhere, whatever was not
    /// taken with [`Puller::next`]. Deliveries already taken stay valid. Takes up to the life of a
    /// pull request, 2 s. Returns how many went back.
    pub async fn drain(mut self) -> usize {
        self.stop.send_replace(true);
        // Handed back only after the last request has ended: it would bring them again.
        let mut rest = Vec::new();
        while let Some(delivery) = self.deliveries.recv().await {
            rest.push(delivery);
        }
        for delivery in &rest {
            hand_back(&delivery.nats, delivery.reply.clone()).await;
        }
        // The process may end right after this.
        if let Some(delivery) = rest.first() {
            let flushed = tokio::time::timeout(DRAIN_MAX, delivery.nats.client.flush()).await;
            tracing::debug!(
                ?flushed,
                count = rest.len(),
                "handed back what was not taken"
            );
        }
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the puller ended badly");
        }
        rest.len()
    }
}

/// The task behind a puller.
struct Pull {
    nats: Nats,
    stream: String,
    consumer: String,
    in_flight_max: usize,
    slots: Arc<Slots>,
    sender: mpsc::Sender<Delivery>,
    stopped: watch::Receiver<bool>,
}

/// Why a round of pulling ended.
enum Round {
    Stop,
    Again(String),
}

impl Pull {
    async fn run(mut self) {
        loop {
            let opened = Requests::open(&self.nats, &self.stream, &self.consumer, EXPIRES).await;
            let round = match opened {
                Ok(requests) => self.rounds(requests).await,
                Err(reason) => self.pause(&reason).await,
            };
            match round {
                Round::Stop => return,
                Round::Again(reason) => {
                    tracing::debug!(stream = %self.stream, %reason, "subscribing anew");
                }
            }
        }
    }

    /// Pulls on one inbox, over interruptions.
    async fn rounds(&mut self, mut requests: Requests) -> Round {
        loop {
            let round = match self.pull(&mut requests).await {
                Round::Again(reason) => self.pause(&reason).await,
                Round::Stop => Round::Stop,
            };
            match round {
                Round::Stop => {
                    self.close(requests).await;
                    return Round::Stop;
                }
                Round::Again(reason) if requests.ended() => return Round::Again(reason),
                Round::Again(_) => requests.reset(),
            }
        }
    }

    async fn pause(&mut self, reason: &str) -> Round {
        tracing::debug!(stream = %self.stream, %reason, "pulling is interrupted");
        let pause = RETRY_DELAY.mul_f64(rand::random_range(0.5..1.0));
        tokio::select! {
            () = tokio::time::sleep(pause) => Round::Again(reason.to_owned()),
            () = stopped(&mut self.stopped) => Round::Stop,
        }
    }

    async fn pull(&mut self, requests: &mut Requests) -> Round {
        loop {
            let missing = self.missing(requests.outstanding());
            if missing > 0
                && let Err(reason) = requests.ask(missing).await
            {
                return Round::Again(reason);
            }
            let signal = tokio::select! {
                biased;
                () = stopped(&mut self.stopped) => return Round::Stop,
                signal = requests.next() => signal,
                () = self.slots.freed.notified() => continue,
            };
            match signal {
                Signal::Message(message) => {
                    if !self.hand_out(message).await {
                        return Round::Stop;
                    }
                }
                Signal::Idle | Signal::Ended(_) => {}
                Signal::Lost(reason) => return Round::Again(reason),
            }
        }
    }

    /// How many messages to ask for: in handfuls, so that a busy puller does not send one request
    /// per message.
    fn missing(&self, outstanding: usize) -> usize {
        let used = self.slots.used.load(Ordering::Relaxed);
        let missing = self.in_flight_max.saturating_sub(used + outstanding);
        let handful = self.in_flight_max.div_ceil(4);
        if outstanding == 0 || missing >= handful {
            missing
        } else {
            0
        }
    }

    /// False if nobody takes deliveries any more.
    async fn hand_out(&self, message: Message) -> bool {
        let Some(delivery) = self.delivery(message) else {
            return true;
        };
        if let Err(error) = delivery.progress().await {
            tracing::debug!(%error, "cannot report progress on receipt");
        }
        let Err(refused) = self.sender.send(delivery).await else {
            return true;
        };
        hand_back(&self.nats, refused.0.reply.clone()).await;
        false
    }

    fn delivery(&self, message: Message) -> Option<Delivery> {
        let reply = message.reply?.to_string();
        let Some(delivered) = Delivered::parse(&reply) else {
            tracing::warn!(stream = %self.stream, %reply, "a message came without a usable reply subject");
            return None;
        };
        Some(Delivery {
            seq: delivered.stream_seq,
            subject: message.subject.to_string(),
            headers: message.headers.unwrap_or_default(),
            payload: message.payload,
            count: delivered.count,
            stored_ms: delivered.stored_ms,
            reply,
            nats: self.nats.clone(),
            _slot: Slot::take(&self.slots),
        })
    }

    /// Waits until the server has no request of ours any more, then hands back what still arrived.
    /// In this order: a request that is still open would bring it right again.
    async fn close(&self, mut requests: Requests) {
        let mut late = Vec::new();
        let ending = async {
            while requests.outstanding() > 0 {
                match requests.next().await {
                    Signal::Message(message) => late.extend(message.reply),
                    Signal::Idle | Signal::Ended(_) => {}
                    // Requests end with the connection or the consumer they were made on.
                    Signal::Lost(_) => return,
                }
            }
        };
        if tokio::time::timeout(DRAIN_MAX, ending).await.is_err() {
            tracing::debug!(stream = %self.stream, "pull requests did not end in time");
        }
        for reply in late {
            hand_back(&self.nats, reply.to_string()).await;
        }
    }
}

/// Returns when stopping is asked for, or the puller was dropped.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error means that the other side is gone, which is a wish to stop as well.
    let _gone = stop.wait_for(|stop| *stop).await.is_err();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_written_in_nanoseconds_and_none_is_a_plain_nak() {
        assert_eq!(nak(Duration::ZERO), "-NAK");
        assert_eq!(
            nak(Duration::from_millis(1_500)),
            r#"-NAK {"delay":1500000000}"#
        );
    }
}
