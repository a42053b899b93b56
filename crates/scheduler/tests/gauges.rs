//! What a leader exports about itself.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::float_cmp, reason = "whole numbers")]

mod common;

use common::{Hand, Leader};
use fairlane_core::Priority;
use fairlane_runtime::config::Settings;
use fairlane_support::{TestNats, queue};
use fairlane_wire::lease::{DeliveryOutcome, Refused};

#[tokio::test]
async fn a_leader_shows_its_queues_limits_and_term() {
    let server = TestNats::start().await;
    for (priority, job) in [
        (Priority::Critical, "a"),
        (Priority::Batch, "b"),
        (Priority::Batch, "c"),
    ] {
        queue(&server.nats, priority, "acme", job).await;
    }
    let mut settings = Settings::default();
    settings.limits.preset = "tier1".to_owned();
    let leader = Leader::with(&server.nats, &settings);
    for (series, expected) in [
        (r#"claude_queue_depth{priority="critical"}"#, 1.0),
        (r#"claude_queue_depth{priority="standard"}"#, 0.0),
        (r#"claude_queue_depth{priority="batch"}"#, 2.0),
        ("claude_demoted_tenants", 0.0),
        (r#"fairlane_breaker_state{pool="haiku-4.5"}"#, 0.0),
        (r#"fairlane_pauses{scope="pool"}"#, 0.0),
        ("fairlane_leader", 1.0),
    ] {
        leader.shows(series, |value| value == expected).await;
    }
    leader.shows("fairlane_term", |term| term >= 1.0).await;
    let oldest = r#"fairlane_queue_oldest_seconds{priority="batch"}"#;
    leader.shows(oldest, |seconds| seconds >= 1.0).await;
    assert_eq!(leader.value("fairlane_first_grant_seconds"), None);

    let mut hand = Hand::start(&server.nats, "w", 1).await;
    let grant = hand.take().await;
    leader
        .shows("fairlane_first_grant_seconds", |seconds| seconds > 0.0)
        .await;
    leader
        .shows("fairlane_credits_live", |live| live == 1.0)
        .await;
    let used = r#"fairlane_limit_used_ratio{bucket="output_tokens",pool="haiku-4.5"}"#;
    leader.shows(used, |part| part > 0.0 && part <= 1.0).await;
    hand.settle(grant, |settlement| {
        settlement.outcome = DeliveryOutcome::Returned;
        settlement.refused = Some(Refused::RateLimit);
    })
    .await;
    let throttles = r#"claude_throttle_count{tenant_id="acme"}"#;
    leader.shows(throttles, |count| count == 1.0).await;
    leader.stop().await;
}

#[tokio::test]
async fn a_credit_that_nobody_began_is_counted_as_expired() {
    let server = TestNats::start().await;
    queue(&server.nats, Priority::Batch, "acme", "a").await;
    let mut settings = Settings::default();
    settings.scheduler.unstarted_ttl_ms = 1_000;
    let leader = Leader::with(&server.nats, &settings);
    let mut hand = Hand::start(&server.nats, "w", 1).await;
    assert_eq!(hand.take().await.credit.delivery, 1);
    assert_eq!(hand.take().await.credit.delivery, 2);
    let expired = leader.value("fairlane_credits_expired_total");
    assert_eq!(expired, Some(1.0));
}
