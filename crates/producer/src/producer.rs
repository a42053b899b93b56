//! The loop around the decisions: pull, one task per submission, drain.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::bail;
use bytes::Bytes;
use fairlane_nats::payloads::PayloadError;
use fairlane_nats::{Delivery, HeaderMap, Nats, PullOptions, Puller, StoredMessage};
use fairlane_runtime::config::Settings;
use fairlane_runtime::health::Check;
use fairlane_runtime::metrics::Destination;
use fairlane_runtime::spans::{self, Fate};
use fairlane_runtime::{CatalogError, catalog, fallback_kinds, oversize_policies};
use fairlane_runtime::{Metrics, Shutdown, TraceContext};
use fairlane_wire::letter::{DeadReason, Failure};
use fairlane_wire::names::header;
use futures::{FutureExt, Stream, StreamExt, stream};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span, field};

use crate::asks::Asks;
use crate::intake::{Arrival, Body, Claim, Decision, Intake};
use crate::judge::Judgement;
use crate::orphans::Rules;
use crate::quarantine::{Quarantine, Stranded};
use crate::store::{Outcome, Store, Submitted};
use crate::stranded::Rescue;
use crate::traced;
use crate::trouble::{Bursts, Trouble, delay, with_causes};

/// Bodies from this size on are parsed on a thread of their own, so that other submissions need
/// not wait.
const LARGE_BYTES: usize = 256 * 1024;
/// Bodies in objects that are read at the same time: each may have `producer.body_bytes_max`.
const OBJECTS_AT_ONCE: usize = 4;
/// How often a producer looks for submissions that nobody can receive or that are given to nobody
/// any more, besides after each connection.
const SWEEP_EVERY: Duration = Duration::from_secs(20);
/// How long after an advisory a producer looks.
const HURRY_AFTER: Duration = Duration::from_secs(1);
/// How often the connection is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Turns submissions into jobs. Cheap to clone; clones work as one.
#[derive(Debug, Clone)]
pub struct Producer {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    intake: Arc<Intake>,
    store: Store,
    objects: Semaphore,
    in_flight_max: usize,
    bursts: Bursts,
    quarantine: Quarantine,
    rescue: Rescue,
    orphans: Rules,
    /// Held while a job that is in parts is looked at.
    gathering: Mutex<()>,
}

impl Producer {
    /// A producer for the namespace of `nats`.
    ///
    /// # Errors
    /// [`CatalogError`] if `settings.models`, `.fallback` or `.kinds` is wrong.
    pub fn new(settings: &Settings, nats: &Nats, metrics: Metrics) -> Result<Self, CatalogError> {
        let kinds = fallback_kinds(&settings.fallback)?;
        let cuts = oversize_policies(&settings.kinds)?;
        let intake = Intake::new(catalog(&settings.models)?, kinds, cuts, settings);
        Ok(Self {
            shared: Arc::new(Shared {
                intake: Arc::new(intake),
                store: Store::new(settings, nats, metrics),
                objects: Semaphore::new(OBJECTS_AT_ONCE),
                in_flight_max: settings.producer.max_in_flight as usize,
                bursts: Bursts::default(),
                quarantine: Quarantine::default(),
                rescue: Rescue::default(),
                orphans: Rules {
                    every: Some(settings.producer.orphans_every_ms)
                        .filter(|ms| *ms > 0)
                        .map(Duration::from_millis),
                    age: Duration::from_millis(settings.producer.orphans_after_ms),
                },
                gathering: Mutex::default(),
            }),
        })
    }

    /// Takes submissions until `shutdown` says to drain, then finishes what is in hand and hands
    /// back the rest. When it says to stop at once, what is in hand goes back too.
    pub async fn serve(&self, shutdown: &Shutdown) {
        let nats = &self.shared.store.nats;
        let names = &nats.names;
        let mut connections = nats.connections();
        connections.mark_unchanged();
        // A submission that ended this client's last life must not end this one.
        self.clone().sweep(shutdown.stop_now().clone()).await;
        let mut sweeps = tokio::time::interval_at(Instant::now() + SWEEP_EVERY, SWEEP_EVERY);
        sweeps.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let options = PullOptions {
            in_flight_max: self.shared.in_flight_max,
        };
        let mut puller = Puller::start(
            nats,
            &names.submit_stream(),
            names.producer_consumer(),
            options,
        );
        let mut advisories = self.advisories().await;
        // Of many advisories in a row one sweep is made of.
        let mut is_hurried = false;
        let mut tasks = JoinSet::new();
        loop {
            tokio::select! {
                () = shutdown.draining().cancelled() => break,
                // Only forgets tasks that have ended; what they did is settled inside.
                Some(_) = tasks.join_next() => {}
                delivery = puller.next() => match delivery {
                    Some(delivery) => {
                        let work = self.clone().settle(delivery, shutdown.stop_now().clone());
                        tasks.spawn(work);
                    }
                    None => break,
                },
                Some(_) = advisories.next() => {
                    if !is_hurried {
                        sweeps.reset_after(HURRY_AFTER);
                        is_hurried = true;
                    }
                }
                _ = sweeps.tick() => {
                    is_hurried = false;
                    tasks.spawn(self.clone().sweep(shutdown.stop_now().clone()));
                }
                Ok(()) = connections.changed() => {
                    tasks.spawn(self.clone().sweep(shutdown.stop_now().clone()));
                }
            }
        }
        let finish = async { while tasks.join_next().await.is_some() {} };
        let (handed_back, ()) = tokio::join!(puller.drain(), finish);
        tracing::info!(handed_back, "no more submissions are taken");
    }

    /// The server's word that a submission is given to nobody any more. It is said once and may be lost:
    /// what nobody hears is found by the next sweep.
    async fn advisories(&self) -> impl Stream<Item = ()> + Unpin + use<> {
        let nats = &self.shared.store.nats;
        let (subject, group) = (
            nats.names.stranded_advisory(),
            nats.names.producer_consumer(),
        );
        let heard = nats.client.queue_subscribe(subject, group.to_owned()).await;
        let heard = heard.inspect_err(|error| tracing::debug!(%error, "no advisories are heard"));
        stream::iter(heard.ok()).flatten().map(drop)
    }

    /// Deals with one submission, whatever happens: nothing that goes wrong with it touches others.
    async fn settle(self, delivery: Delivery, stop_now: CancellationToken) {
        let ended = tokio::select! {
            ended = contained(self.handle(&delivery)) => ended,
            // Between any two steps a producer may also die, so being cut off is harmless.
            () = stop_now.cancelled() => return hand_back(&delivery, Duration::ZERO).await,
        };
        match ended {
            Ok(Ok(())) => return,
            Ok(Err(trouble)) => self.complain(&delivery, &trouble),
            Err(reason) => tracing::error!(
                seq = delivery.seq,
                delivery = delivery.count,
                reason,
                "a bug: a submission made the producer panic"
            ),
        }
        hand_back(&delivery, delay(delivery.count)).await;
    }

    /// Buries submissions that cannot be received, and deals with those that are given to nobody any
    /// more. Trouble with that is not worth a word: the next sweep comes, and trouble with NATS
    /// shows elsewhere.
    async fn sweep(self, stop_now: CancellationToken) {
        let sweep = async {
            let buried = self.shared.quarantine.sweep(&self).await?;
            let rescued = Box::pin(self.shared.rescue.sweep(&self)).await?;
            Box::pin(self.sweep_plans()).await?;
            if let Err(error) = self.sweep_orphans().await {
                tracing::debug!(error, "cannot look for bodies that nothing names");
            }
            Ok::<_, Trouble>((buried, rescued))
        };
        let swept = tokio::select! {
            swept = sweep => swept,
            () = stop_now.cancelled() => return,
        };
        match swept {
            Ok((0, 0)) => {}
            Ok((buried, rescued)) => tracing::warn!(
                buried,
                rescued,
                "dealt with submissions that could not be received, or were stranded"
            ),
            Err(error) => {
                let error = with_causes(&error);
                tracing::debug!(error, "cannot look for submissions that got stuck");
            }
        }
    }

    /// Deals with a submission that is delivered to nobody any more. The error is None if it makes
    /// this producer panic.
    pub(crate) async fn handle_stored(
        &self,
        message: &StoredMessage,
    ) -> Result<(), Option<Trouble>> {
        let work = self.judge_message(
            &message.subject,
            &message.headers,
            message.seq,
            message.stored_ms,
            &message.payload,
        );
        match contained(work).await {
            Ok(ended) => ended.map(drop).map_err(Some),
            Err(reason) => {
                let seq = message.seq;
                tracing::error!(seq, reason, "a bug: a submission made the producer panic");
                Err(None)
            }
        }
    }

    /// Buries a submission without reading its body.
    pub(crate) async fn bury_unread(
        &self,
        message: &StoredMessage,
        failure: Failure,
    ) -> Result<(), Trouble> {
        let StoredMessage { subject, seq, .. } = message;
        let names = &self.shared.store.nats.names;
        let arrival = Arrival::read(names, subject, &message.headers, *seq, message.stored_ms);
        let trace = arrival.trace.clone();
        let submitted = Submitted {
            arrival: &arrival,
            headers: &message.headers,
            raw_headers: None,
            body: &message.payload,
            trace: trace.unwrap_or_else(TraceContext::generate),
        };
        match self.unusable(&submitted, failure) {
            Decision::Refuse(refuse) => self.shared.store.bury(&submitted, *refuse).await,
            Decision::Accept(_) | Decision::Split(_) => {
                unreachable!("an unusable body is refused")
            }
        }
    }

    /// Buries a submission whose headers are not given to anybody.
    pub(crate) async fn bury_unreadable(
        &self,
        stored: &Stranded,
        failure: Failure,
    ) -> Result<(), Trouble> {
        let headers = HeaderMap::new();
        let names = &self.shared.store.nats.names;
        let Stranded { subject, seq, .. } = stored;
        let arrival = Arrival::read(names, subject, &headers, *seq, stored.stored_ms);
        let submitted = Submitted {
            arrival: &arrival,
            headers: &headers,
            raw_headers: Some(stored.headers.clone()),
            body: &stored.body,
            trace: TraceContext::generate(),
        };
        match self.unusable(&submitted, failure) {
            Decision::Refuse(refuse) => self.shared.store.bury(&submitted, *refuse).await,
            Decision::Accept(_) | Decision::Split(_) => {
                unreachable!("an unusable body is refused")
            }
        }
    }

    /// Answers what owners ask.
    #[must_use]
    pub fn asks(&self) -> Asks {
        let store = &self.shared.store;
        let (nats, records) = (&store.nats, store.records.clone());
        Asks::new(nats, records, store.metrics.clone())
    }

    /// What would be said of a body.
    pub(crate) fn judgement(&self) -> Arc<Judgement> {
        let names = self.nats().names.clone();
        Arc::new(Judgement::new(self.shared.intake.clone(), names))
    }

    pub(crate) fn nats(&self) -> &Nats {
        &self.shared.store.nats
    }

    pub(crate) fn store(&self) -> &Store {
        &self.shared.store
    }

    pub(crate) fn intake(&self) -> &Arc<Intake> {
        &self.shared.intake
    }

    pub(crate) fn orphan_rules(&self) -> Rules {
        self.shared.orphans
    }

    pub(crate) fn gathering(&self) -> &Mutex<()> {
        &self.shared.gathering
    }

    fn complain(&self, delivery: &Delivery, trouble: &Trouble) {
        if let Some(silent) = self.shared.bursts.note(Instant::now()) {
            tracing::warn!(
                error = with_causes(trouble),
                seq = delivery.seq,
                delivery = delivery.count,
                silent,
                "a submission has to wait"
            );
        }
    }

    async fn handle(&self, delivery: &Delivery) -> Result<(), Trouble> {
        let metrics = &self.shared.store.metrics;
        metrics.message_consumed(Destination::Submissions);
        let began = Instant::now();
        let outcome = self
            .judge_message(
                &delivery.subject,
                &delivery.headers,
                delivery.seq,
                delivery.stored_ms,
                &delivery.payload,
            )
            .await?;
        delivery.ack().await?;
        let took = began.elapsed().as_secs_f64();
        metrics.message_processed(Destination::Submissions, took);
        tracing::debug!(seq = delivery.seq, outcome = outcome.as_str(), "submission");
        Ok(())
    }

    async fn judge_message(
        &self,
        subject: &str,
        headers: &HeaderMap,
        seq: u64,
        stored_ms: u64,
        body: &Bytes,
    ) -> Result<Outcome, Trouble> {
        let names = &self.shared.store.nats.names;
        let arrival = Arrival::read(names, subject, headers, seq, stored_ms);
        let span = tracing::info_span!(
            "accept fl.submit",
            otel.kind = "consumer",
            trace_id = field::Empty,
            tenant = field::Empty,
            job = field::Empty,
            kind = field::Empty,
            priority = field::Empty,
            outcome = field::Empty,
            reason = field::Empty,
        );
        let trace = traced::place(&span, &arrival);
        traced::describe(&span, &arrival, body.len());
        let submitted = Submitted {
            arrival: &arrival,
            headers,
            raw_headers: None,
            body,
            trace: trace.clone(),
        };
        let work = async {
            let outcome = self.judge(&submitted).await?;
            Span::current().record("outcome", outcome.as_str());
            Ok(outcome)
        };
        let outcome = work.instrument(span.clone()).await;
        // Nothing of it is held back any more, then it is decided whether to send it.
        drop(span);
        if matches!(outcome, Ok(Outcome::Refused)) {
            spans::tell(&trace, Fate::Failed);
        }
        outcome
    }

    async fn judge(&self, submitted: &Submitted<'_>) -> Result<Outcome, Trouble> {
        let decision = self.decide(submitted).await?;
        let store = &self.shared.store;
        let span = Span::current();
        match decision {
            Decision::Accept(accept) => {
                span.record("tenant", accept.tenant.as_str());
                span.record("job", accept.headers.job.as_str());
                span.record("kind", accept.headers.kind.as_str());
                span.record("priority", accept.priority.as_str());
                Box::pin(store.accept(submitted, *accept)).await
            }
            Decision::Split(split) => {
                span.record("tenant", split.accept.tenant.as_str());
                span.record("job", split.accept.headers.job.as_str());
                span.record("kind", split.accept.headers.kind.as_str());
                span.record("priority", split.accept.priority.as_str());
                Box::pin(self.begin(submitted, *split)).await
            }
            Decision::Refuse(refuse) => {
                span.record("tenant", refuse.letter.tenant.as_deref());
                span.record("job", refuse.letter.job.as_str());
                span.record("reason", refuse.letter.failure.reason.as_str());
                spans::fail(&span, refuse.letter.failure.reason.as_str());
                Box::pin(store.bury(submitted, *refuse)).await?;
                Ok(Outcome::Refused)
            }
        }
    }

    async fn decide(&self, submitted: &Submitted<'_>) -> Result<Decision, Trouble> {
        match submitted.arrival.claim(submitted.body.len()) {
            Claim::None => self.weigh(submitted, submitted.body.clone()).await,
            Claim::Refused(failure) => Ok(self.unusable(submitted, failure)),
            Claim::Object(name) => {
                let permit = self.shared.objects.acquire().await;
                let _permit = permit.expect("this semaphore is never closed");
                match self.fetch(name).await? {
                    Ok(body) => self.weigh(submitted, body).await,
                    Err(failure) => Ok(self.unusable(submitted, failure)),
                }
            }
        }
    }

    /// Reads a body from its object. The inner error is for good, the outer one for now.
    async fn fetch(&self, name: &str) -> Result<Result<Bytes, Failure>, Trouble> {
        let store = &self.shared.store;
        let refused = |reason, message: String, fix: &str| {
            Ok(Err(Failure::new(reason, message)
                .field(header::CLAIM)
                .fix(fix)))
        };
        match store.payloads.get(name, store.body_bytes_max).await {
            Ok(body) => Ok(Ok(body)),
            Err(error @ PayloadError::TooLarge { .. }) => refused(
                DeadReason::Oversize,
                error.to_string(),
                "shorten it, or raise producer.body_bytes_max",
            ),
            Err(error @ (PayloadError::Missing { .. } | PayloadError::Damaged { .. })) => refused(
                DeadReason::InvalidJob,
                error.to_string(),
                "store the whole object before publishing its name",
            ),
            Err(error @ PayloadError::Store { .. }) => Err(error.into()),
        }
    }

    fn unusable(&self, submitted: &Submitted<'_>, failure: Failure) -> Decision {
        let Submitted { arrival, trace, .. } = submitted;
        let body = Body::Unusable(submitted.body, failure);
        self.shared.intake.decide(arrival, body, trace, now_ms())
    }

    async fn weigh(&self, submitted: &Submitted<'_>, body: Bytes) -> Result<Decision, Trouble> {
        let Submitted { arrival, trace, .. } = submitted;
        let intake = self.shared.intake.clone();
        if body.len() < LARGE_BYTES {
            return Ok(intake.decide(arrival, Body::Here(&body), trace, now_ms()));
        }
        let (arrival, trace) = ((*arrival).clone(), trace.clone());
        let decide = move || intake.decide(&arrival, Body::Here(&body), &trace, now_ms());
        match tokio::task::spawn_blocking(decide).await {
            Ok(decision) => Ok(decision),
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(Trouble::CutOff),
            },
        }
    }
}

/// Gives a submission back to the stream, to be delivered again after `delay`.
async fn hand_back(delivery: &Delivery, delay: Duration) {
    if let Err(error) = delivery.nak(delay).await {
        tracing::debug!(%error, "cannot hand back a submission; the ack wait will");
    }
}

/// What `work` gives, or the message of its panic.
async fn contained<T>(work: impl Future<Output = T>) -> Result<T, String> {
    let ended = AssertUnwindSafe(work).catch_unwind().await;
    ended.map_err(|panic| {
        let text = panic.downcast_ref::<&'static str>().copied();
        text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("a value that is not text")
            .to_owned()
    })
}

/// Unix milliseconds of this machine's clock.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Keeps the readiness condition in step with the connection until the process drains.
///
/// # Errors
/// If the client itself has ended. It does not come back, so the process must not stay.
pub(crate) async fn watch_connection(
    nats: Nats,
    check: Check,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let connections = nats.connections();
    let mut look = tokio::time::interval(LOOK_EVERY);
    loop {
        tokio::select! {
            () = shutdown.draining().cancelled() => return Ok(()),
            _ = look.tick() => {}
        }
        if connections.has_changed().is_err() {
            check.set(false);
            bail!("the NATS client has ended");
        }
        check.set(nats.is_connected());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_ends_the_work_and_not_the_task() {
        assert_eq!(contained(async { 1 }).await, Ok(1));
        let number = 7;
        let ended = contained(async move {
            assert_eq!(number, 8, "a bug");
        });
        assert!(ended.await.unwrap_err().contains("a bug"));
        let ended = contained(async { panic!("plain") });
        assert_eq!(ended.await, Err::<(), _>("plain".to_owned()));
    }
}
