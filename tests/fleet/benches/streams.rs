//! How many streams one producer holds open, and in how much memory.
//!
//! ```text
//! cargo bench -p fairlane-fleet-tests --bench streams [-- STREAMS]
//! ```
//!
//! STREAMS (2 000) callers of four tenants open a stream each through the HTTP API of one producer; a token a second
//! comes for all of them. Says how many had begun to be written and were not over at the same time, and the most
//! memory the producer had resident, which may be 400 MiB; and that of the worker that holds the calls.

#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fairlane_fleet_tests::api::{Caller, message};
use fairlane_fleet_tests::{Fleet, Setup, cpu_seconds};
use fairlane_sim::SimConfig;
use fairlane_support::eventually;
use futures::StreamExt;
use futures::stream::{self, FuturesUnordered};
use reqwest::Method;

const PROGRAM: &str = env!("CARGO_BIN_EXE_fairlane-under-test");
const STREAMS: usize = 2_000;
const TENANTS: usize = 4;
/// Opened at the same time.
const OPENING: usize = 50;
const MIB_MAX: u64 = 400;
/// Streams stay open until the last one has begun, and some more.
const LASTS: Duration = Duration::from_secs(120);
const PATIENCE: Duration = Duration::from_secs(110);

static OPEN: AtomicUsize = AtomicUsize::new(0);

#[tokio::main]
async fn main() {
    let streams = std::env::args()
        .find_map(|argument| argument.parse().ok())
        .unwrap_or(STREAMS);
    let setup = Setup {
        sim: SimConfig {
            zero_latency: false,
            first_byte_ms: 200,
            prompt_ms_per_1k: 0.0,
            tokens_per_second: 1.0,
            ..SimConfig::instant()
        },
        settings: vec![
            ("worker.slots", streams.to_string()),
            ("telemetry.log", "warn".to_owned()),
        ],
        api: true,
        ..Setup::default()
    };
    let fleet = Fleet::start(PROGRAM, setup).await;
    let mut callers = Vec::new();
    for tenant in 0..TENANTS {
        callers.push(fleet.caller_of(&format!("t{tenant}")).await);
    }
    let producer = fleet.producers[0].pid();
    let idle = status_mib(producer, "VmRSS:");
    let began = Instant::now();
    let opening = stream::iter(0..streams).map(|number| open(&callers[number % TENANTS], number));
    let answers: Vec<reqwest::Response> = opening.buffer_unordered(OPENING).collect().await;
    let reading: FuturesUnordered<_> = answers.into_iter().map(read).collect();
    let reading = reading.for_each(|()| async {});
    let measuring = async {
        eventually(PATIENCE, "all streams to have begun", || async {
            match OPEN.load(Ordering::Relaxed) {
                open if open == streams => Ok(()),
                open => Err(format!(
                    "{open} open, {} in flight",
                    fleet.sim.stats().in_flight
                )),
            }
        })
        .await;
        let begun = began.elapsed();
        let used = (cpu_seconds(producer), Instant::now());
        tokio::time::sleep(Duration::from_secs(5)).await;
        let cores = (cpu_seconds(producer) - used.0) / used.1.elapsed().as_secs_f64();
        let (now, peak) = (
            status_mib(producer, "VmRSS:"),
            status_mib(producer, "VmHWM:"),
        );
        let verdict = if peak < MIB_MAX { "less" } else { "NOT LESS" };
        println!(
            "{} streams open after {:.1} s: producer {idle} MiB idle, {now} MiB now, {peak} MiB at most ({verdict} than {MIB_MAX}), {cores:.2} cores",
            OPEN.load(Ordering::Relaxed),
            begun.as_secs_f64(),
        );
        println!(
            "worker {} MiB at most",
            status_mib(fleet.workers[0].pid(), "VmHWM:")
        );
    };
    tokio::select! {
        () = measuring => {}
        () = reading => panic!("the streams ended before they were counted"),
    }
}

async fn open(caller: &Caller, number: usize) -> reqwest::Response {
    let seconds = LASTS.as_secs();
    let mut body = message(&format!("story {number} [[sim:out={seconds}]]"));
    body["stream"] = true.into();
    body["max_tokens"] = (2 * seconds).into();
    let answer = caller
        .request(Method::POST, "/v1/messages")
        .json(&body)
        .send();
    let answer = answer.await.expect("an answer");
    assert_eq!(answer.status(), 200);
    answer
}

/// Counts a stream from its first part on.
async fn read(answer: reqwest::Response) {
    let mut chunks = answer.bytes_stream();
    let mut is_open = false;
    while let Some(chunk) = chunks.next().await {
        chunk.expect("a stream that is not cut");
        if !std::mem::replace(&mut is_open, true) {
            OPEN.fetch_add(1, Ordering::Relaxed);
        }
    }
    OPEN.fetch_sub(1, Ordering::Relaxed);
}

/// A line of what Linux says of a process's memory, MiB.
fn status_mib(pid: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.expect("Linux says so").trim().trim_end_matches(" kB");
    kib.parse::<u64>().expect("a number") / 1_024
}
