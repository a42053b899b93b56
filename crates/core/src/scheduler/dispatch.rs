//! Choosing the next job and its worker.

use std::collections::BTreeMap;

use super::picture::{Job, Lease, PoolIx};
use super::{Credit, Effect, PutAside, Scheduler};
use crate::breaker::Gate;
use crate::ids::{JobSeq, WorkerId};

impl Scheduler {
    /// The job to run next, out of all pools that have room.
    pub(super) fn choose(&mut self) -> Option<JobSeq> {
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

    /// One pass over the pools. Each names the job whose turn it is; when slots are short it is
    /// shared among them as within a pool: by priority first, then by who has waited for a turn.
    fn candidate(&mut self) -> Option<Candidate> {
        let mut best: [Option<(u64, PoolIx, JobSeq)>; 3] = [None; 3];
        for pool in self.pools.all() {
            let Some((priority, tenant)) = self.lanes.next(pool, self.complete) else {
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
                    let rank = (self.pools.last_turn(pool), pool, seq);
                    let best = &mut best[priority.index()];
                    if best.is_none_or(|best| rank < best) {
                        *best = Some(rank);
                    }
                }
                Err(Some(at)) => {
                    self.room_at = Some(self.room_at.map_or(at, |earlier| earlier.min(at)));
                }
                // A probe is out; its end will wake us.
                Err(None) => {}
            }
        }
        let waiting = best.map(|best| best.is_some());
        let priority = self.slot_shares.next(waiting)?;
        let (_, pool, seq) = best[priority.index()]?;
        self.slot_shares
            .serve(priority, self.jobs[&seq].cost, waiting);
        self.pools.took_turn(pool);
        Some(Candidate::Run(seq))
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

    pub(super) fn put_aside_again(&mut self, seq: JobSeq) {
        let Some(job) = self.jobs.get(&seq) else {
            return;
        };
        if let Some(why) = self.why_aside(job) {
            self.effects.push(Effect::PutAside { seq, why });
        }
    }

    pub(super) fn grant(&mut self, seq: JobSeq, worker: WorkerId) {
        let job = &self.jobs[&seq];
        let (pool, priority, tenant) = (job.pool, job.priority, job.tenant);
        let credit = Credit {
            seq,
            priority,
            tenant: self.tenants.name(tenant).clone(),
            job: job.job.clone(),
            model: job.model.clone(),
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
        self.measure_grant(&credit);
        self.lanes.remove(pool, priority, tenant, seq);
        self.charge(&credit);
        self.refresh(pool, priority, tenant);
        self.refresh_tenant(tenant);
        let expected = lease_revision(&self.leases, seq);
        self.leases
            .insert(seq, Lease::asked(expected, credit.clone()));
        self.effects.push(Effect::Grant { credit, expected });
    }
}

enum Candidate {
    Run(JobSeq),
    PutAside(JobSeq, PutAside),
}

fn lease_revision(leases: &BTreeMap<JobSeq, Lease>, seq: JobSeq) -> u64 {
    leases.get(&seq).map_or(0, |lease| lease.revision)
}
