//! The upstream: buckets that refill continuously, and a log that is the truth.

use std::collections::BTreeMap;

use fairlane_core::limiter::{Limits, Observation, Observed};
use fairlane_core::{JobSeq, Millis, PoolId, Tokens};

use crate::plan::{Plan, Storm};

/// One call as the upstream saw it.
#[derive(Debug, Clone)]
pub struct Call {
    pub at: Millis,
    /// Index of the job in the plan.
    pub job: usize,
    pub seq: JobSeq,
    pub pool: PoolId,
    pub answer: Answer,
    pub end: Millis,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Taken; it will be worked on.
    Taken,
    /// 429, with the time to wait.
    TooMany { retry_after: Millis },
    /// 529.
    Overloaded,
    /// 429: the month's money is spent.
    SpendLimit,
    /// 404: no such model.
    NoModel,
    /// 403: not for such jobs.
    Forbidden,
    /// 429: too many calls run.
    TooManyAtOnce,
}

/// In 1/60 000 of a token.
#[derive(Debug, Clone, Copy)]
struct Level {
    per_minute: i64,
    level: i64,
    at: Millis,
}

impl Level {
    fn new(per_minute: u64) -> Self {
        let per_minute = i64::try_from(per_minute).expect("a limit");
        Self {
            per_minute,
            level: per_minute * 60_000,
            at: 0,
        }
    }

    fn refill(&mut self, now: Millis) {
        let passed = i64::try_from(now - self.at).expect("time").min(60_000);
        self.at = now;
        self.level = (self.level + passed * self.per_minute).min(self.per_minute * 60_000);
    }

    /// Milliseconds until `tokens` are there.
    fn short_of(&self, tokens: u64) -> Millis {
        let need = (tokens.cast_signed() * 60_000).min(self.per_minute * 60_000);
        let short = (need - self.level).max(0);
        ((short + self.per_minute - 1) / self.per_minute).cast_unsigned()
    }

    fn take(&mut self, tokens: u64) {
        self.level -= tokens.cast_signed() * 60_000;
    }

    fn seen(&self) -> Option<Observed> {
        Some(Observed {
            limit: self.per_minute.cast_unsigned(),
            remaining: (self.level.max(0) / 60_000).cast_unsigned(),
        })
    }
}

/// The upstream of the fleet.
#[derive(Debug)]
pub struct Upstream {
    pools: BTreeMap<PoolId, [Level; 3]>,
    storms: Vec<Storm>,
    headers: bool,
    concurrent: Option<usize>,
    /// When the calls that run will end.
    running: Vec<Millis>,
    pub calls: Vec<Call>,
}

impl Upstream {
    #[must_use]
    pub fn new(plan: &Plan) -> Self {
        let levels = |limits: &Limits| {
            [
                Level::new(limits.requests),
                Level::new(limits.input_tokens),
                Level::new(limits.output_tokens),
            ]
        };
        Self {
            pools: plan
                .upstream
                .iter()
                .map(|(pool, limits)| (pool.clone(), levels(limits)))
                .collect(),
            storms: plan.storms.clone(),
            headers: plan.headers,
            concurrent: plan.concurrent,
            running: Vec::new(),
            calls: Vec::new(),
        }
    }

    /// Takes a call, or turns it away. Output is booked with the rest, at the beginning.
    pub fn call(
        &mut self,
        now: Millis,
        call: (usize, JobSeq),
        kind: &str,
        pool: &PoolId,
        actual: Tokens,
        service: Millis,
    ) -> Answer {
        let storm = self.storms.iter().find(|storm| {
            (storm.from..storm.to).contains(&now)
                && storm.pool.as_ref().is_none_or(|only| only == pool)
                && storm.kind.is_none_or(|only| only == kind)
        });
        self.running.retain(|&end| end > now);
        let is_full = self
            .concurrent
            .is_some_and(|most| self.running.len() >= most);
        let answer = match storm {
            Some(storm) => storm.answer,
            None if is_full => Answer::TooManyAtOnce,
            None => self.take(now, pool, actual),
        };
        if answer == Answer::Taken && self.concurrent.is_some() {
            self.running.push(now + service);
        }
        self.calls.push(Call {
            at: now,
            job: call.0,
            seq: call.1,
            pool: pool.clone(),
            answer,
            end: now + service,
        });
        answer
    }

    fn take(&mut self, now: Millis, pool: &PoolId, tokens: Tokens) -> Answer {
        let Some(levels) = self.pools.get_mut(pool) else {
            return Answer::Taken;
        };
        let needs = [1, tokens.input, tokens.output];
        let mut wait = 0;
        for (level, need) in levels.iter_mut().zip(needs) {
            level.refill(now);
            wait = wait.max(level.short_of(need));
        }
        if wait > 0 {
            let retry_after = wait.div_ceil(1_000) * 1_000;
            return Answer::TooMany { retry_after };
        }
        for (level, need) in levels.iter_mut().zip(needs) {
            level.take(need);
        }
        Answer::Taken
    }

    /// Somebody outside the fleet uses the same limits.
    pub fn foreign(&mut self, now: Millis, pool: &PoolId, tokens: Tokens) {
        if let Some(levels) = self.pools.get_mut(pool) {
            for (level, need) in levels.iter_mut().zip([1, tokens.input, tokens.output]) {
                level.refill(now);
                level.take(need);
            }
        }
    }

    /// The rate headers of an answer.
    pub fn observe(&mut self, now: Millis, pool: &PoolId) -> Observation {
        match self.pools.get_mut(pool) {
            Some(levels) if self.headers => {
                for level in levels.iter_mut() {
                    level.refill(now);
                }
                Observation {
                    at: now,
                    requests: levels[0].seen(),
                    input_tokens: levels[1].seen(),
                    output_tokens: levels[2].seen(),
                }
            }
            Some(_) | None => Observation::default(),
        }
    }

    /// Calls that were turned away for their pace.
    #[must_use]
    pub fn turned_away(&self) -> usize {
        self.calls
            .iter()
            .filter(|call| matches!(call.answer, Answer::TooMany { .. }))
            .count()
    }
}
