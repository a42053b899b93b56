//! Putting a job off to the next day, when everything that could answer it is overloaded for too long.

use crate::Millis;

const HOUR_MS: Millis = 3_600_000;
const DAY_MS: Millis = 24 * HOUR_MS;

/// When jobs that were put off run, and how long their owners may think about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Hour of the next day, UTC.
    pub hour: u32,
    /// Milliseconds from the question until no answer counts as no.
    pub answer_within: Millis,
}

/// The times of one deferral, unix milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// When the job runs again.
    pub until: Millis,
    /// By when its owner must have answered.
    pub answer_by: Millis,
}

/// The times of a job that is put off at `now`. None if it would be past its `deadline` by then.
#[must_use]
pub fn times(rules: Rules, deadline: Option<Millis>, now: Millis) -> Option<Times> {
    let tomorrow = (now / DAY_MS + 1) * DAY_MS;
    let until = tomorrow + Millis::from(rules.hour.min(23)) * HOUR_MS;
    if deadline.is_some_and(|deadline| deadline <= until) {
        return None;
    }
    Some(Times {
        until,
        answer_by: now.saturating_add(rules.answer_within).min(until),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules = Rules {
        hour: 3,
        answer_within: HOUR_MS,
    };
    /// A day in 2023, at 22:13:20 UTC.
    const NOW: Millis = 1_700_000_000_000;

    #[test]
    fn tomorrow_is_the_next_day_of_the_calendar_not_a_day_from_now() {
        let times = times(RULES, None, NOW).unwrap();
        assert_eq!(times.until % DAY_MS, 3 * HOUR_MS);
        assert_eq!(times.until / DAY_MS, NOW / DAY_MS + 1);
        assert_eq!(times.answer_by, NOW + HOUR_MS);
    }

    #[test]
    fn nobody_has_longer_to_answer_than_until_the_job_would_run() {
        let rules = Rules {
            answer_within: 100 * HOUR_MS,
            ..RULES
        };
        let times = times(rules, None, NOW).unwrap();
        assert_eq!(times.answer_by, times.until);
    }

    #[test]
    fn a_job_that_would_be_too_late_is_not_put_off() {
        let until = times(RULES, None, NOW).unwrap().until;
        assert_eq!(times(RULES, Some(until), NOW), None);
        assert!(times(RULES, Some(until + 1), NOW).is_some());
    }
}
