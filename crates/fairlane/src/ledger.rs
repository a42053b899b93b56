//! `fairlane ledger`: what each tenant's calls were paid for, from the bookings.
//!
//! The entries are the truth about money: one for each call that reached the upstream. Two successful
//! calls of one job are one too many, and a call that was cut may have been paid without an answer;
//! both are told apart, so that nobody has to take "paid once" on trust.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use fairlane_nats::{IndexEvent, Nats};
use fairlane_wire::LedgerEntry;
use futures::{StreamExt, TryStreamExt};
use serde::Serialize;

use crate::cli::{Format, Globals, LedgerArgs};
use crate::exit::{Exit, Outcome};
use crate::out::{print, print_json};
use crate::target::Target;
use crate::text;

/// Bodies read at once.
const READS_MAX: usize = 64;
/// Outcome of a call whose answer was kept, as it is booked.
const ANSWERED: &str = "done";

/// Calls, their tokens, and what they cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
struct Spent {
    calls: u64,
    input_tokens: u64,
    output_tokens: u64,
    usd: f64,
}

impl Spent {
    fn add(&mut self, entry: &LedgerEntry) {
        self.calls += 1;
        self.input_tokens += entry.usage.prompt();
        self.output_tokens += entry.usage.output_tokens;
        #[expect(clippy::cast_precision_loss, reason = "for showing")]
        let usd = entry.cost_pico_usd.unwrap_or(0) as f64 / 1e12;
        self.usd += usd;
    }

    fn plus(mut self, other: &Self) -> Self {
        self.calls += other.calls;
        self.input_tokens += other.input_tokens;
        self.output_tokens += other.output_tokens;
        self.usd += other.usd;
        self
    }
}

/// The account of one tenant, or of all.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
struct Account {
    jobs: u64,
    #[serde(flatten)]
    spent: Spent,
    /// Of these, calls that may have been paid without an answer.
    ambiguous: Spent,
    /// Of these, answers to jobs that had one.
    double_paid: Spent,
}

/// All accounts.
#[derive(Debug, Default)]
struct Accounts {
    tenants: BTreeMap<String, Account>,
    jobs: BTreeSet<(String, u64)>,
    answered: BTreeSet<(String, u64)>,
}

impl Accounts {
    fn book(&mut self, entry: &LedgerEntry) {
        let tenant = entry.tenant.to_string();
        let job = (tenant.clone(), entry.seq);
        let account = self.tenants.entry(tenant).or_default();
        account.spent.add(entry);
        account.jobs += u64::from(self.jobs.insert(job.clone()));
        if entry.ambiguous {
            account.ambiguous.add(entry);
        }
        if entry.outcome == ANSWERED && !self.answered.insert(job) {
            account.double_paid.add(entry);
        }
    }

    fn total(&self) -> Account {
        let zero = Account::default();
        self.tenants.values().fold(zero, |sum, account| Account {
            jobs: sum.jobs + account.jobs,
            spent: sum.spent.plus(&account.spent),
            ambiguous: sum.ambiguous.plus(&account.ambiguous),
            double_paid: sum.double_paid.plus(&account.double_paid),
        })
    }
}

pub(crate) async fn run(globals: &Globals, args: LedgerArgs) -> Outcome {
    let target = Target::load(globals)?;
    let _logs = target.quiet_logs("ledger")?;
    let nats = target.connect("ledger").await?;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let since = now.saturating_sub(args.since);
    let since_ms = u64::try_from(since.as_millis()).unwrap_or(0);
    let accounts = read(&nats, args.tenant.as_ref(), since_ms).await?;
    match args.output.format {
        Format::Text => print(table(&accounts))?,
        Format::Json => print_json(&serde_json::json!({
            "since": text::instant(since_ms),
            "tenants": accounts.tenants,
            "total": accounts.total(),
        }))?,
    }
    Ok(Exit::Ok)
}

async fn read(
    nats: &Nats,
    tenant: Option<&fairlane_core::TenantId>,
    since_ms: u64,
) -> anyhow::Result<Accounts> {
    let names = &nats.names;
    let (stream, jobs) = (names.ledger_stream(), nats.jobs());
    let filter = tenant.map_or_else(|| names.ledger_filter(), |t| names.ledger_subject(t));
    let mut index = nats.index_since(&stream, &filter, since_ms);
    let mut entries = Vec::new();
    while let Some(event) = index.next().await {
        match event {
            IndexEvent::Item(item) => entries.push(item.seq),
            IndexEvent::Current => break,
            IndexEvent::Stale | IndexEvent::Reset => {}
        }
    }
    let read = |seq| jobs.get(&stream, seq);
    let mut bodies = futures::stream::iter(entries).map(read).buffered(READS_MAX);
    let mut accounts = Accounts::default();
    while let Some(message) = bodies.try_next().await? {
        // One that has expired meanwhile is as old as those before it.
        let Some(message) = message else { continue };
        let entry = serde_json::from_slice(&message.payload);
        accounts.book(&entry.with_context(|| format!("booking {} is not one", message.seq))?);
    }
    Ok(accounts)
}

fn table(accounts: &Accounts) -> String {
    let head = [
        "tenant",
        "jobs",
        "calls",
        "tokens in",
        "tokens out",
        "cost",
        "ambiguous",
        "double paid",
    ];
    let row = |name: &str, account: &Account| {
        let aside = |spent: &Spent| match spent.calls {
            0 => "-".to_owned(),
            calls => format!(
                "{calls} ({} tokens, {})",
                spent.input_tokens + spent.output_tokens,
                text::dollars(spent.usd)
            ),
        };
        [
            name.to_owned(),
            account.jobs.to_string(),
            account.spent.calls.to_string(),
            account.spent.input_tokens.to_string(),
            account.spent.output_tokens.to_string(),
            text::dollars(account.spent.usd),
            aside(&account.ambiguous),
            aside(&account.double_paid),
        ]
    };
    let mut rows = vec![head.map(str::to_owned)];
    rows.extend(
        accounts
            .tenants
            .iter()
            .map(|(name, account)| row(name, account)),
    );
    rows.push(row("total", &accounts.total()));
    let widths: [usize; 8] =
        std::array::from_fn(|at| rows.iter().map(|row| row[at].len()).max().unwrap_or(0));
    let line = |row: &[String; 8]| {
        let cells = row.iter().zip(widths).enumerate();
        let cells = cells.map(|(at, (cell, width))| match at {
            0 => format!("{cell:width$}"),
            _ => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<_>>().join("  ")
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(seq: u64, outcome: &str, ambiguous: bool) -> LedgerEntry {
        let text = format!(
            r#"{{"tenant":"acme","job":"j{seq}","kind":"tagging","priority":"batch","pool":"p","seq":{seq},"delivery":1,
            "model_asked":"m","usage":{{"input_tokens":100,"output_tokens":50}},"estimated_input_tokens":1,
            "estimated_output_tokens":1,"max_tokens":64,"accepted_ms":1,"granted_ms":1,"cost_pico_usd":500000000000,
            "outcome":"{outcome}","ambiguous":{ambiguous},"latency_ms":1,"at_ms":1}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn a_second_answer_to_a_job_and_a_call_without_an_outcome_are_told_apart() {
        let mut accounts = Accounts::default();
        for entry in [
            entry(1, "done", false),
            entry(1, "done", false),
            entry(2, "cut", true),
            entry(2, "done", false),
        ] {
            accounts.book(&entry);
        }
        let acme = &accounts.tenants["acme"];
        assert_eq!((acme.jobs, acme.spent.calls), (2, 4));
        assert_eq!((acme.ambiguous.calls, acme.double_paid.calls), (1, 1));
        assert!((accounts.total().spent.usd - 2.0).abs() < 1e-9);
        let table = table(&accounts);
        assert!(table.contains("1 (150 tokens, $0.500000)"), "{table}");
    }
}
