//! How many dead letters there are, by reason, and how many of them expire soon: for whoever watches.
//!
//! Read from the subjects of their stream, which tell the reason and which letter was sent again;
//! no letter is opened. Every scheduler counts, leading or not: the numbers are the same, and one
//! that only stands by still tells them. Letters go by age (which is foreseen here) or because
//! somebody purges them; then the total is wrong and all is counted anew.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use fairlane_core::Millis;
use fairlane_core::tell::{Groups, Message};
use fairlane_nats::{IndexEvent, IndexItem, Nats};
use fairlane_runtime::{Metrics, Shutdown};
use fairlane_wire::{DeadReason, Letter, Namespace, header};
use tokio::sync::watch as latest;
use tokio::time::MissedTickBehavior;

use crate::clock::Clock;
use crate::webhook::Outbox;

/// How often the numbers are told and checked.
const TELL_EVERY: Duration = Duration::from_secs(5);
/// Headers taken at a time.
const CHUNK: usize = 1_024;
/// Letters that are known one by one. Of more, the oldest are not counted.
const LETTERS_MAX: usize = 1_000_000;
/// A letter that has less than this part of its life left expires soon: three days of thirty.
const SOON: u64 = 10;
const HOUR: Millis = 3_600_000;

/// Letters of the last 60 minutes, for the leader.
#[derive(Debug, Clone)]
pub(crate) struct Recent(latest::Receiver<Count>);

/// How many there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) all: u64,
    /// Of jobs that failed through no fault of their own.
    pub(crate) exposed: u64,
}

impl Recent {
    pub(crate) fn channel() -> (latest::Sender<Count>, Self) {
        let (sender, receiver) = latest::channel(Count::default());
        (sender, Self(receiver))
    }

    pub(crate) fn count(&self) -> Count {
        *self.0.borrow()
    }
}

/// Counts until the process drains.
pub(crate) async fn watch(
    nats: Nats,
    recent: latest::Sender<Count>,
    outbox: Outbox,
    keep: Duration,
    metrics: Metrics,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let clock = Clock::start();
    let keep_ms = Millis::try_from(keep.as_millis()).unwrap_or(Millis::MAX);
    let stream = nats.names.dlq_stream();
    let filter = format!("{}.>", nats.names.as_str());
    let mut ticks = tokio::time::interval(TELL_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut events = Vec::with_capacity(CHUNK);
    let mut letters = Letters::default();
    let mut groups = Groups::default();
    let mut index = nats.index(&stream, &filter);
    let (mut is_current, mut was_wrong) = (false, false);
    loop {
        tokio::select! {
            () = shutdown.draining().cancelled() => return Ok(()),
            taken = index.next_many(&mut events, CHUNK) => {
                if taken == 0 {
                    return Ok(());
                }
                for event in events.drain(..) {
                    match event {
                        IndexEvent::Item(item) => {
                            letters.see(&nats.names, item.seq, &item.subject, item.stored_ms);
                            if let Some(message) = told(&mut groups, &item)
                                && is_current
                            {
                                outbox.tell(message);
                            }
                        }
                        IndexEvent::Current => is_current = true,
                        IndexEvent::Stale => is_current = false,
                        IndexEvent::Reset => letters = Letters::default(),
                    }
                }
                continue;
            }
            _ = ticks.tick() => {}
        }
        if !is_current {
            continue;
        }
        letters.expire(clock.now(), keep_ms);
        letters.tell(&metrics, clock.now(), keep_ms);
        recent.send_replace(letters.recent(clock.now()));
        let Ok(count) = nats.jobs().count(&stream).await else {
            continue;
        };
        // Once, something may just be on its way.
        let is_wrong = letters.messages != count;
        if is_wrong && was_wrong {
            index = nats.index(&stream, &filter);
            (letters, is_current) = (Letters::default(), false);
        }
        was_wrong = is_wrong && !was_wrong;
    }
}

/// What there is to tell of a letter.
fn told(groups: &mut Groups, item: &IndexItem) -> Option<Message> {
    let facts = item.headers.get(header::LETTER)?;
    let letter = Letter::from_json(facts.as_str()).ok()?;
    let failure = &letter.failure;
    groups.letter(
        &letter.fingerprint,
        failure.reason.as_str(),
        failure.detail.as_deref(),
    )
}

#[derive(Debug, Clone, Copy)]
struct Seen {
    stored_ms: Millis,
    /// None for a note.
    reason: Option<DeadReason>,
    redriven: bool,
}

#[derive(Debug, Default)]
struct Letters {
    first: u64,
    /// By sequence, from `first` on; None where there is nothing.
    seen: VecDeque<Option<Seen>>,
    /// Messages that should be in the stream.
    messages: u64,
}

impl Letters {
    fn see(&mut self, names: &Namespace, seq: u64, subject: &str, stored_ms: Millis) {
        let reason = names.parse_dlq_subject(subject).map(|(reason, _)| reason);
        if let Some(letter) = names.parse_redriven_subject(subject)
            && let Some(Some(seen)) = self.at(letter)
        {
            seen.redriven = true;
        }
        if self.seen.is_empty() {
            self.first = seq;
        }
        let Some(place) = seq.checked_sub(self.first) else {
            return;
        };
        // What was purged leaves holes; of such no room is worth a million places.
        let place = usize::try_from(place).unwrap_or(usize::MAX);
        if place > self.seen.len() + LETTERS_MAX {
            *self = Self::default();
            return self.see(names, seq, subject, stored_ms);
        }
        self.seen.resize(place.max(self.seen.len()), None);
        self.seen.push_back(Some(Seen {
            stored_ms,
            reason,
            redriven: false,
        }));
        self.messages += 1;
        while self.seen.len() > LETTERS_MAX {
            self.drop_first();
        }
    }

    fn at(&mut self, seq: u64) -> Option<&mut Option<Seen>> {
        let place = usize::try_from(seq.checked_sub(self.first)?).ok()?;
        self.seen.get_mut(place)
    }

    fn drop_first(&mut self) {
        if let Some(Some(_)) = self.seen.pop_front() {
            self.messages -= 1;
        }
        self.first += 1;
    }

    fn expire(&mut self, now: Millis, keep: Millis) {
        let is_over = |seen: &Seen| seen.stored_ms.saturating_add(keep) < now;
        while self
            .seen
            .front()
            .is_some_and(|seen| seen.as_ref().is_none_or(is_over))
        {
            self.drop_first();
        }
    }

    /// Open letters by reason, and how many of all expire soon.
    fn open(&self, now: Millis, keep: Millis) -> (BTreeMap<&'static str, usize>, usize) {
        let mut open = BTreeMap::new();
        for reason in DeadReason::ALL {
            open.insert(reason.as_str(), 0);
        }
        let mut soon = 0;
        for seen in self.seen.iter().flatten() {
            let Some(reason) = seen.reason.filter(|_| !seen.redriven) else {
                continue;
            };
            *open.entry(reason.as_str()).or_default() += 1;
            let ends = seen.stored_ms.saturating_add(keep);
            soon += usize::from(ends.saturating_sub(now) < keep / SOON);
        }
        (open, soon)
    }

    /// Letters written within the last 60 minutes. Those of jobs that were sent again and failed again count again.
    fn recent(&self, now: Millis) -> Count {
        let since = now.saturating_sub(HOUR);
        // In the order of their times, but for clocks that differ between servers.
        let letters = self.seen.iter().rev().flatten();
        let mut count = Count::default();
        for reason in letters
            .take_while(|seen| seen.stored_ms >= since)
            .filter_map(|seen| seen.reason)
        {
            count.all += 1;
            count.exposed += u64::from(!reason.is_fault_of_the_job());
        }
        count
    }

    fn tell(&self, metrics: &Metrics, now: Millis, keep: Millis) {
        let (open, soon) = self.open(now, keep);
        for (reason, count) in open {
            metrics.dead_letters(reason, count);
        }
        metrics.dead_letters_expiring(soon);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(letters: &Letters, now: Millis) -> (usize, usize, usize) {
        let (open, soon) = letters.open(now, 100);
        (open["schema"], open["refusal"], soon)
    }

    #[test]
    fn recent_letters_tell_faults_of_jobs_from_what_their_owners_were_exposed_to() {
        let names = Namespace::default();
        let mut letters = Letters::default();
        for (seq, reason) in ["exhausted", "refusal", "expired", "schema", "exhausted"]
            .into_iter()
            .enumerate()
        {
            let (seq, subject) = (seq as u64 + 1, format!("fl.dlq.{reason}.acme"));
            letters.see(&names, seq, &subject, seq * 1_000);
        }
        letters.see(&names, 6, "fl.redriven.1", 6_000);
        let count = |all, exposed| Count { all, exposed };
        assert_eq!(letters.recent(7_000), count(5, 3));
        assert_eq!(letters.recent(HOUR + 2_500), count(3, 2));
        assert_eq!(letters.recent(HOUR + 9_000), count(0, 0));
    }

    #[test]
    fn letters_count_until_they_are_sent_again_or_expire() {
        let names = Namespace::default();
        let mut letters = Letters::default();
        for (seq, subject) in [
            (5, "fl.dlq.schema.acme"),
            (6, "fl.dlq.schema.beta"),
            (9, "fl.dlq.refusal.acme"),
            (10, "fl.redriven.6"),
            (11, "fl.redriven.6"),
            (12, "fl.redriven.1"),
        ] {
            letters.see(&names, seq, subject, 1_000 + seq);
        }
        assert_eq!((open(&letters, 1_020), letters.messages), ((1, 1, 0), 6));
        assert_eq!(open(&letters, 1_098), (1, 1, 1), "ten per cent of a life");
        letters.expire(1_106, 100);
        assert_eq!((open(&letters, 1_106), letters.messages), ((0, 1, 1), 5));
        letters.expire(9_999, 100);
        assert_eq!((letters.messages, letters.seen.len()), (0, 0));
        letters.see(&names, 20, "fl.dlq.refusal.acme", 9_999);
        assert_eq!(open(&letters, 9_999), (0, 1, 0));
    }
}
