//! Submissions that become dead letters.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::{Running, World, get, headers, id, job, keyed, letter_of, record_headers, tenant};
use fairlane_nats::embedded::ServerOptions;
use fairlane_nats::objects::ObjectOptions;
use fairlane_wire::job::assigned_id;
use fairlane_wire::letter::{DeadReason, Failure};
use fairlane_wire::record::{JobRecord, Phase};
use serde_json::{Value, json};

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

async fn world() -> (World, Running) {
    let world = World::new().await;
    let producer = world.start();
    (world, producer)
}

/// The one dead letter there is, checked against its body and its record.
async fn only_letter(world: &World, body: &[u8], reason: DeadReason) -> Failure {
    world.settled().await;
    let letters = world.letters().await;
    assert_eq!(letters.len(), 1);
    let message = &letters[0];
    assert_eq!(message.subject, format!("fl.dlq.{reason}.acme"));
    assert_eq!(message.payload, body);
    let letter = letter_of(message);
    assert_eq!(letter.failure.reason, reason);
    assert_eq!(letter.tenant.as_deref(), Some("acme"));
    assert_eq!(letter.subject, "fl.submit.acme");
    assert_eq!(get(message, "Fl-Reason"), Some(reason.as_str()));
    assert_eq!(get(message, "Fl-Job"), Some(letter.job.as_str()));

    let record = world.record(letter.job.as_str()).await.unwrap();
    assert_eq!(record.phase, Phase::Failed);
    assert_eq!(record.failure.as_ref(), Some(&letter.failure));
    let beside = record_headers(&world.nats, letter.job.as_str()).await;
    assert_eq!(beside.get("Fl-Phase").unwrap().as_str(), "failed");
    assert_eq!(beside.get("Fl-Reason").unwrap().as_str(), reason.as_str());
    let life = beside.get("Nats-TTL").unwrap().as_str();
    assert_eq!(life.trim_end_matches('s'), "86400");
    letter.failure
}

fn changed(path: &str, value: Value) -> Value {
    let mut job = job("a");
    *job.pointer_mut(path).unwrap() = value;
    job
}

#[tokio::test]
async fn each_reason_has_its_letter_byte_for_byte_and_its_record() {
    let mut late = job("a");
    late["deadline_ms"] = 5.into();
    let cases: [(Vec<u8>, DeadReason); 7] = [
        (
            b"{\"id\":\"a\",\xff\r\n\0}".to_vec(),
            DeadReason::Undecodable,
        ),
        (Vec::new(), DeadReason::Undecodable),
        (b"{\"id\": \"a\"}".to_vec(), DeadReason::InvalidJob),
        (
            changed("/request/model", json!("claude-m\u{fc}de-1"))
                .to_string()
                .into(),
            DeadReason::InvalidJob,
        ),
        (
            changed("/request/model", json!("claude-none"))
                .to_string()
                .into(),
            DeadReason::UnknownModel,
        ),
        (
            changed("/request/messages/0/content", json!("x".repeat(700_000)))
                .to_string()
                .into(),
            DeadReason::Oversize,
        ),
        (late.to_string().into(), DeadReason::Expired),
    ];
    for (body, reason) in cases {
        let (world, producer) = world().await;
        world.publish("acme", headers(&[]), &body).await;
        only_letter(&world, &body, reason).await;
        assert_eq!(world.jobs().await, [], "{reason}");
        producer.end();
    }
}

#[tokio::test]
async fn a_letter_keeps_all_of_the_publishers_headers_but_obeys_none() {
    let (world, producer) = world().await;
    let sent = headers(&[
        ("X-Own", "1"),
        ("X-Own", "2"),
        ("Fl-Line", "17"),
        ("Nats-Foo", "1"),
        ("Fl-Reason", "mine"),
        ("traceparent", PARENT),
    ]);
    world.publish("acme", sent.clone(), b"{}").await;
    only_letter(&world, b"{}", DeadReason::InvalidJob).await;
    let letters = world.letters().await;
    let read = world.nats.letter(letters[0].seq).await.unwrap().unwrap();
    assert_eq!(read.headers, sent);
    let trace = PARENT.split('-').nth(1);
    assert_eq!(read.letter.trace_id.as_deref(), trace);
    let own: Vec<_> = letters[0]
        .headers
        .get_all("X-Own")
        .map(|v| v.as_str())
        .collect();
    assert_eq!(own, ["1", "2"]);
    assert_eq!(get(&letters[0], "Fl-Line"), Some("17"));
    assert_eq!(get(&letters[0], "Nats-Foo"), None);
    assert_eq!(get(&letters[0], "traceparent"), Some(PARENT));
    assert!(
        producer
            .metrics
            .render()
            .contains("fairlane_jobs_total{outcome=\"dead\"} 1")
    );
    producer.end();
}

#[tokio::test]
async fn a_submission_that_is_nearly_all_headers_is_buried_too() {
    let (world, producer) = world().await;
    let large = "x".repeat(60_000);
    let sent = headers(&[("A-Large", &large), ("Fl-Line", "17"), ("X-Own", "1")]);
    world.publish("acme", sent, b"{}").await;
    only_letter(&world, b"{}", DeadReason::InvalidJob).await;
    let letters = world.letters().await;
    assert_eq!(get(&letters[0], "X-Own"), Some("1"));
    assert_eq!(get(&letters[0], "Fl-Line"), Some("17"));
    assert_eq!(get(&letters[0], "A-Large"), None);
    let claim = letter_of(&letters[0]).headers_claim.unwrap();
    let kept = world.nats.payloads().get(&claim, usize::MAX).await.unwrap();
    let kept = String::from_utf8(kept.to_vec()).unwrap();
    assert!(kept.contains(&format!("A-Large: {large}\r\n")));
    producer.end();
}

#[tokio::test]
async fn a_body_that_has_no_room_beside_the_letter_moves_to_an_object() {
    let options = ServerOptions {
        max_payload: Some(64 * 1024),
        ..ServerOptions::default()
    };
    let world = World::with(options, &ObjectOptions::default()).await;
    let body = vec![0xff; 64 * 1024];
    world.publish("acme", headers(&[]), &body).await;
    let producer = world.start();
    only_letter(&world, b"", DeadReason::Undecodable).await;
    let letters = world.letters().await;
    let name = get(&letters[0], "Fl-Claim").unwrap();
    let found = world.nats.payloads().get(name, usize::MAX).await.unwrap();
    assert_eq!(found, body);
    let read = world.nats.letter(letters[0].seq).await.unwrap().unwrap();
    assert_eq!(read.body, body);
    producer.end();
}

#[tokio::test]
async fn a_name_that_cannot_be_a_tenant_is_buried_under_unknown() {
    let (world, producer) = world().await;
    let body = job("a").to_string();
    world
        .publish("wall+paper", headers(&[]), body.as_bytes())
        .await;
    world.settled().await;
    let letters = world.letters().await;
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].subject, "fl.dlq.invalid_tenant.unknown");
    assert_eq!(letters[0].payload, body.as_bytes());
    let letter = letter_of(&letters[0]);
    assert_eq!((letter.tenant, letter.job), (None, id("a")));
    let slot = world
        .records
        .get(&tenant("unknown"), &id("a"))
        .await
        .unwrap();
    assert_eq!(slot.record, None);
    producer.end();
}

#[tokio::test]
async fn foreign_missing_and_oversized_objects_are_refused() {
    let (world, producer) = world().await;
    let payloads = world.nats.payloads();
    let body = job("a").to_string();
    payloads
        .put("other.1", &body.into(), usize::MAX)
        .await
        .unwrap();
    world
        .publish("acme", headers(&[("Fl-Claim", "other.1")]), b"")
        .await;
    world.settled().await;
    let foreign = world.letters().await[0].seq;
    let foreign = world.nats.letter(foreign).await.unwrap().unwrap();
    assert_eq!(foreign.body, "", "another tenant's body");
    world
        .publish("acme", headers(&[("Fl-Claim", "acme.1")]), b"")
        .await;
    world.settled().await;
    payloads
        .put("acme.2", &vec![b' '; 33 << 20].into(), usize::MAX)
        .await
        .unwrap();
    world
        .publish("acme", headers(&[("Fl-Claim", "acme.2")]), b"")
        .await;
    world.settled().await;
    let letters = world.letters().await;
    let told: Vec<_> = letters
        .iter()
        .map(|message| {
            assert!(message.payload.is_empty());
            let failure = letter_of(message).failure;
            assert_eq!(failure.field.as_deref(), Some("Fl-Claim"));
            (
                get(message, "Fl-Claim").unwrap(),
                failure.reason,
                failure.message,
            )
        })
        .collect();
    assert_eq!(
        told,
        [
            (
                "other.1",
                DeadReason::InvalidJob,
                "object \"other.1\" is not one of tenant acme".into()
            ),
            (
                "acme.1",
                DeadReason::InvalidJob,
                "payload acme.1 does not exist".into()
            ),
            (
                "acme.2",
                DeadReason::Oversize,
                "payload acme.2 has 34603008 bytes; at most 33554432 are allowed".into()
            ),
        ]
    );
    assert_eq!(world.jobs().await, []);
    producer.end();
}

#[tokio::test]
async fn a_full_lane_refuses_with_the_limit_and_lets_the_job_come_again() {
    let objects = ObjectOptions {
        backlog_per_tenant_max: 2,
        ..ObjectOptions::default()
    };
    let world = World::with(ServerOptions::default(), &objects).await;
    let producer = world.start();
    for name in ["a", "b", "c"] {
        world.submit(&job(name)).await;
        world.settled().await;
    }
    let body = job("c").to_string();
    let failure = only_letter(&world, body.as_bytes(), DeadReason::BacklogFull).await;
    assert!(
        failure.message.contains("has 2 critical jobs waiting"),
        "{}",
        failure.message
    );
    assert_eq!(world.key_owner("c").await, None);

    let stream = world.nats.names.jobs_stream();
    world.nats.jobs().delete(&stream, 1).await.unwrap();
    world.submit(&job("c")).await;
    world.settled().await;
    assert_eq!(world.jobs().await.len(), 2);
    let record = world.record("c").await.unwrap();
    assert_eq!((record.phase, record.sequence), (Phase::Queued, Some(3)));
    assert_eq!(record.failure, None);
    assert_eq!(world.key_owner("c").await.as_deref(), Some("c"));
    producer.end();
}

#[tokio::test]
async fn who_pointed_to_a_refused_job_may_come_again_too() {
    let objects = ObjectOptions {
        backlog_per_tenant_max: 1,
        ..ObjectOptions::default()
    };
    let world = World::with(ServerOptions::default(), &objects).await;
    world.take_key("owner", "key").await;
    let producer = world.start();
    world.submit(&job("first")).await;
    world.submit(&keyed("b", "key")).await;
    world.settled().await;
    assert_eq!(
        world.record("b").await.unwrap().same_as.as_deref(),
        Some("owner")
    );
    // The owner finds no room and loses its key.
    world.submit(&keyed("owner", "key")).await;
    world.settled().await;
    assert_eq!(world.record("owner").await.unwrap().phase, Phase::Failed);
    world
        .nats
        .jobs()
        .delete(&world.nats.names.jobs_stream(), 1)
        .await
        .unwrap();
    world.submit(&keyed("b", "key")).await;
    world.settled().await;
    let record = world.record("b").await.unwrap();
    assert_eq!((record.same_as, record.sequence), (None, Some(2)));
    producer.end();
}

#[tokio::test]
async fn a_broken_resubmission_does_not_damage_the_first_ones_record() {
    let (world, producer) = world().await;
    world.submit(&job("a")).await;
    world.settled().await;
    let queued = world.record("a").await;
    let broken = br#"{"id":"a","x":"#;
    let seq = world.publish("acme", headers(&[]), broken).await;
    world.settled().await;
    assert_eq!(world.record("a").await, queued);
    let letters = world.letters().await;
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].payload, &broken[..]);
    let own = letter_of(&letters[0]).job;
    assert!(own.as_str().ends_with(&format!("-{seq}")), "{own}");
    assert_eq!(
        world.record(own.as_str()).await.unwrap().phase,
        Phase::Failed
    );
    producer.end();
}

#[tokio::test]
async fn each_broken_submission_of_one_id_has_its_own_letter_until_it_is_repaired() {
    let (world, producer) = world().await;
    for body in [&br#"{"id":"a","x":"#[..], br#"{"id":"a","y":"#] {
        world.publish("acme", headers(&[]), body).await;
        world.settled().await;
    }
    let bodies: Vec<_> = world
        .letters()
        .await
        .iter()
        .map(|letter| letter.payload.clone())
        .collect();
    assert_eq!(bodies, [&br#"{"id":"a","x":"#[..], br#"{"id":"a","y":"#]);
    world.submit(&job("a")).await;
    world.settled().await;
    let record = world.record("a").await.unwrap();
    assert_eq!((record.phase, record.sequence), (Phase::Queued, Some(1)));
    producer.end();
}

#[tokio::test]
async fn a_producer_that_died_while_refusing_leaves_one_letter() {
    for steps in 0..=2 {
        let world = World::new().await;
        let body = br#"{"id":"a","x":"#;
        let seq = world.publish("acme", headers(&[]), body).await;
        let stream = world.nats.names.submit_stream();
        let stored = world.nats.jobs().get(&stream, seq).await.unwrap().unwrap();
        let failure = Failure::new(DeadReason::Undecodable, "as an earlier delivery found");
        if steps >= 1 {
            let id = format!("dlq-submit:{}", assigned_id(stored.stored_ms, seq));
            let sent = headers(&[("Fl-Job", "a"), ("Fl-Reason", "undecodable")]);
            let jobs = world.nats.jobs();
            jobs.publish("fl.dlq.undecodable.acme", Some(&id), sent, body[..].into())
                .await
                .unwrap();
        }
        if steps >= 2 {
            let mut record = JobRecord::new(tenant("acme"), id("a"), Phase::Failed, 5);
            record.failure = Some(failure);
            world.put_record(&record).await;
        }
        let producer = world.start();
        world.settled().await;
        let letters = world.letters().await;
        assert_eq!(letters.len(), 1, "after {steps} steps");
        assert_eq!(letters[0].payload, &body[..]);
        let record = world.record("a").await.unwrap();
        assert_eq!(record.phase, Phase::Failed, "after {steps} steps");
        producer.end();
    }
}

#[tokio::test]
async fn a_submission_waits_while_the_dead_letter_stream_is_gone() {
    let world = World::new().await;
    let dlq = world.nats.names.dlq_stream();
    world.nats.jetstream.delete_stream(&dlq).await.unwrap();
    world.publish("acme", headers(&[]), b"{}").await;
    let producer = world.start();
    // Others are not held up by it.
    world.submit(&job("a")).await;
    fairlane_support::eventually(fairlane_support::LIMIT, "the good job", async || {
        if world.jobs().await.len() == 1 && world.waiting().await == 1 {
            return Ok(());
        }
        Err("not yet")
    })
    .await;
    fairlane_nats::objects::ensure(&world.nats, &ObjectOptions::default())
        .await
        .unwrap();
    only_letter(&world, b"{}", DeadReason::InvalidJob).await;
    producer.end();
}
