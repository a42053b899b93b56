//! The autoscaling signal in the control bucket: written by the leader, told by every scheduler at
//! `/v1/autoscale`.
//!
//! Whoever asks gets the number or an error, never a number that is old or made up: an autoscaler that
//! is told nothing keeps what it has, one that is told 0 shuts the fleet down.

use std::time::Duration;

use axum::extract::Query;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use bytes::Bytes;
use fairlane_core::{Millis, Term};
use fairlane_nats::{Bucket, Nats, Revision, WriteError};
use fairlane_wire::AutoscaleRecord;
use serde::Deserialize;
use serde_json::json;

use crate::clock::Clock;

/// The one pool of workers there is.
pub(crate) const WORKER_POOL: &str = "default";

/// An older signal is not told.
const AGE_MAX: Millis = 30_000;

/// Whoever asks waits no longer for NATS.
const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// The stored signal, as far as this term has written or read it.
#[derive(Debug, Clone)]
pub(crate) struct Published {
    bucket: Bucket,
    key: &'static str,
    term: Term,
    revision: Revision,
}

impl Published {
    /// Reads what the last leader left.
    pub(crate) async fn open(nats: &Nats, term: Term) -> (Self, Option<AutoscaleRecord>) {
        let mut published = Self {
            bucket: nats.bucket(&nats.names.control_bucket()),
            key: nats.names.autoscale_key(),
            term,
            revision: Revision::ABSENT,
        };
        match published.bucket.get(published.key).await {
            Ok(Some(entry)) => {
                published.revision = entry.revision;
                let value = entry.value().map_or(&[][..], |value| value);
                (published, serde_json::from_slice(value).ok())
            }
            Ok(None) => (published, None),
            Err(error) => {
                tracing::warn!(%error, "cannot read what the last leader wanted of slots");
                (published, None)
            }
        }
    }

    /// Stores a signal, unless a later leader does.
    pub(crate) async fn save(mut self, record: AutoscaleRecord) -> Self {
        let value = Bytes::from(serde_json::to_vec(&record).expect("a record is plain data"));
        let stored = self.bucket.put_if(self.key, value, self.revision, None);
        match stored.await {
            Ok(revision) => self.revision = revision,
            Err(WriteError::Conflict { .. }) => self.catch_up().await,
            Err(error) => tracing::warn!(%error, "cannot store how many slots are wanted"),
        }
        self
    }

    /// Our own write landed after we had given up on it, or a later term has begun.
    async fn catch_up(&mut self) {
        let Ok(Some(entry)) = self.bucket.get(self.key).await else {
            return;
        };
        let value = entry.value().map_or(&[][..], |value| value);
        match serde_json::from_slice::<AutoscaleRecord>(value) {
            Ok(record) if record.term > self.term.0 => {}
            Ok(_) | Err(_) => self.revision = entry.revision,
        }
    }
}

#[derive(Debug, Deserialize)]
struct Asked {
    pool: Option<String>,
}

/// `GET /v1/autoscale?pool=default`.
pub(crate) fn routes(nats: Nats) -> Router {
    let clock = Clock::start();
    let answer = move |Query(asked): Query<Asked>| {
        let nats = nats.clone();
        async move { answer(&nats, &asked, clock).await }
    };
    Router::new().route("/v1/autoscale", get(answer))
}

async fn answer(nats: &Nats, asked: &Asked, clock: Clock) -> Response {
    let pool = asked.pool.as_deref().unwrap_or(WORKER_POOL);
    if pool != WORKER_POOL {
        let error = format!("there is no pool of workers {pool:?}; ask for {WORKER_POOL}");
        return (StatusCode::NOT_FOUND, Json(json!({ "error": error }))).into_response();
    }
    let bucket = nats.bucket(&nats.names.control_bucket());
    let read = bucket.get(nats.names.autoscale_key());
    let entry = match tokio::time::timeout(READ_TIMEOUT, read).await {
        Ok(Ok(entry)) => entry,
        Ok(Err(error)) => return unavailable(&format!("cannot read the signal: {error}"), None),
        Err(_) => return unavailable("NATS does not answer", None),
    };
    let Some(value) = entry.as_ref().and_then(|entry| entry.value()) else {
        return unavailable("no leader has said yet how many slots are wanted", None);
    };
    match serde_json::from_slice::<AutoscaleRecord>(value) {
        Ok(record) => told(&record, clock.now()),
        Err(error) => unavailable(&format!("the signal is not readable: {error}"), None),
    }
}

fn told(record: &AutoscaleRecord, now: Millis) -> Response {
    let age = now.saturating_sub(record.at_ms);
    if age > AGE_MAX {
        return unavailable(
            "the signal is old: nobody leads, or not all jobs are known yet",
            Some(age),
        );
    }
    let mut body = json!(record);
    body["pool"] = json!(WORKER_POOL);
    body["age_ms"] = json!(age);
    Json(body).into_response()
}

fn unavailable(error: &str, age: Option<Millis>) -> Response {
    let mut body = json!({ "error": error });
    if let Some(age) = age {
        body["age_ms"] = json!(age);
    }
    (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::to_bytes;
    use fairlane_core::autoscale::{Autoscaler, Load, Rules};
    use fairlane_support::TestNats;
    use serde_json::Value;

    async fn ask(nats: &Nats, pool: Option<&str>) -> (u16, Value) {
        let asked = Asked {
            pool: pool.map(str::to_owned),
        };
        let response = answer(nats, &asked, Clock::start()).await;
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), 10_000).await.unwrap();
        (status, serde_json::from_slice(&body).unwrap())
    }

    fn record(term: u64, at: Millis) -> AutoscaleRecord {
        let rules = Rules {
            slots_min: 5,
            ..Rules::default()
        };
        let signal = Autoscaler::new(rules).signal(&Load::default(), at);
        AutoscaleRecord::new(term, &signal)
    }

    #[tokio::test]
    async fn a_number_is_told_only_while_it_is_fresh() {
        let mut server = TestNats::start().await;
        let nats = server.nats.clone();
        let (status, body) = ask(&nats, None).await;
        assert_eq!((status, body.get("wanted_slots")), (503, None));

        let (published, last) = Published::open(&nats, Term(7)).await;
        assert_eq!(last, None);
        let now = Clock::start().now();
        let published = published.save(record(7, now)).await;
        for pool in [None, Some("default")] {
            let (status, body) = ask(&nats, pool).await;
            assert_eq!((status, body["wanted_slots"].as_u64()), (200, Some(5)));
            assert_eq!(body["reason"], "floor");
        }
        assert_eq!(ask(&nats, Some("other")).await.0, 404);

        published.save(record(7, now - AGE_MAX - 1_000)).await;
        let (status, body) = ask(&nats, None).await;
        assert_eq!((status, body.get("wanted_slots")), (503, None));
        assert!(body["age_ms"].as_u64().unwrap() > AGE_MAX, "{body}");

        server.server.stop().await;
        let (status, body) = ask(&nats, None).await;
        assert_eq!((status, body.get("wanted_slots")), (503, None));
    }

    #[tokio::test]
    async fn an_earlier_leader_does_not_write_over_a_later_one() {
        let server = TestNats::start().await;
        let nats = &server.nats;
        let (old, _) = Published::open(nats, Term(1)).await;
        let old = old.save(record(1, 1_000)).await;
        let (new, last) = Published::open(nats, Term(2)).await;
        assert_eq!(last.unwrap().term, 1);
        new.save(record(2, 2_000)).await;
        let old = old.save(record(1, 3_000)).await;
        old.save(record(1, 4_000)).await;
        let (_, last) = Published::open(nats, Term(3)).await;
        assert_eq!(last.unwrap().at_ms, 2_000);
    }
}
