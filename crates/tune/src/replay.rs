//! One replay: the real scheduler core over what was recorded, in virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fairlane_core::attempt::{self, Allowance, Decision, History, Jitter};
use fairlane_core::breaker::Sample;
use fairlane_core::demotion::DAY;
use fairlane_core::failure::{Ending, ErrorAnswer, ErrorKind, Place, RetryAfter, classify};
use fairlane_core::fairness::{HISTORY, WINDOW};
use fairlane_core::limiter::Observation;
use fairlane_core::scheduler::{
    Config, Credit, Effect, Event, JobSeen, Notice, Outcome, Pause, Refused, Scheduler, Settlement,
};
use fairlane_core::{JobId, JobSeq, Millis, Priority, Term, WorkerId};

use crate::figures::{Figures, Wait};
use crate::month::{Job, Month};
use crate::upstream::Upstream;

/// The core is asked again no sooner, whatever it waits for. Waits are as exact as this.
const STEP: Millis = 10;
/// How long it takes to be turned away.
const REFUSAL: Millis = 150;
/// After the last job came, the rest is given so long.
const AFTERMATH: Millis = 7 * DAY;

/// Replays a month under these settings.
#[must_use]
pub fn replay(month: &Month, config: &Config) -> Figures {
    Replay::new(month, config).run()
}

struct Replay<'a> {
    month: &'a Month,
    core: Scheduler,
    upstream: Upstream<'a>,
    /// Calls that run, by their end.
    calls: BinaryHeap<Reverse<(Millis, usize)>>,
    /// The credit of each job that is called.
    credits: Vec<Option<Credit>>,
    refused: Vec<Option<Millis>>,
    waits: Vec<Option<Millis>>,
    now: Millis,
    arrived: usize,
    beside: usize,
    called: usize,
    revision: u64,
    measured_upto: Millis,
    jain: (f64, u64),
    throttled: u64,
    demotions: u64,
    quiet_demotions: u64,
}

impl<'a> Replay<'a> {
    fn new(month: &'a Month, config: &'a Config) -> Self {
        let now = month.jobs.first().map_or(0, |job| job.ready);
        let mut core_config = config.clone();
        // The one worker of a replay says only once that it is there.
        core_config.worker_silence_max = Millis::MAX;
        let mut core = Scheduler::new(core_config, Term(1), now);
        let worker = WorkerId::parse("replay").expect("a name");
        core.handle(
            now,
            Event::Worker {
                worker,
                slots: month.slots,
                draining: false,
            },
        );
        for priority in Priority::ALL {
            core.handle(now, Event::Complete { priority });
        }
        let jobs = month.jobs.len();
        Self {
            month,
            core,
            upstream: Upstream::new(&config.limits, config.default_limits, &month.squalls),
            calls: BinaryHeap::new(),
            credits: vec![None; jobs],
            refused: vec![None; jobs],
            waits: vec![None; jobs],
            now,
            arrived: 0,
            beside: 0,
            called: 0,
            revision: 0,
            measured_upto: now,
            jain: (0.0, 0),
            throttled: 0,
            demotions: 0,
            quiet_demotions: 0,
        }
    }

    fn run(mut self) -> Figures {
        let end = self.month.jobs.last().map_or(0, |job| job.ready) + AFTERMATH;
        while let Some(at) = self.next().filter(|&at| at <= end) {
            self.now = self.now.max(at);
            self.arrivals();
            self.endings();
            for effect in self.core.dispatch(self.now) {
                self.apply(effect);
            }
            if self.now >= self.measured_upto + WINDOW * HISTORY as u64 / 2 {
                self.measure();
            }
        }
        self.measure();
        self.figures(end)
    }

    /// When something happens next; None when all is done.
    fn next(&self) -> Option<Millis> {
        let job = self.month.jobs.get(self.arrived).map(|job| job.ready);
        let call = self.calls.peek().map(|Reverse((at, _))| *at);
        if job.is_none() && self.called == self.waits.len() && call.is_none() {
            return None;
        }
        let spent = self.month.beside.get(self.beside).map(|spent| spent.at);
        let deadline = self.core.next_deadline().map(|at| at.max(self.now + STEP));
        [job, call, spent, deadline].into_iter().flatten().min()
    }

    fn arrivals(&mut self) {
        while let Some(spent) = self.month.beside.get(self.beside)
            && spent.at <= self.now
        {
            self.beside += 1;
            let (tenant, day) = (spent.tenant.clone(), spent.at / DAY);
            let input_tokens = spent.input_tokens;
            self.core.handle(
                self.now,
                Event::Spent {
                    tenant,
                    day,
                    input_tokens,
                },
            );
        }
        while let Some(job) = self.month.jobs.get(self.arrived)
            && job.ready <= self.now
        {
            let seen = seen(job, seq(self.arrived));
            self.arrived += 1;
            self.core.handle(self.now, Event::Job(seen));
        }
    }

    fn apply(&mut self, effect: Effect) {
        match effect {
            Effect::Grant { credit, .. } => self.start(credit),
            // Nothing of a replay has a deadline or kills workers; whatever it is, it is gone.
            Effect::PutAside { seq, .. } => self.core.handle(self.now, Event::PutAside { seq }),
            Effect::Notice(Notice::Demoted { tenant, .. }) => {
                self.demotions += 1;
                self.quiet_demotions += u64::from(self.month.is_quiet(&tenant));
            }
            Effect::Notice(
                Notice::Throttled { .. }
                | Notice::Restored { .. }
                | Notice::BreakerOpened { .. }
                | Notice::BreakerClosed { .. }
                | Notice::Paused { .. }
                | Notice::CallsLimited { .. },
            ) => {}
        }
    }

    fn start(&mut self, credit: Credit) {
        let at = index(credit.seq);
        let job = &self.month.jobs[at];
        self.revision += 1;
        let stored = Event::GrantStored {
            seq: credit.seq,
            revision: self.revision,
        };
        self.core.handle(self.now, stored);
        let answer = self.upstream.call(self.now, &credit.pool, job.used);
        self.refused[at] = answer.err();
        let takes = match answer {
            Ok(()) => {
                self.waits[at] = Some(self.now.saturating_sub(job.ready));
                self.called += 1;
                job.service.max(1)
            }
            Err(_) => {
                self.throttled += 1;
                REFUSAL
            }
        };
        self.calls.push(Reverse((self.now + takes, at)));
        self.credits[at] = Some(credit);
    }

    fn endings(&mut self) {
        while let Some(Reverse((at, _))) = self.calls.peek()
            && *at <= self.now
        {
            let Some(Reverse((_, at))) = self.calls.pop() else {
                break;
            };
            let Some(credit) = self.credits[at].take() else {
                continue;
            };
            let job = &self.month.jobs[at];
            let settlement = match self.refused[at] {
                None => done(credit, job),
                Some(wait) => turned_away(credit, wait, self.now),
            };
            if self.refused[at].is_none() {
                let (tenant, day) = (job.tenant.clone(), self.now / DAY);
                let input_tokens = job.prompt;
                self.core.handle(
                    self.now,
                    Event::Spent {
                        tenant,
                        day,
                        input_tokens,
                    },
                );
            }
            self.revision += 1;
            let revision = self.revision;
            self.core.handle(
                self.now,
                Event::Settled {
                    settlement,
                    revision,
                },
            );
        }
    }

    /// Takes over the minutes that the core has measured since the last time.
    fn measure(&mut self) {
        let upto = self.measured_upto;
        let mut newest = self.now;
        for window in self.core.fairness(self.now).history() {
            if window.to <= upto {
                continue;
            }
            newest = newest.max(window.to);
            for (_, reading) in &window.lanes {
                self.jain.0 += reading.index;
                self.jain.1 += 1;
            }
        }
        self.measured_upto = newest;
    }

    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 minutes")]
    fn figures(self, end: Millis) -> Figures {
        let jobs = &self.month.jobs;
        // What was never called waited to the end, at least.
        let waited =
            |at: usize| self.waits[at].unwrap_or_else(|| end.saturating_sub(jobs[at].ready));
        let of = |keep: &dyn Fn(&Job) -> bool| {
            let kept = (0..jobs.len()).filter(|&at| keep(&jobs[at]));
            let mut waits: Vec<Millis> = kept.map(waited).collect();
            Wait::of(&mut waits)
        };
        Figures {
            all: of(&|_| true),
            wait: Priority::ALL.map(|priority| of(&|job| job.priority == priority)),
            quiet: of(&|job| self.month.is_quiet(&job.tenant)),
            noisy: of(&|job| !self.month.is_quiet(&job.tenant)),
            jain: (self.jain.1 > 0).then(|| self.jain.0 / self.jain.1 as f64),
            throttled: self.throttled,
            demotions: self.demotions,
            quiet_demotions: self.quiet_demotions,
            left: (jobs.len() - self.called) as u64,
        }
    }
}

fn seq(at: usize) -> JobSeq {
    JobSeq(at as u64 + 1)
}

fn index(seq: JobSeq) -> usize {
    usize::try_from(seq.0 - 1).expect("made from an index")
}

fn seen(job: &Job, seq: JobSeq) -> JobSeen {
    JobSeen {
        seq,
        priority: job.priority,
        tenant: job.tenant.clone(),
        job: JobId::parse(&format!("j{seq}")).expect("a name"),
        kind: job.kind.clone(),
        model: job.model.clone(),
        pool: job.pool.clone(),
        tokens: job.estimate,
        fallback: None,
        not_before: None,
        deadline: None,
    }
}

fn done(credit: Credit, job: &Job) -> Settlement {
    Settlement {
        credit,
        outcome: Outcome::Finished,
        used: Some(job.used),
        observed: Observation::default(),
        refused: None,
        pause: None,
        sample: Some(Sample::Good),
    }
}

/// What a worker makes of a rate limit, by the same decision.
fn turned_away(credit: Credit, wait: Millis, now: Millis) -> Settlement {
    let ending = Ending::Error(ErrorAnswer {
        status: 429,
        kind: ErrorKind::RateLimit,
        code: None,
        hint: None,
        retry_after: RetryAfter::from_ms(wait),
        should_retry: None,
        place: Place::BeforeStream,
    });
    let allowance = Allowance {
        attempts_max: u32::MAX,
        max_tokens: 1,
        output_tokens_max: 1,
        is_probe: credit.probe,
    };
    // Spread as by chance, and the same in every replay.
    let spread =
        f64::from(u32::try_from(credit.seq.0.wrapping_mul(2_654_435_761) % 1_000).unwrap_or(0))
            / 1_000.0;
    let jitter = Jitter {
        retry: spread,
        pause: spread,
    };
    let decision = attempt::decide(&classify(&ending), History::default(), allowance, jitter);
    let (after, hold) = match decision {
        Decision::Retry(retry) => (retry.after_ms, retry.hold),
        Decision::Keep | Decision::Bury(_) | Decision::Continue => (wait, None),
    };
    Settlement {
        credit,
        outcome: Outcome::Parked { until: now + after },
        used: None,
        observed: Observation::default(),
        refused: Some(Refused::RateLimit),
        pause: hold.map(|hold| Pause {
            scope: hold.scope,
            until: now + hold.ms,
            probe: hold.probe,
        }),
        sample: None,
    }
}
