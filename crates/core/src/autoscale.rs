//! How many worker slots are worth having: not as many as jobs wait, but as many as can be busy.
//!
//! By Little's law, jobs per second times seconds in a slot is the number of slots in use. Jobs per
//! second are what comes in and is to be run down of the backlog, or what the upstream takes, whichever
//! is less: slots beyond that would stand idle. Depth of a queue knows neither the upstream nor how
//! long a job takes, and it grows most while nothing may be sent.
//!
//! Three rules keep the number steady. While a pool may not be called at all, what it could take before
//! counts for [`Rules::hold`]: a short stop must not cost the workers that are needed after it. A new
//! leader never asks for less than the last one did for [`HANDOVER`], because it has yet to see what
//! comes in. And what is in flight is never undercut.

use std::collections::BTreeMap;

use crate::Millis;
use crate::ids::PoolId;
use crate::job::Tokens;
use crate::recent::Recent;

/// For how long a new leader asks for no less than the one before it.
pub const HANDOVER: Millis = 60_000;

/// What a slot is taken for by a job of which nothing was learned yet.
const SLOT_TIME_DEFAULT: Millis = 10_000;

/// No attempt counts for less: the grant, the answer and the settlement take their time, too.
const SLOT_TIME_MIN: Millis = 500;

/// The part of what the upstream takes for which there are to be slots, in percent: room for jobs that
/// take longer than the mean.
const HEADROOM_PERCENT: f64 = 115.0;

/// Of so many slots, one more is wanted for critical work to come.
const SLOTS_PER_RESERVE: u64 = 50;

/// More slots than this are never asked for, whatever the numbers say.
const SLOTS_MAX: f64 = 1_000_000.0;

/// What the signal keeps to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// In which a backlog of each priority is to be run down.
    pub drain: [Millis; 3],
    /// For how long a pool that may not be called counts as if it could be.
    pub hold: Millis,
    /// Fewer or more are never asked for.
    pub slots_min: u64,
    pub slots_max: Option<u64>,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            drain: [30_000, 300_000, 3_600_000],
            hold: 300_000,
            slots_min: 0,
            slots_max: None,
        }
    }
}

/// Whether a pool may be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    Well,
    /// Its breaker is open, or the upstream refuses it.
    Breaker,
    /// The upstream asked for a pause.
    Paused,
}

/// What is known of one pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolLoad {
    pub pool: PoolId,
    /// Jobs that came within the last minute and may run here.
    pub arrivals: u64,
    /// Jobs that may run here now, by priority as they are served.
    pub backlog: [u64; 3],
    /// Requests, input and output tokens per minute that are ours.
    pub per_minute: [u64; 3],
    /// What a job takes of them, if any was seen.
    pub tokens: Option<Tokens>,
    /// How long a job keeps its slot, if any was seen.
    pub slot_time: Option<Millis>,
    pub health: Health,
}

/// What is known of everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Load {
    pub pools: Vec<PoolLoad>,
    pub in_flight: u64,
    /// There was critical work of late.
    pub critical: bool,
}

/// What decides how many slots are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    Demand,
    Requests,
    InputTokens,
    OutputTokens,
    Breaker,
    Paused,
    Floor,
    Ceiling,
}

impl Reason {
    pub const ALL: [Self; 8] = [
        Self::Demand,
        Self::Requests,
        Self::InputTokens,
        Self::OutputTokens,
        Self::Breaker,
        Self::Paused,
        Self::Floor,
        Self::Ceiling,
    ];

    /// Its stable word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Demand => "demand",
            Self::Requests => "rpm",
            Self::InputTokens => "itpm",
            Self::OutputTokens => "otpm",
            Self::Breaker => "breaker",
            Self::Paused => "retry_after",
            Self::Floor => "floor",
            Self::Ceiling => "ceiling",
        }
    }

    /// The reason of this stable word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == word)
    }
}

/// How many slots are wanted, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Signal {
    pub at: Millis,
    pub wanted: u64,
    pub reason: Reason,
    /// Slots that all that waits would keep busy.
    pub demand: u64,
    /// Slots that the upstream could keep busy, in the pools for which anything waits.
    pub capacity: u64,
    pub in_flight: u64,
    pub pools: Vec<PoolSignal>,
}

/// What one pool adds.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolSignal {
    pub pool: PoolId,
    /// Jobs per minute that want to run.
    pub demand_per_minute: f64,
    /// Jobs per minute that the upstream takes, or took while it could be called.
    pub capacity_per_minute: f64,
    pub slot_time: Millis,
    /// When it could be called last.
    pub well_at: Millis,
    pub reason: Reason,
}

impl Signal {
    /// The same for people.
    #[must_use]
    pub fn words(&self) -> String {
        let (wanted, idle) = (self.wanted, self.demand.saturating_sub(self.wanted));
        let holding = |why: &str| {
            if idle == 0 {
                format!("holding at {wanted} slots: {why}")
            } else {
                format!("holding at {wanted} slots: {why}; {idle} more would sit idle")
            }
        };
        match self.reason {
            Reason::Demand if self.demand == 0 && self.in_flight == 0 => {
                format!("{wanted} slots: nothing waits")
            }
            Reason::Demand => {
                format!("{wanted} slots: as many as the work that is there keeps busy")
            }
            Reason::Requests => holding("requests per minute are the limit"),
            Reason::InputTokens => holding("input tokens per minute are the limit"),
            Reason::OutputTokens => holding("output tokens per minute are the limit"),
            Reason::Breaker => holding("the upstream cannot be called now"),
            Reason::Paused => holding("the upstream asked for a pause"),
            Reason::Floor => format!("{wanted} slots: never fewer"),
            Reason::Ceiling => format!("{wanted} slots: never more"),
        }
    }
}

/// The signal, and what it remembers from one to the next.
#[derive(Debug, Clone)]
pub struct Autoscaler {
    rules: Rules,
    pools: BTreeMap<PoolId, Memory>,
    /// What the last leader asked for, and until when that counts.
    handed_over: Option<(u64, Millis)>,
}

#[derive(Debug, Clone, Copy)]
struct Memory {
    capacity_per_minute: f64,
    well_at: Millis,
    slot_time: Millis,
}

impl Autoscaler {
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            pools: BTreeMap::new(),
            handed_over: None,
        }
    }

    /// Goes on from the last signal of another leader.
    pub fn restore(&mut self, last: &Signal, now: Millis) {
        self.handed_over = Some((last.wanted, now + HANDOVER));
        for pool in &last.pools {
            let memory = Memory {
                capacity_per_minute: pool.capacity_per_minute,
                well_at: pool.well_at,
                slot_time: pool.slot_time,
            };
            self.pools.insert(pool.pool.clone(), memory);
        }
    }

    /// The signal for what is known now.
    pub fn signal(&mut self, load: &Load, now: Millis) -> Signal {
        let pools: Vec<_> = load.pools.iter().map(|pool| self.pool(pool, now)).collect();
        let (mut demand, mut capacity, mut busy) = (0.0, 0.0, 0.0);
        let mut most_cut: Option<(f64, Reason)> = None;
        for pool in &pools {
            if pool.demand_per_minute <= 0.0 {
                continue;
            }
            let wants = slots(pool.demand_per_minute, pool.slot_time);
            let takes = slots(pool.capacity_per_minute, pool.slot_time) * HEADROOM_PERCENT / 100.0;
            demand += wants;
            capacity += takes;
            busy += wants.min(takes);
            let cut = (wants - takes).max(0.0);
            if pool.reason != Reason::Demand && most_cut.is_none_or(|(most, _)| cut > most) {
                most_cut = Some((cut, pool.reason));
            }
        }
        let reason = most_cut.map_or(Reason::Demand, |(_, reason)| reason);
        // Whatever waits, one slot sees when it can run.
        let mut wanted = whole(busy).max(u64::from(demand > 0.0));
        if load.critical {
            wanted += (wanted / SLOTS_PER_RESERVE).max(1);
        }
        wanted = wanted.max(load.in_flight);
        if let Some((last, until)) = self.handed_over {
            if now < until {
                wanted = wanted.max(last);
            } else {
                self.handed_over = None;
            }
        }
        let (wanted, reason) = self.within_bounds(wanted, reason);
        Signal {
            at: now,
            wanted,
            reason,
            demand: whole(demand),
            capacity: whole(capacity),
            in_flight: load.in_flight,
            pools,
        }
    }

    fn within_bounds(&self, wanted: u64, reason: Reason) -> (u64, Reason) {
        match self.rules.slots_max {
            Some(most) if wanted > most => (most, Reason::Ceiling),
            Some(_) | None if wanted < self.rules.slots_min => {
                (self.rules.slots_min, Reason::Floor)
            }
            Some(_) | None => (wanted, reason),
        }
    }

    fn pool(&mut self, load: &PoolLoad, now: Millis) -> PoolSignal {
        let (takes, limit) = capacity(load);
        let memory = self.pools.entry(load.pool.clone()).or_insert(Memory {
            capacity_per_minute: takes,
            well_at: now,
            slot_time: SLOT_TIME_DEFAULT,
        });
        if let Some(slot_time) = load.slot_time {
            memory.slot_time = slot_time.max(SLOT_TIME_MIN);
        }
        if load.health == Health::Well {
            memory.capacity_per_minute = takes;
            memory.well_at = now;
        }
        let is_held = now.saturating_sub(memory.well_at) <= self.rules.hold;
        let capacity_per_minute = if is_held {
            memory.capacity_per_minute
        } else {
            0.0
        };
        let backlog = load.backlog.iter().zip(self.rules.drain);
        let backlog: f64 = backlog
            .map(|(&jobs, drain)| number(jobs) * 60_000.0 / number(drain.max(1)))
            .sum();
        let demand_per_minute = number(load.arrivals) + backlog;
        let slot_time = memory.slot_time;
        let takes = slots(capacity_per_minute, slot_time) * HEADROOM_PERCENT / 100.0;
        let reason = match load.health {
            // Less than a slot is no reason.
            Health::Well if slots(demand_per_minute, slot_time) > takes + 1.0 => limit,
            Health::Well => Reason::Demand,
            Health::Breaker => Reason::Breaker,
            Health::Paused => Reason::Paused,
        };
        PoolSignal {
            pool: load.pool.clone(),
            demand_per_minute,
            capacity_per_minute,
            slot_time,
            well_at: memory.well_at,
            reason,
        }
    }
}

/// Jobs per minute that the limits of a pool allow, and the limit that binds.
fn capacity(load: &PoolLoad) -> (f64, Reason) {
    let tokens = load.tokens.unwrap_or_default();
    let limits = [
        (Reason::Requests, 1),
        (Reason::InputTokens, tokens.input),
        (Reason::OutputTokens, tokens.output),
    ];
    let jobs = limits.into_iter().zip(load.per_minute);
    // What a job takes none of cannot bind.
    let jobs = jobs.filter(|((_, takes), _)| *takes > 0);
    let jobs = jobs.map(|((limit, takes), per_minute)| (number(per_minute) / number(takes), limit));
    jobs.min_by(|one, other| one.0.total_cmp(&other.0))
        .unwrap_or((0.0, Reason::Requests))
}

/// Slots that so many jobs per minute keep busy.
fn slots(per_minute: f64, slot_time: Millis) -> f64 {
    per_minute * number(slot_time) / 60_000.0
}

#[expect(clippy::cast_precision_loss, reason = "rates, not sums")]
fn number(count: u64) -> f64 {
    count as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "bounded and not negative"
)]
fn whole(slots: f64) -> u64 {
    slots.clamp(0.0, SLOTS_MAX).ceil() as u64
}

/// The mean of what came within four minutes, or of the last that came.
#[derive(Debug, Clone)]
pub struct Mean {
    sum: Recent<24>,
    count: Recent<24>,
    last: Option<u64>,
}

impl Default for Mean {
    fn default() -> Self {
        Self {
            sum: Recent::new(10_000),
            count: Recent::new(10_000),
            last: None,
        }
    }
}

impl Mean {
    pub fn add(&mut self, value: u64, now: Millis) {
        self.sum.add(value, now);
        self.count.add(1, now);
        self.last = self.of(now);
    }

    fn of(&self, now: Millis) -> Option<u64> {
        self.sum.total(now).checked_div(self.count.total(now))
    }

    /// None before the first.
    #[must_use]
    pub fn at(&self, now: Millis) -> Option<u64> {
        self.of(now).or(self.last)
    }
}

#[cfg(test)]
mod tests;
