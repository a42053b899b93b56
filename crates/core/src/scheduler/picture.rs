//! What the scheduler knows: tenants, pools, jobs, leases, lanes and workers.

use std::collections::{BTreeMap, BTreeSet};

use super::{Credit, Policy};
use crate::Millis;
use crate::breaker::{self, Breaker, Gate};
use crate::drr::{Drr, FlowKey, Head, Weight};
use crate::fairness::Lane;
use crate::ids::{JobId, JobSeq, ModelId, PoolId, TenantId, WorkerId};
use crate::job::{Cost, Priority, Tokens};
use crate::learn::Profile;
use crate::limiter::{Limits, PoolLimits};
use crate::share::{ShareRules, Shares, Waiting};

/// A tenant by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TenantIx(pub(super) u32);

/// A pool by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PoolIx(usize);

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

/// A job in the stream.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) job: JobId,
    pub(super) tenant: TenantIx,
    pub(super) priority: Priority,
    pub(super) model: ModelId,
    pub(super) pool: PoolIx,
    pub(super) profile: Profile,
    pub(super) tokens: Tokens,
    pub(super) cost: Cost,
    pub(super) not_before: Millis,
    pub(super) deadline: Option<Millis>,
    /// Number of the last credit handed out for it that is over.
    pub(super) deliveries: u32,
    /// Credits that ended with their worker.
    pub(super) lost: u32,
    /// It is being moved to the dead letters.
    pub(super) leaving: bool,
}

/// The newest revision we know of the lease on a job, and what it means.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) revision: u64,
    pub(super) state: LeaseState,
}

#[derive(Debug)]
pub(super) enum LeaseState {
    /// A worker holds it. Until `stored`, that is only what we asked for.
    Held {
        credit: Box<Credit>,
        stored: bool,
        /// Its worker has begun.
        started: bool,
    },
    /// Nobody may have it before `until`; `delivery` is the number of its last credit.
    Parked { until: Millis, delivery: u32 },
    /// Nobody holds it; only the revision matters.
    Over,
    /// Its job is gone from the stream, though we have not seen it there yet.
    Finished,
}

impl Lease {
    /// A credit that we ask to be stored over `expected`.
    pub(super) fn asked(expected: u64, credit: Credit) -> Self {
        Self {
            revision: expected,
            state: LeaseState::Held {
                credit: Box::new(credit),
                stored: false,
                started: false,
            },
        }
    }

    /// A credit as it is stored.
    pub(super) fn held(revision: u64, credit: Credit, started: bool) -> Self {
        Self {
            revision,
            state: LeaseState::Held {
                credit: Box::new(credit),
                stored: true,
                started,
            },
        }
    }

    /// The lease is as we knew it, now at `revision`.
    pub(super) fn stored_as(&mut self, revision: u64, has_started: bool) {
        if let LeaseState::Held {
            stored, started, ..
        } = &mut self.state
        {
            *stored = true;
            *started |= has_started;
            self.revision = revision;
        }
    }

    /// Whether the bucket holds it: a marker there would have another revision.
    pub(super) fn is_in_bucket(&self) -> bool {
        match self.state {
            LeaseState::Held { stored, .. } => stored,
            LeaseState::Parked { .. } => self.revision > 0,
            LeaseState::Over | LeaseState::Finished => false,
        }
    }

    /// Whether this is the lease that `credit` opened.
    pub(super) fn holds(&self, credit: &Credit) -> bool {
        match &self.state {
            LeaseState::Held { credit: held, .. } => {
                held.term == credit.term
                    && held.worker == credit.worker
                    && held.delivery == credit.delivery
            }
            LeaseState::Parked { .. } | LeaseState::Over | LeaseState::Finished => false,
        }
    }
}

/// Tenants by number, with their jobs in flight.
#[derive(Debug, Default)]
pub(super) struct Tenants {
    names: Vec<TenantId>,
    numbers: BTreeMap<TenantId, TenantIx>,
    in_flight: Vec<u32>,
    policies: Vec<Policy>,
}

impl Tenants {
    /// The number of a tenant; of a new one, for whom `policy` holds.
    pub(super) fn index(&mut self, name: &TenantId, policy: impl FnOnce() -> Policy) -> TenantIx {
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        let number = TenantIx(u32::try_from(self.names.len()).expect("fewer than 2^32 tenants"));
        self.names.push(name.clone());
        self.in_flight.push(0);
        self.policies.push(policy());
        self.numbers.insert(name.clone(), number);
        number
    }

    pub(super) fn name(&self, tenant: TenantIx) -> &TenantId {
        &self.names[tenant.0 as usize]
    }

    pub(super) fn policy(&self, tenant: TenantIx) -> Policy {
        self.policies[tenant.0 as usize]
    }

    pub(super) fn set_policy(&mut self, tenant: TenantIx, policy: Policy) {
        self.policies[tenant.0 as usize] = policy;
    }

    pub(super) fn is_at_cap(&self, tenant: TenantIx) -> bool {
        self.in_flight(tenant) >= self.policy(tenant).in_flight_max.max(1)
    }

    pub(super) fn in_flight(&self, tenant: TenantIx) -> u32 {
        self.in_flight[tenant.0 as usize]
    }

    pub(super) fn took_off(&mut self, tenant: TenantIx) {
        self.in_flight[tenant.0 as usize] += 1;
    }

    pub(super) fn landed(&mut self, tenant: TenantIx) {
        let count = &mut self.in_flight[tenant.0 as usize];
        debug_assert!(*count > 0, "a job landed that never took off");
        *count = count.saturating_sub(1);
    }
}

/// Pools by number, with their limits and breakers.
#[derive(Debug, Default)]
pub(super) struct Pools {
    pools: Vec<Pool>,
    turns: u64,
}

#[derive(Debug)]
struct Pool {
    name: PoolId,
    limits: PoolLimits,
    breaker: Breaker,
    /// The job that is out as the breaker's probe.
    probe: Option<JobSeq>,
    /// Number of the turn in which it was served last.
    last_turn: u64,
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
        if let Some(at) = self.pools.iter().position(|pool| pool.name == *name) {
            return PoolIx(at);
        }
        self.pools.push(Pool {
            name: name.clone(),
            limits: PoolLimits::new(limits, now),
            breaker: Breaker::new(breaker),
            probe: None,
            last_turn: 0,
        });
        PoolIx(self.pools.len() - 1)
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

    /// Whether a call of `tokens` may start now; otherwise when to ask again, or None if only an
    /// event can change it.
    pub(super) fn admits(
        &mut self,
        pool: PoolIx,
        tokens: Tokens,
        now: Millis,
    ) -> Result<(), Option<Millis>> {
        let pool = &mut self.pools[pool.0];
        match pool.breaker.gate(now) {
            Gate::Closed | Gate::HalfOpen => pool.limits.room(tokens, [0; 3], now).map_err(Some),
            Gate::Open { until } => Err(Some(until)),
            Gate::Probing => Err(None),
        }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = PoolIx> + use<> {
        (0..self.pools.len()).map(PoolIx)
    }
}

type LaneKey = (PoolIx, Priority, TenantIx);

/// Jobs in line: one queue per pool, priority and tenant; one ring per pool and priority; shares
/// between priorities per pool.
#[derive(Debug)]
pub(super) struct Lanes {
    quantum: Cost,
    rules: ShareRules,
    queues: BTreeMap<LaneKey, BTreeSet<JobSeq>>,
    rings: Vec<[Drr; 3]>,
    shares: Vec<Shares>,
    queued: [usize; 3],
}

impl Lanes {
    pub(super) fn new(quantum: Cost, rules: ShareRules) -> Self {
        Self {
            quantum,
            rules,
            queues: BTreeMap::new(),
            rings: Vec::new(),
            shares: Vec::new(),
            queued: [0; 3],
        }
    }

    pub(super) fn push(&mut self, pool: PoolIx, priority: Priority, tenant: TenantIx, seq: JobSeq) {
        if self
            .queues
            .entry((pool, priority, tenant))
            .or_default()
            .insert(seq)
        {
            self.queued[priority.index()] += 1;
        }
    }

    pub(super) fn remove(
        &mut self,
        pool: PoolIx,
        priority: Priority,
        tenant: TenantIx,
        seq: JobSeq,
    ) -> bool {
        let key = (pool, priority, tenant);
        let Some(queue) = self.queues.get_mut(&key) else {
            return false;
        };
        let was_there = queue.remove(&seq);
        if was_there {
            self.queued[priority.index()] -= 1;
        }
        if queue.is_empty() {
            self.queues.remove(&key);
        }
        was_there
    }

    /// The oldest job in line.
    pub(super) fn head(
        &self,
        pool: PoolIx,
        priority: Priority,
        tenant: TenantIx,
    ) -> Option<JobSeq> {
        self.queues.get(&(pool, priority, tenant))?.first().copied()
    }

    /// Jobs of the same flow that stand before `seq`.
    pub(super) fn ahead(
        &self,
        pool: PoolIx,
        priority: Priority,
        tenant: TenantIx,
        seq: JobSeq,
    ) -> usize {
        let queue = self.queues.get(&(pool, priority, tenant));
        queue.map_or(0, |queue| queue.range(..seq).count())
    }

    pub(super) fn ring(&mut self, pool: PoolIx, priority: Priority) -> &mut Drr {
        self.make_room(pool);
        &mut self.rings[pool.0][priority.index()]
    }

    fn make_room(&mut self, pool: PoolIx) {
        while self.rings.len() <= pool.0 {
            self.rings
                .push(std::array::from_fn(|_| Drr::new(self.quantum)));
            self.shares.push(Shares::new(self.rules));
        }
    }

    fn waiting(&self, pool: PoolIx) -> Waiting {
        self.rings.get(pool.0).map_or([false; 3], |rings| {
            std::array::from_fn(|index| !rings[index].is_idle())
        })
    }

    /// Whose turn it is in `pool`, of the priorities `among` which one may be chosen.
    pub(super) fn next(&self, pool: PoolIx, among: Waiting) -> Option<(Priority, TenantIx)> {
        let waiting = self.waiting(pool);
        let waiting = std::array::from_fn(|index| waiting[index] && among[index]);
        let priority = self.shares.get(pool.0)?.next(waiting)?;
        let flow = self.rings[pool.0][priority.index()].next()?;
        Some((priority, TenantIx(flow.0)))
    }

    /// Charges the head of a flow to its tenant and its priority.
    pub(super) fn serve(&mut self, pool: PoolIx, priority: Priority, tenant: TenantIx, cost: Cost) {
        let waiting = self.waiting(pool);
        self.ring(pool, priority).serve(FlowKey(tenant.0));
        self.shares[pool.0].serve(priority, cost, waiting);
    }

    /// Corrects what was charged.
    pub(super) fn correct(
        &mut self,
        pool: PoolIx,
        priority: Priority,
        tenant: TenantIx,
        weight: Weight,
        more: Cost,
    ) {
        let waiting = self.waiting(pool);
        self.ring(pool, priority)
            .correct(FlowKey(tenant.0), weight, more);
        self.shares[pool.0].serve(priority, more, waiting);
    }

    pub(super) fn shares(&mut self, pool: PoolIx) -> &mut Shares {
        self.make_room(pool);
        &mut self.shares[pool.0]
    }

    /// Serves a job that another leader granted: its turn passes as if it had been in line here.
    pub(super) fn replay(
        &mut self,
        pool: PoolIx,
        priority: Priority,
        tenant: TenantIx,
        weight: Weight,
        cost: Cost,
    ) {
        let ring = self.ring(pool, priority);
        let flow = FlowKey(tenant.0);
        ring.wait(flow, weight, Head { cost, since: 0 });
        ring.serve(flow);
        ring.rest(flow);
    }

    /// Whoever has nothing waiting loses its savings.
    pub(super) fn forfeit_savings(&mut self, priority: Priority) {
        for rings in &mut self.rings {
            rings[priority.index()].forfeit_savings();
        }
    }

    /// Pools and priorities in which `tenant` has jobs in line.
    pub(super) fn flows_of(&self, tenant: TenantIx) -> Vec<(PoolIx, Priority)> {
        let pools = 0..self.rings.len();
        pools
            .flat_map(|pool| Priority::ALL.map(|priority| (PoolIx(pool), priority)))
            .filter(|&(pool, priority)| self.queues.contains_key(&(pool, priority, tenant)))
            .collect()
    }

    pub(super) fn queued(&self) -> [usize; 3] {
        self.queued
    }
}

/// The workers and their slots.
#[derive(Debug, Default)]
pub(super) struct Fleet {
    workers: BTreeMap<WorkerId, Worker>,
}

#[derive(Debug)]
struct Worker {
    slots: u32,
    live: u32,
    draining: bool,
    heard_at: Millis,
}

impl Fleet {
    pub(super) fn heard(&mut self, name: WorkerId, slots: u32, draining: bool, now: Millis) {
        let live = self.workers.get(&name).map_or(0, |worker| worker.live);
        self.workers.insert(
            name,
            Worker {
                slots,
                live,
                draining,
                heard_at: now,
            },
        );
        // Workers that are gone and hold nothing are forgotten.
        self.workers
            .retain(|_, worker| worker.live > 0 || worker.heard_at + 60_000 > now);
    }

    /// The worker with the largest part of its slots free.
    pub(super) fn most_free(&self, now: Millis, silence_max: Millis) -> Option<WorkerId> {
        self.workers
            .iter()
            .filter(|(_, worker)| {
                !worker.draining
                    && worker.live < worker.slots
                    && now.saturating_sub(worker.heard_at) < silence_max
            })
            .min_by_key(|(_, worker)| u64::from(worker.live) * 1_000_000 / u64::from(worker.slots))
            .map(|(name, _)| name.clone())
    }

    /// Workers that were heard of lately and do not drain, and their slots.
    pub(super) fn size(&self, now: Millis, silence_max: Millis) -> (usize, u32) {
        let there = self
            .workers
            .values()
            .filter(|worker| !worker.draining && now.saturating_sub(worker.heard_at) < silence_max);
        there.fold((0, 0), |(workers, slots), worker| {
            (workers + 1, slots + worker.slots)
        })
    }

    pub(super) fn occupy(&mut self, name: &WorkerId, now: Millis) {
        // A worker known only by its credits has no free slots.
        let worker = self.workers.entry(name.clone()).or_insert(Worker {
            slots: 0,
            live: 0,
            draining: true,
            heard_at: now,
        });
        worker.live += 1;
    }

    pub(super) fn free(&mut self, name: &WorkerId) {
        if let Some(worker) = self.workers.get_mut(name) {
            debug_assert!(worker.live > 0, "a slot was freed that was not occupied");
            worker.live = worker.live.saturating_sub(1);
        }
    }

    pub(super) fn occupied(&self) -> usize {
        self.workers
            .values()
            .map(|worker| worker.live as usize)
            .sum()
    }
}
