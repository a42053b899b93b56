//! Three NATS servers lose one another; jobs do not notice.

#![allow(
    clippy::print_stdout,
    reason = "how long dispatch stood still is worth knowing"
)]

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fairlane_fleet_tests::cluster::Cluster;
use fairlane_fleet_tests::{Fleet, PATIENCE, Setup, job};
use fairlane_nats::{HeaderMap, Nats};
use fairlane_sim::{SimConfig, SimHandle};
use fairlane_support::eventually;
use fairlane_wire::Phase;
use nix::sys::signal::Signal;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

const PROGRAM: &str = env!("CARGO_BIN_EXE_fairlane-under-test");
/// Jobs that are open at the same time: more than run at once.
const OPEN: u64 = 60;
const SLOTS: u64 = 16;
const WORKERS: usize = 2;
/// Calls after which a fleet has shown that it gets on: more than may have been granted before.
const MANY: u64 = 150;

/// Three servers and a fleet are enough for one machine.
static ALONE: Mutex<()> = Mutex::const_new(());

async fn fleet() -> Fleet<Cluster> {
    let setup = Setup {
        producers: 2,
        schedulers: 2,
        workers: WORKERS,
        sim: SimConfig {
            zero_latency: false,
            first_byte_ms: 400,
            tokens_per_second: 10_000.0,
            ..SimConfig::instant()
        },
        settings: vec![("worker.slots", SLOTS.to_string())],
        ..Setup::default()
    };
    Fleet::start_on(Cluster::start().await, PROGRAM, setup).await
}

/// Publishes jobs for as long as it is let, so that [`OPEN`] of them are open; one that nobody said was stored is
/// published again. Gives how many there were.
async fn load(client: &Nats, sim: &SimHandle, stop: &CancellationToken) -> usize {
    for number in 0_u64.. {
        eventually(PATIENCE, "the fleet to get on", || async {
            let open = number.saturating_sub(sim.stats().totals.calls);
            if open < OPEN || stop.is_cancelled() {
                Ok(())
            } else {
                Err(format!("{open} jobs are open"))
            }
        })
        .await;
        if stop.is_cancelled() {
            return usize::try_from(number).expect("few jobs");
        }
        let tenant = ["acme", "bolt", "core"][usize::try_from(number % 3).expect("small")];
        eventually(PATIENCE, "a job to be stored", || async {
            let body = job(&format!("job-{number}"), &format!("tags {number}"));
            let subject = format!("fl.submit.{tenant}");
            let sent =
                client
                    .jetstream
                    .publish_with_headers(subject, HeaderMap::new(), body.into());
            sent.await
                .map_err(|error| error.to_string())?
                .await
                .map_err(|error| error.to_string())
        })
        .await;
    }
    unreachable!("it is stopped")
}

/// Waits until so many calls more have ended.
async fn served(sim: &SimHandle, more: u64) {
    let wanted = sim.stats().totals.calls + more;
    eventually(PATIENCE, "more calls upstream", || async {
        let calls = sim.stats().totals.calls;
        if calls >= wanted {
            Ok(())
        } else {
            Err(format!("{calls} of {wanted}"))
        }
    })
    .await;
}

/// Every job has its answer and every call is in the ledger. Gives how many were paid more than once.
async fn balance(fleet: &Fleet<Cluster>, jobs: usize) -> usize {
    let books = fleet.settled().await;
    assert_eq!(books.in_phase(Phase::Done), jobs, "{books:?}");
    let mut billed = BTreeMap::new();
    for call in fleet.sim.log().into_iter().filter(|call| call.billed) {
        *billed
            .entry(call.job.unwrap_or_default())
            .or_insert(0_usize) += 1;
    }
    assert_eq!(billed.len(), jobs, "every job was called");
    let calls: usize = billed.values().sum();
    assert_eq!(books.calls, calls, "the ledger and the upstream agree");
    billed.values().filter(|calls| **calls > 1).count()
}

#[tokio::test]
async fn servers_restart_one_by_one_and_nothing_is_lost_or_paid_twice() {
    let _alone = ALONE.lock().await;
    let mut fleet = fleet().await;
    let (client, stop) = (fleet.client().clone(), CancellationToken::new());
    let (sim, cluster) = (&fleet.sim, &mut fleet.nats);
    let restarts = async {
        for (at, signal) in [Signal::SIGTERM, Signal::SIGUSR2, Signal::SIGTERM]
            .into_iter()
            .enumerate()
        {
            served(sim, MANY).await;
            let began = now_ms();
            cluster.restart(at, signal).await;
            println!(
                "{signal}: whole again after {} ms; longest pause between calls {} ms",
                now_ms() - began,
                longest_pause(sim, began)
            );
        }
        served(sim, MANY).await;
        stop.cancel();
    };
    let (jobs, ()) = tokio::join!(load(&client, sim, &stop), restarts);
    let twice = balance(&fleet, jobs).await;
    println!("{jobs} jobs, {twice} of them paid twice");
    assert_eq!(twice, 0);
}

#[tokio::test]
async fn the_loss_of_the_server_that_leads_most_loses_nothing() {
    let _alone = ALONE.lock().await;
    let mut fleet = fleet().await;
    let (client, stop) = (fleet.client().clone(), CancellationToken::new());
    let (sim, cluster) = (&fleet.sim, &mut fleet.nats);
    let mut in_flight = 0;
    let loss = async {
        served(sim, MANY).await;
        let busiest = cluster.busiest().await;
        in_flight = sim.stats().in_flight;
        let killed = now_ms();
        cluster.kill9(busiest);
        served(sim, MANY).await;
        println!(
            "killed with {in_flight} calls in flight: longest pause between calls {} ms",
            longest_pause(sim, killed)
        );
        cluster.revive(busiest).await;
        served(sim, MANY).await;
        stop.cancel();
    };
    let (jobs, ()) = tokio::join!(load(&client, sim, &stop), loss);
    let twice = balance(&fleet, jobs).await;
    println!("{jobs} jobs, {twice} of them paid twice");
    assert!(
        twice as u64 <= in_flight,
        "{twice} were paid twice, {in_flight} were in flight at the kill"
    );
}

fn now_ms() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    let since_epoch: Duration = since_epoch.expect("it is after 1970");
    u64::try_from(since_epoch.as_millis()).expect("it is before the year 500 000 000")
}

/// The longest time since `since_ms` in which no call began, in milliseconds.
fn longest_pause(sim: &SimHandle, since_ms: u64) -> u64 {
    let mut begun: Vec<u64> = sim.log().iter().map(|call| call.at.as_ms()).collect();
    begun.retain(|at| *at > since_ms);
    begun.push(since_ms);
    begun.sort_unstable();
    let pauses = begun.windows(2).map(|pair| pair[1] - pair[0]);
    pauses.max().unwrap_or(0)
}
