//! How tenants stand: rate limits they cause, budgets, and what demotion changes.

use super::tenants::TenantIx;
use super::{Credit, Effect, Notice, Policy, PoolIx, Scheduler};
use crate::Millis;
use crate::demotion::Standing;
use crate::ids::TenantId;

impl Scheduler {
    pub(super) fn new_policy(&mut self, name: &TenantId, policy: Policy) {
        let tenant = self.tenant(name);
        self.tenants.set_policy(tenant, policy);
        let now = self.now;
        self.stand(tenant, |standing, _, _| {
            standing.by_hand(policy.demoted_until, now);
        });
        self.check_budget(tenant);
        self.refresh_flows(tenant);
    }

    /// The ledger shows what a call took.
    pub(super) fn spent(&mut self, name: &TenantId, day: u64, input_tokens: u64) {
        let tenant = self.tenant(name);
        self.stand(tenant, |standing, _, _| standing.spent(day, input_tokens));
        self.check_budget(tenant);
    }

    pub(super) fn check_budget(&mut self, tenant: TenantIx) {
        let (rules, now) = (self.config.demotion, self.now);
        self.stand(tenant, |standing, budget, phase| {
            standing.check_budget(rules, budget, phase, now);
        });
    }

    /// A call was turned away by a rate limit: whoever caused it is told so.
    pub(super) fn throttled(&mut self, pool: PoolIx, credit: &Credit) {
        let refused = self.tenant(&credit.tenant);
        let weight = |tenant| self.tenants.policy(tenant).weight;
        let culprit = self.pools.culprit(pool, refused, weight);
        self.effects.push(Effect::Notice(Notice::Throttled {
            pool: credit.pool.clone(),
            tenant: culprit.map(|tenant| self.tenants.name(tenant).clone()),
        }));
        if let Some(tenant) = culprit {
            let (rules, now) = (self.config.demotion, self.now);
            self.stand(tenant, |standing, _, phase| {
                standing.throttled(rules, phase, now);
            });
        }
    }

    /// Ends demotions whose time is over.
    pub(super) fn wake_demoted(&mut self) {
        let (rules, now) = (self.config.demotion, self.now);
        while let Some((at, tenant)) = self.tenants.next_end()
            && at <= now
        {
            self.stand(tenant, |standing, budget, phase| {
                standing.wake(rules, budget, phase, now);
            });
        }
    }

    /// Changes how a tenant stands, and what follows for its flows.
    pub(super) fn stand(
        &mut self,
        tenant: TenantIx,
        change: impl FnOnce(&mut Standing, Option<u64>, Millis),
    ) {
        if !self.tenants.judge(tenant, change) {
            return;
        }
        let name = self.tenants.name(tenant).clone();
        let notice = match self.tenants.standing(tenant).demotion() {
            Some(demotion) => Notice::Demoted {
                tenant: name,
                demotion,
            },
            None => Notice::Restored { tenant: name },
        };
        self.effects.push(Effect::Notice(notice));
        self.refresh_flows(tenant);
    }
}
