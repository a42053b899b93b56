//! The lease on one job: the value of its key in the credits bucket.
//!
//! One key per job sequence, whatever its state, and every write carries the revision it replaces.
//! That one chain of revisions is the lock: two leaders cannot both grant a job, two workers cannot
//! both start it, and it is settled exactly once.
//!
//! ```text
//! (none) --leader--> granted --worker--> running --worker--> tombstone with settlement
//!                       |                   |------worker--> parked until a time, with settlement
//!                       |---------- server (TTL ended) ----> marker
//! ```

use fairlane_core::failure::Scope;
use fairlane_core::{
    Cost, JobId, JobSeq, ModelId, PoolId, Priority, TenantId, Term, Tokens, WorkerId,
};
use serde::{Deserialize, Serialize};

use crate::text;

/// The right to run one job once, and the share of upstream capacity set aside for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credit {
    #[serde(with = "seq")]
    pub seq: JobSeq,
    #[serde(with = "text::tenant")]
    pub tenant: TenantId,
    #[serde(with = "text::job")]
    pub job: JobId,
    /// As it is served: standard work of a demoted tenant is served as batch.
    #[serde(with = "text::priority")]
    pub priority: Priority,
    /// Model to call: the job's own, or its fallback.
    #[serde(with = "text::model")]
    pub model: ModelId,
    /// The model's pool.
    #[serde(with = "text::pool")]
    pub pool: PoolId,
    #[serde(with = "text::worker")]
    pub worker: WorkerId,
    /// 1 for the first credit of a job.
    pub delivery: u32,
    #[serde(with = "tokens")]
    pub tokens: Tokens,
    /// Charged to the tenant when granted, in thousandths of a cost unit.
    #[serde(with = "cost")]
    pub cost: Cost,
    #[serde(with = "term")]
    pub term: Term,
    /// Unix milliseconds.
    pub granted_ms: u64,
    /// The call is made to see whether the pool is well again; its failing is no attempt.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub probe: bool,
}

/// State of a live lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Lease {
    /// Written by the leader; the worker has not begun.
    Granted(Credit),
    /// Renewed by the worker while the call runs.
    Running(Credit),
    /// Held by nobody until a time: a retry delay.
    Parked(Parked),
}

/// A job that must not run before a time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parked {
    /// Unix milliseconds.
    pub until_ms: u64,
    #[serde(default, skip_serializing_if = "ParkReason::is_retry")]
    pub why: ParkReason,
    /// Settlement of the delivery that ended here.
    pub settlement: Settlement,
}

/// Why a job is parked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParkReason {
    /// It is tried again.
    #[default]
    Retry,
    /// Its owner has until then to say whether it may wait longer.
    Asks,
    /// It was parked before, until another time; its settlement is in the books.
    Moved,
}

impl ParkReason {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
    fn is_retry(&self) -> bool {
        *self == Self::Retry
    }
}

/// How a delivery ended, for the scheduler's books. Sent exactly once, with the lease's last write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settlement {
    pub credit: Credit,
    pub outcome: DeliveryOutcome,
    /// Tokens the limits were really charged. None if nothing was sent upstream.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "tokens_option"
    )]
    pub used: Option<Tokens>,
    /// What the upstream said about its limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<LimitsSeen>,
    /// The upstream turned the call away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<Refused>,
    /// Others than the job have to wait, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<Pause>,
    /// What the call said about the health of its pool. Absent if it said nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Health>,
}

/// What a call said about the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    Good,
    /// The upstream failed.
    UpstreamBad,
    /// The way to the upstream failed.
    NetworkBad,
}

/// What became of the job with this delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryOutcome {
    /// Its result is stored.
    Done,
    /// Its dead letter is stored.
    Dead,
    /// Runs again when the lease's time comes.
    Retry,
    /// Not begun; goes back in line as if it had never been granted.
    Returned,
    /// There was no such job, or its outcome was stored before.
    Gone,
}

/// How the upstream turned a call away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refused {
    /// A limit per minute was used up.
    RateLimit,
    /// The upstream was overloaded.
    Overloaded,
}

/// Limits and what remains of them, from one answer's headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitsSeen {
    /// When the headers came, in Unix milliseconds: an answer may go on for minutes after them.
    pub at_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<LimitSeen>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<LimitSeen>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<LimitSeen>,
}

/// One limit per minute and what remained of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitSeen {
    pub limit: u64,
    pub remaining: u64,
}

/// Whoever is concerned waits until a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    #[serde(with = "scope")]
    pub scope: Scope,
    /// Unix milliseconds.
    pub until_ms: u64,
    /// Nobody knows whether the time will do: one call goes first then, to see.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub probe: bool,
}

/// A stored credit on its way to its worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    pub credit: Credit,
    /// Revision under which it is stored; the worker's first write replaces it.
    pub revision: u64,
    /// Milliseconds for which the stored credit lives.
    pub ttl_ms: u64,
}

/// A worker tells the leader that it is there and how much it can take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    #[serde(with = "text::worker")]
    pub worker: WorkerId,
    pub slots: u32,
    pub draining: bool,
    pub version: String,
}

/// A job was called off in its record: whoever has it gives it up. The leader answers once it knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CalledOff {
    #[serde(with = "seq")]
    pub seq: JobSeq,
}

/// The leader's lease, value of the leader key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leader {
    /// Name of the scheduler process, new at every start.
    pub holder: String,
    /// Revision of the acquisition. None in the acquiring write itself, which cannot know it yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub term: Option<u64>,
    /// The holder gave up the lease; anyone may take it at once.
    #[serde(default)]
    pub released: bool,
}

mod seq {
    use super::JobSeq;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(seq: &JobSeq, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_u64(seq.0)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<JobSeq, D::Error> {
        u64::deserialize(d).map(JobSeq)
    }
}

mod scope {
    use super::Scope;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    const ALL: [Scope; 5] = [
        Scope::Pool,
        Scope::Model,
        Scope::Kind,
        Scope::Account,
        Scope::Concurrency,
    ];

    fn word(scope: Scope) -> &'static str {
        match scope {
            Scope::Pool => "pool",
            Scope::Model => "model",
            Scope::Kind => "kind",
            Scope::Account => "account",
            Scope::Concurrency => "concurrency",
        }
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
    pub(super) fn serialize<S: Serializer>(scope: &Scope, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(word(*scope))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Scope, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
        ALL.into_iter()
            .find(|scope| word(*scope) == text)
            .ok_or_else(|| {
                D::Error::custom(format!(
                    "scope {text:?} is not one of pool, model, kind, account, concurrency"
                ))
            })
    }
}

mod term {
    use super::Term;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(term: &Term, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_u64(term.0)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Term, D::Error> {
        u64::deserialize(d).map(Term)
    }
}

mod cost {
    use super::Cost;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(cost: &Cost, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_i64(cost.0)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Cost, D::Error> {
        i64::deserialize(d).map(Cost)
    }
}

mod tokens {
    use super::Tokens;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Pair {
        input: u64,
        output: u64,
    }

    pub(super) fn serialize<S: Serializer>(tokens: &Tokens, s: S) -> Result<S::Ok, S::Error> {
        Pair {
            input: tokens.input,
            output: tokens.output,
        }
        .serialize(s)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Tokens, D::Error> {
        Pair::deserialize(d).map(|pair| Tokens {
            input: pair.input,
            output: pair.output,
        })
    }
}

mod tokens_option {
    use super::{Tokens, tokens};
    use serde::{Deserialize, Deserializer, Serializer};

    #[derive(Deserialize)]
    struct Wrapped(#[serde(with = "tokens")] Tokens);

    #[expect(clippy::ref_option, reason = "serde's signature")]
    pub(super) fn serialize<S: Serializer>(
        tokens: &Option<Tokens>,
        s: S,
    ) -> Result<S::Ok, S::Error> {
        match tokens {
            Some(tokens) => tokens::serialize(tokens, s),
            None => s.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Tokens>, D::Error> {
        Ok(Option::<Wrapped>::deserialize(d)?.map(|wrapped| wrapped.0))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn credit() -> Credit {
        Credit {
            seq: JobSeq(7),
            tenant: TenantId::parse("acme").unwrap(),
            job: JobId::parse("wp-1").unwrap(),
            priority: Priority::Batch,
            model: ModelId::parse("claude-haiku-4-5").unwrap(),
            pool: PoolId::parse("haiku-4.5").unwrap(),
            worker: WorkerId::parse("w-1").unwrap(),
            delivery: 1,
            tokens: Tokens {
                input: 120,
                output: 60,
            },
            cost: Cost::UNIT,
            term: Term(3),
            granted_ms: 1_700_000_000_000,
            probe: false,
        }
    }

    const CREDIT: &str = r#""seq":7,"tenant":"acme","job":"wp-1","priority":"batch","model":"claude-haiku-4-5","pool":"haiku-4.5","worker":"w-1","delivery":1,"tokens":{"input":120,"output":60},"cost":1000,"term":3,"granted_ms":1700000000000"#;

    #[test]
    fn leases_as_they_are_stored() {
        let settlement = Settlement {
            credit: credit(),
            outcome: DeliveryOutcome::Retry,
            used: Some(Tokens {
                input: 100,
                output: 0,
            }),
            limits: Some(LimitsSeen {
                at_ms: 1_700_000_000_100,
                requests: Some(LimitSeen {
                    limit: 50,
                    remaining: 0,
                }),
                ..LimitsSeen::default()
            }),
            refused: Some(Refused::RateLimit),
            pause: Some(Pause {
                scope: Scope::Pool,
                until_ms: 1_700_000_016_000,
                probe: false,
            }),
            health: Some(Health::UpstreamBad),
        };
        let cases = [
            (
                Lease::Granted(credit()),
                format!(r#"{{"state":"granted",{CREDIT}}}"#),
            ),
            (
                Lease::Running(credit()),
                format!(r#"{{"state":"running",{CREDIT}}}"#),
            ),
            (
                Lease::Parked(Parked {
                    why: ParkReason::Asks,
                    until_ms: 1_700_000_016_000,
                    settlement,
                }),
                format!(
                    r#"{{"state":"parked","until_ms":1700000016000,"why":"asks","settlement":{{"credit":{{{CREDIT}}},"outcome":"retry","used":{{"input":100,"output":0}},"limits":{{"at_ms":1700000000100,"requests":{{"limit":50,"remaining":0}}}},"refused":"rate_limit","pause":{{"scope":"pool","until_ms":1700000016000}},"health":"upstream_bad"}}}}"#
                ),
            ),
        ];
        for (lease, text) in cases {
            assert_eq!(serde_json::to_string(&lease).unwrap(), text);
            assert_eq!(serde_json::from_str::<Lease>(&text).unwrap(), lease);
        }
    }

    #[test]
    fn a_settlement_of_nothing_sent_reads_back() {
        let settlement = Settlement {
            credit: credit(),
            outcome: DeliveryOutcome::Returned,
            used: None,
            limits: None,
            refused: None,
            pause: None,
            health: None,
        };
        let text = serde_json::to_string(&settlement).unwrap();
        assert!(!text.contains("used"));
        assert_eq!(
            serde_json::from_str::<Settlement>(&text).unwrap(),
            settlement
        );
    }

    #[test]
    fn a_lease_with_a_name_that_reaches_into_other_subjects_is_refused() {
        let text = format!(r#"{{"state":"granted",{}}}"#, CREDIT.replace("acme", "a.>"));
        let error = serde_json::from_str::<Lease>(&text)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("tenant \\\"a.>\\\"") || error.contains("tenant \"a.>\""),
            "{error}"
        );
    }
}
