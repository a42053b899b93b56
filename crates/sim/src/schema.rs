//! JSON schemas: what strict mode refuses, and the smallest instance that is valid.

use serde_json::{Map, Value, json};

use crate::prose::word;

/// Nesting at which an instance stops growing; deeper schemas get `null`.
const DEPTH_MAX: usize = 32;
/// The most elements generated for one array, whatever `minItems` says.
const ITEMS_MAX: u64 = 1_000;
/// The most values in one instance: branching recursion would otherwise grow with the power of the depth.
const VALUES_MAX: u32 = 10_000;

/// Why strict mode refuses a schema, if it does: open objects, recursion, numeric or length bounds.
#[must_use]
pub fn strict_problem(schema: &Value) -> Option<String> {
    strict(schema, schema, &mut Vec::new())
}

fn strict<'a>(schema: &'a Value, root: &'a Value, path: &mut Vec<&'a str>) -> Option<String> {
    let fields = schema.as_object()?;
    if let Some(target) = fields.get("$ref").and_then(Value::as_str) {
        if path.contains(&target) {
            return Some(format!("recursive reference {target} is not supported"));
        }
        path.push(target);
        let problem = strict(resolve(root, target)?, root, path);
        path.pop();
        return problem;
    }
    const BOUNDS: [&str; 7] = [
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "minLength",
        "maxLength",
    ];
    if let Some(bound) = BOUNDS.iter().find(|bound| fields.contains_key(**bound)) {
        return Some(format!("{bound} is not supported in strict schemas"));
    }
    let is_object = fields.get("type").is_some_and(|kind| kind == "object")
        || fields.contains_key("properties");
    if is_object && fields.get("additionalProperties") != Some(&Value::Bool(false)) {
        return Some(
            "for 'object' type, 'additionalProperties' must be explicitly set to false".to_owned(),
        );
    }
    let properties = fields.get("properties").and_then(Value::as_object);
    let lists = ["anyOf", "oneOf", "allOf"]
        .into_iter()
        .filter_map(|key| fields.get(key).and_then(Value::as_array))
        .flatten();
    properties
        .into_iter()
        .flat_map(Map::values)
        .chain(fields.get("items"))
        .chain(lists)
        .find_map(|inner| strict(inner, root, path))
}

/// The smallest useful instance of a schema: required properties (all of them when none are named as required), one
/// element per array unless `minItems` or `maxItems` say otherwise. The same seed gives the same instance.
#[must_use]
pub fn instance(schema: &Value, seed: u64) -> Value {
    Builder {
        root: schema,
        next: seed,
        left: VALUES_MAX,
    }
    .build(schema, 0)
}

fn resolve<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    reference
        .strip_prefix('#')
        .and_then(|pointer| root.pointer(pointer))
}

struct Builder<'a> {
    root: &'a Value,
    next: u64,
    left: u32,
}

impl Builder<'_> {
    fn build(&mut self, schema: &Value, depth: usize) -> Value {
        if depth > DEPTH_MAX || self.left == 0 {
            return Value::Null;
        }
        self.left -= 1;
        if let Some(target) = schema["$ref"].as_str() {
            return match resolve(self.root, target) {
                Some(found) => self.build(&found.clone(), depth + 1),
                None => Value::Null,
            };
        }
        if let Some(value) = schema.get("const") {
            return value.clone();
        }
        if let Some(choices) = schema["enum"].as_array().filter(|list| !list.is_empty()) {
            return choices[self.pick(choices.len())].clone();
        }
        for key in ["anyOf", "oneOf"] {
            if let Some(first) = schema[key].as_array().and_then(|list| list.first()) {
                return self.build(first, depth + 1);
            }
        }
        if let Some(parts) = schema["allOf"].as_array() {
            return self.build(&merged(schema, parts), depth + 1);
        }
        match kind(schema) {
            "object" => self.object(schema, depth),
            "array" => self.array(schema, depth),
            "string" => Value::String(self.string(schema)),
            "integer" => json!(integer(schema)),
            "number" => number(schema),
            "boolean" => Value::Bool(self.pick(2) == 0),
            _ => Value::Null,
        }
    }

    fn object(&mut self, schema: &Value, depth: usize) -> Value {
        let empty = Map::new();
        let properties = schema["properties"].as_object().unwrap_or(&empty);
        let names: Vec<&str> = match schema["required"].as_array() {
            Some(required) => required.iter().filter_map(Value::as_str).collect(),
            None => properties.keys().map(String::as_str).collect(),
        };
        let mut fields = Map::new();
        for name in names {
            let inner = properties.get(name).unwrap_or(&Value::Null);
            fields.insert(name.to_owned(), self.build(inner, depth + 1));
        }
        Value::Object(fields)
    }

    fn array(&mut self, schema: &Value, depth: usize) -> Value {
        let least = schema["minItems"].as_u64().unwrap_or(1);
        let most = schema["maxItems"].as_u64().unwrap_or(ITEMS_MAX);
        let fixed = schema["prefixItems"].as_array();
        let count = least.min(most).min(ITEMS_MAX);
        let mut list: Vec<Value> = Vec::new();
        for at in 0..count {
            let at = usize::try_from(at).unwrap_or(usize::MAX);
            let item = fixed
                .and_then(|items| items.get(at))
                .unwrap_or(&schema["items"]);
            let mut value = self.build(item, depth + 1);
            if schema["uniqueItems"] == true && list.contains(&value) {
                value = distinct(value, at);
            }
            list.push(value);
        }
        Value::Array(list)
    }

    fn string(&mut self, schema: &Value) -> String {
        match schema["format"].as_str() {
            Some("date-time") => return "2026-11-30T12:00:00Z".to_owned(),
            Some("date") => return "2026-11-30".to_owned(),
            Some("time") => return "12:00:00Z".to_owned(),
            Some("email") => return "someone@example.com".to_owned(),
            Some("uri") => return "https://example.com/".to_owned(),
            Some("uuid") => return "0f1e2d3c-4b5a-4968-8776-655443322110".to_owned(),
            _ => {}
        }
        self.next = self.next.wrapping_add(1);
        let mut text = word(self.next).to_owned();
        let least = schema["minLength"].as_u64().unwrap_or(0).min(100_000);
        while (text.len() as u64) < least {
            text.push('a');
        }
        if let Some(most) = schema["maxLength"].as_u64() {
            text.truncate(usize::try_from(most).unwrap_or(usize::MAX));
        }
        text
    }

    fn pick(&mut self, choices: usize) -> usize {
        self.next = self.next.wrapping_add(1);
        usize::try_from(self.next % choices.max(1) as u64).unwrap_or(0)
    }
}

fn kind(schema: &Value) -> &str {
    match &schema["type"] {
        Value::String(kind) => kind,
        Value::Array(kinds) => kinds
            .iter()
            .filter_map(Value::as_str)
            .find(|kind| *kind != "null")
            .unwrap_or("null"),
        _ if schema.get("properties").is_some() => "object",
        _ if schema.get("items").is_some() => "array",
        _ => "string",
    }
}

/// A shallow union of an object schema and its `allOf` parts: properties and required names add up.
fn merged(schema: &Value, parts: &[Value]) -> Value {
    let mut all = schema.as_object().cloned().unwrap_or_default();
    all.remove("allOf");
    for (key, value) in parts.iter().filter_map(Value::as_object).flatten() {
        match (all.get_mut(key), value) {
            (Some(Value::Object(into)), Value::Object(more)) => {
                into.extend(more.iter().map(|(k, v)| (k.clone(), v.clone())));
            }
            (Some(Value::Array(into)), Value::Array(more)) => into.extend(more.iter().cloned()),
            _ => {
                all.insert(key.clone(), value.clone());
            }
        }
    }
    Value::Object(all)
}

fn integer(schema: &Value) -> i64 {
    let least = schema["minimum"]
        .as_i64()
        .or_else(|| schema["exclusiveMinimum"].as_i64().map(|n| n + 1));
    let most = schema["maximum"]
        .as_i64()
        .or_else(|| schema["exclusiveMaximum"].as_i64().map(|n| n - 1));
    let wanted = 1.max(least.unwrap_or(1)).min(most.unwrap_or(i64::MAX));
    match schema["multipleOf"].as_i64() {
        Some(step) if step > 0 => (wanted + step - 1).div_euclid(step) * step,
        _ => wanted,
    }
}

fn number(schema: &Value) -> Value {
    let bound = |key: &str| schema[key].as_f64();
    let least = bound("minimum").or_else(|| bound("exclusiveMinimum").map(|n| n + 0.5));
    let most = bound("maximum").or_else(|| bound("exclusiveMaximum").map(|n| n - 0.5));
    json!(
        0.5_f64
            .max(least.unwrap_or(0.5))
            .min(most.unwrap_or(f64::MAX))
    )
}

/// Another value of the same type, for arrays that allow no repetition.
fn distinct(value: Value, at: usize) -> Value {
    match value {
        Value::String(text) => Value::String(format!("{text}{at}")),
        Value::Number(number) => {
            json!(number.as_i64().unwrap_or(0) + i64::try_from(at).unwrap_or(0))
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(schema: Value) -> Value {
        let validator = jsonschema::validator_for(&schema).unwrap();
        for seed in 0..20 {
            let value = instance(&schema, seed);
            assert!(validator.is_valid(&value), "{schema}: {value}");
        }
        instance(&schema, 7)
    }

    #[test]
    fn instances_are_valid_for_the_usual_schemas() {
        check(
            json!({"type": "object", "properties": {"tags": {"type": "array", "items": {"type": "string"}, "minItems": 5}}, "required": ["tags"], "additionalProperties": false}),
        );
        check(
            json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": ["null", "string"]}, "c": {"type": "boolean"}, "d": {"type": "number"}}}),
        );
        check(json!({"enum": ["x", 3, null]}));
        check(json!({"const": {"k": 1}}));
        check(json!({"anyOf": [{"type": "string"}, {"type": "null"}]}));
        check(
            json!({"allOf": [{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}, {"properties": {"b": {"type": "integer"}}, "required": ["b"]}]}),
        );
        check(
            json!({"$defs": {"t": {"type": "string"}}, "type": "array", "items": {"$ref": "#/$defs/t"}, "minItems": 3, "uniqueItems": true}),
        );
        check(json!({"type": "string", "minLength": 20, "maxLength": 25}));
        check(json!({"type": "integer", "minimum": 5, "multipleOf": 4}));
        check(json!({"type": "number", "exclusiveMinimum": 3, "maximum": 4}));
        check(json!({"type": "array", "maxItems": 0}));
        check(json!({"type": "string", "format": "date-time"}));
    }

    #[test]
    fn min_items_and_required_are_honoured() {
        let value = check(
            json!({"type": "object", "properties": {"tags": {"type": "array", "minItems": 5, "items": {"type": "string"}}, "more": {"type": "string"}}, "required": ["tags"]}),
        );
        assert_eq!(value["tags"].as_array().unwrap().len(), 5);
        assert!(value.get("more").is_none());
    }

    #[test]
    fn recursion_ends() {
        let tree =
            json!({"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]});
        assert!(instance(&tree, 1).is_object());
        let wide =
            json!({"type": "object", "properties": {"l": {"$ref": "#"}, "r": {"$ref": "#"}}});
        assert!(instance(&wide, 1).is_object());
    }

    #[test]
    fn strict_mode_names_what_it_refuses() {
        let problem = |schema| strict_problem(&schema).unwrap_or_default();
        assert!(problem(json!({"type": "object"})).contains("additionalProperties"));
        assert!(problem(json!({"type": "object", "additionalProperties": false, "properties": {"n": {"type": "integer", "minimum": 1}}})).contains("minimum"));
        assert!(problem(json!({"$defs": {"n": {"type": "object", "additionalProperties": false, "properties": {"next": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"})).contains("recursive"));
        assert_eq!(
            problem(
                json!({"type": "object", "additionalProperties": false, "properties": {"tags": {"type": "array", "items": {"type": "string"}}}})
            ),
            ""
        );
    }
}
