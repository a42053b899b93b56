//! `dlq ls` and `dlq show`.

use std::io::Write;

use fairlane_letters::copy::Copy;
use fairlane_letters::filter::{Filter, Id, Standing};
use fairlane_letters::index::{Entry, Group};
use fairlane_nats::{Nats, StoredLetter};
use serde_json::{Value, json};

use super::args::{LsArgs, ShowArgs};
use super::{chosen, cut, index, print_all, print_line, table};
use crate::cli::{Format, Globals};
use crate::exit::{Exit, Outcome, Stop};
use crate::out::{Ink, Paint, print, print_json};
use crate::text;

/// Characters of a body that are shown for people.
const BODY_SHOWN: usize = 4_000;

pub(super) async fn ls(nats: &Nats, globals: &Globals, args: &LsArgs) -> Outcome {
    let standing = if args.all {
        Standing::All
    } else {
        Standing::Open
    };
    let filter = args.which.filter(standing);
    let index = index(nats).await?;
    let paint = Paint::for_data(globals.color);
    if args.letters || !args.which.ids.is_empty() {
        let entries: Vec<&Entry> = index.select(&filter).collect();
        match args.output.format {
            Format::Table => print(letters(&entries, paint))?,
            format => print_all(format, &entries)?,
        }
    } else {
        let groups = index.groups(&filter);
        match args.output.format {
            Format::Table => print(groups_of(&groups, paint))?,
            format => print_all(format, &groups)?,
        }
    }
    Ok(Exit::Ok)
}

fn groups_of(groups: &[Group], paint: Paint) -> String {
    if groups.is_empty() {
        return "no dead letters".to_owned();
    }
    let heads = [
        "OPEN",
        "ALL",
        "REASON",
        "FINGERPRINT",
        "TENANTS",
        "KINDS",
        "FIRST",
        "LAST",
        "WHAT",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(groups.iter().map(|group| {
        let more = group.tenants.saturating_sub(group.some_tenants.len());
        let more = if more > 0 {
            format!(" +{more}")
        } else {
            String::new()
        };
        vec![
            group.open.to_string(),
            group.letters.to_string(),
            group.reason.to_string(),
            group.fingerprint.clone(),
            cut(&(group.some_tenants.join(",") + &more), 40),
            cut(&group.some_kinds.join(","), 30),
            text::instant(group.first_ms),
            text::instant(group.last_ms),
            cut(&group.example.message, 60),
        ]
    }));
    let open: usize = groups.iter().map(|group| group.open).sum();
    let hint = "look at one with `fairlane dlq show LETTER`, list a group with `fairlane dlq ls --letters --fingerprint HEX`";
    let hint = paint.paint(
        Ink::Aside,
        format!("{open} open letters in {} groups; {hint}", groups.len()),
    );
    format!("{}\n{hint}", table(&rows))
}

fn letters(entries: &[&Entry], paint: Paint) -> String {
    if entries.is_empty() {
        return "no dead letters".to_owned();
    }
    let heads = [
        "LETTER",
        "JOB",
        "REASON",
        "FINGERPRINT",
        "KIND",
        "TRIES",
        "COST",
        "WRITTEN",
        "STATE",
        "WHAT",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(entries.iter().map(|entry| {
        let state = match &entry.redriven {
            None => "open".to_owned(),
            Some(note) if note.sent => format!("redriven by {}", note.run),
            Some(note) => format!("claimed by {}", note.run),
        };
        vec![
            format!("#{}", entry.seq),
            format!("{}/{}", entry.tenant, entry.job),
            entry.reason.to_string(),
            entry.fingerprint.clone(),
            entry.kind.clone().unwrap_or_default(),
            entry.attempts.to_string(),
            entry.cost_usd.map(text::dollars).unwrap_or_default(),
            text::instant(entry.at_ms),
            state,
            cut(&entry.message, 60),
        ]
    }));
    let hint = paint.paint(Ink::Aside, format!("{} letters", entries.len()));
    format!("{}\n{hint}", table(&rows))
}

pub(super) async fn show(nats: &Nats, globals: &Globals, args: &ShowArgs) -> Outcome {
    let seq = match Id::parse(&args.letter) {
        Id::Letter(seq) => seq,
        id @ Id::Job { .. } => {
            let filter = Filter {
                standing: Standing::All,
                ids: vec![id],
                ..Filter::default()
            };
            let index = index(nats).await?;
            // The latest one, and at least one.
            chosen(&index, &filter)?.last().map_or(0, |entry| entry.seq)
        }
    };
    let letter = nats.letter(seq).await.map_err(anyhow::Error::new)?;
    let letter = letter.ok_or_else(|| {
        let text =
            format!("there is no letter #{seq} (any more); see `fairlane dlq ls --letters --all`");
        Stop::saying(Exit::NotFound, text)
    })?;
    if args.body {
        let written = std::io::stdout().lock().write_all(&letter.body);
        written.map_err(|error| anyhow::Error::new(error).context("cannot write the body"))?;
        return Ok(Exit::Ok);
    }
    match args.output.format {
        Format::Table => print(told(&letter, Paint::for_data(globals.color)))?,
        Format::Json => print_json(&Copy::of(&letter))?,
        Format::Jsonl => print_line(&Copy::of(&letter))?,
    }
    Ok(Exit::Ok)
}

fn told(stored: &StoredLetter, paint: Paint) -> String {
    let letter = &stored.letter;
    let failure = &letter.failure;
    let optional = |value: &Option<String>| value.clone();
    let upstream = failure.upstream.as_deref();
    let rows: Vec<(&str, Option<String>)> = vec![
        ("letter", Some(format!("#{}", stored.seq))),
        (
            "job",
            Some(format!(
                "{}/{}",
                letter.tenant.as_deref().unwrap_or("unknown"),
                letter.job
            )),
        ),
        ("reason", Some(paint.paint(Ink::Bad, failure.reason))),
        ("detail", failure.detail.as_deref().map(str::to_owned)),
        ("what", Some(failure.message.clone())),
        ("field", optional(&failure.field)),
        (
            "offset",
            failure.offset.map(|offset| format!("byte {offset}")),
        ),
        ("upstream", upstream.and_then(|up| up.message.clone())),
        (
            "status",
            upstream
                .and_then(|up| up.status)
                .map(|status| status.to_string()),
        ),
        ("request", upstream.and_then(|up| up.request_id.clone())),
        ("fix", optional(&failure.fix)),
        ("group", Some(letter.fingerprint.clone())),
        (
            "read from",
            Some(format!("{} #{}", letter.subject, letter.seq)),
        ),
        ("written", Some(text::instant(letter.at_ms))),
        ("kind", optional(&letter.kind)),
        ("model", optional(&letter.model)),
        (
            "attempts",
            Some(format!(
                "{} ({} deliveries)",
                letter.attempts, letter.deliveries
            )),
        ),
        ("cost", letter.cost_usd.map(text::dollars)),
        ("trace", optional(&letter.trace_id)),
    ];
    let mut lines: Vec<String> = rows
        .into_iter()
        .filter_map(|(name, value)| Some(format!("{name:9} {}", value?)))
        .collect();
    for tried in &letter.tries {
        let status = tried
            .status
            .map_or_else(String::new, |status| format!(", HTTP {status}"));
        let cost = tried
            .cost_usd
            .map_or_else(String::new, |cost| format!(", {}", text::dollars(cost)));
        let model = tried.model.as_deref().unwrap_or_default();
        lines.push(format!(
            "try       {} {model}: {}{status}, {} tokens in, {} out{cost}, {}",
            text::instant(tried.at_ms),
            tried.outcome,
            tried.input_tokens,
            tried.output_tokens,
            text::span(tried.latency_ms),
        ));
    }
    for (version, before) in letter.lineage.iter().enumerate() {
        let repair = before.repair.as_deref().unwrap_or("sent again as it was");
        let name = if version == 0 {
            "original".to_owned()
        } else {
            format!("v{version}")
        };
        lines.push(format!(
            "before    {name}: letter #{}, {}, {}; then: {repair}",
            before.letter,
            before.reason,
            text::instant(before.at_ms)
        ));
    }
    let copy = Copy::of(stored);
    lines.extend(
        copy.headers
            .iter()
            .map(|(name, value)| format!("header    {name}: {value}")),
    );
    lines.push(paint.paint(Ink::Aside, format!("body: {} bytes", stored.body.len())));
    lines.push(body(&stored.body));
    lines.join("\n")
}

fn body(bytes: &[u8]) -> String {
    let text = match serde_json::from_slice::<Value>(bytes) {
        Ok(value) => format!("{value:#}"),
        Err(_) => json!(String::from_utf8_lossy(bytes)).to_string(),
    };
    let all = text.chars().count();
    if all <= BODY_SHOWN {
        return text;
    }
    let shown: String = text.chars().take(BODY_SHOWN).collect();
    format!(
        "{shown}\n... {} more characters; `fairlane dlq show --body` writes all",
        all - BODY_SHOWN
    )
}
