//! One credit, from start to end.
//!
//! The order of the end is always the same: record and ledger entry stored, job deleted, credit
//! released. What fails for lack of NATS is repeated until it works or the process must stop; the
//! answer is paid for, and a repeated step changes nothing.

mod crash;
mod defer;
mod end;
mod fallback;
mod live;
mod steps;
mod traced;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use fairlane_claude::{CallReport, Client};
use fairlane_core::attempt::{self, Allowance, Decision, Jitter};
use fairlane_core::failure::{Ending, Next, Reason, Verdict, classify};
use fairlane_core::price::{Usage, Usd};
use fairlane_core::{JobSeq, Millis, ModelId, WorkerId};
use fairlane_nats::payloads::PayloadError;
use fairlane_nats::{Nats, Records, Revision, Slot, StoredMessage};
use fairlane_runtime::metrics::Destination;
use fairlane_runtime::spans::JobSpan;
use fairlane_runtime::{Metrics, TraceContext};
use fairlane_wire::lease::{Credit, DeliveryOutcome, Grant, ParkReason};
use fairlane_wire::submission::StopReasons;
use fairlane_wire::{
    DeadReason, Failure, JobHeaders, JobRecord, Phase, Standing, Submission, submission,
};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::books::{self, Asked};
use crate::call::{self, Called};
use crate::chat;
use crate::lease::Held;
use crate::models::Models;
use crate::options::Options;
use crate::parts;
use crate::request::{Plan, Request};
use crate::schema::Schema;
use crash::Point;
use live::{InHand, Live};
use traced::Traced;

/// What deliveries share.
pub(crate) struct Context {
    pub(crate) nats: Nats,
    pub(crate) options: Options,
    pub(crate) claude: Client,
    pub(crate) metrics: Metrics,
    pub(crate) worker: WorkerId,
    pub(crate) in_hand: InHand,
    pub(crate) models: Models,
    records: Records,
    /// Where a delivery stands still for good, and that it does.
    #[cfg(test)]
    crash: Option<Point>,
    #[cfg(test)]
    crashed: tokio::sync::Notify,
}

impl Context {
    pub(crate) fn new(nats: Nats, options: Options, claude: Client, metrics: Metrics) -> Self {
        let records = Records::new(&nats, options.results_keep);
        // New at every start, so that nobody takes our credits for those of a dead predecessor.
        let name = format!("w{}", uuid::Uuid::now_v7().simple());
        let worker = WorkerId::parse(&name).expect("a uuid is a name");
        let models = Models::new(options.catalog.clone());
        Self {
            nats,
            options,
            claude,
            metrics,
            worker,
            models,
            in_hand: InHand::default(),
            records,
            #[cfg(test)]
            crash: None,
            #[cfg(test)]
            crashed: tokio::sync::Notify::new(),
        }
    }
}

/// Turns of one job in one delivery; a server-side tool loop pauses now and then.
const TURNS_MAX: u32 = 10;

/// Runs one delivery, whose grant is at a place of the job's trace if it said so. Never fails: whatever cannot be
/// finished here ends with its lease.
pub(crate) async fn run(
    context: Arc<Context>,
    grant: Grant,
    granted: Option<TraceContext>,
    stop: CancellationToken,
) {
    let Grant {
        credit,
        revision,
        ttl_ms: _,
    } = grant;
    let (nats, names) = (&context.nats, &context.nats.names);
    let bucket = nats.bucket(&names.credits_bucket());
    let off = context.in_hand.take(credit.seq, credit.delivery);
    let _in_hand = Leave(&context, credit.seq, credit.delivery);
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
        off,
        traced: Traced::default(),
    };
    match (message, slot) {
        (Ok(None), _) => delivery.release(DeliveryOutcome::Gone, None).await,
        (Ok(Some(message)), Ok(slot)) => {
            let (traced, span) = Traced::begin(&credit, &message, slot.record.as_ref(), granted);
            delivery.traced = traced;
            let metrics = &context.metrics;
            metrics.message_consumed(Destination::Jobs);
            let began = std::time::Instant::now();
            Box::pin(delivery.begin(message, slot))
                .instrument(span)
                .await;
            metrics.message_processed(Destination::Jobs, began.elapsed().as_secs_f64());
            delivery.traced.tell();
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
            off: CancellationToken::new(),
            traced: Traced::default(),
        };
        delivery.release(DeliveryOutcome::Returned, None).await;
    }
}

struct Delivery {
    context: Arc<Context>,
    lease: Held,
    stop: CancellationToken,
    /// The job was called off, they say; its record knows.
    off: CancellationToken,
    /// Its place in the job's trace.
    traced: Traced,
}

/// Leaves a job when its delivery ends, however it does.
struct Leave<'a>(&'a Context, JobSeq, u32);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.in_hand.leave(self.1, self.2);
    }
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
    plan: Plan,
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
    Park {
        until_ms: Millis,
        wait: Duration,
        why: ParkReason,
    },
}

/// A call that ended, with all that was used by it and the turns before it.
struct Call {
    /// Model that was called.
    model: ModelId,
    by_fallback: bool,
    /// If it is the job's first: how long that had waited for it, from when it could run.
    waited_ms: Option<Millis>,
    report: CallReport,
    verdict: Verdict,
    asked: Asked,
    cost: Option<Usd>,
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
            .detail("unusable_schema")
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
        let Slot {
            record, revision, ..
        } = slot;
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
        let record = match Standing::of(record, message.seq, headers.parent.as_ref()) {
            Standing::Open(record) => record,
            Standing::Over(record) => {
                Box::pin(self.clean_up(&message, &headers, &record, None)).await;
                return None;
            }
            Standing::Elsewhere => {
                tracing::info!(seq = message.seq, "another job has the id of this one");
                self.clear(DeliveryOutcome::Gone, None).await;
                return None;
            }
        };
        let credit = self.credit();
        let mut record = record
            .unwrap_or_else(|| books::record(credit, &headers, self.context.options.attempts_max));
        record.sequence = Some(message.seq);
        record.deliveries = record.deliveries.saturating_add(1).max(credit.delivery);
        record.started_ms.get_or_insert(now_ms());
        let record = self.traced.note_in(record, &headers);
        let job = Job {
            message,
            headers,
            record,
            revision,
        };
        let job = Box::pin(self.wait_on(job)).await?;
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
        let (submission, schema) = match readable {
            Ok(readable) => readable,
            Err(failure) => {
                Box::pin(self.bury(job, failure, None)).await;
                return None;
            }
        };
        match self.plan(&job, &submission) {
            Ok(plan) => Some(Task {
                job,
                submission,
                schema,
                plan,
            }),
            Err(why) => {
                Box::pin(self.keep_to_own_model(job, why, None)).await;
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
        self.note_fallback(&mut task);
        let mut request = Request::new(&task.submission, &task.job.headers, &task.plan);
        // The turns so far, with all that they used and cost.
        let mut paused: Option<(CallReport, Option<Usd>)> = None;
        for turn in 1.. {
            let (before, cost_before) = paused
                .as_ref()
                .map_or((Usage::default(), None), |(report, cost)| {
                    (report.usage, *cost)
                });
            let phase = match turn {
                1 => Phase::Generating,
                _ => Phase::Refining,
            };
            let mut live = Live::new(
                self.context.records.clone(),
                &task.job,
                phase,
                self.off.clone(),
            );
            self.context.reached(Point::BeforeCall).await;
            let listened = task.submission.stream.then(|| self.attempt(turn));
            let mut span = self.traced.chat(&request, &task.job.record, turn);
            let called = Box::pin(self.one_call(&request, &span, &mut live, listened)).await;
            if let Called::Reported(report)
            | Called::LeaseLost(report)
            | Called::NotWanted(report) = &called
            {
                chat::tell(&mut span, report);
            }
            drop(span);
            self.context.reached(Point::Answered).await;
            let mut report = match called {
                Called::Reported(report) => *report,
                Called::LeaseLost(mut report) => {
                    let cost = sum(cost_before, self.cost(&task, &report));
                    report.usage = before.plus(report.usage);
                    return self.lost(&task, *report, cost).await;
                }
                Called::NotWanted(mut report) => {
                    let cost = sum(cost_before, self.cost(&task, &report));
                    report.usage = before.plus(report.usage);
                    return self.called_off(&task, *report, cost).await;
                }
                Called::NotSent(error) => {
                    tracing::info!(job = %self.credit().job, %error, "not calling on a lease that is over");
                    if let Some((paused, cost)) = paused {
                        self.lost(&task, paused, cost).await;
                    }
                    return;
                }
                Called::Unsendable(error) => {
                    let failure = Failure::new(DeadReason::InvalidRequest, error.to_string());
                    return Box::pin(self.bury(task.job, failure, None)).await;
                }
            };
            // Each turn has its own price: the size of its prompt decides.
            let cost = sum(cost_before, self.cost(&task, &report));
            report.usage = before.plus(report.usage);
            let (failure, ()) = tokio::join!(
                self.check_schema(&task, &mut report),
                live.refine(task.schema.is_some()),
            );
            task.job.revision = live.revision;
            let mut verdict = classify(&report.ending);
            if task.submission.stop_reasons == StopReasons::Any && report.message.is_some() {
                // Its owner reads the stop reason, so whatever came to its end is the answer.
                verdict.next = Next::Keep;
            }
            if verdict.reason == Reason::InvalidRequest && request.drop_format() {
                // The format was our idea: without it the answer is only checked.
                continue;
            }
            let decision = attempt::decide(
                &verdict,
                books::history(&task.job.record),
                self.allowance(&task),
                Jitter {
                    retry: rand::random(),
                    pause: rand::random(),
                },
            );
            if let (Decision::Continue, Some(message), true) =
                (decision, &report.message, turn < TURNS_MAX)
            {
                request.continue_from(message);
                paused = Some((report, cost));
                continue;
            }
            let call = self.ended(&task, report, cost);
            return Box::pin(self.finish(task, call, decision, failure)).await;
        }
    }

    /// Calls; somebody listens to the parts of the answer if they have a name.
    async fn one_call(
        &mut self,
        request: &Request,
        span: &JobSpan,
        live: &mut Live,
        listened: Option<String>,
    ) -> Called {
        let context = self.context.clone();
        let stop = self.stop.clone();
        let tokens = &AtomicU64::new(0);
        let (mut parts, teller) = match listened {
            Some(attempt) => {
                let Credit { tenant, job, .. } = self.credit();
                let subject = context.nats.names.stream_subject(tenant, job);
                let (parts, teller) = parts::channel(context.nats.clone(), subject, attempt);
                (Some(parts), Some(teller))
            }
            None => (None, None),
        };
        let place = span.context();
        let call = Box::pin(call::run(
            &context,
            &mut self.lease,
            request,
            place.as_ref(),
            &stop,
            live.follow(tokens),
            // The call takes the parts with it: their end is the teller's.
            move |progress| {
                tokens.store(progress.output_tokens, Ordering::Relaxed);
                if let (Some(parts), Some(event)) = (&mut parts, progress.event) {
                    parts.push(event);
                }
            },
        ));
        match teller {
            Some(teller) => Box::pin(teller.beside(call)).await,
            None => call.await,
        }
    }

    /// What a call is named to those who listen to its answer: no two of a job are the same.
    fn attempt(&self, turn: u32) -> String {
        let Credit { seq, delivery, .. } = self.credit();
        format!("{}.{delivery}.{turn}", seq.0)
    }

    /// Turns a good answer that breaks the job's schema into what it is: a failure.
    async fn check_schema(&self, task: &Task, report: &mut CallReport) -> Option<Failure> {
        let schema = task.schema.as_ref()?;
        if !matches!(classify(&report.ending).next, Next::Keep) {
            return None;
        }
        let violation = schema.check(report.message.as_ref()?).await.err()?;
        report.ending = Ending::SchemaViolated;
        Some(
            Failure::new(DeadReason::Schema, violation.to_string())
                .detail("review_prompt")
                .field("output_schema")
                .fix("make the prompt ask for exactly this form, or loosen the schema"),
        )
    }

    fn allowance(&self, task: &Task) -> Allowance {
        Allowance {
            attempts_max: task
                .submission
                .max_attempts
                .unwrap_or(self.context.options.attempts_max),
            max_tokens: task.plan.max_tokens,
            output_tokens_max: task.plan.output_tokens_max,
            is_probe: self.credit().probe,
        }
    }

    fn ended(&self, task: &Task, report: CallReport, cost: Option<Usd>) -> Call {
        let (headers, record) = (&task.job.headers, &task.job.record);
        let is_first = record.tries.is_empty();
        let ready_ms = headers.accepted_ms.max(headers.not_before_ms.unwrap_or(0));
        Call {
            model: task.plan.model.clone(),
            by_fallback: task.plan.is_fallback(),
            waited_ms: is_first.then(|| self.credit().granted_ms.saturating_sub(ready_ms)),
            verdict: classify(&report.ending),
            report,
            asked: self.asked(task),
            cost,
        }
    }

    fn asked(&self, task: &Task) -> Asked {
        let names = &self.context.nats.names;
        let own = names.job_priority(&task.job.message.subject);
        Asked {
            priority: own.unwrap_or(self.credit().priority),
            max_tokens: task.plan.max_tokens,
        }
    }

    fn cost(&self, task: &Task, report: &CallReport) -> Option<Usd> {
        let options = &self.context.options;
        let model = task.plan.model.as_str();
        let catalog = self.context.models.current();
        books::cost(&options.prices, &catalog, model, report, now_ms())
    }
}

/// Both amounts, as far as they are known.
fn sum(one: Option<Usd>, other: Option<Usd>) -> Option<Usd> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one + other),
        (known, None) | (None, known) => known,
    }
}

fn now_ms() -> Millis {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Millis::try_from(since_epoch.as_millis()).unwrap_or(Millis::MAX)
}

#[cfg(test)]
mod matrix;
#[cfg(test)]
mod tests;
