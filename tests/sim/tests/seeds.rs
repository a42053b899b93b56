//! Thousands of worlds by seed.
//!
//! `FAIRLANE_SIM_SEEDS=N` runs N worlds instead of the usual number, `FAIRLANE_SIM_SEED=S` only
//! the one of seed S, with the history of job J if `FAIRLANE_SIM_JOB=J` is given too.

mod judge;

use std::sync::atomic::{AtomicU64, Ordering};

use fairlane_core::JobSeq;
use fairlane_sim_tests::{Fault, Tally, World, seeds};

/// Worlds per run, unless the environment says otherwise.
const SEEDS: u64 = 3_000;

/// Seeds that once showed something.
const KEPT: &[u64] = &[];

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn explore(seed: u64) -> Result<Tally, String> {
    let mut world = World::new(seeds::chaos(seed));
    world.watched = number("FAIRLANE_SIM_JOB").map(JobSeq);
    let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.run()));
    let failure = match ran {
        Ok(Ok(())) => return Ok(world.tally),
        Ok(Err(broken)) => format!("{broken} at {} ms", world.now),
        Err(_) => format!("panicked at {} ms", world.now),
    };
    if let Some(seq) = world.watched {
        let why = world.why(seq);
        world.history.push(why);
    }
    let history = world.history.join("\n");
    Err(format!(
        "seed {seed}: {failure}\n{history}\nreplay: FAIRLANE_SIM_SEED={seed} cargo test -p fairlane-sim-tests --test seeds -- chaos"
    ))
}

#[test]
fn chaos_breaks_no_rule() {
    let seeds: Vec<u64> = match number("FAIRLANE_SIM_SEED") {
        Some(seed) => vec![seed],
        None => {
            let count = number("FAIRLANE_SIM_SEEDS").unwrap_or(SEEDS);
            KEPT.iter().copied().chain(0..count).collect()
        }
    };
    let next = AtomicU64::new(0);
    let failures = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let index = usize::try_from(next.fetch_add(1, Ordering::Relaxed)).unwrap();
                    let Some(&seed) = seeds.get(index) else { break };
                    if let Err(failure) = explore(seed) {
                        failures.lock().unwrap().push(failure);
                    }
                }
            });
        }
    });
    let mut failures = failures.into_inner().unwrap();
    failures.sort();
    let shown: Vec<_> = failures.iter().take(10).cloned().collect();
    assert!(
        failures.is_empty(),
        "{} of {} seeds failed\n{}",
        failures.len(),
        seeds.len(),
        shown.join("\n")
    );
}

/// Service and limits of a world in which everybody is backlogged and nothing goes wrong.
#[test]
fn saturated_worlds_are_fair_and_within_their_limits() {
    let count = number("FAIRLANE_SIM_SEEDS").unwrap_or(SEEDS) / 50;
    for seed in 0..count.max(10) {
        let mut world = World::new(seeds::saturated(seed));
        world
            .run()
            .and_then(|()| world.check_safety())
            .and_then(|()| judge::saturated(&world))
            .unwrap_or_else(|broken| panic!("saturated seed {seed}: {broken}"));
    }
}

/// Whoever leads, and however it came to that, the books go on.
#[test]
fn the_limits_hold_across_changes_of_leaders() {
    let count = number("FAIRLANE_SIM_SEEDS").unwrap_or(SEEDS) / 100;
    for seed in 0..count.max(10) {
        let mut plan = seeds::saturated(seed);
        plan.leaders = 2;
        let quarter = plan.until / 4;
        plan.faults = vec![
            (quarter, Fault::KillLeader { restart: 1_000 }),
            (2 * quarter, Fault::HandOver),
            (3 * quarter, Fault::PauseLeader { length: 5_000 }),
        ];
        let mut world = World::new(plan);
        world
            .run()
            .and_then(|()| world.check_safety())
            .and_then(|()| judge::limits_across_leaders(&world))
            .unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
        assert_eq!(world.tally.terms, 4, "seed {seed}");
    }
}
