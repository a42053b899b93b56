//! Holding the lease: carries out what the election decides, and runs a term while we lead.
//!
//! The term runs as a task of its own, so that a busy dispatcher never delays a renewal. It learns
//! from [`Trust`] until when it may act, and acts only before that.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fairlane_core::election::{Effect, Election, Event, Seen};
use fairlane_core::{Millis, Term, tell};
use fairlane_nats::{Bucket, Confirmed, Content, Entry, Nats, Revision, WriteError, watch};
use fairlane_runtime::health::Check;
use fairlane_runtime::{Metrics, Shutdown};
use fairlane_wire::lease::Leader;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::sync::watch as latest;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::fairness::Fairness;
use crate::letters;
use crate::options::Options;
use crate::term;
use crate::webhook::Outbox;

/// What leading needs.
pub(crate) struct Context {
    pub(crate) nats: Nats,
    pub(crate) options: Options,
    pub(crate) metrics: Metrics,
    pub(crate) fairness: Fairness,
    pub(crate) letters: letters::Recent,
    pub(crate) outbox: Outbox,
    pub(crate) shutdown: Shutdown,
    pub(crate) connected: Check,
}

/// Time until which the current term may act.
pub(crate) type Trust = latest::Receiver<Millis>;

/// A write that failed is not repeated faster than this: at first, and after many failures in a row.
const WRITE_RETRY_MIN: Duration = Duration::from_millis(50);
const WRITE_RETRY_MAX: Duration = Duration::from_secs(1);

/// How long the given-up lease stays visible.
const RELEASED_KEEP: Duration = Duration::from_secs(60);

/// Changes of leaders that are remembered.
const CHANGES_MAX: usize = 1_000;

/// Stands by and leads in turn until the process is asked to stop.
pub(crate) async fn run(context: Context) -> anyhow::Result<()> {
    let draining = context.shutdown.draining().clone();
    let mut candidate = Candidate::new(context);
    let mut watch = candidate.bucket.watch_keys(candidate.key);
    loop {
        let deadline = candidate.clock.instant(candidate.election.next_deadline());
        let event = tokio::select! {
            () = draining.cancelled() => break,
            event = watch.next() => match event {
                Some(watch::Event::Change(entry)) => {
                    candidate.notice_holder(&entry);
                    Some(Event::Seen(seen(Some(&entry))))
                }
                // Nothing stored: the watch says so by being current.
                Some(watch::Event::Current) => Some(Event::Tick),
                Some(watch::Event::Stale) => None,
                None => break,
            },
            Some(event) = candidate.outcomes.next() => event,
            ended = term_end(&mut candidate.term) => {
                candidate.term = None;
                if let Err(error) = ended {
                    tracing::error!(error = %format!("{error:#}"), "the term failed; giving up the lease");
                    candidate.give_up().await;
                }
                None
            }
            () = tokio::time::sleep_until(deadline) => Some(Event::Tick),
        };
        let connected = candidate.context.nats.is_connected();
        candidate.context.connected.set(connected);
        if let Some(event) = event {
            candidate.apply(event).await;
        }
    }
    candidate.give_up().await;
    Ok(())
}

async fn term_end(term: &mut Option<RunningTerm>) -> anyhow::Result<()> {
    match term {
        None => std::future::pending().await,
        Some(term) => (&mut term.task).await?,
    }
}

struct RunningTerm {
    stop: CancellationToken,
    task: JoinHandle<anyhow::Result<()>>,
    trusted_until: latest::Sender<Millis>,
}

struct Candidate {
    context: Arc<Context>,
    clock: Clock,
    election: Election,
    bucket: Bucket,
    key: &'static str,
    holder: String,
    /// Writes and reads under way: at most one write, and a read.
    outcomes: FuturesUnordered<BoxFuture<'static, Option<Event>>>,
    term: Option<RunningTerm>,
    /// Writes in a row with no clear outcome.
    failures: u32,
    /// Who led last, as far as was seen, and when that changed lately.
    last_holder: Option<String>,
    changes: VecDeque<Millis>,
}

impl Candidate {
    fn new(context: Context) -> Self {
        let clock = Clock::start();
        Self {
            election: Election::new(context.options.times, clock.now()),
            bucket: context.nats.bucket(&context.nats.names.control_bucket()),
            key: context.nats.names.leader_key(),
            holder: format!("scheduler-{:016x}", rand::random::<u64>()),
            outcomes: FuturesUnordered::new(),
            term: None,
            failures: 0,
            last_holder: None,
            changes: VecDeque::new(),
            clock,
            context: Arc::new(context),
        }
    }

    /// Counts changes of leaders, our own turns among them.
    fn notice_holder(&mut self, entry: &Entry) {
        let Some(value) = entry.value() else { return };
        let Ok(leader) = serde_json::from_slice::<Leader>(value) else {
            return;
        };
        let before = self.last_holder.replace(leader.holder);
        if before.is_some() && before != self.last_holder {
            self.changes.push_back(self.clock.now());
            if self.changes.len() > CHANGES_MAX {
                self.changes.pop_front();
            }
        }
    }

    async fn apply(&mut self, event: Event) {
        match event {
            Event::Unknown => self.failures = self.failures.saturating_add(1),
            Event::Stored { .. } | Event::Refused => self.failures = 0,
            Event::Seen(_) | Event::Tick => {}
        }
        let effects = self.election.handle(self.clock.now(), event);
        for effect in effects {
            match effect {
                Effect::Acquire { expected } => self.write(expected, None),
                Effect::Renew { expected, term } => self.write(expected, Some(term)),
                Effect::Read => self.read(),
                Effect::Lead { term } => self.begin(term),
                Effect::StepDown => {
                    tracing::warn!(holder = self.holder, "lost the lease; standing by");
                    self.end_term().await;
                }
            }
        }
        if let Some(term) = &self.term {
            term.trusted_until
                .send_replace(self.election.trusted_until());
        }
    }

    fn write(&mut self, expected: u64, term: Option<Term>) {
        let leader = Leader {
            holder: self.holder.clone(),
            term: term.map(|term| term.0),
            released: false,
        };
        let value = Bytes::from(serde_json::to_vec(&leader).expect("a leader is plain data"));
        let ttl = Duration::from_millis(self.context.options.times.ttl);
        let pause = retry_pause(self.failures);
        let (bucket, key, clock) = (self.bucket.clone(), self.key, self.clock);
        self.outcomes.push(Box::pin(async move {
            let sent = clock.now();
            let expected = Revision(expected);
            match bucket.put_if(key, value.clone(), expected, Some(ttl)).await {
                Ok(revision) => Some(Event::Stored {
                    sent,
                    revision: revision.0,
                }),
                Err(WriteError::Conflict { .. }) => Some(Event::Refused),
                Err(error) => {
                    tracing::warn!(%error, "cannot write the lease");
                    tokio::time::sleep(pause).await;
                    match bucket.confirm(key, &Content::Live(value), expected).await {
                        Ok(Confirmed::Landed(revision)) => Some(Event::Stored {
                            sent,
                            revision: revision.0,
                        }),
                        Ok(Confirmed::Overtaken(_)) => Some(Event::Refused),
                        Ok(Confirmed::Pending) | Err(_) => Some(Event::Unknown),
                    }
                }
            }
        }));
    }

    fn read(&mut self) {
        let (bucket, key) = (self.bucket.clone(), self.key);
        self.outcomes.push(Box::pin(async move {
            match bucket.get(key).await {
                Ok(entry) => Some(Event::Seen(seen(entry.as_ref()))),
                // The watch and the next read will tell.
                Err(error) => {
                    tracing::debug!(%error, "cannot read the lease");
                    None
                }
            }
        }));
    }

    fn begin(&mut self, term: Term) {
        tracing::info!(term = term.0, holder = self.holder, "leading");
        let (trusted_until, trust) = latest::channel(self.election.trusted_until());
        let stop = CancellationToken::new();
        let shell = term::Shell {
            nats: self.context.nats.clone(),
            options: self.context.options.clone(),
            metrics: self.context.metrics.clone(),
            fairness: self.context.fairness.clone(),
            letters: self.context.letters.clone(),
            outbox: self.context.outbox.clone(),
            clock: self.clock,
            trust,
            stop: stop.clone(),
        };
        let task = tokio::spawn(term::run(shell, term));
        self.context.metrics.leads();
        self.context.outbox.leads(true);
        let changes: Vec<Millis> = self.changes.iter().copied().collect();
        if let Some(message) = tell::led(&changes, self.clock.now()) {
            self.context.outbox.tell(message);
        }
        self.term = Some(RunningTerm {
            stop,
            task,
            trusted_until,
        });
    }

    /// Stops granting. What is under way is finished first: its writes are fenced by revision.
    async fn end_term(&mut self) {
        let Some(term) = self.term.take() else { return };
        self.context.metrics.stands_by();
        self.context.outbox.leads(false);
        term.stop.cancel();
        match term.task.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(error = %format!("{error:#}"), "the term failed"),
            Err(error) => tracing::error!(%error, "the term panicked"),
        }
        self.context.fairness.forget();
    }

    /// Ends the term and puts the lease down, so that another takes it at once.
    async fn give_up(&mut self) {
        self.end_term().await;
        // A renewal under way would move the revision.
        while let Some(event) = self.outcomes.next().await {
            if let Some(event @ Event::Stored { .. }) = event {
                self.election.handle(self.clock.now(), event);
            }
        }
        let Some(revision) = self.election.resign(self.clock.now()) else {
            return;
        };
        let put_down = self
            .bucket
            .tombstone_if(self.key, Revision(revision), Bytes::new(), RELEASED_KEEP)
            .await;
        match put_down {
            Ok(_) => tracing::info!(holder = self.holder, "handed over the lease"),
            Err(error) => tracing::warn!(%error, "cannot hand over the lease; it will run out"),
        }
    }
}

/// The pause before a failed write is looked after, which grows with the failures before it: a store
/// that refuses everything is not asked twenty times a second.
fn retry_pause(failures: u32) -> Duration {
    let factor = 2_u32.saturating_pow(failures);
    WRITE_RETRY_MIN.saturating_mul(factor).min(WRITE_RETRY_MAX)
}

fn seen(entry: Option<&Entry>) -> Seen {
    match entry {
        None => Seen {
            revision: 0,
            held: false,
        },
        Some(entry) => Seen {
            revision: entry.revision.0,
            held: entry.value().is_some(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_goes_on_refusing_is_asked_less_often() {
        let pauses = [0, 1, 2, 4, 5, u32::MAX].map(|failures| retry_pause(failures).as_millis());
        assert_eq!(pauses, [50, 100, 200, 800, 1_000, 1_000]);
    }
}
