//! Publishing lines: in the order of the file, many under way at once, each until it is stored.
//!
//! A publish whose ack was lost is repeated under the same message id, which the stream stores once.

use std::time::{Duration, Instant};

use bytes::Bytes;
use fairlane_core::JobId;
use fairlane_nats::payloads::PayloadError;
use fairlane_nats::{HeaderMap, Jobs, Nats, Payloads, PendingWrite, Stored, WriteError};
use fairlane_runtime::spans::{self, JobSpan, SpanKind, Tags};
use fairlane_wire::header;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use uuid::Uuid;

use super::LINE_BYTES_MAX;
use super::address::Parcel;

/// Publishes under way at once, and the bytes they may hold.
const IN_FLIGHT_MAX: usize = 256;
const IN_FLIGHT_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Room in a message for headers, ours and those the producer adds when it passes the body on.
const HEADERS_BYTES_MAX: usize = 8 * 1024;
/// Tries before giving up, and the pause before the second one; it doubles.
const TRIES_MAX: u32 = 5;
const PAUSE_MIN: Duration = Duration::from_millis(200);
/// How long a tenant's submissions may stay untaken before it is given up, and how often that is looked at.
const ROOM_PATIENCE: Duration = Duration::from_secs(60);
const ROOM_PAUSE_MAX: Duration = Duration::from_secs(1);

/// A new id for a job, ordered by time.
pub(crate) fn new_job_id() -> JobId {
    JobId::parse(&format!("job-{}", Uuid::now_v7()))
        .expect("a UUID is hexadecimal digits and dashes")
}

/// What became of a line.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) parcel: Parcel,
    pub(crate) outcome: Result<Stored, SendError>,
}

/// Why a line was not published.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    #[error("not published")]
    Publish(#[from] WriteError),
    #[error("its body could not be stored")]
    Body(#[from] PayloadError),
}

impl SendError {
    /// Whether it concerns this line only, or the way to NATS.
    pub(crate) fn is_of_the_line(&self) -> bool {
        match self {
            Self::Publish(error) => is_of_the_message(error),
            Self::Body(PayloadError::TooLarge { .. }) => true,
            Self::Body(
                PayloadError::Missing { .. }
                | PayloadError::Damaged { .. }
                | PayloadError::Store { .. },
            ) => false,
        }
    }
}

fn is_of_the_message(error: &WriteError) -> bool {
    match error {
        WriteError::TooLarge { .. } | WriteError::Refused { .. } | WriteError::Conflict { .. } => {
            true
        }
        WriteError::Unknown { .. }
        | WriteError::Busy { .. }
        | WriteError::Unavailable { .. }
        | WriteError::SubjectFull { .. }
        | WriteError::StreamFull { .. } => false,
    }
}

/// Publishes parcels.
pub(crate) struct Publisher {
    nats: Nats,
    jobs: Jobs,
    payloads: Payloads,
    inline_bytes_max: usize,
    in_flight: FuturesUnordered<BoxFuture<'static, Sent>>,
    bytes: usize,
}

impl Publisher {
    pub(crate) fn new(nats: &Nats) -> Self {
        let max_payload = nats.client.server_info().max_payload;
        Self {
            jobs: nats.jobs(),
            payloads: nats.payloads(),
            inline_bytes_max: max_payload.saturating_sub(HEADERS_BYTES_MAX),
            nats: nats.clone(),
            in_flight: FuturesUnordered::new(),
            bytes: 0,
        }
    }

    /// Whether another parcel may be sent now.
    pub(crate) fn has_room(&self) -> bool {
        self.in_flight.len() < IN_FLIGHT_MAX && self.bytes < IN_FLIGHT_BYTES_MAX
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// The next line that was stored or given up, None if none is under way. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Option<Sent> {
        let sent = self.in_flight.next().await?;
        self.bytes = self.bytes.saturating_sub(sent.parcel.body.len());
        Some(sent)
    }

    /// Sends a parcel; [`Publisher::next`] tells what became of it.
    pub(crate) async fn send(&mut self, parcel: Parcel) {
        let message = match self.message(&parcel).await {
            Ok(message) => message,
            Err(error) => return self.put_under_way(parcel, async { Err(error.into()) }),
        };
        // Sent here rather than in the background, so that lines keep their order.
        let first = message.send(&self.jobs).await;
        let jobs = self.jobs.clone();
        self.put_under_way(parcel, async move {
            Ok(message.see_through(&jobs, first).await?)
        });
    }

    fn put_under_way(
        &mut self,
        parcel: Parcel,
        outcome: impl Future<Output = Result<Stored, SendError>> + Send + 'static,
    ) {
        self.bytes += parcel.body.len();
        self.in_flight.push(Box::pin(async move {
            let outcome = outcome.await;
            Sent { parcel, outcome }
        }));
    }

    async fn message(&self, parcel: &Parcel) -> Result<Message, PayloadError> {
        let id = Uuid::now_v7();
        let mut headers = HeaderMap::new();
        headers.insert(header::LINE, parcel.line.to_string());
        let mut payload = parcel.body.clone();
        let is_apart = payload.len() > self.inline_bytes_max;
        // The producer tells what became of a body apart under this id, even if it will not read it.
        if parcel.is_named_by_us || is_apart {
            headers.insert(header::JOB, parcel.job.as_str());
        }
        if is_apart {
            let name = format!("{}.{id}", parcel.tenant);
            self.payloads.put(&name, &payload, LINE_BYTES_MAX).await?;
            headers.insert(header::CLAIM, name);
            payload = Bytes::new();
        }
        let span = span(parcel);
        if let Some(trace) = span.context() {
            headers.insert(header::TRACEPARENT, trace.traceparent());
        }
        Ok(Message {
            span,
            subject: self.nats.names.submit_subject(&parcel.tenant),
            id: format!("submit-{id}"),
            headers,
            payload,
        })
    }
}

/// Begins the trace of a job, if traces are sent.
fn span(parcel: &Parcel) -> JobSpan {
    if !spans::are_on() {
        return JobSpan::none();
    }
    let bytes = u64::try_from(parcel.body.len()).unwrap_or(u64::MAX);
    let tags = Tags::default()
        .text("tenant", parcel.tenant.as_str())
        .text("job", parcel.job.as_str())
        .number("line", parcel.line)
        .word("messaging.system", "nats")
        .word("messaging.operation.name", "submit")
        .word("messaging.operation.type", "send")
        .word("messaging.destination.name", "fl.submit")
        .number("messaging.message.body.size", bytes);
    JobSpan::start("submit fl.submit", SpanKind::Producer, None, &tags)
}

struct Message {
    /// Ends when the message is stored or given up.
    span: JobSpan,
    subject: String,
    id: String,
    headers: HeaderMap,
    payload: Bytes,
}

impl Message {
    async fn send(&self, jobs: &Jobs) -> Result<PendingWrite, WriteError> {
        let (headers, payload) = (self.headers.clone(), self.payload.clone());
        jobs.send(&self.subject, Some(&self.id), headers, payload)
            .await
    }

    /// Waits for the ack and repeats what may pass.
    async fn see_through(
        mut self,
        jobs: &Jobs,
        first: Result<PendingWrite, WriteError>,
    ) -> Result<Stored, WriteError> {
        let mut sent = first;
        let begun = Instant::now();
        let mut pause = PAUSE_MIN;
        let mut attempt = 1;
        loop {
            let outcome = match sent {
                Ok(pending) => pending.wait().await,
                Err(error) => Err(error),
            };
            match outcome {
                // There is room again as soon as a producer has taken some.
                Err(WriteError::SubjectFull { .. }) if begun.elapsed() < ROOM_PATIENCE => {
                    pause = pause.min(ROOM_PAUSE_MAX);
                }
                Err(error) if attempt < TRIES_MAX && !is_of_the_message(&error) => {
                    tracing::debug!(%error, attempt, "publishing again");
                    attempt += 1;
                }
                Ok(_) => return outcome,
                Err(_) => {
                    self.span.fail("not_published");
                    return outcome;
                }
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
            sent = self.send(jobs).await;
        }
    }
}
