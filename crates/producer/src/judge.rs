//! The judgement of a body that is to be sent again: the one of a submission.

use std::sync::Arc;

use fairlane_core::TenantId;
use fairlane_letters::ready::{Judge, Size};
use fairlane_nats::HeaderMap;
use fairlane_runtime::TraceContext;
use fairlane_wire::{Failure, Namespace};

use crate::intake::{Arrival, Body, Decision, Intake};
use crate::producer::now_ms;

/// The judge of submissions of a namespace.
#[derive(Debug)]
pub(crate) struct Judgement {
    pub(crate) intake: Arc<Intake>,
    pub(crate) names: Namespace,
}

impl Judge for Judgement {
    fn judge(&self, tenant: &TenantId, body: &[u8]) -> Result<Size, Failure> {
        let now = now_ms();
        let subject = self.names.submit_subject(tenant);
        let arrival = Arrival::read(&self.names, &subject, &HeaderMap::new(), 1, now);
        let trace = TraceContext::generate();
        match self.intake.decide(&arrival, Body::Here(body), &trace, now) {
            Decision::Accept(accept) => Ok(Size {
                model: accept.headers.model,
                tokens: accept.headers.tokens,
            }),
            Decision::Refuse(refuse) => Err(refuse.letter.failure),
        }
    }
}
