//! Error answers: from body and headers to [`ErrorAnswer`]. Written for bodies that are not what the
//! API writes: proxies and CDNs answer with HTML, with nothing, or break off.

use fairlane_core::failure::{
    ErrorAnswer, ErrorCode, ErrorKind, Hint, Place, RetryAfter, retry_after,
};
use reqwest::header::{DATE, HeaderMap, RETRY_AFTER};
use serde::Deserialize;

/// Most characters of an error's text that are kept.
pub const MESSAGE_CHARS_MAX: usize = 500;

/// An error as its body tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorBody {
    pub kind: ErrorKind,
    pub code: Option<ErrorCode>,
    pub hint: Option<Hint>,
    /// For people, on one line, at most [`MESSAGE_CHARS_MAX`] characters. May repeat parts of the request.
    pub message: String,
    pub request_id: Option<String>,
}

#[derive(Deserialize)]
struct Wire {
    error: WireError,
    #[serde(default)]
    request_id: Option<String>,
}

#[derive(Deserialize)]
struct WireError {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    message: Option<String>,
    #[serde(default)]
    details: Option<serde_json::Value>,
}

impl ErrorBody {
    /// Reads the body of an error answer or the data of an `error` event. Never fails.
    #[must_use]
    pub fn parse(body: &[u8]) -> Self {
        match serde_json::from_slice::<Wire>(body) {
            Ok(wire) => Self::of(wire),
            Err(_) => Self {
                kind: ErrorKind::Missing,
                code: None,
                hint: None,
                message: one_line(&String::from_utf8_lossy(body)),
                request_id: None,
            },
        }
    }

    fn of(wire: Wire) -> Self {
        let message = wire.error.message.unwrap_or_default();
        let code = wire
            .error
            .details
            .as_ref()
            .and_then(|details| details.get("error_code")?.as_str());
        Self {
            kind: ErrorKind::parse(Some(&wire.error.kind)),
            code: code.map(ErrorCode::parse),
            hint: Hint::read(&message),
            message: one_line(&message),
            request_id: wire.request_id,
        }
    }

    /// Puts body, status and headers together.
    pub(crate) fn answer(self, status: u16, place: Place, waits: Waits) -> ErrorAnswer {
        let Self {
            kind,
            code,
            hint,
            message: _,
            request_id: _,
        } = self;
        let Waits {
            retry_after,
            should_retry,
        } = waits;
        ErrorAnswer {
            status,
            kind,
            code,
            hint,
            retry_after,
            should_retry,
            place,
        }
    }
}

/// What the headers say about trying again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Waits {
    pub(crate) retry_after: Option<RetryAfter>,
    pub(crate) should_retry: Option<bool>,
}

impl Waits {
    /// Reads `retry-after-ms`, `retry-after` and `x-should-retry`. A date in `retry-after` is counted
    /// from the answer's own `date`, so that the clocks need not agree; else from `now_unix_ms`.
    pub(crate) fn parse(headers: &HeaderMap, now_unix_ms: u64) -> Self {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let now = text(DATE.as_str())
            .and_then(retry_after::http_date_unix_ms)
            .unwrap_or(now_unix_ms);
        let retry_after = text("retry-after-ms")
            .and_then(retry_after::parse_ms)
            .or_else(|| retry_after::parse(text(RETRY_AFTER.as_str())?, now));
        let should_retry = match text("x-should-retry") {
            Some("true") => Some(true),
            Some("false") => Some(false),
            Some(_) | None => None,
        };
        Self {
            retry_after,
            should_retry,
        }
    }
}

/// White space and control characters become single spaces; the rest is cut to a readable length.
fn one_line(text: &str) -> String {
    let words = text
        .split(|c: char| c.is_whitespace() || c.is_control())
        .filter(|word| !word.is_empty());
    let mut line = String::new();
    let mut chars_left = MESSAGE_CHARS_MAX;
    for word in words {
        if chars_left == 0 {
            break;
        }
        if !line.is_empty() {
            line.push(' ');
            chars_left -= 1;
        }
        for c in word.chars().take(chars_left) {
            line.push(c);
            chars_left -= 1;
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_apis_own_errors_are_read_in_full() {
        let body = br#"{"type":"error","error":{"type":"rate_limit_error","message":"slow\ndown","details":{"error_code":"ramp_limit_exceeded"}},"request_id":"req_1"}"#;
        let want = ErrorBody {
            kind: ErrorKind::RateLimit,
            code: Some(ErrorCode::RampLimitExceeded),
            hint: None,
            message: "slow down".into(),
            request_id: Some("req_1".into()),
        };
        assert_eq!(ErrorBody::parse(body), want);
    }

    #[test]
    fn errors_without_the_newer_fields_are_read_too() {
        for details in [
            "",
            r#","details":null"#,
            r#","details":[]"#,
            r#","details":{"error_code":5}"#,
        ] {
            let body = format!(r#"{{"type":"error","error":{{"type":"api_error"{details}}}}}"#);
            let body = ErrorBody::parse(body.as_bytes());
            assert_eq!(
                (body.kind, body.code, body.request_id),
                (ErrorKind::Api, None, None),
                "{details}"
            );
        }
    }

    #[test]
    fn bodies_of_others_count_as_missing_and_keep_a_readable_line() {
        let html = b"<html>\r\n<head><title>413</title></head>\r\n\t<body>Too large</body>";
        let body = ErrorBody::parse(html);
        assert_eq!(body.kind, ErrorKind::Missing);
        assert_eq!(
            body.message,
            "<html> <head><title>413</title></head> <body>Too large</body>"
        );
        for bytes in [
            &b""[..],
            b"{",
            b"null",
            b"{\"error\":\"x\"}",
            b"\xff\xfe",
            b"[[[[",
        ] {
            assert_eq!(ErrorBody::parse(bytes).kind, ErrorKind::Missing);
        }
    }

    #[test]
    fn a_long_text_is_cut() {
        let body = ErrorBody::parse("é ".repeat(10_000).as_bytes());
        assert_eq!(body.message.chars().count(), MESSAGE_CHARS_MAX);
        assert_eq!(
            ErrorBody::parse(&[b'x'; 9_000]).message.len(),
            MESSAGE_CHARS_MAX
        );
    }

    #[test]
    fn a_date_is_counted_from_the_servers_own_clock() {
        let mut headers = HeaderMap::new();
        headers.insert(
            RETRY_AFTER,
            "Sun, 06 Nov 1994 08:49:47 GMT".parse().unwrap(),
        );
        headers.insert(DATE, "Sun, 06 Nov 1994 08:49:37 GMT".parse().unwrap());
        let retry_after = |headers: &HeaderMap| {
            Waits::parse(headers, 784_111_786_000)
                .retry_after
                .map(RetryAfter::ms)
        };
        assert_eq!(retry_after(&headers), Some(10_000));
        headers.remove(DATE);
        assert_eq!(retry_after(&headers), Some(1_000));
        headers.insert("retry-after-ms", "250".parse().unwrap());
        assert_eq!(retry_after(&headers), Some(250));
    }
}
