//! What the leader knows, as metrics.

use fairlane_runtime::metrics::Priority;

use super::Leader;

impl Leader {
    pub(super) fn set_gauges(&self) {
        let metrics = &self.shell.metrics;
        let [critical, standard, batch] = self
            .core
            .queued()
            .map(|jobs| i64::try_from(jobs).unwrap_or(i64::MAX));
        metrics.queue_depth(Priority::Critical).set(critical);
        metrics.queue_depth(Priority::Standard).set(standard);
        metrics.queue_depth(Priority::Batch).set(batch);
        metrics.credits_live(self.core.live() as u64);
    }
}
