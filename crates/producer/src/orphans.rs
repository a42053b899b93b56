//! Large bodies that nothing names any more, found and deleted.
//!
//! Whoever is done with a body deletes it; what a crash, a purge of letters or a job submitted twice leaves
//! behind is found here. Now and then one producer lists the objects that are older than anything in the
//! making, and reads the headers of all that may name one: submissions, jobs, letters, records, plans. What
//! nobody names is a suspect, written down; what is a suspect twice is deleted. The second look is for bodies
//! that changed hands during the first one.
//!
//! Which producer looks, and what it suspects, stands in one key, so that many producers look no more often
//! than one, and a new one goes on from there.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fairlane_nats::payloads::Described;
use fairlane_nats::{HeaderMap, IndexEvent, WriteError};
use fairlane_wire::names::header;
use fairlane_wire::{Letter, Namespace};
use serde::{Deserialize, Serialize};

use crate::producer::{Producer, now_ms};
use crate::quarantine::next;
use crate::trouble::{Trouble, with_causes};

/// Key of what is remembered. No tenant's name begins so.
const KEY: &str = "_orphans";
/// Suspects remembered and deleted by one look. The others' turn comes.
const SUSPECTS_MAX: usize = 1_000;
/// Objects listed by one look: the oldest.
const OBJECTS_MAX: usize = 200_000;
/// A look that takes longer comes to nothing.
const LOOK_MAX: Duration = Duration::from_secs(900);
/// Submissions that are read one by one.
const SUBMISSIONS_MAX: u64 = 20_000;
/// What is remembered is worth nothing after a while.
const NOTE_LIFE: Duration = Duration::from_secs(30 * 86_400);

/// When to look, and what is too young to be looked at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    /// None: never.
    pub(crate) every: Option<Duration>,
    pub(crate) age: Duration,
}

/// What is remembered between two looks.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Note {
    /// Unix milliseconds.
    began_ms: u64,
    suspects: BTreeSet<String>,
}

impl Producer {
    /// Looks for orphans, if it is time and nobody else does. Returns how many were deleted.
    ///
    /// # Errors
    /// In words, if NATS does not do what it should. What was not done is done another time.
    pub async fn sweep_orphans(&self) -> Result<usize, String> {
        let look = Box::pin(self.look_if_it_is_time());
        match tokio::time::timeout(LOOK_MAX, look).await {
            Ok(swept) => swept.map_err(|error| with_causes(&error)),
            Err(_) => Err("it took too long".to_owned()),
        }
    }

    async fn look_if_it_is_time(&self) -> Result<usize, Trouble> {
        let Rules {
            every: Some(every),
            age,
        } = self.orphan_rules()
        else {
            return Ok(0);
        };
        let keys = &self.store().keys;
        let entry = keys.get(KEY).await?;
        let (expected, note) = match &entry {
            Some(entry) => {
                let note = entry.value().map(|value| serde_json::from_slice(value));
                (
                    entry.revision,
                    note.and_then(Result::ok).unwrap_or_default(),
                )
            }
            None => (fairlane_nats::Revision::ABSENT, Note::default()),
        };
        let now = now_ms();
        if now.saturating_sub(note.began_ms) < millis(every) {
            return Ok(0);
        }
        let mine = Note {
            began_ms: now,
            suspects: note.suspects,
        };
        let write = |note: &Note, expected| {
            let value = serde_json::to_vec(note).expect("a number and names");
            keys.put_if(KEY, value.into(), expected, Some(NOTE_LIFE))
        };
        let revision = match write(&mine, expected).await {
            Ok(revision) => revision,
            Err(WriteError::Conflict { .. }) => return Ok(0),
            Err(error) => return Err(error.into()),
        };
        let (suspects, deleted) = self
            .look_for_orphans(&mine.suspects, now.saturating_sub(millis(age)))
            .await?;
        let found = Note {
            began_ms: now,
            suspects,
        };
        match write(&found, revision).await {
            Ok(_) | Err(WriteError::Conflict { .. }) => Ok(deleted),
            Err(error) => Err(error.into()),
        }
    }

    /// The new suspects, and how many of the old ones were deleted.
    async fn look_for_orphans(
        &self,
        suspects: &BTreeSet<String>,
        before_ms: u64,
    ) -> Result<(BTreeSet<String>, usize), Trouble> {
        let payloads = &self.store().payloads;
        // The list comes first: what is stored from here on cannot be on it.
        let mut objects: BTreeMap<String, Described> = BTreeMap::new();
        let names = &self.nats().names;
        let store = names.payload_store();
        let (stream, filter) = (format!("OBJ_{store}"), format!("$O.{store}.M.>"));
        self.each(&stream, &filter, |subject, headers, stored| {
            if stored.stored_ms < before_ms
                && objects.len() < OBJECTS_MAX
                && !headers.is_marker()
                && let Some(name) = payloads.name_of(subject)
            {
                objects.insert(name, stored);
            }
        })
        .await?;
        if objects.is_empty() {
            return Ok((BTreeSet::new(), 0));
        }
        for named in self.named().await? {
            objects.remove(&named);
        }
        let (mut found, mut deleted) = (BTreeSet::new(), 0);
        for (name, stored) in objects {
            if found.len() + deleted == SUSPECTS_MAX {
                break;
            }
            if !payloads.is_there(&name).await? {
                // Deleted before; what says so is not needed for ever.
                self.nats().jobs().delete(&stream, stored.seq).await?;
            } else if suspects.contains(&name) {
                payloads.delete(&name).await?;
                deleted += 1;
            } else {
                found.insert(name);
            }
        }
        if deleted > 0 {
            tracing::info!(deleted, "deleted large bodies that nothing names any more");
        }
        Ok((found, deleted))
    }

    /// Every object that something names. In the order in which bodies change hands, so that one on its
    /// way is seen here or there.
    async fn named(&self) -> Result<BTreeSet<String>, Trouble> {
        let names = &self.nats().names;
        let mut named = BTreeSet::new();
        self.submitted(&mut named).await?;
        let jobs = (names.jobs_stream(), names.jobs_filter());
        let letters = (names.dlq_stream(), names.dlq_filter());
        let bucket = names.status_bucket();
        let records = (format!("KV_{bucket}"), format!("$KV.{bucket}.>"));
        for (stream, filter) in [jobs, letters, records] {
            self.each(&stream, &filter, |_, headers, _| headers.names(&mut named))
                .await?;
        }
        let batches = names.batches_bucket();
        let prefix = format!("$KV.{batches}.");
        let (stream, filter) = (format!("KV_{batches}"), format!("{prefix}>"));
        self.each(&stream, &filter, |subject, _, _| {
            named.extend(subject.strip_prefix(&prefix).map(Namespace::batch_object));
        })
        .await?;
        for (tenant, job) in self.plans().await? {
            if let Some(found) = self.plan(&tenant, &job).await? {
                named.insert(found.plan.original);
                named.insert(found.plan.source);
            }
        }
        Ok(named)
    }

    /// Adds the objects that submissions name. Their stream serves one consumer alone, so they are read one
    /// by one; of so many that this takes long, none is read, and the look comes to nothing.
    async fn submitted(&self, named: &mut BTreeSet<String>) -> Result<(), Trouble> {
        let stream = self.nats().names.submit_stream();
        let waiting = self.nats().jobs().count(&stream).await?;
        if waiting > SUBMISSIONS_MAX {
            return Err(Trouble::Call(format!("{waiting} submissions wait")));
        }
        let mut from = 1;
        while let Some(found) = next(self, from).await? {
            from = found.seq + 1;
            // As bytes: not every header block can be read otherwise.
            let text = String::from_utf8_lossy(&found.headers);
            let headers = text.lines().filter_map(|line| line.split_once(':'));
            let claims = headers.filter(|(name, _)| name.eq_ignore_ascii_case(header::CLAIM));
            named.extend(claims.map(|(_, value)| value.trim().to_owned()));
        }
        Ok(())
    }

    /// Headers of each message that is in a stream now.
    async fn each(
        &self,
        stream: &str,
        filter: &str,
        mut look: impl FnMut(&str, Headers<'_>, Described),
    ) -> Result<(), Trouble> {
        let mut index = self.nats().index(stream, filter);
        while let Some(event) = index.next().await {
            match event {
                IndexEvent::Item(item) => {
                    let stored = Described {
                        seq: item.seq,
                        stored_ms: item.stored_ms,
                    };
                    look(&item.subject, Headers(&item.headers), stored);
                }
                IndexEvent::Current => return Ok(()),
                IndexEvent::Stale => {}
                IndexEvent::Reset => break,
            }
        }
        Err(Trouble::Call(format!(
            "{stream} could not be read to its end"
        )))
    }
}

struct Headers<'a>(&'a HeaderMap);

impl Headers<'_> {
    fn is_marker(&self) -> bool {
        self.0.get(header::MARKER_REASON).is_some()
    }

    /// Adds the objects that a message names in its headers.
    fn names(&self, named: &mut BTreeSet<String>) {
        for name in [header::CLAIM, header::CLAIMS, header::ORIGINAL] {
            named.extend(self.0.get_all(name).map(ToString::to_string));
        }
        let letter = self.0.get(header::LETTER).map(|value| value.as_str());
        // Nearly none has one, and reading all would take long.
        if let Some(text) = letter.filter(|text| text.contains("headers_claim"))
            && let Ok(letter) = Letter::from_json(text)
        {
            named.extend(letter.headers_claim);
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
