//! How fast the headers of a backlog are read: the time a new leader needs for its picture.
//!
//!     cargo bench -p fairlane-nats --bench index [-- JOBS]

#![allow(clippy::unwrap_used, reason = "a bench fails by panicking")]
#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

use std::time::Instant;

use fairlane_core::{JobId, Kind, ModelId, PoolId, Priority, TenantId, Tokens};
use fairlane_nats::{HeaderMap, IndexEvent, Nats};
use fairlane_support::TestNats;
use fairlane_wire::JobHeaders;

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
        for (name, value) in job(number).to_pairs() {
            headers.insert(name, value);
        }
        if pending.len() == WINDOW {
            let oldest: fairlane_nats::PendingWrite = pending.pop_front().unwrap();
            oldest.wait().await.unwrap();
        }
        let jobs = nats.jobs();
        let sent = jobs.send(&subject, None, headers, "{\"prompt\": \"x\"}".into());
        pending.push_back(sent.await.unwrap());
    }
    for write in pending {
        write.wait().await.unwrap();
    }
}

fn job(number: u64) -> JobHeaders {
    JobHeaders {
        job: JobId::parse(&format!("job-{number}")).unwrap(),
        key: format!("job-{number}"),
        kind: Kind::parse("tagging").unwrap(),
        model: ModelId::parse("claude-haiku-4-5").unwrap(),
        pool: PoolId::parse("haiku-4.5").unwrap(),
        tokens: Tokens {
            input: 120,
            output: 60,
        },
        accepted_ms: 1_796_000_000_000,
        not_before_ms: None,
        deadline_ms: None,
        claim: None,
        redrive: None,
        fallback: None,
        traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()),
        tracestate: None,
    }
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
