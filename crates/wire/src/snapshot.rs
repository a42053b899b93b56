//! The books of the leading scheduler, as it leaves them for the next one: key `scheduler` of the
//! control bucket.

use fairlane_core::demotion::Demotion;
use fairlane_core::learn::Means;
use fairlane_core::scheduler::{Account, Concerns, GateState, LearnedState, PoolState, Snapshot};
use fairlane_core::{Cost, JobSeq, Kind, ModelId, PoolId, Priority, TenantId};
use serde::{Deserialize, Serialize};

use crate::text;
use crate::why::Demoted;

/// A snapshot as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotRecord {
    /// Term of the leader that wrote it.
    pub term: u64,
    /// Unix milliseconds.
    pub at_ms: u64,
    /// Highest revision of any lease that is in these books.
    pub revision: u64,
    pub pools: Vec<PoolRecord>,
    pub accounts: Vec<AccountRecord>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gates: Vec<GateRecord>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub demotions: Vec<DemotionRecord>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub learned: Vec<LearnedRecord>,
    /// Sequences of jobs that workers died with, and how many did.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<(u64, u32)>,
}

/// What is refused until somebody looks whether it still is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateRecord {
    #[serde(flatten)]
    pub concerns: ConcernsRecord,
    /// Unix milliseconds.
    pub until_ms: u64,
}

/// Whom a refusal concerns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "scope", rename_all = "snake_case")]
pub enum ConcernsRecord {
    Account,
    Pool {
        #[serde(with = "text::pool")]
        pool: PoolId,
    },
    Model {
        #[serde(with = "text::model")]
        model: ModelId,
    },
    Kind {
        #[serde(with = "text::tenant")]
        tenant: TenantId,
        #[serde(with = "text::kind")]
        kind: Kind,
        #[serde(with = "text::model")]
        model: ModelId,
    },
}

/// A tenant whose standard work is served as batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DemotionRecord {
    #[serde(with = "text::tenant")]
    pub tenant: TenantId,
    #[serde(flatten)]
    pub demoted: Demoted,
}

/// What one sort of job takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LearnedRecord {
    /// Absent: of all tenants together.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "text::tenant_option"
    )]
    pub tenant: Option<TenantId>,
    #[serde(with = "text::kind")]
    pub kind: Kind,
    #[serde(with = "text::model")]
    pub model: ModelId,
    pub samples: u64,
    /// Output, in thousandths of a token.
    pub output: u64,
    /// Input as a part of its estimate, in millionths.
    pub input: u64,
}

/// One pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolRecord {
    #[serde(with = "text::pool")]
    pub pool: PoolId,
    /// Requests, input tokens and output tokens that are left; negative when overdrawn.
    pub left: [i64; 3],
    /// Unix milliseconds; in the past if it is not paused.
    pub paused_until_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub breaker_open_until_ms: Option<u64>,
    /// What critical, standard and batch work are owed, in millionths of a cost unit.
    pub owed: [i64; 3],
}

/// What a tenant may spend, in thousandths of a cost unit; negative is debt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountRecord {
    #[serde(with = "text::pool")]
    pub pool: PoolId,
    #[serde(with = "text::priority")]
    pub priority: Priority,
    #[serde(with = "text::tenant")]
    pub tenant: TenantId,
    pub balance: i64,
}

impl SnapshotRecord {
    /// The record of a snapshot taken in `term`.
    #[must_use]
    pub fn new(term: u64, snapshot: Snapshot) -> Self {
        Self {
            term,
            at_ms: snapshot.at,
            revision: snapshot.revision,
            pools: snapshot.pools.into_iter().map(pool_record).collect(),
            accounts: snapshot.accounts.into_iter().map(account_record).collect(),
            gates: snapshot.gates.into_iter().map(gate_record).collect(),
            demotions: snapshot
                .demotions
                .into_iter()
                .map(demotion_record)
                .collect(),
            learned: snapshot.learned.into_iter().map(learned_record).collect(),
            lost: snapshot
                .lost
                .into_iter()
                .map(|(seq, lost)| (seq.0, lost))
                .collect(),
        }
    }

    /// The snapshot of the record.
    #[must_use]
    pub fn into_snapshot(self) -> Snapshot {
        Snapshot {
            at: self.at_ms,
            revision: self.revision,
            pools: self.pools.into_iter().map(pool_state).collect(),
            accounts: self.accounts.into_iter().map(account).collect(),
            gates: self.gates.into_iter().map(gate).collect(),
            demotions: self.demotions.into_iter().map(demotion).collect(),
            learned: self.learned.into_iter().map(learned).collect(),
            lost: self
                .lost
                .into_iter()
                .map(|(seq, lost)| (JobSeq(seq), lost))
                .collect(),
        }
    }
}

fn pool_record(state: PoolState) -> PoolRecord {
    PoolRecord {
        pool: state.pool,
        left: state.left,
        paused_until_ms: state.paused_until,
        breaker_open_until_ms: state.breaker_open_until,
        owed: state.owed,
    }
}

fn pool_state(record: PoolRecord) -> PoolState {
    PoolState {
        pool: record.pool,
        left: record.left,
        paused_until: record.paused_until_ms,
        breaker_open_until: record.breaker_open_until_ms,
        owed: record.owed,
    }
}

fn account_record(account: Account) -> AccountRecord {
    AccountRecord {
        pool: account.pool,
        priority: account.priority,
        tenant: account.tenant,
        balance: account.balance.0,
    }
}

fn account(record: AccountRecord) -> Account {
    Account {
        pool: record.pool,
        priority: record.priority,
        tenant: record.tenant,
        balance: Cost(record.balance),
    }
}

pub(crate) fn gate_record(state: GateState) -> GateRecord {
    GateRecord {
        concerns: match state.concerns {
            Concerns::Account => ConcernsRecord::Account,
            Concerns::Pool(pool) => ConcernsRecord::Pool { pool },
            Concerns::Model(model) => ConcernsRecord::Model { model },
            Concerns::Kind {
                tenant,
                kind,
                model,
            } => ConcernsRecord::Kind {
                tenant,
                kind,
                model,
            },
        },
        until_ms: state.until,
    }
}

fn gate(record: GateRecord) -> GateState {
    GateState {
        concerns: match record.concerns {
            ConcernsRecord::Account => Concerns::Account,
            ConcernsRecord::Pool { pool } => Concerns::Pool(pool),
            ConcernsRecord::Model { model } => Concerns::Model(model),
            ConcernsRecord::Kind {
                tenant,
                kind,
                model,
            } => Concerns::Kind {
                tenant,
                kind,
                model,
            },
        },
        until: record.until_ms,
    }
}

fn demotion_record((tenant, demotion): (TenantId, Demotion)) -> DemotionRecord {
    DemotionRecord {
        tenant,
        demoted: Demoted {
            cause: demotion.cause,
            until_ms: demotion.until,
        },
    }
}

fn demotion(record: DemotionRecord) -> (TenantId, Demotion) {
    let demotion = Demotion {
        cause: record.demoted.cause,
        until: record.demoted.until_ms,
    };
    (record.tenant, demotion)
}

fn learned_record(state: LearnedState) -> LearnedRecord {
    LearnedRecord {
        tenant: state.tenant,
        kind: state.kind,
        model: state.model,
        samples: state.means.samples,
        output: state.means.output,
        input: state.means.input,
    }
}

fn learned(record: LearnedRecord) -> LearnedState {
    LearnedState {
        tenant: record.tenant,
        kind: record.kind,
        model: record.model,
        means: Means {
            samples: record.samples,
            output: record.output,
            input: record.input,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairlane_core::demotion::Cause;

    #[test]
    fn a_snapshot_as_it_is_stored() {
        let pool = PoolId::parse("haiku-4.5").unwrap();
        let snapshot = Snapshot {
            at: 1_700_000_000_000,
            revision: 42,
            pools: vec![PoolState {
                pool: pool.clone(),
                left: [3, -120, 8_000],
                paused_until: 0,
                breaker_open_until: Some(1_700_000_090_000),
                owed: [1, -2, 1],
            }],
            accounts: vec![Account {
                pool,
                priority: Priority::Batch,
                tenant: TenantId::parse("acme").unwrap(),
                balance: Cost(-12_000),
            }],
            gates: vec![
                GateState {
                    concerns: Concerns::Account,
                    until: 1_700_003_600_000,
                },
                GateState {
                    concerns: Concerns::Kind {
                        tenant: TenantId::parse("acme").unwrap(),
                        kind: Kind::parse("tags").unwrap(),
                        model: ModelId::parse("claude-haiku-4-5").unwrap(),
                    },
                    until: 1_700_000_060_000,
                },
            ],
            demotions: vec![(
                TenantId::parse("acme").unwrap(),
                Demotion {
                    cause: Cause::Throttles,
                    until: 1_700_000_300_000,
                },
            )],
            learned: vec![LearnedState {
                tenant: None,
                kind: Kind::parse("tags").unwrap(),
                model: ModelId::parse("claude-haiku-4-5").unwrap(),
                means: Means {
                    samples: 8,
                    output: 61_500,
                    input: 1_020_000,
                },
            }],
            lost: vec![(JobSeq(9), 2)],
        };
        let record = SnapshotRecord::new(7, snapshot.clone());
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(
            text,
            r#"{"term":7,"at_ms":1700000000000,"revision":42,"pools":[{"pool":"haiku-4.5","left":[3,-120,8000],"paused_until_ms":0,"breaker_open_until_ms":1700000090000,"owed":[1,-2,1]}],"accounts":[{"pool":"haiku-4.5","priority":"batch","tenant":"acme","balance":-12000}],"gates":[{"scope":"account","until_ms":1700003600000},{"scope":"kind","tenant":"acme","kind":"tags","model":"claude-haiku-4-5","until_ms":1700000060000}],"demotions":[{"tenant":"acme","cause":"throttles","until_ms":1700000300000}],"learned":[{"kind":"tags","model":"claude-haiku-4-5","samples":8,"output":61500,"input":1020000}],"lost":[[9,2]]}"#
        );
        let read: SnapshotRecord = serde_json::from_str(&text).unwrap();
        assert_eq!(read.into_snapshot(), snapshot);
    }
}
