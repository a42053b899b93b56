//! Who stands in line, and what each tenant would run next.

use super::gates::{Finding, GateKey};
use super::lanes::{Flow, QueueKey};
use super::picture::{Job, Lease, LeaseState, Leaving};
use super::pools::PoolIx;
use super::tenants::TenantIx;
use super::{PutAside, Scheduler};
use crate::breaker::Gate;
use crate::drr::{FlowKey, Head};
use crate::ids::JobSeq;
use crate::job::{Cost, Priority};

impl Scheduler {
    /// Puts a job where its state says: in line, to a timer, out of the stream, or nowhere while a
    /// lease holds it or it is being put aside.
    pub(super) fn line_up(&mut self, seq: JobSeq) {
        let Some(job) = self.jobs.get(&seq).filter(|job| job.leaving == Leaving::No) else {
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
        if job.called_off {
            self.put_aside_now(seq, PutAside::CalledOff);
            return;
        }
        if job.is_late(self.now) {
            self.put_aside_now(seq, PutAside::DeadlinePassed);
            return;
        }
        if not_before > self.now {
            self.timers.insert((not_before, seq));
            return;
        }
        if self.gates.holds(seq).is_some() {
            return;
        }
        if self.is_suspect(job) && job.lost < self.config.max_deliver {
            self.suspects.insert(seq);
            return;
        }
        let queue = job.queue();
        if queue.priority == Priority::Critical {
            self.critical_at = Some(self.now);
        }
        self.lanes.push(queue, seq);
        self.refresh_queue(queue);
    }

    pub(super) fn out_of_line(&mut self, seq: JobSeq) {
        self.gates.forget(seq);
        self.suspects.remove(&seq);
        let Some(queue) = self.jobs.get(&seq).map(Job::queue) else {
            return;
        };
        if self.lanes.remove(queue, seq) {
            self.refresh_queue(queue);
        }
    }

    /// A job is gone from the stream, and with it what it waited for: a deadline may be weeks away.
    pub(super) fn forget_job(&mut self, seq: JobSeq) -> Option<Job> {
        self.out_of_line(seq);
        let job = self.jobs.remove(&seq)?;
        self.lost.remove(&seq);
        let parked = match self.leases.get(&seq).map(|lease| &lease.state) {
            Some(&LeaseState::Parked { until, .. }) => Some(until),
            Some(LeaseState::Held { .. } | LeaseState::Over | LeaseState::Finished) | None => None,
        };
        let times = [job.deadline, Some(job.not_before), parked];
        for at in times.into_iter().flatten() {
            self.timers.remove(&(at, seq));
        }
        Some(job)
    }

    /// Tells the rings in which the jobs of a queue may take turns.
    pub(super) fn refresh_queue(&mut self, queue: QueueKey) {
        let priority = self.tenants.served_as(queue.tenant, queue.priority);
        let flow = |pool| Flow {
            pool,
            priority,
            tenant: queue.tenant,
        };
        self.refresh(flow(queue.pool));
        if let Some(spare) = queue.spare
            && self.lanes.is_diverted(queue.pool)
        {
            self.refresh(flow(spare));
        }
    }

    /// Tells all rings what a tenant would run next.
    pub(super) fn refresh_flows(&mut self, tenant: TenantIx) {
        for flow in self.lanes.flows_of(tenant) {
            self.refresh(flow);
        }
    }

    /// Tells the ring what a flow would run next.
    pub(super) fn refresh(&mut self, flow: Flow) {
        let Flow {
            pool,
            priority,
            tenant,
        } = flow;
        let head = self.head(flow);
        let at_cap = self.tenants.is_at_cap(tenant);
        let weight = self.weight(tenant);
        let ring = self.lanes.ring(pool, priority);
        let key = FlowKey(tenant.0);
        match head.and_then(|seq| self.jobs.get(&seq).map(|job| (seq, job))) {
            Some((seq, job)) if !at_cap => {
                let lane = pool.lane(priority);
                self.meter.waits(self.now, lane, tenant.0, weight);
                let cost = job.run_in(pool).cost;
                ring.wait(key, weight, Head { cost, since: seq.0 });
            }
            _ => {
                self.meter.rests(self.now, pool.lane(priority), tenant.0);
                ring.rest(key);
            }
        }
    }

    /// The oldest job of a flow, with what is to be set aside for it.
    pub(super) fn head(&mut self, flow: Flow) -> Option<JobSeq> {
        let is_demoted = self.tenants.is_demoted(flow.tenant);
        let seq = self.lanes.head(flow, is_demoted)?;
        if let Some(job) = self.jobs.get_mut(&seq) {
            let run = job.run_in_mut(flow.pool);
            if let Some(tokens) = self.learned.expect(run.profile, run.estimate) {
                run.tokens = tokens;
                run.cost = Cost::of(tokens, self.config.cost_weights);
            }
        }
        Some(seq)
    }

    /// A tenant's number in flight changed: its flows may have to rest, or wait again.
    pub(super) fn refresh_tenant(&mut self, tenant: TenantIx) {
        let cap = self.tenants.policy(tenant).in_flight_max.max(1);
        let in_flight = self.tenants.in_flight(tenant);
        // Only crossing the cap changes anything.
        if in_flight + 1 < cap {
            return;
        }
        self.refresh_flows(tenant);
    }

    /// A pool's breaker may have opened or closed: jobs that may run elsewhere do so while it is open.
    pub(super) fn divert(&mut self, pool: PoolIx) {
        let is_closed = self.pools.breaker(pool).gate(self.now) != Gate::Closed;
        if self.lanes.divert(pool, is_closed) {
            for queue in self.lanes.diverted_queues(pool) {
                let priority = self.tenants.served_as(queue.tenant, queue.priority);
                let pool = queue.spare.unwrap_or(queue.pool);
                self.refresh(Flow {
                    pool,
                    priority,
                    tenant: queue.tenant,
                });
            }
        }
    }

    /// The gates that a job meets on its way upstream in `pool`.
    pub(super) fn gates_of(job: &Job, pool: PoolIx) -> [GateKey; 4] {
        let model = &job.run_in(pool).model;
        [
            GateKey::Account,
            GateKey::Pool(pool),
            GateKey::Model(model.clone()),
            GateKey::Kind(job.tenant, job.kind.clone(), model.clone()),
        ]
    }

    /// A delivery is over: what waited for it as a probe need not wait any more.
    pub(super) fn probed(&mut self, seq: JobSeq, finding: Finding) {
        for seq in self.gates.landed(seq, finding, self.now) {
            self.line_up(seq);
        }
    }

    pub(super) fn wake_gates(&mut self) {
        for seq in self.gates.candidates(self.now) {
            self.line_up(seq);
        }
    }

    pub(super) fn wake_timers(&mut self) {
        while let Some(&(at, seq)) = self.timers.first() {
            if at > self.now {
                break;
            }
            self.timers.pop_first();
            if let Some(lease) = self.leases.get_mut(&seq)
                && let LeaseState::Parked { until, asks, .. } = lease.state
                && until <= at
            {
                lease.state = LeaseState::Over;
                // Nobody has answered, or we have not heard of it.
                if asks && let Some(job) = self.jobs.get_mut(&seq) {
                    job.called_off = true;
                }
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
            match self.jobs.get(&seq).map(|job| job.leaving) {
                Some(Leaving::Again) => self.put_aside_again(seq),
                Some(Leaving::No | Leaving::Asked) | None => self.line_up(seq),
            }
        }
    }
}
