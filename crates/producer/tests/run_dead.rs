//! A whole producer process whose client dies. One test, since a process has one frame.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::{World, job, publish_raw};
use fairlane_producer::run;
use fairlane_runtime::config::Settings;
use fairlane_runtime::{Frame, FrameOptions};
use fairlane_support::{LIMIT, eventually, within};

#[tokio::test]
async fn a_process_whose_client_has_ended_ends_with_an_error() {
    let world = World::new().await;
    let settings = Settings::default();
    let frame = Frame::start(FrameOptions::producer(&settings))
        .await
        .unwrap();
    let health = frame.health.clone();
    let running = tokio::spawn(run(settings, world.server.connect().await, None, frame));
    eventually(LIMIT, "readiness", async || {
        let checks = health.checks();
        let is_ready = checks.get("nats").copied().unwrap_or(false);
        if is_ready {
            Ok(())
        } else {
            Err(format!("{checks:?}"))
        }
    })
    .await;
    let body = job("bad").to_string();
    publish_raw(&world, b"NATS/1.0\r\nA: 1\r2\r\n\r\n", body.as_bytes()).await;
    let ended = within(LIMIT, "the process to end", running).await.unwrap();
    let error = format!("{:#}", ended.unwrap_err());
    assert!(error.contains("the NATS client has ended"), "{error}");
    assert_eq!(health.checks().get("nats"), Some(&false));
}
