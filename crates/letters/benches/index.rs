//! How fast the picture of many dead letters is: read from the stream, grouped, searched.
//!
//!     cargo bench -p fairlane-letters --bench index [-- LETTERS]

#![allow(clippy::unwrap_used, reason = "a bench fails by panicking")]
#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

use std::collections::VecDeque;
use std::time::Instant;

use fairlane_core::JobId;
use fairlane_letters::filter::{Filter, Id};
use fairlane_letters::reader;
use fairlane_nats::{HeaderMap, PendingWrite};
use fairlane_support::TestNats;
use fairlane_wire::letter::Letter;
use fairlane_wire::{DeadReason, Failure, header};

const LETTERS: u64 = 50_000;
const BODY_BYTES: usize = 600;
/// Publishes under way at once.
const WINDOW: usize = 1_000;

fn main() {
    let args = std::env::args().skip(1);
    let letters = args.filter_map(|arg| arg.parse().ok()).next();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(run(letters.unwrap_or(LETTERS)));
}

async fn run(letters: u64) {
    let server = TestNats::start().await;
    let nats = &server.nats;
    let jobs = nats.jobs();
    let body = "x".repeat(BODY_BYTES);
    let began = Instant::now();
    let mut pending: VecDeque<PendingWrite> = VecDeque::new();
    for number in 0..letters {
        let reason = DeadReason::ALL[usize::try_from(number % 5).unwrap()];
        let failure = Failure::new(
            reason,
            format!("call req_{number} failed after {number} ms"),
        );
        let tenant = format!("tenant-{}", number % 100);
        let job = JobId::parse(&format!("job-{number}")).unwrap();
        let letter = Letter::new(Some(tenant.clone()), job, failure, number);
        let mut headers = HeaderMap::new();
        headers.insert(header::LETTER, letter.to_value());
        let subject = format!("fl.dlq.{reason}.{tenant}");
        if pending.len() == WINDOW {
            pending.pop_front().unwrap().wait().await.unwrap();
        }
        let sent = jobs.send(&subject, None, headers, body.clone().into());
        pending.push_back(sent.await.unwrap());
    }
    for write in pending {
        write.wait().await.unwrap();
    }
    println!("stored  {letters} letters in {:.2?}", began.elapsed());

    let before = resident_mib();
    let began = Instant::now();
    let index = reader::read(nats).await;
    println!(
        "read    {} letters in {:.2?}, {} MiB",
        index.len(),
        began.elapsed(),
        resident_mib().saturating_sub(before)
    );
    let began = Instant::now();
    let groups = index.groups(&Filter::default());
    println!("grouped into {} in {:.2?}", groups.len(), began.elapsed());
    let filter = Filter {
        ids: vec![Id::parse("tenant-7/job-7")],
        ..Filter::default()
    };
    let began = Instant::now();
    let found = index.select(&filter).count();
    println!("found   {found} by id in {:.2?}", began.elapsed());
}

fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.unwrap_or(0) / 1_024
}
