//! The span of a submission that is taken in.

use fairlane_runtime::TraceContext;
use fairlane_runtime::spans::{self, Tags};
use tracing::Span;

use crate::intake::Arrival;

/// Puts the span of a submission into its publisher's trace; without one it begins a trace. What was sent or made
/// again begins one that points to the earlier one.
pub(crate) fn place(span: &Span, arrival: &Arrival) -> TraceContext {
    match (&arrival.trace_link, &arrival.trace) {
        (Some(earlier), _) => earlier.link_from(span),
        (None, Some(incoming)) => incoming.set_as_parent_of(span),
        (None, None) => {}
    }
    let own = TraceContext::of_span(span);
    let trace = own.or_else(|| {
        arrival
            .trace
            .clone()
            .filter(|_| arrival.trace_link.is_none())
    });
    let trace = trace.unwrap_or_else(TraceContext::generate);
    span.record("trace_id", trace.trace_id());
    trace
}

/// What the conventions for messaging ask for.
pub(crate) fn describe(span: &Span, arrival: &Arrival, body_bytes: usize) {
    if !spans::are_on() {
        return;
    }
    let bytes = u64::try_from(body_bytes).unwrap_or(u64::MAX);
    Tags::default()
        .word("messaging.system", "nats")
        .word("messaging.operation.name", "accept")
        .word("messaging.operation.type", "process")
        .text("messaging.destination.name", &arrival.subject)
        .number("messaging.message.body.size", bytes)
        .number("messaging.nats.stream.sequence", arrival.seq)
        .set_on(span);
}
