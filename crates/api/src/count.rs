//! `POST /v1/messages/count_tokens`: asked of a worker, who has the key for it.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use fairlane_wire::CountReply;
use serde_json::{Map, Value, json};

use crate::Shared;
use crate::error::{ApiError, Kind, Result};
use crate::frame::{Speaker, read_body};
use crate::translate::not_json;

const TIMEOUT: Duration = Duration::from_secs(60);
/// Room in a message beside the body.
const OVERHEAD: usize = 4 * 1024;

pub(crate) async fn count(
    State(shared): State<Arc<Shared>>,
    Speaker(tenant): Speaker,
    headers: HeaderMap,
    body: Body,
) -> Result<Response> {
    let _permit = shared.gate.enter(&tenant)?;
    let body = read_body(&headers, body, shared.body_bytes_max).await?;
    let request: Map<String, Value> = serde_json::from_slice(&body).map_err(not_json)?;
    let largest = shared
        .nats
        .client
        .server_info()
        .max_payload
        .saturating_sub(OVERHEAD);
    if body.len() > largest {
        // Nobody needs an exact number of something that large.
        return estimate(&shared, &request);
    }
    let asked = async_nats::Request::new()
        .payload(body)
        .timeout(Some(TIMEOUT));
    let subject = shared.nats.names.count_subject();
    let reply = shared.nats.client.send_request(subject, asked).await;
    let reply = reply.map_err(|error| ApiError::unavailable("ask a worker to count", &error))?;
    let reply = serde_json::from_slice(&reply.payload);
    match reply.map_err(|error| ApiError::unavailable("read a worker's answer", &error))? {
        CountReply::InputTokens(tokens) => {
            Ok(Json(json!({"input_tokens": tokens})).into_response())
        }
        CountReply::Refused { status, message } => {
            Err(ApiError::new(Kind::of_status(status), message))
        }
        CountReply::Unavailable { message } => {
            Err(ApiError::new(Kind::Overloaded, message).retry_after(1))
        }
    }
}

/// As the fleet estimates a job when it is accepted.
fn estimate(shared: &Shared, request: &Map<String, Value>) -> Result<Response> {
    let name = request
        .get("model")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let model = shared.catalog.find(name);
    let model = model.ok_or_else(|| ApiError::not_found(format!("model: {name}")))?;
    let chars = u64::try_from(Value::Object(request.clone()).to_string().chars().count());
    let tokens = chars.unwrap_or(u64::MAX).saturating_mul(10) / model.chars_per_ten_tokens.max(1);
    let told = [("fairlane-estimated", "true")];
    Ok((told, Json(json!({"input_tokens": tokens}))).into_response())
}
