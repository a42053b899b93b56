//! What a flood of one tenant's submissions does to another tenant's jobs.
//!
//! ```text
//! cargo bench -p fairlane-fleet-tests --bench flood [-- JOBS [MOST]]
//! ```
//!
//! One tenant publishes JOBS (40 000) jobs of background work as fast as they are taken. Before, and all the while, another
//! one publishes jobs that people wait for, 20 a second. Submissions are taken in order, so what the live jobs wait for are the
//! flood's that no producer has taken yet: at most MOST (`nats.submissions_per_tenant_max`). To see what that bounds, give a large one.

#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlane_fleet_tests::live::Live;
use fairlane_fleet_tests::{Fleet, Setup, job};
use fairlane_nats::HeaderMap;
use fairlane_nats::objects::ObjectOptions;
use futures::{StreamExt, stream};

const PROGRAM: &str = env!("CARGO_BIN_EXE_fairlane-under-test");
const LIVE_PER_SECOND: u32 = 20;
const ALONE: Duration = Duration::from_secs(20);
/// Submissions of the flood under way at once.
const PARALLEL: usize = 1_024;
/// How long one may wait for room.
const PATIENCE: Duration = Duration::from_secs(300);

#[tokio::main]
async fn main() {
    let mut numbers = std::env::args().filter_map(|argument| argument.parse().ok());
    let jobs: usize = numbers.next().unwrap_or(40_000);
    let defaults = ObjectOptions::default();
    let most = numbers
        .next()
        .map_or(defaults.submissions_per_tenant_max, |most| most as u64);
    let setup = Setup {
        workers: 2,
        objects: ObjectOptions {
            submissions_per_tenant_max: most,
            ..defaults
        },
        settings: vec![("telemetry.log", "warn".to_owned())],
        ..Setup::default()
    };
    let fleet = Arc::new(Fleet::start(PROGRAM, setup).await);
    let live = Live::start(&fleet, LIVE_PER_SECOND);
    // The first seconds make connections and fill caches.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let began = Instant::now();
    tokio::time::sleep(ALONE).await;
    println!(
        "live jobs alone      {}",
        live.figures(began, Instant::now())
    );

    let began = Instant::now();
    stream::iter(0..jobs)
        .for_each_concurrent(PARALLEL, |number| flood(&fleet, number))
        .await;
    println!(
        "{jobs} published within {:.1} s",
        began.elapsed().as_secs_f64()
    );
    let untaken = fleet.client().names.submit_stream();
    while fleet.client().jobs().count(&untaken).await.unwrap_or(1) > 100 {
        assert!(began.elapsed() < PATIENCE, "the flood is not taken");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    println!("all taken within {:.1} s", began.elapsed().as_secs_f64());
    // The last that waited is done soon after.
    tokio::time::sleep(Duration::from_secs(2)).await;
    println!(
        "live jobs meanwhile  {}",
        live.figures(began, Instant::now())
    );
    println!("at most {most} of one tenant waited to be taken");
}

async fn flood(fleet: &Fleet, number: usize) {
    let body = job(&format!("flood-{number}"), "tags").replace("user_action", "batch_job");
    let jobs = fleet.client().jobs();
    jobs.publish_patiently(
        "fl.submit.flood",
        None,
        HeaderMap::new(),
        body.into(),
        PATIENCE,
    )
    .await
    .expect("there is room in the end");
}
