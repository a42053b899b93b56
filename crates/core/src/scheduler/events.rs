//! What each event changes. Revisions decide what is news: a replay changes nothing.

use super::books::flow_of;
use super::gates::{Finding, GateKey};
use super::picture::{Job, Lease, LeaseState, Leaving, Run};
use super::pools::PoolIx;
use super::tenants::TenantIx;
use super::{
    Credit, Effect, JobSeen, Notice, Outcome, Pause, RETRY_AFTER, Refused, Scheduler, Settlement,
    TRACE_KEEP,
};
use crate::breaker::{Gate, Sample, TenantKey};
use crate::failure::Scope;
use crate::ids::{JobSeq, Kind, ModelId, PoolId};
use crate::job::{Cost, Tokens};

impl Scheduler {
    pub(super) fn job_seen(&mut self, seen: JobSeen) {
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
        let tenant = self.tenant(&seen.tenant);
        let own = self.run(tenant, &seen.kind, seen.model, &seen.pool, seen.tokens);
        let spare = seen
            .fallback
            .map(|other| Run {
                is_fallback: true,
                ..self.run(tenant, &seen.kind, other.model, &other.pool, other.tokens)
            })
            .filter(|spare| spare.pool != own.pool)
            .map(Box::new);
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
            kind: seen.kind,
            own,
            spare,
            not_before,
            deadline: seen.deadline,
            deliveries,
            lost: self.lost.get(&seen.seq).copied().unwrap_or(0),
            leaving: Leaving::No,
            called_off: false,
        };
        if let Some(deadline) = job.deadline {
            self.timers.insert((deadline, seen.seq));
        }
        self.jobs.insert(seen.seq, job);
        self.line_up(seen.seq);
        self.count_arrival(seen.seq, seen.priority);
    }

    fn run(
        &mut self,
        tenant: TenantIx,
        kind: &Kind,
        model: ModelId,
        pool: &PoolId,
        estimate: Tokens,
    ) -> Run {
        Run {
            profile: self.learned.profile(tenant.0, kind, &model),
            pool: self.pool(pool),
            model,
            is_fallback: false,
            estimate,
            tokens: estimate,
            cost: Cost::of(estimate, self.config.cost_weights),
        }
    }

    pub(super) fn held(&mut self, credit: Credit, started: bool, revision: u64) {
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
                let tenant = self.tenant(&credit.tenant);
                if credit.term == self.term {
                    // Ours, though we were told it was not stored: its charge was taken back.
                    let (pool, weight) = (self.pool(&credit.pool), self.weight(tenant));
                    self.lanes
                        .correct(flow_of(pool, tenant, &credit), weight, credit.cost);
                    self.measure_grant(&credit);
                }
                self.leases
                    .insert(seq, Lease::held(revision, credit, started));
                self.out_of_line(seq);
                self.refresh_tenant(tenant);
            }
        }
    }

    pub(super) fn put_aside(&mut self, seq: JobSeq) {
        self.forget_job(seq);
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

    pub(super) fn put_aside_failed(&mut self, seq: JobSeq) {
        if let Some(job) = self.jobs.get_mut(&seq)
            && job.leaving == Leaving::Asked
        {
            job.leaving = Leaving::Again;
            self.timers.insert((self.now + RETRY_AFTER, seq));
        }
    }

    pub(super) fn settled(&mut self, settlement: Settlement, revision: u64) {
        let Settlement {
            credit,
            outcome,
            used,
            observed,
            refused,
            pause,
            sample,
        } = settlement;
        let seq = credit.seq;
        if !self.is_news(seq, revision) {
            return;
        }
        let pool = self.pool(&credit.pool);
        let is_booked = self.booked.settlement(revision);
        if !is_booked {
            if refused == Some(Refused::RateLimit) {
                self.throttled(pool, &credit);
            }
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
        if used.is_some() && refused.is_none() && outcome != Outcome::Returned {
            let time = self.now.saturating_sub(credit.granted_at);
            self.pools.kept_slot(pool, time, self.now);
        }
        // After the refund: what the upstream says remains is an upper bound on the whole.
        if !is_booked {
            let limits = self.pools.limits(pool);
            limits.observe(observed, self.now);
            if let Some(pause) = pause {
                self.pause(pool, &credit, pause);
            }
        }
        let has_passed = pause.is_none() && (sample == Some(Sample::Good) || used.is_some());
        let finding = if has_passed {
            Finding::Passed
        } else {
            Finding::Nothing
        };
        self.probed(seq, finding);
        self.out_of_line(seq);
        if let Some(job) = self.jobs.get_mut(&seq) {
            match refused {
                Some(Refused::Overloaded) => job.swap_models(pool),
                Some(Refused::RateLimit) => {}
                // If this was the other model, it may never take this job.
                None => job.go_home(),
            }
        }
        let lesson = used.filter(|_| sample == Some(Sample::Good));
        self.became(&credit, outcome, lesson, revision);
    }

    /// What became of a job whose delivery is over, and what it teaches about others like it.
    fn became(&mut self, credit: &Credit, outcome: Outcome, lesson: Option<Tokens>, revision: u64) {
        let seq = credit.seq;
        match outcome {
            Outcome::Finished => {
                if let Some(job) = self.forget_job(seq) {
                    if let Some(used) = lesson {
                        let run = job.run_in(self.pool(&credit.pool));
                        self.learned.learn(run.profile, run.estimate, used);
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
            Outcome::Parked { until } | Outcome::Asked { until } => {
                self.leases.insert(
                    seq,
                    Lease {
                        revision,
                        state: LeaseState::Parked {
                            until,
                            delivery: credit.delivery,
                            asks: matches!(outcome, Outcome::Asked { .. }),
                        },
                    },
                );
                self.count_deliveries(seq, credit.delivery);
                self.out_of_line(seq);
                self.timers.insert((until, seq));
            }
        }
    }

    pub(super) fn lease_ended(&mut self, seq: JobSeq, revision: u64) {
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
                let tenant = self.land(&credit);
                self.probed(seq, Finding::Nothing);
                self.measure_end(&credit, Cost(0));
                self.refresh_tenant(tenant);
                self.count_deliveries(seq, credit.delivery);
                self.count_lost(seq);
            }
            // Its worker never began, so nothing was called.
            Some(LeaseState::Held {
                credit,
                stored: true,
                started: false,
            }) => {
                self.take_back(&credit);
                self.count_deliveries(seq, credit.delivery);
            }
            // An older lease ended while our grant was on its way; the grant will be refused.
            Some(LeaseState::Held {
                credit,
                stored: false,
                ..
            }) => self.take_back(&credit),
            Some(LeaseState::Parked { .. } | LeaseState::Over | LeaseState::Finished) | None => {}
        }
        self.back_in_line(seq, revision);
    }

    /// Nobody holds the lease any more; `revision` is what a new grant replaces.
    pub(super) fn back_in_line(&mut self, seq: JobSeq, revision: u64) {
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

    pub(super) fn grant_stored(&mut self, seq: JobSeq, revision: u64) {
        if let Some(lease) = self.leases.get_mut(&seq)
            && lease.revision < revision
        {
            lease.stored_as(revision, false);
        }
    }

    pub(super) fn grant_refused(&mut self, seq: JobSeq) {
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
        self.take_back(&credit);
        self.leases.insert(
            seq,
            Lease {
                revision,
                state: LeaseState::Parked {
                    until,
                    delivery,
                    asks: false,
                },
            },
        );
        self.timers.insert((until, seq));
    }

    /// Whether `revision` of the lease on `seq` is newer than what we know. Revisions count over
    /// all leases and are seen in order, so one that is not the highest so far is a replay.
    pub(super) fn is_news(&mut self, seq: JobSeq, revision: u64) -> bool {
        if revision <= self.revision_seen {
            return false;
        }
        self.revision_seen = revision;
        self.leases
            .get(&seq)
            .is_none_or(|lease| lease.revision < revision)
    }

    /// Tells the breaker of a pool how a call ended; without a sample it says nothing.
    pub(super) fn judge(&mut self, pool: PoolIx, credit: &Credit, sample: Option<Sample>) {
        let now = self.now;
        let is_probe = self.pools.probe(pool) == Some(credit.seq);
        let tenant = TenantKey(self.tenant(&credit.tenant).0);
        let breaker = self.pools.breaker(pool);
        let was_open = breaker.gate(now) != Gate::Closed;
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
        let open_until = self.pools.breaker(pool).open_until();
        if was_open != open_until.is_some() {
            let pool = credit.pool.clone();
            self.effects.push(Effect::Notice(match open_until {
                Some(until) => Notice::BreakerOpened { pool, until },
                None => Notice::BreakerClosed { pool },
            }));
        }
        self.divert(pool);
    }

    /// Lets whoever a call's end concerns wait.
    fn pause(&mut self, pool: PoolIx, credit: &Credit, pause: Pause) {
        let now = self.now;
        let gate = match (pause.scope, pause.probe) {
            (Scope::Pool, false) => {
                self.pools.limits(pool).pause(pause.until);
                None
            }
            (Scope::Pool, true) => Some(GateKey::Pool(pool)),
            (Scope::Account, _) => Some(GateKey::Account),
            (Scope::Model, _) => Some(GateKey::Model(credit.model.clone())),
            (Scope::Kind, _) => self
                .jobs
                .get(&credit.seq)
                .map(|job| GateKey::Kind(job.tenant, job.kind.clone(), credit.model.clone())),
            (Scope::Concurrency, _) => {
                // The call itself has landed by now.
                let in_flight = u32::try_from(self.fleet.occupied() + 1).unwrap_or(u32::MAX);
                self.window.refused(credit.granted_at, in_flight, now);
                if let Some(max) = self.window.max(now) {
                    self.effects
                        .push(Effect::Notice(Notice::CallsLimited { max }));
                }
                None
            }
        };
        if let Some(gate) = gate {
            self.gates.shut(gate, pause.until, now);
        }
        self.effects.push(Effect::Notice(Notice::Paused {
            pool: credit.pool.clone(),
            pause,
        }));
    }

    pub(super) fn count_deliveries(&mut self, seq: JobSeq, deliveries: u32) {
        if let Some(job) = self.jobs.get_mut(&seq) {
            job.deliveries = deliveries;
        }
    }
}
