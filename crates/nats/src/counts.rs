//! How many messages a stream holds: in all, and by subject.

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
}

#[derive(Deserialize)]
struct State {
    messages: u64,
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
