//! The steps of an end. Each can be repeated, and is, until NATS has taken it.

use std::time::{Duration, Instant};

use bytes::Bytes;
use fairlane_core::failure::{Cancelled, Class, Ending, Paid};
use fairlane_nats::{Revision, Slot, WriteError};
use fairlane_runtime::metrics::{CallEnded, Priority as Label, TokensUsed};
use fairlane_wire::{JobHeaders, JobRecord, LedgerEntry, Phase};

use super::end::REPEAT_AFTER;
use super::{Call, Delivery, Saved, now_ms};
use crate::books;
use crate::lease::LeaseError;

/// Repetitions come no more seldom than this.
const REPEAT_AFTER_MAX: Duration = Duration::from_secs(2);

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
                    // Nobody wrote, and nobody would answer who did.
                    if matches!(error, WriteError::Unavailable { .. }) {
                        continue;
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
        self.measure(headers, call);
        let entry = LedgerEntry {
            by_fallback: call.by_fallback,
            waited_ms: call.waited_ms,
            ..books::ledger_entry(
                self.credit(),
                headers,
                &call.report,
                &call.verdict,
                call.asked,
                call.cost,
                now_ms(),
            )
        };
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

    /// Counts the call where its booking is written, so that both say the same.
    fn measure(&self, headers: &JobHeaders, call: &Call) {
        let (metrics, credit) = (&self.context.metrics, self.credit());
        let (report, verdict) = (&call.report, &call.verdict);
        let priority = label(credit.priority);
        let usage = books::usage(&report.usage);
        metrics.call_ended(&CallEnded {
            tenant: credit.tenant.as_str(),
            kind: headers.kind.as_str(),
            priority,
            model: call.model.as_str(),
            reason: verdict.reason.as_str(),
            seconds: Duration::from_millis(report.timings.total_ms).as_secs_f64(),
            answered: verdict.paid != Paid::No,
            succeeded: verdict.class == Class::Success,
            unauthorized: matches!(report.status, Some(401 | 403)),
            by_fallback: call.by_fallback,
            tokens: TokensUsed {
                input: usage.input_tokens,
                cache_write: usage.cache_write_5m_tokens + usage.cache_write_1h_tokens,
                cache_read: usage.cache_read_tokens,
                output: usage.output_tokens,
            },
            cost_usd: call.cost.map(books::usd),
        });
        if let Some(waited) = call.waited_ms {
            metrics.queue_wait(priority, Duration::from_millis(waited).as_secs_f64());
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

pub(super) fn label(priority: fairlane_core::Priority) -> Label {
    match priority {
        fairlane_core::Priority::Critical => Label::Critical,
        fairlane_core::Priority::Standard => Label::Standard,
        fairlane_core::Priority::Batch => Label::Batch,
    }
}
