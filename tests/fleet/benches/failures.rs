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
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fairlane_fleet_tests::{Fleet, Setup, cpu_seconds, job};
use fairlane_nats::{HeaderMap, watch};
use fairlane_sim::SimConfig;
use fairlane_wire::{JobRecord, Phase};

const PROGRAM: &str = env!("CARGO_BIN_EXE_fairlane-under-test");
const LIVE_PER_SECOND: u32 = 20;
/// As long as live jobs are alone.
const ALONE: Duration = Duration::from_secs(40);
const SLOWER_MAX_PERCENT: f64 = 10.0;
/// Time for what is still under way at the end.
const PATIENCE: Duration = Duration::from_secs(300);

/// When live jobs were published, and how long those took that are done.
#[derive(Debug, Default)]
struct Live {
    published: BTreeMap<String, Instant>,
    took: Vec<(Instant, Duration)>,
}

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
    let live = Arc::new(Mutex::new(Live::default()));
    let watching = tokio::spawn(watch_live(fleet.clone(), live.clone()));
    let publishing = tokio::spawn(publish_live(fleet.clone(), live.clone()));

    // The first seconds make connections and fill caches.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (began, processor) = (Instant::now(), used(&fleet));
    tokio::time::sleep(ALONE).await;
    let alone = figures(&live, began, Instant::now());
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
    let meanwhile = figures(&live, began, Instant::now());
    let after = resident(&fleet);
    publishing.abort();
    watching.abort();

    println!("{jobs} jobs failed within {:.0} s", all.as_secs_f64());
    println!("processor, cores: alone {idle}");
    println!("                  meanwhile {busy}");
    print_live("live jobs alone", &alone);
    print_live("live jobs meanwhile", &meanwhile);
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

async fn publish(fleet: &Fleet, tenant: &str, body: String) {
    let subject = format!("fl.submit.{tenant}");
    let jetstream = &fleet.client().jetstream;
    let sent = jetstream.publish_with_headers(subject, HeaderMap::new(), Bytes::from(body));
    sent.await.expect("sent").await.expect("stored");
}

async fn publish_bad(fleet: &Fleet, number: usize) {
    let body = job(
        &format!("bad-{number}"),
        &format!("[[sim:refusal]] no {number}"),
    );
    let body = body.replace("\"tagging\"", "\"moderation\"");
    publish(fleet, "bulk", body).await;
}

async fn publish_live(fleet: Arc<Fleet>, live: Arc<Mutex<Live>>) {
    let mut tick = tokio::time::interval(Duration::from_secs(1) / LIVE_PER_SECOND);
    for number in 0_usize.. {
        tick.tick().await;
        let id = format!("live-{number}");
        let now = Instant::now();
        live.lock()
            .expect("no panic")
            .published
            .insert(id.clone(), now);
        publish(&fleet, "live", job(&id, &format!("tags {number}"))).await;
    }
}

/// Notes when live jobs are done.
async fn watch_live(fleet: Arc<Fleet>, live: Arc<Mutex<Live>>) {
    let nats = fleet.client();
    let bucket = nats.bucket(&nats.names.status_bucket());
    let mut changes = bucket.watch_keys("live.*");
    while let Some(event) = changes.next().await {
        let watch::Event::Change(entry) = event else {
            continue;
        };
        let Some(value) = entry.value() else { continue };
        let record = JobRecord::from_json(value).expect("a record");
        if record.phase == Phase::Done {
            let mut live = live.lock().expect("no panic");
            if let Some(began) = live.published.remove(record.job.as_str()) {
                live.took.push((Instant::now(), began.elapsed()));
            }
        }
    }
}

/// Live jobs between two moments.
struct Figures {
    done: usize,
    rate: f64,
    /// Seconds.
    p50: f64,
    p99: f64,
}

#[expect(clippy::cast_precision_loss, reason = "a few thousand jobs")]
fn figures(live: &Mutex<Live>, from: Instant, to: Instant) -> Figures {
    let live = live.lock().expect("no panic");
    let within = live.took.iter().filter(|(at, _)| (from..to).contains(at));
    let mut took: Vec<f64> = within.map(|(_, took)| took.as_secs_f64()).collect();
    took.sort_unstable_by(f64::total_cmp);
    let at = |part: usize| {
        took.get(took.len() * part / 100)
            .copied()
            .unwrap_or(f64::NAN)
    };
    Figures {
        done: took.len(),
        rate: took.len() as f64 / (to - from).as_secs_f64(),
        p50: at(50),
        p99: at(99),
    }
}

fn print_live(what: &str, figures: &Figures) {
    println!(
        "{what:<20} {:>6.2} done a second, p50 {:>4.0} ms, p99 {:>5.0} ms ({} jobs)",
        figures.rate,
        1_000.0 * figures.p50,
        1_000.0 * figures.p99,
        figures.done,
    );
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
