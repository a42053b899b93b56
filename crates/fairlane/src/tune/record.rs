//! The ledger, as a month to replay.
//!
//! First the headers of all entries: how many there are in each hour, and what their tenants spent. Then the bodies:
//! all of them, or if those are too many, those of the busiest hours, whole hours at a time. Entries are in the
//! order of time, so an hour is a range of sequences.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use anyhow::Context as _;
use fairlane_core::{Kind, Millis, ModelId, PoolId, Priority, TenantId, Tokens};
use fairlane_nats::{IndexEvent, Nats};
use fairlane_tune::{Answer, Job, Month, Spent, Squall};
use fairlane_wire::{LedgerEntry, header};
use futures::{StreamExt, TryStreamExt};

/// Bodies read at once.
const READS_MAX: usize = 64;
const HOUR: Millis = 3_600_000;
/// Outcomes as they are booked.
const ANSWERED: &str = "done";
const CUT_OFF: &str = "max_tokens";
const RATE_LIMIT: &str = "rate_limit";
/// A rate limit that names no time.
const RETRY_AFTER_MS: u64 = 1_000;

/// What was read.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    /// Entries in the ledger, and those that were read.
    pub(super) calls: usize,
    pub(super) read: usize,
    /// Hours with entries, and those that were read.
    pub(super) hours: usize,
    pub(super) hours_read: usize,
    pub(super) jobs: Vec<Job>,
    pub(super) squalls: Vec<Squall>,
    beside: Vec<Spent>,
    pub(super) answers: Vec<Answer>,
    /// Calls that ran at once, at most.
    pub(super) slots: u32,
    /// Calls that rate limits turned away.
    pub(super) refused: u64,
}

impl Recorded {
    pub(super) fn month(&self) -> Month {
        Month::new(
            self.jobs.clone(),
            self.squalls.clone(),
            self.beside.clone(),
            self.slots,
        )
    }
}

/// One hour of the ledger.
#[derive(Debug, Default)]
struct Hour {
    first: u64,
    last: u64,
    calls: usize,
    spent: BTreeMap<TenantId, u64>,
}

pub(super) async fn read(nats: &Nats, since_ms: u64, calls_max: usize) -> anyhow::Result<Recorded> {
    let hours = hours(nats, since_ms).await;
    let chosen = busiest(&hours, calls_max);
    let mut recorded = Recorded {
        calls: hours.values().map(|hour| hour.calls).sum(),
        hours: hours.len(),
        hours_read: chosen.len(),
        beside: beside(&hours, &chosen),
        ..Recorded::default()
    };
    let ranges = chosen
        .iter()
        .map(|hour| hours[hour].first..=hours[hour].last);
    let entries = entries(nats, ranges.collect()).await?;
    recorded.read = entries.len();
    let is_whole = chosen.len() == hours.len();
    recorded.take(&entries, if is_whole { None } else { Some(&chosen) });
    Ok(recorded)
}

async fn hours(nats: &Nats, since_ms: u64) -> BTreeMap<u64, Hour> {
    let names = &nats.names;
    let mut index = nats.index_since(&names.ledger_stream(), &names.ledger_filter(), since_ms);
    let mut hours: BTreeMap<u64, Hour> = BTreeMap::new();
    while let Some(event) = index.next().await {
        let item = match event {
            IndexEvent::Item(item) => item,
            IndexEvent::Current => break,
            IndexEvent::Stale | IndexEvent::Reset => continue,
        };
        let hour = hours.entry(item.stored_ms / HOUR).or_default();
        if hour.calls == 0 {
            hour.first = item.seq;
        }
        hour.last = item.seq;
        hour.calls += 1;
        let tokens = item.headers.get(header::INPUT_TOKENS);
        let tokens = tokens.and_then(|tokens| tokens.as_str().parse::<u64>().ok());
        if let (Some(tenant), Some(tokens)) = (names.parse_ledger_subject(&item.subject), tokens) {
            *hour.spent.entry(tenant).or_default() += tokens;
        }
    }
    hours
}

/// The busiest hours that together have no more calls than that; at least one.
fn busiest(hours: &BTreeMap<u64, Hour>, calls_max: usize) -> BTreeSet<u64> {
    let mut order: Vec<(usize, u64)> = hours.iter().map(|(at, hour)| (hour.calls, *at)).collect();
    order.sort_unstable_by(|one, other| other.cmp(one));
    let mut calls = 0;
    let mut chosen = BTreeSet::new();
    for (more, at) in order {
        if chosen.is_empty() || calls + more <= calls_max {
            chosen.insert(at);
            calls += more;
        }
    }
    chosen
}

/// What was spent in hours that are not replayed counts against budgets all the same.
fn beside(hours: &BTreeMap<u64, Hour>, chosen: &BTreeSet<u64>) -> Vec<Spent> {
    let others = hours.iter().filter(|(at, _)| !chosen.contains(at));
    let spent = others.flat_map(|(at, hour)| {
        hour.spent.iter().map(move |(tenant, tokens)| Spent {
            at: at * HOUR,
            tenant: tenant.clone(),
            input_tokens: *tokens,
        })
    });
    spent.collect()
}

async fn entries(
    nats: &Nats,
    ranges: Vec<RangeInclusive<u64>>,
) -> anyhow::Result<Vec<LedgerEntry>> {
    let (stream, jobs) = (nats.names.ledger_stream(), nats.jobs());
    let read = |seq| jobs.get(&stream, seq);
    let seqs = futures::stream::iter(ranges.into_iter().flatten());
    let mut bodies = seqs.map(read).buffered(READS_MAX);
    let mut entries = Vec::new();
    while let Some(message) = bodies.try_next().await? {
        // One that has expired meanwhile is as old as those before it.
        let Some(message) = message else { continue };
        let entry = serde_json::from_slice(&message.payload);
        entries.push(entry.with_context(|| format!("booking {} is not one", message.seq))?);
    }
    Ok(entries)
}

impl Recorded {
    fn take(&mut self, entries: &[LedgerEntry], chosen: Option<&BTreeSet<u64>>) {
        let mut jobs: BTreeMap<u64, Vec<&LedgerEntry>> = BTreeMap::new();
        for entry in entries {
            jobs.entry(entry.seq).or_default().push(entry);
            if entry.outcome == RATE_LIMIT {
                self.refused += 1;
                self.squalls.extend(squall(entry));
            }
        }
        self.slots = at_once(entries);
        for calls in jobs.values() {
            self.answers.extend(answer(calls));
            self.jobs.extend(job(calls, chosen));
        }
    }
}

/// When the upstream turned calls away.
fn squall(entry: &LedgerEntry) -> Option<Squall> {
    let from = entry.at_ms.saturating_sub(entry.latency_ms);
    Some(Squall {
        pool: PoolId::parse(&entry.pool).ok()?,
        from,
        to: from + entry.retry_after_ms.unwrap_or(RETRY_AFTER_MS),
    })
}

/// The job of these calls, by the one that was answered; None if none was. `chosen`: not all hours were read.
fn job(calls: &[&LedgerEntry], chosen: Option<&BTreeSet<u64>>) -> Option<Job> {
    let first = calls.first()?;
    let answered = calls.iter().find(|call| call.outcome == ANSWERED)?;
    let ready = first.accepted_ms.max(first.not_before_ms.unwrap_or(0));
    let begins = chosen.map_or(0, |chosen| block_start(chosen, answered.at_ms / HOUR));
    let own = answered.own_priority.as_ref().unwrap_or(&answered.priority);
    let usage = &answered.usage;
    Some(Job {
        // What was in line when a stretch of hours began arrives with it.
        ready: ready.max(begins),
        tenant: answered.tenant.clone(),
        priority: Priority::parse(own)?,
        kind: Kind::parse(&answered.kind).ok()?,
        model: ModelId::parse(&answered.model_asked).ok()?,
        pool: PoolId::parse(&answered.pool).ok()?,
        estimate: Tokens {
            input: answered.estimated_input_tokens,
            output: answered.estimated_output_tokens,
        },
        used: Tokens {
            input: usage.input_tokens + usage.cache_write_5m_tokens + usage.cache_write_1h_tokens,
            output: usage.output_tokens,
        },
        prompt: usage.prompt(),
        service: answered.latency_ms,
        waited: answered.granted_ms.saturating_sub(ready),
    })
}

/// When the stretch of hours began that this one is part of.
fn block_start(chosen: &BTreeSet<u64>, mut hour: u64) -> Millis {
    while hour > 0 && chosen.contains(&(hour - 1)) {
        hour -= 1;
    }
    hour * HOUR
}

/// How the answer of a job came about, if it was about room.
fn answer(calls: &[&LedgerEntry]) -> Option<Answer> {
    let first = calls.iter().find(|call| call.max_tokens > 0)?;
    let last = calls
        .iter()
        .rev()
        .find(|call| call.outcome == ANSWERED || call.outcome == CUT_OFF)?;
    let is_answered = last.outcome == ANSWERED;
    let output = last.usage.output_tokens;
    Some(Answer {
        kind: Kind::parse(&last.kind).ok()?,
        asked: first.max_tokens,
        needed: is_answered.then_some(output),
        // Without a price, output stands for it.
        cost: last.cost_pico_usd.unwrap_or(output),
    })
}

/// Calls that ran at the same time, at most.
fn at_once(entries: &[LedgerEntry]) -> u32 {
    let mut changes: Vec<(u64, i32)> = Vec::with_capacity(entries.len() * 2);
    for entry in entries {
        changes.push((entry.at_ms.saturating_sub(entry.latency_ms), 1));
        changes.push((entry.at_ms, -1));
    }
    changes.sort_unstable();
    let (mut now, mut most) = (0, 0);
    for (_, change) in changes {
        now += change;
        most = most.max(now);
    }
    u32::try_from(most).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hours(calls: &[(u64, usize)]) -> BTreeMap<u64, Hour> {
        let hour = |&(at, calls): &(u64, usize)| {
            let spent = BTreeMap::from([(TenantId::parse("acme").unwrap(), 10)]);
            let hour = Hour {
                calls,
                spent,
                ..Hour::default()
            };
            (at, hour)
        };
        calls.iter().map(hour).collect()
    }

    #[test]
    fn the_busiest_hours_are_read_and_the_others_count_against_budgets() {
        let hours = hours(&[(1, 50), (2, 400), (3, 300), (9, 60)]);
        assert_eq!(busiest(&hours, 1_000).len(), 4);
        let chosen = busiest(&hours, 460);
        assert_eq!(chosen, BTreeSet::from([2, 9]));
        let at: Vec<_> = beside(&hours, &chosen)
            .iter()
            .map(|spent| spent.at)
            .collect();
        assert_eq!(at, [HOUR, 3 * HOUR]);
        assert_eq!(busiest(&hours, 1), BTreeSet::from([2]), "at least one");
    }

    #[test]
    fn a_stretch_of_hours_begins_where_the_one_before_is_missing() {
        let chosen = BTreeSet::from([2, 3, 4, 9]);
        let starts = [2, 4, 9].map(|hour| block_start(&chosen, hour) / HOUR);
        assert_eq!(starts, [2, 2, 9]);
    }

    fn entry(outcome: &str, max_tokens: u64, output: u64) -> LedgerEntry {
        let text = serde_json::json!({
            "tenant": "acme", "job": "j", "kind": "tagging", "priority": "batch", "own_priority": "standard",
            "pool": "haiku-4.5", "seq": 1, "delivery": 1, "model_asked": "claude-haiku-4-5",
            "usage": {"input_tokens": 100, "cache_read_tokens": 30, "output_tokens": output},
            "estimated_input_tokens": 90, "estimated_output_tokens": 256, "max_tokens": max_tokens,
            "outcome": outcome, "ambiguous": false, "accepted_ms": 5 * HOUR, "granted_ms": 5 * HOUR + 700,
            "latency_ms": 300, "at_ms": 5 * HOUR + 1_000,
        });
        serde_json::from_value(text).unwrap()
    }

    #[test]
    fn a_job_is_what_its_answered_call_took_at_its_own_priority() {
        let calls = [entry("max_tokens", 64, 64), entry("done", 256, 80)];
        let calls: Vec<_> = calls.iter().collect();
        let job = job(&calls, None).unwrap();
        assert_eq!((job.ready, job.waited), (5 * HOUR, 700));
        assert_eq!(job.priority, Priority::Standard);
        let used = Tokens {
            input: 100,
            output: 80,
        };
        assert_eq!((job.used, job.prompt), (used, 130));
        let later = super::job(&calls, Some(&BTreeSet::from([5]))).unwrap();
        assert_eq!(later, job, "it came within the hour");
        let answer = answer(&calls).unwrap();
        assert_eq!((answer.asked, answer.needed), (64, Some(80)));
        let never = [entry("max_tokens", 64, 64)];
        let never: Vec<_> = never.iter().collect();
        assert_eq!(super::answer(&never).unwrap().needed, None);
        assert!(super::job(&never, None).is_none());
    }

    #[test]
    fn calls_at_once_are_counted_by_their_ends_and_lengths() {
        let calls = [(1_000, 500), (1_100, 200), (1_000, 100), (2_000, 1_000)];
        let entries = calls.map(|(at_ms, latency_ms)| LedgerEntry {
            at_ms,
            latency_ms,
            ..entry("done", 1, 1)
        });
        assert_eq!(at_once(&entries), 3);
    }
}
