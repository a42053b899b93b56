//! The pace of work that nobody waits for.
//!
//! After a quiet minute a pool's bucket holds a minute's worth of requests, and upstreams dislike
//! traffic that grows too fast even then. So standard and batch work starts at the rate at which the
//! bucket refills, a few seconds' worth at once. What has gathered beyond that stays for critical
//! work, which is never paced. Under load this costs nothing: no more than the refill is to be had.

use crate::Millis;

/// In 1/60 000 of a request, so that a rate per minute is a whole number per millisecond.
const PER_REQUEST: u64 = 60_000;

/// What may start at once: three seconds' worth, and two requests at least, so that a moment's delay
/// is made up for.
const AT_ONCE: Millis = 3_000;
const AT_ONCE_MIN: u64 = 2;

/// When the next paced request may start.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    level: u64,
    at: Millis,
}

impl Pace {
    /// A pace that starts with all it may start at once.
    #[must_use]
    pub fn new() -> Self {
        Self {
            level: u64::MAX,
            at: 0,
        }
    }

    /// Whether a request may start now at `per_minute`.
    ///
    /// # Errors
    /// The time at which it may.
    pub fn ready(&mut self, per_minute: u64, now: Millis) -> Result<(), Millis> {
        self.refill(per_minute, now);
        if self.level >= PER_REQUEST {
            return Ok(());
        }
        let wait = (PER_REQUEST - self.level).div_ceil(per_minute.max(1));
        Err(now.saturating_add(wait))
    }

    /// A request starts, paced or not. One that is not leaves no debt: it had waited for nobody.
    pub fn started(&mut self, per_minute: u64, now: Millis) {
        self.refill(per_minute, now);
        self.level = self.level.saturating_sub(PER_REQUEST);
    }

    fn refill(&mut self, per_minute: u64, now: Millis) {
        let passed = now.saturating_sub(self.at);
        self.at = self.at.max(now);
        let most = per_minute
            .saturating_mul(AT_ONCE)
            .max(AT_ONCE_MIN * PER_REQUEST);
        let refilled = passed.saturating_mul(per_minute);
        self.level = self.level.saturating_add(refilled).min(most);
    }
}

impl Default for Pace {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests that start from `from` to `to` when as many as possible do.
    fn started(pace: &mut Pace, per_minute: u64, from: Millis, to: Millis) -> usize {
        let mut count = 0;
        for now in from..to {
            while pace.ready(per_minute, now).is_ok() {
                pace.started(per_minute, now);
                count += 1;
            }
        }
        count
    }

    #[test]
    fn a_few_start_at_once_and_then_the_rate_holds() {
        let mut pace = Pace::new();
        assert_eq!(
            started(&mut pace, 600, 600_000, 600_001),
            30,
            "three seconds"
        );
        assert_eq!(started(&mut pace, 600, 600_001, 610_001), 100);
        let mut slow = Pace::new();
        assert_eq!(started(&mut slow, 6, 0, 1), 2, "two at least");
        assert_eq!(slow.ready(6, 1), Err(10_000));
        assert_eq!(slow.ready(6, 10_000), Ok(()));
    }

    #[test]
    fn what_is_not_paced_delays_the_next_by_one_turn_at_most() {
        let mut pace = Pace::new();
        for _ in 0..1_000 {
            pace.started(60, 5_000);
        }
        assert_eq!(pace.ready(60, 5_000), Err(6_000));
    }

    #[test]
    fn a_clock_that_steps_back_gives_nothing() {
        let mut pace = Pace::new();
        started(&mut pace, 60, 10_000, 10_001);
        assert!(pace.ready(60, 5_000).is_err());
        assert_eq!(pace.ready(60, 11_000), Ok(()));
    }
}
