//! Idempotency keys: one job and one call for each, whoever publishes it and whenever; and what becomes of a
//! key whose job ended without a result.

use std::collections::BTreeSet;

use fairlane_fleet_tests::{Fleet, PATIENCE, Setup, job};
use fairlane_support::eventually;
use fairlane_wire::{Descent, Phase};

const PROGRAM: &str = env!("CARGO_BIN_EXE_fairlane-under-test");

fn keyed(id: &str, key: &str, prompt: &str) -> String {
    let body = job(id, prompt);
    body.replacen('{', &format!("{{\"idempotency_key\":\"{key}\","), 1)
}

#[tokio::test]
async fn one_key_published_a_hundred_times_is_one_call_and_one_result_for_all() {
    let setup = Setup {
        producers: 4,
        workers: 2,
        ..Setup::default()
    };
    let mut fleet = Fleet::start(PROGRAM, setup).await;
    let publish = async |numbers: std::ops::Range<usize>| {
        for number in numbers {
            // Under ids of their own, and some under the same id.
            let id = format!("dup-{}", number % 40);
            fleet.publish("acme", keyed(&id, "one", "tags")).await;
        }
    };
    publish(0..50).await;
    let taken = || async {
        let books = fairlane_fleet_tests::Books::read(fleet.client()).await;
        let books = books.map_err(|error| error.to_string())?;
        match (books.submitted, books.queued) {
            (0, 0) => Ok(()),
            _ => Err(format!("{books:?}")),
        }
    };
    eventually(PATIENCE, "the first half to be done", taken).await;
    // A server that starts anew has forgotten the ids of what it has no more, as when their window is over.
    fleet.nats.server.restart().await.expect("it comes back");
    let publish = async |numbers: std::ops::Range<usize>| {
        for number in numbers {
            let id = format!("dup-{}", number % 40);
            fleet.publish("acme", keyed(&id, "one", "tags")).await;
        }
    };
    publish(50..100).await;
    fleet.settled().await;

    let calls: Vec<_> = fleet
        .sim
        .log()
        .into_iter()
        .filter(|call| call.billed)
        .collect();
    assert_eq!(calls.len(), 1);
    let owner = calls[0].job.as_deref().expect("its id").to_owned();
    let answer = fleet.phase("acme", &owner, Phase::Done).await.result;
    let mut outcomes = BTreeSet::new();
    for number in 0..40 {
        let id = format!("dup-{number}");
        let record = fleet.record("acme", &id).await.expect("a record for each");
        let same_as = record.same_as.clone().unwrap_or_else(|| id.clone());
        outcomes.insert(same_as);
        if number < 3 {
            let output = fleet
                .run(&["result", &format!("acme/{id}"), "-o", "json"])
                .await;
            let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(Some(said), answer);
        }
    }
    assert_eq!(outcomes, BTreeSet::from([owner]));
    let ledger = fleet
        .run(&["ledger", "--tenant", "acme", "-o", "json"])
        .await;
    let ledger: serde_json::Value = serde_json::from_slice(&ledger.stdout).unwrap();
    assert_eq!(
        (&ledger["total"]["jobs"], &ledger["total"]["calls"]),
        (&1.into(), &1.into())
    );
    assert_eq!(ledger["total"]["double_paid"]["calls"], 0);
}

#[tokio::test]
async fn a_job_that_failed_is_run_again_when_it_is_published_again_under_its_id() {
    let fleet = Fleet::start(PROGRAM, Setup::default()).await;
    fleet
        .publish("acme", job("a", "[[sim:status=400]] tags"))
        .await;
    let failed = fleet.phase("acme", "a", Phase::Failed).await;
    fleet.publish("acme", job("a", "tags")).await;
    let done = fleet.phase("acme", "a", Phase::Done).await;
    let parent = done.parent.expect("it says after what it comes");
    assert_eq!(
        (parent.how, parent.sequence),
        (Descent::Again, failed.sequence)
    );
    assert_eq!(done.failure, None);
    // And having a result, it owns its key for good.
    fleet.publish("acme", job("a", "tags")).await;
    let books = fleet.settled().await;
    assert_eq!((books.calls, books.letters), (2, 1), "{books:?}");
}

#[tokio::test]
async fn the_key_of_a_job_that_was_called_off_passes_to_the_next_job() {
    let setup = Setup {
        workers: 0,
        ..Setup::default()
    };
    let fleet = Fleet::start(PROGRAM, setup).await;
    fleet.publish("acme", keyed("a", "k", "tags")).await;
    fleet.phase("acme", "a", Phase::Queued).await;
    assert!(fleet.run(&["cancel", "acme/a"]).await.status.success());
    fleet.publish("acme", keyed("b", "k", "tags")).await;
    let queued = fleet.phase("acme", "b", Phase::Queued).await;
    assert_eq!(queued.parent.expect("a parent").job.as_str(), "a");
    let _worker = fleet.spawn("worker");
    fleet.phase("acme", "b", Phase::Done).await;
    let a = fleet.phase("acme", "a", Phase::Cancelled).await;
    assert_eq!(a.children.len(), 1);
    assert_eq!(
        (a.children[0].how, a.children[0].job.as_str()),
        (Descent::Again, "b")
    );
    // The key is b's now.
    fleet.publish("acme", keyed("c", "k", "tags")).await;
    let c = fleet.phase("acme", "c", Phase::Accepted).await;
    assert_eq!(c.same_as.as_deref(), Some("b"));
    assert_eq!(fleet.sim.log().len(), 1);
}
