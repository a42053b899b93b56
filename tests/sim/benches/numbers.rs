//! The numbers that were promised, measured in virtual time, beside what they are held against.
//!
//! ```text
//! cargo bench -p fairlane-sim-tests --bench numbers
//! ```
//!
//! One run, the same on every machine. Estimates are honest but not exact: input is off by up to a
//! tenth, answers are between half and one and a half times as long as usual, and what is usual has to be
//! learned.

#![allow(clippy::print_stdout, reason = "a bench prints its figures")]
#![expect(clippy::cast_precision_loss, reason = "figures for people")]

use std::process::ExitCode;

use fairlane_core::fairness::Reading;
use fairlane_core::{Millis, Priority, Tokens};
use fairlane_sim_tests::plan::pool;
use fairlane_sim_tests::{JobPlan, Plan, Rng, World};

const MINUTE: Millis = 60_000;

/// One figure and what it is held against.
struct Table {
    missed: usize,
}

impl Table {
    fn at_least(&mut self, what: &str, measured: f64, bound: f64, unit: &str) {
        self.line(what, measured, ">=", bound, unit, measured >= bound);
    }

    fn at_most(&mut self, what: &str, measured: f64, bound: f64, unit: &str) {
        self.line(what, measured, "<=", bound, unit, measured <= bound);
    }

    fn line(&mut self, what: &str, measured: f64, how: &str, bound: f64, unit: &str, holds: bool) {
        let verdict = if holds { "" } else { "  MISSED" };
        self.missed += usize::from(!holds);
        println!("{what:<66} {measured:>9.3} {how} {bound:<7.3} {unit}{verdict}");
    }
}

fn main() -> ExitCode {
    let mut table = Table { missed: 0 };
    use_of_limits(&mut table);
    one_behind_a_hundred(&mut table);
    fairness(&mut table);
    weights(&mut table);
    floor(&mut table);
    smoothness(&mut table);
    if table.missed == 0 {
        ExitCode::SUCCESS
    } else {
        println!("{} missed", table.missed);
        ExitCode::FAILURE
    }
}

fn play(plan: Plan) -> World {
    let mut world = World::new(Plan {
        ends_idle: false,
        ..plan
    });
    world.run().unwrap_or_else(|broken| panic!("{broken}"));
    world
}

/// A job whose answer and input are not exactly what was estimated.
fn job(plan: &mut Plan, rng: &mut Rng, at: Millis, name: &str, priority: Priority, usual: Tokens) {
    let input = usual.input * rng.range(900, 1_100) / 1_000;
    let output = usual.output * rng.range(500, 1_500) / 1_000;
    let estimate = Tokens {
        input: usual.input,
        output: usual.output * 2,
    };
    let job = plan.job(at, name, priority, "haiku", estimate);
    job.actual = Tokens { input, output };
    job.service = 300 + output * 10;
}

fn use_of_limits(table: &mut Table) {
    let small = [50, 40_000, 8_000];
    let large = [4_000, 2_000_000, 400_000];
    let cases = [
        ("50 rpm tier, requests bind", small, (400, 100), 0),
        ("50 rpm tier, input binds", small, (2_000, 100), 1),
        ("50 rpm tier, output binds", small, (400, 500), 2),
        ("4 000 rpm tier, requests bind", large, (300, 60), 0),
        ("4 000 rpm tier, input binds", large, (2_000, 60), 1),
        ("4 000 rpm tier, output binds", large, (300, 400), 2),
    ];
    for (name, limits, (input, output), binding) in cases {
        let mut plan = Plan::calm(1);
        let mut rng = Rng::new(1);
        plan.workers = vec![200; 4];
        plan.limit("haiku", limits[0], limits[1], limits[2]);
        let minutes = if limits[0] > 1_000 { 6 } else { 60 };
        let needed = [1, input, output]
            .iter()
            .zip(limits)
            .map(|(need, limit)| limit / need)
            .min();
        let needed = needed.unwrap_or(0) * (minutes + 3);
        for number in 0..needed {
            let tenant = format!("t{}", number % 10);
            let usual = Tokens { input, output };
            job(&mut plan, &mut rng, 0, &tenant, Priority::Standard, usual);
        }
        let (from, to) = (MINUTE, MINUTE * (minutes + 1));
        plan.until = to;
        let world = play(plan);
        let taken = world.taken(&pool("haiku"), from, to);
        let used: u64 = taken
            .iter()
            .map(|call| {
                let actual = world.plan.jobs[call.job].actual;
                [1, actual.input, actual.output][binding]
            })
            .sum();
        let allowed = limits[binding] * minutes;
        let part = 100.0 * used as f64 / allowed as f64;
        table.at_least(&format!("use of limits, {name}"), part, 97.0, "%");
        let calls = world.upstream.calls.len();
        let refused = 100.0 * world.upstream.turned_away() as f64 / calls as f64;
        table.at_most(&format!("  of {calls} calls 429"), refused, 0.1, "%");
    }
}

/// B's job, at some time while A's hundred wait and run, again and again.
fn one_behind_a_hundred(table: &mut Table) {
    for (name, requests, slots) in [
        ("20 slots", 100_000, 20),
        ("100 slots, 1 000 rpm", 1_000, 100),
    ] {
        let latency = |noisy: u64| {
            let mut plan = Plan::calm(2);
            let mut rng = Rng::new(2);
            plan.workers = vec![slots / 4; 4];
            plan.limit("haiku", requests, 100_000_000, 100_000_000);
            for round in 0..400 {
                let at = round * 30_000;
                let mut job = |at, tenant| {
                    let usual = Tokens {
                        input: 1_000,
                        output: 100,
                    };
                    job(&mut plan, &mut rng, at, tenant, Priority::Critical, usual);
                };
                for _ in 0..noisy {
                    job(at, "a");
                }
                job(at + 500 + round * 7 % 3_000, "b");
            }
            plan.until = 401 * 30_000;
            let world = play(plan);
            let mut times: Vec<Millis> = world
                .jobs
                .iter()
                .zip(&world.plan.jobs)
                .filter(|(_, plan)| plan.tenant.as_str() == "b")
                .map(|(state, plan)| state.ended_at.unwrap_or(Millis::MAX) - plan.at)
                .collect();
            times.sort_unstable();
            times[times.len() * 99 / 100] as f64
        };
        let (alone, behind) = (latency(0), latency(100));
        println!(
            "one critical job, {name}: p99 alone {alone} ms, behind 100 of another {behind} ms"
        );
        table.at_most("  ratio", behind / alone, 1.3, "x");
    }
}

/// The worst minute, by what the leader measures and by the upstream's log.
fn fairness(table: &mut Table) {
    let mut plan = Plan::calm(3);
    let mut rng = Rng::new(3);
    plan.workers = vec![200; 4];
    plan.limit("haiku", 4_000, 2_000_000, 400_000);
    let sizes = [
        300, 600, 1_000, 2_000, 4_000, 8_000, 1_500, 500, 3_000, 6_000,
    ];
    for (number, input) in sizes.into_iter().enumerate() {
        for _ in 0..4_000_000 / (input + 500) {
            let usual = Tokens { input, output: 100 };
            let tenant = format!("t{number}");
            job(&mut plan, &mut rng, 0, &tenant, Priority::Standard, usual);
        }
    }
    plan.until = 10 * MINUTE + 5_000;
    let mut world = play(plan);
    let windows = world.fairness();
    let worst = windows
        .iter()
        .skip(1)
        .flat_map(|window| &window.lanes)
        .fold(Reading::EVEN, |worst, (_, reading)| worst.worse(*reading));
    let compared = windows.iter().skip(1).flat_map(|window| &window.lanes);
    let compared = compared.map(|(_, reading)| reading.flows).min();
    println!("equal tenants with jobs of 300 to 8 000 tokens, {compared:?} compared per minute");
    table.at_least(
        "  Jain's index of the worst minute, measured live",
        worst.index,
        0.99,
        "",
    );
    table.at_most("  largest gap, part of the bound", worst.gap_ratio, 1.0, "");
    let jain = (1..10)
        .map(|minute| {
            let costs: Vec<f64> = (0..sizes.len())
                .map(|number| {
                    let of = move |job: &JobPlan| job.tenant.as_str() == format!("t{number}");
                    world.cost(minute * MINUTE, (minute + 1) * MINUTE, of) as f64
                })
                .collect();
            let sum: f64 = costs.iter().sum();
            let squares: f64 = costs.iter().map(|cost| cost * cost).sum();
            sum * sum / (costs.len() as f64 * squares)
        })
        .fold(1.0, f64::min);
    table.at_least(
        "  Jain's index of the worst minute, by the upstream's log",
        jain,
        0.99,
        "",
    );
}

fn weights(table: &mut Table) {
    let mut plan = Plan::calm(4);
    let mut rng = Rng::new(4);
    plan.workers = vec![200; 4];
    plan.limit("haiku", 4_000, 2_000_000, 400_000);
    let tenants = [
        ("a", 1_000, 2_000),
        ("b", 1_000, 500),
        ("c", 2_000, 1_000),
        ("d", 3_000, 5_000),
    ];
    for (name, weight, input) in tenants {
        plan.weigh(name, weight);
        for _ in 0..3_000 * weight / 1_000 * 5_000 / (u32::try_from(input).unwrap_or(0) + 500) {
            let usual = Tokens { input, output: 100 };
            job(&mut plan, &mut rng, 0, name, Priority::Standard, usual);
        }
    }
    let to = 11 * MINUTE;
    plan.until = to;
    let world = play(plan);
    let whole = world.cost(MINUTE, to, |_| true) as f64;
    let mut worst: f64 = 0.0;
    for (name, weight, _) in tenants {
        let got = world.cost(MINUTE, to, |job| job.tenant.as_str() == name) as f64 / whole;
        let due = f64::from(weight) / 7_000.0;
        worst = worst.max((got / due - 1.0).abs());
    }
    table.at_most(
        "weights 1:1:2:3 over ten minutes, largest error",
        100.0 * worst,
        1.0,
        "%",
    );
}

fn floor(table: &mut Table) {
    let mut plan = Plan::calm(5);
    let mut rng = Rng::new(5);
    plan.workers = vec![200; 4];
    plan.limit("haiku", 1_000, 450_000, 90_000);
    for priority in Priority::ALL {
        let jobs = if priority == Priority::Critical {
            33_000
        } else {
            4_000
        };
        for number in 0..jobs {
            let usual = Tokens {
                input: 800,
                output: 100,
            };
            let tenant = format!("t{}", number % 5);
            job(&mut plan, &mut rng, 0, &tenant, priority, usual);
        }
    }
    let to = 31 * MINUTE;
    plan.until = to;
    let world = play(plan);
    let cost = |priority| world.cost(MINUTE, to, |job| job.priority == priority) as f64;
    let whole = world.cost(MINUTE, to, |_| true) as f64;
    let part = |priority| 100.0 * cost(priority) / whole;
    let (critical, batch) = (part(Priority::Critical), part(Priority::Batch));
    println!("critical, standard and batch work all saturated: critical gets {critical:.2} %");
    table.at_most(
        "  batch work's distance from 5 %",
        (batch - 5.0).abs(),
        0.5,
        "%",
    );
}

/// Standard deviation of calls per second.
fn deviation(calls: &[Millis], from: Millis, to: Millis) -> f64 {
    let seconds = usize::try_from((to - from) / 1_000).unwrap_or(0);
    let mut counts = vec![0.0; seconds];
    for at in calls.iter().filter(|&&at| (from..to).contains(&at)) {
        counts[usize::try_from((at - from) / 1_000).unwrap_or(0)] += 1.0;
    }
    let mean = counts.iter().sum::<f64>() / seconds as f64;
    let squares: f64 = counts.iter().map(|count| (count - mean).powi(2)).sum();
    (squares / seconds as f64).sqrt()
}

/// Fifty tenants that all come back with work at the same moment.
fn smoothness(table: &mut Table) {
    for (name, idle) in [("a backlog", 0), ("after ten idle minutes", 10 * MINUTE)] {
        let mut plan = Plan::calm(6);
        let mut rng = Rng::new(6);
        plan.workers = vec![50; 4];
        plan.limit("haiku", 50, 40_000, 8_000);
        let usual = Tokens {
            input: 400,
            output: 80,
        };
        if idle > 0 {
            job(&mut plan, &mut rng, 0, "t0", Priority::Standard, usual);
        }
        for number in 0..600 {
            let tenant = format!("t{}", number % 50);
            job(
                &mut plan,
                &mut rng,
                idle,
                &tenant,
                Priority::Standard,
                usual,
            );
        }
        let (from, to) = (idle, idle + 10 * MINUTE);
        plan.until = to;
        let world = play(plan);
        let calls: Vec<Millis> = world
            .taken(&pool("haiku"), from, to)
            .iter()
            .map(|call| call.at)
            .collect();
        // The ideal pacer makes as many calls, at even distances.
        let count = calls.len() as u64;
        let even: Vec<Millis> = (0..count)
            .map(|number| from + number * (to - from) / count)
            .collect();
        let (measured, ideal) = (deviation(&calls, from, to), deviation(&even, from, to));
        println!(
            "50 tenants refilled at once, {name}: {count} calls in ten minutes, an ideal pacer's deviation is {ideal:.3}"
        );
        table.at_most(
            "  standard deviation of calls per second",
            measured,
            1.1,
            "/s",
        );
        table.at_most("  of the ideal pacer's", measured / ideal, 1.2, "x");
    }
}
