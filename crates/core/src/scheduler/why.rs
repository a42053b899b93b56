//! Why a job is not running, and until when.

use super::picture::LeaseState;
use super::{JobSeq, Scheduler, WorkerId};
use crate::Millis;
use crate::breaker::Gate;

/// What a job waits for. The first thing in its way is named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// It is not in the queue: its outcome is stored, or it is not a job.
    NotQueued,
    /// A worker has it.
    Running {
        worker: WorkerId,
        delivery: u32,
        since: Millis,
    },
    /// It failed in passing and runs again then.
    Parked { until: Millis },
    /// Its owner does not want it to run earlier.
    NotBefore { until: Millis },
    /// It is on its way to the dead letters.
    Leaving,
    /// The upstream asked its pool to wait.
    PoolPaused { until: Millis },
    /// Most calls to its pool fail; a probe goes out then.
    BreakerOpen { until: Millis },
    /// A probe is out to see whether its pool is well again.
    Probing,
    /// As many of its tenant's jobs run as may at once.
    TenantAtCap { in_flight: u32, cap: u32 },
    /// Jobs of its own tenant, priority and pool stand before it.
    BehindOwn { ahead: usize },
    /// It is the next of its tenant; others' turns come first, or its pool's limits are used up
    /// until then.
    PoolFull { until: Millis },
    /// No worker has a free slot.
    NoFreeSlot { workers: usize, slots: u32 },
    /// Nothing: it is granted in this moment.
    Now,
}

impl Scheduler {
    /// What the job at `seq` waits for.
    pub fn why(&mut self, seq: JobSeq, now: Millis) -> Why {
        self.now = self.now.max(now);
        let now = self.now;
        let Some(job) = self.jobs.get(&seq) else {
            return Why::NotQueued;
        };
        if job.leaving {
            return Why::Leaving;
        }
        match self.leases.get(&seq).map(|lease| &lease.state) {
            Some(LeaseState::Held { credit, .. }) => {
                return Why::Running {
                    worker: credit.worker.clone(),
                    delivery: credit.delivery,
                    since: credit.granted_at,
                };
            }
            Some(&LeaseState::Parked { until, .. }) if until > now => return Why::Parked { until },
            Some(LeaseState::Parked { .. } | LeaseState::Over | LeaseState::Finished) | None => {}
        }
        if job.not_before > now {
            return Why::NotBefore {
                until: job.not_before,
            };
        }
        let (pool, priority, tenant, tokens) = (job.pool, job.priority, job.tenant, job.tokens);
        match self.pools.breaker(pool).gate(now) {
            Gate::Open { until } => return Why::BreakerOpen { until },
            Gate::Probing => return Why::Probing,
            Gate::Closed | Gate::HalfOpen => {}
        }
        let paused_until = self.pools.limits(pool).paused_until();
        if paused_until > now {
            return Why::PoolPaused {
                until: paused_until,
            };
        }
        let cap = self.tenants.policy(tenant).in_flight_max.max(1);
        let in_flight = self.tenants.in_flight(tenant);
        if in_flight >= cap {
            return Why::TenantAtCap { in_flight, cap };
        }
        let ahead = self.lanes.ahead(pool, priority, tenant, seq);
        if ahead > 0 {
            return Why::BehindOwn { ahead };
        }
        if let Err(until) = self.pools.limits(pool).room(tokens, [0; 3], now) {
            return Why::PoolFull { until };
        }
        if self
            .fleet
            .most_free(now, self.config.worker_silence_max)
            .is_none()
        {
            let (workers, slots) = self.fleet.size(now, self.config.worker_silence_max);
            return Why::NoFreeSlot { workers, slots };
        }
        Why::Now
    }
}
