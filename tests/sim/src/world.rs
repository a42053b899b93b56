//! The event loop: virtual time, processes, the server, and what is checked while it runs.
//!
//! Everything happens at a time, in the order of times and, at the same time, in the order it was
//! caused. A paused process takes in nothing until it goes on; a dead one never. What a process
//! asked of the server before happens all the same.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use fairlane_core::attempt::History;
use fairlane_core::fairness::Window;
use fairlane_core::invariants::{self, Broken, Invariant, JobLife, Payments, work_conserving};
use fairlane_core::scheduler::{
    Credit, Fallback, JobSeen, Notice, Policy, PutAside, Snapshot, slots_kept,
};
use fairlane_core::{Cost, JobId, JobSeq, Kind, Millis, ModelId, PoolId, Priority, TenantId, Term};

use crate::bucket::{Bucket, Ended, Value};
use crate::leader::{Leader, LeaderMsg};
use crate::plan::{Fault, JobPlan, Plan};
use crate::rng::Rng;
use crate::upstream::{Answer, Call, Upstream};
use crate::worker::{Worker, WorkerMsg};

/// What happens.
#[expect(
    clippy::large_enum_variant,
    reason = "they wait in one queue, in the order they were made"
)]
#[derive(Debug)]
pub(crate) enum Action {
    Publish(usize),
    Expire {
        seq: JobSeq,
        revision: u64,
    },
    /// A grant reaches the server. Its leader hears of it unless `silent`.
    Grant {
        leader: usize,
        term: Term,
        credit: Box<Credit>,
        expected: u64,
        silent: bool,
    },
    /// A job's dead letter, written by a leader.
    Aside {
        leader: usize,
        term: Term,
        seq: JobSeq,
        why: PutAside,
    },
    /// A write of the leader key.
    Control {
        leader: usize,
        expected: u64,
        sent: Millis,
    },
    /// A leader's books reach the server; an older term's are refused.
    Books {
        term: Term,
        books: Box<Snapshot>,
    },
    ControlExpires {
        revision: u64,
    },
    Leader(usize, LeaderMsg),
    Worker(usize, WorkerMsg),
    StartWorker {
        slots: u32,
    },
    StartLeader,
    RepairWatch {
        leader: usize,
        term: Term,
    },
    Fault(Fault),
    Check,
}

/// When something happens, its place among what happens at the same time, and where it is kept.
/// Small, because a heap moves its items about.
type Due = (Millis, u64, usize);

/// What is known of a job outside the scheduler.
#[derive(Debug, Clone, Default)]
pub struct JobState {
    pub seq: Option<JobSeq>,
    pub in_stream: bool,
    pub outcomes: u32,
    pub done: bool,
    /// Deaths of workers that held it, in call or not.
    pub history: History,
    pub calls: u32,
    pub successes: u32,
    pub excused: u32,
    pub ended_at: Option<Millis>,
    pub aside: Option<PutAside>,
    /// Since when it could have run, and nothing ran it.
    idle_since: Option<Millis>,
}

/// The leader key.
#[derive(Debug, Default)]
pub(crate) struct Control {
    pub(crate) revision: u64,
    pub(crate) held: bool,
    /// The books of the leader that saved last.
    pub(crate) books: Option<(Term, Snapshot)>,
}

/// Counts of what the world went through, so that a run can say what it covered.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    pub terms: u64,
    pub grants: u64,
    pub refused: u64,
    pub expired: u64,
    pub stale_starts: u64,
    pub lost_leases: u64,
    pub workers_killed: u64,
    pub put_aside: u64,
    pub double_paid: u64,
}

/// A grant the leader decided on, whether or not it was stored.
#[derive(Debug, Clone)]
pub struct Granted {
    pub at: Millis,
    pub job: usize,
    pub term: Term,
}

/// Every pool has one model.
fn model(pool: &PoolId) -> ModelId {
    ModelId::parse(pool.as_str()).expect("a name")
}

/// One simulated fleet.
#[derive(Debug)]
pub struct World {
    pub plan: Plan,
    pub now: Millis,
    pub jobs: Vec<JobState>,
    pub upstream: Upstream,
    pub bucket: Bucket,
    pub grants: Vec<Granted>,
    /// Input tokens of calls: by whom, on which day, as the ledger has them.
    pub(crate) ledger: Vec<(TenantId, u64, u64)>,
    /// What leaders told people, and when.
    pub notices: Vec<(Millis, Notice)>,
    pub tally: Tally,
    /// The job whose history is written down, and the history.
    pub watched: Option<JobSeq>,
    pub history: Vec<String>,
    /// Broken rules that were seen on the way.
    pub broken: Option<Broken>,
    pub(crate) rng: Rng,
    pub(crate) stream: BTreeMap<JobSeq, usize>,
    /// Jobs whose worker dies or drains meanwhile stay in the plan by this.
    pub(crate) by_seq: Vec<usize>,
    pub(crate) leaders: Vec<Leader>,
    pub(crate) workers: Vec<Worker>,
    pub(crate) control: Control,
    heap: BinaryHeap<Reverse<Due>>,
    actions: Vec<Option<Action>>,
    unused: Vec<usize>,
    order: u64,
    unpublished: usize,
    open: usize,
    /// Credits held per worker and per tenant, by the bucket.
    pub(crate) idle_from: Option<Millis>,
}

impl World {
    #[must_use]
    pub fn new(plan: Plan) -> Self {
        let mut world = Self {
            rng: Rng::new(plan.seed),
            now: 0,
            jobs: vec![JobState::default(); plan.jobs.len()],
            upstream: Upstream::new(&plan),
            bucket: Bucket::default(),
            grants: Vec::new(),
            ledger: Vec::new(),
            notices: Vec::new(),
            tally: Tally::default(),
            watched: None,
            history: Vec::new(),
            broken: None,
            stream: BTreeMap::new(),
            by_seq: Vec::new(),
            leaders: Vec::new(),
            workers: Vec::new(),
            control: Control::default(),
            heap: BinaryHeap::new(),
            actions: Vec::new(),
            unused: Vec::new(),
            order: 0,
            unpublished: plan.jobs.len(),
            open: plan.jobs.len(),
            idle_from: None,
            plan,
        };
        for index in 0..world.plan.jobs.len() {
            world.after(world.plan.jobs[index].at, Action::Publish(index));
        }
        for slots in world.plan.workers.clone() {
            world.after(0, Action::StartWorker { slots });
        }
        for _ in 0..world.plan.leaders {
            world.after(0, Action::StartLeader);
        }
        for (at, fault) in world.plan.faults.clone() {
            world.after(at, Action::Fault(fault));
        }
        if world.plan.tick.is_some() {
            world.after(0, Action::Check);
        }
        world
    }

    pub(crate) fn after(&mut self, delay: Millis, action: Action) {
        self.at(self.now + delay, action);
    }

    pub(crate) fn at(&mut self, at: Millis, action: Action) {
        self.order += 1;
        let place = self.unused.pop().unwrap_or(self.actions.len());
        if place == self.actions.len() {
            self.actions.push(None);
        }
        self.actions[place] = Some(action);
        self.heap.push(Reverse((at, self.order, place)));
    }

    /// One way between two processes.
    pub(crate) fn delay(&mut self) -> Millis {
        let (low, high) = self.plan.network.delay;
        self.rng.range(low, high)
    }

    /// Runs until all is idle or the plan's time is up.
    ///
    /// # Errors
    /// The first rule that was broken.
    pub fn run(&mut self) -> Result<(), Broken> {
        let until = self.plan.until;
        self.run_until(until)?;
        if self.plan.ends_idle {
            self.check_end()?;
        }
        Ok(())
    }

    /// Runs until `until`, or until all has been idle for long enough.
    ///
    /// # Errors
    /// The first rule that was broken.
    pub fn run_until(&mut self, until: Millis) -> Result<(), Broken> {
        while let Some(&Reverse((at, _, place))) = self.heap.peek() {
            if at > until {
                self.now = until;
                break;
            }
            self.heap.pop();
            self.unused.push(place);
            self.now = self.now.max(at);
            if let Some(action) = self.actions[place].take() {
                self.step(action);
            }
            if let Some(broken) = self.broken.take() {
                return Err(broken);
            }
            if self.plan.ends_idle && self.idle_long_enough() {
                break;
            }
        }
        Ok(())
    }

    fn step(&mut self, action: Action) {
        match action {
            Action::Publish(index) => self.publish(index),
            Action::Expire { seq, revision } => self.expire(seq, revision),
            Action::Grant {
                leader,
                term,
                credit,
                expected,
                silent,
            } => self.store_grant(leader, term, *credit, expected, silent),
            Action::Aside {
                leader,
                term,
                seq,
                why,
            } => self.store_aside(leader, term, seq, why),
            Action::Control {
                leader,
                expected,
                sent,
            } => self.store_control(leader, expected, sent),
            Action::Books { term, books } => {
                let newest = self.control.books.as_ref().map_or(Term(0), |saved| saved.0);
                if term >= newest {
                    self.control.books = Some((term, *books));
                }
            }
            Action::ControlExpires { revision } => {
                if self.control.revision == revision {
                    self.control.revision += 1;
                    self.control.held = false;
                    self.tell_control();
                }
            }
            Action::Leader(index, message) => {
                let leader = &self.leaders[index];
                if leader.alive && leader.paused_until > self.now {
                    self.at(leader.paused_until, Action::Leader(index, message));
                } else if leader.alive {
                    self.leader_takes(index, message);
                }
            }
            Action::Worker(index, message) => {
                let worker = &self.workers[index];
                if worker.alive && worker.paused_until > self.now {
                    self.at(worker.paused_until, Action::Worker(index, message));
                } else if worker.alive {
                    self.worker_takes(index, message);
                }
            }
            Action::StartWorker { slots } => self.start_worker(slots),
            Action::StartLeader => self.start_leader(),
            Action::RepairWatch { leader, term } => self.repair_watch(leader, term),
            Action::Fault(fault) => self.fault(fault),
            Action::Check => {
                self.check_waiting();
                self.after(
                    self.plan.tick.map_or(1_000, |tick| tick / 4).max(10),
                    Action::Check,
                );
            }
        }
    }

    // ---- the server -----------------------------------------------------------------------

    fn publish(&mut self, index: usize) {
        self.by_seq.push(index);
        let seq = JobSeq(self.by_seq.len() as u64);
        self.stream.insert(seq, index);
        self.jobs[index].seq = Some(seq);
        self.jobs[index].in_stream = true;
        self.unpublished -= 1;
        self.show_job(seq);
    }

    /// The job of a sequence.
    #[must_use]
    pub fn job_of(&self, seq: JobSeq) -> usize {
        self.by_seq[usize::try_from(seq.0).expect("a small number") - 1]
    }

    pub(crate) fn seen(&self, seq: JobSeq) -> JobSeen {
        let plan = &self.plan.jobs[self.job_of(seq)];
        JobSeen {
            seq,
            priority: plan.priority,
            tenant: plan.tenant.clone(),
            job: JobId::parse(&format!("j{seq}")).expect("a name"),
            kind: Kind::parse(plan.kind).expect("a name"),
            model: model(&plan.pool),
            pool: plan.pool.clone(),
            tokens: plan.estimate,
            fallback: plan.fallback.as_ref().map(|(pool, tokens)| Fallback {
                model: model(pool),
                pool: pool.clone(),
                tokens: *tokens,
            }),
            not_before: plan.not_before,
            deadline: plan.deadline,
        }
    }

    /// Writes a lease, starts its lifetime and tells whoever watches.
    pub(crate) fn write_lease(
        &mut self,
        seq: JobSeq,
        expected: u64,
        value: Value,
        ttl: Millis,
    ) -> Option<u64> {
        let written = self.bucket.write(seq, expected, value.clone());
        self.note(Some(seq), || {
            format!("write over {expected}: {written:?} {value:?}")
        });
        let revision = written?;
        self.after(ttl, Action::Expire { seq, revision });
        self.tell_lease(seq);
        if let Some(seq) = self.bucket.overruns.pop() {
            self.break_rule(
                Invariant::SettledOnce,
                format!("job {seq} was granted over a held lease"),
            );
        }
        Some(revision)
    }

    fn expire(&mut self, seq: JobSeq, revision: u64) {
        match self.bucket.expire(seq, revision) {
            Ended::Marked(revision) => {
                self.note(Some(seq), || format!("the lease ran out: {revision}"));
                self.tally.expired += 1;
                self.excuse_unsaved(seq);
                let keep = self.plan.leases.marker;
                self.after(keep, Action::Expire { seq, revision });
                self.tell_lease(seq);
            }
            Ended::Gone | Ended::Replaced => {}
        }
    }

    /// Stores the outcome of a job, if it is the first.
    pub(crate) fn save(&mut self, index: usize, done: bool) -> bool {
        if self.jobs[index].outcomes > 0 {
            return false;
        }
        self.jobs[index].outcomes = 1;
        self.jobs[index].done = done;
        self.jobs[index].ended_at = Some(self.now);
        self.open -= 1;
        true
    }

    pub(crate) fn delete(&mut self, seq: JobSeq) {
        if let Some(index) = self.stream.remove(&seq) {
            self.jobs[index].in_stream = false;
            let life = self.life(index);
            if let Err(broken) = invariants::one_outcome(&[life], false) {
                self.broken.get_or_insert(broken);
            }
        }
    }

    fn life(&self, index: usize) -> JobLife {
        let job = &self.jobs[index];
        JobLife {
            seq: job.seq.unwrap_or(JobSeq(0)),
            outcomes: job.outcomes,
            in_stream: job.in_stream,
        }
    }

    /// Writes down what concerns the watched job.
    pub(crate) fn note(&mut self, seq: Option<JobSeq>, what: impl FnOnce() -> String) {
        if self.watched.is_some() && (seq.is_none() || seq == self.watched) {
            self.history.push(format!("{:>8} {}", self.now, what()));
        }
    }

    pub(crate) fn break_rule(&mut self, invariant: Invariant, detail: String) {
        self.broken.get_or_insert(Broken { invariant, detail });
    }

    // ---- faults ---------------------------------------------------------------------------

    fn fault(&mut self, fault: Fault) {
        self.note(None, || format!("fault {fault:?}"));
        match fault {
            Fault::KillWorker { worker, restart } => {
                if let Some(index) = self.nth_worker(worker) {
                    self.kill_worker(index, restart);
                }
            }
            Fault::PauseWorker { worker, length } => {
                if let Some(index) = self.nth_worker(worker) {
                    self.workers[index].paused_until = self.now + length;
                }
            }
            Fault::DrainWorker { worker, restart } => {
                if let Some(index) = self.nth_worker(worker) {
                    self.drain_worker(index);
                    let slots = self.workers[index].slots;
                    self.after(restart, Action::StartWorker { slots });
                }
            }
            Fault::KillLeader { restart } => {
                if let Some(index) = self.leading() {
                    self.leaders[index].alive = false;
                    self.after(restart, Action::StartLeader);
                }
            }
            Fault::PauseLeader { length } => {
                if let Some(index) = self.leading() {
                    self.leaders[index].paused_until = self.now + length;
                }
            }
            Fault::HandOver => {
                if let Some(index) = self.leading() {
                    self.hand_over(index);
                }
            }
            Fault::KillSchedulers { restart } => {
                for index in 0..self.leaders.len() {
                    if self.leaders[index].alive {
                        self.leaders[index].alive = false;
                        self.after(restart, Action::StartLeader);
                    }
                }
            }
            Fault::BreakWatch { length } => {
                if let Some(index) = self.leading() {
                    self.break_watch(index, length);
                }
            }
            Fault::StepClock { by } => {
                if let Some(index) = self.leading() {
                    self.leaders[index].skew += by;
                }
            }
            Fault::Foreign { pool, tokens } => self.upstream.foreign(self.now, &pool, tokens),
            Fault::Policy { tenant, policy } => {
                self.plan.config.tenants.insert(tenant.clone(), policy);
                self.new_policy(tenant, policy);
            }
            Fault::Reweigh { tenant, weight } => {
                let weight = fairlane_core::drr::Weight(weight);
                let policy = Policy {
                    weight,
                    ..self.plan.config.default_policy
                };
                self.plan.config.tenants.insert(tenant.clone(), policy);
                self.new_policy(tenant, policy);
            }
        }
    }

    fn nth_worker(&self, nth: usize) -> Option<usize> {
        let alive: Vec<_> = (0..self.workers.len())
            .filter(|&index| self.workers[index].alive && !self.workers[index].draining)
            .collect();
        (!alive.is_empty()).then(|| alive[nth % alive.len()])
    }

    /// Who believes to lead.
    pub(crate) fn leading(&self) -> Option<usize> {
        let mut leading = (0..self.leaders.len())
            .filter(|&index| self.leaders[index].alive && self.leaders[index].run.is_some());
        leading.next_back()
    }

    // ---- checks ---------------------------------------------------------------------------

    /// Free slots of workers that can be given work, by what the bucket says is held.
    fn free_slots(&self) -> u32 {
        let held = self.held_by_worker();
        (0..self.workers.len())
            .filter(|&index| {
                let worker = &self.workers[index];
                worker.alive && !worker.draining && worker.paused_until <= self.now
            })
            .map(|index| {
                self.workers[index]
                    .slots
                    .saturating_sub(held.get(&index).copied().unwrap_or(0))
            })
            .sum()
    }

    fn held_by_worker(&self) -> BTreeMap<usize, u32> {
        let mut held = BTreeMap::new();
        for (_, seq, _) in self.bucket.all() {
            if let Some(credit) = self.bucket.holder(seq)
                && let Some(index) = self.worker_index(&credit.worker)
            {
                *held.entry(index).or_insert(0) += 1;
            }
        }
        held
    }

    fn check_waiting(&mut self) {
        let Some(tick) = self.plan.tick else { return };
        let keeps = self
            .leading()
            .is_some_and(|index| self.leaders[index].keeps_a_worker());
        let steady = self.leader_is_steady() && !keeps;
        let free = if steady { self.free_slots() } else { 0 };
        let kept = slots_kept(self.workers.iter().map(|worker| worker.slots).sum());
        let mut in_flight: BTreeMap<TenantId, u32> = BTreeMap::new();
        for (_, seq, _) in self.bucket.all() {
            if let Some(credit) = self.bucket.holder(seq) {
                *in_flight.entry(credit.tenant.clone()).or_insert(0) += 1;
            }
        }
        let waiting: Vec<_> = self
            .stream
            .iter()
            .map(|(&seq, &index)| (seq, index))
            .collect();
        for (seq, index) in waiting {
            let plan = &self.plan.jobs[index];
            let at_cap = in_flight.get(&plan.tenant).copied().unwrap_or(0)
                >= self.plan.config.default_policy.in_flight_max;
            let has_room = !self.plan.config.limits.contains_key(&plan.pool);
            let may_run = plan.not_before.is_none_or(|at| at <= self.now)
                && plan.deadline.is_none_or(|at| at > self.now);
            let kept = if plan.priority == Priority::Critical {
                0
            } else {
                kept
            };
            let eligible = steady
                && free > kept
                && has_room
                && may_run
                && !at_cap
                && !self.bucket.is_live(seq);
            if !eligible {
                self.jobs[index].idle_since = None;
                continue;
            }
            let since = *self.jobs[index].idle_since.get_or_insert(self.now);
            if let Err(broken) = work_conserving(seq, self.now - since, tick) {
                self.broken.get_or_insert(broken);
                return;
            }
        }
    }

    fn idle_long_enough(&mut self) -> bool {
        let idle = self.unpublished == 0
            && self.open == 0
            && self.stream.is_empty()
            && self.bucket.held() == 0;
        if !idle {
            self.idle_from = None;
            return false;
        }
        let from = *self.idle_from.get_or_insert(self.now);
        let remembered = self
            .leading()
            .and_then(|index| self.leaders[index].remembered())
            .unwrap_or(1);
        // What is remembered must go by itself, in the time that traces of leases stay.
        let patience = 70_000 + self.plan.leases.parked_margin;
        (remembered == 0 && self.leader_is_steady() && self.now > from + 100)
            || self.now > from + patience
    }

    fn check_end(&self) -> Result<(), Broken> {
        let lives: Vec<_> = (0..self.jobs.len()).map(|index| self.life(index)).collect();
        invariants::one_outcome(&lives, true)?;
        invariants::settled_once(&self.bucket.lives, true)?;
        self.check_safety()?;
        let Some(leader) = self.leading() else {
            return invariants::bounded("fleets without a leader", 1, 0);
        };
        self.leaders[leader].check_forgotten()
    }

    /// What must hold at any time.
    ///
    /// # Errors
    /// The rule that is broken.
    pub fn check_safety(&self) -> Result<(), Broken> {
        invariants::settled_once(&self.bucket.lives, false)?;
        invariants::fenced(&self.bucket.fences)?;
        let payments: Vec<_> = self
            .jobs
            .iter()
            .map(|job| Payments {
                seq: job.seq.unwrap_or(JobSeq(0)),
                successes: job.successes,
                excused: job.excused,
            })
            .collect();
        invariants::paid_once(&payments)
    }

    /// Why a job waits, in the leader's own words.
    pub fn why(&mut self, seq: JobSeq) -> String {
        match self.leading() {
            Some(index) => self.leaders[index].why(seq, self.now),
            None => "nobody leads".to_owned(),
        }
    }

    // ---- what tests ask ---------------------------------------------------------------------

    /// Credits the leader counts as held, and those the bucket holds.
    #[must_use]
    pub fn outstanding(&self) -> (Option<usize>, usize) {
        let counted = self.leading().and_then(|index| self.leaders[index].live());
        (counted, self.bucket.held())
    }

    /// The minutes that whoever leads now has measured.
    pub fn fairness(&mut self) -> Vec<Window> {
        match self.leading() {
            Some(index) => self.leaders[index].fairness(self.now),
            None => Vec::new(),
        }
    }

    /// Cost, by actual usage, of the calls that were taken between two times and that `of` picks.
    #[must_use]
    pub fn cost(&self, from: Millis, to: Millis, of: impl Fn(&JobPlan) -> bool) -> i64 {
        let weights = self.plan.config.cost_weights;
        self.upstream
            .calls
            .iter()
            .filter(|call| call.answer == Answer::Taken && (from..to).contains(&call.at))
            .map(|call| &self.plan.jobs[call.job])
            .filter(|job| of(job))
            .map(|job| Cost::of(job.actual, weights).0)
            .sum()
    }

    /// When calls of `pool` were taken upstream, in order, between two times.
    #[must_use]
    pub fn taken(&self, pool: &PoolId, from: Millis, to: Millis) -> Vec<&Call> {
        self.upstream
            .calls
            .iter()
            .filter(|call| {
                call.answer == Answer::Taken && call.pool == *pool && (from..to).contains(&call.at)
            })
            .collect()
    }
}
