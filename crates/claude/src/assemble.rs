//! From the events of a stream to the message they describe. No IO.
//!
//! The assembled message has the shape of an answer without streaming. Unknown events, deltas and fields
//! are skipped or kept as they are, never an error; what contradicts the order of a stream is one.

use fairlane_core::failure::StopReason;
use fairlane_core::price::{Terms, Usage};
use serde_json::{Map, Value};

use crate::error_body::ErrorBody;
use crate::sse::Event;
use crate::usage;

/// What one event meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The connection lives; nothing more.
    Ping,
    /// An event this version does not know.
    Skipped,
    /// `message_start`: the model has the prompt.
    Started,
    /// A part of the thinking arrived, or a thinking block began.
    Thinking,
    /// A part of the answer arrived.
    Writing,
    /// `message_delta`: the end is near.
    Closing,
    /// `message_stop`: the message is complete.
    Stopped,
    /// An `error` event: the call failed.
    Failed(ErrorBody),
}

/// The stream is not what the API sends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AssembleError {
    #[error("event {event:?} is not valid JSON")]
    Json { event: String },
    #[error("event {event:?} came before message_start")]
    NotStarted { event: String },
    #[error("a second message_start came")]
    StartedTwice,
    #[error("event {event:?} has no usable {field:?}")]
    Field { event: String, field: &'static str },
    #[error("event {event:?} is for content block {index}, but {open} have begun")]
    Block {
        event: String,
        index: usize,
        open: usize,
    },
    #[error("message grew over {bytes_max} bytes; nothing the API sends is that large")]
    TooLarge { bytes_max: usize },
    #[error("message_stop came without a stop reason")]
    NoStopReason,
}

/// A complete message.
#[derive(Debug, Clone, PartialEq)]
pub struct Finished {
    /// As an answer without streaming would have it.
    pub message: Value,
    pub stop: StopReason,
    /// The input of a tool call is no JSON object, although the message is complete.
    pub broken_tool_input: bool,
}

/// The message of one stream as far as it has come.
#[derive(Debug)]
pub struct Assembler {
    bytes_max: usize,
    bytes: usize,
    /// Everything but the content.
    message: Option<Map<String, Value>>,
    blocks: Vec<Block>,
    stopped: bool,
    /// As last seen.
    usage: (Usage, Terms),
    /// Characters of output since the last usage that counted them.
    chars_unbooked: u64,
}

#[derive(Debug)]
struct Block {
    value: Map<String, Value>,
    /// The input of a tool call, while it comes in parts.
    partial_json: String,
    broken_input: bool,
}

/// Characters that are booked as one token when a stream breaks before its last usage.
const CHARS_PER_TOKEN: u64 = 4;

impl Assembler {
    /// An assembler that refuses messages of more than `bytes_max` bytes on the wire.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            bytes: 0,
            message: None,
            blocks: Vec::new(),
            stopped: false,
            usage: (Usage::default(), Terms::default()),
            chars_unbooked: 0,
        }
    }

    /// Whether the message has begun.
    #[must_use]
    pub fn started(&self) -> bool {
        self.message.is_some()
    }

    /// Takes the next event.
    ///
    /// # Errors
    /// [`AssembleError`] when the stream is not what the API sends; the call has failed then.
    pub fn apply(&mut self, event: &Event) -> Result<Step, AssembleError> {
        if event.name == "ping" {
            return Ok(Step::Ping);
        }
        self.bytes += event.data.len();
        if self.bytes > self.bytes_max {
            return Err(AssembleError::TooLarge {
                bytes_max: self.bytes_max,
            });
        }
        if event.name == "error" {
            return Ok(Step::Failed(ErrorBody::parse(event.data.as_bytes())));
        }
        let mut data = match serde_json::from_str(&event.data) {
            Ok(Value::Object(data)) => data,
            Ok(_) | Err(_) if !is_known(&event.name) => return Ok(Step::Skipped),
            Ok(_) | Err(_) => {
                return Err(AssembleError::Json {
                    event: event.name.clone(),
                });
            }
        };
        // The data names the event again; some gateways send only that.
        let kind = match data.remove("type") {
            Some(Value::String(kind)) => kind,
            Some(_) | None => event.name.clone(),
        };
        match kind.as_str() {
            "ping" => Ok(Step::Ping),
            "error" => Ok(Step::Failed(ErrorBody::parse(event.data.as_bytes()))),
            "message_start" => self.start(data),
            "content_block_start" => self.block_start(&kind, data),
            "content_block_delta" => self.block_delta(&kind, data),
            "content_block_stop" => {
                let block = self.block(&kind, &data)?;
                block.close();
                Ok(if block.is_thinking() {
                    Step::Thinking
                } else {
                    Step::Writing
                })
            }
            "message_delta" => self.message_delta(&kind, data),
            "message_stop" => {
                if self.message.is_none() {
                    return Err(AssembleError::NotStarted { event: kind });
                }
                self.stopped = true;
                Ok(Step::Stopped)
            }
            _ => Ok(Step::Skipped),
        }
    }

    fn start(&mut self, mut data: Map<String, Value>) -> Result<Step, AssembleError> {
        if self.message.is_some() {
            return Err(AssembleError::StartedTwice);
        }
        let Some(Value::Object(mut message)) = data.remove("message") else {
            let event = "message_start".to_owned();
            return Err(AssembleError::Field {
                event,
                field: "message",
            });
        };
        message.remove("content");
        self.usage = message
            .get("usage")
            .and_then(usage::read)
            .unwrap_or_default();
        self.message = Some(message);
        Ok(Step::Started)
    }

    fn block_start(
        &mut self,
        kind: &str,
        mut data: Map<String, Value>,
    ) -> Result<Step, AssembleError> {
        let index = self.index(kind, &data)?;
        if index != self.blocks.len() {
            let open = self.blocks.len();
            return Err(AssembleError::Block {
                event: kind.to_owned(),
                index,
                open,
            });
        }
        let Some(Value::Object(value)) = data.remove("content_block") else {
            return Err(AssembleError::Field {
                event: kind.to_owned(),
                field: "content_block",
            });
        };
        let block = Block {
            value,
            partial_json: String::new(),
            broken_input: false,
        };
        let step = if block.is_thinking() {
            Step::Thinking
        } else {
            Step::Writing
        };
        self.blocks.push(block);
        Ok(step)
    }

    fn block_delta(
        &mut self,
        kind: &str,
        mut data: Map<String, Value>,
    ) -> Result<Step, AssembleError> {
        let Some(Value::Object(mut delta)) = data.remove("delta") else {
            return Err(AssembleError::Field {
                event: kind.to_owned(),
                field: "delta",
            });
        };
        let block = self.block(kind, &data)?;
        let mut chars = 0;
        let mut text = |delta: &mut Map<String, Value>, field| match delta.remove(field) {
            Some(Value::String(text)) => {
                chars = text.chars().count() as u64;
                Ok(text)
            }
            Some(_) | None => Err(AssembleError::Field {
                event: kind.to_owned(),
                field,
            }),
        };
        let step = match delta.get("type").and_then(Value::as_str) {
            Some("text_delta") => {
                block.append("text", &text(&mut delta, "text")?);
                Step::Writing
            }
            Some("input_json_delta") => {
                block.partial_json += &text(&mut delta, "partial_json")?;
                Step::Writing
            }
            Some("thinking_delta") => {
                block.append("thinking", &text(&mut delta, "thinking")?);
                Step::Thinking
            }
            Some("signature_delta") => {
                block.replace("signature", delta.remove("signature"));
                Step::Thinking
            }
            Some("citations_delta") => {
                block.push("citations", delta.remove("citation"));
                Step::Writing
            }
            Some("compaction_delta") => {
                block.replace("content", delta.remove("content"));
                Step::Writing
            }
            // A kind of delta that later versions add is output all the same.
            Some(_) | None => Step::Writing,
        };
        self.chars_unbooked = self.chars_unbooked.saturating_add(chars);
        Ok(step)
    }

    fn message_delta(
        &mut self,
        kind: &str,
        mut data: Map<String, Value>,
    ) -> Result<Step, AssembleError> {
        let message = self.message.as_mut();
        let message = message.ok_or_else(|| AssembleError::NotStarted {
            event: kind.to_owned(),
        })?;
        let later = data.remove("usage").unwrap_or(Value::Null);
        if later.get("output_tokens").is_some_and(Value::is_number) {
            self.chars_unbooked = 0;
        }
        let usage = message
            .entry("usage")
            .or_insert_with(|| Value::Object(Map::new()));
        usage::merge(usage, &later);
        self.usage = usage::read(usage).unwrap_or(self.usage);
        let delta = match data.remove("delta") {
            Some(Value::Object(delta)) => delta,
            Some(_) | None => Map::new(),
        };
        // Stop reason, stop sequence, stop details, container; and what later versions add beside them.
        message.extend(
            delta
                .into_iter()
                .chain(data)
                .filter(|(_, value)| !value.is_null()),
        );
        Ok(Step::Closing)
    }

    fn index(&self, kind: &str, data: &Map<String, Value>) -> Result<usize, AssembleError> {
        if self.message.is_none() {
            return Err(AssembleError::NotStarted {
                event: kind.to_owned(),
            });
        }
        let index = data.get("index").and_then(Value::as_u64);
        index
            .and_then(|index| usize::try_from(index).ok())
            .ok_or_else(|| AssembleError::Field {
                event: kind.to_owned(),
                field: "index",
            })
    }

    fn block(
        &mut self,
        kind: &str,
        data: &Map<String, Value>,
    ) -> Result<&mut Block, AssembleError> {
        let index = self.index(kind, data)?;
        let open = self.blocks.len();
        self.blocks
            .get_mut(index)
            .ok_or_else(|| AssembleError::Block {
                event: kind.to_owned(),
                index,
                open,
            })
    }

    /// The usage as last seen, and the terms; `None` before the message has begun.
    #[must_use]
    pub fn usage(&self) -> Option<(Usage, Terms)> {
        self.started().then_some(self.usage)
    }

    /// The usage to book for a stream that broke: as last seen, plus what was written since, at about
    /// four characters a token.
    #[must_use]
    pub fn usage_estimate(&self) -> Option<(Usage, Terms)> {
        let (mut usage, terms) = self.usage()?;
        let unbooked = self.chars_unbooked.div_ceil(CHARS_PER_TOKEN);
        usage.output = usage.output.saturating_add(unbooked);
        Some((usage, terms))
    }

    /// Output tokens so far, estimated while the stream runs.
    #[must_use]
    pub fn output_tokens(&self) -> u64 {
        self.usage_estimate().map_or(0, |(usage, _)| usage.output)
    }

    /// A text field of the message, such as `id` or `model`.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        self.message.as_ref()?.get(name)?.as_str()
    }

    /// The message, once `message_stop` has come; `None` before.
    ///
    /// # Errors
    /// [`AssembleError::NoStopReason`] when the message does not say why it stopped.
    pub fn finish(self) -> Result<Option<Finished>, AssembleError> {
        let (Some(mut message), true) = (self.message, self.stopped) else {
            return Ok(None);
        };
        let mut broken_tool_input = false;
        let content = self.blocks.into_iter().map(|mut block| {
            // A stream may leave out the stop of its last block.
            block.close();
            broken_tool_input |= block.broken_input;
            Value::Object(block.value)
        });
        let content = content.collect();
        message.insert("content".to_owned(), Value::Array(content));
        finished(Value::Object(message), broken_tool_input).map(Some)
    }
}

/// Reads the stop reason of a whole message.
pub(crate) fn finished(message: Value, broken_tool_input: bool) -> Result<Finished, AssembleError> {
    let word = message
        .get("stop_reason")
        .and_then(Value::as_str)
        .ok_or(AssembleError::NoStopReason)?;
    let category = message
        .get("stop_details")
        .and_then(|details| details.get("category")?.as_str());
    let stop = StopReason::parse(word, category);
    Ok(Finished {
        message,
        stop,
        broken_tool_input,
    })
}

fn is_known(name: &str) -> bool {
    matches!(
        name,
        "message_start"
            | "content_block_start"
            | "content_block_delta"
            | "content_block_stop"
            | "message_delta"
            | "message_stop"
    )
}

impl Block {
    fn is_thinking(&self) -> bool {
        let kind = self.value.get("type").and_then(Value::as_str);
        matches!(kind, Some("thinking" | "redacted_thinking"))
    }

    fn append(&mut self, field: &str, more: &str) {
        match self.value.get_mut(field) {
            Some(Value::String(text)) => text.push_str(more),
            Some(_) | None => {
                self.value
                    .insert(field.to_owned(), Value::String(more.to_owned()));
            }
        }
    }

    fn replace(&mut self, field: &str, value: Option<Value>) {
        if let Some(value) = value {
            self.value.insert(field.to_owned(), value);
        }
    }

    fn push(&mut self, field: &str, value: Option<Value>) {
        let Some(value) = value else {
            return;
        };
        match self.value.get_mut(field) {
            Some(Value::Array(list)) => list.push(value),
            Some(_) | None => {
                self.value
                    .insert(field.to_owned(), Value::Array(vec![value]));
            }
        }
    }

    /// Reads a tool's input, now that it is whole. One that is no JSON object is kept as text, for people.
    fn close(&mut self) {
        if self.partial_json.is_empty() {
            return;
        }
        let text = std::mem::take(&mut self.partial_json);
        let input = match serde_json::from_str(&text) {
            Ok(input @ Value::Object(_)) => input,
            Ok(_) | Err(_) => {
                self.broken_input = true;
                Value::String(text)
            }
        };
        self.value.insert("input".to_owned(), input);
    }
}

#[cfg(test)]
mod tests;
