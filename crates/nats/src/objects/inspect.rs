//! A look at everything Fairlane keeps on NATS, without making or changing anything.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{EnsureError, ObjectOptions, Report, Spec, drift, guard, patiently, specs};
use crate::api::{self, code};
use crate::client::Nats;

/// Servers from 2.15 on allow a stream so many consumers where it names no number.
const CONSUMERS_MAX_DEFAULT: i64 = 1_000;

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inspection {
    /// What is there, and where it differs. `created` stays empty.
    pub report: Report,
    /// Objects that are not there.
    pub missing: Vec<String>,
    pub streams: Vec<StreamUse>,
    /// Consumers of the account, and how many it may have; 0 or less: as many as it likes.
    pub account_consumers: (i64, i64),
    /// The server's clock, RFC 3339, as of the answer that came last.
    pub server_time: Option<String>,
}

/// How many consumers a stream has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamUse {
    /// The stream, in the server's words.
    pub stream: String,
    pub consumers: i64,
    pub consumers_max: i64,
}

#[derive(Deserialize)]
struct Info {
    config: Map<String, Value>,
    #[serde(default)]
    state: State,
    #[serde(default)]
    ts: Option<String>,
}

#[derive(Deserialize, Default)]
struct State {
    #[serde(default)]
    consumer_count: i64,
}

#[derive(Deserialize)]
struct Account {
    #[serde(default)]
    consumers: i64,
    #[serde(default)]
    limits: AccountLimits,
}

#[derive(Deserialize, Default)]
struct AccountLimits {
    #[serde(default)]
    max_consumers: i64,
}

/// Looks at every stream, bucket and consumer.
///
/// # Errors
/// [`EnsureError`]: the server is too old, or does not answer.
pub async fn inspect(nats: &Nats, options: &ObjectOptions) -> Result<Inspection, EnsureError> {
    guard(nats).await?;
    let account: Account = patiently(|| api::call(nats, "INFO", &Value::Null, None))
        .await
        .map_err(EnsureError::NoJetStream)?;
    let mut found = Inspection {
        account_consumers: (account.consumers, account.limits.max_consumers),
        ..Inspection::default()
    };
    for spec in specs(&nats.names, options) {
        match info(nats, &spec).await? {
            Some(info) => found.take(&spec, info),
            None => found.missing.push(spec.name),
        }
    }
    Ok(found)
}

impl Inspection {
    fn take(&mut self, spec: &Spec, info: Info) {
        let differences = drift::compare(spec, &info.config);
        if differences.is_empty() {
            self.report.unchanged.push(spec.name.clone());
        }
        self.report.differences.extend(differences);
        self.server_time = info.ts.or(self.server_time.take());
        if spec.consumer_of.is_none() {
            let named = info.config.get("max_consumers").and_then(Value::as_i64);
            self.streams.push(StreamUse {
                stream: spec.server_name.clone(),
                consumers: info.state.consumer_count,
                consumers_max: named
                    .filter(|max| *max > 0)
                    .unwrap_or(CONSUMERS_MAX_DEFAULT),
            });
        }
    }
}

async fn info(nats: &Nats, spec: &Spec) -> Result<Option<Info>, EnsureError> {
    let call = spec.info_call();
    match patiently(|| api::call::<Info>(nats, &call, &Value::Null, None)).await {
        Ok(info) => Ok(Some(info)),
        Err(error) => match error.code() {
            Some(code::STREAM_NOT_FOUND | code::CONSUMER_NOT_FOUND) => Ok(None),
            _ => Err(EnsureError::Read {
                name: spec.name.clone(),
                source: error,
            }),
        },
    }
}
