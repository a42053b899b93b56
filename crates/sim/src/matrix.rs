//! What each model refuses: thinking, effort, forced tools, sampling, prefill, output and context limits.
//!
//! These rules decide whether a job may change its model; a fallback that is only a name swap fails here.

use serde_json::{Map, Value};

use crate::{
    failure::Failure,
    models::{Lifecycle, Model, Sampling, Thinking},
    request::wants_server_tool_result,
};

/// The smallest thinking budget.
const BUDGET_MIN: u64 = 1_024;

/// A value of the `anthropic-version` header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiVersion {
    /// `2023-06-01`
    V2023,
    /// `2026-10-21`
    V2026,
}

impl ApiVersion {
    /// The version of that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "2023-06-01" => Some(Self::V2023),
            "2026-10-21" => Some(Self::V2026),
            _ => None,
        }
    }
}

type Checked = Result<(), Failure>;

/// Finds a callable model.
///
/// # Errors
/// A 404 for unknown and retired models; `retired` adds to the latter.
pub fn callable_model(name: &str, retired: &[String]) -> Result<&'static Model, Failure> {
    Model::find(name)
        .filter(|model| model.lifecycle != Lifecycle::Retired)
        .filter(|model| {
            let off = |id: &String| id == model.id || Some(id.as_str()) == model.alias;
            !retired.iter().any(off)
        })
        .ok_or_else(|| Failure::new(404, format!("model: {name}")))
}

/// Checks a body of valid shape against the rules of its model and API version.
///
/// # Errors
/// A 400 that names the first field the model refuses.
pub fn check(body: &Map<String, Value>, model: &Model, version: ApiVersion) -> Checked {
    max_tokens(body, model)?;
    thinking(body, model)?;
    effort(body, model)?;
    forced_tools(body, model)?;
    sampling(body, model, version)?;
    prefill(body, model)?;
    if version == ApiVersion::V2026 {
        new_version(body)?;
    }
    Ok(())
}

/// Checks the input size against the model's context window.
///
/// # Errors
/// A 400 with both numbers.
pub fn context(input_tokens: u64, model: &Model) -> Checked {
    if input_tokens > model.context {
        return refuse(format!(
            "prompt is too long: {input_tokens} tokens > {} maximum",
            model.context
        ));
    }
    Ok(())
}

fn refuse(message: impl Into<String>) -> Checked {
    Err(Failure::invalid(message))
}

fn max_tokens(body: &Map<String, Value>, model: &Model) -> Checked {
    let asked = body.get("max_tokens").and_then(Value::as_u64).unwrap_or(0);
    if asked > model.max_output {
        return refuse(format!(
            "max_tokens: {asked} > {}, which is the maximum allowed number of output tokens for {}",
            model.max_output, model.id
        ));
    }
    Ok(())
}

fn thinking_kind(body: &Map<String, Value>) -> Option<Thinking> {
    let name = body.get("thinking")?["type"].as_str()?;
    Thinking::ALL.into_iter().find(|kind| kind.name() == name)
}

fn thinking(body: &Map<String, Value>, model: &Model) -> Checked {
    let Some(kind) = thinking_kind(body) else {
        return Ok(());
    };
    if !model.thinking.contains(&kind) {
        return refuse(format!(
            "thinking: '{}' is not supported on {}",
            kind.name(),
            model.id
        ));
    }
    if kind == Thinking::Enabled {
        let limit = body.get("max_tokens").and_then(Value::as_u64);
        match body["thinking"]["budget_tokens"].as_u64() {
            None => return refuse("thinking.enabled.budget_tokens: Field required"),
            Some(budget) if budget < BUDGET_MIN => {
                return refuse(format!(
                    "thinking.enabled.budget_tokens: Input should be at least {BUDGET_MIN}"
                ));
            }
            Some(budget) if limit.is_some_and(|limit| budget >= limit) => {
                return refuse("max_tokens must be greater than thinking.budget_tokens");
            }
            Some(_) => {}
        }
    }
    Ok(())
}

fn effort(body: &Map<String, Value>, model: &Model) -> Checked {
    let Some(effort) = body.get("output_config").and_then(|c| c["effort"].as_str()) else {
        return Ok(());
    };
    if !model.effort {
        return refuse(format!(
            "output_config.effort: not supported on {}",
            model.id
        ));
    }
    let restrained = matches!(
        thinking_kind(body),
        Some(Thinking::Disabled | Thinking::BetweenTools)
    );
    let rule_applies = matches!(model.id, "claude-haiku-5-5" | "claude-sonnet-5-5");
    if rule_applies && restrained && matches!(effort, "xhigh" | "max") {
        return refuse(format!(
            "thinking: cannot be restrained at effort '{effort}' on {}",
            model.id
        ));
    }
    Ok(())
}

fn forced_tools(body: &Map<String, Value>, model: &Model) -> Checked {
    let choice = body.get("tool_choice").and_then(|c| c["type"].as_str());
    match choice {
        Some(kind @ ("any" | "tool")) if !model.forced_tools => refuse(format!(
            "tool_choice: '{kind}' is not supported on {}",
            model.id
        )),
        _ => Ok(()),
    }
}

fn sampling(body: &Map<String, Value>, model: &Model, version: ApiVersion) -> Checked {
    let given = |name: &str| body.get(name).filter(|value| !value.is_null());
    let (temperature, top_p, top_k) = (given("temperature"), given("top_p"), given("top_k"));
    let is = |value: Option<&Value>, right: &[f64]| {
        value
            .and_then(Value::as_f64)
            .is_none_or(|n| right.contains(&n))
    };
    if version == ApiVersion::V2026 {
        return match (temperature, top_p, top_k) {
            (None, None, None) => Ok(()),
            _ => refuse(
                "temperature, top_p and top_k: not supported with anthropic-version 2026-10-21",
            ),
        };
    }
    let allowed = match model.sampling {
        Sampling::Free => true,
        Sampling::DefaultsOnly => {
            top_k.is_none() && is(temperature, &[1.0]) && is(top_p, &[1.0, 0.99])
        }
        Sampling::OneDefault => {
            top_k.is_none()
                && is(temperature, &[1.0])
                && is(top_p, &[0.99])
                && (temperature.is_none() || top_p.is_none())
        }
    };
    if allowed {
        return Ok(());
    }
    refuse(format!(
        "temperature, top_p and top_k: only default values are supported on {}",
        model.id
    ))
}

fn prefill(body: &Map<String, Value>, model: &Model) -> Checked {
    let Some(last) = body["messages"].as_array().and_then(|list| list.last()) else {
        return Ok(());
    };
    // Handing a paused turn back unchanged also ends with an assistant message, but is no prefill.
    if last["role"] != "assistant" || wants_server_tool_result(last) {
        return Ok(());
    }
    let thinking_on = matches!(
        thinking_kind(body),
        Some(Thinking::Enabled | Thinking::Adaptive)
    );
    if model.prefill && !thinking_on {
        return Ok(());
    }
    refuse(format!(
        "{} does not support assistant message prefill. The conversation must end with a user message.",
        model.id
    ))
}

fn new_version(body: &Map<String, Value>) -> Checked {
    let messages = body["messages"].as_array().map_or(&[][..], Vec::as_slice);
    for (at, message) in messages.iter().enumerate() {
        let blocks = message["content"].as_array().map_or(&[][..], Vec::as_slice);
        for (number, block) in blocks.iter().enumerate() {
            let path = || format!("messages.{at}.content.{number}");
            if message["role"] == "assistant" && block["type"] == "document" {
                return refuse(format!(
                    "{}: document blocks are not allowed in assistant messages",
                    path()
                ));
            }
            if message["role"] == "user"
                && block["type"] == "text"
                && block.get("citations").is_some()
            {
                return refuse(format!(
                    "{}.citations: not allowed on user text blocks",
                    path()
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TOOL: &str = r#"[{"name":"t","input_schema":{"type":"object"}}]"#;

    fn outcome(id: &str, version: ApiVersion, changes: &Value) -> Result<(), String> {
        let mut body = json!({"max_tokens": 4096, "messages": [{"role": "user", "content": "hi"}]});
        for (key, value) in changes.as_object().unwrap() {
            body[key] = value.clone();
        }
        let model = Model::find(id).unwrap();
        check(body.as_object().unwrap(), model, version).map_err(|failure| failure.message)
    }

    fn accepts(id: &str, changes: Value) {
        assert_eq!(
            outcome(id, ApiVersion::V2023, &changes),
            Ok(()),
            "{id} {changes}"
        );
    }

    fn refuses(id: &str, changes: Value) {
        assert!(
            outcome(id, ApiVersion::V2023, &changes).is_err(),
            "{id} {changes}"
        );
    }

    #[test]
    fn thinking_values_differ_by_model() {
        let table = [
            ("claude-sonnet-4-6", [true, true, true, false]),
            ("claude-haiku-4-5", [false, true, true, false]),
            ("claude-sonnet-5", [true, true, false, false]),
            ("claude-sonnet-5-5", [true, false, false, true]),
            ("claude-haiku-5-5", [true, true, false, false]),
            ("claude-opus-5-5", [true, false, false, false]),
            ("claude-fable-5-1", [true, false, false, false]),
        ];
        for (id, row) in table {
            for (kind, ok) in Thinking::ALL.into_iter().zip(row) {
                let body = json!({"thinking": {"type": kind.name(), "budget_tokens": 2048}});
                let outcome = outcome(id, ApiVersion::V2023, &body);
                assert_eq!(outcome.is_ok(), ok, "{id} {} {outcome:?}", kind.name());
            }
        }
    }

    #[test]
    fn a_thinking_budget_has_two_bounds() {
        accepts(
            "claude-haiku-4-5",
            json!({"thinking": {"type": "enabled", "budget_tokens": 1024}}),
        );
        refuses(
            "claude-haiku-4-5",
            json!({"thinking": {"type": "enabled", "budget_tokens": 1023}}),
        );
        refuses(
            "claude-haiku-4-5",
            json!({"thinking": {"type": "enabled", "budget_tokens": 4096}}),
        );
        refuses("claude-haiku-4-5", json!({"thinking": {"type": "enabled"}}));
    }

    #[test]
    fn effort_is_refused_on_haiku_4_5_and_limits_restrained_thinking() {
        refuses(
            "claude-haiku-4-5",
            json!({"output_config": {"effort": "low"}}),
        );
        accepts(
            "claude-sonnet-4-6",
            json!({"output_config": {"effort": "low"}}),
        );
        let disabled =
            |effort| json!({"thinking": {"type": "disabled"}, "output_config": {"effort": effort}});
        accepts("claude-haiku-5-5", disabled("high"));
        refuses("claude-haiku-5-5", disabled("xhigh"));
        let between =
            json!({"thinking": {"type": "between_tools"}, "output_config": {"effort": "max"}});
        refuses("claude-sonnet-5-5", between);
    }

    #[test]
    fn forced_tools_are_refused_where_they_do_not_exist() {
        let tools: Value = serde_json::from_str(TOOL).unwrap();
        for (id, ok) in [
            ("claude-sonnet-4-6", true),
            ("claude-haiku-4-5", true),
            ("claude-sonnet-5", true),
            ("claude-haiku-5-5", true),
            ("claude-sonnet-5-5", false),
            ("claude-opus-5-5", false),
            ("claude-fable-5-1", false),
        ] {
            for choice in [json!({"type": "any"}), json!({"type": "tool", "name": "t"})] {
                let body = json!({"tools": tools, "tool_choice": choice});
                assert_eq!(outcome(id, ApiVersion::V2023, &body).is_ok(), ok, "{id}");
            }
            accepts(id, json!({"tools": tools, "tool_choice": {"type": "auto"}}));
        }
    }

    #[test]
    fn sampling_rules_depend_on_model_and_version() {
        accepts("claude-sonnet-4-6", json!({"temperature": 0.2, "top_k": 5}));
        refuses("claude-sonnet-5", json!({"temperature": 0.2}));
        accepts("claude-sonnet-5", json!({"temperature": 1, "top_p": 1}));
        refuses("claude-sonnet-5", json!({"top_k": 5}));
        accepts("claude-haiku-5-5", json!({"top_p": 0.99}));
        refuses("claude-haiku-5-5", json!({"temperature": 1, "top_p": 0.99}));
        for field in ["temperature", "top_p", "top_k"] {
            let body = json!({ field: 1 });
            assert!(
                outcome("claude-sonnet-4-6", ApiVersion::V2026, &body).is_err(),
                "{field}"
            );
        }
        assert!(outcome("claude-sonnet-4-6", ApiVersion::V2026, &json!({})).is_ok());
    }

    #[test]
    fn prefill_is_for_old_models_without_thinking() {
        let prefill = json!({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "{"}]});
        accepts("claude-haiku-4-5", prefill.clone());
        refuses("claude-sonnet-4-6", prefill.clone());
        let mut thinking = prefill;
        thinking["thinking"] = json!({"type": "enabled", "budget_tokens": 2048});
        refuses("claude-haiku-4-5", thinking);
    }

    #[test]
    fn the_new_version_refuses_two_kinds_of_blocks() {
        let document = json!({"messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": [{"type": "document", "source": {}}]},
            {"role": "user", "content": "y"}]});
        let citations = json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "citations": []}]}]});
        for body in [document, citations] {
            assert!(outcome("claude-sonnet-5", ApiVersion::V2023, &body).is_ok());
            assert!(outcome("claude-sonnet-5", ApiVersion::V2026, &body).is_err());
        }
    }

    #[test]
    fn limits_on_output_and_context_are_per_model() {
        accepts("claude-haiku-4-5", json!({"max_tokens": 64_000}));
        refuses("claude-haiku-4-5", json!({"max_tokens": 64_001}));
        accepts("claude-sonnet-4-6", json!({"max_tokens": 128_000}));
        let haiku = Model::find("claude-haiku-4-5").unwrap();
        assert!(context(200_000, haiku).is_ok());
        let failure = context(200_001, haiku).unwrap_err();
        assert_eq!(
            failure.message,
            "prompt is too long: 200001 tokens > 200000 maximum"
        );
    }

    #[test]
    fn unknown_and_retired_models_are_not_found() {
        assert!(callable_model("claude-haiku-4-5", &[]).is_ok());
        let retired = [String::from("claude-haiku-4-5")];
        for (name, retired) in [
            ("claude-9", &[][..]),
            ("claude-sonnet-4-5", &[]),
            ("claude-haiku-4-5-20251001", &retired),
        ] {
            let failure = callable_model(name, retired).unwrap_err();
            assert_eq!(
                (failure.status, failure.message),
                (404, format!("model: {name}"))
            );
        }
    }
}
