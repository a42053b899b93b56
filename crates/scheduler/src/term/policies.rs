//! What holds for tenants, as people change it while the fleet runs.

use std::time::Duration;

use fairlane_nats::watch;

use super::{BATCH, Leader};
use crate::tenants;

/// Without the tenants' settings those of the configuration hold: nobody waits longer for them.
const PATIENCE: Duration = Duration::from_secs(1);

impl Leader {
    /// Reads the settings of all tenants, if they can be read in time; otherwise they take effect when
    /// they come.
    pub(super) async fn learn_policies(&mut self) -> anyhow::Result<()> {
        let give_up = tokio::time::Instant::now() + PATIENCE;
        loop {
            let mut events = Vec::new();
            let read = self.policies.next_many(&mut events, BATCH);
            match tokio::time::timeout_at(give_up, read).await {
                Ok(0) => anyhow::bail!("the watch of the tenants ended"),
                Ok(_) => {}
                Err(_) => {
                    tracing::warn!("cannot read the tenants' settings yet");
                    return Ok(());
                }
            }
            let current = events.contains(&watch::Event::Current);
            self.apply_policies(events);
            if current {
                return Ok(());
            }
        }
    }

    pub(super) fn apply_policies(&mut self, events: Vec<watch::Event>) {
        for event in events {
            let watch::Event::Change(entry) = event else {
                continue;
            };
            match tenants::policy(&self.shell.options.config, &entry) {
                Ok(event) => self.apply(event),
                Err(error) => tracing::warn!(
                    tenant = entry.key,
                    %error,
                    "a tenant's settings are not usable; what held before still holds"
                ),
            }
        }
    }
}
