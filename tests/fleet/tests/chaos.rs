//! Processes die; jobs do not.

use std::time::Duration;

use fairlane_fleet_tests::{Fleet, PATIENCE, Setup, job};
use fairlane_sim::SimConfig;
use fairlane_support::eventually;
use fairlane_wire::Phase;
use nix::sys::signal::Signal;

const PROGRAM: &str = env!("CARGO_BIN_EXE_fairlane-under-test");

/// Calls that take a while, so that something is in flight when somebody dies.
fn slow(first_byte_ms: u64) -> SimConfig {
    SimConfig {
        zero_latency: false,
        first_byte_ms,
        tokens_per_second: 10_000.0,
        ..SimConfig::instant()
    }
}

async fn publish(fleet: &Fleet, jobs: usize) {
    for number in 0..jobs {
        let tenant = ["acme", "bolt", "core"][number % 3];
        fleet
            .publish(
                tenant,
                job(&format!("job-{number}"), &format!("tags {number}")),
            )
            .await;
    }
}

async fn calls(fleet: &Fleet, at_least: usize) {
    eventually(PATIENCE, &format!("{at_least} calls upstream"), || async {
        let calls = fleet.sim.log().len()
            + usize::try_from(fleet.sim.stats().in_flight).expect("few calls");
        if calls >= at_least {
            Ok(())
        } else {
            Err(format!("{calls} so far"))
        }
    })
    .await;
}

/// How often each job was billed.
fn billed(fleet: &Fleet) -> Vec<usize> {
    let mut jobs = std::collections::BTreeMap::new();
    for call in fleet.sim.log().into_iter().filter(|call| call.billed) {
        *jobs.entry(call.job.unwrap_or_default()).or_insert(0) += 1;
    }
    jobs.into_values().collect()
}

#[tokio::test]
async fn jobs_of_a_killed_worker_run_elsewhere() {
    let setup = Setup {
        workers: 2,
        sim: slow(300),
        settings: vec![
            ("worker.slots", "8".to_owned()),
            ("scheduler.credit_ttl_ms", "2000".to_owned()),
            ("scheduler.unstarted_ttl_ms", "1000".to_owned()),
            ("worker.renew_ms", "500".to_owned()),
        ],
        ..Setup::default()
    };
    let mut fleet = Fleet::start(PROGRAM, setup).await;
    publish(&fleet, 60).await;
    calls(&fleet, 20).await;
    fleet.workers[0].kill9();

    let books = fleet.settled().await;
    assert_eq!(books.in_phase(Phase::Done), 60, "{books:?}");
    let billed = billed(&fleet);
    let twice = billed.iter().filter(|&&calls| calls > 1).count();
    assert_eq!(billed.len(), 60);
    assert!(
        twice <= 8,
        "only what was in flight at the kill may be paid twice: {twice}"
    );
    assert!(billed.iter().all(|&calls| calls <= 2), "{billed:?}");
}

#[tokio::test]
async fn a_standby_takes_over_from_a_killed_leader() {
    let setup = Setup {
        schedulers: 2,
        workers: 1,
        sim: slow(50),
        ..Setup::default()
    };
    let mut fleet = Fleet::start(PROGRAM, setup).await;
    publish(&fleet, 100).await;
    calls(&fleet, 10).await;
    let leader = fleet.leading_scheduler().await;
    let (holder, _) = fleet.leader().await;
    fleet.schedulers[leader].kill9();
    // Only another leader can grant these.
    publish(&fleet, 200).await;

    let books = fleet.settled().await;
    assert_eq!(books.in_phase(Phase::Done), 200, "{books:?}");
    let (now, _) = fleet.leader().await;
    assert_ne!(now, holder);
    assert!(
        billed(&fleet).iter().all(|&calls| calls == 1),
        "a leader's death costs nothing"
    );
}

#[tokio::test]
async fn a_leader_that_was_stopped_and_goes_on_grants_nothing_twice() {
    let setup = Setup {
        schedulers: 2,
        workers: 2,
        sim: slow(50),
        ..Setup::default()
    };
    let fleet = Fleet::start(PROGRAM, setup).await;
    publish(&fleet, 100).await;
    calls(&fleet, 10).await;
    let stopped = fleet.leading_scheduler().await;
    let (holder, _) = fleet.leader().await;
    fleet.schedulers[stopped].signal(Signal::SIGSTOP);
    eventually(PATIENCE, "another leader", || async {
        let (now, _) = fleet.leader().await;
        if now == holder {
            Err("still the stopped one")
        } else {
            Ok(())
        }
    })
    .await;
    publish(&fleet, 300).await;
    fleet.schedulers[stopped].signal(Signal::SIGCONT);

    let books = fleet.settled().await;
    assert_eq!(books.in_phase(Phase::Done), 300, "{books:?}");
    assert!(
        billed(&fleet).iter().all(|&calls| calls == 1),
        "nothing is paid twice"
    );
    let log = fleet.schedulers[stopped].log();
    assert!(log.contains("lost the lease"), "it found out: {log}");
}

#[tokio::test]
async fn a_leader_that_is_asked_to_stop_hands_over_at_once() {
    let setup = Setup {
        schedulers: 2,
        // So long that only a hand-over can be in time.
        settings: vec![
            ("scheduler.takeover_after_ms", "60000".to_owned()),
            ("scheduler.lease_ttl_ms", "120000".to_owned()),
        ],
        ..Setup::default()
    };
    let mut fleet = Fleet::start(PROGRAM, setup).await;
    let leader = fleet.leading_scheduler().await;
    let (holder, _) = fleet.leader().await;
    fleet.schedulers[leader].signal(Signal::SIGTERM);
    assert!(fleet.schedulers[leader].end().await.success());
    eventually(Duration::from_secs(10), "the other to lead", || async {
        let (now, _) = fleet.leader().await;
        if now == holder {
            Err("still the old one")
        } else {
            Ok(())
        }
    })
    .await;
    fleet.publish("acme", job("after", "tags")).await;
    fleet.phase("acme", "after", Phase::Done).await;
}

#[tokio::test]
async fn a_worker_that_is_asked_to_stop_finishes_what_it_has() {
    let setup = Setup {
        sim: slow(1_000),
        settings: vec![("worker.slots", "8".to_owned())],
        ..Setup::default()
    };
    let mut fleet = Fleet::start(PROGRAM, setup).await;
    publish(&fleet, 8).await;
    calls(&fleet, 8).await;
    fleet.workers[0].signal(Signal::SIGTERM);
    assert!(fleet.workers[0].end().await.success());
    let books = fleet.settled().await;
    assert_eq!(
        (books.in_phase(Phase::Done), books.calls),
        (8, 8),
        "{books:?}"
    );
}

#[tokio::test]
async fn workers_go_from_one_to_four_and_back_under_load() {
    let slots = 4;
    let setup = Setup {
        sim: slow(200),
        settings: vec![("worker.slots", slots.to_string())],
        ..Setup::default()
    };
    let mut fleet = Fleet::start(PROGRAM, setup).await;
    let jobs = 200;
    publish(&fleet, jobs).await;
    calls(&fleet, slots).await;
    for _ in 0..3 {
        let worker = fleet.spawn("worker");
        fleet.workers.push(worker);
    }
    eventually(PATIENCE, "the new workers to call as well", || async {
        let in_flight = fleet.sim.stats().in_flight;
        if in_flight > 3 * slots as u64 {
            Ok(())
        } else {
            Err(in_flight)
        }
    })
    .await;
    for mut worker in fleet.workers.split_off(1) {
        worker.signal(Signal::SIGTERM);
        assert!(worker.end().await.success());
    }
    let called = fleet.sim.log().len();
    assert!(called < jobs, "one worker has something left to do");
    let books = fleet.settled().await;
    assert_eq!(books.in_phase(Phase::Done), jobs, "{books:?}");
    assert_eq!(billed(&fleet), vec![1; jobs]);
}

#[tokio::test]
async fn a_nats_restart_loses_nothing() {
    let setup = Setup {
        schedulers: 2,
        workers: 2,
        sim: slow(100),
        ..Setup::default()
    };
    let mut fleet = Fleet::start(PROGRAM, setup).await;
    publish(&fleet, 100).await;
    calls(&fleet, 10).await;
    fleet
        .nats
        .server
        .restart()
        .await
        .expect("the server comes back");
    let books = fleet.settled().await;
    assert_eq!(books.in_phase(Phase::Done), 100, "{books:?}");
}

#[tokio::test]
async fn a_pool_that_is_paused_stays_paused_under_the_next_leader() {
    let setup = Setup {
        schedulers: 2,
        ..Setup::default()
    };
    let mut fleet = Fleet::start(PROGRAM, setup).await;
    // Refused with a time to wait that outlives the test.
    fleet
        .publish(
            "acme",
            job("first", "[[sim:once=429 retry_after=3600]] tags"),
        )
        .await;
    fleet.phase("acme", "first", Phase::Retrying).await;
    let names = &fleet.client().names;
    let control = fleet.client().bucket(&names.control_bucket());
    eventually(PATIENCE, "the pause to be in the books", || async {
        let entry = control
            .get(names.books_key())
            .await
            .map_err(|error| error.to_string())?;
        let books = entry
            .as_ref()
            .and_then(|entry| entry.value())
            .ok_or("no books")?;
        let books: fairlane_wire::SnapshotRecord =
            serde_json::from_slice(books).map_err(|error| error.to_string())?;
        let paused = books
            .pools
            .iter()
            .any(|pool| pool.paused_until_ms > books.at_ms);
        if paused {
            Ok(())
        } else {
            Err(format!("{books:?}"))
        }
    })
    .await;
    let leader = fleet.leading_scheduler().await;
    let (holder, _) = fleet.leader().await;
    fleet.schedulers[leader].kill9();
    eventually(PATIENCE, "another leader", || async {
        let (now, _) = fleet.leader().await;
        if now == holder {
            Err("not yet")
        } else {
            Ok(())
        }
    })
    .await;

    // A job in another pool shows that the new leader grants; the paused pool's does not move.
    fleet.publish("acme", job("waits", "tags")).await;
    let other = job("runs", "tags").replace("claude-haiku-4-5", "claude-sonnet-4-6");
    fleet.publish("acme", other).await;
    fleet.phase("acme", "runs", Phase::Done).await;
    fleet.phase("acme", "waits", Phase::Queued).await;
    assert_eq!(fleet.sim.log().len(), 2, "one refused, one answered");
}
