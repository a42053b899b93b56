//! `fairlane why`: what a job or a tenant waits for, and until when. A job's record says what happened;
//! the leading scheduler says what is in the way now.

use std::time::Duration;

use anyhow::Context as _;
use async_nats::RequestErrorKind;
use fairlane_core::TenantId;
use fairlane_core::demotion::Cause;
use fairlane_nats::Nats;
use fairlane_wire::why::PlaceRecord;
use fairlane_wire::{JobRecord, Phase, TenantWhy, WhyAnswer, WhyRequest};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::cli::{Format, Globals, JobArgs, WhyArgs};
use crate::exit::{Exit, Outcome, Stop};
use crate::lookup::find;
use crate::out::{print, print_json};
use crate::target::Target;
use crate::text;

/// The leader answers in microseconds, when there is one.
const PATIENCE: Duration = Duration::from_secs(3);

pub(crate) async fn run(globals: &Globals, args: WhyArgs) -> Outcome {
    let target = Target::load(globals)?;
    let _logs = target.quiet_logs("why")?;
    let nats = target.connect("why").await?;
    let WhyArgs {
        job,
        tenant,
        output,
    } = args;
    match (job, tenant) {
        (Some(job), tenant) => {
            let args = JobArgs {
                job,
                tenant,
                output,
            };
            why_job(&nats, &args).await
        }
        (None, Some(tenant)) => why_tenant(&nats, tenant, output.format).await,
        (None, None) => unreachable!("the command line asks for one of them"),
    }
}

async fn why_job(nats: &Nats, args: &JobArgs) -> Outcome {
    let found = find(nats, args).await?;
    let record = found.outcome();
    let answer = match over(record).or_else(|| in_parts(record)) {
        Some(answer) => answer,
        None => {
            let seq = record.sequence.ok_or_else(|| {
                Stop::saying(Exit::Failed, "the job is being accepted; ask again")
            })?;
            ask(nats, &WhyRequest::Job { seq }).await?
        }
    };
    let job = format!("{}/{}", record.tenant, record.job);
    match args.output.format {
        Format::Table => {
            print(told(&job, &answer))?;
            if let Some(trace) = &record.trace_id {
                print(format!("  trace: {trace}"))?;
            }
        }
        Format::Json | Format::Jsonl => {
            let mut document = json!(answer);
            document["job"] = json!(job);
            document["trace_id"] = json!(record.trace_id);
            document["phase"] = json!(record.phase);
            print_json(&document)?;
        }
    }
    Ok(Exit::Ok)
}

fn told(job: &str, answer: &WhyAnswer) -> String {
    let mut told = format!("{job}: {}", reason(answer));
    if let Some(place) = &answer.place {
        let PlaceRecord {
            pool,
            priority,
            ahead,
            eta_ms,
        } = place;
        let priority = priority.as_str();
        let turn = turn(*eta_ms);
        told += &format!(
            "\n  in line: {priority} of {pool}, {ahead} of its tenant ahead; its turn: {turn}"
        );
    }
    told
}

fn reason(answer: &WhyAnswer) -> String {
    match answer.until_ms {
        Some(until) => format!("{} (until {})", answer.text, text::instant(until)),
        None => answer.text.clone(),
    }
}

fn turn(eta_ms: Option<u64>) -> String {
    match eta_ms {
        Some(at) => format!("about {}", text::instant(at)),
        None => "unknown, nothing was granted there lately".to_owned(),
    }
}

async fn why_tenant(nats: &Nats, tenant: TenantId, format: Format) -> Outcome {
    let request = WhyRequest::Tenant {
        tenant: tenant.clone(),
    };
    let answer: Option<TenantWhy> = ask(nats, &request).await?;
    let answer = answer.ok_or_else(|| {
        let text = format!("the leading scheduler has seen no jobs of {tenant}: nothing waits");
        Stop::saying(Exit::NotFound, text)
    })?;
    match format {
        Format::Table => print(tenant_told(&tenant, &answer))?,
        Format::Json | Format::Jsonl => {
            let mut document = json!(answer);
            document["tenant"] = json!(tenant.as_str());
            print_json(&document)?;
        }
    }
    Ok(Exit::Ok)
}

fn tenant_told(tenant: &TenantId, answer: &TenantWhy) -> String {
    let TenantWhy {
        weight,
        in_flight,
        in_flight_max,
        demoted,
        input_tokens_today,
        daily_input_tokens,
        lines,
    } = answer;
    let weight = f64::from(*weight) / 1_000.0;
    let budget = match daily_input_tokens {
        Some(budget) => format!("of {budget}"),
        None => "without a budget".to_owned(),
    };
    let mut told = vec![
        format!("{tenant}: weight {weight}, {in_flight} in flight of at most {in_flight_max}"),
        format!("  input tokens today: {input_tokens_today} {budget}"),
    ];
    if let Some(demoted) = demoted {
        told.push(format!(
            "  its standard work is served as batch until {}: {}",
            text::instant(demoted.until_ms),
            match demoted.cause {
                Cause::Throttles => "it caused rate limits",
                Cause::Budget => "it is far beyond its budget",
                Cause::Hand => "somebody decided so",
            }
        ));
    }
    if lines.is_empty() {
        told.push("  nothing is in line".to_owned());
    }
    told.extend(lines.iter().map(|line| {
        let jobs = if line.queued == 1 { "job" } else { "jobs" };
        let eta = line.why.place.as_ref().and_then(|place| place.eta_ms);
        format!(
            "  {} of {}: {} {jobs} in line; {} is next: {}; its turn: {}",
            line.priority.as_str(),
            line.pool,
            line.queued,
            line.job,
            reason(&line.why),
            turn(eta),
        )
    }));
    told.join("\n")
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

/// The answer of a job whose text is summarised first.
fn in_parts(record: &JobRecord) -> Option<WhyAnswer> {
    let parts = record.parts.as_ref().filter(|_| record.is_in_parts())?;
    let (done, of) = (parts.done, parts.of);
    let last = record.children.last().map(|part| part.job.to_string());
    Some(WhyAnswer {
        reason: "parts".to_owned(),
        text: format!(
            "its text is summarised first: {done} of {of} parts are done; ask about the others, such as {}/{}",
            record.tenant,
            last.unwrap_or_default()
        ),
        until_ms: None,
        place: None,
    })
}

/// Asks the leader.
pub(crate) async fn ask<T: DeserializeOwned>(
    nats: &Nats,
    question: &WhyRequest,
) -> Result<T, Stop> {
    let body = serde_json::to_vec(question).context("cannot ask")?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use fairlane_core::{JobId, PoolId, Priority};
    use fairlane_wire::why::{Demoted, Line};

    fn answer(eta_ms: Option<u64>) -> WhyAnswer {
        WhyAnswer {
            reason: "pool_full".to_owned(),
            text: "the limits of its pool are used up for now".to_owned(),
            until_ms: Some(1_700_000_000_000),
            place: Some(PlaceRecord {
                pool: PoolId::parse("haiku-4.5").unwrap(),
                priority: Priority::Batch,
                ahead: 3,
                eta_ms,
            }),
        }
    }

    #[test]
    fn a_job_is_told_its_obstacle_place_and_turn() {
        assert_eq!(
            told("acme/a", &answer(Some(1_700_000_060_000))),
            "\
acme/a: the limits of its pool are used up for now (until 2023-11-14T22:13:20Z)
  in line: batch of haiku-4.5, 3 of its tenant ahead; its turn: about 2023-11-14T22:14:20Z"
        );
        assert!(told("acme/a", &answer(None)).ends_with("nothing was granted there lately"));
    }

    #[test]
    fn a_tenant_is_told_its_standing_and_its_lines() {
        let line = Line {
            pool: PoolId::parse("haiku-4.5").unwrap(),
            priority: Priority::Batch,
            queued: 12,
            job: JobId::parse("a").unwrap(),
            why: answer(None),
        };
        let why = TenantWhy {
            weight: 2_500,
            in_flight: 2,
            in_flight_max: 20,
            demoted: Some(Demoted {
                cause: Cause::Budget,
                until_ms: 1_700_000_000_000,
            }),
            input_tokens_today: 180_000,
            daily_input_tokens: Some(100_000),
            lines: vec![line],
        };
        assert_eq!(
            tenant_told(&TenantId::parse("acme").unwrap(), &why),
            "\
acme: weight 2.5, 2 in flight of at most 20
  input tokens today: 180000 of 100000
  its standard work is served as batch until 2023-11-14T22:13:20Z: it is far beyond its budget
  batch of haiku-4.5: 12 jobs in line; a is next: the limits of its pool are used up for now (until 2023-11-14T22:13:20Z); its turn: unknown, nothing was granted there lately"
        );
    }
}
