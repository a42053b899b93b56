//! Writing dead letters.

use async_nats::HeaderMap;
use bytes::Bytes;
use fairlane_core::TenantId;
use fairlane_wire::letter::{Letter, unknown_tenant};
use fairlane_wire::names::header;

use crate::client::Nats;
use crate::publish::{Stored, WriteError};

impl Nats {
    /// Stores the dead letter of a job: its body as it came, its own headers, and the facts. A job
    /// has one letter, however often this is repeated.
    ///
    /// # Errors
    /// [`WriteError`]; repeating is safe. Until it succeeds nothing of the job may be deleted.
    pub async fn bury(
        &self,
        letter: &Letter,
        original: &HeaderMap,
        body: Bytes,
    ) -> Result<(), WriteError> {
        self.bury_as(&letter.message_id(), letter, original, body)
            .await
            .map(|_| ())
    }

    /// [`Nats::bury`] under a deduplication id of the caller's, for what never became a job (see
    /// [`Letter::submission_message_id`]).
    ///
    /// # Errors
    /// As [`Nats::bury`].
    pub async fn bury_as(
        &self,
        id: &str,
        letter: &Letter,
        original: &HeaderMap,
        body: Bytes,
    ) -> Result<Stored, WriteError> {
        let tenant = letter
            .tenant
            .as_deref()
            .and_then(|name| TenantId::parse(name).ok());
        let tenant = tenant.unwrap_or_else(unknown_tenant);
        let reason = letter.failure.reason.as_str();
        let subject = self.names.dlq_subject(reason, &tenant);
        self.jobs()
            .publish(&subject, Some(id), headers(letter, original), body)
            .await
    }
}

fn headers(letter: &Letter, original: &HeaderMap) -> HeaderMap {
    let mut headers = own_headers(original);
    headers.insert(header::JOB, letter.job.as_str());
    headers.insert(header::REASON, letter.failure.reason.as_str());
    let facts = serde_json::to_string(letter).expect("a letter has no map keys that are not text");
    headers.insert(header::LETTER, ascii(&facts).as_str());
    headers
}

/// Headers of a message without the server's own: those are instructions, and not the sender's to
/// give.
#[must_use]
pub fn own_headers(original: &HeaderMap) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, values) in original.iter() {
        if !name.to_string().to_ascii_lowercase().starts_with("nats-") {
            for value in values {
                headers.append(name.clone(), value.clone());
            }
        }
    }
    headers
}

/// JSON in ASCII only: not every client reads headers as UTF-8.
fn ascii(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    let mut units = [0; 2];
    for c in json.chars() {
        if c.is_ascii() {
            out.push(c);
        } else {
            for unit in c.encode_utf16(&mut units) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_of_any_text_survive_as_ascii() {
        let text = serde_json::to_string("淡い 🎴 é \\ \"").unwrap();
        let plain = ascii(&text);
        assert!(plain.is_ascii());
        assert_eq!(
            serde_json::from_str::<String>(&plain).unwrap(),
            "淡い 🎴 é \\ \""
        );
    }

    #[test]
    fn instructions_to_the_server_are_not_passed_on() {
        let mut original = HeaderMap::new();
        original.insert("Nats-Rollup", "all");
        original.insert("nats-ttl", "1");
        original.insert("traceparent", "00-1");
        let kept = own_headers(&original);
        assert_eq!(kept.len(), 1);
        assert_eq!(
            kept.get("traceparent").map(|value| value.as_str()),
            Some("00-1")
        );
    }
}
