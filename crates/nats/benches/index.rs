//! How fast the headers of a backlog are read: the time a new leader needs for its picture.
//!
//!     cargo bench -p fairlane-nats --bench index [-- JOBS]

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a bench tells its figures and fails by panicking"
)]

use std::time::Instant;

use fairlane_core::{Priority, TenantId};
use fairlane_nats::{HeaderMap, IndexEvent, Nats};
use fairlane_support::TestNats;
use fairlane_wire::header;

const JOBS: u64 = 300_000;
const TENANTS: u64 = 10_000;
/// One job in this many is critical, the last one stored among them.
const CRITICAL: u64 = 1_000;
/// Publishes under way at once.
const WINDOW: usize = 2_000;

fn main() {
    let jobs = std::env::args()
        .skip(1)
        .find_map(|arg| arg.parse().ok())
        .unwrap_or(JOBS);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let test = TestNats::start().await;
        let began = Instant::now();
        fill(&test.nats, jobs).await;
        println!(
            "stored   {jobs} jobs in {:.1} s",
            began.elapsed().as_secs_f64()
        );
        for filter in ["fl.jobs.critical.*", "fl.jobs.batch.*", "fl.jobs.*.*"] {
            read(&test.nats, filter).await;
        }
    });
}

async fn fill(nats: &Nats, jobs: u64) {
    let store = nats.jobs();
    let mut pending = std::collections::VecDeque::new();
    for number in 1..=jobs {
        let priority = if number % CRITICAL == 0 {
            Priority::Critical
        } else {
            Priority::Batch
        };
        let tenant = TenantId::parse(&format!("tenant-{}", number % TENANTS)).unwrap();
        let subject = nats.names.job_subject(priority, &tenant);
        let mut headers = HeaderMap::new();
        for (name, value) in job(number) {
            headers.insert(name, value);
        }
        if pending.len() == WINDOW {
            let oldest: fairlane_nats::PendingWrite = pending.pop_front().unwrap();
            oldest.wait().await.unwrap();
        }
        let body = "{\"prompt\": \"x\"}".into();
        let sent = store.send(&subject, None, headers, body).await;
        pending.push_back(sent.unwrap());
    }
    for write in pending {
        write.wait().await.unwrap();
    }
}

/// The headers of a job, as a producer sets them.
fn job(number: u64) -> [(&'static str, String); 9] {
    [
        (header::JOB, format!("job-{number}")),
        (header::KEY, format!("job-{number}")),
        (header::KIND, "tagging".to_owned()),
        (header::MODEL, "claude-haiku-4-5".to_owned()),
        (header::POOL, "haiku-4.5".to_owned()),
        (header::INPUT_TOKENS, "120".to_owned()),
        (header::OUTPUT_TOKENS, "60".to_owned()),
        (header::ACCEPTED, "1796000000000".to_owned()),
        (
            header::TRACEPARENT,
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned(),
        ),
    ]
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
