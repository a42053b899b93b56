//! The circuit breaker of a pool: while most calls fail, jobs wait instead of failing.
//!
//! Closed lets calls through, open refuses them, half-open lets one probe through at a time.
//! Failures are counted exactly, in a ring of buckets over the last minute: a moving average would
//! forget a burst or remember it too long. Only calls that say something about the upstream's
//! health are samples; a bad request, a rate limit or a fault of the account is none.
//!
//! A pool is shared, and one tenant may have jobs that never come to an end whatever the upstream's
//! health. So it does not open for what one tenant sees while the others are well.

use std::collections::BTreeMap;

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
    /// The upstream failed.
    Bad,
    /// The way to it failed.
    Unreachable,
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

/// Tenants told apart in one bucket; further ones are counted together, as one.
const TENANTS_MAX: usize = 64;

/// Number of a tenant, of the caller's choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TenantKey(pub u32);

impl TenantKey {
    const OTHERS: Self = Self(u32::MAX);
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Count {
    samples: u32,
    failures: u32,
}

impl Count {
    fn add(&mut self, other: Self) {
        self.samples += other.samples;
        self.failures += other.failures;
    }

    fn fails(self, percent: u32) -> bool {
        u64::from(self.failures) * 100 >= u64::from(self.samples) * u64::from(percent)
    }
}

#[derive(Debug, Clone, Default)]
struct Bucket {
    /// Number of the stretch of time that is counted here.
    slot: u64,
    all: Count,
    by_tenant: BTreeMap<TenantKey, Count>,
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
            ring: Default::default(),
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
                self.ring = Default::default();
                self.state = State::Closed;
            }
            Sample::Bad | Sample::Unreachable => {
                self.state = State::Open {
                    until: now + self.rules.open_for,
                }
            }
        }
    }

    /// Counts a call of `tenant` that was no probe. Returns whether this opened the breaker.
    pub fn record(&mut self, sample: Sample, tenant: TenantKey, now: Millis) -> bool {
        // What was on the wire when it opened says nothing new.
        if self.state != State::Closed {
            return false;
        }
        let one = Count {
            samples: 1,
            failures: u32::from(sample != Sample::Good),
        };
        let slot = self.slot(now);
        let bucket = &mut self.ring[index(slot)];
        if bucket.slot != slot {
            *bucket = Bucket {
                slot,
                ..Bucket::default()
            };
        }
        bucket.all.add(one);
        let is_known = bucket.by_tenant.contains_key(&tenant);
        let room = is_known || bucket.by_tenant.len() < TENANTS_MAX;
        let tenant = if room { tenant } else { TenantKey::OTHERS };
        bucket.by_tenant.entry(tenant).or_default().add(one);

        let all = self.count(now);
        let trips = all.samples >= self.rules.samples_min
            && all.fails(self.rules.failures_percent)
            && !self.is_one_tenants_trouble(all, now);
        if trips {
            self.state = State::Open {
                until: now + self.rules.open_for,
            };
        }
        trips
    }

    /// Whether all is well for everybody but the tenant with the most failures. Others with too few
    /// samples prove nothing.
    fn is_one_tenants_trouble(&self, all: Count, now: Millis) -> bool {
        let mut tenants: BTreeMap<TenantKey, Count> = BTreeMap::new();
        for bucket in self.buckets(now) {
            for (&tenant, &count) in &bucket.by_tenant {
                tenants.entry(tenant).or_default().add(count);
            }
        }
        let worst = tenants.values().max_by_key(|count| count.failures).copied();
        let worst = worst.unwrap_or_default();
        let others = Count {
            samples: all.samples.saturating_sub(worst.samples),
            failures: all.failures.saturating_sub(worst.failures),
        };
        others.samples >= self.rules.samples_min / 2 && !others.fails(self.rules.failures_percent)
    }

    /// Samples and failures within the window.
    #[must_use]
    pub fn counts(&self, now: Millis) -> (u32, u32) {
        let Count { samples, failures } = self.count(now);
        (samples, failures)
    }

    fn count(&self, now: Millis) -> Count {
        let mut sum = Count::default();
        for bucket in self.buckets(now) {
            sum.add(bucket.all);
        }
        sum
    }

    fn buckets(&self, now: Millis) -> impl Iterator<Item = &Bucket> {
        let newest = self.slot(now);
        let oldest = newest.saturating_sub(BUCKETS as u64 - 1);
        self.ring
            .iter()
            .filter(move |bucket| (oldest..=newest).contains(&bucket.slot))
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
    const ACME: TenantKey = TenantKey(0);

    fn tripped() -> Breaker {
        let mut breaker = Breaker::new(Rules::default());
        for _ in 0..10 {
            breaker.record(Sample::Bad, ACME, START);
        }
        breaker
    }

    #[test]
    fn it_opens_at_ten_samples_of_which_half_failed_and_not_before() {
        let mut breaker = Breaker::new(Rules::default());
        for _ in 0..5 {
            assert!(!breaker.record(Sample::Good, ACME, START));
        }
        for _ in 0..4 {
            assert!(!breaker.record(Sample::Bad, ACME, START));
        }
        assert!(breaker.record(Sample::Bad, ACME, START));
        assert_eq!(
            breaker.gate(START),
            Gate::Open {
                until: START + 90_000
            }
        );

        let mut mostly_good = Breaker::new(Rules::default());
        for _ in 0..100 {
            mostly_good.record(Sample::Good, ACME, START);
            mostly_good.record(Sample::Good, ACME, START);
            assert!(!mostly_good.record(Sample::Bad, ACME, START));
        }
    }

    #[test]
    fn what_is_older_than_the_window_does_not_count() {
        let mut breaker = Breaker::new(Rules::default());
        for _ in 0..9 {
            breaker.record(Sample::Bad, ACME, START);
        }
        assert!(!breaker.record(Sample::Bad, ACME, START + 60_000));
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
        assert!(!breaker.record(Sample::Bad, ACME, START + 10));
        assert!(!breaker.record(Sample::Good, ACME, START + 10));
        assert_eq!(
            breaker.gate(START + 20),
            Gate::Open {
                until: START + 90_000
            }
        );
    }

    #[test]
    fn one_tenants_hopeless_jobs_do_not_close_the_pool_for_the_others() {
        let mut breaker = Breaker::new(Rules::default());
        for turn in 0..20 {
            breaker.record(Sample::Good, TenantKey(1 + turn % 3), START);
        }
        for _ in 0..100 {
            assert!(!breaker.record(Sample::Bad, ACME, START));
        }
        // As soon as the others are hit too, it opens.
        let opened =
            (0..40).any(|turn| breaker.record(Sample::Bad, TenantKey(1 + turn % 3), START));
        assert!(opened);
    }

    #[test]
    fn a_tenant_that_is_alone_opens_the_breaker_of_its_pool() {
        let mut breaker = Breaker::new(Rules::default());
        for _ in 0..4 {
            breaker.record(Sample::Good, TenantKey(1), START);
        }
        let opened = (0..10).any(|_| breaker.record(Sample::Bad, ACME, START));
        assert!(opened, "four calls of others prove nothing");
    }

    #[test]
    fn tenants_beyond_the_bound_are_counted_together() {
        let mut breaker = Breaker::new(Rules::default());
        for tenant in 0..10_000 {
            breaker.record(Sample::Good, TenantKey(tenant), START);
        }
        assert!(
            breaker
                .ring
                .iter()
                .all(|bucket| bucket.by_tenant.len() <= TENANTS_MAX + 1)
        );
        assert_eq!(breaker.counts(START), (10_000, 0));
    }
}
