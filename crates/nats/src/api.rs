//! Calls of the JetStream API as JSON, for what the client library has no method for.

use std::time::Duration;

use async_nats::{HeaderMap, Request, RequestErrorKind};
use bytes::Bytes;
use futures::stream::{FuturesUnordered, StreamExt};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::client::Nats;

const PREFIX: &str = "$JS.API";

/// Error codes of the server that mean something to us.
pub(crate) mod code {
    pub(crate) const CONSUMER_EXISTS: u64 = 10148;
    pub(crate) const CONSUMER_NAME_IN_USE: u64 = 10013;
    pub(crate) const CONSUMER_NOT_FOUND: u64 = 10014;
    pub(crate) const NO_MESSAGE_FOUND: u64 = 10037;
    pub(crate) const SEQUENCE_NOT_FOUND: u64 = 10043;
    pub(crate) const DELETE_FAILED: u64 = 10057;
    pub(crate) const STREAM_NAME_IN_USE: u64 = 10058;
    pub(crate) const STREAM_NOT_FOUND: u64 = 10059;
    pub(crate) const STORE_FAILED: u64 = 10077;
    pub(crate) const WRONG_LAST_SEQUENCE_CONSTANT: u64 = 10164;
    pub(crate) const API_LEVEL: u64 = 10185;
    /// No leader yet, or peers are still joining: worth another try.
    pub(crate) const PASSING: [u64; 4] = [10004, 10005, 10008, 10009];
}

/// Why a JetStream API call gave nothing.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    #[error("{call}: JetStream is not available (not enabled, no leader, or no such object)")]
    Unavailable { call: String },
    #[error("{call}: no reply in time")]
    TimedOut { call: String },
    #[error("{call}: the server refused: {text} (code {code})")]
    Refused {
        call: String,
        code: u64,
        text: String,
    },
    #[error("{call}: the request could not be sent or its reply could not be read: {text}")]
    Broken { call: String, text: String },
}

impl ApiError {
    /// The server's error code, if it answered with one.
    #[must_use]
    pub fn code(&self) -> Option<u64> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            Self::Unavailable { .. } | Self::TimedOut { .. } | Self::Broken { .. } => None,
        }
    }
}

/// A stream without a leader answers nobody, also later: what was asked meanwhile is asked again this often.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Asks, and asks again every second until one of the requests is answered or the first one gives up. For what may be asked
/// twice. Otherwise a reader would wait out the whole timeout of a request although the next leader came long before.
pub(crate) async fn insist<T, F>(mut ask: impl FnMut() -> F) -> T
where
    F: Future<Output = T>,
{
    let mut asked = FuturesUnordered::new();
    asked.push(ask());
    loop {
        tokio::select! {
            biased;
            Some(answer) = asked.next() => return answer,
            () = tokio::time::sleep(ASK_AGAIN) => asked.push(ask()),
        }
    }
}

/// Calls `$JS.API.<call>` and decodes the reply.
pub(crate) async fn call<T: DeserializeOwned>(
    nats: &Nats,
    call: &str,
    body: &Value,
    headers: Option<HeaderMap>,
) -> Result<T, ApiError> {
    let broken = |text: String| ApiError::Broken {
        call: call.to_owned(),
        text,
    };
    let payload = if body.is_null() {
        Bytes::new()
    } else {
        body.to_string().into()
    };
    let mut request = Request::new()
        .payload(payload)
        .timeout(Some(nats.request_timeout()));
    if let Some(headers) = headers {
        request = request.headers(headers);
    }
    let reply = match nats
        .client
        .send_request(format!("{PREFIX}.{call}"), request)
        .await
    {
        Ok(reply) => reply,
        Err(error) => {
            return Err(match error.kind() {
                RequestErrorKind::TimedOut => ApiError::TimedOut {
                    call: call.to_owned(),
                },
                RequestErrorKind::NoResponders => ApiError::Unavailable {
                    call: call.to_owned(),
                },
                RequestErrorKind::InvalidSubject
                | RequestErrorKind::MaxPayloadExceeded
                | RequestErrorKind::Other => broken(error.to_string()),
            });
        }
    };
    let value: Value =
        serde_json::from_slice(&reply.payload).map_err(|error| broken(error.to_string()))?;
    if let Some(error) = value.get("error") {
        return Err(refused(call, error));
    }
    serde_json::from_value(value).map_err(|error| broken(error.to_string()))
}

fn refused(call: &str, error: &Value) -> ApiError {
    let number = |field| error.get(field).and_then(Value::as_u64);
    ApiError::Refused {
        call: call.to_owned(),
        code: number("err_code").or_else(|| number("code")).unwrap_or(0),
        text: error
            .get("description")
            .and_then(Value::as_str)
            .unwrap_or("no reason given")
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_nobody_answers_is_asked_again_and_the_first_answer_counts() {
        let (asked, began) = (AtomicUsize::new(0), Instant::now());
        let answer = insist(|| async {
            match asked.fetch_add(1, Ordering::Relaxed) {
                // Asked of nobody: only its timeout ends it.
                0 | 1 => tokio::time::sleep(Duration::from_secs(5)).await,
                _ => {}
            }
            asked.load(Ordering::Relaxed)
        });
        assert_eq!(answer.await, 3);
        assert_eq!(began.elapsed(), ASK_AGAIN * 2);

        let silent = insist(|| tokio::time::sleep(Duration::from_secs(5)));
        silent.await;
        assert_eq!(began.elapsed(), ASK_AGAIN * 2 + Duration::from_secs(5));
    }
}
