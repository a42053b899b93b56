//! `GET /v1/models`: the models this fleet knows.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use fairlane_core::models::{Lifecycle, Model};
use serde_json::{Value, json};

use crate::Shared;
use crate::error::{ApiError, Result};
use crate::frame::{Named, Speaker};

pub(crate) async fn list(State(shared): State<Arc<Shared>>, _: Speaker) -> Json<Value> {
    let models = shared.catalog.models();
    let models = models.filter(|model| model.lifecycle != Lifecycle::Retired);
    let data: Vec<Value> = models.map(shown).collect();
    let id = |model: Option<&Value>| model.map(|model| model["id"].clone());
    Json(json!({
        "first_id": id(data.first()), "last_id": id(data.last()), "has_more": false, "data": data,
    }))
}

pub(crate) async fn one(
    State(shared): State<Arc<Shared>>,
    _: Speaker,
    Named(name): Named<String>,
) -> Result<Json<Value>> {
    let model = shared.catalog.find(&name);
    let model = model.ok_or_else(|| ApiError::not_found(format!("model: {name}")))?;
    Ok(Json(shown(model)))
}

fn shown(model: &Model) -> Value {
    let lifecycle = match model.lifecycle {
        Lifecycle::Active => "active",
        Lifecycle::Deprecated => "deprecated",
        Lifecycle::Retired => "retired",
    };
    json!({
        "type": "model",
        "id": model.id.as_str(),
        "display_name": model.id.as_str(),
        // The fleet does not know when a model came out; clients want a date.
        "created_at": "1970-01-01T00:00:00Z",
        "max_input_tokens": model.context_tokens,
        "max_tokens": model.output_tokens_max,
        "lifecycle": lifecycle,
        "capabilities": null,
    })
}
