//! Letters on a real server: read, claimed, and sent again in runs.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;

use bytes::Bytes;
use fairlane_core::{JobId, TenantId, Tokens};
use fairlane_letters::claim::{Claim, claim};
use fairlane_letters::filter::{Filter, Standing};
use fairlane_letters::reader;
use fairlane_letters::ready::{Judge, Size};
use fairlane_letters::repair::Repair;
use fairlane_letters::run::{Run, RunError, Runs, State, Tally, drive};
use fairlane_nats::{HeaderMap, Nats, Original};
use fairlane_support::{LIMIT, TestNats, within};
use fairlane_wire::letter::Letter;
use fairlane_wire::{DeadReason, Failure, Redrive, header, submission};
use tokio_util::sync::CancellationToken;

struct Parses;

impl Judge for Parses {
    fn judge(&self, tenant: &TenantId, body: &[u8]) -> Result<Size, Failure> {
        let job = submission::parse(body, tenant)?;
        Ok(Size {
            model: job.model,
            tokens: Tokens {
                input: 1,
                output: 1,
            },
        })
    }
}

fn body(job: u64) -> String {
    format!(
        r#"{{"id":"j{job}","origin":"scheduled","kind":"tagging","prompt":"hi","model":"claude-haiku-4-5"}}"#
    )
}

async fn bury(nats: &Nats, job: u64, body: &str) -> u64 {
    let id = JobId::parse(&format!("j{job}")).unwrap();
    let failure = Failure::new(
        DeadReason::Exhausted,
        format!("overloaded, request req_{job}"),
    );
    let letter = Letter::new(Some("acme".into()), id, failure, 1_000 + job)
        .read_from("fl.jobs.batch.acme", job);
    let original = Original {
        headers: &HeaderMap::new(),
        raw_headers: None,
        body: Bytes::copy_from_slice(body.as_bytes()),
    };
    nats.bury(&letter, original).await.unwrap().seq
}

async fn with_letters(count: u64) -> (TestNats, Vec<u64>) {
    let server = TestNats::start().await;
    let mut seqs = Vec::new();
    for job in 0..count {
        seqs.push(bury(&server.nats, job, &body(job)).await);
    }
    (server, seqs)
}

fn run_of(id: &str, letters: usize, per_second: u32) -> Run {
    Run {
        id: id.into(),
        created_ms: 1,
        what: "test".into(),
        repair: Repair::default(),
        per_second,
        letters: letters as u64,
        state: State::Running,
        driver: "nobody".into(),
        tally: Tally::default(),
    }
}

async fn go(nats: &Nats, id: &str, driver: &str) -> Result<Run, RunError> {
    let runs = Runs::new(nats);
    let stop = CancellationToken::new();
    let driven = drive(&runs, id, driver, &Parses, &stop, |_| {}, || 7);
    within(LIMIT, "a run", driven).await
}

/// Letters that were submitted again.
async fn submitted(nats: &Nats) -> Vec<u64> {
    let mut stream = nats.jetstream.get_stream("FL_SUBMIT").await.unwrap();
    let last = stream.info().await.unwrap().state.last_sequence;
    let mut letters = Vec::new();
    for seq in 1..=last {
        let message = nats.jobs().get("FL_SUBMIT", seq).await.unwrap().unwrap();
        let redrive = message.headers.get(header::REDRIVE).unwrap().as_str();
        letters.push(Redrive::parse(redrive).unwrap().letter);
    }
    letters
}

#[tokio::test]
async fn a_letter_is_claimed_once() {
    let (server, seqs) = with_letters(1).await;
    let claim = async |run: &str| claim(&server.nats, seqs[0], run, 7).await.unwrap();
    let first = claim("r-1").await;
    assert!(matches!(first, Claim::Ours(_)));
    assert_eq!(claim("r-1").await, first, "it may not have sent it");
    let Claim::Theirs(note) = claim("r-2").await else {
        panic!()
    };
    assert_eq!((note.run.as_str(), note.sent), ("r-1", false));
}

#[tokio::test]
async fn exactly_the_letters_that_were_chosen_move_however_many_come_to_fit() {
    let (server, _) = with_letters(1_000).await;
    let nats = &server.nats;
    let index = reader::read(nats).await;
    let filter = Filter {
        reasons: vec![DeadReason::Exhausted],
        ..Filter::default()
    };
    let chosen: Vec<u64> = index.select(&filter).map(|entry| entry.seq).collect();
    assert_eq!(chosen.len(), 1_000);
    assert_eq!(index.groups(&filter).len(), 1, "one cause");
    let runs = Runs::new(nats);
    let run = run_of("r-1", chosen.len(), 10_000);
    runs.create(&run, &chosen).await.unwrap();
    for job in 1_000..1_500 {
        bury(nats, job, &body(job)).await;
    }
    let run = go(nats, "r-1", "me").await.unwrap();
    assert_eq!((run.state, run.tally.sent), (State::Done, 1_000));
    assert_eq!(submitted(nats).await, chosen);
    let index = reader::read(nats).await;
    assert_eq!(index.select(&filter).count(), 500);
    let filter = Filter {
        standing: Standing::Redriven,
        ..filter
    };
    assert!(
        index
            .select(&filter)
            .all(|entry| entry.redriven.as_ref().unwrap().sent)
    );
}

#[tokio::test]
async fn two_terminals_with_the_same_letters_send_each_once() {
    let (server, seqs) = with_letters(60).await;
    let nats = &server.nats;
    let runs = Runs::new(nats);
    for id in ["r-1", "r-2"] {
        runs.create(&run_of(id, seqs.len(), 10_000), &seqs)
            .await
            .unwrap();
    }
    let (one, two) = tokio::join!(go(nats, "r-1", "me"), go(nats, "r-2", "you"));
    let (one, two) = (one.unwrap().tally, two.unwrap().tally);
    assert_eq!((one.sent + two.sent, one.already + two.already), (60, 60));
    let left = one.some_left.iter().chain(&two.some_left);
    assert!(left.clone().count() == 60 && left.clone().all(|left| left.why.starts_with("already")));
    let mut sent = submitted(nats).await;
    sent.sort_unstable();
    assert_eq!(sent, seqs);
    runs.create(&run_of("r-3", 1, 10), &seqs[..1])
        .await
        .unwrap();
    let third = go(nats, "r-3", "me").await.unwrap().tally;
    assert_eq!((third.sent, third.already), (0, 1));
    assert!(
        third.some_left[0]
            .why
            .starts_with("already redriven by run r-")
    );
}

#[tokio::test]
async fn a_driver_that_dies_leaves_a_run_that_another_one_finishes() {
    let (server, seqs) = with_letters(250).await;
    let nats = &server.nats;
    let runs = Runs::new(nats);
    runs.create(&run_of("r-1", seqs.len(), 10_000), &seqs)
        .await
        .unwrap();
    // Dies in the middle, long after its last saved position.
    let driven = drive_until(nats, 137).await;
    assert!(driven >= 137);
    let run = go(nats, "r-1", "another").await.unwrap();
    assert_eq!((run.tally.sent, run.tally.already), (250, 0));
    assert_eq!(
        submitted(nats).await.iter().collect::<BTreeSet<_>>().len(),
        250
    );
    assert!(
        submitted(nats).await.len() <= 251,
        "at most the one in hand twice"
    );
    assert!(matches!(
        go(nats, "r-1", "me").await,
        Err(RunError::Over { .. })
    ));
}

/// Drives r-1 and drops it, as a kill does, once `letters` are sent.
async fn drive_until(nats: &Nats, letters: u64) -> u64 {
    let runs = Runs::new(nats);
    let stop = CancellationToken::new();
    let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let tell = move |run: &Run| told.send(run.tally.sent).unwrap();
    let driven = drive(&runs, "r-1", "me", &Parses, &stop, tell, || 7);
    let enough = async {
        loop {
            let sent = heard.recv().await.unwrap();
            if sent >= letters {
                return sent;
            }
        }
    };
    tokio::select! {
        ended = driven => panic!("{ended:?}"),
        sent = enough => sent,
    }
}

#[tokio::test]
async fn a_run_is_paused_resumed_and_cancelled_from_elsewhere() {
    let (server, seqs) = with_letters(100).await;
    let nats = &server.nats;
    let runs = Runs::new(nats);
    runs.create(&run_of("r-1", seqs.len(), 50), &seqs)
        .await
        .unwrap();
    let (told, mut heard) = tokio::sync::watch::channel(run_of("r-1", 0, 1));
    let driver = tokio::spawn({
        let (runs, stop) = (runs.clone(), CancellationToken::new());
        let tell = move |run: &Run| drop(told.send(run.clone()));
        async move { drive(&runs, "r-1", "me", &Parses, &stop, tell, || 7).await }
    });
    let mut until = async |holds: fn(&Run) -> bool| {
        let seen = within(LIMIT, "the driver", heard.wait_for(holds)).await;
        seen.unwrap().tally.sent
    };
    until(|run| run.tally.sent >= 3).await;
    runs.set_state("r-1", State::Paused).await.unwrap();
    let before = until(|run| run.state == State::Paused).await;
    assert_eq!(submitted(nats).await.len() as u64, before);
    runs.set_state("r-1", State::Running).await.unwrap();
    let after = until(|run| run.state == State::Running).await;
    assert_eq!(after, before + 1);
    runs.set_state("r-1", State::Cancelled).await.unwrap();
    let run = driver.await.unwrap().unwrap();
    assert_eq!(run.state, State::Cancelled);
    assert!(run.tally.sent < 100);
    let listed = runs.list().await;
    assert_eq!((listed.len(), &listed[0]), (1, &run));
}

#[tokio::test]
async fn what_cannot_be_sent_stays_and_is_listed() {
    let server = TestNats::start().await;
    let nats = &server.nats;
    let good = bury(nats, 1, &body(1)).await;
    let bad = bury(nats, 2, "not a job").await;
    let runs = Runs::new(nats);
    runs.create(&run_of("r-1", 3, 1_000), &[good, bad, 77])
        .await
        .unwrap();
    let run = go(nats, "r-1", "me").await.unwrap();
    let tally = &run.tally;
    assert_eq!((tally.sent, tally.left, tally.gone), (1, 1, 1));
    assert_eq!(tally.some_left[0].letter, bad);
    assert!(
        tally.some_left[0].why.contains("turned away again"),
        "{tally:?}"
    );
    let index = reader::read(nats).await;
    let open: Vec<u64> = index
        .select(&Filter::default())
        .map(|entry| entry.seq)
        .collect();
    assert_eq!(open, [bad]);
}
