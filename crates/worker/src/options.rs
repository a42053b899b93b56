//! The worker's settings as checked values.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlane_claude::ApiKey;
use fairlane_core::defer;
use fairlane_core::models::Catalog;
use fairlane_core::price::PriceTable;
use fairlane_runtime::config::Settings;
use fairlane_runtime::{CatalogError, PricesError, catalog};

use crate::key::{Keys, ReadError};

/// Everything a worker keeps to.
#[derive(Debug, Clone)]
pub struct Options {
    pub(crate) slots: u32,
    pub(crate) attempts_max: u32,
    pub(crate) credit_ttl: Duration,
    pub(crate) renew_every: Duration,
    pub(crate) results_keep: Duration,
    pub(crate) defer: defer::Rules,
    pub(crate) body_bytes_max: usize,
    pub(crate) keys: Arc<Keys>,
    pub(crate) claude: fairlane_claude::Options,
    pub(crate) catalog: Catalog,
    pub(crate) prices: PriceTable,
    /// What the configuration says of models, whatever the upstream says.
    pub(crate) models: BTreeMap<String, fairlane_runtime::config::Model>,
    pub(crate) models_every: Option<Duration>,
}

/// Settings a worker cannot run with.
#[derive(Debug, thiserror::Error)]
pub enum OptionsError {
    #[error(
        "no API key; set claude.api_key_file to a file that holds it, or FAIRLANE__CLAUDE__API_KEY"
    )]
    NoKey,
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    #[error(transparent)]
    Prices(#[from] PricesError),
    #[error("claude.api_key_file or claude.api_key")]
    Key(#[from] ReadError),
    #[error(
        "worker.renew_ms ({renew}) must be at most half of scheduler.credit_ttl_ms ({ttl}), or one lost renewal ends a running job's credit"
    )]
    Renew { renew: u64, ttl: u64 },
}

impl Options {
    /// # Errors
    /// [`OptionsError`].
    pub fn from_settings(settings: &Settings) -> Result<Self, OptionsError> {
        let (renew, ttl) = (settings.worker.renew_ms, settings.scheduler.credit_ttl_ms);
        if renew * 2 > ttl {
            return Err(OptionsError::Renew { renew, ttl });
        }
        let claude = &settings.claude;
        Ok(Self {
            slots: settings.worker.slots,
            attempts_max: settings.worker.max_attempts,
            credit_ttl: Duration::from_millis(ttl),
            renew_every: Duration::from_millis(renew),
            results_keep: Duration::from_millis(settings.results.keep_ms),
            defer: defer::Rules {
                hour: settings.worker.defer_hour,
                answer_within: settings.worker.defer_answer_ms,
            },
            body_bytes_max: usize::try_from(settings.producer.body_bytes_max).unwrap_or(usize::MAX),
            keys: Arc::new(keys(settings)?),
            claude: fairlane_claude::Options {
                base_url: claude.base_url.clone(),
                version: claude.version.clone(),
                connect_timeout: Duration::from_millis(claude.connect_timeout_ms),
                first_byte_timeout: Duration::from_millis(claude.first_byte_timeout_ms),
                progress_timeout: Duration::from_millis(claude.progress_timeout_ms),
                idle_connections_max: settings.worker.slots as usize,
                ..fairlane_claude::Options::default()
            },
            catalog: catalog(&settings.models)?,
            prices: fairlane_runtime::prices(&settings.prices)?,
            models: settings.models.clone(),
            models_every: (claude.models_every_ms > 0)
                .then(|| Duration::from_millis(claude.models_every_ms)),
        })
    }
}

fn keys(settings: &Settings) -> Result<Keys, OptionsError> {
    match (&settings.claude.api_key_file, &settings.claude.api_key) {
        (Some(path), _) => Ok(Keys::in_file(path.clone(), Instant::now())?),
        (None, Some(key)) => {
            let key = ApiKey::parse(key.expose()).map_err(ReadError::Key)?;
            Ok(Keys::fixed(key))
        }
        (None, None) => Err(OptionsError::NoKey),
    }
}
