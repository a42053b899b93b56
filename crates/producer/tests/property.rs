//! Whatever is published ends as exactly one job or one dead letter, byte for byte.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::{World, headers, job};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

/// Bytes of any sort, and good submissions with a few bytes changed or cut off.
fn bodies() -> impl Strategy<Value = Vec<u8>> {
    let any_bytes = vec(any::<u8>(), 0..200);
    let text = "[ -~é淡]{0,60}".prop_map(String::into_bytes);
    let good = (0..5_u8).prop_map(|number| job(&format!("p{number}")).to_string().into_bytes());
    let damaged = (
        good,
        vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        any::<u16>(),
    );
    let damaged = damaged.prop_map(|(mut body, changes, cut)| {
        for (at, byte) in changes {
            let at = at.index(body.len());
            body[at] = byte;
        }
        // Most stay whole.
        body.truncate(usize::from(cut).max(1) % 2_000);
        body
    });
    prop_oneof![any_bytes, text, damaged]
}

#[test]
fn any_bytes_end_as_one_job_or_one_letter() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let config = Config {
        cases: 12,
        failure_persistence: None,
        max_shrink_iters: 30,
        ..Config::default()
    };
    let mut runner = TestRunner::new(config);
    runner
        .run(&vec(bodies(), 1..25), |bodies| {
            let (sent, found) = runtime.block_on(ends(bodies));
            prop_assert_eq!(sent, found);
            Ok(())
        })
        .unwrap();
}

/// What was published and what was found, both without the repetitions of a job, sorted.
async fn ends(bodies: Vec<Vec<u8>>) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let world = World::new().await;
    let producer = world.start();
    for body in &bodies {
        world.publish("acme", headers(&[]), body).await;
    }
    world.settled().await;
    let (jobs, letters) = (world.jobs().await, world.letters().await);
    producer.end();

    let mut found: Vec<Vec<u8>> = letters
        .iter()
        .map(|letter| letter.payload.to_vec())
        .collect();
    let accepted: Vec<Vec<u8>> = jobs.iter().map(|job| job.payload.to_vec()).collect();
    let mut sent = bodies;
    for body in &accepted {
        // Further copies of the job are the same job.
        sent.retain(|other| other != body);
        sent.push(body.clone());
    }
    // A job of the same id with other bytes is a repetition as well, unless it was turned away for
    // itself: one changed byte is enough to ask for a model that nobody knows.
    let ids = |body: &Vec<u8>| fairlane_wire::peek(body).id;
    let taken: Vec<Option<String>> = accepted.iter().map(ids).collect();
    sent.retain(|body| {
        accepted.contains(body) || found.contains(body) || !is_repetition(body, &taken)
    });
    found.extend(accepted);
    sent.sort();
    found.sort();
    (sent, found)
}

fn is_repetition(body: &[u8], taken: &[Option<String>]) -> bool {
    let acme = fairlane_core::TenantId::parse("acme").unwrap();
    match fairlane_wire::submission::parse(body, &acme) {
        Ok(job) => taken.contains(&job.id.map(|id| id.to_string())),
        Err(_) => false,
    }
}
