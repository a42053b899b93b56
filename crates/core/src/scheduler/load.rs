//! What there is to do and what the upstream takes of it, for [`crate::autoscale`].
//!
//! Only jobs in line count: not those that are parked, wait for a time, wait behind a gate, or are
//! more than their tenant may have in flight. A job that runs elsewhere while its pool is closed counts there.

use super::Scheduler;
use super::gates::{GateKey, Passage};
use super::lanes::QueueKey;
use super::picture::{Lease, LeaseState};
use super::pools::PoolIx;
use crate::Millis;
use crate::autoscale::{Health, Load, PoolLoad};
use crate::breaker::Gate;
use crate::ids::JobSeq;
use crate::job::Priority;

/// Critical work is expected for so long after there was some.
const CRITICAL_FOR: Millis = 600_000;

impl Scheduler {
    /// What is known now. None while not all jobs are: a part of them would look like little to do.
    pub fn load(&mut self, now: Millis) -> Option<Load> {
        self.now = self.now.max(now);
        let now = self.now;
        if self.complete != [true; 3] {
            return None;
        }
        let mut backlog = vec![[0; 3]; self.pools.all().count()];
        for (key, length) in self.lanes.queues() {
            let cap = self.tenants.policy(key.tenant).in_flight_max.max(1);
            let jobs = (length as u64).min(u64::from(cap));
            let priority = self.tenants.served_as(key.tenant, key.priority);
            backlog[self.served_in(key).0][priority.index()] += jobs;
        }
        let pools = self.pools.all().map(|pool| {
            let (slot_time, tokens) = self.pools.means(pool, now);
            let limits = self.pools.limits(pool);
            let (all, others) = (limits.per_minute(), limits.missing());
            PoolLoad {
                pool: self.pools.name(pool).clone(),
                arrivals: self.pools.arrivals(pool, now),
                backlog: backlog[pool.0],
                per_minute: std::array::from_fn(|at| all[at].saturating_sub(others[at])),
                tokens,
                slot_time,
                health: self.health(pool),
            }
        });
        let pools = pools.collect();
        let critical = self.critical_at;
        Some(Load {
            pools,
            in_flight: self.fleet.occupied() as u64,
            critical: critical.is_some_and(|at| now.saturating_sub(at) < CRITICAL_FOR),
        })
    }

    /// Counts a job that came while all before it were known, and may run.
    pub(super) fn count_arrival(&mut self, seq: JobSeq, priority: Priority) {
        if !self.complete[priority.index()] {
            return;
        }
        let Some(job) = self.jobs.get(&seq) else {
            return;
        };
        let is_held = matches!(
            self.leases.get(&seq),
            Some(Lease {
                state: LeaseState::Held { .. } | LeaseState::Parked { .. },
                ..
            })
        );
        if !is_held && job.not_before <= self.now {
            let pool = self.served_in(job.queue());
            self.pools.arrived(pool, self.now);
        }
    }

    /// Where the jobs of a queue run: in their own pool, or in the spare one while that is closed.
    fn served_in(&self, key: QueueKey) -> PoolIx {
        match key.spare {
            Some(spare) if self.lanes.is_diverted(key.pool) && !self.lanes.is_diverted(spare) => {
                spare
            }
            Some(_) | None => key.pool,
        }
    }

    fn health(&mut self, pool: PoolIx) -> Health {
        let now = self.now;
        let gates = [GateKey::Account, GateKey::Pool(pool)];
        let is_refused = |gate| self.gates.passage(gate, now) != Passage::Free;
        if gates.iter().any(is_refused) || self.pools.breaker(pool).gate(now) != Gate::Closed {
            Health::Breaker
        } else if self.pools.limits(pool).paused_until() > now {
            Health::Paused
        } else {
            Health::Well
        }
    }
}
