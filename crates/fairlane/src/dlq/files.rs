//! Letters in files: `dlq export`, `dlq import`, `dlq purge`.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;

use anyhow::Context as _;
use fairlane_letters::copy::Copy;
use fairlane_letters::filter::Standing;
use fairlane_letters::index::Entry;
use fairlane_nats::{Nats, Original};
use serde_json::json;

use super::args::{ExportArgs, ImportArgs, PurgeArgs};
use super::{chosen, index, print_line};
use crate::cli::Format;
use crate::exit::{Exit, Outcome, Stop};
use crate::out::{print, print_json, say};

pub(super) async fn export(nats: &Nats, args: &ExportArgs) -> Outcome {
    let filter = args.which.filter(standing(args.all));
    let index = index(nats).await?;
    let letters = chosen(&index, &filter)?;
    match &args.file {
        Some(path) => {
            let count = write(nats, &letters, path).await?;
            say(format_args!("{count} letters are in {}", path.display()));
        }
        None => {
            for entry in letters {
                if let Some(letter) = nats
                    .letter(entry.seq)
                    .await
                    .context("cannot read a letter")?
                {
                    print_line(&Copy::of(&letter))?;
                }
            }
        }
    }
    Ok(Exit::Ok)
}

pub(super) async fn purge(nats: &Nats, args: &PurgeArgs) -> Outcome {
    let filter = args.which.filter(standing(args.all));
    if filter.is_empty() && !args.all {
        let text = "say which letters: by id, --reason, --tenant, --kind, --fingerprint, --since or --until; \
                    --all means all there are";
        return Err(Stop::saying(Exit::Usage, text));
    }
    let index = index(nats).await?;
    let letters = chosen(&index, &filter)?;
    let what = format!(
        "{} letters will be written to {} and then deleted for good.",
        letters.len(),
        args.export.display()
    );
    if args.consent.dry_run {
        say("nothing was deleted; without --dry-run:");
        let seqs: Vec<u64> = letters.iter().map(|entry| entry.seq).collect();
        match args.output.format {
            Format::Table => print(what)?,
            Format::Json | Format::Jsonl => {
                print_json(&json!({"letters": seqs, "file": args.export}))?;
            }
        }
        return Ok(Exit::Ok);
    }
    args.consent.ask(&what, "nothing was deleted")?;
    // Only what is safely in the file goes.
    let written = write(nats, &letters, &args.export).await?;
    let stream = nats.names.dlq_stream();
    for entry in &letters {
        let deleted = nats.jobs().delete(&stream, entry.seq).await;
        deleted
            .with_context(|| format!("cannot delete letter #{}; repeating is safe", entry.seq))?;
    }
    match args.output.format {
        Format::Table => print(format!(
            "{} letters deleted; {written} are in {}",
            letters.len(),
            args.export.display()
        ))?,
        Format::Json | Format::Jsonl => print_json(
            &json!({"deleted": letters.len(), "exported": written, "file": args.export}),
        )?,
    }
    Ok(Exit::Ok)
}

/// Writes letters to a new file and makes sure that they are on disk.
async fn write(nats: &Nats, letters: &[&Entry], path: &Path) -> anyhow::Result<u64> {
    let name = path.display();
    let file = File::create_new(path);
    let file = file
        .with_context(|| format!("cannot create {name}; an existing file is never overwritten"))?;
    let mut out = BufWriter::new(file);
    let mut count = 0;
    for entry in letters {
        let letter = nats.letter(entry.seq).await;
        let letter = letter.with_context(|| format!("cannot read letter #{}", entry.seq))?;
        // It expired a moment ago.
        let Some(letter) = letter else { continue };
        serde_json::to_writer(&mut out, &Copy::of(&letter))?;
        out.write_all(b"\n")
            .with_context(|| format!("cannot write {name}"))?;
        count += 1;
    }
    let file = out
        .into_inner()
        .with_context(|| format!("cannot write {name}"))?;
    file.sync_all()
        .with_context(|| format!("cannot write {name}"))?;
    Ok(count)
}

pub(super) async fn import(nats: &Nats, args: &ImportArgs) -> Outcome {
    let name = args.file.display();
    let file = File::open(&args.file).with_context(|| format!("cannot open {name}"))?;
    let index = index(nats).await?;
    let all = fairlane_letters::filter::Filter {
        standing: Standing::All,
        ..Default::default()
    };
    let mut there: BTreeSet<(String, String, u64)> = index
        .select(&all)
        .map(|entry| (entry.tenant.clone(), entry.job.clone(), entry.at_ms))
        .collect();
    let (mut added, mut known) = (0_u64, 0_u64);
    for (number, line) in BufReader::new(file).lines().enumerate() {
        let line = line.with_context(|| format!("cannot read {name}"))?;
        if line.trim().is_empty() {
            continue;
        }
        let place = || format!("{name}, line {}", number + 1);
        let copy = Copy::from_line(&line).with_context(place)?;
        let (headers, body) = copy.original().with_context(place)?;
        let tenant = copy
            .letter
            .tenant
            .as_deref()
            .unwrap_or("unknown")
            .to_owned();
        if !there.insert((tenant, copy.letter.job.to_string(), copy.letter.at_ms)) {
            known += 1;
            continue;
        }
        let original = Original {
            headers: &headers,
            raw_headers: None,
            body,
        };
        let id = format!("import-{}-{}", copy.letter.message_id(), copy.letter.at_ms);
        nats.bury_as(&id, &copy.letter, original)
            .await
            .with_context(place)?;
        added += 1;
    }
    match args.output.format {
        Format::Table => print(format!(
            "{added} letters put back, {known} were there already"
        ))?,
        Format::Json | Format::Jsonl => print_json(&json!({"added": added, "known": known}))?,
    }
    Ok(Exit::Ok)
}

fn standing(all: bool) -> Standing {
    if all { Standing::All } else { Standing::Open }
}
