//! How many messages a stream holds, in all and by subject, and how full it is.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::api::{self, ApiError};
use crate::jobs::Jobs;

/// Pages of subjects asked for at most. The server puts 100 000 into one.
const PAGES_MAX: usize = 100;

#[derive(Deserialize)]
struct Info {
    /// Subjects that match, on all pages.
    #[serde(default)]
    total: usize,
    state: State,
    config: Config,
}

#[derive(Deserialize)]
struct Config {
    /// Negative: none.
    max_bytes: i64,
}

/// What an account has in JetStream.
#[derive(Deserialize)]
struct Account {
    storage: u64,
    limits: Limits,
}

#[derive(Deserialize)]
struct Limits {
    /// Negative: none.
    max_storage: i64,
}

/// How full a stream is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    pub messages: u64,
    pub bytes: u64,
    /// Most bytes it may hold, if it has a limit of its own.
    pub bytes_max: Option<u64>,
}

#[derive(Deserialize)]
struct State {
    messages: u64,
    bytes: u64,
    #[serde(default)]
    subjects: Option<BTreeMap<String, u64>>,
}

impl Jobs {
    /// Messages in `stream`.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn count(&self, stream: &str) -> Result<u64, ApiError> {
        let info = self.info(stream, &Value::Null).await?;
        Ok(info.state.messages)
    }

    /// How full `stream` is.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn size(&self, stream: &str) -> Result<Size, ApiError> {
        let info = self.info(stream, &Value::Null).await?;
        Ok(Size {
            messages: info.state.messages,
            bytes: info.state.bytes,
            bytes_max: limit(info.config.max_bytes),
        })
    }

    /// Bytes that all streams of this account take on disk, and how many they may; None if there is no limit.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn storage(&self) -> Result<Option<(u64, u64)>, ApiError> {
        let account: Account = api::call(self.nats(), "INFO", &Value::Null, None).await?;
        Ok(limit(account.limits.max_storage).map(|max| (account.storage, max)))
    }

    /// Messages of `stream` by subject, for subjects that match `filter` and have any.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn counts(
        &self,
        stream: &str,
        filter: &str,
    ) -> Result<BTreeMap<String, u64>, ApiError> {
        let mut counts = BTreeMap::new();
        for _ in 0..PAGES_MAX {
            // Subjects that come and go between two pages may be told twice or not at all.
            let page = json!({"subjects_filter": filter, "offset": counts.len()});
            let info = self.info(stream, &page).await?;
            let subjects = info.state.subjects.unwrap_or_default();
            let is_last = subjects.is_empty();
            counts.extend(subjects);
            if is_last || counts.len() >= info.total {
                break;
            }
        }
        Ok(counts)
    }

    async fn info(&self, stream: &str, body: &Value) -> Result<Info, ApiError> {
        api::call(self.nats(), &format!("STREAM.INFO.{stream}"), body, None).await
    }
}

fn limit(limit: i64) -> Option<u64> {
    u64::try_from(limit).ok().filter(|limit| *limit > 0)
}
