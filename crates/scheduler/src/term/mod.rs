//! One term of a leader: select, apply, execute.
//!
//! First it learns what is: every lease, then every job, by priority; what is known completely is
//! granted from. The loop waits for whatever comes first, applies everything that has arrived, lets the core decide
//! once, and starts what was decided. Grants are stored before their worker hears of them; many
//! are under way at once, bounded by the workers' slots.

mod ages;
mod answer;
mod autoscale;
mod gauges;
mod grant;
mod ledger;
mod notice;
mod picture;
mod policies;
mod reconcile;
mod silence;
#[cfg(test)]
mod testing;
mod traces;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use fairlane_core::hour::Hour;
use fairlane_core::scheduler::{Credit, Effect, Event, Notice, Scheduler};
use fairlane_core::tell::Teller;
use fairlane_core::{JobSeq, Millis, Priority, Term};
use fairlane_nats::{Bucket, Index, IndexEvent, Nats, Revision, Watch, watch};
use fairlane_runtime::Metrics;
use fairlane_runtime::metrics::Destination;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::aside;
use crate::autoscale::Published;
use crate::books::Books;
use crate::clock::Clock;
use crate::fairness::Fairness;
use crate::lead::Trust;
use crate::letters;
use crate::options::Options;
use ages::Ages;
use grant::Granting;
use picture::{Lanes, taken};
use reconcile::{Answer, Reconcile};
use silence::Silence;
use traces::Traces;

use crate::webhook::Outbox;

/// What a term needs.
pub(crate) struct Shell {
    pub(crate) nats: Nats,
    pub(crate) options: Options,
    pub(crate) metrics: Metrics,
    pub(crate) fairness: Fairness,
    pub(crate) letters: letters::Recent,
    pub(crate) outbox: Outbox,
    pub(crate) clock: Clock,
    pub(crate) trust: Trust,
    pub(crate) stop: CancellationToken,
}

/// Events taken at once: enough to decide seldom under load, few enough to stay responsive.
const BATCH: usize = 512;

/// Jobs put aside at the same time; grants go on beside them.
const ASIDES_MAX: usize = 32;

/// Gauges are set, books are saved and faults are looked for this often.
const SECOND: Duration = Duration::from_secs(1);

/// Jobs that are looked at each time, to find those that stand nowhere: a few milliseconds' worth.
const SEARCHED_MAX: usize = 20_000;

/// Leads until told to stop.
///
/// # Errors
/// The job stream was replaced by another one, or NATS subscriptions failed.
pub(crate) async fn run(shell: Shell, term: Term) -> anyhow::Result<()> {
    let stop = shell.stop.clone();
    let mut leader = tokio::select! {
        () = stop.cancelled() => return Ok(()),
        leader = Leader::learn(shell, term) => leader?,
    };
    let led = leader.lead().await;
    // Let what was begun come to its end; it is fenced by revisions.
    while let Some(event) = leader.outcomes.next().await {
        leader.apply(event);
    }
    leader.close_books().await;
    led
}

struct Leader {
    shell: Shell,
    core: Scheduler,
    credits: Bucket,
    leases: Watch,
    policies: Watch,
    lanes: Lanes,
    /// Read as soon as all jobs are known.
    ledger: Option<Index>,
    hour: Hour,
    teller: Teller,
    reconcile: Reconcile,
    ages: Ages,
    silence: Silence,
    traces: Traces,
    /// How far the search for stranded jobs has come.
    searched: Option<JobSeq>,
    ready: async_nats::Subscriber,
    questions: async_nats::Subscriber,
    cancels: async_nats::Subscriber,
    outcomes: FuturesUnordered<BoxFuture<'static, Event>>,
    /// Turns of jobs that are put aside: thousands may miss their deadline at once.
    asides: Arc<Semaphore>,
    /// The books, unless they are being saved.
    books: Option<Books>,
    saving: Option<BoxFuture<'static, Books>>,
    autoscale: autoscale::Publisher,
    /// When this term began to learn.
    began_at: Millis,
    has_granted: bool,
}

/// What the loop woke up for.
enum Woken {
    Stop,
    Leases(Vec<watch::Event>),
    Jobs(Priority, Vec<IndexEvent>),
    Policies(Vec<watch::Event>),
    Ledger(Vec<IndexEvent>),
    Reconcile(Answer),
    Ready(async_nats::Message),
    Question(async_nats::Message),
    Cancel(async_nats::Message),
    Outcome(Event),
    Deadline,
    Saved(Books),
    Published(Published),
    Second,
}

impl Leader {
    /// Reads what holds for tenants and all leases, and asks the workers to announce themselves. The jobs
    /// follow while it leads.
    async fn learn(shell: Shell, term: Term) -> anyhow::Result<Self> {
        let nats = shell.nats.clone();
        let mut core = Scheduler::new(shell.options.config.clone(), term, shell.clock.now());
        let (books, snapshot) = Books::open(&nats, term, shell.clock.now()).await;
        if let Some(snapshot) = snapshot {
            core.restore(snapshot);
        }
        let autoscale =
            autoscale::Publisher::open(&nats, shell.options.autoscale, term, shell.clock.now())
                .await;
        let ready = nats.client.subscribe(nats.names.ready_subject()).await;
        let questions = nats.client.subscribe(nats.names.why_subject()).await;
        let cancels = nats.client.subscribe(nats.names.cancel_subject()).await;
        let credits = nats.bucket(&nats.names.credits_bucket());
        let mut leader = Self {
            leases: credits.watch(),
            policies: nats.bucket(&nats.names.tenants_bucket()).watch(),
            lanes: Lanes::new(&nats),
            ledger: None,
            hour: Hour::default(),
            teller: Teller::default(),
            reconcile: Reconcile::new(),
            ages: Ages::default(),
            silence: Silence::default(),
            traces: Traces::default(),
            searched: None,
            ready: ready.context("cannot listen for workers")?,
            questions: questions.context("cannot listen for questions")?,
            cancels: cancels.context("cannot listen for jobs that are called off")?,
            outcomes: FuturesUnordered::new(),
            asides: Arc::new(Semaphore::new(ASIDES_MAX)),
            books: Some(books),
            saving: None,
            autoscale,
            began_at: shell.clock.now(),
            has_granted: false,
            core,
            credits,
            shell,
        };
        leader.learn_policies().await?;
        leader.learn_leases().await?;
        leader.lanes.open(Priority::Critical);
        let call = nats
            .client
            .publish(nats.names.call_subject(), Default::default())
            .await;
        call.context("cannot call the workers")?;
        Ok(leader)
    }

    async fn lead(&mut self) -> anyhow::Result<()> {
        let mut seconds = tokio::time::interval(SECOND);
        seconds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            self.dispatch();
            match self.select(&mut seconds).await {
                Woken::Stop => return Ok(()),
                Woken::Leases(events) if events.is_empty() => {
                    anyhow::bail!("the watch of the leases ended")
                }
                Woken::Leases(events) => self.apply_leases(events),
                Woken::Jobs(_, events) if events.is_empty() => {
                    anyhow::bail!("an index of the jobs ended")
                }
                Woken::Jobs(priority, events) => self.apply_jobs(priority, events)?,
                Woken::Policies(events) if events.is_empty() => {
                    anyhow::bail!("the watch of the tenants ended")
                }
                Woken::Policies(events) => self.apply_policies(events),
                Woken::Ledger(events) if events.is_empty() => {
                    anyhow::bail!("the index of the ledger ended")
                }
                Woken::Ledger(events) => self.apply_ledger(events),
                Woken::Reconcile(answer) => self.reconcile(answer),
                Woken::Ready(message) => self.apply_ready(&message),
                Woken::Question(message) => self.answer(&message).await,
                Woken::Cancel(message) => self.apply_cancel(&message).await,
                Woken::Outcome(event) => self.apply(event),
                Woken::Deadline => self.apply(Event::Tick),
                Woken::Saved(books) => {
                    self.books = Some(books);
                    self.saving = None;
                }
                Woken::Published(published) => self.autoscale.published(published),
                Woken::Second => self.look_around(),
            }
        }
    }

    async fn select(&mut self, seconds: &mut tokio::time::Interval) -> Woken {
        // Without trust in the lease nothing can be granted: wait for it instead of for a time.
        let trusted = self.shell.clock.now() < *self.shell.trust.borrow();
        let deadline = self.core.next_deadline().filter(|_| trusted);
        let deadline = deadline.map(|at| self.shell.clock.instant(at));
        let mut leases = Vec::new();
        let mut policies = Vec::new();
        tokio::select! {
            biased;
            () = self.shell.stop.cancelled() => Woken::Stop,
            Some(message) = self.ready.next() => Woken::Ready(message),
            Some(message) = self.questions.next() => Woken::Question(message),
            Some(message) = self.cancels.next() => Woken::Cancel(message),
            Some(event) = self.outcomes.next() => Woken::Outcome(event),
            // Before what may always have more to read.
            _ = seconds.tick() => Woken::Second,
            _ = self.leases.next_many(&mut leases, BATCH) => Woken::Leases(leases),
            _ = self.policies.next_many(&mut policies, BATCH) => Woken::Policies(policies),
            (priority, events) = self.lanes.next() => Woken::Jobs(priority, events),
            events = taken(&mut self.ledger) => Woken::Ledger(events),
            answer = self.reconcile.next() => Woken::Reconcile(answer),
            books = saved(&mut self.saving) => Woken::Saved(books),
            published = self.autoscale.next() => Woken::Published(published),
            () = wait_until(deadline) => Woken::Deadline,
            Ok(()) = self.shell.trust.changed(), if !trusted => Woken::Deadline,
        }
    }

    fn apply(&mut self, event: Event) {
        let now = self.shell.clock.now();
        self.silence.hear(&event, now);
        self.traces.hear(&event, now);
        self.core.handle(now, event);
    }

    /// What is done every second.
    fn look_around(&mut self) {
        self.set_gauges();
        self.save_books();
        self.tell_autoscale();
        self.look_after_leases();
        let now = self.shell.clock.now();
        let (found, searched) = self.core.find_stranded(self.searched, SEARCHED_MAX, now);
        self.searched = searched;
        if found > 0 {
            tracing::error!(jobs = found, "jobs stood nowhere; they are in line again");
        }
    }

    fn dispatch(&mut self) {
        let now = self.shell.clock.now();
        if now >= *self.shell.trust.borrow_and_update() {
            return;
        }
        for effect in self.core.dispatch(now) {
            match effect {
                Effect::Grant { credit, expected } => {
                    self.granted(&credit, now);
                    let subject = self.shell.nats.names.credit_subject(&credit.worker);
                    let grant = Granting {
                        span: self.traces.granted(&credit, &subject, now),
                        subject,
                        nats: self.shell.nats.clone(),
                        credits: self.credits.clone(),
                        ttl: self.shell.options.unstarted_ttl,
                    };
                    self.outcomes
                        .push(Box::pin(grant.run(credit, Revision(expected))));
                }
                Effect::Notice(notice) => {
                    notice::tell(&notice, now);
                    self.tell_people(&notice, now);
                    if let Notice::Throttled { tenant, .. } = &notice {
                        self.throttled(tenant.as_ref());
                    }
                }
                Effect::PutAside { seq, why } => {
                    let nats = self.shell.nats.clone();
                    let keep = self.shell.options.results_keep;
                    let clock = self.shell.clock;
                    let metrics = self.shell.metrics.clone();
                    let turns = self.asides.clone();
                    self.outcomes.push(Box::pin(async move {
                        // Never closed; without a turn it would only be less patient.
                        let _turn = turns.acquire_owned().await;
                        match aside::put_aside(&nats, &metrics, keep, seq, why, clock.now()).await {
                            Ok(event) => event,
                            Err(error) => {
                                let error = format!("{error:#}");
                                tracing::warn!(seq = seq.0, error, "cannot put a job aside yet");
                                Event::PutAsideFailed { seq }
                            }
                        }
                    }));
                }
            }
        }
    }

    fn granted(&mut self, credit: &Credit, now: Millis) {
        let metrics = &self.shell.metrics;
        metrics.message_sent(Destination::Credits);
        metrics.leading().credit_granted(
            credit.tenant.as_str(),
            gauges::label(credit.priority),
            gauges::units(credit.cost),
            credit.delivery,
        );
        if self.core.is_fallback(credit) {
            metrics.leading().fallback_granted();
        }
        if !std::mem::replace(&mut self.has_granted, true) {
            let took = Duration::from_millis(now.saturating_sub(self.began_at));
            metrics.leading().first_grant(took.as_secs_f64());
            tracing::info!(took_ms = now.saturating_sub(self.began_at), "first grant");
        }
    }

    /// Begins to save the books, unless the last save still runs or the lease is in doubt.
    fn save_books(&mut self) {
        let now = self.shell.clock.now();
        if now >= *self.shell.trust.borrow() {
            return;
        }
        if let Some(books) = self.books.take() {
            self.saving = Some(Box::pin(books.save(self.core.snapshot(now))));
        }
    }

    /// Saves the books for whoever leads next. Harmless if somebody leads already.
    async fn close_books(&mut self) {
        if let Some(saving) = self.saving.take() {
            self.books = Some(saving.await);
        }
        if let Some(books) = self.books.take() {
            books.save(self.core.snapshot(self.shell.clock.now())).await;
        }
    }
}

async fn saved(saving: &mut Option<BoxFuture<'static, Books>>) -> Books {
    match saving {
        Some(saving) => saving.await,
        None => std::future::pending().await,
    }
}

async fn wait_until(deadline: Option<tokio::time::Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
