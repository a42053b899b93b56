//! The question why a job is not running, and the leader's answer: request and reply on
//! `fl.ctl.why`.

use fairlane_core::JobSeq;
use fairlane_core::scheduler::Why;
use serde::{Deserialize, Serialize};

/// The question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhyRequest {
    /// Sequence of the job in the job stream; its record has it.
    pub seq: u64,
}

impl WhyRequest {
    /// The job asked for.
    #[must_use]
    pub fn seq(self) -> JobSeq {
        JobSeq(self.seq)
    }
}

/// The answer: one stable word, the words for people, and when it will change by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhyAnswer {
    pub reason: String,
    pub text: String,
    /// Unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<u64>,
}

impl From<Why> for WhyAnswer {
    fn from(why: Why) -> Self {
        let (reason, until_ms, text) = match why {
            Why::NotQueued => ("not_queued", None, "it is not in the queue".to_owned()),
            Why::Running {
                worker,
                delivery,
                since: _,
            } => (
                "running",
                None,
                format!("worker {worker} has it, as delivery {delivery}"),
            ),
            Why::Parked { until } => (
                "parked",
                Some(until),
                "it failed in passing and is tried again later".to_owned(),
            ),
            Why::NotBefore { until } => (
                "not_before",
                Some(until),
                "its not_before_ms is in the future".to_owned(),
            ),
            Why::Leaving => (
                "leaving",
                None,
                "it is on its way to the dead letters".to_owned(),
            ),
            Why::PoolPaused { until } => (
                "pool_paused",
                Some(until),
                "the upstream asked its pool to wait".to_owned(),
            ),
            Why::BreakerOpen { until } => (
                "breaker_open",
                Some(until),
                "most calls to its pool fail; one is let through then, to try".to_owned(),
            ),
            Why::Probing => (
                "probing",
                None,
                "a call is out to try whether its pool is well again".to_owned(),
            ),
            Why::TenantAtCap { in_flight, cap } => (
                "tenant_at_cap",
                None,
                format!("{in_flight} jobs of its tenant run, and at most {cap} may"),
            ),
            Why::BehindOwn { ahead } => (
                "behind_own",
                None,
                format!("{ahead} jobs of its own tenant stand before it"),
            ),
            Why::PoolFull { until } => (
                "pool_full",
                Some(until),
                "the limits of its pool are used up for now".to_owned(),
            ),
            Why::NoFreeSlot { workers: 0, .. } => (
                "no_worker",
                None,
                "no worker is there; start one".to_owned(),
            ),
            Why::NoFreeSlot { workers, slots } => (
                "no_free_slot",
                None,
                format!("all {slots} slots of {workers} workers are taken"),
            ),
            Why::Now => (
                "now",
                None,
                "nothing is in its way: it is its turn".to_owned(),
            ),
        };
        Self {
            reason: reason.to_owned(),
            text,
            until_ms,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn question_and_answer_as_they_travel() {
        let request = serde_json::to_string(&WhyRequest { seq: 7 }).unwrap();
        assert_eq!(request, r#"{"seq":7}"#);
        let answer = WhyAnswer::from(Why::PoolPaused {
            until: 1_700_000_000_000,
        });
        assert_eq!(
            serde_json::to_string(&answer).unwrap(),
            r#"{"reason":"pool_paused","text":"the upstream asked its pool to wait","until_ms":1700000000000}"#
        );
    }
}
