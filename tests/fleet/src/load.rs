//! Loads for benches, and what they took.

use std::time::{Duration, Instant};

use futures::{StreamExt, stream};

use crate::{Fleet, Process, cpu_seconds, job};

/// Tenants whose jobs are submitted.
pub const TENANTS: usize = 100;
/// Submissions under way at once.
const PARALLEL: usize = 256;

/// Processor seconds used so far, by part. The bench itself includes the simulator.
#[must_use]
pub fn processor(fleet: &Fleet) -> [(&'static str, f64); 5] {
    let of = |processes: &[Process]| processes.iter().map(|one| cpu_seconds(one.pid())).sum();
    [
        (
            "nats-server",
            fleet.nats.server.pid().map_or(0.0, cpu_seconds),
        ),
        ("producer", of(&fleet.producers)),
        ("schedulers", of(&fleet.schedulers)),
        ("workers", of(&fleet.workers)),
        ("bench and simulator", cpu_seconds(std::process::id())),
    ]
}

/// Submits jobs of [`TENANTS`] tenants, whose ids begin with `name`, and waits for the last result. Gives jobs per
/// second.
///
/// # Panics
/// If they are not done within five minutes.
pub async fn throughput(fleet: &Fleet, name: &str, jobs: usize) -> f64 {
    let before = fleet.sim.stats().totals.calls;
    let began = Instant::now();
    stream::iter(0..jobs)
        .for_each_concurrent(PARALLEL, |number| async move {
            let tenant = format!("tenant-{}", number % TENANTS);
            fleet
                .publish(&tenant, job(&format!("{name}-{number}"), "tags"))
                .await;
        })
        .await;
    // A job leaves the stream when everything about it is stored; its credit goes right after.
    let mut stream = fleet
        .client()
        .jetstream
        .get_stream(fleet.client().names.jobs_stream())
        .await
        .expect("the job stream");
    loop {
        let called = fleet.sim.stats().totals.calls >= before + jobs as u64;
        if called && stream.info().await.expect("its state").state.messages == 0 {
            return jobs as f64 / began.elapsed().as_secs_f64();
        }
        assert!(
            began.elapsed() < Duration::from_secs(300),
            "the fleet does not get on"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
