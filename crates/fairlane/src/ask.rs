//! `fairlane cancel`, `answer` and `regenerate`: one request to a producer, and what it says.

use std::time::Duration;

use anyhow::Context as _;
use async_nats::RequestErrorKind;
use fairlane_wire::{Answer, Ask, AskOutcome, AskReply};

use crate::cli::{Format, Globals, JobArgs};
use crate::exit::{Exit, Outcome, Stop};
use crate::lookup::find;
use crate::out::{print, print_json};
use crate::target::Target;

/// A producer reads and writes a record; under load its turn may take a while.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) async fn run(
    globals: &Globals,
    args: JobArgs,
    ask: Ask,
    answer: Option<Answer>,
) -> Outcome {
    let target = Target::load(globals)?;
    let _logs = target.quiet_logs(ask.as_str())?;
    let nats = target.connect(ask.as_str()).await?;
    let found = find(&nats, &args).await?;
    let record = found.outcome();
    let subject = nats.names.ask_subject(ask, &record.tenant, &record.job);
    let body = answer.map_or("", Answer::as_str);
    let request = async_nats::Request::new()
        .payload(body.into())
        .timeout(Some(PATIENCE));
    let reply = match nats.client.send_request(subject, request).await {
        Ok(reply) => reply,
        Err(error) if error.kind() == RequestErrorKind::NoResponders => {
            let text = "no producer is there to take this; is `fairlane producer` running?";
            return Err(Stop::saying(Exit::Failed, text));
        }
        Err(error) => return Err(Stop::new(Exit::Failed, error)),
    };
    let reply: AskReply =
        serde_json::from_slice(&reply.payload).context("the producer's answer is not readable")?;
    match args.output.format {
        Format::Json | Format::Jsonl => print_json(&reply)?,
        Format::Text => {
            let other = reply.other.as_ref().map(|job| format!(" ({job})"));
            let (tenant, job) = (&record.tenant, &reply.job);
            print(format!(
                "{tenant}/{job}: {}{}",
                reply.text,
                other.unwrap_or_default()
            ))?;
        }
    }
    Ok(match reply.outcome {
        AskOutcome::Ok => Exit::Ok,
        AskOutcome::NotFound => Exit::NotFound,
        AskOutcome::Invalid => Exit::Usage,
        AskOutcome::Ended | AskOutcome::SameAs | AskOutcome::NotPossible | AskOutcome::Busy => {
            Exit::Failed
        }
    })
}
