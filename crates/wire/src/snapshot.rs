//! The books of the leading scheduler, as it leaves them for the next one: key `scheduler` of the
//! control bucket.

use fairlane_core::scheduler::{Account, PoolState, Snapshot};
use fairlane_core::{Cost, PoolId, Priority, TenantId};
use serde::{Deserialize, Serialize};

use crate::text;

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

#[cfg(test)]
mod tests {
    use super::*;

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
        };
        let record = SnapshotRecord::new(7, snapshot.clone());
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(
            text,
            r#"{"term":7,"at_ms":1700000000000,"revision":42,"pools":[{"pool":"haiku-4.5","left":[3,-120,8000],"paused_until_ms":0,"breaker_open_until_ms":1700000090000,"owed":[1,-2,1]}],"accounts":[{"pool":"haiku-4.5","priority":"batch","tenant":"acme","balance":-12000}]}"#
        );
        let read: SnapshotRecord = serde_json::from_str(&text).unwrap();
        assert_eq!(read.into_snapshot(), snapshot);
    }
}
