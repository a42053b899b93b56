//! What every call goes through: an id, a caller, a body of bounded size and time, a line in the log.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::http::header::{CONTENT_LENGTH, ORIGIN, VARY};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use fairlane_core::{JobId, TenantId};
use futures::StreamExt;

use crate::Shared;
use crate::error::{ApiError, Kind, Result, render};
use crate::keys::Caller;
use crate::translate::header;

/// A body that stands still for so long is given up, and so is one that takes longer in all.
const BODY_SILENCE_MAX: Duration = Duration::from_secs(15);
const BODY_TIME_MAX: Duration = Duration::from_secs(300);
/// Bodies that are no messages.
const SMALL_BYTES_MAX: usize = 1 << 20;
/// A caller's own id of a call is repeated if it is no longer than this.
const CLIENT_ID_MAX: usize = 128;
const CLIENT_ID: &str = "x-client-request-id";

/// The id of a call, and of the job it becomes.
#[derive(Debug, Clone)]
pub(crate) struct RequestId(JobId);

impl RequestId {
    pub(crate) fn new() -> Self {
        let id = format!("req_{}", uuid::Uuid::now_v7().simple());
        Self(JobId::parse(&id).expect("letters, digits and an underscore"))
    }

    pub(crate) fn job(&self) -> JobId {
        self.0.clone()
    }

    pub(crate) fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl<S: Sync> FromRequestParts<S> for RequestId {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        let id = parts.extensions.get::<Self>().cloned();
        Ok(id.expect("the frame gives every call an id"))
    }
}

/// The tenant for which a call speaks: that of its key, or the one that an operator names.
#[derive(Debug, Clone)]
pub(crate) struct Speaker(pub(crate) TenantId);

/// May read what concerns the whole fleet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader;

/// May change what concerns the whole fleet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Operator;

/// Anybody whom we know.
#[derive(Debug, Clone)]
pub(crate) struct Whoever(pub(crate) Caller);

impl<S: Sync> FromRequestParts<S> for Whoever {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        Ok(Self(caller(parts)?.clone()))
    }
}

fn caller(parts: &Parts) -> Result<&Caller> {
    let caller = parts.extensions.get::<Result<Caller>>();
    let caller = caller.expect("the frame looks who calls");
    caller.as_ref().map_err(Clone::clone)
}

impl<S: Sync> FromRequestParts<S> for Speaker {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        let named = named_tenant(parts)?;
        match (caller(parts)?, named) {
            (Caller::Tenant(own, _), None) => Ok(Self(own.clone())),
            (Caller::Tenant(own, _), Some(named)) if *own == named => Ok(Self(named)),
            (Caller::Tenant(own, _), Some(_)) => {
                let text = format!("this key speaks for tenant {own} alone");
                Err(ApiError::new(Kind::Permission, text))
            }
            (Caller::Viewer, _) if parts.method != Method::GET => Err(only(Caller::Operator)),
            (Caller::Operator | Caller::Viewer, Some(named)) => Ok(Self(named)),
            (Caller::Operator | Caller::Viewer, None) => Err(ApiError::invalid(format!(
                "say for which tenant, in the header {} or the query's tenant",
                header::TENANT
            ))),
        }
    }
}

impl<S: Sync> FromRequestParts<S> for Reader {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        match caller(parts)? {
            Caller::Operator | Caller::Viewer => Ok(Self),
            Caller::Tenant(..) => Err(only(Caller::Viewer)),
        }
    }
}

impl<S: Sync> FromRequestParts<S> for Operator {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        match caller(parts)? {
            Caller::Operator => Ok(Self),
            Caller::Viewer | Caller::Tenant(..) => Err(only(Caller::Operator)),
        }
    }
}

fn only(needed: Caller) -> ApiError {
    let text = match needed {
        Caller::Operator => "this needs the token of an operator",
        Caller::Viewer | Caller::Tenant(..) => "this needs the token of a viewer or operator",
    };
    ApiError::new(Kind::Permission, text)
}

fn named_tenant(parts: &Parts) -> Result<Option<TenantId>> {
    let in_header = parts.headers.get(header::TENANT);
    let in_header = in_header.map(|value| value.to_str().unwrap_or("?").to_owned());
    let in_query = || {
        let pairs = parts.uri.query().unwrap_or_default().split('&');
        let mut values = pairs.filter_map(|pair| pair.strip_prefix("tenant="));
        values.next().map(str::to_owned)
    };
    in_header
        .or_else(in_query)
        .map(|name| TenantId::parse(&name).map_err(|error| ApiError::invalid(error.to_string())))
        .transpose()
}

/// Parameters of the query.
#[derive(Debug)]
pub(crate) struct Asked<T>(pub(crate) T);

impl<S: Sync, T: serde::de::DeserializeOwned> FromRequestParts<S> for Asked<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        let asked = axum::extract::Query::try_from_uri(&parts.uri);
        let asked = asked.map_err(|error| ApiError::invalid(error.body_text()))?;
        Ok(Self(asked.0))
    }
}

/// What stands in the place of the path's parameters.
#[derive(Debug)]
pub(crate) struct Named<T>(pub(crate) T);

impl<S: Send + Sync, T: serde::de::DeserializeOwned + Send> FromRequestParts<S> for Named<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        let named = axum::extract::Path::from_request_parts(parts, state).await;
        let named = named.map_err(|error| ApiError::not_found(error.body_text()))?;
        Ok(Self(named.0))
    }
}

/// Reads a small JSON body.
///
/// # Errors
/// As [`read_body`], and `invalid_request_error` if it is anything else.
pub(crate) async fn read_json<T: serde::de::DeserializeOwned>(
    headers: &HeaderMap,
    body: Body,
) -> Result<T> {
    let body = read_body(headers, body, SMALL_BYTES_MAX).await?;
    serde_json::from_slice(&body).map_err(|error| {
        ApiError::invalid(format!("the request body is not as it should be: {error}"))
    })
}

/// Reads a body of at most `bytes_max` bytes.
///
/// # Errors
/// `request_too_large`, or `invalid_request_error` if it does not come to its end in time.
pub(crate) async fn read_body(headers: &HeaderMap, body: Body, bytes_max: usize) -> Result<Bytes> {
    let too_large = || {
        let text = format!("the request is larger than {bytes_max} bytes");
        ApiError::new(Kind::TooLarge, text)
    };
    let length = headers
        .get(CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok());
    let length = length.and_then(|value| value.parse::<usize>().ok());
    if length.is_some_and(|length| length > bytes_max) {
        return Err(too_large());
    }
    let reading = async {
        let mut chunks = body.into_data_stream();
        let mut read = Vec::with_capacity(length.unwrap_or(0).min(1 << 20));
        loop {
            match tokio::time::timeout(BODY_SILENCE_MAX, chunks.next()).await {
                Ok(None) => return Ok(read.into()),
                Ok(Some(Ok(chunk))) => {
                    if read.len() + chunk.len() > bytes_max {
                        return Err(too_large());
                    }
                    read.extend_from_slice(&chunk);
                }
                Ok(Some(Err(_))) => return Err(ApiError::invalid("the request body was cut off")),
                Err(_) => return Err(ApiError::invalid("the request body stands still")),
            }
        }
    };
    match tokio::time::timeout(BODY_TIME_MAX, reading).await {
        Ok(read) => read,
        Err(_) => Err(ApiError::invalid("the request body takes too long")),
    }
}

/// The frame of every call.
pub(crate) async fn frame(
    State(shared): State<Arc<Shared>>,
    request: Request,
    next: Next,
) -> Response {
    let mut request = request;
    let began = Instant::now();
    let id = RequestId::new();
    let caller = shared.keys.caller(request.headers());
    let who = match &caller {
        Ok(Caller::Tenant(tenant, key)) => format!("{tenant}/{key}"),
        Ok(Caller::Operator) => "operator".to_owned(),
        Ok(Caller::Viewer) => "viewer".to_owned(),
        Err(_) => "nobody".to_owned(),
    };
    let method = request.method().clone();
    // The route, not the path: paths may hold what people typed.
    let path = request.extensions().get::<MatchedPath>();
    let path = path.map_or_else(|| "?".to_owned(), |path| path.as_str().to_owned());
    let origin = request.headers().get(ORIGIN).cloned();
    let client_id = request.headers().get(CLIENT_ID).cloned();
    let client_id = client_id.filter(|id| id.len() <= CLIENT_ID_MAX);
    request.extensions_mut().insert(id.clone());
    request.extensions_mut().insert(caller);
    let mut response = match (&method, &origin) {
        (&Method::OPTIONS, Some(_)) if !shared.origins.is_empty() => preflight(),
        (_, _) => next.run(request).await,
    };
    if let Some(error) = response.extensions().get::<ApiError>() {
        response = render(error, id.as_str());
    }
    let headers = response.headers_mut();
    headers.insert(
        "request-id",
        HeaderValue::from_str(id.as_str()).expect("an id is ASCII"),
    );
    if let Some(client_id) = &client_id {
        headers.insert(CLIENT_ID, client_id.clone());
    }
    allow(headers, origin.as_ref(), &shared.origins);
    tracing::info!(
        request = id.as_str(),
        client_request = client_id.as_ref().and_then(|id| id.to_str().ok()),
        %method,
        path,
        caller = who,
        status = response.status().as_u16(),
        ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
        "call"
    );
    response
}

/// A browser's question whether a page may call.
fn preflight() -> Response {
    let headers = [
        ("access-control-allow-methods", "GET, POST, PUT, DELETE"),
        (
            "access-control-allow-headers",
            "authorization, x-api-key, content-type, anthropic-version, anthropic-beta, idempotency-key, fairlane-tenant, fairlane-kind, fairlane-origin",
        ),
        ("access-control-max-age", "600"),
    ];
    (StatusCode::NO_CONTENT, headers).into_response()
}

fn allow(headers: &mut HeaderMap, origin: Option<&HeaderValue>, allowed: &[String]) {
    let Some(origin) = origin else { return };
    if allowed
        .iter()
        .any(|allowed| allowed.as_bytes() == origin.as_bytes())
    {
        headers.insert("access-control-allow-origin", origin.clone());
        headers.append(VARY, HeaderValue::from_static("origin"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stands_still_is_given_up() {
        let chunks = futures::stream::iter([Ok::<_, std::io::Error>("half")]);
        let body = Body::from_stream(chunks.chain(futures::stream::pending()));
        let error = read_body(&HeaderMap::new(), body, 100).await.unwrap_err();
        assert!(error.message.contains("stands still"), "{error:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_trickles_is_given_up_in_the_end() {
        let chunks = futures::stream::unfold((), |()| async {
            tokio::time::sleep(BODY_SILENCE_MAX / 2).await;
            Some((Ok::<_, std::io::Error>("x"), ()))
        });
        let body = Body::from_stream(chunks);
        let error = read_body(&HeaderMap::new(), body, 10_000)
            .await
            .unwrap_err();
        assert!(error.message.contains("too long"), "{error:?}");
    }

    #[tokio::test]
    async fn a_body_is_refused_by_its_length_and_by_its_size() {
        let said = HeaderMap::from_iter([(CONTENT_LENGTH, HeaderValue::from_static("101"))]);
        let refused = read_body(&said, Body::empty(), 100).await.unwrap_err();
        assert_eq!(refused.kind, Kind::TooLarge);
        let body = Body::from("x".repeat(101));
        let refused = read_body(&HeaderMap::new(), body, 100).await.unwrap_err();
        assert_eq!(refused.kind, Kind::TooLarge);
        let body = Body::from("x".repeat(100));
        assert_eq!(
            read_body(&HeaderMap::new(), body, 100).await.unwrap().len(),
            100
        );
    }
}
