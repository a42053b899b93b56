//! Settings of tenants that change while their jobs wait.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::float_cmp, reason = "whole numbers")]

mod common;

use std::collections::VecDeque;
use std::time::Duration;

use common::{Hand, Leader};
use fairlane_core::Priority;
use fairlane_nats::{HeaderMap, Nats, Revision};
use fairlane_support::{LIMIT, TestNats, queue, within};
use fairlane_wire::header;
use futures::StreamExt;

/// Queues `jobs` for each of two tenants.
async fn backlog(nats: &Nats, jobs: usize) {
    let jobs = (0..jobs).flat_map(|number| ["acme", "other"].map(|tenant| (tenant, number)));
    let queued = futures::stream::iter(jobs).for_each_concurrent(64, async |(tenant, number)| {
        queue(nats, Priority::Batch, tenant, &format!("{tenant}-{number}")).await;
    });
    queued.await;
}

async fn put(nats: &Nats, tenant: &str, record: &str) -> Revision {
    let tenants = nats.bucket(&nats.names.tenants_bucket());
    let put = tenants.put(tenant, record.to_owned().into(), None);
    put.await.unwrap()
}

/// Works until acme had `wanted` of the last 16 turns.
async fn until_acme_gets(hand: &mut Hand, wanted: usize) {
    let mut turns = VecDeque::new();
    let work = async {
        loop {
            turns.push_back(hand.work().await);
            if turns.len() > 16 {
                turns.pop_front();
            }
            let got = turns.iter().filter(|tenant| *tenant == "acme").count();
            if turns.len() == 16 && got == wanted {
                return;
            }
        }
    };
    within(LIMIT, &format!("{wanted} of 16 turns"), work).await;
}

#[tokio::test]
async fn a_weight_acts_at_once_on_queued_work_and_a_deleted_record_gives_way() {
    let server = TestNats::start().await;
    backlog(&server.nats, 600).await;
    let _leader = Leader::start(&server.nats);
    let mut hand = Hand::start(&server.nats, "w", 1).await;
    until_acme_gets(&mut hand, 8).await;
    put(&server.nats, "acme", r#"{"plan": "pro"}"#).await;
    until_acme_gets(&mut hand, 12).await;
    let last = put(&server.nats, "acme", r#"{"weight": 0.3333}"#).await;
    until_acme_gets(&mut hand, 4).await;
    let tenants = server.nats.bucket("fl_tenants");
    let gone = tenants.tombstone_if("acme", last, "".into(), Duration::from_secs(60));
    gone.await.unwrap();
    until_acme_gets(&mut hand, 8).await;
}

#[tokio::test]
async fn a_wrong_record_leaves_what_held_before() {
    let server = TestNats::start().await;
    backlog(&server.nats, 300).await;
    put(&server.nats, "acme", r#"{"weight": 3}"#).await;
    let _leader = Leader::start(&server.nats);
    let mut hand = Hand::start(&server.nats, "w", 1).await;
    until_acme_gets(&mut hand, 12).await;
    put(&server.nats, "acme", r#"{"weight": -3}"#).await;
    put(&server.nats, "other", r#"{"colour": "red"}"#).await;
    // A later, good one tells that those before were seen.
    put(&server.nats, "other", r#"{"in_flight_max": 1}"#).await;
    for _ in 0..32 {
        hand.work().await;
    }
    until_acme_gets(&mut hand, 12).await;
}

#[tokio::test]
async fn a_cap_acts_at_once_on_queued_work() {
    let server = TestNats::start().await;
    backlog(&server.nats, 20).await;
    put(&server.nats, "acme", r#"{"in_flight_max": 1}"#).await;
    put(&server.nats, "other", r#"{"in_flight_max": 1}"#).await;
    let leader = Leader::start(&server.nats);
    let mut hand = Hand::start(&server.nats, "w", 8).await;
    let first = hand.take().await.credit.tenant;
    let second = hand.take().await.credit.tenant;
    assert_ne!(first, second);
    put(&server.nats, "acme", r#"{"in_flight_max": 3}"#).await;
    for _ in 0..2 {
        assert_eq!(hand.take().await.credit.tenant.as_str(), "acme");
    }
    leader
        .shows("fairlane_credits_live", |live| live == 4.0)
        .await;
}

#[tokio::test]
async fn a_tenant_far_beyond_its_budget_is_served_as_batch() {
    let server = TestNats::start().await;
    let nats = &server.nats;
    for (tenant, tokens) in [("acme", "90000"), ("acme", "61000"), ("other", "149000")] {
        let mut headers = HeaderMap::new();
        headers.insert(header::INPUT_TOKENS, tokens);
        let subject = nats.names.ledger_subject(&common::tenant(tenant));
        let jobs = nats.jobs();
        let booked = jobs.publish(&subject, None, headers, "{}".into()).await;
        booked.unwrap();
    }
    for tenant in ["acme", "other"] {
        queue(nats, Priority::Standard, tenant, "a").await;
    }
    let leader = Leader::start(nats);
    leader
        .shows("claude_demoted_tenants", |count| count == 1.0)
        .await;
    let mut hand = Hand::start(nats, "w", 2).await;
    for _ in 0..2 {
        let credit = hand.take().await.credit;
        let served_as = match credit.tenant.as_str() {
            "acme" => Priority::Batch,
            _ => Priority::Standard,
        };
        assert_eq!(credit.priority, served_as, "{credit:?}");
    }
}
