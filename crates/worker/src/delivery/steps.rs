//! The steps of an end. Each can be repeated, and is, until NATS has taken it.

use std::time::{Duration, Instant};

use bytes::Bytes;
use fairlane_core::failure::{Cancelled, Ending, Paid};
use fairlane_nats::{Revision, Slot, WriteError};
use fairlane_runtime::metrics::Priority as Label;
use fairlane_wire::{JobHeaders, JobRecord, Phase};

use super::end::REPEAT_AFTER;
use super::{Call, Delivery, Saved, Task, now_ms};
use crate::books;
use crate::lease::LeaseError;

/// Repetitions come no more seldom than this.
const REPEAT_AFTER_MAX: Duration = Duration::from_secs(5);

/// Whether `found` settles what `record` is about: the job has an outcome, or made way for another one
/// under its id.
fn is_settled(found: &JobRecord, record: &JobRecord) -> bool {
    found
        .sequence
        .is_some_and(|seq| found.phase.is_final() || record.sequence != Some(seq))
}

impl Delivery {
    /// Renews the lease before something that cannot be taken back. False if it is lost, or if the
    /// process must stop before that is known.
    pub(super) async fn is_still_ours(&mut self) -> bool {
        let mut wait = REPEAT_AFTER;
        loop {
            match self.lease.renew().await {
                Ok(()) => return true,
                Err(LeaseError::Lost) => return false,
                Err(LeaseError::Write(error)) => {
                    tracing::warn!(%error, "cannot renew a credit yet");
                    if !self.pause(&mut wait).await {
                        return false;
                    }
                }
            }
        }
    }

    /// Saves the record. An outcome goes over everything but another outcome, anything else only
    /// forwards.
    pub(super) async fn save(
        &self,
        record: JobRecord,
        expected: Revision,
        headers: &JobHeaders,
    ) -> Saved {
        let mut expected = expected;
        let mut wait = REPEAT_AFTER;
        loop {
            match self.context.records.save(&record, expected).await {
                Ok(_) => return Saved::Ours,
                Err(WriteError::Conflict { .. }) => {}
                Err(error) => {
                    tracing::warn!(job = %headers.job, %error, "cannot save a record yet");
                    if !self.pause(&mut wait).await {
                        return Saved::Not;
                    }
                }
            }
            // Somebody wrote: the producer its first record, or another worker an outcome.
            match self.context.records.get(&record.tenant, &record.job).await {
                Ok(Slot {
                    record: Some(found),
                    ..
                }) if found == record => return Saved::Ours,
                Ok(Slot {
                    record: Some(found),
                    ..
                }) if is_settled(&found, &record) => return Saved::Theirs,
                Ok(Slot {
                    record: Some(found),
                    ..
                }) if !record.phase.is_final() && !record.may_follow(&found) => {
                    // Another worker has the job now.
                    return Saved::Not;
                }
                Ok(slot) => expected = slot.revision,
                Err(error) => {
                    tracing::warn!(job = %headers.job, %error, "cannot read a record");
                    if !self.pause(&mut wait).await {
                        return Saved::Not;
                    }
                }
            }
        }
    }

    /// Adds what a call used to the record of the job that was called off under it.
    pub(super) async fn add_to_called_off(&self, seq: u64, headers: &JobHeaders, call: &Call) {
        let (records, credit) = (&self.context.records, self.credit());
        self.repeat("book a call on a job that was called off", || async {
            let slot = records
                .get(&credit.tenant, &headers.job)
                .await
                .map_err(|error| error.to_string())?;
            let Some(mut record) = slot.record else {
                return Ok(());
            };
            if record.phase != Phase::Cancelled || record.sequence != Some(seq) {
                return Ok(());
            }
            books::add_usage(&mut record, &call.report.usage, call.cost);
            let saved = records.save(&record, slot.revision).await;
            saved.map(|_| ()).map_err(|error| error.to_string())
        })
        .await;
    }

    /// Books the call, unless nothing was sent.
    pub(super) async fn book(&self, headers: &JobHeaders, call: &Call) {
        let was_sent = !matches!(
            call.report.ending,
            Ending::NotConnected(_) | Ending::Cancelled(Cancelled::BeforeSending)
        );
        if !was_sent {
            return;
        }
        let entry = books::ledger_entry(
            self.credit(),
            headers,
            &call.report,
            &call.verdict,
            call.asked,
            call.cost,
            now_ms(),
        );
        let subject = self.context.nats.names.ledger_subject(&entry.tenant);
        let body = Bytes::from(serde_json::to_vec(&entry).expect("an entry is plain data"));
        let (jobs, id) = (
            self.context.nats.jobs(),
            entry.message_id(self.credit().term),
        );
        self.repeat("book a call", || async {
            let mut headers = fairlane_nats::HeaderMap::new();
            for (name, value) in entry.headers() {
                headers.insert(name, value);
            }
            let booked = jobs.publish(&subject, Some(&id), headers, body.clone());
            let booked = booked.await;
            booked.map(|_| ()).map_err(|error| error.to_string())
        })
        .await;
    }

    pub(super) fn measure(&self, task: &Task, call: &Call) {
        let metrics = &self.context.metrics;
        metrics.call_ended(task.plan.model.as_str(), call.verdict.reason.as_str());
        if task.plan.is_fallback() {
            metrics.fell_back();
        }
        let tenant = self.credit().tenant.as_str();
        metrics.input_tokens(tenant, call.report.usage.prompt());
        if call.verdict.paid != Paid::No {
            let label = match self.credit().priority {
                fairlane_core::Priority::Critical => Label::Critical,
                fairlane_core::Priority::Standard => Label::Standard,
                fairlane_core::Priority::Batch => Label::Batch,
            };
            let seconds = Duration::from_millis(call.report.timings.total_ms).as_secs_f64();
            metrics.request_latency(label).observe(seconds);
        }
    }

    /// Repeats a step until it works. None if the process must stop first.
    pub(super) async fn repeat<T, F>(&self, what: &str, step: impl Fn() -> F) -> Option<T>
    where
        F: Future<Output = Result<T, String>>,
    {
        let mut wait = REPEAT_AFTER;
        let began = Instant::now();
        loop {
            match step().await {
                Ok(done) => return Some(done),
                Err(error) => {
                    let waited = began.elapsed();
                    tracing::warn!(what, error, ?waited, "a step does not work yet");
                }
            }
            if !self.pause(&mut wait).await {
                return None;
            }
        }
    }

    /// Waits before a repetition, longer each time. False if the process must stop.
    pub(super) async fn pause(&self, wait: &mut Duration) -> bool {
        tokio::select! {
            () = self.stop.cancelled() => false,
            () = tokio::time::sleep(*wait) => {
                *wait = (*wait * 2).min(REPEAT_AFTER_MAX);
                true
            }
        }
    }
}
