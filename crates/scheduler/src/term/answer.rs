//! Answers to people who ask what the leader knows.

use fairlane_wire::{WhyAnswer, WhyRequest};

use super::Leader;

impl Leader {
    /// Answers why a job is not running.
    pub(super) async fn answer(&mut self, message: &async_nats::Message) {
        let Some(reply) = message.reply.clone() else {
            return;
        };
        let Ok(request) = serde_json::from_slice::<WhyRequest>(&message.payload) else {
            return;
        };
        let why = self.core.why(request.seq(), self.shell.clock.now());
        let answer = serde_json::to_vec(&WhyAnswer::from(why)).expect("an answer is plain data");
        // Only puts it into the client's buffer; whoever asked asks again if it gets lost.
        if let Err(error) = self.shell.nats.client.publish(reply, answer.into()).await {
            tracing::debug!(%error, "cannot answer");
        }
    }
}
