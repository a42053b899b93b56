//! NATS goes away for longer than anything is held without it, and comes back.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fairlane_fleet_tests::{Fleet, PATIENCE, Setup, job, status};
use fairlane_nats::embedded::free_port;
use fairlane_sim::SimConfig;
use fairlane_support::eventually;
use fairlane_wire::Phase;

const PROGRAM: &str = env!("CARGO_BIN_EXE_fairlane-under-test");
const JOBS: usize = 60;
const SLOTS: usize = 8;
/// Several lives of a credit, and of the leader's lease.
const AWAY: Duration = Duration::from_secs(15);

/// What every process answers: alive, and ready.
async fn answers(addresses: &[String]) -> Result<Vec<(u16, u16)>, String> {
    let mut answers = Vec::new();
    for address in addresses {
        let alive = status(address, "/livez").await?;
        answers.push((alive, status(address, "/readyz").await?));
    }
    Ok(answers)
}

async fn all_answer(addresses: &[String], wanted: (u16, u16)) {
    eventually(PATIENCE, &format!("all to answer {wanted:?}"), || async {
        let answers = answers(addresses).await?;
        if answers.iter().all(|answer| *answer == wanted) {
            Ok(())
        } else {
            Err(format!("{answers:?}"))
        }
    })
    .await;
}

#[tokio::test]
async fn operations_2_without_nats_processes_live_and_are_not_ready_and_all_goes_on_afterwards() {
    let address = |_| format!("127.0.0.1:{}", free_port().expect("a port"));
    let addresses: Vec<String> = (0..3).map(address).collect();
    let setup = Setup {
        sim: SimConfig {
            zero_latency: false,
            first_byte_ms: 300,
            ..SimConfig::instant()
        },
        settings: vec![
            ("worker.slots", SLOTS.to_string()),
            ("worker.renew_ms", "500".to_owned()),
            ("scheduler.credit_ttl_ms", "2000".to_owned()),
            ("scheduler.unstarted_ttl_ms", "1000".to_owned()),
            ("scheduler.lease_ttl_ms", "6000".to_owned()),
            ("producer.http_addr", addresses[0].clone()),
            ("scheduler.http_addr", addresses[1].clone()),
            ("worker.http_addr", addresses[2].clone()),
        ],
        ..Setup::default()
    };
    let mut fleet = Fleet::start(PROGRAM, setup).await;
    all_answer(&addresses, (200, 200)).await;
    for number in 0..JOBS {
        let body = job(&format!("job-{number}"), &format!("tags {number}"));
        fleet.publish("acme", body).await;
    }
    eventually(PATIENCE, "some calls", || async {
        let calls = fleet.sim.log().len();
        if calls >= 10 { Ok(()) } else { Err(calls) }
    })
    .await;

    fleet.nats.server.stop().await;
    let began = Instant::now();
    all_answer(&addresses, (200, 503)).await;
    eventually(PATIENCE, "the outage to be long", || async {
        let answers = answers(&addresses).await.expect("they live");
        assert!(
            answers.iter().all(|answer| *answer == (200, 503)),
            "{answers:?}"
        );
        let away = began.elapsed();
        if away > AWAY {
            Ok(())
        } else {
            Err(format!("{away:?}"))
        }
    })
    .await;

    fleet.nats.server.restart().await.expect("it comes back");
    all_answer(&addresses, (200, 200)).await;
    let books = fleet.settled().await;
    assert_eq!(
        (books.in_phase(Phase::Done), books.letters),
        (JOBS, 0),
        "{books:?}"
    );
    let mut billed = BTreeMap::new();
    for call in fleet.sim.log().into_iter().filter(|call| call.billed) {
        *billed.entry(call.job.unwrap_or_default()).or_insert(0) += 1;
    }
    let twice = billed.values().filter(|calls| **calls > 1).count();
    assert_eq!(billed.len(), JOBS);
    assert!(
        twice <= SLOTS,
        "{twice} were paid twice, {SLOTS} in flight at most"
    );
}
