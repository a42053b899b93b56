//! The workers and their slots.

use std::collections::BTreeMap;

use super::WorkerView;
use crate::Millis;
use crate::ids::WorkerId;

#[derive(Debug, Default)]
pub(super) struct Fleet {
    workers: BTreeMap<WorkerId, Worker>,
    occupied: usize,
}

#[derive(Debug)]
struct Worker {
    slots: u32,
    live: u32,
    draining: bool,
    heard_at: Millis,
    /// What runs here runs alone.
    alone: bool,
    /// It gets nothing before, so that it becomes empty.
    emptied_until: Millis,
}

/// A worker is emptied for a job that has to run alone for so long after that was last asked.
const EMPTIED_FOR: Millis = 5_000;

impl Worker {
    /// Whether it was heard of lately and does not drain.
    fn is_there(&self, now: Millis, silence_max: Millis) -> bool {
        !self.draining && now.saturating_sub(self.heard_at) < silence_max
    }

    /// Whether it can be given any work.
    fn takes_work(&self, now: Millis, silence_max: Millis) -> bool {
        self.is_there(now, silence_max)
            && self.live < self.slots
            && !self.alone
            && self.emptied_until <= now
    }
}

impl Fleet {
    pub(super) fn heard(&mut self, name: WorkerId, slots: u32, draining: bool, now: Millis) {
        let worker = self.workers.entry(name).or_insert(Worker {
            slots,
            live: 0,
            draining,
            heard_at: now,
            alone: false,
            emptied_until: 0,
        });
        worker.slots = slots;
        worker.draining = draining;
        worker.heard_at = now;
        // Workers that are gone and hold nothing are forgotten.
        self.workers
            .retain(|_, worker| worker.live > 0 || worker.heard_at + 60_000 > now);
    }

    /// The worker with the largest part of its slots free.
    pub(super) fn most_free(&self, now: Millis, silence_max: Millis) -> Option<WorkerId> {
        self.workers
            .iter()
            .filter(|(_, worker)| worker.takes_work(now, silence_max))
            .min_by_key(|(_, worker)| u64::from(worker.live) * 1_000_000 / u64::from(worker.slots))
            .map(|(name, _)| name.clone())
    }

    /// All workers that are known.
    pub(super) fn views(&self, now: Millis) -> Vec<WorkerView> {
        let workers = self.workers.iter();
        let views = workers.map(|(name, worker)| WorkerView {
            worker: name.clone(),
            slots: worker.slots,
            live: worker.live,
            draining: worker.draining,
            silent: now.saturating_sub(worker.heard_at),
        });
        views.collect()
    }

    /// Workers that were heard of lately and do not drain, and their slots.
    pub(super) fn size(&self, now: Millis, silence_max: Millis) -> (usize, u32) {
        let there = self
            .workers
            .values()
            .filter(|worker| worker.is_there(now, silence_max));
        there.fold((0, 0), |(workers, slots), worker| {
            (workers + 1, u32::saturating_add(slots, worker.slots))
        })
    }

    pub(super) fn occupy(&mut self, name: &WorkerId, now: Millis) {
        // A worker known only by its credits has no free slots.
        let worker = self.workers.entry(name.clone()).or_insert(Worker {
            slots: 0,
            live: 0,
            draining: true,
            heard_at: now,
            alone: false,
            emptied_until: 0,
        });
        worker.live += 1;
        self.occupied += 1;
    }

    pub(super) fn free(&mut self, name: &WorkerId) {
        if let Some(worker) = self.workers.get_mut(name) {
            debug_assert!(worker.live > 0, "a slot was freed that was not occupied");
            if worker.live > 0 {
                worker.live -= 1;
                self.occupied -= 1;
                worker.alone &= worker.live > 0;
            }
        }
    }

    /// Slots that are taken.
    pub(super) fn occupied(&self) -> usize {
        self.occupied
    }

    /// Slots that could be given work.
    pub(super) fn free_slots(&self, now: Millis, silence_max: Millis) -> u32 {
        let workers = self.workers.values();
        workers
            .filter(|worker| worker.takes_work(now, silence_max))
            .map(|worker| worker.slots.saturating_sub(worker.live))
            .fold(0, u32::saturating_add)
    }

    /// Whether a job runs alone somewhere.
    pub(super) fn has_loner(&self) -> bool {
        self.workers.values().any(|worker| worker.alone)
    }

    /// A worker that has nothing. If there is none, the one with the least gets nothing more for a while.
    pub(super) fn empty(&mut self, now: Millis, silence_max: Millis) -> Option<WorkerId> {
        let there = self
            .workers
            .iter_mut()
            .filter(|(_, worker)| worker.slots > 0 && worker.is_there(now, silence_max));
        // One that is empty, or else the one that is being emptied already.
        let (name, worker) = there.min_by_key(|(_, worker)| {
            (worker.live > 0, worker.emptied_until <= now, worker.live)
        })?;
        worker.emptied_until = now + EMPTIED_FOR;
        (worker.live == 0).then(|| name.clone())
    }

    /// What this worker gets next runs alone there.
    pub(super) fn run_alone(&mut self, name: &WorkerId) {
        if let Some(worker) = self.workers.get_mut(name) {
            worker.alone = true;
            worker.emptied_until = 0;
        }
    }
}
