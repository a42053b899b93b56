//! What a fleet costs that has nothing to do.
//!
//! ```text
//! cargo bench -p fairlane-fleet-tests --bench idle [-- SECONDS [TENANTS]]
//! ```
//!
//! One producer, two schedulers and two workers with default settings, and their nats-server. Each of TENANTS tenants (100)
//! has had a job, so that there are records, settlements and books to look after. Then nothing is published for SECONDS
//! (30), and each process says which part of a core it used and how much memory it has resident. Meant is less than 1 %
//! and less than 60 MiB for each process of the fleet.

#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

use std::time::{Duration, Instant};

use fairlane_fleet_tests::load::throughput;
use fairlane_fleet_tests::{Fleet, Process, Setup, cpu_seconds, resident_mib};

const PROGRAM: &str = env!("CARGO_BIN_EXE_fairlane-under-test");

#[tokio::main]
async fn main() {
    let mut numbers = std::env::args().filter_map(|argument| argument.parse().ok());
    let seconds = numbers.next().unwrap_or(30);
    let jobs = usize::try_from(numbers.next().unwrap_or(100)).expect("a number of tenants");
    let setup = Setup {
        schedulers: 2,
        workers: 2,
        ..Setup::default()
    };
    let fleet = Fleet::start(PROGRAM, setup).await;
    throughput(&fleet, "before", jobs).await;
    fleet.settled().await;

    let processes = processes(&fleet);
    let before: Vec<f64> = processes.iter().map(|(_, pid)| cpu_seconds(*pid)).collect();
    let began = Instant::now();
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let took = began.elapsed().as_secs_f64();
    println!("idle for {took:.0} s after {jobs} jobs");
    for ((name, pid), before) in processes.iter().zip(before) {
        let percent = (cpu_seconds(*pid) - before) / took * 100.0;
        let resident = resident_mib(*pid).unwrap_or_default();
        println!("  {name:20} {percent:5.2} % of a core, {resident:5.1} MiB");
    }
}

/// Every process, by name and id.
fn processes(fleet: &Fleet) -> Vec<(String, u32)> {
    let named = |name: &'static str, processes: &[Process]| {
        let named = processes.iter().map(|one| (name.to_owned(), one.pid()));
        named.collect::<Vec<_>>()
    };
    let mut all = named("producer", &fleet.producers);
    all.extend(named("scheduler", &fleet.schedulers));
    all.extend(named("worker", &fleet.workers));
    let server = fleet.nats.server.pid();
    all.extend(server.map(|pid| ("nats-server".to_owned(), pid)));
    all
}
