//! The models of this fleet: the built-in table with the configuration's additions and changes.

use std::collections::BTreeMap;

use crate::config;
use fairlane_core::fallback::Kinds;
use fairlane_core::models::{
    Catalog, Lifecycle, Model, Prefill, Sampling, Support, Thinking, ThinkingDefault,
};
use fairlane_core::oversize::{Place, Policies, Policy};
use fairlane_core::{Kind, ModelId, NameError, PoolId};

/// A model of the configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    #[error("models: the key is not a model id")]
    Id(#[source] NameError),
    #[error("models.{model}.pool is not a pool name")]
    Pool {
        model: String,
        #[source]
        source: NameError,
    },
    #[error(
        "models.{model}.{key} is missing; a model that is not built in needs pool, context_tokens and output_tokens_max"
    )]
    Missing { model: String, key: &'static str },
    #[error(
        "models.{model}.fallback is {smaller:?}; give another model that is built in or configured, or none"
    )]
    Fallback { model: String, smaller: String },
    #[error(
        "models.{model}.thinking is {value:?}; give some of adaptive, disabled, enabled, between_tools, comma separated"
    )]
    Thinking { model: String, value: String },
    #[error("fallback.kinds names no kind of job")]
    Kind(#[source] NameError),
    #[error("kinds: the key is not a kind of job")]
    JobKind(#[source] NameError),
    #[error(
        "kinds.{kind}.oversize_fields is {value:?}; give some of last_user_message, messages, system, comma separated"
    )]
    OversizeFields { kind: String, value: String },
}

/// The built-in models with `changes` applied.
///
/// # Errors
/// [`CatalogError`] with the key that is wrong or missing.
pub fn catalog(changes: &BTreeMap<String, config::Model>) -> Result<Catalog, CatalogError> {
    configured(Catalog::default(), changes)
}

/// A catalogue with `changes` applied.
///
/// # Errors
/// [`CatalogError`] with the key that is wrong or missing.
pub fn configured(
    mut catalog: Catalog,
    changes: &BTreeMap<String, config::Model>,
) -> Result<Catalog, CatalogError> {
    for (name, change) in changes {
        let id = ModelId::parse(name).map_err(CatalogError::Id)?;
        let known = catalog.models().find(|model| model.id == id).cloned();
        let model = match known {
            Some(known) => known,
            None => stranger(id, change)?,
        };
        catalog.insert(changed(model, change)?);
    }
    // Once all are known: a pair may name a model that is configured further on.
    for (name, change) in changes {
        let id = ModelId::parse(name).map_err(CatalogError::Id)?;
        match change.fallback.as_deref() {
            None => {}
            Some("none") => catalog.remove_fallback(&id),
            Some(smaller) => match catalog.find(smaller) {
                Some(known) if known.id != id => {
                    let smaller = known.id.clone();
                    catalog.set_fallback(id, smaller);
                }
                Some(_) | None => {
                    return Err(CatalogError::Fallback {
                        model: name.clone(),
                        smaller: smaller.to_owned(),
                    });
                }
            },
        }
    }
    Ok(catalog)
}

/// The kinds of work that may fall back.
///
/// # Errors
/// [`CatalogError::Kind`].
pub fn fallback_kinds(fallback: &config::Fallback) -> Result<Kinds, CatalogError> {
    let kinds = list(&fallback.kinds).map(|kind| Kind::parse(kind).map_err(CatalogError::Kind));
    Ok(Kinds::of(kinds.collect::<Result<Vec<_>, _>>()?))
}

/// What becomes of jobs that are too long for their model.
///
/// # Errors
/// [`CatalogError::JobKind`], [`CatalogError::OversizeFields`].
pub fn oversize_policies(
    kinds: &BTreeMap<String, config::JobKind>,
) -> Result<Policies, CatalogError> {
    let mut policies = Vec::new();
    for (name, settings) in kinds {
        let kind = Kind::parse(name).map_err(CatalogError::JobKind)?;
        let value = &settings.oversize_fields;
        let places: Option<Vec<Place>> = list(value).map(Place::parse).collect();
        let places = places.filter(|places| !places.is_empty());
        let places = places.ok_or_else(|| CatalogError::OversizeFields {
            kind: name.clone(),
            value: value.clone(),
        })?;
        // The configuration takes these words and `reject` alone.
        match settings.oversize.as_str() {
            "truncate" => policies.push((kind, Policy::Truncate(places))),
            "summarise" => policies.push((kind, Policy::Summarise(places))),
            _ => {}
        }
    }
    Ok(Policies::of(policies))
}

fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
}

/// A model that is not built in: what cannot be configured is what the latest models share.
fn stranger(id: ModelId, change: &config::Model) -> Result<Model, CatalogError> {
    let missing = |key| CatalogError::Missing {
        model: id.to_string(),
        key,
    };
    Ok(Model {
        pool: pool(&id, change)?.ok_or_else(|| missing("pool"))?,
        context_tokens: change
            .context_tokens
            .ok_or_else(|| missing("context_tokens"))?,
        output_tokens_max: change
            .output_tokens_max
            .ok_or_else(|| missing("output_tokens_max"))?,
        chars_per_ten_tokens: 25,
        image_tokens: 4_000,
        cache_prefix_tokens_min: 1_024,
        aliases: Vec::new(),
        thinking: vec![Thinking::Adaptive, Thinking::Disabled],
        thinking_default: ThinkingDefault::On,
        effort: Support::Yes,
        forced_tools: Support::Yes,
        sampling: Sampling::DefaultsOnly,
        prefill: Prefill::No,
        structured_output: Support::Yes,
        lifecycle: Lifecycle::Active,
        id,
    })
}

fn changed(mut model: Model, change: &config::Model) -> Result<Model, CatalogError> {
    if let Some(pool) = pool(&model.id, change)? {
        model.pool = pool;
    }
    if let Some(tokens) = change.context_tokens {
        model.context_tokens = tokens;
    }
    if let Some(tokens) = change.output_tokens_max {
        model.output_tokens_max = tokens;
    }
    if let Some(chars) = change.chars_per_token {
        model.chars_per_ten_tokens = tenfold(chars);
    }
    if let Some(tokens) = change.image_tokens {
        model.image_tokens = tokens;
    }
    if let Some(text) = &change.thinking {
        model.thinking = thinking(text).ok_or_else(|| CatalogError::Thinking {
            model: model.id.to_string(),
            value: text.clone(),
        })?;
    }
    capabilities(&mut model, change);
    Ok(model)
}

fn thinking(text: &str) -> Option<Vec<Thinking>> {
    list(text).map(Thinking::parse).collect()
}

/// The words of a choice, which the configuration has checked.
fn capabilities(model: &mut Model, change: &config::Model) {
    let support = |word: &Option<String>, old| match word.as_deref() {
        Some("yes") => Support::Yes,
        Some("no") => Support::No,
        Some(_) | None => old,
    };
    model.effort = support(&change.effort, model.effort);
    model.forced_tools = support(&change.forced_tools, model.forced_tools);
    model.structured_output = support(&change.structured_output, model.structured_output);
    model.thinking_default = match change.thinking_default.as_deref() {
        Some("on") => ThinkingDefault::On,
        Some("off") => ThinkingDefault::Off,
        Some(_) | None => model.thinking_default,
    };
    model.sampling = match change.sampling.as_deref() {
        Some("any") => Sampling::Any,
        Some("defaults_only") => Sampling::DefaultsOnly,
        Some("one_default_only") => Sampling::OneDefaultOnly,
        Some(_) | None => model.sampling,
    };
    model.prefill = match change.prefill.as_deref() {
        Some("no") => Prefill::No,
        Some("without_thinking") => Prefill::WithoutThinking,
        Some(_) | None => model.prefill,
    };
    model.lifecycle = match change.lifecycle.as_deref() {
        Some("active") => Lifecycle::Active,
        Some("deprecated") => Lifecycle::Deprecated,
        Some("retired") => Lifecycle::Retired,
        Some(_) | None => model.lifecycle,
    };
}

fn pool(id: &ModelId, change: &config::Model) -> Result<Option<PoolId>, CatalogError> {
    let parsed = change.pool.as_deref().map(PoolId::parse).transpose();
    parsed.map_err(|source| CatalogError::Pool {
        model: id.to_string(),
        source,
    })
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the configuration allows 0.5 to 20"
)]
fn tenfold(chars_per_token: f64) -> u64 {
    (chars_per_token * 10.0).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &str, change: config::Model) -> Result<Catalog, CatalogError> {
        catalog(&BTreeMap::from([(name.to_owned(), change)]))
    }

    #[test]
    fn a_built_in_model_keeps_what_is_not_changed() {
        let change = config::Model {
            chars_per_token: Some(3.0),
            ..config::Model::default()
        };
        let catalog = with("claude-haiku-4-5", change).unwrap();
        let model = catalog.find("claude-haiku-4-5-20251001").unwrap();
        assert_eq!(model.chars_per_ten_tokens, 30);
        assert_eq!(model.context_tokens, 200_000);
        assert_eq!(model.pool.as_str(), "haiku-4.5");
    }

    #[test]
    fn a_new_model_needs_its_pool_and_sizes() {
        let whole = config::Model {
            pool: Some("house".into()),
            context_tokens: Some(10_000),
            output_tokens_max: Some(1_000),
            ..config::Model::default()
        };
        let catalog = with("house-1", whole.clone()).unwrap();
        assert_eq!(catalog.find("house-1").unwrap().pool.as_str(), "house");

        let error = with(
            "house-1",
            config::Model {
                pool: None,
                ..whole.clone()
            },
        )
        .unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("models.house-1.pool is missing"),
            "{error}"
        );
        let error = with("house 1", whole.clone()).unwrap_err();
        assert!(matches!(error, CatalogError::Id(_)));
        let error = with(
            "house-1",
            config::Model {
                pool: Some("a b".into()),
                ..whole
            },
        )
        .unwrap_err();
        assert!(matches!(error, CatalogError::Pool { .. }));
    }

    #[test]
    fn what_a_model_takes_can_be_changed() {
        let change = config::Model {
            thinking: Some("disabled, adaptive".into()),
            thinking_default: Some("on".into()),
            effort: Some("yes".into()),
            forced_tools: Some("no".into()),
            sampling: Some("defaults_only".into()),
            prefill: Some("no".into()),
            structured_output: Some("no".into()),
            lifecycle: Some("retired".into()),
            image_tokens: Some(9),
            ..config::Model::default()
        };
        let catalog = with("claude-haiku-4-5", change).unwrap();
        let model = catalog.find("claude-haiku-4-5").unwrap();
        assert_eq!(model.thinking, [Thinking::Disabled, Thinking::Adaptive]);
        assert_eq!(model.thinking_default, ThinkingDefault::On);
        assert_eq!(
            (model.effort, model.forced_tools),
            (Support::Yes, Support::No)
        );
        assert_eq!(model.sampling, Sampling::DefaultsOnly);
        assert_eq!(
            (model.prefill, model.structured_output),
            (Prefill::No, Support::No)
        );
        assert_eq!(
            (model.lifecycle, model.image_tokens),
            (Lifecycle::Retired, 9)
        );

        let wrong = config::Model {
            thinking: Some("sometimes".into()),
            ..config::Model::default()
        };
        let error = with("claude-haiku-4-5", wrong).unwrap_err();
        assert!(matches!(error, CatalogError::Thinking { .. }));
    }

    #[test]
    fn pairs_are_added_and_taken_away() {
        let to = |smaller: &str| config::Model {
            fallback: Some(smaller.into()),
            ..config::Model::default()
        };
        let fallback = |model, change| {
            let catalog = with(model, change)?;
            Ok(catalog.fallback(model).map(|model| model.id.to_string()))
        };
        let added = fallback("claude-opus-5-5", to("claude-sonnet-5-5"));
        assert_eq!(added.unwrap().as_deref(), Some("claude-sonnet-5-5"));
        assert_eq!(fallback("claude-sonnet-5-5", to("none")).unwrap(), None);
        for bad in ["claude-nope", "claude-sonnet-5-5-20260928"] {
            let error: CatalogError = fallback("claude-sonnet-5-5", to(bad)).unwrap_err();
            assert!(matches!(error, CatalogError::Fallback { .. }), "{bad}");
        }
    }

    #[test]
    fn kinds_that_may_fall_back_are_a_list() {
        let kinds = fallback_kinds(&config::Fallback::default()).unwrap();
        assert_eq!(kinds, Kinds::default());
        let own = config::Fallback {
            kinds: "code_generation, tagging".into(),
        };
        let kinds = fallback_kinds(&own).unwrap();
        assert!(kinds.may_fall_back(&Kind::parse("code_generation").unwrap()));
        assert!(!kinds.may_fall_back(&Kind::parse("classification").unwrap()));
        let wrong = config::Fallback {
            kinds: "a b".into(),
        };
        assert!(fallback_kinds(&wrong).is_err());
    }

    #[test]
    fn only_kinds_that_say_so_are_made_to_fit_and_a_wrong_place_is_named() {
        let kind = |oversize: &str, fields: &str| config::JobKind {
            oversize: oversize.into(),
            oversize_fields: fields.into(),
        };
        let policies =
            |name: &str, kind| oversize_policies(&BTreeMap::from([(name.to_owned(), kind)]));
        let tagging = Kind::parse("tagging").unwrap();
        let places = vec![Place::System, Place::LastUserMessage];
        for (word, policy) in [
            ("truncate", Policy::Truncate(places.clone())),
            ("summarise", Policy::Summarise(places)),
        ] {
            let both = policies("tagging", kind(word, "system, last_user_message")).unwrap();
            assert_eq!(both.of_kind(&tagging), Some(&policy));
            assert_eq!(both.of_kind(&Kind::parse("other").unwrap()), None);
        }
        for reject in [kind("reject", "system"), config::JobKind::default()] {
            assert_eq!(policies("tagging", reject).unwrap(), Policies::default());
        }
        for fields in ["prompt", " , "] {
            let wrong = policies("tagging", kind("truncate", fields)).unwrap_err();
            assert!(
                wrong
                    .to_string()
                    .starts_with("kinds.tagging.oversize_fields is")
            );
        }
        assert!(policies("a b", config::JobKind::default()).is_err());
    }
}
