//! What the leader sees: leases, jobs and workers, from what the server reports.
//!
//! Jobs are read by priority, the most urgent first, and each priority is granted from as soon as all
//! of it is known: a million batch jobs delay no critical one.

use bytes::Bytes;
use fairlane_core::Priority;
use fairlane_core::scheduler::Event;
use fairlane_nats::{Index, IndexEvent, Nats, watch};
use fairlane_wire::lease::{CalledOff, Ready};

use super::{BATCH, Leader, ledger};
use crate::convert;

/// The job stream: one index per priority, each begun when the one before it has caught up.
#[derive(Debug)]
pub(super) struct Lanes {
    nats: Nats,
    indexes: [Option<Index>; 3],
    complete: [bool; 3],
    /// Highest sequence that was shown of each priority.
    shown: [u64; 3],
}

impl Lanes {
    pub(super) fn new(nats: &Nats) -> Self {
        Self {
            nats: nats.clone(),
            indexes: [None, None, None],
            complete: [false; 3],
            shown: [0; 3],
        }
    }

    pub(super) fn open(&mut self, priority: Priority) {
        let names = &self.nats.names;
        let filter = names.priority_filter(priority);
        let index = self.nats.index(&names.jobs_stream(), &filter);
        self.indexes[priority.index()] = Some(index);
    }

    /// The next events, of the most urgent priority that has any. None only when the program is
    /// ending. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> (Priority, Vec<IndexEvent>) {
        let [critical, standard, batch] = &mut self.indexes;
        tokio::select! {
            biased;
            events = taken(critical) => (Priority::Critical, events),
            events = taken(standard) => (Priority::Standard, events),
            events = taken(batch) => (Priority::Batch, events),
        }
    }

    /// Highest sequence of `priority` that was shown: what is missing up to there was missed.
    pub(super) fn shown(&self, priority: Priority) -> u64 {
        self.shown[priority.index()]
    }

    /// Whether every job that was there when the term began is known.
    pub(super) fn are_complete(&self) -> bool {
        self.complete.iter().all(|&complete| complete)
    }

    /// Notes that all jobs of `priority` are known, and goes on to the next one. False if that was
    /// known before.
    fn completed(&mut self, priority: Priority) -> bool {
        let index = priority.index();
        if std::mem::replace(&mut self.complete[index], true) {
            return false;
        }
        if let Some(&next) = Priority::ALL.get(index + 1) {
            self.open(next);
        }
        true
    }
}

/// The next events of an index that is open; empty only when the program is ending. Dropping the
/// future loses nothing.
pub(super) async fn taken(index: &mut Option<Index>) -> Vec<IndexEvent> {
    let Some(index) = index else {
        return std::future::pending().await;
    };
    let mut events = Vec::new();
    index.next_many(&mut events, BATCH).await;
    events
}

impl Leader {
    /// Reads what is there before anything is granted.
    pub(super) async fn learn_leases(&mut self) -> anyhow::Result<()> {
        let mut events = Vec::new();
        while self.leases.next_many(&mut events, BATCH).await > 0 {
            let current = events.contains(&watch::Event::Current);
            self.apply_leases(std::mem::take(&mut events));
            if current {
                return Ok(());
            }
        }
        anyhow::bail!("the watch of the leases ended")
    }

    pub(super) fn apply_leases(&mut self, events: Vec<watch::Event>) {
        for event in events {
            let watch::Event::Change(entry) = event else {
                continue;
            };
            match convert::lease(&entry) {
                Ok(event) => {
                    if let Event::LeaseEnded { seq, .. } = event
                        && self.core.is_held(seq)
                    {
                        self.shell.metrics.leading().credit_expired();
                    }
                    self.note_failure(&event);
                    self.apply(event);
                }
                Err(error) => tracing::warn!(key = entry.key, error, "not a lease"),
            }
        }
    }

    pub(super) fn apply_jobs(
        &mut self,
        priority: Priority,
        events: Vec<IndexEvent>,
    ) -> anyhow::Result<()> {
        for event in events {
            match event {
                IndexEvent::Item(item) => {
                    self.lanes.shown[priority.index()] = item.seq;
                    self.ages.saw(item.seq, item.stored_ms);
                    self.traces.saw(&item);
                    self.job(&item);
                }
                IndexEvent::Current => self.complete(priority),
                IndexEvent::Stale => {}
                IndexEvent::Reset => anyhow::bail!("the job stream was deleted and made anew"),
            }
        }
        Ok(())
    }

    fn complete(&mut self, priority: Priority) {
        if !self.lanes.completed(priority) {
            return;
        }
        self.apply(Event::Complete { priority });
        let now = self.shell.clock.now();
        if priority == Priority::Batch {
            self.ledger = Some(ledger::open(&self.shell.nats, now));
        }
        let took_ms = now - self.began_at;
        tracing::info!(
            priority = priority.as_str(),
            jobs = self.core.known(),
            live = self.core.live(),
            took_ms,
            "all jobs of a priority are known"
        );
    }

    pub(super) async fn apply_cancel(&mut self, message: &async_nats::Message) {
        match serde_json::from_slice(&message.payload) {
            Ok(CalledOff { seq }) => self.apply(Event::CalledOff { seq }),
            Err(error) => return tracing::warn!(%error, "not a job that is called off"),
        }
        if let Some(reply) = message.reply.clone()
            && let Err(error) = self.shell.nats.client.publish(reply, Bytes::new()).await
        {
            tracing::debug!(%error, "cannot say that it is heard");
        }
    }

    pub(super) fn apply_ready(&mut self, message: &async_nats::Message) {
        match serde_json::from_slice::<Ready>(&message.payload) {
            Ok(Ready {
                worker,
                slots,
                draining,
                version: _,
            }) => {
                self.apply(Event::Worker {
                    worker,
                    slots,
                    draining,
                });
            }
            Err(error) => tracing::warn!(%error, "not a worker's announcement"),
        }
    }
}
