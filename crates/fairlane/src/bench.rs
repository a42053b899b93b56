//! `fairlane bench`: a bounded load on a fleet, and what came of it.
//!
//! Jobs of a few tenants of its own (`bench-0` and so on) are submitted at a steady rate, as any program would, and
//! followed by their records. All load is alike, so that differences between the tenants are the fleet's.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use fairlane_core::TenantId;
use fairlane_nats::watch::Event;
use fairlane_nats::{Content, HeaderMap, Nats};
use fairlane_tune::Wait;
use fairlane_wire::{JobRecord, Phase};
use futures::StreamExt;
use futures::stream::{BoxStream, select_all, unfold};
use serde_json::json;
use tokio::time::MissedTickBehavior;

use crate::cli::{BenchArgs, Format, Globals};
use crate::consent;
use crate::exit::{Exit, Outcome, Stop};
use crate::out::{print, print_json, say};
use crate::target::Target;
use crate::text::{columns, span};

/// How often it is said how far it is.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// What is known of one tenant's jobs.
#[derive(Debug, Default)]
struct Account {
    done: u64,
    failed: u64,
    /// From acceptance to the first call, and to the end, milliseconds.
    waits: Vec<u64>,
    spans: Vec<u64>,
    first_accepted_ms: Option<u64>,
    last_finished_ms: u64,
}

impl Account {
    fn take(&mut self, record: &JobRecord) {
        let accepted = record.accepted_ms;
        let finished = record.finished_ms.unwrap_or(accepted);
        let started = record.started_ms.unwrap_or(finished);
        if record.phase == Phase::Done {
            self.done += 1;
            self.waits.push(started.saturating_sub(accepted));
            self.spans.push(finished.saturating_sub(accepted));
        } else {
            self.failed += 1;
        }
        let first = self.first_accepted_ms.get_or_insert(accepted);
        *first = accepted.min(*first);
        self.last_finished_ms = self.last_finished_ms.max(finished);
    }

    /// Jobs done per second of the time in which it had any.
    #[expect(clippy::cast_precision_loss, reason = "for showing")]
    fn rate(&self) -> f64 {
        let from = self.first_accepted_ms.unwrap_or(self.last_finished_ms);
        let ms = self.last_finished_ms.saturating_sub(from).max(1);
        self.done as f64 * 1_000.0 / ms as f64
    }
}

/// Jain's index: 1 if all rates are the same, 1 / n if one tenant has everything.
#[expect(clippy::cast_precision_loss, reason = "a handful of tenants")]
fn jain(rates: &[f64]) -> f64 {
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    if squares > 0.0 {
        sum * sum / (rates.len() as f64 * squares)
    } else {
        1.0
    }
}

pub(crate) async fn run(globals: &Globals, args: BenchArgs) -> Outcome {
    let target = Target::load(globals)?;
    let _logs = target.quiet_logs("bench")?;
    let what = format!(
        "This makes {} calls, which cost money unless the fleet uses the simulator.",
        args.jobs
    );
    consent::ask(
        args.yes,
        &what,
        "--jobs N for fewer of them",
        "nothing was called",
    )?;
    let nats = target.connect("bench").await?;
    let bench = Bench::new(nats, &args);
    let (accounts, took, left) = bench.run().await?;
    let is_complete = left == 0 && accounts.values().all(|account| account.failed == 0);
    report(&args, accounts, took, left)?;
    Ok(if is_complete { Exit::Ok } else { Exit::Failed })
}

struct Bench<'a> {
    nats: Nats,
    args: &'a BenchArgs,
    tenants: Vec<TenantId>,
    /// What the ids of this run begin with.
    prefix: String,
    /// Jobs that have not ended.
    open: HashSet<String>,
    accounts: BTreeMap<String, Account>,
}

impl<'a> Bench<'a> {
    fn new(nats: Nats, args: &'a BenchArgs) -> Self {
        let name = |number| TenantId::parse(&format!("bench-{number}")).expect("a name");
        Self {
            nats,
            args,
            tenants: (0..args.tenants).map(name).collect(),
            prefix: format!("b{}-", uuid::Uuid::now_v7().simple()),
            open: HashSet::new(),
            accounts: BTreeMap::new(),
        }
    }

    /// Accounts by tenant, how long it took, and how many jobs have not ended.
    async fn run(mut self) -> anyhow::Result<(BTreeMap<String, Account>, Duration, u32)> {
        let began = Instant::now();
        let mut records = self.records();
        let mut turns = tokio::time::interval(Duration::from_secs(1) / self.args.rate);
        turns.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let mut words = tokio::time::interval(SAY_EVERY);
        words.tick().await;
        let deadline = tokio::time::sleep(Duration::from_secs(self.args.timeout));
        tokio::pin!(deadline);
        let mut sent = 0;
        while sent < self.args.jobs || !self.open.is_empty() {
            let may_send =
                sent < self.args.jobs && self.open.len() < self.args.concurrency as usize;
            tokio::select! {
                _ = turns.tick(), if may_send => {
                    self.submit(sent).await?;
                    sent += 1;
                }
                record = records.next() => self.take(&record.context("the records cannot be read any more")?),
                _ = words.tick() => {
                    say(format_args!("{sent} of {} sent, {} under way", self.args.jobs, self.open.len()));
                }
                () = &mut deadline => break,
            }
        }
        let left = self.args.jobs - sent + u32::try_from(self.open.len()).unwrap_or(u32::MAX);
        Ok((self.accounts, began.elapsed(), left))
    }

    /// All records of the tenants, as they change.
    fn records(&self) -> BoxStream<'static, JobRecord> {
        let bucket = self.nats.bucket(&self.nats.names.status_bucket());
        let watches = self.tenants.iter().map(|tenant| {
            let watch = bucket.watch_keys(&format!("{tenant}.*"));
            let events = unfold(watch, |mut watch| async move {
                let event = watch.next().await?;
                Some((event, watch))
            });
            events.boxed()
        });
        let records = select_all(watches).filter_map(|event| {
            let record = match event {
                Event::Change(entry) => match entry.content {
                    Content::Live(value) => serde_json::from_slice(&value).ok(),
                    Content::Deleted(_) | Content::Expired => None,
                },
                Event::Current | Event::Stale => None,
            };
            std::future::ready(record)
        });
        records.boxed()
    }

    async fn submit(&mut self, number: u32) -> anyhow::Result<()> {
        let at = number as usize % self.tenants.len();
        let tenant = &self.tenants[at];
        let id = format!("{}{number}", self.prefix);
        let body = json!({
            "id": id, "origin": "batch_job", "sla_seconds": 3_600, "kind": self.args.kind,
            "request": {
                "model": self.args.model, "max_tokens": self.args.max_tokens,
                "messages": [{"role": "user", "content": format!("Five tags for picture {number} of a test, as JSON")}],
            },
        });
        let subject = self.nats.names.submit_subject(tenant);
        let jobs = self.nats.jobs();
        let stored = jobs.publish(
            &subject,
            Some(&id),
            HeaderMap::new(),
            body.to_string().into(),
        );
        stored.await.context("a job cannot be submitted")?;
        self.open.insert(id);
        Ok(())
    }

    fn take(&mut self, record: &JobRecord) {
        if record.phase.is_final() && self.open.remove(record.job.as_str()) {
            let account = self.accounts.entry(record.tenant.to_string()).or_default();
            account.take(record);
        }
    }
}

fn report(
    args: &BenchArgs,
    accounts: BTreeMap<String, Account>,
    took: Duration,
    left: u32,
) -> Result<(), Stop> {
    let index = jain(&accounts.values().map(Account::rate).collect::<Vec<_>>());
    let (mut all, mut all_waits, mut all_spans) = (Account::default(), Vec::new(), Vec::new());
    let mut rows = Vec::new();
    let mut tenants = serde_json::Map::new();
    for (name, mut account) in accounts {
        all.done += account.done;
        all.failed += account.failed;
        all_waits.extend_from_slice(&account.waits);
        all_spans.extend_from_slice(&account.spans);
        let rate = account.rate();
        let (wait, span) = (Wait::of(&mut account.waits), Wait::of(&mut account.spans));
        rows.push(row(&name, &account, rate, wait, span));
        tenants.insert(name, figures(&account, rate, wait, span));
    }
    #[expect(clippy::cast_precision_loss, reason = "for showing")]
    let rate = all.done as f64 / took.as_secs_f64().max(0.001);
    let (wait, span) = (Wait::of(&mut all_waits), Wait::of(&mut all_spans));
    match args.output.format {
        Format::Table => {
            let head = [
                "TENANT", "DONE", "FAILED", "JOBS/S", "WAIT P50", "WAIT P99", "END P50", "END P99",
            ];
            rows.insert(0, head.map(str::to_owned));
            rows.push(row("all", &all, rate, wait, span));
            let left = if left > 0 {
                format!(", {left} had not ended")
            } else {
                String::new()
            };
            print(format_args!(
                "{}\nin {:.1} s{left}; Jain's index over the tenants' rates {index:.3}",
                columns(&rows, true),
                took.as_secs_f64()
            ))
        }
        Format::Json | Format::Jsonl => print_json(&json!({
            "jobs": args.jobs, "left": left, "seconds": took.as_secs_f64(), "jain": index,
            "all": figures(&all, rate, wait, span), "tenants": tenants,
        })),
    }
}

fn row(name: &str, account: &Account, rate: f64, wait: Wait, end: Wait) -> [String; 8] {
    [
        name.to_owned(),
        account.done.to_string(),
        account.failed.to_string(),
        format!("{rate:.1}"),
        span(wait.p50),
        span(wait.p99),
        span(end.p50),
        span(end.p99),
    ]
}

fn figures(account: &Account, rate: f64, wait: Wait, end: Wait) -> serde_json::Value {
    json!({
        "done": account.done, "failed": account.failed, "jobs_per_second": rate,
        "wait_ms": {"p50": wait.p50, "p99": wait.p99}, "end_ms": {"p50": end.p50, "p99": end.p99},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_rates_are_fair_and_one_that_has_all_is_not() {
        assert!((jain(&[2.0, 2.0, 2.0]) - 1.0).abs() < 1e-9);
        assert!((jain(&[6.0, 0.0, 0.0]) - 1.0 / 3.0).abs() < 1e-9);
        assert!((jain(&[]) - 1.0).abs() < 1e-9);
    }
}
