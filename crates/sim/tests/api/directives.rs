//! What prompts can make the simulator do, one by one.

use std::time::Duration;

use fairlane_sim::{Ending, Preset, SimConfig};
use futures::StreamExt;
use serde_json::Value;

use crate::support::{World, events, header, kinds, prompt, streamed};

/// The text of a stream as far as it came, and whether it ended cleanly.
async fn read_all(response: reqwest::Response) -> (String, bool) {
    let mut text = String::new();
    let mut stream = response.bytes_stream();
    while let Some(chunk) = stream.next().await {
        match chunk {
            Ok(bytes) => text.push_str(std::str::from_utf8(&bytes).unwrap()),
            Err(_) => return (text, false),
        }
    }
    (text, true)
}

#[tokio::test]
async fn refusal_stops_with_details() {
    let world = World::instant().await;
    let (status, body) = world.ask("[[sim:refusal]]").await;
    assert_eq!(
        (status, body["stop_reason"].as_str()),
        (200, Some("refusal"))
    );
    assert_eq!(body["stop_details"]["type"], "refusal");
    let events = world.stream("[[sim:refusal=bio]]").await;
    let delta = events
        .iter()
        .find(|event| event["type"] == "message_delta")
        .unwrap();
    assert_eq!(delta["delta"]["stop_details"]["category"], "bio");
    let log = world.sim.log();
    assert_eq!((log[0].billed, log[1].billed), (false, true));
}

#[tokio::test]
async fn max_tokens_uses_them_all() {
    let world = World::instant().await;
    let (_, body) = world.ask("[[sim:max_tokens]] tags as JSON").await;
    assert_eq!(body["stop_reason"], "max_tokens");
    assert_eq!(body["usage"]["output_tokens"], 128);
    let text = body["content"][0]["text"].as_str().unwrap();
    assert!(serde_json::from_str::<Value>(text).is_err());
}

#[tokio::test]
async fn bad_tool_json_is_not_json() {
    let world = World::instant().await;
    let (_, body) = world.ask("[[sim:bad_tool_json]] tags as JSON").await;
    assert_eq!(body["stop_reason"], "end_turn");
    let text = body["content"][0]["text"].as_str().unwrap();
    assert!(serde_json::from_str::<Value>(text).is_err(), "{text}");
}

#[tokio::test]
async fn status_always_fails_with_its_body() {
    let world = World::instant().await;
    for (status, kind) in [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (504, "timeout_error"),
        (529, "overloaded_error"),
    ] {
        for body in [
            prompt(&format!("[[sim:status={status}]]")),
            streamed(&format!("[[sim:status={status}]]")),
        ] {
            let response = world.send(&body).await;
            assert_eq!(response.status(), status);
            assert_eq!(
                header(&response, "retry-after"),
                (status == 429).then_some("1")
            );
            let error: Value = response.json().await.unwrap();
            assert_eq!(error["error"]["type"], kind);
            assert!(error["request_id"].as_str().unwrap().starts_with("req_"));
        }
    }
    let asked = world
        .send(&prompt("[[sim:status=529 retry_after=7]]"))
        .await;
    assert_eq!(header(&asked, "retry-after"), Some("7"));
}

#[tokio::test]
async fn once_fails_the_first_call_with_that_prompt_only() {
    let world = World::instant().await;
    for status in [429, 529] {
        let text = format!("[[sim:once={status} retry_after=3]] a");
        let response = world.send(&prompt(&text)).await;
        assert_eq!(response.status(), status);
        assert_eq!(header(&response, "retry-after"), Some("3"));
        assert_eq!(world.ask(&text).await.0, 200);
        assert_eq!(world.ask(&text).await.0, 200);
        assert_eq!(world.ask(&format!("{text} another prompt")).await.0, status);
    }
    let twice = "[[sim:once=500 times=2]]";
    assert_eq!(world.ask(twice).await.0, 500);
    assert_eq!(world.ask(twice).await.0, 500);
    assert_eq!(world.ask(twice).await.0, 200);
}

#[tokio::test]
async fn once_is_not_used_up_by_a_call_the_limits_refuse() {
    let world = World::start(SimConfig {
        pools: vec!["all:rpm=1".parse().unwrap()],
        ..SimConfig::instant()
    })
    .await;
    assert_eq!(world.ask("uses the only request").await.0, 200);
    assert_eq!(world.ask("[[sim:once=529]]").await.0, 429);
    world.sim.reset();
    assert_eq!(world.ask("[[sim:once=529]]").await.0, 529);
}

#[tokio::test]
async fn a_cut_stream_has_some_text_and_no_end() {
    for config in [SimConfig::instant(), quick()] {
        let world = World::start(config).await;
        let body = streamed("[[sim:once=cut out=60]] a");
        let response = world.send(&body).await;
        assert_eq!(response.status(), 200);
        let (text, clean) = read_all(response).await;
        assert!(!clean);
        let got = events(&text);
        assert_eq!(
            kinds(&got),
            [
                "message_start",
                "content_block_start",
                "ping",
                "content_block_delta"
            ]
        );
        let record = world.record(1).await;
        assert_eq!(
            (record.ending, record.status, record.billed),
            (Ending::Cut, Some(200), true)
        );
        assert!(
            (1..60).contains(&record.output_tokens),
            "{}",
            record.output_tokens
        );
        let again = events(&world.send(&body).await.text().await.unwrap());
        assert_eq!(kinds(&again).last(), Some(&"message_stop"));
    }
}

#[tokio::test]
async fn a_cut_plain_answer_breaks_off_in_the_body() {
    let world = World::instant().await;
    let response = world.send(&prompt("[[sim:once=cut]]")).await;
    assert_eq!(response.status(), 200);
    let (text, clean) = read_all(response).await;
    assert!(!clean);
    assert!(text.starts_with('{') && serde_json::from_str::<Value>(&text).is_err());
    assert_eq!(world.record(1).await.ending, Ending::Cut);
}

fn quick() -> SimConfig {
    SimConfig {
        preset: Preset::Unlimited,
        time_scale: 20.0,
        ping_ms: 20,
        ..SimConfig::default()
    }
}

#[tokio::test]
async fn an_error_event_comes_after_200_and_ends_the_stream() {
    let world = World::instant().await;
    let response = world.send(&streamed("[[sim:error_event]]")).await;
    assert_eq!(response.status(), 200);
    let (text, clean) = read_all(response).await;
    assert!(clean);
    let got = events(&text);
    assert_eq!(got[0]["type"], "message_start");
    let last = got.last().unwrap();
    assert_eq!(
        (last["type"].as_str(), last["error"]["type"].as_str()),
        (Some("error"), Some("overloaded_error"))
    );
    assert!(!kinds(&got).contains(&"message_stop"));
    assert_eq!(world.record(1).await.ending, Ending::ErrorEvent);
    assert_eq!(world.ask("[[sim:error_event]]").await.0, 529);
}

#[tokio::test]
async fn hang_answers_nothing_until_the_client_goes() {
    let world = World::instant().await;
    let sending = world.post("/v1/messages").json(&prompt("[[sim:hang]]"));
    let gave_up = sending.timeout(Duration::from_millis(200)).send().await;
    assert!(gave_up.unwrap_err().is_timeout());
    let record = world.record(1).await;
    assert_eq!(
        (record.ending, record.status, record.billed),
        (Ending::ClientGone, None, false)
    );
    assert_eq!(world.sim.stats().in_flight, 0);
}

#[tokio::test]
async fn a_hanging_stream_starts_and_then_only_pings() {
    let world = World::start(quick()).await;
    let mut response = world.send(&streamed("[[sim:hang=stream]]")).await;
    let mut text = String::new();
    while text.matches("event: ping").count() < 3 {
        let chunk = tokio::time::timeout(crate::support::LIMIT, response.chunk()).await;
        text.push_str(std::str::from_utf8(&chunk.unwrap().unwrap().unwrap()).unwrap());
    }
    assert_eq!(kinds(&events(&text)), ["message_start", "ping"]);
    drop(response);
    assert_eq!(world.record(1).await.ending, Ending::ClientGone);
}

#[tokio::test]
async fn a_silent_stream_starts_and_then_says_nothing() {
    let world = World::start(quick()).await;
    let mut response = world.send(&streamed("[[sim:hang=silent]]")).await;
    let first = response.chunk().await.unwrap().unwrap();
    assert!(first.starts_with(b"event: message_start"));
    // Fifteen ping intervals.
    let more = tokio::time::timeout(Duration::from_millis(300), response.chunk()).await;
    assert!(more.is_err());
    drop(response);
    assert_eq!(world.record(1).await.ending, Ending::ClientGone);
}

#[tokio::test]
async fn slow_streams_are_kept_alive_by_pings() {
    let world = World::start(SimConfig {
        time_scale: 1.0,
        ..quick()
    })
    .await;
    let events = world.stream("[[sim:ms=2000 out=4]]").await;
    let pings = events
        .iter()
        .filter(|event| event["type"] == "ping")
        .count();
    assert!(pings >= 5, "{pings}");
    assert_eq!(events.last().unwrap()["type"], "message_stop");
}

#[tokio::test]
async fn out_and_ms_order_length_and_time() {
    let world = World::start(SimConfig {
        preset: Preset::Unlimited,
        ..SimConfig::default()
    })
    .await;
    for body in [
        prompt("[[sim:out=100 ms=300]]"),
        streamed("[[sim:out=100 ms=300]]"),
    ] {
        let begun = tokio::time::Instant::now();
        let response = world.send(&body).await;
        assert!(
            response
                .text()
                .await
                .unwrap()
                .contains("\"output_tokens\":100")
        );
        assert!(begun.elapsed() >= Duration::from_millis(300));
    }
}

#[tokio::test]
async fn an_ordered_failure_can_be_late() {
    let world = World::start(SimConfig {
        preset: Preset::Unlimited,
        ..SimConfig::default()
    })
    .await;
    let begun = tokio::time::Instant::now();
    assert_eq!(world.ask("[[sim:status=504 ms=250]]").await.0, 504);
    assert!(begun.elapsed() >= Duration::from_millis(250));
}

#[tokio::test]
async fn a_paused_turn_is_finished_by_one_more_call() {
    let world = World::instant().await;
    let (_, paused) = world.ask("[[sim:pause_turn]]").await;
    assert_eq!(paused["stop_reason"], "pause_turn");
    let mut body = prompt("[[sim:pause_turn]]");
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(serde_json::json!({"role": "assistant", "content": paused["content"]}));
    let done: Value = world.send(&body).await.json().await.unwrap();
    assert_eq!(done["stop_reason"], "end_turn", "{done}");
}

#[tokio::test]
async fn a_reset_breaks_the_connection_before_any_answer() {
    let world = World::instant().await;
    let broken = world
        .post("/v1/messages")
        .json(&prompt("[[sim:once=reset]]"))
        .send()
        .await;
    assert!(!broken.unwrap_err().is_timeout());
    let record = world.record(1).await;
    assert_eq!(
        (record.ending, record.status, record.billed),
        (Ending::Reset, None, false)
    );
    assert_eq!(world.ask("[[sim:once=reset]]").await.0, 200);
}

#[tokio::test]
async fn a_lost_answer_is_billed_and_never_seen() {
    let world = World::instant().await;
    let lost = world
        .post("/v1/messages")
        .json(&streamed("[[sim:lost_answer out=30]]"))
        .send()
        .await;
    assert!(lost.is_err());
    let record = world.record(1).await;
    assert_eq!(
        (record.ending, record.billed, record.output_tokens),
        (Ending::LostAnswer, true, 30)
    );
}

#[tokio::test]
async fn unknown_events_can_be_ordered() {
    let world = World::instant().await;
    let events = world.stream("[[sim:unknown_event]]").await;
    assert!(kinds(&events).contains(&"weather_report"));
    assert_eq!(events.last().unwrap()["type"], "message_stop");
}
