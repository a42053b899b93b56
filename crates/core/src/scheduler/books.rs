//! Charging and refunding: pools, tenants and workers.

use super::picture::{Lease, LeaseState, PoolIx};
use super::{Credit, Scheduler};
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

    pub(super) fn weight(&self, tenant: &TenantId) -> Weight {
        self.config
            .weights
            .get(tenant)
            .copied()
            .unwrap_or(Weight::ONE)
    }

    /// Books a credit: pool, worker and tenant. The tenant's deficit was charged when it was served,
    /// unless somebody else served it.
    pub(super) fn charge(&mut self, credit: &Credit) {
        let pool = self.pool(&credit.pool);
        self.fleet.occupy(&credit.worker, self.now);
        let tenant = self.tenants.index(&credit.tenant);
        self.tenants.took_off(tenant);
        if credit.term == self.term {
            self.pools.limits(pool).reserve(credit.tokens);
        } else if !self.booked.grant(credit) {
            self.pools.limits(pool).reserve(credit.tokens);
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
        let tenant = self.tenants.index(&credit.tenant);
        self.tenants.landed(tenant);
        let cost = used.map_or(Cost(0), |used| Cost::of(used, self.config.cost_weights));
        let weight = self.weight(&credit.tenant);
        self.lanes
            .correct(pool, credit.priority, tenant, weight, cost - credit.cost);
        self.refresh_tenant(tenant);
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
