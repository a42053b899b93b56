//! What a million queued jobs cost the scheduler, beside a plain round robin.
//!
//! ```text
//! cargo bench -p fairlane-core --bench scale [-- JOBS]
//! ```
//!
//! Each line is a process of its own, so that its memory is its own. `take in` is the time to handle
//! one event per job; `decision` the time from one settlement to the grant that follows it, with
//! all slots taken before. The baseline is one queue per tenant, served in turn: no costs, no limits, no
//! shares, no leases.

#![allow(clippy::print_stdout, reason = "a bench prints its figures")]
#![allow(clippy::disallowed_methods, reason = "a bench asks the clock")]

use std::collections::{BTreeMap, VecDeque};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use fairlane_core::limiter::{Limits, Observation};
use fairlane_core::scheduler::{
    Config, Credit, Effect, Event, JobSeen, Outcome, Policy, Scheduler, Settlement,
};
use fairlane_core::share::ShareRules;
use fairlane_core::{
    Cost, CostWeights, JobId, JobSeq, Kind, ModelId, PoolId, Priority, TenantId, Term, Tokens,
    WorkerId, breaker,
};

const DECISIONS: u64 = 100_000;
const WORKERS: u32 = 8;
const SLOTS: u32 = 64;
/// Jobs are made in batches, so that making them is neither timed nor remembered.
const BATCH: u64 = 10_000;

/// A world to measure.
struct Case {
    name: &'static str,
    /// Tenants that ever had a job.
    tenants: u64,
    /// Of these, how many have jobs now.
    active: u64,
    baseline: bool,
    /// Jobs of a tenant that is at its cap, queued before all others.
    blocked: u64,
}

const CASES: [Case; 6] = [
    Case {
        name: "10 000 tenants, all have jobs",
        tenants: 10_000,
        active: 10_000,
        baseline: false,
        blocked: 0,
    },
    Case {
        name: "10 000 tenants, 100 have jobs",
        tenants: 10_000,
        active: 100,
        baseline: false,
        blocked: 0,
    },
    Case {
        name: "100 tenants",
        tenants: 100,
        active: 100,
        baseline: false,
        blocked: 0,
    },
    Case {
        name: "100 tenants and 50 000 jobs at a cap",
        tenants: 100,
        active: 100,
        baseline: false,
        blocked: 50_000,
    },
    Case {
        name: "round robin, 10 000 tenants",
        tenants: 10_000,
        active: 10_000,
        baseline: true,
        blocked: 0,
    },
    Case {
        name: "round robin, 100 tenants",
        tenants: 100,
        active: 100,
        baseline: true,
        blocked: 0,
    },
];

fn main() -> ExitCode {
    // cargo passes `--bench`; numbers are the number of jobs, and the case for a process of ours.
    let mut numbers = std::env::args().filter_map(|argument| argument.parse::<u64>().ok());
    let jobs = numbers.next().unwrap_or(1_000_000);
    if let Some(case) = numbers.next() {
        let case = &CASES[usize::try_from(case).expect("a place in a list")];
        if case.baseline {
            round_robin(case, jobs);
        } else {
            scheduler(case, jobs);
        }
        return ExitCode::SUCCESS;
    }
    println!("{jobs} jobs queued; bounds: 1024 MiB, decision p99 1 ms");
    println!(
        "{:<38} {:>9} {:>8} {:>12} {:>9} {:>9} {:>9}",
        "", "resident", "per job", "take in", "p50", "p99", "max"
    );
    let program = std::env::current_exe().expect("our own path");
    for case in 0..CASES.len() {
        let arguments = [jobs.to_string(), case.to_string()];
        let status = Command::new(&program).args(arguments).status();
        if !status.expect("a process of ours starts").success() {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn scheduler(case: &Case, jobs: u64) {
    let mut core = Scheduler::new(config(), Term(1), 0);
    for priority in Priority::ALL {
        core.handle(0, Event::Complete { priority });
    }
    let before = resident_kib();
    let mut took = Duration::ZERO;
    // Idle tenants: each had one job, which is gone.
    for number in 0..case.tenants {
        let seq = JobSeq(number + 1);
        core.handle(0, Event::Job(seen(seq, number)));
        core.handle(0, Event::PutAside { seq });
    }
    let first = case.tenants + 1;
    for number in 0..case.blocked {
        let job = JobSeen {
            tenant: TenantId::parse("blocked").expect("a name"),
            ..seen(JobSeq(first + number), 0)
        };
        core.handle(0, Event::Job(job));
    }
    let first = first + case.blocked;
    for batch in (0..jobs).step_by(usize::try_from(BATCH).expect("small")) {
        let made: Vec<_> = (batch..jobs.min(batch + BATCH))
            .map(|number| seen(JobSeq(first + number), number % case.active))
            .collect();
        let began = Instant::now();
        for job in made {
            core.handle(0, Event::Job(job));
        }
        took += began.elapsed();
    }
    let resident = resident_kib();
    let mut micros = decisions(&mut core);
    report(case, jobs, resident - before, took, &mut micros);
}

/// Fills all slots, then settles the oldest credit again and again.
fn decisions(core: &mut Scheduler) -> Vec<f64> {
    let mut running = VecDeque::new();
    let mut revision = 0;
    announce(core, 0);
    take(core.dispatch(0), core, &mut revision, 0, &mut running);
    let mut micros = Vec::new();
    for step in 1..=DECISIONS {
        let now = step / 10;
        if step % 10_000 == 0 {
            announce(core, now);
        }
        let Some(credit) = running.pop_front() else {
            break;
        };
        revision += 1;
        let event = Event::Settled {
            settlement: settlement(credit),
            revision,
        };
        let began = Instant::now();
        core.handle(now, event);
        let effects = core.dispatch(now);
        micros.push(began.elapsed().as_secs_f64() * 1e6);
        take(effects, core, &mut revision, now, &mut running);
    }
    micros
}

fn take(
    effects: Vec<Effect>,
    core: &mut Scheduler,
    revision: &mut u64,
    now: u64,
    running: &mut VecDeque<Credit>,
) {
    for effect in effects {
        if let Effect::Grant { credit, .. } = effect {
            *revision += 1;
            let seq = credit.seq;
            core.handle(
                now,
                Event::GrantStored {
                    seq,
                    revision: *revision,
                },
            );
            // The job that blocks its tenant runs for ever.
            if credit.tenant.as_str() != "blocked" {
                running.push_back(credit);
            }
        }
    }
}

fn announce(core: &mut Scheduler, now: u64) {
    for worker in 0..WORKERS {
        let worker = WorkerId::parse(&format!("w{worker}")).expect("a name");
        let event = Event::Worker {
            worker,
            slots: SLOTS,
            draining: false,
        };
        core.handle(now, event);
    }
}

fn round_robin(case: &Case, jobs: u64) {
    let before = resident_kib();
    let mut took = Duration::ZERO;
    let mut queues: BTreeMap<TenantId, VecDeque<JobSeen>> = BTreeMap::new();
    let mut turns: VecDeque<TenantId> = VecDeque::new();
    for batch in (0..jobs).step_by(usize::try_from(BATCH).expect("small")) {
        let made: Vec<_> = (batch..jobs.min(batch + BATCH))
            .map(|number| seen(JobSeq(number), number % case.active))
            .collect();
        let began = Instant::now();
        for job in made {
            let queue = queues.entry(job.tenant.clone()).or_default();
            if queue.is_empty() {
                turns.push_back(job.tenant.clone());
            }
            queue.push_back(job);
        }
        took += began.elapsed();
    }
    let resident = resident_kib();
    let mut micros = Vec::new();
    for _ in 0..DECISIONS {
        let began = Instant::now();
        let Some(tenant) = turns.pop_front() else {
            break;
        };
        let queue = queues.get_mut(&tenant).expect("it has a turn");
        let job = queue.pop_front();
        if !queue.is_empty() {
            turns.push_back(tenant);
        }
        micros.push(began.elapsed().as_secs_f64() * 1e6);
        std::hint::black_box(job);
    }
    report(case, jobs, resident - before, took, &mut micros);
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn report(case: &Case, jobs: u64, kib: u64, took: Duration, micros: &mut [f64]) {
    assert!(
        micros.len() as u64 == DECISIONS.min(jobs),
        "only {} decisions",
        micros.len()
    );
    micros.sort_unstable_by(f64::total_cmp);
    let at = |part: usize| micros[micros.len() * part / 1_000];
    println!(
        "{:<38} {:>5} MiB {:>6} B {:>9.2} us {:>6.1} us {:>6.1} us {:>6.0} us",
        case.name,
        kib / 1024,
        kib * 1024 / jobs,
        took.as_secs_f64() * 1e6 / jobs as f64,
        at(500),
        at(990),
        micros[micros.len() - 1],
    );
}

/// A job as the index shows it: with names of the usual length.
fn seen(seq: JobSeq, tenant: u64) -> JobSeen {
    let name = "a name";
    JobSeen {
        seq,
        priority: Priority::ALL[usize::try_from(seq.0 % 3).expect("small")],
        tenant: TenantId::parse(&format!("tenant-{tenant}")).expect(name),
        job: JobId::parse(&format!("01981f3e-8a5c-7d21-9c43-{:012x}", seq.0)).expect(name),
        kind: Kind::parse("structured_extract").expect(name),
        model: ModelId::parse("claude-haiku-4-5").expect(name),
        pool: PoolId::parse("haiku-4.5").expect(name),
        tokens: Tokens {
            input: 500 + seq.0 % 4_000,
            output: 200,
        },
        not_before: None,
        deadline: None,
        fallback: None,
    }
}

fn settlement(credit: Credit) -> Settlement {
    Settlement {
        used: Some(Tokens {
            output: 180,
            ..credit.tokens
        }),
        credit,
        outcome: Outcome::Finished,
        observed: Observation::default(),
        refused: None,
        pause: None,
        sample: None,
    }
}

fn config() -> Config {
    let blocked = Policy {
        in_flight_max: 1,
        ..Policy::default()
    };
    Config {
        quantum: Cost(5_000),
        cost_weights: CostWeights::default(),
        shares: ShareRules::default(),
        limits: BTreeMap::new(),
        default_limits: Limits {
            requests: 100_000_000,
            input_tokens: 1_000_000_000_000,
            output_tokens: 1_000_000_000_000,
        },
        tenants: BTreeMap::from([(TenantId::parse("blocked").expect("a name"), blocked)]),
        default_policy: Policy::default(),
        max_deliver: 8,
        worker_silence_max: 3_500,
        breaker: breaker::Rules::default(),
        demotion: fairlane_core::demotion::Rules::default(),
    }
}

/// Memory of this process. Linux only; 0 elsewhere.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    kib.unwrap_or(0)
}
