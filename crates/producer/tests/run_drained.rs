//! A whole producer process that is asked to stop. One test, since a process has one frame.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::{World, job};
use fairlane_producer::run;
use fairlane_runtime::config::Settings;
use fairlane_runtime::{Frame, FrameOptions};
use fairlane_support::{LIMIT, eventually, within};

#[tokio::test]
async fn a_process_is_ready_works_and_ends_well_when_drained() {
    let world = World::new().await;
    let settings = Settings::default();
    let frame = Frame::start(FrameOptions::producer(&settings))
        .await
        .unwrap();
    let (shutdown, health) = (frame.shutdown.clone(), frame.health.clone());
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
    world.submit(&job("a")).await;
    world.settled().await;
    assert_eq!(world.jobs().await.len(), 1);
    shutdown.begin();
    let ended = within(LIMIT, "the process to end", running).await.unwrap();
    assert!(ended.is_ok(), "{ended:?}");
}
