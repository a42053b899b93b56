//! Charging and refunding: pools, tenants and workers.

use super::gates::Finding;
use super::lanes::Flow;
use super::picture::{Lease, LeaseState};
use super::pools::PoolIx;
use super::tenants::TenantIx;
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

    /// Books a credit: pool, worker and tenant. The tenant's deficit was charged when it was served,
    /// unless somebody else served it.
    pub(super) fn charge(&mut self, credit: &Credit) {
        let pool = self.pool(&credit.pool);
        self.fleet.occupy(&credit.worker, self.now);
        let tenant = self.tenant(&credit.tenant);
        self.tenants.took_off(tenant, credit.tokens.input);
        self.pools.took_off(pool, tenant, credit.cost);
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
        self.pools.limits(pool).settle(credit.tokens, used);
        let tenant = self.land(credit);
        let cost = used.map_or(Cost(0), |used| Cost::of(used, self.config.cost_weights));
        let weight = self.weight(tenant);
        self.lanes
            .correct(flow_of(pool, tenant, credit), weight, cost - credit.cost);
        self.measure_end(credit, cost - credit.cost);
        self.refresh_tenant(tenant);
    }

    /// Takes back a credit for which nothing was called, and of which nothing was heard.
    pub(super) fn take_back(&mut self, credit: &Credit) {
        let pool = self.pool(&credit.pool);
        if self.pools.probe(pool) == Some(credit.seq) {
            self.judge(pool, credit, None);
        }
        self.refund(credit, None);
        self.probed(credit.seq, Finding::Nothing);
    }

    /// A credit is over: its slot is free, and its call is not on the wire any more.
    pub(super) fn land(&mut self, credit: &Credit) -> TenantIx {
        let (pool, tenant) = (self.pool(&credit.pool), self.tenant(&credit.tenant));
        self.fleet.free(&credit.worker);
        self.tenants.landed(tenant, credit.tokens.input);
        self.pools.landed(pool, tenant, credit.cost);
        tenant
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
            self.take_back(&credit);
        }
    }
}

/// The flow in which a credit was granted.
pub(super) fn flow_of(pool: PoolIx, tenant: TenantIx, credit: &Credit) -> Flow {
    Flow {
        pool,
        priority: credit.priority,
        tenant,
    }
}
