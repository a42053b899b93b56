//! Submissions whose deliveries are used up: the server gives them to nobody any more.
//!
//! That happens when a store is out for longer than the pauses between deliveries add up to, or
//! when a submission ends every producer that takes it. The server tells of it once, in an advisory
//! that may be lost: it is a reason to look at once, and none is needed. What is in the stream, was
//! delivered and is not in anybody's hands must be stranded, and the counts say whether there is such a
//! thing. (Advisories are not kept in a stream: what they would tell later stands in the letter.)
//!
//! A stranded submission is dealt with like any other; all steps of that can be repeated, so it
//! does no harm if another producer is at it, or if it was not stranded after all. Only one whose
//! rescue was begun before and never came to an end is buried unread. A note, written before and
//! taken back after, tells that.

use std::time::Duration;

use bytes::Bytes;
use fairlane_nats::{Revision, StoredMessage, WriteError};
use fairlane_wire::letter::{DeadReason, Failure};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::producer::{Producer, now_ms};
use crate::quarantine::{call, next, readable};
use crate::trouble::Trouble;

/// Life of a note.
const NOTE_LIFE: Duration = Duration::from_secs(3_600);
/// A rescue that began so long ago is not going on any more.
const RESCUE_MAX_MS: u64 = 60_000;
/// Room for the trace of a note that was taken back.
const TRACE_LIFE: Duration = Duration::from_secs(60);

/// The rescue of stranded submissions, one at a time in this process.
#[derive(Debug, Default)]
pub(crate) struct Rescue(Mutex<()>);

impl Rescue {
    /// Deals with everything that is stranded; returns how many submissions that were.
    pub(crate) async fn sweep(&self, producer: &Producer) -> Result<usize, Trouble> {
        let Ok(_alone) = self.0.try_lock() else {
            return Ok(0);
        };
        let Some(upto) = stranded_upto(producer).await? else {
            return Ok(0);
        };
        let nats = producer.nats();
        let (stream, jobs) = (nats.names.submit_stream(), nats.jobs());
        let (mut from, mut rescued) = (1, 0);
        while let Some(found) = next(producer, from).await? {
            if found.seq > upto {
                break;
            }
            from = found.seq + 1;
            // The others are the quarantine's.
            if readable(&found.headers).is_ok()
                && let Some(message) = jobs.get(&stream, found.seq).await?
                && rescue(producer, &message).await?
            {
                rescued += 1;
            }
        }
        Ok(rescued)
    }
}

/// Whether the submission was dealt with.
async fn rescue(producer: &Producer, message: &StoredMessage) -> Result<bool, Trouble> {
    let nats = producer.nats();
    let notes = nats.bucket(&nats.names.idem_bucket());
    // No tenant's name begins so.
    let key = format!("_stranded.{}", message.seq);
    let began = now_ms().to_string();
    let noted = notes.create(&key, began.into(), Some(NOTE_LIFE)).await;
    match noted {
        Ok(revision) => {
            let ended = producer.handle_stored(message).await;
            if let Ok(()) | Err(Some(_)) = ended {
                clear(&notes, &key, revision).await?;
            }
            match ended {
                Ok(()) => {}
                // For another time.
                Err(Some(trouble)) => return Err(trouble),
                Err(None) => give_up(producer, message).await?,
            }
        }
        Err(WriteError::Conflict { .. }) => {
            let note = notes.get(&key).await?;
            let began = note.as_ref().and_then(|note| note.value());
            let Some(began) = began.map(|began| String::from_utf8_lossy(began)) else {
                return Ok(false);
            };
            let began_ms = began.parse().unwrap_or(0);
            if now_ms().saturating_sub(began_ms) < RESCUE_MAX_MS {
                return Ok(false);
            }
            give_up(producer, message).await?;
        }
        Err(error) => return Err(error.into()),
    }
    let stream = nats.names.submit_stream();
    nats.jobs().delete(&stream, message.seq).await?;
    Ok(true)
}

async fn clear(
    notes: &fairlane_nats::Bucket,
    key: &str,
    revision: Revision,
) -> Result<(), Trouble> {
    match notes
        .tombstone_if(key, revision, Bytes::new(), TRACE_LIFE)
        .await
    {
        Ok(_) | Err(WriteError::Conflict { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Buries a submission that nobody gets done with, without reading it.
async fn give_up(producer: &Producer, message: &StoredMessage) -> Result<(), Trouble> {
    let failure = Failure::new(
        DeadReason::MaxDeliver,
        "no producer came to an end with it, however often it was delivered",
    )
    .detail("producer")
    .fix("look in the producers' logs for what it does to them before you send it again");
    producer.bury_unread(message, failure).await
}

/// The last sequence that was delivered, if something is stranded.
async fn stranded_upto(producer: &Producer) -> Result<Option<u64>, Trouble> {
    #[derive(Deserialize)]
    struct Stream {
        state: State,
    }
    #[derive(Deserialize)]
    struct State {
        messages: u64,
    }
    #[derive(Deserialize)]
    struct Consumer {
        delivered: Position,
        num_ack_pending: u64,
        num_pending: u64,
    }
    #[derive(Deserialize)]
    struct Position {
        stream_seq: u64,
    }

    let names = &producer.nats().names;
    let (stream, consumer) = (names.submit_stream(), names.producer_consumer());
    // In this order, what arrives or ends in between can only hide something until the next time.
    let state: Option<Stream> =
        call(producer, &format!("STREAM.INFO.{stream}"), &json!({})).await?;
    let ours = format!("CONSUMER.INFO.{stream}.{consumer}");
    let ours: Option<Consumer> = call(producer, &ours, &Value::Null).await?;
    let (Some(Stream { state }), Some(ours)) = (state, ours) else {
        return Ok(None);
    };
    let is_stranded = state.messages > ours.num_ack_pending + ours.num_pending;
    Ok(is_stranded.then_some(ours.delivered.stream_seq))
}
