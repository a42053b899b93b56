//! Shares of the three priorities in what one pool dispatches.
//!
//! Deterministic: every dispatch gives each waiting priority its share of the cost as credit and
//! takes the whole cost from the one that was served; the one with the most credit goes next. The
//! error against the exact shares therefore never exceeds the cost of one job per priority.

use crate::job::{Cost, Priority};

/// Weights between priorities, and the preference for critical work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShareRules {
    /// Weight of critical, standard and batch work.
    pub weights: [u32; 3],
    /// Share of critical work while it waits, in thousandths; the plain weights if they give more.
    pub preference: u32,
    /// Least share of batch work while it waits, in thousandths.
    pub batch_floor: u32,
}

impl Default for ShareRules {
    fn default() -> Self {
        Self {
            weights: [70, 25, 5],
            preference: 900,
            batch_floor: 50,
        }
    }
}

/// Whether each priority has work waiting, in the order of [`Priority::ALL`].
pub type Waiting = [bool; 3];

impl ShareRules {
    /// Thousandths for each waiting priority; they add up to 1 000 if any waits.
    ///
    /// Critical gets its preference, batch at least its floor, standard the rest. With a preference
    /// of 0 the plain weights hold. What a priority without work would get goes to the others.
    #[must_use]
    pub fn shares(&self, waiting: Waiting) -> [u32; 3] {
        let [critical, standard, batch] = waiting;
        let weight = |index: usize| {
            if waiting[index] {
                self.weights[index]
            } else {
                0
            }
        };
        let part = |of: u32, index: usize, others: u32| {
            (of * weight(index)).checked_div(others).unwrap_or(0)
        };
        let all = weight(0) + weight(1) + weight(2);
        if all == 0 {
            return [0; 3];
        }
        let mut critical_share = part(1_000, 0, all);
        if critical {
            critical_share = critical_share.max(self.preference.min(1_000));
            if !standard && !batch {
                critical_share = 1_000;
            } else if batch {
                critical_share = critical_share.min(1_000 - self.batch_floor);
            }
        }
        let rest = 1_000 - critical_share;
        let mut batch_share = part(rest, 2, weight(1) + weight(2));
        if batch {
            batch_share = if standard {
                batch_share.max(self.batch_floor.min(rest))
            } else {
                rest
            };
        }
        [critical_share, rest - batch_share, batch_share]
    }
}

/// The most that is taken over from an earlier leader: a thousand cost units.
const OWED_MAX: i64 = 1_000 * 1_000 * 1_000;

/// Who goes next between priorities.
#[derive(Debug, Clone, Default)]
pub struct Shares {
    rules: ShareRules,
    /// Credit in thousandths of [`Cost`], for exact arithmetic with shares in thousandths.
    credit: [i64; 3],
    /// Who waited when something was booked last.
    waited: Waiting,
}

impl Shares {
    #[must_use]
    pub fn new(rules: ShareRules) -> Self {
        Self {
            rules,
            credit: [0; 3],
            waited: [false; 3],
        }
    }

    /// What each priority is owed, in thousandths of [`Cost`].
    #[must_use]
    pub fn owed(&self) -> [i64; 3] {
        self.credit
    }

    /// Takes over what each priority is owed.
    pub fn restore(&mut self, owed: [i64; 3]) {
        // Far more than corrections can leave behind, and far from where sums overflow.
        self.credit = owed.map(|owed| owed.clamp(-OWED_MAX, OWED_MAX));
    }

    /// The priority to serve next, among those that wait.
    #[must_use]
    pub fn next(&self, waiting: Waiting) -> Option<Priority> {
        Priority::ALL
            .into_iter()
            .filter(|priority| waiting[priority.index()])
            .max_by_key(|priority| (self.credit[priority.index()], std::cmp::Reverse(*priority)))
    }

    /// Books a dispatch, or the correction of one (`cost` may be negative).
    ///
    /// Who pays and who earns must come out even, or the credits drift apart over hours and the next
    /// priority that comes along is served alone until it has caught up. So nobody pays while nobody
    /// waits, an idle priority is given back no more than it owes, and one that comes back starts
    /// no better off than the best of those that stayed.
    pub fn serve(&mut self, priority: Priority, cost: Cost, waiting: Waiting) {
        let best = Priority::ALL
            .into_iter()
            .map(Priority::index)
            .filter(|&index| waiting[index] && self.waited[index])
            .map(|index| self.credit[index])
            .max();
        for (index, credit) in self.credit.iter_mut().enumerate() {
            if waiting[index] && !self.waited[index] {
                *credit = (*credit).min(best.unwrap_or(0));
            }
        }
        self.waited = waiting;
        if waiting == [false; 3] {
            return;
        }
        let owed = self.credit[priority.index()].min(0) / 1_000;
        let cost = if waiting[priority.index()] {
            cost
        } else {
            Cost(cost.0.max(owed))
        };
        let shares = self.rules.shares(waiting);
        for other in Priority::ALL {
            let index = other.index();
            if waiting[index] {
                let earned = cost.0.saturating_mul(i64::from(shares[index]));
                self.credit[index] = self.credit[index].saturating_add(earned);
            } else {
                // Nothing waits here: no savings for later.
                self.credit[index] = self.credit[index].min(0);
            }
        }
        let index = priority.index();
        self.credit[index] = self.credit[index].saturating_sub(cost.0.saturating_mul(1_000));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_as_promised() {
        let preferred = ShareRules::default();
        let plain = ShareRules {
            preference: 0,
            ..preferred
        };
        let cases = [
            (preferred, [true, true, true], [900, 50, 50]),
            (preferred, [false, true, true], [0, 834, 166]),
            (preferred, [true, true, false], [900, 100, 0]),
            (preferred, [true, false, true], [933, 0, 67]),
            (preferred, [true, false, false], [1_000, 0, 0]),
            (preferred, [false, false, true], [0, 0, 1_000]),
            (plain, [true, true, true], [700, 250, 50]),
            (plain, [true, true, false], [736, 264, 0]),
            (preferred, [false, false, false], [0, 0, 0]),
        ];
        for (rules, waiting, want) in cases {
            assert_eq!(rules.shares(waiting), want, "{waiting:?}");
        }
    }

    fn dispatch(jobs: usize, costs: [i64; 3], waiting: impl Fn(usize) -> Waiting) -> [i64; 3] {
        let mut shares = Shares::new(ShareRules::default());
        let mut service = [0; 3];
        for turn in 0..jobs {
            let waits = waiting(turn);
            let priority = shares.next(waits).unwrap();
            let cost = costs[priority.index()];
            shares.serve(priority, Cost(cost), waits);
            service[priority.index()] += cost;
        }
        service
    }

    #[test]
    fn saturated_priorities_get_their_shares_by_cost_not_by_count() {
        let service = dispatch(100_000, [1_000, 7_000, 3_000], |_| [true; 3]);
        let total: i64 = service.iter().sum();
        for (got, want) in service.iter().zip([0.90, 0.05, 0.05]) {
            assert!(
                (*got as f64 / total as f64 - want).abs() < 0.001,
                "{service:?}"
            );
        }
    }

    #[test]
    fn batch_is_lent_what_others_leave_and_owes_nothing_for_it() {
        let service = dispatch(2_000, [1_000; 3], |turn| [turn >= 1_000, false, true]);
        assert!((service[0] - 933_000).abs() <= 2_000, "{service:?}");
    }

    /// Shares of critical work and batch work that both wait, over `jobs` jobs of 1 000.
    fn compete(shares: &mut Shares, jobs: usize) -> [i64; 3] {
        let waiting = [true, false, true];
        let mut service = [0; 3];
        for _ in 0..jobs {
            let priority = shares.next(waiting).unwrap();
            shares.serve(priority, Cost(1_000), waiting);
            service[priority.index()] += 1_000;
        }
        service
    }

    #[test]
    fn corrections_while_nobody_waits_are_nobodys_gain_or_debt() {
        let none = [false; 3];
        for (priority, more) in [(Priority::Batch, -9_000), (Priority::Critical, 30_000)] {
            let mut shares = Shares::new(ShareRules::default());
            for _ in 0..1_000 {
                let mut alone = none;
                alone[priority.index()] = true;
                shares.serve(priority, Cost(10_000), alone);
                shares.serve(priority, Cost(more), none);
            }
            let service = compete(&mut shares, 1_000);
            assert!(
                (service[0] - 933_000).abs() <= 2_000,
                "{priority} {service:?}"
            );
        }
    }

    #[test]
    fn refunds_of_an_idle_priority_do_not_pile_up_as_debts_of_the_others() {
        let mut shares = Shares::new(ShareRules::default());
        for _ in 0..1_000 {
            shares.serve(Priority::Standard, Cost(10_000), [true, true, false]);
            shares.serve(Priority::Standard, Cost(-9_900), [true, false, false]);
            for _ in 0..20 {
                shares.serve(Priority::Critical, Cost(1_000), [true, false, false]);
            }
        }
        let service = compete(&mut shares, 1_000);
        assert!((service[0] - 933_000).abs() <= 20_000, "{service:?}");
    }

    #[test]
    fn no_priority_saves_up_while_it_has_no_work() {
        let service = dispatch(10_100, [1_000; 3], |turn| [true, true, turn >= 10_000]);
        assert!(service[2] <= 7_000, "batch must not catch up: {service:?}");
    }
}
