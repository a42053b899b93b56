//! The question why a job is not running, or what a tenant waits for, and the leader's answer: request
//! and reply on `fl.ctl.why`.

use fairlane_core::demotion::Cause;
use fairlane_core::failure::Scope;
use fairlane_core::scheduler::{Outlook, Place, TenantOutlook, Why};
use fairlane_core::{JobId, JobSeq, PoolId, Priority, TenantId};
use serde::{Deserialize, Serialize};

use crate::text;

/// The question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub enum WhyRequest {
    /// Sequence of the job in the job stream; its record has it.
    Job { seq: u64 },
    Tenant {
        #[serde(with = "text::tenant")]
        tenant: TenantId,
    },
    /// All that is going on, with up to so many tenants.
    Fleet { tenants_max: u32 },
}

impl WhyRequest {
    /// The question about one job.
    #[must_use]
    pub fn job(seq: JobSeq) -> Self {
        Self::Job { seq: seq.0 }
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
    /// Where it stands, while it is in line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<PlaceRecord>,
}

/// A place in line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceRecord {
    #[serde(with = "text::pool")]
    pub pool: PoolId,
    /// As it is served: standard work of a demoted tenant is served as batch.
    #[serde(with = "text::priority")]
    pub priority: Priority,
    /// Jobs of its own tenant that stand before it.
    pub ahead: u64,
    /// When its turn comes if all goes on as in the last minute, in Unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eta_ms: Option<u64>,
}

/// What a tenant waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantWhy {
    /// In thousandths.
    pub weight: u32,
    pub in_flight: u32,
    pub in_flight_max: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub demoted: Option<Demoted>,
    /// Input tokens used today, those of calls under way among them.
    pub input_tokens_today: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub daily_input_tokens: Option<u64>,
    /// Where it has jobs in line.
    pub lines: Vec<Line>,
}

/// A demotion: standard work is served as batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Demoted {
    #[serde(with = "cause")]
    pub cause: Cause,
    /// Unix milliseconds.
    pub until_ms: u64,
}

/// A tenant's jobs in line in one pool and priority.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    #[serde(with = "text::pool")]
    pub pool: PoolId,
    /// As it is served.
    #[serde(with = "text::priority")]
    pub priority: Priority,
    pub queued: u64,
    /// The oldest job.
    #[serde(with = "text::job")]
    pub job: JobId,
    /// What that waits for.
    pub why: WhyAnswer,
}

impl From<Outlook> for WhyAnswer {
    fn from(outlook: Outlook) -> Self {
        Self {
            place: outlook.place.map(PlaceRecord::from),
            ..Self::from(outlook.why)
        }
    }
}

impl From<Place> for PlaceRecord {
    fn from(place: Place) -> Self {
        Self {
            pool: place.pool,
            priority: place.priority,
            ahead: place.ahead as u64,
            eta_ms: place.eta,
        }
    }
}

impl From<TenantOutlook> for TenantWhy {
    fn from(outlook: TenantOutlook) -> Self {
        let line = |flow: fairlane_core::scheduler::FlowOutlook| Line {
            why: WhyAnswer {
                place: Some(PlaceRecord {
                    pool: flow.pool.clone(),
                    priority: flow.priority,
                    ahead: 0,
                    eta_ms: flow.eta,
                }),
                ..WhyAnswer::from(flow.why)
            },
            pool: flow.pool,
            priority: flow.priority,
            queued: flow.queued as u64,
            job: flow.job,
        };
        Self {
            weight: outlook.weight.0,
            in_flight: outlook.in_flight,
            in_flight_max: outlook.in_flight_max,
            demoted: outlook.demotion.map(|demotion| Demoted {
                cause: demotion.cause,
                until_ms: demotion.until,
            }),
            input_tokens_today: outlook.input_tokens_today,
            daily_input_tokens: outlook.daily_input_tokens,
            lines: outlook.flows.into_iter().map(line).collect(),
        }
    }
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
            Why::Learning => (
                "learning",
                None,
                "the leader has just begun and does not know all jobs yet".to_owned(),
            ),
            Why::Refused { scope, until } => (
                refusal(scope),
                Some(until),
                format!(
                    "the upstream refuses {}; one call is let through then, to see",
                    whom(scope)
                ),
            ),
            Why::CallsLimited { max } => (
                "calls_limited",
                None,
                format!("the upstream allows only {max} calls at once for now"),
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
                "a call is out to see whether what was refused passes again".to_owned(),
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
            Why::Suspect { workers } => (
                "suspect",
                None,
                format!(
                    "{workers} workers died while they had it; it waits for one that has nothing else"
                ),
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
            place: None,
        }
    }
}

fn refusal(scope: Scope) -> &'static str {
    match scope {
        Scope::Account => "account_refused",
        Scope::Pool => "pool_refused",
        Scope::Model => "model_refused",
        Scope::Kind => "kind_refused",
        Scope::Concurrency => "calls_refused",
    }
}

fn whom(scope: Scope) -> &'static str {
    match scope {
        Scope::Account => "every call of the account",
        Scope::Pool => "every call to its pool",
        Scope::Model => "its model",
        Scope::Kind => "its kind of job",
        Scope::Concurrency => "more calls at once",
    }
}

mod cause {
    use super::Cause;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    const ALL: [Cause; 3] = [Cause::Throttles, Cause::Budget, Cause::Hand];

    fn word(cause: Cause) -> &'static str {
        match cause {
            Cause::Throttles => "throttles",
            Cause::Budget => "budget",
            Cause::Hand => "hand",
        }
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
    pub(super) fn serialize<S: Serializer>(cause: &Cause, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(word(*cause))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Cause, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
        ALL.into_iter()
            .find(|cause| word(*cause) == text)
            .ok_or_else(|| {
                D::Error::custom(format!(
                    "cause {text:?} is not one of throttles, budget, hand"
                ))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairlane_core::demotion::Demotion;
    use fairlane_core::drr::Weight;
    use fairlane_core::scheduler::FlowOutlook;

    #[test]
    fn questions_as_they_travel() {
        let tenant = TenantId::parse("acme").unwrap();
        for (request, text) in [
            (WhyRequest::job(JobSeq(7)), r#"{"seq":7}"#),
            (WhyRequest::Tenant { tenant }, r#"{"tenant":"acme"}"#),
        ] {
            assert_eq!(serde_json::to_string(&request).unwrap(), text);
            assert_eq!(serde_json::from_str::<WhyRequest>(text).unwrap(), request);
        }
    }

    #[test]
    fn the_answer_for_a_job_as_it_travels() {
        let answer = WhyAnswer::from(Outlook {
            why: Why::PoolPaused {
                until: 1_700_000_000_000,
            },
            place: Some(Place {
                pool: PoolId::parse("haiku-4.5").unwrap(),
                priority: Priority::Batch,
                ahead: 3,
                eta: Some(1_700_000_090_000),
            }),
        });
        assert_eq!(
            serde_json::to_string(&answer).unwrap(),
            r#"{"reason":"pool_paused","text":"the upstream asked its pool to wait","until_ms":1700000000000,"place":{"pool":"haiku-4.5","priority":"batch","ahead":3,"eta_ms":1700000090000}}"#
        );
    }

    #[test]
    fn the_answer_for_a_tenant_as_it_travels() {
        let answer = TenantWhy::from(TenantOutlook {
            weight: Weight(3_000),
            in_flight: 2,
            in_flight_max: 10,
            demotion: Some(Demotion {
                cause: Cause::Budget,
                until: 1_700_000_000_000,
            }),
            input_tokens_today: 151_000,
            daily_input_tokens: Some(100_000),
            flows: vec![FlowOutlook {
                pool: PoolId::parse("haiku-4.5").unwrap(),
                priority: Priority::Batch,
                queued: 40,
                job: JobId::parse("wp-1").unwrap(),
                why: Why::Now,
                eta: None,
            }],
        });
        let text = serde_json::to_string(&answer).unwrap();
        assert_eq!(
            text,
            r#"{"weight":3000,"in_flight":2,"in_flight_max":10,"demoted":{"cause":"budget","until_ms":1700000000000},"input_tokens_today":151000,"daily_input_tokens":100000,"lines":[{"pool":"haiku-4.5","priority":"batch","queued":40,"job":"wp-1","why":{"reason":"now","text":"nothing is in its way: it is its turn","place":{"pool":"haiku-4.5","priority":"batch","ahead":0}}}]}"#
        );
        assert_eq!(serde_json::from_str::<TenantWhy>(&text).unwrap(), answer);
    }
}
