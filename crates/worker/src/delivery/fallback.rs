//! A job whose credit is for its smaller model: what its record says about that, and what happens when
//! that model cannot answer it after all.

use std::time::Duration;

use fairlane_core::Millis;
use fairlane_core::failure::{Class, Reason};
use fairlane_wire::lease::{DeliveryOutcome, ParkReason};
use fairlane_wire::record::FallbackUse;
use fairlane_wire::{Phase, Submission, fallback};

use super::{Call, Delivery, End, Job, Saved, Task, now_ms};
use crate::request::Plan;

/// Wait of a job that keeps to its own model. The scheduler goes on offering the other one; by then
/// the overload may be over.
const OWN_MODEL_WAIT_MS: Millis = 30_000;

impl Delivery {
    /// What is to be called, by the credit and the job.
    ///
    /// # Errors
    /// Why the smaller model of the credit cannot be called.
    pub(super) fn plan(&self, job: &Job, submission: &Submission) -> Result<Plan, String> {
        let catalog = self.context.models.current();
        let raised = job.record.max_tokens_raised;
        let plan = Plan::new(&catalog, submission, &self.credit().model, raised)
            .map_err(|why| fallback::barred(&why))?;
        let barred = job.record.no_fallback.clone();
        match barred {
            Some(why) if plan.is_fallback() => Err(why),
            Some(_) | None => Ok(plan),
        }
    }

    /// Notes which model is asked, and why, before it is.
    pub(super) fn note_fallback(&self, task: &mut Task) {
        task.job.record.fallback = task.plan.is_fallback().then(|| FallbackUse {
            model: task.plan.model.to_string(),
            why: Reason::Overloaded.as_str().to_owned(),
        });
    }

    /// Parks a job that the smaller model cannot answer, until its own may be asked. Costs no attempt: it
    /// was not the job's wish.
    pub(super) async fn keep_to_own_model(&mut self, job: Job, why: String, call: Option<Call>) {
        let Job {
            headers,
            mut record,
            revision,
            message,
        } = job;
        tracing::warn!(why, "not by the fallback");
        let until_ms = now_ms() + OWN_MODEL_WAIT_MS;
        record.phase = Phase::Retrying;
        record.retry_at_ms = Some(until_ms);
        record.retry_reason = Some(why.clone());
        record.failure = None;
        record.fallback = None;
        record.fallback_to = None;
        record.no_fallback = Some(why);
        let (saved, ()) = tokio::join!(self.save(record, revision, &headers), async {
            if let Some(call) = &call {
                self.book(&headers, call).await;
            }
        });
        match saved {
            Saved::Ours => {}
            Saved::Theirs => return self.give_way(&message, &headers, call.as_ref()).await,
            Saved::Not => return,
        }
        let settlement = self.settlement(DeliveryOutcome::Retry, call.as_ref(), None);
        let wait = Duration::from_millis(OWN_MODEL_WAIT_MS);
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
}

/// Why a fallback's refusal does not end the job: its own model may take the request.
pub(super) fn refused_by_fallback(task: &Task, call: &Call) -> Option<String> {
    let is_refusal = call.verdict.class == Class::Poison && call.verdict.reason != Reason::Schema;
    (task.plan.is_fallback() && is_refusal).then(|| {
        let (model, reason) = (&task.plan.model, call.verdict.reason.as_str());
        format!("no fallback: {model} refused the request ({reason})")
    })
}
