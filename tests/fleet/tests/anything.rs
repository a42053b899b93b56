//! Whatever is published is run or found among the dead letters, byte for byte, by real processes.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;

use bytes::Bytes;
use fairlane_core::JobId;
use fairlane_fleet_tests::{Fleet, PATIENCE, Setup, job};
use fairlane_nats::StoredLetter;
use fairlane_support::eventually;
use fairlane_wire::{Phase, assigned_id, peek};
use futures::{StreamExt, stream};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};

const PROGRAM: &str = env!("CARGO_BIN_EXE_fairlane-under-test");
const BODIES: usize = 400;
/// What the server takes in one message, less room for headers.
const BYTES_MAX: usize = 1024 * 1024 - 512;

/// A body of one of many sorts; what is a job is a job of its own.
fn body(random: &mut StdRng, number: usize) -> Vec<u8> {
    let good = job(&format!("any-{number}"), &format!("tags of {number}")).into_bytes();
    match random.random_range(0..14) {
        0 => Vec::new(),
        1 | 2 => noise(random, 200),
        3 => vec![0; random.random_range(1..50)],
        4 => b"[".repeat(random.random_range(1..20_000)),
        5 => {
            let depth = random.random_range(1..300);
            let (open, close) = ("[".repeat(depth), "]".repeat(depth));
            let text = format!(",\"metadata\":{open}1{close}}}");
            [&good[..good.len() - 1], text.as_bytes()].concat()
        }
        // Cut off anywhere.
        6 => good[..random.random_range(0..good.len())].to_vec(),
        // A few bytes changed.
        7..=9 => {
            let mut bytes = good;
            for _ in 0..random.random_range(1..4) {
                let at = random.random_range(0..bytes.len());
                bytes[at] = random.random();
            }
            bytes
        }
        // Bytes put in, also such that are no text.
        10 => {
            let mut bytes = good;
            let at = random.random_range(0..bytes.len());
            bytes.splice(at..at, noise(random, 5));
            bytes
        }
        // As large as a message may be.
        11 if number.is_multiple_of(4) => {
            let mut bytes = good;
            bytes.resize(BYTES_MAX, b' ');
            bytes
        }
        12 if number.is_multiple_of(4) => noise(random, BYTES_MAX),
        _ => good,
    }
}

fn noise(random: &mut StdRng, most: usize) -> Vec<u8> {
    let mut bytes = vec![0; random.random_range(1..=most)];
    random.fill_bytes(&mut bytes);
    bytes
}

#[tokio::test]
async fn whatever_is_published_is_run_or_is_a_letter_byte_for_byte_and_has_one_outcome() {
    let seed = std::env::var("FAIRLANE_SEED").ok();
    let seed = seed.and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(rand::random);
    println!("FAIRLANE_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let bodies: Vec<Bytes> = (0..BODIES)
        .map(|number| body(&mut random, number).into())
        .collect();
    let setup = Setup {
        producers: 2,
        workers: 2,
        ..Setup::default()
    };
    let fleet = Fleet::start(PROGRAM, setup).await;
    let jobs = fleet.client().jobs();
    let publish = |body: &Bytes| {
        let body = body.clone();
        let jobs = jobs.clone();
        async move {
            let sent = jobs.publish("fl.submit.acme", None, Default::default(), body);
            sent.await.unwrap().seq
        }
    };
    let sequences: Vec<u64> = stream::iter(&bodies)
        .map(publish)
        .buffered(32)
        .collect()
        .await;
    fleet.settled().await;

    let mut letters: BTreeMap<u64, Vec<StoredLetter>> = BTreeMap::new();
    let mut of_jobs: BTreeMap<String, Vec<StoredLetter>> = BTreeMap::new();
    let last = fleet.client().jetstream.get_stream("FL_DLQ").await.unwrap();
    for seq in 1..=last.cached_info().state.last_sequence {
        let letter = fleet.client().letter(seq).await.unwrap().unwrap();
        if letter.letter.subject == "fl.submit.acme" {
            letters.entry(letter.letter.seq).or_default().push(letter);
        } else {
            of_jobs
                .entry(letter.letter.job.to_string())
                .or_default()
                .push(letter);
        }
    }
    let (mut run, mut dead) = (0, 0);
    for (body, seq) in bodies.iter().zip(sequences) {
        let shown = || body[..body.len().min(300)].escape_ascii().to_string();
        if let Some(found) = letters.remove(&seq) {
            assert_eq!(found.len(), 1, "seed {seed}: {}", shown());
            assert_eq!(found[0].body, body, "seed {seed}: {}", shown());
            dead += 1;
            continue;
        }
        // It was a job. Without a usable id of its own it has one of ours, which its record names.
        let named = peek(body).id.filter(|id| JobId::parse(id).is_ok());
        let id = match named {
            Some(id) => id,
            None => {
                let record = eventually(PATIENCE, "its record", || async {
                    assigned(&fleet, seq).await.ok_or("none")
                });
                record.await
            }
        };
        let record = fleet.record("acme", &id).await;
        let record = record.unwrap_or_else(|| panic!("seed {seed}: it vanished: {}", shown()));
        let letter = of_jobs.remove(&id);
        match (record.phase, letter) {
            (Phase::Done, None) => run += 1,
            (Phase::Failed, Some(found)) => {
                assert_eq!(
                    (found.len(), &found[0].body),
                    (1, body),
                    "seed {seed}: {}",
                    shown()
                );
                dead += 1;
            }
            other => panic!("seed {seed}: {other:?}: {}", shown()),
        }
    }
    assert!(
        letters.is_empty() && of_jobs.is_empty(),
        "seed {seed}: letters of nothing"
    );
    assert!(run > 50 && dead > 50, "seed {seed}: {run} run, {dead} dead");
}

/// The id that the submission at `seq` was given.
async fn assigned(fleet: &Fleet, seq: u64) -> Option<String> {
    let client = fleet.client();
    let counts = client.jobs();
    let counts = counts.counts("KV_fl_status", "$KV.fl_status.acme.>").await;
    let end = format!("-{seq}");
    let mut found = counts.ok()?.into_keys().filter_map(|subject| {
        let id = subject.strip_prefix("$KV.fl_status.acme.")?.to_owned();
        let time = id.strip_suffix(&end)?.strip_prefix('j')?;
        let at = u64::from_str_radix(time, 16).ok()?;
        (assigned_id(at, seq).as_str() == id).then_some(id)
    });
    found.next()
}
