//! Jobs that the leader takes out of the queue: deadlines that passed, and jobs whose workers die.

use std::time::Duration;

use anyhow::Context as _;
use fairlane_core::scheduler::PutAside;
use fairlane_core::{JobSeq, Millis};
use fairlane_nats::{Nats, Original, Records};
use fairlane_wire::{DeadReason, Failure, JobHeaders, JobRecord, Letter, Phase};

/// Writes the dead letter and the record, then deletes the job. Every step can be repeated.
///
/// # Errors
/// Whatever kept it from being done; the job is then still in the stream.
pub(crate) async fn put_aside(
    nats: &Nats,
    keep: Duration,
    seq: JobSeq,
    why: PutAside,
    now: Millis,
) -> anyhow::Result<()> {
    let stream = nats.names.jobs_stream();
    let jobs = nats.jobs();
    let Some(message) = jobs
        .get(&stream, seq.0)
        .await
        .context("cannot read the job")?
    else {
        return Ok(());
    };
    let (priority, tenant) = nats
        .names
        .parse_job_subject(&message.subject)
        .with_context(|| format!("{:?} is not a lane", message.subject))?;
    let header = |name: &str| message.headers.get(name).map(|value| value.as_str());
    let headers = JobHeaders::parse(header).context("not a job")?;
    let records = Records::new(nats, keep);
    let slot = records.get(&tenant, &headers.job).await?;
    let record = slot.record.unwrap_or_else(|| {
        JobRecord::new(
            tenant.clone(),
            headers.job.clone(),
            Phase::Queued,
            headers.accepted_ms,
        )
        .describing(&headers.kind, priority, &headers.model)
    });
    if !record.phase.is_final() {
        let (failure, deliveries) = describe(why, &headers, &record);
        let letter = Letter {
            deliveries,
            ..Letter::of_job(&tenant, &headers, &record, failure.clone(), now)
        }
        .read_from(&message.subject, seq.0);
        let original = Original {
            headers: &message.headers,
            raw_headers: None,
            body: message.payload.clone(),
        };
        nats.bury(&letter, original)
            .await
            .context("cannot write the dead letter")?;
        let record = JobRecord {
            phase: Phase::Failed,
            sequence: Some(seq.0),
            deliveries,
            finished_ms: Some(now),
            retry_at_ms: None,
            retry_reason: None,
            failure: Some(failure),
            ..record
        };
        records
            .save(&record, slot.revision)
            .await
            .context("cannot save the record")?;
    }
    jobs.delete(&stream, seq.0)
        .await
        .context("cannot delete the job")
}

fn describe(why: PutAside, headers: &JobHeaders, record: &JobRecord) -> (Failure, u32) {
    match why {
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
