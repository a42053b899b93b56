//! The workers and their slots.

use std::collections::BTreeMap;

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
}

impl Fleet {
    pub(super) fn heard(&mut self, name: WorkerId, slots: u32, draining: bool, now: Millis) {
        let live = self.workers.get(&name).map_or(0, |worker| worker.live);
        self.workers.insert(
            name,
            Worker {
                slots,
                live,
                draining,
                heard_at: now,
            },
        );
        // Workers that are gone and hold nothing are forgotten.
        self.workers
            .retain(|_, worker| worker.live > 0 || worker.heard_at + 60_000 > now);
    }

    /// The worker with the largest part of its slots free.
    pub(super) fn most_free(&self, now: Millis, silence_max: Millis) -> Option<WorkerId> {
        self.workers
            .iter()
            .filter(|(_, worker)| {
                !worker.draining
                    && worker.live < worker.slots
                    && now.saturating_sub(worker.heard_at) < silence_max
            })
            .min_by_key(|(_, worker)| u64::from(worker.live) * 1_000_000 / u64::from(worker.slots))
            .map(|(name, _)| name.clone())
    }

    /// Workers that were heard of lately and do not drain, and their slots.
    pub(super) fn size(&self, now: Millis, silence_max: Millis) -> (usize, u32) {
        let there = self
            .workers
            .values()
            .filter(|worker| !worker.draining && now.saturating_sub(worker.heard_at) < silence_max);
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
            }
        }
    }

    /// Slots that are taken.
    pub(super) fn occupied(&self) -> usize {
        self.occupied
    }

    /// Slots that could be given work.
    pub(super) fn free_slots(&self, now: Millis, silence_max: Millis) -> u32 {
        let there = self
            .workers
            .values()
            .filter(|worker| !worker.draining && now.saturating_sub(worker.heard_at) < silence_max);
        there
            .map(|worker| worker.slots.saturating_sub(worker.live))
            .fold(0, u32::saturating_add)
    }
}
