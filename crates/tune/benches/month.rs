//! How long a replay of the largest month takes: `cargo bench -p fairlane-tune`.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a bench takes times and prints them, and its names are names"
)]

use std::collections::BTreeMap;
use std::time::Instant;

use fairlane_core::limiter::Limits;
use fairlane_core::scheduler::{Config, Policy};
use fairlane_core::share::ShareRules;
use fairlane_core::{
    Cost, CostWeights, Kind, ModelId, PoolId, Priority, TenantId, Tokens, breaker, demotion,
};
use fairlane_tune::{JOBS_MAX, Job, Month, REPLAYS_MAX, replay};

fn main() {
    let pool = PoolId::parse("haiku-4.5").unwrap();
    let kind = Kind::parse("tagging").unwrap();
    let model = ModelId::parse("claude-haiku-4-5").unwrap();
    let tenants: Vec<TenantId> = (0..1_000)
        .map(|n| TenantId::parse(&format!("tenant-{n}")).unwrap())
        .collect();
    // Forty hours, each with half as much again as the limit takes.
    let job = |n: usize| Job {
        ready: (n / 5_000) as u64 * 7_200_000 + (n % 5_000) as u64 * 480,
        tenant: tenants[n * 7_919 % if n.is_multiple_of(3) { 3 } else { 1_000 }].clone(),
        priority: Priority::ALL[n % 3],
        kind: kind.clone(),
        model: model.clone(),
        pool: pool.clone(),
        estimate: Tokens {
            input: 800,
            output: 256,
        },
        used: Tokens {
            input: 700 + n as u64 % 500,
            output: 50 + n as u64 % 300,
        },
        prompt: 800,
        service: 2_000 + n as u64 % 4_000,
        waited: 0,
    };
    let month = Month::new((0..JOBS_MAX).map(job).collect(), Vec::new(), Vec::new(), 64);
    let limits = Limits {
        requests: 83,
        input_tokens: 10_000_000,
        output_tokens: 10_000_000,
    };
    let config = Config {
        quantum: Cost(5_000),
        cost_weights: CostWeights::default(),
        shares: ShareRules::default(),
        limits: BTreeMap::from([(pool, limits)]),
        default_limits: limits,
        tenants: BTreeMap::new(),
        default_policy: Policy::default(),
        max_deliver: 8,
        worker_silence_max: 3_500,
        breaker: breaker::Rules::default(),
        demotion: demotion::Rules::default(),
    };
    let began = Instant::now();
    let figures = replay(&month, &config);
    let took = began.elapsed();
    println!(
        "{JOBS_MAX} jobs of 1 000 tenants: {took:.1?} a replay, at most {:.0?} for {REPLAYS_MAX} of them; p99 wait {} s, {} left",
        took * u32::try_from(REPLAYS_MAX).unwrap(),
        figures.all.p99 / 1_000,
        figures.left
    );
}
