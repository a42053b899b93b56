//! A job for which everything was overloaded until its attempts were used up: its owner may let it wait
//! until the next day, once.

use std::time::Duration;

use fairlane_core::attempt::Cause;
use fairlane_core::defer::{self, Times};
use fairlane_core::failure::Reason;
use fairlane_wire::lease::{DeliveryOutcome, ParkReason};
use fairlane_wire::submission::DeferChoice;
use fairlane_wire::{Answer, DeadReason, Failure, Phase, Question};

use super::{Call, Delivery, End, Job, Saved, Task, now_ms};
use crate::books;

/// Why a job ends whose owner was asked and said nothing.
fn unanswered() -> Failure {
    let text = "the upstream was overloaded, and nobody said in time whether the job may wait";
    Failure::new(DeadReason::Exhausted, text)
        .fix("answer when the record asks, or set on_overload.defer to yes or no")
}

impl Delivery {
    /// When and by whose word the job may wait, if it may at all.
    pub(super) fn may_wait(&self, task: &Task, cause: Cause) -> Option<Question> {
        let answer = match task.submission.on_overload.defer {
            DeferChoice::Ask => None,
            DeferChoice::Yes => Some(Answer::Yes),
            DeferChoice::No => return None,
        };
        let has_waited = task.job.record.question.is_some();
        if cause != Cause::Exhausted(Reason::Overloaded) || has_waited {
            return None;
        }
        let rules = self.context.options.defer;
        let Times { until, answer_by } =
            defer::times(rules, task.submission.deadline_ms, now_ms())?;
        Some(Question {
            defer_until_ms: until,
            answer_by_ms: answer_by,
            answer,
        })
    }

    /// A job that was granted although it waits: nobody led when its time was told, or it is over. None
    /// if that is settled; otherwise it may run.
    pub(super) async fn wait_on(&mut self, job: Job) -> Option<Job> {
        let (record, now) = (&job.record, now_ms());
        let (until_ms, why) = match (record.phase, &record.question) {
            (Phase::NeedsDecision, Some(question)) => (question.answer_by_ms, ParkReason::Asks),
            (Phase::Deferred, Some(question)) => (question.defer_until_ms, ParkReason::Retry),
            (_, _) => return Some(job),
        };
        if now < until_ms {
            let settlement = self.settlement(DeliveryOutcome::Retry, None, None);
            let wait = Duration::from_millis(until_ms - now);
            self.end(
                &settlement,
                End::Park {
                    until_ms,
                    wait,
                    why,
                },
            )
            .await;
            return None;
        }
        if record.phase == Phase::Deferred {
            return Some(job);
        }
        self.bury(job, unanswered(), None).await;
        None
    }

    /// Parks the job until the next day, or until its owner has to have answered.
    pub(super) async fn defer(&mut self, task: Task, call: Call, question: Question) {
        let Job {
            headers,
            mut record,
            revision,
            message,
        } = task.job;
        let (phase, until_ms, why) = match question.answer {
            Some(_) => (Phase::Deferred, question.defer_until_ms, ParkReason::Retry),
            None => (
                Phase::NeedsDecision,
                question.answer_by_ms,
                ParkReason::Asks,
            ),
        };
        record.phase = phase;
        record.retry_at_ms = Some(question.defer_until_ms);
        record.retry_reason = Some(books::retry_reason(call.verdict.reason, &call.report));
        record.question = Some(question);
        record.failure = None;
        // It begins anew then.
        record.attempts = 0;
        self.traced.failed(call.verdict.reason.as_str(), false);
        tracing::info!(phase = phase.as_str(), until_ms, "overloaded for too long");
        let (saved, ()) = tokio::join!(
            self.save(record, revision, &headers),
            self.book(&headers, &call),
        );
        match saved {
            Saved::Ours => {}
            Saved::Theirs => return self.give_way(&message, &headers, Some(&call)).await,
            Saved::Not => return,
        }
        let settlement = self.settlement(DeliveryOutcome::Retry, Some(&call), None);
        let wait = Duration::from_millis(until_ms.saturating_sub(now_ms()));
        self.end(
            &settlement,
            End::Park {
                until_ms,
                wait,
                why,
            },
        )
        .await;
    }
}
