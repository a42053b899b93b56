//! The catalogue of metrics: every name, label and help text, declared once.
//!
//! A series appears when a role first touches it, so a worker does not claim an empty queue and a standby does not
//! claim a fairness of zero. Tenants are the only label that others choose; a cap keeps the number of series bounded.

mod leading;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::core::Collector;
use prometheus::{
    GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder,
};

pub use leading::{Breaker, Bucket, Leading};

/// Distinct tenants that get a series of their own; the rest share [`OTHER_TENANTS`].
pub const TENANT_LABELS_MAX: usize = 1_000;

/// Distinct pools that get a series of their own.
const POOL_LABELS_MAX: usize = 100;

/// Distinct kinds of jobs, and models, that get a series of their own.
const KIND_LABELS_MAX: usize = 50;

/// Label value of tenants, kinds and models beyond their cap.
pub const OTHER_TENANTS: &str = "other";

/// Upper bounds in seconds; 2, 6 and 120 are the latency goals of the three priorities.
const LATENCY_BUCKETS: &[f64] = &[
    0.05, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 20.0, 40.0, 80.0, 120.0, 300.0,
];

/// What kind of number a metric is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts by size.
    Histogram,
}

/// One entry of the catalogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetricDef {
    /// Name as exported.
    pub name: &'static str,
    /// What it says, with its unit.
    pub help: &'static str,
    /// Its kind.
    pub kind: MetricKind,
    /// Names of its labels.
    pub labels: &'static [&'static str],
}

/// Declares the catalogue: one constant per metric and the list of all.
macro_rules! catalogue {
    ($($constant:ident = $kind:ident $name:literal $labels:expr, $help:literal;)*) => {
        $(const $constant: MetricDef = MetricDef {
            name: $name,
            help: $help,
            kind: MetricKind::$kind,
            labels: &$labels,
        };)*

        /// Every metric Fairlane exports, for checks of dashboards, alerts and documents.
        pub const CATALOGUE: &[MetricDef] = &[$($constant),*];
    };
}

catalogue! {
    QUEUE_DEPTH = Gauge "claude_queue_depth" ["priority"], "Jobs waiting, by priority.";
    REQUEST_LATENCY = Histogram "claude_request_latency_seconds" ["priority"],
        "Time from sending a request to the Claude API to the end of its answer, by priority.";
    THROTTLES = Counter "claude_throttle_count" ["tenant_id"],
        "Answers 429 of the Claude API, by the tenant that caused them.";
    DEMOTED_TENANTS = Gauge "claude_demoted_tenants" [],
        "Tenants whose standard work is served as batch now.";
    FAIRNESS_INDEX = Gauge "claude_drr_fairness_index" ["priority"],
        "Jain's index over the weighted service of the tenants that competed for all of the last minute: 1 is perfectly fair.";
    FAIRNESS_MIN_SHARE = Gauge "fairlane_fairness_min_share" ["priority"],
        "Least part of its entitlement that a tenant got which competed for all of the last minute.";
    FAIRNESS_GAP_RATIO = Gauge "fairlane_fairness_gap_ratio" ["priority"],
        "Largest gap in weighted service between two tenants in the last minute, as a part of what deficit round robin allows; above 1 is a fault.";
    INPUT_TOKENS = Counter "claude_input_tokens_total" ["tenant_id"], "Input tokens used, by tenant.";
    CALLS = Counter "claude_calls_total" ["model", "reason"],
        "Calls of the Claude API that have ended, by the model that was called and what they ended as.";
    FALLBACKS = Counter "fairlane_fallbacks_total" [], "Calls of a smaller model because the job's own was overloaded.";
    PROMPT_REVIEWS = Counter "fairlane_prompt_reviews_total" ["kind"],
        "Answers that broke their job's schema, by kind of job: its prompt wants a review.";
    JOBS = Counter "fairlane_jobs_total" ["outcome"], "Jobs that have ended, by outcome.";
    CALLBACKS = Counter "fairlane_callbacks_total" ["outcome"],
        "Tries to tell a submitter that a job has ended: delivered, retried, or dropped for good.";
    DEAD_LETTERS = Gauge "fairlane_dead_letters" ["reason"], "Dead letters that nobody has sent again, by reason.";
    DEAD_LETTERS_EXPIRING = Gauge "fairlane_dead_letters_expiring" [],
        "Dead letters that nobody has sent again and that have less than a tenth of their life left: three days of thirty.";
    CREDITS_GRANTED = Counter "fairlane_credits_granted_total" [], "Credits handed out.";
    CREDITS_LIVE = Gauge "fairlane_credits_live" [], "Credits that are out now: jobs in flight.";
    CREDITS_EXPIRED = Counter "fairlane_credits_expired_total" [], "Credits whose worker died, or never began.";
    FALLBACK_GRANTS = Counter "fairlane_fallback_grants_total" [], "Credits handed out for a smaller model than the job's own.";
    QUEUE_OLDEST = Gauge "fairlane_queue_oldest_seconds" ["priority"],
        "Time since the oldest job in line was accepted, by priority; to the second.";
    LIMIT_USED = Gauge "fairlane_limit_used_ratio" ["pool", "bucket"],
        "Part of a pool's limit per minute that is used up; above 1 it is overdrawn.";
    PAUSES = Gauge "fairlane_pauses" ["scope"], "Pauses and refusals of the upstream in force, by whom they concern.";
    BREAKER_STATE = Gauge "fairlane_breaker_state" ["pool"], "Breaker of a pool: 0 closed (calls pass), 1 half-open, 2 open.";
    WANTED_SLOTS = Gauge "fairlane_wanted_slots" ["pool"],
        "Worker slots that are worth having, by pool of workers: what autoscaling goes by.";
    WANTED_SLOTS_TERM = Gauge "fairlane_wanted_slots_term" ["pool", "term"],
        "What the wanted slots are made of: slots that all work would keep busy (demand), that the upstream allows (capacity), and that are taken (in_flight).";
    AUTOSCALE_REASON = Gauge "fairlane_autoscale_reason" ["reason"],
        "1 for what decides the wanted slots now, 0 for the rest: demand, rpm, itpm, otpm, breaker, retry_after, floor, ceiling.";
    TERM = Gauge "fairlane_term" [], "Term of the leading scheduler; each is larger than the one before.";
    FIRST_GRANT = Gauge "fairlane_first_grant_seconds" [], "Time from the beginning of the term to its first grant.";
    PICTURE_REPAIRS = Counter "fairlane_picture_repairs_total" ["what"],
        "Jobs of which the leader's picture was wrong and was put right: missed, or gone.";
    LEADER = Gauge "fairlane_leader" [], "1 on the scheduler that leads, 0 on the others.";
    BUILD_INFO = Gauge "fairlane_build_info" ["version", "role"], "Always 1; says what runs.";
}

/// Label values of `priority`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Priority {
    /// Somebody waits for it.
    Critical,
    /// Has a deadline.
    Standard,
    /// Fills what is left.
    Batch,
}

impl Priority {
    fn label(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Standard => "standard",
            Self::Batch => "batch",
        }
    }
}

/// Label values of `outcome`: the ways a job can end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// A result is stored.
    Done,
    /// It became a dead letter.
    Dead,
    /// Its owner took it back.
    Cancelled,
    /// Its deadline passed first.
    Expired,
}

impl Outcome {
    fn label(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Dead => "dead",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
        }
    }
}

/// Label values of `outcome`: how a try at delivering a callback ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallbackOutcome {
    /// It was taken.
    Delivered,
    /// It was not, and is tried again.
    Retried,
    /// It is not tried again.
    Dropped,
}

impl CallbackOutcome {
    fn label(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Retried => "retried",
            Self::Dropped => "dropped",
        }
    }
}

/// The metrics of this process. Cheap to clone; all clones count together.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Registry,
    tenants: Arc<LabelCap>,
    kinds: Arc<LabelCap>,
    models: Arc<LabelCap>,
    queue_depth: IntGaugeVec,
    request_latency: HistogramVec,
    throttles: IntCounterVec,
    demoted_tenants: IntGaugeVec,
    fairness_index: GaugeVec,
    fairness_min_share: GaugeVec,
    fairness_gap_ratio: GaugeVec,
    input_tokens: IntCounterVec,
    calls: IntCounterVec,
    fallbacks: IntCounterVec,
    prompt_reviews: IntCounterVec,
    jobs: IntCounterVec,
    callbacks: IntCounterVec,
    dead_letters: IntGaugeVec,
    dead_letters_expiring: IntGaugeVec,
    credits_granted: IntCounterVec,
    credits_live: IntGaugeVec,
    leading: Leading,
    leader: IntGaugeVec,
}

impl Metrics {
    /// A fresh set for a process of this role.
    pub fn new(role: &str) -> Self {
        Self::with_tenant_cap(role, TENANT_LABELS_MAX)
    }

    /// As [`Metrics::new`], with another bound on tenant labels.
    pub fn with_tenant_cap(role: &str, tenants_max: usize) -> Self {
        let registry = Registry::new();
        let build_info = gauge(&registry, BUILD_INFO);
        build_info
            .with_label_values(&[env!("CARGO_PKG_VERSION"), role])
            .set(1);
        Self {
            tenants: Arc::new(LabelCap::new(tenants_max)),
            kinds: Arc::new(LabelCap::new(KIND_LABELS_MAX)),
            models: Arc::new(LabelCap::new(KIND_LABELS_MAX)),
            queue_depth: gauge(&registry, QUEUE_DEPTH),
            request_latency: register(
                &registry,
                HistogramVec::new(
                    HistogramOpts::new(REQUEST_LATENCY.name, REQUEST_LATENCY.help)
                        .buckets(LATENCY_BUCKETS.to_vec()),
                    REQUEST_LATENCY.labels,
                ),
            ),
            throttles: counter(&registry, THROTTLES),
            demoted_tenants: gauge(&registry, DEMOTED_TENANTS),
            fairness_index: ratio(&registry, FAIRNESS_INDEX),
            fairness_min_share: ratio(&registry, FAIRNESS_MIN_SHARE),
            fairness_gap_ratio: ratio(&registry, FAIRNESS_GAP_RATIO),
            input_tokens: counter(&registry, INPUT_TOKENS),
            calls: counter(&registry, CALLS),
            fallbacks: counter(&registry, FALLBACKS),
            prompt_reviews: counter(&registry, PROMPT_REVIEWS),
            jobs: counter(&registry, JOBS),
            callbacks: counter(&registry, CALLBACKS),
            dead_letters: gauge(&registry, DEAD_LETTERS),
            dead_letters_expiring: gauge(&registry, DEAD_LETTERS_EXPIRING),
            credits_granted: counter(&registry, CREDITS_GRANTED),
            credits_live: gauge(&registry, CREDITS_LIVE),
            leading: Leading::new(&registry),
            leader: gauge(&registry, LEADER),
            registry,
        }
    }

    /// Jobs waiting in `priority`.
    pub fn queue_depth(&self, priority: Priority) -> IntGauge {
        self.queue_depth.with_label_values(&[priority.label()])
    }

    /// Durations of calls to Claude in seconds.
    pub fn request_latency(&self, priority: Priority) -> Histogram {
        self.request_latency.with_label_values(&[priority.label()])
    }

    /// Books one 429 on the tenant that caused it.
    pub fn throttled(&self, tenant: &str) {
        let label = self.tenants.label(tenant);
        self.throttles.with_label_values(&[label]).inc();
    }

    /// Books input tokens on a tenant.
    pub fn input_tokens(&self, tenant: &str, tokens: u64) {
        let label = self.tenants.label(tenant);
        self.input_tokens.with_label_values(&[label]).inc_by(tokens);
    }

    /// Books a call that has ended, by its stable word.
    pub fn call_ended(&self, model: &str, reason: &str) {
        let model = self.models.label(model);
        self.calls.with_label_values(&[model, reason]).inc();
    }

    /// Books a call of a smaller model.
    pub fn fell_back(&self) {
        self.fallbacks.with_label_values::<&str>(&[]).inc();
    }

    /// Books an answer that broke its schema on the job's kind.
    pub fn prompt_review(&self, kind: &str) {
        let kind = self.kinds.label(kind);
        self.prompt_reviews.with_label_values(&[kind]).inc();
    }

    /// Tenants demoted now.
    pub fn demoted_tenants(&self, count: u64) {
        set(&self.demoted_tenants, count);
    }

    /// How fair the last minute was: Jain's index, the least part of an entitlement that a tenant got, and the largest
    /// gap as a part of what is allowed.
    pub fn fairness(&self, priority: Priority, index: f64, min_share: f64, gap_ratio: f64) {
        let labels = &[priority.label()];
        self.fairness_index.with_label_values(labels).set(index);
        self.fairness_min_share
            .with_label_values(labels)
            .set(min_share);
        self.fairness_gap_ratio
            .with_label_values(labels)
            .set(gap_ratio);
    }

    /// Books the end of one job.
    pub fn job_ended(&self, outcome: Outcome) {
        self.jobs.with_label_values(&[outcome.label()]).inc();
    }

    /// Books one try at delivering a callback.
    pub fn callback(&self, outcome: CallbackOutcome) {
        self.callbacks.with_label_values(&[outcome.label()]).inc();
    }

    /// Says how many open dead letters of a reason there are. Reasons are a small fixed set.
    pub fn dead_letters(&self, reason: &'static str, count: usize) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.dead_letters.with_label_values(&[reason]).set(count);
    }

    /// Says how many open dead letters expire soon.
    pub fn dead_letters_expiring(&self, count: usize) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        let gauge = self.dead_letters_expiring.with_label_values::<&str>(&[]);
        gauge.set(count);
    }

    /// Books credits handed out.
    pub fn credits_granted(&self, count: u64) {
        self.credits_granted
            .with_label_values::<&str>(&[])
            .inc_by(count);
    }

    /// Credits out now.
    pub fn credits_live(&self, count: u64) {
        set(&self.credits_live, count);
    }

    /// What only a leader knows.
    pub fn leading(&self) -> &Leading {
        &self.leading
    }

    /// This scheduler leads from now on.
    pub fn leads(&self) {
        set(&self.leader, 1);
    }

    /// This scheduler stands by: what only a leader knows is no longer exported, or two schedulers would disagree.
    pub fn stands_by(&self) {
        set(&self.leader, 0);
        self.queue_depth.reset();
        self.demoted_tenants.reset();
        self.fairness_index.reset();
        self.fairness_min_share.reset();
        self.fairness_gap_ratio.reset();
        self.credits_live.reset();
        self.leading.reset();
    }

    /// All series in Prometheus' text format.
    pub fn render(&self) -> String {
        TextEncoder::new()
            .encode_to_string(&self.registry.gather())
            .expect("writing text into a string does not fail")
    }
}

fn set(gauge: &IntGaugeVec, value: u64) {
    let value = i64::try_from(value).unwrap_or(i64::MAX);
    gauge.with_label_values::<&str>(&[]).set(value);
}

fn opts(def: MetricDef) -> Opts {
    Opts::new(def.name, def.help)
}

fn gauge(registry: &Registry, def: MetricDef) -> IntGaugeVec {
    register(registry, IntGaugeVec::new(opts(def), def.labels))
}

fn ratio(registry: &Registry, def: MetricDef) -> GaugeVec {
    register(registry, GaugeVec::new(opts(def), def.labels))
}

fn counter(registry: &Registry, def: MetricDef) -> IntCounterVec {
    register(registry, IntCounterVec::new(opts(def), def.labels))
}

fn register<C: Collector + Clone + 'static>(
    registry: &Registry,
    collector: prometheus::Result<C>,
) -> C {
    let collector = collector.expect("names and labels of the catalogue are valid");
    registry
        .register(Box::new(collector.clone()))
        .expect("names of the catalogue are unique");
    collector
}

/// Bounds the distinct values of a label: the first ones are kept, later ones become `other`.
#[derive(Debug)]
pub struct LabelCap {
    max: usize,
    seen: Mutex<HashSet<Box<str>>>,
}

impl LabelCap {
    /// Keeps at most `max` distinct values.
    pub fn new(max: usize) -> Self {
        Self {
            max,
            seen: Mutex::default(),
        }
    }

    /// The value to use as label: `value` itself, or [`OTHER_TENANTS`] beyond the cap.
    pub fn label<'v>(&self, value: &'v str) -> &'v str {
        // A panic elsewhere cannot leave a set of names half changed.
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.contains(value) {
            return value;
        }
        if seen.len() >= self.max {
            return OTHER_TENANTS;
        }
        seen.insert(value.into());
        value
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use prometheus::proto::MetricType;

    use super::*;

    fn touch_everything(metrics: &Metrics) {
        metrics.queue_depth(Priority::Critical).set(3);
        metrics.request_latency(Priority::Batch).observe(0.3);
        metrics.throttled("acme");
        metrics.demoted_tenants(1);
        metrics.fairness(Priority::Standard, 0.9, 0.8, 0.5);
        metrics.input_tokens("acme", 1_000);
        metrics.call_ended("claude-haiku-4-5", "done");
        metrics.fell_back();
        metrics.prompt_review("tagging");
        metrics.job_ended(Outcome::Done);
        metrics.callback(CallbackOutcome::Delivered);
        metrics.dead_letters("schema", 4);
        metrics.dead_letters_expiring(1);
        metrics.credits_granted(2);
        metrics.credits_live(1);
        let leading = metrics.leading();
        leading.queue_oldest(Priority::Batch, 7);
        leading.limit_used("haiku-4.5", Bucket::InputTokens, 0.5);
        leading.pauses("pool", 1);
        leading.breaker("haiku-4.5", Breaker::Open);
        leading.wanted_slots("default", 8, [9, 8, 2]);
        leading.autoscale_reason("rpm", true);
        leading.term(3);
        leading.first_grant(0.2);
        leading.credit_expired();
        leading.fallback_granted();
        leading.picture_repaired(1, 2);
        metrics.leads();
    }

    #[test]
    fn what_is_exported_is_exactly_the_catalogue() {
        let metrics = Metrics::new("worker");
        touch_everything(&metrics);
        let exported: BTreeMap<String, (String, MetricType, Vec<String>)> = metrics
            .registry
            .gather()
            .iter()
            .map(|family| {
                let labels = family.get_metric()[0].get_label();
                let mut labels: Vec<String> =
                    labels.iter().map(|label| label.name().to_owned()).collect();
                labels.sort();
                let facts = (family.help().to_owned(), family.get_field_type(), labels);
                (family.name().to_owned(), facts)
            })
            .collect();
        let declared: BTreeMap<String, (String, MetricType, Vec<String>)> = CATALOGUE
            .iter()
            .map(|def| {
                let kind = match def.kind {
                    MetricKind::Counter => MetricType::COUNTER,
                    MetricKind::Gauge => MetricType::GAUGE,
                    MetricKind::Histogram => MetricType::HISTOGRAM,
                };
                let mut labels: Vec<String> =
                    def.labels.iter().map(|label| (*label).to_owned()).collect();
                labels.sort();
                (def.name.to_owned(), (def.help.to_owned(), kind, labels))
            })
            .collect();
        assert_eq!(exported, declared);
    }

    #[test]
    fn a_role_exports_only_what_it_has_touched() {
        let text = Metrics::new("worker").render();
        assert!(text.contains("fairlane_build_info{"), "{text}");
        assert!(text.contains("role=\"worker\""), "{text}");
        assert!(!text.contains("claude_queue_depth"), "{text}");
        assert!(!text.contains("fairlane_leader"), "{text}");
    }

    #[test]
    fn a_standby_takes_back_what_only_a_leader_knows() {
        let metrics = Metrics::new("scheduler");
        touch_everything(&metrics);
        metrics.stands_by();
        let text = metrics.render();
        assert!(text.contains("fairlane_leader 0"), "{text}");
        for gone in [
            "claude_queue_depth",
            "claude_drr_fairness_index",
            "fairlane_fairness",
            "fairlane_credits_live",
            "fairlane_queue_oldest",
            "fairlane_limit_used",
            "fairlane_pauses",
            "fairlane_breaker_state",
            "fairlane_wanted_slots",
            "fairlane_autoscale_reason",
            "fairlane_term",
            "fairlane_first_grant",
        ] {
            assert!(!text.contains(gone), "{text}");
        }
        assert!(text.contains("fairlane_credits_granted_total 2"), "{text}");
    }

    #[test]
    fn tenants_beyond_the_cap_share_one_series() {
        let metrics = Metrics::with_tenant_cap("worker", 2);
        for tenant in ["a", "b", "c", "d", "a"] {
            metrics.input_tokens(tenant, 10);
            metrics.throttled(tenant);
        }
        let text = metrics.render();
        assert!(
            text.contains("claude_input_tokens_total{tenant_id=\"a\"} 20"),
            "{text}"
        );
        assert!(
            text.contains("claude_input_tokens_total{tenant_id=\"b\"} 10"),
            "{text}"
        );
        assert!(
            text.contains("claude_input_tokens_total{tenant_id=\"other\"} 20"),
            "{text}"
        );
        assert!(!text.contains("\"c\""), "{text}");
    }

    #[test]
    fn the_default_cap_is_a_thousand() {
        let metrics = Metrics::new("worker");
        for tenant in 0..2_000 {
            metrics.throttled(&format!("tenant-{tenant}"));
        }
        let series = metrics
            .render()
            .lines()
            .filter(|line| line.starts_with("claude_throttle_count{"))
            .count();
        assert_eq!(series, TENANT_LABELS_MAX + 1);
    }

    #[test]
    fn the_latency_goals_are_bucket_borders() {
        for goal in [2.0, 6.0, 120.0] {
            assert!(LATENCY_BUCKETS.contains(&goal));
        }
        assert!(LATENCY_BUCKETS.is_sorted());
    }
}
