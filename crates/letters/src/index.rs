//! All letters without their bodies, grouped by what went wrong.
//!
//! Built from the headers of the stream's messages in their order, one after the other. Letters and
//! notes are all it knows; it can be thrown away and built again at any time.

use std::collections::{BTreeMap, BTreeSet};

use fairlane_wire::DeadReason;
use fairlane_wire::letter::Letter;
use serde::{Deserialize, Serialize};

use crate::filter::Filter;

/// Tenants and kinds named in a group.
const NAMED_MAX: usize = 5;

/// What a list of letters needs to know of one.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Entry {
    /// Sequence in the stream of letters.
    pub seq: u64,
    /// `unknown` if it was published under a name that cannot be a tenant.
    pub tenant: String,
    pub job: String,
    pub reason: DeadReason,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<Box<str>>,
    pub fingerprint: String,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    pub attempts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// How often the job was sent again before it came here.
    pub version: usize,
    /// Unix milliseconds at which it was written.
    pub at_ms: u64,
    /// Bytes of its body, as far as they are in the message.
    pub size: u64,
    /// The note that it was sent again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redriven: Option<Note>,
}

/// A note that a letter is sent again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// The run that has the right to send it.
    pub run: String,
    /// Unix milliseconds.
    pub at_ms: u64,
    /// Whether it was sent for certain.
    pub sent: bool,
}

/// Letters of one cause.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Group {
    pub reason: DeadReason,
    pub fingerprint: String,
    pub letters: usize,
    /// Letters that nobody has sent again.
    pub open: usize,
    /// Number of tenants, and some of them.
    pub tenants: usize,
    pub some_tenants: Vec<String>,
    pub some_kinds: Vec<String>,
    /// Unix milliseconds.
    pub first_ms: u64,
    pub last_ms: u64,
    /// The latest letter.
    pub example: Entry,
}

/// All letters there are.
#[derive(Debug, Clone, Default)]
pub struct Index {
    letters: BTreeMap<u64, Entry>,
    /// Notes on letters, also on some that are gone.
    notes: BTreeMap<u64, Note>,
    /// Messages that are neither letters nor notes.
    foreign: u64,
}

impl Index {
    /// Adds the letter at `seq`, whose body has `size` bytes.
    pub fn add(&mut self, seq: u64, letter: Letter, size: u64) {
        let version = letter.version();
        let failure = letter.failure;
        let entry = Entry {
            seq,
            tenant: letter.tenant.unwrap_or_else(|| "unknown".to_owned()),
            job: letter.job.to_string(),
            reason: failure.reason,
            detail: failure.detail,
            fingerprint: letter.fingerprint,
            message: failure.message,
            fix: failure.fix,
            field: failure.field,
            kind: letter.kind,
            model: letter.model,
            attempts: letter.attempts,
            cost_usd: letter.cost_usd,
            version,
            at_ms: letter.at_ms,
            size,
            redriven: self.notes.get(&seq).cloned(),
        };
        self.letters.insert(seq, entry);
    }

    /// Adds a note on the letter at `seq`. The latest one says how far it is.
    pub fn note(&mut self, seq: u64, note: Note) {
        if let Some(entry) = self.letters.get_mut(&seq) {
            entry.redriven = Some(note.clone());
        }
        self.notes.insert(seq, note);
    }

    /// Counts a message that is neither.
    pub fn note_foreign(&mut self) {
        self.foreign += 1;
    }

    /// Messages that are neither letters nor notes.
    #[must_use]
    pub fn foreign(&self) -> u64 {
        self.foreign
    }

    /// Number of letters.
    #[must_use]
    pub fn len(&self) -> usize {
        self.letters.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.letters.is_empty()
    }

    /// The letters that are meant, the oldest first.
    pub fn select<'a>(&'a self, filter: &'a Filter) -> impl Iterator<Item = &'a Entry> {
        self.letters.values().filter(|entry| filter.means(entry))
    }

    /// The groups of the letters that are meant, those with most open letters first.
    #[must_use]
    pub fn groups(&self, filter: &Filter) -> Vec<Group> {
        let mut found: BTreeMap<(&str, &str), Collected<'_>> = BTreeMap::new();
        for entry in self.select(filter) {
            let key = (entry.reason.as_str(), entry.fingerprint.as_str());
            let group = found.entry(key).or_insert_with(|| Collected::new(entry));
            group.add(entry);
        }
        let mut groups: Vec<Group> = found.into_values().map(Collected::group).collect();
        groups.sort_by_key(|group| (usize::MAX - group.open, usize::MAX - group.letters));
        groups
    }
}

#[derive(Debug)]
struct Collected<'a> {
    last: &'a Entry,
    first_ms: u64,
    letters: usize,
    open: usize,
    tenants: BTreeSet<&'a str>,
    kinds: BTreeSet<&'a str>,
}

impl<'a> Collected<'a> {
    fn new(entry: &'a Entry) -> Self {
        Self {
            last: entry,
            first_ms: entry.at_ms,
            letters: 0,
            open: 0,
            tenants: BTreeSet::new(),
            kinds: BTreeSet::new(),
        }
    }

    fn add(&mut self, entry: &'a Entry) {
        self.letters += 1;
        self.open += usize::from(entry.redriven.is_none());
        self.tenants.insert(&entry.tenant);
        self.kinds.extend(entry.kind.as_deref());
        self.first_ms = self.first_ms.min(entry.at_ms);
        if entry.at_ms >= self.last.at_ms {
            self.last = entry;
        }
    }

    fn group(self) -> Group {
        let some = |names: &BTreeSet<&str>| {
            let some = names.iter().take(NAMED_MAX);
            some.map(|name| (*name).to_owned()).collect()
        };
        Group {
            reason: self.last.reason,
            fingerprint: self.last.fingerprint.clone(),
            letters: self.letters,
            open: self.open,
            tenants: self.tenants.len(),
            some_tenants: some(&self.tenants),
            some_kinds: some(&self.kinds),
            first_ms: self.first_ms,
            last_ms: self.last.at_ms,
            example: self.last.clone(),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use fairlane_core::JobId;
    use fairlane_wire::Failure;

    use super::*;
    use crate::filter::Standing;

    pub(crate) fn entry(seq: u64, tenant: &str, job: &str) -> Entry {
        let mut index = Index::default();
        index.add(seq, letter(tenant, job, "tags has 2 items", 5), 10);
        let mut entry = index.letters.remove(&seq).unwrap();
        entry.fingerprint = "abcdef".into();
        entry
    }

    fn letter(tenant: &str, job: &str, message: &str, at_ms: u64) -> Letter {
        let failure = Failure::new(DeadReason::Schema, message);
        let job = JobId::parse(job).unwrap();
        Letter {
            kind: Some("tagging".into()),
            ..Letter::new(Some(tenant.into()), job, failure, at_ms)
        }
    }

    fn note(run: &str, sent: bool) -> Note {
        Note {
            run: run.into(),
            at_ms: 9,
            sent,
        }
    }

    #[test]
    fn letters_of_one_cause_are_one_group() {
        let mut index = Index::default();
        index.add(1, letter("acme", "a", "tags has 2 items", 10), 0);
        index.add(2, letter("beta", "b", "tags has 31 items", 30), 0);
        index.add(3, letter("acme", "c", "no tags", 20), 0);
        let groups = index.groups(&Filter::default());
        assert_eq!(groups.len(), 2);
        let Group {
            letters,
            open,
            tenants,
            some_tenants,
            some_kinds,
            first_ms,
            last_ms,
            example,
            ..
        } = &groups[0];
        assert_eq!((*letters, *open, *tenants), (2, 2, 2));
        assert_eq!(some_tenants, &["acme", "beta"]);
        assert_eq!(some_kinds, &["tagging"]);
        assert_eq!((*first_ms, *last_ms, example.seq), (10, 30, 2));
    }

    #[test]
    fn a_letter_that_was_sent_again_is_not_open_in_whatever_order_it_is_learnt() {
        let mut index = Index::default();
        index.note(1, note("r-1", false));
        index.add(1, letter("acme", "a", "x", 1), 0);
        index.add(2, letter("acme", "b", "x", 1), 0);
        index.add(3, letter("acme", "c", "x", 1), 0);
        index.note(2, note("r-1", false));
        index.note(2, note("r-1", true));
        let seqs = |standing| -> Vec<u64> {
            let filter = Filter {
                standing,
                ..Filter::default()
            };
            index.select(&filter).map(|entry| entry.seq).collect()
        };
        assert_eq!(seqs(Standing::Open), [3]);
        assert_eq!(seqs(Standing::Redriven), [1, 2]);
        assert_eq!(seqs(Standing::All), [1, 2, 3]);
        assert!(index.letters[&2].redriven.as_ref().unwrap().sent);
        let all = Filter {
            standing: Standing::All,
            ..Filter::default()
        };
        assert_eq!(index.groups(&all)[0].open, 1);
    }
}
