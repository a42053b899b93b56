//! The lease that a credit is, from its worker's side.
//!
//! Starting is itself the check that the credit is alive: it replaces the revision under which the
//! leader stored it, and fails if anybody was there first. From then on every write of ours
//! replaces our own last revision; a refused one means the lease is lost, and with it the right to
//! do anything more for the job.

use std::time::Duration;

use bytes::Bytes;
use fairlane_nats::owner::PARKED_MARGIN;
use fairlane_nats::{Bucket, Confirmed, Content, Entry, Revision, WriteError};
use fairlane_wire::Namespace;
use fairlane_wire::lease::{Credit, Lease, ParkReason, Parked, Settlement};
use tokio::time::Instant;

/// A started lease.
#[derive(Debug)]
pub(crate) struct Held {
    bucket: Bucket,
    key: String,
    revision: Revision,
    ttl: Duration,
    /// When the last write that is known to be stored was sent.
    renewed_at: Instant,
    pub(crate) credit: Credit,
}

/// Why a lease is not, or no longer, ours.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LeaseError {
    /// Somebody else wrote: it expired, or another leader granted the job.
    #[error("the lease is lost")]
    Lost,
    /// NATS did not take the write. It may still be ours.
    #[error("cannot write the lease")]
    Write(#[source] WriteError),
}

/// Tombstones stay this long, so that a leader that looks away sees them afterwards.
const TOMBSTONE_KEEP: Duration = Duration::from_secs(60);

impl Held {
    /// Starts the credit stored as `revision`, to live for `ttl` between renewals.
    pub(crate) async fn start(
        bucket: Bucket,
        credit: Credit,
        revision: Revision,
        ttl: Duration,
    ) -> Result<Self, LeaseError> {
        let key = Namespace::lease_key(credit.seq);
        let mut lease = Self {
            bucket,
            key,
            revision,
            ttl,
            renewed_at: Instant::now(),
            credit,
        };
        lease.renew().await?;
        Ok(lease)
    }

    /// When the lease ends unless it is renewed, by this process's clock.
    pub(crate) fn ends_at(&self) -> Instant {
        self.renewed_at + self.ttl
    }

    /// When the lease was renewed last.
    pub(crate) fn renewed_at(&self) -> Instant {
        self.renewed_at
    }

    /// Makes the lease live for another TTL.
    pub(crate) async fn renew(&mut self) -> Result<(), LeaseError> {
        let value = json(&Lease::Running(self.credit.clone()));
        self.write(Content::Live(value), self.ttl).await
    }

    /// Ends the lease: the job is done with, or goes back in line.
    pub(crate) async fn release(&mut self, settlement: &Settlement) -> Result<(), LeaseError> {
        self.write(Content::Deleted(json(settlement)), TOMBSTONE_KEEP)
            .await
    }

    /// Ends the delivery and parks the job until `until_ms`, `wait` from now.
    pub(crate) async fn park(
        &mut self,
        settlement: &Settlement,
        until_ms: u64,
        wait: Duration,
        why: ParkReason,
    ) -> Result<(), LeaseError> {
        let lease = Lease::Parked(Parked {
            until_ms,
            why,
            settlement: settlement.clone(),
        });
        self.write(Content::Live(json(&lease)), wait + PARKED_MARGIN)
            .await
    }

    async fn write(&mut self, content: Content, ttl: Duration) -> Result<(), LeaseError> {
        let sent = Instant::now();
        // Once more if an earlier renewal of ours landed after we had given up on its ack.
        for _ in 0..2 {
            let written = match &content {
                Content::Deleted(body) => {
                    self.bucket
                        .tombstone_if(&self.key, self.revision, body.clone(), ttl)
                        .await
                }
                Content::Live(value) => {
                    self.bucket
                        .put_if(&self.key, value.clone(), self.revision, Some(ttl))
                        .await
                }
                Content::Expired => unreachable!("only the server writes markers"),
            };
            let error = match written {
                Ok(revision) => {
                    self.revision = revision;
                    self.renewed_at = sent;
                    return Ok(());
                }
                Err(error) => error,
            };
            if error.is_certain() && !matches!(error, WriteError::Conflict { .. }) {
                return Err(LeaseError::Write(error));
            }
            match self
                .bucket
                .confirm(&self.key, &content, self.revision)
                .await
            {
                Ok(Confirmed::Landed(revision)) => {
                    self.revision = revision;
                    self.renewed_at = sent;
                    return Ok(());
                }
                Ok(Confirmed::Overtaken(Some(entry))) if self.is_ours(&entry) => {
                    self.revision = entry.revision;
                }
                Ok(Confirmed::Overtaken(_)) => return Err(LeaseError::Lost),
                Ok(Confirmed::Pending) | Err(_) => return Err(LeaseError::Write(error)),
            }
        }
        Err(LeaseError::Lost)
    }

    fn is_ours(&self, entry: &Entry) -> bool {
        let renewal = json(&Lease::Running(self.credit.clone()));
        entry.revision > self.revision && entry.value() == Some(&renewal)
    }
}

fn json(value: &impl serde::Serialize) -> Bytes {
    serde_json::to_vec(value)
        .expect("leases and settlements are plain data")
        .into()
}
