//! Messages in streams: store with a deduplication id, read by sequence, delete by sequence.
//!
//! Reads by sequence ask any replica first and the leader only when that one has nothing: a
//! replica may not have a message yet that was stored a moment ago. Deletes do not overwrite the
//! message on disk (the library's delete does, and is thirty times slower), and a message that is
//! already gone counts as deleted, so a crash between any two steps can be repeated.

use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::stream::{DirectGetErrorKind, LastRawMessageErrorKind, Stream};
use bytes::Bytes;
use fairlane_wire::names::header;
use serde::Deserialize;
use serde_json::json;

use crate::api::{self, ApiError, code};
use crate::client::Nats;
use crate::publish::{self, PendingWrite, WriteError};

/// How long to wait before a full subject is tried again: at first, and at most.
const ROOM_PAUSE_MIN: Duration = Duration::from_millis(20);
const ROOM_PAUSE_MAX: Duration = Duration::from_millis(500);

/// Why a message could not be read. A message that is not there is not an error.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {what} of stream {stream}: {text}")]
pub struct ReadError {
    /// The stream that was asked.
    pub stream: String,
    /// What was asked for.
    pub what: String,
    /// What went wrong.
    pub text: String,
}

/// A message as a stream holds it.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredMessage {
    /// Sequence in the stream.
    pub seq: u64,
    /// Subject it was published to.
    pub subject: String,
    /// Its headers, without those the server adds to a reply.
    pub headers: HeaderMap,
    /// Its body.
    pub payload: Bytes,
    /// When the server stored it, unix milliseconds.
    pub stored_ms: u64,
}

/// Publishes to, reads from and deletes from streams.
#[derive(Debug, Clone)]
pub struct Jobs {
    nats: Nats,
}

impl Jobs {
    pub(crate) fn new(nats: Nats) -> Self {
        Self { nats }
    }

    pub(crate) fn nats(&self) -> &Nats {
        &self.nats
    }

    /// Sends a message to be stored. Two messages with the same `id` are stored once within the
    /// stream's duplicate window; ids are shared by all subjects of a stream, so they must name
    /// their tenant.
    ///
    /// # Errors
    /// [`WriteError`], all certain: nothing was sent.
    pub async fn send(
        &self,
        subject: &str,
        id: Option<&str>,
        mut headers: HeaderMap,
        payload: Bytes,
    ) -> Result<PendingWrite, WriteError> {
        if let Some(id) = id {
            headers.insert(header::MSG_ID, id);
        }
        publish::send(&self.nats, subject.to_owned(), headers, payload).await
    }

    /// [`Jobs::send`] and wait for the ack.
    ///
    /// # Errors
    /// [`WriteError`]; after [`WriteError::Unknown`] the same call with the same `id` is safe.
    pub async fn publish(
        &self,
        subject: &str,
        id: Option<&str>,
        headers: HeaderMap,
        payload: Bytes,
    ) -> Result<publish::Stored, WriteError> {
        self.send(subject, id, headers, payload).await?.wait().await
    }

    /// [`Jobs::publish`], and while the subject is full wait for room, at most `patience`.
    ///
    /// # Errors
    /// [`WriteError`]; [`WriteError::SubjectFull`] if there was no room all the time.
    pub async fn publish_patiently(
        &self,
        subject: &str,
        id: Option<&str>,
        headers: HeaderMap,
        payload: Bytes,
        patience: Duration,
    ) -> Result<publish::Stored, WriteError> {
        let begun = Instant::now();
        let mut pause = ROOM_PAUSE_MIN;
        loop {
            let outcome = self
                .publish(subject, id, headers.clone(), payload.clone())
                .await;
            match outcome {
                Err(WriteError::SubjectFull { .. }) if begun.elapsed() + pause <= patience => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(ROOM_PAUSE_MAX);
                }
                outcome => return outcome,
            }
        }
    }

    /// The message at `seq`, or None if the leader does not have it either.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn get(&self, stream: &str, seq: u64) -> Result<Option<StoredMessage>, ReadError> {
        let failed = |text: String| ReadError {
            stream: stream.to_owned(),
            what: format!("sequence {seq}"),
            text,
        };
        let handle = handle(&self.nats, stream).await.map_err(failed)?;
        match handle.direct_get(seq).await {
            Ok(message) => return Ok(Some(stored(message))),
            Err(error) if error.kind() == DirectGetErrorKind::NotFound => {}
            Err(error) => return Err(failed(publish::chain(&error))),
        }
        let message = api::insist(|| handle.get_raw_message(seq)).await;
        let message = found(message).map_err(failed)?;
        Ok(message.map(stored))
    }

    /// The last message on `subject`, as the leader has it.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn last(
        &self,
        stream: &str,
        subject: &str,
    ) -> Result<Option<StoredMessage>, ReadError> {
        Ok(leader_last(&self.nats, stream, subject).await?.map(stored))
    }

    /// Deletes the message at `seq`. Gone already is success.
    ///
    /// # Errors
    /// [`ApiError`]: the message may still be there; repeating is safe.
    pub async fn delete(&self, stream: &str, seq: u64) -> Result<(), ApiError> {
        #[derive(Deserialize)]
        struct Reply {}

        let call = format!("STREAM.MSG.DELETE.{stream}");
        let body = json!({"seq": seq, "no_erase": true});
        let deleted = api::insist(|| api::call::<Reply>(&self.nats, &call, &body, None));
        match deleted.await {
            Ok(Reply {}) => Ok(()),
            Err(error) if is_gone(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// The server has no code of its own for "there is no such message" on delete: it sends
/// "delete failed" with that text.
fn is_gone(error: &ApiError) -> bool {
    match error {
        ApiError::Refused {
            code: code::NO_MESSAGE_FOUND | code::SEQUENCE_NOT_FOUND,
            ..
        } => true,
        ApiError::Refused {
            code: code::DELETE_FAILED,
            text,
            ..
        } => {
            // The last one is said of a sequence beyond the end of the stream.
            ["no message found", "not found", "store EOF"]
                .iter()
                .any(|gone| text.contains(gone))
        }
        ApiError::Refused { .. }
        | ApiError::Unavailable { .. }
        | ApiError::TimedOut { .. }
        | ApiError::Broken { .. } => false,
    }
}

async fn handle(nats: &Nats, stream: &str) -> Result<Stream<()>, String> {
    nats.jetstream
        .get_stream_no_info(stream)
        .await
        .map_err(|error| publish::chain(&error))
}

/// The last message on `subject` as the leader has it.
pub(crate) async fn leader_last(
    nats: &Nats,
    stream: &str,
    subject: &str,
) -> Result<Option<StreamMessage>, ReadError> {
    let failed = |text| last_failed(stream, subject, text);
    let handle = handle(nats, stream).await.map_err(failed)?;
    let message = api::insist(|| handle.get_last_raw_message_by_subject(subject));
    found(message.await).map_err(failed)
}

/// The first message on `subject` at or after `seq`, as the leader has it.
pub(crate) async fn leader_next(
    nats: &Nats,
    stream: &str,
    subject: &str,
    seq: u64,
) -> Result<Option<StreamMessage>, ReadError> {
    let failed = |text| last_failed(stream, subject, text);
    let handle = handle(nats, stream).await.map_err(failed)?;
    let message = api::insist(|| {
        let request = handle.raw_message_builder();
        request.sequence(seq).next_by_subject(subject).send()
    });
    found(message.await).map_err(failed)
}

/// The last message on `subject` as any replica has it.
pub(crate) async fn direct_last(
    nats: &Nats,
    stream: &str,
    subject: &str,
) -> Result<Option<StreamMessage>, ReadError> {
    let failed = |text| last_failed(stream, subject, text);
    let handle = handle(nats, stream).await.map_err(failed)?;
    match handle.direct_get_last_for_subject(subject).await {
        Ok(message) => Ok(Some(message)),
        Err(error) if error.kind() == DirectGetErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(publish::chain(&error))),
    }
}

fn last_failed(stream: &str, subject: &str, text: String) -> ReadError {
    ReadError {
        stream: stream.to_owned(),
        what: format!("subject {subject}"),
        text,
    }
}

type RawResult = Result<StreamMessage, async_nats::jetstream::stream::RawMessageError>;

fn found(result: RawResult) -> Result<Option<StreamMessage>, String> {
    match result {
        Ok(message) => Ok(Some(message)),
        Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
        Err(error) => Err(publish::chain(&error)),
    }
}

/// Headers the server adds to the reply of a direct read.
const REPLY_HEADERS: [&str; 6] = [
    "Nats-Stream",
    "Nats-Subject",
    "Nats-Sequence",
    "Nats-Time-Stamp",
    "Nats-Num-Pending",
    "Nats-Last-Sequence",
];

fn stored(message: StreamMessage) -> StoredMessage {
    let mut headers = HeaderMap::new();
    for (name, values) in message.headers.iter() {
        if !REPLY_HEADERS.contains(&name.as_ref()) {
            for value in values {
                headers.append(name.clone(), value.clone());
            }
        }
    }
    StoredMessage {
        seq: message.sequence,
        subject: message.subject.to_string(),
        headers,
        payload: message.payload,
        stored_ms: unix_ms(message.time.unix_timestamp_nanos()),
    }
}

/// Unix nanoseconds to milliseconds; times before 1970 count as 1970.
pub(crate) fn unix_ms(nanos: i128) -> u64 {
    u64::try_from(nanos / 1_000_000).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_answers_that_mean_gone_count_as_deleted() {
        let refused = |code, text: &str| ApiError::Refused {
            call: "STREAM.MSG.DELETE.S".to_owned(),
            code,
            text: text.to_owned(),
        };
        assert!(is_gone(&refused(10057, "no message found")));
        assert!(is_gone(&refused(10037, "no message found")));
        assert!(is_gone(&refused(10057, "stream store EOF")));
        assert!(!is_gone(&refused(10057, "disk is full")));
        assert!(!is_gone(&refused(10059, "stream not found")));
        assert!(!is_gone(&ApiError::TimedOut {
            call: "x".to_owned()
        }));
    }
}
