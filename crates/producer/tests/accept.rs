//! Submissions that become jobs.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::collections::BTreeSet;

use bytes::Bytes;
use common::{World, get, headers, id, job, keyed, record_headers, start_with, tenant};
use fairlane_core::JobSeq;
use fairlane_nats::embedded::ServerOptions;
use fairlane_nats::objects::{self, ObjectOptions};
use fairlane_runtime::config::Settings;
use fairlane_support::{LIMIT, eventually};
use fairlane_wire::job::JobHeaders;
use fairlane_wire::record::{JobRecord, Phase};
use serde_json::json;

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

#[tokio::test]
async fn a_submission_becomes_a_job_with_headers_and_a_record() {
    let world = World::new().await;
    let producer = world.start();
    // Spaces that no serialiser would write: the bytes have to stay as they are.
    let body = format!(" {} ", job("a-1"));
    let sent = headers(&[
        ("traceparent", PARENT),
        ("tracestate", "vendor=1"),
        ("X-Own", "1"),
    ]);
    world.publish("acme", sent, body.as_bytes()).await;
    world.settled().await;

    let jobs = world.jobs().await;
    assert_eq!(jobs.len(), 1);
    assert_eq!(jobs[0].subject, "fl.jobs.critical.acme");
    assert_eq!(jobs[0].payload, body.as_bytes());
    let found = JobHeaders::parse(|name| get(&jobs[0], name)).unwrap();
    assert_eq!((found.job, found.key.as_str()), (id("a-1"), "a-1"));
    assert_eq!(found.pool.as_str(), "haiku-4.5");
    assert_eq!(found.tokens.output, 64);
    assert_eq!(found.traceparent.as_deref(), Some(PARENT));
    assert_eq!(found.tracestate.as_deref(), Some("vendor=1"));
    assert_eq!(get(&jobs[0], "X-Own"), None);

    let record = world.record("a-1").await.unwrap();
    assert_eq!(record.phase, Phase::Queued);
    assert_eq!(record.sequence.map(JobSeq), Some(JobSeq(jobs[0].seq)));
    assert_eq!(record.accepted_ms, found.accepted_ms);
    assert_eq!(record.priority.as_deref(), Some("critical"));
    let beside = record_headers(&world.nats, "a-1").await;
    assert_eq!(beside.get("Fl-Phase").unwrap().as_str(), "queued");
    assert!(beside.get("Nats-TTL").is_none());
    assert_eq!(world.key_owner("a-1").await.as_deref(), Some("a-1"));
    assert_eq!(world.letters().await, []);
    producer.end();
}

#[tokio::test]
async fn a_job_without_a_trace_or_with_a_broken_one_starts_its_own() {
    let world = World::new().await;
    let producer = world.start();
    world.submit(&job("a")).await;
    let body = job("b").to_string();
    let broken = headers(&[("traceparent", "00-zz-zz-01")]);
    world.publish("acme", broken, body.as_bytes()).await;
    world.settled().await;
    let jobs = world.jobs().await;
    let traces: BTreeSet<_> = jobs
        .iter()
        .map(|job| get(job, "traceparent").unwrap())
        .collect();
    assert_eq!(traces.len(), 2, "{traces:?}");
    assert!(
        traces
            .iter()
            .all(|trace| trace.starts_with("00-") && trace.len() == 55)
    );
    producer.end();
}

#[tokio::test]
async fn instructions_to_the_server_do_not_reach_the_job_stream() {
    let world = World::new().await;
    // The submit stream itself refuses some of them, so the others stand for all.
    let sent = headers(&[
        ("Nats-Msg-Id", "acme:mine"),
        ("nats-rollup", "all"),
        ("Nats-Foo", "1"),
    ]);
    let body = job("a").to_string();
    world.publish("acme", sent, body.as_bytes()).await;
    let producer = world.start();
    world.settled().await;
    let jobs = world.jobs().await;
    let names: Vec<String> = jobs[0]
        .headers
        .iter()
        .map(|(name, _)| name.to_string())
        .filter(|name| name.to_lowercase().starts_with("nats-"))
        .collect();
    assert_eq!(names, ["Nats-Msg-Id"]);
    assert!(
        get(&jobs[0], "Nats-Msg-Id")
            .unwrap()
            .starts_with("acme:ca978112")
    );
    producer.end();
}

#[tokio::test]
async fn an_id_published_again_is_the_same_job_before_and_after_its_end() {
    let world = World::new().await;
    let producer = world.start();
    world.submit(&job("a")).await;
    world.settled().await;
    world.submit(&job("a")).await;
    world.settled().await;
    assert_eq!(world.jobs().await.len(), 1);

    let mut done = world.record("a").await.unwrap();
    done.phase = Phase::Done;
    done.result = Some(json!({"content": []}));
    world.put_record(&done).await;
    let stream = world.nats.names.jobs_stream();
    world.nats.jobs().delete(&stream, 1).await.unwrap();
    world.submit(&job("a")).await;
    world.settled().await;
    assert_eq!(world.jobs().await, []);
    assert_eq!(world.record("a").await, Some(done));
    assert_eq!(world.letters().await, []);
    producer.end();
}

#[tokio::test]
async fn an_id_with_another_key_is_still_the_same_job() {
    let world = World::new().await;
    let producer = world.start();
    world.submit(&keyed("a", "first")).await;
    world.settled().await;
    world.submit(&keyed("a", "second")).await;
    world.settled().await;
    assert_eq!(world.jobs().await.len(), 1);
    producer.end();
}

#[tokio::test]
async fn a_key_under_another_id_points_to_the_first_job() {
    let world = World::new().await;
    let producer = world.start();
    world.submit(&keyed("a", "key")).await;
    world.settled().await;
    world.submit(&keyed("b", "key")).await;
    world.submit(&keyed("b", "key")).await;
    world.settled().await;
    assert_eq!(world.jobs().await.len(), 1);
    let record = world.record("b").await.unwrap();
    assert_eq!(record.same_as.as_deref(), Some("a"));
    assert_eq!((record.phase, record.sequence), (Phase::Accepted, None));
    assert_eq!(world.record("a").await.unwrap().same_as, None);
    producer.end();
}

#[tokio::test]
async fn the_same_key_of_two_tenants_is_two_jobs() {
    let world = World::new().await;
    let producer = world.start();
    let body = keyed("a", "key").to_string();
    world.publish("acme", headers(&[]), body.as_bytes()).await;
    world.publish("other", headers(&[]), body.as_bytes()).await;
    world.settled().await;
    assert_eq!(world.jobs().await.len(), 2);
    let slot = world.records.get(&tenant("other"), &id("a")).await.unwrap();
    assert_eq!(slot.record.unwrap().tenant, tenant("other"));
    producer.end();
}

#[tokio::test]
async fn a_producer_that_died_after_any_step_leaves_one_job() {
    for steps in 0..=3 {
        let world = World::new().await;
        let body = job("a");
        world.submit(&body).await;
        if steps >= 1 {
            world.take_key("a", "a").await;
        }
        if steps >= 2 {
            assert_eq!(world.queue("a", &body).await, 1);
        }
        if steps >= 3 {
            let mut record = JobRecord::new(tenant("acme"), id("a"), Phase::Queued, 5);
            record.sequence = Some(1);
            world.put_record(&record).await;
        }
        let producer = world.start();
        world.settled().await;
        let jobs = world.jobs().await;
        assert_eq!(jobs.len(), 1, "after {steps} steps");
        assert_eq!(jobs[0].payload, body.to_string().as_bytes());
        let record = world.record("a").await.unwrap();
        assert_eq!(
            (record.phase, record.sequence),
            (Phase::Queued, Some(1)),
            "after {steps} steps"
        );
        assert_eq!(world.key_owner("a").await.as_deref(), Some("a"));
        producer.end();
    }
}

#[tokio::test]
async fn a_worker_that_was_faster_keeps_its_record() {
    let world = World::new().await;
    let body = job("a");
    world.take_key("a", "a").await;
    world.queue("a", &body).await;
    let mut running = JobRecord::new(tenant("acme"), id("a"), Phase::Generating, 5);
    running.sequence = Some(1);
    running.deliveries = 1;
    world.put_record(&running).await;
    world.submit(&body).await;
    let producer = world.start();
    world.settled().await;
    assert_eq!(world.record("a").await, Some(running));
    producer.end();
}

#[tokio::test]
async fn a_job_whose_outcome_is_forgotten_runs_again() {
    let world = World::new().await;
    let body = job("a");
    world.take_key("a", "a").await;
    world.queue("a", &body).await;
    let stream = world.nats.names.jobs_stream();
    world.nats.jobs().delete(&stream, 1).await.unwrap();
    world.submit(&body).await;
    let producer = world.start();
    world.settled().await;
    let jobs = world.jobs().await;
    assert_eq!(jobs.len(), 1);
    assert_eq!(world.record("a").await.unwrap().sequence, Some(jobs[0].seq));
    producer.end();
}

#[tokio::test]
async fn a_body_in_an_object_is_measured_and_stays_there() {
    let world = World::new().await;
    let mut large = job("a");
    large["request"]["messages"][0]["content"] = "x".repeat(340_000).into();
    let body = large.to_string();
    let payloads = world.nats.payloads();
    payloads
        .put("acme.1", &body.into(), usize::MAX)
        .await
        .unwrap();
    world
        .publish("acme", headers(&[("Fl-Claim", "acme.1")]), b"")
        .await;
    let producer = world.start();
    world.settled().await;
    let jobs = world.jobs().await;
    assert_eq!(jobs.len(), 1);
    assert!(jobs[0].payload.is_empty());
    let found = JobHeaders::parse(|name| get(&jobs[0], name)).unwrap();
    assert_eq!(found.claim.as_deref(), Some("acme.1"));
    assert!(found.tokens.input > 100_000, "{:?}", found.tokens);
    producer.end();
}

#[tokio::test]
async fn a_body_that_is_too_long_for_its_model_is_cut_and_the_record_says_so() {
    let world = World::new().await;
    let mut long = job("a");
    long["request"]["messages"][0]["content"] = "水🌊é".repeat(300_000).into();
    let body = Bytes::from(long.to_string());
    let payloads = world.nats.payloads();
    payloads.put("acme.1", &body, usize::MAX).await.unwrap();
    world
        .publish("acme", headers(&[("Fl-Claim", "acme.1")]), b"")
        .await;
    let mut settings = Settings::default();
    let kind = fairlane_runtime::config::JobKind {
        oversize: "truncate".to_owned(),
        ..Default::default()
    };
    settings.kinds.insert("tagging".to_owned(), kind);
    let producer = start_with(&world.nats, &settings);
    world.settled().await;

    let jobs = world.jobs().await;
    assert_eq!(jobs.len(), 1);
    let found = JobHeaders::parse(|name| get(&jobs[0], name)).unwrap();
    // Fewer characters, but still too many bytes for a message.
    let name = found.claim.as_deref().filter(|name| *name != "acme.1");
    let stored = match name {
        Some(name) => payloads.get(name, usize::MAX).await.unwrap(),
        None => jobs[0].payload.clone(),
    };
    let stored: serde_json::Value = serde_json::from_slice(&stored).unwrap();
    let kept = stored["request"]["messages"][0]["content"]
        .as_str()
        .unwrap();
    let chars = kept.chars().count() as u64;
    assert!((180_000..190_000).contains(&chars), "{chars}");
    let record = world.record("a").await.unwrap();
    let truncated = &record.truncated[0];
    assert_eq!(truncated.field, "request.messages[0].content");
    assert_eq!((truncated.from_chars, truncated.to_chars), (900_000, chars));
    assert_eq!(found.truncated, record.truncated);
    assert!(world.letters().await.is_empty());
    producer.end();
}

#[tokio::test]
async fn a_body_that_has_no_room_beside_the_jobs_headers_moves_to_an_object() {
    let options = ServerOptions {
        max_payload: Some(64 * 1024),
        ..ServerOptions::default()
    };
    let world = World::with(options, &ObjectOptions::default()).await;
    let mut large = job("a");
    let rest = 64 * 1024 - large.to_string().len() - 16;
    large["metadata"] = "x".repeat(rest - "\"metadata\":\"\",".len()).into();
    let body = large.to_string();
    world.submit(&large).await;
    let producer = world.start();
    world.settled().await;
    let jobs = world.jobs().await;
    assert_eq!(jobs.len(), 1);
    let name = get(&jobs[0], "Fl-Claim").unwrap();
    let found = world.nats.payloads().get(name, usize::MAX).await.unwrap();
    assert_eq!(found, body.as_bytes());
    producer.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_producers_accept_five_hundred_jobs_exactly_once() {
    let world = World::new().await;
    let (one, two) = (world.server.connect().await, world.server.connect().await);
    let mut settings = Settings::default();
    settings.producer.max_in_flight = 32;
    let producers = [start_with(&one, &settings), start_with(&two, &settings)];
    // Each job twice, the second time far enough behind to meet the other producer.
    for _ in 0..2 {
        for number in 0..500 {
            world.submit(&job(&format!("j{number}"))).await;
        }
    }
    world.settled().await;
    let jobs = world.jobs().await;
    let ids: BTreeSet<_> = jobs.iter().map(|job| get(job, "Fl-Job").unwrap()).collect();
    assert_eq!((jobs.len(), ids.len()), (500, 500));
    for message in &jobs {
        let record = world.record(get(message, "Fl-Job").unwrap()).await.unwrap();
        assert_eq!(record.sequence, Some(message.seq));
    }
    assert_eq!(world.letters().await, []);
    for producer in producers {
        producer.end();
    }
}

#[tokio::test]
async fn a_submission_waits_while_the_job_stream_is_gone() {
    let world = World::new().await;
    let jobs = world.nats.names.jobs_stream();
    world.nats.jetstream.delete_stream(&jobs).await.unwrap();
    world.submit(&job("a")).await;
    let producer = world.start();
    eventually(LIMIT, "the key, which comes first", async || {
        world.key_owner("a").await.ok_or("nobody has it")
    })
    .await;
    assert_eq!(world.waiting().await, 1);
    objects::ensure(&world.nats, &ObjectOptions::default())
        .await
        .unwrap();
    world.settled().await;
    assert_eq!(world.jobs().await.len(), 1);
    assert_eq!(world.record("a").await.unwrap().sequence, Some(1));
    assert_eq!(world.letters().await, []);
    producer.end();
}

#[tokio::test]
async fn a_drain_finishes_what_is_in_hand_and_leaves_the_rest_untouched() {
    let world = World::new().await;
    for number in 0..600 {
        world.submit(&job(&format!("j{number}"))).await;
    }
    let producer = world.start();
    eventually(LIMIT, "the first job", async || {
        if world.waiting().await < 600 {
            return Ok(());
        }
        Err("none yet")
    })
    .await;
    producer.drain().await;

    let (jobs, left) = (world.jobs().await, world.waiting().await);
    assert_eq!(jobs.len() as u64 + left, 600);
    for message in &jobs {
        let record = world.record(get(message, "Fl-Job").unwrap()).await.unwrap();
        assert_eq!(record.sequence, Some(message.seq));
    }
    // What was handed back is delivered again at once, not after the ack wait.
    let producer = world.start();
    world.settled().await;
    assert_eq!(world.jobs().await.len(), 600);
    producer.end();
}

#[tokio::test]
async fn a_stop_at_once_loses_nothing() {
    let world = World::new().await;
    for number in 0..300 {
        world.submit(&job(&format!("j{number}"))).await;
    }
    let producer = world.start();
    eventually(LIMIT, "the first job", async || {
        if world.waiting().await < 300 {
            return Ok(());
        }
        Err("none yet")
    })
    .await;
    producer.stop_now().await;
    let producer = world.start();
    world.settled().await;
    let jobs = world.jobs().await;
    let ids: BTreeSet<_> = jobs.iter().map(|job| get(job, "Fl-Job").unwrap()).collect();
    assert_eq!((jobs.len(), ids.len()), (300, 300));
    producer.end();
}
