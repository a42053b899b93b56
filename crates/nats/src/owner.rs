//! What follows from an owner's decision that stands in a record: telling those who have the job, and
//! moving the time of one that is parked.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use fairlane_core::JobSeq;
use fairlane_wire::Namespace;
use fairlane_wire::lease::{CalledOff, Lease, ParkReason, Parked};
use tokio::time::Instant;

use crate::client::Nats;
use crate::jobs::ReadError;
use crate::publish::WriteError;

/// A parked lease outlives its time by this much, as a net for when nobody leads.
pub const PARKED_MARGIN: Duration = Duration::from_secs(60);

/// Why a parked job was not moved.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    #[error("cannot read the lease")]
    Read(#[from] ReadError),
    #[error("cannot write the lease")]
    Write(#[from] WriteError),
}

/// The next leader takes over within this many tries.
const TELL_TRIES: u32 = 10;
const TELL_EVERY: Duration = Duration::from_secs(1);

/// Tells the leader and the workers that the record of a job says that it is over, until a leader has
/// heard it. If none does, the job leaves when its turn comes, without being called.
pub async fn tell_called_off(nats: &Nats, seq: JobSeq) {
    let body = Bytes::from(serde_json::to_vec(&CalledOff { seq }).expect("a number is plain data"));
    for _ in 0..TELL_TRIES {
        let asked = Instant::now();
        let request = async_nats::Request::new()
            .payload(body.clone())
            .timeout(Some(TELL_EVERY));
        let subject = nats.names.cancel_subject();
        match nats.client.send_request(subject, request).await {
            Ok(_) => return,
            Err(error) => {
                tracing::debug!(seq = seq.0, %error, "nobody leads who could hear of it");
                tokio::time::sleep_until(asked + TELL_EVERY).await;
            }
        }
    }
}

/// Parks a job that is parked until `until_ms` instead. False if it is not parked.
///
/// # Errors
/// [`MoveError`]; above all a conflict, when somebody else changed the lease.
pub async fn move_parked(nats: &Nats, seq: JobSeq, until_ms: u64) -> Result<bool, MoveError> {
    let bucket = nats.bucket(&nats.names.credits_bucket());
    let key = Namespace::lease_key(seq);
    let Some(entry) = bucket.get(&key).await? else {
        return Ok(false);
    };
    let lease = entry.value().map(|value| serde_json::from_slice(value));
    let Some(Ok(Lease::Parked(parked))) = lease else {
        return Ok(false);
    };
    let lease = Lease::Parked(Parked {
        until_ms,
        why: ParkReason::Moved,
        ..parked
    });
    let value = serde_json::to_vec(&lease).expect("a lease is plain data");
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let life = Duration::from_millis(until_ms).saturating_sub(now) + PARKED_MARGIN;
    let expected = entry.revision;
    bucket
        .put_if(&key, value.into(), expected, Some(life))
        .await?;
    Ok(true)
}
