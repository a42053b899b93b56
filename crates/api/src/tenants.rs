//! Tenants, their keys and accounts, and what the leading scheduler knows.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use fairlane_core::TenantId;
use fairlane_nats::watch::Event;
use fairlane_nats::{Bucket, Content, WriteError};
use fairlane_wire::tenant::KEYS_MAX;
use fairlane_wire::{TenantKey, TenantRecord, WhyRequest};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::Shared;
use crate::error::{ApiError, Result};
use crate::frame::{Asked, Named, Operator, Reader, Speaker, read_json};
use crate::jobs::ask_leader;

const TRIES_MAX: usize = 10;
const LIST_TIMEOUT: Duration = Duration::from_secs(10);
const DAY_MS: u64 = 86_400_000;

fn bucket(shared: &Shared) -> Bucket {
    shared.nats.bucket(&shared.nats.names.tenants_bucket())
}

/// A record without the hashes of its keys, which are nobody's business.
fn shown(tenant: &str, record: &TenantRecord) -> Value {
    let mut shown = json!(record);
    shown["tenant"] = json!(tenant);
    shown["keys"] = record.keys.iter().map(key_shown).collect();
    shown
}

fn key_shown(key: &TenantKey) -> Value {
    json!({"id": key.id, "created_ms": key.created_ms, "note": key.note})
}

pub(crate) async fn list(State(shared): State<Arc<Shared>>, _: Reader) -> Result<Json<Value>> {
    let mut watch = bucket(&shared).watch();
    let mut tenants = std::collections::BTreeMap::new();
    let reading = async {
        while let Some(event) = watch.next().await {
            match event {
                Event::Change(entry) => match entry.content {
                    Content::Live(value) => {
                        let shown = match TenantRecord::parse(&value) {
                            Ok(record) => shown(&entry.key, &record),
                            Err(error) => json!({"tenant": entry.key, "error": error.to_string()}),
                        };
                        tenants.insert(entry.key, shown);
                    }
                    Content::Deleted(_) | Content::Expired => {
                        tenants.remove(&entry.key);
                    }
                },
                Event::Current => break,
                Event::Stale => {}
            }
        }
    };
    let read = tokio::time::timeout(LIST_TIMEOUT, reading).await;
    read.map_err(|error| ApiError::unavailable("read the tenants", &error))?;
    let tenants: Vec<Value> = tenants.into_values().collect();
    Ok(Json(json!({"tenants": tenants})))
}

fn named(tenant: &str) -> Result<TenantId> {
    TenantId::parse(tenant).map_err(|error| ApiError::not_found(error.to_string()))
}

pub(crate) async fn one(
    State(shared): State<Arc<Shared>>,
    _: Reader,
    Named(tenant): Named<String>,
) -> Result<Json<Value>> {
    let tenant = named(&tenant)?;
    let entry = bucket(&shared).get(tenant.as_str()).await;
    let entry = entry.map_err(|error| ApiError::unavailable("read the tenant", &error))?;
    match entry.as_ref().and_then(|entry| entry.value()) {
        // The configuration alone decides.
        None => Ok(Json(shown(tenant.as_str(), &TenantRecord::default()))),
        Some(value) => match TenantRecord::parse(value) {
            Ok(record) => Ok(Json(shown(tenant.as_str(), &record))),
            Err(error) => Ok(Json(
                json!({"tenant": tenant.as_str(), "error": error.to_string()}),
            )),
        },
    }
}

/// Changes a tenant's record, however many do so at the same time.
async fn change(
    shared: &Shared,
    tenant: &TenantId,
    change: impl Fn(TenantRecord) -> Result<TenantRecord>,
) -> Result<TenantRecord> {
    let nats = shared.for_operators()?;
    let bucket = nats.bucket(&nats.names.tenants_bucket());
    for _ in 0..TRIES_MAX {
        let entry = bucket.get(tenant.as_str()).await;
        let entry = entry.map_err(|error| ApiError::unavailable("read the tenant", &error))?;
        let record = match entry.as_ref().and_then(|entry| entry.value()) {
            None => TenantRecord::default(),
            Some(value) => TenantRecord::parse(value).map_err(|error| {
                ApiError::conflict(format!("the settings of {tenant} are not usable: {error}"))
            })?,
        };
        let expected = entry.map_or(fairlane_nats::Revision::ABSENT, |entry| entry.revision);
        let record = change(record)?;
        match bucket
            .put_if(tenant.as_str(), record.to_bytes().into(), expected, None)
            .await
        {
            Ok(_) => return Ok(record),
            Err(WriteError::Conflict { .. }) => {}
            Err(error) => return Err(ApiError::unavailable("write the tenant", &error)),
        }
    }
    Err(ApiError::conflict("others keep changing this tenant; try again").should_retry(true))
}

pub(crate) async fn set(
    State(shared): State<Arc<Shared>>,
    _: Operator,
    Named(tenant): Named<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>> {
    let tenant = named(&tenant)?;
    let changes: Map<String, Value> = read_json(&headers, body).await?;
    if changes.contains_key("keys") {
        return Err(ApiError::invalid("keys have a path of their own"));
    }
    let with_changes = |record: TenantRecord| {
        let Value::Object(mut fields) = json!(record) else {
            unreachable!("a record is an object");
        };
        fields.extend(changes.clone());
        TenantRecord::from_fields(&fields).map_err(|error| ApiError::invalid(error.to_string()))
    };
    let record = change(&shared, &tenant, with_changes).await?;
    Ok(Json(shown(tenant.as_str(), &record)))
}

#[derive(Debug, Deserialize)]
struct NewKey {
    note: Option<String>,
}

pub(crate) async fn create_key(
    State(shared): State<Arc<Shared>>,
    _: Operator,
    Named(tenant): Named<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<Value>)> {
    let tenant = named(&tenant)?;
    let NewKey { note } = read_json(&headers, body).await?;
    if note.as_ref().is_some_and(|note| note.len() > 200) {
        return Err(ApiError::invalid("note is longer than 200 bytes"));
    }
    let secret = TenantKey::secret(rand::random());
    let key = TenantKey::of(&secret, crate::now_ms(), note);
    let with_key = |mut record: TenantRecord| {
        if record.keys.len() >= KEYS_MAX {
            return Err(ApiError::conflict(format!(
                "{tenant} has {KEYS_MAX} keys; revoke one first"
            )));
        }
        record.keys.push(key.clone());
        Ok(record)
    };
    change(&shared, &tenant, with_key).await?;
    let mut told = key_shown(&key);
    told["tenant"] = json!(tenant.as_str());
    told["secret"] = json!(secret);
    Ok((StatusCode::CREATED, Json(told)))
}

pub(crate) async fn revoke_key(
    State(shared): State<Arc<Shared>>,
    _: Operator,
    Named((tenant, id)): Named<(String, String)>,
) -> Result<Json<Value>> {
    let tenant = named(&tenant)?;
    let without_key = |mut record: TenantRecord| {
        let before = record.keys.len();
        record.keys.retain(|key| key.id != id);
        if record.keys.len() == before {
            return Err(ApiError::not_found(format!("{tenant} has no key {id}")));
        }
        Ok(record)
    };
    let record = change(&shared, &tenant, without_key).await?;
    Ok(Json(shown(tenant.as_str(), &record)))
}

pub(crate) async fn why(
    State(shared): State<Arc<Shared>>,
    _: Reader,
    Named(tenant): Named<String>,
) -> Result<Json<Value>> {
    let tenant = named(&tenant)?;
    let answer: Value = ask_leader(&shared, &WhyRequest::Tenant { tenant }).await?;
    match answer {
        Value::Null => Err(ApiError::not_found(
            "nothing of this tenant was seen lately",
        )),
        answer => Ok(Json(answer)),
    }
}

#[derive(Debug, Deserialize)]
pub(crate) struct Since {
    since_ms: Option<u64>,
    tenant: Option<String>,
}

/// An operator who names no tenant sees all accounts.
#[derive(Debug)]
pub(crate) enum Accountant {
    Of(TenantId),
    All,
}

impl<S: Send + Sync> axum::extract::FromRequestParts<S> for Accountant {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut axum::http::request::Parts, state: &S) -> Result<Self> {
        match Speaker::from_request_parts(parts, state).await {
            Ok(Speaker(tenant)) => Ok(Self::Of(tenant)),
            Err(error) => match Reader::from_request_parts(parts, state).await {
                Ok(Reader) if error.kind == crate::error::Kind::InvalidRequest => Ok(Self::All),
                Ok(Reader) | Err(_) => Err(error),
            },
        }
    }
}

pub(crate) async fn ledger(
    State(shared): State<Arc<Shared>>,
    who: Accountant,
    Asked(Since { since_ms, tenant }): Asked<Since>,
) -> Result<Json<Value>> {
    let since_ms = since_ms.unwrap_or_else(|| crate::now_ms().saturating_sub(DAY_MS));
    let of = match (&who, tenant) {
        (Accountant::Of(tenant), _) => Some(tenant.clone()),
        (Accountant::All, Some(wrong)) => Some(named(&wrong)?),
        (Accountant::All, None) => None,
    };
    let accounts = shared.nats.accounts(of.as_ref(), since_ms).await;
    let accounts = accounts.map_err(|error| ApiError::unavailable("read the bookings", &error))?;
    let total = accounts.total();
    Ok(Json(
        json!({"since_ms": since_ms, "tenants": accounts.tenants, "total": total}),
    ))
}

pub(crate) async fn autoscale(State(shared): State<Arc<Shared>>, _: Reader) -> Result<Json<Value>> {
    let names = &shared.nats.names;
    let entry = shared
        .nats
        .bucket(&names.control_bucket())
        .get(names.autoscale_key())
        .await;
    let entry = entry.map_err(|error| ApiError::unavailable("read the signal", &error))?;
    let value = entry.as_ref().and_then(|entry| entry.value());
    let value = value.ok_or_else(|| ApiError::not_found("no scheduler has written it yet"))?;
    let signal = serde_json::from_slice(value);
    signal
        .map(Json)
        .map_err(|error| ApiError::unavailable("read the signal", &error))
}
