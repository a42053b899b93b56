//! The models of this fleet: the built-in table with the configuration's additions and changes.

use std::collections::BTreeMap;

use crate::config;
use fairlane_core::models::{
    Catalog, Lifecycle, Model, Prefill, Sampling, Support, Thinking, ThinkingDefault,
};
use fairlane_core::{ModelId, NameError, PoolId};

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
}

/// The built-in models with `changes` applied.
///
/// # Errors
/// [`CatalogError`] with the key that is wrong or missing.
pub fn catalog(changes: &BTreeMap<String, config::Model>) -> Result<Catalog, CatalogError> {
    let mut catalog = Catalog::default();
    for (name, change) in changes {
        let id = ModelId::parse(name).map_err(CatalogError::Id)?;
        let known = catalog.models().find(|model| model.id == id).cloned();
        let model = match known {
            Some(known) => known,
            None => stranger(id, change)?,
        };
        catalog.insert(changed(model, change)?);
    }
    Ok(catalog)
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
    Ok(model)
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
            chars_per_token: None,
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
}
