//! The bucket of leases as the server keeps it: one value per key, revisions that grow over all
//! keys, writes that name the revision they replace, lifetimes.

use std::collections::BTreeMap;

use fairlane_core::JobSeq;
use fairlane_core::invariants::{CreditLife, Fence};
use fairlane_core::scheduler::{Credit, Event, Settlement};

/// What a key holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    Granted(Credit),
    Running(Credit),
    Parked(Settlement),
    Tombstone(Settlement),
    /// The server ended what was here.
    Marker,
}

impl Value {
    fn is_live(&self) -> bool {
        matches!(self, Self::Granted(_) | Self::Running(_) | Self::Parked(_))
    }

    fn is_held(&self) -> bool {
        matches!(self, Self::Granted(_) | Self::Running(_))
    }
}

#[derive(Debug, Clone)]
struct Entry {
    revision: u64,
    value: Value,
}

/// What came of a lifetime.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// A marker was left, at this revision.
    Marked(u64),
    /// Nothing is left.
    Gone,
    /// It had been replaced before.
    Replaced,
}

/// The lease bucket.
#[derive(Debug, Default)]
pub struct Bucket {
    entries: BTreeMap<JobSeq, Entry>,
    revision: u64,
    /// Every credit that was ever stored, in order.
    pub lives: Vec<CreditLife>,
    /// The life a key's current credit is.
    current: BTreeMap<JobSeq, usize>,
    /// All grants and starts, in order.
    pub fences: Vec<Fence>,
    /// Grants that replaced a lease that was held.
    pub overruns: Vec<JobSeq>,
}

impl Bucket {
    /// Replaces the value of `seq` if its revision is `expected`. With 0, if no lease is there:
    /// none at all, or the trace of one that ended.
    pub fn write(&mut self, seq: JobSeq, expected: u64, value: Value) -> Option<u64> {
        let entry = self.entries.get(&seq);
        let accepted = match entry {
            None => expected == 0,
            Some(entry) => entry.revision == expected || (expected == 0 && !entry.value.is_live()),
        };
        if !accepted {
            return None;
        }
        let was_held = entry.is_some_and(|entry| entry.value.is_held());
        self.revision += 1;
        self.book(seq, &value, was_held);
        let revision = self.revision;
        self.entries.insert(seq, Entry { revision, value });
        Some(revision)
    }

    fn book(&mut self, seq: JobSeq, value: &Value, was_held: bool) {
        match value {
            Value::Granted(credit) => {
                if was_held {
                    self.overruns.push(seq);
                    self.end(seq);
                }
                self.fences.push(Fence::Granted {
                    seq,
                    term: credit.term,
                });
                self.current.insert(seq, self.lives.len());
                self.lives.push(CreditLife {
                    seq,
                    revision: self.revision,
                    ends: 0,
                    live: true,
                });
            }
            Value::Running(credit) => {
                let is_start = matches!(
                    self.entries.get(&seq),
                    Some(Entry {
                        value: Value::Granted(_),
                        ..
                    })
                );
                if is_start {
                    self.fences.push(Fence::Started {
                        seq,
                        term: credit.term,
                    });
                }
            }
            Value::Parked(_) | Value::Tombstone(_) | Value::Marker => {
                if was_held {
                    self.end(seq);
                }
            }
        }
    }

    fn end(&mut self, seq: JobSeq) {
        if let Some(&index) = self.current.get(&seq) {
            self.lives[index].ends += 1;
            self.lives[index].live = false;
        }
    }

    /// The lifetime of `revision` is over.
    pub fn expire(&mut self, seq: JobSeq, revision: u64) -> Ended {
        let Some(entry) = self.entries.get(&seq) else {
            return Ended::Replaced;
        };
        if entry.revision != revision {
            return Ended::Replaced;
        }
        if !entry.value.is_live() {
            self.entries.remove(&seq);
            return Ended::Gone;
        }
        let was_held = entry.value.is_held();
        self.revision += 1;
        self.book(seq, &Value::Marker, was_held);
        let revision = self.revision;
        let value = Value::Marker;
        self.entries.insert(seq, Entry { revision, value });
        Ended::Marked(revision)
    }

    /// What the scheduler is told of the key, as its shell translates it.
    #[must_use]
    pub fn event(&self, seq: JobSeq) -> Option<Event> {
        let Entry { revision, value } = self.entries.get(&seq)?;
        let revision = *revision;
        Some(match value {
            Value::Granted(credit) | Value::Running(credit) => Event::Held {
                credit: credit.clone(),
                started: matches!(value, Value::Running(_)),
                revision,
            },
            Value::Parked(settlement) | Value::Tombstone(settlement) => Event::Settled {
                settlement: settlement.clone(),
                revision,
            },
            Value::Marker => Event::LeaseEnded { seq, revision },
        })
    }

    /// Everything that is stored, in the order of its revisions.
    #[must_use]
    pub fn all(&self) -> Vec<(u64, JobSeq, bool)> {
        let mut all: Vec<_> = self
            .entries
            .iter()
            .map(|(&seq, entry)| (entry.revision, seq, entry.value.is_live()))
            .collect();
        all.sort_unstable();
        all
    }

    /// Whether the key holds a lease: granted, running or parked.
    #[must_use]
    pub fn is_live(&self, seq: JobSeq) -> bool {
        self.entries
            .get(&seq)
            .is_some_and(|entry| entry.value.is_live())
    }

    /// Credits that are held now.
    #[must_use]
    pub fn held(&self) -> usize {
        self.entries
            .values()
            .filter(|entry| entry.value.is_held())
            .count()
    }

    /// Who holds the lease, granted or running.
    #[must_use]
    pub fn holder(&self, seq: JobSeq) -> Option<&Credit> {
        match &self.entries.get(&seq)?.value {
            Value::Granted(credit) | Value::Running(credit) => Some(credit),
            Value::Parked(_) | Value::Tombstone(_) | Value::Marker => None,
        }
    }
}
