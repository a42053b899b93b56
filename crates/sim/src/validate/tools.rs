//! Tools and the choice between them.

use serde_json::{Map, Value};

use super::{Checked, fail, strict_schema};

/// The most strict tools in one request.
const STRICT_TOOLS_MAX: usize = 20;

pub(super) fn tools(body: &Map<String, Value>) -> Checked {
    let mut names: Vec<&str> = Vec::new();
    let mut strict = 0;
    match body.get("tools") {
        None => {}
        Some(Value::Array(tools)) => {
            for (at, tool) in tools.iter().enumerate() {
                let Some(name) = tool["name"].as_str().filter(|name| !name.is_empty()) else {
                    return fail(&format!("tools.{at}.name"), "Field required");
                };
                let custom = tool.get("type").is_none_or(|kind| kind == "custom");
                if custom && tool["input_schema"]["type"] != "object" {
                    return fail(
                        &format!("tools.{at}.input_schema.type"),
                        "Input should be 'object'",
                    );
                }
                if tool["strict"] == true {
                    strict += 1;
                    strict_schema(&tool["input_schema"], &format!("tools.{at}.input_schema"))?;
                }
                names.push(name);
            }
        }
        Some(_) => return fail("tools", "Input should be a valid list"),
    }
    if strict > STRICT_TOOLS_MAX {
        return fail("tools", "at most 20 strict tools are allowed");
    }
    let mut sorted = names.clone();
    sorted.sort_unstable();
    if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
        return fail("tools", "Tool names must be unique");
    }
    tool_choice(body.get("tool_choice"), &names)
}

fn tool_choice(choice: Option<&Value>, names: &[&str]) -> Checked {
    let Some(choice) = choice else { return Ok(()) };
    match choice["type"].as_str() {
        Some("auto" | "none") => Ok(()),
        Some("any") if names.is_empty() => fail("tool_choice", "'any' may only be used with tools"),
        Some("any") => Ok(()),
        Some("tool") => match choice["name"].as_str() {
            Some(name) if names.contains(&name) => Ok(()),
            Some(name) => fail(
                "tool_choice",
                &format!("Tool '{name}' not found in provided tools"),
            ),
            None => fail("tool_choice.name", "Field required"),
        },
        _ => fail(
            "tool_choice.type",
            "Input should be 'auto', 'any', 'tool' or 'none'",
        ),
    }
}
