//! What is known, for whoever compares it with the server or watches over it.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::gates::GateKey;
use super::picture::{Lease, LeaseState, Leaving};
use super::{Credit, Scheduler};
use crate::Millis;
use crate::breaker::Gate;
use crate::failure::Scope;
use crate::ids::{JobSeq, PoolId, TenantId};
use crate::job::Priority;

/// How a pool stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolStatus {
    pub pool: PoolId,
    /// Requests, input tokens and output tokens that are left; negative when overdrawn.
    pub left: [i64; 3],
    /// The same limits per minute.
    pub per_minute: [u64; 3],
    pub is_paused: bool,
    pub gate: Gate,
}

impl Scheduler {
    /// Jobs known to be in the stream, by lane. Looks at every job.
    #[must_use]
    pub fn lanes(&self) -> BTreeMap<(Priority, TenantId), u64> {
        let mut counts: BTreeMap<_, [u64; 3]> = BTreeMap::new();
        for job in self.jobs.values() {
            counts.entry(job.tenant).or_default()[job.priority.index()] += 1;
        }
        let lanes = counts.into_iter().flat_map(|(tenant, counts)| {
            let name = self.tenants.name(tenant);
            let lanes = Priority::ALL.into_iter().zip(counts);
            lanes.map(|(priority, count)| ((priority, name.clone()), count))
        });
        lanes.filter(|(_, count)| *count > 0).collect()
    }

    /// The jobs known to be in one lane, in order. Looks at every job.
    pub fn lane<'a>(
        &'a self,
        priority: Priority,
        tenant: &'a TenantId,
    ) -> impl Iterator<Item = JobSeq> + 'a {
        self.jobs
            .iter()
            .filter(move |(_, job)| {
                job.priority == priority && self.tenants.name(job.tenant) == tenant
            })
            .map(|(&seq, _)| seq)
    }

    /// Whether a worker has the job, or is about to get it.
    #[must_use]
    pub fn is_held(&self, seq: JobSeq) -> bool {
        matches!(
            self.leases.get(&seq),
            Some(Lease {
                state: LeaseState::Held { .. },
                ..
            })
        )
    }

    /// Whether a credit lets a job run elsewhere than it asked for.
    #[must_use]
    pub fn is_fallback(&self, credit: &Credit) -> bool {
        let job = self.jobs.get(&credit.seq);
        let pool = self.pools.find(&credit.pool);
        job.zip(pool)
            .is_some_and(|(job, pool)| job.run_in(pool).is_fallback)
    }

    /// The oldest jobs in line, in the order of [`Priority::ALL`].
    #[must_use]
    pub fn oldest(&self) -> [Option<JobSeq>; 3] {
        self.lanes.oldest()
    }

    /// How all pools stand.
    pub fn pools(&mut self, now: Millis) -> Vec<PoolStatus> {
        self.now = self.now.max(now);
        let now = self.now;
        let pools: Vec<_> = self.pools.all().collect();
        let status = pools.into_iter().map(|pool| {
            let limits = self.pools.limits(pool);
            let (left, per_minute) = (limits.left(now), limits.per_minute());
            let is_paused = limits.paused_until() > now;
            PoolStatus {
                pool: self.pools.name(pool).clone(),
                left,
                per_minute,
                is_paused,
                gate: self.pools.breaker(pool).gate(now),
            }
        });
        status.collect()
    }

    /// Pauses and refusals in force, by whom they concern.
    #[must_use]
    pub fn pauses(&mut self, now: Millis) -> [(Scope, usize); 5] {
        let paused = self.pools(now).iter().filter(|pool| pool.is_paused).count();
        let shut = self.gates.all().filter(|(_, until)| *until > now);
        let mut pauses = [
            (Scope::Pool, paused),
            (Scope::Model, 0),
            (Scope::Kind, 0),
            (Scope::Account, 0),
            (
                Scope::Concurrency,
                usize::from(self.window.max(now).is_some()),
            ),
        ];
        for (key, _) in shut {
            let at = match key {
                GateKey::Pool(_) => 0,
                GateKey::Model(_) => 1,
                GateKey::Kind(..) => 2,
                GateKey::Account => 3,
            };
            pauses[at].1 += 1;
        }
        pauses
    }

    /// Tenants whose standard work is served as batch.
    #[must_use]
    pub fn demoted(&self) -> usize {
        self.tenants.demoted().count()
    }

    /// Workers that can be given work, and their slots.
    #[must_use]
    pub fn workers(&self) -> (usize, u32) {
        self.fleet.size(self.now, self.config.worker_silence_max)
    }

    /// Which part of its budget of today each tenant has used that has one and used any of it.
    pub fn budgets(&self) -> impl Iterator<Item = (&TenantId, f64)> {
        let now = self.now;
        self.tenants
            .all()
            .filter_map(move |(name, policy, standing)| {
                let (budget, used) = (policy.daily_input_tokens?, standing.used_today(now));
                (used > 0).then(|| (name, part(used, budget)))
            })
    }

    /// Looks at up to `limit` jobs after `after`: those that may run and stand nowhere are put in line.
    /// Returns how many those were, and where to go on; None at the end. There are none, unless this
    /// scheduler has a fault.
    pub fn find_stranded(
        &mut self,
        after: Option<JobSeq>,
        limit: usize,
        now: Millis,
    ) -> (usize, Option<JobSeq>) {
        self.now = self.now.max(now);
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let seqs: Vec<JobSeq> = self
            .jobs
            .range((from, Bound::Unbounded))
            .map(|(&seq, _)| seq)
            .take(limit)
            .collect();
        let mut found = 0;
        for &seq in &seqs {
            if self.is_stranded(seq) {
                found += 1;
                self.line_up(seq);
            }
        }
        let is_last = seqs.len() < limit;
        (found, seqs.last().copied().filter(|_| !is_last))
    }

    fn is_stranded(&self, seq: JobSeq) -> bool {
        let Some(job) = self.jobs.get(&seq) else {
            return false;
        };
        if job.leaving != Leaving::No {
            return false;
        }
        let mut not_before = job.not_before;
        match self.leases.get(&seq).map(|lease| &lease.state) {
            Some(LeaseState::Held { .. } | LeaseState::Finished) => return false,
            Some(&LeaseState::Parked { until, .. }) => {
                if self.timers.contains(&(until, seq)) {
                    return false;
                }
                not_before = not_before.max(until);
            }
            Some(LeaseState::Over) | None => {}
        }
        if not_before > self.now {
            return !self.timers.contains(&(not_before, seq));
        }
        self.gates.holds(seq).is_none()
            && !self.suspects.contains(&seq)
            && !self.lanes.holds(job.queue(), seq)
    }
}

#[expect(clippy::cast_precision_loss, reason = "a ratio for showing")]
fn part(some: u64, all: u64) -> f64 {
    some as f64 / all.max(1) as f64
}
