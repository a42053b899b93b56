//! One continuously refilled token bucket.
//!
//! There is no fixed minute window: a limit of L per minute refills L/60 per second, up to the capacity. The level
//! may go below zero, because input is charged by an estimate that is corrected later and output is charged while
//! it is generated; debt is paid off by the refill before anything new fits.

use crate::clock::Micros;

/// How long something has to wait until a bucket holds it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Wait {
    /// It fits now.
    Fits,
    /// It fits after this many seconds if nobody else takes anything.
    Seconds(f64),
    /// It is larger than the bucket and never fits; the value is the time until the bucket is full.
    Never(f64),
}

/// A bucket with a limit per minute. Amounts are requests or tokens.
#[derive(Clone, Debug)]
pub struct Bucket {
    limit_per_minute: u64,
    capacity: f64,
    level: f64,
    at: Micros,
}

impl Bucket {
    /// A full bucket that holds one minute's worth of the limit.
    #[must_use]
    pub fn new(limit_per_minute: u64, now: Micros) -> Self {
        Self::with_burst(limit_per_minute, 60.0, now)
    }

    /// A full bucket that holds only `burst_seconds` worth of the limit, at least 1.
    #[must_use]
    pub fn with_burst(limit_per_minute: u64, burst_seconds: f64, now: Micros) -> Self {
        let capacity = if limit_per_minute == 0 {
            0.0
        } else {
            (amount(limit_per_minute) * burst_seconds / 60.0).max(1.0)
        };
        Self {
            limit_per_minute,
            capacity,
            level: capacity,
            at: now,
        }
    }

    /// The limit per minute this bucket enforces.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit_per_minute
    }

    /// What is left at `now`; negative while in debt.
    pub fn level(&mut self, now: Micros) -> f64 {
        self.refill(now);
        self.level
    }

    /// Takes `n`, into debt if need be.
    pub fn take(&mut self, now: Micros, n: u64) {
        self.refill(now);
        self.level -= amount(n);
    }

    /// Gives `n` back, up to the capacity.
    pub fn give(&mut self, now: Micros, n: u64) {
        self.refill(now);
        self.level = (self.level + amount(n)).min(self.capacity);
    }

    /// How long until `n` can be taken without debt.
    pub fn wait_for(&mut self, now: Micros, n: u64) -> Wait {
        self.refill(now);
        let need = amount(n);
        if need > self.capacity {
            Wait::Never(self.seconds_to(self.capacity))
        } else if need <= self.level {
            Wait::Fits
        } else {
            Wait::Seconds(self.seconds_to(need))
        }
    }

    /// When the bucket is full again.
    pub fn full_at(&mut self, now: Micros) -> Micros {
        self.refill(now);
        now.plus_seconds(self.seconds_to(self.capacity))
    }

    fn seconds_to(&self, level: f64) -> f64 {
        let missing = level - self.level;
        if missing <= 0.0 || self.limit_per_minute == 0 {
            0.0
        } else {
            missing * 60.0 / amount(self.limit_per_minute)
        }
    }

    fn refill(&mut self, now: Micros) {
        if now <= self.at {
            return;
        }
        let gained = now.seconds_since(self.at) * amount(self.limit_per_minute) / 60.0;
        self.level = (self.level + gained).min(self.capacity);
        self.at = now;
    }
}

/// Token counts stay far below 2^53, so the conversion is exact where it matters.
#[expect(clippy::cast_precision_loss)]
fn amount(n: u64) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const START: Micros = Micros(1_000_000_000);

    fn after(seconds: f64) -> Micros {
        START.plus_seconds(seconds)
    }

    #[test]
    fn it_refills_continuously_up_to_the_capacity() {
        let mut bucket = Bucket::new(60, START);
        bucket.take(START, 60);
        assert_eq!(bucket.level(after(0.5)), 0.5);
        assert_eq!(bucket.level(after(30.0)), 30.0);
        assert_eq!(bucket.level(after(600.0)), 60.0);
    }

    #[test]
    fn time_standing_still_or_stepping_back_refills_nothing() {
        let mut bucket = Bucket::new(60, after(10.0));
        bucket.take(after(10.0), 60);
        assert_eq!(bucket.level(after(10.0)), 0.0);
        assert_eq!(bucket.level(after(2.0)), 0.0);
        assert_eq!(bucket.level(after(11.0)), 1.0);
    }

    #[test]
    fn debt_is_paid_before_anything_fits() {
        let mut bucket = Bucket::new(600, START);
        bucket.take(START, 700);
        assert_eq!(bucket.wait_for(START, 1), Wait::Seconds(10.1));
        assert_eq!(bucket.wait_for(after(10.1), 1), Wait::Fits);
    }

    #[test]
    fn what_exceeds_the_bucket_never_fits() {
        let mut bucket = Bucket::new(60, START);
        bucket.take(START, 30);
        assert_eq!(bucket.wait_for(START, 61), Wait::Never(30.0));
        assert_eq!(Bucket::new(0, START).wait_for(START, 1), Wait::Never(0.0));
    }

    #[test]
    fn giving_back_stops_at_the_capacity() {
        let mut bucket = Bucket::new(60, START);
        bucket.take(START, 5);
        bucket.give(START, 50);
        assert_eq!(bucket.level(START), 60.0);
    }

    #[test]
    fn full_at_is_when_the_level_reaches_the_capacity() {
        let mut bucket = Bucket::new(60, START);
        bucket.take(START, 16);
        assert_eq!(bucket.full_at(START), after(16.0));
        assert_eq!(bucket.full_at(after(20.0)), after(20.0));
    }

    #[test]
    fn a_short_burst_window_holds_less_but_refills_at_the_same_pace() {
        let mut bucket = Bucket::with_burst(60, 1.0, START);
        assert_eq!(bucket.level(START), 1.0);
        bucket.take(START, 1);
        assert_eq!(bucket.wait_for(START, 1), Wait::Seconds(1.0));
    }

    proptest! {
        #[test]
        fn waiting_as_told_is_always_enough(limit in 1_u64..5_000_000, taken in 0_u64..10_000_000, need in 1_u64..5_000_000) {
            let mut bucket = Bucket::new(limit, START);
            bucket.take(START, taken);
            if let Wait::Seconds(seconds) = bucket.wait_for(START, need) {
                prop_assert_eq!(bucket.wait_for(after(seconds.ceil()), need), Wait::Fits);
            }
        }

        #[test]
        fn never_more_than_burst_plus_refill_is_given_out(limit in 1_u64..10_000, steps in prop::collection::vec((0.0_f64..5.0, 1_u64..200), 1..60)) {
            let mut bucket = Bucket::new(limit, START);
            let (mut now, mut seconds, mut given) = (START, 0.0, 0_u64);
            for (pause, n) in steps {
                seconds += pause;
                now = now.plus_seconds(pause);
                if bucket.wait_for(now, n) == Wait::Fits {
                    bucket.take(now, n);
                    given += n;
                }
            }
            prop_assert!(amount(given) <= amount(limit) * (1.0 + seconds / 60.0) + 1e-3);
        }
    }
}
