//! Job records: read with the revision to replace, saved only over that revision.
//!
//! Beside its body each record carries its phase, and its reason if it failed, as headers: whoever
//! follows many jobs reads those alone. Records of jobs that ended expire, and so do those that only point to
//! another job; the others stay.

use std::time::Duration;

use fairlane_core::{JobId, TenantId};
use fairlane_wire::names::{Namespace, header};
use fairlane_wire::record::JobRecord;

use crate::client::Nats;
use crate::jobs::ReadError;
use crate::lease::{Bucket, Revision};
use crate::publish::{self, PendingWrite, WriteError};

/// The record bucket.
#[derive(Debug, Clone)]
pub struct Records {
    nats: Nats,
    bucket: Bucket,
    keep: Duration,
}

/// What is stored under a job's name, and the revision that a write must name to replace it.
#[derive(Debug, Clone, PartialEq)]
pub struct Slot {
    pub record: Option<JobRecord>,
    pub revision: Revision,
}

/// Why a record could not be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("cannot read the job record")]
    Read(#[from] ReadError),
    #[error("record {key} is not a job record: {text}")]
    Undecodable { key: String, text: String },
}

impl Records {
    /// The records of `nats`' namespace; those of ended jobs are kept for `keep`.
    #[must_use]
    pub fn new(nats: &Nats, keep: Duration) -> Self {
        let bucket = nats.bucket(&nats.names.status_bucket());
        Self {
            nats: nats.clone(),
            bucket,
            keep,
        }
    }

    /// The record as the leader of the bucket has it.
    ///
    /// # Errors
    /// [`RecordError`].
    pub async fn get(&self, tenant: &TenantId, job: &JobId) -> Result<Slot, RecordError> {
        let key = Namespace::status_key(tenant, job);
        let Some(entry) = self.bucket.get(&key).await? else {
            return Ok(Slot {
                record: None,
                revision: Revision::ABSENT,
            });
        };
        let record = match entry.value() {
            None => None,
            Some(value) => {
                Some(
                    JobRecord::from_json(value).map_err(|error| RecordError::Undecodable {
                        key,
                        text: error.to_string(),
                    })?,
                )
            }
        };
        Ok(Slot {
            record,
            revision: entry.revision,
        })
    }

    /// Replaces `expected` by `record`.
    ///
    /// # Errors
    /// [`WriteError`]; above all `Conflict` when somebody else wrote first, and `TooLarge`.
    pub async fn save(
        &self,
        record: &JobRecord,
        expected: Revision,
    ) -> Result<Revision, WriteError> {
        Ok(Revision(
            self.send(record, expected).await?.wait().await?.seq,
        ))
    }

    /// [`Records::save`] in two steps: send now, wait later.
    ///
    /// # Errors
    /// [`WriteError`], all certain: nothing was sent.
    pub async fn send(
        &self,
        record: &JobRecord,
        expected: Revision,
    ) -> Result<PendingWrite, WriteError> {
        // A pointer to the job that owns the key never gets an outcome of its own.
        let ends = record.phase.is_final() || record.same_as.is_some();
        let ttl = ends.then_some(self.keep);
        let mut headers = publish::conditional(expected.0, ttl);
        headers.insert(header::PHASE, record.phase.as_str());
        if let Some(failure) = &record.failure {
            headers.insert(header::REASON, failure.reason.as_str());
        }
        let key = Namespace::status_key(&record.tenant, &record.job);
        let subject = Namespace::kv_subject(self.bucket.name(), &key);
        publish::send(&self.nats, subject, headers, record.to_json().into()).await
    }
}
