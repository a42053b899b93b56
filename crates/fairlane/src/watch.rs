//! `fairlane watch`: a job's record as it changes, until the job has ended.

use std::time::Duration;

use fairlane_nats::records::{Records, Slot};
use fairlane_nats::watch;
use fairlane_runtime::drain::listen;
use fairlane_wire::JobRecord;

use crate::cli::{Format, Globals, JobArgs};
use crate::exit::{Exit, Outcome, Stop};
use crate::lookup::find;
use crate::out::print;
use crate::status;
use crate::target::Target;
use crate::text;

pub(crate) async fn run(globals: &Globals, args: JobArgs) -> Outcome {
    let target = Target::load(globals)?;
    let _logs = target.quiet_logs("watch")?;
    let nats = target.connect("watch").await?;
    let found = find(&nats, &args).await?;
    // What is told of a job that shares another's outcome is that other one.
    let record = found.outcome();
    let (mut signals, _listening) = listen().map_err(anyhow::Error::new)?;
    let records = Records::new(&nats, Duration::ZERO);
    let mut changes = records.watch(&record.tenant, &record.job);
    let mut last = None;
    loop {
        let event = tokio::select! {
            event = changes.next() => event,
            Some(_) = signals.recv() => return Ok(Exit::Interrupted),
        };
        let Some(event) = event else {
            return Err(Stop::saying(Exit::Failed, "the watch of the record ended"));
        };
        let watch::Event::Change(entry) = event else {
            continue;
        };
        let slot = Slot::of(&entry).map_err(|error| Stop::new(Exit::Failed, error))?;
        let Some(record) = slot.record else {
            return Err(Stop::saying(Exit::NotFound, "the record has expired"));
        };
        show(args.output.format, &entry, &record, last.as_ref())?;
        if record.phase.is_final() {
            return Ok(if record.ended_without_result() {
                Exit::Failed
            } else {
                Exit::Ok
            });
        }
        last = Some(record);
    }
}

/// One line per change: for people what is new, as JSON the whole record.
fn show(
    format: Format,
    entry: &fairlane_nats::Entry,
    record: &JobRecord,
    last: Option<&JobRecord>,
) -> Result<(), Stop> {
    match format {
        Format::Table => {
            let known = last.and_then(|last| last.trace_id.as_ref());
            if let Some(trace) = record
                .trace_id
                .as_ref()
                .filter(|trace| known != Some(trace))
            {
                print(format!("trace {trace}"))?;
            }
            print(line(entry.stored_ms, record, last))
        }
        // As it is stored, notice included.
        Format::Json | Format::Jsonl => {
            print(String::from_utf8_lossy(entry.value().map_or(&[], |v| v)))
        }
    }
}

fn line(at_ms: u64, record: &JobRecord, last: Option<&JobRecord>) -> String {
    let mut line = format!("{}  {}", text::instant(at_ms), status::phase(record));
    let news = |now: &Option<String>, before: Option<&Option<String>>| {
        now.clone()
            .filter(|now| before.is_none_or(|before| before.as_deref() != Some(now.as_str())))
    };
    let reason = news(&record.retry_reason, last.map(|last| &last.retry_reason));
    let failure = record.failure.as_ref().map(|failure| failure.line());
    for more in [reason, failure].into_iter().flatten() {
        line.push_str(": ");
        line.push_str(&more);
    }
    line
}

#[cfg(test)]
mod tests {
    use fairlane_core::{JobId, TenantId};
    use fairlane_wire::Phase;

    use super::*;

    #[test]
    fn a_reason_is_told_when_it_is_new() {
        let (tenant, job) = (
            TenantId::parse("acme").unwrap(),
            JobId::parse("j1").unwrap(),
        );
        let mut record = JobRecord::new(tenant, job, Phase::Generating, 1);
        record.tokens_so_far = 12;
        let at = 1_700_000_000_000;
        assert_eq!(
            line(at, &record, None),
            "2023-11-14T22:13:20Z  generating, 12 tokens so far"
        );
        record.retry_reason = Some("overloaded: busy".into());
        assert!(line(at, &record, None).ends_with(": overloaded: busy"));
        assert!(!line(at, &record, Some(&record)).contains("busy"));
    }
}
