//! Rate limits as a client sees them.

use std::time::Duration;

use fairlane_sim::{OtpmMode, Preset, SimConfig};
use serde_json::{Value, json};

use crate::support::{World, header, number, prompt, streamed};

const GROUPS: [&str; 4] = ["requests", "input-tokens", "output-tokens", "tokens"];

fn tier1() -> SimConfig {
    SimConfig {
        preset: Preset::Tier1,
        zero_latency: true,
        ..SimConfig::default()
    }
}

fn pool(limits: &str) -> SimConfig {
    SimConfig {
        preset: Preset::Unlimited,
        pools: vec![limits.parse().unwrap()],
        zero_latency: true,
        ..SimConfig::default()
    }
}

#[tokio::test]
async fn every_response_shows_all_limits() {
    let world = World::start(tier1()).await;
    let mut wrong = prompt("x");
    wrong["top_k"] = "many".into();
    for (body, status) in [
        (prompt("x"), 200),
        (streamed("y"), 200),
        (prompt("[[sim:status=529]]"), 529),
    ] {
        let response = world.send(&body).await;
        assert_eq!(response.status(), status);
        for group in GROUPS {
            let part = |name: &str| format!("anthropic-ratelimit-{group}-{name}");
            let limit = number(&response, &part("limit"));
            let remaining = number(&response, &part("remaining"));
            assert!(remaining <= limit, "{group}");
            let reset = header(&response, &part("reset")).unwrap();
            assert!(
                reset.ends_with('Z') && reset.len() == "2026-11-30T12:00:00Z".len(),
                "{reset}"
            );
        }
        assert_eq!(number(&response, "anthropic-ratelimit-requests-limit"), 50);
        assert_eq!(
            number(&response, "anthropic-ratelimit-input-tokens-limit"),
            50_000
        );
        assert_eq!(
            number(&response, "anthropic-ratelimit-output-tokens-limit"),
            10_000
        );
        assert_eq!(
            number(&response, "anthropic-ratelimit-tokens-limit"),
            60_000
        );
        assert_eq!(
            number(&response, "anthropic-ratelimit-input-tokens-remaining") % 1_000,
            0
        );
    }
}

#[tokio::test]
async fn requests_run_out_and_the_answer_says_when_to_come_back() {
    let world = World::start(tier1()).await;
    let mut served = 0;
    let refused = loop {
        let response = world.send(&prompt("x")).await;
        if response.status() == 429 {
            break response;
        }
        served += 1;
        assert!(served < 100, "nothing was refused");
    };
    assert!(served >= 50, "{served}");
    // One request is refilled in 1.2 s.
    assert!(matches!(header(&refused, "retry-after"), Some("1" | "2")));
    assert_eq!(header(&refused, "x-should-retry"), Some("true"));
    assert_eq!(
        number(&refused, "anthropic-ratelimit-requests-remaining"),
        0
    );
    let error: Value = refused.json().await.unwrap();
    assert_eq!(error["error"]["type"], "rate_limit_error");
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.contains("50 requests per minute"), "{message}");
    // Another pool is not touched.
    let mut other = prompt("x");
    other["model"] = "claude-sonnet-4-6".into();
    assert_eq!(world.send(&other).await.status(), 200);
}

#[tokio::test]
async fn waiting_as_told_is_enough() {
    // Two calls of a little over 3 000 tokens miss the limit by what refills in four seconds.
    let world = World::start(pool("haiku-4.5:itpm=6000")).await;
    let body = prompt(&"seven words are in this short text ".repeat(310));
    assert_eq!(world.send(&body).await.status(), 200);
    let refused = world.send(&body).await;
    assert_eq!(refused.status(), 429);
    let seconds = number(&refused, "retry-after");
    assert!((1..=5).contains(&seconds), "{seconds}");
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    assert_eq!(world.send(&body).await.status(), 200);
}

#[tokio::test]
async fn output_is_charged_as_generated_and_max_tokens_does_not_count() {
    let world = World::start(pool("haiku-4.5:otpm=1000")).await;
    let mut body = prompt("[[sim:out=900]]");
    body["max_tokens"] = 64_000.into();
    assert_eq!(world.send(&body).await.status(), 200);
    // 100 are left: enough to start, so this one is served into debt, and the next is refused.
    assert_eq!(world.send(&body).await.status(), 200);
    let refused = world.send(&body).await;
    assert_eq!(refused.status(), 429);
    assert!(number(&refused, "retry-after") >= 40);
    let message = refused.json::<Value>().await.unwrap()["error"]["message"].to_string();
    assert!(message.contains("output tokens per minute"), "{message}");
}

#[tokio::test]
async fn reserving_refuses_by_max_tokens() {
    let world = World::start(SimConfig {
        otpm_mode: OtpmMode::Reserve,
        ..pool("haiku-4.5:otpm=1000")
    })
    .await;
    let mut body = prompt("[[sim:out=10]]");
    body["max_tokens"] = 1_001.into();
    assert_eq!(world.send(&body).await.status(), 429);
    body["max_tokens"] = 900.into();
    for _ in 0..5 {
        assert_eq!(world.send(&body).await.status(), 200);
    }
}

#[tokio::test]
async fn too_many_calls_at_once_are_refused_by_name() {
    let world = World::start(pool("all:concurrent=1")).await;
    let hanging = world
        .post("/v1/messages")
        .json(&prompt("[[sim:hang]]"))
        .send();
    let hanging = tokio::spawn(hanging);
    world
        .until("the first call to be in flight", || {
            world.sim.stats().pools[&fairlane_sim::PoolId::Haiku45].in_flight == 1
        })
        .await;
    let refused = world.send(&prompt("x")).await;
    assert_eq!(refused.status(), 429);
    let message = refused.json::<Value>().await.unwrap()["error"]["message"].to_string();
    assert!(message.contains("concurrent connections"), "{message}");
    hanging.abort();
    world
        .until("the slot to be free", || {
            world.sim.stats().pools[&fairlane_sim::PoolId::Haiku45].in_flight == 0
        })
        .await;
    assert_eq!(world.send(&prompt("x")).await.status(), 200);
}

#[tokio::test]
async fn what_fails_inside_gives_its_input_back_but_not_its_request() {
    let world = World::start(pool("haiku-4.5:rpm=2,itpm=50000")).await;
    let text = "words ".repeat(20_000);
    let failed = world
        .send(&prompt(&format!("[[sim:status=500]] {text}")))
        .await;
    assert_eq!(failed.status(), 500);
    let next = world.send(&prompt("[[sim:status=400]]")).await;
    assert_eq!(
        number(&next, "anthropic-ratelimit-input-tokens-remaining"),
        50_000
    );
    assert_eq!(number(&next, "anthropic-ratelimit-requests-remaining"), 1);
}

#[tokio::test]
async fn the_log_never_shows_more_than_the_limit_admits() {
    let world = World::start(pool("haiku-4.5:rpm=60")).await;
    let begun = tokio::time::Instant::now();
    let calls = (0..8).map(|_| async {
        let mut served = 0_u32;
        while begun.elapsed() < Duration::from_secs(3) {
            let response = world.send(&prompt("x")).await;
            served += u32::from(response.status() == 200);
            if response.status() == 429 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        served
    });
    let served: u32 = futures::future::join_all(calls).await.into_iter().sum();
    // A whole minute's worth at once, then one a second.
    let most = 60.0 + 1.0 * begun.elapsed().as_secs_f64() + 1.0;
    assert!(
        served >= 60 && f64::from(served) <= most,
        "{served} of at most {most}"
    );
    let admitted = world
        .sim
        .log()
        .iter()
        .filter(|call| call.status == Some(200))
        .count();
    assert_eq!(u32::try_from(admitted).unwrap(), served);
}

#[tokio::test]
async fn a_short_burst_window_refuses_bursts() {
    let world = World::start(SimConfig {
        request_burst_seconds: 1.0,
        ..pool("haiku-4.5:rpm=60")
    })
    .await;
    assert_eq!(world.send(&prompt("x")).await.status(), 200);
    let refused = world.send(&prompt("x")).await;
    assert_eq!(refused.status(), 429);
    assert_eq!(header(&refused, "retry-after"), Some("1"));
}

#[tokio::test]
async fn the_429_variants_can_be_staged() {
    let world = World::start(tier1()).await;
    let stage = async |spec: Value| {
        world.sim.clear_faults();
        world.fault(spec).await;
        let response = world.send(&prompt("x")).await;
        let retry_after = header(&response, "retry-after").map(str::to_owned);
        let should_retry = header(&response, "x-should-retry").map(str::to_owned);
        let limits = header(&response, "anthropic-ratelimit-requests-limit").is_some();
        let status = response.status().as_u16();
        let error = response.json::<Value>().await.unwrap()["error"].clone();
        (status, error, retry_after, should_retry, limits)
    };
    let (status, error, retry_after, should_retry, limits) =
        stage(json!({"status": 429, "error_code": "ramp_limit_exceeded", "retry_after": 16})).await;
    assert_eq!((status, retry_after.as_deref()), (429, Some("16")));
    assert_eq!(error["details"]["error_code"], "ramp_limit_exceeded");
    assert_eq!((should_retry.as_deref(), limits), (Some("true"), true));

    let (_, error, retry_after, _, _) =
        stage(json!({"status": 429, "error_code": "enforced_spend_limit_reached", "no_retry_after": true})).await;
    assert_eq!(
        error["details"]["error_code"],
        "enforced_spend_limit_reached"
    );
    assert_eq!(retry_after, None);

    let gateway = json!({"status": 429, "error_type": "billing_error", "should_retry": false, "retry_after": 2_600_000, "strip_headers": true});
    let (_, error, retry_after, should_retry, limits) = stage(gateway).await;
    assert_eq!(error["type"], "billing_error");
    assert_eq!(
        (retry_after.as_deref(), should_retry.as_deref(), limits),
        (Some("2600000"), Some("false"), false)
    );

    let (_, _, retry_after, _, _) =
        stage(json!({"status": 429, "retry_after": "Mon, 30 Nov 2026 12:00:00 GMT"})).await;
    assert_eq!(
        retry_after.as_deref(),
        Some("Mon, 30 Nov 2026 12:00:00 GMT")
    );

    let spend =
        json!({"status": 400, "message": "You have reached your specified API usage limits."});
    let (status, error, _, _, _) = stage(spend).await;
    assert_eq!(
        (status, error["type"].as_str()),
        (400, Some("invalid_request_error"))
    );
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .starts_with("You have reached your specified")
    );
}
