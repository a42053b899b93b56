//! What the leader knows, as metrics.

use fairlane_core as core;
use fairlane_core::breaker::Gate;
use fairlane_core::failure::Scope;
use fairlane_core::scheduler::PoolStatus;
use fairlane_runtime::metrics::{Breaker, Bucket, Leading, Priority};

use super::Leader;

/// Label of rate limits that somebody else with the same key caused. No tenant is named so.
const NOBODY: &str = "(nobody)";

impl Leader {
    pub(super) fn set_gauges(&mut self) {
        let now = self.shell.clock.now();
        self.shell.fairness.tell(&mut self.core, now);
        let metrics = self.shell.metrics.clone();
        let oldest = self.core.oldest();
        if let Some(first) = oldest.iter().flatten().min() {
            self.ages.forget_before(first.0);
        }
        let leading = metrics.leading();
        for (index, priority) in core::Priority::ALL.into_iter().enumerate() {
            let label = label(priority);
            let queued = i64::try_from(self.core.queued()[index]).unwrap_or(i64::MAX);
            metrics.queue_depth(label).set(queued);
            let age = oldest[index].map_or(0, |seq| self.ages.age(seq.0, now));
            leading.queue_oldest(label, age / 1_000);
            let reading = self.core.fairness(now).latest(priority);
            metrics.fairness(label, reading.index, reading.min_share, reading.gap_ratio);
        }
        metrics.credits_live(self.core.live() as u64);
        metrics.demoted_tenants(self.core.demoted() as u64);
        leading.term(self.core.term().0);
        for (scope, count) in self.core.pauses(now) {
            leading.pauses(scope_label(scope), count);
        }
        for pool in self.core.pools(now) {
            tell_pool(leading, &pool);
        }
    }

    /// Books a rate limit on whoever caused it.
    pub(super) fn throttled(&self, tenant: Option<&core::TenantId>) {
        let tenant = tenant.map_or(NOBODY, core::TenantId::as_str);
        self.shell.metrics.throttled(tenant);
    }
}

fn tell_pool(leading: &Leading, pool: &PoolStatus) {
    let name = pool.pool.as_str();
    for ((bucket, left), per_minute) in Bucket::ALL.into_iter().zip(pool.left).zip(pool.per_minute)
    {
        leading.limit_used(name, bucket, used(left, per_minute));
    }
    let state = match pool.gate {
        Gate::Closed => Breaker::Closed,
        Gate::HalfOpen | Gate::Probing => Breaker::HalfOpen,
        Gate::Open { .. } => Breaker::Open,
    };
    leading.breaker(name, state);
}

/// The part of a limit that is used up.
#[expect(clippy::cast_precision_loss, reason = "a ratio for showing")]
fn used(left: i64, per_minute: u64) -> f64 {
    1.0 - left as f64 / per_minute.max(1) as f64
}

fn label(priority: core::Priority) -> Priority {
    match priority {
        core::Priority::Critical => Priority::Critical,
        core::Priority::Standard => Priority::Standard,
        core::Priority::Batch => Priority::Batch,
    }
}

fn scope_label(scope: Scope) -> &'static str {
    match scope {
        Scope::Pool => "pool",
        Scope::Model => "model",
        Scope::Kind => "kind",
        Scope::Account => "account",
        Scope::Concurrency => "concurrency",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_used_in_part_in_full_and_beyond() {
        assert!((used(50, 50) - 0.0).abs() < 1e-9);
        assert!((used(10, 50) - 0.8).abs() < 1e-9);
        assert!((used(-25, 50) - 1.5).abs() < 1e-9);
    }
}
