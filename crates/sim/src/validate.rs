//! The shape of a request body: required fields, types, unknown fields. What depends on the model is in `matrix`.
//!
//! Every check answers with the path of the field, because that is what a caller needs to repair a job.

mod content;
mod tools;

use serde_json::{Map, Value};

use crate::{failure::Failure, models::Thinking, schema};

/// The most cache breakpoints in one request.
const BREAKPOINTS_MAX: usize = 4;
/// The longest `metadata.user_id`.
const USER_ID_MAX: usize = 256;

/// Which endpoint a body was sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// `POST /v1/messages`
    Message,
    /// `POST /v1/messages/count_tokens`
    Count,
}

const FIELDS: &[&str] = &[
    "cache_control",
    "container",
    "diagnostics",
    "inference_geo",
    "max_tokens",
    "messages",
    "metadata",
    "model",
    "output_config",
    "service_tier",
    "speed",
    "stop_sequences",
    "stream",
    "system",
    "temperature",
    "thinking",
    "tool_choice",
    "tools",
    "top_k",
    "top_p",
    "user_profile_id",
];

/// Fields that exist only under a beta whose name starts like this.
const BETA_FIELDS: &[(&str, &str)] = &[
    ("context_management", "context-management-"),
    ("fallbacks", "server-side-fallback-"),
    ("mcp_servers", "mcp-client-"),
];

type Checked = Result<(), Failure>;

/// Checks everything that does not depend on the model. `betas` is the raw `anthropic-beta` header.
///
/// # Errors
/// A 400 that names the first wrong field.
pub fn shape(body: &Map<String, Value>, purpose: Purpose, betas: &str) -> Checked {
    for required in ["model", "messages", "max_tokens"] {
        let optional = required == "max_tokens" && purpose == Purpose::Count;
        if !optional && !body.contains_key(required) {
            return fail(required, "Field required");
        }
    }
    known_fields(body, betas)?;
    if body["model"].as_str().is_none_or(str::is_empty) {
        return fail("model", "Input should be a non-empty string");
    }
    if body.get("max_tokens").is_some_and(|v| v.as_u64().is_none()) {
        return fail("max_tokens", "Input should be a whole number, 0 or more");
    }
    content::messages(&body["messages"])?;
    content::system(body.get("system"))?;
    options(body)?;
    tools::tools(body)?;
    thinking(body.get("thinking"))?;
    output_config(body.get("output_config"))?;
    breakpoints(body)
}

fn fail(path: &str, what: &str) -> Checked {
    Err(Failure::invalid(format!("{path}: {what}")))
}

fn known_fields(body: &Map<String, Value>, betas: &str) -> Checked {
    for field in body.keys() {
        let beta = BETA_FIELDS.iter().find(|(name, _)| name == field);
        let allowed = match beta {
            Some((_, prefix)) => betas.split(',').any(|b| b.trim().starts_with(prefix)),
            None => FIELDS.contains(&field.as_str()),
        };
        if !allowed {
            return fail(field, "Extra inputs are not permitted");
        }
    }
    if body.get("speed").is_some_and(|speed| speed == "fast")
        && !betas.split(',').any(|b| b.trim().starts_with("fast-mode-"))
    {
        return fail("speed", "Extra inputs are not permitted");
    }
    Ok(())
}

fn options(body: &Map<String, Value>) -> Checked {
    let unit = |v: &Value| v.as_f64().is_some_and(|n| (0.0..=1.0).contains(&n));
    let text = |v: &Value| v.as_str().is_some_and(|s| !s.is_empty());
    let texts = |v: &Value| v.as_array().is_some_and(|list| list.iter().all(text));
    let one_of = |v: &Value, words: &[&str]| v.as_str().is_some_and(|s| words.contains(&s));
    let user = |v: &Value| {
        v.as_object().is_some_and(|fields| {
            fields.iter().all(|(key, id)| {
                key == "user_id"
                    && (id.is_null() || id.as_str().is_some_and(|s| s.len() <= USER_ID_MAX))
            })
        })
    };
    type Rule<'a> = (&'a str, &'a dyn Fn(&Value) -> bool, &'a str);
    let rules: [Rule<'_>; 8] = [
        (
            "stream",
            &Value::is_boolean,
            "Input should be a valid boolean",
        ),
        ("temperature", &unit, "Input should be a number from 0 to 1"),
        ("top_p", &unit, "Input should be a number from 0 to 1"),
        (
            "top_k",
            &Value::is_u64,
            "Input should be a whole number, 0 or more",
        ),
        (
            "stop_sequences",
            &texts,
            "Input should be a list of non-empty strings",
        ),
        (
            "metadata",
            &user,
            "Input should be an object with a user_id of at most 256 characters",
        ),
        (
            "service_tier",
            &|v| one_of(v, &["auto", "standard_only"]),
            "Input should be 'auto' or 'standard_only'",
        ),
        (
            "speed",
            &|v| one_of(v, &["standard", "fast"]),
            "Input should be 'standard' or 'fast'",
        ),
    ];
    for (field, is_right, expected) in rules {
        if body.get(field).is_some_and(|value| !is_right(value)) {
            return fail(field, expected);
        }
    }
    Ok(())
}

fn thinking(thinking: Option<&Value>) -> Checked {
    let Some(thinking) = thinking else {
        return Ok(());
    };
    let kind = thinking["type"].as_str().unwrap_or_default();
    if Thinking::ALL.iter().all(|known| known.name() != kind) {
        return fail(
            "thinking.type",
            "Input should be 'adaptive', 'disabled', 'enabled' or 'between_tools'",
        );
    }
    Ok(())
}

fn output_config(config: Option<&Value>) -> Checked {
    let Some(config) = config else { return Ok(()) };
    let Some(fields) = config.as_object() else {
        return fail("output_config", "Input should be an object");
    };
    for (key, value) in fields {
        match key.as_str() {
            "effort" => {
                if !matches!(
                    value.as_str(),
                    Some("low" | "medium" | "high" | "xhigh" | "max")
                ) {
                    return fail(
                        "output_config.effort",
                        "Input should be 'low', 'medium', 'high', 'xhigh' or 'max'",
                    );
                }
            }
            "format" if value.is_null() => {}
            "format" => {
                if value["type"] != "json_schema" || !value["schema"].is_object() {
                    return fail(
                        "output_config.format",
                        "Input should be {type: json_schema, schema: object}",
                    );
                }
                strict_schema(&value["schema"], "output_config.format.schema")?;
            }
            // The token budget of a whole task is beta and does not change a single answer.
            "task_budget" => {}
            other => {
                return fail(
                    &format!("output_config.{other}"),
                    "Extra inputs are not permitted",
                );
            }
        }
    }
    Ok(())
}

fn strict_schema(schema: &Value, path: &str) -> Checked {
    match schema::strict_problem(schema) {
        None => Ok(()),
        Some(problem) => fail(path, &problem),
    }
}

fn breakpoints(body: &Map<String, Value>) -> Checked {
    let mut found = 0;
    for field in ["tools", "system", "messages", "cache_control"] {
        if let Some(value) = body.get(field) {
            count_breakpoints(value, field == "cache_control", &mut found)?;
        }
    }
    if found > BREAKPOINTS_MAX {
        return Err(Failure::invalid(format!(
            "A maximum of 4 blocks with cache_control may be provided. Found {found}."
        )));
    }
    Ok(())
}

fn count_breakpoints(value: &Value, is_control: bool, found: &mut usize) -> Checked {
    if is_control {
        if value.is_null() {
            return Ok(());
        }
        let ttl = value
            .get("ttl")
            .is_none_or(|ttl| ttl == "5m" || ttl == "1h");
        if value["type"] != "ephemeral" || !ttl {
            return fail(
                "cache_control",
                "Input should be {type: ephemeral, ttl: 5m or 1h}",
            );
        }
        *found += 1;
        return Ok(());
    }
    match value {
        Value::Array(list) => list
            .iter()
            .try_for_each(|one| count_breakpoints(one, false, found)),
        Value::Object(fields) => fields.iter().try_for_each(|(key, one)| match key.as_str() {
            "cache_control" => count_breakpoints(one, true, found),
            "content" => count_breakpoints(one, false, found),
            // Schemas, tool inputs and sources are data: a key of that name in them means nothing.
            _ => Ok(()),
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn base(changes: Value) -> Map<String, Value> {
        let mut body = json!({"model": "claude-haiku-4-5", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]});
        for (key, value) in changes.as_object().unwrap() {
            body[key] = value.clone();
        }
        body.as_object().unwrap().clone()
    }

    fn message(changes: Value) -> String {
        match shape(&base(changes), Purpose::Message, "") {
            Ok(()) => "ok".to_owned(),
            Err(failure) => {
                assert_eq!(failure.status, 400);
                failure.message
            }
        }
    }

    #[test]
    fn a_plain_request_is_fine() {
        assert_eq!(message(json!({})), "ok");
        assert_eq!(
            message(
                json!({"system": "s", "stream": true, "metadata": {"user_id": "u"}, "temperature": 0.5, "max_tokens": 0})
            ),
            "ok"
        );
    }

    #[test]
    fn required_fields_are_named() {
        for field in ["model", "messages", "max_tokens"] {
            let mut body = base(json!({}));
            body.remove(field);
            let failure = shape(&body, Purpose::Message, "").unwrap_err();
            assert_eq!(failure.message, format!("{field}: Field required"));
        }
        let mut body = base(json!({}));
        body.remove("max_tokens");
        assert!(shape(&body, Purpose::Count, "").is_ok());
    }

    #[test]
    fn unknown_fields_and_betas_without_their_header_are_refused() {
        assert_eq!(
            message(json!({"priority": 1})),
            "priority: Extra inputs are not permitted"
        );
        assert_eq!(
            message(json!({"fallbacks": "default"})),
            "fallbacks: Extra inputs are not permitted"
        );
        let with = base(json!({"fallbacks": "default"}));
        assert!(
            shape(
                &with,
                Purpose::Message,
                "x, server-side-fallback-2026-07-01"
            )
            .is_ok()
        );
    }

    #[test]
    fn each_wrong_field_is_refused_by_its_path() {
        let cases = [
            (json!({"model": 7}), "model: "),
            (json!({"max_tokens": -1}), "max_tokens: "),
            (json!({"max_tokens": 1.5}), "max_tokens: "),
            (json!({"messages": []}), "messages: "),
            (json!({"messages": "hi"}), "messages: "),
            (
                json!({"messages": [{"role": "robot", "content": "x"}]}),
                "messages.0.role: ",
            ),
            (
                json!({"messages": [{"role": "user"}]}),
                "messages.0.content: ",
            ),
            (
                json!({"messages": [{"role": "user", "content": ""}]}),
                "messages.0.content: ",
            ),
            (
                json!({"messages": [{"role": "user", "content": [{"type": "text"}]}]}),
                "messages.0.content.0.text: ",
            ),
            (
                json!({"messages": [{"role": "user", "content": [{"type": "poem"}]}]}),
                "messages.0.content.0: ",
            ),
            (
                json!({"messages": [{"role": "user", "content": "x", "name": "y"}]}),
                "messages.0.name: ",
            ),
            (
                json!({"messages": [{"role": "assistant", "content": "x"}]}),
                "messages: first",
            ),
            (json!({"system": 3}), "system: "),
            (json!({"stream": "yes"}), "stream: "),
            (json!({"temperature": 1.5}), "temperature: "),
            (json!({"stop_sequences": [""]}), "stop_sequences: "),
            (json!({"metadata": {"tenant": "x"}}), "metadata: "),
            (
                json!({"tools": [{"input_schema": {"type": "object"}}]}),
                "tools.0.name: ",
            ),
            (
                json!({"tools": [{"name": "a", "input_schema": {}}]}),
                "tools.0.input_schema.type: ",
            ),
            (json!({"tool_choice": {"type": "any"}}), "tool_choice: "),
            (
                json!({"tool_choice": {"type": "tool", "name": "a"}}),
                "tool_choice: ",
            ),
            (json!({"thinking": {"type": "hard"}}), "thinking.type: "),
            (
                json!({"output_config": {"effort": "huge"}}),
                "output_config.effort: ",
            ),
            (
                json!({"output_config": {"format": {"type": "xml"}}}),
                "output_config.format: ",
            ),
            (json!({"service_tier": "gold"}), "service_tier: "),
            (
                json!({"cache_control": {"type": "forever"}}),
                "cache_control: ",
            ),
        ];
        for (change, path) in cases {
            let text = message(change.clone());
            assert!(text.starts_with(path), "{change}: {text}");
        }
    }

    #[test]
    fn five_breakpoints_are_one_too_many() {
        let block = json!({"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}});
        let four = json!({"messages": [{"role": "user", "content": vec![block.clone(); 4]}]});
        assert_eq!(message(four), "ok");
        let five = json!({"messages": [{"role": "user", "content": vec![block; 5]}]});
        assert!(message(five).contains("Found 5"));
    }

    #[test]
    fn a_format_schema_must_be_closed() {
        let open = json!({"output_config": {"format": {"type": "json_schema", "schema": {"type": "object", "properties": {}}}}});
        assert!(message(open).contains("additionalProperties"));
    }
}
