//! What has become of the messages of batches, from the headers of their records.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use fairlane_core::{JobId, TenantId};
use fairlane_nats::{IndexEvent, Nats};
use fairlane_wire::{DeadReason, Namespace, Phase, header};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::Mutex;

/// Whoever asks again sooner gets the same answer.
const FRESH: Duration = Duration::from_secs(1);
/// Tenants whose last answer is kept.
const TENANTS_MAX: usize = 256;
/// How long a look at a tenant's records may take.
const LOOK_MAX: Duration = Duration::from_secs(20);

/// Messages of a batch by how they ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Tally {
    pub(crate) processing: u64,
    pub(crate) succeeded: u64,
    pub(crate) errored: u64,
    pub(crate) canceled: u64,
    pub(crate) expired: u64,
}

/// How a message ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Succeeded,
    Errored,
    Canceled,
    Expired,
}

/// How a job ended as a message of a batch; None if it has not.
pub(crate) fn kind(phase: Phase, reason: Option<DeadReason>) -> Option<Kind> {
    match phase {
        Phase::Done => Some(Kind::Succeeded),
        Phase::Cancelled => Some(Kind::Canceled),
        Phase::Failed if reason == Some(DeadReason::Expired) => Some(Kind::Expired),
        Phase::Failed => Some(Kind::Errored),
        Phase::Accepted
        | Phase::Queued
        | Phase::Generating
        | Phase::Refining
        | Phase::Retrying
        | Phase::Deferred
        | Phase::NeedsDecision => None,
    }
}

impl Tally {
    pub(crate) fn with_processing(self, processing: u64) -> Self {
        Self { processing, ..self }
    }

    pub(crate) fn shown(self) -> Value {
        json!(self)
    }

    /// Messages that have ended.
    pub(crate) fn ended(self) -> u64 {
        self.succeeded + self.errored + self.canceled + self.expired
    }

    /// Counts those of `all` that have not ended as expired.
    pub(crate) fn expire_rest(&mut self, all: u64) {
        self.expired += all.saturating_sub(self.ended());
    }

    /// Counts those of `all` that have not ended as called off.
    pub(crate) fn cancel_rest(&mut self, all: u64) {
        self.processing = 0;
        self.canceled += all.saturating_sub(self.ended());
    }

    fn add(&mut self, kind: Kind) {
        match kind {
            Kind::Succeeded => self.succeeded += 1,
            Kind::Errored => self.errored += 1,
            Kind::Canceled => self.canceled += 1,
            Kind::Expired => self.expired += 1,
        }
    }
}

/// Tallies by the id of their batch.
type OfBatches = HashMap<String, Tally>;

/// The last look at each tenant's records.
#[derive(Debug, Default)]
pub(crate) struct Tallies {
    looks: Mutex<HashMap<TenantId, (Instant, OfBatches)>>,
}

impl Tallies {
    /// The messages of `batch` that have ended. Looks at a tenant's records once a second at most, for
    /// all of its batches at once.
    pub(crate) async fn of(&self, nats: &Nats, tenant: &TenantId, batch: &str) -> Tally {
        let mut looks = self.looks.lock().await;
        if let Some((at, tallies)) = looks.get(tenant)
            && at.elapsed() < FRESH
            && let Some(tally) = tallies.get(batch)
        {
            return *tally;
        }
        let looking = tokio::time::timeout(LOOK_MAX, look(nats, tenant)).await;
        // A look that takes too long says nothing: then the batch has not ended yet.
        let tallies = looking.unwrap_or_default();
        let tally = tallies.get(batch).copied().unwrap_or_default();
        if looks.len() >= TENANTS_MAX {
            looks.retain(|_, (at, _)| at.elapsed() < FRESH);
        }
        looks.insert(tenant.clone(), (Instant::now(), tallies));
        tally
    }
}

async fn look(nats: &Nats, tenant: &TenantId) -> OfBatches {
    let mut tallies = OfBatches::new();
    let ended = each_job(nats, tenant, |event| match event {
        Seen::Nothing => tallies.clear(),
        Seen::Job(_, batch, kind) => {
            if let Some(kind) = kind {
                tallies.entry(batch.to_owned()).or_default().add(kind);
            }
        }
    });
    ended.await;
    tallies
}

/// The messages of one batch that have ended, and the jobs that have not.
pub(crate) async fn look_at(nats: &Nats, tenant: &TenantId, batch: &str) -> (Tally, Vec<JobId>) {
    let mut tally = Tally::default();
    let mut open = Vec::new();
    let ended = each_job(nats, tenant, |event| match event {
        Seen::Nothing => (tally, open) = Default::default(),
        Seen::Job(job, of, kind) if of == batch => match kind {
            Some(kind) => tally.add(kind),
            None => open.extend(JobId::parse(job).ok()),
        },
        Seen::Job(..) => {}
    });
    ended.await;
    (tally, open)
}

/// What is seen of a tenant's records.
enum Seen<'a> {
    /// All begins anew.
    Nothing,
    /// A job, its batch, and how it ended if it has.
    Job(&'a str, &'a str, Option<Kind>),
}

/// Reads the headers of the records of all jobs that are messages of batches.
async fn each_job(nats: &Nats, tenant: &TenantId, mut see: impl FnMut(Seen<'_>)) {
    let bucket = nats.names.status_bucket();
    let filter = Namespace::kv_subject(&bucket, &format!("{tenant}.*"));
    let mut index = nats.index(&format!("KV_{bucket}"), &filter);
    while let Some(event) = index.next().await {
        let item = match event {
            IndexEvent::Item(item) => item,
            IndexEvent::Current => break,
            IndexEvent::Stale => continue,
            IndexEvent::Reset => {
                see(Seen::Nothing);
                continue;
            }
        };
        let job = item.subject.rsplit('.').next().unwrap_or_default();
        let Some((batch, _)) = job
            .rsplit_once('-')
            .filter(|_| job.starts_with("msgbatch_"))
        else {
            continue;
        };
        let get = |name: &str| item.headers.get(name).map(|value| value.as_str());
        let reason = get(header::REASON).and_then(DeadReason::parse);
        let phase = get(header::PHASE).and_then(Phase::parse);
        let kind = phase.and_then(|phase| kind(phase, reason));
        see(Seen::Job(job, batch, kind));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_counts_once_it_is_over() {
        assert_eq!(kind(Phase::Queued, None), None);
        assert_eq!(
            kind(Phase::Failed, Some(DeadReason::Expired)),
            Some(Kind::Expired)
        );
        assert_eq!(
            kind(Phase::Failed, Some(DeadReason::InvalidJob)),
            Some(Kind::Errored)
        );
        let mut tally = Tally::default();
        tally.add(Kind::Succeeded);
        tally.add(Kind::Canceled);
        assert_eq!(tally.ended(), 2);
        tally.expire_rest(5);
        assert_eq!((tally.expired, tally.ended()), (3, 5));
        tally.cancel_rest(7);
        assert_eq!((tally.canceled, tally.ended()), (3, 7));
    }
}
