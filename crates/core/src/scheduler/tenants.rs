//! Tenants by number: what holds for them, what they have under way, and how they stand.

use std::collections::{BTreeMap, BTreeSet};

use super::Policy;
use crate::Millis;
use crate::demotion::{self, Standing};
use crate::ids::TenantId;
use crate::job::{Cost, Priority};
use crate::recent::Recent;

/// A tenant by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TenantIx(pub(super) u32);

#[derive(Debug)]
struct Tenant {
    name: TenantId,
    policy: Policy,
    in_flight: u32,
    standing: Standing,
    /// Cost granted in the last minute, in stretches of ten seconds: there may be many tenants.
    granted: Recent<6>,
}

/// All tenants that were ever seen in this term.
#[derive(Debug, Default)]
pub(super) struct Tenants {
    tenants: Vec<Tenant>,
    numbers: BTreeMap<TenantId, TenantIx>,
    /// Demoted tenants by the time at which that ends.
    demoted: BTreeSet<(Millis, TenantIx)>,
}

impl Tenants {
    /// The number of a tenant; of a new one, for whom `policy` holds.
    pub(super) fn index(&mut self, name: &TenantId, policy: impl FnOnce() -> Policy) -> TenantIx {
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        let number = TenantIx(u32::try_from(self.tenants.len()).expect("fewer than 2^32 tenants"));
        self.tenants.push(Tenant {
            name: name.clone(),
            policy: policy(),
            in_flight: 0,
            standing: Standing::default(),
            granted: Recent::new(10_000),
        });
        self.numbers.insert(name.clone(), number);
        number
    }

    pub(super) fn find(&self, name: &TenantId) -> Option<TenantIx> {
        self.numbers.get(name).copied()
    }

    fn get(&self, tenant: TenantIx) -> &Tenant {
        &self.tenants[tenant.0 as usize]
    }

    fn get_mut(&mut self, tenant: TenantIx) -> &mut Tenant {
        &mut self.tenants[tenant.0 as usize]
    }

    pub(super) fn name(&self, tenant: TenantIx) -> &TenantId {
        &self.get(tenant).name
    }

    pub(super) fn policy(&self, tenant: TenantIx) -> Policy {
        self.get(tenant).policy
    }

    pub(super) fn set_policy(&mut self, tenant: TenantIx, policy: Policy) {
        self.get_mut(tenant).policy = policy;
    }

    pub(super) fn is_at_cap(&self, tenant: TenantIx) -> bool {
        let tenant = self.get(tenant);
        tenant.in_flight >= tenant.policy.in_flight_max.max(1)
    }

    pub(super) fn in_flight(&self, tenant: TenantIx) -> u32 {
        self.get(tenant).in_flight
    }

    /// A call of so many input tokens begins.
    pub(super) fn took_off(&mut self, tenant: TenantIx, input: u64) {
        let tenant = self.get_mut(tenant);
        tenant.in_flight += 1;
        tenant.standing.reserve(input);
    }

    /// A call for which so many input tokens were reserved is over.
    pub(super) fn landed(&mut self, tenant: TenantIx, input: u64) {
        let tenant = self.get_mut(tenant);
        debug_assert!(tenant.in_flight > 0, "a job landed that never took off");
        tenant.in_flight = tenant.in_flight.saturating_sub(1);
        tenant.standing.release(input);
    }

    pub(super) fn standing(&self, tenant: TenantIx) -> &Standing {
        &self.get(tenant).standing
    }

    pub(super) fn is_demoted(&self, tenant: TenantIx) -> bool {
        self.standing(tenant).demotion().is_some()
    }

    /// The priority as which a tenant's work is served.
    pub(super) fn served_as(&self, tenant: TenantIx, priority: Priority) -> Priority {
        match priority {
            Priority::Standard if self.is_demoted(tenant) => Priority::Batch,
            Priority::Critical | Priority::Standard | Priority::Batch => priority,
        }
    }

    /// Changes how a tenant stands; its budget, and its place in the second of those that all
    /// tenants would share, are given along. Returns whether it is served otherwise from now on.
    pub(super) fn judge(
        &mut self,
        tenant: TenantIx,
        change: impl FnOnce(&mut Standing, Option<u64>, Millis),
    ) -> bool {
        let at = tenant;
        let tenant = &mut self.tenants[at.0 as usize];
        let before = tenant.standing.demotion();
        let (budget, phase) = (
            tenant.policy.daily_input_tokens,
            demotion::phase(tenant.name.as_str()),
        );
        change(&mut tenant.standing, budget, phase);
        let after = tenant.standing.demotion();
        if before != after {
            if let Some(before) = before {
                self.demoted.remove(&(before.until, at));
            }
            if let Some(after) = after {
                self.demoted.insert((after.until, at));
            }
        }
        before.is_some() != after.is_some()
    }

    /// All tenants that were seen, what holds for them, and how they stand.
    pub(super) fn all(&self) -> impl Iterator<Item = (&TenantId, Policy, &Standing)> {
        let tenants = self.tenants.iter();
        tenants.map(|tenant| (&tenant.name, tenant.policy, &tenant.standing))
    }

    /// The numbers of all tenants.
    pub(super) fn numbers(&self) -> impl Iterator<Item = TenantIx> + use<> {
        let tenants = u32::try_from(self.tenants.len()).expect("fewer than 2^32 tenants");
        (0..tenants).map(TenantIx)
    }

    /// A credit is granted to a tenant by this leader.
    pub(super) fn granted(&mut self, tenant: TenantIx, cost: Cost, now: Millis) {
        let amount = u64::try_from(cost.0).unwrap_or(0);
        self.get_mut(tenant).granted.add(amount, now);
    }

    /// Cost granted to a tenant in the last minute.
    pub(super) fn granted_lately(&self, tenant: TenantIx, now: Millis) -> Cost {
        Cost(i64::try_from(self.get(tenant).granted.total(now)).unwrap_or(i64::MAX))
    }

    /// Tenants that are demoted.
    pub(super) fn demoted(&self) -> impl Iterator<Item = TenantIx> {
        self.demoted.iter().map(|&(_, tenant)| tenant)
    }

    /// When the next demotion ends, and whose.
    pub(super) fn next_end(&self) -> Option<(Millis, TenantIx)> {
        self.demoted.first().copied()
    }
}
