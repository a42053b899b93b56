//! How long the fleet stands still when its leader changes, and how fast a pause reaches everybody.
//!
//! ```text
//! cargo bench -p fairlane-fleet-tests --bench leader [-- JOBS]
//! ```
//!
//! Real processes, loopback, a simulator without latency; all by the simulator's own log:
//!
//! - leader killed, and leader asked to stop: the longest time without a call after it;
//! - start with a backlog of JOBS (100 000): from the start of the only scheduler to the first call;
//! - pause: from the end of the first 429 to the last call to its pool before it opens again.

#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

use std::collections::VecDeque;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fairlane_core::{Priority, TenantId, Tokens};
use fairlane_fleet_tests::{Fleet, PATIENCE, Setup, job};
use fairlane_nats::{HeaderMap, Nats};
use fairlane_sim::SimConfig;
use fairlane_support::eventually;
use fairlane_wire::header;
use nix::sys::signal::Signal;
use tokio::task::JoinHandle;

const PROGRAM: &str = env!("CARGO_BIN_EXE_fairlane-under-test");
const CHANGES: usize = 5;
const BACKLOG: u64 = 100_000;
const TENANTS: u64 = 1_000;
/// One job in this many is critical.
const CRITICAL: u64 = 1_000;

#[tokio::main]
async fn main() {
    // cargo passes `--bench`; a number is the number of jobs.
    let backlog = std::env::args()
        .find_map(|argument| argument.parse().ok())
        .unwrap_or(BACKLOG);
    changes(
        Signal::SIGKILL,
        "leader killed: first call by the next",
        3_000,
    )
    .await;
    changes(
        Signal::SIGTERM,
        "leader asked to stop: first call by the next",
        500,
    )
    .await;
    start_up(backlog).await;
    pause().await;
}

fn line(what: &str, mut ms: Vec<u64>, bound: u64) {
    ms.sort_unstable();
    let (median, most) = (ms[ms.len() / 2], ms[ms.len() - 1]);
    let verdict = if most <= bound { "" } else { "  MISSED" };
    println!("{what:<52} median {median:>6} ms, most {most:>6} ms, bound {bound} ms{verdict}");
}

/// A job every few milliseconds, until it is dropped.
fn traffic(fleet: &Fleet) -> Dropping {
    let jetstream = fleet.client().jetstream.clone();
    Dropping(tokio::spawn(async move {
        let mut every = tokio::time::interval(Duration::from_millis(5));
        for number in 0_u64.. {
            every.tick().await;
            let tenant = format!("fl.submit.tenant-{}", number % 10);
            let body = job(&format!("job-{number}"), &format!("tags {number}"));
            let sent = jetstream.publish(tenant, body.into()).await;
            drop(sent.expect("a submission is sent"));
        }
    }))
}

struct Dropping(JoinHandle<()>);

impl Drop for Dropping {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn changes(signal: Signal, what: &str, bound: u64) {
    let setup = Setup {
        schedulers: 2,
        settings: vec![("telemetry.log", "info".to_owned())],
        ..Setup::default()
    };
    let mut fleet = Fleet::start(PROGRAM, setup).await;
    let _traffic = traffic(&fleet);
    let mut gaps = Vec::new();
    for _ in 0..CHANGES {
        let before = fleet.sim.stats().totals.calls;
        more_calls(&fleet, before + 100).await;
        let leader = fleet.leading_scheduler().await;
        let (holder, _) = fleet.leader().await;
        let at = now_micros();
        fleet.schedulers[leader].signal(signal);
        eventually(PATIENCE, "another leader", || async {
            let (now, _) = fleet.leader().await;
            if now == holder {
                Err("not yet")
            } else {
                Ok(())
            }
        })
        .await;
        let before = fleet.sim.stats().totals.calls;
        more_calls(&fleet, before + 100).await;
        let mut calls: Vec<u64> = fleet.sim.log().iter().map(|call| call.at.0).collect();
        calls.sort_unstable();
        let after = calls.partition_point(|&call| call < at);
        let longest = calls[after - 1..]
            .windows(2)
            .map(|pair| pair[1] - pair[0].max(at))
            .max();
        gaps.push(longest.unwrap_or(u64::MAX) / 1_000);
        fleet.schedulers.remove(leader);
        let standby = fleet.spawn("scheduler");
        fleet.schedulers.push(standby);
        eventually(PATIENCE, "a standby", || async {
            let log = fleet.schedulers[1].log();
            if log.contains("started") {
                Ok(())
            } else {
                Err(log)
            }
        })
        .await;
    }
    line(what, gaps, bound);
}

async fn more_calls(fleet: &Fleet, at_least: u64) {
    eventually(PATIENCE, "more calls", || async {
        let calls = fleet.sim.stats().totals.calls;
        if calls >= at_least {
            Ok(())
        } else {
            Err(calls)
        }
    })
    .await;
}

async fn start_up(backlog: u64) {
    let setup = Setup {
        producers: 0,
        schedulers: 0,
        ..Setup::default()
    };
    let fleet = Fleet::start(PROGRAM, setup).await;
    fill(fleet.client(), backlog).await;
    let began = now_micros();
    let scheduler = fleet.spawn("scheduler");
    more_calls(&fleet, 1).await;
    let first = fleet.sim.log().iter().map(|call| call.at.0).min();
    let first = first.expect("a call").saturating_sub(began) / 1_000;
    let what = format!("start with {backlog} jobs queued: first call");
    line(&what, vec![first], 2_000);
    let took = eventually(PATIENCE, "the whole picture", || async {
        let log = scheduler.log();
        let known: Vec<u64> = log
            .lines()
            .filter(|line| line.contains("all jobs of a priority are known"))
            .filter_map(|line| line.split("\"took_ms\":").nth(1))
            .filter_map(|rest| rest.split([',', '}']).next()?.parse().ok())
            .collect();
        match known[..] {
            [_, _, _] => Ok(known.into_iter().max().unwrap_or(u64::MAX)),
            _ => Err(format!("{} priorities so far", known.len())),
        }
    })
    .await;
    line("  whole picture", vec![took], 10_000);
}

/// Stores jobs as a producer does, many at once.
async fn fill(nats: &Nats, jobs: u64) {
    let store = nats.jobs();
    let mut pending = VecDeque::new();
    for number in 1..=jobs {
        let priority = if number % CRITICAL == 0 {
            Priority::Critical
        } else {
            Priority::Batch
        };
        let tenant = TenantId::parse(&format!("tenant-{}", number % TENANTS)).expect("a name");
        let subject = nats.names.job_subject(priority, &tenant);
        let mut headers = HeaderMap::new();
        for (name, value) in pairs(number) {
            headers.insert(name, value);
        }
        if pending.len() == 2_000 {
            let oldest: fairlane_nats::PendingWrite = pending.pop_front().expect("it is full");
            oldest.wait().await.expect("stored");
        }
        let body = job(&format!("job-{number}"), "tags");
        let sent = store.send(&subject, None, headers, body.into());
        pending.push_back(sent.await.expect("sent"));
    }
    for write in pending {
        write.wait().await.expect("stored");
    }
}

fn pairs(number: u64) -> Vec<(&'static str, String)> {
    let tokens = Tokens {
        input: 120,
        output: 60,
    };
    vec![
        (header::JOB, format!("job-{number}")),
        (header::KEY, format!("job-{number}")),
        (header::KIND, "tagging".to_owned()),
        (header::MODEL, "claude-haiku-4-5".to_owned()),
        (header::POOL, "haiku-4.5".to_owned()),
        (header::INPUT_TOKENS, tokens.input.to_string()),
        (header::OUTPUT_TOKENS, tokens.output.to_string()),
        (header::ACCEPTED, (now_micros() / 1_000).to_string()),
    ]
}

async fn pause() {
    let setup = Setup {
        workers: 4,
        sim: SimConfig {
            zero_latency: false,
            first_byte_ms: 20,
            prompt_ms_per_1k: 0.0,
            tokens_per_second: 100_000.0,
            ..SimConfig::instant()
        },
        settings: vec![("worker.slots", "10".to_owned())],
        ..Setup::default()
    };
    let fleet = Fleet::start(PROGRAM, setup).await;
    let _traffic = traffic(&fleet);
    let mut spread = Vec::new();
    for _ in 0..CHANGES {
        let before = fleet.sim.stats().totals.calls;
        more_calls(&fleet, before + 200).await;
        let fault = serde_json::json!({"status": 429, "count": 1, "retry_after": "2"});
        let fault = serde_json::from_value(fault).expect("a fault");
        fleet.sim.add_faults(vec![fault]).expect("a fault");
        // Pauses of two seconds: whatever comes within one was on its way.
        let known = eventually(PATIENCE, "a call after the pause", || async {
            let log = fleet.sim.log();
            let refused = log.iter().rfind(|call| call.status == Some(429));
            let known = refused.map(|call| call.end.0).ok_or("no 429 yet")?;
            let goes_on = log.iter().any(|call| call.at.0 > known + 2_000_000);
            if goes_on { Ok(known) } else { Err("paused") }
        })
        .await;
        let log = fleet.sim.log();
        let late = log
            .iter()
            .map(|call| call.at.0)
            .filter(|at| (known..known + 2_000_000).contains(at))
            .max();
        spread.push(late.map_or(0, |late| late - known) / 1_000);
    }
    line("a 429: last call of the fleet to that pool", spread, 250);
}

fn now_micros() -> u64 {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX)
}
