//! An even flow of one tenant's jobs, and how it fares while something else goes on.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fairlane_nats::watch;
use fairlane_wire::{JobRecord, Phase};
use tokio::task::JoinHandle;

use crate::{Fleet, job};

/// Publishes jobs of tenant `live` until it is dropped, and notes when each is done.
#[derive(Debug)]
pub struct Live {
    seen: Arc<Mutex<Times>>,
    tasks: [JoinHandle<()>; 2],
}

/// When jobs were published that are not done, and how long those took that are.
#[derive(Debug, Default)]
struct Times {
    published: BTreeMap<String, Instant>,
    took: Vec<(Instant, Duration)>,
}

/// Live jobs between two moments.
#[derive(Debug, Clone, Copy)]
pub struct Figures {
    pub done: usize,
    /// Done a second.
    pub rate: f64,
    /// From submission to result, seconds.
    pub p50: f64,
    pub p99: f64,
}

impl Live {
    /// Begins with `per_second` jobs a second.
    #[must_use]
    pub fn start(fleet: &Arc<Fleet>, per_second: u32) -> Self {
        let seen = Arc::new(Mutex::new(Times::default()));
        let watching = tokio::spawn(watch_records(fleet.clone(), seen.clone()));
        let publishing = tokio::spawn(publish(fleet.clone(), seen.clone(), per_second));
        Self {
            seen,
            tasks: [watching, publishing],
        }
    }

    /// Of jobs that were done in between.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a few thousand jobs")]
    pub fn figures(&self, from: Instant, to: Instant) -> Figures {
        let seen = self.seen.lock().expect("no panic");
        let within = seen.took.iter().filter(|(at, _)| (from..to).contains(at));
        let mut took: Vec<f64> = within.map(|(_, took)| took.as_secs_f64()).collect();
        took.sort_unstable_by(f64::total_cmp);
        let at = |part: usize| {
            let value = took.get(took.len() * part / 100);
            value.copied().unwrap_or(f64::NAN)
        };
        Figures {
            done: took.len(),
            rate: took.len() as f64 / (to - from).as_secs_f64(),
            p50: at(50),
            p99: at(99),
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:>6.2} done a second, p50 {:>4.0} ms, p99 {:>5.0} ms ({} jobs)",
            self.rate,
            1_000.0 * self.p50,
            1_000.0 * self.p99,
            self.done,
        )
    }
}

async fn publish(fleet: Arc<Fleet>, seen: Arc<Mutex<Times>>, per_second: u32) {
    let mut tick = tokio::time::interval(Duration::from_secs(1) / per_second);
    for number in 0_usize.. {
        tick.tick().await;
        let id = format!("live-{number}");
        let now = Instant::now();
        let note = |times: &mut Times| times.published.insert(id.clone(), now);
        note(&mut seen.lock().expect("no panic"));
        fleet
            .publish("live", job(&id, &format!("tags {number}")))
            .await;
    }
}

async fn watch_records(fleet: Arc<Fleet>, seen: Arc<Mutex<Times>>) {
    let nats = fleet.client();
    let bucket = nats.bucket(&nats.names.status_bucket());
    let mut changes = bucket.watch_keys("live.*");
    while let Some(event) = changes.next().await {
        let watch::Event::Change(entry) = event else {
            continue;
        };
        let Some(value) = entry.value() else { continue };
        let record = JobRecord::from_json(value).expect("a record");
        if record.phase == Phase::Done {
            let mut seen = seen.lock().expect("no panic");
            if let Some(began) = seen.published.remove(record.job.as_str()) {
                seen.took.push((Instant::now(), began.elapsed()));
            }
        }
    }
}
