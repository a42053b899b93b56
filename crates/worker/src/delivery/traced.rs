//! A delivery in its job's trace: the span it runs in, those of its calls and of its end, and whether all that is worth
//! sending.

use std::time::Duration;

use fairlane_core::Priority;
use fairlane_nats::StoredMessage;
use fairlane_runtime::TraceContext;
use fairlane_runtime::spans::{self, Fate, JobSpan, SpanKind, Tags};
use fairlane_wire::lease::{Credit, DeliveryOutcome};
use fairlane_wire::{JobHeaders, JobRecord, Phase, header};
use tracing::{Span, field};

use crate::chat;
use crate::request::Request;

/// The place of a delivery in its job's trace. Empty without one.
#[derive(Debug, Default)]
pub(super) struct Traced {
    span: Option<Span>,
    /// Of the span: what comes of the delivery hangs under it.
    place: Option<TraceContext>,
    /// The job was put off to another day: from now on it has another trace.
    is_new: bool,
    tags: Tags,
    fate: Option<Fate>,
}

impl Traced {
    /// Begins the span of a delivery: under its grant, if that told where it is, else under the job's acceptance. One
    /// that was put off to another day begins a trace of its own, which points to the first one; the deliveries
    /// after it belong there too.
    pub(super) fn begin(
        credit: &Credit,
        message: &StoredMessage,
        record: Option<&JobRecord>,
        granted: Option<TraceContext>,
    ) -> (Self, Span) {
        let span = tracing::info_span!(
            "process fl.jobs",
            otel.kind = "consumer",
            trace_id = field::Empty,
            tenant = %credit.tenant, job = %credit.job, delivery = credit.delivery,
            priority = %credit.priority, pool = %credit.pool,
            outcome = field::Empty,
        );
        let get = |name: &str| message.headers.get(name).map(|value| value.as_str());
        let accepted = get(header::TRACEPARENT)
            .and_then(|parent| TraceContext::parse(parent, get(header::TRACESTATE)));
        let is_new = record.is_some_and(|record| record.phase == Phase::Deferred);
        let later = record.and_then(|record| elsewhere(record, accepted.as_ref()));
        let earlier = granted.or_else(|| accepted.clone());
        if let Some(later) = later.as_ref().filter(|_| !is_new) {
            later.set_as_parent_of(&span);
        }
        match &earlier {
            Some(earlier) if is_new || later.is_some() => earlier.link_from(&span),
            Some(earlier) => earlier.set_as_parent_of(&span),
            None => {}
        }
        let own = TraceContext::of_span(&span);
        let mut tags = Tags::default();
        if own.is_some() {
            tags = tags
                .text("job", credit.job.as_str())
                .text("tenant", credit.tenant.as_str())
                .text("kind", get(header::KIND).unwrap_or_default())
                .word("priority", credit.priority.as_str())
                .text("pool", credit.pool.as_str())
                .number("delivery", u64::from(credit.delivery));
            let attempts = record.map_or(0, |record| record.attempts);
            describe(credit, message, u64::from(attempts) + 1).set_on(&span);
        }
        let is_new = is_new && own.is_some();
        let place = own.or(later).or(accepted);
        if let Some(place) = &place {
            span.record("trace_id", place.trace_id());
        }
        let traced = Self {
            span: Some(span.clone()),
            place,
            is_new,
            tags,
            fate: None,
        };
        (traced, span)
    }

    /// The record with where its job is in its trace.
    pub(super) fn note_in(&self, record: JobRecord, headers: &JobHeaders) -> JobRecord {
        match &self.place {
            Some(place) if self.is_new => record.traced(Some(&place.traceparent())),
            _ if record.trace_id.is_none() => record.traced(headers.traceparent.as_deref()),
            _ => record,
        }
    }

    /// Begins the span of a call.
    pub(super) fn chat(&self, request: &Request, record: &JobRecord, turn: u32) -> JobSpan {
        let attempt = u64::from(record.attempts) + 1;
        let tags = || self.tags.clone().number("attempt", attempt);
        chat::start(request, self.place.as_ref(), tags, turn)
    }

    /// Begins the span of the outcome's storing.
    pub(super) fn result(&self, record: &JobRecord) -> JobSpan {
        let mut span = self.step("result", SpanKind::Internal);
        span.text("outcome", record.phase.as_str());
        if let Some(failure) = &record.failure {
            span.fail(failure.reason.as_str());
        }
        span
    }

    /// Begins the span of the credit's release, which says how the delivery ended.
    pub(super) fn settle(&self, outcome: DeliveryOutcome) -> JobSpan {
        let word = match outcome {
            DeliveryOutcome::Done => "done",
            DeliveryOutcome::Dead => "dead",
            DeliveryOutcome::Retry => "retry",
            DeliveryOutcome::Returned => "returned",
            DeliveryOutcome::Gone => "gone",
        };
        if let Some(span) = &self.span {
            span.record("outcome", word);
        }
        let mut span = self.step("settle fl_credits", SpanKind::Client);
        span.text("outcome", word);
        span.text("messaging.system", "nats");
        span.text("messaging.operation.name", "settle");
        span.text("messaging.operation.type", "settle");
        span
    }

    fn step(&self, name: &'static str, kind: SpanKind) -> JobSpan {
        if self.place.is_none() {
            return JobSpan::none();
        }
        JobSpan::start(name, kind, self.place.as_ref(), &self.tags)
    }

    /// The job failed: in passing, or for good.
    pub(super) fn failed(&mut self, reason: &str, is_over: bool) {
        self.fate = Some(Fate::Failed);
        if let (Some(span), true) = (&self.span, is_over) {
            spans::fail(span, reason);
        }
    }

    /// The job has its result.
    pub(super) fn done(&mut self, record: &JobRecord, priority: Priority) {
        let finished = record.finished_ms.unwrap_or(record.accepted_ms);
        self.fate = Some(Fate::Ended {
            priority: priority.index(),
            took: Duration::from_millis(finished.saturating_sub(record.accepted_ms)),
        });
    }

    /// Says how it went, once everything else of its span is gone.
    pub(super) fn tell(&mut self) {
        self.span = None;
        if let (Some(place), Some(fate)) = (&self.place, self.fate) {
            spans::tell(place, fate);
        }
    }
}

/// Where a record says that its job is in its trace, if that is another one than the job says.
fn elsewhere(record: &JobRecord, accepted: Option<&TraceContext>) -> Option<TraceContext> {
    let (trace, span) = (record.trace_id.as_ref()?, record.span_id.as_ref()?);
    let accepted = accepted?;
    if *trace == accepted.trace_id() {
        return None;
    }
    TraceContext::of_ids(trace, span, accepted.is_sampled())
}

/// What the conventions for messaging ask for.
fn describe(credit: &Credit, message: &StoredMessage, attempt: u64) -> Tags {
    let bytes = u64::try_from(message.payload.len()).unwrap_or(u64::MAX);
    let kind = message.headers.get(header::KIND);
    Tags::default()
        .text("kind", kind.map_or("", |kind| kind.as_str()))
        .number("attempt", attempt)
        .text("model", credit.model.as_str())
        .word("messaging.system", "nats")
        .word("messaging.operation.name", "process")
        .word("messaging.operation.type", "process")
        .text("messaging.destination.name", &message.subject)
        .number("messaging.message.body.size", bytes)
        .number("messaging.nats.stream.sequence", message.seq)
}
