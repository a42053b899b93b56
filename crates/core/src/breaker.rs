//! The circuit breaker of a pool: while most calls fail, jobs wait instead of failing.
//!
//! Closed lets calls through, open refuses them, half-open lets one probe through at a time.
//! Failures are counted exactly, in a ring of buckets over the last minute: a moving average would
//! forget a burst or remember it too long. Only calls that say something about the upstream's
//! health are samples; a bad request, a rate limit or a fault of the account is none.

use crate::Millis;

/// When a breaker opens and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Time that is looked back on.
    pub window: Millis,
    /// Fewer samples than this say nothing.
    pub samples_min: u32,
    /// Failures among the samples that open it, in percent.
    pub failures_percent: u32,
    /// How long it stays open before a probe.
    pub open_for: Millis,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            window: 60_000,
            samples_min: 10,
            failures_percent: 50,
            open_for: 90_000,
        }
    }
}

/// What one call said about the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sample {
    Good,
    Bad,
}

/// What the breaker allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// Calls pass.
    Closed,
    /// No call before this time.
    Open { until: Millis },
    /// One call passes, as a probe.
    HalfOpen,
    /// A probe is out; nothing passes until it comes back.
    Probing,
}

const BUCKETS: usize = 10;

#[derive(Debug, Clone, Copy, Default)]
struct Bucket {
    /// Number of the stretch of time that is counted here.
    slot: u64,
    samples: u32,
    failures: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Closed,
    Open { until: Millis },
    Probing,
}

/// One breaker.
#[derive(Debug, Clone)]
pub struct Breaker {
    rules: Rules,
    ring: [Bucket; BUCKETS],
    state: State,
}

impl Breaker {
    /// A closed breaker that has seen nothing.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            ring: [Bucket::default(); BUCKETS],
            state: State::Closed,
        }
    }

    /// What is allowed now.
    #[must_use]
    pub fn gate(&self, now: Millis) -> Gate {
        match self.state {
            State::Closed => Gate::Closed,
            State::Open { until } if now < until => Gate::Open { until },
            State::Open { .. } => Gate::HalfOpen,
            State::Probing => Gate::Probing,
        }
    }

    /// Until when it is open; a probe that is out counts as due at once. None if it is closed.
    #[must_use]
    pub fn open_until(&self) -> Option<Millis> {
        match self.state {
            State::Closed => None,
            State::Open { until } => Some(until),
            State::Probing => Some(0),
        }
    }

    /// Takes over an open breaker.
    pub fn restore(&mut self, open_until: Option<Millis>) {
        self.state = open_until.map_or(State::Closed, |until| State::Open { until });
    }

    /// A call was let through as the probe.
    pub fn probe_sent(&mut self) {
        self.state = State::Probing;
    }

    /// The probe came back without saying anything, or did not come back: another may go.
    pub fn probe_lost(&mut self, now: Millis) {
        if self.state == State::Probing {
            self.state = State::Open { until: now };
        }
    }

    /// The probe came back with an answer.
    pub fn probe_ended(&mut self, sample: Sample, now: Millis) {
        if self.state != State::Probing {
            return;
        }
        match sample {
            Sample::Good => {
                self.ring = [Bucket::default(); BUCKETS];
                self.state = State::Closed;
            }
            Sample::Bad => {
                self.state = State::Open {
                    until: now + self.rules.open_for,
                }
            }
        }
    }

    /// Counts a call that was no probe. Returns whether this opened the breaker.
    pub fn record(&mut self, sample: Sample, now: Millis) -> bool {
        // What was on the wire when it opened says nothing new.
        if self.state != State::Closed {
            return false;
        }
        let slot = self.slot(now);
        let bucket = &mut self.ring[index(slot)];
        if bucket.slot != slot {
            *bucket = Bucket {
                slot,
                ..Bucket::default()
            };
        }
        bucket.samples += 1;
        bucket.failures += u32::from(sample == Sample::Bad);
        let (samples, failures) = self.counts(now);
        let trips = samples >= self.rules.samples_min
            && u64::from(failures) * 100
                >= u64::from(samples) * u64::from(self.rules.failures_percent);
        if trips {
            self.state = State::Open {
                until: now + self.rules.open_for,
            };
        }
        trips
    }

    /// Samples and failures within the window.
    #[must_use]
    pub fn counts(&self, now: Millis) -> (u32, u32) {
        let newest = self.slot(now);
        let oldest = newest.saturating_sub(BUCKETS as u64 - 1);
        self.ring
            .iter()
            .filter(|bucket| (oldest..=newest).contains(&bucket.slot))
            .fold((0, 0), |(samples, failures), bucket| {
                (samples + bucket.samples, failures + bucket.failures)
            })
    }

    fn slot(&self, now: Millis) -> u64 {
        now / (self.rules.window / BUCKETS as u64).max(1)
    }
}

fn index(slot: u64) -> usize {
    usize::try_from(slot % BUCKETS as u64).expect("less than ten")
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Millis = 1_000_000;

    fn tripped() -> Breaker {
        let mut breaker = Breaker::new(Rules::default());
        for _ in 0..10 {
            breaker.record(Sample::Bad, START);
        }
        breaker
    }

    #[test]
    fn it_opens_at_ten_samples_of_which_half_failed_and_not_before() {
        let mut breaker = Breaker::new(Rules::default());
        for _ in 0..5 {
            assert!(!breaker.record(Sample::Good, START));
        }
        for _ in 0..4 {
            assert!(!breaker.record(Sample::Bad, START));
        }
        assert!(breaker.record(Sample::Bad, START));
        assert_eq!(
            breaker.gate(START),
            Gate::Open {
                until: START + 90_000
            }
        );

        let mut mostly_good = Breaker::new(Rules::default());
        for _ in 0..100 {
            mostly_good.record(Sample::Good, START);
            mostly_good.record(Sample::Good, START);
            assert!(!mostly_good.record(Sample::Bad, START));
        }
    }

    #[test]
    fn what_is_older_than_the_window_does_not_count() {
        let mut breaker = Breaker::new(Rules::default());
        for _ in 0..9 {
            breaker.record(Sample::Bad, START);
        }
        assert!(!breaker.record(Sample::Bad, START + 60_000));
        assert_eq!(breaker.counts(START + 60_000), (1, 1));
    }

    #[test]
    fn half_open_lets_exactly_one_probe_through() {
        let mut breaker = tripped();
        assert_eq!(
            breaker.gate(START + 89_999),
            Gate::Open {
                until: START + 90_000
            }
        );
        assert_eq!(breaker.gate(START + 90_000), Gate::HalfOpen);
        breaker.probe_sent();
        assert_eq!(breaker.gate(START + 90_001), Gate::Probing);
        breaker.probe_ended(Sample::Bad, START + 91_000);
        assert_eq!(
            breaker.gate(START + 91_000),
            Gate::Open {
                until: START + 181_000
            }
        );
        breaker.probe_sent();
        breaker.probe_ended(Sample::Good, START + 181_000);
        assert_eq!(breaker.gate(START + 181_000), Gate::Closed);
        assert_eq!(
            breaker.counts(START + 181_000),
            (0, 0),
            "the past is forgiven"
        );
    }

    #[test]
    fn a_lost_probe_makes_room_for_another() {
        let mut breaker = tripped();
        breaker.probe_sent();
        breaker.probe_lost(START + 95_000);
        assert_eq!(breaker.gate(START + 95_000), Gate::HalfOpen);
    }

    #[test]
    fn calls_that_were_on_the_wire_when_it_opened_change_nothing() {
        let mut breaker = tripped();
        assert!(!breaker.record(Sample::Bad, START + 10));
        assert!(!breaker.record(Sample::Good, START + 10));
        assert_eq!(
            breaker.gate(START + 20),
            Gate::Open {
                until: START + 90_000
            }
        );
    }
}
