//! `fairlane ledger`: what each tenant's calls were paid for, from the bookings: see `fairlane_nats::ledger`.

use std::time::{SystemTime, UNIX_EPOCH};

use fairlane_nats::ledger::{Account, Accounts, Spent};

use crate::cli::{Format, Globals, LedgerArgs};
use crate::exit::{Exit, Outcome};
use crate::out::{print, print_json};
use crate::target::Target;
use crate::text;

pub(crate) async fn run(globals: &Globals, args: LedgerArgs) -> Outcome {
    let target = Target::load(globals)?;
    let _logs = target.quiet_logs("ledger")?;
    let nats = target.connect("ledger").await?;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let since = now.saturating_sub(args.since);
    let since_ms = u64::try_from(since.as_millis()).unwrap_or(0);
    let accounts = nats.accounts(args.tenant.as_ref(), since_ms).await;
    let accounts = accounts.map_err(anyhow::Error::new)?;
    match args.output.format {
        Format::Table => print(table(&accounts))?,
        Format::Json | Format::Jsonl => print_json(&serde_json::json!({
            "since": text::instant(since_ms),
            "tenants": accounts.tenants,
            "total": accounts.total(),
        }))?,
    }
    Ok(Exit::Ok)
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
    use fairlane_wire::LedgerEntry;

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
