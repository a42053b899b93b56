//! How long a new leader needs with a large backlog: to its first grant, and to the whole picture.
//!
//!     cargo bench -p fairlane-scheduler --bench picture [-- JOBS]

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a bench tells its figures and fails by panicking"
)]

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::{Duration, Instant};

use common::{Hand, Leader};
use fairlane_core::Priority;
use fairlane_support::{TestNats, backlog};

/// As in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const JOBS: u64 = 1_000_000;
const TENANTS: u64 = 10_000;
/// One job in this many is critical, one in ten standard.
const CRITICAL: u64 = 1_000;

fn main() {
    let jobs = std::env::args()
        .skip(1)
        .find_map(|arg| arg.parse().ok())
        .unwrap_or(JOBS);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let test = TestNats::start().await;
        backlog(&test.nats, jobs, lane).await;
        println!("queued         {jobs} jobs of {TENANTS} tenants");
        let mut hand = Hand::start(&test.nats, "w", 100).await;
        let began = Instant::now();
        let (before, cpu) = (resident_bytes(), cpu_seconds());
        // A connection of its own, as a process has.
        let leader = Leader::start(&test.connect().await);
        hand.take().await;
        println!(
            "first credit   {:.2} s after the process began",
            began.elapsed().as_secs_f64()
        );
        let grant = leader
            .value("fairlane_first_grant_seconds")
            .unwrap_or_default();
        println!("first grant    {grant:.2} s after the term began");
        let queued = |priority| {
            let series = format!("claude_queue_depth{{priority=\"{priority}\"}}");
            leader.value(&series).unwrap_or_default()
        };
        let all = jobs as f64 - 100.0;
        while queued("critical") + queued("standard") + queued("batch") < all {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        println!(
            "whole picture  {:.1} s after the process began (seen once a second), {:.1} s of them on a processor",
            began.elapsed().as_secs_f64(),
            cpu_seconds() - cpu,
        );
        let bytes = resident_bytes().saturating_sub(before);
        println!("memory         {} MiB more than before", bytes >> 20);
    });
}

fn lane(number: u64) -> (Priority, String) {
    let priority = if number.is_multiple_of(CRITICAL) {
        Priority::Critical
    } else if number.is_multiple_of(10) {
        Priority::Standard
    } else {
        Priority::Batch
    };
    (priority, format!("tenant-{}", number % TENANTS))
}

/// Memory of this process, where the system tells.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    pages.unwrap_or(0_u64) * 4_096
}

/// Processor time of this process, which tells more than a clock on a machine that has other work.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
    let ticks = fields.skip(11).take(2);
    ticks
        .filter_map(|field| field.parse::<f64>().ok())
        .sum::<f64>()
        / 100.0
}
