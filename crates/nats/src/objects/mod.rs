//! Everything Fairlane keeps on NATS: made if missing, compared if there, never overwritten.
//!
//! The server is asked for its API level first, and each create call demands it again, because
//! older servers accept what they do not understand and drop it silently. Whatever exists is then
//! compared field by field with what is wanted; differences are reported, and those that would
//! break promises are told apart from those an operator may want.

mod drift;
mod inspect;
mod spec;

use std::fmt;
use std::time::Duration;

use async_nats::HeaderMap;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::api::{self, ApiError, code};
use crate::client::Nats;

pub use drift::{Difference, Weight};
pub use inspect::{Inspection, StreamUse, inspect};
pub use spec::{ObjectOptions, Spec, specs};

/// The API level of server 2.14, the first with all that Fairlane relies on.
const API_LEVEL_MIN: u64 = 4;
/// First server with the fixes Fairlane relies on.
const VERSION_MIN: crate::embedded::Version = crate::embedded::Version::MINIMUM;

/// How long to wait for a JetStream that has no leader yet.
const PATIENCE: Duration = Duration::from_secs(15);

/// Why the objects cannot be made sure of.
#[derive(Debug, thiserror::Error)]
pub enum EnsureError {
    #[error(
        "nats-server {found} is too old: Fairlane needs {VERSION_MIN} or later (JetStream API level {API_LEVEL_MIN}, this one has {level})"
    )]
    OldServer { found: String, level: u64 },
    #[error(
        "{name}: the server that leads JetStream is older than {VERSION_MIN} although this one is not; finish the upgrade of the cluster"
    )]
    OldLeader { name: String },
    #[error("cannot learn the server's API level; is JetStream enabled for this account?")]
    NoJetStream(#[source] ApiError),
    #[error("cannot read the configuration of {name}")]
    Read { name: String, source: ApiError },
    #[error("cannot create {name}")]
    Create { name: String, source: ApiError },
}

/// What [`ensure`] found and did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Objects that were missing and were made.
    pub created: Vec<String>,
    /// Objects that were there and as wanted.
    pub unchanged: Vec<String>,
    /// Where an object that was there differs from what is wanted. Nothing was changed.
    pub differences: Vec<Difference>,
}

impl Report {
    /// True if a difference breaks what Fairlane promises: do not start on these objects.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.differences
            .iter()
            .any(|difference| difference.weight == Weight::Breaks)
    }
}

/// One line for each object made and each difference, then a count.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for name in &self.created {
            writeln!(f, "created    {name}")?;
        }
        for difference in &self.differences {
            writeln!(f, "{difference}")?;
        }
        write!(
            f,
            "{} created, {} as wanted, {} differences",
            self.created.len(),
            self.unchanged.len(),
            self.differences.len()
        )
    }
}

/// Makes sure that every stream, bucket and consumer exists.
///
/// Safe to call from many processes at once and at every start.
///
/// # Errors
/// [`EnsureError`]. Differences are not errors: look at the report.
pub async fn ensure(nats: &Nats, options: &ObjectOptions) -> Result<Report, EnsureError> {
    guard(nats).await?;
    let mut report = Report::default();
    for spec in specs(&nats.names, options) {
        let found = match read(nats, &spec).await? {
            Some(found) => found,
            None => match create(nats, &spec).await? {
                Some(created) => {
                    report.created.push(spec.name.clone());
                    // The returned configuration is compared as well: it shows what the server
                    // understood.
                    created
                }
                // Another process was faster.
                None => read(nats, &spec).await?.unwrap_or_default(),
            },
        };
        let differences = drift::compare(&spec, &found);
        if differences.is_empty() && !report.created.contains(&spec.name) {
            report.unchanged.push(spec.name);
        }
        report.differences.extend(differences);
    }
    Ok(report)
}

/// Refuses servers that would accept our configuration and ignore half of it.
///
/// # Errors
/// [`EnsureError::OldServer`], [`EnsureError::NoJetStream`].
pub async fn guard(nats: &Nats) -> Result<(), EnsureError> {
    #[derive(Deserialize)]
    struct Account {
        #[serde(default)]
        api: Api,
    }
    #[derive(Deserialize, Default)]
    struct Api {
        #[serde(default)]
        level: u64,
    }

    let account: Account = patiently(|| api::call(nats, "INFO", &Value::Null, None))
        .await
        .map_err(EnsureError::NoJetStream)?;
    let found = nats.client.server_info().version;
    let too_old =
        crate::embedded::Version::parse(&found).is_some_and(|version| version < VERSION_MIN);
    if too_old || account.api.level < API_LEVEL_MIN {
        return Err(EnsureError::OldServer {
            found,
            level: account.api.level,
        });
    }
    Ok(())
}

/// The configuration of an object, None if there is no such object.
async fn read(nats: &Nats, spec: &Spec) -> Result<Option<Map<String, Value>>, EnsureError> {
    #[derive(Deserialize)]
    struct Info {
        config: Map<String, Value>,
    }

    let call = spec.info_call();
    match patiently(|| api::call::<Info>(nats, &call, &Value::Null, None)).await {
        Ok(info) => Ok(Some(info.config)),
        Err(error) => match error.code() {
            Some(code::STREAM_NOT_FOUND | code::CONSUMER_NOT_FOUND) => Ok(None),
            _ => Err(EnsureError::Read {
                name: spec.name.clone(),
                source: error,
            }),
        },
    }
}

/// Creates an object and returns the configuration the server made of it; None if it is there.
async fn create(nats: &Nats, spec: &Spec) -> Result<Option<Map<String, Value>>, EnsureError> {
    #[derive(Deserialize)]
    struct Info {
        config: Map<String, Value>,
    }

    let (call, body) = (spec.create_call(), spec.create_body());
    let created = patiently(|| {
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Required-Api-Level", API_LEVEL_MIN.to_string());
        api::call::<Info>(nats, &call, &body, Some(headers))
    });
    match created.await {
        Ok(info) => Ok(Some(info.config)),
        Err(error) => match error.code() {
            Some(code::STREAM_NAME_IN_USE | code::CONSUMER_NAME_IN_USE | code::CONSUMER_EXISTS) => {
                Ok(None)
            }
            Some(code::API_LEVEL) => Err(EnsureError::OldLeader {
                name: spec.name.clone(),
            }),
            _ => Err(EnsureError::Create {
                name: spec.name.clone(),
                source: error,
            }),
        },
    }
}

/// Repeats a call while JetStream has no leader, or another process is creating the same object.
async fn patiently<T, F>(mut call: impl FnMut() -> F) -> Result<T, ApiError>
where
    F: Future<Output = Result<T, ApiError>>,
{
    let give_up = tokio::time::Instant::now() + PATIENCE;
    let mut delay = Duration::from_millis(50);
    loop {
        let error = match call().await {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        let passing = match &error {
            ApiError::Unavailable { .. } | ApiError::TimedOut { .. } => true,
            ApiError::Refused { code, .. } => code::PASSING.contains(code),
            ApiError::Broken { .. } => false,
        };
        if !passing || tokio::time::Instant::now() + delay > give_up {
            return Err(error);
        }
        tokio::time::sleep(delay.mul_f64(rand::random_range(0.5..1.0))).await;
        delay = (delay * 2).min(Duration::from_secs(1));
    }
}

impl Spec {
    fn info_call(&self) -> String {
        match &self.consumer_of {
            None => format!("STREAM.INFO.{}", self.server_name),
            Some(stream) => format!("CONSUMER.INFO.{stream}.{}", self.server_name),
        }
    }

    fn create_call(&self) -> String {
        match &self.consumer_of {
            None => format!("STREAM.CREATE.{}", self.server_name),
            Some(stream) => {
                let filter = self.config["filter_subject"].as_str().unwrap_or(">");
                format!("CONSUMER.CREATE.{stream}.{}.{filter}", self.server_name)
            }
        }
    }

    fn create_body(&self) -> Value {
        match &self.consumer_of {
            None => Value::Object(self.config.clone()),
            Some(stream) => {
                json!({"stream_name": stream, "config": self.config, "action": "create"})
            }
        }
    }
}
