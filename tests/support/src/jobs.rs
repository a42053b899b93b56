//! Jobs in the job stream, as producers put them there.

use std::collections::VecDeque;

use fairlane_core::{Priority, TenantId};
use fairlane_nats::{HeaderMap, Nats, PendingWrite};
use fairlane_wire::header;

/// Publishes under way at once.
const WINDOW: usize = 2_000;

/// The headers of a job.
#[must_use]
pub fn job_headers(id: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in [
        (header::JOB, id),
        (header::KEY, id),
        (header::KIND, "tagging"),
        (header::MODEL, "claude-haiku-4-5"),
        (header::POOL, "haiku-4.5"),
        (header::INPUT_TOKENS, "500"),
        (header::OUTPUT_TOKENS, "100"),
        (header::ACCEPTED, "1796000000000"),
    ] {
        headers.insert(name, value);
    }
    headers
}

/// Puts a job into the stream; returns its sequence.
///
/// # Panics
/// If the tenant's name is none, or the job cannot be stored.
pub async fn queue(nats: &Nats, priority: Priority, tenant: &str, id: &str) -> u64 {
    let jobs = nats.jobs();
    let subject = nats.names.job_subject(priority, &named(tenant));
    let stored = jobs.publish(&subject, None, job_headers(id), "{}".into());
    stored.await.expect("the job can be stored").seq
}

/// Puts many jobs into the stream: number, priority and tenant of each by `which`.
///
/// # Panics
/// As [`queue`].
pub async fn backlog(nats: &Nats, jobs: u64, which: impl Fn(u64) -> (Priority, String)) {
    let store = nats.jobs();
    let mut pending: VecDeque<PendingWrite> = VecDeque::new();
    for number in 1..=jobs {
        let (priority, tenant) = which(number);
        let subject = nats.names.job_subject(priority, &named(&tenant));
        let mut headers = job_headers(&format!("job-{number}"));
        let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        headers.insert(header::TRACEPARENT, trace);
        if pending.len() == WINDOW {
            done(pending.pop_front()).await;
        }
        let sent = store.send(&subject, None, headers, "{}".into()).await;
        pending.push_back(sent.expect("the job can be sent"));
    }
    while !pending.is_empty() {
        done(pending.pop_front()).await;
    }
}

async fn done(write: Option<PendingWrite>) {
    if let Some(write) = write {
        write.wait().await.expect("the job can be stored");
    }
}

fn named(tenant: &str) -> TenantId {
    TenantId::parse(tenant).expect("a tenant's name")
}
