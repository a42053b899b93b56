//! Answers to people who ask what the leader knows.

use fairlane_core::JobSeq;
use fairlane_wire::fleet::TENANTS_MAX;
use fairlane_wire::{FleetRecord, TenantWhy, WhyAnswer, WhyRequest};

use super::Leader;

impl Leader {
    /// Answers why a job is not running, or what a tenant waits for: `null` if nothing of it was seen.
    pub(super) async fn answer(&mut self, message: &async_nats::Message) {
        let Some(reply) = message.reply.clone() else {
            return;
        };
        let Ok(request) = serde_json::from_slice::<WhyRequest>(&message.payload) else {
            return;
        };
        let now = self.shell.clock.now();
        let answer = match request {
            WhyRequest::Job { seq } => {
                serde_json::to_vec(&WhyAnswer::from(self.core.why(JobSeq(seq), now)))
            }
            WhyRequest::Tenant { tenant } => {
                let outlook = self.core.why_tenant(&tenant, now);
                serde_json::to_vec(&outlook.map(TenantWhy::from))
            }
            WhyRequest::Fleet { tenants_max } => serde_json::to_vec(&self.fleet(tenants_max)),
        };
        let answer = answer.expect("an answer is plain data");
        // Only puts it into the client's buffer; whoever asked asks again if it gets lost.
        if let Err(error) = self.shell.nats.client.publish(reply, answer.into()).await {
            tracing::debug!(%error, "cannot answer");
        }
    }

    fn fleet(&mut self, tenants_max: u32) -> FleetRecord {
        let now = self.shell.clock.now();
        let tenants_max = tenants_max.min(TENANTS_MAX) as usize;
        let overview = self.core.overview(tenants_max, now);
        let age = |seq: JobSeq| self.ages.age(seq.0, now);
        let ages = overview.oldest.map(|seq| seq.map_or(0, age));
        let version = env!("CARGO_PKG_VERSION");
        FleetRecord::new(overview, ages, self.core.term().0, now, version)
    }
}
