//! An answer that is not 200: its status, its error body and the headers that tell a client what to do next.

use serde::{Deserialize, Serialize};

/// The `error.type` of an error body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorType {
    /// 400 and most other 4xx.
    InvalidRequestError,
    /// 401.
    AuthenticationError,
    /// 402, and 429 behind some gateways.
    BillingError,
    /// 403.
    PermissionError,
    /// 404.
    NotFoundError,
    /// 409.
    ConflictError,
    /// 413.
    RequestTooLarge,
    /// 429.
    RateLimitError,
    /// 500 and unnamed 5xx.
    ApiError,
    /// 504.
    TimeoutError,
    /// 529.
    OverloadedError,
}

impl ErrorType {
    /// The type that belongs to a status.
    #[must_use]
    pub fn of_status(status: u16) -> Self {
        match status {
            401 => Self::AuthenticationError,
            402 => Self::BillingError,
            403 => Self::PermissionError,
            404 => Self::NotFoundError,
            409 => Self::ConflictError,
            413 => Self::RequestTooLarge,
            429 => Self::RateLimitError,
            504 => Self::TimeoutError,
            529 => Self::OverloadedError,
            500.. => Self::ApiError,
            _ => Self::InvalidRequestError,
        }
    }

    /// A sentence for a failure that was ordered, not caused.
    fn ordered_message(self) -> &'static str {
        match self {
            Self::InvalidRequestError => "The request was not valid (ordered from the simulator).",
            Self::AuthenticationError => "invalid x-api-key",
            Self::BillingError => "The organization's billing does not allow this request.",
            Self::PermissionError => "The API key has no permission for this resource.",
            Self::NotFoundError => "The requested resource was not found.",
            Self::ConflictError => "The resource was changed by another request.",
            Self::RequestTooLarge => "Request exceeds the maximum size.",
            Self::RateLimitError => "This request would exceed your organization's rate limit.",
            Self::ApiError => "Internal server error",
            Self::TimeoutError => "The request timed out while processing.",
            Self::OverloadedError => "Overloaded",
        }
    }
}

/// An error answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// HTTP status, 400 to 599.
    pub status: u16,
    /// `error.type`.
    pub kind: ErrorType,
    /// `error.message`.
    pub message: String,
    /// `error.details.error_code`.
    pub code: Option<String>,
    /// The raw `retry-after` header, if it is sent.
    pub retry_after: Option<String>,
    /// The `x-should-retry` header, if it is sent.
    pub should_retry: Option<bool>,
    /// Whether the rate-limit headers are left out, as behind some gateways.
    pub strip_headers: bool,
}

impl Failure {
    /// A failure with the type that belongs to its status and no special headers.
    #[must_use]
    pub fn new(status: u16, message: impl Into<String>) -> Self {
        Self {
            status,
            kind: ErrorType::of_status(status),
            message: message.into(),
            code: None,
            retry_after: None,
            should_retry: None,
            strip_headers: false,
        }
    }

    /// A 400.
    #[must_use]
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(400, message)
    }

    /// A failure somebody ordered. A 429 says `retry-after: 1` unless told otherwise.
    #[must_use]
    pub fn ordered(status: u16, order: &Order) -> Self {
        let kind = order.kind.unwrap_or_else(|| ErrorType::of_status(status));
        let retry_after = match (&order.retry_after, order.no_retry_after) {
            (_, true) => None,
            (Some(raw), false) => Some(raw.clone()),
            (None, false) => (status == 429).then(|| "1".to_owned()),
        };
        let told_to_retry = (status == 429 && retry_after.is_some()).then_some(true);
        Self {
            status,
            kind,
            message: order
                .message
                .clone()
                .unwrap_or_else(|| kind.ordered_message().to_owned()),
            code: order.code.clone(),
            should_retry: order.should_retry.or(told_to_retry),
            retry_after,
            strip_headers: order.strip_headers,
        }
    }

    /// The JSON error body.
    #[must_use]
    pub fn body(&self, request_id: &str) -> String {
        #[derive(Serialize)]
        struct Envelope<'a> {
            r#type: &'static str,
            error: Inner<'a>,
            request_id: &'a str,
        }
        #[derive(Serialize)]
        struct Inner<'a> {
            r#type: ErrorType,
            message: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            details: Option<Details<'a>>,
        }
        #[derive(Serialize)]
        struct Details<'a> {
            error_code: &'a str,
        }
        let envelope = Envelope {
            r#type: "error",
            error: Inner {
                r#type: self.kind,
                message: &self.message,
                details: self
                    .code
                    .as_deref()
                    .map(|error_code| Details { error_code }),
            },
            request_id,
        };
        serde_json::to_string(&envelope).expect("strings and enums always serialize")
    }
}

/// The details of an ordered failure, from a directive or a fault.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Order {
    /// Another `error.type` than the status has.
    pub kind: Option<ErrorType>,
    /// `error.message`.
    pub message: Option<String>,
    /// `error.details.error_code`.
    pub code: Option<String>,
    /// Raw `retry-after` header.
    pub retry_after: Option<String>,
    /// Never send `retry-after`.
    pub no_retry_after: bool,
    /// `x-should-retry` header.
    pub should_retry: Option<bool>,
    /// Leave the rate-limit headers out.
    pub strip_headers: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_has_type_message_details_and_request_id() {
        let order = Order {
            code: Some("enforced_spend_limit_reached".to_owned()),
            no_retry_after: true,
            ..Order::default()
        };
        let failure = Failure::ordered(429, &order);
        let body: serde_json::Value = serde_json::from_str(&failure.body("req_1")).unwrap();
        assert_eq!(body["type"], "error");
        assert_eq!(body["error"]["type"], "rate_limit_error");
        assert_eq!(
            body["error"]["details"]["error_code"],
            "enforced_spend_limit_reached"
        );
        assert_eq!(body["request_id"], "req_1");
        assert_eq!(failure.retry_after, None);
        assert_eq!(failure.should_retry, None);
    }

    #[test]
    fn details_are_absent_without_a_code() {
        let body = Failure::new(529, "Overloaded").body("req_1");
        assert!(!body.contains("details"), "{body}");
        assert!(body.contains("overloaded_error"), "{body}");
    }

    #[test]
    fn an_ordered_429_says_when_to_retry_and_a_529_does_not() {
        let plain = Failure::ordered(429, &Order::default());
        assert_eq!(plain.retry_after.as_deref(), Some("1"));
        assert_eq!(plain.should_retry, Some(true));
        assert_eq!(Failure::ordered(529, &Order::default()).retry_after, None);
    }

    #[test]
    fn every_documented_status_has_its_type() {
        use ErrorType::*;
        for (status, kind) in [
            (400, InvalidRequestError),
            (401, AuthenticationError),
            (402, BillingError),
            (403, PermissionError),
            (404, NotFoundError),
            (409, ConflictError),
            (413, RequestTooLarge),
            (422, InvalidRequestError),
            (429, RateLimitError),
            (500, ApiError),
            (503, ApiError),
            (504, TimeoutError),
            (529, OverloadedError),
        ] {
            assert_eq!(ErrorType::of_status(status), kind, "{status}");
        }
    }
}
