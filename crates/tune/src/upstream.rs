//! The upstream of a replay: buckets that refill continuously, and the refusals that were recorded.

use std::collections::BTreeMap;

use fairlane_core::limiter::Limits;
use fairlane_core::{Millis, PoolId, Tokens};

use crate::month::Squall;

/// One limit. Levels are kept in 1/60 000 of a token, as exact as in the limiter.
#[derive(Debug, Clone, Copy)]
struct Level {
    per_minute: i64,
    level: i64,
    at: Millis,
}

const PER_TOKEN: i64 = 60_000;

impl Level {
    fn new(per_minute: u64, at: Millis) -> Self {
        let per_minute = i64::try_from(per_minute).unwrap_or(i64::MAX);
        let per_minute = per_minute.clamp(1, i64::MAX / PER_TOKEN / 4);
        Self {
            per_minute,
            level: per_minute * PER_TOKEN,
            at,
        }
    }

    fn refill(&mut self, now: Millis) {
        let passed = i64::try_from(now.saturating_sub(self.at)).unwrap_or(i64::MAX);
        self.at = self.at.max(now);
        let full = self.per_minute * PER_TOKEN;
        self.level = (self.level + passed.min(60_000) * self.per_minute).min(full);
    }

    fn wait_for(&self, tokens: u64) -> Millis {
        let full = self.per_minute * PER_TOKEN;
        let need = i64::try_from(tokens).unwrap_or(i64::MAX);
        let need = need.saturating_mul(PER_TOKEN).min(full);
        let short = (need - self.level).max(0).unsigned_abs();
        short.div_ceil(self.per_minute.unsigned_abs())
    }

    fn take(&mut self, tokens: u64) {
        let tokens = i64::try_from(tokens).unwrap_or(i64::MAX / PER_TOKEN);
        self.level = self.level.saturating_sub(tokens.saturating_mul(PER_TOKEN));
    }
}

#[derive(Debug)]
pub(crate) struct Upstream<'a> {
    pools: BTreeMap<PoolId, [Level; 3]>,
    limits: &'a BTreeMap<PoolId, Limits>,
    default: Limits,
    squalls: &'a [Squall],
    /// Those before it are over.
    next: usize,
    /// The recorded refusal that each pool is in, or was in last.
    blown: BTreeMap<PoolId, Millis>,
}

impl<'a> Upstream<'a> {
    pub(crate) fn new(
        limits: &'a BTreeMap<PoolId, Limits>,
        default: Limits,
        squalls: &'a [Squall],
    ) -> Self {
        Self {
            pools: BTreeMap::new(),
            limits,
            default,
            squalls,
            next: 0,
            blown: BTreeMap::new(),
        }
    }

    /// Takes a call. `Err`: it is turned away, and for how long.
    pub(crate) fn call(&mut self, now: Millis, pool: &PoolId, used: Tokens) -> Result<(), Millis> {
        while let Some(squall) = self.squalls.get(self.next)
            && squall.from <= now
        {
            self.blown.insert(squall.pool.clone(), squall.to);
            self.next += 1;
        }
        if let Some(&to) = self.blown.get(pool)
            && to > now
        {
            return Err(to - now);
        }
        let limits = self.limits.get(pool).unwrap_or(&self.default);
        let levels = self.pools.entry(pool.clone()).or_insert_with(|| {
            [
                Level::new(limits.requests, now),
                Level::new(limits.input_tokens, now),
                Level::new(limits.output_tokens, now),
            ]
        });
        let needs = [1, used.input, used.output];
        let mut wait = 0;
        for (level, need) in levels.iter_mut().zip(needs) {
            level.refill(now);
            wait = wait.max(level.wait_for(need));
        }
        if wait > 0 {
            // The upstream says whole seconds.
            return Err(wait.div_ceil(1_000) * 1_000);
        }
        for (level, need) in levels.iter_mut().zip(needs) {
            level.take(need);
        }
        Ok(())
    }
}
