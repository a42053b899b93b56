//! Choosing the next job and its worker.

use std::collections::BTreeMap;

use super::gates::{GateKey, Passage};
use super::lanes::Flow;
use super::picture::{Job, Lease, Leaving, Turn};
use super::pools::PoolIx;
use super::{Credit, Effect, PutAside, Scheduler};
use crate::Millis;
use crate::breaker::Gate;
use crate::ids::{JobSeq, WorkerId};
use crate::job::Priority;

/// Slots of which one is kept for critical work, while there is some now and then.
const SLOTS_PER_RESERVE: u32 = 50;

/// Fleets with fewer slots keep none.
const RESERVE_FROM_SLOTS: u32 = 10;

/// Slots are kept for critical work for so long after there was some.
const RESERVE_FOR: Millis = 600_000;

/// Jobs that step out of line in one pass, because the upstream would refuse them.
const STEP_ASIDE_MAX: usize = 1_000;

impl Scheduler {
    /// The job to run next in one of `free` slots, out of all pools that have room.
    pub(super) fn choose(&mut self, free: u32) -> Option<Turn> {
        for _ in 0..STEP_ASIDE_MAX {
            match self.candidate(free)? {
                Candidate::Run(turn) => return Some(turn),
                Candidate::PutAside(seq, why) => self.put_aside_now(seq, why),
                Candidate::Wait(seq, gate) => {
                    self.out_of_line(seq);
                    let tenant = self.jobs[&seq].tenant;
                    self.gates.wait(&gate, tenant, seq);
                }
                Candidate::StayHome(seq) => {
                    self.out_of_line(seq);
                    if let Some(job) = self.jobs.get_mut(&seq) {
                        job.stay_home();
                    }
                    self.line_up(seq);
                }
            }
        }
        // The rest of them in the next pass.
        self.ask_again(Some(self.now));
        None
    }

    /// One pass over the pools. Each names the job whose turn it is; when slots are short it is
    /// shared among them as within a pool: by priority first, then by who has waited for a turn.
    fn candidate(&mut self, free: u32) -> Option<Candidate> {
        self.account_is_open()?;
        let mut best: [Option<(u64, PoolIx, Turn)>; 3] = [None; 3];
        for pool in self.pools.all() {
            if self.pool_waits == Some(pool) {
                continue;
            }
            let Some(flow) = self.lanes.next(pool, self.complete) else {
                continue;
            };
            let Some(seq) = self.lanes.head(flow, self.tenants.is_demoted(flow.tenant)) else {
                continue;
            };
            let job = &self.jobs[&seq];
            if let Some(why) = self.why_aside(job) {
                return Some(Candidate::PutAside(seq, why));
            }
            let tokens = job.run_in(pool).tokens;
            match self.gate_before(seq, pool) {
                None => {}
                Some(Obstacle::Pool(at)) => {
                    self.ask_again(at);
                    continue;
                }
                // Nobody knows for how long, and its own model may be well long before.
                Some(Obstacle::Job(_)) if job.run_in(pool).is_fallback => {
                    return Some(Candidate::StayHome(seq));
                }
                Some(Obstacle::Job(gate)) => return Some(Candidate::Wait(seq, gate)),
            }
            match self.room(flow, tokens) {
                Ok(()) => {
                    let rank = (self.pools.last_turn(pool), pool, Turn { flow, seq });
                    let best = &mut best[flow.priority.index()];
                    if best.is_none_or(|best| (rank.0, rank.1) < (best.0, best.1)) {
                        *best = Some(rank);
                    }
                }
                Err(at) => self.ask_again(at),
            }
        }
        let waiting = best.map(|best| best.is_some());
        let priority = self.slot_shares.next(waiting)?;
        let (_, pool, turn) = best[priority.index()]?;
        // Where critical work could run, the shares decide; slots are kept for what may yet come.
        if !waiting[Priority::Critical.index()] && free <= self.kept_slots() {
            return None;
        }
        let cost = self.jobs[&turn.seq].run_in(pool).cost;
        self.slot_shares.serve(priority, cost, waiting);
        self.pools.took_turn(pool);
        Some(Candidate::Run(turn))
    }

    /// What is refused on a job's way upstream in `pool`, beyond what the account is.
    fn gate_before(&self, seq: JobSeq, pool: PoolIx) -> Option<Obstacle> {
        if self.gates.is_empty() {
            return None;
        }
        let [_, of_pool, of_model, of_kind] = Self::gates_of(&self.jobs[&seq], pool);
        match self.gates.passage(&of_pool, self.now) {
            Passage::Free | Passage::Ajar => {}
            Passage::Shut(until) => return Some(Obstacle::Pool(Some(until))),
            Passage::Probing => return Some(Obstacle::Pool(None)),
        }
        [of_model, of_kind]
            .into_iter()
            .find(|gate| match self.gates.passage(gate, self.now) {
                Passage::Free | Passage::Ajar => false,
                Passage::Shut(_) | Passage::Probing => true,
            })
            .map(Obstacle::Job)
    }

    /// Whether calls may be made at all now.
    pub(super) fn account_is_open(&mut self) -> Option<()> {
        match self.gates.passage(&GateKey::Account, self.now) {
            Passage::Free | Passage::Ajar => {}
            Passage::Shut(until) => {
                self.ask_again(Some(until));
                return None;
            }
            Passage::Probing => return None,
        }
        match self.window.room(self.fleet.occupied(), self.now) {
            Ok(()) => Some(()),
            Err(at) => {
                self.ask_again(Some(at));
                None
            }
        }
    }

    /// Whether a flow's job of `tokens` may start now; otherwise when to ask again, or None if an
    /// event will tell.
    pub(super) fn room(
        &mut self,
        flow: Flow,
        tokens: crate::job::Tokens,
    ) -> Result<(), Option<Millis>> {
        // Where critical work is in line the shares decide; room is kept for what may yet come.
        let critical_waits = self.lanes.waiting(flow.pool)[Priority::Critical.index()];
        let keeps_reserve = flow.priority != Priority::Critical && !critical_waits;
        self.pools
            .admits(flow.pool, tokens, keeps_reserve, self.now)
    }

    /// Slots that other work leaves free for critical work to come.
    fn kept_slots(&self) -> u32 {
        let is_expected = self
            .critical_at
            .is_some_and(|at| self.now.saturating_sub(at) < RESERVE_FOR);
        let (_, slots) = self.fleet.size(self.now, self.config.worker_silence_max);
        if is_expected { slots_kept(slots) } else { 0 }
    }

    /// Dispatching again is worth while at this time.
    pub(super) fn ask_again(&mut self, at: Option<Millis>) {
        self.room_at = [self.room_at, at].into_iter().flatten().min();
    }

    fn why_aside(&self, job: &Job) -> Option<PutAside> {
        if job.called_off {
            return Some(PutAside::CalledOff);
        }
        if job.is_late(self.now) {
            return Some(PutAside::DeadlinePassed);
        }
        if job.lost >= self.config.max_deliver {
            return Some(PutAside::Undeliverable {
                deliveries: job.lost,
            });
        }
        None
    }

    pub(super) fn put_aside_now(&mut self, seq: JobSeq, why: PutAside) {
        self.out_of_line(seq);
        if let Some(job) = self.jobs.get_mut(&seq) {
            job.leaving = Leaving::Asked;
        }
        self.effects.push(Effect::PutAside { seq, why });
    }

    pub(super) fn put_aside_again(&mut self, seq: JobSeq) {
        let Some(job) = self.jobs.get(&seq) else {
            return;
        };
        match self.why_aside(job) {
            Some(why) => self.put_aside_now(seq, why),
            None => self.keep(seq),
        }
    }

    pub(super) fn grant(&mut self, turn: Turn, worker: WorkerId) {
        let Turn { flow, seq } = turn;
        let pool = flow.pool;
        let job = &self.jobs[&seq];
        let run = job.run_in(pool);
        let (tokens, cost, queue) = (run.tokens, run.cost, job.queue());
        let credit = Credit {
            seq,
            priority: flow.priority,
            tenant: self.tenants.name(flow.tenant).clone(),
            job: job.job.clone(),
            model: run.model.clone(),
            pool: self.pools.name(pool).clone(),
            worker,
            delivery: job.deliveries + 1,
            tokens,
            cost,
            term: self.term,
            granted_at: self.now,
            probe: self.pools.breaker(pool).gate(self.now) == Gate::HalfOpen,
        };
        if !self.gates.is_empty() {
            let gates = Self::gates_of(job, pool);
            self.gates.sent(&gates, seq, self.now);
        }
        if credit.probe {
            self.pools.breaker(pool).probe_sent();
            self.pools.set_probe(pool, Some(seq));
        }
        if self.lanes.remove(queue, seq) {
            self.lanes.serve(flow, cost);
        }
        self.pools
            .granted(pool, flow.priority, tokens, cost, self.now);
        self.tenants.granted(flow.tenant, cost, self.now);
        self.charge(&credit);
        self.measure_grant(&credit);
        self.refresh(flow);
        self.refresh_queue(queue);
        self.refresh_tenant(flow.tenant);
        self.check_budget(flow.tenant);
        let expected = lease_revision(&self.leases, seq);
        self.leases
            .insert(seq, Lease::asked(expected, credit.clone()));
        self.effects.push(Effect::Grant { credit, expected });
    }
}

/// What is refused.
enum Obstacle {
    /// Everything in the pool, until then; None: until a probe is back.
    Pool(Option<Millis>),
    /// The job and others like it.
    Job(GateKey),
}

/// Of so many slots, those that are kept for critical work while there is some now and then.
#[must_use]
pub fn slots_kept(slots: u32) -> u32 {
    if slots >= RESERVE_FROM_SLOTS {
        (slots / SLOTS_PER_RESERVE).max(1)
    } else {
        0
    }
}

enum Candidate {
    Run(Turn),
    PutAside(JobSeq, PutAside),
    /// It steps out of line, behind a gate.
    Wait(JobSeq, GateKey),
    /// The other model that may run it is refused.
    StayHome(JobSeq),
}

fn lease_revision(leases: &BTreeMap<JobSeq, Lease>, seq: JobSeq) -> u64 {
    leases.get(&seq).map_or(0, |lease| lease.revision)
}
