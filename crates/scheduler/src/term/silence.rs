//! Leases that a worker holds and of which nothing was heard for longer than a lease lives.
//!
//! The watch tells of every renewal and of every end, and after an interruption of what is gone. If a
//! lease is silent all the same, its key is read. If there is none, the lease is over: the slot, the
//! limits and the job are free again. Anything newer than what is known is left to the watch, which
//! tells everything in order.

use std::collections::BTreeMap;
use std::time::Duration;

use fairlane_core::scheduler::Event;
use fairlane_core::{JobSeq, Millis};
use fairlane_nats::{Bucket, Revision};
use fairlane_wire::Namespace;

use super::Leader;

/// A lease may be this late before its key is read: the server ends leases to the second, and the
/// watch may have to be opened again.
const MARGIN: Duration = Duration::from_secs(5);
/// Keys read at a time.
const READS_MAX: usize = 64;

/// When each lease that a worker holds was last heard of, and at which revision.
#[derive(Debug, Default)]
pub(super) struct Silence {
    heard: BTreeMap<JobSeq, (Millis, u64)>,
}

impl Silence {
    /// Takes note of what an event says about a lease.
    pub(super) fn hear(&mut self, event: &Event, now: Millis) {
        match event {
            Event::Held {
                credit, revision, ..
            } => self.is_held(credit.seq, *revision, now),
            Event::GrantStored { seq, revision } => self.is_held(*seq, *revision, now),
            Event::Settled { settlement, .. } => {
                self.heard.remove(&settlement.credit.seq);
            }
            Event::LeaseEnded { seq, .. } => {
                self.heard.remove(seq);
            }
            _ => {}
        }
    }

    fn is_held(&mut self, seq: JobSeq, revision: u64, now: Millis) {
        let heard = self.heard.entry(seq).or_insert((now, revision));
        if heard.1 <= revision {
            *heard = (now, revision);
        }
    }

    /// Leases of which nothing was heard since `before`, with their revisions. They are not named
    /// again for as long as others.
    fn overdue(&mut self, before: Millis, now: Millis) -> Vec<(JobSeq, u64)> {
        let silent = self.heard.iter_mut().filter(|(_, heard)| heard.0 < before);
        let silent = silent.take(READS_MAX).map(|(&seq, heard)| {
            heard.0 = now;
            (seq, heard.1)
        });
        silent.collect()
    }
}

impl Leader {
    /// Looks after leases that have been silent for too long.
    pub(super) fn look_after_leases(&mut self) {
        let now = self.shell.clock.now();
        let patience = self.shell.options.lease_ttl_max + MARGIN;
        let patience = Millis::try_from(patience.as_millis()).unwrap_or(Millis::MAX);
        let before = now.saturating_sub(patience);
        for (seq, revision) in self.silence.overdue(before, now) {
            let look = look(self.credits.clone(), seq, revision);
            self.outcomes.push(Box::pin(look));
        }
    }
}

async fn look(credits: Bucket, seq: JobSeq, revision: u64) -> Event {
    match credits.get(&Namespace::lease_key(seq)).await {
        Ok(None) => {
            tracing::warn!(seq = seq.0, "a lease is gone without a trace");
            Event::LeaseEnded { seq, revision }
        }
        Ok(Some(entry)) => {
            if entry.revision > Revision(revision) {
                tracing::debug!(seq = seq.0, "the watch of the leases is behind");
            }
            Event::Tick
        }
        Err(error) => {
            tracing::debug!(seq = seq.0, %error, "cannot look after a lease");
            Event::Tick
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn stored(seq: u64, revision: u64) -> Event {
        Event::GrantStored {
            seq: JobSeq(seq),
            revision,
        }
    }

    #[test]
    fn only_leases_that_are_silent_are_looked_after_and_not_at_once_again() {
        let mut silence = Silence::default();
        silence.hear(&stored(1, 10), 1_000);
        silence.hear(&stored(2, 11), 1_000);
        silence.hear(&stored(3, 12), 1_000);
        silence.hear(&stored(1, 13), 5_000);
        silence.hear(&stored(2, 9), 5_000);
        let ended = Event::LeaseEnded {
            seq: JobSeq(3),
            revision: 14,
        };
        silence.hear(&ended, 5_000);
        assert_eq!(silence.overdue(4_000, 6_000), [(JobSeq(2), 11)]);
        assert_eq!(silence.overdue(4_000, 6_000), []);
    }
}
