//! A validated body, read once: what the rest of the simulator needs to know about a call.

use serde_json::{Map, Value};

use crate::{
    cache::{Boundary, Ttl},
    directive::{self, Directives},
    failure::Failure,
    hash::{self, Hash},
    models::{Model, Thinking},
    tokens::{self, Counter},
};

/// Tokens a message costs besides its content.
const MESSAGE_OVERHEAD: u64 = 4;
/// Tokens of an image or a document that is not text.
const MEDIA_TOKENS: u64 = 1_500;

/// A tool the model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// Its input schema.
    pub schema: Value,
}

/// What a call asks for.
#[derive(Clone, Debug)]
pub struct Request {
    /// The model that answers.
    pub model: &'static Model,
    /// Largest number of output tokens; 0 only warms the cache.
    pub max_tokens: u64,
    /// Whether the answer is a stream of events.
    pub stream: bool,
    /// Whether the speed is `fast`.
    pub fast: bool,
    /// The first stop sequence.
    pub stop_sequence: Option<String>,
    /// The tool the model has to call.
    pub forced_tool: Option<Tool>,
    /// The first tool offered.
    pub first_tool: Option<Tool>,
    /// The schema the text has to follow.
    pub format: Option<Value>,
    /// Whether the request asks for thinking.
    pub thinks: bool,
    /// Whether the prompt asks for JSON.
    pub wants_json: bool,
    /// Whether the prompt asks for tags.
    pub wants_tags: bool,
    /// Whether the call hands back a paused turn.
    pub continues_pause: bool,
    /// `metadata.user_id`.
    pub user: Option<String>,
    /// Hash of model and whole prompt: decides the answer.
    pub digest: u64,
    /// Hash of the last user message: decides what counts as the same prompt.
    pub prompt_hash: u64,
    /// All input tokens.
    pub input_tokens: u64,
    /// What the limiter guesses before it knows.
    pub input_estimate: u64,
    /// The blocks of the prompt in order.
    pub blocks: Vec<Boundary>,
    /// What the prompt tells the simulator to do.
    pub directives: Directives,
}

/// Reads a body that has passed validation.
///
/// # Errors
/// A 400 for a directive that is not understood.
pub fn understand(body: &Map<String, Value>, model: &'static Model) -> Result<Request, Failure> {
    let mut reader = Reader::new(model);
    for tool in list(body.get("tools")) {
        reader.data(tool);
        reader.end_block(tool);
    }
    match body.get("system") {
        Some(Value::String(text)) => {
            reader.text(text);
            reader.end_block(&Value::Null);
        }
        other => list(other).iter().for_each(|block| reader.block(block)),
    }
    let messages = list(body.get("messages"));
    for message in messages {
        reader.message(message);
    }
    if let Some(control) = body.get("cache_control").filter(|c| !c.is_null())
        && let Some(last) = reader.blocks.last_mut()
    {
        last.breakpoint = Some(ttl(control));
    }
    if let Some(error) = reader.error {
        return Err(Failure::invalid(error.to_string()));
    }
    let tools = Tools::of(body);
    let last_user = messages.iter().rev().find(|m| m["role"] == "user");
    let last_user = last_user.map(user_text).unwrap_or_default();
    Ok(Request {
        model,
        max_tokens: body.get("max_tokens").and_then(Value::as_u64).unwrap_or(0),
        stream: body.get("stream") == Some(&Value::Bool(true)),
        fast: body.get("speed").is_some_and(|speed| speed == "fast"),
        stop_sequence: list(body.get("stop_sequences"))
            .first()
            .and_then(Value::as_str)
            .map(str::to_owned),
        forced_tool: tools.forced,
        first_tool: tools.first,
        format: body
            .get("output_config")
            .and_then(|config| config["format"].get("schema"))
            .cloned(),
        thinks: body.get("thinking").is_some_and(|thinking| {
            thinking["type"] == Thinking::Adaptive.name()
                || thinking["type"] == Thinking::Enabled.name()
        }),
        wants_json: contains_word(&last_user, "json"),
        wants_tags: contains_word(&last_user, "tag"),
        continues_pause: messages.last().is_some_and(wants_server_tool_result),
        user: body
            .get("metadata")
            .and_then(|metadata| metadata["user_id"].as_str())
            .map(str::to_owned),
        digest: reader.prefix.finish(),
        prompt_hash: hash::of(&last_user),
        input_tokens: reader.counter.total(),
        input_estimate: tokens::estimate(reader.bytes, model.tokenizer),
        blocks: reader.blocks,
        directives: reader.directives,
    })
}

/// Whether a message is an assistant turn that stopped at a server tool, as `pause_turn` answers do.
#[must_use]
pub fn wants_server_tool_result(message: &Value) -> bool {
    message["role"] == "assistant"
        && list(message.get("content"))
            .last()
            .is_some_and(|block| block["type"] == "server_tool_use")
}

struct Reader {
    prefix: Hash,
    counter: Counter,
    bytes: u64,
    blocks: Vec<Boundary>,
    directives: Directives,
    error: Option<directive::DirectiveError>,
}

impl Reader {
    fn new(model: &Model) -> Self {
        let mut prefix = Hash::new();
        prefix.add(model.id);
        Self {
            prefix,
            counter: Counter::new(model.tokenizer),
            bytes: 0,
            blocks: Vec::new(),
            directives: Directives::default(),
            error: None,
        }
    }

    fn message(&mut self, message: &Value) {
        self.counter.whole(MESSAGE_OVERHEAD);
        self.prefix
            .add(message["role"].as_str().unwrap_or_default());
        match &message["content"] {
            Value::String(text) => {
                self.text(text);
                self.end_block(&Value::Null);
            }
            blocks => list(Some(blocks))
                .iter()
                .for_each(|block| self.block(block)),
        }
    }

    fn block(&mut self, block: &Value) {
        self.content(block);
        self.end_block(block);
    }

    fn content(&mut self, block: &Value) {
        match block["type"].as_str() {
            Some("text") => self.text(block["text"].as_str().unwrap_or_default()),
            Some("image") => self.media(block),
            Some("document") => match block["source"]["type"].as_str() {
                Some("text") => self.text(block["source"]["data"].as_str().unwrap_or_default()),
                _ => self.media(block),
            },
            Some("tool_result") => match &block["content"] {
                Value::String(text) => self.text(text),
                blocks => list(Some(blocks))
                    .iter()
                    .for_each(|inner| self.content(inner)),
            },
            _ => self.data(block),
        }
    }

    fn text(&mut self, text: &str) {
        self.plain(text);
        if self.error.is_none()
            && let Err(error) = directive::read(text, &mut self.directives)
        {
            self.error = Some(error);
        }
    }

    /// JSON that the model reads as text, where directives mean nothing.
    fn data(&mut self, value: &Value) {
        self.plain(&value.to_string());
    }

    fn plain(&mut self, text: &str) {
        self.prefix.add(text);
        self.counter.text(text);
        self.bytes += text.len() as u64;
    }

    fn media(&mut self, block: &Value) {
        self.prefix.add(&block["source"].to_string());
        self.counter.whole(MEDIA_TOKENS);
        self.bytes += MEDIA_TOKENS * 3;
    }

    fn end_block(&mut self, block: &Value) {
        let control = block.get("cache_control").filter(|c| !c.is_null());
        self.blocks.push(Boundary {
            prefix: self.prefix.finish(),
            tokens: self.counter.total(),
            breakpoint: control.map(ttl),
        });
    }
}

struct Tools {
    forced: Option<Tool>,
    first: Option<Tool>,
}

impl Tools {
    fn of(body: &Map<String, Value>) -> Self {
        let tools = list(body.get("tools"));
        let tool = |value: &Value| Tool {
            name: value["name"].as_str().unwrap_or_default().to_owned(),
            schema: value["input_schema"].clone(),
        };
        let choice = body.get("tool_choice").unwrap_or(&Value::Null);
        let forced = match choice["type"].as_str() {
            Some("any") => tools.first(),
            Some("tool") => tools.iter().find(|tool| tool["name"] == choice["name"]),
            _ => None,
        };
        Self {
            forced: forced.map(tool),
            first: tools.first().map(tool),
        }
    }
}

fn list(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn ttl(control: &Value) -> Ttl {
    if control["ttl"] == "1h" {
        Ttl::Hour1
    } else {
        Ttl::Minutes5
    }
}

fn user_text(message: &Value) -> String {
    match &message["content"] {
        Value::String(text) => text.clone(),
        blocks => list(Some(blocks))
            .iter()
            .filter_map(|block| block["text"].as_str())
            .collect::<Vec<_>>()
            .join("\n"),
    }
}

/// Whether `word` (lower-case ASCII) is in `text`, whatever its case.
fn contains_word(text: &str, word: &str) -> bool {
    text.as_bytes()
        .windows(word.len())
        .any(|part| part.eq_ignore_ascii_case(word.as_bytes()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(body: Value) -> Request {
        let model = Model::find("claude-haiku-4-5").unwrap();
        understand(body.as_object().unwrap(), model).unwrap()
    }

    fn prompt(text: &str) -> Value {
        json!({"max_tokens": 128, "messages": [{"role": "user", "content": text}]})
    }

    #[test]
    fn directives_are_found_in_system_messages_and_tool_results() {
        let body = json!({
        "system": "[[sim:out=5]]",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a [[sim:ms=7]]"}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "[[sim:refusal]]"}]}]}
        ]});
        let directives = request(body).directives;
        assert_eq!((directives.out, directives.ms), (Some(5), Some(7)));
        assert!(directives.refusal.is_some());
    }

    #[test]
    fn a_wrong_directive_is_a_400() {
        let body = prompt("[[sim:explode]]");
        let model = Model::find("claude-haiku-4-5").unwrap();
        let failure = understand(body.as_object().unwrap(), model).unwrap_err();
        assert_eq!(failure.status, 400);
        assert!(failure.message.contains("explode"));
    }

    #[test]
    fn the_prompt_hash_is_of_the_last_user_message_only() {
        let one = request(
            json!({"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "z"}]}),
        );
        let two = request(
            json!({"messages": [{"role": "user", "content": "b"}, {"role": "user", "content": "z"}]}),
        );
        assert_eq!(one.prompt_hash, two.prompt_hash);
        assert_ne!(one.digest, two.digest);
        assert_eq!(request(prompt("z")).prompt_hash, one.prompt_hash);
    }

    #[test]
    fn json_and_tags_are_recognised_in_any_case() {
        let both = request(prompt("Give five search Tags as Json."));
        assert!(both.wants_json && both.wants_tags);
        let none = request(prompt("Tell a story."));
        assert!(!none.wants_json && !none.wants_tags);
    }

    #[test]
    fn tokens_grow_with_text_tools_and_media() {
        let plain = request(prompt("hello")).input_tokens;
        let mut body = prompt("hello");
        body["tools"] = json!([{"name": "t", "input_schema": {"type": "object"}}]);
        assert!(request(body).input_tokens > plain + 10);
        let image = json!({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}]});
        assert_eq!(request(image).input_tokens, MEDIA_TOKENS + MESSAGE_OVERHEAD);
    }

    #[test]
    fn breakpoints_come_from_blocks_and_from_the_top_level() {
        let body = json!({
            "cache_control": {"type": "ephemeral", "ttl": "1h"},
            "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
            "messages": [{"role": "user", "content": "u"}]});
        let points: Vec<_> = request(body).blocks.iter().map(|b| b.breakpoint).collect();
        assert_eq!(points, [Some(Ttl::Minutes5), Some(Ttl::Hour1)]);
    }

    #[test]
    fn a_forced_tool_is_the_named_one_or_the_first() {
        let tools = json!([{"name": "a", "input_schema": {}}, {"name": "b", "input_schema": {}}]);
        let forced = |choice: Value| {
            let mut body = prompt("x");
            body["tools"] = tools.clone();
            body["tool_choice"] = choice;
            request(body).forced_tool.map(|tool| tool.name)
        };
        assert_eq!(
            forced(json!({"type": "tool", "name": "b"})).as_deref(),
            Some("b")
        );
        assert_eq!(forced(json!({"type": "any"})).as_deref(), Some("a"));
        assert_eq!(forced(json!({"type": "auto"})), None);
    }
}
