//! The leader's books in the control bucket: read at the start of a term, saved every second and at
//! its end.
//!
//! Every write names the revision it replaces, and the first one of a term replaces what it has
//! read. So a leader that was overtaken cannot overwrite the books of the next one.

use bytes::Bytes;
use fairlane_core::failure::RetryAfter;
use fairlane_core::scheduler::Snapshot;
use fairlane_core::{Millis, Term};
use fairlane_nats::{Bucket, Nats, Revision, WriteError};
use fairlane_wire::SnapshotRecord;

/// How far the clocks of two schedulers may be apart.
const SKEW_MAX: Millis = 60_000;

/// The longest for which a breaker can be configured to stay open.
const BREAKER_OPEN_MAX: Millis = 3_600_000;

/// The stored books, as far as this term has written or read them.
#[derive(Debug, Clone)]
pub(crate) struct Books {
    bucket: Bucket,
    key: &'static str,
    term: Term,
    revision: Revision,
}

impl Books {
    /// Reads what the last leader left. Books that cannot be read or believed are worth a warning
    /// and no more: the term then begins without.
    pub(crate) async fn open(nats: &Nats, term: Term, now: Millis) -> (Self, Option<Snapshot>) {
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
            Some(Ok(record)) => (books, believed(record.into_snapshot(), now)),
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

/// The snapshot, unless it says what no leader can have written.
fn believed(snapshot: Snapshot, now: Millis) -> Option<Snapshot> {
    match judge(&snapshot, now) {
        Ok(()) => Some(snapshot),
        Err(error) => {
            tracing::warn!(%error, "the books of the last leader are not believable");
            None
        }
    }
}

/// What no leader can have written. Believed, it would stop a pool for good, and be handed on from
/// leader to leader.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum Unbelievable {
    #[error("at_ms {at} is {ahead} ms ahead of this clock; at most {SKEW_MAX} ms can be")]
    Ahead { at: Millis, ahead: Millis },
    #[error("{field} {until} of {of} is more than {longest} ms after at_ms {at}")]
    TooLong {
        field: &'static str,
        until: Millis,
        of: String,
        longest: Millis,
        at: Millis,
    },
}

fn judge(snapshot: &Snapshot, now: Millis) -> Result<(), Unbelievable> {
    let at = snapshot.at;
    let ahead = at.saturating_sub(now);
    if ahead > SKEW_MAX {
        return Err(Unbelievable::Ahead { at, ahead });
    }
    let check = |field, until, longest, of: &dyn std::fmt::Debug| {
        if until <= at.saturating_add(longest) {
            return Ok(());
        }
        Err(Unbelievable::TooLong {
            field,
            until,
            of: format!("{of:?}"),
            longest,
            at,
        })
    };
    let pause = RetryAfter::MAX.ms() + SKEW_MAX;
    for state in &snapshot.pools {
        check("paused_until_ms", state.paused_until, pause, &state.pool)?;
        check(
            "breaker_open_until_ms",
            state.breaker_open_until.unwrap_or(0),
            BREAKER_OPEN_MAX,
            &state.pool,
        )?;
    }
    for gate in &snapshot.gates {
        check("until_ms", gate.until, pause, &gate.concerns)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairlane_core::PoolId;
    use fairlane_core::scheduler::{Concerns, GateState, PoolState};

    const NOW: Millis = 1_796_000_000_000;
    const MONTH: Millis = 31 * 24 * 3_600_000;

    fn books(at: Millis, paused_until: Millis, breaker_open_until: Option<Millis>) -> Snapshot {
        Snapshot {
            at,
            revision: 7,
            pools: vec![PoolState {
                pool: PoolId::parse("haiku-4.5").unwrap(),
                left: [0, 0, 0],
                paused_until,
                breaker_open_until,
                owed: [0, 0, 0],
            }],
            accounts: Vec::new(),
            gates: Vec::new(),
            demotions: Vec::new(),
            learned: Vec::new(),
            lost: Vec::new(),
        }
    }

    #[test]
    fn books_a_leader_can_have_written_are_believed() {
        for (at, paused_until, breaker) in [
            (NOW, 0, None),
            (NOW - MONTH, NOW, Some(0)),
            (NOW, NOW + MONTH, Some(NOW + 90_000)),
            (NOW + 60_000, NOW + MONTH, Some(NOW + 150_000)),
        ] {
            let snapshot = books(at, paused_until, breaker);
            assert_eq!(believed(snapshot.clone(), NOW), Some(snapshot));
        }
    }

    #[test]
    fn a_gate_that_would_stay_shut_for_years_is_not_believed() {
        let with_gate = |until| {
            let mut books = books(NOW, 0, None);
            books.gates.push(GateState {
                concerns: Concerns::Account,
                until,
            });
            judge(&books, NOW)
        };
        assert_eq!(with_gate(NOW + 3_600_000), Ok(()));
        assert!(with_gate(NOW + 2 * MONTH).is_err());
    }

    #[test]
    fn books_no_leader_can_have_written_are_not_believed() {
        let field = |snapshot| match judge(&snapshot, NOW) {
            Ok(()) => "believed",
            Err(Unbelievable::Ahead { .. }) => "at_ms",
            Err(Unbelievable::TooLong { field, .. }) => field,
        };
        assert_eq!(field(books(NOW + 60_001, 0, None)), "at_ms");
        assert_eq!(field(books(u64::MAX, u64::MAX, None)), "at_ms");
        for until in [NOW + 2 * MONTH, u64::MAX] {
            assert_eq!(field(books(NOW, until, None)), "paused_until_ms");
        }
        for until in [NOW + BREAKER_OPEN_MAX + 1, u64::MAX] {
            assert_eq!(field(books(NOW, 0, Some(until))), "breaker_open_until_ms");
        }
    }
}
