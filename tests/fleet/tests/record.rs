//! What the owner of a job sees, and what it can ask for.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::time::Duration;

use fairlane_core::{JobId, TenantId};
use fairlane_fleet_tests::{Fleet, PATIENCE, Setup, job};
use fairlane_nats::records::Slot;
use fairlane_nats::{Records, watch};
use fairlane_sim::SimConfig;
use fairlane_support::within;
use fairlane_wire::{JobRecord, Phase};

const PROGRAM: &str = env!("CARGO_BIN_EXE_fairlane-under-test");

/// Answers that are written at this speed.
fn writing(tokens_per_second: f64) -> SimConfig {
    SimConfig {
        zero_latency: false,
        first_byte_ms: 50,
        tokens_per_second,
        ..SimConfig::instant()
    }
}

fn long(id: &str, prompt: &str) -> String {
    job(id, prompt).replace("\"max_tokens\":64", "\"max_tokens\":4000")
}

/// Every state of the record from now on, to the end of the job.
async fn history(fleet: &Fleet, id: &str) -> Vec<JobRecord> {
    let records = Records::new(fleet.client(), Duration::from_secs(60));
    let (tenant, job) = (TenantId::parse("acme").unwrap(), JobId::parse(id).unwrap());
    let mut changes = records.watch(&tenant, &job);
    let mut seen = Vec::new();
    within(PATIENCE, "the job to end", async {
        while let Some(event) = changes.next().await {
            let watch::Event::Change(entry) = event else {
                continue;
            };
            let record = Slot::of(&entry).unwrap().record.unwrap();
            seen.push(record);
            if seen.last().is_some_and(|record| record.phase.is_final()) {
                break;
            }
        }
    })
    .await;
    seen
}

fn phases(seen: &[JobRecord]) -> Vec<Phase> {
    let mut phases: Vec<Phase> = seen.iter().map(|record| record.phase).collect();
    phases.dedup();
    phases
}

#[tokio::test]
async fn the_phases_of_a_job_are_told_as_they_happen() {
    let setup = Setup {
        sim: writing(100.0),
        ..Setup::default()
    };
    let fleet = Fleet::start(PROGRAM, setup).await;
    let body = long("slow", "[[sim:out=350 pause_turn]] tags");
    let (seen, ()) = tokio::join!(history(&fleet, "slow"), fleet.publish("acme", body));
    assert_eq!(
        phases(&seen),
        [
            Phase::Queued,
            Phase::Generating,
            Phase::Refining,
            Phase::Done
        ]
    );
    let told: Vec<u64> = seen
        .iter()
        .filter(|record| record.phase == Phase::Generating)
        .map(|record| record.tokens_so_far)
        .collect();
    assert!(told.is_sorted() && told.last() > Some(&50), "{told:?}");
    assert!(told.len() <= 6, "about one a second: {told:?}");
    let done = seen.last().unwrap();
    assert!(done.cost_usd > Some(0.0) && done.usage.unwrap().output_tokens > 600);

    let output = fleet.run(&["watch", "acme/slow", "-o", "json"]).await;
    assert!(output.status.success(), "{output:?}");
    let line: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(line["phase"], "done");
}

#[tokio::test]
async fn a_job_that_is_tried_again_says_why_and_until_when_and_has_words_for_its_user() {
    let fleet = Fleet::start(PROGRAM, Setup::default()).await;
    fleet
        .publish("acme", job("again", "[[sim:once=500]] tags"))
        .await;
    let seen = history(&fleet, "again").await;
    let retrying = seen
        .iter()
        .find(|record| record.phase == Phase::Retrying)
        .expect("it was tried again");
    assert!(retrying.retry_at_ms.is_some() && retrying.retry_reason.is_some());
    let text = String::from_utf8(retrying.to_json(&fleet.client().names)).unwrap();
    assert!(
        text.contains(r#""notice":{"code":"taking_longer""#),
        "{text}"
    );
    let done = seen.last().unwrap();
    assert_eq!((done.phase, done.attempts), (Phase::Done, 2));
    assert_eq!(
        (done.retry_at_ms, done.retry_reason.as_deref()),
        (None, None)
    );
}
