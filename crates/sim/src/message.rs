//! An answer on the wire: the plain JSON body, or the frames of an event stream.

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    answer::{Answer, Block, StopReason, input_value},
    cache::CacheUse,
};

/// Tokens per content delta of a short answer.
const TOKENS_PER_DELTA: u64 = 4;
/// The most content deltas of one block; longer blocks get larger deltas.
const DELTAS_MAX: u64 = 512;

/// One message to be sent.
#[derive(Clone, Debug)]
pub struct Message {
    /// `msg_...`
    pub id: String,
    /// Full model id.
    pub model: &'static str,
    /// What the model says.
    pub answer: Answer,
    /// How the input splits.
    pub input: CacheUse,
    /// Whether the speed is `fast`.
    pub fast: bool,
}

/// A part of a stream and the number of output tokens after which it is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Output tokens generated up to and including this frame.
    pub tokens: u64,
    /// One or more complete events.
    pub bytes: Bytes,
}

/// A ping event.
pub const PING: &str = "event: ping\ndata: {\"type\":\"ping\"}\n\n";

/// The error event of an overloaded service.
pub const OVERLOADED: &str = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n";

#[derive(Serialize)]
struct Body<'a> {
    id: &'a str,
    r#type: &'static str,
    role: &'static str,
    model: &'a str,
    content: Vec<Value>,
    stop_reason: Option<StopReason>,
    stop_sequence: Option<&'a str>,
    stop_details: Value,
    container: Option<()>,
    diagnostics: Option<()>,
    usage: Usage,
}

#[derive(Serialize)]
struct Usage {
    input_tokens: u64,
    cache_creation_input_tokens: u64,
    cache_read_input_tokens: u64,
    cache_creation: CacheCreation,
    output_tokens: u64,
    output_tokens_details: OutputDetails,
    service_tier: &'static str,
    speed: &'static str,
    inference_geo: &'static str,
}

#[derive(Serialize)]
struct CacheCreation {
    ephemeral_5m_input_tokens: u64,
    ephemeral_1h_input_tokens: u64,
}

#[derive(Serialize)]
struct OutputDetails {
    thinking_tokens: u64,
}

impl Message {
    /// The whole message as JSON.
    #[must_use]
    pub fn json(&self) -> String {
        let blocks = self.answer.blocks.iter();
        let content = blocks.map(|(block, _)| finished(block)).collect();
        serialize(&self.body(content, Some(self.answer.stop), self.answer.output_tokens))
    }

    /// The events of the message in order: `message_start`, the blocks, `message_delta`, `message_stop`.
    #[must_use]
    pub fn frames(&self) -> Vec<Frame> {
        let mut frames = Frames::default();
        frames.event(
            0,
            "message_start",
            &StartEvent {
                r#type: "message_start",
                message: self.body(Vec::new(), None, u64::from(self.answer.output_tokens > 0)),
            },
        );
        let mut done = 0;
        for (index, (block, tokens)) in self.answer.blocks.iter().enumerate() {
            self.block_frames(&mut frames, index, block, done, *tokens);
            done += tokens;
        }
        if self.answer.blocks.is_empty() {
            frames.raw(0, PING);
        }
        if self.answer.unknown_event {
            let data = json!({"type": "weather_report", "sky": "clear"});
            frames.event(done, "weather_report", &data);
        }
        frames.event(done, "message_delta", &self.delta());
        frames.raw(
            done,
            "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
        );
        frames.list
    }

    fn block_frames(&self, to: &mut Frames, index: usize, block: &Block, done: u64, tokens: u64) {
        to.event(
            done,
            "content_block_start",
            &json!({
                "type": "content_block_start", "index": index, "content_block": started(block),
            }),
        );
        if index == 0 {
            to.raw(done, PING);
        }
        let (kind, field, text) = match block {
            Block::Thinking { text, .. } => ("thinking_delta", "thinking", text),
            Block::Text(text) => ("text_delta", "text", text),
            Block::ToolUse { input, .. } => ("input_json_delta", "partial_json", input),
        };
        for (share, part) in pieces(text, tokens) {
            let delta = DeltaEvent {
                kind,
                field,
                text: part,
                index,
            };
            to.raw(
                done + share,
                &format!("event: content_block_delta\ndata: {}\n\n", delta.json()),
            );
        }
        let last = done + tokens;
        if let Block::Thinking { signature, .. } = block {
            to.event(
                last,
                "content_block_delta",
                &json!({
                    "type": "content_block_delta", "index": index,
                    "delta": {"type": "signature_delta", "signature": signature},
                }),
            );
        }
        let stop = json!({"type": "content_block_stop", "index": index});
        to.event(last, "content_block_stop", &stop);
    }

    fn delta(&self) -> Value {
        let answer = &self.answer;
        json!({
            "type": "message_delta",
            "delta": {
                "stop_reason": answer.stop,
                "stop_sequence": answer.stop_sequence,
                "stop_details": self.stop_details(),
            },
            "usage": {
                "input_tokens": self.input.uncached,
                "cache_creation_input_tokens": self.input.write_5m + self.input.write_1h,
                "cache_read_input_tokens": self.input.read,
                "output_tokens": answer.output_tokens,
                "output_tokens_details": {"thinking_tokens": answer.thinking_tokens},
            },
        })
    }

    fn stop_details(&self) -> Value {
        self.answer
            .refusal
            .filter(|_| self.answer.stop == StopReason::Refusal)
            .map_or(Value::Null, |category| category.details())
    }

    fn body(&self, content: Vec<Value>, stop: Option<StopReason>, output_tokens: u64) -> Body<'_> {
        let ended = stop.is_some();
        Body {
            id: &self.id,
            r#type: "message",
            role: "assistant",
            model: self.model,
            content,
            stop_reason: stop,
            stop_sequence: self.answer.stop_sequence.as_deref().filter(|_| ended),
            stop_details: if ended {
                self.stop_details()
            } else {
                Value::Null
            },
            container: None,
            diagnostics: None,
            usage: Usage {
                input_tokens: self.input.uncached,
                cache_creation_input_tokens: self.input.write_5m + self.input.write_1h,
                cache_read_input_tokens: self.input.read,
                cache_creation: CacheCreation {
                    ephemeral_5m_input_tokens: self.input.write_5m,
                    ephemeral_1h_input_tokens: self.input.write_1h,
                },
                output_tokens,
                output_tokens_details: OutputDetails {
                    thinking_tokens: if ended {
                        self.answer.thinking_tokens
                    } else {
                        0
                    },
                },
                service_tier: "standard",
                speed: if self.fast { "fast" } else { "standard" },
                inference_geo: "global",
            },
        }
    }
}

#[derive(Serialize)]
struct StartEvent<'a> {
    r#type: &'static str,
    message: Body<'a>,
}

struct DeltaEvent<'a> {
    kind: &'static str,
    field: &'static str,
    text: &'a str,
    index: usize,
}

impl DeltaEvent<'_> {
    /// Written by hand: this is the event that a stream consists of.
    fn json(&self) -> String {
        let Self {
            kind,
            field,
            text,
            index,
        } = self;
        let text = serialize(text);
        format!(
            r#"{{"type":"content_block_delta","index":{index},"delta":{{"type":"{kind}","{field}":{text}}}}}"#
        )
    }
}

#[derive(Default)]
struct Frames {
    list: Vec<Frame>,
}

impl Frames {
    fn event(&mut self, tokens: u64, name: &str, data: &impl Serialize) {
        self.raw(
            tokens,
            &format!("event: {name}\ndata: {}\n\n", serialize(data)),
        );
    }

    fn raw(&mut self, tokens: u64, text: &str) {
        self.list.push(Frame {
            tokens,
            bytes: Bytes::copy_from_slice(text.as_bytes()),
        });
    }
}

fn serialize(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("values with string keys always serialize")
}

fn finished(block: &Block) -> Value {
    match block {
        Block::Thinking { text, signature } => {
            json!({"type": "thinking", "thinking": text, "signature": signature})
        }
        Block::Text(text) => json!({"type": "text", "text": text}),
        Block::ToolUse {
            id,
            name,
            input,
            server,
        } => {
            json!({"type": tool_type(*server), "id": id, "name": name, "input": input_value(input)})
        }
    }
}

fn started(block: &Block) -> Value {
    match block {
        Block::Thinking { .. } => json!({"type": "thinking", "thinking": "", "signature": ""}),
        Block::Text(_) => json!({"type": "text", "text": ""}),
        Block::ToolUse {
            id, name, server, ..
        } => {
            json!({"type": tool_type(*server), "id": id, "name": name, "input": {}})
        }
    }
}

fn tool_type(server: bool) -> &'static str {
    if server {
        "server_tool_use"
    } else {
        "tool_use"
    }
}

/// Cuts a text into deltas of about equal size. Each comes with its share of the tokens, counted from the first.
fn pieces(text: &str, tokens: u64) -> Vec<(u64, &str)> {
    if text.is_empty() {
        return Vec::new();
    }
    let length = text.len() as u64;
    let wanted = tokens
        .div_ceil(TOKENS_PER_DELTA)
        .clamp(1, DELTAS_MAX)
        .min(length);
    let mut list = Vec::new();
    let mut from = 0;
    for n in 1..=wanted {
        let at = usize::try_from(length * n / wanted).unwrap_or(text.len());
        let to = text.floor_char_boundary(at);
        if to > from || n == wanted {
            list.push((tokens * n / wanted, &text[from..to]));
            from = to;
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{answer, models::Model, request};

    fn message(prompt: &str, more: Value) -> Message {
        let mut body =
            json!({"max_tokens": 400, "messages": [{"role": "user", "content": prompt}]});
        for (key, value) in more.as_object().unwrap() {
            body[key] = value.clone();
        }
        let model = Model::find("claude-haiku-4-5").unwrap();
        let request = request::understand(body.as_object().unwrap(), model).unwrap();
        Message {
            id: "msg_1".to_owned(),
            model: model.id,
            answer: answer::plan(&request),
            input: CacheUse {
                uncached: 12,
                read: 3,
                write_5m: 4,
                write_1h: 5,
            },
            fast: false,
        }
    }

    fn events(message: &Message) -> Vec<Value> {
        let bytes: Vec<u8> = message
            .frames()
            .iter()
            .flat_map(|f| f.bytes.to_vec())
            .collect();
        String::from_utf8(bytes)
            .unwrap()
            .split_terminator("\n\n")
            .map(|event| {
                let (name, data) = event.split_once('\n').unwrap();
                let value: Value =
                    serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
                assert_eq!(name.strip_prefix("event: ").unwrap(), value["type"]);
                value
            })
            .collect()
    }

    fn joined(events: &[Value], kind: &str, field: &str) -> String {
        events
            .iter()
            .filter(|event| event["delta"]["type"] == kind)
            .filter_map(|event| event["delta"][field].as_str())
            .collect()
    }

    #[test]
    fn events_come_in_the_documented_order() {
        let events = events(&message("hello", json!({})));
        let mut kinds: Vec<&str> = events.iter().map(|e| e["type"].as_str().unwrap()).collect();
        kinds.dedup();
        assert_eq!(
            kinds,
            [
                "message_start",
                "content_block_start",
                "ping",
                "content_block_delta",
                "content_block_stop",
                "message_delta",
                "message_stop"
            ]
        );
        assert_eq!(events[0]["message"]["stop_reason"], Value::Null);
        assert_eq!(events[0]["message"]["content"], json!([]));
    }

    #[test]
    fn stream_and_plain_body_say_the_same() {
        let message = message(
            "été 静かな story",
            json!({"thinking": {"type": "enabled", "budget_tokens": 1024}}),
        );
        let plain: Value = serde_json::from_str(&message.json()).unwrap();
        let events = events(&message);
        assert_eq!(
            joined(&events, "thinking_delta", "thinking"),
            plain["content"][0]["thinking"]
        );
        assert_eq!(
            joined(&events, "signature_delta", "signature"),
            plain["content"][0]["signature"]
        );
        assert_eq!(
            joined(&events, "text_delta", "text"),
            plain["content"][1]["text"]
        );
        let delta = events
            .iter()
            .find(|e| e["type"] == "message_delta")
            .unwrap();
        assert_eq!(delta["delta"]["stop_reason"], plain["stop_reason"]);
        for field in [
            "input_tokens",
            "output_tokens",
            "cache_creation_input_tokens",
            "cache_read_input_tokens",
        ] {
            assert_eq!(delta["usage"][field], plain["usage"][field], "{field}");
        }
        assert_eq!(
            plain["usage"]["cache_creation"]["ephemeral_1h_input_tokens"],
            5
        );
        assert!(delta["usage"].get("cache_creation").is_none());
    }

    #[test]
    fn tool_input_is_streamed_as_partial_json() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "string"}}});
        let tools = json!({"tools": [{"name": "t", "input_schema": schema}], "tool_choice": {"type": "any"}});
        let message = message("x", tools);
        let plain: Value = serde_json::from_str(&message.json()).unwrap();
        let streamed = joined(&events(&message), "input_json_delta", "partial_json");
        assert_eq!(
            serde_json::from_str::<Value>(&streamed).unwrap(),
            plain["content"][0]["input"]
        );
        assert_eq!(plain["stop_reason"], "tool_use");
    }

    #[test]
    fn frames_are_due_in_order_and_reach_all_tokens() {
        let message = message("[[sim:out=333]]", json!({}));
        let frames = message.frames();
        assert!(
            frames
                .windows(2)
                .all(|pair| pair[0].tokens <= pair[1].tokens)
        );
        assert_eq!(frames.last().unwrap().tokens, 333);
        assert!(frames.len() > 80);
    }

    #[test]
    fn a_refusal_carries_its_details() {
        let message = message("[[sim:refusal=bio]]", json!({}));
        let plain: Value = serde_json::from_str(&message.json()).unwrap();
        assert_eq!(plain["stop_reason"], "refusal");
        assert_eq!(plain["stop_details"]["category"], "bio");
        assert_eq!(plain["content"], json!([]));
        let events = events(&message);
        let delta = events
            .iter()
            .find(|e| e["type"] == "message_delta")
            .unwrap();
        assert_eq!(delta["delta"]["stop_details"], plain["stop_details"]);
    }

    #[test]
    fn pieces_keep_characters_whole() {
        let text = "静かな海";
        let parts = pieces(text, 100);
        assert_eq!(
            parts.iter().map(|(_, part)| *part).collect::<String>(),
            text
        );
        assert_eq!(parts.last().unwrap().0, 100);
    }
}
