//! What is known, for whoever compares it with the server.

use std::collections::BTreeMap;

use super::Scheduler;
use super::picture::{Lease, LeaseState};
use crate::ids::{JobSeq, TenantId};
use crate::job::Priority;

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
}
