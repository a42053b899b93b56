//! Jobs that the leader takes out of the queue: deadlines that passed, jobs whose workers die, and those
//! that are over or were called off while they waited.

use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use fairlane_core::scheduler::{Event, PutAside};
use fairlane_core::{JobSeq, Millis, TenantId};
use fairlane_nats::records::Slot;
use fairlane_nats::{Nats, Original, Records, StoredMessage, owner};
use fairlane_runtime::metrics::Outcome;
use fairlane_runtime::spans::{self, Fate, JobSpan, SpanKind, Tags};
use fairlane_runtime::{Metrics, TraceContext};
use fairlane_wire::lease::Lease;
use fairlane_wire::record::Standing;
use fairlane_wire::{DeadReason, Ended, Failure, JobHeaders, JobRecord, Letter, Namespace, Phase};

/// How long the trace of a lease that is not needed any more is kept.
const TRACE_KEEP: Duration = Duration::from_secs(60);

/// Stores the outcome, if there is none, then the dead letter, leaves word, then deletes the job. Every step can be
/// repeated. Gives what the core is to be told.
///
/// # Errors
/// Whatever kept it from being done; the job is then still in the stream.
pub(crate) async fn put_aside(
    nats: &Nats,
    metrics: &Metrics,
    keep: Duration,
    seq: JobSeq,
    why: PutAside,
    now: Millis,
) -> anyhow::Result<Event> {
    let stream = nats.names.jobs_stream();
    let message = nats.jobs().get(&stream, seq.0).await;
    let Some(message) = message.context("cannot read the job")? else {
        close_lease(nats, seq).await?;
        return Ok(Event::PutAside { seq });
    };
    let job = Job::read(nats, message)?;
    let records = Records::new(nats, keep);
    let slot = records.get(&job.tenant, &job.headers.job).await?;
    let standing = Standing::of(slot.record.clone(), seq.0, job.headers.parent.as_ref());
    let over = match standing {
        Standing::Elsewhere => None,
        Standing::Over(record) => Some(record),
        Standing::Open(record) => {
            let record = record.unwrap_or_else(|| job.first_record());
            if let Some(event) = stays(nats, &record, seq, why).await? {
                return Ok(event);
            }
            let record = job.fail(&records, &slot, record, why, now).await?;
            metrics.job_ended(match why {
                PutAside::DeadlinePassed => Outcome::Expired,
                PutAside::CalledOff | PutAside::Undeliverable { .. } => Outcome::Dead,
            });
            Some(record)
        }
    };
    if let Some(record) = over {
        let _span = job.span(&record);
        job.send_letter(nats, &record, now).await?;
        job.forget_body(nats, &record).await;
        let (to, ended) = (&job.headers.callback, Ended::of(&record, Some(seq.0)));
        nats.call_back(to.as_ref(), ended, &seq.0.to_string()).await;
    }
    nats.jobs()
        .delete(&stream, seq.0)
        .await
        .context("cannot delete the job")?;
    close_lease(nats, seq).await?;
    Ok(Event::PutAside { seq })
}

/// A job that is said to be called off, and whose record says otherwise.
async fn stays(
    nats: &Nats,
    record: &JobRecord,
    seq: JobSeq,
    why: PutAside,
) -> anyhow::Result<Option<Event>> {
    match (why, record.phase, record.retry_at_ms) {
        // Its owner has not answered in time.
        (PutAside::CalledOff, Phase::NeedsDecision, _) => Ok(None),
        // Its owner has, and the lease still has the earlier time.
        (PutAside::CalledOff, Phase::Deferred, Some(until)) => {
            // The watch of the leases tells the core until when.
            owner::move_parked(nats, seq, until).await?;
            Ok(Some(Event::Kept { seq }))
        }
        (PutAside::CalledOff, _, _) => Ok(Some(Event::Kept { seq })),
        (PutAside::DeadlinePassed | PutAside::Undeliverable { .. }, _, _) => Ok(None),
    }
}

/// Takes the parked lease of a job that is gone out of the way.
async fn close_lease(nats: &Nats, seq: JobSeq) -> anyhow::Result<()> {
    let bucket = nats.bucket(&nats.names.credits_bucket());
    let key = Namespace::lease_key(seq);
    let Some(entry) = bucket.get(&key).await? else {
        return Ok(());
    };
    let parked = entry
        .value()
        .is_some_and(|value| matches!(serde_json::from_slice(value), Ok(Lease::Parked(_))));
    if parked {
        // Whoever was faster knows better.
        let closed = bucket.tombstone_if(&key, entry.revision, Bytes::new(), TRACE_KEEP);
        if let Err(error) = closed.await {
            tracing::debug!(seq = seq.0, %error, "a lease of a job that is gone stays for a while");
        }
    }
    Ok(())
}

struct Job {
    message: StoredMessage,
    tenant: TenantId,
    priority: fairlane_core::Priority,
    headers: JobHeaders,
}

impl Job {
    fn read(nats: &Nats, message: StoredMessage) -> anyhow::Result<Self> {
        let (priority, tenant) = nats
            .names
            .parse_job_subject(&message.subject)
            .with_context(|| format!("{:?} is not a lane", message.subject))?;
        let header = |name: &str| message.headers.get(name).map(|value| value.as_str());
        let headers = JobHeaders::parse(header).context("not a job")?;
        Ok(Self {
            message,
            tenant,
            priority,
            headers,
        })
    }

    /// The end of the job in its trace, which is worth sending if it failed.
    fn span(&self, record: &JobRecord) -> JobSpan {
        let headers = &self.headers;
        let trace = headers.traceparent.as_deref();
        let trace =
            trace.and_then(|parent| TraceContext::parse(parent, headers.tracestate.as_deref()));
        let tags = Tags::default()
            .text("job", headers.job.as_str())
            .text("tenant", self.tenant.as_str())
            .text("kind", headers.kind.as_str())
            .word("priority", self.priority.as_str())
            .text("pool", headers.pool.as_str());
        let mut span = JobSpan::start("put aside", SpanKind::Internal, trace.as_ref(), &tags);
        if let (Some(failure), Some(trace)) = (&record.failure, &trace) {
            span.fail(failure.reason.as_str());
            spans::tell(trace, Fate::Failed);
        }
        span
    }

    fn first_record(&self) -> JobRecord {
        let headers = &self.headers;
        let (tenant, job) = (self.tenant.clone(), headers.job.clone());
        JobRecord {
            parent: headers.parent.clone(),
            truncated: headers.truncated.clone(),
            original_claim: headers.original.clone(),
            ..JobRecord::new(tenant, job, Phase::Queued, headers.accepted_ms).describing(
                &headers.kind,
                self.priority,
                &headers.model,
            )
        }
    }

    async fn fail(
        &self,
        records: &Records,
        slot: &Slot,
        record: JobRecord,
        why: PutAside,
        now: Millis,
    ) -> anyhow::Result<JobRecord> {
        let (failure, deliveries) = describe(why, &self.headers, &record);
        let record = JobRecord {
            phase: Phase::Failed,
            sequence: Some(self.message.seq),
            deliveries,
            finished_ms: Some(now),
            retry_at_ms: None,
            retry_reason: None,
            failure: Some(failure),
            ..record
        };
        let saved = records.save(&record, slot.revision).await;
        saved.context("cannot save the record")?;
        Ok(record)
    }

    async fn send_letter(
        &self,
        nats: &Nats,
        record: &JobRecord,
        now: Millis,
    ) -> anyhow::Result<()> {
        let Some(failure) = &record.failure else {
            return Ok(());
        };
        let at = record.finished_ms.unwrap_or(now);
        let letter = Letter::of_job(&self.tenant, &self.headers, record, failure.clone(), at)
            .read_from(&self.message.subject, self.message.seq);
        let original = Original {
            headers: &self.message.headers,
            raw_headers: None,
            body: self.message.payload.clone(),
        };
        let buried = nats.bury(&letter, original).await;
        buried.context("cannot write the dead letter").map(|_| ())
    }

    /// Deletes the large body of a job that needs none any more; a dead letter does.
    async fn forget_body(&self, nats: &Nats, record: &JobRecord) {
        if let Some(claim) = &self.headers.claim
            && record.failure.is_none()
            && let Err(error) = nats.payloads().delete(claim).await
        {
            tracing::warn!(%error, "cannot delete the body of a job that is over");
        }
    }
}

fn describe(why: PutAside, headers: &JobHeaders, record: &JobRecord) -> (Failure, u32) {
    match why {
        PutAside::CalledOff => {
            let text =
                "the upstream was overloaded, and nobody said in time whether the job may wait";
            let failure = Failure::new(DeadReason::Exhausted, text)
                .fix("answer when the record asks, or set on_overload.defer to yes or no");
            (failure, record.deliveries)
        }
        PutAside::DeadlinePassed => {
            let deadline = headers.deadline_ms.unwrap_or_default();
            let text =
                format!("the deadline (unix time {deadline} ms) passed before the job could run");
            let failure = Failure::new(DeadReason::Expired, text)
                .field("deadline_ms")
                .fix("publish it again with a later deadline, if it is still wanted");
            (failure, record.deliveries)
        }
        PutAside::Undeliverable { deliveries } => {
            let text = format!("{deliveries} workers took the job and none of them came to an end");
            let failure = Failure::new(DeadReason::CrashSuspect, text)
                .fix("look for what kills the workers that run it before you send it again");
            (failure, deliveries.max(record.deliveries))
        }
    }
}

#[cfg(test)]
mod tests {
    use fairlane_core::Priority;
    use fairlane_support::TestNats;
    use fairlane_support::jobs::job_headers;
    use fairlane_wire::header;

    use super::*;

    #[tokio::test]
    async fn a_job_that_is_put_aside_has_word_of_it_left_before_it_goes() {
        let test = TestNats::start().await;
        let nats = &test.nats;
        let subject = nats
            .names
            .job_subject(Priority::Batch, &TenantId::parse("acme").unwrap());
        let mut headers = job_headers("a");
        headers.insert(header::CALLBACK, "subject fl.callback.acme.ended");
        let jobs = nats.jobs();
        let stored = jobs.publish(&subject, None, headers, "{}".into());
        let seq = JobSeq(stored.await.unwrap().seq);
        let keep = Duration::from_secs(60);
        let metrics = Metrics::new("scheduler");
        put_aside(nats, &metrics, keep, seq, PutAside::DeadlinePassed, 5)
            .await
            .unwrap();
        let text = metrics.render();
        let counted = r#"fairlane_jobs_total{outcome="expired"} 1"#;
        assert!(text.contains(counted), "{text}");
        let stream = nats.names.callbacks_stream();
        let word = jobs.get(&stream, 1).await.unwrap().unwrap();
        let to = word.headers.get(header::CALLBACK).unwrap().as_str();
        assert_eq!(to, "subject fl.callback.acme.ended");
        let said: Ended = serde_json::from_slice(&word.payload).unwrap();
        assert_eq!((said.phase, said.sequence), (Phase::Failed, Some(seq.0)));
        assert_eq!(said.reason, Some(DeadReason::Expired));
        let stream = nats.names.jobs_stream();
        assert_eq!(jobs.get(&stream, seq.0).await.unwrap(), None);
    }
}
