//! Bodies too large for a message: stored as objects, named in the message (claim check).
//!
//! Objects have the format of the ordinary NATS object store, so its tools can read them. Reading
//! needs no consumer: chunks are fetched one after the other from the leader, up to a size the
//! caller sets, and the digest is checked.

use async_nats::jetstream::object_store::{ObjectInfo, ObjectMetadata, ObjectStore};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE;
use bytes::{Bytes, BytesMut};
use fairlane_wire::names::header;
use sha2::{Digest, Sha256};

use crate::client::Nats;
use crate::jobs;
use crate::publish::chain;

/// Size of the chunks of an object, bytes.
const CHUNK_BYTES: usize = 128 * 1024;

/// Why a large body could not be stored or read.
#[derive(Debug, thiserror::Error)]
pub enum PayloadError {
    #[error("payload {name} has {size} bytes; at most {size_max} are allowed")]
    TooLarge {
        name: String,
        size: usize,
        size_max: usize,
    },
    #[error("payload {name} does not exist")]
    Missing { name: String },
    #[error("payload {name} is damaged: {what}")]
    Damaged { name: String, what: String },
    #[error("payload {name}: the store cannot be used: {text}")]
    Store { name: String, text: String },
}

/// Where and when the description of an object is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Described {
    /// Sequence in the stream of the store.
    pub seq: u64,
    /// Unix milliseconds.
    pub stored_ms: u64,
}

/// The store of large bodies. Names have the form `<tenant>.<id>`.
#[derive(Debug, Clone)]
pub struct Payloads {
    nats: Nats,
    bucket: String,
}

impl Payloads {
    pub(crate) fn new(nats: Nats) -> Self {
        let bucket = nats.names.payload_store();
        Self { nats, bucket }
    }

    /// Stores `body` as `name`, replacing what was there.
    ///
    /// # Errors
    /// [`PayloadError::TooLarge`] before anything is sent, [`PayloadError::Store`].
    pub async fn put(&self, name: &str, body: &Bytes, size_max: usize) -> Result<(), PayloadError> {
        within(name, body.len(), size_max)?;
        let meta = ObjectMetadata {
            name: name.to_owned(),
            chunk_size: Some(CHUNK_BYTES),
            ..Default::default()
        };
        let store = self.store(name).await?;
        match store.put(meta, &mut &body[..]).await {
            Ok(_) => Ok(()),
            Err(error) => Err(broken(name, chain(&error))),
        }
    }

    /// The body stored as `name`, complete and unchanged.
    ///
    /// # Errors
    /// [`PayloadError`]: larger than `size_max`, missing, damaged, or the store cannot be used.
    pub async fn get(&self, name: &str, size_max: usize) -> Result<Bytes, PayloadError> {
        let info = self.info(name).await?.ok_or_else(|| missing(name))?;
        within(name, info.size, size_max)?;
        let body = self.chunks(name, &info).await?;
        verify(name, &info, &body)?;
        Ok(body)
    }

    /// Deletes `name`. Gone already is success.
    ///
    /// # Errors
    /// [`PayloadError::Store`].
    pub async fn delete(&self, name: &str) -> Result<(), PayloadError> {
        if self.info(name).await?.is_none() {
            return Ok(());
        }
        let store = self.store(name).await?;
        store
            .delete(name)
            .await
            .map_err(|error| broken(name, chain(&error)))
    }

    /// Whether there is an object of this name.
    ///
    /// # Errors
    /// [`PayloadError::Store`], [`PayloadError::Damaged`].
    pub async fn is_there(&self, name: &str) -> Result<bool, PayloadError> {
        Ok(self.info(name).await?.is_some())
    }

    /// The object that a message of the store describes. None if it describes none.
    #[must_use]
    pub fn name_of(&self, subject: &str) -> Option<String> {
        let encoded = subject
            .strip_prefix("$O.")?
            .strip_prefix(self.bucket.as_str())?
            .strip_prefix(".M.")?;
        String::from_utf8(URL_SAFE.decode(encoded).ok()?).ok()
    }

    async fn store(&self, name: &str) -> Result<ObjectStore, PayloadError> {
        let store = self.nats.jetstream.get_object_store(&self.bucket).await;
        store.map_err(|error| broken(name, chain(&error)))
    }

    fn stream(&self) -> String {
        format!("OBJ_{}", self.bucket)
    }

    /// The description of an object, None if there is none (any more).
    async fn info(&self, name: &str) -> Result<Option<ObjectInfo>, PayloadError> {
        let subject = format!("$O.{}.M.{}", self.bucket, url_base64(name.as_bytes()));
        let message = jobs::leader_last(&self.nats, &self.stream(), &subject)
            .await
            .map_err(|error| broken(name, error.to_string()))?;
        let Some(message) = message else {
            return Ok(None);
        };
        if message.headers.get(header::MARKER_REASON).is_some() {
            return Ok(None);
        }
        let info: ObjectInfo = serde_json::from_slice(&message.payload)
            .map_err(|error| damaged(name, format!("its description: {error}")))?;
        Ok((!info.deleted).then_some(info))
    }

    async fn chunks(&self, name: &str, info: &ObjectInfo) -> Result<Bytes, PayloadError> {
        let subject = format!("$O.{}.C.{}", self.bucket, info.nuid);
        let mut body = BytesMut::with_capacity(info.size);
        let mut next_seq = 1;
        for at in 0..info.chunks {
            let chunk = jobs::leader_next(&self.nats, &self.stream(), &subject, next_seq)
                .await
                .map_err(|error| broken(name, error.to_string()))?
                .ok_or_else(|| {
                    damaged(
                        name,
                        format!("chunk {} of {} is missing", at + 1, info.chunks),
                    )
                })?;
            next_seq = chunk.sequence + 1;
            body.extend_from_slice(&chunk.payload);
            if body.len() > info.size {
                return Err(damaged(
                    name,
                    format!("it has more than its {} bytes", info.size),
                ));
            }
        }
        Ok(body.freeze())
    }
}

fn within(name: &str, size: usize, size_max: usize) -> Result<(), PayloadError> {
    if size > size_max {
        return Err(PayloadError::TooLarge {
            name: name.to_owned(),
            size,
            size_max,
        });
    }
    Ok(())
}

fn missing(name: &str) -> PayloadError {
    PayloadError::Missing {
        name: name.to_owned(),
    }
}

fn damaged(name: &str, what: String) -> PayloadError {
    PayloadError::Damaged {
        name: name.to_owned(),
        what,
    }
}

fn broken(name: &str, text: String) -> PayloadError {
    PayloadError::Store {
        name: name.to_owned(),
        text,
    }
}

fn verify(name: &str, info: &ObjectInfo, body: &[u8]) -> Result<(), PayloadError> {
    if body.len() != info.size {
        return Err(damaged(
            name,
            format!("it has {} of its {} bytes", body.len(), info.size),
        ));
    }
    let digest = format!("SHA-256={}", url_base64(&Sha256::digest(body)));
    if info.digest.as_deref() != Some(digest.as_str()) {
        return Err(damaged(name, "its digest is another one".to_owned()));
    }
    Ok(())
}

/// Base64 as object names and digests are written.
fn url_base64(bytes: &[u8]) -> String {
    URL_SAFE.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_encoded_for_subjects() {
        for (plain, encoded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("acme.j1", "YWNtZS5qMQ=="),
            ("\u{ff}\u{fe}?>", "w7_Dvj8-"),
        ] {
            assert_eq!(url_base64(plain.as_bytes()), encoded, "{plain:?}");
        }
    }
}
