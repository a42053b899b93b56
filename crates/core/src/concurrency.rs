//! How many calls may be on the wire at once for the whole account.
//!
//! Nothing limits them until the upstream refuses a call because too many run. Then the number is
//! cut by a quarter, and grows back by one per [`STEP`]: additive increase, multiplicative decrease.
//! Refusals of calls that were sent before the last cut say nothing new.

use crate::Millis;

/// Time in which one more call is allowed.
pub const STEP: Millis = 5_000;

/// The window of calls.
#[derive(Debug, Clone, Copy, Default)]
pub struct Window {
    cut: Option<Cut>,
}

#[derive(Debug, Clone, Copy)]
struct Cut {
    /// Calls allowed right after it.
    to: u32,
    /// Calls that ran when it was made: where it ends.
    from: u32,
    at: Millis,
}

impl Window {
    /// The upstream refused a call that was sent at `sent`, while `in_flight` ran.
    pub fn refused(&mut self, sent: Millis, in_flight: u32, now: Millis) {
        if self.cut.is_some_and(|cut| sent <= cut.at) {
            return;
        }
        let ran = in_flight.max(1);
        let allowed = self.max(now).map_or(ran, |max| max.min(ran));
        self.cut = Some(Cut {
            to: (allowed * 3 / 4).max(1),
            from: allowed,
            at: now,
        });
    }

    /// Calls that may run at once; None: as many as there are slots.
    #[must_use]
    pub fn max(&self, now: Millis) -> Option<u32> {
        let cut = self.cut?;
        let grown = u32::try_from(now.saturating_sub(cut.at) / STEP).unwrap_or(u32::MAX);
        let max = cut.to.saturating_add(grown);
        // Twice of what was too much: whatever the reason was, it is gone.
        (max < cut.from.saturating_mul(2)).then_some(max)
    }

    /// Whether one more call may be sent beside `in_flight` others.
    ///
    /// # Errors
    /// When to ask again, if no call comes to its end before.
    pub fn room(&self, in_flight: usize, now: Millis) -> Result<(), Millis> {
        match (self.max(now), self.cut) {
            (Some(max), Some(cut)) if in_flight >= max as usize => {
                let grown = now.saturating_sub(cut.at) / STEP;
                Err(cut.at + (grown + 1) * STEP)
            }
            (Some(_) | None, _) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_limits_calls_until_one_is_refused() {
        assert_eq!(Window::default().room(100_000, 0), Ok(()));
    }

    #[test]
    fn a_refusal_cuts_by_a_quarter_and_time_gives_back_one_by_one() {
        let mut window = Window::default();
        window.refused(900, 40, 1_000);
        assert_eq!(window.room(29, 1_000), Ok(()));
        assert_eq!(window.room(30, 1_000), Err(6_000));
        assert_eq!(window.room(30, 6_000), Ok(()));
        assert_eq!(window.room(31, 6_000), Err(11_000));
        assert_eq!(window.max(1_000 + 49 * STEP), Some(79));
        assert_eq!(
            window.max(1_000 + 50 * STEP),
            None,
            "twice of what was too much"
        );
    }

    #[test]
    fn the_refusals_of_one_moment_cut_once() {
        let mut window = Window::default();
        for _ in 0..40 {
            window.refused(900, 40, 1_000);
        }
        assert_eq!(window.max(1_000), Some(30));
        window.refused(1_500, 30, 2_000);
        assert_eq!(window.max(2_000), Some(22));
    }

    #[test]
    fn one_call_always_may_run() {
        let mut window = Window::default();
        for at in 1..20 {
            window.refused(at * 10, 1, at * 10);
        }
        assert_eq!(window.room(0, 190), Ok(()));
    }
}
