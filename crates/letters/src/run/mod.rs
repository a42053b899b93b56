//! A run: letters that were chosen once and are sent again, one after the other.
//!
//! What is chosen is written down by sequence before the first letter is sent, so letters that
//! fit the question later never join. How far it is stands in the same place and changes only
//! over the revision that was read: any terminal can pause, cancel or take over a run, and the
//! one that drives it notices with its next step. What was done twice for want of a saved
//! position changes nothing, because each letter is claimed (see [`crate::claim`]).

mod drive;

use std::time::Duration;

use bytes::Bytes;
use fairlane_nats::jobs::ReadError;
use fairlane_nats::payloads::PayloadError;
use fairlane_nats::watch::Event;
use fairlane_nats::{Bucket, LetterError, Nats, Revision, WriteError};
use serde::{Deserialize, Serialize};

pub use drive::drive;

use crate::claim::ClaimError;
use crate::repair::Repair;

/// Runs are remembered as long as letters, and a little longer.
const KEEP: Duration = Duration::from_secs(35 * 86_400);
/// Letters in one stored part of a run.
const CHUNK: usize = 10_000;
/// Letters told that could not be sent.
const LEFT_MAX: usize = 500;
/// Tries at a run that others change at the same time.
const TRIES_MAX: usize = 20;

/// Where a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Running,
    Paused,
    Cancelled,
    Done,
}

impl State {
    /// Its word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Cancelled => "cancelled",
            Self::Done => "done",
        }
    }

    /// Whether nothing more will be sent.
    #[must_use]
    pub fn is_over(self) -> bool {
        match self {
            Self::Cancelled | Self::Done => true,
            Self::Running | Self::Paused => false,
        }
    }
}

/// A letter that was not sent, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    pub letter: u64,
    pub why: String,
}

/// What became of the letters so far.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Tally {
    pub sent: u64,
    /// Another run had them first.
    pub already: u64,
    /// They expired or were purged.
    pub gone: u64,
    /// They cannot be sent as they are, and stay.
    pub left: u64,
    /// The first of the last two sorts.
    pub some_left: Vec<Left>,
}

impl Tally {
    fn leave(&mut self, letter: u64, why: &str) {
        if self.some_left.len() < LEFT_MAX {
            let mut why = why.to_owned();
            why.truncate(why.floor_char_boundary(300));
            self.some_left.push(Left { letter, why });
        }
    }

    /// Letters dealt with.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.sent + self.already + self.gone + self.left
    }
}

/// A run as it is stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    pub id: String,
    /// Unix milliseconds.
    pub created_ms: u64,
    /// What was asked for, in words.
    pub what: String,
    pub repair: Repair,
    pub per_second: u32,
    /// Number of letters chosen.
    pub letters: u64,
    pub state: State,
    /// Who drives it: a name that differs for each driver.
    pub driver: String,
    pub tally: Tally,
}

/// Why a run did not get on. Nothing is lost: it can be resumed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("there is no run {0}; see `fairlane dlq runs`")]
    Unknown(String),
    #[error("run {0} was taken over from another terminal, which goes on with it")]
    TakenOver(String),
    #[error("run {id} is {} and cannot be changed any more", state.as_str())]
    Over { id: String, state: State },
    #[error("run {id} was changed by others all the time")]
    Contended { id: String },
    #[error("run {id} is stored in a form that is not readable: {text}")]
    Unreadable { id: String, text: String },
    #[error("run {id} cannot be read")]
    Read {
        id: String,
        #[source]
        error: ReadError,
    },
    #[error("run {id} cannot be saved")]
    Save {
        id: String,
        #[source]
        error: WriteError,
    },
    #[error(transparent)]
    Letter(#[from] LetterError),
    #[error(transparent)]
    Claim(#[from] ClaimError),
    #[error("letter {letter} cannot be submitted")]
    Submit {
        letter: u64,
        #[source]
        error: WriteError,
    },
    #[error("the body of letter {letter} cannot be stored")]
    Payload {
        letter: u64,
        #[source]
        error: PayloadError,
    },
    #[error("stopped; what is left of the run can be resumed")]
    Stopped,
}

/// All runs.
#[derive(Debug, Clone)]
pub struct Runs {
    nats: Nats,
    bucket: Bucket,
}

impl Runs {
    /// The runs of `nats`' namespace.
    #[must_use]
    pub fn new(nats: &Nats) -> Self {
        Self {
            nats: nats.clone(),
            bucket: nats.bucket(&nats.names.redrives_bucket()),
        }
    }

    /// Stores a new run over exactly these letters. It exists once all of them are written down.
    ///
    /// # Errors
    /// [`RunError::Save`].
    pub async fn create(&self, run: &Run, letters: &[u64]) -> Result<(), RunError> {
        let save = |error| RunError::Save {
            id: run.id.clone(),
            error,
        };
        for (number, chunk) in letters.chunks(CHUNK).enumerate() {
            let key = format!("{}.{number}", run.id);
            let put = self.bucket.put(&key, encode(&chunk), Some(KEEP));
            put.await.map_err(save)?;
        }
        let first = self
            .bucket
            .put_if(&run.id, encode(run), Revision::ABSENT, Some(KEEP));
        first.await.map_err(save)?;
        Ok(())
    }

    /// A run, and the revision that a change must name.
    ///
    /// # Errors
    /// [`RunError::Unknown`], [`RunError::Read`], [`RunError::Unreadable`].
    pub async fn get(&self, id: &str) -> Result<(Run, Revision), RunError> {
        let entry = self.entry(id, id).await?;
        let entry = entry.ok_or_else(|| RunError::Unknown(id.to_owned()))?;
        Ok((decode(id, &entry.1)?, entry.0))
    }

    /// All runs, the latest first.
    pub async fn list(&self) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        let mut watch = self.bucket.watch();
        while let Some(event) = watch.next().await {
            match event {
                Event::Change(entry) => {
                    let is_part = entry.key.contains('.');
                    let run = entry.value().filter(|_| !is_part);
                    runs.extend(run.and_then(|run| serde_json::from_slice(run).ok()));
                }
                Event::Current => break,
                Event::Stale => runs.clear(),
            }
        }
        runs.sort_by_key(|run: &Run| u64::MAX - run.created_ms);
        runs
    }

    /// Changes the state of a run that is not over; whoever drives it notices.
    ///
    /// # Errors
    /// [`RunError::Over`] and those of [`Runs::get`].
    pub async fn set_state(&self, id: &str, state: State) -> Result<Run, RunError> {
        for _ in 0..TRIES_MAX {
            let (run, revision) = self.get(id).await?;
            if run.state.is_over() {
                return Err(RunError::Over {
                    id: run.id,
                    state: run.state,
                });
            }
            let changed = Run { state, ..run };
            if self.save(&changed, revision).await?.is_some() {
                return Ok(changed);
            }
        }
        Err(RunError::Contended { id: id.to_owned() })
    }

    /// Saves over `expected`; None if somebody else was faster.
    async fn save(&self, run: &Run, expected: Revision) -> Result<Option<Revision>, RunError> {
        let saved = self
            .bucket
            .put_if(&run.id, encode(run), expected, Some(KEEP));
        match saved.await {
            Ok(revision) => Ok(Some(revision)),
            Err(WriteError::Conflict { .. } | WriteError::Unknown { .. }) => Ok(None),
            Err(error) => Err(RunError::Save {
                id: run.id.clone(),
                error,
            }),
        }
    }

    /// The letters of part `number` of a run.
    async fn members(&self, id: &str, number: usize) -> Result<Vec<u64>, RunError> {
        let entry = self.entry(id, &format!("{id}.{number}")).await?;
        let entry = entry.ok_or_else(|| RunError::Unreadable {
            id: id.to_owned(),
            text: format!("part {number} is missing"),
        })?;
        decode(id, &entry.1)
    }

    async fn entry(&self, id: &str, key: &str) -> Result<Option<(Revision, Bytes)>, RunError> {
        let entry = self.bucket.get(key).await;
        let entry = entry.map_err(|error| RunError::Read {
            id: id.to_owned(),
            error,
        })?;
        Ok(entry.and_then(|entry| Some((entry.revision, entry.value()?.clone()))))
    }
}

fn encode(value: &impl Serialize) -> Bytes {
    let json = serde_json::to_vec(value).expect("plain data");
    json.into()
}

fn decode<T: serde::de::DeserializeOwned>(id: &str, value: &[u8]) -> Result<T, RunError> {
    serde_json::from_slice(value).map_err(|error| RunError::Unreadable {
        id: id.to_owned(),
        text: error.to_string(),
    })
}
