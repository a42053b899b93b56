//! What the leader knows, as metrics.

use fairlane_core as core;
use fairlane_core::breaker::Gate;
use fairlane_core::failure::Scope;
use fairlane_core::hour::Reading;
use fairlane_core::scheduler::PoolStatus;
use fairlane_runtime::metrics::{Breaker, Bucket, Fairness, LastHour, Leading, Priority};

use super::Leader;
use crate::letters::Count;

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
            let queued = self.core.queued()[index] as u64;
            let age = oldest[index].map_or(0, |seq| self.ages.age(seq.0, now));
            leading.queue(label, queued, age / 1_000);
            let meter = self.core.fairness(now);
            let (reading, starved) = (meter.latest(priority), meter.starved(priority));
            let fairness = Fairness {
                index: reading.index,
                min_share: reading.min_share,
                gap_ratio: reading.gap_ratio,
                starved,
            };
            leading.fairness(label, fairness);
        }
        let hour = self.hour.reading(now);
        leading.last_hour(last_hour(hour, self.shell.letters.count()));
        leading.credits_live(self.core.live() as u64);
        leading.demoted_tenants(self.core.demoted() as u64);
        leading.term(self.core.term().0);
        let (workers, slots) = self.core.workers();
        leading.workers(workers as u64, u64::from(slots));
        let budgets = self.core.budgets();
        leading.budgets(budgets.map(|(tenant, part)| (tenant.as_str(), part)));
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
        self.shell.metrics.leading().throttled(tenant);
    }
}

fn tell_pool(leading: &Leading, pool: &PoolStatus) {
    let name = pool.pool.as_str();
    for ((&bucket, left), per_minute) in Bucket::ALL.iter().zip(pool.left).zip(pool.per_minute) {
        leading.limit(name, bucket, per_minute, used(left, per_minute));
    }
    let state = match pool.gate {
        Gate::Closed => Breaker::Closed,
        Gate::HalfOpen | Gate::Probing => Breaker::HalfOpen,
        Gate::Open { .. } => Breaker::Open,
    };
    leading.breaker(name, state);
}

/// What is promised to people, in numbers; rates of nothing are 0.
#[expect(clippy::cast_precision_loss, reason = "ratios for showing")]
fn last_hour(hour: Reading, letters: Count) -> LastHour {
    let ended = (hour.answered + letters.all).max(1);
    let seconds = |ms: Option<core::Millis>| ms.unwrap_or(0) as f64 / 1_000.0;
    LastHour {
        overloaded: hour.overloaded.unwrap_or(0.0),
        exposed: letters.exposed as f64 / ended as f64,
        by_fallback: hour.by_fallback.unwrap_or(0.0),
        dwell_p95: hour.dwell_p95.map(seconds),
    }
}

/// Cost units, as they are shown.
#[expect(clippy::cast_precision_loss, reason = "for showing")]
pub(super) fn units(cost: core::Cost) -> f64 {
    cost.0 as f64 / core::Cost::UNIT.0 as f64
}

/// The part of a limit that is used up.
#[expect(clippy::cast_precision_loss, reason = "a ratio for showing")]
fn used(left: i64, per_minute: u64) -> f64 {
    1.0 - left as f64 / per_minute.max(1) as f64
}

pub(super) fn label(priority: core::Priority) -> Priority {
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
