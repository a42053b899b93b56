//! What workers count: calls of the Claude API, and how long jobs wait and take.

use std::sync::Arc;

use prometheus::{CounterVec, HistogramVec, IntCounterVec, Registry};

use super::catalogue::{
    AUTH_FAILURES, CALLS, COST, FALLBACKS, GEN_AI_DURATION, GEN_AI_TOKENS, INPUT_TOKENS,
    JOB_DURATION, MODEL_COST, OUTPUT_TOKENS, PROMPT_REVIEWS, QUEUE_WAIT, REQUEST_LATENCY, TOKENS,
};
use super::{KIND_LABELS_MAX, LabelCap, Priority, SECONDS_BUCKETS, amount, counter, histogram};

/// Bounds that OpenTelemetry's conventions ask for, in seconds.
const GEN_AI_SECONDS_BUCKETS: &[f64] = &[
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
];

/// Bounds that OpenTelemetry's conventions ask for, in tokens.
const GEN_AI_TOKENS_BUCKETS: &[f64] = &[
    1.0,
    4.0,
    16.0,
    64.0,
    256.0,
    1_024.0,
    4_096.0,
    16_384.0,
    65_536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
];

/// Tokens of a call, each counted once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokensUsed {
    /// Input that was neither read from the cache nor written to it.
    pub input: u64,
    /// Input written to the cache.
    pub cache_write: u64,
    /// Input read from the cache.
    pub cache_read: u64,
    /// Output.
    pub output: u64,
}

impl TokensUsed {
    fn prompt(self) -> u64 {
        self.input + self.cache_write + self.cache_read
    }
}

/// A call of the Claude API that has ended.
#[derive(Debug, Clone, Copy)]
pub struct CallEnded<'a> {
    /// Whose job it was for.
    pub tenant: &'a str,
    /// Kind of the job.
    pub kind: &'a str,
    /// As which the job was served.
    pub priority: Priority,
    /// Model that was called.
    pub model: &'a str,
    /// What it ended as: one of a small fixed set of words.
    pub reason: &'a str,
    /// From sending to the end of the answer.
    pub seconds: f64,
    /// Whether it was answered, or may have been.
    pub answered: bool,
    /// Whether the answer is a success.
    pub succeeded: bool,
    /// Whether it was refused with 401 or 403.
    pub unauthorized: bool,
    /// Whether the model is a smaller one than the job's own.
    pub by_fallback: bool,
    /// What it used.
    pub tokens: TokensUsed,
    /// What it cost, if its model has a price.
    pub cost_usd: Option<f64>,
}

#[derive(Debug, Clone)]
pub(super) struct Calls {
    tenants: Arc<LabelCap>,
    kinds: Arc<LabelCap>,
    models: Arc<LabelCap>,
    request_latency: HistogramVec,
    input_tokens: IntCounterVec,
    output_tokens: IntCounterVec,
    calls: IntCounterVec,
    tokens: IntCounterVec,
    cost: CounterVec,
    model_cost: CounterVec,
    auth_failures: IntCounterVec,
    fallbacks: IntCounterVec,
    prompt_reviews: IntCounterVec,
    queue_wait: HistogramVec,
    job_duration: HistogramVec,
    gen_ai_duration: HistogramVec,
    gen_ai_tokens: HistogramVec,
}

impl Calls {
    pub(super) fn new(registry: &Registry, tenants: Arc<LabelCap>) -> Self {
        Self {
            tenants,
            kinds: Arc::new(LabelCap::new(KIND_LABELS_MAX)),
            models: Arc::new(LabelCap::new(KIND_LABELS_MAX)),
            request_latency: histogram(registry, REQUEST_LATENCY, SECONDS_BUCKETS),
            input_tokens: counter(registry, INPUT_TOKENS),
            output_tokens: counter(registry, OUTPUT_TOKENS),
            calls: counter(registry, CALLS),
            tokens: counter(registry, TOKENS),
            cost: amount(registry, COST),
            model_cost: amount(registry, MODEL_COST),
            auth_failures: counter(registry, AUTH_FAILURES),
            fallbacks: counter(registry, FALLBACKS),
            prompt_reviews: counter(registry, PROMPT_REVIEWS),
            queue_wait: histogram(registry, QUEUE_WAIT, SECONDS_BUCKETS),
            job_duration: histogram(registry, JOB_DURATION, SECONDS_BUCKETS),
            gen_ai_duration: histogram(registry, GEN_AI_DURATION, GEN_AI_SECONDS_BUCKETS),
            gen_ai_tokens: histogram(registry, GEN_AI_TOKENS, GEN_AI_TOKENS_BUCKETS),
        }
    }

    pub(super) fn begin(&self) {
        self.auth_failures.with_label_values::<&str>(&[]);
        for priority in Priority::ALL {
            let labels = &[priority.label()];
            self.request_latency.with_label_values(labels);
            self.queue_wait.with_label_values(labels);
            self.job_duration.with_label_values(labels);
        }
    }

    pub(super) fn ended(&self, call: &CallEnded<'_>) {
        let model = self.models.label(call.model);
        self.calls.with_label_values(&[model, call.reason]).inc();
        if call.unauthorized {
            self.auth_failures.with_label_values::<&str>(&[]).inc();
        }
        if call.by_fallback {
            let kind = self.kinds.label(call.kind);
            self.fallbacks.with_label_values(&[kind]).inc();
        }
        if call.answered {
            let latency = self
                .request_latency
                .with_label_values(&[call.priority.label()]);
            latency.observe(call.seconds);
        }
        self.used(call, model);
        let error = if call.succeeded { "" } else { call.reason };
        let labels = &["chat", "anthropic", model, error];
        let duration = self.gen_ai_duration.with_label_values(labels);
        duration.observe(call.seconds);
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "token counts are far below 2^53"
    )]
    fn used(&self, call: &CallEnded<'_>, model: &str) {
        let (used, tenant) = (call.tokens, self.tenants.label(call.tenant));
        let input = self.input_tokens.with_label_values(&[tenant]);
        input.inc_by(used.prompt());
        let output = self.output_tokens.with_label_values(&[tenant]);
        output.inc_by(used.output);
        for (kind, count) in [
            ("input", used.input),
            ("cache_write", used.cache_write),
            ("cache_read", used.cache_read),
            ("output", used.output),
        ] {
            let tokens = self.tokens.with_label_values(&[model, kind]);
            tokens.inc_by(count);
        }
        if let Some(cost) = call.cost_usd {
            self.cost.with_label_values(&[tenant]).inc_by(cost);
            self.model_cost.with_label_values(&[model]).inc_by(cost);
        }
        if used != TokensUsed::default() {
            for (kind, count) in [("input", used.prompt()), ("output", used.output)] {
                let labels = &["chat", "anthropic", model, kind];
                let tokens = self.gen_ai_tokens.with_label_values(labels);
                tokens.observe(count as f64);
            }
        }
    }

    pub(super) fn prompt_review(&self, kind: &str) {
        let kind = self.kinds.label(kind);
        self.prompt_reviews.with_label_values(&[kind]).inc();
    }

    pub(super) fn queue_wait(&self, priority: Priority, seconds: f64) {
        let wait = self.queue_wait.with_label_values(&[priority.label()]);
        wait.observe(seconds);
    }

    pub(super) fn job_duration(&self, priority: Priority, seconds: f64) {
        let duration = self.job_duration.with_label_values(&[priority.label()]);
        duration.observe(seconds);
    }
}
