//! Plain and streamed answers, refused bodies, the other two endpoints.

use fairlane_sim::{Preset, SimConfig};
use serde_json::{Value, json};

use crate::support::{HAIKU, World, header, kinds, prompt, streamed};

#[tokio::test]
async fn a_plain_answer_has_every_field() {
    let world = World::instant().await;
    let response = world.send(&prompt("hello")).await;
    assert_eq!(response.status(), 200);
    let id = header(&response, "request-id").unwrap();
    assert!(id.starts_with("req_"), "{id}");
    assert!(header(&response, "anthropic-organization-id").is_some());
    let body: Value = response.json().await.unwrap();
    assert_eq!(body["type"], "message");
    assert_eq!(body["role"], "assistant");
    assert_eq!(body["model"], "claude-haiku-4-5-20251001");
    assert_eq!(body["stop_reason"], "end_turn");
    assert!(body["id"].as_str().unwrap().starts_with("msg_"));
    for field in ["stop_sequence", "stop_details", "container", "diagnostics"] {
        assert!(body.as_object().unwrap().contains_key(field), "{field}");
        assert_eq!(body[field], Value::Null, "{field}");
    }
    let output = body["usage"]["output_tokens"].as_u64().unwrap();
    assert!((20..=60).contains(&output), "{output}");
    assert!(body["usage"]["input_tokens"].as_u64().unwrap() > 0);
}

#[tokio::test]
async fn a_stream_has_the_documented_order_and_the_same_text() {
    let world = World::instant().await;
    let (_, plain) = world.ask("hello").await;
    let events = world.stream("hello").await;
    assert_eq!(
        kinds(&events),
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
    let text: String = events
        .iter()
        .filter_map(|event| event["delta"]["text"].as_str())
        .collect();
    assert_eq!(text, plain["content"][0]["text"]);
    let delta = &events[events.len() - 2];
    assert_eq!(delta["delta"]["stop_reason"], "end_turn");
    assert_eq!(
        delta["usage"]["output_tokens"],
        plain["usage"]["output_tokens"]
    );
}

#[tokio::test]
async fn a_stream_is_sent_as_it_is_generated() {
    let world = World::start(SimConfig {
        preset: Preset::Unlimited,
        first_byte_ms: 10,
        ..SimConfig::default()
    })
    .await;
    let body = streamed("[[sim:ms=2000 out=100]]");
    let mut response = world.send(&body).await;
    assert_eq!(
        header(&response, "content-type"),
        Some("text/event-stream; charset=utf-8")
    );
    let mut chunks = 0;
    while let Some(chunk) = response.chunk().await.unwrap() {
        if chunks == 0 {
            assert!(chunk.starts_with(b"event: message_start"));
            // The first part is here while the call is still running.
            assert_eq!(world.sim.stats().in_flight, 1);
        }
        chunks += 1;
    }
    assert!(chunks > 5, "{chunks}");
    assert_eq!(world.sim.stats().in_flight, 0);
}

#[tokio::test]
async fn a_forced_tool_answers_with_valid_input_in_both_forms() {
    let world = World::instant().await;
    let schema = json!({"type": "object", "properties": {"tags": {"type": "array", "items": {"type": "string"}, "minItems": 5}}, "required": ["tags"]});
    let mut body = prompt("tag this");
    body["tools"] = json!([{"name": "save", "input_schema": schema}]);
    body["tool_choice"] = json!({"type": "tool", "name": "save"});
    let plain: Value = world.send(&body).await.json().await.unwrap();
    assert_eq!(plain["stop_reason"], "tool_use");
    assert_eq!(plain["content"][0]["name"], "save");
    assert!(jsonschema::is_valid(&schema, &plain["content"][0]["input"]));
    body["stream"] = true.into();
    let text = world.send(&body).await.text().await.unwrap();
    let partial: String = crate::support::events(&text)
        .iter()
        .filter_map(|event| event["delta"]["partial_json"].as_str())
        .collect();
    assert_eq!(
        serde_json::from_str::<Value>(&partial).unwrap(),
        plain["content"][0]["input"]
    );
}

#[tokio::test]
async fn bad_bodies_are_400_with_the_error_envelope() {
    let world = World::instant().await;
    let mut too_much = prompt("x");
    too_much["max_tokens"] = 64_001.into();
    let mut extra = prompt("x");
    extra["priority"] = "high".into();
    for (body, part) in [
        ("{nonsense".to_owned(), "not valid JSON"),
        ("[]".to_owned(), "not valid JSON"),
        (
            format!("{}1{}", "[".repeat(500), "]".repeat(500)),
            "not valid JSON",
        ),
        ("{}".to_owned(), "model: Field required"),
        (too_much.to_string(), "max_tokens: 64001 > 64000"),
        (
            extra.to_string(),
            "priority: Extra inputs are not permitted",
        ),
        (
            prompt(&"word ".repeat(200_000)).to_string(),
            "prompt is too long",
        ),
        (
            prompt("[[sim:typo]]").to_string(),
            "unknown sim directive `typo`",
        ),
    ] {
        let response = world.post("/v1/messages").body(body).send().await.unwrap();
        assert_eq!(response.status(), 400, "{part}");
        let id = header(&response, "request-id").unwrap().to_owned();
        let error: Value = response.json().await.unwrap();
        assert_eq!(error["type"], "error");
        assert_eq!(error["error"]["type"], "invalid_request_error");
        assert_eq!(error["request_id"], id);
        let message = error["error"]["message"].as_str().unwrap();
        assert!(message.contains(part), "{message}");
    }
}

#[tokio::test]
async fn invalid_utf8_is_a_400() {
    let world = World::instant().await;
    let mut body = prompt("x").to_string().into_bytes();
    let at = body.iter().position(|byte| *byte == b'x').unwrap();
    body[at] = 0xff;
    let response = world.post("/v1/messages").body(body).send().await.unwrap();
    assert_eq!(response.status(), 400);
}

#[tokio::test]
async fn keys_and_versions_are_checked() {
    let world = World::start(SimConfig {
        api_keys: vec!["sk-good".to_owned()],
        ..SimConfig::instant()
    })
    .await;
    let url = format!("{}/v1/messages", world.sim.url());
    let send = async |key: Option<&str>, version: Option<&str>| {
        let mut request = world.client.post(&url).json(&prompt("x"));
        if let Some(key) = key {
            request = request.header("x-api-key", key);
        }
        if let Some(version) = version {
            request = request.header("anthropic-version", version);
        }
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        (
            status,
            response.json::<Value>().await.unwrap()["error"]["type"].clone(),
        )
    };
    let version = Some("2023-06-01");
    assert_eq!(
        send(None, version).await,
        (401, json!("authentication_error"))
    );
    assert_eq!(send(Some(""), version).await.0, 401);
    assert_eq!(send(Some("sk-bad"), version).await.0, 401);
    assert_eq!(
        send(Some("sk-good"), None).await,
        (400, json!("invalid_request_error"))
    );
    assert_eq!(send(Some("sk-good"), Some("2020-01-01")).await.0, 400);
    assert_eq!(send(Some("sk-good"), version).await.0, 200);
    assert_eq!(send(Some("sk-good"), Some("2026-10-21")).await.0, 200);
}

#[tokio::test]
async fn the_new_version_refuses_sampling() {
    let world = World::instant().await;
    let mut body = prompt("x");
    body["temperature"] = 0.5.into();
    assert_eq!(world.send(&body).await.status(), 200);
    let request = world
        .client
        .post(format!("{}/v1/messages", world.sim.url()));
    let request = request
        .header("x-api-key", "k")
        .header("anthropic-version", "2026-10-21");
    assert_eq!(request.json(&body).send().await.unwrap().status(), 400);
}

#[tokio::test]
async fn unknown_and_retired_models_are_404() {
    let world = World::start(SimConfig {
        retired_models: vec!["claude-opus-4-6".to_owned()],
        ..SimConfig::instant()
    })
    .await;
    for model in ["claude-sonnet-4-5", "claude-opus-4-6", "gpt-9"] {
        let mut body = prompt("x");
        body["model"] = model.into();
        let response = world.send(&body).await;
        assert_eq!(response.status(), 404);
        let error: Value = response.json().await.unwrap();
        assert_eq!(error["error"]["type"], "not_found_error");
        assert_eq!(error["error"]["message"], format!("model: {model}"));
    }
}

#[tokio::test]
async fn a_body_over_the_limit_is_a_413_that_is_not_json() {
    let world = World::start(SimConfig {
        body_limit_bytes: 100_000,
        ..SimConfig::instant()
    })
    .await;
    let response = world.send(&prompt(&"x".repeat(200_000))).await;
    assert_eq!(response.status(), 413);
    assert_eq!(header(&response, "content-type"), Some("text/html"));
    assert!(response.text().await.unwrap().starts_with("<html>"));
    assert_eq!(world.record(1).await.status, Some(413));
}

#[tokio::test]
async fn counting_tokens_agrees_with_the_bill_and_has_its_own_limit() {
    let world = World::start(SimConfig {
        preset: Preset::Tier1,
        zero_latency: true,
        ..SimConfig::default()
    })
    .await;
    let mut body = prompt("how many tokens is this?");
    let (_, answer) = world.ask("how many tokens is this?").await;
    body.as_object_mut().unwrap().remove("max_tokens");
    let counted: Value = world
        .post("/v1/messages/count_tokens")
        .json(&body)
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(counted["input_tokens"], answer["usage"]["input_tokens"]);

    // 100 a minute here, against 50 for messages.
    let mut counted = 1;
    loop {
        let response = world
            .post("/v1/messages/count_tokens")
            .json(&body)
            .send()
            .await
            .unwrap();
        if response.status() == 429 {
            break;
        }
        counted += 1;
        assert!(counted < 300, "nothing was refused");
    }
    assert!(counted >= 100, "{counted}");
    assert_eq!(world.ask("still fine").await.0, 200);
}

#[tokio::test]
async fn models_are_listed_with_limits_and_lifecycle() {
    let world = World::start(SimConfig {
        retired_models: vec![HAIKU.to_owned()],
        ..SimConfig::instant()
    })
    .await;
    let get = async |path: &str| world.get(path).send().await.unwrap();
    let all: Value = get("/v1/models?limit=1000").await.json().await.unwrap();
    assert_eq!(all["has_more"], false);
    let find = |id: &str| {
        let list = all["data"].as_array().unwrap();
        list.iter().find(|model| model["id"] == id).unwrap().clone()
    };
    let sonnet = find("claude-sonnet-4-6");
    assert_eq!(sonnet["max_input_tokens"], 1_000_000);
    assert_eq!(sonnet["max_tokens"], 128_000);
    assert_eq!(sonnet["lifecycle"], "active");
    assert_eq!(
        sonnet["capabilities"]["thinking"]["types"]["adaptive"]["supported"],
        true
    );
    assert_eq!(find("claude-haiku-4-5-20251001")["lifecycle"], "retired");
    assert_eq!(find("claude-opus-4-5-20251101")["lifecycle"], "deprecated");

    let first: Value = get("/v1/models?limit=3").await.json().await.unwrap();
    assert_eq!(
        (first["data"].as_array().unwrap().len(), &first["has_more"]),
        (3, &json!(true))
    );
    let last = first["last_id"].as_str().unwrap();
    let second: Value = get(&format!("/v1/models?limit=3&after_id={last}"))
        .await
        .json()
        .await
        .unwrap();
    assert_ne!(second["first_id"], first["first_id"]);

    let one: Value = get("/v1/models/claude-haiku-4-5")
        .await
        .json()
        .await
        .unwrap();
    assert_eq!(one["id"], "claude-haiku-4-5-20251001");
    assert_eq!(get("/v1/models/nope").await.status(), 404);
}

#[tokio::test]
async fn unknown_paths_and_methods_are_refused_in_json() {
    let world = World::instant().await;
    let lost = world.get("/v1/poems").send().await.unwrap();
    assert_eq!(lost.status(), 404);
    assert_eq!(
        lost.json::<Value>().await.unwrap()["error"]["type"],
        "not_found_error"
    );
    let wrong = world.get("/v1/messages").send().await.unwrap();
    assert_eq!(wrong.status(), 405);
    assert_eq!(wrong.json::<Value>().await.unwrap()["type"], "error");
}

#[tokio::test]
async fn a_cached_prefix_is_written_once_then_read_and_free_of_the_limit() {
    let world = World::start(SimConfig {
        preset: Preset::Tier1,
        zero_latency: true,
        ..SimConfig::default()
    })
    .await;
    let mut body = prompt("short question");
    body["model"] = "claude-sonnet-4-6".into();
    let long = "the same long instructions ".repeat(1_500);
    body["system"] = json!([{"type": "text", "text": long, "cache_control": {"type": "ephemeral", "ttl": "1h"}}]);
    let usage = async || world.send(&body).await.json::<Value>().await.unwrap()["usage"].clone();
    let first = usage().await;
    assert_eq!(first["cache_read_input_tokens"], 0);
    let written = first["cache_creation_input_tokens"].as_u64().unwrap();
    assert!(written > 10_000, "{written}");
    assert_eq!(
        first["cache_creation"]["ephemeral_1h_input_tokens"],
        written
    );
    // 30 000 input tokens a minute: without the cache the third call would not fit.
    for _ in 0..10 {
        let again = usage().await;
        assert_eq!(again["cache_read_input_tokens"], written);
        assert_eq!(again["cache_creation_input_tokens"], 0);
    }
}
