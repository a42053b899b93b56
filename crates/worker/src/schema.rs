//! Structured output: does the answer's text meet the job's schema?

use serde_json::Value;

/// Why an answer does not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Violation {
    #[error("output_schema itself is not a valid JSON Schema: {0}")]
    Schema(String),
    #[error("the answer is not JSON: {0}")]
    NotJson(String),
    #[error("the answer at {path} breaks the schema: {text}")]
    Breaks { path: String, text: String },
}

/// Checks the text of `message` (or the input of its tool call, if that is all there is) against
/// `schema`.
pub(crate) fn check(schema: &Value, message: &Value) -> Result<(), Violation> {
    let validator =
        jsonschema::validator_for(schema).map_err(|error| Violation::Schema(error.to_string()))?;
    let output = output(message)?;
    match validator.iter_errors(&output).next() {
        None => Ok(()),
        Some(error) => {
            let path = error.instance_path().to_string();
            let path = if path.is_empty() {
                "its root".to_owned()
            } else {
                path
            };
            Err(Violation::Breaks {
                path,
                text: error.to_string(),
            })
        }
    }
}

fn output(message: &Value) -> Result<Value, Violation> {
    let blocks = message
        .get("content")
        .and_then(Value::as_array)
        .map(Vec::as_slice);
    let blocks = blocks.unwrap_or_default();
    let of_type = |wanted: &'static str| {
        blocks
            .iter()
            .filter(move |block| block.get("type").and_then(Value::as_str) == Some(wanted))
    };
    let texts: Vec<&str> = of_type("text")
        .filter_map(|block| block.get("text")?.as_str())
        .collect();
    if texts.is_empty()
        && let Some(input) = of_type("tool_use").find_map(|block| block.get("input"))
    {
        return Ok(input.clone());
    }
    serde_json::from_str(&texts.concat()).map_err(|error| Violation::NotJson(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn text(text: &str) -> Value {
        json!({"content": [{"type": "text", "text": text}]})
    }

    #[test]
    fn output_is_held_against_the_schema() {
        let schema = json!({"type": "object", "required": ["tags"],
            "properties": {"tags": {"type": "array", "items": {"type": "string"}, "minItems": 2}}});
        assert_eq!(check(&schema, &text(r#"{"tags": ["a", "b"]}"#)), Ok(()));
        let few = check(&schema, &text(r#"{"tags": ["a"]}"#))
            .unwrap_err()
            .to_string();
        assert!(
            few.starts_with("the answer at /tags breaks the schema"),
            "{few}"
        );
        let prose = check(&schema, &text("Sure! Here you go")).unwrap_err();
        assert!(matches!(prose, Violation::NotJson(_)), "{prose}");
        let tool = json!({"content": [{"type": "tool_use", "input": {"tags": ["a", "b"]}}]});
        assert_eq!(check(&schema, &tool), Ok(()));
    }

    #[test]
    fn a_schema_that_is_none_is_told_apart_from_a_bad_answer() {
        let violation = check(&json!({"type": 7}), &text("{}")).unwrap_err();
        assert!(matches!(violation, Violation::Schema(_)), "{violation}");
    }
}
