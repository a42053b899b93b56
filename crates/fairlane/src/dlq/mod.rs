//! `fairlane dlq`: dead letters for the people who work with them.

pub(crate) mod args;
mod diff;
mod files;
mod judge;
mod list;
mod runs;
mod send;

use std::time::{SystemTime, UNIX_EPOCH};

use fairlane_letters::filter::Filter;
use fairlane_letters::index::{Entry, Index};
use fairlane_letters::reader;
use fairlane_nats::Nats;

use crate::cli::{Format, Globals};
use crate::exit::{Exit, Outcome, Stop};
use crate::out::{print, print_json};
use crate::target::Target;
use args::DlqCommand;

pub(crate) async fn run(globals: &Globals, command: DlqCommand) -> Outcome {
    let target = Target::load(globals)?;
    let _logs = target.quiet_logs("dlq")?;
    let nats = target.connect("dlq").await?;
    match command {
        DlqCommand::Ls(args) => list::ls(&nats, globals, &args).await,
        DlqCommand::Show(args) => list::show(&nats, globals, &args).await,
        DlqCommand::Repair(args) => send::repair(&nats, &target, globals, args).await,
        DlqCommand::Redrive(args) => send::redrive(&nats, &target, args).await,
        DlqCommand::Runs(output) => runs::ls(&nats, output).await,
        DlqCommand::Pause(args) => runs::pause(&nats, &args).await,
        DlqCommand::Resume(args) => runs::resume(&nats, &target, &args).await,
        DlqCommand::Cancel(args) => runs::cancel(&nats, &args).await,
        DlqCommand::Purge(args) => files::purge(&nats, &args).await,
        DlqCommand::Export(args) => files::export(&nats, &args).await,
        DlqCommand::Import(args) => files::import(&nats, &args).await,
    }
}

/// All letters. Says so if the stream is not there, instead of waiting for it.
async fn index(nats: &Nats) -> Result<Index, Stop> {
    let stream = nats.names.dlq_stream();
    if let Err(error) = nats.jetstream.get_stream(&stream).await {
        let error = anyhow::Error::new(error).context(format!(
            "cannot read {stream}; run `fairlane init` or start a producer"
        ));
        return Err(Stop::new(Exit::Failed, error));
    }
    Ok(reader::read(nats).await)
}

/// The letters that are meant, the oldest first. If there are none, what to do about it.
fn chosen<'a>(index: &'a Index, filter: &'a Filter) -> Result<Vec<&'a Entry>, Stop> {
    let chosen: Vec<&Entry> = index.select(filter).collect();
    if chosen.is_empty() {
        let all = Filter {
            standing: fairlane_letters::filter::Standing::All,
            ..filter.clone()
        };
        let redriven = index.select(&all).last().and_then(|entry| {
            let note = entry.redriven.as_ref()?;
            Some((entry, note))
        });
        let text = match redriven {
            Some((entry, note)) if note.sent => format!(
                "letter #{} of {}/{} was already redriven by run {}; see `fairlane status {}/{}`",
                entry.seq, entry.tenant, entry.job, note.run, entry.tenant, entry.job
            ),
            Some((entry, note)) => format!(
                "letter #{} of {}/{} is already claimed by run {run}, which has not sent it yet; \
                 go on with `fairlane dlq resume {run}`",
                entry.seq,
                entry.tenant,
                entry.job,
                run = note.run
            ),
            None => "no dead letter fits; see all with `fairlane dlq ls --all`".to_owned(),
        };
        return Err(Stop::saying(Exit::NotFound, text));
    }
    Ok(chosen)
}

/// Writes values as one document or one a line.
fn print_all(format: Format, values: &[impl serde::Serialize]) -> Result<(), Stop> {
    match format {
        Format::Json => print_json(&values),
        Format::Table | Format::Jsonl => {
            for value in values {
                print_line(value)?;
            }
            Ok(())
        }
    }
}

fn print_line(value: &impl serde::Serialize) -> Result<(), Stop> {
    print(serde_json::to_string(value).map_err(anyhow::Error::new)?)
}

/// Columns of equal width, two spaces apart; the last one is as long as it is.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            let cells = rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        })
        .collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths);
        let cells = cells.map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Text on one line, at most `most` characters of it.
fn cut(text: &str, most: usize) -> String {
    let text = text.replace(char::is_control, " ");
    if text.chars().count() <= most {
        return text;
    }
    text.chars()
        .take(most.saturating_sub(3))
        .collect::<String>()
        + "..."
}

fn now_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_whatever_is_in_them() {
        let rows = [
            vec!["a".to_owned(), "b".into()],
            vec!["淡い".into(), String::new()],
        ];
        assert_eq!(table(&rows), "a   b\n淡い");
        assert_eq!(cut("a\nbcdefgh", 6), "a b...");
    }
}
