//! What is known of the models: the table of this version, the upstream's own word on it, and over both
//! what the configuration says.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use fairlane_claude::ModelInfo;
use fairlane_core::models::{Catalog, Support, Thinking, Word};
use fairlane_runtime::{Shutdown, configured};
use serde_json::Value;

use crate::delivery::Context;

/// After a look that failed.
const AGAIN_AFTER: Duration = Duration::from_secs(300);

/// The catalogue of the moment.
#[derive(Debug)]
pub(crate) struct Models(RwLock<Arc<Catalog>>);

impl Models {
    pub(crate) fn new(catalog: Catalog) -> Self {
        Self(RwLock::new(Arc::new(catalog)))
    }

    pub(crate) fn current(&self) -> Arc<Catalog> {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn replace(&self, catalog: Catalog) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(catalog);
    }
}

/// Asks the upstream now and then, in the background: no job waits for it, and what fails is asked again.
pub(crate) async fn refresh(context: Arc<Context>, shutdown: Shutdown) -> anyhow::Result<()> {
    let Some(every) = context.options.models_every else {
        shutdown.draining().cancelled().await;
        return Ok(());
    };
    loop {
        let key = context.options.keys.current(Instant::now());
        let wait = match context.claude.models(&key).await {
            Ok(list) => {
                learn(&context, &list);
                every
            }
            Err(error) => {
                tracing::info!(%error, "cannot read the list of models");
                AGAIN_AFTER.min(every)
            }
        };
        tokio::select! {
            () = shutdown.draining().cancelled() => return Ok(()),
            () = tokio::time::sleep(wait) => {}
        }
    }
}

fn learn(context: &Context, list: &[ModelInfo]) {
    let mut catalog = Catalog::default();
    for info in list {
        if catalog.hear(&info.id, &word(info)) {
            tracing::info!(model = info.id, lifecycle = ?info.lifecycle, "the upstream knows better");
        }
    }
    match configured(catalog, &context.options.models) {
        Ok(catalog) => context.models.replace(catalog),
        Err(error) => tracing::warn!(%error, "keeping what is known of the models"),
    }
}

/// The upstream's word on a model. What is not said in a form that is known here is not said.
fn word(info: &ModelInfo) -> Word {
    let supported = |place: &str| match info.capabilities.pointer(place).and_then(Value::as_bool) {
        Some(true) => Some(Support::Yes),
        Some(false) => Some(Support::No),
        None => None,
    };
    let thinking = |kind: Thinking| {
        let place = format!("/thinking/types/{}/supported", kind.as_str());
        Some((kind, supported(&place)?))
    };
    Word {
        context_tokens: info.input_tokens_max,
        output_tokens_max: info.output_tokens_max,
        lifecycle: info.lifecycle,
        effort: supported("/effort/supported"),
        structured_output: supported("/structured_outputs/supported"),
        thinking: Thinking::ALL.into_iter().filter_map(thinking).collect(),
    }
}

#[cfg(test)]
mod tests {
    use fairlane_core::models::Lifecycle;
    use fairlane_sim::{Sim, SimConfig};

    use super::*;

    async fn list(config: SimConfig) -> Vec<ModelInfo> {
        let sim = Sim::start(config).await.unwrap();
        let options = fairlane_claude::Options {
            base_url: sim.url(),
            ..fairlane_claude::Options::default()
        };
        let client = fairlane_claude::Client::new(options).unwrap();
        let key = fairlane_claude::ApiKey::parse("sk-test").unwrap();
        client.models(&key).await.unwrap()
    }

    #[tokio::test]
    async fn the_built_in_table_says_the_same_as_the_upstream() {
        let mut catalog = Catalog::default();
        let list = list(SimConfig::instant()).await;
        assert!(list.len() > 10);
        for info in &list {
            assert!(catalog.find(&info.id).is_some(), "{}", info.id);
            assert!(!catalog.hear(&info.id, &word(info)), "{info:?}");
        }
    }

    #[tokio::test]
    async fn a_model_that_was_retired_is_known_as_such() {
        let config = SimConfig {
            retired_models: vec!["claude-haiku-4-5".into()],
            ..SimConfig::instant()
        };
        let mut catalog = Catalog::default();
        for info in list(config).await {
            catalog.hear(&info.id, &word(&info));
        }
        let haiku = catalog.find("claude-haiku-4-5").unwrap();
        assert_eq!(haiku.lifecycle, Lifecycle::Retired);
        let sonnet = catalog.find("claude-sonnet-4-6").unwrap();
        assert_eq!(sonnet.lifecycle, Lifecycle::Active);
    }
}
