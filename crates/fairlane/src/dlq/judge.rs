//! The producer's own judgement of a body, and what its job would cost.

use std::sync::Arc;

use fairlane_core::TenantId;
use fairlane_core::models::Catalog;
use fairlane_core::price::{PriceTable, Terms, Usage};
use fairlane_letters::ready::{Judge, Size};
use fairlane_producer::Judgement;
use fairlane_producer::intake::Intake;
use fairlane_runtime::{catalog, fallback_kinds, oversize_policies};
use fairlane_wire::{Failure, Namespace};

use super::now_ms;
use crate::exit::{Exit, Stop};
use crate::target::Target;

/// The judge of submissions, as this installation is configured.
#[derive(Debug)]
pub(crate) struct Producers {
    judgement: Judgement,
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
        let intake = Intake::new(catalog.clone(), kinds, cuts, target.settings());
        Ok(Self {
            judgement: Judgement::new(Arc::new(intake), names.clone()),
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
        self.judgement.judge(tenant, body)
    }
}
