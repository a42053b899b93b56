//! The scheduler: which job goes to which worker, and when.
//!
//! A deterministic state machine. Events say what happened, effects say what is to be done, and
//! nothing in between asks a clock or touches the network. All it holds can be rebuilt from the job
//! stream and the leases: feed it every lease, then every job, and it is as if it had never stopped.
//!
//! One pass of `dispatch` answers four questions in turn:
//! who may be asked at all (pools with room, [`crate::limiter`]), which priority ([`crate::share`]),
//! which tenant ([`crate::drr`]), and which worker (the one with the most free slots).

mod books;
mod dispatch;
mod events;
mod fleet;
mod gates;
mod inspect;
mod lanes;
mod load;
mod overview;
mod owner;
mod picture;
mod pools;
mod queues;
mod snapshot;
mod standing;
mod suspects;
mod tenants;
#[cfg(test)]
mod tests;
mod why;

use std::collections::{BTreeMap, BTreeSet};

use crate::Millis;
use crate::breaker::{self, Sample};
use crate::concurrency::Window;
use crate::demotion::{self, Demotion};
use crate::drr::{FlowKey, Weight};
use crate::failure::Scope;
use crate::fairness::{Lane, Meter};
use crate::ids::{JobId, JobSeq, Kind, ModelId, PoolId, TenantId, Term, WorkerId};
use crate::job::{Cost, CostWeights, Priority, Tokens};
use crate::learn::Learned;
use crate::limiter::{Limits, Observation};
use crate::share::{ShareRules, Shares, Waiting};
pub use dispatch::slots_kept;
pub use inspect::PoolStatus;
pub use overview::{Overview, PoolView, TenantView, WorkerView};
use snapshot::Booked;
pub use snapshot::{Account, Concerns, GateState, LearnedState, PoolState, Snapshot};
pub use why::{FlowOutlook, Outlook, Place, TenantOutlook, Why};

use fleet::Fleet;
use gates::Gates;
use lanes::Lanes;
use picture::{Job, Lease};
use pools::{PoolIx, Pools};
use tenants::{TenantIx, Tenants};

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
    /// What holds for tenants, until an event says otherwise.
    pub tenants: BTreeMap<TenantId, Policy>,
    /// What holds for tenants that are not named.
    pub default_policy: Policy,
    /// Workers that may die on a job before it is put aside as one that kills them. A credit that
    /// came to an end, or was never started, does not count.
    pub max_deliver: u32,
    /// A worker that was not heard of for this long gets no more credits.
    pub worker_silence_max: Millis,
    pub breaker: breaker::Rules,
    pub demotion: demotion::Rules,
}

/// What holds for a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    pub weight: Weight,
    /// Jobs that may be in flight at once; at least one may.
    pub in_flight_max: u32,
    /// Budget of input tokens per UTC day. None: as many as there are.
    pub daily_input_tokens: Option<u64>,
    /// Demoted by hand until then.
    pub demoted_until: Option<Millis>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            weight: Weight::ONE,
            in_flight_max: 1_000,
            daily_input_tokens: None,
            demoted_until: None,
        }
    }
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
    /// What may run it instead while its own model is overloaded.
    pub fallback: Option<Fallback>,
    pub not_before: Option<Millis>,
    pub deadline: Option<Millis>,
}

/// Another model that may run a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fallback {
    pub model: ModelId,
    pub pool: PoolId,
    /// As that model counts them.
    pub tokens: Tokens,
}

/// A credit: the right to run one job once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credit {
    pub seq: JobSeq,
    /// As it is served: standard work of a demoted tenant is served as batch.
    pub priority: Priority,
    pub tenant: TenantId,
    pub job: JobId,
    /// The model to call and its pool: the job's own, or its fallback's.
    pub model: ModelId,
    pub pool: PoolId,
    pub worker: WorkerId,
    pub delivery: u32,
    pub tokens: Tokens,
    pub cost: Cost,
    pub term: Term,
    pub granted_at: Millis,
    /// It goes out to see whether its pool is well again.
    pub probe: bool,
}

/// How a delivery ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The job's outcome is stored and the job is gone from the stream.
    Finished,
    /// It runs again at the time given.
    Parked { until: Millis },
    /// Its owner is asked whether it may wait longer, and has until the time given to answer.
    Asked { until: Millis },
    /// It was not begun and goes back in line.
    Returned,
}

/// How the upstream turned a call away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// A limit per minute was used up.
    RateLimit,
    /// The upstream was overloaded.
    Overloaded,
}

/// Whoever is concerned waits until a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pause {
    pub scope: Scope,
    pub until: Millis,
    /// Nobody knows whether the time will do: one call goes first then, to see.
    pub probe: bool,
}

/// The end of a delivery, as its worker reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    pub credit: Credit,
    pub outcome: Outcome,
    /// None if nothing was sent upstream.
    pub used: Option<Tokens>,
    pub observed: Observation,
    pub refused: Option<Refused>,
    /// Others than the job have to wait, too.
    pub pause: Option<Pause>,
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
    /// A parked job waits until another time.
    Moved {
        seq: JobSeq,
        until: Millis,
        revision: u64,
    },
    /// The record of a job says that it is over.
    CalledOff { seq: JobSeq },
    /// A job we asked to be put aside is to stay.
    Kept { seq: JobSeq },
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
    /// The index has shown every job of this priority that was there when our term began, after
    /// all leases were told: it may be granted from now on.
    Complete { priority: Priority },
    /// Something else holds for a tenant from now on.
    Policy { tenant: TenantId, policy: Policy },
    /// The ledger shows what a call of a tenant took; `day` counts UTC days since 1970.
    Spent {
        tenant: TenantId,
        day: u64,
        input_tokens: u64,
    },
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
    /// Nothing to do: something that people want to know.
    Notice(Notice),
}

/// What happened that people want to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// A rate limit was met in a pool, and who caused it; None: somebody else with the same key.
    Throttled {
        pool: PoolId,
        tenant: Option<TenantId>,
    },
    /// A tenant's standard work is served as batch from now on.
    Demoted {
        tenant: TenantId,
        demotion: Demotion,
    },
    /// A tenant is served like others again.
    Restored { tenant: TenantId },
    /// Most calls to a pool fail.
    BreakerOpened { pool: PoolId, until: Millis },
    /// A pool is well again.
    BreakerClosed { pool: PoolId },
    /// The upstream asked for a pause; `pool` is that of the call that was told so.
    Paused { pool: PoolId, pause: Pause },
    /// Fewer calls run at once for a while.
    CallsLimited { max: u32 },
}

/// Why the leader itself takes a job out of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutAside {
    /// Its record says so, or its owner was asked and has not answered.
    CalledOff,
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
    learned: Learned,
    meter: Meter,
    /// Highest revision of any lease that was seen in the bucket.
    revision_seen: u64,
    lanes: Lanes,
    fleet: Fleet,
    gates: Gates,
    /// Jobs that wait for a worker of their own.
    suspects: BTreeSet<JobSeq>,
    /// How many workers died with a job in hand, by job.
    lost: BTreeMap<JobSeq, u32>,
    /// A pool that waits for one of them, whose worker is empty.
    pool_waits: Option<PoolIx>,
    /// Calls that may be on the wire at once.
    window: Window,
    /// When critical work was in line last.
    critical_at: Option<Millis>,
    /// Shares of the priorities in the slots, between pools.
    slot_shares: Shares,
    /// Jobs and leases that wait for a time.
    timers: BTreeSet<(Millis, JobSeq)>,
    /// What is booked already: everything up to the snapshot we began with.
    booked: Booked,
    /// Priorities whose jobs are all known.
    complete: Waiting,
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
            learned: Learned::default(),
            meter: Meter::new(config.quantum, now),
            revision_seen: 0,
            lanes: Lanes::new(config.quantum, config.shares),
            fleet: Fleet::default(),
            gates: Gates::default(),
            suspects: BTreeSet::new(),
            lost: BTreeMap::new(),
            pool_waits: None,
            window: Window::default(),
            critical_at: None,
            slot_shares: Shares::new(config.shares),
            timers: BTreeSet::new(),
            booked: Booked::default(),
            complete: [false; 3],
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
            Event::Moved {
                seq,
                until,
                revision,
            } => self.moved(seq, until, revision),
            Event::CalledOff { seq } => self.call_off(seq),
            Event::Kept { seq } => self.keep(seq),
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
            Event::PutAsideFailed { seq } => self.put_aside_failed(seq),
            Event::Complete { priority } => {
                self.complete[priority.index()] = true;
                self.lanes.forfeit_savings(priority);
            }
            Event::Policy { tenant, policy } => self.new_policy(&tenant, policy),
            Event::Spent {
                tenant,
                day,
                input_tokens,
            } => self.spent(&tenant, day, input_tokens),
            Event::Tick => {}
        }
    }

    /// Grants whatever can be granted now, and returns what is to be done.
    pub fn dispatch(&mut self, now: Millis) -> Vec<Effect> {
        self.now = self.now.max(now);
        self.room_at = None;
        self.wake_timers();
        self.wake_gates();
        self.wake_demoted();
        if self.now < self.hold_until {
            self.room_at = Some(self.hold_until);
            return std::mem::take(&mut self.effects);
        }
        self.grant_suspect();
        let silence_max = self.config.worker_silence_max;
        let mut free = self.fleet.free_slots(self.now, silence_max);
        while let Some(worker) = self.fleet.most_free(self.now, silence_max) {
            let Some(turn) = self.choose(free) else { break };
            self.grant(turn, worker);
            free = free.saturating_sub(1);
        }
        std::mem::take(&mut self.effects)
    }

    /// When [`Scheduler::dispatch`] should be called again, if nothing happens before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Millis> {
        let timer = self.timers.first().map(|&(at, _)| at);
        let demotion = self.tenants.next_end().map(|(at, _)| at);
        let gate = self.gates.next_ajar(self.now);
        let times = [timer, demotion, gate, self.room_at];
        times.into_iter().flatten().min()
    }

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

    /// How fair it is. Lanes of its readings are named by [`Scheduler::pool_of`].
    pub fn fairness(&mut self, now: Millis) -> &Meter {
        self.meter.roll(now);
        &self.meter
    }

    /// The pool of a lane that was measured.
    #[must_use]
    pub fn pool_of(&self, lane: Lane) -> &PoolId {
        self.pools.name(PoolIx::of_lane(lane))
    }

    /// Term of this scheduler.
    #[must_use]
    pub fn term(&self) -> Term {
        self.term
    }
}
