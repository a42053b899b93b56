//! Workers that are asked to stop, stopped, killed and started again, with calls in flight.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeSet;

use fairlane_fleet_tests::{Fleet, PATIENCE, Process, Setup, job};
use fairlane_sim::SimConfig;
use fairlane_support::{eventually, within};
use fairlane_wire::Phase;
use fairlane_wire::lease::Ready;
use futures::StreamExt;
use nix::sys::signal::Signal;

const PROGRAM: &str = env!("CARGO_BIN_EXE_fairlane-under-test");

/// Jobs in flight when something happens to their worker.
const JOBS: usize = 8;

/// Leases that end soon, so that nobody waits long for those of a dead worker.
fn short_leases() -> Vec<(&'static str, String)> {
    [
        ("worker.slots", "8"),
        ("worker.renew_ms", "500"),
        ("scheduler.credit_ttl_ms", "2000"),
        ("scheduler.unstarted_ttl_ms", "1000"),
    ]
    .map(|(key, value)| (key, value.to_owned()))
    .into()
}

async fn publish(fleet: &Fleet, prompt: &str) {
    for number in 0..JOBS {
        let body = job(&format!("job-{number}"), &format!("{prompt} tags {number}"));
        fleet.publish("acme", body).await;
    }
}

/// Waits until all jobs are called.
async fn in_flight(fleet: &Fleet) {
    eventually(PATIENCE, "the calls", || async {
        match usize::try_from(fleet.sim.stats().in_flight) {
            Ok(JOBS) => Ok(()),
            other => Err(format!("{other:?} in flight")),
        }
    })
    .await;
}

/// How often each job was billed, the most often billed last.
fn billed(fleet: &Fleet) -> Vec<usize> {
    let mut jobs = std::collections::BTreeMap::new();
    for call in fleet.sim.log().into_iter().filter(|call| call.billed) {
        *jobs.entry(call.job.unwrap_or_default()).or_insert(0) += 1;
    }
    let mut counts: Vec<usize> = jobs.into_values().collect();
    counts.sort_unstable();
    counts
}

#[tokio::test]
async fn operations_1_calls_in_flight_when_a_worker_is_asked_to_stop_all_finish_once() {
    let sim = SimConfig {
        zero_latency: false,
        first_byte_ms: 1_500,
        ..SimConfig::instant()
    };
    let setup = Setup {
        sim,
        settings: vec![("worker.slots", JOBS.to_string())],
        ..Setup::default()
    };
    let mut fleet = Fleet::start(PROGRAM, setup).await;
    publish(&fleet, "").await;
    in_flight(&fleet).await;
    fleet.workers[0].signal(Signal::SIGTERM);
    assert!(fleet.workers[0].end().await.success());
    let books = fleet.settled().await;
    assert_eq!((books.in_phase(Phase::Done), books.calls), (JOBS, JOBS));
    for number in 0..JOBS {
        let record = fleet
            .record("acme", &format!("job-{number}"))
            .await
            .unwrap();
        assert_eq!((record.deliveries, record.attempts), (1, 1));
    }
    assert_eq!(billed(&fleet), [1; JOBS]);
}

#[tokio::test]
async fn a_second_signal_stops_at_once_and_the_jobs_run_elsewhere_with_no_attempt_less() {
    let setup = Setup {
        settings: short_leases(),
        ..Setup::default()
    };
    let mut fleet = Fleet::start(PROGRAM, setup).await;
    // Nothing would ever come of the first calls.
    publish(&fleet, "[[sim:once=hang]]").await;
    in_flight(&fleet).await;
    fleet.workers[0].signal(Signal::SIGTERM);
    eventually(PATIENCE, "it to drain", || async {
        let log = fleet.workers[0].log();
        log.contains("draining").then_some(()).ok_or(log)
    })
    .await;
    fleet.workers[0].signal(Signal::SIGTERM);
    fleet.workers[0].end().await;
    fleet.workers[0] = fleet.spawn("worker");
    let books = fleet.settled().await;
    assert_eq!(books.in_phase(Phase::Done), JOBS, "{books:?}");
    for number in 0..JOBS {
        let record = fleet
            .record("acme", &format!("job-{number}"))
            .await
            .unwrap();
        assert_eq!(record.attempts, 1, "{record:?}");
    }
}

/// Waits until every worker has announced itself to a leader that listens.
async fn known_to_the_leader(fleet: &Fleet) {
    eventually(PATIENCE, "the leader to know all jobs", || async {
        let knows = |process: &Process| process.log().contains("\"priority\":\"batch\"");
        let one_does = fleet.schedulers.iter().any(knows);
        one_does.then_some(()).ok_or("not yet")
    })
    .await;
    let nats = fleet.client();
    let ready = nats.client.subscribe(nats.names.ready_subject()).await;
    let mut ready = ready.unwrap();
    let mut heard = BTreeSet::new();
    within(PATIENCE, "all workers to be heard", async {
        while heard.len() < fleet.workers.len() {
            let message = ready.next().await.unwrap();
            let ready: Ready = serde_json::from_slice(&message.payload).unwrap();
            heard.insert(ready.worker);
        }
    })
    .await;
}

#[tokio::test]
async fn a_worker_that_stood_still_past_its_credits_calls_nothing_on_them() {
    let setup = Setup {
        workers: 2,
        settings: short_leases(),
        ..Setup::default()
    };
    let fleet = Fleet::start(PROGRAM, setup).await;
    known_to_the_leader(&fleet).await;
    // The leader does not know yet, and goes on granting to it.
    fleet.workers[0].signal(Signal::SIGSTOP);
    publish(&fleet, "").await;
    let books = fleet.settled().await;
    assert_eq!(books.in_phase(Phase::Done), JOBS, "{books:?}");
    fleet.workers[0].signal(Signal::SIGCONT);
    // Whatever was granted to it meanwhile it looks at before this one.
    fleet.publish("acme", job("after", "tags")).await;
    fleet.phase("acme", "after", Phase::Done).await;
    eventually(PATIENCE, "it to look at its old credits", || async {
        let log = fleet.workers[0].log();
        log.contains("not starting a job").then_some(()).ok_or(log)
    })
    .await;
    assert_eq!(billed(&fleet), [1; JOBS + 1]);
}

/// A fleet of short leases whose worker has all its jobs on the wire.
async fn in_the_middle_of_calls() -> Fleet {
    let sim = SimConfig {
        zero_latency: false,
        first_byte_ms: 500,
        ..SimConfig::instant()
    };
    let setup = Setup {
        sim,
        settings: short_leases(),
        ..Setup::default()
    };
    let fleet = Fleet::start(PROGRAM, setup).await;
    publish(&fleet, "").await;
    in_flight(&fleet).await;
    fleet
}

#[tokio::test]
async fn a_worker_that_stood_still_in_its_calls_leaves_them_to_others() {
    let mut fleet = in_the_middle_of_calls().await;
    fleet.workers[0].signal(Signal::SIGSTOP);
    let other = fleet.spawn("worker");
    let books = fleet.settled().await;
    assert_eq!(books.in_phase(Phase::Done), JOBS, "{books:?}");
    fleet.workers[0].signal(Signal::SIGCONT);
    fleet.workers[0].signal(Signal::SIGTERM);
    fleet.workers[0].end().await;
    drop(other);
    let books = fleet.settled().await;
    assert_eq!(
        (books.in_phase(Phase::Done), books.letters),
        (JOBS, 0),
        "{books:?}"
    );
    let billed = billed(&fleet);
    assert_eq!(billed.len(), JOBS);
    assert!(billed.iter().all(|&calls| calls <= 2), "{billed:?}");
}

#[tokio::test]
async fn a_worker_that_is_killed_and_started_again_at_once_strands_nothing() {
    let mut fleet = in_the_middle_of_calls().await;
    fleet.workers[0].kill9();
    fleet.workers[0] = fleet.spawn("worker");
    let books = fleet.settled().await;
    assert_eq!(
        (books.in_phase(Phase::Done), books.letters),
        (JOBS, 0),
        "{books:?}"
    );
    let billed = billed(&fleet);
    assert_eq!(billed.len(), JOBS);
    assert!(billed.iter().all(|&calls| calls <= 2), "{billed:?}");
}
