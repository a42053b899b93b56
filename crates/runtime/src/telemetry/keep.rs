//! Which traces are sent.
//!
//! Two decisions. The first falls where a trace begins, by its id or by the publisher's word, and travels in the
//! traceparent: what is chosen is sent by every process at once. The second falls when something is known of the job.
//! Spans that were not chosen are held back, in each process that made them; when a worker sees a job fail or take
//! long it sends its part of the trace and tells the other processes, which send theirs. From then on the trace is
//! sent like a chosen one.
//!
//! What this cannot promise: each process has room for so many spans, and of more the oldest traces are forgotten; a
//! process that ended, or did not hear, sends nothing. Such a trace has the worker's part, which says how long the job
//! waited and what each call did, and lacks the spans before.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use opentelemetry::trace::{Link, SpanContext, SpanKind, TraceContextExt, TraceId};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    Sampler as Standard, SamplingDecision, SamplingResult, ShouldSample, Span, SpanData,
    SpanProcessor,
};
use tokio::sync::mpsc;

use super::export::Counts;
use crate::config::{self, Sampler};
use crate::spans::Fate;
use crate::trace::TraceContext;

/// Spans that are held back at most: about a kilobyte each.
const SPANS_HELD_MAX: usize = 16_384;
/// Traces of which it is remembered that they are sent.
const KEPT_MAX: usize = 8_192;
/// Words to other processes under way; of more, they do not hear.
const TOLD_MAX: usize = 1_024;

/// When a trace that was not chosen is sent all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rules {
    failed: bool,
    /// By priority; none takes too long without one.
    slow: [Option<Duration>; 3],
}

impl Rules {
    pub(crate) fn of(settings: &config::Telemetry) -> Self {
        let slow = [
            settings.keep_slow_critical_ms,
            settings.keep_slow_standard_ms,
            settings.keep_slow_batch_ms,
        ];
        Self {
            failed: settings.keep_failed == "yes",
            slow: slow.map(|ms| (ms > 0).then(|| Duration::from_millis(ms))),
        }
    }

    fn hold_back(&self) -> bool {
        self.failed || self.slow.iter().any(Option::is_some)
    }

    fn want(&self, fate: Fate) -> bool {
        match fate {
            Fate::Failed => self.failed,
            Fate::Ended { priority, took } => {
                let slow = self.slow.get(priority).copied().flatten();
                slow.is_some_and(|slow| took > slow)
            }
        }
    }
}

/// The first decision.
#[derive(Debug, Clone)]
pub(crate) struct Chooser {
    heeds_parent: bool,
    roots: Standard,
    holds_back: bool,
}

impl Chooser {
    pub(crate) fn of(settings: &config::Telemetry, rules: Rules) -> Self {
        let roots = match settings.sampler {
            Sampler::AlwaysOn | Sampler::ParentBasedAlwaysOn => Standard::AlwaysOn,
            Sampler::AlwaysOff | Sampler::ParentBasedAlwaysOff => Standard::AlwaysOff,
            // By the id alone, so every process comes to the same.
            Sampler::Ratio | Sampler::ParentBasedRatio => {
                Standard::TraceIdRatioBased(settings.sampler_arg)
            }
        };
        Self {
            heeds_parent: settings.sampler.heeds_parent(),
            roots,
            holds_back: rules.hold_back(),
        }
    }

    fn chooses(&self, parent: Option<&SpanContext>, trace: TraceId) -> bool {
        match parent {
            // Within a process nothing is decided twice.
            Some(parent) if self.heeds_parent || !parent.is_remote() => parent.is_sampled(),
            Some(_) | None => {
                let result =
                    self.roots
                        .should_sample(None, trace, "", &SpanKind::Internal, &[], &[]);
                result.decision == SamplingDecision::RecordAndSample
            }
        }
    }
}

impl ShouldSample for Chooser {
    fn should_sample(
        &self,
        parent: Option<&Context>,
        trace: TraceId,
        _name: &str,
        _kind: &SpanKind,
        _attributes: &[KeyValue],
        _links: &[Link],
    ) -> SamplingResult {
        let parent = parent.map(|context| context.span().span_context().clone());
        let parent = parent.filter(SpanContext::is_valid);
        let decision = if self.chooses(parent.as_ref(), trace) {
            SamplingDecision::RecordAndSample
        } else if self.holds_back {
            SamplingDecision::RecordOnly
        } else {
            SamplingDecision::Drop
        };
        SamplingResult {
            decision,
            attributes: Vec::new(),
            trace_state: parent
                .map_or_else(Default::default, |parent| parent.trace_state().clone()),
        }
    }
}

/// Spans that are held back, by trace, and the traces that are sent after all. Bounded.
#[derive(Debug, Default)]
struct Held {
    spans: HashMap<TraceId, Vec<SpanData>>,
    /// Traces in the order in which they came; some are gone by now.
    order: VecDeque<TraceId>,
    count: usize,
    kept: HashSet<TraceId>,
    kept_order: VecDeque<TraceId>,
}

impl Held {
    /// Holds a span back. Gives it back if its trace is sent.
    fn hold(&mut self, span: SpanData) -> Option<SpanData> {
        let trace = span.span_context.trace_id();
        if self.kept.contains(&trace) {
            return Some(span);
        }
        let spans = self.spans.entry(trace).or_insert_with(|| {
            self.order.push_back(trace);
            Vec::new()
        });
        spans.push(span);
        self.count += 1;
        while self.count > SPANS_HELD_MAX || self.order.len() > SPANS_HELD_MAX {
            let Some(oldest) = self.order.pop_front() else {
                break;
            };
            self.forget(oldest);
        }
        None
    }

    fn forget(&mut self, trace: TraceId) -> Vec<SpanData> {
        let spans = self.spans.remove(&trace).unwrap_or_default();
        self.count -= spans.len();
        spans
    }

    /// From now on the trace is sent: with what was held back of it. None if it was before.
    fn keep(&mut self, trace: TraceId) -> Option<Vec<SpanData>> {
        if !self.kept.insert(trace) {
            return None;
        }
        self.kept_order.push_back(trace);
        if self.kept_order.len() > KEPT_MAX
            && let Some(oldest) = self.kept_order.pop_front()
        {
            self.kept.remove(&oldest);
        }
        Some(self.forget(trace))
    }
}

/// Between the spans of this process and what sends them.
#[derive(Debug)]
struct Sieve<P> {
    // Written once, when the provider is built.
    next: RwLock<P>,
    held: Mutex<Held>,
    counts: Arc<Counts>,
    is_shut: AtomicBool,
}

impl<P: SpanProcessor> Sieve<P> {
    fn send(&self, span: SpanData) {
        if self.counts.take_place() {
            let next = self.next.read().unwrap_or_else(PoisonError::into_inner);
            next.on_end(span);
        }
    }

    fn send_all(&self, spans: Vec<SpanData>) {
        for span in spans {
            self.send(sampled(span));
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        // Nothing in there panics half way.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The span as if its trace had been chosen; exporters leave others out.
fn sampled(mut span: SpanData) -> SpanData {
    let context = &span.span_context;
    span.span_context = SpanContext::new(
        context.trace_id(),
        context.span_id(),
        context.trace_flags().with_sampled(true),
        context.is_remote(),
        context.trace_state().clone(),
    );
    span
}

/// The processor of a provider.
#[derive(Debug)]
pub(crate) struct Sieved<P>(Arc<Sieve<P>>);

impl<P: SpanProcessor> SpanProcessor for Sieved<P> {
    fn on_start(&self, _span: &mut Span, _parent: &Context) {}

    fn on_end(&self, span: SpanData) {
        if self.0.is_shut.load(Ordering::Relaxed) {
            return;
        }
        if span.span_context.is_sampled() {
            return self.0.send(span);
        }
        let passed = self.0.held().hold(span);
        if let Some(span) = passed {
            self.0.send(sampled(span));
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        let next = self.0.next.read().unwrap_or_else(PoisonError::into_inner);
        next.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.is_shut.store(true, Ordering::Relaxed);
        let next = self.0.next.read().unwrap_or_else(PoisonError::into_inner);
        next.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        let mut next = self.0.next.write().unwrap_or_else(PoisonError::into_inner);
        next.set_resource(resource);
    }
}

/// What can be held back and sent later, whatever sends it.
trait Keeping: Send + Sync + std::fmt::Debug {
    /// False if the trace is sent already.
    fn keep(&self, trace: TraceId) -> bool;
    fn forget(&self, trace: TraceId);
}

impl<P: SpanProcessor> Keeping for Sieve<P> {
    fn keep(&self, trace: TraceId) -> bool {
        let spans = self.held().keep(trace);
        let is_news = spans.is_some();
        self.send_all(spans.unwrap_or_default());
        is_news
    }

    fn forget(&self, trace: TraceId) {
        self.held().forget(trace);
    }
}

/// The second decision.
#[derive(Debug)]
pub(crate) struct Keeper {
    rules: Rules,
    sieve: Arc<dyn Keeping>,
    tell: mpsc::Sender<String>,
    told: Mutex<Option<mpsc::Receiver<String>>>,
}

/// The processor that sends what is wanted through `next`, and what says later what is wanted.
pub(crate) fn sieve<P: SpanProcessor + 'static>(
    next: P,
    rules: Rules,
    counts: Arc<Counts>,
) -> (Sieved<P>, Keeper) {
    let sieve = Arc::new(Sieve {
        next: RwLock::new(next),
        held: Mutex::default(),
        counts,
        is_shut: AtomicBool::new(false),
    });
    let (tell, told) = mpsc::channel(TOLD_MAX);
    let keeper = Keeper {
        rules,
        sieve: sieve.clone(),
        tell,
        told: Mutex::new(Some(told)),
    };
    (Sieved(sieve), keeper)
}

impl Keeper {
    pub(crate) fn holds_back(&self) -> bool {
        self.rules.hold_back()
    }

    pub(crate) fn tell(&self, context: &TraceContext, fate: Fate) {
        if context.is_sampled() {
            return;
        }
        let (trace, _) = context.ids();
        if self.rules.want(fate) {
            if self.sieve.keep(trace) {
                // Nobody to tell, or too much to: they keep what they have for a while.
                drop(self.tell.try_send(trace.to_string()));
            }
        } else if matches!(fate, Fate::Ended { .. }) {
            self.sieve.forget(trace);
        }
    }

    pub(crate) fn keep_id(&self, trace: &str) {
        if let Ok(trace) = TraceId::from_hex(trace) {
            self.sieve.keep(trace);
        }
    }

    pub(crate) fn told(&self) -> Option<mpsc::Receiver<String>> {
        if !self.holds_back() {
            return None;
        }
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.take()
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{Span as _, Tracer, TracerProvider};
    use opentelemetry_sdk::trace::{SdkTracerProvider, SimpleSpanProcessor, SpanExporter};

    use super::*;

    /// Keeps what is sent.
    #[derive(Debug, Clone, Default)]
    struct Sent(Arc<Mutex<Vec<SpanData>>>);

    impl SpanExporter for Sent {
        async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
            self.0.lock().unwrap().extend(batch);
            Ok(())
        }
    }

    /// A provider with these settings, what says later what is wanted, and what was sent.
    struct World {
        provider: SdkTracerProvider,
        keeper: Keeper,
        sent: Sent,
    }

    impl World {
        fn new(settings: &config::Telemetry) -> Self {
            let sent = Sent::default();
            let rules = Rules::of(settings);
            let next = SimpleSpanProcessor::new(sent.clone());
            let (sieved, keeper) = sieve(next, rules, Arc::default());
            let provider = SdkTracerProvider::builder()
                .with_sampler(Chooser::of(settings, rules))
                .with_span_processor(sieved)
                .build();
            Self {
                provider,
                keeper,
                sent,
            }
        }

        /// A span that has ended, under `parent`.
        fn span(&self, name: &'static str, parent: Option<&TraceContext>) -> TraceContext {
            let tracer = self.provider.tracer("test");
            let parent = parent.map_or_else(Context::new, TraceContext::to_otel);
            let mut span = tracer.start_with_context(name, &parent);
            span.end();
            TraceContext::of_span_context(span.span_context()).unwrap()
        }

        fn sent(&self) -> Vec<String> {
            let spans = self.sent.0.lock().unwrap();
            assert!(spans.iter().all(|span| span.span_context.is_sampled()));
            spans.iter().map(|span| span.name.to_string()).collect()
        }
    }

    fn settings(sampler: Sampler, sampler_arg: f64) -> config::Telemetry {
        config::Telemetry {
            sampler,
            sampler_arg,
            ..config::Telemetry::default()
        }
    }

    fn publisher(is_sampled: bool) -> TraceContext {
        let (trace, span) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
        TraceContext::of_ids(trace, span, is_sampled).unwrap()
    }

    #[test]
    fn the_publishers_choice_counts_if_it_is_to_count() {
        for (sampler, chosen, not_chosen) in [
            (Sampler::ParentBasedRatio, true, false),
            (Sampler::ParentBasedAlwaysOff, true, false),
            (Sampler::AlwaysOn, true, true),
            (Sampler::AlwaysOff, false, false),
            (Sampler::Ratio, true, true),
        ] {
            let world = World::new(&settings(sampler, 1.0));
            for (is_sampled, expected) in [(true, chosen), (false, not_chosen)] {
                let place = world.span("accept", Some(&publisher(is_sampled)));
                assert_eq!(place.is_sampled(), expected, "{sampler:?} {is_sampled}");
            }
        }
    }

    #[test]
    fn a_part_of_the_traces_is_chosen_by_their_ids() {
        let world = World::new(&settings(Sampler::ParentBasedRatio, 0.25));
        let chosen = (0..2_000).filter(|_| world.span("root", None).is_sampled());
        let chosen = chosen.count();
        assert!((400..600).contains(&chosen), "{chosen}");
    }

    #[test]
    fn a_trace_that_was_not_chosen_is_sent_once_its_job_fails_and_from_then_on() {
        let world = World::new(&settings(Sampler::AlwaysOff, 1.0));
        let mut told = world.keeper.told().unwrap();
        let place = world.span("first", None);
        world.span("other", None);
        assert_eq!(world.sent(), [""; 0]);
        world.keeper.tell(&place, Fate::Failed);
        world.span("second", Some(&place));
        assert_eq!(world.sent(), ["first", "second"]);
        world.keeper.tell(&place, Fate::Failed);
        assert_eq!(told.try_recv().unwrap(), place.trace_id());
        assert!(told.try_recv().is_err(), "the others are told once");
    }

    #[test]
    fn another_process_s_word_is_enough() {
        let world = World::new(&settings(Sampler::AlwaysOff, 1.0));
        let place = world.span("accept", None);
        world.keeper.keep_id("not an id");
        world.keeper.keep_id(&place.trace_id());
        assert_eq!(world.sent(), ["accept"]);
        assert!(world.keeper.told().unwrap().try_recv().is_err(), "no echo");
    }

    #[test]
    fn slow_is_what_is_slow_for_its_priority() {
        let world = World::new(&settings(Sampler::AlwaysOff, 1.0));
        let took = Duration::from_secs(5);
        for (name, priority) in [("critical", 0), ("standard", 1), ("batch", 2)] {
            let place = world.span(name, None);
            world.keeper.tell(&place, Fate::Ended { priority, took });
            // What went well is forgotten at once.
            world.keeper.keep_id(&place.trace_id());
        }
        assert_eq!(world.sent(), ["critical"]);
    }

    #[test]
    fn no_more_traces_are_remembered_than_there_is_room_for() {
        let mut held = Held::default();
        for number in 1..=u128::try_from(KEPT_MAX).unwrap() + 5 {
            assert!(held.keep(TraceId::from(number)).is_some());
        }
        assert_eq!(
            (held.kept.len(), held.kept_order.len()),
            (KEPT_MAX, KEPT_MAX)
        );
    }

    #[test]
    fn nothing_is_recorded_if_nothing_is_to_be_kept() {
        let settings = config::Telemetry {
            keep_failed: "no".to_owned(),
            keep_slow_critical_ms: 0,
            keep_slow_standard_ms: 0,
            keep_slow_batch_ms: 0,
            ..settings(Sampler::AlwaysOff, 1.0)
        };
        let world = World::new(&settings);
        let place = world.span("first", None);
        world.keeper.tell(&place, Fate::Failed);
        world.keeper.keep_id(&place.trace_id());
        assert_eq!(world.sent(), [""; 0]);
        assert!(world.keeper.told().is_none());
    }

    #[test]
    fn of_more_than_there_is_room_for_the_oldest_traces_are_forgotten() {
        let world = World::new(&settings(Sampler::AlwaysOff, 1.0));
        let oldest = world.span("oldest", None);
        for _ in 1..SPANS_HELD_MAX {
            world.span("others", None);
        }
        let newest = world.span("newest", None);
        for place in [&oldest, &newest] {
            world.keeper.tell(place, Fate::Failed);
        }
        assert_eq!(world.sent(), ["newest"]);
    }
}
