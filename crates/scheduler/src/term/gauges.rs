//! What the leader knows, as metrics.

use fairlane_core as core;
use fairlane_runtime::metrics::Priority;

use super::Leader;

impl Leader {
    pub(super) fn set_gauges(&mut self) {
        let now = self.shell.clock.now();
        self.shell.fairness.tell(&mut self.core, now);
        let metrics = &self.shell.metrics;
        let [critical, standard, batch] = self
            .core
            .queued()
            .map(|jobs| i64::try_from(jobs).unwrap_or(i64::MAX));
        metrics.queue_depth(Priority::Critical).set(critical);
        metrics.queue_depth(Priority::Standard).set(standard);
        metrics.queue_depth(Priority::Batch).set(batch);
        metrics.credits_live(self.core.live() as u64);
        for (priority, label) in [
            (core::Priority::Critical, Priority::Critical),
            (core::Priority::Standard, Priority::Standard),
            (core::Priority::Batch, Priority::Batch),
        ] {
            let reading = self.core.fairness(now).latest(priority);
            metrics.fairness(label, reading.index, reading.min_share, reading.gap_ratio);
        }
    }
}
