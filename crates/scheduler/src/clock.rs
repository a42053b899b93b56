//! One clock for a process: unix milliseconds that never go back.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use fairlane_core::Millis;

/// Reads the wall clock once and counts from there, so that a step of the wall clock cannot make
/// a lease older or younger.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    started: Instant,
    started_ms: Millis,
}

impl Clock {
    pub(crate) fn start() -> Self {
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            started: Instant::now(),
            started_ms: millis(since_epoch),
        }
    }

    pub(crate) fn now(&self) -> Millis {
        self.started_ms + millis(self.started.elapsed())
    }

    /// The instant at which [`Clock::now`] will be `at`.
    pub(crate) fn instant(&self, at: Millis) -> tokio::time::Instant {
        let after = std::time::Duration::from_millis(at.saturating_sub(self.started_ms));
        (self.started + after).into()
    }
}

fn millis(duration: std::time::Duration) -> Millis {
    Millis::try_from(duration.as_millis()).unwrap_or(Millis::MAX)
}
