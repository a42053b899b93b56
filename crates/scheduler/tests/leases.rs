//! Leases that go away without anybody telling the leader.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Hand, Leader};
use fairlane_core::Priority;
use fairlane_runtime::config::Settings;
use fairlane_support::{TestNats, queue};

#[tokio::test]
async fn a_lease_that_is_gone_without_a_trace_frees_its_job() {
    let server = TestNats::start().await;
    queue(&server.nats, Priority::Batch, "acme", "a").await;
    let mut settings = Settings::default();
    settings.scheduler.unstarted_ttl_ms = 2_000;
    settings.scheduler.credit_ttl_ms = 2_000;
    let _leader = Leader::with(&server.nats, &settings);
    let mut hand = Hand::start(&server.nats, "w", 1).await;
    assert_eq!(hand.take().await.credit.delivery, 1);
    // No tombstone, no marker: the watch has nothing to tell.
    let leases = server.nats.jetstream.get_stream("KV_fl_credits").await;
    leases.unwrap().purge().await.unwrap();
    assert_eq!(hand.take().await.credit.delivery, 2);
}
