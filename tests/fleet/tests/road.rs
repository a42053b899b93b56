//! The whole road: publish a job with a plain client, get its result.

use fairlane_fleet_tests::{Fleet, PATIENCE, Setup, job};
use fairlane_support::eventually;
use fairlane_wire::Phase;

const PROGRAM: &str = env!("CARGO_BIN_EXE_fairlane-under-test");

#[tokio::test]
async fn a_published_job_is_answered_paid_once_and_leaves_nothing_behind() {
    let fleet = Fleet::start(PROGRAM, Setup::default()).await;
    fleet
        .publish("acme", job("a-1", "Give five search tags as JSON."))
        .await;
    let record = fleet.phase("acme", "a-1", Phase::Done).await;
    assert_eq!((record.attempts, record.deliveries), (1, 1));
    assert!(record.cost_usd.is_some_and(|usd| usd > 0.0));
    assert_eq!(record.result.as_ref().unwrap()["stop_reason"], "end_turn");

    let books = fleet.settled().await;
    assert_eq!((books.calls, books.ambiguous, books.letters), (1, 0, 0));
    let paid: Vec<_> = fleet
        .sim
        .log()
        .into_iter()
        .filter(|call| call.billed)
        .collect();
    assert_eq!(paid.len(), 1);
    assert_eq!(paid[0].job.as_deref(), Some("a-1"));
}

#[tokio::test]
async fn a_waiting_job_says_what_it_waits_for() {
    let fleet = Fleet::start(
        PROGRAM,
        Setup {
            workers: 0,
            ..Setup::default()
        },
    )
    .await;
    fleet.publish("acme", job("a-1", "tags")).await;
    fleet.phase("acme", "a-1", Phase::Queued).await;
    let why = async |arguments: &[&str]| {
        let output = fleet.run(arguments).await;
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    // The record is there a moment before the leader has seen the job.
    eventually(PATIENCE, "the leader to know the job", || async {
        let text = why(&["why", "acme/a-1"]).await;
        if text.starts_with("acme/a-1: no worker is there; start one\n") {
            Ok(())
        } else {
            Err(text)
        }
    })
    .await;
    let worker = fleet.spawn("worker");
    fleet.phase("acme", "a-1", Phase::Done).await;
    let text = why(&["why", "a-1", "-o", "json"]).await;
    let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["reason"], "done", "{text}");
    drop(worker);
}

#[tokio::test]
async fn jobs_whose_deadline_passes_while_they_wait_become_letters_and_hold_up_nobody() {
    let fleet = Fleet::start(
        PROGRAM,
        Setup {
            workers: 0,
            ..Setup::default()
        },
    )
    .await;
    let soon = std::time::SystemTime::now() + std::time::Duration::from_secs(3);
    let soon = soon
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_millis();
    for number in 0..200 {
        let body = job(&format!("late-{number}"), "tags");
        let body = body.replacen('{', &format!("{{\"deadline_ms\":{soon},"), 1);
        fleet.publish("acme", body).await;
    }
    fleet.publish("bolt", job("in-time", "tags")).await;
    let stream = fleet.client().names.jobs_stream();
    eventually(
        PATIENCE,
        "the deadline to pass with all jobs queued",
        || async {
            let mut stream = fleet
                .client()
                .jetstream
                .get_stream(&stream)
                .await
                .map_err(|e| e.to_string())?;
            let queued = stream
                .info()
                .await
                .map_err(|e| e.to_string())?
                .state
                .messages;
            let now = std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .unwrap();
            if queued == 201 && now.as_millis() > soon {
                Ok(())
            } else {
                Err(format!("{queued} queued"))
            }
        },
    )
    .await;
    let _worker = fleet.spawn("worker");
    fleet.phase("bolt", "in-time", Phase::Done).await;
    let books = fleet.settled().await;
    assert_eq!(
        (books.in_phase(Phase::Failed), books.letters, books.calls),
        (200, 200, 1),
        "{books:?}"
    );
    let record = fleet.record("acme", "late-0").await.unwrap();
    assert_eq!(record.failure.unwrap().reason.as_str(), "expired");
}
