//! W3C trace context: carrying one trace per job across processes and NATS headers.
//!
//! Without a trace collector no span has an identity of its own. A context that came in is then passed on unchanged,
//! so that traces stay whole when only some processes export them.

use opentelemetry::Context;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";

/// Longest tracestate passed on, bytes; the standard asks for at least 512. It comes from publishers.
const TRACESTATE_BYTES_MAX: usize = 512;

/// A place in a trace, as the two headers of the W3C recommendation tell it. Always valid.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceContext(SpanContext);

/// The two headers.
struct Headers<'a> {
    traceparent: &'a str,
    tracestate: Option<&'a str>,
}

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        match key {
            TRACEPARENT => Some(self.traceparent),
            TRACESTATE => self.tracestate,
            _ => None,
        }
    }

    fn keys(&self) -> Vec<&str> {
        vec![TRACEPARENT, TRACESTATE]
    }
}

impl TraceContext {
    /// Reads headers. `None` if the traceparent is not valid; a tracestate that is not valid is left out.
    pub fn parse(traceparent: &str, tracestate: Option<&str>) -> Option<Self> {
        let headers = Headers {
            traceparent,
            tracestate: tracestate.filter(|state| state.len() <= TRACESTATE_BYTES_MAX),
        };
        let context = TraceContextPropagator::new().extract_with_context(&Context::new(), &headers);
        Self::of(&context)
    }

    /// A place known by its two ids, 32 and 16 hexadecimal digits, as records keep it.
    pub fn of_ids(trace_id: &str, span_id: &str, is_sampled: bool) -> Option<Self> {
        let flags = if is_sampled { "01" } else { "00" };
        Self::parse(&format!("00-{trace_id}-{span_id}-{flags}"), None)
    }

    /// The place of the current span; `None` outside a span or without a trace collector.
    pub fn current() -> Option<Self> {
        Self::of_span(&Span::current())
    }

    /// The place of `span`; `None` if it is disabled or there is no trace collector.
    pub fn of_span(span: &Span) -> Option<Self> {
        Self::of(&span.context())
    }

    /// The start of a new, sampled trace, for a job that came without one.
    pub fn generate() -> Self {
        let ids = RandomIdGenerator::default();
        Self(SpanContext::new(
            ids.new_trace_id(),
            ids.new_span_id(),
            TraceFlags::SAMPLED,
            true,
            TraceState::NONE,
        ))
    }

    /// Makes `span` a child of this place. Must come before the span is first entered; without a trace collector it
    /// does nothing.
    pub fn set_as_parent_of(&self, span: &Span) {
        if let Err(error) = span.set_parent(self.to_otel()) {
            // Both causes are harmless for the job: no collector, or the span is disabled by its level.
            tracing::trace!(%error, "span keeps its own parent");
        }
    }

    /// Makes `span` point to this place, which lies in another trace.
    pub fn link_from(&self, span: &Span) {
        span.add_link(self.0.clone());
    }

    /// Value of the `traceparent` header.
    pub fn traceparent(&self) -> String {
        let (trace, span) = (self.0.trace_id(), self.0.span_id());
        let flags = self.0.trace_flags() & TraceFlags::SAMPLED;
        format!("00-{trace}-{span}-{flags:02x}")
    }

    /// Value of the `tracestate` header, if there is one.
    pub fn tracestate(&self) -> Option<String> {
        Some(self.0.trace_state().header()).filter(|state| !state.is_empty())
    }

    /// The 32 hex digits that name the trace, for records and dead letters.
    pub fn trace_id(&self) -> String {
        self.0.trace_id().to_string()
    }

    /// The 16 hex digits that name the place within the trace.
    pub fn span_id(&self) -> String {
        self.0.span_id().to_string()
    }

    /// Whether the trace was chosen to be sent where it began.
    pub fn is_sampled(&self) -> bool {
        self.0.is_sampled()
    }

    pub(crate) fn ids(&self) -> (TraceId, SpanId) {
        (self.0.trace_id(), self.0.span_id())
    }

    pub(crate) fn of_span_context(context: &SpanContext) -> Option<Self> {
        context.is_valid().then(|| Self(context.clone()))
    }

    pub(crate) fn span_context(&self) -> &SpanContext {
        &self.0
    }

    fn of(context: &Context) -> Option<Self> {
        Self::of_span_context(context.span().span_context())
    }

    /// As the parent of a span.
    pub(crate) fn to_otel(&self) -> Context {
        Context::new().with_remote_span_context(self.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_valid_context_comes_back_unchanged() {
        let context = TraceContext::parse(PARENT, Some("vendor=1")).unwrap();
        assert_eq!(context.traceparent(), PARENT);
        assert_eq!(context.tracestate().as_deref(), Some("vendor=1"));
        assert_eq!(context.trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736");
    }

    #[test]
    fn what_is_not_a_traceparent_is_refused() {
        for wrong in [
            "",
            "hello",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(TraceContext::parse(wrong, None), None, "{wrong:?}");
        }
    }

    #[test]
    fn short_ids_are_normalised_so_that_the_trace_id_can_be_cut_out() {
        if let Some(context) = TraceContext::parse("00-1-2-01", None) {
            assert_eq!(context.trace_id(), "00000000000000000000000000000001");
        }
    }

    #[test]
    fn a_tracestate_that_is_too_long_is_left_out() {
        let value = "x".repeat(200);
        let short = format!("a={value},b={value}");
        let context = TraceContext::parse(PARENT, Some(&short)).unwrap();
        assert_eq!(context.tracestate().as_deref(), Some(short.as_str()));
        let long = format!("{short},c={value}");
        let context = TraceContext::parse(PARENT, Some(&long)).unwrap();
        assert_eq!(context.tracestate(), None);
    }

    #[test]
    fn generated_contexts_are_valid_sampled_and_different() {
        let (one, two) = (TraceContext::generate(), TraceContext::generate());
        assert_ne!(one, two);
        assert_eq!(
            TraceContext::parse(&one.traceparent(), None),
            Some(one.clone())
        );
        assert!(one.traceparent().ends_with("-01"));
    }

    #[test]
    fn without_a_collector_no_span_has_a_place() {
        let incoming = TraceContext::parse(PARENT, None).unwrap();
        let span = tracing::info_span!("job");
        incoming.set_as_parent_of(&span);
        let _entered = span.enter();
        assert_eq!(TraceContext::current(), None);
    }

    #[test]
    fn a_place_comes_back_from_its_ids() {
        let context = TraceContext::parse(PARENT, None).unwrap();
        let again = TraceContext::of_ids(&context.trace_id(), &context.span_id(), true);
        assert_eq!(again, Some(context));
        assert_eq!(TraceContext::of_ids("zz", "1", true), None);
    }
}
