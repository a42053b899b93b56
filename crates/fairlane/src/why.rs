//! `fairlane why`: what a job waits for, and until when. The record says what happened; the leading
//! scheduler says what is in the way now.

use std::time::Duration;

use anyhow::Context as _;
use async_nats::RequestErrorKind;
use fairlane_nats::Nats;
use fairlane_wire::{JobRecord, Phase, WhyAnswer, WhyRequest};
use serde_json::json;

use crate::cli::{Format, Globals, JobArgs};
use crate::exit::{Exit, Outcome, Stop};
use crate::lookup::find;
use crate::out::{print, print_json};
use crate::target::Target;
use crate::text;

/// The leader answers in microseconds, when there is one.
const PATIENCE: Duration = Duration::from_secs(3);

pub(crate) async fn run(globals: &Globals, args: JobArgs) -> Outcome {
    let target = Target::load(globals)?;
    let _logs = target.quiet_logs("why")?;
    let nats = target.connect("why").await?;
    let found = find(&nats, &args).await?;
    let record = found.outcome();
    let answer = match over(record) {
        Some(answer) => answer,
        None => ask(&nats, record).await?,
    };
    let job = format!("{}/{}", record.tenant, record.job);
    match args.output.format {
        Format::Text => {
            let until = answer
                .until_ms
                .map(|at| format!(" (until {})", text::instant(at)));
            print(format!(
                "{job}: {}{}",
                answer.text,
                until.unwrap_or_default()
            ))?;
        }
        Format::Json => {
            let mut document = json!(answer);
            document["job"] = json!(job);
            document["phase"] = json!(record.phase);
            print_json(&document)?;
        }
    }
    Ok(Exit::Ok)
}

/// The answer of a job that waits for nothing any more.
fn over(record: &JobRecord) -> Option<WhyAnswer> {
    let text = match record.phase {
        Phase::Done => "it is done",
        Phase::Failed => "it failed; `fairlane status` says why",
        Phase::Cancelled => "its owner called it off",
        Phase::Accepted
        | Phase::Queued
        | Phase::Generating
        | Phase::Refining
        | Phase::Retrying
        | Phase::Deferred
        | Phase::NeedsDecision => return None,
    };
    let reason = record.phase.as_str().to_owned();
    Some(WhyAnswer {
        reason,
        text: text.to_owned(),
        until_ms: None,
        place: None,
    })
}

async fn ask(nats: &Nats, record: &JobRecord) -> Result<WhyAnswer, Stop> {
    let Some(seq) = record.sequence else {
        return Err(Stop::saying(
            Exit::Failed,
            "the job is being accepted; ask again",
        ));
    };
    let body = serde_json::to_vec(&WhyRequest::Job { seq }).context("cannot ask")?;
    let request = async_nats::Request::new()
        .payload(body.into())
        .timeout(Some(PATIENCE));
    let reply = match nats
        .client
        .send_request(nats.names.why_subject(), request)
        .await
    {
        Ok(reply) => reply,
        Err(error) => {
            return Err(match error.kind() {
                RequestErrorKind::NoResponders | RequestErrorKind::TimedOut => Stop::saying(
                    Exit::Failed,
                    "no scheduler leads, so nothing is granted; is `fairlane scheduler` running?",
                ),
                RequestErrorKind::InvalidSubject
                | RequestErrorKind::MaxPayloadExceeded
                | RequestErrorKind::Other => Stop::new(Exit::Failed, error),
            });
        }
    };
    Ok(serde_json::from_slice(&reply.payload).context("the scheduler's answer is not readable")?)
}
