//! The frame around real signals. One test only: signals reach every listener of the process.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use fairlane_runtime::{Frame, FrameOptions, Rule, config};
use nix::sys::signal::{Signal, raise};

const LIMIT: Duration = Duration::from_secs(20);

async fn readyz(addr: std::net::SocketAddr) -> u16 {
    let answer = reqwest::get(format!("http://{addr}/readyz")).await.unwrap();
    answer.status().as_u16()
}

#[tokio::test]
async fn sigterm_drains_visibly_and_sigint_then_ends_what_is_left() {
    let flags = [
        ("worker.http_addr".to_owned(), "127.0.0.1:0".to_owned()),
        ("worker.drain_ms".to_owned(), "7_200_000".to_owned()),
        ("telemetry.log".to_owned(), "error".to_owned()),
    ];
    let settings = config::merge(None, std::iter::empty(), &flags)
        .unwrap()
        .settings;
    let mut frame = Frame::start(FrameOptions::worker(&settings)).await.unwrap();
    let addr = frame.http_addr().unwrap();
    let shutdown = frame.shutdown.clone();

    let stop_now = shutdown.stop_now().clone();
    frame.spawn("slow call", Rule::Essential, async move {
        stop_now.cancelled().await;
        Ok(())
    });
    assert_eq!(readyz(addr).await, 200);
    let run = tokio::spawn(frame.run());

    raise(Signal::SIGTERM).unwrap();
    tokio::time::timeout(LIMIT, shutdown.draining().cancelled())
        .await
        .expect("the first signal drains");
    assert_eq!(readyz(addr).await, 503);
    assert!(!shutdown.stop_now().is_cancelled());
    assert!(!run.is_finished());

    raise(Signal::SIGINT).unwrap();
    let ended = tokio::time::timeout(LIMIT, run)
        .await
        .expect("the second signal ends it");
    assert!(ended.unwrap().unwrap().cut_off.is_empty());
    assert!(reqwest::get(format!("http://{addr}/livez")).await.is_err());
}
