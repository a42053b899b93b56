//! The request of a job as it is sent: to which model, changed for it, and with which output format.

use fairlane_claude::{CallRequest, RequestError};
use fairlane_core::ModelId;
use fairlane_core::fallback::{Changes, Ineligible, translate};
use fairlane_core::models::{Catalog, Model, Support};
use fairlane_runtime::TraceContext;
use fairlane_wire::lease::Credit;
use fairlane_wire::{JobHeaders, Submission, fallback, strict};
use serde_json::{Map, Value};

/// What is to be called, and how.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// Model to call, and its largest output limit.
    pub(crate) model: ModelId,
    pub(crate) output_tokens_max: u64,
    pub(crate) max_tokens: u64,
    /// What changes because it is not the job's own model.
    changes: Option<Changes>,
    /// Whether the model is asked to keep to the job's schema.
    asks_format: bool,
}

impl Plan {
    /// Plans the call of a job for `model`, its own or its fallback. `raised` is the output limit that an
    /// answer cut off earlier asks for.
    ///
    /// # Errors
    /// [`Ineligible`] if `model` is not the job's own and cannot answer it after all: what is known of
    /// the models has changed since the job was accepted.
    pub(crate) fn new(
        catalog: &Catalog,
        job: &Submission,
        model: &ModelId,
        raised: Option<u64>,
    ) -> Result<Self, Ineligible> {
        let own = catalog.find(job.model.as_str());
        let own_max = own.map_or(job.max_tokens, |own| own.output_tokens_max);
        let max_tokens = raised
            .unwrap_or(job.max_tokens)
            .min(own_max)
            .max(job.max_tokens);
        if *model == job.model
            || catalog
                .find(model.as_str())
                .is_some_and(|to| own == Some(to))
        {
            return Ok(Self {
                model: job.model.clone(),
                output_tokens_max: own_max,
                max_tokens,
                changes: None,
                asks_format: asks_format(own, job),
            });
        }
        let no_pair = || Ineligible::NoPair {
            model: job.model.clone(),
        };
        let from = own.ok_or_else(no_pair)?;
        let to = catalog.find(model.as_str()).ok_or_else(no_pair)?;
        let asks = |max_tokens| fairlane_core::fallback::Asks {
            max_tokens,
            ..fallback::asks(job)
        };
        // More room than it asked for is welcome, but no condition.
        let changes = translate(from, to, &asks(max_tokens))
            .or_else(|_| translate(from, to, &asks(job.max_tokens)))?;
        Ok(Self {
            model: to.id.clone(),
            output_tokens_max: to.output_tokens_max,
            max_tokens: changes.max_tokens,
            changes: Some(changes),
            asks_format: asks_format(Some(to), job),
        })
    }

    /// Whether it is not the job's own model that is called.
    pub(crate) fn is_fallback(&self) -> bool {
        self.changes.is_some()
    }
}

/// Whether the model can be asked to keep to the job's schema. A format does not go together with
/// tools, citations or a prefilled answer, and one of the owner's own comes first.
fn asks_format(model: Option<&Model>, job: &Submission) -> bool {
    let Some(schema) = &job.output_schema else {
        return false;
    };
    let config = job.request.get("output_config");
    let has_format = config.is_some_and(|config| config.get("format").is_some());
    let asks = fallback::asks(job);
    model.is_some_and(|model| model.structured_output == Support::Yes)
        && !has_format
        && !job.request.contains_key("tools")
        && !asks.is_prefilled
        && !has_citations(&job.request)
        && strict::is_taken(schema)
}

fn has_citations(request: &Map<String, Value>) -> bool {
    fn within(value: &Value) -> bool {
        match value {
            Value::Array(items) => items.iter().any(within),
            Value::Object(fields) => {
                fields.contains_key("citations") || fields.values().any(within)
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
        }
    }
    request.get("messages").is_some_and(within)
}

/// The request of a job as it is sent now.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    body: Map<String, Value>,
    has_our_format: bool,
    api_version: Option<String>,
    betas: Vec<String>,
    /// Where the job's trace came from.
    trace: Option<TraceContext>,
}

impl Request {
    /// The job's own body, changed as planned.
    pub(crate) fn new(job: &Submission, headers: &JobHeaders, plan: &Plan) -> Self {
        let mut body = job.request.clone();
        match &plan.changes {
            Some(changes) => fallback::apply(&mut body, &plan.model, changes),
            None => {
                body.insert("max_tokens".to_owned(), plan.max_tokens.into());
            }
        }
        let mut has_our_format = false;
        if let (true, Some(schema)) = (plan.asks_format, &job.output_schema) {
            has_our_format = add_format(&mut body, schema);
        }
        Self {
            body,
            has_our_format,
            api_version: job.api_version.clone(),
            betas: job.betas.clone(),
            trace: headers
                .traceparent
                .as_ref()
                .and_then(|parent| TraceContext::parse(parent, headers.tracestate.as_deref())),
        }
    }

    /// Takes the output format out that was added here. False if there is none.
    pub(crate) fn drop_format(&mut self) -> bool {
        if !std::mem::take(&mut self.has_our_format) {
            return false;
        }
        if let Some(config) = self
            .body
            .get_mut("output_config")
            .and_then(Value::as_object_mut)
        {
            config.remove("format");
            if config.is_empty() {
                self.body.remove("output_config");
            }
        }
        true
    }

    /// Adds the answer of a paused turn, unchanged, so that the next call goes on from it.
    pub(crate) fn continue_from(&mut self, message: &Value) {
        let content = message.get("content").cloned().unwrap_or_default();
        let turn = serde_json::json!({"role": "assistant", "content": content});
        if let Some(messages) = self.body.get_mut("messages").and_then(Value::as_array_mut) {
            messages.push(turn);
        }
    }

    /// The model it asks.
    pub(crate) fn model(&self) -> &str {
        let model = self.field("model").and_then(Value::as_str);
        model.unwrap_or_default()
    }

    /// A field of its body.
    pub(crate) fn field(&self, name: &str) -> Option<&Value> {
        self.body.get(name)
    }

    /// The call of it, at `trace` if that is known, else where the job's trace came from.
    pub(crate) fn prepare(
        &self,
        credit: &Credit,
        trace: Option<&TraceContext>,
    ) -> Result<CallRequest, RequestError> {
        let mut request = CallRequest::of(self.body.clone())
            .header("x-fairlane-tenant", credit.tenant.as_str())?
            .header("x-fairlane-job", credit.job.as_str())?
            .betas(&self.betas)?;
        if let Some(version) = &self.api_version {
            request = request.header("anthropic-version", version)?;
        }
        if let Some(trace) = trace.or(self.trace.as_ref()) {
            let state = trace.tracestate().map(|state| ("tracestate", state));
            let parent = Some(("traceparent", trace.traceparent()));
            for (name, value) in parent.into_iter().chain(state) {
                // A trace that cannot be passed on is no reason not to run the job.
                if let Ok(with) = request.clone().header(name, &value) {
                    request = with;
                }
            }
        }
        Ok(request)
    }
}

fn add_format(body: &mut Map<String, Value>, schema: &Value) -> bool {
    let config = body
        .entry("output_config")
        .or_insert_with(|| Value::Object(Map::new()));
    let Some(config) = config.as_object_mut() else {
        return false;
    };
    let format = serde_json::json!({"type": "json_schema", "schema": schema});
    config.insert("format".to_owned(), format);
    true
}

#[cfg(test)]
mod tests {
    use fairlane_core::TenantId;
    use serde_json::json;

    use super::*;

    fn job(fields: &Value) -> Submission {
        let mut body = json!({"origin": "scheduled", "kind": "tagging", "request": {
            "model": "claude-sonnet-4-6", "max_tokens": 1_000,
            "messages": [{"role": "user", "content": "hi"}]}});
        for (name, value) in fields.as_object().unwrap() {
            match value.as_object() {
                Some(inner) if name == "request" => {
                    for (name, value) in inner {
                        body["request"][name] = value.clone();
                    }
                }
                Some(_) | None => body[name] = value.clone(),
            }
        }
        let tenant = TenantId::parse("acme").unwrap();
        fairlane_wire::submission::parse(body.to_string().as_bytes(), &tenant).unwrap()
    }

    fn headers() -> JobHeaders {
        let get = |name: &str| {
            Some(match name {
                "Fl-Job" | "Fl-Key" => "a",
                "Fl-Kind" => "tagging",
                "Fl-Model" => "claude-sonnet-4-6",
                "Fl-Pool" => "sonnet-4.x",
                "Fl-Input-Tokens" | "Fl-Output-Tokens" | "Fl-Accepted" => "1",
                _ => return None,
            })
        };
        JobHeaders::parse(get).unwrap()
    }

    fn model(name: &str) -> ModelId {
        ModelId::parse(name).unwrap()
    }

    fn plan(job: &Submission, to: &str, raised: Option<u64>) -> Result<Plan, Ineligible> {
        Plan::new(&Catalog::default(), job, &model(to), raised)
    }

    fn body(job: &Submission, to: &str) -> Value {
        let plan = plan(job, to, None).unwrap();
        Value::Object(Request::new(job, &headers(), &plan).body)
    }

    #[test]
    fn the_own_model_gets_the_request_as_it_is() {
        let job = job(&json!({"request": {"temperature": 0.5}}));
        let sent = body(&job, "claude-sonnet-4-6");
        assert_eq!(sent, Value::Object(job.request.clone()));
        let dated = plan(&job, "claude-sonnet-4-6-20260217", None).unwrap();
        assert!(!dated.is_fallback(), "another name of the same model");
    }

    #[test]
    fn more_room_is_bounded_by_the_model_that_is_called() {
        let job = job(&json!({"request": {"max_tokens": 40_000}}));
        let room = |to, raised| plan(&job, to, raised).unwrap().max_tokens;
        assert_eq!(room("claude-sonnet-4-6", Some(160_000)), 128_000);
        assert_eq!(room("claude-haiku-4-5", Some(50_000)), 50_000);
        assert_eq!(
            room("claude-haiku-4-5", Some(160_000)),
            40_000,
            "as much as it asked for"
        );
    }

    #[test]
    fn a_schema_the_api_can_keep_is_sent_along() {
        let schema = json!({"type": "object", "additionalProperties": false,
            "properties": {"tags": {"type": "array", "items": {"type": "string"}}}});
        let format = json!({"type": "json_schema", "schema": schema});
        let with = |request: Value| {
            let job = job(&json!({"output_schema": schema, "request": request}));
            body(&job, "claude-haiku-4-5")["output_config"].clone()
        };
        assert_eq!(with(json!({})), json!({"format": format}));
        // The effort goes, the format comes.
        assert_eq!(
            with(json!({"output_config": {"effort": "low"}})),
            json!({"format": format})
        );
        let tool = json!([{"name": "t", "input_schema": {"type": "object"}}]);
        assert_eq!(with(json!({"tools": tool})), Value::Null);

        let loose = job(&json!({"output_schema": {"type": "object"}}));
        assert_eq!(
            body(&loose, "claude-sonnet-4-6")["output_config"],
            Value::Null
        );
    }

    #[test]
    fn a_format_of_ours_can_be_taken_back() {
        let schema = json!({"type": "object", "additionalProperties": false, "properties": {}});
        let job = job(&json!({"output_schema": schema}));
        let plan = plan(&job, "claude-sonnet-4-6", None).unwrap();
        let mut request = Request::new(&job, &headers(), &plan);
        assert!(request.drop_format());
        assert_eq!(request.body, job.request);
        assert!(!request.drop_format(), "only once");
    }

    #[test]
    fn a_job_that_no_longer_fits_the_fallback_is_told() {
        let job = job(&json!({"request": {"max_tokens": 100_000}}));
        let why = plan(&job, "claude-haiku-4-5", None).unwrap_err();
        assert!(matches!(why, Ineligible::MaxTokens { .. }));
        assert!(plan(&job, "claude-none", None).is_err());
    }
}
