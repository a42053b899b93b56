//! Dead letters: how they are written, and read back with the message they were made from.
//!
//! The body and the headers of that message are kept byte for byte. What does not fit into the
//! letter goes to the store of large bodies, which keeps its objects longer than letters live.

use async_nats::HeaderMap;
use bytes::Bytes;
use fairlane_core::TenantId;
use fairlane_wire::letter::{Letter, original_header, unknown_tenant, was};
use fairlane_wire::names::header;

use crate::client::Nats;
use crate::jobs::{ReadError, StoredMessage};
use crate::payloads::PayloadError;
use crate::publish::{Stored, WriteError};

/// Bytes of the original headers that stay on the letter. The server takes 64 KiB in all, and a
/// message that is nearly all headers must be buried too.
const HEADER_BYTES_MAX: usize = 16 * 1024;

/// The message a letter is made from.
#[derive(Debug, Clone)]
pub struct Original<'a> {
    pub headers: &'a HeaderMap,
    /// The header block as stored, if it cannot be read as headers.
    pub raw_headers: Option<Bytes>,
    pub body: Bytes,
}

/// Why a letter was not written. Repeating is safe; until it succeeds nothing of the job may be
/// deleted.
#[derive(Debug, thiserror::Error)]
pub enum BuryError {
    #[error("the dead letter could not be stored")]
    Write(#[from] WriteError),
    #[error("what does not fit into the dead letter could not be stored")]
    Payload(#[from] PayloadError),
}

/// Why a letter could not be read.
#[derive(Debug, thiserror::Error)]
pub enum LetterError {
    #[error("the dead letter could not be read")]
    Read(#[from] ReadError),
    #[error("message {seq} of the dead letters is none of ours: {text}")]
    NotOurs { seq: u64, text: String },
    #[error("a part of dead letter {seq} that was stored apart cannot be read")]
    Payload {
        seq: u64,
        #[source]
        error: PayloadError,
    },
}

/// A letter as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredLetter {
    /// Sequence in the stream of dead letters.
    pub seq: u64,
    pub letter: Letter,
    /// Headers of the original message. Incomplete if the letter has a `headers_claim`.
    pub headers: HeaderMap,
    /// Body of the original message, byte for byte: as it was published, also if the job had another one.
    pub body: Bytes,
    /// What was cut of the body, as its job's header says; only if the body as it was published is gone.
    pub cut: Option<String>,
}

impl Nats {
    /// Stores the dead letter of a run of a job; it has one, however often this is repeated.
    ///
    /// # Errors
    /// [`BuryError`].
    pub async fn bury(&self, letter: &Letter, original: Original<'_>) -> Result<Stored, BuryError> {
        self.bury_as(&letter.message_id(), letter, original).await
    }

    /// [`Nats::bury`] under a deduplication id of the caller's, for what never became a job (see
    /// [`Letter::submission_message_id`]).
    ///
    /// # Errors
    /// [`BuryError`].
    pub async fn bury_as(
        &self,
        id: &str,
        letter: &Letter,
        original: Original<'_>,
    ) -> Result<Stored, BuryError> {
        let Original {
            headers,
            raw_headers,
            body,
        } = original;
        let tenant = tenant_of(letter);
        let reason = letter.failure.reason.as_str();
        let subject = self.names.dlq_subject(reason, &tenant);
        let mut letter = letter.clone();
        let (kept, is_whole) = kept_headers(headers);
        let raw = raw_headers.or_else(|| (!is_whole).then(|| block(headers)));
        if let Some(raw) = raw {
            let name = object_name(&tenant, &letter, "headers");
            self.payloads().put(&name, &raw, usize::MAX).await?;
            letter.headers_claim = Some(name);
        }
        let mut headers = kept;
        headers.insert(header::JOB, letter.job.as_str());
        headers.insert(header::REASON, reason);
        headers.insert(header::LETTER, letter.to_value().as_str());
        let publish =
            |headers, body| async { self.jobs().publish(&subject, Some(id), headers, body).await };
        match publish(headers.clone(), body.clone()).await {
            Err(WriteError::TooLarge { .. }) => {
                let name = object_name(&tenant, &letter, "body");
                self.payloads().put(&name, &body, usize::MAX).await?;
                headers.insert(header::CLAIM, name);
                Ok(publish(headers, Bytes::new()).await?)
            }
            stored => Ok(stored?),
        }
    }

    /// The letter at `seq` with the message it was made from; None if there is none (any more).
    ///
    /// # Errors
    /// [`LetterError`].
    pub async fn letter(&self, seq: u64) -> Result<Option<StoredLetter>, LetterError> {
        let stream = self.names.dlq_stream();
        let Some(message) = self.jobs().get(&stream, seq).await? else {
            return Ok(None);
        };
        if self.names.parse_dlq_subject(&message.subject).is_none() {
            return Ok(None);
        }
        let letter = facts(&message)?;
        let headers = originals(&message.headers);
        let mut body = message.payload.clone();
        // A publisher may have named anything, also what belongs to another tenant.
        let own = format!("{}.", tenant_of(&letter));
        let claim = message.headers.get(header::CLAIM);
        let claim = claim.map(ToString::to_string);
        if let Some(name) = claim.filter(|name| body.is_empty() && name.starts_with(&own)) {
            body = match self.payloads().get(&name, usize::MAX).await {
                Ok(body) => body,
                // Its publisher named an object that never was, as the letter says.
                Err(PayloadError::Missing { .. }) if letter.attempts == 0 => body,
                Err(error) => return Err(LetterError::Payload { seq, error }),
            };
        }
        let mut cut = None;
        // On a submission that was turned away its publisher may have written anything.
        let was_job = self.names.submit_tenant(&letter.subject).is_none();
        let original = headers.get(header::ORIGINAL).filter(|_| was_job);
        if let Some(name) = original.map(ToString::to_string) {
            match self.payloads().get(&name, usize::MAX).await {
                Ok(original) if name.starts_with(&own) => body = original,
                Ok(_) | Err(PayloadError::Missing { .. }) => {
                    cut = headers.get(header::TRUNCATED).map(ToString::to_string);
                }
                Err(error) => return Err(LetterError::Payload { seq, error }),
            }
        }
        Ok(Some(StoredLetter {
            seq,
            letter,
            headers,
            body,
            cut,
        }))
    }
}

fn facts(message: &StoredMessage) -> Result<Letter, LetterError> {
    let not_ours = |text: String| LetterError::NotOurs {
        seq: message.seq,
        text,
    };
    let facts = message.headers.get(header::LETTER);
    let facts = facts.ok_or_else(|| not_ours(format!("it has no {}", header::LETTER)))?;
    Letter::from_json(facts.as_str()).map_err(|error| not_ours(error.to_string()))
}

fn tenant_of(letter: &Letter) -> TenantId {
    let tenant = letter.tenant.as_deref();
    let tenant = tenant.and_then(|name| TenantId::parse(name).ok());
    tenant.unwrap_or_else(unknown_tenant)
}

/// The same on every repetition, and no other letter's.
fn object_name(tenant: &TenantId, letter: &Letter, part: &str) -> String {
    let stream = if letter.subject.contains(".submit.") {
        "submit"
    } else {
        "jobs"
    };
    format!("{tenant}.letter-{stream}-{}-{part}", letter.seq)
}

/// The original headers that fit, under the names a letter keeps them by; and whether all do.
fn kept_headers(original: &HeaderMap) -> (HeaderMap, bool) {
    let mut names: Vec<_> = original.iter().collect();
    // Ours first: one of them may say where the body is.
    names.sort_by_key(|(name, _)| (!name.to_string().starts_with("Fl-"), name.to_string()));
    let mut headers = HeaderMap::new();
    let mut room = HEADER_BYTES_MAX;
    let mut is_whole = true;
    for (name, values) in names {
        let kept = was(name.as_ref());
        for value in values {
            let bytes = kept.len() + value.as_str().len();
            match room.checked_sub(bytes) {
                Some(left) => {
                    room = left;
                    headers.append(kept.as_str(), value.clone());
                }
                None => is_whole = false,
            }
        }
    }
    (headers, is_whole)
}

/// The original's headers on a letter, under their own names.
fn originals(on_letter: &HeaderMap) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, values) in on_letter.iter() {
        if let Some(name) = original_header(name.as_ref()) {
            for value in values {
                headers.append(name, value.clone());
            }
        }
    }
    headers
}

/// A header block as it travels.
fn block(headers: &HeaderMap) -> Bytes {
    let mut block = "NATS/1.0\r\n".to_owned();
    for (name, values) in headers.iter() {
        for value in values {
            block.push_str(&format!("{name}: {value}\r\n"));
        }
    }
    block.push_str("\r\n");
    block.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_to_the_server_are_kept_where_it_does_not_see_them() {
        let mut original = HeaderMap::new();
        original.insert("Nats-Rollup", "all");
        original.insert("nats-ttl", "1");
        original.insert("Fl-Reason", "mine");
        original.append("X-Own", "1");
        original.append("X-Own", "2");
        let (kept, is_whole) = kept_headers(&original);
        assert!(is_whole);
        assert!(kept.get("Nats-Rollup").is_none());
        assert_eq!(kept.get("Fl-Was-nats-ttl").unwrap().as_str(), "1");
        assert_eq!(originals(&kept), original);
    }

    #[test]
    fn headers_without_end_are_kept_apart() {
        let mut original = HeaderMap::new();
        original.insert("A", "x".repeat(HEADER_BYTES_MAX));
        original.insert("Fl-Claim", "acme.a");
        let (kept, is_whole) = kept_headers(&original);
        assert_eq!((kept.len(), is_whole), (1, false));
        assert!(block(&original).ends_with(b"\r\n\r\n"));
    }
}
