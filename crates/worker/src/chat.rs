//! The span of a call, in the words of the conventions for generative AI.
//!
//! Prompts and answers stand in it only if the configuration says so, and then not more of them than it says.

use fairlane_claude::CallReport;
use fairlane_core::failure::{Ending, Next, StopReason, classify};
use fairlane_runtime::TraceContext;
use fairlane_runtime::spans::{self, JobSpan, SpanKind, Tags};
use serde_json::Value;

use crate::request::Request;

/// Begins the span of a call.
pub(crate) fn start(
    request: &Request,
    parent: Option<&TraceContext>,
    tags: impl FnOnce() -> Tags,
    turn: u32,
) -> JobSpan {
    if !spans::are_on() {
        return JobSpan::none();
    }
    let model = request.model();
    let tags = tags()
        .word("gen_ai.operation.name", "chat")
        .word("gen_ai.provider.name", "anthropic")
        .text("gen_ai.request.model", model);
    let name = format!("chat {model}");
    let mut span = JobSpan::start(name, SpanKind::Client, parent, &tags);
    if turn > 1 {
        span.number("turn", u64::from(turn));
    }
    if let Some(max_tokens) = request.field("max_tokens").and_then(Value::as_u64) {
        span.number("gen_ai.request.max_tokens", max_tokens);
    }
    if let Some(chars_max) = spans::content_chars_max() {
        for (key, field) in [
            ("gen_ai.system_instructions", "system"),
            ("gen_ai.input.messages", "messages"),
        ] {
            if let Some(value) = request.field(field) {
                span.text(key, shortened(value, chars_max));
            }
        }
    }
    span
}

/// Sets what came of the call.
pub(crate) fn tell(span: &mut JobSpan, report: &CallReport) {
    if !span.is_recording() {
        return;
    }
    let verdict = classify(&report.ending);
    if !matches!(verdict.next, Next::Keep | Next::Continue) {
        span.fail(verdict.reason.as_str());
    }
    if let Some(model) = &report.model {
        span.text("gen_ai.response.model", model.clone());
    }
    let answer = |name: &str| report.message.as_ref()?.get(name);
    if let Some(id) = answer("id").and_then(Value::as_str) {
        span.text("gen_ai.response.id", id.to_owned());
    }
    if let Ending::Message(stop) = &report.ending {
        span.texts("gen_ai.response.finish_reasons", vec![word(stop)]);
    }
    let usage = &report.usage;
    // Those read from and written to the cache are input too.
    span.number("gen_ai.usage.input_tokens", usage.prompt());
    span.number("gen_ai.usage.output_tokens", usage.output);
    span.number("gen_ai.usage.cache_read.input_tokens", usage.cache_read);
    let written = usage.cache_write_5m.saturating_add(usage.cache_write_1h);
    span.number("gen_ai.usage.cache_creation.input_tokens", written);
    if let Some(id) = &report.request_id {
        span.text("anthropic.request_id", id.clone());
    }
    if let Some(status) = report.status {
        span.number("http.response.status_code", u64::from(status));
    }
    let times = [
        ("fairlane.time_to_headers_ms", report.timings.headers_ms),
        (
            "fairlane.time_to_first_output_ms",
            report.timings.first_output_ms,
        ),
    ];
    for (key, ms) in times {
        if let Some(ms) = ms {
            span.number(key, ms);
        }
    }
    if let (Some(chars_max), Some(content)) = (spans::content_chars_max(), answer("content")) {
        span.text("gen_ai.output.messages", shortened(content, chars_max));
    }
}

fn word(stop: &StopReason) -> String {
    match stop {
        StopReason::EndTurn => "end_turn",
        StopReason::ToolUse => "tool_use",
        StopReason::StopSequence => "stop_sequence",
        StopReason::MaxTokens => "max_tokens",
        StopReason::Refusal(_) => "refusal",
        StopReason::PauseTurn => "pause_turn",
        StopReason::ContextWindowExceeded => "model_context_window_exceeded",
        StopReason::Compaction => "compaction",
        StopReason::Unknown(word) => word,
    }
    .to_owned()
}

fn shortened(value: &Value, chars_max: usize) -> String {
    let text = value.to_string();
    match text.char_indices().nth(chars_max) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn content_is_cut_between_characters() {
        let value = json!("äöü");
        assert_eq!(shortened(&value, 3), "\"äö...");
        assert_eq!(shortened(&value, 5), "\"äöü\"");
    }
}
