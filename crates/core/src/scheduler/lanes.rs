//! Jobs in line: queues, the rings of tenants in front of them, and the shares of the priorities.
//!
//! A flow is what one tenant runs in one pool as one priority. Usually that is one queue. But a
//! demoted tenant's standard work is served as batch, and while a pool is closed the jobs that may run
//! elsewhere stand in front of another pool, too. So a flow draws from several queues, oldest job
//! first, and no job moves when a tenant is demoted or a pool closes.

use std::collections::{BTreeMap, BTreeSet};

use super::pools::PoolIx;
use super::tenants::TenantIx;
use crate::drr::{Drr, FlowKey, Head, Weight};
use crate::ids::JobSeq;
use crate::job::{Cost, Priority};
use crate::share::{ShareRules, Shares, Waiting};

/// Jobs of one tenant and priority that may run in the same places.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct QueueKey {
    pub(super) pool: PoolIx,
    /// Where they may run while their own pool is closed.
    pub(super) spare: Option<PoolIx>,
    pub(super) priority: Priority,
    pub(super) tenant: TenantIx,
}

/// What a tenant runs in a pool as one priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Flow {
    pub(super) pool: PoolIx,
    /// As it is served.
    pub(super) priority: Priority,
    pub(super) tenant: TenantIx,
}

/// All queues; one ring per pool and priority; shares between priorities per pool.
#[derive(Debug)]
pub(super) struct Lanes {
    quantum: Cost,
    rules: ShareRules,
    queues: BTreeMap<QueueKey, BTreeSet<JobSeq>>,
    rings: Vec<[Drr; 3]>,
    shares: Vec<Shares>,
    queued: [usize; 3],
    /// Pools, and where some of their jobs may run instead.
    spares: BTreeSet<(PoolIx, PoolIx)>,
    /// Pools that are closed: their jobs run elsewhere if they may.
    diverted: BTreeSet<PoolIx>,
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
            spares: BTreeSet::new(),
            diverted: BTreeSet::new(),
        }
    }

    pub(super) fn push(&mut self, key: QueueKey, seq: JobSeq) {
        if let Some(spare) = key.spare {
            self.spares.insert((key.pool, spare));
        }
        if self.queues.entry(key).or_default().insert(seq) {
            self.queued[key.priority.index()] += 1;
        }
    }

    pub(super) fn remove(&mut self, key: QueueKey, seq: JobSeq) -> bool {
        let Some(queue) = self.queues.get_mut(&key) else {
            return false;
        };
        let was_there = queue.remove(&seq);
        if was_there {
            self.queued[key.priority.index()] -= 1;
        }
        if queue.is_empty() {
            self.queues.remove(&key);
        }
        was_there
    }

    /// Whether a job stands in line.
    pub(super) fn holds(&self, key: QueueKey, seq: JobSeq) -> bool {
        self.queues
            .get(&key)
            .is_some_and(|queue| queue.contains(&seq))
    }

    /// Says whether a pool is closed. Returns whether that is news.
    pub(super) fn divert(&mut self, pool: PoolIx, is_closed: bool) -> bool {
        if is_closed {
            self.diverted.insert(pool)
        } else {
            self.diverted.remove(&pool)
        }
    }

    pub(super) fn is_diverted(&self, pool: PoolIx) -> bool {
        self.diverted.contains(&pool)
    }

    /// Queues of jobs that may run elsewhere while `pool` is closed.
    pub(super) fn diverted_queues(&self, pool: PoolIx) -> Vec<QueueKey> {
        let keys = self.queues.keys().copied();
        keys.filter(|key| key.pool == pool && key.spare.is_some())
            .collect()
    }

    /// Queues that `flow` draws from.
    fn sources(&self, flow: Flow, is_demoted: bool) -> impl Iterator<Item = QueueKey> {
        let priorities: &[Priority] = match (flow.priority, is_demoted) {
            (Priority::Critical, _) => &[Priority::Critical],
            (Priority::Standard, false) => &[Priority::Standard],
            (Priority::Standard, true) => &[],
            (Priority::Batch, false) => &[Priority::Batch],
            (Priority::Batch, true) => &[Priority::Batch, Priority::Standard],
        };
        let pool = flow.pool;
        let own = std::iter::once((pool, None));
        let spares = self.spares.iter().filter_map(move |&(home, spare)| {
            let is_drawn_from = home == pool || (spare == pool && self.diverted.contains(&home));
            is_drawn_from.then_some((home, Some(spare)))
        });
        own.chain(spares).flat_map(move |(pool, spare)| {
            priorities.iter().map(move |&priority| QueueKey {
                pool,
                spare,
                priority,
                tenant: flow.tenant,
            })
        })
    }

    /// The oldest job of a flow.
    pub(super) fn head(&self, flow: Flow, is_demoted: bool) -> Option<JobSeq> {
        self.sources(flow, is_demoted)
            .filter_map(|key| self.queues.get(&key)?.first().copied())
            .min()
    }

    /// Jobs of a flow that stand before `seq`.
    pub(super) fn ahead(&self, flow: Flow, is_demoted: bool, seq: JobSeq) -> usize {
        self.sources(flow, is_demoted)
            .filter_map(|key| self.queues.get(&key))
            .map(|queue| queue.range(..seq).count())
            .sum()
    }

    /// Jobs of a flow that are in line.
    pub(super) fn length(&self, flow: Flow, is_demoted: bool) -> usize {
        self.sources(flow, is_demoted)
            .filter_map(|key| self.queues.get(&key))
            .map(BTreeSet::len)
            .sum()
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

    /// Which priorities have work that may run in `pool`.
    pub(super) fn waiting(&self, pool: PoolIx) -> Waiting {
        self.rings.get(pool.0).map_or([false; 3], |rings| {
            std::array::from_fn(|index| !rings[index].is_idle())
        })
    }

    /// Whose turn it is in `pool`, of the priorities `among` which one may be chosen.
    pub(super) fn next(&self, pool: PoolIx, among: Waiting) -> Option<Flow> {
        let waiting = self.waiting(pool);
        let waiting = std::array::from_fn(|index| waiting[index] && among[index]);
        let priority = self.shares.get(pool.0)?.next(waiting)?;
        let flow = self.rings[pool.0][priority.index()].next()?;
        Some(Flow {
            pool,
            priority,
            tenant: TenantIx(flow.0),
        })
    }

    /// Charges the head of a flow to its tenant and its priority.
    pub(super) fn serve(&mut self, flow: Flow, cost: Cost) {
        let waiting = self.waiting(flow.pool);
        self.ring(flow.pool, flow.priority)
            .serve(FlowKey(flow.tenant.0));
        self.shares[flow.pool.0].serve(flow.priority, cost, waiting);
    }

    /// Corrects what was charged.
    pub(super) fn correct(&mut self, flow: Flow, weight: Weight, more: Cost) {
        let waiting = self.waiting(flow.pool);
        self.ring(flow.pool, flow.priority)
            .correct(FlowKey(flow.tenant.0), weight, more);
        self.shares[flow.pool.0].serve(flow.priority, more, waiting);
    }

    pub(super) fn shares(&mut self, pool: PoolIx) -> &mut Shares {
        self.make_room(pool);
        &mut self.shares[pool.0]
    }

    /// Serves a job that another leader granted: its turn passes as if it had been in line here.
    pub(super) fn replay(&mut self, flow: Flow, weight: Weight, cost: Cost) {
        let ring = self.ring(flow.pool, flow.priority);
        let key = FlowKey(flow.tenant.0);
        ring.wait(key, weight, Head { cost, since: 0 });
        ring.serve(key);
        ring.rest(key);
    }

    /// Whoever has nothing waiting loses its savings.
    pub(super) fn forfeit_savings(&mut self, priority: Priority) {
        for rings in &mut self.rings {
            rings[priority.index()].forfeit_savings();
        }
    }

    /// All flows that `tenant` may have.
    pub(super) fn flows_of(&self, tenant: TenantIx) -> Vec<Flow> {
        let pools = 0..self.rings.len();
        pools
            .flat_map(|pool| {
                Priority::ALL.map(|priority| Flow {
                    pool: PoolIx(pool),
                    priority,
                    tenant,
                })
            })
            .collect()
    }

    /// All queues and their lengths.
    pub(super) fn queues(&self) -> impl Iterator<Item = (QueueKey, usize)> {
        self.queues.iter().map(|(&key, queue)| (key, queue.len()))
    }

    /// The oldest job in line of each priority.
    pub(super) fn oldest(&self) -> [Option<JobSeq>; 3] {
        let mut oldest = [None; 3];
        for (key, queue) in &self.queues {
            let oldest: &mut Option<JobSeq> = &mut oldest[key.priority.index()];
            *oldest = oldest.iter().chain(queue.first()).min().copied();
        }
        oldest
    }

    pub(super) fn queued(&self) -> [usize; 3] {
        self.queued
    }
}
