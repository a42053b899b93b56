//! A request read and rewritten for another model: what it asks, and the changes that
//! [`fairlane_core::fallback`] decides.

use fairlane_core::ModelId;
use fairlane_core::fallback::{
    AskedThinking, Asks, Change, Changes, Effort, Ineligible, Size, ToolChoice,
};
use fairlane_core::models::Thinking;
use serde_json::{Map, Value, json};

use crate::submission::{Submission, measure};

/// Fields every model takes in the same way, or that are read here.
const FIELDS: [&str; 16] = [
    "cache_control",
    "max_tokens",
    "messages",
    "metadata",
    "model",
    "output_config",
    "service_tier",
    "stop_sequences",
    "stream",
    "system",
    "temperature",
    "thinking",
    "tool_choice",
    "tools",
    "top_k",
    "top_p",
];

/// Fields of a tool that is the caller's own.
const TOOL_FIELDS: [&str; 6] = [
    "cache_control",
    "description",
    "input_schema",
    "name",
    "strict",
    "type",
];

/// Betas that have become part of the API; naming them changes nothing.
const GRADUATED: [&str; 8] = [
    "cache-diagnosis-",
    "extended-cache-ttl-",
    "files-api-",
    "message-batches-",
    "model-context-window-exceeded-",
    "prompt-caching-",
    "structured-outputs-",
    "token-counting-",
];

/// More images than this are not taken by models with a small context.
const IMAGES_MAX: u64 = 100;

/// What a job's request asks of its model.
#[must_use]
pub fn asks(job: &Submission) -> Asks {
    let mut reader = Reader::default();
    reader.request(&job.request);
    for beta in &job.betas {
        if !GRADUATED.iter().any(|start| beta.starts_with(start)) {
            reader.unknown(format!("the beta {beta}"));
        }
    }
    let measure = measure(&job.request);
    let mut size = Size {
        ascii_chars: measure.characters - measure.not_ascii,
        other_chars: measure.not_ascii,
        images: measure.images,
    };
    let config = job.request.get("output_config");
    for schema in job.output_schema.iter().chain(config) {
        // As bytes, which is not fewer than characters of either sort.
        size.ascii_chars += schema.to_string().len() as u64;
    }
    if size.images > IMAGES_MAX {
        reader.unknown(format!("more than {IMAGES_MAX} images"));
    }
    Asks {
        max_tokens: job.max_tokens,
        size,
        ..reader.0
    }
}

/// Rewrites a request for the model that answers instead.
pub fn apply(request: &mut Map<String, Value>, model: &ModelId, changes: &Changes) {
    request.insert("model".to_owned(), model.as_str().into());
    request.insert("max_tokens".to_owned(), changes.max_tokens.into());
    let thinking = match changes.thinking {
        Change::Keep => Change::Keep,
        Change::Remove => Change::Remove,
        Change::Set(AskedThinking {
            kind,
            budget_tokens: None,
        }) => Change::Set(json!({"type": kind.as_str()})),
        Change::Set(AskedThinking {
            kind,
            budget_tokens: Some(budget),
        }) => Change::Set(json!({"type": kind.as_str(), "budget_tokens": budget})),
    };
    change(request, "thinking", thinking);
    if let Some(config) = request
        .get_mut("output_config")
        .and_then(Value::as_object_mut)
    {
        let effort = match changes.effort {
            Change::Keep => Change::Keep,
            Change::Remove => Change::Remove,
            Change::Set(effort) => Change::Set(effort.as_str().into()),
        };
        change(config, "effort", effort);
        if config.is_empty() {
            request.remove("output_config");
        }
    }
    for (field, what) in [
        ("temperature", changes.temperature),
        ("top_p", changes.top_p),
    ] {
        if what == Change::Remove {
            request.remove(field);
        }
    }
}

/// Why a job keeps to its own model, as its record says it.
#[must_use]
pub fn barred(why: &Ineligible) -> String {
    format!("no fallback: {why}")
}

fn change(fields: &mut Map<String, Value>, name: &str, change: Change<Value>) {
    match change {
        Change::Keep => {}
        Change::Remove => {
            fields.remove(name);
        }
        Change::Set(value) => {
            fields.insert(name.to_owned(), value);
        }
    }
}

#[derive(Default)]
struct Reader(Asks);

impl Reader {
    fn unknown(&mut self, what: impl Into<String>) {
        self.0.unknown.get_or_insert_with(|| {
            let text: String = what.into();
            text.chars().take(80).collect()
        });
    }

    fn request(&mut self, request: &Map<String, Value>) {
        for (field, value) in present(request) {
            match field {
                "thinking" => self.thinking(value),
                "output_config" => self.output_config(value),
                "tool_choice" => self.tool_choice(value),
                "tools" => self.tools(value),
                "system" => self.content(value),
                "messages" => self.messages(value),
                "temperature" => self.0.temperature = self.number(field, value),
                "top_p" => self.0.top_p = self.number(field, value),
                "top_k" => self.0.has_top_k = true,
                "speed" if value == "standard" => {}
                known if FIELDS.contains(&known) => {}
                other => self.unknown(other),
            }
        }
    }

    fn number(&mut self, field: &str, value: &Value) -> Option<f64> {
        let number = value.as_f64();
        if number.is_none() {
            self.unknown(field);
        }
        number
    }

    fn thinking(&mut self, value: &Value) {
        let kind = value.get("type").and_then(Value::as_str);
        let kind = kind.and_then(Thinking::parse);
        let fields = value.as_object().into_iter().flatten();
        let strange = fields
            .map(|(name, _)| name.as_str())
            .find(|name| !["type", "budget_tokens"].contains(name));
        match (kind, strange) {
            (Some(kind), None) => {
                let budget_tokens = value.get("budget_tokens").and_then(Value::as_u64);
                self.0.thinking = Some(AskedThinking {
                    kind,
                    budget_tokens,
                });
            }
            (None, _) => self.unknown("this kind of thinking"),
            (Some(_), Some(name)) => self.unknown(format!("thinking.{name}")),
        }
    }

    fn output_config(&mut self, value: &Value) {
        let Some(fields) = value.as_object() else {
            return self.unknown("output_config");
        };
        for (name, value) in present(fields) {
            match name {
                "format" => self.0.is_structured = true,
                "effort" => {
                    let effort = Effort::ALL
                        .into_iter()
                        .find(|effort| value.as_str() == Some(effort.as_str()));
                    if effort.is_none() {
                        self.unknown("this effort");
                    }
                    self.0.effort = effort;
                }
                other => self.unknown(format!("output_config.{other}")),
            }
        }
    }

    fn tool_choice(&mut self, value: &Value) {
        match value.get("type").and_then(Value::as_str) {
            Some("auto" | "none") => {}
            Some("any" | "tool") => self.0.tool_choice = ToolChoice::Forced,
            Some(_) | None => self.unknown("this tool_choice"),
        }
    }

    fn tools(&mut self, value: &Value) {
        for tool in list(value) {
            match tool.get("type").filter(|kind| !kind.is_null()) {
                None => {}
                Some(kind) if kind == "custom" => {}
                Some(kind) => self.unknown(format!("tools of type {kind}")),
            }
            for (name, _) in tool.as_object().into_iter().flat_map(present) {
                if !TOOL_FIELDS.contains(&name) {
                    self.unknown(format!("{name} of a tool"));
                }
            }
            self.0.is_structured |= tool.get("strict") == Some(&Value::Bool(true));
        }
    }

    fn messages(&mut self, value: &Value) {
        let messages = list(value);
        for message in messages {
            match message.get("role").and_then(Value::as_str) {
                Some("user" | "assistant") => {}
                Some(_) | None => self.unknown("messages of this role"),
            }
            self.content(message.get("content").unwrap_or(&Value::Null));
        }
        let last = messages.last().and_then(|message| message.get("role"));
        self.0.is_prefilled = last.and_then(Value::as_str) == Some("assistant");
    }

    /// Text, or a list of blocks. As deep as tool results are nested, which the parser bounds.
    fn content(&mut self, value: &Value) {
        for block in list(value) {
            let source = block
                .get("source")
                .and_then(|source| source.get("type")?.as_str());
            match block.get("type").and_then(Value::as_str) {
                Some("text" | "tool_use") => {}
                Some("tool_result") => self.content(block.get("content").unwrap_or(&Value::Null)),
                Some("image") if matches!(source, Some("base64" | "url")) => {}
                Some("document") if source == Some("text") => {}
                Some("thinking" | "redacted_thinking") => self.0.replays_thinking = true,
                Some(other) => self.unknown(format!("content of type {other}")),
                None => self.unknown("content without a type"),
            }
        }
    }
}

/// The fields that are given at all.
fn present(fields: &Map<String, Value>) -> impl Iterator<Item = (&str, &Value)> {
    fields
        .iter()
        .filter(|(_, value)| !value.is_null())
        .map(|(name, value)| (name.as_str(), value))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use fairlane_core::TenantId;
    use fairlane_core::fallback::plan;
    use fairlane_core::models::Catalog;

    use super::*;
    use crate::submission::parse;

    fn job(request: Value) -> Submission {
        let mut whole = json!({"model": "claude-sonnet-4-6", "max_tokens": 4_096,
            "messages": [{"role": "user", "content": "hi"}]});
        for (name, value) in request.as_object().unwrap() {
            whole[name] = value.clone();
        }
        let body = json!({"origin": "scheduled", "kind": "tagging", "request": whole});
        parse(
            body.to_string().as_bytes(),
            &TenantId::parse("acme").unwrap(),
        )
        .unwrap()
    }

    fn rewritten(request: Value) -> Result<Value, String> {
        let job = job(request);
        let catalog = Catalog::default();
        let (model, changes) =
            plan(&catalog, &job.model, &asks(&job)).map_err(|why| barred(&why))?;
        let mut request = job.request;
        apply(&mut request, &model.id, &changes);
        Ok(Value::Object(request))
    }

    #[test]
    fn a_request_is_rewritten_for_the_other_model() {
        let request = json!({"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"},
            "metadata": {"user_id": "u"}});
        assert_eq!(
            rewritten(request).unwrap(),
            json!({"model": "claude-haiku-4-5", "max_tokens": 4_096,
                "messages": [{"role": "user", "content": "hi"}], "metadata": {"user_id": "u"},
                "thinking": {"type": "enabled", "budget_tokens": 2_048}})
        );
        let sonnet = json!({"model": "claude-sonnet-5-5", "thinking": {"type": "between_tools"},
            "temperature": 1});
        assert_eq!(
            rewritten(sonnet).unwrap(),
            json!({"model": "claude-haiku-5-5", "max_tokens": 4_096,
                "messages": [{"role": "user", "content": "hi"}], "thinking": {"type": "disabled"}})
        );
    }

    #[test]
    fn what_nobody_has_written_down_is_named_and_stays() {
        let block = |block: Value| json!({"messages": [{"role": "user", "content": [block]}]});
        for (request, what) in [
            (json!({"inference_geo": "us"}), "inference_geo"),
            (json!({"speed": "fast"}), "speed"),
            (
                json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
                "tools of type",
            ),
            (
                block(json!({"type": "document", "source": {"type": "base64"}})),
                "content of type document",
            ),
            (
                block(json!({"type": "image", "source": {"type": "file"}})),
                "content of type image",
            ),
            (
                json!({"thinking": {"type": "adaptive", "display": "omitted"}}),
                "thinking.display",
            ),
            (
                json!({"output_config": {"task_budget": 5}}),
                "output_config.task_budget",
            ),
        ] {
            let why = rewritten(request.clone()).unwrap_err();
            assert!(
                why.starts_with("no fallback: it is not known") && why.contains(what),
                "{why}"
            );
        }
        assert!(rewritten(json!({"speed": null})).is_ok());
        let mut with_beta = job(json!({}));
        with_beta.betas = vec!["context-management-2025-06-27".into()];
        assert!(asks(&with_beta).unknown.is_some());
        with_beta.betas = vec!["prompt-caching-2024-07-31".into()];
        assert_eq!(asks(&with_beta).unknown, None);
    }

    #[test]
    fn text_of_other_scripts_counts_for_more() {
        let content = "静".repeat(1_000);
        let size = asks(&job(
            json!({"messages": [{"role": "user", "content": content}]}),
        ))
        .size;
        assert_eq!(size.other_chars, 1_000);
        assert!(size.ascii_chars < 50, "{size:?}");
    }
}
