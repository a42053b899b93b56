//! What a call used, and what it costs: a dated, tiered price table and exact arithmetic.
//!
//! Prices are whole numbers of pico-dollars (1e-12 USD) per token, which is the same number as
//! micro-dollars per million tokens. Sums are 128 bits wide and nothing is rounded before it is
//! shown, so books that add up per call also add up per tenant and month.
//!
//! A table holds several prices for one model, each with the time from which it holds. A price has one
//! tier or more; the size of the whole prompt, cached or not, picks the tier for the whole request.

use std::fmt;

use crate::ids::{ModelId, NameError};
use crate::job::Tokens;

/// What one call used, in tokens. The five token counts that are priced do not overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Input after the last cache breakpoint.
    pub input: u64,
    /// Input written to the cache for five minutes.
    pub cache_write_5m: u64,
    /// Input written to the cache for an hour.
    pub cache_write_1h: u64,
    /// Input read from the cache.
    pub cache_read: u64,
    /// Generated, thinking included.
    pub output: u64,
    /// The part of `output` that was thinking.
    pub thinking: u64,
    /// Billed by use.
    pub web_search_requests: u64,
    /// Not billed by use.
    pub web_fetch_requests: u64,
}

impl Usage {
    /// The whole prompt: uncached, written and read. Picks the price tier.
    #[must_use]
    pub fn prompt(&self) -> u64 {
        self.input
            .saturating_add(self.cache_write_5m)
            .saturating_add(self.cache_write_1h)
            .saturating_add(self.cache_read)
    }

    /// What counts against the upstream's limits: cache reads do not.
    #[must_use]
    pub fn limited(&self) -> Tokens {
        let input = self
            .input
            .saturating_add(self.cache_write_5m)
            .saturating_add(self.cache_write_1h);
        Tokens {
            input,
            output: self.output,
        }
    }

    /// Both together, as for a job that took two calls.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            input: self.input.saturating_add(other.input),
            cache_write_5m: self.cache_write_5m.saturating_add(other.cache_write_5m),
            cache_write_1h: self.cache_write_1h.saturating_add(other.cache_write_1h),
            cache_read: self.cache_read.saturating_add(other.cache_read),
            output: self.output.saturating_add(other.output),
            thinking: self.thinking.saturating_add(other.thinking),
            web_search_requests: self
                .web_search_requests
                .saturating_add(other.web_search_requests),
            web_fetch_requests: self
                .web_fetch_requests
                .saturating_add(other.web_fetch_requests),
        }
    }
}

/// An amount of money in pico-dollars (1e-12 USD). Exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Usd(pub u128);

impl Usd {
    const PICO_PER_MICRO: u128 = 1_000_000;

    /// An amount of whole micro-dollars (1e-6 USD).
    #[must_use]
    pub const fn from_micro(micro: u64) -> Self {
        Self(micro as u128 * Self::PICO_PER_MICRO)
    }

    /// The amount in micro-dollars, rounded half up; the only place where an amount is rounded.
    #[must_use]
    pub fn micro_rounded(self) -> u64 {
        let micro = self.0.saturating_add(Self::PICO_PER_MICRO / 2) / Self::PICO_PER_MICRO;
        u64::try_from(micro).unwrap_or(u64::MAX)
    }
}

impl std::ops::Add for Usd {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl std::iter::Sum for Usd {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::default(), |sum, amount| sum + amount)
    }
}

/// `$12.345678`: rounded to micro-dollars.
impl fmt::Display for Usd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micro = self.micro_rounded();
        write!(f, "${}.{:06}", micro / 1_000_000, micro % 1_000_000)
    }
}

/// Prices per token in pico-dollars: the same numbers as micro-dollars per million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rates {
    pub input: u64,
    pub cache_write_5m: u64,
    pub cache_write_1h: u64,
    pub cache_read: u64,
    pub output: u64,
}

/// The rates for prompts above a size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tier {
    /// Holds for prompts of more tokens than this; the lowest tier has 0 and takes empty ones too.
    pub prompt_tokens_above: u64,
    pub rates: Rates,
}

/// How fast a call was served: `usage.speed`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Speed {
    #[default]
    Standard,
    Fast,
}

/// Where a call was served: `usage.inference_geo`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Geo {
    #[default]
    Global,
    /// In the United States alone, at a surcharge on most models.
    Us,
}

/// How a call was made: at once, or in a message batch at half of all token prices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Service {
    #[default]
    Immediate,
    Batch,
}

/// The circumstances of a call that change its price.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Terms {
    pub speed: Speed,
    pub geo: Geo,
    pub service: Service,
}

/// One model's price from some time on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Price {
    pub model: ModelId,
    pub speed: Speed,
    /// First moment at which it holds, in Unix milliseconds.
    pub valid_from_ms: u64,
    /// Surcharge for [`Geo::Us`] in percent of the token prices.
    pub us_surcharge_percent: u64,
    /// At least one.
    pub tiers: Vec<Tier>,
}

/// Why a call cannot be priced.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PriceError {
    #[error("no price for model {model:?} at speed {speed:?}; add one to the price table")]
    Unknown { model: ModelId, speed: Speed },
    #[error("no price for model {model:?} at {at_ms} ms; its first price holds from {first_ms} ms")]
    Early {
        model: ModelId,
        at_ms: u64,
        first_ms: u64,
    },
    #[error("price of model {model:?} has no tier; give it at least one, from 0 tokens")]
    NoTier { model: ModelId },
}

/// $10 per 1 000 web searches.
const WEB_SEARCH: Usd = Usd::from_micro(10_000);

/// The prices of all models, dated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PriceTable {
    prices: Vec<Price>,
    /// Price of one web search.
    pub web_search: Usd,
}

impl PriceTable {
    /// A table without prices.
    #[must_use]
    pub fn empty() -> Self {
        Self {
            prices: Vec::new(),
            web_search: WEB_SEARCH,
        }
    }

    /// Adds a price; one with the same model, speed and date is replaced.
    ///
    /// # Errors
    /// [`PriceError::NoTier`] when it has no tier.
    pub fn insert(&mut self, mut price: Price) -> Result<(), PriceError> {
        if price.tiers.is_empty() {
            return Err(PriceError::NoTier { model: price.model });
        }
        price.tiers.sort_by_key(|tier| tier.prompt_tokens_above);
        let same = |old: &Price| {
            old.model == price.model
                && old.speed == price.speed
                && old.valid_from_ms == price.valid_from_ms
        };
        self.prices.retain(|old| !same(old));
        self.prices.push(price);
        Ok(())
    }

    /// The price of a model at a time. `model` is the catalogue's id, not an alias.
    ///
    /// # Errors
    /// [`PriceError::Unknown`] without any price, [`PriceError::Early`] before the first one.
    pub fn price(&self, model: &ModelId, speed: Speed, at_ms: u64) -> Result<&Price, PriceError> {
        let of_model = || {
            self.prices
                .iter()
                .filter(|price| price.model == *model && price.speed == speed)
        };
        let current = of_model()
            .filter(|price| price.valid_from_ms <= at_ms)
            .max_by_key(|price| price.valid_from_ms);
        current.ok_or_else(|| {
            let model = model.clone();
            match of_model().map(|price| price.valid_from_ms).min() {
                Some(first_ms) => PriceError::Early {
                    model,
                    at_ms,
                    first_ms,
                },
                None => PriceError::Unknown { model, speed },
            }
        })
    }

    /// What a call costs that was made at `at_ms` (Unix milliseconds).
    ///
    /// # Errors
    /// As [`PriceTable::price`].
    pub fn cost(
        &self,
        model: &ModelId,
        usage: &Usage,
        terms: Terms,
        at_ms: u64,
    ) -> Result<Usd, PriceError> {
        let price = self.price(model, terms.speed, at_ms)?;
        let rates = price.rates(usage.prompt());
        let tokens = [
            (usage.input, rates.input),
            (usage.cache_write_5m, rates.cache_write_5m),
            (usage.cache_write_1h, rates.cache_write_1h),
            (usage.cache_read, rates.cache_read),
            (usage.output, rates.output),
        ];
        let list: u128 = tokens
            .iter()
            .map(|&(count, rate)| u128::from(count) * u128::from(rate))
            .sum();
        let percent_geo = match terms.geo {
            Geo::Global => 100,
            Geo::Us => 100 + u128::from(price.us_surcharge_percent),
        };
        let percent_service = match terms.service {
            Service::Immediate => 100,
            Service::Batch => 50,
        };
        let tokens = Usd(list.saturating_mul(percent_geo * percent_service) / 10_000);
        let searches = self
            .web_search
            .0
            .saturating_mul(u128::from(usage.web_search_requests));
        Ok(tokens + Usd(searches))
    }
}

impl Price {
    /// The rates for a prompt of this many tokens.
    fn rates(&self, prompt: u64) -> Rates {
        let fits = |tier: &&Tier| prompt > tier.prompt_tokens_above;
        let tier = self.tiers.iter().rev().find(fits).or(self.tiers.first());
        tier.expect("insert refuses a price without tiers").rates
    }
}

/// A row of the list: prices in milli-dollars per million tokens, which the list's decimals fit.
struct Row {
    model: &'static str,
    valid_from_ms: u64,
    us_surcharge_percent: u64,
    tiers: &'static [(u64, [u64; 5])],
}

const fn row(model: &'static str, tiers: &'static [(u64, [u64; 5])]) -> Row {
    Row {
        model,
        valid_from_ms: 0,
        us_surcharge_percent: 10,
        tiers,
    }
}

const fn row_before_4_6(model: &'static str, tiers: &'static [(u64, [u64; 5])]) -> Row {
    Row {
        model,
        valid_from_ms: 0,
        us_surcharge_percent: 0,
        tiers,
    }
}

/// 2026-10-07T00:00:00Z
const OCTOBER_7: u64 = 1_791_331_200_000;

/// List prices: input, 5-minute write, 1-hour write, cache read, output.
const LIST: &[Row] = &[
    row(
        "claude-sonnet-4-6",
        &[(0, [3_000, 3_750, 6_000, 300, 15_000])],
    ),
    row_before_4_6(
        "claude-sonnet-4-5",
        &[(0, [3_000, 3_750, 6_000, 300, 15_000])],
    ),
    row_before_4_6(
        "claude-haiku-4-5",
        &[(0, [1_000, 1_250, 2_000, 100, 5_000])],
    ),
    row(
        "claude-sonnet-5",
        &[(0, [2_000, 2_500, 4_000, 200, 10_000])],
    ),
    row(
        "claude-sonnet-5-5",
        &[(0, [2_000, 2_500, 4_000, 200, 10_000])],
    ),
    // Cache reads became cheaper.
    Row {
        model: "claude-sonnet-5-5",
        valid_from_ms: OCTOBER_7,
        us_surcharge_percent: 10,
        tiers: &[(0, [2_000, 2_500, 4_000, 100, 10_000])],
    },
    row(
        "claude-haiku-5-5",
        &[
            (0, [100, 125, 200, 10, 500]),
            (100_000, [500, 625, 1_000, 50, 2_500]),
        ],
    ),
    row(
        "claude-opus-5-5",
        &[(0, [4_000, 5_000, 8_000, 200, 20_000])],
    ),
    row("claude-opus-5", &[(0, [5_000, 6_250, 10_000, 500, 25_000])]),
    row(
        "claude-opus-4-8",
        &[(0, [5_000, 6_250, 10_000, 500, 25_000])],
    ),
    row(
        "claude-opus-4-7",
        &[(0, [5_000, 6_250, 10_000, 500, 25_000])],
    ),
    row(
        "claude-opus-4-6",
        &[(0, [5_000, 6_250, 10_000, 500, 25_000])],
    ),
    row_before_4_6(
        "claude-opus-4-5",
        &[(0, [5_000, 6_250, 10_000, 500, 25_000])],
    ),
    row(
        "claude-fable-5-1",
        &[(0, [10_000, 12_500, 20_000, 250, 50_000])],
    ),
    // Only input and output are published; the cache prices are the usual 1.25, 2 and 0.1 times the
    // input, so that books err on the dear side.
    row(
        "claude-fable-5-2",
        &[(0, [8_000, 10_000, 16_000, 800, 40_000])],
    ),
];

impl Row {
    fn price(&self) -> Result<Price, NameError> {
        let tier = |&(prompt_tokens_above, list): &(u64, [u64; 5])| {
            let [input, cache_write_5m, cache_write_1h, cache_read, output] =
                list.map(|milli| milli * 1_000);
            let rates = Rates {
                input,
                cache_write_5m,
                cache_write_1h,
                cache_read,
                output,
            };
            Tier {
                prompt_tokens_above,
                rates,
            }
        };
        Ok(Price {
            model: ModelId::parse(self.model)?,
            speed: Speed::Standard,
            valid_from_ms: self.valid_from_ms,
            us_surcharge_percent: self.us_surcharge_percent,
            tiers: self.tiers.iter().map(tier).collect(),
        })
    }
}

/// The list prices known to this version, without fast mode.
impl Default for PriceTable {
    fn default() -> Self {
        let mut table = Self::empty();
        for row in LIST {
            let price = row.price().expect("the names in the list are model ids");
            table
                .insert(price)
                .expect("every row of the list has a tier");
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-30
    const NOW: u64 = 1_796_000_000_000;

    fn model(id: &str) -> ModelId {
        ModelId::parse(id).unwrap()
    }

    fn cost(id: &str, usage: Usage, terms: Terms) -> Usd {
        PriceTable::default()
            .cost(&model(id), &usage, terms, NOW)
            .unwrap()
    }

    fn usd(text: &str) -> Usd {
        let (whole, cents) = text.split_once('.').unwrap();
        let micro = format!("{whole}{cents:0<6}");
        Usd::from_micro(micro.parse().unwrap())
    }

    const MILLION: Usage = Usage {
        input: 1_000_000,
        cache_write_5m: 0,
        cache_write_1h: 0,
        cache_read: 0,
        output: 1_000_000,
        thinking: 0,
        web_search_requests: 0,
        web_fetch_requests: 0,
    };

    #[test]
    fn a_million_tokens_each_way_costs_the_list_price() {
        let cases = [
            ("claude-sonnet-4-6", "18.0"),
            ("claude-haiku-4-5", "6.0"),
            ("claude-sonnet-5", "12.0"),
            ("claude-sonnet-5-5", "12.0"),
            ("claude-haiku-5-5", "3.0"),
            ("claude-opus-5-5", "24.0"),
            ("claude-opus-5", "30.0"),
            ("claude-fable-5-1", "60.0"),
            ("claude-fable-5-2", "48.0"),
        ];
        for (id, want) in cases {
            assert_eq!(cost(id, MILLION, Terms::default()), usd(want), "{id}");
        }
    }

    #[test]
    fn the_five_sorts_of_tokens_have_their_own_prices_and_thinking_none() {
        let usage = Usage {
            input: 1_000,
            cache_write_5m: 2_000,
            cache_write_1h: 3_000,
            cache_read: 4_000,
            output: 500,
            thinking: 400,
            web_search_requests: 3,
            web_fetch_requests: 9,
        };
        // 0.003 + 0.0075 + 0.018 + 0.0012 + 0.0075 + 3 * 0.01
        assert_eq!(
            cost("claude-sonnet-4-6", usage, Terms::default()),
            usd("0.0672")
        );
    }

    #[test]
    fn the_whole_prompt_picks_the_tier_for_the_whole_request() {
        let usage = |input, cache_write_5m, cache_read| Usage {
            input,
            cache_write_5m,
            cache_read,
            output: 1_000,
            ..Usage::default()
        };
        let price = |usage| cost("claude-haiku-5-5", usage, Terms::default());
        // 100 000 * 0.10 + 1 000 * 0.50, per million
        assert_eq!(price(usage(100_000, 0, 0)), usd("0.0105"));
        // 100 001 * 0.50 + 1 000 * 2.50, per million
        assert_eq!(price(usage(100_001, 0, 0)), Usd(52_500_500_000));
        // 1 uncached, 40 000 written at 0.625, 60 000 read at 0.05: together above
        assert_eq!(price(usage(1, 40_000, 60_000)), Usd(30_500_500_000));
        assert_eq!(price(usage(0, 40_000, 60_000)), usd("0.0061"));
        assert_eq!(price(Usage::default()), Usd(0));
    }

    #[test]
    fn a_batch_costs_half_and_the_united_states_a_tenth_more() {
        let us = Terms {
            geo: Geo::Us,
            ..Terms::default()
        };
        let batch = Terms {
            service: Service::Batch,
            ..Terms::default()
        };
        let both = Terms {
            geo: Geo::Us,
            ..batch
        };
        assert_eq!(cost("claude-sonnet-4-6", MILLION, us), usd("19.8"));
        assert_eq!(cost("claude-sonnet-4-6", MILLION, batch), usd("9.0"));
        assert_eq!(cost("claude-sonnet-4-6", MILLION, both), usd("9.9"));
        assert_eq!(
            cost("claude-haiku-4-5", MILLION, us),
            usd("6.0"),
            "before 4.6: no surcharge"
        );
        // One cached token on the cheapest model: 10 000 * 0.5 * 1.1 pico-dollars, not rounded.
        let token = Usage {
            cache_read: 1,
            ..Usage::default()
        };
        assert_eq!(cost("claude-haiku-5-5", token, both), Usd(5_500));
        let search = Usage {
            web_search_requests: 1_000,
            ..Usage::default()
        };
        assert_eq!(
            cost("claude-sonnet-4-6", search, both),
            usd("10.0"),
            "only tokens are cheaper"
        );
    }

    #[test]
    fn an_older_call_keeps_its_older_price() {
        let table = PriceTable::default();
        let id = model("claude-sonnet-5-5");
        let usage = Usage {
            cache_read: 1_000_000,
            ..Usage::default()
        };
        let at = |at_ms| table.cost(&id, &usage, Terms::default(), at_ms).unwrap();
        assert_eq!(at(OCTOBER_7 - 1), usd("0.2"));
        assert_eq!(at(OCTOBER_7), usd("0.1"));
        assert_eq!(at(NOW), usd("0.1"));
    }

    #[test]
    fn what_has_no_price_is_an_error_that_says_what_is_missing() {
        let table = PriceTable::default();
        let fast = Terms {
            speed: Speed::Fast,
            ..Terms::default()
        };
        let error = table.cost(&model("claude-none-1"), &MILLION, Terms::default(), NOW);
        assert!(error.unwrap_err().to_string().contains("claude-none-1"));
        assert!(
            table
                .cost(&model("claude-opus-5"), &MILLION, fast, NOW)
                .is_err()
        );

        let mut table = PriceTable::empty();
        let rates = Rates {
            input: 1,
            cache_write_5m: 1,
            cache_write_1h: 1,
            cache_read: 1,
            output: 1,
        };
        let tiers = vec![Tier {
            prompt_tokens_above: 0,
            rates,
        }];
        let price = |tiers| Price {
            model: model("m"),
            speed: Speed::Standard,
            valid_from_ms: 10,
            us_surcharge_percent: 0,
            tiers,
        };
        assert_eq!(
            table.insert(price(vec![])),
            Err(PriceError::NoTier { model: model("m") })
        );
        table.insert(price(tiers)).unwrap();
        let early = table.cost(&model("m"), &MILLION, Terms::default(), 9);
        assert_eq!(
            early,
            Err(PriceError::Early {
                model: model("m"),
                at_ms: 9,
                first_ms: 10
            })
        );
    }

    #[test]
    fn an_inserted_price_replaces_the_same_date_and_leaves_others() {
        let mut table = PriceTable::default();
        let id = model("claude-haiku-4-5");
        let rates = Rates {
            input: 7,
            cache_write_5m: 0,
            cache_write_1h: 0,
            cache_read: 0,
            output: 0,
        };
        let tiers = vec![Tier {
            prompt_tokens_above: 0,
            rates,
        }];
        let price = |valid_from_ms| Price {
            model: id.clone(),
            speed: Speed::Standard,
            valid_from_ms,
            us_surcharge_percent: 0,
            tiers: tiers.clone(),
        };
        table.insert(price(NOW)).unwrap();
        let one = Usage {
            input: 1,
            ..Usage::default()
        };
        let at = |table: &PriceTable, ms| table.cost(&id, &one, Terms::default(), ms).unwrap();
        assert_eq!(
            (at(&table, NOW - 1), at(&table, NOW)),
            (Usd(1_000_000), Usd(7))
        );
        table.insert(price(0)).unwrap();
        assert_eq!(at(&table, NOW - 1), Usd(7));
    }

    #[test]
    fn amounts_never_overflow_and_round_only_for_show() {
        let all = u64::MAX;
        let usage = Usage {
            input: all,
            cache_write_5m: all,
            cache_write_1h: all,
            cache_read: all,
            output: all,
            thinking: all,
            web_search_requests: all,
            web_fetch_requests: all,
        };
        assert!(cost("claude-fable-5-1", usage, Terms::default()) > Usd(0));
        assert_eq!(usage.plus(usage).input, u64::MAX);
        assert_eq!(Usd(1_499_999).micro_rounded(), 1);
        assert_eq!(Usd(1_500_000).micro_rounded(), 2);
        assert_eq!(Usd(1_234_567_890_000_000).to_string(), "$1234.567890");
        assert_eq!([Usd(1), Usd(2)].into_iter().sum::<Usd>(), Usd(3));
    }

    #[test]
    fn cache_reads_do_not_count_against_limits() {
        let usage = Usage {
            input: 1,
            cache_write_5m: 2,
            cache_write_1h: 4,
            cache_read: 8,
            output: 16,
            ..Usage::default()
        };
        assert_eq!(
            usage.limited(),
            Tokens {
                input: 7,
                output: 16
            }
        );
        assert_eq!(usage.prompt(), 15);
    }
}
