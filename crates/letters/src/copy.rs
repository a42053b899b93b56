//! A letter as one line of a file: everything there is of it, its body byte for byte.

use async_nats::HeaderMap;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use fairlane_nats::StoredLetter;
use fairlane_wire::letter::Letter;
use serde::{Deserialize, Serialize};

/// A letter outside of the stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Copy {
    /// Sequence it had in its stream.
    pub seq: u64,
    pub letter: Letter,
    /// Headers of the original message, each value with its name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
    /// The body, if it is text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The body in base64, if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<String>,
}

/// A line that is no letter.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    #[error("not a dead letter as `fairlane dlq export` writes it")]
    Line(#[from] serde_json::Error),
    #[error("body_base64 is not base64")]
    Base64(#[from] base64::DecodeError),
}

impl Copy {
    /// The copy of a stored letter.
    #[must_use]
    pub fn of(stored: &StoredLetter) -> Self {
        let mut headers: Vec<(String, String)> = Vec::new();
        for (name, values) in stored.headers.iter() {
            for value in values {
                headers.push((name.to_string(), value.to_string()));
            }
        }
        headers.sort();
        let text = std::str::from_utf8(&stored.body).ok();
        Self {
            seq: stored.seq,
            letter: stored.letter.clone(),
            headers,
            body: text.map(str::to_owned),
            body_base64: text.is_none().then(|| STANDARD.encode(&stored.body)),
        }
    }

    /// Reads a line.
    ///
    /// # Errors
    /// [`CopyError`].
    pub fn from_line(line: &str) -> Result<Self, CopyError> {
        Ok(serde_json::from_str(line)?)
    }

    /// Headers and body of the original message.
    ///
    /// # Errors
    /// [`CopyError::Base64`].
    pub fn original(&self) -> Result<(HeaderMap, Bytes), CopyError> {
        let mut headers = HeaderMap::new();
        for (name, value) in &self.headers {
            headers.append(name.as_str(), value.as_str());
        }
        let body = match (&self.body, &self.body_base64) {
            (Some(text), _) => text.clone().into(),
            (None, Some(base64)) => STANDARD.decode(base64)?.into(),
            (None, None) => Bytes::new(),
        };
        Ok((headers, body))
    }
}

#[cfg(test)]
mod tests {
    use fairlane_core::JobId;
    use fairlane_wire::{DeadReason, Failure};

    use super::*;

    #[test]
    fn every_body_and_header_survives_a_file() {
        for body in [&b"{}"[..], b"", b"\xff\0\r\n", "淡".as_bytes()] {
            let failure = Failure::new(DeadReason::Schema, "x");
            let job = JobId::parse("a").unwrap();
            let mut headers = HeaderMap::new();
            headers.append("X-Own", "2");
            headers.append("X-Own", "1");
            headers.append("Nats-TTL", "1");
            let stored = StoredLetter {
                seq: 7,
                letter: Letter::new(None, job, failure, 5),
                headers,
                body: Bytes::from_static(body),
                cut: None,
            };
            let line = serde_json::to_string(&Copy::of(&stored)).unwrap();
            assert!(!line.contains('\n'));
            let copy = Copy::from_line(&line).unwrap();
            let (headers, found) = copy.original().unwrap();
            assert_eq!((copy.letter, found), (stored.letter, stored.body));
            assert_eq!(headers.get("Nats-TTL").unwrap().as_str(), "1");
            assert_eq!(headers.get_all("X-Own").count(), 2);
        }
    }
}
