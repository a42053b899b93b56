//! `GET /v1/models`: what each model can do, and where it is in its life.

use std::{collections::HashMap, sync::Arc};

use axum::extract::{Path, Query, Request as HttpRequest, State};
use serde_json::{Value, json};

use crate::{
    call::Call,
    failure::Failure,
    log::Endpoint,
    messages::check_headers,
    models::{Lifecycle, MODELS, Model, Thinking},
    respond::{self, Reply},
    state::Shared,
};

const PAGE_DEFAULT: usize = 20;
const PAGE_MAX: usize = 1_000;

pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    Query(query): Query<HashMap<String, String>>,
    http: HttpRequest,
) -> Reply {
    answer(shared, http, |shared| page(shared, &query))
}

pub(crate) async fn one(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    http: HttpRequest,
) -> Reply {
    answer(shared, http, |shared| match Model::find(&name) {
        Some(model) => Ok(describe(model, is_retired(shared, model))),
        None => Err(Failure::new(404, format!("model: {name}"))),
    })
}

fn answer(
    shared: Arc<Shared>,
    http: HttpRequest,
    make: impl FnOnce(&Shared) -> Result<Value, Failure>,
) -> Reply {
    let (parts, _body) = http.into_parts();
    let mut call = Call::begin(shared, Endpoint::Models, &parts);
    let made = check_headers(&call.shared, &parts.headers).and_then(|_| make(&call.shared));
    match made {
        Err(failure) => respond::failed(call, &failure),
        Ok(value) => {
            let reply = respond::json(&call, value.to_string());
            call.answering(200);
            call.completed(None);
            reply
        }
    }
}

fn page(shared: &Shared, query: &HashMap<String, String>) -> Result<Value, Failure> {
    let limit = match query.get("limit").map(|text| text.parse::<usize>()) {
        None => PAGE_DEFAULT,
        Some(Ok(limit @ 1..=PAGE_MAX)) => limit,
        Some(_) => return Err(Failure::invalid("limit: Input should be from 1 to 1000")),
    };
    let after = match query.get("after_id") {
        None => 0,
        Some(id) => match MODELS.iter().position(|model| model.id == id) {
            Some(at) => at + 1,
            None => return Err(Failure::invalid(format!("after_id: unknown model {id}"))),
        },
    };
    let rest = &MODELS[after..];
    let shown = &rest[..limit.min(rest.len())];
    let data: Vec<Value> = shown
        .iter()
        .map(|model| describe(model, is_retired(shared, model)))
        .collect();
    Ok(json!({
        "data": data,
        "has_more": shown.len() < rest.len(),
        "first_id": shown.first().map(|model| model.id),
        "last_id": shown.last().map(|model| model.id),
    }))
}

fn is_retired(shared: &Shared, model: &Model) -> bool {
    crate::matrix::callable_model(model.id, &shared.config.retired_models).is_err()
}

fn describe(model: &Model, retired: bool) -> Value {
    let lifecycle = if retired {
        Lifecycle::Retired
    } else {
        model.lifecycle
    };
    let deprecated_at = (lifecycle != Lifecycle::Active).then_some("2026-07-01T00:00:00Z");
    json!({
        "type": "model",
        "id": model.id,
        "display_name": model.display_name,
        "line": model.line,
        "created_at": model.created,
        "lifecycle": lifecycle,
        "deprecated_at": deprecated_at,
        "retires_at": model.retires,
        "max_input_tokens": model.context,
        "max_tokens": model.max_output,
        "capabilities": capabilities(model),
    })
}

fn capabilities(model: &Model) -> Value {
    let yes = json!({"supported": true});
    let thinking: serde_json::Map<String, Value> = Thinking::ALL
        .into_iter()
        .filter(|kind| *kind != Thinking::Disabled)
        .map(|kind| {
            let supported = model.thinking.contains(&kind);
            (kind.name().to_owned(), json!({ "supported": supported }))
        })
        .collect();
    let effort = json!({ "supported": model.effort });
    json!({
        "batch": yes,
        "citations": yes,
        "code_execution": {"supported": false},
        "context_management": {"supported": false},
        "effort": {
            "supported": model.effort,
            "low": effort, "medium": effort, "high": effort, "xhigh": effort, "max": effort,
        },
        "image_input": yes,
        "pdf_input": yes,
        "server_tools": {"supported": false},
        "structured_outputs": yes,
        "thinking": {"supported": true, "types": thinking},
    })
}
