//! Job records: read with the revision to replace, saved only over that revision.
//!
//! Beside its body each record carries its phase, its reason if it failed, and the objects it names, as
//! headers: whoever follows many jobs reads those alone.
//!
//! | record of a job that | lives |
//! |---|---|
//! | ended, or shares the outcome of another one | for `keep` |
//! | is tried again at a time | until ten minutes after that |
//! | anything else | until it changes |

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fairlane_core::{JobId, TenantId};
use fairlane_wire::names::{Namespace, header};
use fairlane_wire::record::{JobRecord, Phase};
use futures::TryStreamExt;

use crate::client::Nats;
use crate::jobs::ReadError;
use crate::lease::{Bucket, Entry, Revision};
use crate::publish::{self, PendingWrite, WriteError};
use crate::watch::Watch;

/// Life of the record of a job that is tried again, beyond the time at which it is.
const RETRYING_KEEP: Duration = Duration::from_secs(600);

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
    /// When the server stored it, unix milliseconds; 0 if there is nothing.
    pub stored_ms: u64,
}

impl Slot {
    /// Nothing is there.
    pub const EMPTY: Self = Self {
        record: None,
        revision: Revision::ABSENT,
        stored_ms: 0,
    };

    /// What an entry of the bucket says.
    ///
    /// # Errors
    /// [`RecordError::Undecodable`].
    pub fn of(entry: &Entry) -> Result<Self, RecordError> {
        let record = entry.value().map(|value| JobRecord::from_json(value));
        let record = record
            .transpose()
            .map_err(|error| RecordError::Undecodable {
                key: entry.key.clone(),
                text: error.to_string(),
            })?;
        Ok(Self {
            record,
            revision: entry.revision,
            stored_ms: entry.stored_ms,
        })
    }
}

/// Why a record could not be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("cannot read the job record")]
    Read(#[from] ReadError),
    #[error("cannot list the keys of {stream}: {error}")]
    List { stream: String, error: String },
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
        match self.bucket.get(&key).await? {
            Some(entry) => Slot::of(&entry),
            None => Ok(Slot::EMPTY),
        }
    }

    /// The tenants that have a job of this id, sorted.
    ///
    /// # Errors
    /// [`RecordError::List`].
    pub async fn tenants_with(&self, job: &JobId) -> Result<Vec<TenantId>, RecordError> {
        let bucket = self.nats.names.status_bucket();
        let filter = Namespace::kv_subject(&bucket, &format!("*.{job}"));
        let prefix = Namespace::kv_subject(&bucket, "");
        let list = |error: String| RecordError::List {
            stream: format!("KV_{bucket}"),
            error,
        };
        let jetstream = &self.nats.jetstream;
        let stream = jetstream.get_stream(format!("KV_{bucket}")).await;
        let stream = stream.map_err(|error| list(error.to_string()))?;
        let subjects = stream.info_with_subjects(filter).await;
        let subjects = subjects.map_err(|error| list(error.to_string()))?;
        let subjects: Vec<(String, usize)> = subjects
            .try_collect()
            .await
            .map_err(|error| list(error.to_string()))?;
        let mut tenants: Vec<TenantId> = subjects
            .iter()
            .filter_map(|(subject, _)| subject.strip_prefix(&prefix)?.split_once('.'))
            .filter_map(|(tenant, _)| TenantId::parse(tenant).ok())
            .collect();
        tenants.sort();
        Ok(tenants)
    }

    /// The record as any replica has it, which takes half the time. It may be a moment behind;
    /// what is written on that ground names the revision.
    ///
    /// # Errors
    /// [`RecordError`].
    pub async fn get_nearby(&self, tenant: &TenantId, job: &JobId) -> Result<Slot, RecordError> {
        let key = Namespace::status_key(tenant, job);
        match self.bucket.get_direct(&key).await? {
            Some(entry) => Slot::of(&entry),
            None => Ok(Slot::EMPTY),
        }
    }

    /// Follows the record of one job: what it is, then every change.
    #[must_use]
    pub fn watch(&self, tenant: &TenantId, job: &JobId) -> Watch {
        self.bucket.watch_keys(&Namespace::status_key(tenant, job))
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
        let mut headers = publish::conditional(expected.0, self.life(record));
        headers.insert(header::PHASE, record.phase.as_str());
        if let Some(failure) = &record.failure {
            headers.insert(header::REASON, failure.reason.as_str());
        }
        let claims = [
            &record.result_claim,
            &record.body_claim,
            &record.original_claim,
        ];
        for name in claims.into_iter().flatten() {
            headers.append(header::CLAIMS, name.as_str());
        }
        let key = Namespace::status_key(&record.tenant, &record.job);
        let subject = Namespace::kv_subject(self.bucket.name(), &key);
        let body = record.to_json(&self.nats.names);
        publish::send(&self.nats, subject, headers, body.into()).await
    }

    fn life(&self, record: &JobRecord) -> Option<Duration> {
        // A pointer to the job that owns the key never gets an outcome of its own.
        if record.phase.is_final() || record.same_as.is_some() {
            return Some(self.keep);
        }
        match (record.phase, record.retry_at_ms) {
            (Phase::Retrying, Some(at)) => {
                let now = SystemTime::now()
                    .duration_since(UNIX_EPOCH)
                    .unwrap_or_default();
                Some(Duration::from_millis(at).saturating_sub(now) + RETRYING_KEEP)
            }
            (_, _) => None,
        }
    }
}
