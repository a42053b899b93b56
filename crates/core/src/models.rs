//! What is known about each model: its pool, its sizes, and what it refuses.
//!
//! Plain data with a default that configuration may add to or replace. Names come as the upstream
//! spells them, with or without a date at the end.

use crate::ids::{ModelId, PoolId};

/// One model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    /// The undated id; prices and breakers go by it.
    pub id: ModelId,
    /// Other names, besides the id with a date appended.
    pub aliases: Vec<ModelId>,
    /// The models that share its rate limits.
    pub pool: PoolId,
    /// Prompt and answer together.
    pub context_tokens: u64,
    /// The largest `max_tokens`.
    pub output_tokens_max: u64,
    /// Characters of ordinary text in ten tokens.
    pub chars_per_ten_tokens: u64,
    /// Tokens of an image of the size the upstream scales it to.
    pub image_tokens: u64,
    /// Shortest prefix that is cached.
    pub cache_prefix_tokens_min: u64,
    /// `thinking.type` values that are accepted.
    pub thinking: Vec<Thinking>,
    /// What a request without `thinking` means.
    pub thinking_default: ThinkingDefault,
    /// `output_config.effort`.
    pub effort: Support,
    /// `tool_choice` of `any` or `tool`.
    pub forced_tools: Support,
    /// `temperature`, `top_p`, `top_k`.
    pub sampling: Sampling,
    /// A last message of role assistant that the answer continues.
    pub prefill: Prefill,
    /// `output_config.format` and strict tools.
    pub structured_output: Support,
    pub lifecycle: Lifecycle,
}

/// Whether a model takes a field; otherwise it is a 400.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Support {
    Yes,
    No,
}

/// What the upstream says of a model; what it does not mention stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Word {
    pub context_tokens: Option<u64>,
    pub output_tokens_max: Option<u64>,
    pub lifecycle: Option<Lifecycle>,
    pub effort: Option<Support>,
    pub structured_output: Option<Support>,
    pub thinking: Vec<(Thinking, Support)>,
}

/// A value of `thinking.type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Thinking {
    Adaptive,
    Disabled,
    /// With a `budget_tokens` of at least 1 024 and below `max_tokens`.
    Enabled,
    BetweenTools,
}

impl Thinking {
    /// All values.
    pub const ALL: [Self; 4] = [
        Self::Adaptive,
        Self::Disabled,
        Self::Enabled,
        Self::BetweenTools,
    ];

    /// The value of a word on the wire.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|value| value.as_str() == word)
    }

    /// The value on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Adaptive => "adaptive",
            Self::Disabled => "disabled",
            Self::Enabled => "enabled",
            Self::BetweenTools => "between_tools",
        }
    }
}

/// What a request without `thinking` means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ThinkingDefault {
    On,
    Off,
}

/// Which sampling parameters are accepted under API version 2023-06-01; later versions take none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sampling {
    Any,
    /// Present only with their default values.
    DefaultsOnly,
    /// `temperature` of 1 or `top_p` of 0.99, not both; no `top_k`.
    OneDefaultOnly,
}

/// Whether a prefilled answer is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Prefill {
    No,
    WithoutThinking,
}

/// The upstream's word on a model's future.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lifecycle {
    Active,
    Deprecated,
    Retired,
}

impl Model {
    /// Tokens that text of so many characters makes, rounded up. Only an estimate.
    #[must_use]
    pub fn tokens_of_chars(&self, chars: u64) -> u64 {
        chars
            .saturating_mul(10)
            .div_ceil(self.chars_per_ten_tokens.max(1))
    }
}

/// All known models and the smaller model each may fall back to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Catalog {
    models: Vec<Model>,
    fallbacks: Vec<(ModelId, ModelId)>,
}

impl Catalog {
    /// A catalogue without models.
    #[must_use]
    pub fn empty() -> Self {
        Self {
            models: Vec::new(),
            fallbacks: Vec::new(),
        }
    }

    /// All models, in the order of the table.
    pub fn models(&self) -> impl Iterator<Item = &Model> {
        self.models.iter()
    }

    /// The model of a name: an id, an alias, or an id with a date (`-20251001`) appended.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Model> {
        self.exact(name).or_else(|| self.exact(without_date(name)?))
    }

    fn exact(&self, name: &str) -> Option<&Model> {
        let named = |id: &ModelId| id.as_str() == name;
        self.models
            .iter()
            .find(|model| named(&model.id) || model.aliases.iter().any(named))
    }

    /// Adds a model; one with the same id is replaced.
    pub fn insert(&mut self, model: Model) {
        match self.models.iter_mut().find(|old| old.id == model.id) {
            Some(old) => *old = model,
            None => self.models.push(model),
        }
    }

    /// Takes the upstream's word on a model. False if it changes nothing, or if the model is not known
    /// here: the upstream does not say which limits it shares.
    pub fn hear(&mut self, name: &str, word: &Word) -> bool {
        let Some(id) = self.find(name).map(|model| model.id.clone()) else {
            return false;
        };
        let Some(model) = self.models.iter_mut().find(|model| model.id == id) else {
            return false;
        };
        let before = model.clone();
        model.context_tokens = word.context_tokens.unwrap_or(model.context_tokens);
        model.output_tokens_max = word.output_tokens_max.unwrap_or(model.output_tokens_max);
        model.lifecycle = word.lifecycle.unwrap_or(model.lifecycle);
        model.effort = word.effort.unwrap_or(model.effort);
        model.structured_output = word.structured_output.unwrap_or(model.structured_output);
        for (thinking, support) in &word.thinking {
            model.thinking.retain(|known| known != thinking);
            if *support == Support::Yes {
                model.thinking.push(*thinking);
            }
        }
        model.thinking.sort_unstable();
        let mut sorted = before.thinking.clone();
        sorted.sort_unstable();
        let before = Model {
            thinking: sorted,
            ..before
        };
        before != *model
    }

    /// Lets `primary` fall back to `smaller`; both are undated ids.
    pub fn set_fallback(&mut self, primary: ModelId, smaller: ModelId) {
        match self.fallbacks.iter_mut().find(|(from, _)| *from == primary) {
            Some((_, to)) => *to = smaller,
            None => self.fallbacks.push((primary, smaller)),
        }
    }

    /// Lets `primary` fall back to nothing.
    pub fn remove_fallback(&mut self, primary: &ModelId) {
        self.fallbacks.retain(|(from, _)| from != primary);
    }

    /// The smaller model that a model of this name may fall back to.
    #[must_use]
    pub fn fallback(&self, name: &str) -> Option<&Model> {
        let id = &self.find(name)?.id;
        let (_, smaller) = self.fallbacks.iter().find(|(from, _)| from == id)?;
        self.find(smaller.as_str())
    }
}

/// `name` without `-YYYYMMDD` at its end.
fn without_date(name: &str) -> Option<&str> {
    let (base, date) = name.rsplit_once('-')?;
    let is_date = date.len() == 8 && date.bytes().all(|byte| byte.is_ascii_digit());
    is_date.then_some(base)
}

/// Characters in ten tokens of the tokenizer up to 4.6, and of the newer one.
const OLDER: u64 = 34;
const NEWER: u64 = 25;

/// A row of the default table; what most models share is in [`ROW`].
struct Row {
    id: &'static str,
    pool: &'static str,
    context_tokens: u64,
    output_tokens_max: u64,
    chars_per_ten_tokens: u64,
    image_tokens: u64,
    cache_prefix_tokens_min: u64,
    thinking: &'static [Thinking],
    thinking_default: ThinkingDefault,
    effort: Support,
    forced_tools: Support,
    sampling: Sampling,
    prefill: Prefill,
    lifecycle: Lifecycle,
}

const ROW: Row = Row {
    id: "",
    pool: "",
    context_tokens: 1_000_000,
    output_tokens_max: 128_000,
    chars_per_ten_tokens: NEWER,
    image_tokens: 1_600,
    cache_prefix_tokens_min: 1_024,
    thinking: &[Thinking::Adaptive, Thinking::Disabled],
    thinking_default: ThinkingDefault::On,
    effort: Support::Yes,
    forced_tools: Support::Yes,
    sampling: Sampling::DefaultsOnly,
    prefill: Prefill::No,
    lifecycle: Lifecycle::Active,
};

/// What the 4.6 models share.
const ROW_4_6: Row = Row {
    chars_per_ten_tokens: OLDER,
    thinking: &[Thinking::Adaptive, Thinking::Disabled, Thinking::Enabled],
    thinking_default: ThinkingDefault::Off,
    sampling: Sampling::Any,
    ..ROW
};

/// What the 4.5 models share.
const ROW_4_5: Row = Row {
    context_tokens: 200_000,
    output_tokens_max: 64_000,
    cache_prefix_tokens_min: 4_096,
    thinking: &[Thinking::Disabled, Thinking::Enabled],
    effort: Support::No,
    prefill: Prefill::WithoutThinking,
    ..ROW_4_6
};

const ROWS: &[Row] = &[
    Row {
        id: "claude-sonnet-4-6",
        pool: "sonnet-4.x",
        ..ROW_4_6
    },
    Row {
        id: "claude-sonnet-4-5",
        pool: "sonnet-4.x",
        cache_prefix_tokens_min: 1_024,
        lifecycle: Lifecycle::Retired,
        ..ROW_4_5
    },
    Row {
        id: "claude-haiku-4-5",
        pool: "haiku-4.5",
        ..ROW_4_5
    },
    Row {
        id: "claude-sonnet-5",
        pool: "sonnet-5",
        ..ROW
    },
    Row {
        id: "claude-sonnet-5-5",
        pool: "sonnet-5.5",
        thinking: &[Thinking::Adaptive, Thinking::BetweenTools],
        forced_tools: Support::No,
        ..ROW
    },
    Row {
        id: "claude-haiku-5-5",
        pool: "haiku-5.5",
        // Images cost about two and a half times as much as on Haiku 4.5.
        image_tokens: 4_000,
        cache_prefix_tokens_min: 512,
        sampling: Sampling::OneDefaultOnly,
        ..ROW
    },
    Row {
        id: "claude-opus-5-5",
        pool: "opus-5.5",
        thinking: &[Thinking::Adaptive],
        forced_tools: Support::No,
        ..ROW
    },
    Row {
        id: "claude-opus-5",
        pool: "opus-5",
        cache_prefix_tokens_min: 512,
        ..ROW
    },
    Row {
        id: "claude-opus-4-8",
        pool: "opus-4.x",
        ..ROW_OPUS_4
    },
    Row {
        id: "claude-opus-4-7",
        pool: "opus-4.x",
        cache_prefix_tokens_min: 2_048,
        ..ROW_OPUS_4
    },
    Row {
        id: "claude-opus-4-6",
        pool: "opus-4.x",
        cache_prefix_tokens_min: 4_096,
        ..ROW_4_6
    },
    Row {
        id: "claude-opus-4-5",
        pool: "opus-4.x",
        effort: Support::Yes,
        lifecycle: Lifecycle::Deprecated,
        ..ROW_4_5
    },
    Row {
        id: "claude-fable-5-1",
        ..ROW_FABLE
    },
    Row {
        id: "claude-fable-5-2",
        ..ROW_FABLE
    },
];

/// Opus 4.7 and 4.8: the newer tokenizer and sampling rules, thinking still off by default.
const ROW_OPUS_4: Row = Row {
    thinking_default: ThinkingDefault::Off,
    ..ROW
};

const ROW_FABLE: Row = Row {
    pool: "fable-5.x",
    cache_prefix_tokens_min: 512,
    thinking: &[Thinking::Adaptive],
    forced_tools: Support::No,
    ..ROW
};

/// Primary and smaller model of each generation.
const FALLBACKS: &[(&str, &str)] = &[
    ("claude-sonnet-4-6", "claude-haiku-4-5"),
    ("claude-sonnet-5-5", "claude-haiku-5-5"),
];

impl Row {
    fn model(&self) -> Model {
        Model {
            id: id(self.id),
            aliases: Vec::new(),
            pool: PoolId::parse(self.pool).expect("the pools of the table are pool names"),
            context_tokens: self.context_tokens,
            output_tokens_max: self.output_tokens_max,
            chars_per_ten_tokens: self.chars_per_ten_tokens,
            image_tokens: self.image_tokens,
            cache_prefix_tokens_min: self.cache_prefix_tokens_min,
            thinking: self.thinking.to_vec(),
            thinking_default: self.thinking_default,
            effort: self.effort,
            forced_tools: self.forced_tools,
            sampling: self.sampling,
            prefill: self.prefill,
            structured_output: Support::Yes,
            lifecycle: self.lifecycle,
        }
    }
}

fn id(text: &str) -> ModelId {
    ModelId::parse(text).expect("the ids of the table are model ids")
}

/// The models known to this version.
impl Default for Catalog {
    fn default() -> Self {
        let mut catalog = Self::empty();
        for row in ROWS {
            catalog.insert(row.model());
        }
        for (primary, smaller) in FALLBACKS {
            catalog.set_fallback(id(primary), id(smaller));
        }
        catalog
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::price::{PriceTable, Speed};

    #[test]
    fn names_are_found_with_and_without_a_date() {
        let catalog = Catalog::default();
        let found = |name| catalog.find(name).map(|model| model.id.as_str());
        assert_eq!(found("claude-haiku-4-5"), Some("claude-haiku-4-5"));
        assert_eq!(found("claude-haiku-4-5-20251001"), Some("claude-haiku-4-5"));
        for unknown in [
            "",
            "-",
            "claude-haiku",
            "claude-haiku-4-5-2025100",
            "claude-haiku-4-5-2025100x",
            "-20251001",
            "claude-none-20251001",
        ] {
            assert_eq!(found(unknown), None, "{unknown:?}");
        }
    }

    #[test]
    fn models_of_one_pool_share_it() {
        let catalog = Catalog::default();
        let pool = |name| catalog.find(name).unwrap().pool.as_str();
        assert_eq!(pool("claude-sonnet-4-6"), pool("claude-sonnet-4-5"));
        assert_eq!(pool("claude-fable-5-1"), pool("claude-fable-5-2"));
        assert_ne!(pool("claude-sonnet-5"), pool("claude-sonnet-5-5"));
        assert_ne!(pool("claude-haiku-4-5"), pool("claude-haiku-5-5"));
    }

    #[test]
    fn fallback_pairs_exist_and_follow_dated_names() {
        let catalog = Catalog::default();
        let fallback = |name| catalog.fallback(name).map(|model| model.id.as_str());
        assert_eq!(fallback("claude-sonnet-4-6"), Some("claude-haiku-4-5"));
        assert_eq!(
            fallback("claude-sonnet-4-6-20260217"),
            Some("claude-haiku-4-5")
        );
        assert_eq!(fallback("claude-sonnet-5-5"), Some("claude-haiku-5-5"));
        assert_eq!(fallback("claude-haiku-5-5"), None);
        assert_eq!(fallback("claude-none"), None);
    }

    #[test]
    fn the_smaller_model_is_not_the_same_with_another_name() {
        let catalog = Catalog::default();
        let [sonnet, haiku] =
            ["claude-sonnet-4-6", "claude-haiku-4-5"].map(|name| catalog.find(name).unwrap());
        assert!(haiku.context_tokens < sonnet.context_tokens);
        assert!(haiku.output_tokens_max < sonnet.output_tokens_max);
        assert_eq!((sonnet.effort, haiku.effort), (Support::Yes, Support::No));
        assert!(!haiku.thinking.contains(&Thinking::Adaptive));
        let [sonnet, haiku] =
            ["claude-sonnet-5-5", "claude-haiku-5-5"].map(|name| catalog.find(name).unwrap());
        assert!(sonnet.thinking.contains(&Thinking::BetweenTools));
        assert!(!haiku.thinking.contains(&Thinking::BetweenTools));
        assert_eq!(
            (sonnet.forced_tools, haiku.forced_tools),
            (Support::No, Support::Yes)
        );
    }

    #[test]
    fn every_model_of_the_catalogue_has_a_price() {
        let prices = PriceTable::default();
        for model in Catalog::default().models() {
            assert!(
                prices.price(&model.id, Speed::Standard, 0).is_ok(),
                "{:?}",
                model.id
            );
        }
    }

    #[test]
    fn the_newer_tokenizer_makes_more_tokens_of_the_same_text() {
        let catalog = Catalog::default();
        let tokens = |name: &str, chars| catalog.find(name).unwrap().tokens_of_chars(chars);
        assert_eq!(tokens("claude-sonnet-4-6", 3_400), 1_000);
        assert_eq!(tokens("claude-haiku-5-5", 2_500), 1_000);
        assert_eq!(tokens("claude-haiku-5-5", 1), 1);
        assert_eq!(tokens("claude-haiku-5-5", 0), 0);
        assert!(tokens("claude-haiku-5-5", u64::MAX) > 0);
    }

    #[test]
    fn an_inserted_model_replaces_the_same_id_and_brings_its_aliases() {
        let mut catalog = Catalog::default();
        let count = catalog.models().count();
        let mut model = catalog.find("claude-haiku-4-5").unwrap().clone();
        model.context_tokens = 5;
        model.aliases.push(ModelId::parse("fast").unwrap());
        catalog.insert(model);
        assert_eq!(catalog.models().count(), count);
        assert_eq!(catalog.find("fast").unwrap().context_tokens, 5);
    }

    #[test]
    fn the_upstreams_word_changes_what_it_mentions_and_nothing_else() {
        let mut catalog = Catalog::default();
        let old = catalog.find("claude-haiku-4-5").unwrap().clone();
        assert!(!catalog.hear("claude-haiku-4-5-20251001", &Word::default()));
        assert!(!catalog.hear("claude-unheard-of", &Word::default()));
        let word = Word {
            lifecycle: Some(Lifecycle::Retired),
            thinking: vec![
                (Thinking::Enabled, Support::No),
                (Thinking::Adaptive, Support::Yes),
            ],
            ..Word::default()
        };
        assert!(catalog.hear("claude-haiku-4-5-20251001", &word));
        assert!(
            !catalog.hear("claude-haiku-4-5-20251001", &word),
            "the second time"
        );
        let new = catalog.find("claude-haiku-4-5").unwrap();
        assert_eq!(new.thinking, [Thinking::Adaptive, Thinking::Disabled]);
        assert_eq!(new.lifecycle, Lifecycle::Retired);
        assert_eq!(
            (new.context_tokens, new.effort, new.prefill),
            (old.context_tokens, old.effort, old.prefill)
        );
    }
}
