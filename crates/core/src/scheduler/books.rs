//! Charging and refunding: pools, tenants and workers.

use super::picture::{Lease, LeaseState, PoolIx, TenantIx};
use super::{Credit, Policy, Scheduler};
use crate::drr::Weight;
use crate::ids::{JobSeq, PoolId, TenantId};
use crate::job::{Cost, Tokens};
use crate::limiter::Limits;

impl Scheduler {
    pub(super) fn limits_of(&self, pool: &PoolId) -> Limits {
        let configured = self.config.limits.get(pool).copied();
        configured.unwrap_or(self.config.default_limits)
    }

    pub(super) fn pool(&mut self, pool: &PoolId) -> PoolIx {
        let limits = self.limits_of(pool);
        self.pools
            .index(pool, limits, self.config.breaker, self.now)
    }

    pub(super) fn tenant(&mut self, name: &TenantId) -> TenantIx {
        let config = &self.config;
        self.tenants.index(name, || {
            let policy = config.tenants.get(name).copied();
            policy.unwrap_or(config.default_policy)
        })
    }

    pub(super) fn weight(&self, tenant: TenantIx) -> Weight {
        self.tenants.policy(tenant).weight
    }

    pub(super) fn new_policy(&mut self, name: &TenantId, policy: Policy) {
        let tenant = self.tenant(name);
        self.tenants.set_policy(tenant, policy);
        for (pool, priority) in self.lanes.flows_of(tenant) {
            self.refresh(pool, priority, tenant);
        }
    }

    /// Books a credit: pool, worker and tenant. The tenant's deficit was charged when it was served,
    /// unless somebody else served it.
    pub(super) fn charge(&mut self, credit: &Credit) {
        let pool = self.pool(&credit.pool);
        self.fleet.occupy(&credit.worker, self.now);
        let tenant = self.tenant(&credit.tenant);
        self.tenants.took_off(tenant);
        if credit.term == self.term {
            self.pools.limits(pool).reserve(credit.tokens, self.now);
        } else if !self.booked.grant(credit) {
            self.pools.limits(pool).reserve(credit.tokens, self.now);
            self.replay(pool, tenant, credit);
        }
    }

    /// Replaces what was charged for a credit by what was used.
    pub(super) fn refund(&mut self, credit: &Credit, used: Option<Tokens>) {
        let pool = self.pool(&credit.pool);
        if used.is_none() && self.pools.probe(pool) == Some(credit.seq) {
            self.judge(pool, credit, None);
        }
        self.pools.limits(pool).settle(credit.tokens, used);
        self.fleet.free(&credit.worker);
        let tenant = self.tenant(&credit.tenant);
        self.tenants.landed(tenant);
        let cost = used.map_or(Cost(0), |used| Cost::of(used, self.config.cost_weights));
        let weight = self.weight(tenant);
        self.lanes
            .correct(pool, credit.priority, tenant, weight, cost - credit.cost);
        self.measure_end(credit, cost - credit.cost);
        self.refresh_tenant(tenant);
    }

    /// Tells the meter of a credit, if it is ours: what others granted was fair or not in their time.
    pub(super) fn measure_grant(&mut self, credit: &Credit) {
        if credit.term == self.term {
            let lane = self.pool(&credit.pool).lane(credit.priority);
            let tenant = self.tenant(&credit.tenant);
            let weight = self.weight(tenant);
            self.meter
                .served(self.now, lane, tenant.0, weight, credit.cost);
        }
    }

    /// Tells the meter that a credit is over and cost `more` than it was charged.
    pub(super) fn measure_end(&mut self, credit: &Credit, more: Cost) {
        if credit.term == self.term {
            let lane = self.pool(&credit.pool).lane(credit.priority);
            let tenant = self.tenant(&credit.tenant);
            self.meter.settled(self.now, lane, tenant.0, more);
        }
    }

    /// Forgets a lease that turned out not to be what we thought.
    pub(super) fn drop_lease(&mut self, seq: JobSeq) {
        if let Some(Lease {
            state: LeaseState::Held { credit, .. },
            ..
        }) = self.leases.remove(&seq)
        {
            self.refund(&credit, None);
        }
    }
}
