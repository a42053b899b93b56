//! Submissions whose deliveries are used up.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::time::Duration;

use common::{World, get, headers, job, letter_of};
use fairlane_nats::embedded::ServerOptions;
use fairlane_nats::objects::ObjectOptions;
use fairlane_support::{LIMIT, eventually};
use fairlane_wire::DeadReason;

/// A world in which a submission is delivered twice only.
async fn world() -> World {
    let objects = ObjectOptions {
        submit_ack_wait: Duration::from_secs(1),
        submit_max_deliver: 2,
        ..ObjectOptions::default()
    };
    World::with(ServerOptions::default(), &objects).await
}

/// Makes a stream refuse all messages, or take them again.
async fn refuse(world: &World, stream: &str, refuses: bool) {
    let stream = world.nats.jetstream.get_stream(stream).await.unwrap();
    let mut config = stream.cached_info().config.clone();
    config.max_message_size = if refuses { 1 } else { -1 };
    world.nats.jetstream.update_stream(config).await.unwrap();
}

/// Waits until everything in the submit stream is stranded.
async fn all_stranded(world: &World, count: u64) {
    eventually(LIMIT, "deliveries to be used up", async || {
        let stream = world.nats.jetstream.get_stream("FL_SUBMIT").await.unwrap();
        let info = stream.consumer_info("producer").await.unwrap();
        let (waiting, pending) = (world.waiting().await, info.num_ack_pending as u64);
        if waiting == count && pending + info.num_pending == 0 {
            Ok(())
        } else {
            Err(format!("{waiting} there, {pending} pending"))
        }
    })
    .await;
}

async fn emptied(world: &World) {
    eventually(
        LIMIT,
        "the stranded to be dealt with",
        async || match world.waiting().await {
            0 => Ok(()),
            waiting => Err(waiting),
        },
    )
    .await;
}

#[tokio::test]
async fn letters_that_could_not_be_written_are_written_once_after_the_outage() {
    let world = world().await;
    refuse(&world, "FL_DLQ", true).await;
    let producer = world.start();
    let bodies: Vec<String> = (0..20).map(|number| format!("broken {number}")).collect();
    for body in &bodies {
        world.publish("acme", headers(&[]), body.as_bytes()).await;
    }
    all_stranded(&world, 20).await;
    producer.stop_now().await;
    assert_eq!(
        world.letters().await,
        [],
        "nothing is lost, nothing is written"
    );

    refuse(&world, "FL_DLQ", false).await;
    let (one, two) = (world.start(), world.start());
    emptied(&world).await;
    one.end();
    two.end();
    let letters = world.letters().await;
    let mut found: Vec<&[u8]> = letters.iter().map(|letter| &letter.payload[..]).collect();
    found.sort_unstable();
    let mut sent: Vec<&[u8]> = bodies.iter().map(|body| body.as_bytes()).collect();
    sent.sort_unstable();
    assert_eq!(found, sent);
}

#[tokio::test]
async fn jobs_that_could_not_be_stored_are_accepted_after_the_outage() {
    let world = world().await;
    refuse(&world, "FL_JOBS", true).await;
    let producer = world.start();
    world.submit(&job("a")).await;
    all_stranded(&world, 1).await;
    producer.stop_now().await;

    refuse(&world, "FL_JOBS", false).await;
    let producer = world.start();
    emptied(&world).await;
    producer.end();
    let jobs = world.jobs().await;
    assert_eq!(jobs.len(), 1);
    assert_eq!(get(&jobs[0], "Fl-Job"), Some("a"));
    assert_eq!(world.letters().await, []);
}

#[tokio::test]
async fn a_submission_whose_rescue_never_ended_is_buried_unread() {
    let world = world().await;
    refuse(&world, "FL_JOBS", true).await;
    let producer = world.start();
    let seq = world.submit(&job("a")).await;
    all_stranded(&world, 1).await;
    producer.stop_now().await;

    // Somebody began, long ago, and died of it.
    let notes = world.nats.bucket("fl_idem");
    let key = format!("_stranded.{seq}");
    notes.put(&key, "1".into(), None).await.unwrap();
    refuse(&world, "FL_JOBS", false).await;
    let producer = world.start();
    emptied(&world).await;
    producer.end();
    assert_eq!(world.jobs().await, []);
    let letters = world.letters().await;
    assert_eq!(letters[0].payload, job("a").to_string().as_bytes());
    assert_eq!(
        letter_of(&letters[0]).failure.reason,
        DeadReason::MaxDeliver
    );
    assert_eq!(letters.len(), 1);
}

#[tokio::test]
async fn an_advisory_is_a_reason_to_look_at_once() {
    let world = world().await;
    refuse(&world, "FL_DLQ", true).await;
    let producer = world.start();
    world.publish("acme", headers(&[]), b"broken").await;
    all_stranded(&world, 1).await;
    refuse(&world, "FL_DLQ", false).await;
    // The server sent its own when there was nothing to be done yet.
    let subject = world.nats.names.stranded_advisory();
    assert_eq!(
        subject,
        "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.FL_SUBMIT.producer"
    );
    world
        .nats
        .client
        .publish(subject, "{}".into())
        .await
        .unwrap();
    // Sooner than the next of the looks that come every 20 seconds.
    eventually(
        Duration::from_secs(12),
        "the letter",
        async || match world.letters().await.len() {
            1 => Ok(()),
            letters => Err(letters),
        },
    )
    .await;
    emptied(&world).await;
    producer.end();
}
