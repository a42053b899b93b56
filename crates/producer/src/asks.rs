//! What owners ask for: to call a job off, to let it wait, to have it made again.
//!
//! A decision counts once it stands in the job's record, written over the very revision that was read:
//! if the job ends at the same moment, one of the two is first and the other one learns of it. Those who
//! have the job are told afterwards; should they not hear it, the record still says so.

use std::sync::Arc;

use anyhow::Context as _;
use fairlane_core::{JobId, JobSeq, TenantId};
use fairlane_nats::records::{Records, Slot};
use fairlane_nats::{Nats, WriteError, owner};
use fairlane_runtime::metrics::Outcome as Ended;
use fairlane_runtime::{Metrics, Shutdown};
use fairlane_wire::record::{Descent, Link};
use fairlane_wire::{Answer, Ask, AskOutcome, AskReply, DeadReason, Failure, JobRecord, Phase};
use futures::StreamExt;

use crate::producer::now_ms;
use crate::regenerate::{self, Refused};
use crate::trouble::with_causes;

/// Requests worked on at once by one producer.
const ASKS_MAX: usize = 256;
/// A running job's record changes about once a second, so the next try finds it still.
const TRIES_MAX: usize = 20;

/// Answers owners. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Asks {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    nats: Nats,
    records: Records,
    metrics: Metrics,
}

/// What to reply, and the job that is over by that, if it may still be in the stream.
type Done = (AskReply, Option<JobSeq>);

/// What a decision makes of a record.
enum Change {
    /// This is to stand there.
    To(Box<JobRecord>),
    /// Nothing changes; this is the reply.
    Nothing(AskReply),
}

impl Asks {
    pub(crate) fn new(nats: &Nats, records: Records, metrics: Metrics) -> Self {
        let shared = Shared {
            nats: nats.clone(),
            records,
            metrics,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Answers until `shutdown` says to drain. Any number of producers share the requests.
    ///
    /// # Errors
    /// If NATS cannot be listened to at all.
    pub async fn serve(self, shutdown: Shutdown) -> anyhow::Result<()> {
        let Shared { nats, .. } = &*self.shared;
        let (subject, group) = (nats.names.ask_filter(), nats.names.producer_consumer());
        let requests = nats.client.queue_subscribe(subject, group.to_owned()).await;
        let requests = requests.context("cannot listen for what owners ask")?;
        requests
            .take_until(shutdown.draining().clone().cancelled_owned())
            .for_each_concurrent(ASKS_MAX, |message| self.answer(message))
            .await;
        // A connection that has ended for good ends the process by another way.
        shutdown.draining().cancelled().await;
        Ok(())
    }

    async fn answer(&self, message: async_nats::Message) {
        let Shared { nats, .. } = &*self.shared;
        let Some(reply_to) = message.reply.clone() else {
            return;
        };
        let Some((ask, tenant, job)) = nats.names.parse_ask_subject(&message.subject) else {
            // The asker's client tells that nobody answers such a thing.
            return;
        };
        let reply = match ask {
            Ask::Cancel => self.cancel(&tenant, &job).await,
            Ask::Answer => self.decide(&tenant, &job, &message.payload).await,
            Ask::Regenerate => self.regenerate(&tenant, &job).await,
        };
        let (reply, seq) = reply.unwrap_or_else(|error: anyhow::Error| {
            let error = with_causes(&*error);
            tracing::warn!(%tenant, %job, ask = ask.as_str(), error, "cannot do what an owner asks");
            let text = "this could not be stored now; ask again";
            (self::reply(&job, AskOutcome::Busy, None, text), None)
        });
        let body = serde_json::to_vec(&reply).expect("a reply is plain data");
        if let Err(error) = nats.client.publish(reply_to, body.into()).await {
            tracing::debug!(%error, "cannot answer an owner");
        }
        if let Some(seq) = seq {
            owner::tell_called_off(nats, seq).await;
        }
    }

    /// Calls a job off.
    async fn cancel(&self, tenant: &TenantId, job: &JobId) -> anyhow::Result<Done> {
        let change = |record: JobRecord| {
            if record.phase == Phase::Cancelled {
                // Perhaps those who have the job did not hear of it.
                return Change::To(Box::new(record));
            }
            if record.phase.is_final() {
                return Change::Nothing(ended(&record));
            }
            Change::To(Box::new(cancelled(record, now_ms())))
        };
        let record = match self.change(tenant, job, change).await? {
            Ok(record) => record,
            Err(reply) => return Ok((reply, None)),
        };
        tracing::info!(%tenant, %job, seq = record.sequence, "called off");
        let reply = reply(job, AskOutcome::Ok, Some(record.phase), "it is called off");
        Ok((reply, record.sequence.map(JobSeq)))
    }

    /// Takes the answer to the question whether a job may wait.
    async fn decide(&self, tenant: &TenantId, job: &JobId, body: &[u8]) -> anyhow::Result<Done> {
        let Some(answer) = std::str::from_utf8(body).ok().and_then(Answer::parse) else {
            let text = "the body of an answer is yes or no";
            return Ok((reply(job, AskOutcome::Invalid, None, text), None));
        };
        let change = |record: JobRecord| answered(record, answer, now_ms());
        let record = match self.change(tenant, job, change).await? {
            Ok(record) => record,
            Err(reply) => return Ok((reply, None)),
        };
        let seq = record.sequence.map(JobSeq);
        let done = |text| reply(job, AskOutcome::Ok, Some(record.phase), text);
        match (answer, seq, record.retry_at_ms) {
            (Answer::Yes, Some(seq), Some(until)) => {
                // Otherwise whoever looks at the job when its question is over moves it.
                if let Err(error) = owner::move_parked(&self.shared.nats, seq, until).await {
                    tracing::info!(%tenant, %job, %error, "a deferred job is moved later");
                }
                Ok((done("it waits until tomorrow"), None))
            }
            (Answer::Yes, _, _) => Ok((done("it runs"), None)),
            (Answer::No, seq, _) => Ok((done("it is a dead letter now"), seq)),
        }
    }

    /// Has a job made again on the model it was meant for.
    async fn regenerate(&self, tenant: &TenantId, job: &JobId) -> anyhow::Result<Done> {
        let Shared { nats, records, .. } = &*self.shared;
        let slot = records.get(tenant, job).await?;
        let Some(mut record) = slot.record else {
            let text = format!("tenant {tenant} has no job {job} now");
            return Ok((reply(job, AskOutcome::NotFound, None, text), None));
        };
        let phase = Some(record.phase);
        let refused = |text: &str| Ok((reply(job, AskOutcome::NotPossible, phase, text), None));
        if record.phase != Phase::Done {
            return refused("it has no answer");
        }
        let new = match regenerate::submit(nats, &record).await? {
            Ok(new) => new,
            Err(Refused::NotLighter) => {
                return refused("it was answered by the model it was meant for");
            }
            Err(Refused::NoBody) => return refused("its body was not kept; publish it again"),
        };
        if !record.children.iter().any(|child| child.job == new) {
            record.children.push(Link {
                how: Descent::Regenerated,
                job: new.clone(),
                sequence: None,
            });
            // If somebody else wrote it meanwhile, the new job still names this one.
            if let Err(error) = records.save(&record, slot.revision).await {
                tracing::debug!(%tenant, %job, %error, "cannot note what a job is made again as");
            }
        }
        let mut reply = reply(
            job,
            AskOutcome::Ok,
            phase,
            "it is made again as another job",
        );
        reply.other = Some(new.to_string());
        Ok((reply, None))
    }

    /// Replaces the record by what `change` makes of it. The inner error is the reply when it does not
    /// come to that.
    async fn change(
        &self,
        tenant: &TenantId,
        job: &JobId,
        change: impl Fn(JobRecord) -> Change,
    ) -> anyhow::Result<Result<JobRecord, AskReply>> {
        let Shared {
            records, metrics, ..
        } = &*self.shared;
        for _ in 0..TRIES_MAX {
            let slot: Slot = records.get(tenant, job).await?;
            let Some(record) = slot.record else {
                let text = format!("tenant {tenant} has no job {job} now");
                return Ok(Err(reply(job, AskOutcome::NotFound, None, text)));
            };
            if let Some(other) = &record.same_as {
                let text = format!("it shares the outcome of job {other}; ask about that one");
                let mut reply = reply(job, AskOutcome::SameAs, Some(record.phase), text);
                reply.other = Some(other.clone());
                return Ok(Err(reply));
            }
            let new = match change(record.clone()) {
                Change::Nothing(reply) => return Ok(Err(reply)),
                Change::To(new) if *new == record => return Ok(Ok(record)),
                Change::To(new) => *new,
            };
            match records.save(&new, slot.revision).await {
                Ok(_) => {
                    match new.phase {
                        Phase::Cancelled => metrics.job_ended(Ended::Cancelled),
                        Phase::Failed => metrics.job_ended(Ended::Dead),
                        _ => {}
                    }
                    return Ok(Ok(new));
                }
                Err(WriteError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        anyhow::bail!("the record of job {job} was written by somebody else each time")
    }
}

fn cancelled(record: JobRecord, now_ms: u64) -> JobRecord {
    JobRecord {
        phase: Phase::Cancelled,
        finished_ms: Some(now_ms),
        retry_at_ms: None,
        retry_reason: None,
        question: None,
        failure: None,
        ..record
    }
}

/// What an answer makes of a record.
fn answered(record: JobRecord, answer: Answer, now_ms: u64) -> Change {
    let JobRecord { job, phase, .. } = &record;
    let Some(question) = record.question.clone() else {
        let text = "this job asks nothing";
        return Change::Nothing(reply(job, AskOutcome::NotPossible, Some(*phase), text));
    };
    if question.answer == Some(answer) {
        // Said again.
        return Change::To(Box::new(record));
    }
    if *phase != Phase::NeedsDecision {
        let text = "its question was answered before";
        return Change::Nothing(reply(job, AskOutcome::Ended, Some(*phase), text));
    }
    let until = question.defer_until_ms;
    let question = Some(fairlane_wire::Question {
        answer: Some(answer),
        ..question
    });
    Change::To(Box::new(match answer {
        Answer::Yes => JobRecord {
            phase: Phase::Deferred,
            retry_at_ms: Some(until),
            question,
            ..record
        },
        Answer::No => JobRecord {
            phase: Phase::Failed,
            finished_ms: Some(now_ms),
            retry_at_ms: None,
            retry_reason: None,
            failure: Some(
                Failure::new(
                    DeadReason::Exhausted,
                    "the upstream was overloaded, and its owner said that the job may not wait",
                )
                .fix("send it again when the upstream is well"),
            ),
            question,
            ..record
        },
    }))
}

fn ended(record: &JobRecord) -> AskReply {
    let text = match record.phase {
        Phase::Done => "it was done before, and its result stays",
        Phase::Failed => "it had failed before",
        _ => "it had ended before",
    };
    reply(&record.job, AskOutcome::Ended, Some(record.phase), text)
}

fn reply(
    job: &JobId,
    outcome: AskOutcome,
    phase: Option<Phase>,
    text: impl Into<String>,
) -> AskReply {
    AskReply {
        outcome,
        job: job.clone(),
        phase,
        other: None,
        text: text.into(),
    }
}
