//! The whole road: publish a job with a plain client, get its result.

use fairlane_fleet_tests::{Fleet, Setup, job};
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
