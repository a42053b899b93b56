//! How fast the headers of a backlog are read: the time a new leader needs for its picture.
//!
//!     cargo bench -p fairlane-nats --bench index [-- JOBS]

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a bench tells its figures and fails by panicking"
)]

use std::time::Instant;

use fairlane_core::Priority;
use fairlane_nats::{IndexEvent, Nats};
use fairlane_support::{TestNats, backlog};

const JOBS: u64 = 300_000;
const TENANTS: u64 = 10_000;
/// One job in this many is critical, the last one stored among them.
const CRITICAL: u64 = 1_000;

fn main() {
    let jobs = std::env::args()
        .skip(1)
        .find_map(|arg| arg.parse().ok())
        .unwrap_or(JOBS);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let test = TestNats::start().await;
        let began = Instant::now();
        backlog(&test.nats, jobs, lane).await;
        println!(
            "stored   {jobs} jobs in {:.1} s",
            began.elapsed().as_secs_f64()
        );
        for filter in ["fl.jobs.critical.*", "fl.jobs.batch.*", "fl.jobs.*.*"] {
            read(&test.nats, filter).await;
        }
    });
}

fn lane(number: u64) -> (Priority, String) {
    let priority = if number.is_multiple_of(CRITICAL) {
        Priority::Critical
    } else {
        Priority::Batch
    };
    (priority, format!("tenant-{}", number % TENANTS))
}

async fn read(nats: &Nats, filter: &str) {
    let began = Instant::now();
    let mut index = nats.index("FL_JOBS", filter);
    let mut events = Vec::new();
    let (mut items, mut first) = (0_usize, None);
    loop {
        index.next_many(&mut events, 512).await;
        first = first.or_else(|| Some(began.elapsed()));
        let is_current = events.contains(&IndexEvent::Current);
        items += events.len() - usize::from(is_current);
        events.clear();
        if is_current {
            break;
        }
    }
    let took = began.elapsed().as_secs_f64();
    println!(
        "read     {filter:<20} {items:>8} headers in {took:.2} s: {:.0}/s, the first after {:.0} ms",
        items as f64 / took,
        first.unwrap().as_secs_f64() * 1e3,
    );
}
