//! The shapes of the API as its clients know them, field by field, and what is near to them: parsed at
//! every cut, and never a panic.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use fairlane_claude::assemble::{Assembler, Finished, Step};
use fairlane_claude::error_body::{ErrorBody, MESSAGE_CHARS_MAX};
use fairlane_claude::sse::{Event, Parser};
use fairlane_claude::usage;
use fairlane_core::failure::{ErrorCode, ErrorKind, RefusalCategory, StopReason};
use fairlane_core::price::{Geo, Service, Speed, Terms, Usage};
use proptest::prelude::*;
use serde_json::{Value, json};

const BYTES_MAX: usize = 1 << 20;

/// A stream that uses every field and block of an answer that a job can get: cache, thinking, a search
/// on the server with its result, citations, a container, a tool call.
const STREAM: &str = r#"event: message_start
data: {"type":"message_start","message":{"id":"msg_01","type":"message","role":"assistant","model":"claude-sonnet-5-5","content":[],"container":null,"diagnostics":null,"stop_details":null,"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":12,"cache_creation_input_tokens":300,"cache_read_input_tokens":4000,"cache_creation":{"ephemeral_5m_input_tokens":100,"ephemeral_1h_input_tokens":200},"output_tokens":1,"output_tokens_details":null,"server_tool_use":null,"service_tier":"standard","speed":"standard","inference_geo":"us"}}}

event: ping
data: {"type":"ping"}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"search"}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"c2ln"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: content_block_start
data: {"type":"content_block_start","index":1,"content_block":{"type":"server_tool_use","id":"srvtoolu_01","caller":{"type":"direct"},"name":"web_search","input":{}}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"query\":\"mist\"}"}}

event: content_block_stop
data: {"type":"content_block_stop","index":1}

event: content_block_start
data: {"type":"content_block_start","index":2,"content_block":{"type":"web_search_tool_result","tool_use_id":"srvtoolu_01","caller":{"type":"direct"},"content":[{"type":"web_search_result","url":"https://example.com","title":"t","encrypted_content":"x","page_age":null}]}}

event: content_block_stop
data: {"type":"content_block_stop","index":2}

event: content_block_start
data: {"type":"content_block_start","index":3,"content_block":{"type":"text","text":"","citations":[]}}

event: content_block_delta
data: {"type":"content_block_delta","index":3,"delta":{"type":"text_delta","text":"Neb"}}

event: content_block_delta
data: {"type":"content_block_delta","index":3,"delta":{"type":"citations_delta","citation":{"type":"web_search_result_location","cited_text":"mist","url":"https://example.com","title":"t","encrypted_index":"i"}}}

event: content_block_delta
data: {"type":"content_block_delta","index":3,"delta":{"type":"text_delta","text":"el 静"}}

event: content_block_stop
data: {"type":"content_block_stop","index":3}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null,"stop_details":null,"container":{"id":"container_01","expires_at":"2026-12-01T00:00:00Z","skills":null}},"usage":{"input_tokens":12,"cache_creation_input_tokens":300,"cache_read_input_tokens":4000,"output_tokens":90,"output_tokens_details":{"thinking_tokens":40},"server_tool_use":{"web_search_requests":1,"web_fetch_requests":2}}}

event: message_stop
data: {"type":"message_stop"}

"#;

fn read(chunks: &[&[u8]]) -> Finished {
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
fn a_full_stream_is_read_at_every_cut() {
    let bytes = STREAM.as_bytes();
    let whole = read(&[bytes]);
    assert_eq!(whole.stop, StopReason::EndTurn);
    assert!(!whole.broken_tool_input);
    assert_eq!(whole.message["content"][1]["input"]["query"], "mist");
    assert_eq!(whole.message["content"][3]["text"], "Nebel 静");
    assert_eq!(whole.message["container"]["id"], "container_01");
    let (used, terms) = usage::read(&whole.message["usage"]).unwrap();
    assert_eq!(
        used,
        Usage {
            input: 12,
            cache_write_5m: 100,
            cache_write_1h: 200,
            cache_read: 4_000,
            output: 90,
            thinking: 40,
            web_search_requests: 1,
            web_fetch_requests: 2,
        }
    );
    assert_eq!(
        terms,
        Terms {
            speed: Speed::Standard,
            geo: Geo::Us,
            service: Service::Immediate,
        }
    );
    for cut in 1..bytes.len() {
        let (before, after) = bytes.split_at(cut);
        assert_eq!(read(&[before, after]), whole, "cut at {cut}");
    }
    let bytewise: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(read(&bytewise), whole);
}

#[test]
fn a_stream_that_ends_anywhere_before_its_end_is_no_message() {
    let bytes = STREAM.as_bytes();
    let stop = STREAM.find("event: message_stop").unwrap();
    for end in 0..stop {
        let (mut parser, mut assembler) = (Parser::new(BYTES_MAX), Assembler::new(BYTES_MAX));
        let mut events = Vec::new();
        parser.feed(&bytes[..end], &mut events).unwrap();
        for event in events {
            assembler.apply(&event).unwrap();
        }
        assert_eq!(assembler.finish(), Ok(None), "ended at {end}");
    }
}

#[test]
fn every_stop_reason_the_api_documents_is_known() {
    for word in [
        "end_turn",
        "max_tokens",
        "stop_sequence",
        "tool_use",
        "pause_turn",
        "refusal",
        "model_context_window_exceeded",
    ] {
        let stop = StopReason::parse(word, None);
        assert!(!matches!(stop, StopReason::Unknown(_)), "{word}");
    }
    for category in [
        "cyber",
        "bio",
        "frontier_llm",
        "reasoning_extraction",
        "general_harms",
    ] {
        let category = RefusalCategory::parse(Some(category));
        assert!(!matches!(category, RefusalCategory::Unknown(_)));
    }
}

#[test]
fn every_error_the_api_documents_for_messages_is_known() {
    for kind in [
        "invalid_request_error",
        "authentication_error",
        "billing_error",
        "permission_error",
        "not_found_error",
        "conflict_error",
        "request_too_large",
        "rate_limit_error",
        "timeout_error",
        "api_error",
        "overloaded_error",
    ] {
        let body = json!({"type": "error", "error": {"type": kind, "message": "m", "details": null}, "request_id": "req_01"});
        let body = ErrorBody::parse(body.to_string().as_bytes());
        assert!(
            !matches!(body.kind, ErrorKind::Unknown(_) | ErrorKind::Missing),
            "{kind}"
        );
        assert_eq!(body.request_id.as_deref(), Some("req_01"));
    }
    for code in [
        "ramp_limit_exceeded",
        "enforced_spend_limit_reached",
        "contract_spend_limit_reached",
        "linked_organization_spend_limit_reached",
        "linked_organization_billing_unavailable",
        "organization_on_hold",
        "workspace_human_review_disabled",
        "cmek_key_disabled",
        "cmek_key_unreachable",
        "cmek_key_network_blocked",
        "request_body_too_large_after_decoding",
        "request_body_encoding_invalid",
        "request_body_encoding_unsupported",
    ] {
        assert!(
            !matches!(ErrorCode::parse(code), ErrorCode::Unknown(_)),
            "{code}"
        );
    }
}

/// Any JSON, of the names the API uses and others.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z_é静\\\\\" ]{0,12}".prop_map(Value::from),
        prop::sample::select(vec![
            "message",
            "ping",
            "error",
            "text",
            "tool_use",
            "end_turn",
            "refusal",
            "text_delta",
            "input_json_delta",
            "overloaded_error",
            "rate_limit_error",
            "{\"a\":",
        ])
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let name = prop_oneof![
            prop::sample::select(vec![
                "type",
                "message",
                "index",
                "delta",
                "usage",
                "content",
                "content_block",
                "error",
                "details",
                "error_code",
                "stop_reason",
                "stop_details",
                "category",
                "input",
                "partial_json",
                "text",
                "output_tokens",
                "cache_creation",
                "request_id",
                "id",
            ])
            .prop_map(str::to_owned),
            "[a-z]{0,6}",
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(name, inner, 0..6)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

fn event_name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "ping",
        "error",
        "later",
        "",
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Events of the right names with anything in them, in any order.
    #[test]
    fn no_events_make_the_assembler_panic(
        events in prop::collection::vec((event_name(), any_json()), 0..12),
        real in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let mut assembler = Assembler::new(10_000);
        let mut known = Vec::new();
        Parser::new(BYTES_MAX).feed(STREAM.as_bytes(), &mut known).unwrap();
        let mut all = known[..1].to_vec();
        all.extend(real.iter().map(|at| at.get(&known).clone()));
        all.extend(events.into_iter().map(|(name, data)| {
            let mut data = data;
            if let Some(fields) = data.as_object_mut() {
                fields.insert("type".into(), name.into());
            }
            Event { name: name.to_owned(), data: data.to_string() }
        }));
        let mut stopped = false;
        for event in &all {
            match assembler.apply(event) {
                Ok(step) => stopped |= step == Step::Stopped,
                Err(_) => break,
            }
        }
        let finished = assembler.finish();
        prop_assert!(stopped || !matches!(finished, Ok(Some(_))));
    }

    #[test]
    fn no_error_body_makes_the_reader_panic(
        body in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..300),
            any_json().prop_map(|json| json.to_string().into_bytes()),
            any_json().prop_map(|json| json!({"type": "error", "error": json}).to_string().into_bytes()),
        ],
        cut in any::<prop::sample::Index>(),
    ) {
        let cut = cut.index(body.len() + 1);
        for body in [&body[..], &body[..cut]] {
            let read = ErrorBody::parse(body);
            prop_assert!(read.message.chars().count() <= MESSAGE_CHARS_MAX);
            prop_assert!(!read.message.contains(['\n', '\r']));
        }
    }

    #[test]
    fn no_usage_makes_the_reader_panic(usage in any_json()) {
        let _read = usage::read(&usage);
    }
}
