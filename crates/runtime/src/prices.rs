//! The prices of this fleet: the built-in table with the configuration's additions and changes.

use std::collections::BTreeMap;

use fairlane_core::ModelId;
use fairlane_core::price::{self, PriceError, PriceTable, Rates, Speed, Tier};

use crate::config;

/// A price of the configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PricesError {
    #[error("prices.{name}.{key} is missing; give model, input and output")]
    Missing { name: String, key: &'static str },
    #[error("prices.{name}.model is {value:?}, which is no model id")]
    Model { name: String, value: String },
    #[error("prices.{name}.valid_from is {value:?}; give a day such as 2026-12-01")]
    Date { name: String, value: String },
    #[error("prices.{name}")]
    Price {
        name: String,
        #[source]
        source: PriceError,
    },
}

/// The built-in prices with `changes` applied.
///
/// # Errors
/// [`PricesError`] with the key that is wrong or missing.
pub fn prices(changes: &BTreeMap<String, config::Price>) -> Result<PriceTable, PricesError> {
    let mut table = PriceTable::default();
    let mut whole: BTreeMap<(ModelId, u64), (String, price::Price)> = BTreeMap::new();
    for (name, change) in changes {
        let missing = |key| PricesError::Missing {
            name: name.clone(),
            key,
        };
        let model = change.model.as_ref().ok_or_else(|| missing("model"))?;
        let id = ModelId::parse(model).map_err(|_| PricesError::Model {
            name: name.clone(),
            value: model.clone(),
        })?;
        let valid_from_ms = match &change.valid_from {
            None => 0,
            Some(day) => day_ms(day).ok_or_else(|| PricesError::Date {
                name: name.clone(),
                value: day.clone(),
            })?,
        };
        let tier = Tier {
            prompt_tokens_above: change.prompt_tokens_above,
            rates: rates(change).map_err(missing)?,
        };
        let (_, price) = whole.entry((id.clone(), valid_from_ms)).or_insert_with(|| {
            let price = price::Price {
                model: id,
                speed: Speed::Standard,
                valid_from_ms,
                us_surcharge_percent: change.us_surcharge_percent,
                tiers: Vec::new(),
            };
            (name.clone(), price)
        });
        price.tiers.push(tier);
    }
    for (name, price) in whole.into_values() {
        let inserted = table.insert(price);
        inserted.map_err(|source| PricesError::Price { name, source })?;
    }
    Ok(table)
}

/// The rates, or the key that is missing.
fn rates(change: &config::Price) -> Result<Rates, &'static str> {
    let input = change.input.ok_or("input")?;
    let output = change.output.ok_or("output")?;
    Ok(Rates {
        input: micro(input),
        output: micro(output),
        cache_write_5m: micro(change.cache_write_5m.unwrap_or(input * 1.25)),
        cache_write_1h: micro(change.cache_write_1h.unwrap_or(input * 2.0)),
        cache_read: micro(change.cache_read.unwrap_or(input * 0.1)),
    })
}

/// Dollars per million tokens in micro-dollars per million, which are pico-dollars per token.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the configuration allows 0 to 10 000"
)]
fn micro(dollars: f64) -> u64 {
    (dollars * 1e6).round() as u64
}

fn day_ms(day: &str) -> Option<u64> {
    let day: jiff::civil::Date = day.parse().ok()?;
    let midnight = day.to_zoned(jiff::tz::TimeZone::UTC).ok()?;
    u64::try_from(midnight.timestamp().as_millisecond()).ok()
}

#[cfg(test)]
mod tests {
    use fairlane_core::price::{Terms, Usage};

    use super::*;

    const DAY_MS: u64 = 1_796_083_200_000;

    fn price(above: u64, input: f64) -> config::Price {
        config::Price {
            model: Some("claude-haiku-5-5".into()),
            valid_from: Some("2026-12-01".into()),
            prompt_tokens_above: above,
            input: Some(input),
            output: Some(input * 5.0),
            ..config::Price::default()
        }
    }

    fn table(changes: &[(&str, config::Price)]) -> Result<PriceTable, PricesError> {
        let changes = changes
            .iter()
            .map(|(name, price)| ((*name).to_owned(), price.clone()));
        prices(&changes.collect())
    }

    #[test]
    fn a_new_price_holds_from_its_day_on_and_has_its_tiers() {
        let changes = [("long", price(50_000, 1.0)), ("short", price(0, 0.2))];
        let table = table(&changes).unwrap();
        let model = ModelId::parse("claude-haiku-5-5").unwrap();
        let cost = |input, at_ms| {
            let usage = Usage {
                input,
                cache_read: 10_000,
                ..Usage::default()
            };
            let cost = table.cost(&model, &usage, Terms::default(), at_ms);
            cost.unwrap().micro_rounded()
        };
        assert_eq!(cost(30_000, DAY_MS - 1), 3_100, "the built-in price before");
        assert_eq!(cost(30_000, DAY_MS), 6_200);
        assert_eq!(cost(60_000, DAY_MS), 61_000);
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        let without = |change: fn(&mut config::Price)| {
            let mut price = price(0, 1.0);
            change(&mut price);
            table(&[("p", price)]).unwrap_err().to_string()
        };
        assert!(without(|price| price.model = None).starts_with("prices.p.model is missing"));
        assert!(without(|price| price.input = None).starts_with("prices.p.input is missing"));
        let date = without(|price| price.valid_from = Some("soon".into()));
        assert!(
            date.starts_with("prices.p.valid_from is \"soon\""),
            "{date}"
        );
        let model = without(|price| price.model = Some("a b".into()));
        assert!(model.contains("no model id"), "{model}");
    }
}
