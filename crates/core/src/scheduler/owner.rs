//! What the owner of a job decides: that it is called off, or that it may wait.
//!
//! The record of the job is where that stands; the scheduler only hears of it, and asks for the job to
//! be put aside. Whoever does that reads the record, and may find that the job is to stay.

use super::Scheduler;
use super::picture::{Lease, LeaseState, Leaving};
use crate::Millis;
use crate::ids::JobSeq;

impl Scheduler {
    /// The job is not wanted any more. One that a worker holds leaves when its lease ends.
    pub(super) fn call_off(&mut self, seq: JobSeq) {
        if let Some(job) = self.jobs.get_mut(&seq) {
            job.called_off = true;
            self.line_up(seq);
        }
    }

    /// It is to stay after all.
    pub(super) fn keep(&mut self, seq: JobSeq) {
        if let Some(job) = self.jobs.get_mut(&seq) {
            (job.called_off, job.leaving) = (false, Leaving::No);
            self.line_up(seq);
        }
    }

    /// A parked job waits until another time than before.
    pub(super) fn moved(&mut self, seq: JobSeq, until: Millis, revision: u64) {
        if !self.is_news(seq, revision) {
            return;
        }
        self.drop_lease(seq);
        let delivery = self.jobs.get(&seq).map_or(0, |job| job.deliveries);
        let state = LeaseState::Parked {
            until,
            delivery,
            asks: false,
        };
        self.leases.insert(seq, Lease { revision, state });
        self.out_of_line(seq);
        // If it is being put aside, whoever does that will say that it is to stay.
        if let Some(job) = self.jobs.get_mut(&seq) {
            job.called_off = false;
            self.line_up(seq);
        }
    }
}
