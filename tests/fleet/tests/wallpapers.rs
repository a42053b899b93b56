//! The 800 wallpaper jobs by the upstream's own log: who was called, how often, and who was billed.

use std::collections::BTreeMap;

use fairlane_fleet_tests::{Fleet, Setup};
use fairlane_wire::Phase;

const PROGRAM: &str = env!("CARGO_BIN_EXE_fairlane-under-test");
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../data/wallpapers-800.jsonl");

#[tokio::test]
async fn every_done_job_is_paid_once_and_the_odd_ones_are_called_as_often_as_they_may() {
    let fleet = Fleet::start(
        PROGRAM,
        Setup {
            schedulers: 2,
            workers: 2,
            ..Setup::default()
        },
    )
    .await;
    let output = fleet.run(&["submit", FILE, "--wait"]).await;
    assert_eq!(
        output.status.code(),
        Some(1),
        "some of its jobs fail: {output:?}"
    );

    let books = fleet.settled().await;
    assert_eq!(books.in_phase(Phase::Done), 783, "{books:?}");
    assert_eq!(books.in_phase(Phase::Failed), 13, "{books:?}");
    assert_eq!(books.letters, 13, "{books:?}");

    let mut calls: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    let log = fleet.sim.log();
    for call in &log {
        let (made, billed) = calls
            .entry(call.job.as_deref().unwrap_or("?").to_owned())
            .or_default();
        *made += 1;
        *billed += usize::from(call.billed);
    }
    assert_eq!(
        books.calls,
        log.len(),
        "every call is booked, and nothing else"
    );
    assert_eq!(books.ambiguous, 1);
    // Calls made, calls billed.
    let odd = [
        ("wp-0203", (1, 1)),
        ("wp-0300", (1, 0)),
        ("wp-0301", (2, 2)),
        ("wp-0401", (1, 1)),
        ("wp-0600", (1, 0)),
        ("wp-0666", (2, 1)),
        ("wp-0700", (2, 1)),
        ("wp-0760", (2, 2)),
    ];
    for (job, wanted) in odd {
        assert_eq!(calls.remove(job), Some(wanted), "{job}");
    }
    for never_called in [
        "wp-0111", "wp-0204", "wp-0342", "wp-0377", "wp-0402", "wp-0455", "wp-0620",
    ] {
        assert_eq!(calls.get(never_called), None, "{never_called}");
    }
    assert_eq!(calls.len(), 779, "the plain lines");
    let more_than_once = calls.iter().find(|(_, calls)| **calls != (1, 1));
    assert_eq!(more_than_once, None);

    let fallen = fleet.record("wallpaper-lite", "wp-0700").await.unwrap();
    assert_eq!(fallen.attempts, 1, "a 429 burns no attempt");
    let retried = fleet.record("calm-screens", "wp-0666").await.unwrap();
    assert_eq!((retried.phase, retried.attempts), (Phase::Done, 2));
}
