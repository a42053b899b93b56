//! What was recorded: jobs, refusals, and what else was spent.

use std::collections::{BTreeMap, BTreeSet};

use fairlane_core::{Cost, CostWeights, Kind, Millis, ModelId, PoolId, Priority, TenantId, Tokens};

/// A job as it was recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// From when on it could run.
    pub ready: Millis,
    pub tenant: TenantId,
    /// Its own, however it was served.
    pub priority: Priority,
    pub kind: Kind,
    pub model: ModelId,
    pub pool: PoolId,
    pub estimate: Tokens,
    /// What it took from the upstream's limits.
    pub used: Tokens,
    /// The whole prompt, from the cache or not: what counts against a budget.
    pub prompt: u64,
    /// How long its call took.
    pub service: Millis,
    /// How long it waited when it was recorded.
    pub waited: Millis,
}

/// A time in which a pool's calls were turned away by a rate limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Squall {
    pub pool: PoolId,
    pub from: Millis,
    pub to: Millis,
}

/// Input tokens of calls that are not replayed, so that budgets are right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spent {
    pub at: Millis,
    pub tenant: TenantId,
    pub input_tokens: u64,
}

/// What is replayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Month {
    /// In the order in which they became ready.
    pub(crate) jobs: Vec<Job>,
    /// In the order in which they began; those of one pool do not overlap.
    pub(crate) squalls: Vec<Squall>,
    /// In order.
    pub(crate) beside: Vec<Spent>,
    /// Calls that can run at once.
    pub(crate) slots: u32,
    /// Tenants that took more than twice an even share.
    noisy: BTreeSet<TenantId>,
}

impl Month {
    /// Puts in order what was recorded.
    #[must_use]
    pub fn new(mut jobs: Vec<Job>, squalls: Vec<Squall>, beside: Vec<Spent>, slots: u32) -> Self {
        jobs.sort_by_key(|job| job.ready);
        let mut beside = beside;
        beside.sort_by_key(|spent| spent.at);
        Self {
            noisy: noisy(&jobs),
            squalls: joined(squalls),
            jobs,
            beside,
            slots: slots.max(1),
        }
    }

    /// The jobs, in the order in which they became ready.
    #[must_use]
    pub fn jobs(&self) -> &[Job] {
        &self.jobs
    }

    /// Tenants that took more than twice an even share of the cost.
    #[must_use]
    pub fn noisy(&self) -> &BTreeSet<TenantId> {
        &self.noisy
    }

    pub(crate) fn is_quiet(&self, tenant: &TenantId) -> bool {
        !self.noisy.contains(tenant)
    }

    /// What each tenant's jobs cost in all, with the dearest first.
    pub(crate) fn costs(&self) -> Vec<(TenantId, Cost)> {
        let mut costs: Vec<_> = by_tenant(&self.jobs).into_iter().collect();
        costs.sort_by_key(|(_, cost)| std::cmp::Reverse(*cost));
        costs
    }
}

fn by_tenant(jobs: &[Job]) -> BTreeMap<TenantId, Cost> {
    let mut costs: BTreeMap<TenantId, Cost> = BTreeMap::new();
    for job in jobs {
        let cost = Cost::of(job.used, CostWeights::default());
        if let Some(sum) = costs.get_mut(&job.tenant) {
            sum.0 = sum.0.saturating_add(cost.0);
        } else {
            costs.insert(job.tenant.clone(), cost);
        }
    }
    costs
}

fn noisy(jobs: &[Job]) -> BTreeSet<TenantId> {
    let costs = by_tenant(jobs);
    let all: i128 = costs.values().map(|cost| i128::from(cost.0)).sum();
    let tenants = costs.len() as i128;
    costs
        .into_iter()
        .filter(|(_, cost)| i128::from(cost.0) * tenants > 2 * all)
        .map(|(tenant, _)| tenant)
        .collect()
}

/// Refusals of one pool that overlap are one.
fn joined(squalls: Vec<Squall>) -> Vec<Squall> {
    let mut by_pool: BTreeMap<PoolId, Vec<Squall>> = BTreeMap::new();
    for squall in squalls {
        by_pool.entry(squall.pool.clone()).or_default().push(squall);
    }
    let mut all = Vec::new();
    for mut squalls in by_pool.into_values() {
        squalls.sort_by_key(|squall| squall.from);
        let mut one: Option<Squall> = None;
        for next in squalls {
            match &mut one {
                Some(last) if next.from <= last.to => last.to = last.to.max(next.to),
                Some(last) => all.push(std::mem::replace(last, next)),
                None => one = Some(next),
            }
        }
        all.extend(one);
    }
    all.sort_by_key(|squall| squall.from);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_that_overlap_are_one_and_pools_are_kept_apart() {
        let squall = |pool: &str, from, to| Squall {
            pool: PoolId::parse(pool).unwrap(),
            from,
            to,
        };
        let joined = joined(vec![
            squall("a", 50, 60),
            squall("a", 0, 10),
            squall("b", 5, 15),
            squall("a", 10, 20),
        ]);
        let expected = [squall("a", 0, 20), squall("b", 5, 15), squall("a", 50, 60)];
        assert_eq!(joined, expected);
    }
}
