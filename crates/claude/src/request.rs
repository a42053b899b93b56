//! What a call sends: the body as it is, and the headers a job brings.

use bytes::Bytes;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value};

const BETA: HeaderName = HeaderName::from_static("anthropic-beta");

/// Headers that belong to the client, not to a job.
const RESERVED: [&str; 9] = [
    "accept-encoding",
    "authorization",
    "connection",
    "content-length",
    "content-type",
    "host",
    "te",
    "transfer-encoding",
    "x-api-key",
];

/// One call of the Messages API.
#[derive(Debug, Clone)]
pub struct CallRequest {
    pub(crate) body: Bytes,
    pub(crate) headers: HeaderMap,
}

/// Why a request cannot be sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    #[error("request is not a JSON object; send the body of a Messages API call")]
    NotAnObject,
    #[error("header {name:?} cannot be sent with a job; it belongs to the client")]
    Reserved { name: String },
    #[error("header name {name:?} is not allowed; use letters, digits and '-'")]
    Name { name: String },
    #[error("value of header {name:?} is not allowed; use visible ASCII characters")]
    Value { name: String },
}

impl CallRequest {
    /// A request with a body that is sent byte for byte. It should say `"stream": true`; without it the
    /// whole answer has to arrive within the progress timeout.
    #[must_use]
    pub fn new(body: Bytes) -> Self {
        Self {
            body,
            headers: HeaderMap::new(),
        }
    }

    /// A request with this body, as a stream.
    ///
    /// # Errors
    /// [`RequestError::NotAnObject`].
    pub fn from_json(body: &Value) -> Result<Self, RequestError> {
        let body = body.as_object().ok_or(RequestError::NotAnObject)?;
        Ok(Self::of(body.clone()))
    }

    /// A request with these fields, as a stream.
    #[must_use]
    pub fn of(mut body: Map<String, Value>) -> Self {
        body.insert("stream".to_owned(), Value::Bool(true));
        Self::new(Value::Object(body).to_string().into())
    }

    /// Adds the betas the body relies on, for example `output-300k-2026-03-24`. Betas belong to one
    /// request and are never mixed between jobs.
    ///
    /// # Errors
    /// [`RequestError::Value`] when one cannot be a header.
    pub fn betas<S: AsRef<str>>(mut self, betas: &[S]) -> Result<Self, RequestError> {
        if betas.is_empty() {
            return Ok(self);
        }
        let list: Vec<&str> = betas.iter().map(AsRef::as_ref).collect();
        let value = header_value(BETA.as_str(), &list.join(","))?;
        self.headers.insert(BETA, value);
        Ok(self)
    }

    /// Adds a header, such as `traceparent`; one of the same name is replaced. `anthropic-version` given
    /// here goes before the client's own.
    ///
    /// # Errors
    /// [`RequestError`] when the header is the client's, or cannot be sent.
    pub fn header(mut self, name: &str, value: &str) -> Result<Self, RequestError> {
        let parsed = HeaderName::from_bytes(name.as_bytes());
        let parsed = parsed.map_err(|_| RequestError::Name {
            name: name.to_owned(),
        })?;
        if RESERVED.contains(&parsed.as_str()) {
            return Err(RequestError::Reserved {
                name: name.to_owned(),
            });
        }
        self.headers.insert(parsed, header_value(name, value)?);
        Ok(self)
    }
}

fn header_value(name: &str, value: &str) -> Result<HeaderValue, RequestError> {
    let error = |_| RequestError::Value {
        name: name.to_owned(),
    };
    HeaderValue::from_str(value).map_err(error)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_body_becomes_a_stream() {
        let request = CallRequest::from_json(&json!({"model": "m", "stream": false})).unwrap();
        assert_eq!(&request.body[..], br#"{"model":"m","stream":true}"#);
        assert_eq!(
            CallRequest::from_json(&json!([])).unwrap_err(),
            RequestError::NotAnObject
        );
    }

    #[test]
    fn betas_are_one_header() {
        let request = CallRequest::new(Bytes::new())
            .betas(&["a-1", "b-2"])
            .unwrap();
        assert_eq!(request.headers["anthropic-beta"], "a-1,b-2");
        let none: [&str; 0] = [];
        assert!(
            CallRequest::new(Bytes::new())
                .betas(&none)
                .unwrap()
                .headers
                .is_empty()
        );
        assert!(CallRequest::new(Bytes::new()).betas(&["a\nb"]).is_err());
    }

    #[test]
    fn jobs_cannot_bring_headers_of_the_client_or_split_one() {
        for name in RESERVED.iter().chain(&["X-Api-Key", "Host"]) {
            let refused = CallRequest::new(Bytes::new())
                .header(name, "x")
                .unwrap_err();
            assert!(matches!(refused, RequestError::Reserved { .. }), "{name}");
        }
        assert!(CallRequest::new(Bytes::new()).header("a b", "x").is_err());
        assert!(
            CallRequest::new(Bytes::new())
                .header("a", "x\r\nx-api-key: y")
                .is_err()
        );
    }
}
