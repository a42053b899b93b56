//! How many calls one worker process holds at once, and in how much memory.
//!
//! ```text
//! cargo bench -p fairlane-fleet-tests --bench inflight [-- MS [CALLS]]
//! ```
//!
//! One worker with as many slots as calls (2 000), a simulator that takes MS for each (500). Says the most
//! calls the simulator had in flight, and the most memory the worker had resident. With short calls
//! the machine, not the worker, decides how many are in flight; with long ones (20 000 ms) all are.

#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

use std::time::{Duration, Instant};

use bytes::Bytes;
use fairlane_fleet_tests::{Fleet, Setup, job};
use fairlane_nats::HeaderMap;
use fairlane_sim::SimConfig;
use futures::{StreamExt, stream};

const PROGRAM: &str = env!("CARGO_BIN_EXE_fairlane-under-test");
const TENANTS: usize = 10;
const PATIENCE: Duration = Duration::from_secs(300);

#[tokio::main]
async fn main() {
    let mut numbers = std::env::args().filter_map(|argument| argument.parse().ok());
    let ms = numbers.next().unwrap_or(500);
    let calls = usize::try_from(numbers.next().unwrap_or(2_000)).expect("a number of calls");
    // Enough to fill the slots some times over.
    let jobs = if ms < 5_000 { 5 * calls } else { calls };
    let setup = Setup {
        sim: SimConfig {
            zero_latency: false,
            first_byte_ms: ms,
            prompt_ms_per_1k: 0.0,
            tokens_per_second: 100_000.0,
            ..SimConfig::instant()
        },
        settings: vec![
            ("worker.slots", calls.to_string()),
            ("telemetry.log", "warn".to_owned()),
        ],
        ..Setup::default()
    };
    let fleet = Fleet::start(PROGRAM, setup).await;
    let worker = fleet.workers[0].pid();
    let idle = resident_mib(worker);
    let publish = |number: usize| {
        let body = job(&format!("j-{number}"), &format!("tags {number}"));
        let tenant = format!("t{}", number % TENANTS);
        let jetstream = fleet.client().jetstream.clone();
        async move {
            let body = Bytes::from(body);
            let sent = jetstream
                .publish_with_headers(format!("fl.submit.{tenant}"), HeaderMap::new(), body)
                .await;
            sent.expect("sent").await.expect("stored");
        }
    };
    let began = Instant::now();
    stream::iter(0..jobs)
        .map(publish)
        .buffer_unordered(256)
        .for_each(|()| async {})
        .await;
    while fleet.sim.stats().log.last_seq < jobs as u64 {
        assert!(
            began.elapsed() < PATIENCE,
            "{:?}",
            fleet.sim.stats().in_flight
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let took = began.elapsed().as_secs_f64();
    println!(
        "{jobs} calls of {ms} ms in {took:.1} s: at most {} in flight, worker {} MiB at most ({idle} MiB idle)",
        fleet.sim.stats().in_flight_peak,
        resident_mib(worker),
    );
}

/// The most memory a process had resident.
fn resident_mib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .expect("Linux says so");
    let kib: u64 = line
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .expect("a number");
    kib / 1_024
}
