//! `dlq repair` and `dlq redrive`: choose, look, ask, send.

use std::collections::BTreeMap;

use fairlane_letters::filter::Standing;
use fairlane_letters::index::Entry;
use fairlane_letters::ready::{Ready, Unready, ready};
use fairlane_letters::repair::Repair;
use fairlane_letters::run::{Run, Runs, State, Tally};
use fairlane_nats::{Nats, StoredLetter};
use serde::Serialize;
use serde_json::{Value, json};

use super::args::{RedriveArgs, RepairArgs, Sending, Which};
use super::judge::Producers;
use super::{chosen, diff, index, now_ms, print_all, runs};
use crate::cli::{Format, Globals};
use crate::exit::{Exit, Outcome, Stop};
use crate::out::{Paint, print, print_json, say};
use crate::target::Target;
use crate::text;

/// Letters whose changes are shown; of more, a few tell enough.
const DIFFS_MAX: usize = 20;
/// Reasons why letters stay, told apart.
const WHYS_MAX: usize = 20;

/// What sending some letters would mean.
#[derive(Debug, Default, Serialize)]
struct Plan {
    jobs: u64,
    input_tokens: u64,
    /// As expected; the answers decide.
    output_tokens: u64,
    dollars: f64,
    /// Jobs whose model has no known price.
    unpriced: u64,
    /// Letters that stay, by the reason why.
    left: BTreeMap<String, u64>,
    left_letters: Vec<u64>,
}

pub(super) async fn repair(
    nats: &Nats,
    target: &Target,
    globals: &Globals,
    args: RepairArgs,
) -> Outcome {
    let wanted = change(&args.change)?;
    if wanted.is_empty() {
        let text = "say what to repair: --strip, --trim, --max-tokens, --model, --patch, --body or --for-tenant; \
                    `fairlane dlq redrive` sends letters as they are";
        return Err(Stop::saying(Exit::Usage, text));
    }
    let judge = Producers::new(target, &nats.names)?;
    let index = index(nats).await?;
    let filter = args.which.filter(Standing::Open);
    nothing_asked(filter.is_empty())?;
    let letters = chosen(&index, &filter)?;
    let paint = Paint::for_data(globals.color);
    let mut shown = Vec::new();
    let mut plan = Plan::default();
    for (number, entry) in letters.iter().enumerate() {
        let Some((stored, ready)) = look(nats, entry, &wanted, &judge).await? else {
            continue;
        };
        if number < DIFFS_MAX {
            let name = format!("#{} {}/{}", entry.seq, entry.tenant, entry.job);
            match (args.output.format, &ready) {
                (Format::Table, Ok(ready)) => {
                    print(format!("{name}: {}", told(ready)))?;
                    print(diff::diff(&stored.body, &ready.body, paint))?;
                }
                (Format::Table, Err(why)) => print(format!("{name}: stays: {why}"))?,
                (_, Ok(ready)) => shown.push(json!({
                    "letter": entry.seq, "tenant": entry.tenant, "job": entry.job, "changes": ready.changes,
                    "before": String::from_utf8_lossy(&stored.body), "after": String::from_utf8_lossy(&ready.body),
                })),
                (_, Err(why)) => shown.push(json!({
                    "letter": entry.seq, "tenant": entry.tenant, "job": entry.job, "stays": why.to_string(),
                })),
            }
        }
        plan.add(entry.seq, &ready, &judge);
    }
    // One document: with the run that sends them, if it comes to that.
    if args.sending.consent.dry_run || plan.jobs == 0 {
        match args.output.format {
            Format::Table => {}
            Format::Json => print_json(&json!({"letters": shown}))?,
            Format::Jsonl => print_all(Format::Jsonl, &shown)?,
        }
    }
    let asked = Asked {
        which: &args.which,
        wanted,
        sending: &args.sending,
        format: args.output.format,
        changed: Some(shown),
    };
    send(nats, &judge, &letters, plan, asked).await
}

pub(super) async fn redrive(nats: &Nats, target: &Target, args: RedriveArgs) -> Outcome {
    let wanted = change(&args.change)?;
    let judge = Producers::new(target, &nats.names)?;
    let index = index(nats).await?;
    let filter = args.which.filter(Standing::Open);
    nothing_asked(filter.is_empty() && !args.all)?;
    let letters = chosen(&index, &filter)?;
    let mut plan = Plan::default();
    for entry in &letters {
        if let Some((_, ready)) = look(nats, entry, &wanted, &judge).await? {
            plan.add(entry.seq, &ready, &judge);
        }
    }
    if args.sending.consent.dry_run {
        match args.output.format {
            Format::Table => print(plan.told())?,
            format => print_all(format, &[&plan])?,
        }
    }
    let asked = Asked {
        which: &args.which,
        wanted,
        sending: &args.sending,
        format: args.output.format,
        changed: None,
    };
    send(nats, &judge, &letters, plan, asked).await
}

struct Asked<'a> {
    which: &'a Which,
    wanted: Repair,
    sending: &'a Sending,
    format: Format,
    /// What a repair changed, if it is one.
    changed: Option<Vec<Value>>,
}

/// Writes the run down and drives it, if the user agrees.
async fn send(
    nats: &Nats,
    judge: &Producers,
    letters: &[&Entry],
    plan: Plan,
    asked: Asked<'_>,
) -> Outcome {
    if asked.sending.consent.dry_run {
        return Ok(if plan.left.is_empty() {
            Exit::Ok
        } else {
            Exit::Failed
        });
    }
    if plan.jobs == 0 {
        say(plan.told());
        return Err(Stop::saying(
            Exit::Failed,
            "none of the letters can be sent; change them with `fairlane dlq repair`",
        ));
    }
    let what = format!("{}. They will be sent.", plan.told());
    asked.sending.consent.ask(&what, "nothing was sent")?;
    let seqs: Vec<u64> = letters.iter().map(|entry| entry.seq).collect();
    let run = Run {
        id: run_id(),
        created_ms: now_ms(),
        what: asked.which.words(),
        repair: asked.wanted,
        per_second: asked.sending.rate,
        letters: seqs.len() as u64,
        state: State::Running,
        driver: String::new(),
        tally: Tally::default(),
    };
    let runs = Runs::new(nats);
    runs.create(&run, &seqs).await.map_err(anyhow::Error::new)?;
    runs::drive(nats, judge, &run.id, asked.format, asked.changed).await
}

/// Reads and repairs one letter. None if it is gone.
async fn look(
    nats: &Nats,
    entry: &Entry,
    wanted: &Repair,
    judge: &Producers,
) -> Result<Option<(StoredLetter, Result<Ready, Unready>)>, Stop> {
    let stored = nats.letter(entry.seq).await.map_err(anyhow::Error::new)?;
    Ok(stored.map(|stored| {
        let ready = ready(&stored, wanted, judge);
        (stored, ready)
    }))
}

fn change(change: &super::args::Change) -> Result<Repair, Stop> {
    change
        .repair()
        .map_err(|text| Stop::saying(Exit::Usage, text))
}

fn nothing_asked(nothing: bool) -> Result<(), Stop> {
    if nothing {
        let text = "say which letters: by id, --reason, --tenant, --kind, --fingerprint, --since or --until; \
                    `fairlane dlq ls` lists them";
        return Err(Stop::saying(Exit::Usage, text));
    }
    Ok(())
}

fn told(ready: &Ready) -> String {
    if ready.changes.is_empty() {
        return "nothing to change".to_owned();
    }
    ready.changes.join("; ")
}

/// Sorts by time, and is short enough to type.
fn run_id() -> String {
    let id = uuid::Uuid::now_v7().simple().to_string();
    format!("r-{}{}", &id[..11], &id[27..])
}

impl Plan {
    fn add(&mut self, letter: u64, ready: &Result<Ready, Unready>, judge: &Producers) {
        match ready {
            Ok(ready) => {
                self.jobs += 1;
                self.input_tokens += ready.size.tokens.input;
                self.output_tokens += ready.size.tokens.output;
                match judge.dollars(&ready.size) {
                    Some(dollars) => self.dollars += dollars,
                    None => self.unpriced += 1,
                }
            }
            Err(why) => {
                let why = why.to_string();
                if self.left.len() < WHYS_MAX || self.left.contains_key(&why) {
                    *self.left.entry(why).or_default() += 1;
                } else {
                    *self.left.entry("for other reasons".to_owned()).or_default() += 1;
                }
                self.left_letters.push(letter);
            }
        }
    }

    fn told(&self) -> String {
        let mut text = format!(
            "{} jobs, about {} input and {} output tokens, about {}",
            self.jobs,
            self.input_tokens,
            self.output_tokens,
            text::dollars(self.dollars)
        );
        if self.unpriced > 0 {
            text += &format!(" ({} jobs have no known price)", self.unpriced);
        }
        for (why, letters) in &self.left {
            text += &format!("\n{letters} stay: {why}");
        }
        if !self.left_letters.is_empty() {
            let some: Vec<String> = self
                .left_letters
                .iter()
                .take(10)
                .map(|seq| format!("#{seq}"))
                .collect();
            let more = self.left_letters.len().saturating_sub(some.len());
            let more = if more > 0 {
                format!(" and {more} more")
            } else {
                String::new()
            };
            text += &format!("\nthey are {}{more}", some.join(", "));
        }
        text
    }
}
