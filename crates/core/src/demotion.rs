//! When a tenant's standard work is served as batch, and for how long.
//!
//! Two things demote: rate limits that the tenant causes, and a day's input tokens far beyond its
//! budget. A demotion lasts for a fixed time and then ends by itself. It does not flap: what led to it
//! does not count a second time, and one for the budget goes on while the budget is overdrawn.

use std::collections::VecDeque;

use crate::Millis;

/// When a tenant is demoted and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Rate limits within `window` that demote.
    pub throttles: usize,
    pub window: Millis,
    /// Part of the daily budget of input tokens that demotes when it is passed, in percent.
    pub budget_percent: u64,
    pub length: Millis,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            throttles: 5,
            window: 60_000,
            budget_percent: 150,
            length: 300_000,
        }
    }
}

/// Why a tenant is demoted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Its calls caused rate limits.
    Throttles,
    /// It used more input tokens today than it may.
    Budget,
    /// A person decided so.
    Hand,
}

/// A demotion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demotion {
    pub cause: Cause,
    pub until: Millis,
}

/// Milliseconds of a UTC day.
pub const DAY: Millis = 24 * 3_600_000;

/// The rate limits a tenant caused, what it used today, and whether it is demoted.
#[derive(Debug, Clone, Default)]
pub struct Standing {
    throttles: VecDeque<Millis>,
    demotion: Option<Demotion>,
    day: u64,
    /// Input tokens of `day` by the ledger.
    spent: u64,
    /// Input tokens of calls under way.
    reserved: u64,
}

impl Standing {
    /// The demotion in force.
    #[must_use]
    pub fn demotion(&self) -> Option<Demotion> {
        self.demotion
    }

    /// The tenant caused a rate limit. Returns whether it is demoted from now on.
    pub fn throttled(&mut self, rules: Rules, phase: Millis, now: Millis) -> bool {
        if self.demotion.is_some() {
            return false;
        }
        self.throttles.push_back(now);
        let oldest = now.saturating_sub(rules.window);
        while self.throttles.front().is_some_and(|&at| at < oldest) {
            self.throttles.pop_front();
        }
        if self.throttles.len() < rules.throttles {
            return false;
        }
        self.demote(Cause::Throttles, now + rules.length + phase);
        true
    }

    /// A call of so many input tokens begins.
    pub fn reserve(&mut self, input: u64) {
        self.reserved = self.reserved.saturating_add(input);
    }

    /// A call for which so many were reserved is over: what it took is in the ledger.
    pub fn release(&mut self, input: u64) {
        self.reserved = self.reserved.saturating_sub(input);
    }

    /// The ledger shows what a call of `day` took.
    pub fn spent(&mut self, day: u64, input: u64) {
        if day > self.day {
            self.day = day;
            self.spent = 0;
        }
        if day == self.day {
            self.spent = self.spent.saturating_add(input);
        }
    }

    /// Input tokens used on the day of `now`, those of calls under way among them.
    #[must_use]
    pub fn used_today(&self, now: Millis) -> u64 {
        let spent = if self.day == now / DAY { self.spent } else { 0 };
        spent.saturating_add(self.reserved)
    }

    /// Demotes the tenant if it is far beyond its `budget`. Returns whether it is from now on.
    pub fn check_budget(
        &mut self,
        rules: Rules,
        budget: Option<u64>,
        phase: Millis,
        now: Millis,
    ) -> bool {
        if self.demotion.is_some() || !self.is_overdrawn(rules, budget, now) {
            return false;
        }
        let midnight = (now / DAY + 1) * DAY;
        self.demote(Cause::Budget, (now + rules.length).min(midnight) + phase);
        true
    }

    fn is_overdrawn(&self, rules: Rules, budget: Option<u64>, now: Millis) -> bool {
        budget.is_some_and(|budget| {
            let used = u128::from(self.used_today(now)) * 100;
            used > u128::from(budget) * u128::from(rules.budget_percent)
        })
    }

    /// Demotes the tenant until a time, or ends what was decided by hand.
    pub fn by_hand(&mut self, until: Option<Millis>, now: Millis) {
        match (until.filter(|&until| until > now), self.demotion) {
            (Some(until), _) => self.demote(Cause::Hand, until),
            (
                None,
                Some(Demotion {
                    cause: Cause::Hand, ..
                }),
            ) => self.demotion = None,
            (None, _) => {}
        }
    }

    /// Takes over a demotion that an earlier leader decided.
    pub fn restore(&mut self, demotion: Demotion) {
        self.demote(demotion.cause, demotion.until);
    }

    fn demote(&mut self, cause: Cause, until: Millis) {
        self.throttles.clear();
        self.demotion = Some(Demotion { cause, until });
    }

    /// Ends a demotion whose time is over. Returns whether one ended.
    pub fn wake(&mut self, rules: Rules, budget: Option<u64>, phase: Millis, now: Millis) -> bool {
        if self.demotion.is_none_or(|demotion| demotion.until > now) {
            return false;
        }
        self.demotion = None;
        !self.check_budget(rules, budget, phase, now)
    }
}

/// Where in a second something of the tenant `name` happens that would otherwise happen to all
/// tenants at once, in milliseconds. FNV-1a, so that it is the same in every process.
#[must_use]
pub fn phase(name: &str) -> Millis {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash % 1_000
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules = Rules {
        throttles: 5,
        window: 60_000,
        budget_percent: 150,
        length: 300_000,
    };

    fn until(standing: &Standing) -> Option<(Cause, Millis)> {
        standing
            .demotion()
            .map(|demotion| (demotion.cause, demotion.until))
    }

    #[test]
    fn five_rate_limits_within_a_minute_demote_for_five_minutes() {
        let mut standing = Standing::default();
        for at in [0, 10_000, 20_000, 30_000] {
            assert!(!standing.throttled(RULES, 0, at));
        }
        assert!(
            !standing.throttled(RULES, 0, 60_001),
            "the first is too old"
        );
        assert!(standing.throttled(RULES, 7, 60_002));
        assert_eq!(until(&standing), Some((Cause::Throttles, 360_009)));
        assert!(!standing.wake(RULES, None, 0, 360_008));
        assert!(standing.wake(RULES, None, 0, 360_009));
        assert_eq!(until(&standing), None);
        assert!(
            !standing.throttled(RULES, 0, 360_010),
            "what led to it does not count again"
        );
    }

    #[test]
    fn more_than_half_again_the_budget_demotes_until_the_day_is_over() {
        let (mut standing, budget) = (Standing::default(), Some(100_000));
        let now = 3 * DAY + 1_000;
        standing.spent(3, 140_000);
        standing.reserve(10_000);
        assert!(!standing.check_budget(RULES, budget, 0, now), "exactly");
        standing.reserve(1);
        assert!(standing.check_budget(RULES, budget, 0, now));
        assert_eq!(until(&standing), Some((Cause::Budget, now + 300_000)));
        standing.release(10_001);
        standing.spent(3, 10_001);
        let later = now + 300_000;
        assert!(!standing.wake(RULES, budget, 0, later), "still overdrawn");
        assert_eq!(until(&standing), Some((Cause::Budget, later + 300_000)));
        let evening = 4 * DAY - 10;
        assert!(!standing.wake(RULES, budget, 3, evening));
        assert_eq!(until(&standing), Some((Cause::Budget, 4 * DAY + 3)));
        assert!(standing.wake(RULES, budget, 3, 4 * DAY + 3));
        assert_eq!(standing.used_today(4 * DAY + 3), 0);
    }

    #[test]
    fn a_larger_budget_ends_nothing_before_its_time_but_keeps_it_from_going_on() {
        let mut standing = Standing::default();
        standing.spent(0, 1_000);
        assert!(standing.check_budget(RULES, Some(10), 0, 0));
        assert!(standing.wake(RULES, Some(10_000), 0, 300_000));
    }

    #[test]
    fn entries_of_yesterday_do_not_count_today() {
        let mut standing = Standing::default();
        standing.spent(5, 10);
        standing.spent(4, 1_000);
        assert_eq!(standing.used_today(5 * DAY), 10);
        assert_eq!(standing.used_today(6 * DAY), 0);
    }

    #[test]
    fn what_a_person_decided_a_person_ends() {
        let mut standing = Standing::default();
        standing.by_hand(Some(9_000), 1_000);
        assert_eq!(until(&standing), Some((Cause::Hand, 9_000)));
        standing.by_hand(None, 2_000);
        assert_eq!(until(&standing), None);
        standing.spent(0, 1_000);
        standing.check_budget(RULES, Some(1), 0, 2_000);
        standing.by_hand(None, 2_000);
        assert_eq!(until(&standing), Some((Cause::Budget, 302_000)));
    }

    #[test]
    fn phases_are_spread_over_the_second() {
        let mut tenths = [0; 10];
        for number in 0..1_000 {
            tenths[usize::try_from(phase(&format!("tenant-{number}")) / 100).unwrap()] += 1;
        }
        assert!(
            tenths.iter().all(|count| (60..=140).contains(count)),
            "{tenths:?}"
        );
    }
}
