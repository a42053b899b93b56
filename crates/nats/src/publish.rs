//! Storing a message: send now, learn the outcome later.
//!
//! Sending and waiting are two steps because throughput on a replicated stream comes from many
//! writes under way at once. What a caller must tell apart is in [`WriteError`]: above all "not
//! stored" from "nobody knows".

use std::error::Error as _;
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::context::{PublishAckFuture, PublishError, PublishErrorKind};
use bytes::Bytes;
use fairlane_wire::names::header;

use crate::api::code;
use crate::client::Nats;

/// Why a message may not be stored.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Not stored: the key has another revision than expected.
    #[error("{subject}: the expected revision is not the current one ({})", current.map_or_else(|| "unknown".to_owned(), |r| r.to_string()))]
    Conflict {
        subject: String,
        current: Option<u64>,
    },
    /// Nobody knows: no ack arrived in time. Read from the leader to find out.
    #[error("{subject}: no ack in time; the write may or may not be stored")]
    Unknown { subject: String },
    /// Not stored: nobody was there to take it.
    #[error("{subject}: no stream takes this subject now (missing, or without a leader)")]
    Unavailable { subject: String },
    /// Not stored: too many writes are under way and none was answered in time. Whoever sends
    /// without waiting must wait for some acks first.
    #[error(
        "{subject}: {} writes are under way already",
        crate::client::IN_FLIGHT_MAX
    )]
    Busy { subject: String },
    /// Not stored: the subject holds as many messages as it may (a tenant's backlog cap).
    #[error("{subject}: the subject holds as many messages as allowed")]
    SubjectFull { subject: String },
    /// Not stored: the stream is as large as it may be.
    #[error("{subject}: the stream is full: {text}")]
    StreamFull { subject: String, text: String },
    /// Not stored: message and headers exceed the server's maximum payload.
    #[error("{subject}: the message is larger than the server's max_payload")]
    TooLarge { subject: String },
    /// Not stored: the server refused for another reason.
    #[error("{subject}: the server refused the message: {text}")]
    Refused { subject: String, text: String },
}

impl WriteError {
    /// True if the message is certainly not stored.
    #[must_use]
    pub fn is_certain(&self) -> bool {
        match self {
            Self::Unknown { .. } => false,
            Self::Conflict { .. }
            | Self::Unavailable { .. }
            | Self::Busy { .. }
            | Self::SubjectFull { .. }
            | Self::StreamFull { .. }
            | Self::TooLarge { .. }
            | Self::Refused { .. } => true,
        }
    }
}

/// Where a message was stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    /// Its sequence in the stream; in a bucket this is the revision.
    pub seq: u64,
    /// True if the stream already had a message with this id; `seq` is then the first one's.
    pub duplicate: bool,
}

/// A message that was sent and not yet acknowledged. Dropping it does not take it back.
#[derive(Debug)]
pub struct PendingWrite {
    subject: String,
    ack: PublishAckFuture,
}

impl PendingWrite {
    /// Waits for the ack, at most the request timeout.
    ///
    /// # Errors
    /// [`WriteError`].
    pub async fn wait(self) -> Result<Stored, WriteError> {
        let Self { subject, ack } = self;
        match ack.await {
            Ok(ack) => Ok(Stored {
                seq: ack.sequence,
                duplicate: ack.duplicate,
            }),
            Err(error) => Err(after_sending(subject, &error)),
        }
    }
}

/// Sends a message to be stored. At most [`crate::client::IN_FLIGHT_MAX`] sent messages can be
/// unanswered; a pending write counts until it is waited for or dropped.
pub(crate) async fn send(
    nats: &Nats,
    subject: String,
    headers: HeaderMap,
    payload: Bytes,
) -> Result<PendingWrite, WriteError> {
    let sending = nats
        .jetstream
        .publish_with_headers(subject.clone(), headers, payload);
    match tokio::time::timeout(nats.request_timeout(), sending).await {
        Ok(Ok(ack)) => Ok(PendingWrite { subject, ack }),
        Ok(Err(error)) => Err(before_sending(subject, &error)),
        Err(_) => Err(WriteError::Busy { subject }),
    }
}

/// Headers of a write that replaces revision `expected` (0 = no message on the subject).
pub(crate) fn conditional(expected: u64, ttl: Option<Duration>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(header::EXPECTED_SUBJECT_SEQUENCE, expected.to_string());
    add_ttl(&mut headers, ttl);
    headers
}

pub(crate) fn add_ttl(headers: &mut HeaderMap, ttl: Option<Duration>) {
    if let Some(ttl) = ttl {
        headers.insert(header::TTL, ttl_seconds(ttl).to_string());
    }
}

/// The server counts in whole seconds and refuses less than one: round up, so that nothing
/// ends earlier than asked.
fn ttl_seconds(ttl: Duration) -> u64 {
    let fraction = u64::from(ttl.subsec_nanos() > 0);
    (ttl.as_secs() + fraction).max(1)
}

/// The command never left: whatever the reason, nothing is stored.
fn before_sending(subject: String, error: &PublishError) -> WriteError {
    match error.kind() {
        PublishErrorKind::MaxPayloadExceeded => WriteError::TooLarge { subject },
        PublishErrorKind::StreamNotFound
        | PublishErrorKind::TimedOut
        | PublishErrorKind::BrokenPipe
        | PublishErrorKind::MaxAckPending => WriteError::Unavailable { subject },
        PublishErrorKind::WrongLastMessageId
        | PublishErrorKind::WrongLastSequence
        | PublishErrorKind::Other => WriteError::Refused {
            subject,
            text: chain(error),
        },
    }
}

fn after_sending(subject: String, error: &PublishError) -> WriteError {
    match error.kind() {
        PublishErrorKind::TimedOut | PublishErrorKind::BrokenPipe => {
            WriteError::Unknown { subject }
        }
        PublishErrorKind::StreamNotFound => WriteError::Unavailable { subject },
        PublishErrorKind::WrongLastSequence => {
            let current = server_error(error).and_then(|error| revision_in(&error.to_string()));
            WriteError::Conflict { subject, current }
        }
        PublishErrorKind::WrongLastMessageId
        | PublishErrorKind::MaxAckPending
        | PublishErrorKind::MaxPayloadExceeded
        | PublishErrorKind::Other => refused(subject, error),
    }
}

fn refused(subject: String, error: &PublishError) -> WriteError {
    let text = chain(error);
    match server_error(error).map(|error| error.error_code().0) {
        Some(code::WRONG_LAST_SEQUENCE_CONSTANT) => WriteError::Conflict {
            subject,
            current: None,
        },
        Some(code::STORE_FAILED) if text.contains("per subject") => {
            WriteError::SubjectFull { subject }
        }
        Some(code::STORE_FAILED) => WriteError::StreamFull { subject, text },
        Some(_) | None => WriteError::Refused { subject, text },
    }
}

fn server_error(error: &PublishError) -> Option<&async_nats::jetstream::Error> {
    error.source()?.downcast_ref()
}

/// The server says `wrong last sequence: 42`; the number is the current revision.
fn revision_in(text: &str) -> Option<u64> {
    let tail = text.split_once("wrong last sequence: ")?.1;
    let digits = tail.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ttls_never_end_early_and_never_below_a_second() {
        let cases = [
            (0, 1),
            (1, 1),
            (999, 1),
            (1000, 1),
            (1001, 2),
            (15_000, 15),
            (15_500, 16),
        ];
        for (millis, seconds) in cases {
            assert_eq!(
                ttl_seconds(Duration::from_millis(millis)),
                seconds,
                "{millis} ms"
            );
        }
    }

    #[test]
    fn the_current_revision_is_read_from_the_servers_words() {
        assert_eq!(
            revision_in("wrong last sequence: 42 (code 400, error code 10071)"),
            Some(42)
        );
        assert_eq!(revision_in("wrong last sequence: 0"), Some(0));
        assert_eq!(revision_in("wrong last sequence"), None);
        assert_eq!(revision_in("wrong last sequence: many"), None);
    }
}
