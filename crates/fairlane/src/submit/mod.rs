//! `fairlane submit`: send a file of jobs, line by line as it is, and follow them if asked to.
//!
//! The file may be of any size: a line at a time is read, a bounded number is under way. Only what cannot be sent is
//! refused here; everything else is for the producer to judge, whose refusals come back as job records.

pub(crate) mod address;
pub(crate) mod book;
mod follow;
pub(crate) mod progress;
mod publish;

use std::fs::{File, Metadata};
use std::io::{BufWriter, ErrorKind, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use fairlane_core::TenantId;
use fairlane_nats::Nats;
use fairlane_runtime::drain::{self, Signal};
use tokio::io::{AsyncBufRead, BufReader};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::cli::{Format, Globals, SubmitArgs};
use crate::exit::{Exit, Outcome, Stop, told};
use crate::lines::{Content, Line, Lines};
use crate::out::{Paint, print, print_json, say};
use crate::summary::Summary;
use crate::target::Target;
use address::{Parcel, address, is_blank, too_long};
use book::{Book, FindingKind, Findings};
use follow::{Followed, follow};
use progress::Progress;
use publish::{Publisher, Sent, new_job_id};

/// Longest line read.
pub(crate) const LINE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Bytes read from the file at once.
const READ_BYTES: usize = 256 * 1024;

/// What to do with the lines.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Tenant of lines that name none.
    pub(crate) tenant: Option<TenantId>,
    /// Follow the jobs to their end.
    pub(crate) wait: bool,
    /// At most this long, from the start.
    pub(crate) timeout: Option<Duration>,
    /// Where all failures are written.
    pub(crate) failures: Option<BufWriter<File>>,
}

/// How a submission ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// All lines were sent, and if we waited, all jobs have ended.
    Complete,
    TimedOut,
    Interrupted,
    /// NATS stopped taking lines; the rest of the file was not read.
    CutOff,
}

pub(crate) async fn run(globals: &Globals, args: SubmitArgs) -> Outcome {
    let target = Target::load(globals)?;
    let telemetry = target.quiet_logs_and_traces("submit")?;
    let (file, source) = open(&args.file)?;
    let create = |path: &Path| create(path, source.as_ref());
    let failures = args.failures.as_deref().map(create).transpose()?;
    let (mut signals, _listening) = drain::listen().context("cannot listen for signals")?;
    let nats = target.connect("submit").await?;
    say(format_args!(
        "NATS at {} (from {})",
        target.settings().nats.url,
        target.url_from
    ));
    let plan = Plan {
        tenant: args.tenant,
        wait: args.wait,
        timeout: args.timeout.map(Duration::from_secs),
        failures,
    };
    let progress = Progress::start();
    let submitted = submit(&nats, file, plan, &mut signals, progress).await;
    telemetry.shutdown().await;
    let (summary, ended) = submitted?;
    match args.output.format {
        Format::Table => print(summary.text(Paint::for_data(globals.color)))?,
        Format::Json | Format::Jsonl => print_json(&summary)?,
    }
    advise(&summary, ended, args.wait);
    Ok(exit(&summary, ended))
}

type Source = Box<dyn AsyncBufRead + Unpin + Send>;

/// Opens the jobs. The metadata is for telling the file from others; standard input may have none.
fn open(path: &Path) -> Result<(Source, Option<Metadata>), Stop> {
    if path == Path::new("-") {
        let input = std::io::stdin().as_fd().try_clone_to_owned();
        let metadata = input.and_then(|input| File::from(input).metadata());
        let input = BufReader::with_capacity(READ_BYTES, tokio::io::stdin());
        return Ok((Box::new(input), metadata.ok()));
    }
    let wrong = |error| wrong_file("read", path, error);
    let file = File::open(path).map_err(wrong)?;
    let metadata = file.metadata().map_err(wrong)?;
    if metadata.is_dir() {
        return Err(wrong(ErrorKind::IsADirectory.into()));
    }
    let file = tokio::fs::File::from_std(file);
    let file = BufReader::with_capacity(READ_BYTES, file);
    Ok((Box::new(file), Some(metadata)))
}

/// Empties the file of failures, unless that is where the jobs are.
fn create(path: &Path, source: Option<&Metadata>) -> Result<BufWriter<File>, Stop> {
    let same = |there: &Metadata| {
        source.is_some_and(|source| {
            there.is_file() && (there.dev(), there.ino()) == (source.dev(), source.ino())
        })
    };
    if std::fs::metadata(path).is_ok_and(|there| same(&there)) {
        let text = format!(
            "--failures {} is the file of the jobs itself",
            path.display()
        );
        return Err(Stop::new(Exit::Usage, anyhow::Error::msg(text)));
    }
    let file = File::create(path).map_err(|error| wrong_file("write", path, error))?;
    Ok(BufWriter::new(file))
}

fn wrong_file(verb: &str, path: &Path, error: std::io::Error) -> Stop {
    let context = format!("cannot {verb} {}", path.display());
    Stop::new(Exit::Usage, anyhow::Error::new(error).context(context))
}

/// The exit code of a submission.
pub(crate) fn exit(summary: &Summary, ended: Ended) -> Exit {
    match ended {
        Ended::Complete => summary.exit(),
        Ended::TimedOut => Exit::Failed,
        Ended::Interrupted => Exit::Interrupted,
        Ended::CutOff => Exit::Unreachable,
    }
}

/// What to do next.
fn advise(summary: &Summary, ended: Ended, waited: bool) {
    match ended {
        Ended::Complete if !waited && summary.published > 0 => say(
            "the jobs are stored; see one with `fairlane status TENANT/ID`, or follow all of them by submitting the \
             same file with --wait (ids that were sent are not run twice)",
        ),
        Ended::Complete => {}
        Ended::TimedOut => say("stopped waiting; the jobs go on"),
        Ended::Interrupted => say("interrupted; what was published goes on"),
        Ended::CutOff => say(
            "NATS stopped taking lines; submit the same file again later (ids that were sent are not run twice). \
             If there is no stream for submissions, run `fairlane init` or start a producer",
        ),
    }
}

/// Sends all lines of `file` and, if the plan says so, follows the jobs.
///
/// # Errors
/// The file cannot be read, the failures cannot be written, or NATS cannot be asked at all.
pub(crate) async fn submit(
    nats: &Nats,
    file: impl AsyncBufRead + Unpin,
    mut plan: Plan,
    signals: &mut mpsc::Receiver<Signal>,
    mut progress: Progress,
) -> Result<(Summary, Ended), Stop> {
    let start = Instant::now();
    let deadline = plan.timeout.map(|timeout| start + timeout);
    let mut book = Book::new(plan.wait, plan.failures.is_some());
    if plan.wait {
        book.baseline = last_revision(nats).await?;
    }
    let mut ended = send(nats, file, &mut plan, &mut book, signals, &mut progress).await?;
    if plan.wait && ended == Ended::Complete {
        progress.follow();
        ended = match follow(nats, &mut book, deadline, signals, &mut progress).await {
            Followed::Complete => Ended::Complete,
            Followed::TimedOut => Ended::TimedOut,
            Followed::Interrupted => Ended::Interrupted,
        };
    }
    if plan.wait && !book.is_complete() {
        book.give_up();
    }
    progress.end();
    write_fresh(&mut plan, &mut book.findings)?;
    if let Some(file) = &mut plan.failures {
        file.flush().context("cannot write the failures")?;
    }
    let elapsed_ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok((Summary::of(&book, elapsed_ms), ended))
}

/// The newest record there is.
async fn last_revision(nats: &Nats) -> anyhow::Result<u64> {
    let name = format!("KV_{}", nats.names.status_bucket());
    let stream = nats.jetstream.get_stream(&name).await;
    let stream = stream.with_context(|| {
        format!(
            "cannot read {name}, where the outcomes are; run `fairlane init` or start a producer"
        )
    })?;
    Ok(stream.cached_info().state.last_sequence)
}

async fn send(
    nats: &Nats,
    file: impl AsyncBufRead + Unpin,
    plan: &mut Plan,
    book: &mut Book,
    signals: &mut mpsc::Receiver<Signal>,
    progress: &mut Progress,
) -> Result<Ended, Stop> {
    let mut lines = Lines::new(file, LINE_BYTES_MAX);
    let mut publisher = Publisher::new(nats);
    // Why no further line is read.
    let mut ended = None;
    while ended.is_none() || !publisher.is_idle() {
        let reads_on = ended.is_none() && publisher.has_room();
        tokio::select! {
            biased;
            Some(_) = signals.recv(), if ended.is_none() => ended = Some(Ended::Interrupted),
            Some(sent) = publisher.next(), if !publisher.is_idle() => {
                if !enter(book, sent) {
                    ended = Some(Ended::CutOff);
                }
            }
            line = lines.next(), if reads_on => match line.context("cannot read the jobs")? {
                None => ended = Some(Ended::Complete),
                Some(line) => {
                    if let Some(parcel) = sort(line, plan.tenant.as_ref(), book) {
                        publisher.send(parcel).await;
                    }
                }
            },
        }
        write_fresh(plan, &mut book.findings)?;
        progress.show(book);
    }
    Ok(ended.unwrap_or(Ended::Complete))
}

/// Books what became of a line. False if no further line is worth trying.
fn enter(book: &mut Book, sent: Sent) -> bool {
    match sent.outcome {
        Ok(stored) => {
            book.stored(stored.seq);
            true
        }
        Err(error) => {
            let is_of_the_line = error.is_of_the_line();
            book.not_stored(&sent.parcel, told(&error.into()));
            is_of_the_line
        }
    }
}

/// Books a line; gives it back if it is to be published.
fn sort(line: Line, default_tenant: Option<&TenantId>, book: &mut Book) -> Option<Parcel> {
    let text = match line.content {
        Content::Text(text) if is_blank(&text) => {
            book.skip();
            return None;
        }
        Content::Text(text) => text,
        Content::TooLong(bytes) => {
            book.refuse(too_long(line.number, bytes, LINE_BYTES_MAX));
            return None;
        }
    };
    match address(line.number, text, default_tenant, new_job_id) {
        Ok(parcel) => {
            book.publish(&parcel);
            Some(parcel)
        }
        Err(refusal) => {
            book.refuse(*refusal);
            None
        }
    }
}

fn write_fresh(plan: &mut Plan, findings: &mut Findings) -> anyhow::Result<()> {
    let Some(file) = &mut plan.failures else {
        return Ok(());
    };
    for finding in findings.take_fresh() {
        if finding.outcome == FindingKind::SameJob {
            continue;
        }
        serde_json::to_writer(&mut *file, &finding).context("cannot write the failures")?;
        file.write_all(b"\n").context("cannot write the failures")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
