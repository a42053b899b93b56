//! The producer's own judgement of a body, and what its job would cost.

use fairlane_core::TenantId;
use fairlane_letters::price::Prices;
use fairlane_letters::ready::{Judge, Size};
use fairlane_producer::Judgement;
use fairlane_runtime::catalog;
use fairlane_wire::{Failure, Namespace};

use super::now_ms;
use crate::exit::{Exit, Stop};
use crate::target::Target;

/// The judge of submissions, as this installation is configured.
#[derive(Debug)]
pub(crate) struct Producers {
    judgement: Judgement,
    prices: Prices,
}

impl Producers {
    pub(crate) fn new(target: &Target, names: &Namespace) -> Result<Self, Stop> {
        let wrong = |error| Stop::new(Exit::Usage, error);
        let judgement = Judgement::of(target.settings(), names.clone()).map_err(wrong)?;
        let catalog = catalog(&target.settings().models).map_err(wrong)?;
        Ok(Self {
            judgement,
            prices: Prices::new(catalog),
        })
    }

    /// US dollars that a job of this size is expected to cost; None if its model has no price.
    pub(crate) fn dollars(&self, size: &Size) -> Option<f64> {
        self.prices.dollars(size, now_ms())
    }
}

impl Judge for Producers {
    fn judge(&self, tenant: &TenantId, body: &[u8]) -> Result<Size, Failure> {
        self.judgement.judge(tenant, body)
    }
}
