//! Pools by number: limits, breaker, what runs in them, and what critical work takes.

use std::collections::BTreeMap;

use super::tenants::TenantIx;
use crate::Millis;
use crate::autoscale::Mean;
use crate::breaker::{self, Breaker, Gate};
use crate::drr::Weight;
use crate::fairness::Lane;
use crate::ids::{JobSeq, PoolId};
use crate::job::{Cost, Priority, Tokens};
use crate::limiter::{Limits, PoolLimits};
use crate::pace::Pace;
use crate::recent::Recent;

/// A pool by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PoolIx(pub(super) usize);

impl PoolIx {
    /// Where the flows of this pool and priority are measured.
    pub(super) fn lane(self, priority: Priority) -> Lane {
        let pool = u32::try_from(self.0).expect("a handful of pools");
        Lane { pool, priority }
    }

    pub(super) fn of_lane(lane: Lane) -> Self {
        Self(lane.pool as usize)
    }
}

/// Room is kept for critical work for so long after there was some.
const RESERVE_FOR: Millis = 600_000;

/// The part of a limit that is kept for critical work, at most.
const RESERVE_PART: u64 = 10;

#[derive(Debug, Default)]
pub(super) struct Pools {
    pools: Vec<Pool>,
    turns: u64,
}

#[derive(Debug)]
struct Pool {
    name: PoolId,
    limits: PoolLimits,
    pace: Pace,
    breaker: Breaker,
    /// The job that is out as the breaker's probe.
    probe: Option<JobSeq>,
    /// Number of the turn in which it was served last.
    last_turn: u64,
    /// Cost of what each tenant has on the wire.
    wire: BTreeMap<TenantIx, Cost>,
    critical: Option<Critical>,
    /// Cost granted in the last minute, by priority.
    granted: [Recent<60>; 3],
    /// Jobs that came and may run here.
    arrivals: Recent<60>,
    /// What is set aside for a job.
    input: Mean,
    output: Mean,
    /// How long a job keeps its slot.
    slot_time: Mean,
}

/// What a critical job takes.
#[derive(Debug, Clone, Copy)]
struct Critical {
    tokens: Tokens,
    at: Millis,
}

impl Pools {
    pub(super) fn index(
        &mut self,
        name: &PoolId,
        limits: Limits,
        breaker: breaker::Rules,
        now: Millis,
    ) -> PoolIx {
        // A fleet uses a handful of pools.
        if let Some(at) = self.find(name) {
            return at;
        }
        self.pools.push(Pool {
            name: name.clone(),
            limits: PoolLimits::new(limits, now),
            pace: Pace::new(),
            breaker: Breaker::new(breaker),
            probe: None,
            last_turn: 0,
            wire: BTreeMap::new(),
            critical: None,
            granted: std::array::from_fn(|_| Recent::new(1_000)),
            arrivals: Recent::new(1_000),
            input: Mean::default(),
            output: Mean::default(),
            slot_time: Mean::default(),
        });
        PoolIx(self.pools.len() - 1)
    }

    pub(super) fn find(&self, name: &PoolId) -> Option<PoolIx> {
        let at = self.pools.iter().position(|pool| pool.name == *name)?;
        Some(PoolIx(at))
    }

    pub(super) fn name(&self, pool: PoolIx) -> &PoolId {
        &self.pools[pool.0].name
    }

    pub(super) fn limits(&mut self, pool: PoolIx) -> &mut PoolLimits {
        &mut self.pools[pool.0].limits
    }

    pub(super) fn restore_limits(&mut self, pool: PoolIx, limits: PoolLimits) {
        self.pools[pool.0].limits = limits;
    }

    pub(super) fn breaker(&mut self, pool: PoolIx) -> &mut Breaker {
        &mut self.pools[pool.0].breaker
    }

    /// Smaller: served longer ago.
    pub(super) fn last_turn(&self, pool: PoolIx) -> u64 {
        self.pools[pool.0].last_turn
    }

    pub(super) fn took_turn(&mut self, pool: PoolIx) {
        self.turns += 1;
        self.pools[pool.0].last_turn = self.turns;
    }

    pub(super) fn probe(&self, pool: PoolIx) -> Option<JobSeq> {
        self.pools[pool.0].probe
    }

    pub(super) fn set_probe(&mut self, pool: PoolIx, probe: Option<JobSeq>) {
        self.pools[pool.0].probe = probe;
    }

    /// Whether a call of `tokens` may start now; it is paced and leaves room for critical work if it has
    /// to. Otherwise when to ask again, or None if only an event can change it.
    pub(super) fn admits(
        &mut self,
        pool: PoolIx,
        tokens: Tokens,
        keeps_reserve: bool,
        now: Millis,
    ) -> Result<(), Option<Millis>> {
        let spare = if keeps_reserve {
            self.reserve(pool, now)
        } else {
            [0; 3]
        };
        let pool = &mut self.pools[pool.0];
        let [requests, ..] = pool.limits.per_minute();
        match pool.breaker.gate(now) {
            Gate::Closed | Gate::HalfOpen => {
                pool.limits.room(tokens, spare, now).map_err(Some)?;
                if keeps_reserve {
                    pool.pace.ready(requests, now).map_err(Some)?;
                }
                Ok(())
            }
            Gate::Open { until } => Err(Some(until)),
            Gate::Probing => Err(None),
        }
    }

    /// Requests, input and output tokens that other work has to leave for a critical job.
    fn reserve(&self, pool: PoolIx, now: Millis) -> [u64; 3] {
        let pool = &self.pools[pool.0];
        let Some(Critical { tokens, .. }) = pool
            .critical
            .filter(|critical| now.saturating_sub(critical.at) < RESERVE_FOR)
        else {
            return [0; 3];
        };
        let [_, input, output] = pool.limits.per_minute();
        [
            1,
            tokens.input.min(input / RESERVE_PART),
            tokens.output.min(output / RESERVE_PART),
        ]
    }

    /// A credit is granted here by this leader.
    pub(super) fn granted(
        &mut self,
        pool: PoolIx,
        priority: Priority,
        tokens: Tokens,
        cost: Cost,
        now: Millis,
    ) {
        let pool = &mut self.pools[pool.0];
        let [requests, ..] = pool.limits.per_minute();
        pool.pace.started(requests, now);
        let amount = u64::try_from(cost.0).unwrap_or(0);
        pool.granted[priority.index()].add(amount, now);
        pool.input.add(tokens.input, now);
        pool.output.add(tokens.output, now);
        if priority == Priority::Critical {
            // The largest of late; what was larger long ago fades.
            let before = pool.critical.map_or(Tokens::default(), |last| last.tokens);
            let fading = |value: u64| value - value / 8;
            pool.critical = Some(Critical {
                tokens: Tokens {
                    input: tokens.input.max(fading(before.input)),
                    output: tokens.output.max(fading(before.output)),
                },
                at: now,
            });
        }
    }

    /// Cost granted to a priority in the last minute.
    pub(super) fn granted_lately(&self, pool: PoolIx, priority: Priority, now: Millis) -> u64 {
        self.pools[pool.0].granted[priority.index()].total(now)
    }

    /// A job came that may run here.
    pub(super) fn arrived(&mut self, pool: PoolIx, now: Millis) {
        self.pools[pool.0].arrivals.add(1, now);
    }

    /// Jobs that came in the last minute.
    pub(super) fn arrivals(&self, pool: PoolIx, now: Millis) -> u64 {
        self.pools[pool.0].arrivals.total(now)
    }

    /// A job kept its slot for so long.
    pub(super) fn kept_slot(&mut self, pool: PoolIx, time: Millis, now: Millis) {
        self.pools[pool.0].slot_time.add(time, now);
    }

    /// How long a job keeps its slot, and the tokens that are set aside for it; None before the first.
    pub(super) fn means(&self, pool: PoolIx, now: Millis) -> (Option<Millis>, Option<Tokens>) {
        let pool = &self.pools[pool.0];
        let tokens = pool.input.at(now).zip(pool.output.at(now));
        let tokens = tokens.map(|(input, output)| Tokens { input, output });
        (pool.slot_time.at(now), tokens)
    }

    /// A call begins.
    pub(super) fn took_off(&mut self, pool: PoolIx, tenant: TenantIx, cost: Cost) {
        let sum = self.pools[pool.0].wire.entry(tenant).or_insert(Cost(0));
        sum.0 = sum.0.saturating_add(cost.0);
    }

    /// A call is over.
    pub(super) fn landed(&mut self, pool: PoolIx, tenant: TenantIx, cost: Cost) {
        let wire = &mut self.pools[pool.0].wire;
        if let Some(sum) = wire.get_mut(&tenant) {
            sum.0 = sum.0.saturating_sub(cost.0);
            if sum.0 <= 0 {
                wire.remove(&tenant);
            }
        }
    }

    /// Cost of what a tenant has on the wire.
    #[cfg(test)]
    pub(super) fn on_wire(&self, pool: PoolIx, tenant: TenantIx) -> Cost {
        let cost = self.pools[pool.0].wire.get(&tenant);
        cost.copied().unwrap_or_default()
    }

    /// Who caused a rate limit that turned away a call of `refused`: whoever has most on the wire for
    /// its weight, if that is at least twice of what `refused` has; otherwise `refused` itself. Nobody
    /// of ours if somebody else uses the same key.
    pub(super) fn culprit(
        &self,
        pool: PoolIx,
        refused: TenantIx,
        weight: impl Fn(TenantIx) -> Weight,
    ) -> Option<TenantIx> {
        let pool = &self.pools[pool.0];
        let [requests, ..] = pool.limits.missing();
        let [limit, ..] = pool.limits.per_minute();
        if requests * 10 > limit {
            return None;
        }
        let load = |tenant: TenantIx| {
            let cost = pool.wire.get(&tenant).map_or(0, |cost| cost.0);
            i128::from(cost) * 1_000 / i128::from(weight(tenant).0.max(1))
        };
        let heaviest = pool
            .wire
            .keys()
            .copied()
            .max_by_key(|&tenant| load(tenant))?;
        let is_clear = load(heaviest) >= 2 * load(refused);
        Some(if is_clear { heaviest } else { refused })
    }

    pub(super) fn all(&self) -> impl Iterator<Item = PoolIx> + use<> {
        (0..self.pools.len()).map(PoolIx)
    }
}
