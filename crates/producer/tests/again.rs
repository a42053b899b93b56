//! Dead letters that are sent again.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::{World, get, headers, job};
use fairlane_core::JobId;
use fairlane_nats::HeaderMap;
use fairlane_wire::lineage::{Ancestor, Redrive};
use fairlane_wire::record::{JobRecord, Phase};
use fairlane_wire::{DeadReason, header};

fn redrive(letter: u64) -> HeaderMap {
    let ancestor = Ancestor {
        letter,
        reason: DeadReason::Refusal,
        at_ms: 5,
        attempts: 1,
        cost_usd: None,
        repair: None,
    };
    let redrive = Redrive {
        letter,
        run: "r-1".into(),
        job: JobId::parse("a").unwrap(),
        lineage: vec![ancestor],
    };
    headers(&[(header::REDRIVE, &redrive.to_value())])
}

/// A world with a job that ran and ended as `phase`.
async fn after(phase: Phase) -> World {
    let world = World::new().await;
    let producer = world.start();
    world.submit(&job("a")).await;
    world.settled().await;
    producer.stop_now().await;
    end(&world, phase).await;
    world
}

/// Ends the one job there is as a worker does.
async fn end(world: &World, phase: Phase) {
    let slot = world
        .records
        .get(&common::tenant("acme"), &common::id("a"))
        .await
        .unwrap();
    let record = JobRecord {
        phase,
        attempts: 1,
        ..slot.record.unwrap()
    };
    let jobs = world.nats.jobs();
    for job in world.jobs().await {
        jobs.delete(&world.nats.names.jobs_stream(), job.seq)
            .await
            .unwrap();
    }
    world.records.save(&record, slot.revision).await.unwrap();
}

async fn send(world: &World, letter: u64) -> Vec<fairlane_nats::StoredMessage> {
    let producer = world.start();
    let body = job("a").to_string();
    world
        .publish("acme", redrive(letter), body.as_bytes())
        .await;
    world.settled().await;
    producer.stop_now().await;
    world.jobs().await
}

#[tokio::test]
async fn a_failed_job_runs_again_under_its_id_and_key_once_for_each_letter() {
    let world = after(Phase::Failed).await;
    let jobs = send(&world, 20).await;
    assert_eq!(jobs.len(), 1);
    assert_eq!(jobs[0].subject, "fl.jobs.batch.acme");
    assert_eq!(get(&jobs[0], "Fl-Job"), Some("a"));
    let came_from = Redrive::parse(get(&jobs[0], header::REDRIVE).unwrap()).unwrap();
    assert_eq!((came_from.letter, came_from.lineage.len()), (20, 1));
    let record = world.record("a").await.unwrap();
    assert_eq!((record.phase, record.attempts), (Phase::Queued, 0));
    assert_eq!(record.redrive_of, Some(20));
    assert_eq!(record.sequence, Some(jobs[0].seq));
    assert_eq!(world.key_owner("a").await.as_deref(), Some("a"));

    assert_eq!(send(&world, 20).await, jobs, "it is queued");
    end(&world, Phase::Failed).await;
    assert_eq!(send(&world, 20).await, [], "it ran");
    assert_eq!(send(&world, 19).await, [], "an older letter");
    assert_eq!(send(&world, 31).await.len(), 1, "its next letter");
}

#[tokio::test]
async fn a_letter_whose_job_has_a_result_is_not_paid_again() {
    for phase in [Phase::Done, Phase::Cancelled] {
        let world = after(phase).await;
        assert_eq!(send(&world, 20).await, []);
        assert_eq!(world.record("a").await.unwrap().phase, phase);
    }
}

#[tokio::test]
async fn a_producer_that_was_cut_off_before_the_job_was_stored_goes_on() {
    let world = after(Phase::Failed).await;
    let slot = world
        .records
        .get(&common::tenant("acme"), &common::id("a"))
        .await
        .unwrap();
    let record = JobRecord {
        phase: Phase::Queued,
        redrive_of: Some(20),
        sequence: None,
        ..slot.record.unwrap()
    };
    world.records.save(&record, slot.revision).await.unwrap();
    assert_eq!(send(&world, 20).await.len(), 1);
}
