//! Calls against a server that follows a script: every way in which a call can end.

#![expect(
    clippy::unwrap_used,
    reason = "a test fails by panicking, its server too"
)]

mod scripted;

use std::future::pending;
use std::time::Duration;

use fairlane_claude::{
    ApiKey, CallReport, CallRequest, Client, Options, Progress, Stage, UsageBasis,
};
use fairlane_core::failure::{
    Cancelled, Class, Cut, Ending, ErrorAnswer, ErrorCode, ErrorKind, NotConnected, Paid, Place,
    Reason, RetryAfter, StopReason, Timeout,
};
use fairlane_core::price::Usage;
use serde_json::{Value, json};

use scripted::{Act, Server, answer, chunk, chunked, gzip, last_chunk};

const EVENT_STREAM: (&str, &str) = ("content-type", "text/event-stream; charset=utf-8");
const JSON: (&str, &str) = ("content-type", "application/json");
const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(60);

fn options(url: &str) -> Options {
    Options {
        base_url: url.to_owned(),
        first_byte_timeout: LONG,
        silence_timeout: LONG,
        progress_timeout: LONG,
        ..Options::default()
    }
}

fn client(server: &Server) -> Client {
    Client::new(options(&server.url)).unwrap()
}

fn key() -> ApiKey {
    ApiKey::parse("sk-test-key").unwrap()
}

fn request() -> CallRequest {
    CallRequest::from_json(&json!({"model": "claude-haiku-4-5", "max_tokens": 64, "messages": []}))
        .unwrap()
}

async fn call(client: &Client) -> CallReport {
    let key = key();
    let call = Box::pin(client.call(&key, request(), |_| {}, pending()));
    // Shorter than LONG: a test of one short timeout must not be ended by another.
    tokio::time::timeout(LONG / 2, call).await.unwrap()
}

/// The report of one call that is answered with one script.
async fn ending(script: Vec<Act>) -> CallReport {
    let server = Server::start(vec![script]).await;
    let report = call(&client(&server)).await;
    assert_eq!(
        server.seen().len(),
        1,
        "a call is sent once, whatever becomes of it"
    );
    report
}

async fn ending_with(script: Vec<Act>, change: impl FnOnce(&mut Options)) -> CallReport {
    let server = Server::start(vec![script]).await;
    let mut options = options(&server.url);
    change(&mut options);
    let report = call(&Client::new(options).unwrap()).await;
    server.ended(1).await;
    report
}

fn sse(data: &Value) -> String {
    format!(
        "event: {}\ndata: {data}\n\n",
        data["type"].as_str().unwrap()
    )
}

fn message_start() -> String {
    sse(&json!({"type": "message_start", "message": {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-haiku-4-5-20251001",
        "content": [], "stop_reason": null, "stop_sequence": null,
        "usage": {"input_tokens": 12, "output_tokens": 1}}}))
}

fn ping() -> String {
    sse(&json!({"type": "ping"}))
}

fn text(part: &str) -> String {
    sse(
        &json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": part}}),
    )
}

fn beginning() -> String {
    let block = json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}});
    message_start() + &ping() + &sse(&block) + &text("Hello")
}

fn end(stop_reason: &str) -> String {
    sse(&json!({"type": "content_block_stop", "index": 0}))
        + &sse(
            &json!({"type": "message_delta", "delta": {"stop_reason": stop_reason}, "usage": {"output_tokens": 9}}),
        )
        + &sse(&json!({"type": "message_stop"}))
}

/// A whole successful answer.
fn success() -> Vec<Act> {
    let headers = [
        EVENT_STREAM,
        ("request-id", "req_7"),
        ("anthropic-ratelimit-requests-limit", "50"),
        ("anthropic-ratelimit-requests-remaining", "49"),
    ];
    vec![
        chunked("200 OK", &headers),
        chunk(beginning()),
        chunk(text(", world")),
        chunk(end("end_turn")),
        last_chunk(),
    ]
}

#[tokio::test]
async fn a_stream_becomes_a_message_with_usage_limits_and_ids() {
    let report = ending(success()).await;
    assert_eq!(report.ending, Ending::Message(StopReason::EndTurn));
    let message = report.message.unwrap();
    assert_eq!(
        message["content"],
        json!([{"type": "text", "text": "Hello, world"}])
    );
    assert_eq!(message["stop_reason"], json!("end_turn"));
    assert_eq!(
        report.usage,
        Usage {
            input: 12,
            output: 9,
            ..Usage::default()
        }
    );
    assert_eq!(report.usage_basis, UsageBasis::Final);
    assert_eq!(report.model.as_deref(), Some("claude-haiku-4-5-20251001"));
    assert_eq!(
        (report.request_id.as_deref(), report.status),
        (Some("req_7"), Some(200))
    );
    assert_eq!(report.limits.requests.unwrap().remaining, Some(49));
    let timings = report.timings;
    assert!(
        timings.headers_ms <= timings.first_output_ms
            && timings.first_output_ms <= Some(timings.total_ms)
    );
}

#[tokio::test]
async fn the_request_carries_body_key_version_betas_and_the_jobs_headers() {
    let server = Server::start(vec![success()]).await;
    let request = request()
        .betas(&["beta-a", "beta-b"])
        .unwrap()
        .header(
            "traceparent",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        )
        .unwrap()
        .header("x-fairlane-job", "j1")
        .unwrap();
    Box::pin(client(&server).call(&key(), request, |_| {}, pending())).await;
    let seen = server.seen().remove(0);
    for part in [
        "post /v1/messages http/1.1",
        "x-api-key: sk-test-key",
        "anthropic-version: 2023-06-01",
        "anthropic-beta: beta-a,beta-b",
        "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "x-fairlane-job: j1",
        "content-type: application/json",
        "accept-encoding: gzip",
        "user-agent: fairlane/",
    ] {
        assert!(
            seen.head.contains(part),
            "{part} is missing in {}",
            seen.head
        );
    }
    let body: Value = serde_json::from_str(&seen.body).unwrap();
    assert_eq!(
        (&body["stream"], &body["max_tokens"]),
        (&json!(true), &json!(64))
    );
}

#[tokio::test]
async fn stages_are_told_while_the_call_runs() {
    let server = Server::start(vec![success()]).await;
    let mut told: Vec<(Stage, u64)> = Vec::new();
    let mut events: Vec<String> = Vec::new();
    Box::pin(client(&server).call(
        &key(),
        request(),
        |progress| {
            told.push((progress.stage, progress.output_tokens));
            events.extend(progress.event.map(|event| event.name.clone()));
        },
        pending(),
    ))
    .await;
    let mut order: Vec<Stage> = told.iter().map(|(stage, _)| *stage).collect();
    order.dedup();
    assert_eq!(
        order,
        [
            Stage::Accepted,
            Stage::Started,
            Stage::Writing,
            Stage::Closing
        ]
    );
    assert!(told.is_sorted_by_key(|(_, tokens)| *tokens), "{told:?}");
    assert_eq!(told.last().unwrap().1, 9);
    assert_eq!(events.first().unwrap(), "message_start");
    assert_eq!(events.last().unwrap(), "message_stop");
}

#[tokio::test]
async fn calls_one_after_another_share_a_connection() {
    let server = Server::start(vec![
        success(),
        vec![answer("429 Too Many Requests", &[], "")],
        success(),
    ])
    .await;
    let client = client(&server);
    for _ in 0..3 {
        call(&client).await;
    }
    assert_eq!((server.seen().len(), server.connections()), (3, 1));
}

#[tokio::test]
async fn nobody_listening_is_not_connected() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let report = call(&Client::new(options(&url)).unwrap()).await;
    assert_eq!(report.ending, Ending::NotConnected(NotConnected::Failed));
    assert!(report.error_message.unwrap().contains("refused"));
    assert_eq!(report.timings.headers_ms, None);
}

#[tokio::test]
async fn a_handshake_that_never_ends_is_not_connected_in_time() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let options = Options {
        connect_timeout: SHORT,
        ..options(&url)
    };
    let report = call(&Client::new(options).unwrap()).await;
    assert_eq!(report.ending, Ending::NotConnected(NotConnected::Timeout));
    assert_eq!(report.verdict().paid, Paid::No);
}

#[tokio::test]
async fn cuts_are_told_apart_by_how_far_the_call_had_come() {
    let start = || chunked("200 OK", &[EVENT_STREAM]);
    let cases = [
        (vec![Act::Reset], Cut::BeforeHeaders),
        (vec![Act::Close], Cut::BeforeHeaders),
        (vec![start(), Act::Close], Cut::AfterHeaders),
        (
            vec![start(), chunk(ping()), last_chunk()],
            Cut::AfterHeaders,
        ),
        (
            vec![start(), chunk(beginning()), Act::Close],
            Cut::AfterProgress,
        ),
        (
            vec![start(), chunk(beginning()), last_chunk()],
            Cut::WithoutMessageStop,
        ),
    ];
    for (script, cut) in cases {
        let report = ending(script).await;
        assert_eq!(report.ending, Ending::Cut(cut));
        assert_eq!(
            (report.verdict().class, report.message),
            (Class::Ambiguous, None)
        );
    }
}

#[tokio::test]
async fn a_broken_stream_reports_the_usage_seen_and_an_estimate_of_the_rest() {
    let script = vec![
        chunked("200 OK", &[EVENT_STREAM]),
        chunk(beginning()),
        chunk(text(&"x".repeat(395))),
        last_chunk(),
    ];
    let report = ending(script).await;
    // 400 characters on top of the one token that was counted.
    assert_eq!(
        report.usage,
        Usage {
            input: 12,
            output: 101,
            ..Usage::default()
        }
    );
    assert_eq!(report.usage_basis, UsageBasis::Estimated);
    assert_eq!(report.model.as_deref(), Some("claude-haiku-4-5-20251001"));
}

#[tokio::test]
async fn a_reset_in_the_middle_of_the_answer_is_a_cut() {
    let server = Server::start(vec![vec![
        chunked("200 OK", &[EVENT_STREAM]),
        chunk(beginning()),
        Act::Wait(SHORT),
        Act::Reset,
    ]])
    .await;
    let report = call(&client(&server)).await;
    assert_eq!(report.ending, Ending::Cut(Cut::AfterProgress));
}

#[tokio::test]
async fn an_error_event_after_200_is_an_error_of_its_type() {
    let error = sse(
        &json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}, "request_id": "req_9"}),
    );
    for (before, progressed) in [(ping(), false), (beginning(), true)] {
        let script = vec![
            chunked("200 OK", &[EVENT_STREAM]),
            chunk(before),
            chunk(&error),
            Act::Close,
        ];
        let report = ending(script).await;
        let want = ErrorAnswer {
            status: 200,
            kind: ErrorKind::Overloaded,
            code: None,
            hint: None,
            retry_after: None,
            should_retry: None,
            place: Place::InStream { progressed },
        };
        assert_eq!(report.ending, Ending::Error(want));
        assert_eq!(
            (report.verdict().reason, report.message.is_none()),
            (Reason::Overloaded, true)
        );
        assert_eq!(report.request_id.as_deref(), Some("req_9"));
    }
}

#[tokio::test]
async fn an_error_answer_is_read_with_its_headers() {
    let body = r#"{"type":"error","error":{"type":"rate_limit_error","message":"Too fast","details":{"error_code":"ramp_limit_exceeded"}},"request_id":"req_5"}"#;
    let headers = [
        JSON,
        ("retry-after", "16"),
        ("x-should-retry", "true"),
        ("anthropic-ratelimit-input-tokens-remaining", "0"),
    ];
    let report = ending(vec![answer("429 Too Many Requests", &headers, body)]).await;
    let want = ErrorAnswer {
        status: 429,
        kind: ErrorKind::RateLimit,
        code: Some(ErrorCode::RampLimitExceeded),
        hint: None,
        retry_after: RetryAfter::from_ms(16_000),
        should_retry: Some(true),
        place: Place::BeforeStream,
    };
    assert_eq!(report.ending, Ending::Error(want));
    assert_eq!(report.error_message.as_deref(), Some("Too fast"));
    assert_eq!(report.request_id.as_deref(), Some("req_5"));
    assert_eq!(report.limits.input.unwrap().remaining, Some(0));
    assert_eq!(report.usage_basis, UsageBasis::None);
}

#[tokio::test]
async fn answers_of_others_on_the_way_are_classified_by_status() {
    let html = [("content-type", "text/html")];
    let cases = [
        (
            answer(
                "413 Payload Too Large",
                &html,
                "<html>\n<title>413</title></html>",
            ),
            Reason::Oversize,
        ),
        (
            answer("502 Bad Gateway", &html, "<html>bad</html>"),
            Reason::UpstreamError,
        ),
        (answer("529 ", &[], ""), Reason::Overloaded),
        (
            answer("500 Internal Server Error", &[JSON], "{\"type\":"),
            Reason::UpstreamError,
        ),
        (answer("404 Not Found", &html, "nginx"), Reason::Endpoint),
        (answer("401 Unauthorized", &[], ""), Reason::Authentication),
        (answer("418 Teapot", &[], ""), Reason::Unknown),
    ];
    for (act, reason) in cases {
        assert_eq!(ending(vec![act]).await.verdict().reason, reason);
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let target = Server::start(vec![success()]).await;
    let headers = [("location", target.url.as_str())];
    let report = ending(vec![answer("307 Temporary Redirect", &headers, "")]).await;
    assert_eq!(report.verdict().reason, Reason::Endpoint);
    assert_eq!(
        target.seen().len(),
        0,
        "the key stays where it was meant for"
    );
}

#[tokio::test]
async fn a_body_refused_while_it_is_sent_is_an_answer_not_a_cut() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut begun = [0; 1_000];
        stream.read_exact(&mut begun).await.unwrap();
        let text = "HTTP/1.1 413 Too Large\r\nconnection: close\r\ncontent-length: 4\r\n\r\nbig!";
        stream.write_all(text.as_bytes()).await.unwrap();
        // Goes on reading, as servers do that want their answer to arrive.
        let mut rest = Vec::new();
        drop(stream.read_to_end(&mut rest).await);
    });
    let body = vec![b'x'; 20 << 20];
    let client = Client::new(options(&url)).unwrap();
    let report =
        Box::pin(client.call(&key(), CallRequest::new(body.into()), |_| {}, pending())).await;
    assert_eq!(report.verdict().reason, Reason::Oversize);
    drop(client);
    server.await.unwrap();
}

#[tokio::test]
async fn compressed_answers_are_read() {
    let body = beginning() + &end("stop_sequence");
    let zipped = gzip(body.as_bytes());
    let headers = [EVENT_STREAM, ("content-encoding", "gzip")];
    let (first, second) = zipped.split_at(zipped.len() / 2);
    let script = vec![
        chunked("200 OK", &headers),
        chunk(first),
        chunk(second),
        last_chunk(),
    ];
    assert_eq!(
        ending(script).await.ending,
        Ending::Message(StopReason::StopSequence)
    );

    let error = br#"{"type":"error","error":{"type":"invalid_request_error","message":"no"}}"#;
    let headers = [JSON, ("content-encoding", "gzip")];
    let report = ending(vec![answer("400 Bad Request", &headers, gzip(error))]).await;
    assert_eq!(report.error_message.as_deref(), Some("no"));

    let script = vec![
        chunked("200 OK", &[EVENT_STREAM, ("content-encoding", "gzip")]),
        chunk(first),
        Act::Close,
    ];
    assert_eq!(ending(script).await.verdict().class, Class::Ambiguous);
}

#[tokio::test]
async fn nothing_at_all_ends_with_the_first_byte_timeout() {
    let report = ending_with(vec![Act::Stall], |options| {
        options.first_byte_timeout = SHORT;
    })
    .await;
    assert_eq!(report.ending, Ending::Timeout(Timeout::FirstByte));
}

#[tokio::test]
async fn pings_are_life_but_not_progress() {
    for (before, progressed) in [(ping(), false), (beginning(), true)] {
        let Act::Send(pings) = chunk(ping()) else {
            unreachable!()
        };
        let script = vec![
            chunked("200 OK", &[EVENT_STREAM]),
            chunk(before),
            Act::Repeat(pings, Duration::from_millis(5)),
        ];
        let report = ending_with(script, |options| options.progress_timeout = SHORT).await;
        assert_eq!(
            report.ending,
            Ending::Timeout(Timeout::Progress { progressed })
        );
    }
}

#[tokio::test]
async fn silence_ends_earlier_than_missing_progress() {
    let script = vec![
        chunked("200 OK", &[EVENT_STREAM]),
        chunk(beginning()),
        Act::Stall,
    ];
    let report = ending_with(script, |options| options.silence_timeout = SHORT).await;
    assert_eq!(
        report.ending,
        Ending::Timeout(Timeout::Progress { progressed: true })
    );
    assert_eq!(report.usage_basis, UsageBasis::Estimated);
}

#[tokio::test]
async fn a_long_answer_that_goes_on_is_never_cut_off() {
    let pause = Duration::from_millis(100);
    let mut script = vec![chunked("200 OK", &[EVENT_STREAM]), chunk(beginning())];
    for _ in 0..15 {
        script.extend([Act::Wait(pause), chunk(text("more"))]);
    }
    script.extend([chunk(end("end_turn")), last_chunk(), Act::Close]);
    let limit = Duration::from_secs(1);
    let report = ending_with(script, |options| {
        options.first_byte_timeout = limit;
        options.progress_timeout = limit;
        options.silence_timeout = limit;
    });
    assert_eq!(report.await.ending, Ending::Message(StopReason::EndTurn));
}

#[tokio::test]
async fn an_error_body_that_never_ends_does_not_hold_the_call() {
    let script = vec![chunked("529 ", &[JSON]), chunk("{"), Act::Stall];
    let report = ending_with(script, |options| options.silence_timeout = SHORT).await;
    assert_eq!(report.verdict().reason, Reason::Overloaded);
}

#[tokio::test]
async fn a_success_that_is_not_of_the_api_is_undecodable() {
    let html = [("content-type", "text/html")];
    let cases = [
        (
            vec![answer("200 OK", &html, "<html>Log in\n to the WLAN</html>")],
            false,
        ),
        (vec![answer("200 OK", &[], "")], false),
        (vec![answer("200 OK", &[JSON], "not json")], false),
        (
            vec![answer("200 OK", &[JSON], "{\"type\":\"message\"}")],
            false,
        ),
        (
            vec![
                chunked("200 OK", &[EVENT_STREAM]),
                chunk("event: message_start\ndata: {\n\n"),
                Act::Close,
            ],
            false,
        ),
        (
            vec![
                chunked("200 OK", &[EVENT_STREAM]),
                chunk(beginning() + &message_start()),
                Act::Close,
            ],
            true,
        ),
        (
            vec![
                chunked("200 OK", &[EVENT_STREAM]),
                chunk(message_start() + &sse(&json!({"type": "message_stop"}))),
                last_chunk(),
            ],
            true,
        ),
    ];
    for (script, progressed) in cases {
        let report = ending(script).await;
        assert_eq!(report.ending, Ending::Undecodable { progressed });
        assert_eq!(report.message, None);
        assert!(!report.error_message.unwrap().contains('\n'));
    }
}

#[tokio::test]
async fn an_endless_message_is_given_up() {
    let Act::Send(parts) = chunk(text(&"x".repeat(1_000))) else {
        unreachable!()
    };
    let script = vec![
        chunked("200 OK", &[EVENT_STREAM]),
        chunk(beginning()),
        Act::Repeat(parts, Duration::ZERO),
    ];
    let report = ending_with(script, |options| options.message_bytes_max = 100_000).await;
    assert_eq!(report.ending, Ending::Undecodable { progressed: true });
    assert!(report.error_message.unwrap().contains("100000"));
}

#[tokio::test]
async fn an_answer_in_one_piece_is_read_like_a_stream() {
    let body = json!({
        "id": "msg_2", "type": "message", "role": "assistant", "model": "claude-haiku-5-5",
        "content": [{"type": "text", "text": "hi"}], "stop_reason": "max_tokens",
        "usage": {"input_tokens": 3, "output_tokens": 4},
    });
    let report = ending(vec![answer("200 OK", &[JSON], body.to_string())]).await;
    assert_eq!(report.ending, Ending::Message(StopReason::MaxTokens));
    assert_eq!(
        report.usage,
        Usage {
            input: 3,
            output: 4,
            ..Usage::default()
        }
    );
    assert_eq!(
        (report.message, report.usage_basis),
        (Some(body), UsageBasis::Final)
    );
}

#[tokio::test]
async fn a_tool_call_with_broken_input_violates_its_schema() {
    let tool = |part: &str| {
        message_start()
            + &sse(
                &json!({"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "t", "name": "n", "input": {}}}),
            )
            + &sse(
                &json!({"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": part}}),
            )
    };
    let script = |part: &str, stop| {
        vec![
            chunked("200 OK", &[EVENT_STREAM]),
            chunk(tool(part) + &end(stop)),
            last_chunk(),
        ]
    };
    assert_eq!(
        ending(script("{\"a\": 1}", "tool_use")).await.ending,
        Ending::Message(StopReason::ToolUse)
    );
    let report = ending(script("{\"a\": ", "tool_use")).await;
    assert_eq!(
        (report.ending.clone(), report.verdict().reason),
        (Ending::SchemaViolated, Reason::Schema)
    );
    assert!(report.message.is_some(), "kept for the dead letter");
    let cut_off = ending(script("{\"a\": ", "max_tokens")).await;
    assert_eq!(
        cut_off.ending,
        Ending::Message(StopReason::MaxTokens),
        "cut off is not broken"
    );
}

#[tokio::test]
async fn a_call_cancelled_before_it_began_sends_nothing() {
    let server = Server::start(vec![success()]).await;
    let report = Box::pin(client(&server).call(&key(), request(), |_| {}, async {})).await;
    assert_eq!(report.ending, Ending::Cancelled(Cancelled::BeforeSending));
    assert_eq!((server.seen().len(), server.connections()), (0, 0));
}

#[tokio::test]
async fn a_cancelled_call_closes_its_connection_and_keeps_what_it_saw() {
    for (script, want, basis) in [
        (vec![Act::Stall], Cancelled::AfterSending, UsageBasis::None),
        (
            vec![
                chunked("200 OK", &[EVENT_STREAM]),
                chunk(beginning()),
                Act::Stall,
            ],
            Cancelled::AfterProgress,
            UsageBasis::Estimated,
        ),
    ] {
        let server = Server::start(vec![script]).await;
        let (started, wait_started) = tokio::sync::oneshot::channel();
        let mut started = Some(started);
        let client = client(&server);
        let cancel = async {
            match want {
                Cancelled::AfterProgress => wait_started.await.unwrap(),
                Cancelled::AfterSending | Cancelled::BeforeSending => {
                    while server.seen().is_empty() {
                        tokio::task::yield_now().await;
                    }
                }
            }
        };
        let on_progress = |progress: Progress<'_>| {
            if progress.stage == Stage::Writing
                && let Some(started) = started.take()
            {
                started.send(()).unwrap();
            }
        };
        let report = Box::pin(client.call(&key(), request(), on_progress, cancel)).await;
        assert_eq!(
            (report.ending, report.usage_basis),
            (Ending::Cancelled(want), basis)
        );
        server.ended(1).await;
    }
}

#[tokio::test]
async fn nothing_that_can_be_printed_shows_the_key() {
    let server = Server::start(vec![success()]).await;
    let client = client(&server);
    let report = call(&client).await;
    let shown = format!("{client:?} {:?} {:?} {report:?}", key(), request());
    assert!(!shown.contains("sk-test"), "{shown}");
}

#[tokio::test]
async fn models_are_listed_with_sizes_and_lifecycle() {
    let body = json!({"data": [
        {"id": "claude-haiku-5-5", "type": "model", "max_input_tokens": 1_000_000, "max_tokens": 128_000, "lifecycle": "active", "capabilities": {"x": true}},
        {"id": "claude-later"},
    ], "has_more": false});
    let server = Server::start(vec![vec![answer("200 OK", &[JSON], body.to_string())]]).await;
    let models = client(&server).models(&key()).await.unwrap();
    assert!(
        server.seen()[0]
            .head
            .starts_with("get /v1/models?limit=1000 ")
    );
    assert_eq!(
        (models[0].input_tokens_max, models[0].output_tokens_max),
        (Some(1_000_000), Some(128_000))
    );
    assert_eq!(
        models[0].lifecycle,
        Some(fairlane_core::models::Lifecycle::Active)
    );
    assert_eq!(
        (models[1].id.as_str(), models[1].lifecycle),
        ("claude-later", None)
    );
}

#[tokio::test]
async fn tokens_are_counted_for_the_counted_part_of_a_request() {
    let server = Server::start(vec![vec![answer(
        "200 OK",
        &[JSON],
        r#"{"input_tokens": 42}"#,
    )]])
    .await;
    let body =
        json!({"model": "m", "messages": [], "max_tokens": 5, "stream": true, "metadata": {}});
    let count = client(&server)
        .count_tokens(&key(), body.as_object().unwrap())
        .await;
    assert_eq!(count, Ok(42));
    let sent: Value = serde_json::from_str(&server.seen()[0].body).unwrap();
    assert_eq!(sent, json!({"model": "m", "messages": []}));
}

#[tokio::test]
async fn a_lookup_that_fails_says_why_and_what_to_do() {
    let error =
        r#"{"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key"}}"#;
    let server = Server::start(vec![
        vec![answer("401 Unauthorized", &[JSON], error)],
        vec![answer("200 OK", &[JSON], "{}")],
        vec![Act::Stall],
    ])
    .await;
    let options = Options {
        first_byte_timeout: SHORT,
        ..options(&server.url)
    };
    let client = Client::new(options).unwrap();
    let refused = client.models(&key()).await.unwrap_err();
    let text = "the API key was refused (HTTP 401): jobs stay queued; replace the API key (invalid x-api-key)";
    assert_eq!(refused.to_string(), text);
    let strange = client.models(&key()).await.unwrap_err();
    assert_eq!(strange.ending, Ending::Undecodable { progressed: false });
    let late = client.models(&key()).await.unwrap_err();
    assert_eq!(late.ending, Ending::Timeout(Timeout::FirstByte));
}
