//! How many worker slots a leader asks for.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::float_cmp, reason = "whole numbers")]

mod common;

use common::{Hand, Leader};
use fairlane_core::Priority;
use fairlane_nats::Nats;
use fairlane_runtime::config::Settings;
use fairlane_support::{LIMIT, TestNats, eventually, queue};
use fairlane_wire::AutoscaleRecord;

/// Waits for a signal of which `right` is true.
async fn signal(
    nats: &Nats,
    what: &str,
    right: impl Fn(&AutoscaleRecord) -> bool,
) -> AutoscaleRecord {
    let bucket = nats.bucket(&nats.names.control_bucket());
    let key = nats.names.autoscale_key();
    eventually(LIMIT, what, || async {
        let entry = bucket.get(key).await.map_err(|error| error.to_string())?;
        let entry = entry.ok_or("nothing is stored")?;
        let value = entry.value().ok_or("it was deleted")?;
        let record: AutoscaleRecord =
            serde_json::from_slice(value).map_err(|error| error.to_string())?;
        if right(&record) {
            Ok(record)
        } else {
            Err(format!("{record:?}"))
        }
    })
    .await
}

#[tokio::test]
async fn a_leader_asks_for_slots_and_the_next_one_goes_on_from_there() {
    let server = TestNats::start().await;
    let nats = &server.nats;
    for number in 0..30 {
        queue(nats, Priority::Critical, "acme", &format!("job-{number}")).await;
    }
    let mut settings = Settings::default();
    // 10 s each, 30 in 30 s: ten slots, and one for critical work to come; the limit allows nine.
    settings.limits.preset = "tier1".to_owned();
    let leader = Leader::with(nats, &settings);
    let first = signal(nats, "a signal", |_| true).await;
    assert_eq!((first.wanted_slots, first.reason.as_str()), (11, "demand"));
    assert_eq!(first.terms.in_flight, 0);
    let wanted = r#"fairlane_wanted_slots{pool="default"}"#;
    leader.shows(wanted, |slots| slots == 11.0).await;
    for (term, slots) in [("demand", 10.0), ("in_flight", 0.0)] {
        let series = format!(r#"fairlane_wanted_slots_term{{pool="default",term="{term}"}}"#);
        leader.shows(&series, |value| value == slots).await;
    }
    for (reason, decides) in [("demand", 1.0), ("rpm", 0.0), ("breaker", 0.0)] {
        let series = format!(r#"fairlane_autoscale_reason{{reason="{reason}"}}"#);
        leader.shows(&series, |value| value == decides).await;
    }
    leader.stop().await;

    // All but one are gone, and the next leader does not take that for less work yet.
    let jobs = nats.jobs();
    for seq in 2..=30 {
        jobs.delete(&nats.names.jobs_stream(), seq).await.unwrap();
    }
    let next = Leader::with(nats, &settings);
    let second = signal(nats, "the next leader", |record| record.term > first.term).await;
    assert_eq!((second.wanted_slots, second.terms.demand), (11, 1));
    next.stop().await;
}

#[tokio::test]
async fn what_runs_counts_and_a_closed_limit_is_named() {
    let server = TestNats::start().await;
    let nats = &server.nats;
    for number in 0..300 {
        queue(nats, Priority::Critical, "acme", &format!("job-{number}")).await;
    }
    let mut settings = Settings::default();
    settings.limits.preset = "tier1".to_owned();
    let leader = Leader::with(nats, &settings);
    let mut hand = Hand::start(nats, "w", 4).await;
    for _ in 0..4 {
        hand.take().await;
    }
    let record = signal(nats, "four in flight", |record| record.terms.in_flight == 4).await;
    // 50 requests a minute of 10 s, 15 % more, and one for critical work.
    assert_eq!((record.wanted_slots, record.reason.as_str()), (11, "rpm"));
    assert!(record.text.contains("would sit idle"), "{}", record.text);
    leader.stop().await;
}
