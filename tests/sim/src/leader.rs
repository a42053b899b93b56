//! A scheduler process: stands by, leads, learns the picture, grants. As its shell does it.

use std::collections::BTreeMap;

use fairlane_core::demotion::DAY;
use fairlane_core::election::{self, Election, Seen};
use fairlane_core::fairness::Window;
use fairlane_core::invariants::{Broken, bounded};
use fairlane_core::scheduler::{Credit, Effect, Event, JobSeen, Policy, PutAside, Scheduler};
use fairlane_core::{JobSeq, Millis, Priority, TenantId, Term, WorkerId};

use crate::bucket::Value;
use crate::worker::WorkerMsg;
use crate::world::{Action, Granted, World};

/// A scheduler process.
#[derive(Debug)]
pub(crate) struct Leader {
    pub(crate) alive: bool,
    pub(crate) paused_until: Millis,
    /// How much the clock its core is told differs from the true one.
    pub(crate) skew: i64,
    election: Election,
    tick_at: Option<Millis>,
    control_told_at: Millis,
    pub(crate) run: Option<Run>,
}

/// A term.
#[derive(Debug)]
pub(crate) struct Run {
    term: Term,
    core: Scheduler,
    stage: Stage,
    lease_told_at: Millis,
    job_told_at: Millis,
    broken: bool,
    /// What the watch has reported: the highest revision, and the keys it holds to be live.
    last: u64,
    live: BTreeMap<JobSeq, u64>,
    deadline_at: Option<Millis>,
    leading_since: Millis,
    books_saved_at: Millis,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Begun,
    /// The leases are known and watched.
    Leases,
    /// So are the jobs.
    Leading,
}

/// What a scheduler process is told.
#[expect(
    clippy::large_enum_variant,
    reason = "they wait in one queue, in the order they were made"
)]
#[derive(Debug)]
pub(crate) enum LeaderMsg {
    Election(election::Event),
    /// The timer that was set for this time.
    ElectionTick(Millis),
    /// The answer to a read of the leader key.
    Read,
    LearnLeases(Term),
    LearnJobs(Term),
    /// A change of a lease, as the watch reports it.
    Lease(Term, Box<Event>, bool),
    Job(Term, Box<JobSeen>),
    Ready {
        worker: WorkerId,
        slots: u32,
        draining: bool,
    },
    /// The fate of a write, and the credit that is now to be sent.
    Outcome {
        term: Term,
        event: Event,
        send: Option<Box<(Credit, u64)>>,
    },
    /// The timer that was set for this time.
    Deadline(Term, Millis),
}

fn seq_of(event: &Event) -> JobSeq {
    match event {
        Event::Job(seen) => seen.seq,
        Event::Held { credit, .. } => credit.seq,
        Event::Settled { settlement, .. } => settlement.credit.seq,
        Event::LeaseEnded { seq, .. }
        | Event::GrantStored { seq, .. }
        | Event::GrantRefused { seq }
        | Event::GrantFailed { seq }
        | Event::PutAside { seq }
        | Event::PutAsideFailed { seq }
        | Event::Moved { seq, .. }
        | Event::CalledOff { seq }
        | Event::Kept { seq } => *seq,
        Event::Worker { .. }
        | Event::Complete { .. }
        | Event::Policy { .. }
        | Event::Spent { .. }
        | Event::Tick => JobSeq(0),
    }
}

fn revision_of(event: &Event) -> u64 {
    match event {
        Event::Held { revision, .. }
        | Event::Settled { revision, .. }
        | Event::LeaseEnded { revision, .. } => *revision,
        Event::Job(_)
        | Event::GrantStored { .. }
        | Event::GrantRefused { .. }
        | Event::GrantFailed { .. }
        | Event::Worker { .. }
        | Event::PutAside { .. }
        | Event::PutAsideFailed { .. }
        | Event::Moved { .. }
        | Event::CalledOff { .. }
        | Event::Kept { .. }
        | Event::Complete { .. }
        | Event::Policy { .. }
        | Event::Spent { .. }
        | Event::Tick => 0,
    }
}

impl Leader {
    /// What its core says about a job that waits.
    pub(crate) fn why(&mut self, seq: JobSeq, now: Millis) -> String {
        let local = self.local(now);
        match &mut self.run {
            Some(run) => format!(
                "{:?}, deadline {:?}",
                run.core.why(seq, local).why,
                run.core.next_deadline()
            ),
            None => "nobody leads".to_owned(),
        }
    }

    /// Whether a worker with free slots may get nothing, because a job has to run alone.
    pub(crate) fn keeps_a_worker(&self) -> bool {
        let run = self.run.as_ref();
        run.is_some_and(|run| run.core.keeps_a_worker())
    }

    /// The minutes it measured.
    pub(crate) fn fairness(&mut self, now: Millis) -> Vec<Window> {
        let local = self.local(now);
        let run = self.run.as_mut();
        run.map_or(Vec::new(), |run| {
            run.core.fairness(local).history().cloned().collect()
        })
    }

    /// Credits its core counts as held.
    pub(crate) fn live(&self) -> Option<usize> {
        Some(self.run.as_ref()?.core.live())
    }

    /// How much its core remembers of jobs, leases and credits.
    pub(crate) fn remembered(&self) -> Option<usize> {
        let core = &self.run.as_ref()?.core;
        Some(core.live() + core.known() + core.leases())
    }

    /// When all is idle, nothing is remembered.
    pub(crate) fn check_forgotten(&self) -> Result<(), Broken> {
        let Some(run) = &self.run else { return Ok(()) };
        let core = &run.core;
        bounded("credits held live", core.live(), 0)?;
        bounded("jobs remembered", core.known(), 0)?;
        bounded("jobs in line", core.queued().iter().sum(), 0)?;
        bounded("leases remembered", core.leases(), 0)
    }

    fn local(&self, now: Millis) -> Millis {
        now.saturating_add_signed(self.skew)
    }
}

impl World {
    pub(crate) fn start_leader(&mut self) {
        let index = self.leaders.len();
        self.leaders.push(Leader {
            alive: true,
            paused_until: 0,
            skew: 0,
            election: Election::new(self.plan.times, self.now),
            tick_at: None,
            control_told_at: 0,
            run: None,
        });
        self.after(0, Action::Leader(index, LeaderMsg::Read));
    }

    /// The leader resigns, and puts the lease down.
    /// The ledger has a call of a tenant; whoever leads reads it.
    pub(crate) fn book(&mut self, tenant: TenantId, input_tokens: u64) {
        let day = self.now / DAY;
        self.ledger.push((tenant.clone(), day, input_tokens));
        for index in 0..self.leaders.len() {
            let Some(run) = &self.leaders[index].run else {
                continue;
            };
            if run.stage < Stage::Leading {
                continue;
            }
            let term = run.term;
            let event = Event::Spent {
                tenant: tenant.clone(),
                day,
                input_tokens,
            };
            let delay = self.delay();
            let send = None;
            self.after(
                delay,
                Action::Leader(index, LeaderMsg::Outcome { term, event, send }),
            );
        }
    }

    /// The watch of the tenants shows whoever leads a change.
    pub(crate) fn new_policy(&mut self, tenant: TenantId, policy: Policy) {
        let Some(index) = self.leading() else { return };
        let local = self.leaders[index].local(self.now);
        if let Some(run) = &mut self.leaders[index].run {
            run.core.handle(local, Event::Policy { tenant, policy });
        }
    }

    pub(crate) fn hand_over(&mut self, index: usize) {
        let leader = &mut self.leaders[index];
        let local = leader.local(self.now);
        if let Some(mut run) = leader.run.take() {
            let (term, books) = (run.term, Box::new(run.core.snapshot(local)));
            self.after(0, Action::Books { term, books });
        }
        let leader = &mut self.leaders[index];
        if let Some(revision) = leader.election.resign(self.now)
            && self.control.revision == revision
        {
            self.control.revision += 1;
            self.control.held = false;
            self.tell_control();
        }
    }

    /// Whether somebody leads, has learned all, may act, and has had a moment to do so.
    pub(crate) fn leader_is_steady(&self) -> bool {
        let Some(index) = self.leading() else {
            return false;
        };
        let leader = &self.leaders[index];
        leader.run.as_ref().is_some_and(|run| {
            run.stage == Stage::Leading && !run.broken && self.now > run.leading_since + 1_100
        }) && leader.election.leads(self.now).is_some()
            && leader.paused_until <= self.now
    }

    // ---- the leader key -------------------------------------------------------------------

    pub(crate) fn store_control(&mut self, index: usize, expected: u64, sent: Millis) {
        let event = if self.control.revision == expected {
            self.control.revision += 1;
            self.control.held = true;
            let revision = self.control.revision;
            self.after(self.plan.times.ttl, Action::ControlExpires { revision });
            self.tell_control();
            election::Event::Stored { sent, revision }
        } else {
            election::Event::Refused
        };
        let delay = self.delay();
        self.after(delay, Action::Leader(index, LeaderMsg::Election(event)));
    }

    pub(crate) fn tell_control(&mut self) {
        let seen = Seen {
            revision: self.control.revision,
            held: self.control.held,
        };
        for index in 0..self.leaders.len() {
            if !self.leaders[index].alive {
                continue;
            }
            let delay = self.delay();
            let at = (self.now + delay).max(self.leaders[index].control_told_at);
            self.leaders[index].control_told_at = at;
            let event = election::Event::Seen(seen);
            self.at(at, Action::Leader(index, LeaderMsg::Election(event)));
        }
    }

    // ---- watches --------------------------------------------------------------------------

    pub(crate) fn tell_lease(&mut self, seq: JobSeq) {
        let Some(event) = self.bucket.event(seq) else {
            return;
        };
        for index in 0..self.leaders.len() {
            let delay = self.delay();
            let leader = &mut self.leaders[index];
            let Some(run) = &mut leader.run else { continue };
            if !leader.alive || run.stage < Stage::Leases || run.broken {
                continue;
            }
            let at = (self.now + delay).max(run.lease_told_at);
            run.lease_told_at = at;
            let term = run.term;
            let message = |again| LeaderMsg::Lease(term, Box::new(event.clone()), again);
            self.at(at, Action::Leader(index, message(false)));
            if self.rng.chance(self.plan.network.leases_twice) {
                let later = at + self.rng.range(1, 20_000);
                self.at(later, Action::Leader(index, message(true)));
            }
        }
    }

    pub(crate) fn show_job(&mut self, seq: JobSeq) {
        let seen = self.seen(seq);
        let twice = self.rng.chance(self.plan.network.jobs_twice);
        for index in 0..self.leaders.len() {
            let delay = self.delay();
            let leader = &mut self.leaders[index];
            let Some(run) = &mut leader.run else { continue };
            if !leader.alive || run.stage < Stage::Leading {
                continue;
            }
            let at = (self.now + delay).max(run.job_told_at);
            run.job_told_at = at;
            let term = run.term;
            let message = LeaderMsg::Job(term, Box::new(seen.clone()));
            self.at(at, Action::Leader(index, message));
            if twice {
                let later = self.rng.range(0, 5_000);
                let message = LeaderMsg::Job(term, Box::new(seen.clone()));
                self.at(at + later, Action::Leader(index, message));
            }
        }
    }

    pub(crate) fn break_watch(&mut self, index: usize, length: Millis) {
        let Some(run) = &mut self.leaders[index].run else {
            return;
        };
        if run.stage < Stage::Leases || run.broken {
            return;
        }
        run.broken = true;
        let term = run.term;
        self.after(
            length,
            Action::RepairWatch {
                leader: index,
                term,
            },
        );
    }

    /// The watch reads the whole bucket again, and reports as ended what it knew and misses.
    pub(crate) fn repair_watch(&mut self, index: usize, term: Term) {
        let mut events = Vec::new();
        for (_, seq, _) in self.bucket.all() {
            events.extend(self.bucket.event(seq));
        }
        let replay = self.rng.chance(300);
        let Some(run) = &mut self.leaders[index].run else {
            return;
        };
        if run.term != term {
            return;
        }
        run.broken = false;
        run.leading_since = self.now;
        let at = (self.now + 1).max(run.lease_told_at);
        run.lease_told_at = at;
        let gone: Vec<_> = run
            .live
            .iter()
            .filter(|&(&seq, _)| !self.bucket.is_live(seq))
            .map(|(&seq, &revision)| (revision, seq))
            .collect();
        run.live.retain(|&seq, _| self.bucket.is_live(seq));
        for event in events {
            let message = LeaderMsg::Lease(term, Box::new(event), replay);
            self.at(at, Action::Leader(index, message));
        }
        let mut gone = gone;
        gone.sort_unstable();
        for (revision, seq) in gone {
            if self.bucket.event(seq).is_none() {
                let event = Event::LeaseEnded { seq, revision };
                let message = LeaderMsg::Lease(term, Box::new(event), true);
                self.at(at, Action::Leader(index, message));
            }
        }
    }

    // ---- taking in ------------------------------------------------------------------------

    pub(crate) fn leader_takes(&mut self, index: usize, message: LeaderMsg) {
        match message {
            LeaderMsg::Election(event) => self.elect(index, event),
            LeaderMsg::ElectionTick(at) => {
                if self.leaders[index].tick_at == Some(at) {
                    self.leaders[index].tick_at = None;
                    self.elect(index, election::Event::Tick);
                }
            }
            LeaderMsg::Read => {
                let seen = Seen {
                    revision: self.control.revision,
                    held: self.control.held,
                };
                self.elect(index, election::Event::Seen(seen));
            }
            LeaderMsg::LearnLeases(term) => self.learn_leases(index, term),
            LeaderMsg::LearnJobs(term) => self.learn_jobs(index, term),
            LeaderMsg::Lease(term, event, raw) => {
                if let Some(run) = self.run_of(index, term) {
                    if !run.note(&event) && !raw {
                        return;
                    }
                    self.apply(index, *event);
                }
            }
            LeaderMsg::Job(term, seen) => {
                if self.run_of(index, term).is_some() {
                    self.apply(index, Event::Job(*seen));
                }
            }
            LeaderMsg::Ready {
                worker,
                slots,
                draining,
            } => {
                if self.leaders[index].run.is_some() {
                    self.apply(
                        index,
                        Event::Worker {
                            worker,
                            slots,
                            draining,
                        },
                    );
                }
            }
            LeaderMsg::Outcome { term, event, send } => {
                if let Some(sent) = send {
                    self.send_grant(sent.0, sent.1);
                }
                if self.run_of(index, term).is_some() {
                    self.apply(index, event);
                }
            }
            LeaderMsg::Deadline(term, at) => {
                if let Some(run) = self.run_of(index, term)
                    && run.deadline_at == Some(at)
                {
                    run.deadline_at = None;
                    self.apply(index, Event::Tick);
                }
            }
        }
    }

    fn run_of(&mut self, index: usize, term: Term) -> Option<&mut Run> {
        self.leaders[index]
            .run
            .as_mut()
            .filter(|run| run.term == term)
    }

    fn elect(&mut self, index: usize, event: election::Event) {
        let effects = self.leaders[index].election.handle(self.now, event);
        for effect in effects {
            match effect {
                election::Effect::Acquire { expected }
                | election::Effect::Renew { expected, .. } => {
                    let (delay, sent) = (self.delay(), self.now);
                    self.after(
                        delay,
                        Action::Control {
                            leader: index,
                            expected,
                            sent,
                        },
                    );
                }
                election::Effect::Lead { term } => self.begin_term(index, term),
                election::Effect::StepDown => self.leaders[index].run = None,
                election::Effect::Read => {
                    let delay = 2 * self.delay();
                    self.after(delay, Action::Leader(index, LeaderMsg::Read));
                }
            }
        }
        let leader = &mut self.leaders[index];
        let at = leader.election.next_deadline().max(self.now + 1);
        if leader.tick_at.is_none_or(|known| known > at) {
            leader.tick_at = Some(at);
            self.at(at, Action::Leader(index, LeaderMsg::ElectionTick(at)));
        }
        self.save_books(index);
        // Trust may have come back.
        self.dispatch(index);
    }

    /// Every second, while the lease is trusted.
    fn save_books(&mut self, index: usize) {
        let now = self.now;
        let leader = &mut self.leaders[index];
        let local = leader.local(now);
        if leader.election.leads(now).is_none() {
            return;
        }
        let Some(run) = leader.run.as_mut() else {
            return;
        };
        if run.stage < Stage::Leading || now < run.books_saved_at + 1_000 {
            return;
        }
        run.books_saved_at = now;
        let (term, books) = (run.term, Box::new(run.core.snapshot(local)));
        let delay = self.delay();
        self.after(delay, Action::Books { term, books });
    }

    fn begin_term(&mut self, index: usize, term: Term) {
        self.note(None, || format!("leader {index} begins {term:?}"));
        self.tally.terms += 1;
        let local = self.leaders[index].local(self.now);
        let mut core = Scheduler::new(self.plan.config.clone(), term, local);
        // Claimed by the newer term, so that an older leader's are refused from now on.
        let saved = self.control.books.clone().filter(|_| self.plan.keeps_books);
        if let Some((_, books)) = saved {
            self.control.books = Some((term, books.clone()));
            core.restore(books);
        }
        self.leaders[index].run = Some(Run {
            term,
            core,
            stage: Stage::Begun,
            lease_told_at: self.now,
            job_told_at: self.now,
            broken: false,
            last: 0,
            live: BTreeMap::new(),
            deadline_at: None,
            leading_since: self.now,
            books_saved_at: self.now,
        });
        let delay = 2 * self.delay();
        self.after(delay, Action::Leader(index, LeaderMsg::LearnLeases(term)));
    }

    fn learn_leases(&mut self, index: usize, term: Term) {
        let events: Vec<_> = self
            .bucket
            .all()
            .into_iter()
            .filter_map(|(_, seq, _)| self.bucket.event(seq))
            .collect();
        let local = self.leaders[index].local(self.now);
        let Some(run) = self.run_of(index, term) else {
            return;
        };
        for event in events {
            run.note(&event);
            run.core.handle(local, event);
        }
        run.stage = Stage::Leases;
        run.lease_told_at = run.lease_told_at.max(local);
        let delay = 2 * self.delay();
        self.after(delay, Action::Leader(index, LeaderMsg::LearnJobs(term)));
    }

    fn learn_jobs(&mut self, index: usize, term: Term) {
        let jobs: Vec<_> = self.stream.keys().map(|&seq| self.seen(seq)).collect();
        let (now, local) = (self.now, self.leaders[index].local(self.now));
        let ledger = self.ledger.clone();
        let Some(run) = self.run_of(index, term) else {
            return;
        };
        for job in jobs {
            run.core.handle(local, Event::Job(job));
        }
        for (tenant, day, input_tokens) in ledger {
            let event = Event::Spent {
                tenant,
                day,
                input_tokens,
            };
            run.core.handle(local, event);
        }
        for priority in Priority::ALL {
            run.core.handle(local, Event::Complete { priority });
        }
        run.stage = Stage::Leading;
        run.leading_since = now;
        for worker in 0..self.workers.len() {
            let delay = self.delay();
            self.after(delay, Action::Worker(worker, WorkerMsg::Called));
        }
        self.dispatch(index);
    }

    fn apply(&mut self, index: usize, event: Event) {
        if self.watched.is_some() {
            let seq = seq_of(&event);
            self.note(Some(seq), || format!("leader {index} hears {event:?}"));
        }
        let local = self.leaders[index].local(self.now);
        if let Some(run) = &mut self.leaders[index].run {
            run.core.handle(local, event);
        }
        self.dispatch(index);
    }

    fn dispatch(&mut self, index: usize) {
        let leader = &mut self.leaders[index];
        let local = leader.local(self.now);
        if self.now >= leader.election.trusted_until() {
            return;
        }
        let Some(run) = leader
            .run
            .as_mut()
            .filter(|run| run.stage == Stage::Leading)
        else {
            return;
        };
        let term = run.term;
        let effects = run.core.dispatch(local);
        let deadline = run.core.next_deadline();
        for effect in effects {
            match effect {
                Effect::Notice(notice) => self.notices.push((self.now, notice)),
                Effect::Grant { credit, expected } => self.begin_grant(index, credit, expected),
                Effect::PutAside { seq, why } => {
                    let delay = 3 * self.delay();
                    self.after(
                        delay,
                        Action::Aside {
                            leader: index,
                            term,
                            seq,
                            why,
                        },
                    );
                }
            }
        }
        let Some(deadline) = deadline else { return };
        let at = (self.now + deadline.saturating_sub(local)).max(self.now + 1);
        if let Some(run) = &mut self.leaders[index].run
            && run.deadline_at.is_none_or(|known| known > at)
        {
            run.deadline_at = Some(at);
            self.at(at, Action::Leader(index, LeaderMsg::Deadline(term, at)));
        }
    }

    // ---- grants ---------------------------------------------------------------------------

    fn begin_grant(&mut self, leader: usize, credit: Credit, expected: u64) {
        self.tally.grants += 1;
        let (term, job) = (credit.term, self.job_of(credit.seq));
        self.grants.push(Granted {
            at: self.now,
            job,
            term,
        });
        let grant = |credit: Credit, silent| Action::Grant {
            leader,
            term,
            credit: Box::new(credit),
            expected,
            silent,
        };
        let seq = credit.seq;
        self.note(Some(seq), || {
            format!("leader {leader} grants over {expected}: {credit:?}")
        });
        let delay = self.delay();
        if !self.rng.chance(self.plan.network.writes_unknown) {
            self.after(delay, grant(credit, false));
            return;
        }
        // Its fate stays unknown to the leader: never stored, stored now, or stored later.
        match self.rng.range(0, 2) {
            0 => {}
            1 => self.after(delay, grant(credit, true)),
            _ => {
                let late = self.rng.range(100, 4_000);
                self.after(late, grant(credit, true));
            }
        }
        let told = delay + self.rng.range(50, 1_000);
        let message = LeaderMsg::Outcome {
            term,
            event: Event::GrantRefused { seq },
            send: None,
        };
        self.after(told, Action::Leader(leader, message));
    }

    pub(crate) fn store_grant(
        &mut self,
        leader: usize,
        term: Term,
        credit: Credit,
        expected: u64,
        silent: bool,
    ) {
        let seq = credit.seq;
        let value = Value::Granted(credit.clone());
        let ttl = self.plan.leases.unstarted;
        let stored = self.write_lease(seq, expected, value, ttl);
        if silent {
            return;
        }
        let (event, send) = match stored {
            Some(revision) => (
                Event::GrantStored { seq, revision },
                Some(Box::new((credit, revision))),
            ),
            None => {
                self.tally.refused += 1;
                (Event::GrantRefused { seq }, None)
            }
        };
        let delay = self.delay();
        self.after(
            delay,
            Action::Leader(leader, LeaderMsg::Outcome { term, event, send }),
        );
    }

    fn send_grant(&mut self, credit: Credit, revision: u64) {
        let Some(worker) = self.worker_index(&credit.worker) else {
            return;
        };
        if self.rng.chance(self.plan.network.grants_lost) {
            return;
        }
        let copies = 1 + usize::from(self.rng.chance(self.plan.network.grants_twice));
        for copy in 0..copies {
            let delay = self.delay()
                + if copy == 0 {
                    0
                } else {
                    self.rng.range(0, 3_000)
                };
            let message = WorkerMsg::Grant(Box::new(credit.clone()), revision);
            self.after(delay, Action::Worker(worker, message));
        }
    }

    /// A leader's own dead letter: letter and record, then the job is deleted.
    pub(crate) fn store_aside(&mut self, leader: usize, term: Term, seq: JobSeq, why: PutAside) {
        let event = if self.rng.chance(self.plan.network.writes_unknown) {
            Event::PutAsideFailed { seq }
        } else {
            if let Some(&job) = self.stream.get(&seq) {
                if self.save(job, false) {
                    self.tally.put_aside += 1;
                    self.jobs[job].aside = Some(why);
                }
                self.delete(seq);
            }
            Event::PutAside { seq }
        };
        let delay = self.delay();
        let message = LeaderMsg::Outcome {
            term,
            event,
            send: None,
        };
        self.after(delay, Action::Leader(leader, message));
    }
}

impl Run {
    /// Notes what the watch reports. False if it was reported before.
    fn note(&mut self, event: &Event) -> bool {
        let revision = revision_of(event);
        if revision <= self.last {
            return false;
        }
        self.last = revision;
        match event {
            Event::LeaseEnded { seq, .. } => {
                self.live.remove(seq);
            }
            Event::Held { credit, .. } => {
                self.live.insert(credit.seq, revision);
            }
            Event::Settled { settlement, .. } => {
                if matches!(
                    settlement.outcome,
                    fairlane_core::scheduler::Outcome::Parked { .. }
                ) {
                    self.live.insert(settlement.credit.seq, revision);
                } else {
                    self.live.remove(&settlement.credit.seq);
                }
            }
            Event::Moved { seq, .. } => {
                self.live.insert(*seq, revision);
            }
            Event::Job(_)
            | Event::CalledOff { .. }
            | Event::Kept { .. }
            | Event::GrantStored { .. }
            | Event::GrantRefused { .. }
            | Event::GrantFailed { .. }
            | Event::Worker { .. }
            | Event::PutAside { .. }
            | Event::PutAsideFailed { .. }
            | Event::Complete { .. }
            | Event::Policy { .. }
            | Event::Spent { .. }
            | Event::Tick => {}
        }
        true
    }
}
