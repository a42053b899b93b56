//! What becomes of a submission, decided from its bytes, its headers and the time alone.
//!
//! [`Arrival`] is what the message says besides its body, [`Intake::decide`] the judge. Once a
//! submission is acceptable, [`next`] says how it relates to what is already known under its key
//! and its id.

mod arrival;
mod fallback;
mod known;
mod size;
mod split;
#[cfg(test)]
mod tests;

use bytes::Bytes;
use fairlane_core::fallback::Kinds;
use fairlane_core::models::Catalog;
use fairlane_core::oversize::{Policies, Policy};
use fairlane_core::{JobId, Priority, TenantId, Tokens, classify};
use fairlane_runtime::TraceContext;
use fairlane_runtime::config::Settings;
use fairlane_wire::job::JobHeaders;
use fairlane_wire::letter::{DeadReason, Failure, Letter};
use fairlane_wire::parts::{self, Part, Pieces};
use fairlane_wire::record::{JobRecord, Phase};
use fairlane_wire::submission::{self, Submission};
use fairlane_wire::{Callback, Namespace, PartsPlan};

use crate::callbacks::Allowed;

pub use arrival::{Arrival, Claim};
pub use known::{KeyHolder, Next, has_no_job, is_refused_at_the_door, next, next_again};

/// Output tokens expected of a job whose kind has no history.
pub const OUTPUT_TOKENS_EXPECTED: u64 = 256;

/// What a submission's body turned out to be.
#[derive(Debug, Clone, PartialEq)]
pub enum Body<'a> {
    /// Its bytes, from the message or from the object it names.
    Here(&'a [u8]),
    /// These bytes, but something else makes a job of them impossible, now and later.
    Unusable(&'a [u8], Failure),
}

/// What is to be done with a submission.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// Store it as a job.
    Accept(Box<Accept>),
    /// Have its text summarised first.
    Split(Box<Split>),
    /// Bury it as a dead letter.
    Refuse(Box<Refuse>),
}

/// A submission that may become a job.
#[derive(Debug, Clone, PartialEq)]
pub struct Accept {
    pub tenant: TenantId,
    pub priority: Priority,
    pub headers: JobHeaders,
    /// Queued; its sequence is for the job stream to give.
    pub record: JobRecord,
    /// Body to store instead of the one that was published: its text was cut to fit the model.
    pub body: Option<Bytes>,
}

/// A submission that may become a job once its text is shorter.
#[derive(Debug, Clone, PartialEq)]
pub struct Split {
    /// What it would be if it fitted; the record says that it is in parts.
    pub accept: Accept,
    pub parts: Vec<Part>,
    /// Tokens that each summary may have.
    pub summary_tokens: u64,
}

/// A submission that cannot become a job.
#[derive(Debug, Clone, PartialEq)]
pub struct Refuse {
    /// Dead letter under the id the submission was meant to have.
    pub letter: Letter,
    /// Failed; None if it has no tenant who could read it.
    pub record: Option<JobRecord>,
    /// Id that no other submission has, for when the intended one names another job.
    pub assigned: JobId,
    /// Who hears of it. None as well if the submission could not be read, or asks for what is not allowed.
    pub callback: Option<Callback>,
}

impl Refuse {
    /// The same refusal under the id that is its own.
    #[must_use]
    pub fn under_assigned_id(mut self) -> Self {
        self.letter.job = self.assigned.clone();
        if let Some(record) = &mut self.record {
            record.job = self.assigned.clone();
        }
        self
    }
}

/// The judge of submissions.
#[derive(Debug, Clone)]
pub struct Intake {
    catalog: Catalog,
    kinds: Kinds,
    policies: Policies,
    body_bytes_max: usize,
    nesting_max: usize,
    callbacks: Allowed,
}

impl Intake {
    /// A judge for jobs of the models in `catalog`, of which those of `kinds` may fall back and those that
    /// are too long are dealt with by `policies`.
    #[must_use]
    pub fn new(catalog: Catalog, kinds: Kinds, policies: Policies, settings: &Settings) -> Self {
        Self {
            catalog,
            kinds,
            policies,
            body_bytes_max: usize::try_from(settings.producer.body_bytes_max).unwrap_or(usize::MAX),
            nesting_max: settings.producer.nesting_max as usize,
            // A producer does not start on lists that cannot be used.
            callbacks: Allowed::read(settings)
                .unwrap_or_else(|_| Allowed::own_only(Namespace::default())),
        }
    }

    /// Largest body that is read at all, bytes.
    #[must_use]
    pub fn body_bytes_max(&self) -> usize {
        self.body_bytes_max
    }

    /// Judges a submission at `now_ms` (unix). `trace` goes with the job.
    #[must_use]
    pub fn decide(
        &self,
        arrival: &Arrival,
        body: Body<'_>,
        trace: &TraceContext,
        now_ms: u64,
    ) -> Decision {
        let tenant = match arrival.tenant() {
            Ok(tenant) => tenant,
            Err(failure) => return refused(arrival, None, &body, failure, now_ms),
        };
        let mut job = match self.parse(&body, tenant) {
            Ok(job) => job,
            Err(failure) => return refused(arrival, Some(tenant), &body, failure, now_ms),
        };
        let shortened = self.shorten(&mut job, &body);
        let id = arrival.id_of(&job);
        // Nobody waits for it any more: what is sent again takes the place behind all others.
        let priority = match arrival.redrive {
            Some(_) => Priority::Batch,
            None => classify(job.origin, job.sla_seconds),
        };
        let record = JobRecord::new(tenant.clone(), id.clone(), Phase::Queued, arrival.stored_ms)
            .describing(&job.kind, priority, &job.model);
        let mut record = JobRecord {
            parent: arrival.parent.clone(),
            key: job.idempotency_key.clone(),
            truncated: arrival.truncated.clone(),
            ..record.traced(Some(&trace.traceparent()))
        };
        match self.headers(arrival, tenant, &job, id, trace, now_ms) {
            Ok(mut headers) => {
                if let Err(failure) = self.check_context(&headers, &job) {
                    let Some(pieces) = self.pieces(arrival, &job) else {
                        return Decision::Refuse(Box::new(Refuse {
                            callback: headers.callback,
                            ..refusal(arrival, record, failure, now_ms)
                        }));
                    };
                    let parts = split::parts(arrival, &job, &headers, &pieces);
                    let record = split::record(arrival, record, &parts);
                    return Decision::Split(Box::new(Split {
                        accept: Accept {
                            tenant: tenant.clone(),
                            priority,
                            headers,
                            record,
                            body: None,
                        },
                        parts,
                        summary_tokens: pieces.summary_tokens,
                    }));
                }
                headers.fallback = fallback::choose(&self.catalog, &self.kinds, &job, &mut record);
                let body = shortened.map(|shortened| {
                    // The object, if there is one, holds what was published.
                    headers.claim = None;
                    headers.original = Some(arrival.original_name(tenant));
                    record.original_claim.clone_from(&headers.original);
                    headers.truncated.clone_from(&shortened.truncated);
                    record.truncated = shortened.truncated;
                    shortened.body
                });
                Decision::Accept(Box::new(Accept {
                    tenant: tenant.clone(),
                    priority,
                    headers,
                    record,
                    body,
                }))
            }
            Err(failure) => {
                let callback = self.callback(arrival, tenant, &job).unwrap_or_default();
                Decision::Refuse(Box::new(Refuse {
                    callback,
                    ..refusal(arrival, record, failure, now_ms)
                }))
            }
        }
    }

    /// The bodies of the parts of a plan, given the body that is split. None if `source` is not that body.
    pub(crate) fn part_bodies(&self, plan: &PartsPlan, source: &[u8]) -> Option<Vec<Bytes>> {
        split::bodies(&self.catalog, plan, source)
    }

    /// Refuses the job that `record` describes.
    #[must_use]
    pub(crate) fn refuse(
        arrival: &Arrival,
        record: JobRecord,
        failure: Failure,
        now_ms: u64,
    ) -> Refuse {
        refusal(arrival, record, failure, now_ms)
    }

    /// Who hears of the job's end, if that is allowed.
    fn callback(
        &self,
        arrival: &Arrival,
        tenant: &TenantId,
        job: &Submission,
    ) -> Result<Option<Callback>, Failure> {
        if let Some(link) = arrival.parent.as_ref().filter(|_| arrival.is_part()) {
            return Ok(Some(Callback::Parent(link.job.clone())));
        }
        if let Some(callback) = &job.callback {
            self.callbacks.check(tenant, callback)?;
        }
        Ok(job.callback.clone())
    }

    fn parse(&self, body: &Body<'_>, tenant: &TenantId) -> Result<Submission, Failure> {
        let bytes = match body {
            Body::Here(bytes) => *bytes,
            Body::Unusable(_, failure) => return Err(failure.clone()),
        };
        if bytes.len() > self.body_bytes_max {
            return Err(size::too_many_bytes(bytes.len(), self.body_bytes_max));
        }
        let job = submission::parse(bytes, tenant)?;
        size::check_nesting(bytes, self.nesting_max)?;
        Ok(job)
    }

    /// Cuts a job that does not fit its model, if its kind allows that.
    fn shorten(&self, job: &mut Submission, body: &Body<'_>) -> Option<size::Shortened> {
        let (Body::Here(bytes) | Body::Unusable(bytes, _)) = body;
        let model = self.catalog.find(job.model.as_str())?;
        match self.policies.of_kind(&job.kind)? {
            Policy::Truncate(places) => size::shorten(job, bytes, places, model),
            Policy::Summarise(_) => None,
        }
    }

    /// The prompt and the longest answer have to fit into the model's context together.
    fn check_context(&self, headers: &JobHeaders, job: &Submission) -> Result<(), Failure> {
        match self.catalog.find(headers.model.as_str()) {
            Some(model) => size::check_context(headers.tokens.input, job.max_tokens, model),
            None => Ok(()),
        }
    }

    /// The pieces in which a job that is too long is summarised, if its kind allows that and it helps. A
    /// part is no job to be split again.
    fn pieces(&self, arrival: &Arrival, job: &Submission) -> Option<Pieces> {
        let Policy::Summarise(places) = self.policies.of_kind(&job.kind)? else {
            return None;
        };
        if arrival.rounds >= parts::ROUNDS_MAX || arrival.is_part() {
            return None;
        }
        size::split(job, places, self.catalog.find(job.model.as_str())?)
    }

    /// The checks that need the model or the time, and what they find out.
    fn headers(
        &self,
        arrival: &Arrival,
        tenant: &TenantId,
        job: &Submission,
        id: JobId,
        trace: &TraceContext,
        now_ms: u64,
    ) -> Result<JobHeaders, Failure> {
        let model = self
            .catalog
            .find(job.model.as_str())
            .ok_or_else(|| size::unknown_model(&self.catalog, job.model.as_str()))?;
        if job.max_tokens > model.output_tokens_max {
            return Err(size::too_long_an_answer(job.max_tokens, model));
        }
        if let Some(deadline_ms) = job.deadline_ms
            && deadline_ms <= now_ms
        {
            return Err(expired(deadline_ms, now_ms));
        }
        let callback = self.callback(arrival, tenant, job)?;
        let input = size::input_tokens(job, model);
        Ok(JobHeaders {
            key: job
                .idempotency_key
                .clone()
                .unwrap_or_else(|| id.to_string()),
            job: id,
            kind: job.kind.clone(),
            model: job.model.clone(),
            pool: model.pool.clone(),
            tokens: Tokens {
                input,
                output: job.max_tokens.min(OUTPUT_TOKENS_EXPECTED),
            },
            accepted_ms: arrival.stored_ms,
            not_before_ms: job.not_before_ms,
            deadline_ms: job.deadline_ms,
            fallback: None,
            claim: arrival.claim_name().map(str::to_owned),
            redrive: arrival.redrive.clone(),
            parent: arrival.parent.clone(),
            truncated: arrival.truncated.clone(),
            original: None,
            callback,
            traceparent: Some(trace.traceparent()),
            tracestate: trace.tracestate(),
        })
    }
}

impl Accept {
    /// The refusal of an acceptable job that the tenant's full lane has no room for.
    #[must_use]
    pub fn backlog_full(mut self, arrival: &Arrival, jobs_max: Option<u64>, now_ms: u64) -> Refuse {
        let Self {
            tenant, priority, ..
        } = &self;
        let limit = match jobs_max {
            Some(jobs_max) => format!("{jobs_max} {priority} jobs waiting, which is the limit"),
            None => format!("as many {priority} jobs waiting as it may"),
        };
        let failure = Failure::new(
            DeadReason::BacklogFull,
            format!("tenant {tenant} has {limit}"),
        )
        .fix("wait until some of them have run, then publish this one again");
        // The letter holds what was published.
        self.record.truncated.clear();
        self.record.original_claim = None;
        Refuse {
            callback: self.headers.callback,
            ..refusal(arrival, self.record, failure, now_ms)
        }
    }
}

fn expired(deadline_ms: u64, now_ms: u64) -> Failure {
    let late_ms = now_ms - deadline_ms;
    Failure::new(
        DeadReason::Expired,
        format!("deadline_ms is {deadline_ms}, which is {late_ms} ms ago"),
    )
    .field("deadline_ms")
    .fix("give a unix time in milliseconds that is still to come, or leave it out")
}

/// Refuses what could not be parsed.
fn refused(
    arrival: &Arrival,
    tenant: Option<&TenantId>,
    body: &Body<'_>,
    failure: Failure,
    now_ms: u64,
) -> Decision {
    let id = arrival.id_of_unparsed(body);
    Decision::Refuse(Box::new(match tenant {
        Some(tenant) => {
            let record = JobRecord::new(tenant.clone(), id, Phase::Failed, arrival.stored_ms);
            refusal(arrival, record, failure, now_ms)
        }
        None => Refuse {
            letter: letter(arrival, None, id, failure, now_ms),
            record: None,
            assigned: arrival.assigned_id(),
            callback: None,
        },
    }))
}

/// Refuses the job that `record` describes.
fn refusal(arrival: &Arrival, mut record: JobRecord, failure: Failure, now_ms: u64) -> Refuse {
    let tenant = Some(record.tenant.to_string());
    let mut letter = letter(arrival, tenant, record.job.clone(), failure.clone(), now_ms);
    letter.model.clone_from(&record.model);
    letter.kind.clone_from(&record.kind);
    record.phase = Phase::Failed;
    record.failure = Some(failure);
    record.finished_ms = Some(now_ms);
    Refuse {
        letter,
        record: Some(record),
        assigned: arrival.assigned_id(),
        callback: None,
    }
}

fn letter(
    arrival: &Arrival,
    tenant: Option<String>,
    job: JobId,
    failure: Failure,
    now_ms: u64,
) -> Letter {
    let trace = arrival.trace.as_ref().map(TraceContext::traceparent);
    let redrive = arrival.redrive.as_ref();
    Letter {
        lineage: redrive.map_or_else(Vec::new, |redrive| redrive.lineage.clone()),
        ..Letter::new(tenant, job, failure, now_ms)
    }
    .read_from(&arrival.subject, arrival.seq)
    .traced(trace.as_deref())
}
