//! What sending a letter again is expected to cost.

use fairlane_core::models::Catalog;
use fairlane_core::price::{PriceTable, Terms, Usage};

use crate::ready::Size;

/// What jobs cost, as far as the prices of their models are known.
#[derive(Debug)]
pub struct Prices {
    catalog: Catalog,
    table: PriceTable,
}

impl Prices {
    /// The listed prices of the models of `catalog`.
    #[must_use]
    pub fn new(catalog: Catalog) -> Self {
        Self {
            catalog,
            table: PriceTable::default(),
        }
    }

    /// US dollars that a job of this size is expected to cost at `now_ms` (unix milliseconds); None if its model has no
    /// price.
    #[must_use]
    pub fn dollars(&self, size: &Size, now_ms: u64) -> Option<f64> {
        let model = self.catalog.find(size.model.as_str())?;
        let usage = Usage {
            input: size.tokens.input,
            output: size.tokens.output,
            ..Usage::default()
        };
        let cost = self.table.cost(&model.id, &usage, Terms::default(), now_ms);
        #[expect(clippy::cast_precision_loss, reason = "an estimate for people")]
        cost.ok().map(|cost| cost.0 as f64 / 1e12)
    }
}

#[cfg(test)]
mod tests {
    use fairlane_core::{ModelId, Tokens};

    use super::*;

    #[test]
    fn a_job_costs_what_its_model_is_listed_with_and_an_unknown_one_has_no_price() {
        let prices = Prices::new(Catalog::default());
        let dollars = |model: &str| {
            let tokens = Tokens {
                input: 1_000_000,
                output: 100_000,
            };
            let model = ModelId::parse(model).unwrap();
            prices.dollars(&Size { model, tokens }, 1_780_000_000_000)
        };
        assert_eq!(dollars("claude-haiku-4-5"), Some(1.5));
        assert_eq!(dollars("claude-unheard-of-1"), None);
    }
}
