//! The last 60 minutes as people are promised them: how often the upstream was overloaded, how much a smaller model
//! answered, and how long jobs waited for their first call.
//!
//! Counted by the minute, so that what is older goes by itself. It is fed from bookings, which every leader reads: a new
//! one knows the hour before its own time. Waits are counted in classes a tenth apart, which is exact enough for a
//! percentile and takes the same room for a thousand jobs and for ten million.

use std::collections::BTreeMap;

use crate::Millis;
use crate::job::Priority;

const MINUTE: Millis = 60_000;
const MINUTES: Millis = 60;

/// Waits beyond this are not told apart: ten days.
const WAIT_MAX: Millis = 10 * 24 * 3_600_000;

/// What a call ended as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// With an answer that is a result; `by_fallback`: of a smaller model than the job's own.
    Answered { by_fallback: bool },
    /// The upstream was overloaded.
    Overloaded,
    /// In any other way.
    Otherwise,
}

/// The last hour in numbers; `None` of what did not happen at all.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Reading {
    /// Calls that found the upstream overloaded, of all calls.
    pub overloaded: Option<f64>,
    /// Answers of a smaller model, of all answers.
    pub by_fallback: Option<f64>,
    /// Jobs that ended with a result.
    pub answered: u64,
    /// 95th percentile of the wait for the first call, by priority; up to a tenth too high.
    pub dwell_p95: [Option<Millis>; 3],
}

#[derive(Debug, Default)]
struct Minute {
    calls: u64,
    overloaded: u64,
    answered: u64,
    by_fallback: u64,
    /// By class, see [`class`].
    waits: [BTreeMap<u16, u64>; 3],
}

/// The minutes, by number since 1970. At most 60 of them, and one that has just begun.
#[derive(Debug, Default)]
pub struct Hour {
    minutes: BTreeMap<Millis, Minute>,
}

impl Hour {
    /// A call ended at `at`.
    pub fn call(&mut self, at: Millis, ended: Ended) {
        let minute = self.minute(at);
        minute.calls += 1;
        match ended {
            Ended::Answered { by_fallback } => {
                minute.answered += 1;
                minute.by_fallback += u64::from(by_fallback);
            }
            Ended::Overloaded => minute.overloaded += 1,
            Ended::Otherwise => {}
        }
    }

    /// The first call of a job ended at `at`; the job had waited for it.
    pub fn waited(&mut self, at: Millis, priority: Priority, wait: Millis) {
        let waits = &mut self.minute(at).waits[priority.index()];
        *waits.entry(class(wait)).or_default() += 1;
    }

    /// The 60 minutes before `now`.
    #[must_use]
    pub fn reading(&mut self, now: Millis) -> Reading {
        self.forget(now / MINUTE);
        let sum = |count: fn(&Minute) -> u64| self.minutes.values().map(count).sum::<u64>();
        let answered = sum(|minute| minute.answered);
        Reading {
            overloaded: part(sum(|minute| minute.overloaded), sum(|minute| minute.calls)),
            by_fallback: part(sum(|minute| minute.by_fallback), answered),
            answered,
            dwell_p95: Priority::ALL.map(|priority| self.percentile_95(priority)),
        }
    }

    fn percentile_95(&self, priority: Priority) -> Option<Millis> {
        let mut classes = BTreeMap::<u16, u64>::new();
        for minute in self.minutes.values() {
            for (&class, &count) in &minute.waits[priority.index()] {
                *classes.entry(class).or_default() += count;
            }
        }
        let total: u64 = classes.values().sum();
        // The smallest wait that 95 of 100 jobs did not exceed.
        let wanted = (total * 95).div_ceil(100);
        let mut seen = 0;
        let found = classes.into_iter().find(|(_, count)| {
            seen += count;
            seen >= wanted
        });
        found.map(|(class, _)| edge(class))
    }

    fn minute(&mut self, at: Millis) -> &mut Minute {
        let number = at / MINUTE;
        self.forget(number);
        self.minutes.entry(number).or_default()
    }

    /// Forgets what is not among the 60 minutes up to `number`, and keeps the bound if clocks disagree.
    fn forget(&mut self, number: Millis) {
        let oldest = (number + 1).saturating_sub(MINUTES);
        while let Some((&first, _)) = self.minutes.first_key_value()
            && (first < oldest || self.minutes.len() as Millis > MINUTES)
        {
            self.minutes.pop_first();
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a ratio for showing")]
fn part(some: u64, all: u64) -> Option<f64> {
    (all > 0).then(|| some as f64 / all as f64)
}

/// The number of the first class whose [`edge`] is not below `wait`.
fn class(wait: Millis) -> u16 {
    let wait = wait.min(WAIT_MAX);
    let (mut low, mut high) = (0, CLASSES);
    while low < high {
        let middle = u16::midpoint(low, high);
        if edge(middle) < wait {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// More than enough classes for [`WAIT_MAX`].
const CLASSES: u16 = 256;

/// The longest wait of a class: every millisecond up to ten, then steps of a tenth.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "positive and below 2^53"
)]
fn edge(class: u16) -> Millis {
    match class {
        0..=10 => Millis::from(class),
        _ => (10.0 * 1.1_f64.powi(i32::from(class) - 10)) as Millis,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Millis = 1_700_000_000_000 / MINUTE * MINUTE;

    #[test]
    fn rates_are_parts_of_what_happened() {
        let mut hour = Hour::default();
        assert_eq!(hour.reading(NOW), Reading::default());
        for _ in 0..6 {
            hour.call(NOW, Ended::Answered { by_fallback: false });
        }
        for _ in 0..2 {
            hour.call(NOW, Ended::Answered { by_fallback: true });
            hour.call(NOW, Ended::Overloaded);
        }
        for _ in 0..6 {
            hour.call(NOW, Ended::Otherwise);
        }
        let reading = hour.reading(NOW);
        assert_eq!(reading.overloaded, Some(2.0 / 16.0));
        assert_eq!(reading.by_fallback, Some(2.0 / 8.0));
        assert_eq!(reading.answered, 8);
    }

    #[test]
    fn an_hour_has_sixty_minutes() {
        let mut hour = Hour::default();
        for minute in 0..200 {
            hour.call(NOW + minute * MINUTE, Ended::Overloaded);
        }
        let end = NOW + 199 * MINUTE;
        assert_eq!(hour.minutes.len(), 60);
        hour.call(end, Ended::Otherwise);
        assert_eq!(hour.reading(end).overloaded, Some(60.0 / 61.0));
        assert_eq!(hour.reading(end + 59 * MINUTE).overloaded, Some(0.5));
        assert_eq!(hour.reading(end + 60 * MINUTE), Reading::default());
    }

    #[test]
    fn what_comes_out_of_order_takes_no_room_without_end() {
        let mut hour = Hour::default();
        for step in 0..10_000 {
            hour.call(NOW - step * MINUTE, Ended::Otherwise);
        }
        assert!(hour.minutes.len() <= 61);
        // A clock far ahead is forgotten when its time has come and gone.
        hour.call(NOW + 5_000 * MINUTE, Ended::Overloaded);
        assert!(hour.minutes.len() <= 61);
    }

    #[test]
    fn the_percentile_is_that_of_the_sorted_waits_or_a_tenth_more() {
        for count in [1_u64, 2, 19, 20, 21, 100, 1_003] {
            let mut hour = Hour::default();
            let mut waits: Vec<Millis> = (0..count).map(|job| job * job * 37 % 90_000).collect();
            for &wait in &waits {
                hour.waited(NOW, Priority::Standard, wait);
            }
            waits.sort_unstable();
            let at = usize::try_from((count * 95).div_ceil(100)).unwrap() - 1;
            let exact = waits[at];
            let told = hour.reading(NOW).dwell_p95[Priority::Standard.index()].unwrap();
            assert!(
                (exact..=exact + exact / 10 + 1).contains(&told),
                "{told} {exact}"
            );
            assert_eq!(hour.reading(NOW).dwell_p95[Priority::Batch.index()], None);
        }
    }

    #[test]
    fn classes_are_a_tenth_apart_up_to_the_end() {
        for wait in [0, 1, 9, 10, 11, 12, 999, 86_400_000, WAIT_MAX, Millis::MAX] {
            let class = class(wait);
            assert!(class < CLASSES);
            assert!(edge(class) >= wait.min(WAIT_MAX));
            assert!(class == 0 || edge(class - 1) < wait);
        }
    }
}
