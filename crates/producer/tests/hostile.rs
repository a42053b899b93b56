//! Submissions that the client library cannot receive, and some that end it.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::time::Duration;

use common::{World, job, letter_of, publish_raw, start_with};
use fairlane_nats::embedded::ServerOptions;
use fairlane_nats::objects::ObjectOptions;
use fairlane_runtime::config::Settings;
use fairlane_support::{LIMIT, eventually};
use fairlane_wire::letter::DeadReason;
use fairlane_wire::record::Phase;

/// A world in which what a dead client had in hand comes back soon.
async fn world() -> World {
    let objects = ObjectOptions {
        submit_ack_wait: Duration::from_secs(2),
        ..ObjectOptions::default()
    };
    World::with(ServerOptions::default(), &objects).await
}

async fn one_letter_and_one_job(world: &World, block: &[u8]) {
    world.settled().await;
    let letters = world.letters().await;
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].payload, job("bad").to_string().as_bytes());
    let letter = letter_of(&letters[0]);
    assert_eq!(letter.failure.reason, DeadReason::Undecodable);
    assert_eq!(letter.failure.field.as_deref(), Some("headers"));
    let claim = letter.headers_claim.unwrap();
    let kept = world.nats.payloads().get(&claim, usize::MAX).await.unwrap();
    assert_eq!(kept, block);
    assert_eq!(world.record("bad").await.unwrap().phase, Phase::Failed);
    let jobs = world.jobs().await;
    assert_eq!(jobs.len(), 1);
    assert_eq!(jobs[0].payload, job("good").to_string().as_bytes());
}

#[tokio::test]
async fn headers_that_cost_the_connection_are_buried_after_it_is_back() {
    for block in [
        &b"NATS/1.0\r\nA: \xff\xfe\r\n\r\n"[..],
        b"NATS/1.0\r\nA name: 1\r\n\r\n",
    ] {
        let world = world().await;
        publish_raw(&world, block, job("bad").to_string().as_bytes()).await;
        world.submit(&job("good")).await;
        let connection = world.server.connect().await;
        let producer = start_with(&connection, &Settings::default());
        one_letter_and_one_job(&world, block).await;
        producer.end();
    }
}

#[tokio::test]
async fn headers_that_end_the_client_are_buried_by_the_next_process() {
    let world = world().await;
    let block = b"NATS/1.0\r\nA: 1\r2\r\n\r\n";
    publish_raw(&world, block, job("bad").to_string().as_bytes()).await;
    world.submit(&job("good")).await;
    let connection = world.server.connect().await;
    let producer = start_with(&connection, &Settings::default());
    eventually(LIMIT, "the end of the client", async || {
        match connection.connections().has_changed() {
            Err(_) => Ok(()),
            Ok(_) => Err("it lives"),
        }
    })
    .await;
    producer.stop_now().await;

    let connection = world.server.connect().await;
    let producer = start_with(&connection, &Settings::default());
    one_letter_and_one_job(&world, block).await;
    producer.end();
}
