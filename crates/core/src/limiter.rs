//! The upstream's limits of one pool, as far as we know them: three buckets and a pause.
//!
//! After a pause the pool ramps up: it begins with half a second's worth, whatever gathered meanwhile,
//! and is refilled at half the rate for [`RAMP`]. Everybody who waited would come at once otherwise.
//!
//! A bucket holds up to a minute's worth and is refilled continuously, as the upstream does it.
//! Levels are kept in 1/60 000 of a token, so that a limit per minute is a whole number per
//! millisecond and nothing is lost to rounding. A level may go below zero: what was used is used.
//!
//! What an answer's headers say remains is an upper bound, as of when they came: since then the
//! bucket was refilled, and we have taken from it. Where the bound is below what we thought, somebody
//! else uses the same key. What they took in the last minute, a single grab left out, tells what they
//! will have taken since the last sighting, and that much is left in the bucket for them.

use crate::Millis;
use crate::job::Tokens;
use crate::recent::Recent;

const PER_TOKEN: i64 = 60_000;

/// The largest debt that is taken over from an earlier leader.
const OVERDRAWN_MINUTES_MAX: i64 = 10;

/// How long a pool is refilled at half the rate after a pause.
pub const RAMP: Millis = 10_000;

/// Limits per minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub requests: u64,
    pub input_tokens: u64,
    pub output_tokens: u64,
}

/// One continuously refilled bucket.
#[derive(Debug, Clone)]
pub struct Bucket {
    per_minute: i64,
    level: i64,
    at: Millis,
    /// What we took out, in tokens, by the time we did.
    taken: Recent<TAKEN_SLOTS>,
    /// What was gone that we did not take, in tokens, by the time we saw it.
    missing: Recent<8>,
    /// The upstream says what remains to so many tokens.
    grain: i64,
    /// As of when we know what remains.
    seen_at: Millis,
}

/// Stretches of time that takings are counted in: a quarter of a second each, a minute in all.
const TAKEN_SLOTS: usize = 240;
const TAKEN_SLOT: Millis = 250;

/// What others took is counted for eight stretches of time: a minute at least, even where the one with
/// the most is left out.
const MISSING_SLOT: Millis = 10_000;

/// Without an answer for longer, somebody has to go and see.
const UNSEEN_MAX: Millis = 30_000;

/// What remains of tokens is said to the nearest thousand.
const TOKEN_GRAIN: i64 = 1_000;

impl Bucket {
    /// A bucket of `per_minute` that holds a sixth of it, ten seconds' worth: we do not know
    /// what was used before we came, and a cold start must not burst.
    #[must_use]
    pub fn new(per_minute: u64, now: Millis) -> Self {
        let per_minute = i64::try_from(per_minute)
            .unwrap_or(i64::MAX)
            .clamp(1, i64::MAX / PER_TOKEN / 40);
        Self {
            per_minute,
            level: per_minute * PER_TOKEN / 6,
            at: now,
            taken: Recent::new(TAKEN_SLOT),
            missing: Recent::new(MISSING_SLOT),
            grain: 1,
            seen_at: now,
        }
    }

    /// Lets the time since the last call refill the bucket. A clock that steps back adds nothing.
    pub fn refill(&mut self, now: Millis) {
        let passed = i64::try_from(now.saturating_sub(self.at)).unwrap_or(i64::MAX);
        self.at = self.at.max(now);
        let refilled = passed.saturating_mul(self.per_minute);
        self.level = self
            .level
            .saturating_add(refilled)
            .min(self.per_minute * PER_TOKEN);
    }

    /// Leaves what gathers in half a second, at most: with the first second's refill at half the
    /// rate, that second sees no more than any other.
    fn begin_anew(&mut self, at: Millis) {
        self.at = self.at.max(at);
        self.level = self.level.min(self.per_minute * 500);
    }

    /// Keeps no more than half a second's worth, or one: what gathers while something else holds the
    /// pool back would all come at once.
    fn gather_no_more(&mut self) {
        let most = (self.per_minute * 500).max(PER_TOKEN);
        self.level = self.level.min(most);
    }

    /// Takes back half of what the time from `from` to `to` has refilled.
    fn halve(&mut self, from: Millis, to: Millis) {
        let passed = i64::try_from(to.saturating_sub(from))
            .unwrap_or(i64::MAX)
            .min(60_000);
        self.level = self.level.saturating_sub(passed * self.per_minute / 2);
    }

    /// Whether `tokens` fit now. A job larger than the whole bucket fits a full one: it would
    /// otherwise never run.
    #[must_use]
    pub fn fits(&self, tokens: u64) -> bool {
        self.level >= self.need(tokens)
    }

    /// Milliseconds until `tokens` fit.
    #[must_use]
    pub fn wait_for(&self, tokens: u64) -> Millis {
        let short = self.need(tokens).saturating_sub(self.level).max(0);
        short
            .unsigned_abs()
            .div_ceil(self.per_minute.unsigned_abs())
    }

    fn need(&self, tokens: u64) -> i64 {
        units(tokens).min(self.per_minute * PER_TOKEN)
    }

    /// Takes out what a call that begins now will use, below zero if need be.
    pub fn reserve(&mut self, tokens: u64, now: Millis) {
        self.taken.add(tokens, now);
        self.take(tokens);
    }

    /// Takes `tokens` out, below zero if need be.
    pub fn take(&mut self, tokens: u64) {
        self.level = self.level.saturating_sub(units(tokens));
    }

    /// Puts `tokens` back that were taken and not used.
    pub fn put_back(&mut self, tokens: u64) {
        self.level = self
            .level
            .saturating_add(units(tokens))
            .min(self.per_minute * PER_TOKEN);
    }

    /// Takes over what the upstream said at `at`: its limit, and what remained as an upper bound
    /// (it is rounded, and others may spend too). The bucket is refilled up to now.
    pub fn observe(&mut self, seen: Observed, at: Millis) {
        let now = self.at;
        let age = now.saturating_sub(at);
        let limit = i64::try_from(seen.limit)
            .unwrap_or(i64::MAX)
            .clamp(1, i64::MAX / PER_TOKEN / 4);
        self.per_minute = limit;
        self.level = self.level.min(limit * PER_TOKEN);
        self.seen_at = self.seen_at.max(at.min(now));
        let Some(taken) = self.taken.since(at, now) else {
            return;
        };
        let refilled = limit.saturating_mul(i64::try_from(age).unwrap_or(i64::MAX));
        let bound = units(seen.remaining)
            .saturating_add(refilled)
            .saturating_sub(units(taken));
        let gap = (self.level.saturating_sub(bound)).div_euclid(PER_TOKEN);
        if gap <= 0 {
            return;
        }
        self.level = bound;
        if gap >= self.grain {
            self.missing.add(gap.unsigned_abs(), now);
        }
    }

    /// Tokens that somebody else took in the last minute or so.
    #[must_use]
    pub fn missing(&self) -> u64 {
        self.missing.total(self.at)
    }

    /// What others will have taken since we knew what remains: at most half of the bucket.
    fn others(&self) -> u64 {
        let per_minute = self.missing.steady(self.at);
        if per_minute == 0 {
            return 0;
        }
        let unseen = self.at.saturating_sub(self.seen_at).min(UNSEEN_MAX);
        let taken = per_minute.saturating_mul(unseen).div_ceil(60_000);
        // And what the last sighting was not exact by.
        let others = taken.saturating_add(self.grain.unsigned_abs());
        others.min(self.per_minute.unsigned_abs() / 2)
    }

    /// The upstream says what remains to so many tokens.
    fn with_grain(self, grain: i64) -> Self {
        Self { grain, ..self }
    }

    /// A bucket of `per_minute` that held `tokens` at `at`; negative when overdrawn.
    #[must_use]
    pub fn restored(per_minute: u64, tokens: i64, at: Millis) -> Self {
        let fresh = Self::new(per_minute, at);
        // More than minutes of debt is no debt that a call can have left.
        let lowest = fresh.per_minute.saturating_mul(-OVERDRAWN_MINUTES_MAX);
        let level = tokens.clamp(lowest, fresh.per_minute) * PER_TOKEN;
        Self { level, ..fresh }
    }

    /// Whole tokens in the bucket; negative when overdrawn.
    #[must_use]
    pub fn tokens(&self) -> i64 {
        self.level.div_euclid(PER_TOKEN)
    }

    /// The limit per minute.
    #[must_use]
    pub fn per_minute(&self) -> i64 {
        self.per_minute
    }
}

fn units(tokens: u64) -> i64 {
    i64::try_from(tokens)
        .unwrap_or(i64::MAX / PER_TOKEN)
        .min(i64::MAX / PER_TOKEN / 4)
        * PER_TOKEN
}

/// The limits of one pool and whether it is paused.
#[derive(Debug, Clone)]
pub struct PoolLimits {
    requests: Bucket,
    input: Bucket,
    output: Bucket,
    paused_until: Millis,
    /// The pause has not been followed by its ramp yet.
    was_paused: bool,
    /// When the last ramp began.
    ramp_from: Option<Millis>,
    /// The upstream has told its limits.
    is_heard: bool,
}

/// What one answer said about one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observed {
    pub limit: u64,
    pub remaining: u64,
}

/// What one answer said about the limits of its pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Observation {
    /// When the answer's headers came; the rest of it may have taken minutes.
    pub at: Millis,
    pub requests: Option<Observed>,
    pub input_tokens: Option<Observed>,
    pub output_tokens: Option<Observed>,
}

impl PoolLimits {
    #[must_use]
    pub fn new(limits: Limits, now: Millis) -> Self {
        Self {
            requests: Bucket::new(limits.requests, now),
            input: Bucket::new(limits.input_tokens, now).with_grain(TOKEN_GRAIN),
            output: Bucket::new(limits.output_tokens, now).with_grain(TOKEN_GRAIN),
            paused_until: 0,
            was_paused: false,
            ramp_from: None,
            is_heard: false,
        }
    }

    /// Refills the buckets, more slowly after a pause.
    fn refill(&mut self, now: Millis) {
        let ended = self.paused_until;
        if self.was_paused && now >= ended {
            self.was_paused = false;
            self.ramp_from = Some(ended);
            for bucket in self.buckets() {
                bucket.refill(ended);
                bucket.begin_anew(ended);
            }
        }
        let ramp = self.ramp_from.map(|from| (from, from.saturating_add(RAMP)));
        for bucket in self.buckets() {
            let last = bucket.at;
            bucket.refill(now);
            if let Some((from, to)) = ramp {
                let from = last.clamp(from, to);
                bucket.halve(from, now.clamp(from, to));
            }
        }
        if ramp.is_some_and(|(_, to)| now < to) {
            self.requests.gather_no_more();
        }
    }

    fn buckets(&mut self) -> [&mut Bucket; 3] {
        [&mut self.requests, &mut self.input, &mut self.output]
    }

    /// Whether one request of `tokens` may start now, and leave `spare` requests, input and output
    /// tokens to somebody else.
    ///
    /// # Errors
    /// The time at which it may be asked again.
    pub fn room(&mut self, tokens: Tokens, spare: [u64; 3], now: Millis) -> Result<(), Millis> {
        if now < self.paused_until {
            return Err(self.paused_until);
        }
        self.refill(now);
        let needs = [1, tokens.input, tokens.output];
        let mut wait = 0;
        for ((bucket, need), spare) in self.buckets().into_iter().zip(needs).zip(spare) {
            let left = spare.saturating_add(bucket.others());
            wait = wait.max(bucket.wait_for(need.saturating_add(left)));
        }
        if wait == 0 { Ok(()) } else { Err(now + wait) }
    }

    /// Requests, input and output tokens that are left as of `now`; negative when overdrawn.
    pub fn left(&mut self, now: Millis) -> [i64; 3] {
        if now >= self.paused_until {
            self.refill(now);
        }
        self.buckets().map(|bucket| bucket.tokens())
    }

    /// A pool of which this much was `left` at `at`. The limits themselves are told anew, by the
    /// configuration and then by the upstream.
    #[must_use]
    pub fn restored(limits: Limits, left: [i64; 3], paused_until: Millis, at: Millis) -> Self {
        Self {
            requests: Bucket::restored(limits.requests, left[0], at),
            input: Bucket::restored(limits.input_tokens, left[1], at).with_grain(TOKEN_GRAIN),
            output: Bucket::restored(limits.output_tokens, left[2], at).with_grain(TOKEN_GRAIN),
            paused_until,
            was_paused: paused_until > at,
            ramp_from: None,
            is_heard: false,
        }
    }

    /// Sets aside one request of `tokens` that begins now.
    pub fn reserve(&mut self, tokens: Tokens, now: Millis) {
        let needs = [1, tokens.input, tokens.output];
        for (bucket, need) in self.buckets().into_iter().zip(needs) {
            bucket.reserve(need, now);
        }
    }

    /// Takes out what one request used for which nothing was set aside.
    pub fn charge(&mut self, used: Tokens) {
        let needs = [1, used.input, used.output];
        for (bucket, need) in self.buckets().into_iter().zip(needs) {
            bucket.take(need);
        }
    }

    /// Replaces a reservation by what was used; None if nothing was sent.
    pub fn settle(&mut self, reserved: Tokens, used: Option<Tokens>) {
        let (requests, used) = used.map_or((0, Tokens::default()), |used| (1, used));
        let reserved = [1, reserved.input, reserved.output];
        let used = [requests, used.input, used.output];
        for ((bucket, reserved), used) in self.buckets().into_iter().zip(reserved).zip(used) {
            if used >= reserved {
                bucket.take(used - reserved);
            } else {
                bucket.put_back(reserved - used);
            }
        }
    }

    /// Takes over what an answer said.
    pub fn observe(&mut self, seen: Observation, now: Millis) {
        if now >= self.paused_until {
            self.refill(now);
        }
        let at = seen.at;
        let seen = [seen.requests, seen.input_tokens, seen.output_tokens];
        self.is_heard |= seen.iter().any(Option::is_some);
        for (bucket, seen) in self.buckets().into_iter().zip(seen) {
            if let Some(seen) = seen {
                bucket.observe(seen, at);
            }
        }
    }

    /// Whether the upstream itself has told any of its limits. Until then they are those of the configuration.
    #[must_use]
    pub fn is_heard(&self) -> bool {
        self.is_heard
    }

    /// Requests, input and output tokens that somebody else with the same key took in the last minute or
    /// so.
    #[must_use]
    pub fn missing(&self) -> [u64; 3] {
        [&self.requests, &self.input, &self.output].map(Bucket::missing)
    }

    /// Limits per minute, as far as they are known: requests, input and output tokens.
    #[must_use]
    pub fn per_minute(&self) -> [u64; 3] {
        [&self.requests, &self.input, &self.output].map(|bucket| bucket.per_minute.unsigned_abs())
    }

    /// Closes the pool until `until`; an earlier time never shortens a pause.
    pub fn pause(&mut self, until: Millis) {
        if until > self.paused_until {
            self.paused_until = until;
            self.was_paused = true;
        }
    }

    /// Begins slowly again: the pool was closed for another reason than a pause.
    pub fn reopen(&mut self, now: Millis) {
        self.refill(now);
        self.buckets()
            .into_iter()
            .for_each(|bucket| bucket.begin_anew(now));
        self.ramp_from = Some(now);
    }

    /// End of the pause, in the past if there is none.
    #[must_use]
    pub fn paused_until(&self) -> Millis {
        self.paused_until
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const NOTHING: [u64; 3] = [0; 3];

    fn drained(per_minute: u64) -> Bucket {
        let mut bucket = Bucket::new(per_minute, 0);
        bucket.take(per_minute / 6);
        bucket
    }

    #[test]
    fn a_minute_refills_exactly_the_limit() {
        for per_minute in [1, 7, 50, 40_000, 10_000_000] {
            let mut bucket = Bucket::new(per_minute, 0);
            bucket.take(u64::try_from(bucket.tokens()).unwrap());
            let before = bucket.level;
            for ms in 1..=60_000 {
                bucket.refill(ms);
            }
            let wanted =
                (before + per_minute as i64 * PER_TOKEN).min(per_minute as i64 * PER_TOKEN);
            assert_eq!(bucket.level, wanted);
        }
    }

    #[test]
    fn the_wait_is_exact_to_the_millisecond() {
        let mut bucket = drained(50);
        bucket.level = 0;
        assert_eq!(bucket.wait_for(1), 1_200);
        bucket.refill(1_199);
        assert!(!bucket.fits(1));
        bucket.refill(1_200);
        assert!(bucket.fits(1));
    }

    #[test]
    fn a_clock_that_steps_back_adds_nothing_and_takes_nothing() {
        let mut bucket = Bucket::new(60, 10_000);
        let level = bucket.level;
        bucket.refill(5_000);
        assert_eq!(bucket.level, level);
        bucket.refill(10_000);
        assert_eq!(bucket.level, level);
    }

    #[test]
    fn a_job_larger_than_the_bucket_runs_when_the_bucket_is_full() {
        let mut bucket = Bucket::new(8_000, 0);
        assert!(!bucket.fits(20_000));
        bucket.refill(60_000);
        assert!(bucket.fits(20_000));
        bucket.take(20_000);
        assert_eq!(bucket.tokens(), -12_000);
    }

    #[test]
    fn settlement_replaces_the_estimate_by_what_was_used() {
        let limits = Limits {
            requests: 600,
            input_tokens: 60_000,
            output_tokens: 6_000,
        };
        let reserved = Tokens {
            input: 1_000,
            output: 100,
        };
        let levels = |pool: &PoolLimits| {
            [
                pool.requests.tokens(),
                pool.input.tokens(),
                pool.output.tokens(),
            ]
        };
        let fresh = PoolLimits::new(limits, 0);
        for (used, want) in [
            (None, [100, 10_000, 1_000]),
            (
                Some(Tokens {
                    input: 400,
                    output: 300,
                }),
                [99, 9_600, 700],
            ),
            (Some(reserved), [99, 9_000, 900]),
        ] {
            let mut pool = fresh.clone();
            pool.reserve(reserved, 0);
            pool.settle(reserved, used);
            assert_eq!(levels(&pool), want, "{used:?}");
        }
    }

    #[test]
    fn headers_lower_the_level_and_set_the_limit_but_never_raise_the_level() {
        let limits = Limits {
            requests: 600,
            input_tokens: 60_000,
            output_tokens: 6_000,
        };
        let mut pool = PoolLimits::new(limits, 0);
        let seen = |limit, remaining| Observation {
            requests: Some(Observed { limit, remaining }),
            ..Observation::default()
        };
        pool.observe(seen(1_200, 1_200), 0);
        assert_eq!(
            (pool.requests.per_minute(), pool.requests.tokens()),
            (1_200, 100)
        );
        pool.observe(seen(1_200, 3), 0);
        assert_eq!(pool.requests.tokens(), 3);
    }

    /// A pool of one request a second whose owner takes whatever it has, and an upstream that sees
    /// `foreign` requests of somebody else, one in so many milliseconds. Answers are read `lag` after
    /// their headers came. Returns refusals and requests in the last of ten minutes.
    fn beside(foreign: Option<Millis>, lag: Millis) -> (u32, u32) {
        let limits = Limits {
            requests: 60,
            input_tokens: 1_000_000,
            output_tokens: 1_000_000,
        };
        let (mut pool, mut upstream) = (PoolLimits::new(limits, 0), Bucket::new(60, 0));
        let mut answers: VecDeque<(Millis, u64, bool)> = VecDeque::new();
        let (mut refused, mut sent) = (0, 0);
        for now in (0..600_000).step_by(10) {
            upstream.refill(now);
            if foreign.is_some_and(|every| now % every == 0) && upstream.fits(1) {
                upstream.take(1);
            }
            while answers.front().is_some_and(|&(at, ..)| at + lag <= now) {
                let (at, remaining, is_refused) = answers.pop_front().unwrap();
                if is_refused {
                    pool.settle(Tokens::default(), None);
                }
                let requests = Some(Observed {
                    limit: 60,
                    remaining,
                });
                let seen = Observation {
                    at,
                    requests,
                    ..Observation::default()
                };
                pool.observe(seen, now);
            }
            if pool.room(Tokens::default(), NOTHING, now).is_ok() {
                pool.reserve(Tokens::default(), now);
                let is_refused = !upstream.fits(1);
                if !is_refused {
                    upstream.take(1);
                }
                if now >= 60_000 {
                    refused += u32::from(is_refused);
                }
                sent += u32::from(now >= 540_000);
                let remaining = upstream.tokens().max(0).unsigned_abs();
                answers.push_back((now, remaining, is_refused));
            }
        }
        (refused, sent)
    }

    #[test]
    fn what_answers_say_late_takes_nothing_from_who_is_alone() {
        for lag in [0, 1_000, 30_000] {
            assert_eq!(beside(None, lag), (0, 60), "{lag}");
        }
    }

    #[test]
    fn somebody_else_with_the_same_key_is_noticed_and_left_their_part() {
        // Who does not notice is refused once for each of the other's 180 calls.
        for (lag, refusals) in [(0, 0), (5_000, 0), (10_000, 5), (20_000, 20)] {
            let (refused, sent) = beside(Some(3_000), lag);
            assert!(refused <= refusals, "{refused} at {lag}");
            assert!((38..=41).contains(&sent), "two thirds: {sent} at {lag}");
        }
    }

    #[test]
    fn numbers_beyond_reason_only_take_long() {
        let limits = Limits {
            requests: u64::MAX,
            input_tokens: 0,
            output_tokens: u64::MAX,
        };
        let all = Tokens {
            input: u64::MAX,
            output: u64::MAX,
        };
        let mut pool = PoolLimits::new(limits, 0);
        for now in [0, 5, 3, u64::MAX / 2] {
            for _ in 0..10 {
                pool.reserve(all, now);
                pool.charge(all);
            }
            let wait = pool.room(all, [u64::MAX; 3], now);
            assert!(wait.is_err_and(|at| at > now), "{wait:?}");
            let seen = Some(Observed {
                limit: u64::MAX,
                remaining: u64::MAX,
            });
            let seen = Observation {
                at: u64::MAX,
                requests: seen,
                input_tokens: seen,
                output_tokens: seen,
            };
            pool.observe(seen, now);
        }
        for _ in 0..100 {
            pool.settle(all, None);
        }
        assert!(pool.left(u64::MAX / 2).iter().all(|&left| left > 0));
    }

    #[test]
    fn a_debt_beyond_reason_is_not_taken_over() {
        let limits = Limits {
            requests: 60,
            input_tokens: 600,
            output_tokens: 600,
        };
        let mut pool = PoolLimits::restored(limits, [i64::MIN, -1_000_000, 7], 0, 0);
        assert_eq!(pool.left(0), [-600, -6_000, 7]);
        assert_eq!(pool.room(Tokens::default(), NOTHING, 11 * 60_000), Ok(()));
    }

    #[test]
    fn the_first_second_after_a_pause_sees_no_more_than_any_other() {
        let limits = Limits {
            requests: 6_000,
            input_tokens: 600_000_000,
            output_tokens: 600_000_000,
        };
        let mut pool = PoolLimits::new(limits, 0);
        pool.pause(16_000);
        let mut started = |from: Millis, to: Millis| {
            let mut count = 0;
            for now in from..to {
                while pool.room(Tokens::default(), NOTHING, now).is_ok() {
                    pool.reserve(Tokens::default(), now);
                    count += 1;
                }
            }
            count
        };
        assert_eq!(started(0, 16_000), 0);
        let first = started(16_000, 16_001);
        assert_eq!(first, 50, "half a second of 100 a second");
        assert_eq!(started(16_001, 17_001), 50, "half the rate");
        assert_eq!(started(17_001, 26_000), 449, "until the ramp ends");
        assert!(
            (99..=101).contains(&started(26_000, 27_000)),
            "then the whole"
        );
    }

    #[test]
    fn requests_do_not_pile_up_while_tokens_hold_back_the_ramp() {
        let limits = Limits {
            requests: 6_000,
            input_tokens: 60_000,
            output_tokens: 600_000_000,
        };
        let mut pool = PoolLimits::new(limits, 0);
        pool.pause(16_000);
        let large = Tokens {
            input: 4_000,
            output: 0,
        };
        // Half a second's worth, and seven seconds at half the rate.
        assert_eq!(pool.room(large, NOTHING, 16_000), Err(19_500));
        let fits = (16_000..26_000).find(|&now| pool.room(large, NOTHING, now).is_ok());
        assert_eq!(fits, Some(23_000));
        let mut count = 0;
        while pool.room(Tokens::default(), NOTHING, 23_000).is_ok() {
            pool.reserve(Tokens::default(), 23_000);
            count += 1;
        }
        assert_eq!(count, 50, "half a second of 100 a second");
    }

    #[test]
    fn a_pause_closes_the_pool_and_is_never_shortened() {
        let mut pool = PoolLimits::new(
            Limits {
                requests: 600,
                input_tokens: 60_000,
                output_tokens: 6_000,
            },
            0,
        );
        pool.pause(16_000);
        pool.pause(2_000);
        assert_eq!(pool.room(Tokens::default(), NOTHING, 15_999), Err(16_000));
        assert_eq!(pool.room(Tokens::default(), NOTHING, 16_000), Ok(()));
    }
}
