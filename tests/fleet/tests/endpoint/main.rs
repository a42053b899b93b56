//! The HTTP API as its callers meet it: real processes, a real NATS server with the permissions of an installation.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod batches;
mod browser;
mod jobs;
mod limits;
mod who;

use fairlane_fleet_tests::Setup;

const PROGRAM: &str = env!("CARGO_BIN_EXE_fairlane-under-test");

/// One of each role, and the API.
fn setup(settings: &[(&'static str, &str)]) -> Setup {
    let own = |(key, value): &(&'static str, &str)| (*key, (*value).to_owned());
    Setup {
        settings: settings.iter().map(own).collect(),
        api: true,
        ..Setup::default()
    }
}

/// The first so many bytes of a stream of events, until they hold `wanted`.
async fn read_until(answer: &mut reqwest::Response, wanted: &str) -> String {
    let mut read = String::new();
    while !read.contains(wanted) {
        let chunk = fairlane_support::within(
            fairlane_fleet_tests::PATIENCE,
            "more of a stream",
            answer.chunk(),
        );
        match chunk.await {
            Ok(Some(chunk)) => read += &String::from_utf8_lossy(&chunk),
            ended => panic!("the stream ended without {wanted:?} ({ended:?}): {read}"),
        }
    }
    read
}
