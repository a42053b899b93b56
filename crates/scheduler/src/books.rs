//! The leader's books in the control bucket: read at the start of a term, saved every second and at
//! its end.
//!
//! Every write names the revision it replaces, and the first one of a term replaces what it has
//! read. So a leader that was overtaken cannot overwrite the books of the next one.

use bytes::Bytes;
use fairlane_core::Term;
use fairlane_core::scheduler::Snapshot;
use fairlane_nats::{Bucket, Nats, Revision, WriteError};
use fairlane_wire::SnapshotRecord;

/// The stored books, as far as this term has written or read them.
#[derive(Debug, Clone)]
pub(crate) struct Books {
    bucket: Bucket,
    key: &'static str,
    term: Term,
    revision: Revision,
}

impl Books {
    /// Reads what the last leader left. Books that cannot be read are worth a warning and no more:
    /// the term then begins without.
    pub(crate) async fn open(nats: &Nats, term: Term) -> (Self, Option<Snapshot>) {
        let bucket = nats.bucket(&nats.names.control_bucket());
        let key = nats.names.books_key();
        let mut books = Self {
            bucket,
            key,
            term,
            revision: Revision::ABSENT,
        };
        let entry = match books.bucket.get(key).await {
            Ok(entry) => entry,
            Err(error) => {
                tracing::warn!(%error, "cannot read the books of the last leader");
                None
            }
        };
        let Some(entry) = entry else {
            return (books, None);
        };
        books.revision = entry.revision;
        let record = entry
            .value()
            .map(|value| serde_json::from_slice::<SnapshotRecord>(value));
        match record {
            Some(Ok(record)) => (books, Some(record.into_snapshot())),
            Some(Err(error)) => {
                tracing::warn!(%error, "the books of the last leader are not readable");
                (books, None)
            }
            None => (books, None),
        }
    }

    /// Stores the books. Returns them with their new revision; a failure leaves them as they were,
    /// and the next save tries again.
    pub(crate) async fn save(mut self, snapshot: Snapshot) -> Self {
        let record = SnapshotRecord::new(self.term.0, snapshot);
        let value = Bytes::from(serde_json::to_vec(&record).expect("books are plain data"));
        match self
            .bucket
            .put_if(self.key, value, self.revision, None)
            .await
        {
            Ok(revision) => self.revision = revision,
            Err(WriteError::Conflict { .. }) => self.catch_up().await,
            Err(error) => tracing::warn!(%error, "cannot save the books"),
        }
        self
    }

    /// Our own write landed after we had given up on it, or a later term has begun. Only the first
    /// is reason to go on writing.
    async fn catch_up(&mut self) {
        let Ok(Some(entry)) = self.bucket.get(self.key).await else {
            return;
        };
        let record = entry
            .value()
            .map(|value| serde_json::from_slice::<SnapshotRecord>(value));
        match record {
            Some(Ok(record)) if record.term > self.term.0 => {
                tracing::info!(term = record.term, "a later leader keeps the books");
            }
            Some(Ok(_) | Err(_)) | None => self.revision = entry.revision,
        }
    }
}
