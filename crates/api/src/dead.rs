//! Dead letters and the runs that send them again.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use fairlane_core::TenantId;
use fairlane_letters::copy::Copy;
use fairlane_letters::filter::{Filter, Standing};
use fairlane_letters::index::Entry;
use fairlane_letters::reader;
use fairlane_letters::ready::{Judge, Size, ready};
use fairlane_letters::repair::Repair;
use fairlane_letters::run::{Run, RunError, Runs, State as RunState, Tally, drive};
use fairlane_nats::{Nats, StoredLetter};
use fairlane_wire::{DeadReason, Failure};
use futures::StreamExt;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::Shared;
use crate::error::{ApiError, Result};
use crate::frame::{Asked, Named, Operator, Reader, read_json};
use crate::tenants::Accountant;

const LIMIT_MAX: usize = 1_000;
const LIMIT: usize = 100;
const READS_MAX: usize = 16;
/// Letters in one run.
const RUN_MAX: usize = 1_000_000;
/// Letters sent again in a second, unless another rate is asked for.
const PER_SECOND: u32 = 20;
/// Letters of a dry run that are told one by one.
const LEFT_MAX: usize = 100;

/// The judge of submissions, as the producer has it.
#[derive(Clone)]
pub(crate) struct AnyJudge(pub(crate) Arc<dyn Judge + Send + Sync>);

impl std::fmt::Debug for AnyJudge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AnyJudge")
    }
}

impl Judge for AnyJudge {
    fn judge(&self, tenant: &TenantId, body: &[u8]) -> std::result::Result<Size, Failure> {
        self.0.judge(tenant, body)
    }
}

#[derive(Debug, Deserialize)]
pub(crate) struct Which {
    reason: Option<String>,
    kind: Option<String>,
    fingerprint: Option<String>,
    standing: Option<Standing>,
    since_ms: Option<u64>,
    until_ms: Option<u64>,
    limit: Option<usize>,
}

impl Which {
    /// What is asked for, of the letters that the caller may see.
    fn filter(&self, who: &Accountant) -> Result<Filter> {
        let reason = self.reason.as_deref().map(|word| {
            DeadReason::parse(word).ok_or_else(|| {
                let known: Vec<&str> = DeadReason::ALL
                    .iter()
                    .map(|reason| reason.as_str())
                    .collect();
                ApiError::invalid(format!(
                    "reason is {word:?}; give one of {}",
                    known.join(", ")
                ))
            })
        });
        Ok(Filter {
            standing: self.standing.unwrap_or_default(),
            ids: Vec::new(),
            reasons: reason.transpose()?.into_iter().collect(),
            tenants: seen_by(who),
            kinds: self.kind.iter().cloned().collect(),
            fingerprints: self.fingerprint.iter().cloned().collect(),
            since_ms: self.since_ms,
            until_ms: self.until_ms,
        })
    }

    fn limit(&self) -> usize {
        self.limit.unwrap_or(LIMIT).min(LIMIT_MAX)
    }
}

fn seen_by(who: &Accountant) -> Vec<String> {
    match who {
        Accountant::Of(tenant) => vec![tenant.to_string()],
        Accountant::All => Vec::new(),
    }
}

pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    who: Accountant,
    Asked(which): Asked<Which>,
) -> Result<Json<Value>> {
    let filter = which.filter(&who)?;
    let index = reader::read(&shared.nats).await;
    let letters: Vec<&Entry> = index.select(&filter).collect();
    let latest: Vec<&&Entry> = letters.iter().rev().take(which.limit()).collect();
    Ok(Json(json!({
        "count": letters.len(), "groups": index.groups(&filter), "letters": latest,
    })))
}

pub(crate) async fn export(
    State(shared): State<Arc<Shared>>,
    who: Accountant,
    Asked(which): Asked<Which>,
) -> Result<Response> {
    let filter = which.filter(&who)?;
    let index = reader::read(&shared.nats).await;
    let letters: Vec<u64> = index.select(&filter).map(|entry| entry.seq).collect();
    let letters = letters.into_iter().take(which.limit.unwrap_or(usize::MAX));
    let lines = futures::stream::iter(letters).map(move |seq| {
        let shared = shared.clone();
        async move {
            // One that is gone meanwhile is no error; one that cannot be read cuts the file off.
            let letter = shared
                .nats
                .letter(seq)
                .await
                .map_err(std::io::Error::other)?;
            Ok::<_, std::io::Error>(letter.map_or_else(String::new, |letter| {
                serde_json::to_string(&Copy::of(&letter)).expect("a copy is plain data") + "\n"
            }))
        }
    });
    let body = Body::from_stream(lines.buffered(READS_MAX));
    Ok(([(CONTENT_TYPE, "application/x-ndjson")], body).into_response())
}

async fn letter(shared: &Shared, who: &Accountant, text: &str) -> Result<StoredLetter> {
    let unknown = || ApiError::not_found(format!("there is no dead letter {text}"));
    let seq: u64 = text.parse().map_err(|_| unknown())?;
    if seq == 0 {
        return Err(unknown());
    }
    let stored = shared.nats.letter(seq).await;
    let stored = stored.map_err(|error| ApiError::unavailable("read the letter", &error))?;
    let stored = stored.ok_or_else(unknown)?;
    match who {
        // Whose it is says as much as that it is there.
        Accountant::Of(tenant) if stored.letter.tenant.as_deref() != Some(tenant.as_str()) => {
            Err(unknown())
        }
        Accountant::Of(_) | Accountant::All => Ok(stored),
    }
}

pub(crate) async fn one(
    State(shared): State<Arc<Shared>>,
    who: Accountant,
    Named(seq): Named<String>,
) -> Result<Json<Value>> {
    let stored = letter(&shared, &who, &seq).await?;
    Ok(Json(json!(Copy::of(&stored))))
}

pub(crate) async fn repair(
    State(shared): State<Arc<Shared>>,
    who: Accountant,
    Named(seq): Named<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>> {
    let stored = letter(&shared, &who, &seq).await?;
    let wanted: Repair = read_json(&headers, body).await?;
    Ok(Json(match ready(&stored, &wanted, &shared.judge) {
        Ok(ready) => json!({
            "letter": stored.seq, "sendable": true, "changes": ready.changes,
            "body": String::from_utf8_lossy(&ready.body), "tenant": ready.tenant.as_str(),
            "model": ready.size.model.as_str(), "input_tokens": ready.size.tokens.input,
            "output_tokens": ready.size.tokens.output,
            "cost_usd": shared.prices.dollars(&ready.size, crate::now_ms()),
        }),
        Err(why) => json!({"letter": stored.seq, "sendable": false, "why": why.to_string()}),
    }))
}

pub(crate) async fn purge(
    State(shared): State<Arc<Shared>>,
    _: Operator,
    Named(seq): Named<String>,
) -> Result<Json<Value>> {
    let stored = letter(&shared, &Accountant::All, &seq).await?;
    let nats = shared.for_operators()?;
    let deleted = nats
        .jobs()
        .delete(&nats.names.dlq_stream(), stored.seq)
        .await;
    deleted.map_err(|error| ApiError::unavailable("delete the letter", &error))?;
    Ok(Json(json!({"letter": stored.seq, "deleted": true})))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    filter: Filter,
    #[serde(default)]
    repair: Repair,
    per_second: Option<u32>,
    #[serde(default)]
    dry_run: bool,
    /// All letters there are, when the filter is empty.
    #[serde(default)]
    all: bool,
}

pub(crate) async fn redrive(
    State(shared): State<Arc<Shared>>,
    _: Operator,
    headers: HeaderMap,
    body: Body,
) -> Result<Response> {
    let wanted: Wanted = read_json(&headers, body).await?;
    if wanted.filter.is_empty() && !wanted.all {
        return Err(ApiError::invalid(
            "the filter is empty; say \"all\": true if you mean all letters",
        ));
    }
    let per_second = wanted.per_second.unwrap_or(PER_SECOND);
    if !(1..=10_000).contains(&per_second) {
        return Err(ApiError::invalid(format!(
            "per_second is {per_second}; give 1 to 10000"
        )));
    }
    let index = reader::read(&shared.nats).await;
    let letters: Vec<u64> = index
        .select(&wanted.filter)
        .map(|entry| entry.seq)
        .take(RUN_MAX)
        .collect();
    if letters.is_empty() {
        return Err(ApiError::not_found("there are no such letters"));
    }
    if wanted.dry_run {
        return Ok(Json(tried(&shared, &letters, &wanted.repair).await?).into_response());
    }
    let nats = shared.for_operators()?;
    let id = uuid::Uuid::now_v7().simple().to_string();
    let run = Run {
        id: format!("r-{}{}", &id[..11], &id[27..]),
        created_ms: crate::now_ms(),
        what: "asked for over HTTP".to_owned(),
        repair: wanted.repair,
        per_second,
        letters: letters.len() as u64,
        state: RunState::Running,
        driver: String::new(),
        tally: Tally::default(),
    };
    let created = Runs::new(nats).create(&run, &letters).await;
    created.map_err(run_error)?;
    start(&shared, nats, run.id.clone());
    Ok((StatusCode::ACCEPTED, Json(json!(run))).into_response())
}

/// What a run would do.
async fn tried(shared: &Shared, letters: &[u64], wanted: &Repair) -> Result<Value> {
    let (mut sendable, mut left, mut input, mut output) = (0_u64, Vec::new(), 0_u64, 0_u64);
    let (mut cost, mut unpriced, now) = (0.0, 0_u64, crate::now_ms());
    for seq in letters {
        let stored = shared.nats.letter(*seq).await;
        let stored = stored.map_err(|error| ApiError::unavailable("read a letter", &error))?;
        let Some(stored) = stored else { continue };
        match ready(&stored, wanted, &shared.judge) {
            Ok(ready) => {
                sendable += 1;
                input += ready.size.tokens.input;
                output += ready.size.tokens.output;
                match shared.prices.dollars(&ready.size, now) {
                    Some(dollars) => cost += dollars,
                    None => unpriced += 1,
                }
            }
            Err(why) if left.len() < LEFT_MAX => {
                left.push(json!({"letter": seq, "why": why.to_string()}));
            }
            Err(_) => {}
        }
    }
    Ok(json!({
        "dry_run": true, "letters": letters.len(), "sendable": sendable,
        "input_tokens": input, "output_tokens": output, "cost_usd": cost, "unpriced": unpriced,
        "left": left,
    }))
}

/// Drives a run here. Should this process end first, it can be resumed anywhere.
fn start(shared: &Arc<Shared>, nats: &Nats, id: String) {
    let (driving, nats) = (shared.clone(), nats.clone());
    shared.tasks.spawn(async move {
        let runs = Runs::new(&nats);
        let driver = uuid::Uuid::now_v7().simple().to_string();
        let stop = driving.shutdown.draining().clone();
        let driven = drive(
            &runs,
            &id,
            &driver,
            &driving.judge,
            &stop,
            |_| {},
            crate::now_ms,
        );
        if let Err(error) = Box::pin(driven).await {
            let error = crate::error::with_causes(&error);
            tracing::info!(run = id, error, "a run stopped; it can be resumed");
        }
    });
}

fn run_error(error: RunError) -> ApiError {
    match error {
        RunError::Unknown(_) => ApiError::not_found(error.to_string()),
        RunError::Over { .. } | RunError::TakenOver(_) | RunError::Contended { .. } => {
            ApiError::conflict(error.to_string())
        }
        RunError::Unreadable { .. }
        | RunError::Read { .. }
        | RunError::Save { .. }
        | RunError::Letter(_)
        | RunError::Claim(_)
        | RunError::Submit { .. }
        | RunError::Payload { .. }
        | RunError::Stopped => ApiError::unavailable("work on the run", &error),
    }
}

pub(crate) async fn runs(State(shared): State<Arc<Shared>>, _: Reader) -> Json<Value> {
    Json(json!({"runs": Runs::new(&shared.nats).list().await}))
}

/// Ids of runs are as they are made here and by the CLI; anything else might not even be a key.
fn run_id(id: &str) -> Result<&str> {
    let fits = !id.is_empty() && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    if fits {
        Ok(id)
    } else {
        Err(ApiError::not_found(format!("there is no run {id:?}")))
    }
}

pub(crate) async fn run(
    State(shared): State<Arc<Shared>>,
    _: Reader,
    Named(id): Named<String>,
) -> Result<Json<Value>> {
    let (run, _) = Runs::new(&shared.nats)
        .get(run_id(&id)?)
        .await
        .map_err(run_error)?;
    Ok(Json(json!(run)))
}

async fn set(shared: &Shared, id: &str, state: RunState) -> Result<Json<Value>> {
    let runs = Runs::new(shared.for_operators()?);
    let run = runs.set_state(run_id(id)?, state).await;
    Ok(Json(json!(run.map_err(run_error)?)))
}

pub(crate) async fn pause(
    State(shared): State<Arc<Shared>>,
    _: Operator,
    Named(id): Named<String>,
) -> Result<Json<Value>> {
    set(&shared, &id, RunState::Paused).await
}

pub(crate) async fn cancel(
    State(shared): State<Arc<Shared>>,
    _: Operator,
    Named(id): Named<String>,
) -> Result<Json<Value>> {
    set(&shared, &id, RunState::Cancelled).await
}

pub(crate) async fn resume(
    State(shared): State<Arc<Shared>>,
    _: Operator,
    Named(id): Named<String>,
) -> Result<(StatusCode, Json<Value>)> {
    let nats = shared.for_operators()?;
    let (run, _) = Runs::new(&shared.nats)
        .get(run_id(&id)?)
        .await
        .map_err(run_error)?;
    if run.state.is_over() {
        return Err(ApiError::conflict(format!(
            "run {id} is {}",
            run.state.as_str()
        )));
    }
    start(&shared, nats, id);
    Ok((StatusCode::ACCEPTED, Json(json!(run))))
}
