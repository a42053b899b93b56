//! What the leader sees: leases, jobs and workers, from what the server reports.

use fairlane_core::scheduler::Event;
use fairlane_nats::{IndexEvent, watch};
use fairlane_wire::lease::Ready;

use super::{BATCH, Leader};
use crate::convert;

impl Leader {
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

    pub(super) async fn learn_jobs(&mut self) -> anyhow::Result<()> {
        let mut events = Vec::new();
        while self.index.next_many(&mut events, BATCH).await > 0 {
            let current = events.contains(&IndexEvent::Current);
            self.apply_jobs(std::mem::take(&mut events))?;
            if current {
                return Ok(());
            }
        }
        anyhow::bail!("the index of the jobs ended")
    }

    pub(super) fn apply_leases(&mut self, events: Vec<watch::Event>) {
        for event in events {
            let watch::Event::Change(entry) = event else {
                continue;
            };
            match convert::lease(&entry) {
                Ok(event) => self.apply(event),
                Err(error) => tracing::warn!(key = entry.key, error, "not a lease"),
            }
        }
    }

    pub(super) fn apply_jobs(&mut self, events: Vec<IndexEvent>) -> anyhow::Result<()> {
        for event in events {
            match event {
                IndexEvent::Item(item) => match convert::job(&self.shell.nats.names, &item) {
                    Ok(job) => self.apply(Event::Job(job)),
                    Err(error) => {
                        tracing::warn!(seq = item.seq, subject = item.subject, error, "not a job");
                    }
                },
                IndexEvent::Current | IndexEvent::Stale => {}
                IndexEvent::Reset => anyhow::bail!("the job stream was deleted and made anew"),
            }
        }
        Ok(())
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
