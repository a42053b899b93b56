//! Large bodies that nothing names any more, on a real server.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use bytes::Bytes;
use common::{World, headers, id, tenant};
use fairlane_core::Priority;
use fairlane_nats::Original;
use fairlane_producer::Producer;
use fairlane_runtime::Metrics;
use fairlane_runtime::config::Settings;
use fairlane_wire::record::{JobRecord, Phase};
use fairlane_wire::{DeadReason, Failure, Letter, PartsPlan};

const HOUR_MS: u64 = 3_600_000;

/// A producer that looks as often as it is asked to, at what is older than this.
fn looking(world: &World, after_ms: u64) -> Producer {
    let mut settings = Settings::default();
    settings.producer.orphans_every_ms = 1;
    settings.producer.orphans_after_ms = after_ms;
    Producer::new(&settings, &world.nats, Metrics::new("producer")).unwrap()
}

async fn put(world: &World, name: &str) {
    let payloads = world.nats.payloads();
    let body = Bytes::from_static(b"a large body");
    payloads.put(name, &body, usize::MAX).await.unwrap();
}

/// Objects in the store, those included that only say that they were deleted.
async fn described(world: &World) -> usize {
    let jobs = world.nats.jobs();
    let counts = jobs.counts("OBJ_fl_payloads", "$O.fl_payloads.M.>");
    counts.await.unwrap().len()
}

#[tokio::test]
async fn exactly_the_bodies_that_nothing_names_are_deleted_when_they_are_found_twice() {
    let world = World::new().await;
    let (nats, payloads) = (&world.nats, world.nats.payloads());
    let named = [
        "acme.submitted",
        "acme.job",
        "acme.cut",
        "acme.letter",
        "acme.result-r",
        "acme.body-r",
        "acme.original-r",
        "acme.plan",
        "acme.plan-round1",
        "acme.with a space",
    ];
    for name in named
        .into_iter()
        .chain(["acme.late", "acme.orphan", "acme.other", "acme.gone"])
    {
        put(&world, name).await;
    }
    payloads.delete("acme.gone").await.unwrap();
    let claim = |name: &str| headers(&[("Fl-Claim", name)]);
    world.publish("acme", claim("acme.submitted"), b"").await;
    world.publish("acme", claim("acme.with a space"), b"").await;
    let lane = nats.names.job_subject(Priority::Batch, &tenant("acme"));
    let both = headers(&[("Fl-Claim", "acme.job"), ("Fl-Original", "acme.cut")]);
    let stored = nats.jobs().publish(&lane, None, both, Bytes::new()).await;
    stored.unwrap();
    let failure = Failure::new(DeadReason::Schema, "x");
    let letter =
        Letter::new(Some("acme".into()), id("l"), failure, 5).read_from("fl.submit.acme", 9);
    let original = Original {
        headers: &claim("acme.letter"),
        raw_headers: Some(Bytes::from_static(b"NATS/1.0\r\nA: \xff\r\n\r\n")),
        body: Bytes::new(),
    };
    nats.bury(&letter, original).await.unwrap();
    let mut record = JobRecord::new(tenant("acme"), id("r"), Phase::Done, 5);
    record.result_claim = Some("acme.result-r".into());
    record.body_claim = Some("acme.body-r".into());
    record.original_claim = Some("acme.original-r".into());
    world.put_record(&record).await;
    let plan = PartsPlan {
        tenant: tenant("acme"),
        job: id("p"),
        subject: "fl.submit.acme".into(),
        submission: 1,
        stored_ms: 5,
        headers: Vec::new(),
        traceparent: String::new(),
        original: "acme.plan".into(),
        source: "acme.plan-round1".into(),
        round: 2,
        summary_tokens: 300,
        parts: Vec::new(),
        sent_ms: 6,
    };
    let keys = nats.bucket(&nats.names.idem_bucket());
    let value = serde_json::to_vec(&plan).unwrap();
    let key = PartsPlan::key(&plan.tenant, &plan.job);
    keys.create(&key, value.into(), None).await.unwrap();

    // All of it is too young.
    let careful = looking(&world, HOUR_MS);
    assert_eq!(careful.sweep_orphans().await, Ok(0));
    assert_eq!(careful.sweep_orphans().await, Ok(0));
    let all = described(&world).await;
    assert_eq!(all, named.len() + 4 + 1, "and the headers of the letter");

    assert_eq!(
        looking(&world, 0).sweep_orphans().await,
        Ok(0),
        "only suspects so far"
    );
    assert_eq!(
        described(&world).await,
        all - 1,
        "what was deleted before needs no trace"
    );
    // Its owner is slow.
    record.job = id("late");
    record.result_claim = Some("acme.late".into());
    world.put_record(&record).await;
    // Another producer goes on from there.
    assert_eq!(looking(&world, 0).sweep_orphans().await, Ok(2));
    for gone in ["acme.orphan", "acme.other"] {
        assert!(!payloads.is_there(gone).await.unwrap(), "{gone}");
    }
    for name in named.into_iter().chain(["acme.late"]) {
        assert!(payloads.is_there(name).await.unwrap(), "{name}");
    }
    let whole = nats.letter(1).await.unwrap().unwrap();
    let kept = whole.letter.headers_claim.unwrap();
    assert!(payloads.is_there(&kept).await.unwrap());
}

#[tokio::test]
async fn many_producers_look_no_more_often_than_one() {
    let world = World::new().await;
    put(&world, "acme.orphan").await;
    let mut settings = Settings::default();
    settings.producer.orphans_after_ms = 0;
    for _ in 0..3 {
        let producer = Producer::new(&settings, &world.nats, Metrics::new("producer")).unwrap();
        assert_eq!(
            producer.sweep_orphans().await,
            Ok(0),
            "the second look is hours away"
        );
    }
}
