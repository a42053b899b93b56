//! The models the simulator knows: limits, what each of them refuses, prices.
//!
//! The table is data on purpose: a rule that differs between models is a field here and one check in `matrix`.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Models that share one upstream limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum PoolId {
    /// Claude Opus 5.5.
    #[serde(rename = "opus-5.5")]
    Opus55,
    /// Claude Opus 5.
    #[serde(rename = "opus-5")]
    Opus5,
    /// Claude Opus 4.5 to 4.8 together.
    #[serde(rename = "opus-4.x")]
    Opus4x,
    /// Claude Sonnet 5.5.
    #[serde(rename = "sonnet-5.5")]
    Sonnet55,
    /// Claude Sonnet 5.
    #[serde(rename = "sonnet-5")]
    Sonnet5,
    /// Claude Sonnet 4.5 and 4.6 together.
    #[serde(rename = "sonnet-4.x")]
    Sonnet4x,
    /// Claude Haiku 5.5.
    #[serde(rename = "haiku-5.5")]
    Haiku55,
    /// Claude Haiku 4.5.
    #[serde(rename = "haiku-4.5")]
    Haiku45,
    /// Claude Fable 5.1 and 5.2 together.
    #[serde(rename = "fable-5.x")]
    Fable5x,
}

impl PoolId {
    /// Every pool, in the order of [`PoolId::index`].
    pub const ALL: [Self; 9] = [
        Self::Opus55,
        Self::Opus5,
        Self::Opus4x,
        Self::Sonnet55,
        Self::Sonnet5,
        Self::Sonnet4x,
        Self::Haiku55,
        Self::Haiku45,
        Self::Fable5x,
    ];

    /// The position in [`PoolId::ALL`].
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }

    /// The name used in configuration, logs and statistics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Opus55 => "opus-5.5",
            Self::Opus5 => "opus-5",
            Self::Opus4x => "opus-4.x",
            Self::Sonnet55 => "sonnet-5.5",
            Self::Sonnet5 => "sonnet-5",
            Self::Sonnet4x => "sonnet-4.x",
            Self::Haiku55 => "haiku-5.5",
            Self::Haiku45 => "haiku-4.5",
            Self::Fable5x => "fable-5.x",
        }
    }

    /// Whether the pool belongs to the Haiku line, which had larger limits in the old first tier.
    #[must_use]
    pub fn is_haiku(self) -> bool {
        matches!(self, Self::Haiku55 | Self::Haiku45)
    }

    /// The pool of that name, if there is one.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|pool| pool.name() == name)
    }
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where a model is in its life. Retired models answer 404.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Lifecycle {
    /// Open to everyone.
    Active,
    /// Still callable, headed for retirement.
    Deprecated,
    /// No longer callable.
    Retired,
}

/// A value of `thinking.type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thinking {
    /// The model decides.
    Adaptive,
    /// None.
    Disabled,
    /// A fixed budget.
    Enabled,
    /// Only between tool calls.
    BetweenTools,
}

impl Thinking {
    /// Every value.
    pub const ALL: [Self; 4] = [
        Self::Adaptive,
        Self::Disabled,
        Self::Enabled,
        Self::BetweenTools,
    ];

    /// The word on the wire.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Adaptive => "adaptive",
            Self::Disabled => "disabled",
            Self::Enabled => "enabled",
            Self::BetweenTools => "between_tools",
        }
    }
}

/// Which sampling parameters a model takes under the 2023 API version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampling {
    /// Any legal value.
    Free,
    /// Only the default values, no `top_k`.
    DefaultsOnly,
    /// Only temperature 1 or `top_p` 0.99, not both, no `top_k`.
    OneDefault,
}

/// Which tokenizer a model uses; the newer one needs about a third more tokens for the same text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tokenizer {
    /// Up to Sonnet 4.6 and Haiku 4.5.
    Older,
    /// Opus 4.7 and everything from generation 5 on.
    Newer,
}

/// Prices in nano-dollars per token (1 USD per million tokens is 1 000).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Price {
    /// Uncached input.
    pub input: u64,
    /// Cache write, five minutes.
    pub write_5m: u64,
    /// Cache write, one hour.
    pub write_1h: u64,
    /// Cache read.
    pub read: u64,
    /// Output, thinking included.
    pub output: u64,
}

/// One model.
#[derive(Debug)]
pub struct Model {
    /// The full id, as it appears in responses.
    pub id: &'static str,
    /// A second id that resolves to this model.
    pub alias: Option<&'static str>,
    /// The name for people.
    pub display_name: &'static str,
    /// opus, sonnet, haiku or fable.
    pub line: &'static str,
    /// The limit it shares.
    pub pool: PoolId,
    /// Context window in tokens.
    pub context: u64,
    /// Largest `max_tokens`.
    pub max_output: u64,
    /// State in the default configuration.
    pub lifecycle: Lifecycle,
    /// Release date.
    pub created: &'static str,
    /// Scheduled or past retirement date.
    pub retires: Option<&'static str>,
    /// Accepted `thinking.type` values.
    pub thinking: &'static [Thinking],
    /// Whether `output_config.effort` is accepted.
    pub effort: bool,
    /// Whether `tool_choice` may be `any` or `tool`.
    pub forced_tools: bool,
    /// Accepted sampling parameters.
    pub sampling: Sampling,
    /// Whether the last message may be an assistant message (with thinking off).
    pub prefill: bool,
    /// Which tokenizer counts its input.
    pub tokenizer: Tokenizer,
    /// The shortest prefix that is cached, in tokens.
    pub cache_min: u64,
    /// The price.
    pub price: Price,
    /// Another price for prompts over this many input tokens of every kind.
    pub long: Option<(u64, Price)>,
}

impl Model {
    /// The model with that id or alias, retired ones included.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        MODELS
            .iter()
            .find(|model| model.id == name || model.alias == Some(name))
    }

    /// The price that applies to a prompt with `input_tokens` of every kind.
    #[must_use]
    pub fn price_for(&self, input_tokens: u64) -> Price {
        match self.long {
            Some((over, price)) if input_tokens > over => price,
            _ => self.price,
        }
    }
}

const M1: u64 = 1_000_000;
const K128: u64 = 128_000;

const fn price(input: u64, write_5m: u64, write_1h: u64, read: u64, output: u64) -> Price {
    Price {
        input,
        write_5m,
        write_1h,
        read,
        output,
    }
}

const OPUS_4_PRICE: Price = price(5_000, 6_250, 10_000, 500, 25_000);
const SONNET_4_PRICE: Price = price(3_000, 3_750, 6_000, 300, 15_000);

/// Opus 5 and the first models of generation 5: the rules that most current models share.
const CURRENT: Model = Model {
    id: "claude-opus-5",
    alias: None,
    display_name: "Claude Opus 5",
    line: "opus",
    pool: PoolId::Opus5,
    context: M1,
    max_output: K128,
    lifecycle: Lifecycle::Active,
    created: "2026-06-01T00:00:00Z",
    retires: None,
    thinking: &[Thinking::Adaptive, Thinking::Disabled],
    effort: true,
    forced_tools: true,
    sampling: Sampling::DefaultsOnly,
    prefill: false,
    tokenizer: Tokenizer::Newer,
    cache_min: 512,
    price: OPUS_4_PRICE,
    long: None,
};

/// Every model, newest first, as `GET /v1/models` lists them.
pub static MODELS: &[Model] = &[
    Model {
        id: "claude-fable-5-2",
        display_name: "Claude Fable 5.2",
        line: "fable",
        pool: PoolId::Fable5x,
        created: "2026-11-09T00:00:00Z",
        thinking: &[Thinking::Adaptive],
        forced_tools: false,
        // Cache prices of this model are not published; the ratios of 5.1 are assumed.
        price: price(8_000, 10_000, 16_000, 200, 40_000),
        ..CURRENT
    },
    Model {
        id: "claude-haiku-5-5",
        display_name: "Claude Haiku 5.5",
        line: "haiku",
        pool: PoolId::Haiku55,
        created: "2026-10-07T00:00:00Z",
        sampling: Sampling::OneDefault,
        price: price(100, 125, 200, 10, 500),
        long: Some((100_000, price(500, 625, 1_000, 50, 2_500))),
        ..CURRENT
    },
    Model {
        id: "claude-sonnet-5-5",
        display_name: "Claude Sonnet 5.5",
        line: "sonnet",
        pool: PoolId::Sonnet55,
        created: "2026-09-28T00:00:00Z",
        thinking: &[Thinking::Adaptive, Thinking::BetweenTools],
        forced_tools: false,
        cache_min: 1_024,
        price: price(2_000, 2_500, 4_000, 100, 10_000),
        ..CURRENT
    },
    Model {
        id: "claude-opus-5-5",
        display_name: "Claude Opus 5.5",
        pool: PoolId::Opus55,
        created: "2026-09-22T00:00:00Z",
        thinking: &[Thinking::Adaptive],
        forced_tools: false,
        price: price(4_000, 5_000, 8_000, 200, 20_000),
        ..CURRENT
    },
    Model {
        id: "claude-fable-5-1",
        display_name: "Claude Fable 5.1",
        line: "fable",
        pool: PoolId::Fable5x,
        created: "2026-08-01T00:00:00Z",
        thinking: &[Thinking::Adaptive],
        forced_tools: false,
        price: price(10_000, 12_500, 20_000, 250, 50_000),
        ..CURRENT
    },
    Model {
        id: "claude-sonnet-5",
        display_name: "Claude Sonnet 5",
        line: "sonnet",
        pool: PoolId::Sonnet5,
        cache_min: 1_024,
        price: price(2_000, 2_500, 4_000, 200, 10_000),
        ..CURRENT
    },
    CURRENT,
    Model {
        id: "claude-opus-4-8",
        display_name: "Claude Opus 4.8",
        pool: PoolId::Opus4x,
        created: "2026-05-01T00:00:00Z",
        cache_min: 1_024,
        ..CURRENT
    },
    Model {
        id: "claude-opus-4-7",
        display_name: "Claude Opus 4.7",
        pool: PoolId::Opus4x,
        created: "2026-04-16T00:00:00Z",
        cache_min: 2_048,
        ..CURRENT
    },
    Model {
        id: "claude-sonnet-4-6",
        display_name: "Claude Sonnet 4.6",
        line: "sonnet",
        pool: PoolId::Sonnet4x,
        created: "2026-02-17T00:00:00Z",
        thinking: &[Thinking::Adaptive, Thinking::Disabled, Thinking::Enabled],
        sampling: Sampling::Free,
        tokenizer: Tokenizer::Older,
        cache_min: 1_024,
        price: SONNET_4_PRICE,
        ..CURRENT
    },
    Model {
        id: "claude-opus-4-6",
        display_name: "Claude Opus 4.6",
        pool: PoolId::Opus4x,
        created: "2026-02-05T00:00:00Z",
        thinking: &[Thinking::Adaptive, Thinking::Disabled, Thinking::Enabled],
        sampling: Sampling::Free,
        tokenizer: Tokenizer::Older,
        cache_min: 4_096,
        ..CURRENT
    },
    Model {
        id: "claude-opus-4-5-20251101",
        alias: Some("claude-opus-4-5"),
        display_name: "Claude Opus 4.5",
        pool: PoolId::Opus4x,
        context: 200_000,
        max_output: 64_000,
        lifecycle: Lifecycle::Deprecated,
        created: "2025-11-24T00:00:00Z",
        retires: Some("2027-01-22T00:00:00Z"),
        thinking: &[Thinking::Disabled, Thinking::Enabled],
        sampling: Sampling::Free,
        prefill: true,
        tokenizer: Tokenizer::Older,
        cache_min: 4_096,
        ..CURRENT
    },
    Model {
        id: "claude-haiku-4-5-20251001",
        alias: Some("claude-haiku-4-5"),
        display_name: "Claude Haiku 4.5",
        line: "haiku",
        pool: PoolId::Haiku45,
        context: 200_000,
        max_output: 64_000,
        created: "2025-10-15T00:00:00Z",
        thinking: &[Thinking::Disabled, Thinking::Enabled],
        effort: false,
        sampling: Sampling::Free,
        prefill: true,
        tokenizer: Tokenizer::Older,
        cache_min: 4_096,
        price: price(1_000, 1_250, 2_000, 100, 5_000),
        ..CURRENT
    },
    Model {
        id: "claude-sonnet-4-5-20250929",
        alias: Some("claude-sonnet-4-5"),
        display_name: "Claude Sonnet 4.5",
        line: "sonnet",
        pool: PoolId::Sonnet4x,
        context: 200_000,
        max_output: 64_000,
        lifecycle: Lifecycle::Retired,
        created: "2025-09-29T00:00:00Z",
        retires: Some("2026-11-30T00:00:00Z"),
        thinking: &[Thinking::Disabled, Thinking::Enabled],
        effort: false,
        sampling: Sampling::Free,
        prefill: true,
        tokenizer: Tokenizer::Older,
        cache_min: 1_024,
        price: SONNET_4_PRICE,
        ..CURRENT
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_aliases_are_unique_and_resolve() {
        let mut names: Vec<&str> = MODELS
            .iter()
            .flat_map(|m| [Some(m.id), m.alias])
            .flatten()
            .collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        assert_eq!(
            Model::find("claude-haiku-4-5").map(|m| m.id),
            Some("claude-haiku-4-5-20251001")
        );
        assert!(Model::find("claude-nope").is_none());
    }

    #[test]
    fn pool_names_match_their_serde_form() {
        for (at, pool) in PoolId::ALL.into_iter().enumerate() {
            assert_eq!(pool.index(), at);
            assert_eq!(
                serde_json::to_value(pool).unwrap(),
                serde_json::json!(pool.name())
            );
            assert_eq!(PoolId::by_name(pool.name()), Some(pool));
        }
    }

    #[test]
    fn every_pool_has_a_callable_model() {
        for pool in PoolId::ALL {
            assert!(
                MODELS
                    .iter()
                    .any(|m| m.pool == pool && m.lifecycle == Lifecycle::Active)
            );
        }
    }

    #[test]
    fn long_prompts_have_their_own_price() {
        let haiku = Model::find("claude-haiku-5-5").unwrap();
        assert_eq!(haiku.price_for(100_000).input, 100);
        assert_eq!(haiku.price_for(100_001).input, 500);
    }
}
