//! W3C trace context: carrying one trace per job across processes and NATS headers.
//!
//! Without a trace collector no span has an identity of its own. A context that came in is then passed on unchanged,
//! so that traces stay whole when only some processes export them.

use std::collections::HashMap;

use opentelemetry::Context;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::TraceContextExt;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";

/// Longest tracestate passed on, bytes; the standard asks for at least 512. It comes from publishers.
const TRACESTATE_BYTES_MAX: usize = 512;

/// A place in a trace, as the two headers of the W3C recommendation. The traceparent is always valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext {
    traceparent: String,
    tracestate: Option<String>,
}

impl TraceContext {
    /// Reads headers. `None` if the traceparent is not valid; a tracestate that is not valid is left out.
    pub fn parse(traceparent: &str, tracestate: Option<&str>) -> Option<Self> {
        let mut carrier = HashMap::from([(TRACEPARENT.to_owned(), traceparent.to_owned())]);
        if let Some(state) = tracestate.filter(|state| state.len() <= TRACESTATE_BYTES_MAX) {
            carrier.insert(TRACESTATE.to_owned(), state.to_owned());
        }
        let context = TraceContextPropagator::new().extract_with_context(&Context::new(), &carrier);
        Self::of(&context)
    }

    /// The place of the current span; `None` outside a span or without a trace collector.
    pub fn current() -> Option<Self> {
        Self::of_span(&Span::current())
    }

    /// The place of `span`; `None` if it is disabled or there is no trace collector.
    pub fn of_span(span: &Span) -> Option<Self> {
        Self::of(&span.context())
    }

    /// What to send on: the current span's place, else what came in.
    pub fn current_or(incoming: &Self) -> Self {
        Self::current().unwrap_or_else(|| incoming.clone())
    }

    /// The start of a new, sampled trace, for a job that came without one.
    pub fn generate() -> Self {
        let ids = RandomIdGenerator::default();
        Self {
            traceparent: format!("00-{}-{}-01", ids.new_trace_id(), ids.new_span_id()),
            tracestate: None,
        }
    }

    /// Makes `span` a child of this place. Must come before the span is first entered; without a trace collector it
    /// does nothing.
    pub fn set_as_parent_of(&self, span: &Span) {
        if let Err(error) = span.set_parent(self.to_otel()) {
            // Both causes are harmless for the job: no collector, or the span is disabled by its level.
            tracing::trace!(%error, "span keeps its own parent");
        }
    }

    /// Value of the `traceparent` header.
    pub fn traceparent(&self) -> &str {
        &self.traceparent
    }

    /// Value of the `tracestate` header, if there is one.
    pub fn tracestate(&self) -> Option<&str> {
        self.tracestate.as_deref()
    }

    /// The 32 hex digits that name the trace, for records and dead letters.
    pub fn trace_id(&self) -> &str {
        self.traceparent
            .get(3..35)
            .expect("a valid traceparent has its trace id there")
    }

    fn of(context: &Context) -> Option<Self> {
        if !context.span().span_context().is_valid() {
            return None;
        }
        let mut carrier = HashMap::new();
        TraceContextPropagator::new().inject_context(context, &mut carrier);
        Some(Self {
            traceparent: carrier.remove(TRACEPARENT)?,
            tracestate: carrier.remove(TRACESTATE).filter(|state| !state.is_empty()),
        })
    }

    fn to_otel(&self) -> Context {
        let mut carrier = HashMap::from([(TRACEPARENT.to_owned(), self.traceparent.clone())]);
        if let Some(state) = &self.tracestate {
            carrier.insert(TRACESTATE.to_owned(), state.clone());
        }
        TraceContextPropagator::new().extract_with_context(&Context::new(), &carrier)
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
        assert_eq!(context.tracestate(), Some("vendor=1"));
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
        assert_eq!(context.tracestate(), Some(short.as_str()));
        let long = format!("{short},c={value}");
        let context = TraceContext::parse(PARENT, Some(&long)).unwrap();
        assert_eq!(context.tracestate(), None);
    }

    #[test]
    fn generated_contexts_are_valid_sampled_and_different() {
        let (one, two) = (TraceContext::generate(), TraceContext::generate());
        assert_ne!(one, two);
        assert_eq!(
            TraceContext::parse(one.traceparent(), None),
            Some(one.clone())
        );
        assert!(one.traceparent().ends_with("-01"));
    }

    #[test]
    fn without_a_collector_what_came_in_is_passed_on() {
        let incoming = TraceContext::parse(PARENT, None).unwrap();
        let span = tracing::info_span!("job");
        incoming.set_as_parent_of(&span);
        let _entered = span.enter();
        assert_eq!(TraceContext::current(), None);
        assert_eq!(TraceContext::current_or(&incoming), incoming);
    }
}
