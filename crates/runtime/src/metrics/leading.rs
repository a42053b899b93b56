//! What only the leading scheduler knows. Gauges go when it stands by; counters stay.

use std::sync::Arc;

use prometheus::{CounterVec, GaugeVec, IntCounterVec, IntGaugeVec, Registry};

use super::catalogue::{
    AUTOSCALE_REASON, BREAKER_STATE, BUDGET_USED, CREDITS_EXPIRED, CREDITS_GRANTED, CREDITS_LIVE,
    DEMOTED_TENANTS, DWELL, EXPOSURE_RATE, FAIRNESS_GAP_RATIO, FAIRNESS_INDEX, FAIRNESS_MIN_SHARE,
    FALLBACK_GRANTS, FALLBACK_RATE, FIRST_GRANT, LIMIT, LIMIT_USED, OVERLOAD_RATE, PAUSES,
    PICTURE_REPAIRS, PRIORITY_COST_UNITS, QUEUE_DEPTH, QUEUE_OLDEST, REDELIVERIES, STARVED,
    TENANT_COST_UNITS, TERM, THROTTLES, WANTED_SLOTS, WANTED_SLOTS_TERM, WORKER_SLOTS, WORKERS,
};
use super::{
    Breaker, Bucket, LabelCap, POOL_LABELS_MAX, Priority, amount, counter, gauge, ratio, set,
};

/// How fair the last minute was.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fairness {
    /// Jain's index.
    pub index: f64,
    /// The least part of an entitlement that a tenant got.
    pub min_share: f64,
    /// The largest gap as a part of what is allowed.
    pub gap_ratio: f64,
    /// Tenants that got nothing though it was long their turn.
    pub starved: usize,
}

/// The last 60 minutes. Rates of nothing are 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LastHour {
    /// Calls that found the upstream overloaded, of all calls.
    pub overloaded: f64,
    /// Jobs whose owners saw a failure that was not the job's own, of all that ended.
    pub exposed: f64,
    /// Answers of a smaller model, of all answers.
    pub by_fallback: f64,
    /// 95th percentile of the wait for the first call, seconds, in the order of [`Priority::ALL`].
    pub dwell_p95: [f64; 3],
}

/// Metrics of a leader.
#[derive(Debug, Clone)]
pub struct Leading {
    tenants: Arc<LabelCap>,
    pools: Arc<LabelCap>,
    queue_depth: IntGaugeVec,
    queue_oldest: IntGaugeVec,
    demoted_tenants: IntGaugeVec,
    fairness_index: GaugeVec,
    fairness_min_share: GaugeVec,
    fairness_gap_ratio: GaugeVec,
    starved: IntGaugeVec,
    rates: [GaugeVec; 3],
    dwell: GaugeVec,
    budget_used: GaugeVec,
    credits_live: IntGaugeVec,
    limit: IntGaugeVec,
    limit_used: GaugeVec,
    pauses: IntGaugeVec,
    breaker_state: IntGaugeVec,
    wanted_slots: IntGaugeVec,
    wanted_slots_term: IntGaugeVec,
    autoscale_reason: IntGaugeVec,
    workers: IntGaugeVec,
    worker_slots: IntGaugeVec,
    term: IntGaugeVec,
    first_grant: GaugeVec,
    throttles: IntCounterVec,
    credits_granted: IntCounterVec,
    credits_expired: IntCounterVec,
    redeliveries: IntCounterVec,
    fallback_grants: IntCounterVec,
    tenant_cost_units: CounterVec,
    priority_cost_units: CounterVec,
    picture_repairs: IntCounterVec,
}

impl Leading {
    pub(super) fn new(registry: &Registry, tenants: Arc<LabelCap>) -> Self {
        Self {
            tenants,
            pools: Arc::new(LabelCap::new(POOL_LABELS_MAX)),
            queue_depth: gauge(registry, QUEUE_DEPTH),
            queue_oldest: gauge(registry, QUEUE_OLDEST),
            demoted_tenants: gauge(registry, DEMOTED_TENANTS),
            fairness_index: ratio(registry, FAIRNESS_INDEX),
            fairness_min_share: ratio(registry, FAIRNESS_MIN_SHARE),
            fairness_gap_ratio: ratio(registry, FAIRNESS_GAP_RATIO),
            starved: gauge(registry, STARVED),
            rates: [OVERLOAD_RATE, EXPOSURE_RATE, FALLBACK_RATE].map(|def| ratio(registry, def)),
            dwell: ratio(registry, DWELL),
            budget_used: ratio(registry, BUDGET_USED),
            credits_live: gauge(registry, CREDITS_LIVE),
            limit: gauge(registry, LIMIT),
            limit_used: ratio(registry, LIMIT_USED),
            pauses: gauge(registry, PAUSES),
            breaker_state: gauge(registry, BREAKER_STATE),
            wanted_slots: gauge(registry, WANTED_SLOTS),
            wanted_slots_term: gauge(registry, WANTED_SLOTS_TERM),
            autoscale_reason: gauge(registry, AUTOSCALE_REASON),
            workers: gauge(registry, WORKERS),
            worker_slots: gauge(registry, WORKER_SLOTS),
            term: gauge(registry, TERM),
            first_grant: ratio(registry, FIRST_GRANT),
            throttles: counter(registry, THROTTLES),
            credits_granted: counter(registry, CREDITS_GRANTED),
            credits_expired: counter(registry, CREDITS_EXPIRED),
            redeliveries: counter(registry, REDELIVERIES),
            fallback_grants: counter(registry, FALLBACK_GRANTS),
            tenant_cost_units: amount(registry, TENANT_COST_UNITS),
            priority_cost_units: amount(registry, PRIORITY_COST_UNITS),
            picture_repairs: counter(registry, PICTURE_REPAIRS),
        }
    }

    /// Jobs waiting in `priority`, and seconds since the oldest of them was stored; 0 if there is none.
    pub fn queue(&self, priority: Priority, jobs: u64, oldest_seconds: u64) {
        let labels = &[priority.label()];
        let whole = |number| i64::try_from(number).unwrap_or(i64::MAX);
        self.queue_depth.with_label_values(labels).set(whole(jobs));
        let oldest = self.queue_oldest.with_label_values(labels);
        oldest.set(whole(oldest_seconds));
    }

    /// Tenants demoted now.
    pub fn demoted_tenants(&self, count: u64) {
        set(&self.demoted_tenants, count);
    }

    /// How fair the last minute was.
    pub fn fairness(&self, priority: Priority, fairness: Fairness) {
        let labels = &[priority.label()];
        let of = |gauge: &GaugeVec, value| gauge.with_label_values(labels).set(value);
        of(&self.fairness_index, fairness.index);
        of(&self.fairness_min_share, fairness.min_share);
        of(&self.fairness_gap_ratio, fairness.gap_ratio);
        let starved = i64::try_from(fairness.starved).unwrap_or(i64::MAX);
        self.starved.with_label_values(labels).set(starved);
    }

    /// How the last 60 minutes went.
    pub fn last_hour(&self, hour: LastHour) {
        let rates = [hour.overloaded, hour.exposed, hour.by_fallback];
        for (gauge, rate) in self.rates.iter().zip(rates) {
            gauge.with_label_values::<&str>(&[]).set(rate);
        }
        for (priority, seconds) in Priority::ALL.iter().zip(hour.dwell_p95) {
            let dwell = self.dwell.with_label_values(&[priority.label()]);
            dwell.set(seconds);
        }
    }

    /// Which part of today's budgets is used: of at most as many tenants as have labels.
    pub fn budgets<'a>(&self, used: impl Iterator<Item = (&'a str, f64)>) {
        self.budget_used.reset();
        for (tenant, part) in used.take(super::TENANT_LABELS_MAX) {
            let gauge = self.budget_used.with_label_values(&[tenant]);
            gauge.set(part);
        }
    }

    /// Credits out now.
    pub fn credits_live(&self, count: u64) {
        set(&self.credits_live, count);
    }

    /// A pool's limit, and the part of it that is used up: above 1 it is overdrawn.
    pub fn limit(&self, pool: &str, bucket: Bucket, per_minute: u64, used: f64) {
        let labels = &[self.pools.label(pool), bucket.label()];
        let per_minute = i64::try_from(per_minute).unwrap_or(i64::MAX);
        self.limit.with_label_values(labels).set(per_minute);
        self.limit_used.with_label_values(labels).set(used);
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

    /// Workers that can be given work, and their slots.
    pub fn workers(&self, workers: u64, slots: u64) {
        set(&self.workers, workers);
        set(&self.worker_slots, slots);
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

    /// Books one 429 on the tenant that caused it.
    pub fn throttled(&self, tenant: &str) {
        let label = self.tenants.label(tenant);
        self.throttles.with_label_values(&[label]).inc();
    }

    /// Books a credit handed out for `cost_units`, the job's `delivery`th.
    pub fn credit_granted(&self, tenant: &str, priority: Priority, cost_units: f64, delivery: u32) {
        let tenant = self.tenants.label(tenant);
        self.credits_granted.with_label_values::<&str>(&[]).inc();
        let of_tenant = self.tenant_cost_units.with_label_values(&[tenant]);
        // A counter takes no less than nothing.
        of_tenant.inc_by(cost_units.max(0.0));
        let labels = &[priority.label()];
        let of_priority = self.priority_cost_units.with_label_values(labels);
        of_priority.inc_by(cost_units.max(0.0));
        if delivery > 1 {
            self.redeliveries.with_label_values::<&str>(&[]).inc();
        }
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

    /// Begins at zero what a leader counts.
    pub(super) fn begin(&self) {
        for counter in [
            &self.credits_granted,
            &self.credits_expired,
            &self.redeliveries,
            &self.fallback_grants,
        ] {
            counter.with_label_values::<&str>(&[]);
        }
        for priority in Priority::ALL {
            let labels = &[priority.label()];
            self.priority_cost_units.with_label_values(labels);
        }
        self.picture_repaired(0, 0);
    }

    pub(super) fn reset(&self) {
        for gauge in [
            &self.queue_depth,
            &self.queue_oldest,
            &self.demoted_tenants,
            &self.starved,
            &self.credits_live,
            &self.limit,
            &self.pauses,
            &self.breaker_state,
            &self.wanted_slots,
            &self.wanted_slots_term,
            &self.autoscale_reason,
            &self.workers,
            &self.worker_slots,
            &self.term,
        ] {
            gauge.reset();
        }
        for gauge in [
            &self.fairness_index,
            &self.fairness_min_share,
            &self.fairness_gap_ratio,
            &self.dwell,
            &self.budget_used,
            &self.limit_used,
            &self.first_grant,
        ] {
            gauge.reset();
        }
        for rate in &self.rates {
            rate.reset();
        }
    }
}
