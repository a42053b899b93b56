//! `/v1/messages/batches`: many messages as jobs of batch priority.
//!
//! A batch is a record that any producer can read, a list of the names its maker gave, and one job for
//! each, called `<batch>-<number>`: what became of them stands in their own records. Only the end of the
//! whole is written into the batch's record, once somebody who looks has seen it.

mod make;
mod making;
mod tally;

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_TYPE, HOST};
use axum::response::{IntoResponse, Response};
use fairlane_core::{JobId, TenantId};
use fairlane_nats::watch::Event;
use fairlane_nats::{Bucket, Content, Revision, WriteError};
use fairlane_wire::{Ask, JobRecord, Namespace, Phase};
use futures::StreamExt;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::Shared;
use crate::error::{ApiError, Result};
use crate::frame::{Asked, Named, RequestId, Speaker};

pub(crate) use make::create;
pub(crate) use making::look_after;
pub(crate) use tally::{Tallies, Tally};

/// A batch is remembered so long, and so is the list of its names.
const KEEP: Duration = Duration::from_secs(29 * 86_400);
/// Tries at a record that others change at the same time.
const TRIES_MAX: usize = 10;
/// Jobs asked about at once.
const ASKS_MAX: usize = 32;
/// Records read at once.
const READS_MAX: usize = 64;
/// Jobs that are not known yet when their batch is called off are asked for again so often.
const CANCEL_ROUNDS: u32 = 20;
const CANCEL_PAUSE: Duration = Duration::from_millis(500);
/// How long the list of a tenant's batches may take to be read.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);
const NAMES_BYTES_MAX: usize = 16 * 1024 * 1024;

/// A batch as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Batch {
    id: String,
    /// Unix milliseconds.
    created_ms: u64,
    expires_ms: u64,
    requests: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cancelled_ms: Option<u64>,
    /// Its maker died, or failed, before all of its jobs were published.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_interrupted: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ended_ms: Option<u64>,
    /// What became of its messages, once it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tally: Option<Tally>,
}

impl Batch {
    fn job(&self, number: usize) -> JobId {
        let id = format!("{}-{number}", self.id);
        JobId::parse(&id).expect("ids of batches are letters, digits and an underscore")
    }

    fn shown(&self, base: &str) -> Value {
        let status = match (self.ended_ms, self.cancelled_ms) {
            (Some(_), _) => "ended",
            (None, Some(_)) => "canceling",
            (None, None) => "in_progress",
        };
        let results = format!("{base}/v1/messages/batches/{}/results", self.id);
        json!({
            "id": self.id,
            "type": "message_batch",
            "processing_status": status,
            // All but the first stay zero until the end, as with the Claude API.
            "request_counts": match self.tally {
                Some(tally) => tally.shown(),
                None => Tally::default().with_processing(self.requests).shown(),
            },
            "created_at": instant(self.created_ms),
            "expires_at": instant(self.expires_ms),
            "cancel_initiated_at": self.cancelled_ms.map(instant),
            "ended_at": self.ended_ms.map(instant),
            "archived_at": null,
            "results_url": self.ended_ms.map(|_| results),
        })
    }
}

fn instant(ms: u64) -> String {
    let at = i64::try_from(ms)
        .ok()
        .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    at.unwrap_or_default().to_string()
}

/// The batches of one tenant.
struct Batches<'a> {
    shared: &'a Shared,
    tenant: &'a TenantId,
    bucket: Bucket,
}

impl<'a> Batches<'a> {
    fn of(shared: &'a Shared, tenant: &'a TenantId) -> Self {
        let bucket = shared.nats.bucket(&shared.nats.names.batches_bucket());
        Self {
            shared,
            tenant,
            bucket,
        }
    }

    fn key(&self, id: &str) -> String {
        format!("{}.{id}", self.tenant)
    }

    fn names_object(&self, id: &str) -> String {
        Namespace::batch_object(&self.key(id))
    }

    async fn read(&self, id: &str) -> Result<(Batch, Revision)> {
        let unknown = || ApiError::not_found(format!("there is no batch {id}"));
        // Anything else cannot be the key of a batch.
        JobId::parse(id).map_err(|_| unknown())?;
        let entry = self.bucket.get(&self.key(id)).await;
        let entry = entry.map_err(|error| ApiError::unavailable("read the batch", &error))?;
        let entry = entry.ok_or_else(unknown)?;
        let value = entry.value().ok_or_else(unknown)?;
        let batch = serde_json::from_slice(value);
        let batch = batch.map_err(|error| ApiError::unavailable("read the batch", &error))?;
        Ok((batch, entry.revision))
    }

    async fn exists(&self, id: &str) -> Result<bool> {
        let entry = self.bucket.get(&self.key(id)).await;
        let entry = entry.map_err(|error| ApiError::unavailable("read the batch", &error))?;
        Ok(entry.is_some_and(|entry| entry.value().is_some()))
    }

    async fn write(
        &self,
        batch: &Batch,
        expected: Revision,
    ) -> std::result::Result<(), WriteError> {
        let value = serde_json::to_vec(batch).expect("a batch is plain data");
        let key = self.key(&batch.id);
        self.bucket
            .put_if(&key, value.into(), expected, Some(KEEP))
            .await?;
        Ok(())
    }

    /// The batch, with what has become of its messages if all of them have ended.
    async fn look(&self, id: &str) -> Result<Batch> {
        let (batch, revision) = self.read(id).await?;
        self.ended(batch, revision).await
    }

    async fn ended(&self, mut batch: Batch, revision: Revision) -> Result<Batch> {
        if batch.ended_ms.is_some() {
            return Ok(batch);
        }
        let mut tally = self
            .shared
            .tallies
            .of(&self.shared.nats, self.tenant, &batch.id)
            .await;
        let now = crate::now_ms();
        if now > batch.expires_ms.saturating_add(self.shared.results_keep_ms) {
            // What has no record by now never became a job, or its record has gone.
            tally.expire_rest(batch.requests);
        }
        if tally.ended() >= batch.requests {
            batch.ended_ms = Some(now);
            batch.tally = Some(tally);
            // Of two who see the end at the same time, one writes it down.
            match self.write(&batch, revision).await {
                Ok(()) | Err(WriteError::Conflict { .. }) => {}
                Err(error) => return Err(ApiError::unavailable("write the batch", &error)),
            }
        }
        Ok(batch)
    }

    async fn change(&self, id: &str, change: impl Fn(&mut Batch)) -> Result<Batch> {
        for _ in 0..TRIES_MAX {
            let (mut batch, revision) = self.read(id).await?;
            change(&mut batch);
            match self.write(&batch, revision).await {
                Ok(()) => return Ok(batch),
                Err(WriteError::Conflict { .. }) => {}
                Err(error) => return Err(ApiError::unavailable("write the batch", &error)),
            }
        }
        Err(ApiError::conflict("others keep changing this batch; try again").should_retry(true))
    }

    /// The names that its maker gave, in order.
    async fn names(&self, id: &str) -> Result<Vec<String>> {
        let body = self
            .shared
            .nats
            .payloads()
            .get(&self.names_object(id), NAMES_BYTES_MAX)
            .await;
        let body = body.map_err(|error| ApiError::unavailable("read the batch", &error))?;
        serde_json::from_slice(&body)
            .map_err(|error| ApiError::unavailable("read the batch", &error))
    }

    async fn all(&self) -> Result<Vec<(Batch, Revision)>> {
        let mut watch = self.bucket.watch_keys(&self.key("*"));
        let mut found = Vec::new();
        let reading = async {
            while let Some(event) = watch.next().await {
                match event {
                    Event::Change(entry) => {
                        if let Content::Live(value) = &entry.content
                            && let Ok(batch) = serde_json::from_slice(value)
                        {
                            found.push((batch, entry.revision));
                        }
                    }
                    Event::Current => break,
                    Event::Stale => {}
                }
            }
        };
        let read = tokio::time::timeout(LIST_TIMEOUT, reading).await;
        read.map_err(|error| ApiError::unavailable("read the batches", &error))?;
        found.sort_by(|(a, _): &(Batch, _), (b, _)| {
            (b.created_ms, &b.id).cmp(&(a.created_ms, &a.id))
        });
        Ok(found)
    }
}

/// How the caller reaches this server.
fn base(shared: &Shared, headers: &HeaderMap) -> String {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let scheme = match text("x-forwarded-proto") {
        Some("https") => "https",
        Some(_) | None if shared.is_tls => "https",
        Some(_) | None => "http",
    };
    match text(HOST.as_str()) {
        Some(host) => format!("{scheme}://{host}"),
        None => String::new(),
    }
}

pub(crate) async fn one(
    State(shared): State<Arc<Shared>>,
    Speaker(tenant): Speaker,
    Named(id): Named<String>,
    headers: HeaderMap,
) -> Result<Json<Value>> {
    let batch = Batches::of(&shared, &tenant).look(&id).await?;
    Ok(Json(batch.shown(&base(&shared, &headers))))
}

#[derive(Debug, Deserialize)]
pub(crate) struct Page {
    limit: Option<usize>,
    after_id: Option<String>,
    before_id: Option<String>,
}

impl Page {
    /// The part of a list that is asked for, and whether there is more.
    fn of<T>(&self, mut all: Vec<T>, id: impl Fn(&T) -> &str) -> Result<(Vec<T>, bool)> {
        let limit = self.limit.unwrap_or(20);
        if !(1..=1_000).contains(&limit) {
            return Err(ApiError::invalid(format!(
                "limit is {limit}; give 1 to 1000"
            )));
        }
        let place = |wanted: &str, all: &[T]| all.iter().position(|item| id(item) == wanted);
        if let Some(after) = &self.after_id {
            let at = place(after, &all).map_or(all.len(), |at| at + 1);
            all.drain(..at);
        }
        if let Some(before) = &self.before_id {
            all.truncate(place(before, &all).unwrap_or(0));
            let surplus = all.len().saturating_sub(limit);
            all.drain(..surplus);
            return Ok((all, surplus > 0));
        }
        let has_more = all.len() > limit;
        all.truncate(limit);
        Ok((all, has_more))
    }
}

pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    Speaker(tenant): Speaker,
    Asked(page): Asked<Page>,
    headers: HeaderMap,
) -> Result<Json<Value>> {
    let batches = Batches::of(&shared, &tenant);
    let (found, has_more) = page.of(batches.all().await?, |(batch, _)| &batch.id)?;
    let base = base(&shared, &headers);
    let mut data = Vec::with_capacity(found.len());
    for (batch, revision) in found {
        data.push(batches.ended(batch, revision).await?.shown(&base));
    }
    let id = |batch: Option<&Value>| batch.map(|batch| batch["id"].clone());
    Ok(Json(json!({
        "first_id": id(data.first()), "last_id": id(data.last()), "has_more": has_more, "data": data,
    })))
}

pub(crate) async fn results(
    State(shared): State<Arc<Shared>>,
    Speaker(tenant): Speaker,
    Named(id): Named<String>,
) -> Result<Response> {
    let batches = Batches::of(&shared, &tenant);
    let batch = batches.look(&id).await?;
    if batch.ended_ms.is_none() {
        let text = "the batch has not ended yet; its results come all at once";
        return Err(ApiError::invalid(text));
    }
    let names = batches.names(&id).await?;
    let reading = futures::stream::iter(names.into_iter().enumerate());
    let reading = reading.map(move |(number, name)| {
        let (shared, tenant, job) = (shared.clone(), tenant.clone(), batch.job(number));
        let is_interrupted = batch.is_interrupted;
        async move { line(&shared, &tenant, &job, &name, is_interrupted).await }
    });
    let lines = reading.buffered(READS_MAX);
    let headers = [(CONTENT_TYPE, "application/x-jsonl")];
    Ok((headers, Body::from_stream(lines)).into_response())
}

/// One line of the results. The error cuts the answer off: half a list must not look like a whole one.
async fn line(
    shared: &Shared,
    tenant: &TenantId,
    job: &JobId,
    name: &str,
    is_interrupted: bool,
) -> std::result::Result<String, std::io::Error> {
    let cut = |error: ApiError| std::io::Error::other(error.message);
    let slot = shared
        .records
        .get_nearby(tenant, job)
        .await
        .map_err(std::io::Error::other)?;
    let result = match slot.record {
        None if is_interrupted => json!({"type": "canceled"}),
        None => json!({"type": "expired"}),
        Some(record) if record.phase == Phase::Done => {
            json!({"type": "succeeded", "message": shared.result(&record).await.map_err(cut)?})
        }
        Some(record) => outcome(&record),
    };
    Ok(json!({"custom_id": name, "result": result}).to_string() + "\n")
}

fn outcome(record: &JobRecord) -> Value {
    match tally::kind(
        record.phase,
        record.failure.as_ref().map(|failure| failure.reason),
    ) {
        Some(tally::Kind::Canceled) => json!({"type": "canceled"}),
        Some(tally::Kind::Expired) => json!({"type": "expired"}),
        Some(tally::Kind::Succeeded | tally::Kind::Errored) | None => {
            let error = ApiError::of_record(record).body(record.job.as_str());
            json!({"type": "errored", "error": error})
        }
    }
}

pub(crate) async fn cancel(
    State(shared): State<Arc<Shared>>,
    Speaker(tenant): Speaker,
    Named(id): Named<String>,
    headers: HeaderMap,
) -> Result<Json<Value>> {
    let batches = Batches::of(&shared, &tenant);
    let batch = batches.look(&id).await?;
    if batch.ended_ms.is_some() {
        return Err(ApiError::invalid("the batch has ended"));
    }
    let now = crate::now_ms();
    let begun = |batch: &mut Batch| {
        batch.cancelled_ms.get_or_insert(now);
    };
    let batch = batches.change(&id, begun).await?;
    let calling_off = call_off(shared.clone(), tenant.clone(), batch.clone());
    shared.tasks.spawn(calling_off);
    Ok(Json(batch.shown(&base(&shared, &headers))))
}

/// Calls off every job that has not ended. If this process dies before it is through, the rest goes on
/// until it is called off again.
async fn call_off(shared: Arc<Shared>, tenant: TenantId, batch: Batch) {
    let mut left: Vec<usize> = (0..usize::try_from(batch.requests).unwrap_or(0)).collect();
    for _ in 0..CANCEL_ROUNDS {
        let asks = futures::stream::iter(left).map(|number| {
            let (shared, tenant, job) = (&shared, &tenant, batch.job(number));
            async move {
                let reply = shared.ask(Ask::Cancel, tenant, &job, None).await;
                let again = match reply {
                    Ok(reply) => match reply.outcome {
                        fairlane_wire::AskOutcome::NotFound | fairlane_wire::AskOutcome::Busy => {
                            true
                        }
                        fairlane_wire::AskOutcome::Ok
                        | fairlane_wire::AskOutcome::Ended
                        | fairlane_wire::AskOutcome::SameAs
                        | fairlane_wire::AskOutcome::NotPossible
                        | fairlane_wire::AskOutcome::Invalid => false,
                    },
                    Err(_) => true,
                };
                (number, again)
            }
        });
        let asked: Vec<(usize, bool)> = asks.buffer_unordered(ASKS_MAX).collect().await;
        left = asked
            .into_iter()
            .filter(|(_, again)| *again)
            .map(|(number, _)| number)
            .collect();
        if left.is_empty() {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(CANCEL_PAUSE) => {}
            () = shared.shutdown.draining().cancelled() => break,
        }
    }
    tracing::warn!(%tenant, batch = batch.id, left = left.len(), "some jobs of a batch are not called off");
}

pub(crate) async fn delete(
    State(shared): State<Arc<Shared>>,
    Speaker(tenant): Speaker,
    Named(id): Named<String>,
) -> Result<Json<Value>> {
    let batches = Batches::of(&shared, &tenant);
    let batch = batches.look(&id).await?;
    if batch.ended_ms.is_none() {
        return Err(ApiError::invalid(
            "the batch has not ended; cancel it first",
        ));
    }
    let (_, revision) = batches.read(&id).await?;
    let trace = Duration::from_secs(60);
    let key = batches.key(&id);
    let gone = batches
        .bucket
        .tombstone_if(&key, revision, Default::default(), trace);
    gone.await
        .map_err(|error| ApiError::unavailable("delete the batch", &error))?;
    if let Err(error) = shared
        .nats
        .payloads()
        .delete(&batches.names_object(&id))
        .await
    {
        tracing::debug!(%error, "the names of a batch stay for a while");
    }
    Ok(Json(json!({"id": id, "type": "message_batch_deleted"})))
}

/// The id of a batch whose making has this id.
fn batch_id(id: &RequestId) -> String {
    id.as_str().replacen("req_", "msgbatch_", 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(limit: usize, after: Option<&str>, before: Option<&str>) -> (Vec<&'static str>, bool) {
        let page = Page {
            limit: Some(limit),
            after_id: after.map(str::to_owned),
            before_id: before.map(str::to_owned),
        };
        page.of(vec!["e", "d", "c", "b", "a"], |id| *id).unwrap()
    }

    #[test]
    fn pages_follow_each_other_in_both_directions() {
        assert_eq!(page(2, None, None), (vec!["e", "d"], true));
        assert_eq!(page(2, Some("d"), None), (vec!["c", "b"], true));
        assert_eq!(page(2, Some("b"), None), (vec!["a"], false));
        assert_eq!(page(2, None, Some("b")), (vec!["d", "c"], true));
        assert_eq!(page(2, Some("gone"), None), (vec![], false));
        assert_eq!(page(9, None, None).0.len(), 5);
    }

    #[test]
    fn counts_are_told_when_all_is_over() {
        let mut batch = Batch {
            id: "msgbatch_1".to_owned(),
            created_ms: 1_700_000_000_000,
            expires_ms: 1_700_086_400_000,
            requests: 3,
            is_interrupted: false,
            cancelled_ms: None,
            ended_ms: None,
            tally: None,
        };
        let shown = batch.shown("http://x");
        assert_eq!(shown["processing_status"], "in_progress");
        assert_eq!(shown["request_counts"]["processing"], 3);
        assert_eq!(shown["created_at"], "2023-11-14T22:13:20Z");
        assert_eq!(shown["results_url"], Value::Null);
        batch.cancelled_ms = Some(1);
        assert_eq!(batch.shown("")["processing_status"], "canceling");
        batch.ended_ms = Some(2);
        batch.tally = Some(Tally {
            succeeded: 2,
            canceled: 1,
            ..Tally::default()
        });
        let shown = batch.shown("http://x");
        assert_eq!(shown["processing_status"], "ended");
        assert_eq!(shown["request_counts"]["processing"], 0);
        assert_eq!(shown["request_counts"]["canceled"], 1);
        assert_eq!(
            shown["results_url"],
            "http://x/v1/messages/batches/msgbatch_1/results"
        );
    }
}
