//! Why a job is not running, and until when; its place and when its turn should come.

use super::gates::Passage;
use super::lanes::Flow;
use super::picture::{LeaseState, Leaving};
use super::pools::PoolIx;
use super::{JobSeq, Scheduler, WorkerId};
use crate::Millis;
use crate::breaker::Gate;
use crate::demotion::Demotion;
use crate::drr::{FlowKey, Weight};
use crate::failure::Scope;
use crate::ids::{JobId, PoolId, TenantId};
use crate::job::Priority;

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
    /// It was in hand when so many workers died, and waits for a worker that has nothing else.
    Suspect { workers: u32 },
    /// Not all jobs of its priority are known yet: the leader has just begun.
    Learning,
    /// The upstream refuses what it would do; one call goes out then, to see.
    Refused { scope: Scope, until: Millis },
    /// The upstream asked its pool to wait.
    PoolPaused { until: Millis },
    /// Most calls to its pool fail; a probe goes out then.
    BreakerOpen { until: Millis },
    /// A probe is out to see whether its pool, or what was refused, is well again.
    Probing,
    /// As many of its tenant's jobs run as may at once.
    TenantAtCap { in_flight: u32, cap: u32 },
    /// Jobs of its own tenant, priority and pool stand before it.
    BehindOwn { ahead: usize },
    /// The upstream allows only so many calls at once.
    CallsLimited { max: u32 },
    /// It is the next of its tenant; others' turns come first, or its pool's limits are used up
    /// until then.
    PoolFull { until: Millis },
    /// No worker has a free slot.
    NoFreeSlot { workers: usize, slots: u32 },
    /// Nothing: it is granted in this moment.
    Now,
}

/// What a job waits for, and what its turn depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outlook {
    pub why: Why,
    /// How it is served, while it is in line.
    pub place: Option<Place>,
}

/// A place in line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub pool: PoolId,
    /// As it is served: standard work of a demoted tenant is served as batch.
    pub priority: Priority,
    /// Jobs of its own tenant that stand before it.
    pub ahead: usize,
    /// When its turn comes if all goes on as in the last minute; None if nothing was granted there.
    pub eta: Option<Millis>,
}

/// What a tenant waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantOutlook {
    pub weight: Weight,
    pub in_flight: u32,
    pub in_flight_max: u32,
    pub demotion: Option<Demotion>,
    /// Input tokens of today, those of calls under way among them.
    pub input_tokens_today: u64,
    pub daily_input_tokens: Option<u64>,
    /// Where it has jobs in line.
    pub flows: Vec<FlowOutlook>,
}

/// What a tenant waits for in one pool and priority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowOutlook {
    pub pool: PoolId,
    /// As it is served.
    pub priority: Priority,
    pub queued: usize,
    /// Its oldest job, and what that waits for.
    pub job: JobId,
    pub why: Why,
    pub eta: Option<Millis>,
}

impl Scheduler {
    /// What the job at `seq` waits for.
    pub fn why(&mut self, seq: JobSeq, now: Millis) -> Outlook {
        self.now = self.now.max(now);
        let (why, flow) = self.obstacle(seq);
        let place = flow.map(|flow| Place {
            pool: self.pools.name(flow.pool).clone(),
            priority: flow.priority,
            ahead: self.ahead(flow, seq),
            eta: self.eta(flow, seq),
        });
        Outlook { why, place }
    }

    /// What a tenant waits for; None if nothing of it was ever seen.
    pub fn why_tenant(&mut self, name: &TenantId, now: Millis) -> Option<TenantOutlook> {
        self.now = self.now.max(now);
        let tenant = self.tenants.find(name)?;
        let mut flows = Vec::new();
        for flow in self.lanes.flows_of(tenant) {
            let is_demoted = self.tenants.is_demoted(tenant);
            let Some(seq) = self.lanes.head(flow, is_demoted) else {
                continue;
            };
            flows.push(FlowOutlook {
                pool: self.pools.name(flow.pool).clone(),
                priority: flow.priority,
                queued: self.lanes.length(flow, is_demoted),
                job: self.jobs[&seq].job.clone(),
                why: self.obstacle_in(flow, seq),
                eta: self.eta(flow, seq),
            });
        }
        let policy = self.tenants.policy(tenant);
        let standing = self.tenants.standing(tenant);
        Some(TenantOutlook {
            weight: policy.weight,
            in_flight: self.tenants.in_flight(tenant),
            in_flight_max: policy.in_flight_max.max(1),
            demotion: standing.demotion(),
            input_tokens_today: standing.used_today(self.now),
            daily_input_tokens: policy.daily_input_tokens,
            flows,
        })
    }

    /// What is in a job's way, and the flow in which it stands if it is in line.
    fn obstacle(&mut self, seq: JobSeq) -> (Why, Option<Flow>) {
        let now = self.now;
        let Some(job) = self.jobs.get(&seq) else {
            return (Why::NotQueued, None);
        };
        if job.leaving != Leaving::No {
            return (Why::Leaving, None);
        }
        match self.leases.get(&seq).map(|lease| &lease.state) {
            Some(LeaseState::Held { credit, .. }) => {
                let why = Why::Running {
                    worker: credit.worker.clone(),
                    delivery: credit.delivery,
                    since: credit.granted_at,
                };
                return (why, None);
            }
            Some(&LeaseState::Parked { until, .. }) if until > now => {
                return (Why::Parked { until }, None);
            }
            Some(LeaseState::Parked { .. } | LeaseState::Over | LeaseState::Finished) | None => {}
        }
        if job.not_before > now {
            let until = job.not_before;
            return (Why::NotBefore { until }, None);
        }
        if let Some((why, flow)) = self.why_suspect(seq) {
            return (why, Some(flow));
        }
        let flow = self.flow_of_job(seq);
        (self.obstacle_in(flow, seq), Some(flow))
    }

    /// Where a job is served: in its own pool, or in the spare one while that is closed.
    pub(super) fn flow_of_job(&self, seq: JobSeq) -> Flow {
        let job = &self.jobs[&seq];
        let pool = match &job.spare {
            Some(spare)
                if self.lanes.is_diverted(job.own.pool) && !self.lanes.is_diverted(spare.pool) =>
            {
                spare.pool
            }
            Some(_) | None => job.own.pool,
        };
        Flow {
            pool,
            priority: self.tenants.served_as(job.tenant, job.priority),
            tenant: job.tenant,
        }
    }

    fn obstacle_in(&mut self, flow: Flow, seq: JobSeq) -> Why {
        let now = self.now;
        let Flow { pool, tenant, .. } = flow;
        if !self.complete[self.jobs[&seq].priority.index()] {
            return Why::Learning;
        }
        if let Some(why) = self.refusal(pool, seq) {
            return why;
        }
        match self.pools.breaker(pool).gate(now) {
            Gate::Open { until } => return Why::BreakerOpen { until },
            Gate::Probing => return Why::Probing,
            Gate::Closed | Gate::HalfOpen => {}
        }
        let until = self.pools.limits(pool).paused_until();
        if until > now {
            return Why::PoolPaused { until };
        }
        let cap = self.tenants.policy(tenant).in_flight_max.max(1);
        let in_flight = self.tenants.in_flight(tenant);
        if in_flight >= cap {
            return Why::TenantAtCap { in_flight, cap };
        }
        let ahead = self.ahead(flow, seq);
        if ahead > 0 {
            return Why::BehindOwn { ahead };
        }
        if let (Err(_), Some(max)) = (
            self.window.room(self.fleet.occupied(), now),
            self.window.max(now),
        ) {
            return Why::CallsLimited { max };
        }
        let tokens = self.jobs[&seq].run_in(pool).tokens;
        if let Err(Some(until)) = self.room(flow, tokens) {
            return Why::PoolFull { until };
        }
        let silence_max = self.config.worker_silence_max;
        if self.fleet.most_free(now, silence_max).is_none() {
            let (workers, slots) = self.fleet.size(now, silence_max);
            return Why::NoFreeSlot { workers, slots };
        }
        Why::Now
    }

    /// The first gate in a job's way.
    fn refusal(&self, pool: PoolIx, seq: JobSeq) -> Option<Why> {
        let scopes = [Scope::Account, Scope::Pool, Scope::Model, Scope::Kind];
        let gates = Self::gates_of(&self.jobs[&seq], pool);
        scopes.into_iter().zip(gates).find_map(|(scope, gate)| {
            match self.gates.passage(&gate, self.now) {
                Passage::Ajar if self.gates.holds(seq) == Some(&gate) => Some(Why::Probing),
                Passage::Free | Passage::Ajar => None,
                Passage::Shut(until) => Some(Why::Refused { scope, until }),
                Passage::Probing => Some(Why::Probing),
            }
        })
    }

    fn ahead(&self, flow: Flow, seq: JobSeq) -> usize {
        self.lanes
            .ahead(flow, self.tenants.is_demoted(flow.tenant), seq)
    }

    /// When a job's turn comes if its priority goes on being granted what it was in the last minute,
    /// and shares it by weight with those that wait now.
    fn eta(&mut self, flow: Flow, seq: JobSeq) -> Option<Millis> {
        let now = self.now;
        let per_minute = self
            .pools
            .granted_lately(flow.pool, flow.priority, now)
            .max(1);
        if per_minute == 1 {
            return None;
        }
        let cost = self.jobs[&seq].run_in(flow.pool).cost;
        let own = u128::try_from(cost.0).unwrap_or(0) * (self.ahead(flow, seq) as u128 + 1);
        let weight = u128::from(self.weight(flow.tenant).0.max(1));
        let ring = self.lanes.ring(flow.pool, flow.priority);
        let all = ring.weight_waiting(FlowKey(flow.tenant.0)) + weight;
        let wait = own * all / weight * 60_000 / u128::from(per_minute);
        Some(now.saturating_add(u64::try_from(wait).unwrap_or(u64::MAX)))
    }
}
