//! `/v1/jobs`: submitting, watching and changing jobs.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use fairlane_core::{JobId, JobSeq, TenantId};
use fairlane_wire::{
    Answer, Ask, AskOutcome, AskReply, JobRecord, Phase, WhyAnswer, WhyRequest, submission,
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::Shared;
use crate::error::{ApiError, Result};
use crate::follow::{Follower, unreadable};
use crate::frame::{Asked, Named, Reader, RequestId, Speaker, read_body, read_json};
use crate::messages::stopping;
use crate::replay;

/// Jobs in one call.
const LINES_MAX: usize = 10_000;
/// How long a call may wait for a result.
const WAIT_MAX_S: u64 = 60;
/// Jobs of one id that are told; it may be used by every tenant.
const FOUND_MAX: usize = 1_000;
/// How long a job waits for producers to take what its tenant has published before; one request may hold thousands.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the leader may take to answer.
const WHY_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an answer may wait for the record of what it tells, and how seldom that is looked for at least.
const SEEN_WITHIN: Duration = Duration::from_secs(2);
const SEEN_PAUSE_MAX: Duration = Duration::from_millis(100);
const EVENTS_WAITING_MAX: usize = 16;
const PING_EVERY: Duration = Duration::from_secs(15);

pub(crate) async fn create(
    State(shared): State<Arc<Shared>>,
    Speaker(tenant): Speaker,
    id: RequestId,
    headers: HeaderMap,
    body: Body,
) -> Result<Response> {
    let _permit = shared.gate.enter(&tenant)?;
    let body = read_body(&headers, body, shared.body_bytes_max).await?;
    // One object over several lines is one job; anything else is a job a line.
    if serde_json::from_slice::<serde::de::IgnoredAny>(&body).is_ok() {
        let job = submit(&shared, &tenant, &body, &id.job()).await?;
        seen(&shared, &tenant, &job).await;
        let told = json!({"tenant": tenant.as_str(), "job": job.as_str(), "url": url(&job)});
        return Ok((StatusCode::ACCEPTED, Json(told)).into_response());
    }
    let lines = body
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.trim_ascii().is_empty());
    let lines: Vec<&[u8]> = lines.collect();
    if lines.len() < 2 || lines.len() > LINES_MAX {
        let text =
            format!("give one job as a JSON object, or 2 to {LINES_MAX} of them, one a line");
        return Err(ApiError::invalid(text));
    }
    let mut jobs = Vec::with_capacity(lines.len());
    let mut refused = 0_u32;
    let mut last = None;
    for (at, line) in lines.into_iter().enumerate() {
        let new = JobId::parse(&format!("{}-{at}", id.as_str())).expect("digits and a dash more");
        jobs.push(match submit(&shared, &tenant, line, &new).await {
            Ok(job) => {
                let told = json!({"line": at + 1, "job": job.as_str(), "url": url(&job)});
                last = Some(job);
                told
            }
            Err(error) => {
                refused += 1;
                json!({"line": at + 1, "error": error.message})
            }
        });
    }
    if let Some(job) = last {
        seen(&shared, &tenant, &job).await;
    }
    let accepted = jobs.len() as u64 - u64::from(refused);
    let told =
        json!({"tenant": tenant.as_str(), "accepted": accepted, "refused": refused, "jobs": jobs});
    Ok((StatusCode::ACCEPTED, Json(told)).into_response())
}

fn url(job: &JobId) -> String {
    format!("/v1/jobs/{job}")
}

/// Publishes one job under its own id, or under `new`. What cannot be a job is told, and is no dead letter.
async fn submit(shared: &Shared, tenant: &TenantId, body: &[u8], new: &JobId) -> Result<JobId> {
    let parsed = submission::parse(body, tenant).map_err(|failure| {
        let error = ApiError::of_failure(&failure);
        ApiError::invalid(error.message)
    })?;
    let job = parsed.id.unwrap_or_else(|| new.clone());
    shared.submit(tenant, &job, body.to_vec(), PATIENCE).await?;
    Ok(job)
}

/// Waits until the job has a record, so that whoever is told of it finds it; at most for [`SEEN_WITHIN`], because it is stored
/// in any case. Submissions are taken in order: what was published before has one then, too, or nearly.
async fn seen(shared: &Shared, tenant: &TenantId, job: &JobId) {
    let looking = async {
        let mut pause = Duration::from_millis(1);
        loop {
            match shared.records.get(tenant, job).await {
                Ok(slot) if slot.record.is_some() => return,
                Ok(_) | Err(_) => tokio::time::sleep(pause).await,
            }
            pause = (pause * 2).min(SEEN_PAUSE_MAX);
        }
    };
    // Not seen in time is no error.
    drop(tokio::time::timeout(SEEN_WITHIN, looking).await);
}

fn named(job: &str) -> Result<JobId> {
    JobId::parse(job).map_err(|error| ApiError::not_found(error.to_string()))
}

async fn record(shared: &Shared, tenant: &TenantId, job: &str) -> Result<JobRecord> {
    let job = named(job)?;
    let slot = shared.records.get(tenant, &job).await;
    let slot = slot.map_err(|error| unreadable(&error))?;
    slot.record.ok_or_else(|| {
        let text = format!(
            "tenant {tenant} has no job {job} (records of ended jobs are kept for a while only)"
        );
        ApiError::not_found(text)
    })
}

fn as_stored(shared: &Shared, record: &JobRecord) -> Vec<u8> {
    record.to_json(&shared.nats.names)
}

#[derive(Debug, Deserialize)]
pub(crate) struct Wanted {
    id: String,
}

/// Whose jobs have this id.
pub(crate) async fn find(
    State(shared): State<Arc<Shared>>,
    _: Reader,
    Asked(Wanted { id }): Asked<Wanted>,
) -> Result<Json<Value>> {
    let job = JobId::parse(&id).map_err(|error| ApiError::invalid(format!("id: {error}")))?;
    let tenants = shared.records.tenants_with(&job).await;
    let tenants = tenants.map_err(|error| ApiError::unavailable("look for the job", &error))?;
    let jobs = tenants.iter().take(FOUND_MAX);
    let jobs = jobs.map(|tenant| json!({"tenant": tenant.as_str(), "job": job.as_str()}));
    Ok(Json(
        json!({"count": tenants.len(), "jobs": jobs.collect::<Vec<_>>()}),
    ))
}

pub(crate) async fn one(
    State(shared): State<Arc<Shared>>,
    Speaker(tenant): Speaker,
    Named(job): Named<String>,
) -> Result<Response> {
    let record = record(&shared, &tenant, &job).await?;
    let body = as_stored(&shared, &record);
    Ok(([(CONTENT_TYPE, "application/json")], body).into_response())
}

#[derive(Debug, Deserialize)]
pub(crate) struct Patience {
    wait: Option<u64>,
}

pub(crate) async fn result(
    State(shared): State<Arc<Shared>>,
    Speaker(tenant): Speaker,
    Named(job): Named<String>,
    Asked(Patience { wait }): Asked<Patience>,
) -> Result<Json<Value>> {
    let _permit = shared.gate.enter(&tenant)?;
    let wait = Duration::from_secs(wait.unwrap_or(0).min(WAIT_MAX_S));
    let mut follower = Follower::start(&shared, &tenant, &named(&job)?).await?;
    let mut found = record(&shared, &tenant, &job).await?;
    if found.same_as.is_some() || !found.phase.is_final() {
        // A record that shares an outcome is looked through even without waiting.
        let wait = wait.max(Duration::from_millis(50));
        if let Ok(ended) = tokio::time::timeout(wait, follower.end_from(&found)).await {
            found = ended?;
        }
    }
    if found.phase == Phase::Done {
        return Ok(Json(shared.result(&found).await?));
    }
    if found.phase.is_final() {
        return Err(ApiError::of_record(&found));
    }
    let text = format!("the job is {}; it has no result yet", found.phase.as_str());
    Err(ApiError::conflict(text))
}

pub(crate) async fn events(
    State(shared): State<Arc<Shared>>,
    Speaker(tenant): Speaker,
    Named(job): Named<String>,
    id: RequestId,
) -> Result<Response> {
    let permit = shared.gate.enter(&tenant)?;
    let mut follower = Follower::start(&shared, &tenant, &named(&job)?).await?;
    let first = record(&shared, &tenant, &job).await?;
    let (sender, mut receiver) = tokio::sync::mpsc::channel::<Bytes>(EVENTS_WAITING_MAX);
    let telling = shared.clone();
    // Ends with the job, when the caller goes, or with the process.
    shared.tasks.spawn(async move {
        let _permit = permit;
        let mut last = first;
        loop {
            let phase = last.phase.as_str();
            let body = as_stored(&telling, &last);
            let text = format!(
                "event: {phase}\ndata: {}\n\n",
                String::from_utf8_lossy(&body)
            );
            if sender.send(text.into()).await.is_err() || last.phase.is_final() {
                return;
            }
            last = loop {
                tokio::select! {
                    () = sender.closed() => return,
                    () = telling.shutdown.draining().cancelled() => {
                        return broken_off(&sender, &stopping(), &id).await;
                    }
                    changed = follower.change(&last) => match changed {
                        Ok(Some(record)) => break record,
                        Ok(None) => {}
                        Err(error) => return broken_off(&sender, &error, &id).await,
                    },
                    () = tokio::time::sleep(PING_EVERY) => {
                        let ping = replay::event("ping", &json!({"type": "ping"}));
                        if sender.send(ping.into()).await.is_err() {
                            return;
                        }
                    }
                }
            };
        }
    });
    let parts = futures::stream::poll_fn(move |context| {
        let part = receiver.poll_recv(context);
        part.map(|part| part.map(Ok::<_, std::convert::Infallible>))
    });
    let headers = [
        (CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        (CACHE_CONTROL, "no-cache"),
    ];
    Ok((headers, Body::from_stream(parts)).into_response())
}

/// Says that more would have followed.
async fn broken_off(sender: &tokio::sync::mpsc::Sender<Bytes>, error: &ApiError, id: &RequestId) {
    let text = replay::event("error", &error.body(id.as_str()));
    // Whoever listened may have gone.
    drop(sender.send(text.into()).await);
}

pub(crate) async fn why(
    State(shared): State<Arc<Shared>>,
    Speaker(tenant): Speaker,
    Named(job): Named<String>,
) -> Result<Json<Value>> {
    let record = record(&shared, &tenant, &job).await?;
    if record.phase.is_final() {
        let text = format!("the job has ended: it is {}", record.phase.as_str());
        return Ok(Json(json!({"reason": "ended", "text": text})));
    }
    let Some(seq) = record.sequence else {
        let text = "the job is not in the queue itself; see same_as in its record";
        return Ok(Json(json!({"reason": "elsewhere", "text": text})));
    };
    let answer: WhyAnswer = ask_leader(&shared, &WhyRequest::job(JobSeq(seq))).await?;
    Ok(Json(json!(answer)))
}

/// Asks the leading scheduler.
///
/// # Errors
/// `overloaded_error` while nobody answers.
pub(crate) async fn ask_leader<T: serde::de::DeserializeOwned>(
    shared: &Shared,
    question: &WhyRequest,
) -> Result<T> {
    let asked = ask(shared, question).await;
    asked.map_err(|error| ApiError::unavailable("ask the leading scheduler", &error))
}

/// Why the leader's answer is not there.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unanswered {
    #[error("the leading scheduler does not answer")]
    Request(#[from] async_nats::RequestError),
    #[error("the leading scheduler's answer is not readable")]
    Answer(#[from] serde_json::Error),
}

pub(crate) async fn ask<T: serde::de::DeserializeOwned>(
    shared: &Shared,
    question: &WhyRequest,
) -> std::result::Result<T, Unanswered> {
    let body = serde_json::to_vec(question).expect("a question is plain data");
    let asked = async_nats::Request::new()
        .payload(body.into())
        .timeout(Some(WHY_TIMEOUT));
    let reply = shared
        .nats
        .client
        .send_request(shared.nats.names.why_subject(), asked)
        .await;
    Ok(serde_json::from_slice(&reply?.payload)?)
}

pub(crate) async fn cancel(
    State(shared): State<Arc<Shared>>,
    Speaker(tenant): Speaker,
    Named(job): Named<String>,
) -> Result<Json<Value>> {
    told(
        shared
            .ask(Ask::Cancel, &tenant, &named(&job)?, None)
            .await?,
    )
}

pub(crate) async fn regenerate(
    State(shared): State<Arc<Shared>>,
    Speaker(tenant): Speaker,
    Named(job): Named<String>,
) -> Result<Json<Value>> {
    told(
        shared
            .ask(Ask::Regenerate, &tenant, &named(&job)?, None)
            .await?,
    )
}

#[derive(Debug, Deserialize)]
struct Decision {
    answer: Answer,
}

pub(crate) async fn answer(
    State(shared): State<Arc<Shared>>,
    Speaker(tenant): Speaker,
    Named(job): Named<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>> {
    let job = named(&job)?;
    let Decision { answer } = read_json(&headers, body).await?;
    told(shared.ask(Ask::Answer, &tenant, &job, Some(answer)).await?)
}

fn told(reply: AskReply) -> Result<Json<Value>> {
    let text = match &reply.other {
        Some(other) => format!("{} ({other})", reply.text),
        None => reply.text.clone(),
    };
    match reply.outcome {
        AskOutcome::Ok => Ok(Json(json!(reply))),
        AskOutcome::NotFound => Err(ApiError::not_found(text)),
        AskOutcome::Invalid => Err(ApiError::invalid(text)),
        AskOutcome::Ended | AskOutcome::SameAs | AskOutcome::NotPossible => {
            Err(ApiError::conflict(text))
        }
        AskOutcome::Busy => Err(ApiError::conflict(text).should_retry(true).retry_after(1)),
    }
}
