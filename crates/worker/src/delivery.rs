//! One credit, from start to end.
//!
//! The order of the end is always the same: record and ledger entry stored, job deleted, credit
//! released. What fails for lack of NATS is repeated until it works or the process must stop; the
//! answer is paid for, and a repeated step changes nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use fairlane_claude::{CallReport, Client};
use fairlane_core::attempt::{self, Allowance, Cause, Decision, Jitter, Retry};
use fairlane_core::failure::{Cancelled, Ending, Paid, Verdict, classify};
use fairlane_core::price::Usage;
use fairlane_core::{Millis, WorkerId};
use fairlane_nats::payloads::PayloadError;
use fairlane_nats::{Nats, Records, Revision, Slot, StoredMessage, WriteError};
use fairlane_runtime::Metrics;
use fairlane_runtime::metrics::{Outcome, Priority as Label};
use fairlane_wire::lease::{Credit, DeliveryOutcome, Grant, Settlement};
use fairlane_wire::{DeadReason, Failure, JobHeaders, JobRecord, Phase, Submission, submission};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::books;
use crate::call::{self, Called, Request};
use crate::lease::{Held, LeaseError};
use crate::options::Options;
use crate::schema::Schema;

/// What deliveries share.
pub(crate) struct Context {
    pub(crate) nats: Nats,
    pub(crate) options: Options,
    pub(crate) claude: Client,
    pub(crate) metrics: Metrics,
    pub(crate) worker: WorkerId,
    records: Records,
}

impl Context {
    pub(crate) fn new(nats: Nats, options: Options, claude: Client, metrics: Metrics) -> Self {
        let records = Records::new(&nats, options.results_keep);
        // New at every start, so that nobody takes our credits for those of a dead predecessor.
        let name = format!("w{}", uuid::Uuid::now_v7().simple());
        let worker = WorkerId::parse(&name).expect("a uuid is a name");
        Self {
            nats,
            options,
            claude,
            metrics,
            worker,
            records,
        }
    }
}

/// The record says `generating` once a call takes longer than this. Shorter calls are over before
/// anybody could look, and spare a write.
const GENERATING_AFTER: Duration = Duration::from_millis(100);

/// Turns of one job in one delivery; a server-side tool loop pauses now and then.
const TURNS_MAX: u32 = 10;

/// A step that NATS did not take is repeated after this, doubling up to the maximum.
const REPEAT_AFTER: Duration = Duration::from_millis(100);
const REPEAT_AFTER_MAX: Duration = Duration::from_secs(5);

/// Wait of a job whose body or record could not be read for now.
const UNREADABLE_WAIT_MS: Millis = 5_000;

/// Room left beside a record in a message: headers and the server's own.
const RECORD_OVERHEAD: usize = 16 * 1024;

/// Runs one delivery. Never fails: whatever cannot be finished here ends with its lease.
pub(crate) async fn run(context: Arc<Context>, grant: Grant, stop: CancellationToken) {
    let Grant {
        credit,
        revision,
        ttl_ms: _,
    } = grant;
    let (nats, names) = (&context.nats, &context.nats.names);
    let bucket = nats.bucket(&names.credits_bucket());
    let (jobs, stream) = (nats.jobs(), names.jobs_stream());
    // The three are independent; the lease is what decides.
    let (lease, message, slot) = tokio::join!(
        Held::start(
            bucket,
            credit.clone(),
            Revision(revision),
            context.options.credit_ttl
        ),
        jobs.get(&stream, credit.seq.0),
        context.records.get(&credit.tenant, &credit.job),
    );
    let lease = match lease {
        Ok(lease) => lease,
        Err(error) => {
            tracing::info!(job = %credit.job, seq = credit.seq.0, %error, "not starting a job");
            return;
        }
    };
    let mut delivery = Delivery {
        context: context.clone(),
        lease,
        stop,
    };
    match (message, slot) {
        (Ok(None), _) => delivery.release(DeliveryOutcome::Gone, None).await,
        (Ok(Some(message)), Ok(slot)) => {
            let span = tracing::info_span!(
                "fairlane.delivery",
                tenant = %credit.tenant, job = %credit.job, delivery = credit.delivery,
                priority = %credit.priority, pool = %credit.pool,
            );
            parent(&span, &message);
            Box::pin(delivery.begin(message, slot))
                .instrument(span)
                .await;
        }
        (Err(error), _) => {
            tracing::warn!(seq = credit.seq.0, %error, "cannot read a job");
            delivery.put_off().await;
        }
        (_, Err(error)) => {
            tracing::warn!(seq = credit.seq.0, %error, "cannot read a job's record");
            delivery.put_off().await;
        }
    }
}

/// Gives a credit back without having begun.
pub(crate) async fn hand_back(context: Arc<Context>, grant: Grant) {
    let bucket = context.nats.bucket(&context.nats.names.credits_bucket());
    let revision = Revision(grant.revision);
    let started = Held::start(bucket, grant.credit, revision, context.options.credit_ttl).await;
    if let Ok(lease) = started {
        let mut delivery = Delivery {
            context,
            lease,
            stop: CancellationToken::new(),
        };
        delivery.release(DeliveryOutcome::Returned, None).await;
    }
}

fn parent(span: &tracing::Span, message: &StoredMessage) {
    let header = |name: &str| message.headers.get(name).map(|value| value.as_str());
    let trace = header(fairlane_wire::header::TRACEPARENT).and_then(|parent| {
        let state = header(fairlane_wire::header::TRACESTATE);
        fairlane_runtime::TraceContext::parse(parent, state)
    });
    if let Some(trace) = trace {
        trace.set_as_parent_of(span);
    }
}

struct Delivery {
    context: Arc<Context>,
    lease: Held,
    stop: CancellationToken,
}

/// A job as it was read, and its record.
struct Job {
    message: StoredMessage,
    headers: JobHeaders,
    record: JobRecord,
    /// Revision of the record as far as we know.
    revision: Revision,
}

/// A job that is to be called.
struct Task {
    job: Job,
    submission: Submission,
    schema: Option<Schema>,
}

/// What became of a record. Only an outcome that is stored, ours or another's, lets the job go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Saved {
    Ours,
    /// Another outcome was there first.
    Theirs,
    /// The process must stop, and nothing is stored. The job runs again when its lease ends.
    Not,
}

/// How the lease is given up.
enum End {
    Release,
    Park { until_ms: Millis, wait: Duration },
}

/// A call that ended, with all that was used by it and the turns before it.
struct Call {
    report: CallReport,
    verdict: Verdict,
    cost: Option<fairlane_core::price::Usd>,
}

/// The submission with its schema, if that can be used: nothing is paid for an answer that cannot be
/// checked.
async fn readable(submission: Submission) -> Result<(Submission, Option<Schema>), Failure> {
    let Some(schema) = &submission.output_schema else {
        return Ok((submission, None));
    };
    match Schema::read(schema).await {
        Ok(schema) => Ok((submission, Some(schema))),
        Err(violation) => Err(Failure::new(DeadReason::InvalidJob, violation.to_string())
            .field("output_schema")
            .fix("publish the job again with a JSON Schema that is valid and simpler")),
    }
}

impl Delivery {
    fn credit(&self) -> &Credit {
        &self.lease.credit
    }

    async fn begin(&mut self, message: StoredMessage, slot: Slot) {
        let Some(task) = self.prepare(message, slot).await else {
            return;
        };
        Box::pin(self.call(task)).await;
    }

    /// Reads what is to be done. None if there is nothing to do, which is then already settled.
    async fn prepare(&mut self, message: StoredMessage, slot: Slot) -> Option<Task> {
        let Slot { record, revision } = slot;
        // An outcome without a sequence is that of an earlier submission under this id, which was
        // turned away; its record is about to be replaced.
        let record = record.filter(|record| !record.phase.is_final() || record.sequence.is_some());
        let elsewhere = record.as_ref().and_then(|record| record.sequence);
        let is_over = record
            .as_ref()
            .is_some_and(|record| record.phase.is_final());
        if is_over || elsewhere.is_some_and(|seq| seq != message.seq) {
            tracing::info!(seq = message.seq, is_over, "nothing left to do for a job");
            self.clear(DeliveryOutcome::Gone, None).await;
            return None;
        }
        let header = |name: &str| message.headers.get(name).map(|value| value.as_str());
        let headers = match JobHeaders::parse(header) {
            Ok(headers) => headers,
            Err(error) => {
                // Not written by a producer of ours; the index refuses such messages.
                tracing::error!(seq = message.seq, %error, "not a job");
                self.release(DeliveryOutcome::Returned, None).await;
                return None;
            }
        };
        let credit = self.credit();
        let mut record = record.unwrap_or_else(|| {
            JobRecord::new(
                credit.tenant.clone(),
                credit.job.clone(),
                Phase::Queued,
                headers.accepted_ms,
            )
            .describing(&headers.kind, credit.priority, &headers.model)
        });
        record.sequence = Some(message.seq);
        record.deliveries = record.deliveries.saturating_add(1).max(credit.delivery);
        record.started_ms.get_or_insert(now_ms());
        let job = Job {
            message,
            headers,
            record,
            revision,
        };
        let parsed = match self.body(&job).await {
            Ok(body) => submission::parse(&body, &self.credit().tenant),
            Err(Some(failure)) => Err(failure),
            Err(None) => {
                self.put_off().await;
                return None;
            }
        };
        let readable = match parsed {
            Ok(submission) => readable(submission).await,
            Err(failure) => Err(failure),
        };
        match readable {
            Ok((submission, schema)) => Some(Task {
                job,
                submission,
                schema,
            }),
            Err(failure) => {
                self.bury(job, failure, None).await;
                None
            }
        }
    }

    /// The body of the job, from the message or the payload store. `Err(None)`: not now.
    async fn body(&self, job: &Job) -> Result<Bytes, Option<Failure>> {
        let Some(claim) = &job.headers.claim else {
            return Ok(job.message.payload.clone());
        };
        let payloads = self.context.nats.payloads();
        match payloads
            .get(claim, self.context.options.body_bytes_max)
            .await
        {
            Ok(body) => Ok(body),
            Err(error @ PayloadError::Store { .. }) => {
                tracing::warn!(%error, "cannot read a job's body");
                Err(None)
            }
            Err(error) => Err(Some(
                Failure::new(DeadReason::InvalidJob, error.to_string())
                    .field(fairlane_wire::header::CLAIM)
                    .fix("publish the job again, with its body"),
            )),
        }
    }

    async fn call(&mut self, mut task: Task) {
        let max_tokens = task
            .job
            .record
            .max_tokens_raised
            .unwrap_or(task.submission.max_tokens);
        let mut request = Request::new(
            &task.submission,
            max_tokens,
            task.job.headers.traceparent.clone(),
            task.job.headers.tracestate.clone(),
        );
        // The turns so far, with all that they used.
        let mut paused: Option<CallReport> = None;
        for turn in 1.. {
            let before = paused
                .as_ref()
                .map_or(Usage::default(), |report| report.usage);
            let called = Box::pin(self.one_call(&mut task, &request)).await;
            let mut report = match called {
                Called::Reported(report) => *report,
                Called::LeaseLost(mut report) => {
                    report.usage = before.plus(report.usage);
                    return self.lost(&task, *report).await;
                }
                Called::NotSent(error) => {
                    tracing::info!(job = %self.credit().job, %error, "not calling on a lease that is over");
                    if let Some(paused) = paused {
                        self.lost(&task, paused).await;
                    }
                    return;
                }
                Called::Unsendable(error) => {
                    let failure = Failure::new(DeadReason::InvalidRequest, error.to_string());
                    return self.bury(task.job, failure, None).await;
                }
            };
            report.usage = before.plus(report.usage);
            let failure = self.check_schema(&task, &mut report).await;
            let verdict = classify(&report.ending);
            let decision = attempt::decide(
                &verdict,
                books::history(&task.job.record),
                self.allowance(&task, max_tokens),
                Jitter {
                    retry: rand::random(),
                    pause: rand::random(),
                },
            );
            if let (Decision::Continue, Some(message), true) =
                (decision, &report.message, turn < TURNS_MAX)
            {
                request.continue_from(message);
                paused = Some(report);
                continue;
            }
            let cost = self.cost(&task, &report);
            let call = Call {
                report,
                verdict,
                cost,
            };
            return self.finish(task, call, decision, failure).await;
        }
    }

    async fn one_call(&mut self, task: &mut Task, request: &Request) -> Called {
        let context = self.context.clone();
        let stop = self.stop.clone();
        let tokens = AtomicU64::new(0);
        let on_slow = async {
            let record = JobRecord {
                phase: Phase::Generating,
                retry_at_ms: None,
                retry_reason: None,
                failure: None,
                tokens_so_far: tokens.load(Ordering::Relaxed),
                ..task.job.record.clone()
            };
            // For people who look; if it does not work, the outcome will tell.
            context.records.save(&record, task.job.revision).await.ok()
        };
        let mut saved = None;
        let called = Box::pin(call::run(
            &context,
            &mut self.lease,
            request,
            &stop,
            GENERATING_AFTER,
            async { saved = on_slow.await },
            |progress| tokens.store(progress.output_tokens, Ordering::Relaxed),
        ))
        .await;
        if let Some(revision) = saved {
            task.job.revision = revision;
        }
        called
    }

    /// Turns a good answer that breaks the job's schema into what it is: a failure.
    async fn check_schema(&self, task: &Task, report: &mut CallReport) -> Option<Failure> {
        let schema = task.schema.as_ref()?;
        if !matches!(
            classify(&report.ending).next,
            fairlane_core::failure::Next::Keep
        ) {
            return None;
        }
        let violation = schema.check(report.message.as_ref()?).await.err()?;
        report.ending = Ending::SchemaViolated;
        Some(
            Failure::new(DeadReason::Schema, violation.to_string())
                .field("output_schema")
                .fix("make the prompt ask for exactly this form, or loosen the schema"),
        )
    }

    fn allowance(&self, task: &Task, max_tokens: u64) -> Allowance {
        let model = self
            .context
            .options
            .catalog
            .find(task.job.headers.model.as_str());
        Allowance {
            attempts_max: task
                .submission
                .max_attempts
                .unwrap_or(self.context.options.attempts_max),
            max_tokens,
            output_tokens_max: model.map_or(max_tokens, |model| model.output_tokens_max),
        }
    }

    fn cost(&self, task: &Task, report: &CallReport) -> Option<fairlane_core::price::Usd> {
        let options = &self.context.options;
        let model = task.job.headers.model.as_str();
        books::cost(&options.prices, &options.catalog, model, report, now_ms())
    }

    // ---- the ways a delivery ends ---------------------------------------------------------

    async fn finish(
        &mut self,
        mut task: Task,
        call: Call,
        decision: Decision,
        failure: Option<Failure>,
    ) {
        self.measure(&call);
        books::add_usage(&mut task.job.record, &call.report.usage, call.cost);
        match decision {
            Decision::Keep => self.keep(task, call).await,
            Decision::Bury(cause) => {
                if call.verdict.burns_attempt {
                    task.job.record.attempts += 1;
                }
                if matches!(cause, Cause::Ambiguous(_)) {
                    task.job.record.ambiguous += 1;
                }
                let failure = failure.unwrap_or_else(|| books::failure(cause, &call.report));
                self.bury(task.job, failure, Some(call)).await;
            }
            Decision::Retry(retry) => self.retry(task, call, retry).await,
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

    async fn keep(&mut self, task: Task, call: Call) {
        let Job {
            headers,
            mut record,
            revision,
            ..
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
        let (saved, ()) = tokio::join!(
            self.save(record, revision, &headers),
            self.book(&headers, &call),
        );
        let outcome = match saved {
            Saved::Ours => {
                self.context.metrics.job_ended(Outcome::Done);
                DeliveryOutcome::Done
            }
            Saved::Theirs => DeliveryOutcome::Gone,
            Saved::Not => return,
        };
        self.clear(outcome, Some(&call)).await;
        if let Some(claim) = &headers.claim {
            // Nothing refers to the body any more; if this fails it only takes up room.
            if let Err(error) = self.context.nats.payloads().delete(claim).await {
                tracing::warn!(%error, "cannot delete the body of a job that is done");
            }
        }
    }

    /// A result too large for a message goes to the payload store.
    async fn claim_result(&self, record: &mut JobRecord) {
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

    async fn bury(&mut self, job: Job, failure: Failure, call: Option<Call>) {
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
        let letter = books::letter(
            self.credit(),
            &headers,
            &message.subject,
            &record,
            &failure,
            now_ms(),
        );
        // By now somebody else may have the job, and an answer to it: then it needs no letter.
        if !self.is_still_ours().await {
            if let Some(call) = &call {
                self.book(&headers, call).await;
            }
            return;
        }
        // The letter first: a job that is gone must be found somewhere.
        let nats = &self.context.nats;
        let buried = self
            .repeat("write a dead letter", || async {
                let (headers, body) = (&message.headers, message.payload.clone());
                nats.bury(&letter, headers, body)
                    .await
                    .map_err(|error| error.to_string())
            })
            .await;
        if buried.is_none() {
            return;
        }
        tracing::info!(
            reason = failure.reason.as_str(),
            message = failure.message,
            "dead letter"
        );
        let (saved, ()) = tokio::join!(self.save(record, revision, &headers), async {
            if let Some(call) = &call {
                self.book(&headers, call).await;
            }
        });
        let outcome = match saved {
            Saved::Ours => {
                self.context.metrics.job_ended(Outcome::Dead);
                DeliveryOutcome::Dead
            }
            Saved::Theirs => DeliveryOutcome::Gone,
            Saved::Not => return,
        };
        self.clear(outcome, call.as_ref()).await;
    }

    async fn retry(&mut self, task: Task, call: Call, retry: Retry) {
        let Job {
            headers,
            mut record,
            revision,
            ..
        } = task.job;
        let now = now_ms();
        let until_ms = now + retry.after_ms;
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
        match saved {
            Saved::Ours => {}
            Saved::Theirs => return self.clear(DeliveryOutcome::Gone, Some(&call)).await,
            Saved::Not => return,
        }
        let pause = retry.pool_pause_ms.map(|ms| now + ms);
        let settlement = self.settlement(DeliveryOutcome::Retry, Some(&call), pause);
        let wait = Duration::from_millis(retry.after_ms);
        self.end(&settlement, End::Park { until_ms, wait }).await;
    }

    /// The lease went away under the call: somebody else has the job now. Only the books are ours.
    async fn lost(&self, task: &Task, report: CallReport) {
        let verdict = classify(&report.ending);
        let cost = self.cost(task, &report);
        self.book(
            &task.job.headers,
            &Call {
                report,
                verdict,
                cost,
            },
        )
        .await;
    }

    /// Something could not be read for now: back in line, after a while.
    async fn put_off(&mut self) {
        let until_ms = now_ms() + UNREADABLE_WAIT_MS;
        let settlement = self.settlement(DeliveryOutcome::Retry, None, None);
        let wait = Duration::from_millis(UNREADABLE_WAIT_MS);
        self.end(&settlement, End::Park { until_ms, wait }).await;
    }

    /// Deletes the job and releases the credit.
    async fn clear(&mut self, outcome: DeliveryOutcome, call: Option<&Call>) {
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
            self.release(outcome, call).await;
        }
    }

    /// Releases the credit of a job that is done with, or was not begun.
    async fn release(&mut self, outcome: DeliveryOutcome, call: Option<&Call>) {
        let settlement = self.settlement(outcome, call, None);
        self.end(&settlement, End::Release).await;
    }

    async fn end(&mut self, settlement: &Settlement, end: End) {
        let mut wait = REPEAT_AFTER;
        loop {
            let ended = match end {
                End::Release => self.lease.release(settlement).await,
                End::Park { until_ms, wait } => self.lease.park(settlement, until_ms, wait).await,
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

    fn settlement(
        &self,
        outcome: DeliveryOutcome,
        call: Option<&Call>,
        pause: Option<Millis>,
    ) -> Settlement {
        let call = call.map(|call| (&call.report, &call.verdict));
        books::settlement(self.credit(), outcome, call, pause)
    }

    // ---- steps ----------------------------------------------------------------------------

    /// Renews the lease before something that cannot be taken back. False if it is lost, or if the
    /// process must stop before that is known.
    async fn is_still_ours(&mut self) -> bool {
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

    /// Saves the record over whatever is not final.
    async fn save(&self, record: JobRecord, expected: Revision, headers: &JobHeaders) -> Saved {
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
                }) if found.phase.is_final() => return Saved::Theirs,
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

    /// Books the call, unless nothing was sent.
    async fn book(&self, headers: &JobHeaders, call: &Call) {
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
            let none = fairlane_nats::HeaderMap::new();
            let booked = jobs.publish(&subject, Some(&id), none, body.clone()).await;
            booked.map(|_| ()).map_err(|error| error.to_string())
        })
        .await;
    }

    fn measure(&self, call: &Call) {
        let metrics = &self.context.metrics;
        let tenant = self.credit().tenant.as_str();
        metrics.input_tokens(tenant, call.report.usage.prompt());
        if call.verdict.reason.is_throttle() {
            metrics.throttled(tenant);
        }
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
    async fn repeat<T, F>(&self, what: &str, step: impl Fn() -> F) -> Option<T>
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
    async fn pause(&self, wait: &mut Duration) -> bool {
        tokio::select! {
            () = self.stop.cancelled() => false,
            () = tokio::time::sleep(*wait) => {
                *wait = (*wait * 2).min(REPEAT_AFTER_MAX);
                true
            }
        }
    }
}

fn now_ms() -> Millis {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Millis::try_from(since_epoch.as_millis()).unwrap_or(Millis::MAX)
}

#[cfg(test)]
mod tests;
