//! Spans of jobs: made by hand where their time, kind and attributes are not those of a piece of code.
//!
//! What has log lines of its own (taking a job in, running it) is a span of `tracing` and is exported by its layer. The
//! others (waiting in line, a grant, a call) begin before anybody knows of them or are many; they are made here, and
//! cost nothing in a process without a trace collector.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use opentelemetry::trace::{Link, Span as _, Status, Tracer as _};
use opentelemetry::{Array, Context, KeyValue, StringValue, Value};
use opentelemetry_sdk::trace::{SdkTracer, Span};
use tokio::sync::mpsc;
use tracing_opentelemetry::OpenTelemetrySpanExt;

pub use opentelemetry::trace::SpanKind;

use crate::telemetry::Keeper;
use crate::trace::TraceContext;

/// What tracing is in this process, once it is set up with a collector.
static TRACES: OnceLock<Traces> = OnceLock::new();

/// How traces of this process are made.
#[derive(Debug)]
pub(crate) struct Traces {
    pub(crate) tracer: SdkTracer,
    pub(crate) keeper: Keeper,
    pub(crate) content_chars_max: Option<usize>,
}

pub(crate) fn set_up(traces: Traces) {
    // A second set-up in one process is refused before it comes here.
    drop(TRACES.set(traces));
}

/// Whether this process sends traces.
pub fn are_on() -> bool {
    TRACES.get().is_some()
}

/// Whether spans of the trace of `context` are worth making: it was chosen, or may yet be kept.
pub fn are_wanted(context: &TraceContext) -> bool {
    TRACES
        .get()
        .is_some_and(|traces| context.is_sampled() || traces.keeper.holds_back())
}

/// Longest text of a prompt or answer in a span, characters; `None` if there is to be none.
pub fn content_chars_max() -> Option<usize> {
    TRACES.get()?.content_chars_max
}

/// What is to be sent although it was not chosen, and what is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Something went wrong, if only in passing.
    Failed,
    /// It took this long, from acceptance to outcome.
    Ended {
        /// Position of the priority: critical, standard, batch.
        priority: usize,
        /// How long.
        took: Duration,
    },
}

/// Says how a job of the trace of `context` fared: what was held back of the trace is sent, here and, by way of
/// [`kept_here`], elsewhere; or forgotten.
pub fn tell(context: &TraceContext, fate: Fate) {
    if let Some(traces) = TRACES.get() {
        traces.keeper.tell(context, fate);
    }
}

/// Sends what this process holds back of a trace, by another process's word: 32 hexadecimal digits.
pub fn keep(trace_id: &str) {
    if let Some(traces) = TRACES.get() {
        traces.keeper.keep_id(trace_id);
    }
}

/// The ids of traces that this process has decided to send, for the others; can be taken once. `None` without a trace
/// collector, or if nothing is ever held back.
pub fn kept_here() -> Option<mpsc::Receiver<String>> {
    TRACES.get()?.keeper.told()
}

/// Attributes that many spans share; cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Tags(Vec<KeyValue>);

impl Tags {
    /// Adds a text.
    #[must_use]
    pub fn text(mut self, key: &'static str, value: &str) -> Self {
        self.0.push(KeyValue::new(
            key,
            StringValue::from(Arc::<str>::from(value)),
        ));
        self
    }

    /// Adds a text that never changes.
    #[must_use]
    pub fn word(mut self, key: &'static str, value: &'static str) -> Self {
        self.0.push(KeyValue::new(key, value));
        self
    }

    /// Adds a text that others hold as well.
    #[must_use]
    pub fn shared(mut self, key: &'static str, value: Arc<str>) -> Self {
        self.0.push(KeyValue::new(key, StringValue::from(value)));
        self
    }

    /// Adds a number.
    #[must_use]
    pub fn number(mut self, key: &'static str, value: u64) -> Self {
        self.0.push(KeyValue::new(key, number(value)));
        self
    }

    /// Sets them all on a span of `tracing`.
    pub fn set_on(&self, span: &tracing::Span) {
        for tag in &self.0 {
            span.set_attribute(tag.key.clone(), tag.value.clone());
        }
    }
}

fn number(value: u64) -> Value {
    Value::I64(i64::try_from(value).unwrap_or(i64::MAX))
}

/// A span that is begun. Ends when it is dropped, or at a time that is told.
#[derive(Debug)]
#[must_use = "a span that is dropped at once has no length"]
pub struct JobSpan(Option<Box<Span>>);

impl JobSpan {
    /// No span.
    pub fn none() -> Self {
        Self(None)
    }

    /// Begins a span now. Nothing in a process without a trace collector.
    pub fn start(
        name: impl Into<Cow<'static, str>>,
        kind: SpanKind,
        parent: Option<&TraceContext>,
        tags: &Tags,
    ) -> Self {
        Self::begin(name, kind, parent, tags, None)
    }

    /// Begins a span at a time that has passed, unix milliseconds.
    pub fn start_at(
        name: impl Into<Cow<'static, str>>,
        kind: SpanKind,
        parent: Option<&TraceContext>,
        tags: &Tags,
        at_ms: u64,
    ) -> Self {
        Self::begin(name, kind, parent, tags, Some(at_ms))
    }

    fn begin(
        name: impl Into<Cow<'static, str>>,
        kind: SpanKind,
        parent: Option<&TraceContext>,
        tags: &Tags,
        at_ms: Option<u64>,
    ) -> Self {
        let Some(traces) = TRACES.get() else {
            return Self(None);
        };
        let builder = traces
            .tracer
            .span_builder(name)
            .with_kind(kind)
            .with_attributes(tags.0.iter().cloned());
        let builder = match at_ms {
            Some(at_ms) => builder.with_start_time(instant(at_ms)),
            None => builder,
        };
        let parent = parent.map_or_else(Context::new, TraceContext::to_otel);
        let span = traces.tracer.build_with_context(builder, &parent);
        // Large, and held across many waits.
        Self(Some(Box::new(span)))
    }

    /// Whether anybody will see it.
    pub fn is_recording(&self) -> bool {
        self.0.as_ref().is_some_and(|span| span.is_recording())
    }

    /// Its place in its trace, to be sent on. `None` without a trace collector.
    pub fn context(&self) -> Option<TraceContext> {
        TraceContext::of_span_context(self.0.as_ref()?.span_context())
    }

    /// Points to a place in another trace.
    pub fn link(&mut self, to: &TraceContext) {
        if let Some(span) = &mut self.0 {
            let Link { span_context, .. } = Link::with_context(to.span_context().clone());
            span.add_link(span_context, Vec::new());
        }
    }

    /// Sets a text.
    pub fn text(&mut self, key: &'static str, value: impl Into<StringValue>) {
        if let Some(span) = &mut self.0 {
            span.set_attribute(KeyValue::new(key, Value::String(value.into())));
        }
    }

    /// Sets a list of texts.
    pub fn texts(&mut self, key: &'static str, values: Vec<String>) {
        if let Some(span) = &mut self.0 {
            let values = values.into_iter().map(StringValue::from).collect();
            span.set_attribute(KeyValue::new(key, Value::Array(Array::String(values))));
        }
    }

    /// Sets a number.
    pub fn number(&mut self, key: &'static str, value: u64) {
        if let Some(span) = &mut self.0 {
            span.set_attribute(KeyValue::new(key, number(value)));
        }
    }

    /// Marks it as failed, for a reason of few words.
    pub fn fail(&mut self, reason: &str) {
        if let Some(span) = &mut self.0 {
            span.set_attribute(KeyValue::new("error.type", reason.to_owned()));
            span.set_status(Status::error(reason.to_owned()));
        }
    }

    /// Ends it at a time, unix milliseconds.
    pub fn end_at(mut self, at_ms: u64) {
        if let Some(span) = &mut self.0 {
            span.end_with_timestamp(instant(at_ms));
        }
    }
}

/// Marks a span of `tracing` as failed, for a reason of few words.
pub fn fail(span: &tracing::Span, reason: &str) {
    span.set_attribute("error.type", reason.to_owned());
    span.set_status(Status::error(reason.to_owned()));
}

fn instant(at_ms: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(at_ms)
}
