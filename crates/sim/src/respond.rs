//! Turning outcomes into HTTP responses.

use axum::{
    body::Body,
    http::{HeaderValue, Response, StatusCode, header},
};

use crate::{call::Call, conn::Conn, failure::Failure, log::Ending};

pub(crate) type Reply = Response<Body>;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream; charset=utf-8");

/// What the gateway in front of the API says about a body that is too large: not JSON.
const TOO_LARGE_HTML: &str = "<html><head><title>413 Request Entity Too Large</title></head><body>413 Request Entity Too Large</body></html>";

/// A whole error answer. Books the call.
pub(crate) fn failed(mut call: Call, failure: &Failure) -> Reply {
    let mut headers = call.headers(!failure.strip_headers);
    headers.insert(header::CONTENT_TYPE, JSON);
    // Raw values were checked when they were read; one that cannot be a header is left out.
    let raw = failure.retry_after.as_deref().map(HeaderValue::from_str);
    if let Some(Ok(value)) = raw {
        headers.insert(header::RETRY_AFTER, value);
    }
    if let Some(should) = failure.should_retry {
        let value = if should { "true" } else { "false" };
        headers.insert("x-should-retry", HeaderValue::from_static(value));
    }
    let body = failure.body(&call.request_id());
    call.answering(failure.status);
    call.end(Ending::Error);
    reply(failure.status, headers, Body::from(body))
}

/// A 413 as the network in front of the API makes it. Books the call.
pub(crate) fn too_large(mut call: Call) -> Reply {
    let mut headers = call.headers(false);
    let html = HeaderValue::from_static("text/html");
    headers.insert(header::CONTENT_TYPE, html);
    call.answering(413);
    call.end(Ending::Error);
    reply(413, headers, Body::from(TOO_LARGE_HTML))
}

/// A 200 with JSON. The call is booked by the caller.
pub(crate) fn json(call: &Call, body: impl Into<Body>) -> Reply {
    let mut headers = call.headers(true);
    headers.insert(header::CONTENT_TYPE, JSON);
    reply(200, headers, body.into())
}

/// A 200 with a stream of events. The call is booked when the stream ends.
pub(crate) fn events(call: &Call) -> axum::http::response::Parts {
    let mut headers = call.headers(true);
    headers.insert(header::CONTENT_TYPE, EVENTS);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    reply(200, headers, Body::empty()).into_parts().0
}

/// Breaks the connection and waits for the server to drop this handler with it.
pub(crate) async fn break_off(conn: &Conn) -> Reply {
    conn.abort();
    std::future::pending().await
}

fn reply(status: u16, headers: axum::http::HeaderMap, body: Body) -> Reply {
    let mut response = Response::new(body);
    *response.status_mut() =
        StatusCode::from_u16(status).expect("statuses are from 200 to 599 by construction");
    *response.headers_mut() = headers;
    response
}
