//! `/sim/*`: ordering faults, and reading what the upstream itself knows. No key is needed.

use std::{collections::HashMap, sync::Arc};

use axum::{
    Json,
    body::Body,
    extract::{Path, Query, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    fault::FaultSpec,
    state::{Shared, Stats},
};

/// Records read from the log under one lock.
const LOG_BATCH: usize = 1_024;

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    Many(Vec<Value>),
    One(Value),
}

pub(crate) async fn add_faults(State(shared): State<Arc<Shared>>, body: Bytes) -> Response {
    match parse_faults(&body).and_then(|specs| shared.add_faults(specs).map_err(|e| e.to_string()))
    {
        Ok(ids) => Json(json!({ "ids": ids })).into_response(),
        Err(error) => wrong(&error),
    }
}

fn parse_faults(body: &[u8]) -> Result<Vec<FaultSpec>, String> {
    let given: OneOrMany = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let specs = match given {
        OneOrMany::Many(list) => list,
        OneOrMany::One(spec) => vec![spec],
    };
    specs
        .into_iter()
        .map(|spec| serde_json::from_value(spec).map_err(|error| error.to_string()))
        .collect()
}

pub(crate) async fn list_faults(State(shared): State<Arc<Shared>>) -> Json<Value> {
    Json(shared.fault_list())
}

pub(crate) async fn clear_faults(State(shared): State<Arc<Shared>>) -> Json<Value> {
    Json(json!({ "removed": shared.remove_faults(None) }))
}

pub(crate) async fn remove_fault(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<u64>,
) -> Response {
    match shared.remove_faults(Some(id)) {
        0 => (
            StatusCode::NOT_FOUND,
            Json(json!({ "error": format!("no fault {id}") })),
        )
            .into_response(),
        removed => Json(json!({ "removed": removed })).into_response(),
    }
}

pub(crate) async fn stats(State(shared): State<Arc<Shared>>) -> Json<Stats> {
    Json(shared.stats())
}

pub(crate) async fn reset(State(shared): State<Arc<Shared>>) -> Json<Value> {
    shared.reset();
    Json(json!({ "reset": true }))
}

pub(crate) async fn health() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}

/// Records after `since`, up to what is there now or `limit`, as JSON lines.
pub(crate) async fn log(
    State(shared): State<Arc<Shared>>,
    Query(query): Query<HashMap<String, String>>,
) -> Response {
    let number = |name: &str, default: u64| match query.get(name) {
        None => Ok(default),
        Some(text) => text
            .parse::<u64>()
            .map_err(|_| format!("{name} must be a whole number, not `{text}`")),
    };
    let (since, limit) = match (number("since", 0), number("limit", u64::MAX)) {
        (Ok(since), Ok(limit)) => (since, limit),
        (Err(error), _) | (_, Err(error)) => return wrong(&error),
    };
    let stats = shared.log_stats();
    let head = [
        (
            header::CONTENT_TYPE.as_str(),
            "application/jsonl".to_owned(),
        ),
        (
            "x-sim-log-first-seq",
            stats.first_seq.unwrap_or(0).to_string(),
        ),
        ("x-sim-log-last-seq", stats.last_seq.to_string()),
    ];
    let cursor = Cursor {
        shared,
        since,
        last: stats.last_seq,
        left: limit,
    };
    let lines = futures::stream::unfold(cursor, |mut cursor| async move {
        let chunk = cursor.next()?;
        Some((Ok::<_, std::convert::Infallible>(chunk), cursor))
    });
    (head, Body::from_stream(lines)).into_response()
}

struct Cursor {
    shared: Arc<Shared>,
    since: u64,
    last: u64,
    left: u64,
}

impl Cursor {
    fn next(&mut self) -> Option<Bytes> {
        let wanted = usize::try_from(self.left)
            .unwrap_or(LOG_BATCH)
            .min(LOG_BATCH);
        let records = self.shared.read_log(self.since, wanted);
        let mut text = String::new();
        for record in records.iter().take_while(|record| record.seq <= self.last) {
            text.push_str(&record.line());
            text.push('\n');
            self.since = record.seq;
            self.left = self.left.saturating_sub(1);
        }
        (!text.is_empty()).then(|| Bytes::from(text))
    }
}

fn wrong(error: &str) -> Response {
    (StatusCode::BAD_REQUEST, Json(json!({ "error": error }))).into_response()
}
