//! Time as the simulator uses it: one monotonic clock that reads as unix time.
//!
//! Buckets need a clock that never steps back, log lines and headers need unix time. Both are served by taking
//! the wall clock once at start and adding the monotonic time since. A later step of the wall clock is ignored.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Microseconds since the unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Micros(pub u64);

impl Micros {
    /// This time as whole unix milliseconds, rounded down.
    #[must_use]
    pub fn as_ms(self) -> u64 {
        self.0 / 1_000
    }

    /// Seconds from `earlier` to this time; 0 when `earlier` is later (a clock that steps back means no time passed).
    #[must_use]
    pub fn seconds_since(self, earlier: Self) -> f64 {
        Duration::from_micros(self.0.saturating_sub(earlier.0)).as_secs_f64()
    }

    /// This time plus `seconds`; negative or non-finite values add nothing.
    #[must_use]
    pub fn plus_seconds(self, seconds: f64) -> Self {
        let wait = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        Self(
            self.0
                .saturating_add(u64::try_from(wait.as_micros()).unwrap_or(u64::MAX)),
        )
    }
}

/// The clock of one simulator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: Instant,
    origin_unix: Micros,
}

impl Clock {
    pub(crate) fn start() -> Self {
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            origin: Instant::now(),
            origin_unix: Micros(u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX)),
        }
    }

    pub(crate) fn now(&self) -> Micros {
        let passed = u64::try_from(self.origin.elapsed().as_micros()).unwrap_or(u64::MAX);
        Micros(self.origin_unix.0.saturating_add(passed))
    }

    pub(crate) fn started(&self) -> Micros {
        self.origin_unix
    }
}

/// The time as RFC 3339 with whole seconds and `Z`, rounded up so that the stated moment is never too early.
#[must_use]
pub(crate) fn rfc3339_seconds(at: Micros) -> String {
    let seconds = i64::try_from(at.0.div_ceil(1_000_000)).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(seconds)
        .unwrap_or(jiff::Timestamp::MAX)
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_steps_back_means_no_time_passed() {
        assert_eq!(Micros(5).seconds_since(Micros(9)), 0.0);
        assert_eq!(Micros(2_500_000).seconds_since(Micros(500_000)), 2.0);
    }

    #[test]
    fn adding_nonsense_adds_nothing() {
        assert_eq!(Micros(7).plus_seconds(-1.0), Micros(7));
        assert_eq!(Micros(7).plus_seconds(f64::INFINITY), Micros(7));
        assert_eq!(Micros(7).plus_seconds(0.5), Micros(500_007));
    }

    #[test]
    fn header_times_have_seconds_precision_and_round_up() {
        assert_eq!(
            rfc3339_seconds(Micros(1_796_000_000_000_000)),
            "2026-11-30T00:53:20Z"
        );
        assert_eq!(
            rfc3339_seconds(Micros(1_796_000_000_000_001)),
            "2026-11-30T00:53:21Z"
        );
    }
}
