//! From a call of the Messages API to a submission. No IO.
//!
//! The body goes into the job as it is; what makes it a job of Fairlane comes from headers, all of which
//! have defaults, so that a client that knows nothing of them gets what it expects: an interactive call
//! that is answered with whatever the model said.

use axum::http::HeaderMap;
use fairlane_core::{JobId, TenantId};
use fairlane_wire::submission;
use serde_json::{Map, Value, json};

use crate::error::{ApiError, Result};

/// Header names; all but the idempotency key are Fairlane's own.
pub(crate) mod header {
    pub(crate) const KIND: &str = "fairlane-kind";
    pub(crate) const ORIGIN: &str = "fairlane-origin";
    pub(crate) const SLA_SECONDS: &str = "fairlane-sla-seconds";
    pub(crate) const WORKSPACE: &str = "fairlane-workspace";
    pub(crate) const DETACH: &str = "fairlane-detach";
    pub(crate) const TENANT: &str = "fairlane-tenant";
    pub(crate) const IDEMPOTENCY_KEY: &str = "idempotency-key";
}

/// Kind of jobs whose caller names none.
const KIND: &str = "messages";

/// What a call asks for beside its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wishes {
    kind: String,
    origin: String,
    sla_seconds: Option<u64>,
    workspace: Option<String>,
    key: Option<String>,
    /// Whether the job goes on when its caller goes away.
    pub(crate) detach: bool,
    api_version: Option<String>,
    betas: Vec<String>,
}

impl Wishes {
    /// Reads the headers of a call.
    ///
    /// # Errors
    /// `invalid_request_error` with the header and what would be right.
    pub(crate) fn read(headers: &HeaderMap) -> Result<Self> {
        let text = |name: &str| header_text(headers, name);
        let key = text(header::IDEMPOTENCY_KEY)?;
        let sla_seconds = text(header::SLA_SECONDS)?.map(|value| {
            value.parse().map_err(|_| {
                ApiError::invalid(format!(
                    "{} is {value:?}; give a whole number of seconds",
                    header::SLA_SECONDS
                ))
            })
        });
        let detach = match text(header::DETACH)?.as_deref() {
            // Who names a call can come back for its answer.
            None => key.is_some(),
            Some("true") => true,
            Some("false") => false,
            Some(other) => {
                return Err(ApiError::invalid(format!(
                    "{} is {other:?}; give true or false",
                    header::DETACH
                )));
            }
        };
        let betas = text("anthropic-beta")?.unwrap_or_default();
        let betas = betas
            .split(',')
            .map(str::trim)
            .filter(|beta| !beta.is_empty());
        Ok(Self {
            kind: text(header::KIND)?.unwrap_or_else(|| KIND.to_owned()),
            origin: text(header::ORIGIN)?.unwrap_or_else(|| "user_action".to_owned()),
            sla_seconds: sla_seconds.transpose()?,
            workspace: text(header::WORKSPACE)?,
            key,
            detach,
            api_version: text("anthropic-version")?,
            betas: betas.map(str::to_owned).collect(),
        })
    }
}

impl Wishes {
    /// Reads the headers of a call that makes a batch: its jobs have no hurry, and nobody waits for them.
    ///
    /// # Errors
    /// As [`Wishes::read`].
    pub(crate) fn for_batch(headers: &HeaderMap) -> Result<Self> {
        Ok(Self {
            origin: "batch_job".to_owned(),
            sla_seconds: None,
            key: None,
            ..Self::read(headers)?
        })
    }
}

fn header_text(headers: &HeaderMap, name: &str) -> Result<Option<String>> {
    let Some(value) = headers.get(name) else {
        return Ok(None);
    };
    match value.to_str() {
        Ok(text) if !text.trim().is_empty() => Ok(Some(text.trim().to_owned())),
        Ok(_) => Ok(None),
        Err(_) => Err(ApiError::invalid(format!("{name} is not plain ASCII text"))),
    }
}

/// A call as a job.
#[derive(Debug, PartialEq)]
pub(crate) struct Job {
    /// What is published.
    pub(crate) body: Vec<u8>,
    /// Whether the answer is to come in parts.
    pub(crate) stream: bool,
}

/// The job of a call by `tenant`.
///
/// # Errors
/// What is wrong with the body, named as its caller knows it.
pub(crate) fn job(body: &[u8], wishes: &Wishes, tenant: &TenantId, id: &JobId) -> Result<Job> {
    let mut request: Map<String, Value> = serde_json::from_slice(body).map_err(not_json)?;
    let stream = match request.remove("stream") {
        None | Some(Value::Null) => false,
        Some(Value::Bool(stream)) => stream,
        Some(other) => {
            return Err(ApiError::invalid(format!(
                "stream: {other} is not a boolean"
            )));
        }
    };
    let mut job = submitted(request, wishes, id);
    if stream {
        job.insert("stream".to_owned(), true.into());
    }
    let body = Value::Object(job).to_string().into_bytes();
    check(&body, tenant)?;
    Ok(Job { body, stream })
}

/// A submission of `request` for a caller who reads stop reasons and does not answer questions.
pub(crate) fn submitted(
    request: Map<String, Value>,
    wishes: &Wishes,
    id: &JobId,
) -> Map<String, Value> {
    let fields = json!({
        "id": id.as_str(),
        "origin": wishes.origin,
        "kind": wishes.kind,
        "request": request,
        "stop_reasons": "any",
        "on_overload": {"defer": "no"},
        "sla_seconds": wishes.sla_seconds,
        "idempotency_key": wishes.key,
        "api_version": wishes.api_version,
        "betas": wishes.betas,
        "metadata": wishes.workspace.as_ref().map(|name| json!({"workspace": name})),
    });
    match fields {
        Value::Object(fields) => fields
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .collect(),
        _ => unreachable!("an object was written above"),
    }
}

/// Lets the one judge of submissions look at it, before it becomes a dead letter.
///
/// # Errors
/// Its judgement, as an `invalid_request_error`.
pub(crate) fn check(body: &[u8], tenant: &TenantId) -> Result<()> {
    match submission::parse(body, tenant) {
        Ok(_) => Ok(()),
        Err(failure) => Err(ApiError::of_failure(&failure)),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(crate) fn not_json(error: serde_json::Error) -> ApiError {
    ApiError::invalid(format!("the request body is not a JSON object: {error}"))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn wishes(pairs: &[(&'static str, &str)]) -> Result<Wishes> {
        let pairs = pairs.iter().map(|(name, value)| {
            let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
            (name.parse().unwrap(), value)
        });
        Wishes::read(&HeaderMap::from_iter(pairs))
    }

    fn translated(body: &str, pairs: &[(&'static str, &str)]) -> Result<(Value, bool)> {
        let tenant = TenantId::parse("acme").unwrap();
        let id = JobId::parse("req_1").unwrap();
        let job = job(body.as_bytes(), &wishes(pairs)?, &tenant, &id)?;
        Ok((serde_json::from_slice(&job.body).unwrap(), job.stream))
    }

    const CALL: &str = r#"{"model":"claude-haiku-4-5","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}"#;

    #[test]
    fn a_call_without_headers_of_ours_is_interactive_and_takes_any_answer() {
        let request: Value = serde_json::from_str(CALL).unwrap();
        let (job, stream) = translated(CALL, &[]).unwrap();
        assert!(!stream);
        assert_eq!(
            job,
            json!({
                "id": "req_1", "origin": "user_action", "kind": "messages", "request": request,
                "stop_reasons": "any", "on_overload": {"defer": "no"}, "betas": [],
            })
        );
    }

    #[test]
    fn headers_make_the_job_what_its_caller_wants() {
        let streamed = CALL.replace("\"max", "\"stream\":true,\"max");
        let (job, stream) = translated(
            &streamed,
            &[
                ("fairlane-kind", "tagging"),
                ("fairlane-origin", "scheduled"),
                ("fairlane-sla-seconds", "60"),
                ("fairlane-workspace", "blue"),
                ("idempotency-key", "order-7"),
                ("anthropic-version", "2023-06-01"),
                ("anthropic-beta", "one-1, two-2"),
            ],
        )
        .unwrap();
        assert!(stream);
        for (field, value) in [
            ("kind", json!("tagging")),
            ("origin", json!("scheduled")),
            ("sla_seconds", json!(60)),
            ("metadata", json!({"workspace": "blue"})),
            ("idempotency_key", json!("order-7")),
            ("api_version", json!("2023-06-01")),
            ("betas", json!(["one-1", "two-2"])),
            ("stream", json!(true)),
        ] {
            assert_eq!(job[field], value, "{field}");
        }
        assert!(job["request"].get("stream").is_none());
    }

    #[test]
    fn who_names_a_call_leaves_it_running_unless_told_otherwise() {
        assert!(!wishes(&[]).unwrap().detach);
        assert!(wishes(&[("idempotency-key", "k")]).unwrap().detach);
        assert!(wishes(&[("fairlane-detach", "true")]).unwrap().detach);
        assert!(
            !wishes(&[("idempotency-key", "k"), ("fairlane-detach", "false")])
                .unwrap()
                .detach
        );
    }

    #[test]
    fn what_is_wrong_is_named_as_the_caller_knows_it() {
        let said = |body: &str, pairs: &[(&'static str, &str)]| {
            translated(body, pairs).unwrap_err().message
        };
        assert!(said("[", &[]).contains("not a JSON object"));
        assert!(said("7", &[]).contains("not a JSON object"));
        assert!(said(&CALL.replace(":9", ":0"), &[]).starts_with("max_tokens is 0"));
        assert!(said(&CALL.replace("user", "robot"), &[]).starts_with("messages[0].role"));
        assert!(said(&CALL.replace("\"max", "\"stream\":1,\"max"), &[]).starts_with("stream: 1"));
        assert!(said(CALL, &[("fairlane-origin", "nowhere")]).contains("origin"));
        assert!(said(CALL, &[("fairlane-detach", "maybe")]).contains("true or false"));
        assert!(said(CALL, &[("fairlane-sla-seconds", "soon")]).contains("whole number"));
        assert!(said(CALL, &[("fairlane-kind", "\u{e9}")]).contains("plain ASCII"));
    }
}
