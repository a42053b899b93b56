//! The record while its job is called: how far it is, for those who look, and whether anybody still
//! wants the answer.
//!
//! A job is called off in its record, and a message says so at once. The message may get lost, so every
//! look at the record counts as well.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fairlane_core::JobSeq;
use fairlane_nats::{Records, Revision, Slot, WriteError};
use fairlane_wire::{JobRecord, Phase};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Job;

/// The record says `generating` once a call takes longer than this. Shorter calls are over before
/// anybody could look, and spare a write.
const TELL_AFTER: Duration = Duration::from_millis(100);
/// How often it tells how far the answer is.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// How often it is looked at although nothing has changed.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// The record of a job in a call.
#[derive(Debug)]
pub(super) struct Live {
    records: Records,
    record: JobRecord,
    pub(super) revision: Revision,
    off: CancellationToken,
    /// Whether the record tells of this call.
    pub(super) told: bool,
}

impl Live {
    pub(super) fn new(records: Records, job: &Job, phase: Phase, off: CancellationToken) -> Self {
        let record = JobRecord {
            phase,
            retry_at_ms: None,
            retry_reason: None,
            failure: None,
            tokens_so_far: 0,
            ..job.record.clone()
        };
        Self {
            records,
            record,
            revision: job.revision,
            off,
            told: false,
        }
    }

    /// Keeps the record up to date, at most once a second. Ends when somebody else has ended the job.
    pub(super) async fn follow(&mut self, tokens: &AtomicU64) {
        let mut next = TELL_AFTER;
        let mut written = Instant::now();
        let mut heard = false;
        loop {
            tokio::select! {
                () = self.off.cancelled(), if !heard => {
                    heard = true;
                    if self.is_over().await {
                        return;
                    }
                }
                () = tokio::time::sleep(next) => {
                    next = TELL_EVERY;
                    let tokens = tokens.load(Ordering::Relaxed);
                    let news = !self.told || tokens != self.record.tokens_so_far;
                    if !news && written.elapsed() < LOOK_EVERY {
                        continue;
                    }
                    written = Instant::now();
                    self.record.tokens_so_far = tokens;
                    if self.tell().await {
                        return;
                    }
                }
            }
        }
    }

    /// Writes the record. True if the job is over.
    async fn tell(&mut self) -> bool {
        match self.records.save(&self.record, self.revision).await {
            Ok(revision) => {
                self.revision = revision;
                self.told = true;
                false
            }
            // The producer's first record came late, or the job is over.
            Err(WriteError::Conflict { .. }) => self.is_over().await,
            // For people who look; if it does not work, the outcome will tell.
            Err(_) => false,
        }
    }

    /// Reads the record. What may be replaced will be, the next time.
    async fn is_over(&mut self) -> bool {
        let JobRecord { tenant, job, .. } = &self.record;
        match self.records.get(tenant, job).await {
            Ok(Slot {
                record: Some(found),
                ..
            }) if found.phase.is_final() && found.sequence == self.record.sequence => true,
            Ok(slot) => {
                let ours = |found: &JobRecord| self.record.may_follow(found);
                if slot.record.as_ref().is_none_or(ours) {
                    self.revision = slot.revision;
                }
                false
            }
            Err(_) => false,
        }
    }

    /// Tells that the answer is there, if it was told that it is being written.
    pub(super) async fn refine(&mut self, refining: bool) {
        if self.told && refining {
            self.record.phase = Phase::Refining;
            self.tell().await;
        }
    }
}

/// The deliveries in hand, and how to tell them that their job was called off.
#[derive(Debug, Default)]
pub(crate) struct InHand(Mutex<BTreeMap<(JobSeq, u32), CancellationToken>>);

impl InHand {
    /// Takes a delivery of a job in hand. From now on nothing that is said of the job is missed.
    pub(super) fn take(&self, seq: JobSeq, delivery: u32) -> CancellationToken {
        let off = CancellationToken::new();
        self.deliveries().insert((seq, delivery), off.clone());
        off
    }

    pub(super) fn leave(&self, seq: JobSeq, delivery: u32) {
        self.deliveries().remove(&(seq, delivery));
    }

    /// Tells the deliveries of a job, if there are any, that it was called off.
    pub(crate) fn call_off(&self, seq: JobSeq) {
        let deliveries = self.deliveries();
        let of_job = deliveries.range((seq, 0)..=(seq, u32::MAX));
        of_job.for_each(|(_, off)| off.cancel());
    }

    fn deliveries(&self) -> MutexGuard<'_, BTreeMap<(JobSeq, u32), CancellationToken>> {
        // A panic elsewhere cannot leave a map half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
