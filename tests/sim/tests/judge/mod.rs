//! What must hold in a world where every tenant is backlogged and the upstream binds.

use fairlane_core::invariants::{Broken, Draw, Served, fair, floor, within_limits};
use fairlane_core::{Cost, Priority};
use fairlane_sim_tests::plan::pool;
use fairlane_sim_tests::{Answer, JobPlan, World};

/// Checks limits, fairness between tenants and the floor of batch.
///
/// # Errors
/// The rule that is broken.
pub(crate) fn saturated(world: &World) -> Result<(), Broken> {
    limits(world)?;
    let weights = world.plan.config.cost_weights;
    let cost = |job: &JobPlan| Cost::of(job.actual, weights).0;
    let mut whole = [0; 3];
    let mut largest = 0;
    for priority in Priority::ALL {
        let mut flows = Vec::new();
        for (tenant, policy) in &world.plan.config.tenants {
            let weight = policy.weight;
            let of = |job: &&JobPlan| job.priority == priority && job.tenant == *tenant;
            let granted: Vec<_> = world
                .grants
                .iter()
                .map(|grant| &world.plan.jobs[grant.job])
                .filter(of)
                .collect();
            let jobs = world.plan.jobs.iter().filter(of).count();
            assert!(granted.len() < jobs, "{tenant} ran out of {priority} work");
            let service: i64 = granted.iter().map(|job| cost(job)).sum();
            whole[priority.index()] += service;
            let sizes = world.plan.jobs.iter().filter(of);
            let job_max = sizes
                .map(|job| cost(job).max(Cost::of(job.estimate, weights).0))
                .max()
                .unwrap_or(0);
            largest = largest.max(job_max);
            flows.push(Served {
                cost: Cost(service),
                weight: weight.0,
                job_max: Cost(job_max),
                in_doubt: in_doubt(world, of),
            });
        }
        fair(&flows, world.plan.config.quantum)?;
    }
    let doubt = in_doubt(world, |_| true).0;
    let total: i64 = whole.iter().sum();
    floor(Cost(whole[2]), Cost(total), 50, Cost(largest + doubt))?;
    floor(Cost(whole[0]), Cost(total), 900, Cost(largest + doubt))
}

/// The calls of a world whose leaders change keep to the limits, with two per cent of slack. A leader
/// begins with a sixth of a minute's worth, so the rest of the bucket counts as used by others.
///
/// # Errors
/// The call that went over.
pub(crate) fn limits_across_leaders(world: &World) -> Result<(), Broken> {
    const SLACK: u32 = 1_020;
    let limits = world.plan.upstream[&pool("alpha")];
    let draws = |per_minute: u64, amount: fn(&JobPlan) -> u64| -> Vec<Draw> {
        let others = Draw {
            at: 0,
            amount: (per_minute - per_minute / 6).cast_signed(),
        };
        let calls = world.upstream.calls.iter().map(|call| Draw {
            at: call.at,
            amount: amount(&world.plan.jobs[call.job]).cast_signed(),
        });
        std::iter::once(others).chain(calls).collect()
    };
    let [requests, input] = [limits.requests, limits.input_tokens];
    within_limits(&draws(requests, |_| 1), requests, SLACK)?;
    within_limits(&draws(input, |job| job.actual.input), input, SLACK)?;
    if world.plan.jobs.iter().all(is_honest) {
        let output = limits.output_tokens;
        within_limits(&draws(output, |job| job.actual.output), output, SLACK)?;
    }
    Ok(())
}

fn is_honest(job: &JobPlan) -> bool {
    job.actual.output <= job.estimate.output
}

/// What jobs in flight at the end were charged too much or too little.
fn in_doubt(world: &World, of: impl Fn(&&JobPlan) -> bool) -> Cost {
    let weights = world.plan.config.cost_weights;
    let running = world
        .grants
        .iter()
        .filter(|grant| world.jobs[grant.job].ended_at.is_none())
        .map(|grant| &world.plan.jobs[grant.job])
        .filter(of);
    let wrong =
        |job: &JobPlan| (Cost::of(job.actual, weights).0 - Cost::of(job.estimate, weights).0).abs();
    Cost(running.map(wrong).sum())
}

/// The upstream's own buckets turn nobody away whose estimates are honest, and the calls it saw
/// keep to the limits in every window.
fn limits(world: &World) -> Result<(), Broken> {
    if !world.plan.jobs.iter().all(is_honest) {
        return Ok(());
    }
    let limits = world.plan.upstream[&pool("alpha")];
    let draws = |amount: fn(&JobPlan) -> u64| -> Vec<Draw> {
        world
            .upstream
            .calls
            .iter()
            .filter(|call| call.answer != Answer::Overloaded)
            .map(|call| Draw {
                at: call.at,
                amount: amount(&world.plan.jobs[call.job]).cast_signed(),
            })
            .collect()
    };
    within_limits(&draws(|_| 1), limits.requests, 1_000)?;
    within_limits(&draws(|job| job.actual.input), limits.input_tokens, 1_000)?;
    within_limits(&draws(|job| job.actual.output), limits.output_tokens, 1_000)
}
