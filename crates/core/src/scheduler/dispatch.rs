//! Choosing the next job and its worker.

use std::collections::BTreeMap;

use super::picture::{Job, Lease};
use super::{Credit, Effect, PutAside, Scheduler};
use crate::breaker::Gate;
use crate::ids::{JobSeq, WorkerId};
use crate::job::Priority;

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
}

enum Candidate {
    Run(JobSeq),
    PutAside(JobSeq, PutAside),
}

fn lease_revision(leases: &BTreeMap<JobSeq, Lease>, seq: JobSeq) -> u64 {
    leases.get(&seq).map_or(0, |lease| lease.revision)
}
