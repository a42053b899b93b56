//! What a replay measured, and when one is better than another.

use fairlane_core::{Millis, Priority};

/// An aim has to come out better by so many percent to count.
pub const GAIN_PERCENT: u64 = 20;
/// Nothing may come out worse by more percent.
pub const LOSS_PERCENT: u64 = 5;

/// Waits differ by more than this before anybody notices, milliseconds.
const WAIT_STEP: Millis = 2_000;
/// Their mean is worth more.
const MEAN_STEP: Millis = 500;
/// Counts differ by more than this before they say anything.
const COUNT_STEP: u64 = 5;
/// Jain's index has to rise by so much to count, and may not fall by half of it.
const JAIN_STEP: f64 = 0.02;
/// What others may wait longer in the mean for what an aim gains, percent.
const MEAN_LOSS_PERCENT: u64 = 25;

/// How long jobs waited to be called, milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wait {
    pub jobs: u64,
    pub mean: Millis,
    pub p50: Millis,
    pub p99: Millis,
}

impl Wait {
    /// Measures these waits; sorts them.
    #[must_use]
    pub fn of(waits: &mut [Millis]) -> Self {
        waits.sort_unstable();
        let Some(last) = waits.len().checked_sub(1) else {
            return Self::default();
        };
        let jobs = waits.len() as u64;
        Self {
            jobs,
            mean: waits.iter().sum::<Millis>() / jobs,
            p50: waits[last / 2],
            p99: waits[last * 99 / 100],
        }
    }
}

/// What a replay measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Figures {
    /// All jobs.
    pub all: Wait,
    /// By priority, in the order of [`Priority::ALL`].
    pub wait: [Wait; 3],
    /// Jobs of tenants that took no more than twice an even share.
    pub quiet: Wait,
    /// Jobs of those that took more.
    pub noisy: Wait,
    /// Mean of Jain's index over minutes in which tenants competed; None if they never did.
    pub jain: Option<f64>,
    /// Calls that the upstream turned away by a rate limit.
    pub throttled: u64,
    pub demotions: u64,
    /// Of these, of tenants that took no more than twice an even share.
    pub quiet_demotions: u64,
    /// Jobs that were not called by the end of the replay.
    pub left: u64,
}

impl Figures {
    /// How much better this is than `today`: the sum of what the aims gained, in percent of what they were.
    /// None unless at least one aim gained [`GAIN_PERCENT`] (and more than is noise), and nothing lost more
    /// than [`LOSS_PERCENT`].
    ///
    /// Aims: waits of quiet tenants and of critical work (p99 and mean), rate limits met, demotions of quiet tenants,
    /// Jain's index. They may not be won by letting everybody wait longer in the mean, or by leaving jobs over.
    #[must_use]
    pub fn gain_over(&self, today: &Self) -> Option<u64> {
        if self.left > today.left
            || is_worse_by(MEAN_LOSS_PERCENT, WAIT_STEP, self.all.mean, today.all.mean)
        {
            return None;
        }
        let critical = Priority::Critical.index();
        let aims = [
            (self.quiet.p99, today.quiet.p99, WAIT_STEP),
            (self.wait[critical].p99, today.wait[critical].p99, WAIT_STEP),
            (self.throttled, today.throttled, COUNT_STEP),
            (self.quiet_demotions, today.quiet_demotions, COUNT_STEP),
        ];
        let is_worse =
            |&(mine, todays, step): &(u64, u64, u64)| is_worse_by(LOSS_PERCENT, step, mine, todays);
        if aims.iter().any(is_worse) {
            return None;
        }
        let jain = match (self.jain, today.jain) {
            (Some(mine), Some(todays)) if mine < todays - JAIN_STEP / 2.0 => return None,
            (Some(mine), Some(todays)) if mine > todays + JAIN_STEP => percent_up(mine, todays),
            (_, _) => 0,
        };
        // The last hundredth may be a handful of jobs: what it gains by chance, the mean does not.
        let waits = |mine: Wait, todays: Wait| {
            let last = gained(mine.p99, todays.p99, WAIT_STEP);
            last.min(gained(mine.mean, todays.mean, MEAN_STEP))
        };
        let gained = waits(self.quiet, today.quiet)
            + waits(self.wait[critical], today.wait[critical])
            + gained(self.throttled, today.throttled, COUNT_STEP)
            + gained(self.quiet_demotions, today.quiet_demotions, COUNT_STEP)
            + jain;
        (gained > 0).then_some(gained)
    }
}

fn is_worse_by(percent: u64, step: u64, mine: u64, todays: u64) -> bool {
    mine > todays.saturating_add((todays / 100).saturating_mul(percent).max(step))
}

/// Percent by which a figure fell, if that is enough to count.
fn gained(mine: u64, todays: u64, step: u64) -> u64 {
    let fell = todays.saturating_sub(mine);
    let percent = fell.saturating_mul(100).checked_div(todays).unwrap_or(0);
    if percent >= GAIN_PERCENT && fell > step {
        percent
    } else {
        0
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an index is at most 1"
)]
fn percent_up(mine: f64, todays: f64) -> u64 {
    ((mine - todays) * 100.0).ceil().max(1.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(p99: Millis) -> Wait {
        Wait {
            jobs: 100,
            mean: p99 / 4,
            p50: p99 / 10,
            p99,
        }
    }

    fn figures() -> Figures {
        Figures {
            all: wait(100_000),
            wait: [wait(2_000), wait(100_000), wait(200_000)],
            quiet: wait(60_000),
            noisy: wait(300_000),
            jain: Some(0.9),
            throttled: 100,
            demotions: 10,
            quiet_demotions: 0,
            left: 0,
        }
    }

    #[test]
    fn a_gain_has_to_reach_its_margin_and_cost_nothing_elsewhere() {
        let today = figures();
        let with = |change: fn(&mut Figures)| {
            let mut figures = figures();
            change(&mut figures);
            figures.gain_over(&today)
        };
        assert_eq!(with(|_| ()), None, "the same is not better");
        assert_eq!(with(|f| f.quiet.p99 = 30_000), None, "a few jobs");
        assert_eq!(with(|f| f.quiet = wait(48_600)), None, "below the margin");
        assert_eq!(with(|f| f.quiet = wait(30_000)), Some(50));
        assert_eq!(with(|f| f.wait[0].p99 = 1_500), None, "noise");
        assert_eq!(with(|f| f.throttled = 70), Some(30));
        assert_eq!(with(|f| f.jain = Some(0.95)), Some(5));
        assert_eq!(
            with(|f| {
                f.quiet = wait(30_000);
                f.throttled = 120;
            }),
            None,
            "at the expense of rate limits"
        );
        assert_eq!(
            with(|f| {
                f.quiet = wait(30_000);
                f.all.mean = 40_000;
            }),
            None,
            "everybody waits longer"
        );
        assert_eq!(
            with(|f| {
                f.quiet = wait(30_000);
                f.left = 1;
            }),
            None
        );
    }

    #[test]
    fn quantiles_are_those_of_the_sorted_waits() {
        let mut waits: Vec<Millis> = (0..=100).rev().collect();
        let wait = Wait::of(&mut waits);
        assert_eq!(
            (wait.jobs, wait.mean, wait.p50, wait.p99),
            (101, 50, 50, 99)
        );
        assert_eq!(Wait::of(&mut []), Wait::default());
    }
}
