//! Worlds by seed.

use fairlane_core::limiter::Limits;
use fairlane_core::{Priority, Tokens};

use crate::plan::{Fault, JobPlan, LeaseTimes, Nature, Network, Plan, Storm, pool, tenant};
use crate::rng::Rng;

/// The world of a seed: some tenants, pools and workers, and much that goes wrong.
#[must_use]
pub fn chaos(seed: u64) -> Plan {
    let mut rng = Rng::new(seed ^ 0x000c_4a05);
    let mut plan = Plan::calm(seed);
    plan.leaders = usize::try_from(rng.range(1, 3)).expect("small");
    plan.workers = (0..rng.range(1, 5))
        .map(|_| small(rng.range(1, 8)))
        .collect();
    plan.network = network(&mut rng);
    plan.leases = lease_times(&mut rng);
    plan.headers = rng.chance(700);
    plan.keeps_books = rng.chance(700);
    plan.attempts_max = small(rng.range(2, 5));
    plan.config.max_deliver = plan.attempts_max + 4 + if rng.chance(500) { 0 } else { 4 };
    plan.config.default_policy.in_flight_max = *rng.pick(&[1, 2, 5, 1_000]);
    let pools = ["alpha", "beta"];
    if rng.chance(600) {
        let minute = rng.range(60, 600);
        plan.limit(
            "alpha",
            minute,
            minute * rng.range(500, 3_000),
            minute * rng.range(100, 1_000),
        );
    }
    let length = rng.range(5_000, 60_000);
    jobs(&mut plan, &mut rng, &pools, length);
    storms(&mut plan, &mut rng, length);
    faults(&mut plan, &mut rng, length);
    if rng.chance(600) {
        // From outside it cannot be said whether a breaker is rightly open.
        plan.config.breaker.samples_min = u32::MAX;
        // Unknown fates and silent workers have times of their own, of seconds.
        plan.tick = Some(12_000);
    }
    plan.until = 2_400_000;
    plan
}

fn small(number: u64) -> u32 {
    u32::try_from(number).expect("small")
}

fn network(rng: &mut Rng) -> Network {
    let slowest = *rng.pick(&[2, 10, 80]);
    let trouble = rng.chance(500);
    let mut permille = |most: u64| if trouble { rng.range(0, most) } else { 0 };
    Network {
        delay: (1, slowest),
        grants_lost: permille(60),
        grants_twice: permille(60),
        writes_unknown: permille(60),
        jobs_twice: permille(60),
        leases_twice: permille(100),
    }
}

fn lease_times(rng: &mut Rng) -> LeaseTimes {
    if rng.chance(500) {
        return LeaseTimes::default();
    }
    let traces = rng.range(2_000, 20_000);
    LeaseTimes {
        unstarted: rng.range(1_000, 5_000),
        held: rng.range(4_000, 15_000),
        renew: rng.range(1_000, 2_000),
        tombstone: traces,
        marker: traces,
        parked_margin: rng.range(5_000, 60_000),
    }
}

fn jobs(plan: &mut Plan, rng: &mut Rng, pools: &[&str], length: u64) {
    let tenants = rng.range(1, 6);
    let total = rng.range(10, 120);
    for number in 0..tenants {
        let name = format!("t{number}");
        if rng.chance(400) {
            let weight = small(rng.range(1, 40)) * 100;
            plan.weigh(&name, weight);
        }
        let manner = rng.range(0, 3);
        let lie = *rng.pick(&[250, 1_000, 1_000, 1_000, 4_000]);
        let size = rng.range(100, 8_000);
        let begin = rng.range(0, length);
        for _ in 0..total / tenants {
            let at = match manner {
                0 => begin,
                1 => rng.range(0, length),
                2 => rng.range(begin, length),
                _ => {
                    if rng.chance(500) {
                        0
                    } else {
                        length
                    }
                }
            };
            let job = job(rng, &name, pools, at, size, lie);
            plan.jobs.push(job);
        }
    }
}

fn job(rng: &mut Rng, name: &str, pools: &[&str], at: u64, size: u64, lie: u64) -> JobPlan {
    let estimate = Tokens {
        input: rng.range(10, size),
        output: rng.range(10, 1_000),
    };
    let nature = match rng.range(0, 99) {
        0..=2 => Nature::Poison,
        3..=4 => Nature::Refused,
        5..=6 => Nature::Truncated,
        7..=8 => Nature::CutOnce,
        9 if rng.chance(300) => Nature::Deadly,
        _ => Nature::Good,
    };
    JobPlan {
        at,
        tenant: tenant(name),
        priority: *rng.pick(&Priority::ALL),
        kind: "sim",
        pool: pool(rng.pick::<&str>(pools)),
        fallback: None,
        estimate,
        actual: Tokens {
            input: estimate.input,
            output: estimate.output * lie / 1_000,
        },
        service: if rng.chance(100) {
            rng.range(5_000, 40_000)
        } else {
            rng.range(50, 3_000)
        },
        not_before: rng.chance(50).then(|| at + rng.range(0, 20_000)),
        deadline: rng.chance(50).then(|| at + rng.range(0, 60_000)),
        nature,
    }
}

fn storms(plan: &mut Plan, rng: &mut Rng, length: u64) {
    if rng.chance(300) {
        let from = rng.range(0, length);
        let beta = rng.chance(500).then(|| pool("beta"));
        let to = from + rng.range(500, 15_000);
        plan.storms.push(Storm::overload(beta, from, to));
    }
}

fn faults(plan: &mut Plan, rng: &mut Rng, length: u64) {
    let count = *rng.pick(&[0, 1, 3, 10]);
    for _ in 0..count {
        let at = rng.range(0, length + 5_000);
        let which = usize::try_from(rng.range(0, 10)).expect("small");
        let restart = rng.range(10, 5_000);
        let length = rng.range(100, 30_000);
        let fault = match rng.range(0, 9) {
            0 | 1 => Fault::KillWorker {
                worker: which,
                restart,
            },
            2 => Fault::PauseWorker {
                worker: which,
                length,
            },
            3 => Fault::DrainWorker {
                worker: which,
                restart,
            },
            4 => Fault::KillLeader { restart },
            5 => Fault::PauseLeader { length },
            6 => Fault::HandOver,
            7 => Fault::KillSchedulers { restart },
            // Leases that come and go while nobody looks, and leave no trace, are not covered.
            8 => Fault::BreakWatch {
                length: length.min(plan.leases.tombstone.min(plan.leases.marker) - 1_000),
            },
            _ => Fault::StepClock {
                by: *rng.pick(&[-1_000, -50, 50, 1_000]),
            },
        };
        plan.faults.push((at, fault));
    }
    if rng.chance(200) {
        let tokens = Tokens {
            input: rng.range(0, 100_000),
            output: rng.range(0, 10_000),
        };
        let at = rng.range(0, length);
        plan.faults.push((
            at,
            Fault::Foreign {
                pool: pool("alpha"),
                tokens,
            },
        ));
    }
}

/// A world without faults in which every tenant is backlogged and the upstream binds.
#[must_use]
pub fn saturated(seed: u64) -> Plan {
    let mut rng = Rng::new(seed ^ 0x5a7);
    let mut plan = Plan::calm(seed);
    plan.ends_idle = false;
    plan.until = 120_000;
    plan.workers = vec![400; 2];
    plan.network.delay = (1, rng.range(1, 10));
    let limits = Limits {
        requests: rng.range(200, 500),
        input_tokens: rng.range(400_000, 2_000_000),
        output_tokens: rng.range(60_000, 200_000),
    };
    plan.limit(
        "alpha",
        limits.requests,
        limits.input_tokens,
        limits.output_tokens,
    );
    let tenants = rng.range(2, 6);
    for number in 0..tenants {
        let name = format!("t{number}");
        let weight = small(rng.range(1, 6)) * 500;
        plan.weigh(&name, weight);
        let size = rng.range(200, 20_000);
        let output = rng.range(20, 800);
        let lie = *rng.pick(&[500, 1_000, 1_000, 2_000]);
        for priority in Priority::ALL {
            // Enough for a tenant that gets everything, and a bucket that was full.
            let jobs = match priority {
                Priority::Critical => limits.requests * 3,
                Priority::Standard | Priority::Batch => limits.requests / 2,
            };
            for _ in 0..jobs {
                let tokens = Tokens {
                    input: rng.range(size / 2, size),
                    output: rng.range(output / 2, output),
                };
                let job = plan.job(0, &name, priority, "alpha", tokens);
                job.actual.output = tokens.output * lie / 1_000;
                job.service = rng.range(200, 4_000);
            }
        }
    }
    plan
}
