//! A job as its owner publishes it, and the refusal when it cannot be one.
//!
//! [`parse`] is the only judge of submissions: the producer, the CLI and the HTTP API all ask it.
//! It takes bytes, because what cannot be decoded must be described just as exactly as what can.

mod choices;

use std::borrow::Cow;

use fairlane_core::{JobId, Kind, ModelId, Origin, TenantId};
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};

use crate::callback::Callback;
use crate::letter::{DeadReason, Failure};

pub use choices::{DeferChoice, FallbackChoice, OnOverload, StopReasons};

/// Output limit of a job that uses the `prompt` shorthand and names none.
pub const DEFAULT_MAX_TOKENS: u64 = 1_024;

/// A submission that parsed. The model is named but not yet looked up.
#[derive(Debug, Clone, PartialEq)]
pub struct Submission {
    pub id: Option<JobId>,
    /// Defaults to the id.
    pub idempotency_key: Option<String>,
    pub origin: Origin,
    pub sla_seconds: Option<u64>,
    pub kind: Kind,
    pub model: ModelId,
    pub max_tokens: u64,
    /// A Messages API body without `stream`, which is ours to decide.
    pub request: Map<String, Value>,
    /// Unix milliseconds after which the job is no longer worth running.
    pub deadline_ms: Option<u64>,
    /// Unix milliseconds before which the job must not run.
    pub not_before_ms: Option<u64>,
    pub output_schema: Option<Value>,
    pub on_overload: OnOverload,
    /// `anthropic-version` of the request, if it is not the fleet's.
    pub api_version: Option<String>,
    /// `anthropic-beta` of the request.
    pub betas: Vec<String>,
    pub max_attempts: Option<u32>,
    /// Who hears of the job's end.
    pub callback: Option<Callback>,
    pub metadata: Option<Value>,
    /// Whether somebody listens to the parts of the answer while it is written.
    pub stream: bool,
    /// Which complete answers are results.
    pub stop_reasons: StopReasons,
}

const FIELDS: [&str; 22] = [
    "id",
    "tenant",
    "idempotency_key",
    "origin",
    "sla_seconds",
    "kind",
    "request",
    "prompt",
    "model",
    "deadline_ms",
    "not_before_ms",
    "output_schema",
    "on_overload",
    "api_version",
    "betas",
    "max_attempts",
    "callback",
    "metadata",
    "max_tokens",
    "system",
    "stream",
    "stop_reasons",
];

/// Parses the bytes published for `tenant`.
///
/// # Errors
/// A [`Failure`] with reason `undecodable` (not UTF-8, not JSON, nested too deeply; with the byte
/// offset) or `invalid_job` (with the field, its value and what would be right).
pub fn parse(body: &[u8], tenant: &TenantId) -> Result<Submission, Failure> {
    let mut fields = Fields(decode(body)?);
    fields.known_only()?;
    fields.tenant_matches(tenant)?;
    let origin = fields.origin()?;
    let id = fields.id()?;
    let kind = fields.kind()?;
    let request = fields.request()?;
    let model = model_of(&request)?;
    let max_tokens = max_tokens_of(&request)?;
    check_messages(&request)?;
    Ok(Submission {
        id,
        idempotency_key: fields.idempotency_key()?,
        origin,
        sla_seconds: fields.unsigned("sla_seconds", "a whole number of seconds")?,
        kind,
        model,
        max_tokens,
        request,
        deadline_ms: fields.unsigned("deadline_ms", "unix time in milliseconds")?,
        not_before_ms: fields.unsigned("not_before_ms", "unix time in milliseconds")?,
        output_schema: fields.output_schema()?,
        on_overload: choices::on_overload(fields.0.remove("on_overload"))?,
        api_version: choices::api_version(fields.0.remove("api_version"))?,
        betas: choices::betas(fields.0.remove("betas"))?,
        max_attempts: fields.max_attempts()?,
        callback: Callback::read(fields.0.remove("callback"))?,
        metadata: fields.0.remove("metadata"),
        stream: choices::stream(fields.0.remove("stream"))?,
        stop_reasons: choices::stop_reasons(fields.0.remove("stop_reasons"))?,
    })
}

/// Id and tenant of a body, as far as they can be read, even if the rest is broken: enough to
/// tell its owner what became of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Peek {
    pub id: Option<String>,
    pub tenant: Option<String>,
}

/// Reads `id` and `tenant` from the front of a body and stops at the first thing that is broken.
#[must_use]
pub fn peek(body: &[u8]) -> Peek {
    let text = String::from_utf8_lossy(body);
    let mut found = Peek::default();
    let mut reader = serde_json::Deserializer::from_str(&text);
    // The error, if any, is the very thing that `parse` reports in full.
    drop(serde::Deserializer::deserialize_map(
        &mut reader,
        PeekVisitor(&mut found),
    ));
    found
}

struct PeekVisitor<'a>(&'a mut Peek);

impl<'de> Visitor<'de> for PeekVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            match key.as_ref() {
                "id" => self.0.id = map.next_value::<Value>()?.as_str().map(str::to_owned),
                "tenant" => self.0.tenant = map.next_value::<Value>()?.as_str().map(str::to_owned),
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

fn decode(body: &[u8]) -> Result<Map<String, Value>, Failure> {
    let text = std::str::from_utf8(body).map_err(|error| {
        let offset = error.valid_up_to();
        Failure::new(
            DeadReason::Undecodable,
            format!("invalid UTF-8 at byte {offset}"),
        )
        .detail("invalid_utf8")
        .at(offset)
        .fix("strip the invalid bytes, or encode the text as UTF-8")
    })?;
    let mut reader = serde_json::Deserializer::from_str(text);
    let value: Value = serde_path_to_error::deserialize(&mut reader)
        .map_err(|error| not_json(text, &error))
        .and_then(|value| match reader.end() {
            Ok(()) => Ok(value),
            Err(error) => Err(describe(text, &error, None)),
        })?;
    match value {
        Value::Object(fields) => Ok(fields),
        other => Err(Failure::new(
            DeadReason::InvalidJob,
            format!("a job is a JSON object, not {}", sort_of(&other)),
        )),
    }
}

fn not_json(text: &str, error: &serde_path_to_error::Error<serde_json::Error>) -> Failure {
    let path = error.path().to_string();
    describe(text, error.inner(), (path != ".").then_some(path))
}

fn describe(text: &str, error: &serde_json::Error, path: Option<String>) -> Failure {
    let offset = if error.is_eof() {
        text.len()
    } else {
        offset_of(text, error.line(), error.column())
    };
    let detail = error.to_string();
    let detail = detail.split(" at line ").next().unwrap_or_default();
    let failure = if error.is_eof() {
        Failure::new(
            DeadReason::Undecodable,
            format!("unexpected end of JSON at byte {offset}"),
        )
        .detail("truncated")
        .fix("publish the whole document; this one was cut off")
    } else if detail.contains("recursion limit") {
        Failure::new(
            DeadReason::Undecodable,
            format!("nested too deeply: more than 127 levels at byte {offset}"),
        )
        .detail("too_deep")
        .fix("flatten the document")
    } else {
        Failure::new(
            DeadReason::Undecodable,
            format!("not JSON: {detail} at byte {offset}"),
        )
        .detail("not_json")
        .fix("publish one JSON object")
    };
    let failure = failure.at(offset);
    // A path thousands of levels deep explains nothing.
    match path.filter(|path| path.len() <= 200 && path != "?") {
        Some(path) => failure.field(path),
        None => failure,
    }
}

/// Byte offset of serde_json's line and column (both from 1, the column in bytes).
fn offset_of(text: &str, line: usize, column: usize) -> usize {
    let line_start: usize = text
        .split_inclusive('\n')
        .take(line.saturating_sub(1))
        .map(str::len)
        .sum();
    (line_start + column.saturating_sub(1)).min(text.len())
}

fn sort_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// A value as it appears in a message: short, whatever it was.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= 60 {
        return text;
    }
    text.chars().take(57).collect::<String>() + "..."
}

fn invalid(field: &str, message: String) -> Failure {
    Failure::new(DeadReason::InvalidJob, message).field(field)
}

struct Fields(Map<String, Value>);

impl Fields {
    fn known_only(&self) -> Result<(), Failure> {
        if let Some(value) = self.0.get("priority") {
            return Err(invalid(
                "priority",
                format!(
                    "priority is not the caller's to set (found {})",
                    shown(value)
                ),
            )
            .detail("priority_given")
            .fix("remove it; give origin, and sla_seconds if the job has a deadline to meet"));
        }
        let Some(unknown) = self.0.keys().find(|key| !FIELDS.contains(&key.as_str())) else {
            return Ok(());
        };
        let nearest = FIELDS
            .iter()
            .map(|field| (strsim::damerau_levenshtein(field, unknown), field))
            .min()
            .filter(|(distance, _)| *distance <= 3);
        let shown: String = unknown.chars().take(60).collect();
        let failure = invalid(&shown, format!("unknown field {shown:?}")).detail("unknown_field");
        Err(match nearest {
            Some((_, field)) => failure.fix(format!("did you mean {field:?}?")),
            None => failure.fix("put data of your own under metadata"),
        })
    }

    fn tenant_matches(&self, tenant: &TenantId) -> Result<(), Failure> {
        match self.0.get("tenant") {
            None => Ok(()),
            Some(Value::String(named)) if named == tenant.as_str() => Ok(()),
            Some(other) => Err(invalid(
                "tenant",
                format!(
                    "tenant {} does not match the subject's, {tenant:?}",
                    shown(other)
                ),
            )
            .fix("publish to the subject of the tenant that owns the job")),
        }
    }

    fn text(&self, field: &str, right: &str) -> Result<Option<&str>, Failure> {
        match self.0.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(invalid(
                field,
                format!("{field} is {}: {}", sort_of(other), shown(other)),
            )
            .fix(format!("give {right}"))),
        }
    }

    fn unsigned(&self, field: &str, right: &str) -> Result<Option<u64>, Failure> {
        match self.0.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_u64() {
                Some(number) => Ok(Some(number)),
                None => Err(invalid(field, format!("{field} is {}", shown(value)))
                    .fix(format!("give {right}"))),
            },
        }
    }

    fn origin(&self) -> Result<Origin, Failure> {
        const RIGHT: &str = "one of user_action, scheduled, batch_job";
        let Some(word) = self.text("origin", RIGHT)? else {
            return Err(invalid("origin", "origin is missing".into()).fix(format!("give {RIGHT}")));
        };
        Origin::parse(word).ok_or_else(|| {
            let shown: String = word.chars().take(60).collect();
            invalid("origin", format!("origin {shown:?} is not known")).fix(format!("give {RIGHT}"))
        })
    }

    fn id(&self) -> Result<Option<JobId>, Failure> {
        let Some(text) = self.text("id", "a string")? else {
            return Ok(None);
        };
        JobId::parse(text)
            .map(Some)
            .map_err(|error| invalid("id", error.to_string()))
    }

    fn kind(&self) -> Result<Kind, Failure> {
        let Some(text) = self.text("kind", "a word such as tagging")? else {
            return Err(invalid("kind", "kind is missing".into())
                .fix("say what sort of work it is, for example tagging"));
        };
        Kind::parse(text).map_err(|error| invalid("kind", error.to_string()))
    }

    fn idempotency_key(&self) -> Result<Option<String>, Failure> {
        let right = "1 to 256 characters that mean the same job each time";
        match self.text("idempotency_key", right)? {
            None => Ok(None),
            // The key travels in a header, which has one line and loses spaces at its ends.
            Some(key) if key.contains(char::is_control) || key.trim() != key => Err(invalid(
                "idempotency_key",
                "idempotency_key has control characters, or spaces at an end".to_owned(),
            )
            .fix("give one line of text without spaces around it")),
            Some(key) if (1..=256).contains(&key.len()) => Ok(Some(key.to_owned())),
            Some(key) => Err(invalid(
                "idempotency_key",
                format!("idempotency_key is {} bytes long", key.len()),
            )
            .fix(format!("give {right}"))),
        }
    }

    fn max_attempts(&self) -> Result<Option<u32>, Failure> {
        let right = "a number of attempts from 1 to 20";
        match self.unsigned("max_attempts", right)? {
            None => Ok(None),
            Some(number @ 1..=20) => Ok(u32::try_from(number).ok()),
            Some(number) => Err(invalid("max_attempts", format!("max_attempts is {number}"))
                .fix(format!("give {right}"))),
        }
    }

    fn output_schema(&mut self) -> Result<Option<Value>, Failure> {
        match self.0.remove("output_schema") {
            None | Some(Value::Null) => Ok(None),
            Some(schema @ Value::Object(_)) => Ok(Some(schema)),
            Some(other) => Err(invalid(
                "output_schema",
                format!("output_schema is {}", sort_of(&other)),
            )
            .fix("give a JSON Schema object")),
        }
    }

    /// The Messages API body, given whole or by the `prompt` + `model` shorthand.
    fn request(&mut self) -> Result<Map<String, Value>, Failure> {
        let mut request = match (self.0.remove("request"), self.0.contains_key("prompt")) {
            (Some(Value::Object(request)), false) => request,
            (Some(Value::Object(_)), true) => {
                return Err(
                    invalid("prompt", "both request and prompt are given".into())
                        .fix("give one of them"),
                );
            }
            (Some(other), _) => {
                return Err(
                    invalid("request", format!("request is {}", sort_of(&other)))
                        .fix("give a Messages API body: model, max_tokens, messages"),
                );
            }
            (None, true) => return self.shorthand(),
            (None, false) => {
                return Err(invalid("request", "request is missing".into())
                    .fix("give a Messages API body, or prompt and model"));
            }
        };
        for field in ["model", "max_tokens", "system"] {
            if self.0.contains_key(field) {
                return Err(invalid(field, format!("{field} stands beside request"))
                    .fix(format!("move it into request.{field}")));
            }
        }
        request.remove("stream");
        Ok(request)
    }

    fn shorthand(&mut self) -> Result<Map<String, Value>, Failure> {
        let Some(prompt) = self.text("prompt", "the text of the prompt")? else {
            return Err(invalid("prompt", "prompt is empty".into()).fix("give its text"));
        };
        let message = serde_json::json!({"role": "user", "content": prompt});
        let mut request = Map::new();
        request.insert("messages".into(), Value::Array(vec![message]));
        let max_tokens = self
            .0
            .remove("max_tokens")
            .unwrap_or_else(|| DEFAULT_MAX_TOKENS.into());
        request.insert("max_tokens".into(), max_tokens);
        for field in ["model", "system"] {
            if let Some(value) = self.0.remove(field) {
                request.insert(field.into(), value);
            }
        }
        Ok(request)
    }
}

fn model_of(request: &Map<String, Value>) -> Result<ModelId, Failure> {
    match request.get("model") {
        Some(Value::String(text)) => {
            ModelId::parse(text).map_err(|error| invalid("request.model", error.to_string()))
        }
        Some(other) => Err(invalid(
            "request.model",
            format!("request.model is {}", sort_of(other)),
        )
        .fix("give a model id as text")),
        None => Err(invalid("request.model", "request.model is missing".into())
            .fix("name the model, for example claude-haiku-4-5")),
    }
}

fn max_tokens_of(request: &Map<String, Value>) -> Result<u64, Failure> {
    let right = "give the largest number of tokens the answer may have, 1 or more";
    match request.get("max_tokens") {
        Some(value) => match value.as_u64() {
            Some(number) if number > 0 => Ok(number),
            _ => Err(invalid(
                "request.max_tokens",
                format!("request.max_tokens is {}", shown(value)),
            )
            .fix(right)),
        },
        None => {
            Err(invalid("request.max_tokens", "request.max_tokens is missing".into()).fix(right))
        }
    }
}

fn check_messages(request: &Map<String, Value>) -> Result<(), Failure> {
    let right = "give a list of messages, each with role and content";
    let messages = match request.get("messages") {
        Some(Value::Array(messages)) if !messages.is_empty() => messages,
        Some(Value::Array(_)) => {
            return Err(invalid("request.messages", "request.messages is empty".into()).fix(right));
        }
        Some(other) => {
            return Err(invalid(
                "request.messages",
                format!("request.messages is {}", sort_of(other)),
            )
            .fix(right));
        }
        None => {
            return Err(
                invalid("request.messages", "request.messages is missing".into()).fix(right),
            );
        }
    };
    for (index, message) in messages.iter().enumerate() {
        let field = format!("request.messages[{index}]");
        let role = message.get("role").and_then(Value::as_str);
        let content = message.get("content");
        if !matches!(role, Some("user" | "assistant" | "system")) {
            return Err(invalid(
                &format!("{field}.role"),
                format!(
                    "{field}.role is {}",
                    message.get("role").map_or("missing".into(), shown)
                ),
            )
            .fix("give user or assistant"));
        }
        if !matches!(content, Some(Value::String(_) | Value::Array(_))) {
            return Err(invalid(
                &format!("{field}.content"),
                format!("{field}.content is {}", content.map_or("missing", sort_of)),
            )
            .fix("give text or a list of content blocks"));
        }
    }
    Ok(())
}

/// `body`, which parsed, with another request: in the long form, whatever form it had.
///
/// # Errors
/// The JSON error, if it did not parse.
pub fn with_request(
    body: &[u8],
    request: &Map<String, Value>,
) -> Result<Vec<u8>, serde_json::Error> {
    let mut fields: Map<String, Value> = serde_json::from_slice(body)?;
    for field in ["prompt", "model", "max_tokens", "system"] {
        fields.remove(field);
    }
    fields.insert("request".to_owned(), Value::Object(request.clone()));
    serde_json::to_vec(&fields)
}

/// Characters of text in a request that the model will read, and the number of its images.
///
/// Base64 data is not text: an image is counted as one image, whatever its size in bytes.
#[must_use]
pub fn measure(request: &Map<String, Value>) -> Measure {
    let mut measure = Measure::default();
    for field in ["system", "messages", "tools"] {
        if let Some(value) = request.get(field) {
            measure.add(value);
        }
    }
    measure
}

/// Size of a request as far as tokens depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Measure {
    pub characters: u64,
    /// How many of them are not ASCII: they are worth more tokens.
    pub not_ascii: u64,
    pub images: u64,
}

impl Measure {
    // The depth is bounded by the JSON parser's own limit.
    fn add(&mut self, value: &Value) {
        match value {
            Value::String(text) => {
                let not_ascii = text.chars().filter(|char| !char.is_ascii()).count();
                self.characters += text.chars().count() as u64;
                self.not_ascii += not_ascii as u64;
            }
            Value::Array(items) => items.iter().for_each(|item| self.add(item)),
            Value::Object(fields) => {
                if fields.get("type").and_then(Value::as_str) == Some("image") {
                    self.images += 1;
                    return;
                }
                for (name, item) in fields {
                    self.characters += name.len() as u64;
                    self.add(item);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => self.characters += 4,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acme() -> TenantId {
        TenantId::parse("acme").unwrap()
    }

    fn refused(body: &str) -> Failure {
        parse(body.as_bytes(), &acme()).unwrap_err()
    }

    const GOOD: &str = r#"{"id":"a-1","tenant":"acme","origin":"user_action","kind":"tagging","request":{"model":"claude-haiku-4-5","max_tokens":64,"stream":true,"messages":[{"role":"user","content":"hi"}]}}"#;

    #[test]
    fn a_whole_submission_parses_and_loses_stream() {
        let job = parse(GOOD.as_bytes(), &acme()).unwrap();
        assert_eq!(job.id.unwrap().as_str(), "a-1");
        assert_eq!(job.origin, Origin::UserAction);
        assert_eq!(job.max_tokens, 64);
        assert!(!job.request.contains_key("stream"));
    }

    #[test]
    fn prompt_and_model_are_a_shorthand_for_request() {
        let body =
            r#"{"origin":"scheduled","kind":"tagging","prompt":"hi","model":"claude-haiku-4-5"}"#;
        let job = parse(body.as_bytes(), &acme()).unwrap();
        assert_eq!(job.max_tokens, DEFAULT_MAX_TOKENS);
        assert_eq!(job.request["messages"][0]["content"], "hi");
    }

    #[test]
    fn another_request_takes_the_place_of_either_form() {
        let short = r#"{"origin":"scheduled","kind":"tagging","prompt":"hi","model":"m","system":"s","metadata":7}"#;
        for body in [GOOD, short] {
            let mut job = parse(body.as_bytes(), &acme()).unwrap();
            job.request["messages"][0]["content"] = "h".into();
            let body = with_request(body.as_bytes(), &job.request).unwrap();
            assert_eq!(parse(&body, &acme()), Ok(job));
        }
    }

    #[test]
    fn what_cannot_be_decoded_is_described_to_the_byte() {
        let broken = parse(b"{\"id\":\"a\xff\"}", &acme()).unwrap_err();
        assert_eq!(broken.reason, DeadReason::Undecodable);
        assert_eq!(
            (broken.offset, broken.message.as_str()),
            (Some(8), "invalid UTF-8 at byte 8")
        );

        let cut = refused(r#"{"id": "wp-0500", "request": {"model": "claude-haiku-"#);
        assert_eq!(cut.message, "unexpected end of JSON at byte 53");

        let csv = refused("wp-0017;broken;export");
        assert_eq!(csv.message, "not JSON: expected value at byte 0");

        let tail = refused(&format!("{GOOD} x"));
        assert!(
            tail.message.starts_with("not JSON: trailing characters"),
            "{}",
            tail.message
        );
    }

    #[test]
    fn deep_nesting_is_refused_without_a_stack_overflow() {
        let deep = format!(
            r#"{{"request":{}1{}}}"#,
            r#"{"a":"#.repeat(100_000),
            "}".repeat(100_000)
        );
        assert!(refused(&deep).message.starts_with("nested too deeply"));
    }

    #[test]
    fn half_a_surrogate_pair_is_refused_with_its_field() {
        let body = GOOD.replace("hi", r"\ud83d hi");
        let failure = refused(&body);
        assert_eq!(
            failure.field.as_deref(),
            Some("request.messages[0].content")
        );
    }

    #[test]
    fn refusals_name_the_field_the_value_and_what_would_be_right() {
        let cases = [
            (
                GOOD.replace("user_action", "user-action"),
                "origin",
                "origin \"user-action\" is not known",
            ),
            (
                GOOD.replace(r#""origin":"user_action","#, ""),
                "origin",
                "origin is missing",
            ),
            (
                GOOD.replace(r#""kind""#, r#""kid""#),
                "kid",
                "unknown field \"kid\"",
            ),
            (
                GOOD.replace(r#""id":"a-1""#, r#""id":"a.1""#),
                "id",
                "id \"a.1\" contains '.'",
            ),
            (
                GOOD.replace(r#""id":"a-1""#, r#""id":7"#),
                "id",
                "id is a number: 7",
            ),
            (
                GOOD.replace(r#""id":"a-1""#, r#""idempotency_key":"a\nNats-TTL: 1""#),
                "idempotency_key",
                "idempotency_key has control characters",
            ),
            (
                GOOD.replace(r#""id":"a-1""#, r#""idempotency_key":"a ""#),
                "idempotency_key",
                "idempotency_key has control characters, or spaces at an end",
            ),
            (
                GOOD.replace("acme", "other"),
                "tenant",
                "tenant \"other\" does not match",
            ),
            (
                GOOD.replace("64", "0"),
                "request.max_tokens",
                "request.max_tokens is 0",
            ),
            (
                GOOD.replace("\"user\"", "\"robot\""),
                "request.messages[0].role",
                "request.messages[0].role is \"robot\"",
            ),
            (
                GOOD.replace(r#"{"role":"user","content":"hi"}"#, ""),
                "request.messages",
                "request.messages is empty",
            ),
        ];
        for (body, field, message) in cases {
            let failure = refused(&body);
            assert_eq!(failure.reason, DeadReason::InvalidJob, "{body}");
            assert_eq!(failure.field.as_deref(), Some(field), "{body}");
            assert!(failure.message.starts_with(message), "{}", failure.message);
        }
    }

    #[test]
    fn a_priority_field_is_refused_with_an_explanation() {
        let failure = refused(&GOOD.replace("{\"id\"", "{\"priority\":\"critical\",\"id\""));
        assert_eq!(failure.field.as_deref(), Some("priority"));
        assert!(failure.fix.unwrap().contains("origin"));
    }

    #[test]
    fn peek_reads_what_comes_before_the_break() {
        let peeked = peek(b"{\"id\":\"a\",\"tenant\":\"t\",\"x\":\"\xff\x00\"}");
        assert_eq!(
            (peeked.id.as_deref(), peeked.tenant.as_deref()),
            (Some("a"), Some("t"))
        );
        let deep = format!(r#"{{"id":"a","request":{}"#, r#"{"a":"#.repeat(100_000));
        assert_eq!(peek(deep.as_bytes()).id.as_deref(), Some("a"));
        assert_eq!(peek(b"wp;broken"), Peek::default());
        assert_eq!(peek(b"[1]"), Peek::default());
    }

    #[test]
    fn base64_images_do_not_count_as_text() {
        let request = serde_json::json!({"messages": [{"role": "user", "content": [
            {"type": "image", "source": {"type": "base64", "data": "A".repeat(100_000)}},
            {"type": "text", "text": "hello"}]}]});
        let measure = measure(request.as_object().unwrap());
        assert_eq!(measure.images, 1);
        assert!(measure.characters < 100, "{measure:?}");
    }
}
