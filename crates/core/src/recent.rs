//! Sums over the recent past, in stretches of time of one length.
//!
//! Bounded and exact to the length of a stretch: what is older than all of them is forgotten.

use crate::Millis;

/// What was added in each of the last `N` stretches of time.
#[derive(Debug, Clone)]
pub struct Recent<const N: usize> {
    slot: Millis,
    /// Number of the newest stretch.
    newest: u64,
    sums: [u64; N],
}

impl<const N: usize> Recent<N> {
    /// Nothing yet; each stretch is `slot` milliseconds long.
    ///
    /// # Panics
    /// If `slot` is 0.
    #[must_use]
    pub fn new(slot: Millis) -> Self {
        assert!(slot > 0, "a stretch of time has a length");
        Self {
            slot,
            newest: 0,
            sums: [0; N],
        }
    }

    /// Adds to the stretch of `now`; a clock that stepped back adds to the newest there is.
    pub fn add(&mut self, amount: u64, now: Millis) {
        self.advance(now);
        let sum = &mut self.sums[index::<N>(self.newest)];
        *sum = sum.saturating_add(amount);
    }

    /// All that was added in the stretches that are still remembered at `now`.
    #[must_use]
    pub fn total(&self, now: Millis) -> u64 {
        let oldest = self.oldest(now);
        self.sum(oldest)
    }

    /// Like [`Recent::total`], but for the stretch with the most: what comes all the time, not what
    /// came once.
    #[must_use]
    pub fn steady(&self, now: Millis) -> u64 {
        let from = self.kept_from(self.oldest(now));
        let sums = (from..=self.newest).map(|slot| self.sums[index::<N>(slot)]);
        let most = sums.max().unwrap_or(0);
        self.total(now) - most
    }

    /// What was added after the stretch of `at`. None if that is too long ago to be remembered.
    #[must_use]
    pub fn since(&self, at: Millis, now: Millis) -> Option<u64> {
        let after = at / self.slot + 1;
        (after >= self.oldest(now)).then(|| self.sum(after))
    }

    fn oldest(&self, now: Millis) -> u64 {
        let newest = self.newest.max(now / self.slot);
        (newest + 1).saturating_sub(N as u64)
    }

    /// Nothing is kept of what is older than the newest stretch by `N`.
    fn kept_from(&self, from: u64) -> u64 {
        from.max((self.newest + 1).saturating_sub(N as u64))
    }

    fn sum(&self, from: u64) -> u64 {
        (self.kept_from(from)..=self.newest)
            .map(|slot| self.sums[index::<N>(slot)])
            .fold(0, u64::saturating_add)
    }

    fn advance(&mut self, now: Millis) {
        let slot = now / self.slot;
        if slot <= self.newest {
            return;
        }
        let first = (self.newest + 1).max((slot + 1).saturating_sub(N as u64));
        for passed in first..=slot {
            self.sums[index::<N>(passed)] = 0;
        }
        self.newest = slot;
    }
}

fn index<const N: usize>(slot: u64) -> usize {
    usize::try_from(slot % N as u64).expect("below a usize")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_older_than_all_stretches_is_forgotten() {
        let mut recent = Recent::<6>::new(10_000);
        recent.add(5, 1_000_000);
        recent.add(7, 1_030_000);
        assert_eq!(recent.total(1_030_000), 12);
        assert_eq!(recent.total(1_059_999), 12);
        assert_eq!(recent.total(1_060_000), 7);
        assert_eq!(recent.total(1_090_000), 0);
        recent.add(1, 9_000_000);
        assert_eq!(recent.total(9_000_000), 1);
    }

    #[test]
    fn what_came_once_is_not_steady() {
        let mut recent = Recent::<8>::new(10_000);
        recent.add(1_000_000, 5_000);
        assert_eq!(recent.steady(5_000), 0);
        for at in [15_000, 25_000, 35_000] {
            recent.add(10, at);
        }
        assert_eq!(recent.steady(35_000), 30);
        assert_eq!(recent.steady(85_000), 20, "the million is forgotten");
    }

    #[test]
    fn what_came_after_a_time_is_told_as_long_as_it_is_remembered() {
        let mut recent = Recent::<4>::new(250);
        for at in [0, 250, 500, 750] {
            recent.add(1, at);
        }
        assert_eq!(recent.since(249, 750), Some(3));
        assert_eq!(recent.since(600, 750), Some(1));
        assert_eq!(recent.since(750, 750), Some(0));
        assert_eq!(recent.since(249, 1_000), Some(3));
        assert_eq!(
            recent.since(249, 1_250),
            None,
            "the first of the three is gone"
        );
        assert_eq!(
            recent.since(9_000, 750),
            Some(0),
            "seen by a clock that is ahead"
        );
    }

    #[test]
    fn a_clock_that_steps_back_loses_nothing() {
        let mut recent = Recent::<4>::new(250);
        recent.add(1, 1_000);
        recent.add(1, 10);
        assert_eq!(recent.total(1_000), 2);
    }
}
