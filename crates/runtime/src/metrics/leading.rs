//! What only the leading scheduler knows. Gauges go when it stands by; counters stay.

use std::sync::Arc;

use prometheus::{GaugeVec, IntCounterVec, IntGaugeVec, Registry};

use super::{
    AUTOSCALE_REASON, BREAKER_STATE, CREDITS_EXPIRED, FALLBACK_GRANTS, FIRST_GRANT, LIMIT_USED,
    LabelCap, PAUSES, PICTURE_REPAIRS, POOL_LABELS_MAX, Priority, QUEUE_OLDEST, TERM, WANTED_SLOTS,
    WANTED_SLOTS_TERM, counter, gauge, ratio, set,
};

/// Label values of `bucket`: what a limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bucket {
    /// Requests.
    Requests,
    /// Input tokens.
    InputTokens,
    /// Output tokens.
    OutputTokens,
}

impl Bucket {
    /// All of them, in the order in which limits are told.
    pub const ALL: [Self; 3] = [Self::Requests, Self::InputTokens, Self::OutputTokens];

    fn label(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::InputTokens => "input_tokens",
            Self::OutputTokens => "output_tokens",
        }
    }
}

/// States of a breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Breaker {
    /// Calls pass.
    Closed,
    /// One call goes through, to see.
    HalfOpen,
    /// Nothing passes.
    Open,
}

/// Metrics of a leader.
#[derive(Debug, Clone)]
pub struct Leading {
    pools: Arc<LabelCap>,
    queue_oldest: IntGaugeVec,
    limit_used: GaugeVec,
    pauses: IntGaugeVec,
    breaker_state: IntGaugeVec,
    wanted_slots: IntGaugeVec,
    wanted_slots_term: IntGaugeVec,
    autoscale_reason: IntGaugeVec,
    term: IntGaugeVec,
    first_grant: GaugeVec,
    credits_expired: IntCounterVec,
    fallback_grants: IntCounterVec,
    picture_repairs: IntCounterVec,
}

impl Leading {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            pools: Arc::new(LabelCap::new(POOL_LABELS_MAX)),
            queue_oldest: gauge(registry, QUEUE_OLDEST),
            limit_used: ratio(registry, LIMIT_USED),
            pauses: gauge(registry, PAUSES),
            breaker_state: gauge(registry, BREAKER_STATE),
            wanted_slots: gauge(registry, WANTED_SLOTS),
            wanted_slots_term: gauge(registry, WANTED_SLOTS_TERM),
            autoscale_reason: gauge(registry, AUTOSCALE_REASON),
            term: gauge(registry, TERM),
            first_grant: ratio(registry, FIRST_GRANT),
            credits_expired: counter(registry, CREDITS_EXPIRED),
            fallback_grants: counter(registry, FALLBACK_GRANTS),
            picture_repairs: counter(registry, PICTURE_REPAIRS),
        }
    }

    /// Seconds since the oldest job in line was stored; 0 if there is none.
    pub fn queue_oldest(&self, priority: Priority, seconds: u64) {
        let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
        let labels = &[priority.label()];
        self.queue_oldest.with_label_values(labels).set(seconds);
    }

    /// Part of a pool's limit that is used up: above 1 it is overdrawn.
    pub fn limit_used(&self, pool: &str, bucket: Bucket, part: f64) {
        let labels = &[self.pools.label(pool), bucket.label()];
        self.limit_used.with_label_values(labels).set(part);
    }

    /// Pauses and refusals in force of one scope.
    pub fn pauses(&self, scope: &'static str, count: usize) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.pauses.with_label_values(&[scope]).set(count);
    }

    /// How a pool's breaker stands.
    pub fn breaker(&self, pool: &str, state: Breaker) {
        let state = match state {
            Breaker::Closed => 0,
            Breaker::HalfOpen => 1,
            Breaker::Open => 2,
        };
        let labels = &[self.pools.label(pool)];
        self.breaker_state.with_label_values(labels).set(state);
    }

    /// Slots wanted of a pool of workers, with what they are made of: demand, capacity, in flight.
    pub fn wanted_slots(&self, pool: &'static str, wanted: u64, terms: [u64; 3]) {
        let gauge = |value| i64::try_from(value).unwrap_or(i64::MAX);
        let slots = self.wanted_slots.with_label_values(&[pool]);
        slots.set(gauge(wanted));
        for (term, value) in ["demand", "capacity", "in_flight"].into_iter().zip(terms) {
            let slots = self.wanted_slots_term.with_label_values(&[pool, term]);
            slots.set(gauge(value));
        }
    }

    /// Whether this is what decides the wanted slots now.
    pub fn autoscale_reason(&self, reason: &'static str, decides: bool) {
        let gauge = self.autoscale_reason.with_label_values(&[reason]);
        gauge.set(i64::from(decides));
    }

    /// The leader's term.
    pub fn term(&self, term: u64) {
        set(&self.term, term);
    }

    /// Seconds from the beginning of the term to its first grant.
    pub fn first_grant(&self, seconds: f64) {
        let gauge = self.first_grant.with_label_values::<&str>(&[]);
        gauge.set(seconds);
    }

    /// Books a credit whose worker died or never began.
    pub fn credit_expired(&self) {
        self.credits_expired.with_label_values::<&str>(&[]).inc();
    }

    /// Books a grant of a job to its fallback.
    pub fn fallback_granted(&self) {
        self.fallback_grants.with_label_values::<&str>(&[]).inc();
    }

    /// Books what differed from the stream and was put right.
    pub fn picture_repaired(&self, missed: usize, gone: usize) {
        for (what, count) in [("missed", missed), ("gone", gone)] {
            let counter = self.picture_repairs.with_label_values(&[what]);
            counter.inc_by(count as u64);
        }
    }

    pub(super) fn reset(&self) {
        self.queue_oldest.reset();
        self.limit_used.reset();
        self.pauses.reset();
        self.breaker_state.reset();
        self.wanted_slots.reset();
        self.wanted_slots_term.reset();
        self.autoscale_reason.reset();
        self.term.reset();
        self.first_grant.reset();
    }
}
