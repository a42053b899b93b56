//! What accepting and refusing share: the handles on NATS, and writes that many may attempt.

use std::time::Duration;

use async_nats::HeaderMap;
use bytes::Bytes;
use fairlane_core::{JobId, TenantId};
use fairlane_nats::lease::{Bucket, Revision};
use fairlane_nats::payloads::Payloads;
use fairlane_nats::records::{Records, Slot};
use fairlane_nats::{Jobs, Nats, WriteError};
use fairlane_runtime::config::Settings;
use fairlane_runtime::{Metrics, TraceContext};
use fairlane_wire::names::header;
use fairlane_wire::record::JobRecord;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::intake::Arrival;
use crate::trouble::Trouble;

/// Tries at a key or record that others write at the same time.
pub(crate) const TRIES_MAX: usize = 5;
/// A key lives at least as long as the job stream remembers message ids. Otherwise the next job
/// with that key would be dropped as a duplicate of the first.
const KEY_LIFE_MIN: Duration = Duration::from_secs(660);
/// How long the backlog limit is believed to be what it was.
const LIMIT_FRESH: Duration = Duration::from_secs(30);

/// A submission in hand.
#[derive(Debug)]
pub(crate) struct Submitted<'a> {
    pub(crate) arrival: &'a Arrival,
    /// As published, as far as they can be read.
    pub(crate) headers: &'a HeaderMap,
    /// The header block as stored, if it cannot be read.
    pub(crate) raw_headers: Option<Bytes>,
    /// As published.
    pub(crate) body: &'a Bytes,
    /// Where it is in its trace.
    pub(crate) trace: TraceContext,
}

/// What a submission became.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Accepted,
    Duplicate,
    Refused,
}

impl Outcome {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Duplicate => "duplicate",
            Self::Refused => "refused",
        }
    }
}

/// Everything a producer writes to.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) nats: Nats,
    pub(crate) jobs: Jobs,
    pub(crate) records: Records,
    pub(crate) keys: Bucket,
    pub(crate) payloads: Payloads,
    pub(crate) metrics: Metrics,
    pub(crate) key_life: Duration,
    pub(crate) body_bytes_max: usize,
    backlog_max: Mutex<Option<(Instant, u64)>>,
}

impl Store {
    pub(crate) fn new(settings: &Settings, nats: &Nats, metrics: Metrics) -> Self {
        let keep = Duration::from_millis(settings.results.keep_ms);
        let key_life = Duration::from_millis(settings.results.idempotency_ms);
        Self {
            jobs: nats.jobs(),
            records: Records::new(nats, keep),
            keys: nats.bucket(&nats.names.idem_bucket()),
            payloads: nats.payloads(),
            metrics,
            key_life: key_life.max(KEY_LIFE_MIN),
            body_bytes_max: usize::try_from(settings.producer.body_bytes_max).unwrap_or(usize::MAX),
            backlog_max: Mutex::default(),
            nats: nats.clone(),
        }
    }

    /// The record as the leader of the bucket has it.
    pub(crate) async fn record(&self, tenant: &TenantId, job: &JobId) -> Result<Slot, Trouble> {
        Ok(self.records.get(tenant, job).await?)
    }

    /// As [`Records::get_nearby`].
    pub(crate) async fn record_nearby(
        &self,
        tenant: &TenantId,
        job: &JobId,
    ) -> Result<Slot, Trouble> {
        Ok(self.records.get_nearby(tenant, job).await?)
    }

    /// Writes `record` over `expected`, or over whatever is there by now and `may_go`. False if
    /// something is there that may not.
    pub(crate) async fn save_over(
        &self,
        record: &JobRecord,
        mut expected: Revision,
        may_go: impl Fn(&JobRecord) -> bool,
    ) -> Result<bool, Trouble> {
        for _ in 0..TRIES_MAX {
            match self.records.save(record, expected).await {
                Ok(_) => return Ok(true),
                Err(WriteError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            let slot = self.records.get(&record.tenant, &record.job).await?;
            if slot.record.is_some_and(|found| !may_go(&found)) {
                return Ok(false);
            }
            expected = slot.revision;
        }
        Err(Trouble::Contended {
            what: format!("the record of job {}", record.job),
        })
    }

    /// Moves a body that does not fit into a message into an object, and names that in `headers`.
    /// The object belongs to this submission alone, so repeating this changes nothing.
    pub(crate) async fn set_aside(
        &self,
        tenant: &TenantId,
        arrival: &Arrival,
        body: &Bytes,
        headers: &mut HeaderMap,
    ) -> Result<(), Trouble> {
        let name = format!("{tenant}.{}", arrival.assigned_id());
        self.payloads.put(&name, body, usize::MAX).await?;
        headers.insert(header::CLAIM, name);
        Ok(())
    }

    /// Jobs one tenant may have waiting in one priority, for messages; None if it cannot be learnt.
    pub(crate) async fn backlog_max(&self) -> Option<u64> {
        let mut known = self.backlog_max.lock().await;
        if let Some((at, max)) = *known
            && at.elapsed() < LIMIT_FRESH
        {
            return Some(max);
        }
        let stream = self.nats.names.jobs_stream();
        match self.nats.jetstream.get_stream(stream).await {
            Ok(stream) => {
                let max = stream.cached_info().config.max_messages_per_subject;
                let max = u64::try_from(max).ok().filter(|max| *max > 0)?;
                *known = Some((Instant::now(), max));
                Some(max)
            }
            Err(error) => {
                tracing::debug!(%error, "cannot learn the backlog limit");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use fairlane_support::TestNats;
    use fairlane_wire::record::Phase;

    use super::*;
    use crate::intake::has_no_job;

    #[tokio::test]
    async fn a_record_that_came_in_between_is_replaced_only_if_it_may_go() {
        let server = TestNats::start().await;
        let store = Store::new(&Settings::default(), &server.nats, Metrics::new("producer"));
        let tenant = TenantId::parse("acme").unwrap();
        let record = |job: &str, phase| {
            let job = JobId::parse(job).unwrap();
            JobRecord::new(tenant.clone(), job, phase, 5)
        };
        for (job, phase, may_go) in [
            ("done", Phase::Done, false),
            ("generating", Phase::Generating, false),
            ("refused", Phase::Failed, true),
        ] {
            let between = record(job, phase);
            store
                .records
                .save(&between, Revision::ABSENT)
                .await
                .unwrap();
            let ours = record(job, Phase::Queued);
            // As somebody who had looked before there was anything.
            let saved = store.save_over(&ours, Revision::ABSENT, has_no_job).await;
            assert_eq!(saved.unwrap(), may_go, "{job}");
            let found = store.record(&tenant, &ours.job).await.unwrap().record;
            assert_eq!(found, Some(if may_go { ours } else { between }), "{job}");
        }
    }
}
