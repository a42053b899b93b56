//! All that is going on, in one look: for people who watch.

use std::collections::BTreeMap;

use super::snapshot::GateState;
use super::tenants::TenantIx;
use super::{PoolStatus, Scheduler};
use crate::Millis;
use crate::demotion::Demotion;
use crate::drr::Weight;
use crate::ids::{JobSeq, TenantId, WorkerId};
use crate::job::Cost;

/// What is going on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overview {
    /// Jobs in line, in the order of [`crate::Priority::ALL`], and the oldest of each.
    pub queued: [usize; 3],
    pub oldest: [Option<JobSeq>; 3],
    /// Credits that are held.
    pub in_flight: usize,
    pub pools: Vec<PoolView>,
    /// What is refused until somebody looks again.
    pub gates: Vec<GateState>,
    /// Calls that may run at once, while the upstream limits them.
    pub calls_max: Option<u32>,
    pub workers: Vec<WorkerView>,
    /// Those with the most to do first; at most as many as were asked for.
    pub tenants: Vec<TenantView>,
    /// Tenants that have work, in line or under way, and their weights together.
    pub active: usize,
    pub active_weight: u64,
    /// Cost granted to all tenants in the last minute.
    pub granted: Cost,
}

/// A pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolView {
    pub status: PoolStatus,
    /// In the past if it is not paused.
    pub paused_until: Millis,
    /// Whether the upstream itself has told its limits; otherwise they are those of the configuration.
    pub is_heard: bool,
    /// Requests, input and output tokens that others with the same key took in the last minute.
    pub missing: [u64; 3],
    /// Cost granted in the last minute, in the order of [`crate::Priority::ALL`].
    pub granted: [Cost; 3],
}

/// A worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerView {
    pub worker: WorkerId,
    pub slots: u32,
    pub live: u32,
    pub draining: bool,
    /// Since when nothing was heard of it.
    pub silent: Millis,
}

/// A tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantView {
    pub tenant: TenantId,
    pub weight: Weight,
    /// Jobs in line, by their own priority.
    pub queued: [usize; 3],
    pub in_flight: u32,
    pub in_flight_max: u32,
    pub demotion: Option<Demotion>,
    pub input_tokens_today: u64,
    pub daily_input_tokens: Option<u64>,
    /// Cost granted in the last minute.
    pub granted: Cost,
}

impl Scheduler {
    /// What is going on, with up to `tenants_max` tenants. Looks at every tenant and queue, not at every job.
    pub fn overview(&mut self, tenants_max: usize, now: Millis) -> Overview {
        self.now = self.now.max(now);
        let now = self.now;
        let pools = self.pools(now).into_iter();
        let pools = pools.filter_map(|status| self.pool_view(status)).collect();
        let mut queued: BTreeMap<TenantIx, [usize; 3]> = BTreeMap::new();
        for (key, length) in self.lanes.queues() {
            queued.entry(key.tenant).or_default()[key.priority.index()] += length;
        }
        let known = self.tenants.numbers();
        let mut tenants: Vec<TenantView> = known
            .map(|tenant| self.tenant_view(tenant, queued.get(&tenant).copied()))
            .collect();
        let is_active = |tenant: &&TenantView| tenant.work() > 0;
        let active = tenants.iter().filter(is_active);
        let (active, active_weight) = active.fold((0, 0_u64), |(count, weight), tenant| {
            (count + 1, weight + u64::from(tenant.weight.0))
        });
        let granted = tenants.iter().map(|tenant| tenant.granted.0).sum();
        tenants.sort_by(|one, other| {
            let work = |tenant: &TenantView| (tenant.work(), tenant.granted);
            work(other)
                .cmp(&work(one))
                .then_with(|| one.tenant.cmp(&other.tenant))
        });
        tenants.truncate(tenants_max);
        Overview {
            queued: self.queued(),
            oldest: self.oldest(),
            in_flight: self.live(),
            pools,
            gates: self.gate_states(),
            calls_max: self.window.max(now),
            workers: self.fleet.views(now),
            tenants,
            active,
            active_weight,
            granted: Cost(granted),
        }
    }

    fn pool_view(&mut self, status: PoolStatus) -> Option<PoolView> {
        let pool = self.pools.find(&status.pool)?;
        let now = self.now;
        let granted = crate::Priority::ALL.map(|priority| {
            let granted = self.pools.granted_lately(pool, priority, now);
            Cost(i64::try_from(granted).unwrap_or(i64::MAX))
        });
        let limits = self.pools.limits(pool);
        Some(PoolView {
            paused_until: limits.paused_until(),
            is_heard: limits.is_heard(),
            missing: limits.missing(),
            status,
            granted,
        })
    }

    fn tenant_view(&self, tenant: TenantIx, queued: Option<[usize; 3]>) -> TenantView {
        let policy = self.tenants.policy(tenant);
        let standing = self.tenants.standing(tenant);
        TenantView {
            tenant: self.tenants.name(tenant).clone(),
            weight: policy.weight,
            queued: queued.unwrap_or_default(),
            in_flight: self.tenants.in_flight(tenant),
            in_flight_max: policy.in_flight_max.max(1),
            demotion: standing.demotion(),
            input_tokens_today: standing.used_today(self.now),
            daily_input_tokens: policy.daily_input_tokens,
            granted: self.tenants.granted_lately(tenant, self.now),
        }
    }
}

impl TenantView {
    /// Jobs in line and under way.
    #[must_use]
    pub fn work(&self) -> usize {
        self.queued.iter().sum::<usize>() + self.in_flight as usize
    }
}
