//! Whether the API can be asked to keep an answer to a schema.
//!
//! `output_config.format` knows a part of JSON Schema, and refuses the rest. A schema is sent only if
//! it is made of nothing else than what is listed here; any other is only checked against the answer.

use serde_json::{Map, Value};

/// The API's bounds.
const OPTIONAL_MAX: usize = 24;
const UNIONS_MAX: usize = 16;
/// Ours: what is deeper refers to itself, or is slow to compile.
const DEPTH_MAX: usize = 32;
const PARTS_MAX: usize = 2_000;

/// String formats the API keeps to.
const FORMATS: [&str; 10] = [
    "date",
    "date-time",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "time",
    "uri",
    "uuid",
];

/// Whether the API takes this schema as an output format.
#[must_use]
pub fn is_taken(schema: &Value) -> bool {
    let mut count = Count {
        root: schema,
        optional: 0,
        unions: 0,
        parts: 0,
    };
    let is_object = schema.get("type").is_some_and(|kind| kind == "object");
    is_object
        && count.part(schema, 0).is_some()
        && count.optional <= OPTIONAL_MAX
        && count.unions <= UNIONS_MAX
}

struct Count<'a> {
    root: &'a Value,
    optional: usize,
    unions: usize,
    parts: usize,
}

impl<'a> Count<'a> {
    /// Counts what a part of the schema and all below it use. None if something is not taken.
    fn part(&mut self, part: &'a Value, depth: usize) -> Option<()> {
        self.parts += 1;
        if depth > DEPTH_MAX || self.parts > PARTS_MAX {
            return None;
        }
        let fields = part.as_object()?;
        for (name, value) in fields {
            match name.as_str() {
                "title" | "description" | "const" => {}
                "type" => self.kind(value)?,
                "enum" => value
                    .as_array()
                    .filter(|values| values.iter().all(is_scalar))
                    .map(drop)?,
                "format" => value
                    .as_str()
                    .filter(|word| FORMATS.contains(word))
                    .map(drop)?,
                "required" => value.as_array().map(drop)?,
                "additionalProperties" if *value == Value::Bool(false) => {}
                "properties" => self.properties(fields, value.as_object()?, depth)?,
                "items" => self.part(value, depth + 1)?,
                "minItems" if matches!(value.as_u64(), Some(0 | 1)) => {}
                "anyOf" => {
                    self.unions += 1;
                    for part in value.as_array()? {
                        self.part(part, depth + 1)?;
                    }
                }
                // Followed where they are referred to.
                "$defs" if depth == 0 => {
                    value.as_object()?;
                }
                "$ref" => {
                    // A schema that refers to itself comes to the depth's end.
                    let target = value.as_str()?.strip_prefix('#')?;
                    self.part(self.root.pointer(target)?, depth + 1)?;
                }
                _ => return None,
            }
        }
        let is_object = fields.get("type").is_some_and(|kind| kind == "object");
        let is_closed = fields.get("additionalProperties") == Some(&Value::Bool(false));
        let has_properties = fields.contains_key("properties");
        (is_closed || !(is_object || has_properties)).then_some(())
    }

    fn kind(&mut self, kind: &Value) -> Option<()> {
        match kind {
            Value::String(_) => Some(()),
            // An object among them would have to be closed, and nobody checks it.
            Value::Array(kinds) if !kinds.iter().any(|kind| kind == "object") => {
                self.unions += 1;
                Some(())
            }
            Value::Array(_)
            | Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::Object(_) => None,
        }
    }

    fn properties(
        &mut self,
        fields: &Map<String, Value>,
        properties: &'a Map<String, Value>,
        depth: usize,
    ) -> Option<()> {
        let required = fields.get("required").and_then(Value::as_array);
        for (name, part) in properties {
            let is_required =
                required.is_some_and(|names| names.iter().any(|required| required == name));
            self.optional += usize::from(!is_required);
            self.part(part, depth + 1)?;
        }
        Some(())
    }
}

fn is_scalar(value: &Value) -> bool {
    !value.is_object() && !value.is_array()
}

#[cfg(test)]
mod tests {
    use fairlane_sim::schema::strict_problem;
    use serde_json::json;

    use super::*;

    fn object(properties: &Value) -> Value {
        json!({"type": "object", "additionalProperties": false, "properties": properties})
    }

    /// Ours and the simulator's word; what we send it must take.
    fn taken(schema: &Value) -> bool {
        let taken = is_taken(schema);
        if taken {
            assert_eq!(strict_problem(schema), None, "{schema}");
        }
        taken
    }

    #[test]
    fn what_people_write_for_structured_output_is_taken() {
        let tags = json!({"type": "array", "minItems": 1, "items": {"type": "string"}});
        let mut schema = object(&json!({
            "tags": tags,
            "mood": {"enum": ["calm", "wild", null]},
            "taken": {"type": ["string", "null"], "format": "date"},
            "place": {"$ref": "#/$defs/place"},
            "size": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        }));
        schema["required"] = json!(["tags"]);
        schema["$defs"] = json!({"place": object(&json!({"city": {"type": "string"}}))});
        assert!(taken(&schema));
    }

    #[test]
    fn what_the_api_does_not_know_is_only_checked() {
        for property in [
            json!({"type": "integer", "minimum": 1}),
            json!({"type": "string", "maxLength": 9}),
            json!({"type": "string", "pattern": "^a"}),
            json!({"type": "array", "minItems": 2}),
            json!({"type": "object", "properties": {}}),
            json!({"type": ["object", "null"]}),
            json!({"oneOf": [{"type": "string"}]}),
            json!({"$ref": "#"}),
            json!({"$ref": "#/$defs/none"}),
            json!({"$ref": "https://example.com/schema"}),
            json!({"type": "string", "format": "regex"}),
            json!({"enum": [{}]}),
            json!(true),
        ] {
            assert!(!taken(&object(&json!({"a": property}))), "{property}");
        }
        assert!(!taken(&json!({"type": "object", "properties": {}})));
        assert!(!taken(&json!({"type": "array", "items": {}})));
    }

    #[test]
    fn the_numbers_of_the_api_are_kept() {
        let many = |count: usize, part: &Value| {
            let properties: Map<String, Value> = (0..count)
                .map(|number| (format!("p{number}"), part.clone()))
                .collect();
            object(&Value::Object(properties))
        };
        let text = json!({"type": "string"});
        assert!(taken(&many(24, &text)));
        assert!(!taken(&many(25, &text)));
        let union = json!({"type": ["string", "null"]});
        assert!(taken(&many(16, &union)));
        assert!(!taken(&many(17, &union)));
    }

    #[test]
    fn references_that_fork_come_to_an_end() {
        let next = |number: usize| json!({"$ref": format!("#/$defs/d{number}")});
        let mut defs = Map::new();
        for number in 0..20 {
            let both = json!({"anyOf": [next(number + 1), next(number + 1)]});
            defs.insert(format!("d{number}"), both);
        }
        defs.insert("d20".into(), json!({"type": "string"}));
        let mut schema = object(&json!({"a": next(0)}));
        schema["$defs"] = Value::Object(defs);
        assert!(!taken(&schema));
    }
}
