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
        if text == "acme/a-1: no worker is there; start one\n" {
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
