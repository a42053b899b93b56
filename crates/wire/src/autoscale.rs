//! How many worker slots are wanted, and why: key `autoscale` of the control bucket, and what every
//! scheduler answers at `/v1/autoscale`.

use fairlane_core::autoscale::{PoolSignal, Reason, Signal};
use fairlane_core::{Millis, PoolId};
use serde::{Deserialize, Serialize};

use crate::text;

/// The signal as it is stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AutoscaleRecord {
    /// Term of the leader that wrote it.
    pub term: u64,
    /// Unix milliseconds.
    pub at_ms: Millis,
    /// What scaling goes by.
    pub wanted_slots: u64,
    /// Stable word for what decides it: `demand`, `rpm`, `itpm`, `otpm`, `breaker`, `retry_after`,
    /// `floor`, `ceiling`.
    pub reason: String,
    /// The same for people.
    pub text: String,
    pub terms: Terms,
    pub pools: Vec<PoolTerms>,
}

/// The parts of the signal, in slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    pub demand: u64,
    pub capacity: u64,
    pub in_flight: u64,
}

/// What one pool adds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PoolTerms {
    #[serde(with = "text::pool")]
    pub pool: PoolId,
    pub demand_per_minute: f64,
    pub capacity_per_minute: f64,
    pub slot_time_ms: Millis,
    pub well_at_ms: Millis,
    pub reason: String,
}

impl AutoscaleRecord {
    #[must_use]
    pub fn new(term: u64, signal: &Signal) -> Self {
        let pools = signal.pools.iter().map(|pool| PoolTerms {
            pool: pool.pool.clone(),
            demand_per_minute: pool.demand_per_minute,
            capacity_per_minute: pool.capacity_per_minute,
            slot_time_ms: pool.slot_time,
            well_at_ms: pool.well_at,
            reason: pool.reason.as_str().to_owned(),
        });
        Self {
            term,
            at_ms: signal.at,
            wanted_slots: signal.wanted,
            reason: signal.reason.as_str().to_owned(),
            text: signal.words(),
            terms: Terms {
                demand: signal.demand,
                capacity: signal.capacity,
                in_flight: signal.in_flight,
            },
            pools: pools.collect(),
        }
    }

    /// The signal that was stored; reasons that are not known are demand.
    #[must_use]
    pub fn signal(self) -> Signal {
        let reason = |word: &str| Reason::parse(word).unwrap_or(Reason::Demand);
        let pools = self.pools.into_iter().map(|pool| PoolSignal {
            reason: reason(&pool.reason),
            pool: pool.pool,
            demand_per_minute: pool.demand_per_minute,
            capacity_per_minute: pool.capacity_per_minute,
            slot_time: pool.slot_time_ms,
            well_at: pool.well_at_ms,
        });
        Signal {
            at: self.at_ms,
            wanted: self.wanted_slots,
            reason: reason(&self.reason),
            demand: self.terms.demand,
            capacity: self.terms.capacity,
            in_flight: self.terms.in_flight,
            pools: pools.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden() {
        let signal = Signal {
            at: 1_796_000_000_000,
            wanted: 69,
            reason: Reason::InputTokens,
            demand: 500,
            capacity: 69,
            in_flight: 60,
            pools: vec![PoolSignal {
                pool: PoolId::parse("haiku-4.5").unwrap(),
                demand_per_minute: 2_500.0,
                capacity_per_minute: 300.5,
                slot_time: 12_000,
                well_at: 1_796_000_000_000,
                reason: Reason::InputTokens,
            }],
        };
        let golden = r#"{"term":7,"at_ms":1796000000000,"wanted_slots":69,"reason":"itpm","text":"holding at 69 slots: input tokens per minute are the limit; 431 more would sit idle","terms":{"demand":500,"capacity":69,"in_flight":60},"pools":[{"pool":"haiku-4.5","demand_per_minute":2500.0,"capacity_per_minute":300.5,"slot_time_ms":12000,"well_at_ms":1796000000000,"reason":"itpm"}]}"#;
        let record = AutoscaleRecord::new(7, &signal);
        assert_eq!(serde_json::to_string(&record).unwrap(), golden);
        let read: AutoscaleRecord = serde_json::from_str(golden).unwrap();
        assert_eq!(read.signal(), signal);
    }
}
