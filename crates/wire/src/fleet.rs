//! All that is going on, as the leader answers it on `fl.ctl.why` to whoever watches.

use fairlane_core::breaker::Gate;
use fairlane_core::scheduler::{Overview, PoolView, TenantView, WorkerView};
use fairlane_core::{Millis, PoolId, Priority, TenantId, WorkerId};
use serde::{Deserialize, Serialize};

use crate::snapshot::{GateRecord, gate_record};
use crate::text;
use crate::why::Demoted;

/// Tenants in one answer, at most: it has to fit into a message.
pub const TENANTS_MAX: u32 = 2_000;

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetRecord {
    /// Term of the leader.
    pub term: u64,
    /// The leader's clock, Unix milliseconds.
    pub at_ms: u64,
    /// Version of the leader.
    pub version: String,
    /// Critical, standard and batch work.
    pub lanes: [LaneRecord; 3],
    pub in_flight: u64,
    pub pools: Vec<FleetPool>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gates: Vec<GateRecord>,
    /// Calls that may run at once, while the upstream limits them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls_max: Option<u32>,
    pub workers: Vec<FleetWorker>,
    /// Those with the most to do first.
    pub tenants: Vec<FleetTenant>,
    /// Tenants that have work, and their weights together in thousandths.
    pub active_tenants: u64,
    pub active_weight: u64,
    /// Cost granted in the last minute, in thousandths of a cost unit.
    pub granted: i64,
}

/// Jobs of one priority in line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneRecord {
    #[serde(with = "text::priority")]
    pub priority: Priority,
    pub queued: u64,
    /// Age of the oldest, milliseconds.
    pub oldest_ms: u64,
}

/// A pool. Triples are requests, input tokens and output tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetPool {
    #[serde(with = "text::pool")]
    pub pool: PoolId,
    /// Negative when overdrawn.
    pub left: [i64; 3],
    pub per_minute: [u64; 3],
    /// Whether the upstream itself has told its limits.
    pub heard: bool,
    /// What others with the same key took in the last minute.
    pub missing: [u64; 3],
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_until_ms: Option<u64>,
    pub breaker: BreakerRecord,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_until_ms: Option<u64>,
    /// Cost granted in the last minute by priority, in thousandths of a cost unit.
    pub granted: [i64; 3],
}

/// How a breaker stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BreakerRecord {
    Closed,
    HalfOpen,
    Open,
}

/// A worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetWorker {
    #[serde(with = "text::worker")]
    pub worker: WorkerId,
    pub slots: u32,
    pub live: u32,
    pub draining: bool,
    /// Since when nothing was heard of it, milliseconds.
    pub silent_ms: u64,
}

/// A tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetTenant {
    #[serde(with = "text::tenant")]
    pub tenant: TenantId,
    /// In thousandths.
    pub weight: u32,
    /// Critical, standard and batch jobs in line.
    pub queued: [u64; 3],
    pub in_flight: u32,
    pub in_flight_max: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub demoted: Option<Demoted>,
    pub input_tokens_today: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub daily_input_tokens: Option<u64>,
    /// Cost granted in the last minute, in thousandths of a cost unit.
    pub granted: i64,
}

impl FleetRecord {
    /// The record of an overview; `ages` are those of the oldest jobs, milliseconds.
    #[must_use]
    pub fn new(
        overview: Overview,
        ages: [Millis; 3],
        term: u64,
        at_ms: u64,
        version: &str,
    ) -> Self {
        let lanes = Priority::ALL.map(|priority| LaneRecord {
            priority,
            queued: overview.queued[priority.index()] as u64,
            oldest_ms: ages[priority.index()],
        });
        let pools = overview.pools.into_iter();
        Self {
            term,
            at_ms,
            version: version.to_owned(),
            lanes,
            in_flight: overview.in_flight as u64,
            pools: pools.map(|view| pool(view, at_ms)).collect(),
            gates: overview.gates.into_iter().map(gate_record).collect(),
            calls_max: overview.calls_max,
            workers: overview.workers.into_iter().map(worker).collect(),
            tenants: overview.tenants.into_iter().map(tenant).collect(),
            active_tenants: overview.active as u64,
            active_weight: overview.active_weight,
            granted: overview.granted.0,
        }
    }
}

fn pool(view: PoolView, now: Millis) -> FleetPool {
    let (breaker, open_until_ms) = match view.status.gate {
        Gate::Closed => (BreakerRecord::Closed, None),
        Gate::HalfOpen | Gate::Probing => (BreakerRecord::HalfOpen, None),
        Gate::Open { until } => (BreakerRecord::Open, Some(until)),
    };
    FleetPool {
        pool: view.status.pool,
        left: view.status.left,
        per_minute: view.status.per_minute,
        heard: view.is_heard,
        missing: view.missing,
        paused_until_ms: Some(view.paused_until).filter(|&until| until > now),
        breaker,
        open_until_ms,
        granted: view.granted.map(|cost| cost.0),
    }
}

fn worker(view: WorkerView) -> FleetWorker {
    FleetWorker {
        worker: view.worker,
        slots: view.slots,
        live: view.live,
        draining: view.draining,
        silent_ms: view.silent,
    }
}

fn tenant(view: TenantView) -> FleetTenant {
    FleetTenant {
        tenant: view.tenant,
        weight: view.weight.0,
        queued: view.queued.map(|jobs| jobs as u64),
        in_flight: view.in_flight,
        in_flight_max: view.in_flight_max,
        demoted: view.demotion.map(|demotion| Demoted {
            cause: demotion.cause,
            until_ms: demotion.until,
        }),
        input_tokens_today: view.input_tokens_today,
        daily_input_tokens: view.daily_input_tokens,
        granted: view.granted.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overview_as_it_travels() {
        let text = r#"{"term":3,"at_ms":9,"version":"0.1.0","lanes":[{"priority":"critical","queued":1,"oldest_ms":5},{"priority":"standard","queued":0,"oldest_ms":0},{"priority":"batch","queued":0,"oldest_ms":0}],"in_flight":2,"pools":[{"pool":"haiku-4.5","left":[-1,2,3],"per_minute":[50,60,70],"heard":true,"missing":[0,0,0],"breaker":"half_open","granted":[1,2,3]}],"workers":[{"worker":"w1","slots":8,"live":2,"draining":false,"silent_ms":200}],"tenants":[{"tenant":"acme","weight":1000,"queued":[1,0,0],"in_flight":2,"in_flight_max":9,"input_tokens_today":7,"granted":6000}],"active_tenants":1,"active_weight":1000,"granted":6000}"#;
        let record: FleetRecord = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&record).unwrap(), text);
        let request = crate::WhyRequest::Fleet { tenants_max: 7 };
        let text = serde_json::to_string(&request).unwrap();
        assert_eq!(text, r#"{"tenants_max":7}"#);
        assert_eq!(
            serde_json::from_str::<crate::WhyRequest>(&text).unwrap(),
            request
        );
    }
}
