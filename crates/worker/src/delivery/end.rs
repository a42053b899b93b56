//! The ways a delivery ends, and the order of each: what is durable comes first.

use std::time::Duration;

use bytes::Bytes;
use fairlane_claude::CallReport;
use fairlane_core::Millis;
use fairlane_core::attempt::{Cause, Decision, Hold, Retry};
use fairlane_core::failure::Reason;
use fairlane_core::price::Usd;
use fairlane_nats::{Original, StoredMessage};
use fairlane_runtime::metrics::Outcome;
use fairlane_wire::lease::{DeliveryOutcome, ParkReason, Settlement};
use fairlane_wire::{DeadReason, Ended, Failure, JobHeaders, JobRecord, Letter, Phase, Standing};

use super::crash::Point;
use super::fallback::refused_by_fallback;
use super::steps::label;
use super::{Call, Delivery, End, Job, Saved, TURNS_MAX, Task, now_ms};
use crate::books;
use crate::lease::LeaseError;

/// A step that NATS did not take is repeated after this, doubling up to the maximum.
pub(super) const REPEAT_AFTER: Duration = Duration::from_millis(100);

/// Wait of a job whose body or record could not be read for now.
const UNREADABLE_WAIT_MS: Millis = 5_000;

/// Room left beside a record in a message: headers and the server's own.
const RECORD_OVERHEAD: usize = 16 * 1024;

impl Delivery {
    pub(super) async fn finish(
        &mut self,
        mut task: Task,
        call: Call,
        decision: Decision,
        failure: Option<Failure>,
    ) {
        books::add_usage(&mut task.job.record, &call.report.usage, call.cost);
        let model = task.plan.model.as_str();
        let tried = books::tried(model, &call.report, &call.verdict, call.cost, now_ms());
        task.job.record.note(tried);
        match decision {
            Decision::Keep => Box::pin(self.keep(task, call)).await,
            Decision::Bury(_) if let Some(why) = refused_by_fallback(&task, &call) => {
                self.keep_to_own_model(task.job, why, Some(call)).await;
            }
            Decision::Bury(cause) => {
                if call.verdict.burns_attempt {
                    task.job.record.attempts += 1;
                }
                if matches!(cause, Cause::Ambiguous(_)) {
                    task.job.record.ambiguous += 1;
                }
                if call.verdict.reason == Reason::Schema {
                    self.context
                        .metrics
                        .prompt_review(task.job.headers.kind.as_str());
                }
                if let Some(question) = self.may_wait(&task, cause) {
                    return Box::pin(self.defer(task, call, question)).await;
                }
                let failure = failure.unwrap_or_else(|| books::failure(cause, &call.report));
                self.bury(task.job, failure, Some(call)).await;
            }
            Decision::Retry(retry) => Box::pin(self.retry(task, call, retry)).await,
            // More turns than a job may take: like a truncated answer that got no further.
            Decision::Continue => {
                let failure = Failure::new(
                    DeadReason::Exhausted,
                    format!("the answer paused {TURNS_MAX} times and never came to an end"),
                )
                .fix("let the job use fewer tools at a time");
                self.bury(task.job, failure, Some(call)).await;
            }
        }
    }

    pub(super) async fn keep(&mut self, task: Task, call: Call) {
        let Job {
            headers,
            mut record,
            revision,
            message,
        } = task.job;
        record.phase = Phase::Done;
        record.attempts += 1;
        record.model_used.clone_from(&call.report.model);
        record.finished_ms = Some(now_ms());
        record.retry_at_ms = None;
        record.retry_reason = None;
        record.failure = None;
        record.result.clone_from(&call.report.message);
        self.claim_result(&mut record).await;
        if record.fallback.is_some() {
            record.body_claim = self.keep_body(&message, &headers).await;
        }
        let body_is_kept = record.body_claim.is_some();
        let ended = Ended::of(&record, Some(message.seq));
        let span = self.traced.result(&record);
        self.traced.done(&record, self.lease.credit.priority);
        let (saved, ()) = tokio::join!(
            self.save(record, revision, &headers),
            self.book(&headers, &call),
        );
        drop(span);
        self.context.reached(Point::Recorded).await;
        match saved {
            Saved::Ours => self.done(&headers),
            Saved::Theirs => return self.give_way(&message, &headers, Some(&call)).await,
            Saved::Not => return,
        }
        self.call_back(&headers, ended).await;
        self.clear(DeliveryOutcome::Done, Some(&call)).await;
        if !body_is_kept {
            self.forget_body(&headers).await;
        }
    }

    fn done(&self, headers: &JobHeaders) {
        let metrics = &self.context.metrics;
        metrics.job_ended(Outcome::Done);
        let took = Duration::from_millis(now_ms().saturating_sub(headers.accepted_ms));
        metrics.job_duration(label(self.credit().priority), took.as_secs_f64());
    }

    /// Deletes the large bodies of a job that nothing refers to any more. If this fails they only take up
    /// room, until they are found to belong to nothing.
    async fn forget_body(&self, headers: &JobHeaders) {
        for name in headers.claim.iter().chain(&headers.original) {
            if let Err(error) = self.context.nats.payloads().delete(name).await {
                tracing::warn!(%error, "cannot delete the body of a job that is over");
            }
        }
    }

    /// Keeps the body of a job that the lighter model answered. None if it cannot be kept now: then it
    /// cannot be run again, which is not worth holding up its answer.
    async fn keep_body(&self, message: &StoredMessage, headers: &JobHeaders) -> Option<String> {
        if headers.claim.is_some() {
            return headers.claim.clone();
        }
        let name = format!("{}.body-{}", self.credit().tenant, headers.job);
        let payloads = self.context.nats.payloads();
        match payloads.put(&name, &message.payload, usize::MAX).await {
            Ok(()) => Some(name),
            Err(error) => {
                tracing::warn!(%error, "cannot keep the body of a job");
                None
            }
        }
    }

    /// A result too large for a message goes to the payload store.
    pub(super) async fn claim_result(&self, record: &mut JobRecord) {
        let max = self.context.nats.client.server_info().max_payload;
        let Some(result) = &record.result else { return };
        let body = Bytes::from(result.to_string());
        if body.len() + RECORD_OVERHEAD <= max {
            return;
        }
        let name = format!("{}.result-{}", record.tenant, record.job);
        let payloads = self.context.nats.payloads();
        let stored = self
            .repeat("store a large result", || async {
                payloads
                    .put(&name, &body, usize::MAX)
                    .await
                    .map_err(|error| error.to_string())
            })
            .await;
        if stored.is_some() {
            record.result = None;
            record.result_claim = Some(name);
        }
    }

    pub(super) async fn bury(&mut self, job: Job, failure: Failure, call: Option<Call>) {
        let Job {
            message,
            headers,
            mut record,
            revision,
        } = job;
        record.phase = Phase::Failed;
        record.finished_ms = Some(now_ms());
        record.retry_at_ms = None;
        record.retry_reason = None;
        record.model_used = call.as_ref().and_then(|call| call.report.model.clone());
        record.failure = Some(failure.clone());
        self.traced.failed(failure.reason.as_str(), true);
        let tenant = &self.credit().tenant;
        let letter = Letter::of_job(tenant, &headers, &record, failure, now_ms())
            .read_from(&message.subject, message.seq);
        // By now somebody else may have the job, and an answer to it: then it needs no letter.
        if !self.is_still_ours().await {
            if let Some(call) = &call {
                self.book(&headers, call).await;
            }
            return;
        }
        let ended = Ended::of(&record, Some(message.seq));
        // The record decides whether this is the outcome. Until the letter is there as well, the job
        // stays, and whoever gets it next writes the letter.
        let span = self.traced.result(&record);
        let (saved, ()) = tokio::join!(self.save(record, revision, &headers), async {
            if let Some(call) = &call {
                self.book(&headers, call).await;
            }
        });
        drop(span);
        self.context.reached(Point::Recorded).await;
        match saved {
            Saved::Ours => {}
            Saved::Theirs => return self.give_way(&message, &headers, call.as_ref()).await,
            Saved::Not => return,
        }
        if self.send_letter(&message, &letter).await {
            self.context.reached(Point::Buried).await;
            self.context.metrics.job_ended(Outcome::Dead);
            self.call_back(&headers, ended).await;
            self.clear(DeliveryOutcome::Dead, call.as_ref()).await;
        }
    }

    /// Finishes what the delivery that stored the outcome could not: the letter, and the job in the
    /// stream.
    pub(super) async fn clean_up(
        &mut self,
        message: &StoredMessage,
        headers: &JobHeaders,
        record: &JobRecord,
        call: Option<&Call>,
    ) {
        tracing::info!(
            seq = message.seq,
            phase = record.phase.as_str(),
            "a job is over"
        );
        if let Some(failure) = &record.failure {
            let tenant = &self.credit().tenant;
            let at = record.finished_ms.unwrap_or_else(now_ms);
            let letter = Letter::of_job(tenant, headers, record, failure.clone(), at)
                .read_from(&message.subject, message.seq);
            if !self.send_letter(message, &letter).await {
                return;
            }
        } else if record.body_claim.is_none() {
            self.forget_body(headers).await;
        }
        self.call_back(headers, Ended::of(record, Some(message.seq)))
            .await;
        self.clear(DeliveryOutcome::Gone, call).await;
    }

    /// Leaves word that the job has ended, if anybody is to hear it.
    async fn call_back(&self, headers: &JobHeaders, ended: Option<Ended>) {
        let run = self.credit().seq.0.to_string();
        let nats = &self.context.nats;
        nats.call_back(headers.callback.as_ref(), ended, &run).await;
        self.context.reached(Point::CalledBack).await;
    }

    /// Stores the dead letter of a job whose record says that it failed. False if the process must stop
    /// first.
    pub(super) async fn send_letter(&self, message: &StoredMessage, letter: &Letter) -> bool {
        let nats = &self.context.nats;
        let buried = self
            .repeat("write a dead letter", || async {
                let original = Original {
                    headers: &message.headers,
                    raw_headers: None,
                    body: message.payload.clone(),
                };
                let buried = nats.bury(letter, original).await;
                buried.map_err(|error| error.to_string())
            })
            .await;
        // Its message may repeat parts of the request, and stays in the letter.
        tracing::info!(
            reason = letter.failure.reason.as_str(),
            detail = letter.failure.detail,
            fingerprint = letter.fingerprint,
            "dead letter"
        );
        buried.is_some()
    }

    pub(super) async fn retry(&mut self, task: Task, call: Call, retry: Retry) {
        let Job {
            headers,
            mut record,
            revision,
            message,
        } = task.job;
        let now = now_ms();
        let until_ms = now + retry.after_ms;
        self.traced.failed(call.verdict.reason.as_str(), false);
        record.phase = Phase::Retrying;
        record.attempts = retry.history.attempts;
        record.ambiguous = retry.history.ambiguous;
        record.max_tokens_raised = retry.max_tokens.or(record.max_tokens_raised);
        record.retry_at_ms = Some(until_ms);
        record.failure = None;
        record.retry_reason = Some(books::retry_reason(call.verdict.reason, &call.report));
        tracing::info!(
            reason = call.verdict.reason.as_str(),
            after_ms = retry.after_ms,
            attempts = record.attempts,
            "retrying"
        );
        let (saved, ()) = tokio::join!(
            self.save(record, revision, &headers),
            self.book(&headers, &call),
        );
        self.context.reached(Point::Recorded).await;
        match saved {
            Saved::Ours => {}
            Saved::Theirs => return self.give_way(&message, &headers, Some(&call)).await,
            Saved::Not => return,
        }
        let settlement = self.settlement(DeliveryOutcome::Retry, Some(&call), retry.hold);
        let wait = Duration::from_millis(retry.after_ms);
        self.end(
            &settlement,
            End::Park {
                until_ms,
                wait,
                why: ParkReason::Retry,
            },
        )
        .await;
    }

    /// The job ended by another's word, and its call was given up: what it used is charged and booked.
    pub(super) async fn called_off(&mut self, task: &Task, report: CallReport, cost: Option<Usd>) {
        let call = self.ended(task, report, cost);
        tracing::info!(
            output_tokens = call.report.usage.output,
            "gave up the call of a job that was called off"
        );
        let headers = &task.job.headers;
        self.book(headers, &call).await;
        self.give_way(&task.job.message, headers, Some(&call)).await;
    }

    /// Somebody else has ended the job: what our call used is added to its record if it was called off,
    /// and what is left to do is done.
    pub(super) async fn give_way(
        &mut self,
        message: &StoredMessage,
        headers: &JobHeaders,
        call: Option<&Call>,
    ) {
        if let Some(call) = call {
            self.add_to_called_off(message.seq, headers, call).await;
        }
        let (records, tenant) = (&self.context.records, &self.credit().tenant);
        let slot = self
            .repeat("read the outcome of a job", || async {
                let slot = records.get(tenant, &headers.job).await;
                slot.map_err(|error| error.to_string())
            })
            .await;
        let Some(slot) = slot else { return };
        match Standing::of(slot.record, message.seq, headers.parent.as_ref()) {
            Standing::Over(record) => self.clean_up(message, headers, &record, call).await,
            Standing::Elsewhere => self.clear(DeliveryOutcome::Gone, call).await,
            // Not over after all: it runs again when its lease ends.
            Standing::Open(_) => {}
        }
    }

    /// The lease went away under the call: somebody else has the job now. Only the books are ours.
    pub(super) async fn lost(&self, task: &Task, report: CallReport, cost: Option<Usd>) {
        let call = self.ended(task, report, cost);
        self.book(&task.job.headers, &call).await;
    }

    /// Something could not be read for now: back in line, after a while.
    pub(super) async fn put_off(&mut self) {
        let until_ms = now_ms() + UNREADABLE_WAIT_MS;
        let settlement = self.settlement(DeliveryOutcome::Retry, None, None);
        let wait = Duration::from_millis(UNREADABLE_WAIT_MS);
        self.end(
            &settlement,
            End::Park {
                until_ms,
                wait,
                why: ParkReason::Retry,
            },
        )
        .await;
    }

    /// Deletes the job and releases the credit.
    pub(super) async fn clear(&mut self, outcome: DeliveryOutcome, call: Option<&Call>) {
        let (jobs, stream) = (
            self.context.nats.jobs(),
            self.context.nats.names.jobs_stream(),
        );
        let seq = self.credit().seq.0;
        let deleted = self
            .repeat("delete a job", || async {
                jobs.delete(&stream, seq)
                    .await
                    .map_err(|error| error.to_string())
            })
            .await;
        if deleted.is_some() {
            self.context.reached(Point::Deleted).await;
            self.release(outcome, call).await;
        }
    }

    /// Releases the credit of a job that is done with, or was not begun.
    pub(super) async fn release(&mut self, outcome: DeliveryOutcome, call: Option<&Call>) {
        let settlement = self.settlement(outcome, call, None);
        self.end(&settlement, End::Release).await;
    }

    pub(super) async fn end(&mut self, settlement: &Settlement, end: End) {
        let _span = self.traced.settle(settlement.outcome);
        let mut wait = REPEAT_AFTER;
        loop {
            let ended = match end {
                End::Release => self.lease.release(settlement).await,
                End::Park {
                    until_ms,
                    wait,
                    why,
                } => self.lease.park(settlement, until_ms, wait, why).await,
            };
            match ended {
                Ok(()) => return,
                Err(LeaseError::Lost) => {
                    tracing::info!("the credit had run out before it was given back");
                    return;
                }
                Err(LeaseError::Write(error)) => {
                    tracing::warn!(%error, "cannot give a credit back yet");
                    if !self.pause(&mut wait).await {
                        return;
                    }
                }
            }
        }
    }

    pub(super) fn settlement(
        &self,
        outcome: DeliveryOutcome,
        call: Option<&Call>,
        hold: Option<Hold>,
    ) -> Settlement {
        let call = call.map(|call| (&call.report, &call.verdict));
        books::settlement(self.credit(), outcome, call, hold, now_ms())
    }
}
