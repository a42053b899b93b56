//! The part of the API that people who look after the fleet use, mounted in a server of somebody else: reading, dead
//! letters, tenants' settings. Nothing that submits jobs, makes keys or shows answers in parts.

use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use fairlane_letters::ready::Judge;
use fairlane_nats::Nats;
use fairlane_runtime::Shutdown;
use fairlane_runtime::config::Settings;

use crate::keys::TokensFile;
use crate::{Shared, routes};

/// The setting that names the tokens of those who may use it.
const TOKENS_KEY: &str = "scheduler.console_tokens_file";
/// The one that gives it the operator's rights.
const OPERATORS_KEY: &str = "scheduler.operator_nkey_file";

/// These calls, for one process.
#[derive(Debug)]
pub struct Desk {
    shared: Arc<Shared>,
    tokens: TokensFile,
}

impl Desk {
    /// For whom `tokens` names, and tenants with their keys. What operators ask is done on the connection `operators`, and
    /// refused without one. `judge` says whether a repaired letter would be accepted.
    ///
    /// # Errors
    /// If the tokens or the model table cannot be used.
    pub fn new(
        settings: &Settings,
        nats: &Nats,
        operators: Option<Nats>,
        judge: Arc<dyn Judge + Send + Sync>,
        tokens: PathBuf,
        shutdown: Shutdown,
    ) -> anyhow::Result<Self> {
        let tokens = TokensFile::new(TOKENS_KEY, tokens);
        let mut shared = Shared::new(settings, nats, operators, judge, shutdown)?;
        shared.operators_key = OPERATORS_KEY;
        let shared = Arc::new(shared);
        shared.keys.read_tokens(&tokens)?;
        Ok(Self { shared, tokens })
    }

    /// Its calls.
    pub fn routes(&self) -> Router {
        routes::desk(&self.shared)
    }

    /// Keeps tokens and keys as they are until the process drains, then lets runs and streams come to their end.
    pub async fn run(self) {
        let Self { shared, tokens } = self;
        let following = shared
            .keys
            .follow_all(&shared.nats, Some(tokens), &shared.shutdown);
        let draining = async {
            shared.shutdown.draining().cancelled().await;
            shared.tasks.close();
            shared.tasks.wait().await;
        };
        let mut draining = std::pin::pin!(draining);
        tokio::select! {
            () = &mut draining => {}
            () = following => draining.await,
        }
    }
}
