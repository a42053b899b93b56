//! What the model says: a pure function from a request to blocks, a stop reason and token counts.
//!
//! The same prompt to the same model always gets the same answer, streamed or not.

use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    hash,
    prose::{word, words},
    request::{Request, Tool},
    schema,
};

/// Shortest and longest default answer, in tokens.
const DEFAULT_TOKENS: std::ops::RangeInclusive<u64> = 20..=60;
/// Tags in a default JSON answer.
const TAGS: u64 = 5;

/// Why an answer stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// Done.
    EndTurn,
    /// A stop sequence came up.
    StopSequence,
    /// `max_tokens` was reached.
    MaxTokens,
    /// The client has to run a tool.
    ToolUse,
    /// A server tool paused the turn.
    PauseTurn,
    /// Refused for safety.
    Refusal,
    /// The context window is full.
    ModelContextWindowExceeded,
}

/// Why an answer was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalCategory {
    /// Cyber attacks.
    Cyber,
    /// Biology.
    Bio,
    /// Building frontier models.
    FrontierLlm,
    /// Extracting hidden reasoning.
    ReasoningExtraction,
    /// Everything else that harms.
    GeneralHarms,
    /// Not said; `null` on the wire.
    Unnamed,
}

impl RefusalCategory {
    /// The category of that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "cyber" => Some(Self::Cyber),
            "bio" => Some(Self::Bio),
            "frontier_llm" => Some(Self::FrontierLlm),
            "reasoning_extraction" => Some(Self::ReasoningExtraction),
            "general_harms" => Some(Self::GeneralHarms),
            "null" => Some(Self::Unnamed),
            _ => None,
        }
    }

    /// Whether a refusal before any output is billed.
    #[must_use]
    pub fn is_billed_without_output(self) -> bool {
        match self {
            Self::Bio | Self::FrontierLlm | Self::ReasoningExtraction => true,
            Self::Cyber | Self::GeneralHarms | Self::Unnamed => false,
        }
    }

    /// The value of `stop_details`.
    #[must_use]
    pub fn details(self) -> Value {
        let category = match self {
            Self::Unnamed => Value::Null,
            named => json!(named),
        };
        json!({
            "type": "refusal",
            "category": category,
            "explanation": "The request was declined (ordered from the simulator).",
        })
    }
}

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Block {
    /// Hidden reasoning.
    Thinking {
        /// The words.
        text: String,
        /// The signature that comes with them.
        signature: String,
    },
    /// Text.
    Text(String),
    /// A tool call.
    ToolUse {
        /// Id of the call.
        id: String,
        /// The tool.
        name: String,
        /// Its input as JSON text; broken when ordered.
        input: String,
        /// Whether the server runs the tool.
        server: bool,
    },
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The blocks, each with its output tokens.
    pub blocks: Vec<(Block, u64)>,
    /// Why it stopped.
    pub stop: StopReason,
    /// The stop sequence that came up.
    pub stop_sequence: Option<String>,
    /// The category of a refusal.
    pub refusal: Option<RefusalCategory>,
    /// All output tokens, thinking included.
    pub output_tokens: u64,
    /// Thinking tokens.
    pub thinking_tokens: u64,
    /// Whether a stream carries an event type that nobody knows.
    pub unknown_event: bool,
}

/// Decides the answer to a request.
#[must_use]
pub fn plan(request: &Request) -> Answer {
    let directives = &request.directives;
    let (draft, natural) = draft(request);
    let wanted_thinking = thinking_tokens(request);
    let asked = directives.out.unwrap_or(natural + wanted_thinking);
    let (output, stop) = length_and_stop(request, asked, draft.is_tool());
    let thinking = match directives.think {
        // Ordered thinking may eat the whole answer, as it can in life; otherwise something is left to say.
        Some(_) => wanted_thinking.min(output),
        None => wanted_thinking.min(output / 2),
    };
    let mut blocks = Vec::new();
    if thinking > 0 {
        let text = words(request.digest ^ 1, thinking);
        let signature = format!("sim{:016x}", request.digest);
        blocks.push((Block::Thinking { text, signature }, thinking));
    }
    let rest = output - thinking;
    if rest > 0 {
        blocks.push((draft.finish(request, stop, rest), rest));
    }
    if stop == StopReason::PauseTurn {
        let search = Block::ToolUse {
            id: format!("srvtoolu_{:016x}", request.digest),
            name: "web_search".to_owned(),
            input: r#"{"query":"wallpaper"}"#.to_owned(),
            server: true,
        };
        blocks.push((search, 0));
    }
    Answer {
        blocks,
        stop,
        stop_sequence: match stop {
            StopReason::StopSequence => request.stop_sequence.clone(),
            _ => None,
        },
        refusal: directives.refusal,
        output_tokens: output,
        thinking_tokens: thinking,
        unknown_event: directives.unknown_event,
    }
}

/// What the main block will be.
enum Draft {
    /// Words, as many as there are tokens.
    Prose,
    /// JSON text, which has its own length.
    Json(String),
    /// A call of this tool with this input.
    Call(String, String),
}

impl Draft {
    fn is_tool(&self) -> bool {
        matches!(self, Self::Call(..))
    }

    /// The block as far as `tokens` carry it: JSON stays whole unless the answer was cut.
    fn finish(self, request: &Request, stop: StopReason, tokens: u64) -> Block {
        let seed = request.digest;
        let cut = |json: String| match stop {
            StopReason::MaxTokens => broken(&json),
            _ => json,
        };
        match self {
            Self::Prose => Block::Text(words(seed, tokens)),
            Self::Json(text) => Block::Text(cut(text)),
            Self::Call(name, input) => Block::ToolUse {
                id: format!("toolu_{seed:016x}"),
                name,
                input: cut(input),
                server: false,
            },
        }
    }
}

/// The main block and its natural length in tokens.
fn draft(request: &Request) -> (Draft, u64) {
    let directives = &request.directives;
    let seed = request.digest;
    if directives.refusal.is_some() {
        // A refusal comes before any output unless a length is given.
        return (Draft::Prose, 0);
    }
    let tool = request
        .forced_tool
        .as_ref()
        .or(request.first_tool.as_ref().filter(|_| directives.tool_use));
    if let Some(tool) = tool {
        let input = tool_input(tool, request);
        let natural = json_tokens(&input);
        return (Draft::Call(tool.name.clone(), input), natural);
    }
    let wants_json = request.wants_json || directives.bad_json;
    let value = match &request.format {
        Some(schema) => schema::instance(schema, seed),
        None if wants_json && request.wants_tags => {
            let tags: Vec<&str> = (0..TAGS).map(|n| word(hash::mix(seed ^ n))).collect();
            json!({ "tags": tags })
        }
        None if wants_json => json!({ "answer": words(seed, 12) }),
        None => {
            let span = DEFAULT_TOKENS.end() - DEFAULT_TOKENS.start() + 1;
            return (
                Draft::Prose,
                DEFAULT_TOKENS.start() + hash::mix(seed) % span,
            );
        }
    };
    let text = value.to_string();
    let text = if directives.bad_json {
        broken(&text)
    } else {
        text
    };
    let natural = json_tokens(&text);
    (Draft::Json(text), natural)
}

fn tool_input(tool: &Tool, request: &Request) -> String {
    let text = schema::instance(&tool.schema, request.digest).to_string();
    if request.directives.bad_json {
        broken(&text)
    } else {
        text
    }
}

/// How long the answer is and why it stops there. Only an ordered length can exceed `max_tokens`; a natural one is
/// fitted to it, so that small limits in tests do not cut answers by accident.
fn length_and_stop(request: &Request, asked: u64, is_tool: bool) -> (u64, StopReason) {
    let directives = &request.directives;
    let limit = request.max_tokens;
    let length = asked.min(limit);
    if limit == 0 {
        (0, StopReason::MaxTokens)
    } else if directives.refusal.is_some() {
        (length, StopReason::Refusal)
    } else if directives.max_tokens {
        (
            directives.out.map_or(limit, |out| out.min(limit)),
            StopReason::MaxTokens,
        )
    } else if asked > limit && (directives.out.is_some() || directives.think.is_some()) {
        (limit, StopReason::MaxTokens)
    } else if directives.pause_turn && !request.continues_pause {
        (length, StopReason::PauseTurn)
    } else if directives.stop_sequence && request.stop_sequence.is_some() {
        (length, StopReason::StopSequence)
    } else if directives.context_exceeded {
        (length, StopReason::ModelContextWindowExceeded)
    } else if is_tool {
        (length, StopReason::ToolUse)
    } else {
        (length, StopReason::EndTurn)
    }
}

fn thinking_tokens(request: &Request) -> u64 {
    match request.directives.think {
        Some(tokens) => tokens,
        // With an ordered total or a refusal nothing is taken off for thinking.
        None if request.directives.refusal.is_some() || request.max_tokens == 0 => 0,
        None if request.thinks => 8 + request.digest % 8,
        None => 0,
    }
}

/// JSON that ends in the middle.
fn broken(json: &str) -> String {
    let half = (json.len() / 2).max(1);
    json[..json.floor_char_boundary(half)].to_owned()
}

/// The input of a tool call as a value. Broken text cannot be one, so it becomes an object no schema asks for.
#[must_use]
pub fn input_value(input: &str) -> Value {
    serde_json::from_str(input).unwrap_or_else(|_| json!({ "unexpected": input }))
}

fn json_tokens(text: &str) -> u64 {
    (text.len() as u64).div_ceil(4).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{models::Model, request};

    fn ask_with(prompt: &str, more: Value) -> Answer {
        let mut body =
            json!({"max_tokens": 128, "messages": [{"role": "user", "content": prompt}]});
        for (key, value) in more.as_object().unwrap() {
            body[key] = value.clone();
        }
        let model = Model::find("claude-haiku-4-5").unwrap();
        plan(&request::understand(body.as_object().unwrap(), model).unwrap())
    }

    fn ask(prompt: &str) -> Answer {
        ask_with(prompt, json!({}))
    }

    fn text(answer: &Answer) -> &str {
        match &answer.blocks.last().unwrap().0 {
            Block::Text(text) => text,
            other => panic!("{other:?} is not text"),
        }
    }

    #[test]
    fn the_same_prompt_gets_the_same_answer_and_another_one_does_not() {
        assert_eq!(ask("a story"), ask("a story"));
        assert_ne!(text(&ask("a story")), text(&ask("a song")));
        assert_eq!(ask("a story"), ask_with("a story", json!({"stream": true})));
    }

    #[test]
    fn default_answers_are_short_and_never_over_the_limit() {
        for n in 0..200 {
            let answer = ask(&format!("story {n}"));
            assert!(DEFAULT_TOKENS.contains(&answer.output_tokens));
            assert_eq!(answer.stop, StopReason::EndTurn);
        }
        let small = ask_with("story", json!({"max_tokens": 7}));
        assert_eq!((small.output_tokens, small.stop), (7, StopReason::EndTurn));
        assert_eq!(text(&small).split(' ').count(), 7);
    }

    #[test]
    fn a_prompt_for_json_tags_gets_five() {
        let answer = ask("Give five search tags for this wallpaper as JSON.");
        let value: Value = serde_json::from_str(text(&answer)).unwrap();
        assert_eq!(value["tags"].as_array().unwrap().len(), 5);
        assert!(serde_json::from_str::<Value>(text(&ask("Answer as JSON"))).is_ok());
    }

    #[test]
    fn a_schema_gets_a_valid_instance_and_a_forced_tool_a_valid_input() {
        let schema = json!({"type": "object", "properties": {"n": {"type": "array", "minItems": 3, "items": {"type": "string"}}}, "required": ["n"], "additionalProperties": false});
        let formatted = ask_with(
            "x",
            json!({"output_config": {"format": {"type": "json_schema", "schema": schema}}}),
        );
        let value: Value = serde_json::from_str(text(&formatted)).unwrap();
        assert!(jsonschema::is_valid(&schema, &value));

        let forced = ask_with(
            "x",
            json!({"tools": [{"name": "t", "input_schema": schema}], "tool_choice": {"type": "any"}}),
        );
        assert_eq!(forced.stop, StopReason::ToolUse);
        let Block::ToolUse { input, .. } = &forced.blocks[0].0 else {
            panic!("no tool call")
        };
        assert!(jsonschema::is_valid(&schema, &input_value(input)));
    }

    #[test]
    fn bad_tool_json_is_broken_in_text_and_in_tools() {
        assert!(
            serde_json::from_str::<Value>(text(&ask("[[sim:bad_tool_json]] tags as JSON")))
                .is_err()
        );
        assert!(
            serde_json::from_str::<Value>(text(&ask("[[sim:bad_tool_json]] anything"))).is_err()
        );
        let schema =
            json!({"type": "object", "properties": {"n": {"type": "string"}}, "required": ["n"]});
        let forced = ask_with(
            "[[sim:bad_tool_json]]",
            json!({"tools": [{"name": "t", "input_schema": schema}], "tool_choice": {"type": "any"}}),
        );
        let Block::ToolUse { input, .. } = &forced.blocks[0].0 else {
            panic!("no tool call")
        };
        assert!(serde_json::from_str::<Value>(input).is_err());
        assert!(!jsonschema::is_valid(&schema, &input_value(input)));
    }

    #[test]
    fn out_orders_the_length_and_max_tokens_bounds_it() {
        let long = ask("[[sim:out=100]]");
        assert_eq!((long.output_tokens, long.stop), (100, StopReason::EndTurn));
        let cut = ask("[[sim:out=500]]");
        assert_eq!((cut.output_tokens, cut.stop), (128, StopReason::MaxTokens));
        let json = ask("[[sim:out=90]] tags as JSON");
        assert_eq!(json.output_tokens, 90);
        assert!(serde_json::from_str::<Value>(text(&json)).is_ok());
    }

    #[test]
    fn max_tokens_uses_all_of_them_and_cuts_json() {
        let answer = ask("[[sim:max_tokens]] tags as JSON");
        assert_eq!(
            (answer.output_tokens, answer.stop),
            (128, StopReason::MaxTokens)
        );
        assert!(serde_json::from_str::<Value>(text(&answer)).is_err());
        assert_eq!(ask("[[sim:max_tokens out=9]]").output_tokens, 9);
    }

    #[test]
    fn a_refusal_has_no_output_unless_ordered() {
        let before = ask("[[sim:refusal]]");
        assert_eq!(
            (before.stop, before.output_tokens),
            (StopReason::Refusal, 0)
        );
        assert!(before.blocks.is_empty());
        let amid = ask("[[sim:refusal=cyber out=10]]");
        assert_eq!(
            (amid.output_tokens, amid.refusal),
            (10, Some(RefusalCategory::Cyber))
        );
        assert_eq!(text(&amid).split(' ').count(), 10);
    }

    #[test]
    fn a_paused_turn_ends_when_handed_back() {
        let paused = ask("[[sim:pause_turn]]");
        assert_eq!(paused.stop, StopReason::PauseTurn);
        let back = json!([{"role": "user", "content": "[[sim:pause_turn]]"},
            {"role": "assistant", "content": [{"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}]}]);
        assert_eq!(
            ask_with("", json!({"messages": back})).stop,
            StopReason::EndTurn
        );
    }

    #[test]
    fn the_other_stops_can_be_ordered() {
        let stop = ask_with("[[sim:stop_sequence]]", json!({"stop_sequences": ["END"]}));
        assert_eq!(
            (stop.stop, stop.stop_sequence.as_deref()),
            (StopReason::StopSequence, Some("END"))
        );
        assert_eq!(
            ask("[[sim:context_exceeded]]").stop,
            StopReason::ModelContextWindowExceeded
        );
        let tools = json!({"tools": [{"name": "t", "input_schema": {"type": "object"}}]});
        assert_eq!(
            ask_with("[[sim:tool_use]]", tools).stop,
            StopReason::ToolUse
        );
    }

    #[test]
    fn thinking_counts_inside_the_output() {
        let answer = ask_with(
            "x",
            json!({"thinking": {"type": "enabled", "budget_tokens": 1024}}),
        );
        assert!(answer.thinking_tokens > 0);
        assert!(matches!(answer.blocks[0].0, Block::Thinking { .. }));
        let sum: u64 = answer.blocks.iter().map(|(_, tokens)| tokens).sum();
        assert_eq!(sum, answer.output_tokens);
        let tags = ask_with(
            "tags as JSON",
            json!({"thinking": {"type": "enabled", "budget_tokens": 1024}}),
        );
        assert!(serde_json::from_str::<Value>(text(&tags)).is_ok());
        let small = ask_with(
            "x",
            json!({"max_tokens": 10, "thinking": {"type": "adaptive"}}),
        );
        assert_eq!(small.blocks.len(), 2);
        let nothing_left = ask("[[sim:think=500]] tags as JSON");
        assert_eq!(
            (nothing_left.thinking_tokens, nothing_left.stop),
            (128, StopReason::MaxTokens)
        );
        assert_eq!(nothing_left.blocks.len(), 1);
    }

    #[test]
    fn warming_the_cache_generates_nothing() {
        let warm = ask_with("x", json!({"max_tokens": 0}));
        assert_eq!((warm.output_tokens, warm.blocks.len()), (0, 0));
    }
}
