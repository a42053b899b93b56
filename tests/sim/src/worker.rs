//! A worker process: announces itself, starts credits, calls, and ends each delivery in the order
//! outcome, job, lease. A kill may fall between any two steps.

use std::collections::BTreeMap;

use fairlane_core::attempt::{self, Allowance, Decision, Jitter};
use fairlane_core::breaker::Sample;
use fairlane_core::failure::{
    Cut, Ending, ErrorAnswer, ErrorCode, ErrorKind, Health, Hint, Place, RefusalCategory,
    RetryAfter, StopReason, classify,
};
use fairlane_core::invariants::Invariant;
use fairlane_core::limiter::Observation;
use fairlane_core::scheduler::{Credit, Outcome, Pause, Refused, Settlement};
use fairlane_core::{JobSeq, Millis, Tokens, WorkerId};

use crate::bucket::Value;
use crate::leader::LeaderMsg;
use crate::plan::Nature;
use crate::upstream::Answer;
use crate::world::{Action, World};

/// A worker process.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) alive: bool,
    pub(crate) paused_until: Millis,
    pub(crate) draining: bool,
    pub(crate) slots: u32,
    name: WorkerId,
    deliveries: BTreeMap<u64, Delivery>,
    next: u64,
}

#[derive(Debug)]
struct Delivery {
    credit: Credit,
    revision: u64,
    /// When the last write of the lease was sent.
    renewed_at: Millis,
    stage: Stage,
    used: Option<Tokens>,
    observed: Observation,
    pause: Option<Pause>,
    refused: Option<Refused>,
    sample: Option<Sample>,
    /// A call was taken that has no saved outcome yet.
    at_stake: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Begin,
    Calling,
    Save { done: bool },
    Delete,
    End(Outcome),
}

/// What a worker process is told.
#[derive(Debug)]
pub(crate) enum WorkerMsg {
    Announce,
    /// The leader asks who is there.
    Called,
    Grant(Box<Credit>, u64),
    Step(u64),
    Renew(u64),
    CallEnded(u64, Answer),
}

/// Before a call, a lease older than its lifetime less this is not trusted.
const MARGIN: Millis = 2_000;

impl World {
    pub(crate) fn start_worker(&mut self, slots: u32) {
        let index = self.workers.len();
        self.workers.push(Worker {
            alive: true,
            paused_until: 0,
            draining: false,
            slots,
            name: WorkerId::parse(&format!("w{index}")).expect("a name"),
            deliveries: BTreeMap::new(),
            next: 0,
        });
        self.after(0, Action::Worker(index, WorkerMsg::Announce));
    }

    pub(crate) fn worker_index(&self, name: &WorkerId) -> Option<usize> {
        name.as_str().strip_prefix('w')?.parse().ok()
    }

    pub(crate) fn kill_worker(&mut self, index: usize, restart: Millis) {
        self.tally.workers_killed += 1;
        let worker = &mut self.workers[index];
        worker.alive = false;
        let slots = worker.slots;
        let at_stake: Vec<_> = worker
            .deliveries
            .values()
            .filter(|delivery| delivery.at_stake)
            .map(|delivery| delivery.credit.seq)
            .collect();
        worker.deliveries.clear();
        for seq in at_stake {
            let job = self.job_of(seq);
            self.jobs[job].excused += 1;
        }
        self.after(restart, Action::StartWorker { slots });
    }

    pub(crate) fn drain_worker(&mut self, index: usize) {
        self.workers[index].draining = true;
        self.announce(index);
        self.leave_if_drained(index);
    }

    fn leave_if_drained(&mut self, index: usize) {
        let worker = &mut self.workers[index];
        if worker.draining && worker.deliveries.is_empty() {
            // Grants that are under way are handed back for a while.
            self.after(1_000, Action::Worker(index, WorkerMsg::Step(u64::MAX)));
        }
    }

    /// The lease on `seq` ran out while its holder had called and not saved: a second call for it
    /// is nobody's mistake.
    pub(crate) fn excuse_unsaved(&mut self, seq: JobSeq) {
        let mut excused = 0;
        for worker in &mut self.workers {
            for delivery in worker.deliveries.values_mut() {
                if delivery.credit.seq == seq && delivery.at_stake {
                    delivery.at_stake = false;
                    excused += 1;
                }
            }
        }
        let job = self.job_of(seq);
        self.jobs[job].excused += excused;
    }

    fn announce(&mut self, index: usize) {
        let worker = &self.workers[index];
        let (name, slots, draining) = (worker.name.clone(), worker.slots, worker.draining);
        for leader in 0..self.leaders.len() {
            if !self.leaders[leader].alive || self.leaders[leader].run.is_none() {
                continue;
            }
            let delay = self.delay();
            let message = LeaderMsg::Ready {
                worker: name.clone(),
                slots,
                draining,
            };
            self.after(delay, Action::Leader(leader, message));
        }
    }

    pub(crate) fn worker_takes(&mut self, index: usize, message: WorkerMsg) {
        match message {
            WorkerMsg::Announce => {
                self.announce(index);
                self.after(1_000, Action::Worker(index, WorkerMsg::Announce));
            }
            WorkerMsg::Called => self.announce(index),
            WorkerMsg::Grant(credit, revision) => self.start(index, *credit, revision),
            WorkerMsg::Step(u64::MAX) => {
                if self.workers[index].deliveries.is_empty() {
                    self.workers[index].alive = false;
                }
            }
            WorkerMsg::Step(id) => self.deliver(index, id),
            WorkerMsg::Renew(id) => self.renew(index, id),
            WorkerMsg::CallEnded(id, answer) => self.call_ended(index, id, answer),
        }
    }

    fn step_soon(&mut self, index: usize, id: u64) {
        let delay = self.delay();
        self.after(delay, Action::Worker(index, WorkerMsg::Step(id)));
    }

    /// Starting replaces the very revision the leader stored: that is the check.
    fn start(&mut self, index: usize, credit: Credit, revision: u64) {
        let seq = credit.seq;
        let value = Value::Running(credit.clone());
        let held = self.plan.leases.held;
        let Some(revision) = self.write_lease(seq, revision, value, held) else {
            self.tally.stale_starts += 1;
            return;
        };
        let worker = &mut self.workers[index];
        let id = worker.next;
        worker.next += 1;
        let stage = if worker.draining {
            Stage::End(Outcome::Returned)
        } else {
            Stage::Begin
        };
        worker.deliveries.insert(
            id,
            Delivery {
                credit,
                revision,
                renewed_at: self.now,
                stage,
                used: None,
                observed: Observation::default(),
                pause: None,
                refused: None,
                sample: None,
                at_stake: false,
            },
        );
        let renew = self.plan.leases.renew;
        self.after(renew, Action::Worker(index, WorkerMsg::Renew(id)));
        self.step_soon(index, id);
    }

    fn renew(&mut self, index: usize, id: u64) {
        let Some(delivery) = self.workers[index].deliveries.get(&id) else {
            return;
        };
        let (credit, revision) = (delivery.credit.clone(), delivery.revision);
        let held = self.plan.leases.held;
        let renewed = self.write_lease(credit.seq, revision, Value::Running(credit), held);
        let now = self.now;
        let worker = &mut self.workers[index];
        match (renewed, worker.deliveries.get_mut(&id)) {
            (Some(revision), Some(delivery)) => {
                delivery.revision = revision;
                delivery.renewed_at = now;
                let renew = self.plan.leases.renew;
                self.after(renew, Action::Worker(index, WorkerMsg::Renew(id)));
            }
            (Some(_) | None, _) => self.leave(index, id),
        }
    }

    /// The delivery is over for this worker, whatever became of it.
    fn leave(&mut self, index: usize, id: u64) {
        if let Some(delivery) = self.workers[index].deliveries.remove(&id)
            && delivery.at_stake
        {
            let job = self.job_of(delivery.credit.seq);
            self.jobs[job].excused += 1;
        }
        self.leave_if_drained(index);
    }

    fn deliver(&mut self, index: usize, id: u64) {
        let Some(delivery) = self.workers[index].deliveries.get_mut(&id) else {
            return;
        };
        let seq = delivery.credit.seq;
        match delivery.stage {
            Stage::Begin => self.begin(index, id, seq),
            Stage::Calling => {}
            Stage::Save { done } => {
                delivery.stage = Stage::Delete;
                delivery.at_stake = false;
                let job = self.job_of(seq);
                self.save(job, done);
                self.step_soon(index, id);
            }
            Stage::Delete => {
                delivery.stage = Stage::End(Outcome::Finished);
                self.delete(seq);
                self.step_soon(index, id);
            }
            Stage::End(outcome) => {
                let settlement = Settlement {
                    credit: delivery.credit.clone(),
                    outcome,
                    used: delivery.used,
                    observed: delivery.observed,
                    refused: delivery.refused,
                    pause: delivery.pause,
                    sample: delivery.sample,
                };
                let (revision, leases) = (delivery.revision, self.plan.leases);
                let (value, ttl) = match outcome {
                    Outcome::Parked { until } | Outcome::Asked { until } => (
                        Value::Parked(settlement),
                        until.saturating_sub(self.now) + leases.parked_margin,
                    ),
                    Outcome::Finished | Outcome::Returned => {
                        (Value::Tombstone(settlement), leases.tombstone)
                    }
                };
                if self.write_lease(seq, revision, value, ttl).is_none() {
                    self.tally.lost_leases += 1;
                }
                self.leave(index, id);
            }
        }
    }

    fn begin(&mut self, index: usize, id: u64, seq: JobSeq) {
        let (now, held) = (self.now, self.plan.leases.held);
        let job = self.job_of(seq);
        let gone = !self.stream.contains_key(&seq);
        let over = self.jobs[job].outcomes > 0;
        let Some(delivery) = self.workers[index].deliveries.get_mut(&id) else {
            return;
        };
        if gone {
            delivery.stage = Stage::End(Outcome::Finished);
            self.step_soon(index, id);
        } else if over {
            delivery.stage = Stage::Delete;
            self.step_soon(index, id);
        } else if now - delivery.renewed_at + MARGIN > held {
            self.leave(index, id);
        } else if self.plan.jobs[job].nature == Nature::Deadly {
            self.kill_worker(index, 500);
        } else {
            delivery.stage = Stage::Calling;
            self.call(index, id, job, seq);
        }
    }

    fn call(&mut self, index: usize, id: u64, job: usize, seq: JobSeq) {
        if self.bucket.holder(seq).map(|credit| &credit.worker) != Some(&self.workers[index].name) {
            let detail = format!("job {seq} was called with a dead credit");
            self.break_rule(Invariant::Fenced, detail);
        }
        let plan = &self.plan.jobs[job];
        let (kind, service) = (plan.kind, plan.service);
        let Some(delivery) = self.workers[index].deliveries.get(&id) else {
            return;
        };
        let pool = delivery.credit.pool.clone();
        let actual = plan.actual_in(&pool);
        let answer = self
            .upstream
            .call(self.now, (job, seq), kind, &pool, actual, service);
        self.jobs[job].calls += 1;
        let taken = answer == Answer::Taken;
        let nature = self.plan.jobs[job].nature;
        let succeeds = match nature {
            Nature::Good | Nature::CutOnce => taken,
            Nature::Truncated => taken && self.jobs[job].history.had_more_room,
            Nature::Poison | Nature::Refused | Nature::Deadly => false,
        };
        if succeeds {
            self.jobs[job].successes += 1;
            if self.jobs[job].successes > 1 {
                self.tally.double_paid += 1;
            }
            if let Some(delivery) = self.workers[index].deliveries.get_mut(&id) {
                delivery.at_stake = true;
            }
        }
        let after = if taken { service } else { 20 };
        self.after(
            after,
            Action::Worker(index, WorkerMsg::CallEnded(id, answer)),
        );
    }

    fn ending(&self, job: usize, answer: Answer) -> Ending {
        let refused = |status, kind, code, hint, retry_after: Option<Millis>| {
            Ending::Error(ErrorAnswer {
                status,
                kind,
                code,
                hint,
                retry_after: retry_after.and_then(RetryAfter::from_ms),
                should_retry: None,
                place: Place::BeforeStream,
            })
        };
        let error = |status, kind, after| refused(status, kind, None, None, after);
        match answer {
            Answer::SpendLimit => {
                let code = Some(ErrorCode::EnforcedSpendLimitReached);
                refused(429, ErrorKind::RateLimit, code, None, None)
            }
            Answer::NoModel => refused(404, ErrorKind::NotFound, None, Some(Hint::Model), None),
            Answer::Forbidden => error(403, ErrorKind::Permission, None),
            Answer::TooManyAtOnce => {
                let hint = Some(Hint::ConcurrentConnections);
                refused(429, ErrorKind::RateLimit, None, hint, None)
            }
            Answer::TooMany { retry_after } => error(429, ErrorKind::RateLimit, Some(retry_after)),
            Answer::Overloaded => error(529, ErrorKind::Overloaded, None),
            Answer::Taken => match self.plan.jobs[job].nature {
                Nature::Good | Nature::Deadly => Ending::Message(StopReason::EndTurn),
                Nature::Poison => error(400, ErrorKind::InvalidRequest, None),
                Nature::Refused => Ending::Message(StopReason::Refusal(RefusalCategory::None)),
                Nature::Truncated if self.jobs[job].history.had_more_room => {
                    Ending::Message(StopReason::EndTurn)
                }
                Nature::Truncated => Ending::Message(StopReason::MaxTokens),
                Nature::CutOnce if self.jobs[job].history.ambiguous == 0 => {
                    Ending::Cut(Cut::WithoutMessageStop)
                }
                Nature::CutOnce => Ending::Message(StopReason::EndTurn),
            },
        }
    }

    fn call_ended(&mut self, index: usize, id: u64, answer: Answer) {
        let Some(delivery) = self.workers[index].deliveries.get(&id) else {
            return;
        };
        let seq = delivery.credit.seq;
        let job = self.job_of(seq);
        let ending = self.ending(job, answer);
        let verdict = classify(&ending);
        let jitter = Jitter {
            retry: self.rng.fraction(),
            pause: self.rng.fraction(),
        };
        let allowance = Allowance {
            attempts_max: self.plan.attempts_max,
            max_tokens: 1_000,
            output_tokens_max: 64_000,
            is_probe: delivery.credit.probe,
        };
        let decision = attempt::decide(&verdict, self.jobs[job].history, allowance, jitter);
        let pool = delivery.credit.pool.clone();
        let actual = self.plan.jobs[job].actual_in(&pool);
        let observed = self.upstream.observe(self.now, &pool);
        if answer == Answer::Taken {
            let tenant = delivery.credit.tenant.clone();
            self.book(tenant, actual.input);
        }
        let mut excused = false;
        let now = self.now;
        let over = self.jobs[job].outcomes > 0;
        let Some(delivery) = self.workers[index].deliveries.get_mut(&id) else {
            return;
        };
        delivery.used = (answer == Answer::Taken).then_some(actual);
        delivery.observed = observed;
        delivery.refused = match answer {
            Answer::TooMany { .. } => Some(Refused::RateLimit),
            Answer::Overloaded => Some(Refused::Overloaded),
            Answer::Taken
            | Answer::SpendLimit
            | Answer::NoModel
            | Answer::Forbidden
            | Answer::TooManyAtOnce => None,
        };
        delivery.sample = match verdict.health {
            Health::NoSample => None,
            Health::Good => Some(Sample::Good),
            Health::UpstreamBad | Health::NetworkBad => Some(Sample::Bad),
        };
        match decision {
            Decision::Keep | Decision::Continue => delivery.stage = Stage::Save { done: true },
            Decision::Bury(_) => delivery.stage = Stage::Save { done: false },
            Decision::Retry(_) if over => delivery.stage = Stage::Delete,
            Decision::Retry(retry) => {
                // A call that nobody answered may be paid for again.
                excused = std::mem::take(&mut delivery.at_stake);
                let until = now + retry.after_ms;
                delivery.pause = retry.hold.map(|hold| Pause {
                    scope: hold.scope,
                    until: now + hold.ms,
                    probe: hold.probe,
                });
                delivery.stage = Stage::End(Outcome::Parked { until });
                self.jobs[job].history = retry.history;
            }
        }
        if excused {
            self.jobs[job].excused += 1;
        }
        self.step_soon(index, id);
    }
}
