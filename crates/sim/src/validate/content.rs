//! Messages, their blocks, and the system prompt.

use serde_json::Value;

use super::{Checked, fail};

/// The most messages in one request.
const MESSAGES_MAX: usize = 100_000;

pub(super) fn messages(messages: &Value) -> Checked {
    let Some(messages) = messages.as_array() else {
        return fail("messages", "Input should be a valid list");
    };
    if messages.is_empty() {
        return fail("messages", "at least one message is required");
    }
    if messages.len() > MESSAGES_MAX {
        return fail("messages", "List should have at most 100000 items");
    }
    if messages[0]["role"] == "assistant" {
        return fail("messages", "first message must use the \"user\" role");
    }
    for (at, message) in messages.iter().enumerate() {
        let path = || format!("messages.{at}");
        let Some(fields) = message.as_object() else {
            return fail(&path(), "Input should be an object");
        };
        if let Some(extra) = fields.keys().find(|k| *k != "role" && *k != "content") {
            return fail(
                &format!("messages.{at}.{extra}"),
                "Extra inputs are not permitted",
            );
        }
        match fields.get("role").and_then(Value::as_str) {
            Some("user" | "assistant") => {}
            Some(_) => {
                return fail(
                    &format!("messages.{at}.role"),
                    "Input should be 'user' or 'assistant'",
                );
            }
            None => return fail(&format!("messages.{at}.role"), "Field required"),
        }
        content(fields.get("content"), &|| format!("messages.{at}.content"))?;
    }
    Ok(())
}

fn content(content: Option<&Value>, path: &dyn Fn() -> String) -> Checked {
    match content {
        None => fail(&path(), "Field required"),
        Some(Value::String(text)) if text.is_empty() => {
            fail(&path(), "text content must be non-empty")
        }
        Some(Value::String(_)) => Ok(()),
        Some(Value::Array(blocks)) if blocks.is_empty() => {
            fail(&path(), "List should have at least 1 item")
        }
        Some(Value::Array(blocks)) => {
            for (at, one) in blocks.iter().enumerate() {
                block(one, &|| format!("{}.{at}", path()))?;
            }
            Ok(())
        }
        Some(_) => fail(&path(), "Input should be a string or a list of blocks"),
    }
}

fn block(block: &Value, path: &dyn Fn() -> String) -> Checked {
    let Some(kind) = block["type"].as_str() else {
        return fail(&format!("{}.type", path()), "Field required");
    };
    let required: &[&str] = match kind {
        "text" => &["text"],
        "image" | "document" => &["source"],
        "tool_use" | "server_tool_use" => &["id", "name", "input"],
        "tool_result" => &["tool_use_id"],
        "thinking" => &["thinking", "signature"],
        "redacted_thinking" => &["data"],
        "search_result" | "container_upload" | "fallback" => &[],
        other if other.ends_with("_tool_result") => &["tool_use_id"],
        other => {
            return fail(
                &path(),
                &format!(
                    "Input tag '{other}' found using 'type' does not match any of the expected tags"
                ),
            );
        }
    };
    if let Some(missing) = required.iter().find(|field| block.get(**field).is_none()) {
        return fail(&format!("{}.{missing}", path()), "Field required");
    }
    match (kind, block["text"].as_str()) {
        ("text", None) => fail(
            &format!("{}.text", path()),
            "Input should be a valid string",
        ),
        ("text", Some("")) => fail(&path(), "text content blocks must be non-empty"),
        _ => Ok(()),
    }
}

pub(super) fn system(system: Option<&Value>) -> Checked {
    match system {
        None | Some(Value::String(_)) => Ok(()),
        Some(Value::Array(blocks)) => {
            for (at, one) in blocks.iter().enumerate() {
                if one["type"] != "text" || !one["text"].is_string() {
                    return fail(&format!("system.{at}"), "Input should be a text block");
                }
            }
            Ok(())
        }
        Some(_) => fail(
            "system",
            "Input should be a string or a list of text blocks",
        ),
    }
}
