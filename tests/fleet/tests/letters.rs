//! Dead letters with real processes: the tutorial as it is printed, and letters sent again by two
//! people while the leader changes.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use fairlane_fleet_tests::{Fleet, PATIENCE, Setup, job};
use fairlane_support::{eventually, within};
use fairlane_wire::Phase;

const PROGRAM: &str = env!("CARGO_BIN_EXE_fairlane-under-test");
const README: &str = include_str!("../../../deploy/README.md");

/// The commands of a section: what stands in its first block of shell commands.
fn commands(section: &str) -> &'static str {
    let (_, section) = README.split_once(section).unwrap();
    let (_, block) = section.split_once("```sh\n").unwrap();
    block.split_once("```").unwrap().0
}

#[tokio::test]
async fn the_tutorial_makes_every_wallpaper_run_that_can_be_repaired() {
    let fleet = Fleet::start(PROGRAM, Setup::default()).await;
    let dir = tempfile::tempdir().unwrap();
    let script = format!(
        "TMPDIR={}\n{}",
        dir.path().display(),
        commands("## Dead letters, in five minutes")
    );
    let output = within(PATIENCE, "the tutorial", fleet.shell(&script)).await;
    let talk = String::from_utf8_lossy(&output.stderr);
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{out}\n{talk}");
    assert!(talk.contains("already redriven by run r-"), "{talk}");
    assert!(out.contains("exit code 3"), "{out}");
    for (tenant, job) in [
        ("wallpaper-lite", "wp-0111"),
        ("pixel-walls", "wp-0620"),
        ("calm-screens", "wp-0402"),
        ("calm-screens", "wp-0455"),
        ("pixel-walls", "wp-0342"),
        ("wallpaper-lite", "wp-0377"),
        ("calm-screens", "wp-0204"),
        ("pixel-walls", "wp-0500"),
    ] {
        let record = fleet.phase(tenant, job, Phase::Done).await;
        assert_eq!(record.priority.as_deref(), Some("batch"), "{job}");
    }
    let books = fleet.settled().await;
    assert_eq!(books.in_phase(Phase::Done), 783 + 8, "{books:?}");
    assert_eq!(books.in_phase(Phase::Failed), 13 - 8, "{books:?}");
}

#[tokio::test]
async fn letters_sent_by_two_people_while_the_leader_changes_run_once_more() {
    let setup = Setup {
        schedulers: 2,
        ..Setup::default()
    };
    let mut fleet = Fleet::start(PROGRAM, setup).await;
    for number in 0..20 {
        let id = format!("bad-{number}");
        fleet.publish("acme", job(&id, "[[sim:refusal]] no")).await;
    }
    for number in 0..20 {
        let id = format!("bad-{number}");
        fleet.phase("acme", &id, Phase::Failed).await;
    }
    let calls = fleet.sim.log().len();
    assert_eq!(calls, 20);
    let leader = fleet.leading_scheduler().await;
    let group = [
        "dlq", "redrive", "--reason", "refusal", "--yes", "-o", "json",
    ];
    let one = ["dlq", "redrive", "acme/bad-7", "--yes"];
    let mut leading = fleet.schedulers.remove(leader);
    let ((), group, one) = tokio::join!(
        async { leading.kill9() },
        fleet.run(&group),
        fleet.run(&one)
    );
    assert!(group.status.code().is_some() && one.status.code().is_some());
    eventually(PATIENCE, "all to run once more", async || {
        let calls = fleet.sim.log().len();
        if calls >= 40 { Ok(()) } else { Err(calls) }
    })
    .await;
    let books = fleet.settled().await;
    assert_eq!(fleet.sim.log().len(), 40, "each once more");
    assert_eq!(books.letters, 40, "each came back with a letter of its own");
    let again = fleet.run(&["dlq", "redrive", "#1", "--yes"]).await;
    assert_eq!(again.status.code(), Some(3));
    let talk = String::from_utf8_lossy(&again.stderr);
    assert!(talk.contains("already redriven by run"), "{talk}");
    let shown = fleet
        .run(&["dlq", "show", "acme/bad-7", "-o", "json"])
        .await;
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(shown["letter"]["lineage"][0]["reason"], "refusal");
    assert_eq!(shown["letter"]["tries"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn what_is_published_past_the_producers_and_is_no_job_is_found_among_the_letters() {
    let fleet = Fleet::start(PROGRAM, Setup::default()).await;
    let client = fleet.client();
    let jobs = client.jobs();
    let stored = jobs.publish("fl.jobs.batch.acme", None, Default::default(), "x".into());
    stored.await.unwrap();
    let letter = eventually(PATIENCE, "its letter", async || {
        client.letter(1).await.unwrap().ok_or("none")
    })
    .await;
    assert_eq!(&letter.body[..], b"x");
    assert_eq!(
        letter.letter.failure.detail.as_deref(),
        Some("not_from_a_producer")
    );
    fleet.settled().await;
}

#[tokio::test]
async fn a_job_whose_letter_cannot_be_written_waits_in_the_queue_and_is_not_called_again() {
    let fleet = Fleet::start(PROGRAM, Setup::default()).await;
    let client = fleet.client();
    let refuse = async |refuses: bool| {
        let stream = client.jetstream.get_stream("FL_DLQ").await.unwrap();
        let mut config = stream.cached_info().config.clone();
        config.max_message_size = if refuses { 1 } else { -1 };
        client.jetstream.update_stream(config).await.unwrap();
    };
    refuse(true).await;
    fleet
        .publish("acme", job("bad", "[[sim:refusal]] no"))
        .await;
    eventually(PATIENCE, "the call", async || {
        let calls = fleet.sim.log().len();
        if calls == 1 { Ok(()) } else { Err(calls) }
    })
    .await;
    // Long enough for what would be deleted too early to be gone: others come and go meanwhile.
    fleet.publish("acme", job("good", "yes")).await;
    fleet.phase("acme", "good", Phase::Done).await;
    eventually(PATIENCE, "the good job to go", async || {
        match client.jobs().count("FL_JOBS").await.unwrap() {
            1 => Ok(()),
            jobs => Err(jobs),
        }
    })
    .await;
    let first = client.jobs().get("FL_JOBS", 1).await.unwrap();
    assert!(first.is_some(), "the bad job is there");
    assert_eq!(client.letter(1).await.unwrap(), None);
    refuse(false).await;
    fleet.phase("acme", "bad", Phase::Failed).await;
    let books = fleet.settled().await;
    assert_eq!((books.letters, fleet.sim.log().len()), (1, 2));
}
