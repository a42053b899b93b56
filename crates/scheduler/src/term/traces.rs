//! The leader's part of each job's trace: how long it stood in line, and its grants.
//!
//! A grant is decided without reading the job, so the place of each waiting job in its trace is kept here, from the
//! headers that the index shows. Only for traces that are sent or may yet be, and for a bounded number of jobs: a job
//! beyond that has no spans of the leader, and its worker's hang directly under its acceptance.

use std::collections::HashMap;
use std::sync::Arc;

use fairlane_core::scheduler::{Credit, Event, Outcome};
use fairlane_core::{JobSeq, Millis};
use fairlane_nats::IndexItem;
use fairlane_runtime::TraceContext;
use fairlane_runtime::spans::{self, JobSpan, SpanKind, Tags};
use fairlane_wire::header;

/// Jobs whose place is kept: some 150 bytes each.
const JOBS_MAX: usize = 200_000;
/// Kinds of jobs whose names are shared.
const KINDS_MAX: usize = 256;

/// A job that waits, or waited.
#[derive(Debug)]
struct Waiting {
    trace: TraceContext,
    kind: Arc<str>,
    /// When it was stored, or last came back.
    since: Millis,
}

/// The traces of the jobs that are known.
#[derive(Debug, Default)]
pub(super) struct Traces {
    jobs: HashMap<JobSeq, Waiting>,
    kinds: HashMap<String, Arc<str>>,
}

impl Traces {
    /// The index shows a job.
    pub(super) fn saw(&mut self, item: &IndexItem) {
        if !spans::are_on() || self.jobs.len() >= JOBS_MAX {
            return;
        }
        // Looking one up in the library's map costs an allocation.
        let get = |wanted: &str| {
            let mut headers = item.headers.iter();
            let (_, values) = headers.find(|(name, _)| AsRef::<str>::as_ref(*name) == wanted)?;
            Some(values.first()?.as_str())
        };
        let trace = get(header::TRACEPARENT)
            .and_then(|parent| TraceContext::parse(parent, get(header::TRACESTATE)))
            .filter(spans::are_wanted);
        let Some(trace) = trace else { return };
        let kind = self.kind(get(header::KIND).unwrap_or_default());
        let since = item.stored_ms;
        self.jobs
            .insert(JobSeq(item.seq), Waiting { trace, kind, since });
    }

    fn kind(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.kinds.get(name) {
            return known.clone();
        }
        let kind: Arc<str> = name.into();
        if self.kinds.len() < KINDS_MAX {
            self.kinds.insert(name.to_owned(), kind.clone());
        }
        kind
    }

    /// Notes what ends a wait for good, and what begins another one.
    pub(super) fn hear(&mut self, event: &Event, now: Millis) {
        match event {
            Event::Settled { settlement, .. } => match settlement.outcome {
                Outcome::Finished => self.forget(settlement.credit.seq),
                Outcome::Returned | Outcome::Parked { .. } | Outcome::Asked { .. } => {
                    self.came_back(settlement.credit.seq, now);
                }
            },
            Event::LeaseEnded { seq, .. } => self.came_back(*seq, now),
            Event::PutAside { seq } => self.forget(*seq),
            Event::Job(_)
            | Event::Held { .. }
            | Event::Moved { .. }
            | Event::CalledOff { .. }
            | Event::Kept { .. }
            | Event::GrantStored { .. }
            | Event::GrantFailed { .. }
            | Event::GrantRefused { .. }
            | Event::Worker { .. }
            | Event::PutAsideFailed { .. }
            | Event::Complete { .. }
            | Event::Policy { .. }
            | Event::Spent { .. }
            | Event::Tick => {}
        }
    }

    fn forget(&mut self, seq: JobSeq) {
        self.jobs.remove(&seq);
    }

    fn came_back(&mut self, seq: JobSeq, now: Millis) {
        if let Some(waiting) = self.jobs.get_mut(&seq) {
            waiting.since = now;
        }
    }

    /// A job is granted: its wait is over. Gives the span of the grant, which ends when that is stored and sent.
    pub(super) fn granted(&self, credit: &Credit, subject: &str, now: Millis) -> Option<JobSpan> {
        let waiting = self.jobs.get(&credit.seq)?;
        let tags = Tags::default()
            .text("job", credit.job.as_str())
            .text("tenant", credit.tenant.as_str())
            .shared("kind", waiting.kind.clone())
            .word("priority", credit.priority.as_str())
            .text("pool", credit.pool.as_str())
            .text("model", credit.model.as_str())
            .number("delivery", u64::from(credit.delivery));
        let (trace, since) = (Some(&waiting.trace), waiting.since.min(now));
        JobSpan::start_at("queue wait", SpanKind::Internal, trace, &tags, since).end_at(now);
        let tags = tags
            .word("messaging.system", "nats")
            .word("messaging.operation.name", "grant")
            .word("messaging.operation.type", "send")
            .text("messaging.destination.name", subject)
            .text("worker", credit.worker.as_str());
        let name = "grant fl.credit";
        Some(JobSpan::start_at(
            name,
            SpanKind::Producer,
            trace,
            &tags,
            now,
        ))
    }
}
