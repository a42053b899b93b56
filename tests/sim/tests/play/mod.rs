//! What scenarios are told with.

#![allow(dead_code, reason = "each file of scenarios needs some of it")]

use fairlane_core::{Millis, Priority, Tokens};
use fairlane_sim_tests::{JobPlan, Plan, World};

pub(crate) fn input(tokens: u64) -> Tokens {
    Tokens {
        input: tokens,
        output: 20,
    }
}

pub(crate) fn of(name: &str) -> impl Fn(&JobPlan) -> bool {
    move |job| job.tenant.as_str() == name
}

pub(crate) fn backlog(
    plan: &mut Plan,
    at: Millis,
    name: &str,
    priority: Priority,
    tokens: Tokens,
    jobs: u64,
) {
    for _ in 0..jobs {
        plan.job(at, name, priority, "haiku", tokens);
    }
}

/// Runs a world that is cut off in the middle, and checks what must hold at any time.
pub(crate) fn play(plan: Plan) -> World {
    let mut world = World::new(Plan {
        ends_idle: false,
        ..plan
    });
    world.run().unwrap_or_else(|broken| panic!("{broken}"));
    world
        .check_safety()
        .unwrap_or_else(|broken| panic!("{broken}"));
    world
}

#[expect(clippy::cast_precision_loss, reason = "shares, not sums")]
pub(crate) fn share(part: i64, whole: i64) -> f64 {
    part as f64 / whole as f64
}

pub(crate) fn assert_near(got: f64, want: f64, tolerance: f64, what: &str) {
    assert!(
        (got / want - 1.0).abs() <= tolerance,
        "{what}: {got:.4} instead of {want:.4}"
    );
}
