//! What a mass failure of one tenant's jobs does to another tenant's, and to memory.
//!
//! ```text
//! cargo bench -p fairlane-fleet-tests --bench failures [-- JOBS [SECONDS]]
//! ```
//!
//! JOBS (50 000) jobs of one kind are published over SECONDS (300), and the model refuses each of them: a
//! paid call and a dead letter. Before, and all the while, another tenant publishes jobs of another kind at
//! an even pace (20 a second), which succeed. The figures of both times come from one run, on one machine:
//!
//! - live jobs done a second, and the time from their submission to their result; both may get worse by
//!   a tenth;
//! - resident memory of each process before the first failure, after half of them, and at the end.

#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlane_fleet_tests::live::Live;
use fairlane_fleet_tests::{Fleet, Setup, cpu_seconds, job};
use fairlane_sim::SimConfig;

const PROGRAM: &str = env!("CARGO_BIN_EXE_fairlane-under-test");
const LIVE_PER_SECOND: u32 = 20;
/// As long as live jobs are alone.
const ALONE: Duration = Duration::from_secs(40);
const SLOWER_MAX_PERCENT: f64 = 10.0;
/// Time for what is still under way at the end.
const PATIENCE: Duration = Duration::from_secs(300);

#[tokio::main]
async fn main() {
    let mut numbers = std::env::args().filter_map(|argument| argument.parse().ok());
    let jobs: usize = numbers.next().unwrap_or(50_000);
    let seconds = numbers.next().unwrap_or(300).max(1);
    let setup = Setup {
        workers: 2,
        schedulers: 2,
        sim: SimConfig {
            zero_latency: false,
            first_byte_ms: 200,
            prompt_ms_per_1k: 0.0,
            tokens_per_second: 100_000.0,
            ..SimConfig::instant()
        },
        settings: vec![
            ("worker.slots", "128".to_owned()),
            ("telemetry.log", "warn".to_owned()),
        ],
        ..Setup::default()
    };
    let fleet = Arc::new(Fleet::start(PROGRAM, setup).await);
    let live = Live::start(&fleet, LIVE_PER_SECOND);

    // The first seconds make connections and fill caches.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (began, processor) = (Instant::now(), used(&fleet));
    tokio::time::sleep(ALONE).await;
    let alone = live.figures(began, Instant::now());
    let idle = processor_between(&fleet, &processor, began);
    let before = resident(&fleet);

    let (began, processor) = (Instant::now(), used(&fleet));
    let per_tick = (jobs / (seconds * 10)).max(1);
    let mut tick = tokio::time::interval(Duration::from_millis(100));
    let mut half = None;
    let mut published = 0;
    while published < jobs {
        tick.tick().await;
        let batch = published..(published + per_tick).min(jobs);
        published = batch.end;
        futures::future::join_all(batch.map(|number| publish_bad(&fleet, number))).await;
        if half.is_none() && published >= jobs / 2 {
            half = Some(resident(&fleet));
        }
    }
    let until = Instant::now();
    let stream = fleet.client().names.dlq_stream();
    while fleet.client().jobs().count(&stream).await.unwrap_or(0) < jobs as u64 {
        assert!(
            until.elapsed() < PATIENCE,
            "the letters do not come to an end"
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let all = began.elapsed();
    let busy = processor_between(&fleet, &processor, began);
    let meanwhile = live.figures(began, Instant::now());
    let after = resident(&fleet);
    drop(live);

    println!("{jobs} jobs failed within {:.0} s", all.as_secs_f64());
    println!("processor, cores: alone {idle}");
    println!("                  meanwhile {busy}");
    println!("live jobs alone      {alone}");
    println!("live jobs meanwhile  {meanwhile}");
    let slower = |alone: f64, now: f64| 100.0 * (now - alone) / alone;
    let (rate, p50) = (
        slower(alone.rate, meanwhile.rate),
        slower(alone.p50, meanwhile.p50),
    );
    let verdict = if -rate <= SLOWER_MAX_PERCENT && p50 <= SLOWER_MAX_PERCENT {
        "within"
    } else {
        "MORE THAN"
    };
    println!(
        "change: {rate:+.1} % done a second, {p50:+.1} % time of the middle one: {verdict} {SLOWER_MAX_PERCENT} %"
    );
    let half = half.unwrap_or_default();
    for (name, mib) in &before {
        println!(
            "memory of {name:<12} {mib:>5} MiB before, {:>5} after half, {:>5} at the end",
            half.get(name).copied().unwrap_or(0),
            after.get(name).copied().unwrap_or(0),
        );
    }
}

async fn publish_bad(fleet: &Fleet, number: usize) {
    let body = job(
        &format!("bad-{number}"),
        &format!("[[sim:refusal]] no {number}"),
    );
    let body = body.replace("\"tagging\"", "\"moderation\"");
    fleet.publish("bulk", body).await;
}

/// Process ids by name.
fn processes(fleet: &Fleet) -> Vec<(String, u32)> {
    let mut all = Vec::new();
    all.extend(
        fleet
            .nats
            .server
            .pid()
            .map(|pid| ("nats-server".to_owned(), pid)),
    );
    for (name, group) in [
        ("producer", &fleet.producers),
        ("scheduler", &fleet.schedulers),
        ("worker", &fleet.workers),
    ] {
        let named = group.iter().enumerate();
        all.extend(named.map(|(index, one)| (format!("{name} {}", index + 1), one.pid())));
    }
    all
}

/// Resident memory, MiB.
fn resident(fleet: &Fleet) -> BTreeMap<String, u64> {
    let of = |pid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.expect("Linux says so").trim().trim_end_matches(" kB");
        kib.parse::<u64>().expect("a number") / 1_024
    };
    processes(fleet)
        .into_iter()
        .map(|(name, pid)| (name, of(pid)))
        .collect()
}

fn used(fleet: &Fleet) -> BTreeMap<String, f64> {
    let all = processes(fleet).into_iter();
    all.map(|(name, pid)| (name, cpu_seconds(pid))).collect()
}

fn processor_between(fleet: &Fleet, before: &BTreeMap<String, f64>, since: Instant) -> String {
    let seconds = since.elapsed().as_secs_f64();
    let parts: Vec<String> = used(fleet)
        .iter()
        .map(|(name, now)| format!("{name} {:.2}", (now - before[name]) / seconds))
        .collect();
    parts.join(", ")
}
