//! When jobs were stored, to the second, without a time for every job: sequences grow with time, so
//! one mark a second is enough.

use std::collections::BTreeMap;

use fairlane_core::Millis;

/// Marks this far apart.
const STEP: Millis = 1_000;

/// Marks that are kept. Of more, every other one is dropped: older jobs are told less exactly.
const MARKS_MAX: usize = 100_000;

#[derive(Debug, Default)]
pub(super) struct Ages {
    /// Sequences, and when they were stored.
    marks: BTreeMap<u64, Millis>,
}

impl Ages {
    /// A message was stored at a time.
    pub(super) fn saw(&mut self, seq: u64, stored: Millis) {
        let before = self.marks.range(..=seq).next_back();
        if before.is_some_and(|(_, &at)| stored.saturating_sub(at) < STEP) {
            return;
        }
        self.marks.insert(seq, stored);
        if self.marks.len() > MARKS_MAX {
            let mut is_odd = false;
            self.marks.retain(|_, _| {
                is_odd = !is_odd;
                is_odd
            });
        }
    }

    /// How long ago a message was stored that was seen.
    pub(super) fn age(&self, seq: u64, now: Millis) -> Millis {
        let mark = self.marks.range(..=seq).next_back();
        mark.map_or(0, |(_, &at)| now.saturating_sub(at))
    }

    /// Nothing before `seq` is asked for any more.
    pub(super) fn forget_before(&mut self, seq: u64) {
        let Some((&first, _)) = self.marks.range(..=seq).next_back() else {
            return;
        };
        self.marks = self.marks.split_off(&first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_right_to_the_second_in_whatever_order_messages_are_seen() {
        let mut ages = Ages::default();
        let stored = |seq: u64| 10_000 + seq * 300;
        for seq in (1..=50).step_by(2).chain((2..=50).step_by(2)) {
            ages.saw(seq, stored(seq));
        }
        for seq in 1..=50 {
            let age = ages.age(seq, 100_000);
            let exact = 100_000 - stored(seq);
            assert!((exact..exact + STEP).contains(&age), "{seq}: {age} {exact}");
        }
        ages.forget_before(40);
        assert!(ages.marks.len() <= 11, "{ages:?}");
        assert!(ages.age(40, 100_000) >= 100_000 - stored(40));
    }

    #[test]
    fn marks_are_bounded() {
        let mut ages = Ages::default();
        for seq in 1..=250_000 {
            ages.saw(seq, seq * STEP);
        }
        assert!(ages.marks.len() <= MARKS_MAX);
        assert!(ages.age(1, 250_000_000) >= 249_000_000);
    }
}
