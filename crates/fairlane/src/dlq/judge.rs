//! The producer's own judgement of a body, and what its job would cost.

use fairlane_core::TenantId;
use fairlane_core::models::Catalog;
use fairlane_core::price::{PriceTable, Terms, Usage};
use fairlane_letters::ready::{Judge, Size};
use fairlane_nats::HeaderMap;
use fairlane_producer::intake::{Arrival, Body, Decision, Intake};
use fairlane_runtime::{TraceContext, catalog, fallback_kinds, oversize_policies};
use fairlane_wire::{Failure, JobHeaders, Namespace};

use super::now_ms;
use crate::exit::{Exit, Stop};
use crate::target::Target;

/// The judge of submissions, as this installation is configured.
#[derive(Debug)]
pub(crate) struct Producers {
    intake: Intake,
    names: Namespace,
    catalog: Catalog,
    prices: PriceTable,
}

impl Producers {
    pub(crate) fn new(target: &Target, names: &Namespace) -> Result<Self, Stop> {
        let catalog = catalog(&target.settings().models);
        let catalog = catalog.map_err(|error| Stop::new(Exit::Usage, error))?;
        let kinds = fallback_kinds(&target.settings().fallback);
        let kinds = kinds.map_err(|error| Stop::new(Exit::Usage, error))?;
        let cuts = oversize_policies(&target.settings().kinds);
        let cuts = cuts.map_err(|error| Stop::new(Exit::Usage, error))?;
        Ok(Self {
            intake: Intake::new(catalog.clone(), kinds, cuts, target.settings()),
            names: names.clone(),
            catalog,
            prices: PriceTable::default(),
        })
    }

    /// US dollars that a job of this size is expected to cost; None if its model has no price.
    pub(crate) fn dollars(&self, size: &Size) -> Option<f64> {
        let model = self.catalog.find(size.model.as_str())?;
        let usage = Usage {
            input: size.tokens.input,
            output: size.tokens.output,
            ..Usage::default()
        };
        let cost = self
            .prices
            .cost(&model.id, &usage, Terms::default(), now_ms());
        #[expect(clippy::cast_precision_loss, reason = "an estimate for people")]
        cost.ok().map(|cost| cost.0 as f64 / 1e12)
    }
}

impl Judge for Producers {
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
