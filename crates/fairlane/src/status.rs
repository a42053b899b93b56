//! `fairlane status`: where a job is, and what happened to it so far; or how the fleet stands.

mod fleet;

use fairlane_wire::{JobRecord, Phase};
use serde_json::{Value, json};

use crate::cli::{Format, Globals, JobArgs, StatusArgs};
use crate::exit::{Exit, Outcome};
use crate::lookup::{Found, find};
use crate::out::{Ink, Paint, print, print_json};
use crate::target::Target;
use crate::text;

pub(crate) async fn run(globals: &Globals, args: StatusArgs) -> Outcome {
    let target = Target::load(globals)?;
    let _logs = target.quiet_logs("status")?;
    let nats = target.connect("status").await?;
    let StatusArgs {
        job,
        tenant,
        output,
    } = args;
    let Some(job) = job else {
        return fleet::show(&nats, output.format).await;
    };
    let args = JobArgs {
        job,
        tenant,
        output,
    };
    let found = find(&nats, &args).await?;
    match args.output.format {
        Format::Table => print(text_of(&found, Paint::for_data(globals.color)))?,
        Format::Json | Format::Jsonl => print_json(&document(&found))?,
    }
    Ok(Exit::Ok)
}

fn document(found: &Found) -> Value {
    let mut document = json!(found.record);
    if let Some(owner) = &found.owner {
        document["same_as_record"] = json!(owner);
    }
    document
}

fn text_of(found: &Found, paint: Paint) -> String {
    let mut rows = vec![(
        "job",
        format!("{}/{}", found.record.tenant, found.record.job),
    )];
    if let Some(owner) = &found.owner {
        rows.push(("same as", format!("{}, whose outcome follows", owner.job)));
    }
    rows.extend(rows_of(found.outcome(), paint));
    let lines = rows.iter().map(|(name, value)| format!("{name:9} {value}"));
    lines.collect::<Vec<_>>().join("\n")
}

fn rows_of(record: &JobRecord, paint: Paint) -> Vec<(&'static str, String)> {
    let ink = match record.phase {
        Phase::Done => Ink::Good,
        Phase::Failed | Phase::Cancelled => Ink::Bad,
        Phase::Accepted
        | Phase::Queued
        | Phase::Generating
        | Phase::Refining
        | Phase::Retrying
        | Phase::Deferred
        | Phase::NeedsDecision => Ink::Heading,
    };
    let mut rows = vec![("phase", paint.paint(ink, phase(record)))];
    let optional = [("kind", &record.kind), ("priority", &record.priority)];
    for (name, value) in optional {
        rows.extend(value.iter().map(|value| (name, value.clone())));
    }
    rows.extend(model(record).map(|value| ("model", value)));
    rows.extend(shortened(record).map(|value| ("too long", value)));
    rows.push((
        "attempts",
        format!("{} ({} deliveries)", record.attempts, record.deliveries),
    ));
    rows.push(("accepted", text::instant(record.accepted_ms)));
    if let Some(at) = record.started_ms {
        let waited = text::span(at.saturating_sub(record.accepted_ms));
        rows.push((
            "started",
            format!("{} (waited {waited})", text::instant(at)),
        ));
    }
    if let Some(at) = record.finished_ms {
        let took = text::span(at.saturating_sub(record.accepted_ms));
        rows.push(("finished", format!("{} (after {took})", text::instant(at))));
    }
    rows.extend(
        record
            .retry_reason
            .iter()
            .map(|reason| ("retry for", reason.clone())),
    );
    if let Some(usage) = record.usage {
        let (input, output) = (usage.input_tokens, usage.output_tokens);
        rows.push(("tokens", format!("{input} in, {output} out")));
    }
    rows.extend(record.cost_usd.map(|usd| ("cost", text::dollars(usd))));
    rows.extend(record.trace_id.iter().map(|trace| ("trace", trace.clone())));
    rows.extend(
        record
            .failure
            .as_ref()
            .map(|failure| ("failure", failure.line())),
    );
    if record.phase == Phase::Done {
        rows.push((
            "answer",
            format!("fairlane result {}/{}", record.tenant, record.job),
        ));
    }
    rows
}

pub(crate) fn phase(record: &JobRecord) -> String {
    let phase = record.phase.as_str();
    match (record.phase, record.retry_at_ms) {
        (Phase::Retrying | Phase::Deferred, Some(at)) => {
            format!("{phase}, again at {}", text::instant(at))
        }
        (Phase::Generating | Phase::Refining, _) if record.tokens_so_far > 0 => {
            format!("{phase}, {} tokens so far", record.tokens_so_far)
        }
        (Phase::Accepted, _) if let Some(parts) = &record.parts => {
            format!("{phase}, {} of {} parts summarised", parts.done, parts.of)
        }
        _ => phase.to_owned(),
    }
}

/// What was done to a text that was too long.
fn shortened(record: &JobRecord) -> Option<String> {
    if let Some(parts) = &record.parts {
        let again = if parts.round > 1 {
            ", then their summaries"
        } else {
            ""
        };
        return Some(format!("summarised in {} parts{again}", parts.of));
    }
    let cut = record.truncated.iter().map(|cut| {
        let (field, from, to) = (&cut.field, cut.from_chars, cut.to_chars);
        format!("{field} cut from {from} to {to} characters")
    });
    let cut: Vec<String> = cut.collect();
    (!cut.is_empty()).then(|| cut.join(", "))
}

fn model(record: &JobRecord) -> Option<String> {
    match (&record.model, &record.model_used) {
        (Some(asked), Some(used)) if asked != used => Some(format!("{asked} (answered by {used})")),
        (Some(model), _) | (None, Some(model)) => Some(model.clone()),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use fairlane_core::{JobId, TenantId};
    use fairlane_wire::{DeadReason, Failure, UsageRecord};

    use super::*;

    fn record(phase: Phase) -> JobRecord {
        let (tenant, job) = (
            TenantId::parse("acme").unwrap(),
            JobId::parse("j1").unwrap(),
        );
        JobRecord::new(tenant, job, phase, 1_700_000_000_000)
    }

    fn told(record: JobRecord, owner: Option<JobRecord>) -> String {
        text_of(&Found { record, owner }, Paint::plain())
    }

    #[test]
    fn a_finished_job_tells_its_times_and_its_cost() {
        let mut done = record(Phase::Done);
        done.kind = Some("tagging".into());
        done.model = Some("claude-haiku-4-5".into());
        done.model_used = Some("claude-haiku-4-5-20251001".into());
        (done.attempts, done.deliveries) = (1, 2);
        done.started_ms = Some(1_700_000_000_250);
        done.finished_ms = Some(1_700_000_002_000);
        done.usage = Some(UsageRecord {
            input_tokens: 120,
            output_tokens: 60,
            ..UsageRecord::default()
        });
        done.cost_usd = Some(0.000_42);
        done.trace_id = Some("4bf92f3577b34da6a3ce929d0e0e4736".into());
        assert_eq!(
            told(done, None),
            "\
job       acme/j1
phase     done
kind      tagging
model     claude-haiku-4-5 (answered by claude-haiku-4-5-20251001)
attempts  1 (2 deliveries)
accepted  2023-11-14T22:13:20Z
started   2023-11-14T22:13:20Z (waited 250 ms)
finished  2023-11-14T22:13:22Z (after 2.0 s)
tokens    120 in, 60 out
cost      $0.000420
trace     4bf92f3577b34da6a3ce929d0e0e4736
answer    fairlane result acme/j1"
        );
    }

    #[test]
    fn a_job_that_waits_says_until_when_and_why() {
        let mut retrying = record(Phase::Retrying);
        retrying.retry_at_ms = Some(1_700_000_060_000);
        retrying.failure = Some(Failure::new(
            DeadReason::Exhausted,
            "the model is overloaded",
        ));
        let text = told(retrying, None);
        assert!(
            text.contains("phase     retrying, again at 2023-11-14T22:14:20Z"),
            "{text}"
        );
        assert!(
            text.contains("failure   exhausted: the model is overloaded"),
            "{text}"
        );
    }

    #[test]
    fn a_job_that_shares_an_outcome_shows_that_one() {
        let mut alias = record(Phase::Queued);
        alias.same_as = Some("j0".into());
        let mut owner = record(Phase::Done);
        owner.job = JobId::parse("j0").unwrap();
        let text = told(alias.clone(), Some(owner.clone()));
        assert!(
            text.starts_with(
                "job       acme/j1\nsame as   j0, whose outcome follows\nphase     done"
            ),
            "{text}"
        );
        let found = Found {
            record: alias,
            owner: Some(owner),
        };
        assert_eq!(document(&found)["same_as_record"]["job"], "j0");
    }
}
