//! The metrics of a process: what [`catalogue`] declares, as things to count with.
//!
//! What a role cannot know it does not export, so a worker does not claim an empty queue and a standby does not claim a
//! fairness of zero. Counters whose labels we choose begin at zero when the role does: a counter that appears with its
//! first event would hide that event from `rate()`. Tenants are the only label that others choose without end; a cap
//! keeps the number of series bounded.

mod calls;
pub mod catalogue;
mod labels;
mod leading;

use std::sync::Arc;

use prometheus::core::Collector;
use prometheus::{
    CounterVec, GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry,
    TextEncoder,
};

use calls::Calls;
pub use calls::{CallEnded, TokensUsed};
use catalogue::{
    BUILD_INFO, CALLBACKS, DEAD_LETTERS, DEAD_LETTERS_EXPIRING, JOBS, LEADER, MESSAGING_CONSUMED,
    MESSAGING_PROCESS, MESSAGING_SENT, PUSHES_FAILED, SPANS_DROPPED, STREAM_BYTES, STREAM_FILL,
    STREAM_MESSAGES, WEBHOOK,
};
pub use catalogue::{CATALOGUE, MetricDef, MetricKind};
pub use labels::{
    Breaker, Bucket, CallbackOutcome, LabelCap, OTHER_TENANTS, Outcome, Priority, WebhookOutcome,
};
pub use leading::{Fairness, LastHour, Leading};

/// Distinct tenants that get a series of their own; the rest share [`OTHER_TENANTS`].
pub const TENANT_LABELS_MAX: usize = 1_000;

/// Distinct pools that get a series of their own.
const POOL_LABELS_MAX: usize = 100;

/// Distinct kinds of jobs, and models, that get a series of their own.
const KIND_LABELS_MAX: usize = 50;

/// Upper bounds in seconds; 2, 6 and 120 are the goals of the three priorities.
const SECONDS_BUCKETS: &[f64] = &[
    0.05, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 20.0, 40.0, 80.0, 120.0, 300.0,
];

/// The messages that are counted, as `messaging_destination_template`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// What anyone submits.
    Submissions,
    /// Jobs in line.
    Jobs,
    /// Credits on their way to workers.
    Credits,
}

impl Destination {
    fn template(self) -> &'static str {
        match self {
            Self::Submissions => "fl.submit.{tenant}",
            Self::Jobs => "fl.jobs.{priority}.{tenant}",
            Self::Credits => "fl.ctl.credit.{worker}",
        }
    }
}

/// A stream of JetStream, as the server counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamSize {
    /// Messages in it.
    pub messages: u64,
    /// Bytes in it.
    pub bytes: u64,
    /// Most bytes it may have.
    pub bytes_max: Option<u64>,
}

/// The metrics of this process. Cheap to clone; all clones count together.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Registry,
    calls: Calls,
    leading: Leading,
    jobs: IntCounterVec,
    callbacks: IntCounterVec,
    spans_dropped: IntCounterVec,
    pushes_failed: IntCounterVec,
    webhook: IntCounterVec,
    dead_letters: IntGaugeVec,
    dead_letters_expiring: IntGaugeVec,
    stream_messages: IntGaugeVec,
    stream_bytes: IntGaugeVec,
    stream_fill: GaugeVec,
    leader: IntGaugeVec,
    sent: IntCounterVec,
    consumed: IntCounterVec,
    processed: HistogramVec,
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
        let tenants = Arc::new(LabelCap::new(tenants_max));
        let metrics = Self {
            calls: Calls::new(&registry, tenants.clone()),
            leading: Leading::new(&registry, tenants),
            jobs: counter(&registry, JOBS),
            callbacks: counter(&registry, CALLBACKS),
            spans_dropped: counter(&registry, SPANS_DROPPED),
            pushes_failed: counter(&registry, PUSHES_FAILED),
            webhook: counter(&registry, WEBHOOK),
            dead_letters: gauge(&registry, DEAD_LETTERS),
            dead_letters_expiring: gauge(&registry, DEAD_LETTERS_EXPIRING),
            stream_messages: gauge(&registry, STREAM_MESSAGES),
            stream_bytes: gauge(&registry, STREAM_BYTES),
            stream_fill: ratio(&registry, STREAM_FILL),
            leader: gauge(&registry, LEADER),
            sent: counter(&registry, MESSAGING_SENT),
            consumed: counter(&registry, MESSAGING_CONSUMED),
            processed: histogram(&registry, MESSAGING_PROCESS, SECONDS_BUCKETS),
            registry,
        };
        metrics.begin(role);
        metrics
    }

    /// Begins at zero what this role counts.
    fn begin(&self, role: &str) {
        let is_worker = role == "worker";
        if is_worker {
            self.calls.begin();
        }
        if is_worker || role == "producer" {
            for outcome in Outcome::ALL {
                self.jobs.with_label_values(&[outcome.label()]);
            }
        }
        match role {
            "producer" => {
                for outcome in CallbackOutcome::ALL {
                    self.callbacks.with_label_values(&[outcome.label()]);
                }
            }
            "scheduler" => {
                self.leader.with_label_values::<&str>(&[]);
                for outcome in WebhookOutcome::ALL {
                    self.webhook.with_label_values(&[outcome.label()]);
                }
            }
            _ => {}
        }
    }

    /// Books a call of the Claude API that has ended, wherever that is counted.
    pub fn call_ended(&self, call: &CallEnded<'_>) {
        self.calls.ended(call);
    }

    /// Books an answer that broke its schema on the job's kind.
    pub fn prompt_review(&self, kind: &str) {
        self.calls.prompt_review(kind);
    }

    /// Books how long a job waited for its first call.
    pub fn queue_wait(&self, priority: Priority, seconds: f64) {
        self.calls.queue_wait(priority, seconds);
    }

    /// Books how long a job took, from when it was accepted to its stored result.
    pub fn job_duration(&self, priority: Priority, seconds: f64) {
        self.calls.job_duration(priority, seconds);
    }

    /// Books the end of one job.
    pub fn job_ended(&self, outcome: Outcome) {
        self.jobs.with_label_values(&[outcome.label()]).inc();
    }

    /// Books one try at delivering a callback.
    pub fn callback(&self, outcome: CallbackOutcome) {
        self.callbacks.with_label_values(&[outcome.label()]).inc();
    }

    /// Books spans that were dropped.
    pub fn spans_dropped(&self, reason: &str, count: u64) {
        self.spans_dropped
            .with_label_values(&[reason])
            .inc_by(count);
    }

    /// Books pushes of the metrics over OTLP that the collector did not take. Zero says that there are pushes.
    pub fn pushes_failed(&self, count: u64) {
        let counter = self.pushes_failed.with_label_values::<&str>(&[]);
        counter.inc_by(count);
    }

    /// Books what became of a message to the webhook.
    pub fn webhook(&self, outcome: WebhookOutcome) {
        self.webhook.with_label_values(&[outcome.label()]).inc();
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

    /// Says how full a stream is. Streams are a small fixed set.
    pub fn stream(&self, name: &str, size: StreamSize) {
        let labels = &[name];
        let whole = |number| i64::try_from(number).unwrap_or(i64::MAX);
        let messages = self.stream_messages.with_label_values(labels);
        messages.set(whole(size.messages));
        let bytes = self.stream_bytes.with_label_values(labels);
        bytes.set(whole(size.bytes));
        if let Some(max) = size.bytes_max {
            self.fill(name, size.bytes, max);
        }
    }

    /// Says how full the whole storage of JetStream is.
    pub fn storage(&self, bytes: u64, bytes_max: u64) {
        self.fill("storage", bytes, bytes_max);
    }

    #[expect(clippy::cast_precision_loss, reason = "a ratio for showing")]
    fn fill(&self, name: &str, bytes: u64, max: u64) {
        let fill = self.stream_fill.with_label_values(&[name]);
        fill.set(bytes as f64 / max.max(1) as f64);
    }

    /// Books a message that was sent.
    pub fn message_sent(&self, to: Destination) {
        let labels = &["nats", "publish", to.template()];
        self.sent.with_label_values(labels).inc();
    }

    /// Books a message that was taken.
    pub fn message_consumed(&self, from: Destination) {
        let labels = &["nats", "receive", from.template()];
        self.consumed.with_label_values(labels).inc();
    }

    /// Books how long a message was worked on.
    pub fn message_processed(&self, from: Destination, seconds: f64) {
        let labels = &["nats", "process", from.template()];
        self.processed.with_label_values(labels).observe(seconds);
    }

    /// What only a leader knows.
    pub fn leading(&self) -> &Leading {
        &self.leading
    }

    /// This scheduler leads from now on.
    pub fn leads(&self) {
        set(&self.leader, 1);
        for outcome in Outcome::ALL {
            self.jobs.with_label_values(&[outcome.label()]);
        }
        self.leading.begin();
    }

    /// This scheduler stands by: what only a leader knows is no longer exported, or two schedulers would disagree.
    pub fn stands_by(&self) {
        set(&self.leader, 0);
        self.leading.reset();
    }

    /// All series as they are now.
    pub(crate) fn gather(&self) -> Vec<prometheus::proto::MetricFamily> {
        self.registry.gather()
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

fn amount(registry: &Registry, def: MetricDef) -> CounterVec {
    register(registry, CounterVec::new(opts(def), def.labels))
}

fn histogram(registry: &Registry, def: MetricDef, buckets: &[f64]) -> HistogramVec {
    let opts = HistogramOpts::new(def.name, def.help).buckets(buckets.to_vec());
    register(registry, HistogramVec::new(opts, def.labels))
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

#[cfg(test)]
mod tests;
