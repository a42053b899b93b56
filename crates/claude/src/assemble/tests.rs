use fairlane_core::failure::{ErrorKind, RefusalCategory};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::sse::Parser;

const BYTES_MAX: usize = 100_000;

/// A stream with thinking, text, a tool call, citations, pings, and things of later versions.
fn events() -> Vec<Value> {
    let delta = |index, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
    let stop = |index| json!({"type": "content_block_stop", "index": index});
    let start = |index, block: Value| json!({"type": "content_block_start", "index": index, "content_block": block});
    vec![
        json!({"type": "message_start", "message": {
            "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-6",
            "content": [], "stop_reason": null, "stop_sequence": null, "stop_details": null, "diagnostics": null,
            "usage": {"input_tokens": 20, "output_tokens": 1, "cache_read_input_tokens": 4,
                "cache_creation_input_tokens": 30, "service_tier": "standard",
                "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20}}}}),
        json!({"type": "ping"}),
        start(
            0,
            json!({"type": "thinking", "thinking": "", "signature": ""}),
        ),
        delta(0, json!({"type": "thinking_delta", "thinking": "hm "})),
        delta(0, json!({"type": "thinking_delta", "thinking": "静か"})),
        delta(0, json!({"type": "signature_delta", "signature": "sig"})),
        stop(0),
        json!({"type": "later_event", "index": 99}),
        start(1, json!({"type": "text", "text": "", "citations": null})),
        delta(1, json!({"type": "text_delta", "text": "Hel"})),
        delta(1, json!({"type": "later_delta", "x": 1})),
        delta(1, json!({"type": "text_delta", "text": "lo 🦀"})),
        delta(
            1,
            json!({"type": "citations_delta", "citation": {"cited_text": "c"}}),
        ),
        stop(1),
        start(
            2,
            json!({"type": "tool_use", "id": "tu_1", "name": "tag", "input": {}}),
        ),
        delta(2, json!({"type": "input_json_delta", "partial_json": ""})),
        delta(
            2,
            json!({"type": "input_json_delta", "partial_json": "{\"tags\": [\"a\","}),
        ),
        delta(
            2,
            json!({"type": "input_json_delta", "partial_json": "\"b\"]}"}),
        ),
        stop(2),
        start(
            3,
            json!({"type": "tool_use", "id": "tu_2", "name": "now", "input": {}}),
        ),
        stop(3),
        json!({"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": null},
            "usage": {"output_tokens": 50, "input_tokens": null, "cache_creation_input_tokens": 30,
                "output_tokens_details": {"thinking_tokens": 12}}}),
        json!({"type": "message_stop"}),
    ]
}

fn message() -> Value {
    json!({
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-6",
        "stop_reason": "tool_use", "stop_sequence": null, "stop_details": null, "diagnostics": null,
        "content": [
            {"type": "thinking", "thinking": "hm 静か", "signature": "sig"},
            {"type": "text", "text": "Hello 🦀", "citations": [{"cited_text": "c"}]},
            {"type": "tool_use", "id": "tu_1", "name": "tag", "input": {"tags": ["a", "b"]}},
            {"type": "tool_use", "id": "tu_2", "name": "now", "input": {}},
        ],
        "usage": {"input_tokens": 20, "output_tokens": 50, "cache_read_input_tokens": 4,
            "cache_creation_input_tokens": 30, "service_tier": "standard",
            "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20},
            "output_tokens_details": {"thinking_tokens": 12}},
    })
}

fn named(data: &Value) -> Event {
    Event {
        name: data["type"].as_str().unwrap().to_owned(),
        data: data.to_string(),
    }
}

fn apply(assembler: &mut Assembler, events: &[Value]) -> Result<Vec<Step>, AssembleError> {
    events
        .iter()
        .map(|data| assembler.apply(&named(data)))
        .collect()
}

fn stream() -> Vec<u8> {
    let text = |data: Value| {
        format!(
            "event: {}\r\ndata: {data}\r\n\r\n",
            data["type"].as_str().unwrap()
        )
    };
    events()
        .into_iter()
        .map(text)
        .collect::<String>()
        .into_bytes()
}

fn assemble(chunks: &[&[u8]]) -> Finished {
    let (mut parser, mut assembler) = (Parser::new(BYTES_MAX), Assembler::new(BYTES_MAX));
    for chunk in chunks {
        let mut events = Vec::new();
        parser.feed(chunk, &mut events).unwrap();
        for event in events {
            assembler.apply(&event).unwrap();
        }
    }
    assembler.finish().unwrap().unwrap()
}

#[test]
fn a_stream_becomes_the_message_an_answer_without_streaming_would_be() {
    let finished = assemble(&[&stream()]);
    assert_eq!(finished.message, message());
    assert_eq!(
        (finished.stop, finished.broken_tool_input),
        (StopReason::ToolUse, false)
    );
}

#[test]
fn usage_is_the_last_seen_with_the_split_of_the_first() {
    let mut assembler = Assembler::new(BYTES_MAX);
    assert_eq!(assembler.usage(), None);
    apply(&mut assembler, &events()).unwrap();
    let want = Usage {
        input: 20,
        cache_write_5m: 10,
        cache_write_1h: 20,
        cache_read: 4,
        output: 50,
        thinking: 12,
        ..Usage::default()
    };
    assert_eq!(assembler.usage(), Some((want, Terms::default())));
    assert_eq!(
        assembler.usage_estimate(),
        assembler.usage(),
        "nothing was written since"
    );
}

#[test]
fn a_broken_stream_books_what_was_written_since_the_last_usage() {
    let mut assembler = Assembler::new(BYTES_MAX);
    apply(&mut assembler, &events()[..10]).unwrap();
    // "hm ", "静か" and "Hel" are 8 characters: 2 tokens on top of the one that was counted.
    assert_eq!(assembler.usage_estimate().unwrap().0.output, 3);
    assert_eq!(assembler.output_tokens(), 3);
    assert_eq!(assembler.finish(), Ok(None));
}

#[test]
fn steps_tell_life_from_progress() {
    let steps = apply(&mut Assembler::new(BYTES_MAX), &events()).unwrap();
    assert_eq!(
        steps[..4],
        [Step::Started, Step::Ping, Step::Thinking, Step::Thinking]
    );
    assert_eq!(steps[7..10], [Step::Skipped, Step::Writing, Step::Writing]);
    assert_eq!(
        steps[10],
        Step::Writing,
        "an unknown delta is output all the same"
    );
    assert_eq!(steps[21..], [Step::Closing, Step::Stopped]);
}

#[test]
fn an_error_event_fails_the_call_whatever_came_before() {
    let error =
        json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}});
    for before in [0, 1, 12] {
        let mut assembler = Assembler::new(BYTES_MAX);
        apply(&mut assembler, &events()[..before]).unwrap();
        let Step::Failed(body) = assembler.apply(&named(&error)).unwrap() else {
            panic!("not failed")
        };
        assert_eq!(body.kind, ErrorKind::Overloaded);
    }
}

#[test]
fn broken_tool_input_is_noticed_and_kept_for_people() {
    for bad in [
        "{\"tags\": [",
        "[1]",
        "7",
        "{\"a\": 1e999}",
        &"[".repeat(300),
    ] {
        let mut assembler = Assembler::new(BYTES_MAX);
        let mut events = events();
        events[16]["delta"]["partial_json"] = json!(bad);
        events[17]["delta"]["partial_json"] = json!("");
        apply(&mut assembler, &events).unwrap();
        let finished = assembler.finish().unwrap().unwrap();
        assert!(finished.broken_tool_input, "{bad}");
        assert_eq!(finished.message["content"][2]["input"], json!(bad));
    }
}

#[test]
fn a_refusal_brings_its_category() {
    let mut events = events();
    events[21]["delta"] = json!({"stop_reason": "refusal", "stop_details": {"type": "refusal", "category": "bio", "explanation": "x"}});
    let mut assembler = Assembler::new(BYTES_MAX);
    apply(&mut assembler, &events).unwrap();
    let finished = assembler.finish().unwrap().unwrap();
    assert_eq!(finished.stop, StopReason::Refusal(RefusalCategory::Bio));
    assert_eq!(finished.message["stop_details"]["explanation"], json!("x"));
}

#[test]
fn several_message_deltas_add_up_and_a_later_null_takes_nothing_back() {
    let mut events = events();
    events.insert(22, json!({"type": "message_delta", "delta": {"stop_reason": null, "container": {"id": "c"}}, "usage": {"output_tokens": 60}, "context_management": {"applied_edits": []}}));
    let mut assembler = Assembler::new(BYTES_MAX);
    apply(&mut assembler, &events).unwrap();
    let message = assembler.finish().unwrap().unwrap().message;
    assert_eq!(message["stop_reason"], json!("tool_use"));
    assert_eq!(message["usage"]["output_tokens"], json!(60));
    assert_eq!(message["container"]["id"], json!("c"));
    assert!(message["context_management"].is_object());
}

#[test]
fn events_out_of_order_are_an_error_not_a_message() {
    let all = events();
    let start = &all[0];
    let cases: [(&[Value], &str); 10] = [
        (&all[2..3], "before message_start"),
        (&all[22..], "before message_start"),
        (&all[21..22], "before message_start"),
        (&[start.clone(), start.clone()], "second message_start"),
        (&[start.clone(), all[3].clone()], "content block 0"),
        (&[start.clone(), all[8].clone()], "content block 1"),
        (
            &[start.clone(), all[2].clone(), all[2].clone()],
            "content block 0, but 1",
        ),
        (&[json!({"type": "message_start"})], "message"),
        (
            &[
                start.clone(),
                all[2].clone(),
                json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta"}}),
            ],
            "text",
        ),
        (
            &[
                start.clone(),
                json!({"type": "content_block_stop", "index": -1}),
            ],
            "index",
        ),
    ];
    for (events, part) in cases {
        let error = apply(&mut Assembler::new(BYTES_MAX), events)
            .unwrap_err()
            .to_string();
        assert!(error.contains(part), "{error}");
    }
    let mut assembler = Assembler::new(BYTES_MAX);
    apply(&mut assembler, &[start.clone(), all[22].clone()]).unwrap();
    assert_eq!(assembler.finish(), Err(AssembleError::NoStopReason));
}

#[test]
fn known_events_must_be_json_and_unknown_ones_need_not() {
    let event = |name: &str, data: &str| Event {
        name: name.into(),
        data: data.into(),
    };
    let mut assembler = Assembler::new(BYTES_MAX);
    assert_eq!(
        assembler.apply(&event("new_event", "not json")),
        Ok(Step::Skipped)
    );
    assert_eq!(assembler.apply(&event("", "[DONE]")), Ok(Step::Skipped));
    assert_eq!(assembler.apply(&event("ping", "not json")), Ok(Step::Ping));
    assert!(
        assembler
            .apply(&event("message_start", "{\"type\""))
            .is_err()
    );
    assert_eq!(
        assembler.apply(&event("", &events()[0].to_string())),
        Ok(Step::Started),
        "named by its data"
    );
}

#[test]
fn an_endless_message_is_refused() {
    let mut assembler = Assembler::new(2_000);
    let fed = std::iter::repeat_n(events()[9].clone(), 100);
    let events: Vec<Value> = vec![
        events()[0].clone(),
        events()[2].clone(),
        json!({"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}}),
    ];
    apply(&mut assembler, &events).unwrap();
    let error = apply(&mut assembler, &fed.collect::<Vec<_>>()).unwrap_err();
    assert_eq!(error, AssembleError::TooLarge { bytes_max: 2_000 });
}

proptest! {
    #[test]
    fn chunks_do_not_change_the_message(cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..60)) {
        let bytes = stream();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let chunks: Vec<&[u8]> = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
        let finished = assemble(&chunks);
        prop_assert_eq!(finished.message, message());
    }

    /// Events left out, doubled and swapped, with single bytes changed: never a panic, and never a
    /// finished message without its stop.
    #[test]
    fn damaged_streams_never_panic(
        order in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
    ) {
        let all = events();
        let text = |data: &Value| format!("event: {}\ndata: {data}\n\n", data["type"].as_str().unwrap());
        let mut bytes = order.iter().map(|at| text(at.get(&all))).collect::<String>().into_bytes();
        for (at, byte) in damage {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
        }
        let mut found = Vec::new();
        Parser::new(BYTES_MAX).feed(&bytes, &mut found).unwrap();
        let mut assembler = Assembler::new(BYTES_MAX);
        let mut stopped = false;
        for event in &found {
            match assembler.apply(event) {
                Ok(step) => stopped |= step == Step::Stopped,
                Err(_) => break,
            }
        }
        let finished = assembler.finish();
        prop_assert!(stopped || finished == Ok(None));
    }
}
