//! The worker's settings as checked values.

use std::path::PathBuf;
use std::time::Duration;

use fairlane_claude::{ApiKey, KeyError};
use fairlane_core::models::Catalog;
use fairlane_core::price::PriceTable;
use fairlane_runtime::config::Settings;

/// Everything a worker keeps to.
#[derive(Debug, Clone)]
pub struct Options {
    pub(crate) slots: u32,
    pub(crate) attempts_max: u32,
    pub(crate) credit_ttl: Duration,
    pub(crate) renew_every: Duration,
    pub(crate) results_keep: Duration,
    pub(crate) body_bytes_max: usize,
    pub(crate) key: ApiKey,
    pub(crate) claude: fairlane_claude::Options,
    pub(crate) catalog: Catalog,
    pub(crate) prices: PriceTable,
}

/// Settings a worker cannot run with.
#[derive(Debug, thiserror::Error)]
pub enum OptionsError {
    #[error(
        "no API key; set claude.api_key_file to a file that holds it, or FAIRLANE__CLAUDE__API_KEY"
    )]
    NoKey,
    #[error("cannot read claude.api_key_file {path:?}")]
    KeyFile {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("the API key is not usable")]
    Key(#[from] KeyError),
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
            body_bytes_max: usize::try_from(settings.producer.body_bytes_max).unwrap_or(usize::MAX),
            key: key(settings)?,
            claude: fairlane_claude::Options {
                base_url: claude.base_url.clone(),
                version: claude.version.clone(),
                connect_timeout: Duration::from_millis(claude.connect_timeout_ms),
                first_byte_timeout: Duration::from_millis(claude.first_byte_timeout_ms),
                progress_timeout: Duration::from_millis(claude.progress_timeout_ms),
                idle_connections_max: settings.worker.slots as usize,
                ..fairlane_claude::Options::default()
            },
            catalog: Catalog::default(),
            prices: PriceTable::default(),
        })
    }
}

fn key(settings: &Settings) -> Result<ApiKey, OptionsError> {
    let text = match (&settings.claude.api_key_file, &settings.claude.api_key) {
        (Some(path), _) => {
            std::fs::read_to_string(path).map_err(|source| OptionsError::KeyFile {
                path: path.clone(),
                source,
            })?
        }
        (None, Some(key)) => key.expose().to_owned(),
        (None, None) => return Err(OptionsError::NoKey),
    };
    Ok(ApiKey::parse(&text)?)
}
