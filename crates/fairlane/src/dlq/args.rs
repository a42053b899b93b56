//! The command line of `fairlane dlq`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use fairlane_letters::filter::{Filter, Id, Standing};
use fairlane_letters::repair::Repair;
use fairlane_wire::DeadReason;
use serde_json::Value;

use crate::cli::{Consent, Output};

#[derive(Debug, Subcommand)]
pub(crate) enum DlqCommand {
    /// List dead letters: groups of one cause, or with --letters each one
    #[command(after_help = "Examples:
  fairlane dlq ls
  fairlane dlq ls --reason schema --tenant acme --since 2h --letters
  fairlane dlq ls -o jsonl --letters --fingerprint 3f2a")]
    Ls(LsArgs),
    /// Show one letter: what is known of it, its headers and its body
    #[command(after_help = "Examples:
  fairlane dlq show acme/wp-1
  fairlane dlq show '#17' --body > body.json")]
    Show(ShowArgs),
    /// Make letters runnable, show what changes, and send them again
    #[command(after_help = REPAIR_HELP)]
    Repair(RepairArgs),
    /// Send letters again: by id, or all that fit the conditions
    ///
    /// The letters are chosen once and written down; such that come to fit later never join. They
    /// run as batch work under their tenant's fair share, each at most once, with their
    /// idempotency key: what has a result by now is not paid again.
    #[command(after_help = REDRIVE_HELP)]
    Redrive(RedriveArgs),
    /// List the runs that send letters again
    #[command(after_help = "Example:\n  fairlane dlq runs")]
    Runs(Output),
    /// Pause a run, from any terminal
    #[command(after_help = "Example:\n  fairlane dlq pause r-0198c")]
    Pause(RunArgs),
    /// Go on with a run that is paused, or whose terminal is gone
    #[command(after_help = "Example:\n  fairlane dlq resume r-0198c")]
    Resume(RunArgs),
    /// End a run: what it has not sent yet stays
    #[command(after_help = "Example:\n  fairlane dlq cancel r-0198c")]
    Cancel(RunArgs),
    /// Delete letters for good, after writing them to a file
    #[command(after_help = "Examples:
  fairlane dlq purge --reason expired --until 7d --export expired.jsonl --dry-run
  fairlane dlq purge --reason expired --until 7d --export expired.jsonl --yes")]
    Purge(PurgeArgs),
    /// Write letters to a file, bodies included, one JSON object a line
    #[command(after_help = "Examples:
  fairlane dlq export --tenant acme > acme.jsonl
  fairlane dlq export --all --file all.jsonl")]
    Export(ExportArgs),
    /// Put letters from a file back; such that are there already are left out
    #[command(after_help = "Example:\n  fairlane dlq import acme.jsonl")]
    Import(ImportArgs),
}

impl DlqCommand {
    /// Whether it only looks.
    pub(crate) fn only_looks(&self) -> bool {
        match self {
            Self::Ls(_) | Self::Show(_) | Self::Runs(_) => true,
            Self::Repair(_) | Self::Redrive(_) => false,
            Self::Pause(_) | Self::Resume(_) | Self::Cancel(_) => false,
            Self::Purge(_) | Self::Export(_) | Self::Import(_) => false,
        }
    }
}

const REPAIR_HELP: &str = "\
Examples:
  fairlane dlq repair acme/wp-1 --strip
  fairlane dlq repair acme/wp-1 --patch '{\"priority\":null,\"origin\":\"user_action\"}'
  fairlane dlq repair acme/wp-1 --trim --model claude-sonnet-5-5 --dry-run
  fairlane dlq repair --fingerprint 3f2a --max-tokens 4096 --yes";

const REDRIVE_HELP: &str = "\
Examples:
  fairlane dlq redrive acme/wp-1
  fairlane dlq redrive --reason exhausted --since 1h --dry-run
  fairlane dlq redrive --fingerprint 3f2a --rate 20 --yes";

/// Which letters are meant.
#[derive(Debug, Clone, Args, Default)]
pub(crate) struct Which {
    /// Letters: #SEQUENCE, TENANT/JOB or JOB
    #[arg(value_name = "LETTER")]
    pub(crate) ids: Vec<String>,
    /// Only of this reason (repeatable)
    #[arg(long, value_name = "REASON", value_parser = reason)]
    pub(crate) reason: Vec<DeadReason>,
    /// Only of this tenant (repeatable)
    #[arg(long, value_name = "TENANT")]
    pub(crate) tenant: Vec<String>,
    /// Only of this kind of work (repeatable)
    #[arg(long, value_name = "KIND")]
    pub(crate) kind: Vec<String>,
    /// Only of the group whose fingerprint begins so (repeatable)
    #[arg(long, value_name = "HEX")]
    pub(crate) fingerprint: Vec<String>,
    /// Only written since then: a time, or how long ago (90m, 2h, 7d)
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) since: Option<u64>,
    /// Only written before then
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) until: Option<u64>,
}

impl Which {
    pub(crate) fn filter(&self, standing: Standing) -> Filter {
        Filter {
            standing,
            ids: self.ids.iter().map(|id| Id::parse(id)).collect(),
            reasons: self.reason.clone(),
            tenants: self.tenant.clone(),
            kinds: self.kind.clone(),
            fingerprints: self.fingerprint.clone(),
            since_ms: self.since,
            until_ms: self.until,
        }
    }

    /// What was asked for, in words.
    pub(crate) fn words(&self) -> String {
        let mut words = self.ids.clone();
        words.extend(self.reason.iter().map(|reason| format!("reason {reason}")));
        words.extend(self.tenant.iter().map(|tenant| format!("tenant {tenant}")));
        words.extend(self.kind.iter().map(|kind| format!("kind {kind}")));
        words.extend(
            self.fingerprint
                .iter()
                .map(|hex| format!("fingerprint {hex}")),
        );
        let instant = crate::text::instant;
        words.extend(self.since.map(|at| format!("since {}", instant(at))));
        words.extend(self.until.map(|at| format!("until {}", instant(at))));
        let mut words = words.join(", ");
        words.truncate(words.floor_char_boundary(500));
        words
    }
}

/// What is to be done to them.
#[derive(Debug, Clone, Args, Default)]
pub(crate) struct Change {
    /// Leave out bytes that are not UTF-8, control characters and half surrogate pairs
    #[arg(long)]
    pub(crate) strip: bool,
    /// Cut the end of a text until the job fits its model: a path such as
    /// request.messages[0].content, or nothing for the longest one (repeatable)
    #[arg(long, value_name = "PATH", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub(crate) trim: Vec<String>,
    /// Room for the answer
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max_tokens: Option<u64>,
    /// Another model
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// JSON to merge into the body (RFC 7396): inline, or @FILE; null takes a field away
    #[arg(long, value_name = "JSON|@FILE")]
    pub(crate) patch: Option<String>,
    /// Take this file instead of the body
    #[arg(long, value_name = "FILE")]
    pub(crate) body: Option<PathBuf>,
    /// Send it for this tenant, if it was published under a name that cannot be one
    #[arg(long, value_name = "TENANT")]
    pub(crate) for_tenant: Option<String>,
}

impl Change {
    /// Reads the files it names.
    ///
    /// # Errors
    /// What is wrong with them, for the user.
    pub(crate) fn repair(&self) -> Result<Repair, String> {
        let read = |path: &PathBuf| {
            std::fs::read_to_string(path)
                .map_err(|error| format!("cannot read {}: {error}", path.display()))
        };
        let patch = match &self.patch {
            None => None,
            Some(text) => {
                let text = match text.strip_prefix('@') {
                    Some(path) => read(&PathBuf::from(path))?,
                    None => text.clone(),
                };
                let patch: Value = serde_json::from_str(&text)
                    .map_err(|error| format!("--patch is not JSON: {error}"))?;
                if !patch.is_object() {
                    return Err(
                        "--patch is not a JSON object; give the fields to change".to_owned()
                    );
                }
                Some(patch)
            }
        };
        Ok(Repair {
            body: self.body.as_ref().map(read).transpose()?,
            strip: self.strip,
            patch,
            tenant: self.for_tenant.clone(),
            model: self.model.clone(),
            max_tokens: self.max_tokens,
            trim: self.trim.clone(),
        })
    }
}

#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    #[command(flatten)]
    pub(crate) which: Which,
    /// List each letter, not groups
    #[arg(long)]
    pub(crate) letters: bool,
    /// Also letters that were sent again
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The letter: #SEQUENCE, TENANT/JOB or JOB (its latest letter)
    #[arg(value_name = "LETTER")]
    pub(crate) letter: String,
    /// Write the body alone, byte for byte
    #[arg(long)]
    pub(crate) body: bool,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct RepairArgs {
    #[command(flatten)]
    pub(crate) which: Which,
    #[command(flatten)]
    pub(crate) change: Change,
    #[command(flatten)]
    pub(crate) sending: Sending,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct RedriveArgs {
    #[command(flatten)]
    pub(crate) which: Which,
    /// Every open letter
    #[arg(long, conflicts_with_all = ["ids", "reason", "tenant", "kind", "fingerprint", "since", "until"])]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) change: Change,
    #[command(flatten)]
    pub(crate) sending: Sending,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// How letters are sent again.
#[derive(Debug, Clone, Args)]
pub(crate) struct Sending {
    #[command(flatten)]
    pub(crate) consent: Consent,
    /// Letters sent each second, at most
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) rate: u32,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The run, as `fairlane dlq runs` lists it
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct PurgeArgs {
    #[command(flatten)]
    pub(crate) which: Which,
    /// Also letters that were sent again
    #[arg(long)]
    pub(crate) all: bool,
    /// Where the letters are written before they are deleted
    #[arg(long, value_name = "FILE")]
    pub(crate) export: PathBuf,
    #[command(flatten)]
    pub(crate) consent: Consent,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    pub(crate) which: Which,
    /// Also letters that were sent again
    #[arg(long)]
    pub(crate) all: bool,
    /// File to write [default: standard output]
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// File as `fairlane dlq export` writes it
    #[arg(value_name = "FILE.jsonl")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) output: Output,
}

fn reason(word: &str) -> Result<DeadReason, String> {
    DeadReason::parse(word).ok_or_else(|| {
        let all: Vec<&str> = DeadReason::ALL
            .iter()
            .map(|reason| reason.as_str())
            .collect();
        format!("give one of {}", all.join(", "))
    })
}

/// A time in unix milliseconds: RFC 3339, or how long ago.
fn time(text: &str) -> Result<u64, String> {
    let now = jiff::Timestamp::now();
    let wrong = || {
        "give a time such as 2026-11-30T16:00:00Z, or how long ago, such as 90m, 2h or 7d"
            .to_owned()
    };
    let at = match text.parse::<jiff::Timestamp>() {
        Ok(at) => at,
        Err(_) => {
            let span: jiff::Span = text.parse().map_err(|_| wrong())?;
            let day = jiff::SpanRelativeTo::days_are_24_hours();
            let ago = span.to_duration(day).map_err(|_| wrong())?;
            now.checked_sub(ago).map_err(|_| wrong())?
        }
    };
    u64::try_from(at.as_millisecond()).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_points_or_spans_ago() {
        assert_eq!(time("2023-11-14T22:13:20Z"), Ok(1_700_000_000_000));
        let now = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap();
        for (text, ms) in [("90m", 5_400_000), ("2h", 7_200_000), ("7d", 604_800_000)] {
            let ago = now - time(text).unwrap();
            assert!(ago.abs_diff(ms) < 10_000, "{text}: {ago}");
        }
        assert!(time("yesterday").unwrap_err().contains("7d"));
    }

    #[test]
    fn a_patch_is_an_object_inline_or_in_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("patch.json");
        std::fs::write(&path, r#"{"a":null}"#).unwrap();
        let patch = |text: &str| {
            let change = Change {
                patch: Some(text.to_owned()),
                ..Change::default()
            };
            change
                .repair()
                .map(|repair| repair.patch.unwrap().to_string())
        };
        assert_eq!(patch(r#"{"a":1}"#).as_deref(), Ok(r#"{"a":1}"#));
        assert_eq!(
            patch(&format!("@{}", path.display())).as_deref(),
            Ok(r#"{"a":null}"#)
        );
        assert!(patch("[1]").unwrap_err().contains("not a JSON object"));
        assert!(patch("{").unwrap_err().contains("not JSON"));
        assert!(
            patch("@nowhere")
                .unwrap_err()
                .contains("cannot read nowhere")
        );
    }
}
