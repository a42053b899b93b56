//! `fairlane cancel`, `answer` and `regenerate`: one request to a producer for each job, and what it says.

use std::time::Duration;

use anyhow::Context as _;
use async_nats::RequestErrorKind;
use fairlane_nats::Nats;
use fairlane_wire::{Answer, Ask, AskOutcome, AskReply, JobRecord};
use serde_json::{Value, json};

use crate::cli::{CancelArgs, Format, Globals, JobArgs};
use crate::exit::{Exit, Outcome, Stop};
use crate::lookup::find;
use crate::out::{print, print_json, say};
use crate::target::Target;

/// A producer reads and writes a record; under load its turn may take a while.
const PATIENCE: Duration = Duration::from_secs(10);

/// Asks for something to be done to one job.
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
    let reply = request(&nats, record, ask, answer).await?;
    match args.output.format {
        Format::Json | Format::Jsonl => print_json(&reply)?,
        Format::Table => print(told(record, &reply))?,
    }
    Ok(exit(reply.outcome))
}

/// Calls jobs off. Of several all must be there, and somebody is asked first.
pub(crate) async fn cancel(globals: &Globals, args: CancelArgs) -> Outcome {
    let target = Target::load(globals)?;
    let _logs = target.quiet_logs(Ask::Cancel.as_str())?;
    let nats = target.connect(Ask::Cancel.as_str()).await?;
    let mut records = Vec::new();
    for job in &args.jobs {
        let wanted = JobArgs {
            job: job.clone(),
            tenant: args.tenant.clone(),
            output: args.output,
        };
        records.push(find(&nats, &wanted).await?.outcome().clone());
    }
    if args.consent.dry_run {
        return would(&records, args.output.format);
    }
    if let [_, _, ..] = records.as_slice() {
        let what = format!("{} jobs will be called off.", records.len());
        args.consent.ask(&what, "nothing was called off")?;
    }
    let mut replies: Vec<AskReply> = Vec::new();
    for record in &records {
        let reply = request(&nats, record, Ask::Cancel, None).await?;
        if args.output.format == Format::Table {
            print(told(record, &reply))?;
        }
        replies.push(reply);
    }
    match (args.output.format, replies.as_slice()) {
        (Format::Table, _) => {}
        (Format::Json | Format::Jsonl, [reply]) => print_json(reply)?,
        (Format::Json | Format::Jsonl, replies) => print_json(&replies)?,
    }
    Ok(match replies.as_slice() {
        [reply] => exit(reply.outcome),
        replies if replies.iter().all(|reply| exit(reply.outcome) == Exit::Ok) => Exit::Ok,
        _ => Exit::Failed,
    })
}

/// What would be called off.
fn would(records: &[JobRecord], format: Format) -> Outcome {
    say("nothing was called off; without --dry-run these would be:");
    match format {
        Format::Table => {
            for record in records {
                let (tenant, job) = (&record.tenant, &record.job);
                print(format!("{tenant}/{job}  {}", record.phase.as_str()))?;
            }
        }
        Format::Json | Format::Jsonl => {
            let jobs = records.iter().map(|record| {
                json!({
                    "tenant": record.tenant.as_str(), "job": record.job.as_str(), "phase": record.phase.as_str(),
                })
            });
            print_json(&jobs.collect::<Vec<Value>>())?;
        }
    }
    Ok(Exit::Ok)
}

async fn request(
    nats: &Nats,
    record: &JobRecord,
    ask: Ask,
    answer: Option<Answer>,
) -> Result<AskReply, Stop> {
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
    let reply =
        serde_json::from_slice(&reply.payload).context("the producer's answer is not readable")?;
    Ok(reply)
}

fn told(record: &JobRecord, reply: &AskReply) -> String {
    let other = reply.other.as_ref().map(|job| format!(" ({job})"));
    let (tenant, job) = (&record.tenant, &reply.job);
    format!(
        "{tenant}/{job}: {}{}",
        reply.text,
        other.unwrap_or_default()
    )
}

fn exit(outcome: AskOutcome) -> Exit {
    match outcome {
        AskOutcome::Ok => Exit::Ok,
        AskOutcome::NotFound => Exit::NotFound,
        AskOutcome::Invalid => Exit::Usage,
        AskOutcome::Ended | AskOutcome::SameAs | AskOutcome::NotPossible | AskOutcome::Busy => {
            Exit::Failed
        }
    }
}
