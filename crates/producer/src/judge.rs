//! The judgement of a body that is to be sent again: the one of a submission.

use std::sync::Arc;

use fairlane_core::TenantId;
use fairlane_letters::ready::{Judge, Size};
use fairlane_nats::HeaderMap;
use fairlane_runtime::config::Settings;
use fairlane_runtime::{CatalogError, TraceContext, catalog, fallback_kinds, oversize_policies};
use fairlane_wire::{Failure, JobHeaders, Namespace};

use crate::intake::{Arrival, Body, Decision, Intake};
use crate::producer::now_ms;

/// The judge of submissions of a namespace.
#[derive(Debug)]
pub struct Judgement {
    intake: Arc<Intake>,
    names: Namespace,
}

impl Judgement {
    /// The judge of an installation that is configured so.
    ///
    /// # Errors
    /// [`CatalogError`] if `settings.models`, `.fallback` or `.kinds` is wrong.
    pub fn of(settings: &Settings, names: Namespace) -> Result<Self, CatalogError> {
        let kinds = fallback_kinds(&settings.fallback)?;
        let cuts = oversize_policies(&settings.kinds)?;
        let intake = Intake::new(catalog(&settings.models)?, kinds, cuts, settings);
        Ok(Self::new(Arc::new(intake), names))
    }

    #[must_use]
    pub fn new(intake: Arc<Intake>, names: Namespace) -> Self {
        Self { intake, names }
    }
}

impl Judge for Judgement {
    fn judge(&self, tenant: &TenantId, body: &[u8]) -> Result<Size, Failure> {
        let now = now_ms();
        let subject = self.names.submit_subject(tenant);
        let arrival = Arrival::read(&self.names, &subject, &HeaderMap::new(), 1, now);
        let trace = TraceContext::generate();
        match self.intake.decide(&arrival, Body::Here(body), &trace, now) {
            Decision::Accept(accept) => Ok(size(accept.headers)),
            // Its parts read what it has, and it reads their summaries.
            Decision::Split(split) => Ok(size(split.accept.headers)),
            Decision::Refuse(refuse) => Err(refuse.letter.failure),
        }
    }
}

fn size(headers: JobHeaders) -> Size {
    Size {
        model: headers.model,
        tokens: headers.tokens,
    }
}
