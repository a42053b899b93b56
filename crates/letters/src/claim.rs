//! The right to send a letter again, which is given once.
//!
//! It is the first message on the letter's own note subject in the stream of letters; the server
//! takes only one first message. Whoever comes second learns who has it. A second note says that
//! the letter was sent for certain.

use async_nats::HeaderMap;
use bytes::Bytes;
use fairlane_nats::jobs::ReadError;
use fairlane_nats::{Nats, WriteError};
use fairlane_wire::header;

use crate::index::Note;
use crate::reader::NOTE;

/// How a claim ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// The letter is to be sent by this run. The revision is for [`sent`].
    Ours(u64),
    /// It was sent, or is another run's to send.
    Theirs(Note),
}

/// Why nothing can be said about a claim; repeating is safe.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    #[error("cannot claim dead letter {letter}")]
    Write {
        letter: u64,
        #[source]
        error: WriteError,
    },
    #[error("cannot read who claimed dead letter {letter}")]
    Read {
        letter: u64,
        #[source]
        error: ReadError,
    },
    #[error("the note on dead letter {letter} is not readable")]
    Unreadable { letter: u64 },
}

/// Claims the letter at `letter` for `run`. A run that claimed it before and may not have sent it
/// has it again.
///
/// # Errors
/// [`ClaimError`].
pub async fn claim(nats: &Nats, letter: u64, run: &str, now_ms: u64) -> Result<Claim, ClaimError> {
    let note = Note {
        run: run.to_owned(),
        at_ms: now_ms,
        sent: false,
    };
    match publish(nats, letter, &note, 0).await {
        Ok(revision) => return Ok(Claim::Ours(revision)),
        // What is there now decides, also when nobody knows whether ours was stored.
        Err(WriteError::Conflict { .. } | WriteError::Unknown { .. }) => {}
        Err(error) => return Err(ClaimError::Write { letter, error }),
    }
    let subject = nats.names.redriven_subject(letter);
    let stream = nats.names.dlq_stream();
    let last = nats.jobs().last(&stream, &subject).await;
    let last = last.map_err(|error| ClaimError::Read { letter, error })?;
    let last = last.ok_or(ClaimError::Unreadable { letter })?;
    let found = last.headers.get(NOTE);
    let found: Note = found
        .and_then(|note| serde_json::from_str(note.as_str()).ok())
        .ok_or(ClaimError::Unreadable { letter })?;
    if found.run == run && !found.sent {
        return Ok(Claim::Ours(last.seq));
    }
    Ok(Claim::Theirs(found))
}

/// Notes that the letter, claimed at `revision`, was sent.
///
/// # Errors
/// [`ClaimError`]. The letter is claimed all the same.
pub async fn sent(
    nats: &Nats,
    letter: u64,
    run: &str,
    revision: u64,
    now_ms: u64,
) -> Result<(), ClaimError> {
    let note = Note {
        run: run.to_owned(),
        at_ms: now_ms,
        sent: true,
    };
    match publish(nats, letter, &note, revision).await {
        // A conflict is this very note, written by an earlier try.
        Ok(_) | Err(WriteError::Conflict { .. }) => Ok(()),
        Err(error) => Err(ClaimError::Write { letter, error }),
    }
}

async fn publish(nats: &Nats, letter: u64, note: &Note, expected: u64) -> Result<u64, WriteError> {
    let mut headers = HeaderMap::new();
    let text = serde_json::to_string(note).expect("plain data");
    headers.insert(NOTE, text.as_str());
    headers.insert(header::EXPECTED_SUBJECT_SEQUENCE, expected.to_string());
    let subject = nats.names.redriven_subject(letter);
    let jobs = nats.jobs();
    let stored = jobs.publish(&subject, None, headers, Bytes::new()).await?;
    Ok(stored.seq)
}
