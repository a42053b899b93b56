//! `fairlane result`: the answer of a job.

use anyhow::Context as _;
use fairlane_nats::Nats;
use fairlane_wire::{JobRecord, Phase};
use serde_json::Value;

use crate::cli::{Format, Globals, JobArgs};
use crate::exit::{Exit, Outcome, Stop};
use crate::lookup::find;
use crate::out::{print, print_json};
use crate::target::Target;

/// Largest answer fetched from the store of large bodies.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

pub(crate) async fn run(globals: &Globals, args: JobArgs) -> Outcome {
    let target = Target::load(globals)?;
    let _logs = target.quiet_logs("result")?;
    let nats = target.connect("result").await?;
    let found = find(&nats, &args).await?;
    let record = found.outcome();
    if record.phase != Phase::Done {
        return Err(Stop::saying(Exit::Failed, not_done(record)));
    }
    let message = message(&nats, record).await?;
    match args.output.format {
        Format::Table => print(answer(&message))?,
        Format::Json | Format::Jsonl => print_json(&message)?,
    }
    Ok(Exit::Ok)
}

/// Why there is no answer (yet).
fn not_done(record: &JobRecord) -> String {
    let JobRecord { tenant, job, .. } = record;
    match (record.phase, &record.failure) {
        (Phase::Failed, Some(failure)) => {
            format!(
                "{tenant}/{job} has no answer: it failed: {}",
                failure.line()
            )
        }
        (Phase::Failed, None) => format!("{tenant}/{job} has no answer: it failed"),
        (Phase::Cancelled, _) => format!("{tenant}/{job} has no answer: it was cancelled"),
        (_, _) => {
            let phase = record.phase.as_str();
            format!(
                "{tenant}/{job} has no answer yet: it is {phase}; see `fairlane status {tenant}/{job}`"
            )
        }
    }
}

async fn message(nats: &Nats, record: &JobRecord) -> Result<Value, Stop> {
    match (&record.result, &record.result_claim) {
        (Some(message), _) => Ok(message.clone()),
        (None, Some(name)) => {
            let body = nats.payloads().get(name, ANSWER_BYTES_MAX).await;
            let body = body.context("cannot fetch the answer")?;
            let message = serde_json::from_slice(&body);
            Ok(message.with_context(|| format!("the answer in {name} is not JSON"))?)
        }
        (None, None) => Err(Stop::saying(
            Exit::NotFound,
            format!(
                "{}/{} is done, but its answer was not kept",
                record.tenant, record.job
            ),
        )),
    }
}

/// The text of a message; its content as JSON if it has no text (a tool call).
fn answer(message: &Value) -> String {
    let blocks = message["content"].as_array().map_or(&[][..], Vec::as_slice);
    let texts: Vec<&str> = blocks
        .iter()
        .filter(|block| block["type"] == "text")
        .filter_map(|block| block["text"].as_str())
        .collect();
    if texts.is_empty() {
        let shown = match &message["content"] {
            Value::Null => message,
            content => content,
        };
        return format!("{shown:#}");
    }
    texts.concat()
}

#[cfg(test)]
mod tests {
    use fairlane_core::{JobId, TenantId};
    use fairlane_wire::{DeadReason, Failure};
    use serde_json::json;

    use super::*;

    #[test]
    fn the_answer_is_the_text_and_nothing_else() {
        let message = json!({"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm"},
            {"type": "text", "text": "[\"a\","},
            {"type": "text", "text": "\"b\"]"},
        ]});
        assert_eq!(answer(&message), "[\"a\",\"b\"]");
    }

    #[test]
    fn a_tool_call_is_shown_as_it_is() {
        let message = json!({"content": [{"type": "tool_use", "name": "tag", "input": {"n": 1}}]});
        let shown: Value = serde_json::from_str(&answer(&message)).unwrap();
        assert_eq!(shown, message["content"]);
    }

    #[test]
    fn a_job_without_an_answer_says_why() {
        let told = |phase, failure| {
            let (tenant, job) = (
                TenantId::parse("acme").unwrap(),
                JobId::parse("j1").unwrap(),
            );
            let mut record = JobRecord::new(tenant, job, phase, 1);
            record.failure = failure;
            not_done(&record)
        };
        assert!(told(Phase::Generating, None).contains("no answer yet: it is generating"));
        assert!(told(Phase::Cancelled, None).ends_with("it was cancelled"));
        let failure = Failure::new(DeadReason::Refusal, "the model declined").fix("rephrase");
        assert_eq!(
            told(Phase::Failed, Some(failure)),
            "acme/j1 has no answer: it failed: refusal: the model declined; rephrase"
        );
    }
}
