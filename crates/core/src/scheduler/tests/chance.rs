//! The whole scheduler under chance: made-up worlds in which everything that can happen does.
//!
//! Beside the scheduler stands what it decides on: a bucket of leases with revisions, a stream of
//! jobs, workers that begin, end, die and answer late, stores that refuse, fail and land after all,
//! owners, policies, a clock that leaps and steps back, and leaders that follow one another. After
//! every decision the books must say what the leases say, and every job must stand in exactly one
//! place. In the end all is quiet, and then nothing may be left.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use super::*;
use crate::breaker::Gate;
use crate::scheduler::gates::GateKey;
use crate::scheduler::lanes::Flow;
use crate::scheduler::picture::{Job, LeaseState, Leaving};

/// Worlds per run, unless `FAIRLANE_CHANCE_SEEDS` says otherwise.
const SEEDS: u64 = 200;
const STEPS: usize = 400;

/// splitmix64: a seed means the same world on every machine.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn pick<T: Clone>(&mut self, items: &[T]) -> Option<T> {
        let at = self.below(items.len().max(1) as u64);
        items.get(usize::try_from(at).unwrap()).cloned()
    }

    /// Small, seldom large, and once in a while beyond all reason.
    fn tokens(&mut self) -> Tokens {
        let mut one = || match self.below(200) {
            0 => 1 << 40,
            1..=20 => self.below(50_000),
            _ => self.below(800),
        };
        Tokens {
            input: one(),
            output: one(),
        }
    }
}

/// What the bucket holds of one lease.
#[derive(Debug, Clone)]
enum Value {
    Granted(Credit),
    Running(Credit),
    Parked(Settlement),
    /// A tombstone or a marker: nobody has it.
    Gone,
}

/// A grant on its way to the bucket.
#[derive(Debug, Clone)]
struct Store {
    term: Term,
    credit: Credit,
    expected: u64,
}

struct Model {
    seed: u64,
    rng: Rng,
    scheduler: Scheduler,
    now: Millis,
    revision: u64,
    bucket: BTreeMap<JobSeq, (u64, Value, Event)>,
    stream: BTreeMap<JobSeq, JobSeen>,
    /// Not yet told by the index.
    unseen: BTreeSet<JobSeq>,
    next_seq: u64,
    watch: VecDeque<Event>,
    stores: Vec<Store>,
    asides: Vec<JobSeq>,
    /// What the scheduler will be told in any order.
    outcomes: Vec<Event>,
    books: Option<Snapshot>,
    /// Faults go on.
    wild: bool,
    /// No time passes, and nothing but calls changes the limits: they are compared to the token.
    still: bool,
    /// What ends of deliveries cost that are on their way, by the revision that tells of them.
    ends: BTreeMap<(JobSeq, u64), Charge>,
    /// What those cost that were told.
    spent: BTreeMap<PoolId, [i64; 3]>,
}

/// Requests, input and output tokens that a delivery took from a pool.
type Charge = (PoolId, [i64; 3]);

fn charge(credit: &Credit, used: Option<Tokens>) -> Charge {
    let count = |tokens| i64::try_from(tokens).unwrap();
    let taken = used.map_or([0; 3], |used| [1, count(used.input), count(used.output)]);
    (credit.pool.clone(), taken)
}

fn limits(requests: u64, tokens: u64) -> Limits {
    Limits {
        requests,
        input_tokens: tokens,
        output_tokens: tokens,
    }
}

fn odd_config() -> Config {
    Config {
        limits: [
            ("haiku", limits(600, 200_000)),
            ("sonnet", limits(60_000, 60_000_000)),
            ("opus", limits(0, 0)),
        ]
        .map(|(pool, limits)| (PoolId::parse(pool).unwrap(), limits))
        .into(),
        breaker: breaker::Rules {
            samples_min: 4,
            ..breaker::Rules::default()
        },
        ..config()
    }
}

impl Model {
    fn new(seed: u64) -> Self {
        let mut model = Self {
            seed,
            rng: Rng(seed),
            scheduler: Scheduler::new(odd_config(), Term(1), 1_000_000),
            now: 1_000_000,
            revision: 0,
            bucket: BTreeMap::new(),
            stream: BTreeMap::new(),
            unseen: BTreeSet::new(),
            next_seq: 1,
            watch: VecDeque::new(),
            stores: Vec::new(),
            asides: Vec::new(),
            outcomes: Vec::new(),
            books: None,
            wild: true,
            still: seed.is_multiple_of(4),
            ends: BTreeMap::new(),
            spent: BTreeMap::new(),
        };
        model.complete();
        model
    }

    fn tell(&mut self, event: Event) {
        self.scheduler.handle(self.now, event);
    }

    fn complete(&mut self) {
        for priority in Priority::ALL {
            self.tell(Event::Complete { priority });
        }
    }

    /// Writes a lease, and lets the watch tell of it in its time.
    fn write(&mut self, seq: JobSeq, value: Value, event: impl FnOnce(u64) -> Event) -> u64 {
        self.revision += 1;
        let event = event(self.revision);
        self.bucket
            .insert(seq, (self.revision, value, event.clone()));
        self.watch.push_back(event);
        self.revision
    }

    fn new_job(&mut self) {
        let seq = JobSeq(self.next_seq);
        self.next_seq += 1;
        let (now, rng) = (self.now, &mut self.rng);
        let (model, pool) = rng
            .pick(&[
                ("claude-haiku-4-5", "haiku"),
                ("claude-sonnet-4-6", "sonnet"),
                ("claude-sonnet-4-5", "sonnet"),
                ("claude-opus-4-8", "opus"),
            ])
            .unwrap();
        let fallback = rng.chance(40).then(|| Fallback {
            model: ModelId::parse("claude-haiku-4-5").unwrap(),
            pool: PoolId::parse("haiku").unwrap(),
            tokens: rng.tokens(),
        });
        let seen = JobSeen {
            job: JobId::parse(&format!("job-{}", seq.0)).unwrap(),
            kind: Kind::parse(rng.pick(&["tags", "essay", "sum"]).unwrap()).unwrap(),
            model: ModelId::parse(model).unwrap(),
            pool: PoolId::parse(pool).unwrap(),
            tokens: rng.tokens(),
            fallback,
            not_before: rng.chance(10).then(|| now + rng.below(30_000)),
            deadline: rng.chance(20).then(|| now + rng.below(300_000)),
            ..super::seen(
                seq.0,
                rng.pick(&Priority::ALL).unwrap(),
                rng.pick(&["a", "b", "c", "d"]).unwrap(),
            )
        };
        self.stream.insert(seq, seen.clone());
        if self.rng.chance(10) {
            self.unseen.insert(seq);
        } else {
            self.tell(Event::Job(seen));
        }
    }

    fn worker(&mut self) {
        let worker = WorkerId::parse(self.rng.pick(&["v", "w", "x"]).unwrap()).unwrap();
        let slots = u32::try_from(self.rng.below(12)).unwrap();
        let draining = self.wild && self.rng.chance(20);
        self.tell(Event::Worker {
            worker,
            slots: slots + u32::from(!self.wild),
            draining,
        });
    }

    /// The store answers one write, or does not.
    fn store(&mut self) {
        if self.stores.is_empty() {
            return;
        }
        let at = self.rng.below(self.stores.len() as u64);
        let Store {
            term,
            credit,
            expected,
        } = self.stores.swap_remove(usize::try_from(at).unwrap());
        let seq = credit.seq;
        let fits = match self.bucket.get(&seq) {
            None => expected == 0,
            Some((revision, value, _)) => {
                *revision == expected || (expected == 0 && matches!(value, Value::Gone))
            }
        };
        let fails = self.wild && self.rng.chance(10);
        let lands = fits && (!fails || self.rng.chance(50));
        let mut outcome = if fails {
            Event::GrantFailed { seq }
        } else {
            Event::GrantRefused { seq }
        };
        if lands {
            let revision = self.write(seq, Value::Granted(credit.clone()), |revision| {
                Event::Held {
                    credit,
                    started: false,
                    revision,
                }
            });
            if !fails {
                outcome = Event::GrantStored { seq, revision };
            }
        }
        if term == self.scheduler.term() {
            self.outcomes.push(outcome);
        }
    }

    fn outcome(&mut self) {
        if !self.outcomes.is_empty() {
            let at = self.rng.below(self.outcomes.len() as u64);
            let event = self.outcomes.swap_remove(usize::try_from(at).unwrap());
            self.tell(event);
        }
    }

    fn watched(&mut self) {
        if let Some(event) = self.watch.pop_front() {
            if let Event::Settled { revision, .. } | Event::LeaseEnded { revision, .. } = event
                && let Some((pool, taken)) = self.ends.remove(&(seq_of(&event), revision))
            {
                let spent = self.spent.entry(pool).or_default();
                *spent = std::array::from_fn(|at| spent[at] + taken[at]);
            }
            self.tell(event.clone());
            if self.wild && self.rng.chance(5) {
                self.tell(event);
            }
        }
    }

    /// The watch begins anew: it tells what is, not what was, and of leases that went without a trace.
    fn watch_again(&mut self) {
        self.watch.clear();
        let mut leases: Vec<_> = self.bucket.values().cloned().collect();
        leases.sort_by_key(|(revision, ..)| *revision);
        for (seq, lease) in &self.scheduler.leases {
            if lease.is_in_bucket() && !self.bucket.contains_key(seq) {
                let (seq, revision) = (*seq, lease.revision);
                self.watch.push_back(Event::LeaseEnded { seq, revision });
            }
        }
        self.watch
            .extend(leases.into_iter().map(|(.., event)| event));
    }

    fn aside(&mut self) {
        if self.asides.is_empty() {
            return;
        }
        let at = self.rng.below(self.asides.len() as u64);
        let seq = self.asides.swap_remove(usize::try_from(at).unwrap());
        let event = match self.rng.below(10) {
            0 | 1 if self.wild => Event::PutAsideFailed { seq },
            2 if self.wild => Event::Kept { seq },
            _ => {
                self.stream.remove(&seq);
                if let Some((_, Value::Parked(_), _)) = self.bucket.get(&seq) {
                    self.write(seq, Value::Gone, |revision| Event::LeaseEnded {
                        seq,
                        revision,
                    });
                }
                Event::PutAside { seq }
            }
        };
        self.outcomes.push(event);
    }

    /// Something becomes of one lease.
    fn lease(&mut self) {
        let leases: Vec<JobSeq> = self.bucket.keys().copied().collect();
        let Some(seq) = self.rng.pick(&leases) else {
            return;
        };
        let (revision, value, _) = self.bucket[&seq].clone();
        let dies = self.wild && self.rng.chance(10);
        let lost = match &value {
            Value::Running(credit) => Some(charge(credit, Some(credit.tokens))),
            Value::Granted(_) | Value::Parked(_) | Value::Gone => None,
        };
        match value {
            Value::Granted(_) | Value::Running(_) if dies => {
                if self.outcomes.is_empty() && self.rng.chance(20) {
                    // The watch finds nothing, and tells what it knew.
                    self.bucket.remove(&seq);
                    self.watch.push_back(Event::LeaseEnded { seq, revision });
                    self.ends.extend(lost.map(|lost| ((seq, revision), lost)));
                } else {
                    let revision = self.write(seq, Value::Gone, |revision| Event::LeaseEnded {
                        seq,
                        revision,
                    });
                    self.ends.extend(lost.map(|lost| ((seq, revision), lost)));
                }
            }
            Value::Granted(credit) => {
                self.write(seq, Value::Running(credit.clone()), |revision| {
                    Event::Held {
                        credit,
                        started: true,
                        revision,
                    }
                });
            }
            Value::Running(credit) => self.settle(credit),
            Value::Parked(settlement) => {
                let (Outcome::Parked { until } | Outcome::Asked { until }) = settlement.outcome
                else {
                    panic!("not parked: {settlement:?}")
                };
                if until <= self.now {
                    self.write(seq, Value::Gone, |revision| Event::LeaseEnded {
                        seq,
                        revision,
                    });
                } else if self.wild && self.rng.chance(20) {
                    let until = self.now + self.rng.below(20_000);
                    let moved = Settlement {
                        outcome: Outcome::Parked { until },
                        ..settlement
                    };
                    self.write(seq, Value::Parked(moved), |revision| Event::Moved {
                        seq,
                        until,
                        revision,
                    });
                }
            }
            // Traces go without a word, long after.
            Value::Gone if self.watch.is_empty() && self.outcomes.is_empty() => {
                self.bucket.remove(&seq);
            }
            Value::Gone => {}
        }
    }

    fn settle(&mut self, credit: Credit) {
        let settlement = self.settlement(credit);
        let seq = settlement.credit.seq;
        let value = match settlement.outcome {
            Outcome::Parked { .. } | Outcome::Asked { .. } => Value::Parked(settlement.clone()),
            Outcome::Finished | Outcome::Returned => Value::Gone,
        };
        if settlement.outcome == Outcome::Finished {
            self.stream.remove(&seq);
        }
        let taken = charge(&settlement.credit, settlement.used);
        let revision = self.write(seq, value, |revision| Event::Settled {
            settlement,
            revision,
        });
        self.ends.insert((seq, revision), taken);
    }

    fn settlement(&mut self, credit: Credit) -> Settlement {
        let good = Settlement {
            outcome: Outcome::Finished,
            used: Some(credit.tokens),
            observed: Observation::default(),
            refused: None,
            pause: None,
            sample: Some(Sample::Good),
            credit,
        };
        if !self.wild {
            return good;
        }
        let (now, rng) = (self.now, &mut self.rng);
        let until = now + rng.below(20_000);
        let scopes = [
            Scope::Pool,
            Scope::Account,
            Scope::Model,
            Scope::Kind,
            Scope::Concurrency,
        ];
        let scope = rng.pick(&scopes).unwrap();
        let used = rng.chance(70).then(|| rng.tokens());
        let scope = if self.still { Scope::Model } else { scope };
        let limits_change = |turn| matches!(turn, 4 | 6);
        match rng.below(10) {
            turn if self.still && limits_change(turn) => Settlement { used, ..good },
            0 => Settlement {
                outcome: Outcome::Returned,
                used: None,
                sample: None,
                ..good
            },
            1 => Settlement {
                outcome: Outcome::Asked { until },
                used: None,
                sample: Some(Sample::Bad),
                refused: Some(Refused::Overloaded),
                ..good
            },
            2 | 3 => Settlement {
                outcome: Outcome::Parked { until },
                used: None,
                refused: Some(Refused::Overloaded),
                sample: Some(Sample::Bad),
                ..good
            },
            4 => Settlement {
                outcome: Outcome::Parked { until },
                used: None,
                refused: Some(Refused::RateLimit),
                sample: None,
                pause: Some(Pause {
                    scope: Scope::Pool,
                    until,
                    probe: false,
                }),
                ..good
            },
            5 => Settlement {
                outcome: Outcome::Parked { until },
                used,
                sample: None,
                pause: Some(Pause {
                    scope,
                    until: until + rng.below(20_000),
                    probe: rng.chance(80),
                }),
                ..good
            },
            6 => {
                let seen = |limit, remaining| Some(Observed { limit, remaining });
                Settlement {
                    used,
                    observed: Observation {
                        at: now.saturating_sub(rng.below(5_000)),
                        requests: seen(600, rng.below(600)),
                        input_tokens: seen(100_000, rng.below(100_000)),
                        output_tokens: None,
                    },
                    ..good
                }
            }
            _ => Settlement { used, ..good },
        }
    }

    fn policy(&mut self) {
        let (now, rng) = (self.now, &mut self.rng);
        let policy = Policy {
            weight: Weight(rng.pick(&[0, 1, 1_000, 3_000, u32::MAX]).unwrap()),
            in_flight_max: rng.pick(&[0, 1, 2, 1_000]).unwrap(),
            daily_input_tokens: rng.pick(&[None, Some(0), Some(2_000)]).unwrap(),
            demoted_until: rng.pick(&[None, None, Some(now + 5_000)]).unwrap(),
        };
        let tenant = TenantId::parse(rng.pick(&["a", "b", "c", "d"]).unwrap()).unwrap();
        if self.rng.chance(30) {
            let day = self.now / demotion::DAY;
            self.tell(Event::Spent {
                tenant: tenant.clone(),
                day,
                input_tokens: 500,
            });
        }
        self.tell(Event::Policy { tenant, policy });
    }

    /// Another leader: the old one's writes may still land.
    fn new_leader(&mut self) {
        let term = Term(self.scheduler.term().0 + 1);
        let mut config = odd_config();
        config.limits.pop_last();
        self.scheduler = Scheduler::new(config, term, self.now);
        if let Some(books) = self.books.clone().filter(|_| self.rng.chance(80)) {
            self.scheduler.restore(books);
        }
        self.watch.clear();
        self.outcomes.clear();
        self.asides.clear();
        let mut leases: Vec<_> = self.bucket.values().cloned().collect();
        leases.sort_by_key(|(revision, ..)| *revision);
        for (.., event) in leases {
            self.tell(event);
        }
        self.check("the leases are learned");
        let jobs: Vec<JobSeen> = self.stream.values().cloned().collect();
        self.unseen.clear();
        for job in jobs {
            if self.rng.chance(20) {
                self.lease();
            }
            self.tell(Event::Job(job));
        }
        self.complete();
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..=14 => self.new_job(),
            15..=19 => self.worker(),
            20..=37 => self.store(),
            38..=52 => self.outcome(),
            53..=70 => self.watched(),
            71..=85 => self.lease(),
            86..=88 => self.aside(),
            89 => self.policy(),
            90 => {
                let seqs: Vec<JobSeq> = self.stream.keys().copied().collect();
                if let Some(seq) = self.rng.pick(&seqs) {
                    self.tell(Event::CalledOff { seq });
                }
            }
            91 => {
                if let Some(seq) = self.unseen.pop_first()
                    && let Some(job) = self.stream.get(&seq)
                {
                    self.tell(Event::Job(job.clone()));
                }
            }
            92.. if self.still => {}
            92 => self.books = Some(self.scheduler.snapshot(self.now)),
            93 if self.rng.chance(20) => self.new_leader(),
            93 => self.watch_again(),
            94 => self.now = self.now.saturating_sub(self.rng.below(5_000)),
            95 => self.now += self.rng.below(100_000),
            _ => self.now += self.rng.below(1_500),
        }
    }

    fn dispatch(&mut self) {
        for effect in self.scheduler.dispatch(self.now) {
            match effect {
                Effect::Grant { credit, expected } => {
                    let term = self.scheduler.term();
                    self.stores.push(Store {
                        term,
                        credit,
                        expected,
                    });
                }
                Effect::PutAside { seq, .. } => {
                    assert!(
                        !self.asides.contains(&seq),
                        "seed {}: job {seq} is asked to be put aside twice at a time",
                        self.seed
                    );
                    self.asides.push(seq);
                }
                Effect::Notice(_) => {}
            }
        }
        let next = self.scheduler.next_deadline();
        assert!(
            next.is_none_or(|at| at > self.scheduler.now),
            "seed {}: {next:?} is over, and asked for again",
            self.seed
        );
    }

    /// No more faults, and time enough.
    fn calm_down(&mut self) {
        (self.wild, self.still) = (false, false);
        for tenant in ["a", "b", "c", "d"] {
            let tenant = TenantId::parse(tenant).unwrap();
            let policy = Policy::default();
            self.tell(Event::Policy { tenant, policy });
        }
        for seq in std::mem::take(&mut self.unseen) {
            if let Some(job) = self.stream.get(&seq) {
                self.tell(Event::Job(job.clone()));
            }
        }
        for _ in 0..20_000 {
            for name in ["v", "w", "x"] {
                self.tell(Event::Worker {
                    worker: WorkerId::parse(name).unwrap(),
                    slots: 5,
                    draining: false,
                });
            }
            self.dispatch();
            self.check("calming down");
            let busy = self.stores.len() + self.asides.len() + self.outcomes.len();
            for _ in 0..busy {
                self.store();
                self.aside();
            }
            while !self.outcomes.is_empty() {
                self.outcome();
            }
            for _ in 0..self.bucket.len() {
                self.lease();
            }
            while !self.watch.is_empty() {
                self.watched();
            }
            if self.stream.is_empty() && self.bucket.is_empty() && self.stores.is_empty() {
                break;
            }
            let is_idle = self.bucket.is_empty() && self.stores.is_empty();
            self.now = match self.scheduler.next_deadline().filter(|_| is_idle) {
                Some(at) => at.max(self.now),
                None => self.now + 50,
            };
            // Nothing else can wake it.
            assert!(
                !is_idle || self.scheduler.next_deadline().is_some(),
                "seed {}: sleeps for ever",
                self.seed
            );
        }
        self.now += TRACE_KEEP;
        self.dispatch();
        let left: Vec<_> = self.stream.keys().copied().collect();
        let whys: Vec<_> = left
            .iter()
            .map(|&seq| self.scheduler.why(seq, self.now))
            .collect();
        assert!(left.is_empty(), "seed {}: {left:?} {whys:?}", self.seed);
        self.check("all is quiet");
        let scheduler = &self.scheduler;
        assert_eq!(
            (
                scheduler.live(),
                scheduler.known(),
                scheduler.leases(),
                scheduler.timers.len(),
                scheduler.queued(),
            ),
            (0, 0, 0, 0, [0; 3]),
            "seed {}: {:?} {:?}",
            self.seed,
            scheduler.leases,
            scheduler.timers
        );
    }

    /// What is left in each pool is what was there, without what was used and what is set aside.
    fn limits_are_what_was_taken(&mut self) -> Result<(), String> {
        if !self.still {
            return Ok(());
        }
        for PoolStatus {
            pool,
            left,
            per_minute,
            ..
        } in self.scheduler.pools(self.now)
        {
            let mut want = per_minute.map(|limit| i64::try_from(limit / 6).unwrap());
            let held = held(&self.scheduler).filter(|credit| credit.pool == pool);
            let held = held.map(|credit| charge(credit, Some(credit.tokens)).1);
            for taken in held.chain(self.spent.get(&pool).copied()) {
                want = std::array::from_fn(|at| want[at] - taken[at]);
            }
            same(format_args!("left in {pool}"), left, want)?;
        }
        Ok(())
    }

    fn check(&mut self, when: &str) {
        let wrong = judge(&mut self.scheduler).and_then(|()| self.limits_are_what_was_taken());
        if let Err(wrong) = wrong {
            panic!(
                "seed {}, {when}: {wrong} at {} in {:?}",
                self.seed,
                self.now,
                self.scheduler.term()
            );
        }
    }
}

/// What must hold between any two events.
fn judge(scheduler: &mut Scheduler) -> Result<(), String> {
    books_are_what_is_held(scheduler)?;
    for seq in scheduler.jobs.keys().copied().collect::<Vec<_>>() {
        stands_in_one_place(scheduler, seq)?;
        let why = scheduler.why(seq, scheduler.now).why;
        if why == Why::NotQueued {
            return Err(format!("job {seq} is known and not explained"));
        }
    }
    probes_are_on_their_way(scheduler)?;
    rings_know_their_heads(scheduler)?;
    // A lease that ended before its time leaves a timer that nobody needs, but not for long.
    let soon = scheduler.now + TRACE_KEEP;
    let needed = |&(at, seq): &(Millis, JobSeq)| {
        at <= soon || scheduler.jobs.contains_key(&seq) || scheduler.leases.contains_key(&seq)
    };
    match scheduler.timers.iter().find(|&timer| !needed(timer)) {
        Some(timer) => Err(format!("nobody needs the timer {timer:?}")),
        None => Ok(()),
    }
}

fn same<T: PartialEq + fmt::Debug>(
    what: fmt::Arguments<'_>,
    books: T,
    held: T,
) -> Result<(), String> {
    if books == held {
        return Ok(());
    }
    Err(format!(
        "{what}: the books say {books:?}, the leases {held:?}"
    ))
}

fn held(scheduler: &Scheduler) -> impl Iterator<Item = &Credit> {
    let leases = scheduler.leases.values();
    leases.filter_map(|lease| match &lease.state {
        LeaseState::Held { credit, .. } => Some(credit.as_ref()),
        LeaseState::Parked { .. } | LeaseState::Over | LeaseState::Finished => None,
    })
}

fn seq_of(event: &Event) -> JobSeq {
    match event {
        Event::Settled { settlement, .. } => settlement.credit.seq,
        Event::LeaseEnded { seq, .. } => *seq,
        other => panic!("not an end: {other:?}"),
    }
}

fn books_are_what_is_held(scheduler: &Scheduler) -> Result<(), String> {
    let held: Vec<&Credit> = held(scheduler).collect();
    same(
        format_args!("occupied slots"),
        scheduler.fleet.occupied(),
        held.len(),
    )?;
    for name in ["a", "b", "c", "d"].map(|name| TenantId::parse(name).unwrap()) {
        let Some(tenant) = scheduler.tenants.find(&name) else {
            continue;
        };
        let of = |credit: &&&Credit| credit.tenant == name;
        let mine = || held.iter().filter(of);
        same(
            format_args!("in flight of {name}"),
            scheduler.tenants.in_flight(tenant) as usize,
            mine().count(),
        )?;
        same(
            format_args!("input reserved by {name}"),
            // Of a day long before any was spent.
            scheduler.tenants.standing(tenant).used_today(u64::MAX),
            mine().map(|credit| credit.tokens.input).sum(),
        )?;
        for pool in scheduler.pools.all() {
            let pool_name = scheduler.pools.name(pool);
            let there = mine().filter(|credit| credit.pool == *pool_name);
            same(
                format_args!("on the wire of {name} in {pool_name}"),
                scheduler.pools.on_wire(pool, tenant),
                there.fold(Cost(0), |sum, credit| sum + credit.cost),
            )?;
        }
    }
    Ok(())
}

fn stands_in_one_place(scheduler: &Scheduler, seq: JobSeq) -> Result<(), String> {
    let job: &Job = &scheduler.jobs[&seq];
    let state = scheduler.leases.get(&seq).map(|lease| &lease.state);
    let has_timer = |at| scheduler.timers.contains(&(at, seq));
    let mut places = Vec::new();
    if job.leaving != Leaving::No {
        places.push("leaving");
    }
    match state {
        Some(LeaseState::Held { .. }) => places.push("held"),
        Some(&LeaseState::Parked { until, .. }) if has_timer(until) => places.push("parked"),
        _ => {}
    }
    if job.not_before > scheduler.now && has_timer(job.not_before) && places.is_empty() {
        places.push("not before");
    }
    if scheduler.lanes.holds(job.queue(), seq) {
        places.push("in line");
    }
    if scheduler.gates.holds(seq).is_some() {
        places.push("behind a gate");
    }
    // A worker may have, or a lease may park, what is about to leave.
    let alone = places.len() == 1
        || (places.len() == 2 && places[0] == "leaving" && places[1] != "in line");
    if alone {
        return Ok(());
    }
    Err(format!(
        "job {seq} stands {places:?}, lease {state:?}, {job:?}"
    ))
}

fn probes_are_on_their_way(scheduler: &mut Scheduler) -> Result<(), String> {
    let now = scheduler.now;
    for pool in scheduler.pools.all() {
        let probe = scheduler.pools.probe(pool);
        let is_out = probe.is_some_and(|seq| scheduler.is_held(seq));
        let probing = scheduler.pools.breaker(pool).gate(now) == Gate::Probing;
        if probing != is_out || probe.is_some() != is_out {
            return Err(format!(
                "{} waits for a probe: {probing}; which is {probe:?}",
                scheduler.pools.name(pool)
            ));
        }
    }
    let probes: Vec<(GateKey, Option<JobSeq>, Vec<JobSeq>)> = scheduler.gates.inspect();
    for (gate, probe, candidates) in probes {
        if let Some(seq) = probe.filter(|&seq| !scheduler.is_held(seq)) {
            return Err(format!("the probe {seq} of {gate:?} is nowhere"));
        }
        for seq in candidates {
            let job = scheduler.jobs.get(&seq);
            if !job.is_some_and(|job| scheduler.lanes.holds(job.queue(), seq)) {
                return Err(format!("the candidate {seq} of {gate:?} is not in line"));
            }
        }
    }
    Ok(())
}

fn rings_know_their_heads(scheduler: &mut Scheduler) -> Result<(), String> {
    for pool in scheduler.pools.all() {
        for priority in Priority::ALL {
            for name in ["a", "b", "c", "d"].map(|name| TenantId::parse(name).unwrap()) {
                let Some(tenant) = scheduler.tenants.find(&name) else {
                    continue;
                };
                let flow = Flow {
                    pool,
                    priority,
                    tenant,
                };
                let head = scheduler
                    .lanes
                    .head(flow, scheduler.tenants.is_demoted(tenant))
                    .filter(|_| !scheduler.tenants.is_at_cap(tenant));
                let cost = head.map(|seq| scheduler.jobs[&seq].run_in(pool).cost);
                let known = scheduler.lanes.ring(pool, priority).head(FlowKey(tenant.0));
                let told = known.map(|head| (JobSeq(head.since), head.cost));
                same(format_args!("head of {flow:?}"), told, head.zip(cost))?;
            }
        }
    }
    Ok(())
}

#[test]
fn whatever_happens_the_books_agree_with_the_leases_and_no_job_is_left() {
    let seeds = std::env::var("FAIRLANE_CHANCE_SEEDS").ok();
    let seeds = seeds.and_then(|number| number.parse().ok());
    for seed in 0..seeds.unwrap_or(SEEDS) {
        let mut model = Model::new(seed);
        for _ in 0..STEPS {
            model.step();
            if model.rng.chance(60) {
                model.dispatch();
            }
            if model.rng.chance(15) {
                model.dispatch();
                model.check("in between");
            }
        }
        model.calm_down();
    }
}
