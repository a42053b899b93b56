//! The scheduler: which job goes to which worker, and when.
//!
//! A deterministic state machine. Events say what happened, effects say what is to be done, and
//! nothing in between asks a clock or touches the network. All it holds can be rebuilt from the job
//! stream and the leases: feed it every lease, then every job, and it is as if it had never stopped.
//!
//! One pass of `dispatch` answers four questions in turn:
//! who may be asked at all (pools with room, [`crate::limiter`]), which priority ([`crate::share`]),
//! which tenant ([`crate::drr`]), and which worker (the one with the most free slots).

mod picture;
mod snapshot;
#[cfg(test)]
mod tests;
mod why;

use std::collections::BTreeMap;

use crate::Millis;
use crate::breaker::{self, Gate, Sample, TenantKey};
use crate::drr::{FlowKey, Head, Weight};
use crate::ids::{JobId, JobSeq, Kind, ModelId, PoolId, TenantId, Term, WorkerId};
use crate::job::{Cost, CostWeights, Priority, Tokens};
use crate::learn::OutputLengths;
use crate::limiter::{Limits, Observation};
use crate::share::ShareRules;
use snapshot::Booked;
pub use snapshot::{Account, PoolState, Snapshot};
pub use why::Why;

use picture::{Fleet, Job, Lanes, Lease, LeaseState, PoolIx, Pools, TenantIx, Tenants};

/// What the scheduler is told to do and keep to.
#[derive(Debug, Clone)]
pub struct Config {
    /// Cost each waiting tenant may spend per round and unit of weight.
    pub quantum: Cost,
    pub cost_weights: CostWeights,
    pub shares: ShareRules,
    /// Limits of pools, until the upstream says otherwise.
    pub limits: BTreeMap<PoolId, Limits>,
    /// Limits of pools that are not named.
    pub default_limits: Limits,
    /// Weights of tenants that are not 1.
    pub weights: BTreeMap<TenantId, Weight>,
    /// Jobs of one tenant that may be in flight at once.
    pub tenant_in_flight_max: u32,
    /// Workers that may die on a job before it is put aside as one that kills them. A credit that
    /// came to an end, or was never started, does not count.
    pub max_deliver: u32,
    /// A worker that was not heard of for this long gets no more credits.
    pub worker_silence_max: Millis,
    pub breaker: breaker::Rules,
}

/// A job as the index shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobSeen {
    pub seq: JobSeq,
    pub priority: Priority,
    pub tenant: TenantId,
    pub job: JobId,
    pub kind: Kind,
    pub model: ModelId,
    pub pool: PoolId,
    /// As the producer estimated them.
    pub tokens: Tokens,
    pub not_before: Option<Millis>,
    pub deadline: Option<Millis>,
}

/// A credit: the right to run one job once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credit {
    pub seq: JobSeq,
    pub priority: Priority,
    pub tenant: TenantId,
    pub job: JobId,
    pub pool: PoolId,
    pub worker: WorkerId,
    pub delivery: u32,
    pub tokens: Tokens,
    pub cost: Cost,
    pub term: Term,
    pub granted_at: Millis,
}

/// How a delivery ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The job's outcome is stored and the job is gone from the stream.
    Finished,
    /// It runs again at the time given.
    Parked { until: Millis },
    /// It was not begun and goes back in line.
    Returned,
}

/// The end of a delivery, as its worker reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    pub credit: Credit,
    pub outcome: Outcome,
    /// None if nothing was sent upstream.
    pub used: Option<Tokens>,
    pub observed: Observation,
    /// The upstream asked the pool to wait until then.
    pub pause_until: Option<Millis>,
    /// What the call said about the health of its pool.
    pub sample: Option<Sample>,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The index shows a job.
    Job(JobSeen),
    /// A lease is held by a worker, which may have `started`. Also our own grants, as their storing
    /// is seen.
    Held {
        credit: Credit,
        started: bool,
        revision: u64,
    },
    /// A delivery ended.
    Settled {
        settlement: Settlement,
        revision: u64,
    },
    /// The server ended a lease: its holder died, or its time to be parked is over.
    LeaseEnded { seq: JobSeq, revision: u64 },
    /// Our grant is stored.
    GrantStored { seq: JobSeq, revision: u64 },
    /// Our grant could not be stored, for no reason of its own: the store takes nothing now.
    GrantFailed { seq: JobSeq },
    /// Our grant was refused: somebody else holds the lease, at a revision we will yet see.
    GrantRefused { seq: JobSeq },
    /// A worker announced itself.
    Worker {
        worker: WorkerId,
        slots: u32,
        draining: bool,
    },
    /// A job we asked to be put aside is gone from the stream.
    PutAside { seq: JobSeq },
    /// A job we asked to be put aside could not be; it is asked again later.
    PutAsideFailed { seq: JobSeq },
    /// Time passed.
    Tick,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Store the credit over `expected` (0: no lease), then send it to its worker.
    Grant { credit: Credit, expected: u64 },
    /// Move the job to the dead letters and out of the stream.
    PutAside { seq: JobSeq, why: PutAside },
}

/// Why the leader itself takes a job out of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutAside {
    DeadlinePassed,
    /// With the number of workers that died on it.
    Undeliverable {
        deliveries: u32,
    },
}

/// The scheduler of one leader.
#[derive(Debug)]
pub struct Scheduler {
    config: Config,
    term: Term,
    tenants: Tenants,
    pools: Pools,
    jobs: BTreeMap<JobSeq, Job>,
    leases: BTreeMap<JobSeq, Lease>,
    lengths: OutputLengths,
    /// Highest revision of any lease that was seen in the bucket.
    revision_seen: u64,
    lanes: Lanes,
    fleet: Fleet,
    /// Jobs and leases that wait for a time.
    timers: std::collections::BTreeSet<(Millis, JobSeq)>,
    /// What is booked already: everything up to the snapshot we began with.
    booked: Booked,
    /// Nothing is granted before, because nothing could be stored.
    hold_until: Millis,
    /// When a pool that has work will have room.
    room_at: Option<Millis>,
    now: Millis,
    effects: Vec<Effect>,
}

/// A job whose grant was refused, or that could not be put aside, is tried again after this.
const RETRY_AFTER: Millis = 1_000;

/// A job that ended before the index showed it is remembered for this long.
const TRACE_KEEP: Millis = 60_000;

/// How long nothing is granted after a grant could not be stored.
const HOLD: Millis = 1_000;

impl Scheduler {
    /// A scheduler that begins its `term` knowing nothing.
    #[must_use]
    pub fn new(config: Config, term: Term, now: Millis) -> Self {
        Self {
            tenants: Tenants::default(),
            pools: Pools::default(),
            jobs: BTreeMap::new(),
            leases: BTreeMap::new(),
            lengths: OutputLengths::default(),
            revision_seen: 0,
            lanes: Lanes::new(config.quantum, config.shares),
            fleet: Fleet::default(),
            timers: std::collections::BTreeSet::new(),
            booked: Booked::default(),
            hold_until: 0,
            room_at: None,
            now,
            effects: Vec::new(),
            config,
            term,
        }
    }

    /// Takes in one event. Call [`Scheduler::dispatch`] after one or many.
    pub fn handle(&mut self, now: Millis, event: Event) {
        self.now = self.now.max(now);
        match event {
            Event::Job(job) => self.job_seen(job),
            Event::Held {
                credit,
                started,
                revision,
            } => self.held(credit, started, revision),
            Event::Settled {
                settlement,
                revision,
            } => self.settled(settlement, revision),
            Event::LeaseEnded { seq, revision } => self.lease_ended(seq, revision),
            Event::GrantStored { seq, revision } => self.grant_stored(seq, revision),
            Event::GrantRefused { seq } => self.grant_refused(seq),
            Event::GrantFailed { seq } => {
                self.hold_until = self.now + HOLD;
                self.grant_refused(seq);
            }
            Event::Worker {
                worker,
                slots,
                draining,
            } => {
                self.fleet.heard(worker, slots, draining, self.now);
            }
            Event::PutAside { seq } => self.put_aside(seq),
            Event::PutAsideFailed { seq } => {
                if self.jobs.contains_key(&seq) {
                    self.timers.insert((self.now + RETRY_AFTER, seq));
                }
            }
            Event::Tick => {}
        }
    }

    /// Grants whatever can be granted now, and returns what is to be done.
    pub fn dispatch(&mut self, now: Millis) -> Vec<Effect> {
        self.now = self.now.max(now);
        self.wake_timers();
        self.room_at = None;
        if self.now < self.hold_until {
            self.room_at = Some(self.hold_until);
            return std::mem::take(&mut self.effects);
        }
        while let Some(worker) = self
            .fleet
            .most_free(self.now, self.config.worker_silence_max)
        {
            let Some(seq) = self.choose() else { break };
            self.grant(seq, worker);
        }
        std::mem::take(&mut self.effects)
    }

    /// When [`Scheduler::dispatch`] should be called again, if nothing happens before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Millis> {
        let timer = self.timers.first().map(|&(at, _)| at);
        [timer, self.room_at].into_iter().flatten().min()
    }

    // ---- events -------------------------------------------------------------------------

    fn job_seen(&mut self, seen: JobSeen) {
        if self.jobs.contains_key(&seen.seq) {
            return;
        }
        if matches!(
            self.leases.get(&seen.seq),
            Some(Lease {
                state: LeaseState::Finished,
                ..
            })
        ) {
            self.leases.remove(&seen.seq);
            return;
        }
        let pool = self.pool(&seen.pool);
        let tenant = self.tenants.index(&seen.tenant);
        let profile = self.lengths.profile(tenant.0, &seen.kind, &seen.model);
        let cost = Cost::of(seen.tokens, self.config.cost_weights);
        let not_before = seen.not_before.unwrap_or(0);
        // Parked before our time: its next credit is not its first.
        let deliveries = match self.leases.get(&seen.seq).map(|lease| &lease.state) {
            Some(&LeaseState::Parked { delivery, .. }) => delivery,
            Some(LeaseState::Held { .. } | LeaseState::Over | LeaseState::Finished) | None => 0,
        };
        let job = Job {
            job: seen.job,
            tenant,
            priority: seen.priority,
            pool,
            profile,
            tokens: seen.tokens,
            cost,
            not_before,
            deadline: seen.deadline,
            deliveries,
            lost: 0,
            leaving: false,
        };
        self.jobs.insert(seen.seq, job);
        self.line_up(seen.seq);
    }

    fn held(&mut self, credit: Credit, started: bool, revision: u64) {
        let seq = credit.seq;
        if !self.is_news(seq, revision) {
            return;
        }
        match self.leases.get_mut(&seq) {
            // A renewal, or the sight of our own grant being stored.
            Some(lease) if lease.holds(&credit) => lease.stored_as(revision, started),
            _ => {
                self.drop_lease(seq);
                self.charge(&credit);
                let tenant = self.tenants.index(&credit.tenant);
                if credit.term == self.term {
                    // Ours, though we were told it was not stored: its charge was taken back.
                    let (pool, weight) = (self.pool(&credit.pool), self.weight(&credit.tenant));
                    self.lanes
                        .correct(pool, credit.priority, tenant, weight, credit.cost);
                }
                self.leases
                    .insert(seq, Lease::held(revision, credit, started));
                self.out_of_line(seq);
                self.refresh_tenant(tenant);
            }
        }
    }

    fn put_aside(&mut self, seq: JobSeq) {
        self.out_of_line(seq);
        self.jobs.remove(&seq);
        // A credit of another leader that a worker holds meanwhile comes to its own end.
        let is_held = matches!(
            self.leases.get(&seq),
            Some(Lease {
                state: LeaseState::Held { .. },
                ..
            })
        );
        if !is_held {
            self.leases.remove(&seq);
        }
    }

    fn settled(&mut self, settlement: Settlement, revision: u64) {
        let Settlement {
            credit,
            outcome,
            used,
            observed,
            pause_until,
            sample,
        } = settlement;
        let seq = credit.seq;
        if !self.is_news(seq, revision) {
            return;
        }
        let pool = self.pool(&credit.pool);
        let is_booked = self.booked.settlement(revision);
        if !is_booked {
            self.judge(pool, &credit, sample);
        }
        if self
            .leases
            .get(&seq)
            .is_some_and(|lease| lease.holds(&credit))
        {
            self.refund(&credit, used);
        } else {
            // Granted and settled before our time.
            self.drop_lease(seq);
            if !is_booked {
                self.book_late(pool, &credit, used);
            }
        }
        // After the refund: what the upstream says remains is an upper bound on the whole.
        if !is_booked {
            let limits = self.pools.limits(pool);
            limits.observe(observed, self.now);
            if let Some(until) = pause_until {
                limits.pause(until);
            }
        }
        match outcome {
            Outcome::Finished => {
                self.out_of_line(seq);
                if let Some(job) = self.jobs.remove(&seq) {
                    if let Some(used) = used {
                        self.lengths.learn(job.profile, used.output);
                    }
                    self.leases.remove(&seq);
                } else {
                    // The index may yet show it, late. The trace of the lease may go without a word.
                    self.timers.insert((self.now + TRACE_KEEP, seq));
                    self.leases.insert(
                        seq,
                        Lease {
                            revision,
                            state: LeaseState::Finished,
                        },
                    );
                }
            }
            Outcome::Returned => {
                self.count_deliveries(seq, credit.delivery.saturating_sub(1));
                self.back_in_line(seq, revision);
            }
            Outcome::Parked { until } => {
                self.leases.insert(
                    seq,
                    Lease {
                        revision,
                        state: LeaseState::Parked {
                            until,
                            delivery: credit.delivery,
                        },
                    },
                );
                self.count_deliveries(seq, credit.delivery);
                self.out_of_line(seq);
                self.timers.insert((until, seq));
            }
        }
    }

    fn lease_ended(&mut self, seq: JobSeq, revision: u64) {
        // A watch that finds a lease gone without a trace reports the revision it knew it by.
        let left_no_trace = self
            .leases
            .get(&seq)
            .is_some_and(|lease| lease.revision == revision && lease.is_in_bucket());
        if !left_no_trace && !self.is_news(seq, revision) {
            return;
        }
        let revision = if left_no_trace { 0 } else { revision };
        match self.leases.remove(&seq).map(|lease| lease.state) {
            Some(LeaseState::Held {
                credit,
                stored: true,
                started: true,
            }) => {
                // Whether the call was made, and paid, nobody knows: it stays charged.
                let pool = self.pool(&credit.pool);
                self.judge(pool, &credit, None);
                self.fleet.free(&credit.worker);
                let tenant = self.tenants.index(&credit.tenant);
                self.tenants.landed(tenant);
                self.refresh_tenant(tenant);
                self.count_deliveries(seq, credit.delivery);
                if let Some(job) = self.jobs.get_mut(&seq) {
                    job.lost += 1;
                }
            }
            // Its worker never began, so nothing was called.
            Some(LeaseState::Held {
                credit,
                stored: true,
                started: false,
            }) => {
                self.refund(&credit, None);
                self.count_deliveries(seq, credit.delivery);
            }
            // An older lease ended while our grant was on its way; the grant will be refused.
            Some(LeaseState::Held {
                credit,
                stored: false,
                ..
            }) => self.refund(&credit, None),
            Some(LeaseState::Parked { .. } | LeaseState::Over | LeaseState::Finished) | None => {}
        }
        self.back_in_line(seq, revision);
    }

    /// Nobody holds the lease any more; `revision` is what a new grant replaces.
    fn back_in_line(&mut self, seq: JobSeq, revision: u64) {
        // Without a job there will be no grant, and traces of leases must not pile up. Should the
        // index show the job later, storing its grant finds the revision by itself.
        if self.jobs.contains_key(&seq) {
            let state = LeaseState::Over;
            self.leases.insert(seq, Lease { revision, state });
            self.line_up(seq);
        } else {
            self.leases.remove(&seq);
        }
    }

    fn grant_stored(&mut self, seq: JobSeq, revision: u64) {
        if let Some(lease) = self.leases.get_mut(&seq)
            && lease.revision < revision
        {
            lease.stored_as(revision, false);
        }
    }

    fn grant_refused(&mut self, seq: JobSeq) {
        // If the true holder was seen meanwhile, there is nothing of ours left to undo.
        let Some(Lease {
            state:
                LeaseState::Held {
                    credit,
                    stored: false,
                    ..
                },
            ..
        }) = self.leases.get(&seq)
        else {
            return;
        };
        let credit = credit.clone();
        // The trace of an older lease that we wanted to replace goes after a while, without a word.
        // Storing over no lease finds such a trace by itself, and is refused by a living lease.
        let revision = 0;
        let until = self.now + RETRY_AFTER;
        let delivery = credit.delivery.saturating_sub(1);
        self.refund(&credit, None);
        self.leases.insert(
            seq,
            Lease {
                revision,
                state: LeaseState::Parked { until, delivery },
            },
        );
        self.timers.insert((until, seq));
    }

    /// Whether `revision` of the lease on `seq` is newer than what we know. Revisions count over
    /// all leases and are seen in order, so one that is not the highest so far is a replay.
    fn is_news(&mut self, seq: JobSeq, revision: u64) -> bool {
        if revision <= self.revision_seen {
            return false;
        }
        self.revision_seen = revision;
        self.leases
            .get(&seq)
            .is_none_or(|lease| lease.revision < revision)
    }

    /// Tells the breaker of a pool how a call ended; without a sample it says nothing.
    fn judge(&mut self, pool: PoolIx, credit: &Credit, sample: Option<Sample>) {
        let now = self.now;
        let is_probe = self.pools.probe(pool) == Some(credit.seq);
        let tenant = TenantKey(self.tenants.index(&credit.tenant).0);
        let breaker = self.pools.breaker(pool);
        match (is_probe, sample) {
            (true, Some(sample)) => {
                breaker.probe_ended(sample, now);
                if breaker.gate(now) == Gate::Closed {
                    // Everybody who waited would come at once.
                    self.pools.limits(pool).reopen(now);
                }
            }
            (true, None) => breaker.probe_lost(now),
            (false, Some(sample)) => {
                breaker.record(sample, tenant, now);
            }
            (false, None) => {}
        }
        if is_probe {
            self.pools.set_probe(pool, None);
        }
    }

    fn count_deliveries(&mut self, seq: JobSeq, deliveries: u32) {
        if let Some(job) = self.jobs.get_mut(&seq) {
            job.deliveries = deliveries;
        }
    }

    // ---- books --------------------------------------------------------------------------

    fn limits_of(&self, pool: &PoolId) -> Limits {
        let configured = self.config.limits.get(pool).copied();
        configured.unwrap_or(self.config.default_limits)
    }

    fn pool(&mut self, pool: &PoolId) -> PoolIx {
        let limits = self.limits_of(pool);
        self.pools
            .index(pool, limits, self.config.breaker, self.now)
    }

    fn weight(&self, tenant: &TenantId) -> Weight {
        self.config
            .weights
            .get(tenant)
            .copied()
            .unwrap_or(Weight::ONE)
    }

    /// Books a credit: pool, worker and tenant. The tenant's deficit was charged when it was served,
    /// unless somebody else served it.
    fn charge(&mut self, credit: &Credit) {
        let pool = self.pool(&credit.pool);
        self.fleet.occupy(&credit.worker, self.now);
        let tenant = self.tenants.index(&credit.tenant);
        self.tenants.took_off(tenant);
        if credit.term == self.term {
            self.pools.limits(pool).reserve(credit.tokens);
        } else if !self.booked.grant(credit) {
            self.pools.limits(pool).reserve(credit.tokens);
            self.replay(pool, tenant, credit);
        }
    }

    /// Replaces what was charged for a credit by what was used.
    fn refund(&mut self, credit: &Credit, used: Option<Tokens>) {
        let pool = self.pool(&credit.pool);
        if used.is_none() && self.pools.probe(pool) == Some(credit.seq) {
            self.judge(pool, credit, None);
        }
        self.pools.limits(pool).settle(credit.tokens, used);
        self.fleet.free(&credit.worker);
        let tenant = self.tenants.index(&credit.tenant);
        self.tenants.landed(tenant);
        let cost = used.map_or(Cost(0), |used| Cost::of(used, self.config.cost_weights));
        let weight = self.weight(&credit.tenant);
        self.lanes
            .correct(pool, credit.priority, tenant, weight, cost - credit.cost);
        self.refresh_tenant(tenant);
    }

    /// Forgets a lease that turned out not to be what we thought.
    fn drop_lease(&mut self, seq: JobSeq) {
        if let Some(Lease {
            state: LeaseState::Held { credit, .. },
            ..
        }) = self.leases.remove(&seq)
        {
            self.refund(&credit, None);
        }
    }

    // ---- queues -------------------------------------------------------------------------

    /// Puts a job where its state says: in line, to a timer, or nowhere while a lease holds it or
    /// it is being put aside.
    fn line_up(&mut self, seq: JobSeq) {
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

    fn out_of_line(&mut self, seq: JobSeq) {
        let Some(job) = self.jobs.get(&seq) else {
            return;
        };
        let (pool, priority, tenant) = (job.pool, job.priority, job.tenant);
        if self.lanes.remove(pool, priority, tenant, seq) {
            self.refresh(pool, priority, tenant);
        }
    }

    /// Tells the ring what a flow would run next.
    fn refresh(&mut self, pool: PoolIx, priority: Priority, tenant: TenantIx) {
        let head = self.lanes.head(pool, priority, tenant);
        if let Some(seq) = head {
            self.estimate(seq);
        }
        let at_cap = self.tenants.in_flight(tenant) >= self.config.tenant_in_flight_max.max(1);
        let ring = self.lanes.ring(pool, priority);
        let flow = FlowKey(tenant.0);
        match head.and_then(|seq| self.jobs.get(&seq).map(|job| (seq, job))) {
            Some((seq, job)) if !at_cap => {
                let weight = self
                    .config
                    .weights
                    .get(self.tenants.name(tenant))
                    .copied()
                    .unwrap_or(Weight::ONE);
                ring.wait(
                    flow,
                    weight,
                    Head {
                        cost: job.cost,
                        since: seq.0,
                    },
                );
            }
            _ => ring.rest(flow),
        }
    }

    /// Sets aside for a job what such jobs were seen to take.
    fn estimate(&mut self, seq: JobSeq) {
        if let Some(job) = self.jobs.get_mut(&seq)
            && let Some(output) = self.lengths.expect(job.profile)
        {
            job.tokens.output = output;
            job.cost = Cost::of(job.tokens, self.config.cost_weights);
        }
    }

    /// A tenant's number in flight changed: its flows may have to rest, or wait again.
    fn refresh_tenant(&mut self, tenant: TenantIx) {
        let cap = self.config.tenant_in_flight_max.max(1);
        let in_flight = self.tenants.in_flight(tenant);
        // Only crossing the cap changes anything.
        if in_flight + 1 < cap {
            return;
        }
        for (pool, priority) in self.lanes.flows_of(tenant) {
            self.refresh(pool, priority, tenant);
        }
    }

    fn wake_timers(&mut self) {
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

    // ---- dispatch -----------------------------------------------------------------------

    /// The job to run next, out of all pools that have room.
    fn choose(&mut self) -> Option<JobSeq> {
        loop {
            let (seq, why) = match self.candidate()? {
                Candidate::Run(seq) => return Some(seq),
                Candidate::PutAside(seq, why) => (seq, why),
            };
            self.out_of_line(seq);
            if let Some(job) = self.jobs.get_mut(&seq) {
                job.leaving = true;
            }
            self.effects.push(Effect::PutAside { seq, why });
        }
    }

    fn candidate(&mut self) -> Option<Candidate> {
        let mut best: Option<(Priority, u64, JobSeq)> = None;
        for pool in self.pools.all() {
            let Some((priority, tenant)) = self.lanes.next(pool) else {
                continue;
            };
            let Some(seq) = self.lanes.head(pool, priority, tenant) else {
                continue;
            };
            let job = &self.jobs[&seq];
            if let Some(why) = self.why_aside(job) {
                return Some(Candidate::PutAside(seq, why));
            }
            let tokens = job.tokens;
            match self.pools.admits(pool, tokens, self.now) {
                Ok(()) => {
                    let rank = (priority, seq.0, seq);
                    if best.is_none_or(|best| rank < best) {
                        best = Some(rank);
                    }
                }
                Err(Some(at)) => {
                    self.room_at = Some(self.room_at.map_or(at, |earlier| earlier.min(at)));
                }
                // A probe is out; its end will wake us.
                Err(None) => {}
            }
        }
        best.map(|(_, _, seq)| Candidate::Run(seq))
    }

    fn why_aside(&self, job: &Job) -> Option<PutAside> {
        if job.deadline.is_some_and(|deadline| deadline <= self.now) {
            return Some(PutAside::DeadlinePassed);
        }
        if job.lost >= self.config.max_deliver {
            return Some(PutAside::Undeliverable {
                deliveries: job.lost,
            });
        }
        None
    }

    fn put_aside_again(&mut self, seq: JobSeq) {
        let Some(job) = self.jobs.get(&seq) else {
            return;
        };
        if let Some(why) = self.why_aside(job) {
            self.effects.push(Effect::PutAside { seq, why });
        }
    }

    fn grant(&mut self, seq: JobSeq, worker: WorkerId) {
        let job = &self.jobs[&seq];
        let (pool, priority, tenant) = (job.pool, job.priority, job.tenant);
        let credit = Credit {
            seq,
            priority,
            tenant: self.tenants.name(tenant).clone(),
            job: job.job.clone(),
            pool: self.pools.name(pool).clone(),
            worker,
            delivery: job.deliveries + 1,
            tokens: job.tokens,
            cost: job.cost,
            term: self.term,
            granted_at: self.now,
        };
        if self.pools.breaker(pool).gate(self.now) == Gate::HalfOpen {
            self.pools.breaker(pool).probe_sent();
            self.pools.set_probe(pool, Some(seq));
        }
        let job = &self.jobs[&seq];
        self.lanes.serve(pool, priority, tenant, job.cost);
        self.lanes.remove(pool, priority, tenant, seq);
        self.charge(&credit);
        self.refresh(pool, priority, tenant);
        self.refresh_tenant(tenant);
        let expected = lease_revision(&self.leases, seq);
        self.leases
            .insert(seq, Lease::asked(expected, credit.clone()));
        self.effects.push(Effect::Grant { credit, expected });
    }

    // ---- what can be asked --------------------------------------------------------------

    /// Jobs in line per priority, in the order of [`Priority::ALL`]; not parked, not in flight.
    #[must_use]
    pub fn queued(&self) -> [usize; 3] {
        self.lanes.queued()
    }

    /// Credits that are held by workers.
    #[must_use]
    pub fn live(&self) -> usize {
        self.fleet.occupied()
    }

    /// Leases that are remembered: held, parked, or over with their job still in the stream.
    #[must_use]
    pub fn leases(&self) -> usize {
        self.leases.len()
    }

    /// Jobs known to be in the stream, whatever their state.
    #[must_use]
    pub fn known(&self) -> usize {
        self.jobs.len()
    }

    /// Term of this scheduler.
    #[must_use]
    pub fn term(&self) -> Term {
        self.term
    }
}

enum Candidate {
    Run(JobSeq),
    PutAside(JobSeq, PutAside),
}

fn lease_revision(leases: &BTreeMap<JobSeq, Lease>, seq: JobSeq) -> u64 {
    leases.get(&seq).map_or(0, |lease| lease.revision)
}
