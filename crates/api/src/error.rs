//! Errors as callers of the Claude API know them.
//!
//! Official clients decide by status and by `retry-after`, and by `x-should-retry` before both: so an
//! error says whether the same call may do better later, and when.

use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use fairlane_wire::{DeadReason, Failure, JobRecord, Phase};
use serde_json::{Value, json};

/// The types of errors, each with its status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    InvalidRequest,
    Authentication,
    Permission,
    NotFound,
    Method,
    Conflict,
    TooLarge,
    RateLimit,
    Api,
    Timeout,
    Overloaded,
}

impl Kind {
    const ALL: [Self; 11] = [
        Self::InvalidRequest,
        Self::Authentication,
        Self::Permission,
        Self::NotFound,
        Self::Method,
        Self::Conflict,
        Self::TooLarge,
        Self::RateLimit,
        Self::Api,
        Self::Timeout,
        Self::Overloaded,
    ];

    /// When it is answered, and what the caller does then.
    fn meaning(self) -> &'static str {
        match self {
            Self::InvalidRequest => "The call is not one; the message names the field.",
            Self::Authentication => {
                "No key or token, or one that is unknown or revoked: make one with `fairlane tenant key create`."
            }
            Self::Permission => "The key or token may not do this; the message says which one may.",
            Self::NotFound => "No such path, job, letter, batch, key or model.",
            Self::Method => "The path has no such method.",
            Self::Conflict => {
                "As things stand it cannot be: there is no answer yet, or the job has ended or was called off. `x-should-retry` says whether the same call may do better."
            }
            Self::TooLarge => {
                "The body, or one line of it, is larger than `producer.body_bytes_max`."
            }
            Self::RateLimit => {
                "The tenant's own limit: too many open calls, or too long a queue. Again after `retry-after`."
            }
            Self::Api => {
                "The job ended without a result for a reason that no other status tells, or its stream was interrupted; the message says why."
            }
            Self::Timeout => {
                "Its deadline passed, or the caller's wait ended, before there was an answer."
            }
            Self::Overloaded => {
                "The upstream was overloaded to the last try, or this producer is full, begins or ends. Again after `retry-after`."
            }
        }
    }

    pub(crate) fn status(self) -> StatusCode {
        let code = match self {
            Self::InvalidRequest => 400,
            Self::Authentication => 401,
            Self::Permission => 403,
            Self::NotFound => 404,
            Self::Method => 405,
            Self::Conflict => 409,
            Self::TooLarge => 413,
            Self::RateLimit => 429,
            Self::Api => 500,
            Self::Timeout => 504,
            Self::Overloaded => 529,
        };
        StatusCode::from_u16(code).expect("these are statuses")
    }

    /// The type of an error that the upstream answers with this status.
    pub(crate) fn of_status(status: u16) -> Self {
        match status {
            401 | 403 | 500..=503 => Self::Api,
            404 => Self::NotFound,
            413 => Self::TooLarge,
            429 => Self::RateLimit,
            504 => Self::Timeout,
            529 => Self::Overloaded,
            400..=499 => Self::InvalidRequest,
            _ => Self::Api,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::InvalidRequest | Self::Method | Self::Conflict => "invalid_request_error",
            Self::Authentication => "authentication_error",
            Self::Permission => "permission_error",
            Self::NotFound => "not_found_error",
            Self::TooLarge => "request_too_large",
            Self::RateLimit => "rate_limit_error",
            Self::Api => "api_error",
            Self::Timeout => "timeout_error",
            Self::Overloaded => "overloaded_error",
        }
    }
}

/// Every error the API answers with, for its page: status, type, and what it means.
#[must_use]
pub fn documented() -> Vec<(u16, &'static str, &'static str)> {
    let row = |kind: Kind| (kind.status().as_u16(), kind.as_str(), kind.meaning());
    Kind::ALL.map(row).to_vec()
}

/// An error on its way to a caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub(crate) kind: Kind,
    pub(crate) message: String,
    retry_after_s: Option<u64>,
    /// Whether the same call may be made again, when its status alone says the wrong thing.
    should_retry: Option<bool>,
}

pub(crate) type Result<T> = std::result::Result<T, ApiError>;

impl ApiError {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            retry_after_s: None,
            should_retry: None,
        }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Kind::InvalidRequest, message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(Kind::NotFound, message)
    }

    pub(crate) fn method_not_allowed(message: impl Into<String>) -> Self {
        Self::new(Kind::Method, message)
    }

    pub(crate) fn conflict(message: impl Into<String>) -> Self {
        Self::new(Kind::Conflict, message).should_retry(false)
    }

    /// Something of ours does not work for now; the cause is for the log alone.
    pub(crate) fn unavailable(what: &'static str, cause: &dyn std::error::Error) -> Self {
        tracing::warn!(
            what,
            cause = with_causes(cause),
            "cannot serve a call for now"
        );
        Self::new(
            Kind::Overloaded,
            format!("cannot {what} for now; try again"),
        )
        .retry_after(1)
    }

    #[must_use]
    pub(crate) fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    #[must_use]
    pub(crate) fn should_retry(mut self, should: bool) -> Self {
        self.should_retry = Some(should);
        self
    }

    /// The body; `request_id` is the id of the call.
    pub(crate) fn body(&self, request_id: &str) -> Value {
        json!({
            "type": "error",
            "error": {"type": self.kind.as_str(), "message": self.message},
            "request_id": request_id,
        })
    }

    pub(crate) fn headers(&self, headers: &mut HeaderMap) {
        if let Some(seconds) = self.retry_after_s {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(should) = self.should_retry {
            let word = if should { "true" } else { "false" };
            headers.insert("x-should-retry", HeaderValue::from_static(word));
        }
    }

    /// What became of a job that ended without a result.
    pub(crate) fn of_record(record: &JobRecord) -> Self {
        match (record.phase, &record.failure) {
            (Phase::Cancelled, _) => {
                Self::new(Kind::Conflict, "the job was called off").should_retry(false)
            }
            (_, Some(failure)) => Self::of_failure(failure),
            (phase, None) => Self::new(Kind::Api, format!("the job ended as {}", phase.as_str())),
        }
    }

    /// A failure in the words of the Claude API.
    pub(crate) fn of_failure(failure: &Failure) -> Self {
        let upstream = failure.upstream.as_ref();
        let status = upstream.and_then(|upstream| upstream.status);
        let said = upstream.and_then(|upstream| upstream.message.clone());
        match failure.reason {
            DeadReason::Undecodable
            | DeadReason::InvalidJob
            | DeadReason::InvalidTenant
            | DeadReason::Oversize => Self::invalid(words(failure)),
            DeadReason::UnknownModel => Self::not_found(words(failure)),
            DeadReason::BacklogFull => Self::new(Kind::RateLimit, words(failure)).retry_after(10),
            DeadReason::InvalidRequest => {
                let kind = status.map_or(Kind::InvalidRequest, Kind::of_status);
                Self::new(kind, said.unwrap_or_else(|| failure.message.clone())).should_retry(false)
            }
            DeadReason::Refusal | DeadReason::MaxTokens | DeadReason::Schema => {
                Self::new(Kind::Api, words(failure)).should_retry(false)
            }
            DeadReason::Exhausted => {
                let kind = match status.filter(|status| *status >= 400) {
                    Some(status) => Kind::of_status(status),
                    None => Kind::Api,
                };
                Self::new(kind, said.unwrap_or_else(|| failure.message.clone()))
            }
            // It may have been paid twice already.
            DeadReason::Ambiguous => Self::new(Kind::Api, words(failure)).should_retry(false),
            DeadReason::Expired => Self::new(
                Kind::Timeout,
                "the deadline passed before the call could be made",
            ),
            DeadReason::MaxDeliver | DeadReason::CrashSuspect => {
                Self::new(Kind::Api, words(failure)).should_retry(false)
            }
        }
    }
}

/// A failure's own words. Fields of the request are named as the caller knows them.
fn words(failure: &Failure) -> String {
    let message = failure.message.replace("request.", "");
    match &failure.fix {
        Some(fix) => format!("{message}; {}", fix.replace("request.", "")),
        None => message,
    }
}

/// An error with its causes, on one line.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += ": ";
        text += &error.to_string();
        cause = error.source();
    }
    text
}

/// The body needs the id of the call, which only the frame of all calls knows: it is made there.
impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.kind.status(), Extension(self)).into_response()
    }
}

/// The response to an error, whole.
pub(crate) fn render(error: &ApiError, request_id: &str) -> Response {
    let body = Json(error.body(request_id));
    let mut response = (error.kind.status(), body).into_response();
    error.headers(response.headers_mut());
    response
}

#[cfg(test)]
mod tests {
    use fairlane_wire::failure::Upstream;

    use super::*;

    fn failed(reason: DeadReason, status: Option<u16>) -> ApiError {
        let failure = Failure::new(reason, "request.model is 7").answered(Upstream {
            status,
            message: Some("said".to_owned()),
            request_id: None,
        });
        ApiError::of_failure(&failure)
    }

    #[test]
    fn an_error_has_the_form_of_the_claude_api() {
        let error = ApiError::new(Kind::RateLimit, "slow down").retry_after(7);
        let response = render(&error, "req_1");
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()["retry-after"], "7");
        assert_eq!(
            error.body("req_1"),
            json!({"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}, "request_id": "req_1"})
        );
    }

    #[test]
    fn what_the_upstream_turned_away_has_its_status_and_words() {
        for (status, kind) in [
            (Some(400), Kind::InvalidRequest),
            (Some(422), Kind::InvalidRequest),
            (Some(404), Kind::NotFound),
            (Some(413), Kind::TooLarge),
            (None, Kind::InvalidRequest),
        ] {
            let error = failed(DeadReason::InvalidRequest, status);
            assert_eq!((error.kind, error.message.as_str()), (kind, "said"));
            assert_eq!(error.should_retry, Some(false));
        }
        for (status, kind) in [
            (Some(529), Kind::Overloaded),
            (Some(429), Kind::RateLimit),
            (Some(503), Kind::Api),
            (Some(504), Kind::Timeout),
            (Some(200), Kind::Api),
            (None, Kind::Api),
        ] {
            assert_eq!(
                failed(DeadReason::Exhausted, status).kind,
                kind,
                "{status:?}"
            );
        }
    }

    #[test]
    fn every_reason_has_an_error_and_fields_are_named_as_the_caller_knows_them() {
        for reason in DeadReason::ALL {
            let error = failed(reason, None);
            assert!(!error.message.contains("request."), "{reason}: {error:?}");
        }
        assert_eq!(failed(DeadReason::InvalidJob, None).message, "model is 7");
        assert_eq!(failed(DeadReason::BacklogFull, None).kind, Kind::RateLimit);
    }
}
