//! Structured output: does the answer's text meet the job's schema?
//!
//! A schema is a program that its author gives us to run. A chain of references can be deeper than
//! any stack, and references that fork unfold to more steps than there is time for. So a schema
//! is measured before it is used, and used on a thread of its own: with room to recurse, and
//! given up when it takes too long, so that its neighbours never wait for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jsonschema::Validator;
use serde_json::{Map, Value};

/// Why an answer does not, or why its schema cannot say.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Violation {
    #[error("output_schema itself is not a valid JSON Schema: {0}")]
    Schema(String),
    #[error("output_schema {0}")]
    Unusable(String),
    #[error("checking against output_schema takes longer than {0:?}")]
    TooSlow(Duration),
    #[error("the answer is not JSON: {0}")]
    NotJson(String),
    #[error("the answer at {path} breaks the schema: {text}")]
    Breaks { path: String, text: String },
}

/// Steps of a schema with all references followed, about; what people write has hundreds.
const STEPS_MAX: u64 = 100_000;
/// Levels of a schema with all references followed.
const DEPTH_MAX: usize = 512;
/// A schema may take this long to be read, and this long to check an answer.
const TIME_MAX: Duration = Duration::from_secs(2);
/// Enough for [`DEPTH_MAX`] levels at each of the levels an answer can have. Only what is used of it
/// takes up memory.
const STACK_BYTES: usize = 256 * 1024 * 1024;

/// A schema that can be used.
#[derive(Debug, Clone)]
pub(crate) struct Schema(Arc<Validator>);

impl Schema {
    /// Reads a schema.
    ///
    /// # Errors
    /// [`Violation`] of the schema itself.
    pub(crate) async fn read(schema: &Value) -> Result<Self, Violation> {
        measure(schema)?;
        let schema = schema.clone();
        let read = apart(TIME_MAX, move || jsonschema::validator_for(&schema)).await;
        let read = read.ok_or(Violation::TooSlow(TIME_MAX))?;
        let validator = read.map_err(|error| Violation::Schema(error.to_string()))?;
        Ok(Self(Arc::new(validator)))
    }

    /// Checks the text of `message` (or the input of its tool call, if that is all there is).
    ///
    /// # Errors
    /// [`Violation`].
    pub(crate) async fn check(&self, message: &Value) -> Result<(), Violation> {
        let (validator, output) = (self.0.clone(), output(message)?);
        let checked = apart(TIME_MAX, move || first_error(&validator, &output)).await;
        checked.ok_or(Violation::TooSlow(TIME_MAX))?
    }
}

fn first_error(validator: &Validator, output: &Value) -> Result<(), Violation> {
    // This way remembers what it has checked; looking for the error does not.
    if validator.is_valid(output) {
        return Ok(());
    }
    let Err(error) = validator.validate(output) else {
        return Ok(());
    };
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

/// Runs `work` on a thread of its own. None if it is not done in time or panics; it then goes on
/// unheard until its end or the process's.
async fn apart<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let thread = std::thread::Builder::new()
        .name("schema".to_owned())
        .stack_size(STACK_BYTES);
    let started = thread.spawn(move || {
        // Nobody listens any more if the time was up.
        sender.send(work()).ok();
    });
    started.ok()?;
    tokio::time::timeout(limit, receiver).await.ok()?.ok()
}

/// Refuses what would unfold to too much, or cannot be measured.
fn measure(schema: &Value) -> Result<(), Violation> {
    let mut measure = Measure {
        root: schema,
        anchors: HashMap::new(),
        known: HashMap::new(),
    };
    measure.find_anchors(schema, true)?;
    let Size { steps, depth } = measure.size(schema, 0)?;
    if steps > STEPS_MAX {
        let text =
            format!("unfolds to more than {STEPS_MAX} steps when its references are followed");
        return Err(Violation::Unusable(text));
    }
    if depth > DEPTH_MAX {
        return Err(too_deep());
    }
    Ok(())
}

fn too_deep() -> Violation {
    let text = format!("is more than {DEPTH_MAX} levels deep when its references are followed");
    Violation::Unusable(text)
}

/// Values that look like schemas and are not.
const DATA: [&str; 4] = ["const", "default", "enum", "examples"];
const REFERENCES: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];
const ANCHORS: [&str; 2] = ["$anchor", "$dynamicAnchor"];

#[derive(Debug, Clone, Copy, Default)]
struct Size {
    steps: u64,
    depth: usize,
}

struct Measure<'a> {
    root: &'a Value,
    anchors: HashMap<&'a str, &'a Value>,
    /// Sizes by address. None while it is being measured: a reference back to itself adds nothing.
    known: HashMap<*const Value, Option<Size>>,
}

impl<'a> Measure<'a> {
    fn find_anchors(&mut self, value: &'a Value, is_root: bool) -> Result<(), Violation> {
        if let Value::Object(fields) = value {
            if !is_root && fields.get("$id").is_some_and(Value::is_string) {
                let text = "has an $id inside; only its root may have one";
                return Err(Violation::Unusable(text.to_owned()));
            }
            for anchor in text_fields(fields, &ANCHORS) {
                self.anchors.insert(anchor, value);
            }
        }
        for part in parts(value) {
            self.find_anchors(part, false)?;
        }
        Ok(())
    }

    fn size(&mut self, value: &'a Value, level: usize) -> Result<Size, Violation> {
        if level > DEPTH_MAX {
            return Err(too_deep());
        }
        let address = std::ptr::from_ref(value);
        if let Some(known) = self.known.get(&address) {
            return Ok(known.unwrap_or_default());
        }
        self.known.insert(address, None);
        let mut size = Size { steps: 1, depth: 1 };
        let mut add = |part: Size| {
            size.steps = size.steps.saturating_add(part.steps);
            size.depth = size.depth.max(part.depth + 1);
        };
        for part in parts(value) {
            add(self.size(part, level + 1)?);
        }
        if let Value::Object(fields) = value {
            for reference in text_fields(fields, &REFERENCES) {
                let target = self.target(reference)?;
                add(self.size(target, level + 1)?);
            }
        }
        self.known.insert(address, Some(size));
        Ok(size)
    }

    fn target(&self, reference: &str) -> Result<&'a Value, Violation> {
        let within = reference.strip_prefix('#');
        let found = within.and_then(|place| {
            // A pointer may be percent-encoded; what stands in no name needs no decoding.
            let pointer = place.replace("%24", "$").replace("%25", "%");
            match place {
                "" => Some(self.root),
                _ if place.starts_with('/') => self.root.pointer(&pointer),
                _ => self.anchors.get(place).copied(),
            }
        });
        found.ok_or_else(|| {
            let text = format!("refers to {reference:?}, which is no place in it");
            Violation::Unusable(text)
        })
    }
}

fn text_fields<'a>(fields: &'a Map<String, Value>, names: &[&str]) -> Vec<&'a str> {
    let found = names.iter().filter_map(|name| fields.get(*name)?.as_str());
    found.collect()
}

fn parts(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(items) => items.iter().collect(),
        Value::Object(fields) => fields
            .iter()
            .filter(|(name, _)| !DATA.contains(&name.as_str()))
            .map(|(_, part)| part)
            .collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
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

    async fn check(schema: &Value, message: &Value) -> Result<(), Violation> {
        Schema::read(schema).await?.check(message).await
    }

    /// `length` definitions of which each refers to the next `times` times.
    fn chain(length: usize, times: usize) -> Value {
        let next = |number: usize| json!({"$ref": format!("#/$defs/d{number}")});
        let mut defs: Map<String, Value> = (0..length)
            .map(|number| {
                let all = vec![next(number + 1); times];
                (format!("d{number}"), json!({"allOf": all}))
            })
            .collect();
        defs.insert(format!("d{length}"), json!({"type": "object"}));
        json!({"$defs": defs, "$ref": "#/$defs/d0"})
    }

    #[tokio::test]
    async fn output_is_held_against_the_schema() {
        let schema = json!({"type": "object", "required": ["tags"],
            "properties": {"tags": {"type": "array", "items": {"type": "string"}, "minItems": 2}}});
        let good = check(&schema, &text(r#"{"tags": ["a", "b"]}"#)).await;
        assert_eq!(good, Ok(()));
        let few = check(&schema, &text(r#"{"tags": ["a"]}"#)).await;
        let few = few.unwrap_err().to_string();
        assert!(
            few.starts_with("the answer at /tags breaks the schema"),
            "{few}"
        );
        let prose = check(&schema, &text("Sure! Here you go")).await;
        assert!(matches!(prose, Err(Violation::NotJson(_))), "{prose:?}");
        let tool = json!({"content": [{"type": "tool_use", "input": {"tags": ["a", "b"]}}]});
        assert_eq!(check(&schema, &tool).await, Ok(()));
    }

    #[tokio::test]
    async fn a_schema_that_is_none_is_told_apart_from_a_bad_answer() {
        let violation = Schema::read(&json!({"type": 7})).await.unwrap_err();
        assert!(matches!(violation, Violation::Schema(_)), "{violation}");
    }

    #[tokio::test]
    async fn a_schema_that_would_run_for_ages_is_refused_before_it_runs() {
        assert_eq!(check(&chain(10, 2), &text("{}")).await, Ok(()));
        let forking = Schema::read(&chain(60, 2)).await.unwrap_err();
        assert!(
            forking.to_string().contains("unfolds to more than"),
            "{forking}"
        );
    }

    #[tokio::test]
    async fn a_schema_that_is_deeper_than_the_stack_is_refused() {
        assert_eq!(check(&chain(100, 1), &text("{}")).await, Ok(()));
        let deep = Schema::read(&chain(40_000, 1)).await.unwrap_err();
        assert!(deep.to_string().contains("levels deep"), "{deep}");
    }

    #[tokio::test]
    async fn recursive_schemas_are_fine() {
        let tree = json!({"type": "object", "properties": {
            "left": {"$ref": "#"}, "right": {"$ref": "#"}, "value": {"$ref": "#v"}},
            "$defs": {"v": {"$anchor": "v", "type": "number"}}});
        let good = text(r#"{"left": {"value": 1}, "right": {"left": {}}}"#);
        assert_eq!(check(&tree, &good).await, Ok(()));
        let bad = check(&tree, &text(r#"{"left": {"value": "x"}}"#)).await;
        assert!(matches!(bad, Err(Violation::Breaks { .. })), "{bad:?}");
        assert_eq!(check(&json!({"$ref": "#"}), &text("{}")).await, Ok(()));
    }

    #[tokio::test]
    async fn a_deep_answer_to_a_deep_recursive_schema_is_checked() {
        let mut schema = chain(150, 1);
        schema["$defs"]["d150"] = json!({"properties": {"a": {"$ref": "#/$defs/d0"}}});
        let answer = (0..100).fold("1".to_owned(), |inner, _| format!(r#"{{"a":{inner}}}"#));
        assert_eq!(check(&schema, &text(&answer)).await, Ok(()));
    }

    #[tokio::test]
    async fn references_out_of_the_schema_are_named() {
        let out = Schema::read(&json!({"$ref": "file:///etc/passwd"})).await;
        let out = out.unwrap_err().to_string();
        assert!(out.contains(r#"refers to "file:///etc/passwd""#), "{out}");
    }

    #[tokio::test]
    async fn work_that_takes_too_long_or_panics_is_given_up() {
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let late = apart(Duration::from_millis(1), move || receiver.recv()).await;
        assert_eq!(late, None);
        drop(sender);
        assert_eq!(apart(TIME_MAX, || 7).await, Some(7));
    }
}
