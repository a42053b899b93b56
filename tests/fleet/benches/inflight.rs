//! How many calls one worker process holds at once, and in how much memory.
//!
//! ```text
//! cargo bench -p fairlane-fleet-tests --bench inflight [-- MS [CALLS]]
//! ```
//!
//! One worker with as many slots as calls (2 000), a simulator that takes MS for each (500, then 5 000). The
//! jobs are in the queue before the worker starts, so taking them in does not count. Says the most calls the
//! simulator had in flight, how many were started a second, the most memory the worker had resident, and who
//! used the processor. With short calls that decides: 2 000 calls of 500 ms are 4 000 starts and ends a second,
//! and the simulator, the nats-server and this bench share the machine with the fleet.

#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

use std::time::{Duration, Instant};

use bytes::Bytes;
use fairlane_fleet_tests::{Fleet, Process, Setup, cpu_seconds, job};
use fairlane_nats::HeaderMap;
use fairlane_sim::SimConfig;
use futures::{StreamExt, stream};

const PROGRAM: &str = env!("CARGO_BIN_EXE_fairlane-under-test");
const TENANTS: usize = 10;
const PATIENCE: Duration = Duration::from_secs(300);

#[tokio::main]
async fn main() {
    let mut numbers = std::env::args().filter_map(|argument| argument.parse().ok());
    let ms: Option<u64> = numbers.next();
    let calls = usize::try_from(numbers.next().unwrap_or(2_000)).expect("a number of calls");
    for ms in ms.map_or(vec![500, 5_000], |ms| vec![ms]) {
        run(ms, calls).await;
    }
}

async fn run(ms: u64, calls: usize) {
    // Enough to fill the slots some times over.
    let jobs = if ms < 5_000 { 5 * calls } else { calls };
    let setup = Setup {
        workers: 0,
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
    let mut fleet = Fleet::start(PROGRAM, setup).await;
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
    stream::iter(0..jobs)
        .map(publish)
        .buffer_unordered(256)
        .for_each(|()| async {})
        .await;
    let queue = fleet.client().names.jobs_stream();
    let began = Instant::now();
    while fleet.client().jobs().count(&queue).await.unwrap_or(0) < jobs as u64 {
        assert!(began.elapsed() < PATIENCE, "not all jobs are queued");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let before = processor(&fleet);
    let worker = fleet.spawn("worker");
    let pid = worker.pid();
    fleet.workers.push(worker);
    let began = Instant::now();
    let mut idle = None;
    while fleet.sim.stats().log.last_seq < jobs as u64 {
        let in_flight = fleet.sim.stats().in_flight;
        assert!(began.elapsed() < PATIENCE, "{in_flight} in flight");
        idle = idle.or_else(|| (in_flight > 0).then(|| resident_mib(pid)));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let took = began.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a few thousand jobs")]
    let rate = jobs as f64 / took;
    println!(
        "{jobs} calls of {ms} ms in {took:.1} s ({rate:.0} a second): at most {} of {calls} in flight, worker {} MiB at most ({} MiB idle)",
        fleet.sim.stats().in_flight_peak,
        resident_mib(pid),
        idle.unwrap_or_default(),
    );
    let after = processor(&fleet);
    let parts = before
        .iter()
        .zip(after)
        .map(|((name, before), (_, after))| format!("{name} {:.2}", (after - before) / took));
    println!(
        "  processor, cores: {}",
        parts.collect::<Vec<_>>().join(", ")
    );
}

/// Processor seconds used so far, by part.
fn processor(fleet: &Fleet) -> [(&'static str, f64); 4] {
    let of = |processes: &[Process]| processes.iter().map(|one| cpu_seconds(one.pid())).sum();
    [
        (
            "nats-server",
            fleet.nats.server.pid().map_or(0.0, cpu_seconds),
        ),
        ("scheduler", of(&fleet.schedulers)),
        ("worker", of(&fleet.workers)),
        ("bench and simulator", cpu_seconds(std::process::id())),
    ]
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
