//! Making a batch: its names and its record first, then its jobs.
//!
//! Should this process die in between, the caller sees an error and the batch is in the list, as it may
//! be with the Claude API; another process calls off the jobs that were published, and ends it (`making`).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::HeaderMap;
use fairlane_core::TenantId;
use fairlane_nats::Revision;
use futures::{StreamExt, TryStreamExt};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::making::{Making, call_off, clear_away};
use super::{Batch, Batches, batch_id};
use crate::Shared;
use crate::error::{ApiError, Kind, Result};
use crate::frame::{RequestId, Speaker, read_body};
use crate::translate::{self, Wishes, not_json};

const REQUESTS_MAX: usize = 100_000;
const BODY_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Jobs published at once.
const PUBLISHED_AT_ONCE: usize = 128;
/// How long a batch waits for producers to take what the tenant has published before.
const PATIENCE: Duration = Duration::from_secs(60);
const LIFE_MS: u64 = 86_400_000;

#[derive(Debug, Deserialize)]
struct Wanted {
    requests: Vec<Message>,
}

#[derive(Debug, Deserialize)]
struct Message {
    custom_id: String,
    params: Map<String, Value>,
}

pub(crate) async fn create(
    State(shared): State<Arc<Shared>>,
    Speaker(tenant): Speaker,
    id: RequestId,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>> {
    let permit = shared.gate.enter(&tenant)?;
    // Each may be large, so few are read at the same time.
    let large = shared.large.clone().acquire_owned().await;
    let large = large.expect("this semaphore is never closed");
    let wishes = Wishes::for_batch(&headers)?;
    let body = read_body(&headers, body, BODY_BYTES_MAX).await?;
    let messages = read(body).await?;
    let created_ms = crate::now_ms();
    let batch = Batch {
        id: batch_id(&id),
        created_ms,
        expires_ms: created_ms + LIFE_MS,
        requests: messages.len() as u64,
        is_interrupted: false,
        cancelled_ms: None,
        ended_ms: None,
        tally: None,
    };
    let shown = batch.shown(&super::base(&shared, &headers));
    // A caller who goes away leaves no half of a batch.
    let making = made(shared.clone(), tenant, batch, messages, wishes);
    let making = async move {
        let made = making.await;
        drop((permit, large));
        made
    };
    match shared.tasks.spawn(making).await {
        Ok(made) => made.map(|()| Json(shown)),
        Err(error) => Err(ApiError::unavailable("store the batch", &error)),
    }
}

/// Makes a batch, or calls off what there is of it.
async fn made(
    shared: Arc<Shared>,
    tenant: TenantId,
    batch: Batch,
    messages: Vec<Message>,
    wishes: Wishes,
) -> Result<()> {
    let batches = Batches::of(&shared, &tenant);
    let mut making = Making::begin(&batches, &batch.id).await?;
    let publishing = publish(&batches, &batch, messages, &wishes);
    let published = making.beside(publishing).await;
    if let Some(Err(error)) = published {
        let clearing = clear_away(shared.clone(), making);
        shared.tasks.spawn(clearing);
        return Err(error);
    }
    if published.is_some() && making.end().await? {
        return Ok(());
    }
    // Somebody who took us for dead has called it off, but not what we may have published since.
    let id = batch.id.clone();
    let calling_off = (shared.clone(), tenant.clone());
    shared.tasks.spawn(async move {
        let (shared, tenant) = calling_off;
        call_off(&Batches::of(&shared, &tenant), &id).await;
    });
    let text = "making the batch took too long, and it was called off; make it again";
    Err(ApiError::new(Kind::Overloaded, text).retry_after(1))
}

async fn publish(
    batches: &Batches<'_>,
    batch: &Batch,
    messages: Vec<Message>,
    wishes: &Wishes,
) -> Result<()> {
    let (shared, tenant) = (batches.shared, batches.tenant);
    let names: Vec<&str> = messages
        .iter()
        .map(|message| message.custom_id.as_str())
        .collect();
    let names = Bytes::from(serde_json::to_vec(&names).expect("a list of texts"));
    let stored = shared
        .nats
        .payloads()
        .put(&batches.names_object(&batch.id), &names, usize::MAX)
        .await;
    stored.map_err(|error| ApiError::unavailable("store the batch", &error))?;
    let written = batches.write(batch, Revision::ABSENT).await;
    written.map_err(|error| ApiError::unavailable("store the batch", &error))?;
    let jobs = messages.into_iter().enumerate().map(|(number, message)| {
        let job = batch.job(number);
        let mut params = message.params;
        params.remove("stream");
        let mut fields = translate::submitted(params, wishes, &job);
        fields.insert("deadline_ms".to_owned(), batch.expires_ms.into());
        let body = Value::Object(fields).to_string().into_bytes();
        async move { shared.submit(tenant, &job, body, PATIENCE).await }
    });
    futures::stream::iter(jobs)
        .buffer_unordered(PUBLISHED_AT_ONCE)
        .try_collect::<()>()
        .await
}

async fn read(body: Bytes) -> Result<Vec<Message>> {
    let reading = move || {
        let wanted: Wanted = serde_json::from_slice(&body).map_err(not_json)?;
        check(&wanted.requests)?;
        Ok(wanted.requests)
    };
    match tokio::task::spawn_blocking(reading).await {
        Ok(messages) => messages,
        Err(error) => Err(ApiError::unavailable("read the batch", &error)),
    }
}

/// What is wrong with a message itself is told in its result; what is wrong with its name, at once.
fn check(messages: &[Message]) -> Result<()> {
    if messages.is_empty() || messages.len() > REQUESTS_MAX {
        let text = format!(
            "requests has {} items; give 1 to {REQUESTS_MAX}",
            messages.len()
        );
        return Err(ApiError::invalid(text));
    }
    let mut seen = HashSet::with_capacity(messages.len());
    for (at, message) in messages.iter().enumerate() {
        let name = &message.custom_id;
        let fits = (1..=64).contains(&name.len())
            && name
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
        if !fits {
            let text = format!(
                "requests.{at}.custom_id: give 1 to 64 letters, digits, underscores and dashes"
            );
            return Err(ApiError::invalid(text));
        }
        if !seen.insert(name) {
            return Err(ApiError::invalid(format!(
                "requests.{at}.custom_id: {name} is there twice"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(names: &[&str]) -> Result<()> {
        let messages: Vec<Message> = names
            .iter()
            .map(|name| Message {
                custom_id: (*name).to_owned(),
                params: Map::new(),
            })
            .collect();
        check(&messages)
    }

    #[test]
    fn names_are_plain_and_unique() {
        assert!(checked(&["a", "b_-9"]).is_ok());
        for wrong in [&[][..], &["a", "a"], &[""], &["a b"], &[&"x".repeat(65)]] {
            assert!(checked(wrong).is_err(), "{wrong:?}");
        }
    }
}
