//! Who stands in line, and what each tenant would run next.

use super::Scheduler;
use super::picture::{Lease, LeaseState, PoolIx, TenantIx};
use crate::drr::{FlowKey, Head};
use crate::ids::JobSeq;
use crate::job::{Cost, Priority};

impl Scheduler {
    /// Puts a job where its state says: in line, to a timer, or nowhere while a lease holds it or
    /// it is being put aside.
    pub(super) fn line_up(&mut self, seq: JobSeq) {
        let Some(job) = self.jobs.get(&seq).filter(|job| !job.leaving) else {
            return;
        };
        let mut not_before = job.not_before;
        if let Some(lease) = self.leases.get(&seq) {
            match lease.state {
                LeaseState::Held { .. } | LeaseState::Finished => return,
                LeaseState::Parked { until, .. } => not_before = not_before.max(until),
                LeaseState::Over => {}
            }
        }
        if not_before > self.now {
            self.timers.insert((not_before, seq));
            return;
        }
        let (pool, priority, tenant) = (job.pool, job.priority, job.tenant);
        self.lanes.push(pool, priority, tenant, seq);
        self.refresh(pool, priority, tenant);
    }

    pub(super) fn out_of_line(&mut self, seq: JobSeq) {
        let Some(job) = self.jobs.get(&seq) else {
            return;
        };
        let (pool, priority, tenant) = (job.pool, job.priority, job.tenant);
        if self.lanes.remove(pool, priority, tenant, seq) {
            self.refresh(pool, priority, tenant);
        }
    }

    /// Tells the ring what a flow would run next.
    pub(super) fn refresh(&mut self, pool: PoolIx, priority: Priority, tenant: TenantIx) {
        let head = self.lanes.head(pool, priority, tenant);
        if let Some(seq) = head {
            self.estimate(seq);
        }
        let at_cap = self.tenants.is_at_cap(tenant);
        let weight = self.weight(tenant);
        let ring = self.lanes.ring(pool, priority);
        let flow = FlowKey(tenant.0);
        match head.and_then(|seq| self.jobs.get(&seq).map(|job| (seq, job))) {
            Some((seq, job)) if !at_cap => {
                let lane = pool.lane(priority);
                self.meter.waits(self.now, lane, tenant.0, weight);
                ring.wait(
                    flow,
                    weight,
                    Head {
                        cost: job.cost,
                        since: seq.0,
                    },
                );
            }
            _ => {
                self.meter.rests(self.now, pool.lane(priority), tenant.0);
                ring.rest(flow);
            }
        }
    }

    /// Sets aside for a job what such jobs were seen to take.
    pub(super) fn estimate(&mut self, seq: JobSeq) {
        if let Some(job) = self.jobs.get_mut(&seq)
            && let Some(output) = self.lengths.expect(job.profile)
        {
            job.tokens.output = output;
            job.cost = Cost::of(job.tokens, self.config.cost_weights);
        }
    }

    /// A tenant's number in flight changed: its flows may have to rest, or wait again.
    pub(super) fn refresh_tenant(&mut self, tenant: TenantIx) {
        let cap = self.tenants.policy(tenant).in_flight_max.max(1);
        let in_flight = self.tenants.in_flight(tenant);
        // Only crossing the cap changes anything.
        if in_flight + 1 < cap {
            return;
        }
        for (pool, priority) in self.lanes.flows_of(tenant) {
            self.refresh(pool, priority, tenant);
        }
    }

    pub(super) fn wake_timers(&mut self) {
        while let Some(&(at, seq)) = self.timers.first() {
            if at > self.now {
                break;
            }
            self.timers.pop_first();
            if let Some(lease) = self.leases.get_mut(&seq)
                && matches!(lease.state, LeaseState::Parked { until, .. } if until <= at)
            {
                lease.state = LeaseState::Over;
            }
            if matches!(
                self.leases.get(&seq),
                Some(Lease {
                    state: LeaseState::Over | LeaseState::Finished,
                    ..
                })
            ) && !self.jobs.contains_key(&seq)
            {
                self.leases.remove(&seq);
            }
            if self.jobs.get(&seq).is_some_and(|job| job.leaving) {
                self.put_aside_again(seq);
            } else {
                self.line_up(seq);
            }
        }
    }
}
