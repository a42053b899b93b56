//! Keys with revisions and lifetimes: the only locks of the fleet.
//!
//! The client's own KV methods lose a key's TTL on update, and `create` over a delete marker
//! writes a key without one: a lease that never ends. So every write here is a plain publish
//! that carries the expected revision and the TTL each time. Ordinary KV clients can still read
//! the buckets.
//!
//! A key is given back by a *tombstone*: a KV delete that keeps a body (who settled what) for a
//! while. When a TTL ends, the server leaves a *marker*. Both have revisions, and a write over
//! them must name that revision.

use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::message::StreamMessage;
use bytes::Bytes;
use fairlane_wire::names::header;

use crate::client::Nats;
use crate::jobs::{self, ReadError};
use crate::publish::{self, PendingWrite, WriteError};

/// Version of a key: the bucket-wide sequence of the write. Strictly increasing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl Revision {
    /// The expectation that the key has never existed, or its last trace is gone.
    pub const ABSENT: Self = Self(0);
}

impl std::fmt::Display for Revision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// What a key holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// A value.
    Live(Bytes),
    /// Nothing: it was given back, with this body (empty for a plain KV delete).
    Deleted(Bytes),
    /// Nothing: its TTL ended.
    Expired,
}

/// A key at one revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The key without the bucket.
    pub key: String,
    /// The revision of this content.
    pub revision: Revision,
    /// When the server stored it, unix milliseconds.
    pub stored_ms: u64,
    /// What it holds.
    pub content: Content,
}

impl Entry {
    /// The value, if the key holds one.
    #[must_use]
    pub fn value(&self) -> Option<&Bytes> {
        match &self.content {
            Content::Live(value) => Some(value),
            Content::Deleted(_) | Content::Expired => None,
        }
    }
}

/// What became of a write whose ack was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Confirmed {
    /// It is stored as this revision.
    Landed(Revision),
    /// It is not stored and the expected revision is still the current one. Try again with the
    /// same expectation: if the first write arrives late, one of the two fails.
    Pending,
    /// The key has moved on to another content.
    Overtaken(Option<Entry>),
}

/// One KV bucket.
#[derive(Debug, Clone)]
pub struct Bucket {
    nats: Nats,
    name: String,
}

impl Bucket {
    pub(crate) fn new(nats: Nats, name: &str) -> Self {
        Self {
            nats,
            name: name.to_owned(),
        }
    }

    /// The bucket's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn nats(&self) -> &Nats {
        &self.nats
    }

    /// Name of the stream behind the bucket.
    pub(crate) fn stream(&self) -> String {
        format!("KV_{}", self.name)
    }

    pub(crate) fn subject(&self, key: &str) -> String {
        format!("$KV.{}.{key}", self.name)
    }

    /// Replaces `expected` by `value`, to live for `ttl` (rounded up to whole seconds).
    ///
    /// # Errors
    /// [`WriteError::Conflict`] if the key has another revision, [`WriteError::Unknown`] if no
    /// ack came (see [`Bucket::confirm`]), others if it is certainly not stored.
    pub async fn put_if(
        &self,
        key: &str,
        value: Bytes,
        expected: Revision,
        ttl: Option<Duration>,
    ) -> Result<Revision, WriteError> {
        let pending = self.send_put_if(key, value, expected, ttl).await?;
        Ok(Revision(pending.wait().await?.seq))
    }

    /// [`Bucket::put_if`] in two steps: this one sends, [`PendingWrite::wait`] gives the outcome
    /// (`seq` is the new revision).
    ///
    /// # Errors
    /// [`WriteError`], all certain: nothing was sent.
    pub async fn send_put_if(
        &self,
        key: &str,
        value: Bytes,
        expected: Revision,
        ttl: Option<Duration>,
    ) -> Result<PendingWrite, WriteError> {
        let headers = publish::conditional(expected.0, ttl);
        publish::send(&self.nats, self.subject(key), headers, value).await
    }

    /// Writes `value` whatever the key holds. For keys with one writer, or where the last wins.
    ///
    /// # Errors
    /// [`WriteError`], never a conflict.
    pub async fn put(
        &self,
        key: &str,
        value: Bytes,
        ttl: Option<Duration>,
    ) -> Result<Revision, WriteError> {
        let mut headers = HeaderMap::new();
        publish::add_ttl(&mut headers, ttl);
        let pending = publish::send(&self.nats, self.subject(key), headers, value).await?;
        Ok(Revision(pending.wait().await?.seq))
    }

    /// Writes `value` if the key holds none: it never existed, was given back, or expired.
    ///
    /// # Errors
    /// [`WriteError::Conflict`] if the key is held (`current` is the holder's revision).
    pub async fn create(
        &self,
        key: &str,
        value: Bytes,
        ttl: Option<Duration>,
    ) -> Result<Revision, WriteError> {
        let first = self.put_if(key, value.clone(), Revision::ABSENT, ttl).await;
        let Err(WriteError::Conflict { subject, current }) = first else {
            return first;
        };
        match self.get(key).await {
            Ok(Some(entry)) if entry.value().is_none() => {
                self.put_if(key, value, entry.revision, ttl).await
            }
            // The trace that was in the way went away in between.
            Ok(None) => self.put_if(key, value, Revision::ABSENT, ttl).await,
            Ok(Some(entry)) => Err(WriteError::Conflict {
                subject,
                current: Some(entry.revision.0),
            }),
            Err(error) => {
                tracing::debug!(%error, "cannot tell what holds the key");
                Err(WriteError::Conflict { subject, current })
            }
        }
    }

    /// Gives `key` back: replaces `expected` by a tombstone with `body`, kept for `ttl`. After that
    /// nothing is left, and the revision to expect is [`Revision::ABSENT`] again.
    ///
    /// # Errors
    /// As [`Bucket::put_if`].
    pub async fn tombstone_if(
        &self,
        key: &str,
        expected: Revision,
        body: Bytes,
        ttl: Duration,
    ) -> Result<Revision, WriteError> {
        let pending = self.send_tombstone_if(key, expected, body, ttl).await?;
        Ok(Revision(pending.wait().await?.seq))
    }

    /// [`Bucket::tombstone_if`] in two steps.
    ///
    /// # Errors
    /// [`WriteError`], all certain: nothing was sent.
    pub async fn send_tombstone_if(
        &self,
        key: &str,
        expected: Revision,
        body: Bytes,
        ttl: Duration,
    ) -> Result<PendingWrite, WriteError> {
        let mut headers = publish::conditional(expected.0, Some(ttl));
        headers.insert(header::KV_OPERATION, "DEL");
        // Without this the server takes the tombstone for a value and writes a marker when its TTL
        // ends: one more message for every job.
        headers.insert(header::MARKER_REASON, "Remove");
        publish::send(&self.nats, self.subject(key), headers, body).await
    }

    /// The key as the leader of the bucket has it: the read to decide on. None if there is no
    /// trace of it.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn get(&self, key: &str) -> Result<Option<Entry>, ReadError> {
        let message = jobs::leader_last(&self.nats, &self.stream(), &self.subject(key)).await?;
        Ok(message.and_then(|message| self.entry(message)))
    }

    /// The key as any replica has it: cheaper, and possibly behind. For showing, not deciding.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn get_direct(&self, key: &str) -> Result<Option<Entry>, ReadError> {
        let message = jobs::direct_last(&self.nats, &self.stream(), &self.subject(key)).await?;
        Ok(message.and_then(|message| self.entry(message)))
    }

    /// Finds out, from the leader, what became of a write that ended [`WriteError::Unknown`].
    /// `wrote` should name its writer, so that nobody else's equal write is taken for it.
    ///
    /// # Errors
    /// [`ReadError`]: still unknown, ask again.
    pub async fn confirm(
        &self,
        key: &str,
        wrote: &Content,
        expected: Revision,
    ) -> Result<Confirmed, ReadError> {
        let entry = self.get(key).await?;
        Ok(match entry {
            Some(entry) if entry.revision > expected && entry.content == *wrote => {
                Confirmed::Landed(entry.revision)
            }
            Some(entry) if entry.revision == expected => Confirmed::Pending,
            None if expected == Revision::ABSENT => Confirmed::Pending,
            other => Confirmed::Overtaken(other),
        })
    }

    fn entry(&self, message: StreamMessage) -> Option<Entry> {
        Some(Entry {
            key: key_in(&message.subject, &self.name)?.to_owned(),
            revision: Revision(message.sequence),
            stored_ms: jobs::unix_ms(message.time.unix_timestamp_nanos()),
            content: content(Some(&message.headers), message.payload),
        })
    }
}

/// The key in the subject of a bucket's message.
pub(crate) fn key_in<'a>(subject: &'a str, bucket: &str) -> Option<&'a str> {
    subject
        .strip_prefix("$KV.")?
        .strip_prefix(bucket)?
        .strip_prefix('.')
}

/// What a stored message of a bucket means.
pub(crate) fn content(headers: Option<&HeaderMap>, payload: Bytes) -> Content {
    let find = |name: &str| {
        headers
            .and_then(|headers| headers.get(name))
            .map(|value| value.as_str())
    };
    match (find(header::KV_OPERATION), find(header::MARKER_REASON)) {
        (Some("DEL" | "PURGE"), _) => Content::Deleted(payload),
        (_, Some("MaxAge")) => Content::Expired,
        (_, Some(_)) => Content::Deleted(Bytes::new()),
        (_, None) => Content::Live(payload),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.insert(*name, *value);
        }
        headers
    }

    #[test]
    fn the_headers_tell_values_tombstones_and_markers_apart() {
        let body = Bytes::from_static(b"body");
        let of = |pairs: &[(&str, &str)]| content(Some(&headers(pairs)), body.clone());
        assert_eq!(content(None, body.clone()), Content::Live(body.clone()));
        assert_eq!(of(&[("Nats-TTL", "5")]), Content::Live(body.clone()));
        assert_eq!(
            of(&[("KV-Operation", "DEL")]),
            Content::Deleted(body.clone())
        );
        assert_eq!(
            of(&[("KV-Operation", "PURGE")]),
            Content::Deleted(body.clone())
        );
        assert_eq!(of(&[("Nats-Marker-Reason", "MaxAge")]), Content::Expired);
        let ours = [("KV-Operation", "DEL"), ("Nats-Marker-Reason", "Remove")];
        assert_eq!(of(&ours), Content::Deleted(body.clone()));
        assert_eq!(
            of(&[("Nats-Marker-Reason", "Purge")]),
            Content::Deleted(Bytes::new())
        );
    }

    #[test]
    fn a_key_is_found_only_in_its_own_bucket() {
        assert_eq!(key_in("$KV.fl_credits.17", "fl_credits"), Some("17"));
        assert_eq!(
            key_in("$KV.fl_status.acme.j1", "fl_status"),
            Some("acme.j1")
        );
        assert_eq!(key_in("$KV.fl_credits2.17", "fl_credits"), None);
        assert_eq!(key_in("fl.jobs.batch.acme", "fl_credits"), None);
    }
}
