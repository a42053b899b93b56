//! The small calls beside messages: which models there are, and how many tokens a request has.

use std::fmt;

use bytes::Bytes;
use fairlane_core::failure::{Cut, Ending, Place, Timeout, describe};
use fairlane_core::models::Lifecycle;
use reqwest::Method;
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::time::timeout;

use crate::client::{Client, chain, now_unix_ms, request_id};
use crate::error_body::{ErrorBody, Waits};
use crate::key::ApiKey;
use crate::limits::Limits;
use crate::request::CallRequest;

/// The list of models is long, but not longer than this.
const BYTES_MAX: usize = 8 << 20;

/// Fields of a request that decide how many tokens it has; the others are refused when counting.
const COUNTED: [&str; 9] = [
    "model",
    "messages",
    "system",
    "tools",
    "tool_choice",
    "thinking",
    "output_config",
    "mcp_servers",
    "context_management",
];

/// Why a small call failed.
#[derive(Debug, Clone, PartialEq)]
pub struct LookupError {
    pub ending: Ending,
    /// What the error said, on one line.
    pub message: Option<String>,
    pub request_id: Option<String>,
    pub limits: Limits,
}

impl fmt::Display for LookupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&describe(&self.ending))?;
        match &self.message {
            Some(message) => write!(f, " ({message})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for LookupError {}

/// A model as the upstream lists it.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelInfo {
    pub id: String,
    /// The context, in tokens.
    pub input_tokens_max: Option<u64>,
    /// The largest `max_tokens`.
    pub output_tokens_max: Option<u64>,
    pub lifecycle: Option<Lifecycle>,
    /// `capabilities`, as sent.
    pub capabilities: Value,
}

#[derive(Deserialize)]
struct WireModels {
    data: Vec<WireModel>,
}

#[derive(Deserialize)]
struct WireModel {
    id: String,
    #[serde(default)]
    max_input_tokens: Option<u64>,
    #[serde(default)]
    max_tokens: Option<u64>,
    #[serde(default)]
    lifecycle: Option<String>,
    #[serde(default)]
    capabilities: Value,
}

#[derive(Deserialize)]
struct WireCount {
    input_tokens: u64,
}

impl Client {
    /// The models this key may use.
    ///
    /// # Errors
    /// [`LookupError`], with an ending like that of a call.
    pub async fn models(&self, key: &ApiKey) -> Result<Vec<ModelInfo>, LookupError> {
        let request = CallRequest::new(Bytes::new());
        let models: WireModels = self
            .lookup(key, Method::GET, "/v1/models?limit=1000", request)
            .await?;
        Ok(models.data.into_iter().map(ModelInfo::from).collect())
    }

    /// The input tokens of a Messages request, as the upstream counts them: an estimate, without cost,
    /// with a rate limit of its own. Takes the body of a call; what does not concern the count is left
    /// out.
    ///
    /// # Errors
    /// [`LookupError`], with an ending like that of a call.
    pub async fn count_tokens(
        &self,
        key: &ApiKey,
        body: &Map<String, Value>,
    ) -> Result<u64, LookupError> {
        let counted = body
            .iter()
            .filter(|(field, _)| COUNTED.contains(&field.as_str()));
        let counted: Map<String, Value> = counted
            .map(|(field, value)| (field.clone(), value.clone()))
            .collect();
        let request = CallRequest::new(Value::Object(counted).to_string().into());
        let count: WireCount = self
            .lookup(key, Method::POST, "/v1/messages/count_tokens", request)
            .await?;
        Ok(count.input_tokens)
    }

    async fn lookup<T: for<'de> Deserialize<'de>>(
        &self,
        key: &ApiKey,
        method: Method,
        path: &str,
        request: CallRequest,
    ) -> Result<T, LookupError> {
        let request = self.request(key, method, path, request);
        let answer = timeout(self.options.first_byte_timeout, self.exchange(request)).await;
        let Ok(answer) = answer else {
            let ending = Ending::Timeout(Timeout::FirstByte);
            return Err(LookupError {
                ending,
                message: None,
                request_id: None,
                limits: Limits::default(),
            });
        };
        let Exchange {
            body,
            request_id,
            limits,
        } = answer?;
        serde_json::from_slice(&body).map_err(|error| LookupError {
            ending: Ending::Undecodable { progressed: false },
            message: Some(error.to_string()),
            request_id,
            limits,
        })
    }

    /// Sends, and reads a whole body of bounded size.
    async fn exchange(&self, request: reqwest::Request) -> Result<Exchange, LookupError> {
        let failed = |ending, message| LookupError {
            ending,
            message: Some(message),
            request_id: None,
            limits: Limits::default(),
        };
        let mut response = self
            .execute(request)
            .await
            .map_err(|(ending, message)| failed(ending, message))?;
        let status = response.status();
        let limits = Limits::parse(response.headers());
        let waits = Waits::parse(response.headers(), now_unix_ms());
        let mut request_id = request_id(response.headers());
        let mut body = Vec::new();
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) if body.len() + chunk.len() <= BYTES_MAX => {
                    body.extend_from_slice(&chunk);
                }
                Ok(Some(_)) => {
                    let message = format!("answer of more than {BYTES_MAX} bytes");
                    return Err(failed(Ending::Undecodable { progressed: false }, message));
                }
                Ok(None) => break,
                // A status alone is still an answer.
                Err(_) if !status.is_success() => break,
                Err(error) => {
                    return Err(failed(
                        Ending::Cut(Cut::AfterHeaders),
                        chain(&error.without_url()),
                    ));
                }
            }
        }
        if status.is_success() {
            return Ok(Exchange {
                body,
                request_id,
                limits,
            });
        }
        let body = ErrorBody::parse(&body);
        request_id = request_id.or_else(|| body.request_id.clone());
        let message = Some(body.message.clone());
        let ending = Ending::Error(body.answer(status.as_u16(), Place::BeforeStream, waits));
        Err(LookupError {
            ending,
            message,
            request_id,
            limits,
        })
    }
}

struct Exchange {
    body: Vec<u8>,
    request_id: Option<String>,
    limits: Limits,
}

impl From<WireModel> for ModelInfo {
    fn from(wire: WireModel) -> Self {
        let lifecycle = match wire.lifecycle.as_deref() {
            Some("active") => Some(Lifecycle::Active),
            Some("deprecated") => Some(Lifecycle::Deprecated),
            Some("retired") => Some(Lifecycle::Retired),
            Some(_) | None => None,
        };
        Self {
            id: wire.id,
            input_tokens_max: wire.max_input_tokens,
            output_tokens_max: wire.max_tokens,
            lifecycle,
            capabilities: wire.capabilities,
        }
    }
}
