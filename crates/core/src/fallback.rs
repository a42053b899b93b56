//! Whether a smaller model may answer a request, and how the request has to change for it.
//!
//! A fallback is never a swap of names: models differ in what they take, and what one of them does not
//! know is an error that the job has not deserved. So everything is decided before any call, from
//! what the request asks ([`Asks`]) and what is known of both models. Where a change keeps what
//! the owner meant, it is made ([`Changes`]); where it would not, the job keeps to its own model and is
//! told why ([`Ineligible`]). What nobody has written down counts as not known to the other model.

use std::collections::BTreeSet;

use crate::ids::{Kind, ModelId};
use crate::models::{
    Catalog, Lifecycle, Model, Prefill, Sampling, Support, Thinking, ThinkingDefault,
};

/// Kinds of work that a smaller model does well enough, unless configured otherwise.
pub const KINDS: [&str; 4] = [
    "short_summary",
    "tagging",
    "classification",
    "structured_extract",
];

/// Smallest budget of `thinking.type` `enabled`.
const BUDGET_TOKENS_MIN: u64 = 1_024;

/// What a request asks of its model, as far as models differ in it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Asks {
    pub max_tokens: u64,
    pub thinking: Option<AskedThinking>,
    pub effort: Option<Effort>,
    pub tool_choice: ToolChoice,
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub has_top_k: bool,
    /// The last message is the beginning of the answer.
    pub is_prefilled: bool,
    /// Earlier thinking is part of the conversation; only some models can read that of others.
    pub replays_thinking: bool,
    /// Asks for an output format, or has strict tools.
    pub is_structured: bool,
    pub size: Size,
    /// The first thing in the request of which it is not known whether other models take it.
    pub unknown: Option<String>,
}

/// `thinking` of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AskedThinking {
    pub kind: Thinking,
    pub budget_tokens: Option<u64>,
}

/// `output_config.effort`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effort {
    Low,
    Medium,
    High,
    Xhigh,
    Max,
}

impl Effort {
    /// All levels, the least first.
    pub const ALL: [Self; 5] = [Self::Low, Self::Medium, Self::High, Self::Xhigh, Self::Max];

    /// The word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::Xhigh => "xhigh",
            Self::Max => "max",
        }
    }
}

/// Whether the model has to use a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ToolChoice {
    #[default]
    Free,
    /// `any` or `tool`.
    Forced,
}

/// How large the input is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Size {
    pub ascii_chars: u64,
    pub other_chars: u64,
    pub images: u64,
}

impl Size {
    /// Tokens that the input has at most. An estimate may be wrong by half, and the context is a hard
    /// limit: so two ASCII characters count as a token here, and any other character as two.
    #[must_use]
    pub fn tokens_max(self, model: &Model) -> u64 {
        /// Around the messages.
        const FRAME_TOKENS: u64 = 1_000;
        let older = self
            .ascii_chars
            .div_ceil(2)
            .saturating_add(self.other_chars.saturating_mul(2));
        // The rule above is that of the tokenizer with the most characters in a token.
        let text = older
            .saturating_mul(CHARS_PER_TEN_TOKENS_OLDER)
            .div_ceil(model.chars_per_ten_tokens.max(1))
            .max(older);
        text.saturating_add(self.images.saturating_mul(model.image_tokens))
            .saturating_add(FRAME_TOKENS)
    }
}

const CHARS_PER_TEN_TOKENS_OLDER: u64 = 34;

/// How a request changes for the other model. What is not named stays as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Changes {
    pub max_tokens: u64,
    pub thinking: Change<AskedThinking>,
    pub effort: Change<Effort>,
    pub temperature: Change<()>,
    pub top_p: Change<()>,
}

/// What happens to a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change<T> {
    Keep,
    Remove,
    Set(T),
}

/// Why a job keeps to its own model.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Ineligible {
    #[error("{model} has no smaller model to fall back to")]
    NoPair { model: ModelId },
    #[error("its owner wants no other model")]
    Never,
    #[error("jobs of kind {kind} do not fall back")]
    Kind { kind: Kind },
    #[error("{model} is retired")]
    Retired { model: ModelId },
    #[error("it is not known whether {model} takes {what}")]
    Unknown { model: ModelId, what: String },
    #[error("max_tokens is {asked}; {model} gives at most {max}")]
    MaxTokens {
        model: ModelId,
        asked: u64,
        max: u64,
    },
    #[error(
        "up to {input} input tokens and {max_tokens} of max_tokens may not fit into the {context} tokens of {model}"
    )]
    Context {
        model: ModelId,
        input: u64,
        max_tokens: u64,
        context: u64,
    },
    #[error("{model} cannot be asked not to think")]
    AlwaysThinks { model: ModelId },
    #[error("{model} may not read the earlier thinking in the conversation")]
    ReplayedThinking { model: ModelId },
    #[error("{model} cannot be made to use a tool")]
    ForcedTools { model: ModelId },
    #[error("{model} does not take these sampling parameters")]
    Sampling { model: ModelId },
    #[error("{model} does not go on from the beginning of an answer")]
    Prefill { model: ModelId },
    #[error("{model} has no structured output")]
    StructuredOutput { model: ModelId },
}

/// The kinds of work that may fall back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kinds(BTreeSet<Kind>);

impl Kinds {
    /// Exactly these kinds.
    #[must_use]
    pub fn of(kinds: impl IntoIterator<Item = Kind>) -> Self {
        Self(kinds.into_iter().collect())
    }

    /// Whether jobs of a kind may fall back. A kind nobody has named may not.
    #[must_use]
    pub fn may_fall_back(&self, kind: &Kind) -> bool {
        self.0.contains(kind)
    }
}

impl Default for Kinds {
    fn default() -> Self {
        Self::of(KINDS.map(|kind| Kind::parse(kind).expect("the kinds of the list are kinds")))
    }
}

/// The smaller model that may answer a request for `model`, and how the request changes for it.
///
/// # Errors
/// [`Ineligible`] says why there is none.
pub fn plan<'a>(
    catalog: &'a Catalog,
    model: &ModelId,
    asks: &Asks,
) -> Result<(&'a Model, Changes), Ineligible> {
    let no_pair = || Ineligible::NoPair {
        model: model.clone(),
    };
    let from = catalog.find(model.as_str()).ok_or_else(no_pair)?;
    let to = catalog.fallback(model.as_str()).ok_or_else(no_pair)?;
    Ok((to, translate(from, to, asks)?))
}

/// How a request that `from` takes changes for `to`.
///
/// # Errors
/// [`Ineligible`] names what `to` would refuse, or might.
pub fn translate(from: &Model, to: &Model, asks: &Asks) -> Result<Changes, Ineligible> {
    let model = || to.id.clone();
    if to.lifecycle == Lifecycle::Retired {
        return Err(Ineligible::Retired { model: model() });
    }
    if let Some(what) = &asks.unknown {
        return Err(Ineligible::Unknown {
            model: model(),
            what: what.clone(),
        });
    }
    if asks.replays_thinking {
        return Err(Ineligible::ReplayedThinking { model: model() });
    }
    if asks.tool_choice == ToolChoice::Forced && to.forced_tools == Support::No {
        return Err(Ineligible::ForcedTools { model: model() });
    }
    if asks.is_structured && to.structured_output == Support::No {
        return Err(Ineligible::StructuredOutput { model: model() });
    }
    let (temperature, top_p) = sampling(from, to, asks)?;
    let thinking = thinking(from, to, asks)?;
    prefill(to, asks, thinking)?;
    let max_tokens = max_tokens(from, to, asks)?;
    Ok(Changes {
        max_tokens,
        thinking,
        effort: effort(to, asks, thinking),
        temperature,
        top_p,
    })
}

/// The same answer may be more tokens for the other model: its limit grows with them, up to what
/// the model gives and its context holds.
fn max_tokens(from: &Model, to: &Model, asks: &Asks) -> Result<u64, Ineligible> {
    let asked = asks.max_tokens;
    if asked > to.output_tokens_max {
        return Err(Ineligible::MaxTokens {
            model: to.id.clone(),
            asked,
            max: to.output_tokens_max,
        });
    }
    let input = asks.size.tokens_max(to);
    let room = to.context_tokens.saturating_sub(input);
    if asked > room {
        return Err(Ineligible::Context {
            model: to.id.clone(),
            input,
            max_tokens: asked,
            context: to.context_tokens,
        });
    }
    let as_long = asked
        .saturating_mul(from.chars_per_ten_tokens)
        .div_ceil(to.chars_per_ten_tokens.max(1));
    Ok(as_long.max(asked).min(to.output_tokens_max).min(room))
}

fn thinking(from: &Model, to: &Model, asks: &Asks) -> Result<Change<AskedThinking>, Ineligible> {
    let Some(asked) = asks.thinking else {
        return match (from.thinking_default, to.thinking_default) {
            (ThinkingDefault::Off, ThinkingDefault::On) => without_thinking(to).map(Change::Set),
            // A smaller model that does not think is what its owner agreed to.
            (ThinkingDefault::On, ThinkingDefault::Off)
            | (ThinkingDefault::On, ThinkingDefault::On)
            | (ThinkingDefault::Off, ThinkingDefault::Off) => Ok(Change::Keep),
        };
    };
    if to.thinking.contains(&asked.kind) {
        return Ok(Change::Keep);
    }
    let adaptive = AskedThinking {
        kind: Thinking::Adaptive,
        budget_tokens: None,
    };
    match asked.kind {
        Thinking::Enabled if to.thinking.contains(&Thinking::Adaptive) => Ok(Change::Set(adaptive)),
        Thinking::Adaptive => match with_budget(to, asks) {
            Some(enabled) => Ok(Change::Set(enabled)),
            None => without_thinking(to).map(Change::Set),
        },
        Thinking::Enabled | Thinking::Disabled | Thinking::BetweenTools => {
            without_thinking(to).map(Change::Set)
        }
    }
}

/// Thinking with a budget of half the answer, if the rest of the request goes with it: such thinking
/// bears neither a tool that must be used, nor sampling, nor a prefilled answer.
fn with_budget(to: &Model, asks: &Asks) -> Option<AskedThinking> {
    let goes_with_it = asks.tool_choice == ToolChoice::Free
        && !asks.is_prefilled
        && asks.temperature.is_none()
        && asks.top_p.is_none()
        && !asks.has_top_k;
    let budget = asks.max_tokens / 2;
    (to.thinking.contains(&Thinking::Enabled) && goes_with_it && budget >= BUDGET_TOKENS_MIN)
        .then_some(AskedThinking {
            kind: Thinking::Enabled,
            budget_tokens: Some(budget),
        })
}

/// The value that keeps a model from thinking, or from more than it must.
fn without_thinking(to: &Model) -> Result<AskedThinking, Ineligible> {
    let kind = [Thinking::Disabled, Thinking::BetweenTools]
        .into_iter()
        .find(|kind| to.thinking.contains(kind))
        .ok_or_else(|| Ineligible::AlwaysThinks {
            model: to.id.clone(),
        })?;
    Ok(AskedThinking {
        kind,
        budget_tokens: None,
    })
}

fn effort(to: &Model, asks: &Asks, thinking: Change<AskedThinking>) -> Change<Effort> {
    let Some(effort) = asks.effort else {
        return Change::Keep;
    };
    if to.effort == Support::No {
        return Change::Remove;
    }
    let is_restrained = matches!(
        resulting(asks, thinking).map(|thinking| thinking.kind),
        Some(Thinking::Disabled | Thinking::BetweenTools)
    );
    if is_restrained && effort > Effort::High {
        // Models that can be kept from thinking refuse the highest levels then.
        return Change::Set(Effort::High);
    }
    Change::Keep
}

fn resulting(asks: &Asks, thinking: Change<AskedThinking>) -> Option<AskedThinking> {
    match thinking {
        Change::Keep => asks.thinking,
        Change::Remove => None,
        Change::Set(thinking) => Some(thinking),
    }
}

fn prefill(to: &Model, asks: &Asks, thinking: Change<AskedThinking>) -> Result<(), Ineligible> {
    if !asks.is_prefilled {
        return Ok(());
    }
    let thinks = match resulting(asks, thinking).map(|thinking| thinking.kind) {
        Some(Thinking::Disabled) => false,
        Some(Thinking::Adaptive | Thinking::Enabled | Thinking::BetweenTools) => true,
        None => to.thinking_default == ThinkingDefault::On,
    };
    match to.prefill {
        Prefill::WithoutThinking if !thinks => Ok(()),
        Prefill::WithoutThinking | Prefill::No => Err(Ineligible::Prefill {
            model: to.id.clone(),
        }),
    }
}

/// Default values say nothing, so they are left out; other values mean something, so they stay or
/// the job does.
fn sampling(from: &Model, to: &Model, asks: &Asks) -> Result<(Change<()>, Change<()>), Ineligible> {
    let is_default_temperature = asks.temperature.is_none_or(|value| value >= 1.0);
    let is_default_top_p = asks.top_p.is_none_or(|value| value >= 0.99);
    let drop = |given: Option<f64>, is_default: bool| {
        if given.is_some() && is_default {
            Change::Remove
        } else {
            Change::Keep
        }
    };
    let both = asks.temperature.is_some() && asks.top_p.is_some();
    let stays_as_it_is = match (from.sampling, to.sampling) {
        (Sampling::Any, Sampling::Any) => !both,
        (Sampling::Any | Sampling::DefaultsOnly | Sampling::OneDefaultOnly, _) => false,
    };
    if stays_as_it_is {
        return Ok((Change::Keep, Change::Keep));
    }
    let says_nothing = is_default_temperature && is_default_top_p && !asks.has_top_k;
    let is_taken = match to.sampling {
        Sampling::Any => is_default_temperature || is_default_top_p,
        Sampling::DefaultsOnly | Sampling::OneDefaultOnly => says_nothing,
    };
    if !is_taken {
        return Err(Ineligible::Sampling {
            model: to.id.clone(),
        });
    }
    Ok((
        drop(asks.temperature, is_default_temperature),
        drop(asks.top_p, is_default_top_p),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asks() -> Asks {
        Asks {
            max_tokens: 1_024,
            ..Asks::default()
        }
    }

    fn between(from: &str, to: &str, asks: &Asks) -> Result<Changes, Ineligible> {
        let catalog = Catalog::default();
        let [from, to] = [from, to].map(|name| catalog.find(name).unwrap());
        translate(from, to, asks)
    }

    fn older(asks: &Asks) -> Result<Changes, Ineligible> {
        between("claude-sonnet-4-6", "claude-haiku-4-5", asks)
    }

    fn newer(asks: &Asks) -> Result<Changes, Ineligible> {
        between("claude-sonnet-5-5", "claude-haiku-5-5", asks)
    }

    fn thinking(kind: Thinking, budget_tokens: Option<u64>) -> Option<AskedThinking> {
        Some(AskedThinking {
            kind,
            budget_tokens,
        })
    }

    #[test]
    fn a_plain_request_stays_as_it_is() {
        for changes in [older(&asks()), newer(&asks())] {
            let changes = changes.unwrap();
            assert_eq!(changes.max_tokens, 1_024);
            assert_eq!(changes.thinking, Change::Keep);
            assert_eq!(changes.effort, Change::Keep);
        }
    }

    #[test]
    fn only_named_kinds_fall_back() {
        let kinds = Kinds::default();
        let may = |kind| kinds.may_fall_back(&Kind::parse(kind).unwrap());
        for kind in KINDS {
            assert!(may(kind), "{kind}");
        }
        for kind in ["long_form_writing", "code_generation", "anything_else"] {
            assert!(!may(kind), "{kind}");
        }
    }

    #[test]
    fn thinking_is_translated_to_what_the_other_model_knows() {
        let adaptive = |max_tokens| Asks {
            max_tokens,
            thinking: thinking(Thinking::Adaptive, None),
            ..asks()
        };
        let budget = thinking(Thinking::Enabled, Some(2_048)).unwrap();
        let disabled = thinking(Thinking::Disabled, None).unwrap();
        assert_eq!(
            older(&adaptive(4_096)).unwrap().thinking,
            Change::Set(budget)
        );
        let no_room = older(&adaptive(2_000)).unwrap();
        assert_eq!(no_room.thinking, Change::Set(disabled));
        let with_temperature = Asks {
            temperature: Some(0.2),
            ..adaptive(4_096)
        };
        assert_eq!(
            older(&with_temperature).unwrap().thinking,
            Change::Set(disabled)
        );

        let between_tools = Asks {
            thinking: thinking(Thinking::BetweenTools, None),
            effort: Some(Effort::High),
            ..asks()
        };
        let changes = newer(&between_tools).unwrap();
        assert_eq!(changes.thinking, Change::Set(disabled));
        assert_eq!(changes.effort, Change::Keep);
    }

    #[test]
    fn a_request_without_thinking_does_not_begin_to_think() {
        let changes = between("claude-sonnet-4-6", "claude-haiku-5-5", &asks()).unwrap();
        let disabled = thinking(Thinking::Disabled, None).unwrap();
        assert_eq!(changes.thinking, Change::Set(disabled));
        let refused = between("claude-sonnet-4-6", "claude-opus-5-5", &asks());
        assert!(matches!(refused, Err(Ineligible::AlwaysThinks { .. })));
    }

    #[test]
    fn effort_is_dropped_or_lowered() {
        let hard = Asks {
            effort: Some(Effort::Max),
            ..asks()
        };
        assert_eq!(older(&hard).unwrap().effort, Change::Remove);
        assert_eq!(newer(&hard).unwrap().effort, Change::Keep);
        let changes = between("claude-sonnet-4-6", "claude-haiku-5-5", &hard).unwrap();
        assert_eq!(changes.effort, Change::Set(Effort::High));
    }

    #[test]
    fn the_answer_keeps_its_length_in_the_other_tokenizer() {
        let changes = between("claude-sonnet-4-6", "claude-haiku-5-5", &asks()).unwrap();
        assert_eq!(changes.max_tokens, 1_393);
        let changes = between("claude-haiku-5-5", "claude-haiku-4-5", &asks()).unwrap();
        assert_eq!(changes.max_tokens, 1_024, "never less than asked for");
    }

    #[test]
    fn a_longer_answer_or_prompt_than_the_model_takes_stays() {
        let long = Asks {
            max_tokens: 64_001,
            ..asks()
        };
        assert!(matches!(older(&long), Err(Ineligible::MaxTokens { .. })));
        let sized = |ascii_chars, other_chars| Asks {
            size: Size {
                ascii_chars,
                other_chars,
                images: 0,
            },
            ..asks()
        };
        assert!(older(&sized(390_000, 0)).is_ok());
        let refused = older(&sized(400_000, 0));
        assert!(matches!(refused, Err(Ineligible::Context { .. })));
        assert!(older(&sized(0, 98_000)).is_ok());
        assert!(older(&sized(0, 100_000)).is_err());
    }

    #[test]
    fn what_cannot_be_translated_is_named() {
        let prefilled = Asks {
            is_prefilled: true,
            ..asks()
        };
        assert!(matches!(newer(&prefilled), Err(Ineligible::Prefill { .. })));
        let forced = Asks {
            tool_choice: ToolChoice::Forced,
            ..asks()
        };
        let refused = between("claude-sonnet-4-6", "claude-sonnet-5-5", &forced);
        assert!(matches!(refused, Err(Ineligible::ForcedTools { .. })));
        let cold = Asks {
            temperature: Some(0.0),
            ..asks()
        };
        assert_eq!(older(&cold).unwrap().temperature, Change::Keep);
        let refused = between("claude-sonnet-4-6", "claude-haiku-5-5", &cold);
        assert!(matches!(refused, Err(Ineligible::Sampling { .. })));
        let strange = Asks {
            unknown: Some("speed".into()),
            ..asks()
        };
        assert_eq!(
            older(&strange).unwrap_err().to_string(),
            "it is not known whether claude-haiku-4-5 takes speed"
        );
        let replayed = Asks {
            replays_thinking: true,
            ..asks()
        };
        assert!(older(&replayed).is_err());
    }

    #[test]
    fn default_sampling_is_left_out_and_a_pair_of_values_is_not_sent() {
        let both = Asks {
            temperature: Some(1.0),
            top_p: Some(0.99),
            ..asks()
        };
        let changes = newer(&both).unwrap();
        assert_eq!(
            (changes.temperature, changes.top_p),
            (Change::Remove, Change::Remove)
        );
        let mixed = Asks {
            temperature: Some(0.3),
            ..both
        };
        let changes = older(&mixed).unwrap();
        assert_eq!(
            (changes.temperature, changes.top_p),
            (Change::Keep, Change::Remove)
        );
    }

    #[test]
    fn models_without_a_pair_and_retired_ones_are_told_apart() {
        let catalog = Catalog::default();
        let haiku = ModelId::parse("claude-haiku-5-5").unwrap();
        let none = plan(&catalog, &haiku, &asks()).unwrap_err();
        assert!(matches!(none, Ineligible::NoPair { .. }));
        let sonnet = ModelId::parse("claude-sonnet-5-5").unwrap();
        let (model, _) = plan(&catalog, &sonnet, &asks()).unwrap();
        assert_eq!(model.id.as_str(), "claude-haiku-5-5");
        let retired = between("claude-sonnet-4-6", "claude-sonnet-4-5", &asks());
        assert!(matches!(retired, Err(Ineligible::Retired { .. })));
    }
}
