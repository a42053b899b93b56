//! The console's page and calls, as a scheduler serves them.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use fairlane_fleet_tests::api::{Answer, OPERATOR, VIEWER};
use fairlane_fleet_tests::{Fleet, PATIENCE, Setup};
use fairlane_support::{eventually, within};
use fairlane_wire::Phase;
use reqwest::Method;
use serde_json::{Value, json};

const PROGRAM: &str = env!("CARGO_BIN_EXE_fairlane-under-test");

fn with_console(settings: &[(&'static str, &str)]) -> Setup {
    let own = |(key, value): &(&'static str, &str)| (*key, (*value).to_owned());
    Setup {
        settings: settings.iter().map(own).collect(),
        console: true,
        ..Setup::default()
    }
}

/// The first so many bytes of a stream of events, until they hold `wanted`.
async fn read_until(answer: &mut reqwest::Response, wanted: &str) -> String {
    let mut read = String::new();
    while !read.contains(wanted) {
        let chunk = within(PATIENCE, "more of a stream", answer.chunk());
        match chunk.await {
            Ok(Some(chunk)) => read += &String::from_utf8_lossy(&chunk),
            ended => panic!("the stream ended without {wanted:?} ({ended:?}): {read}"),
        }
    }
    read
}

/// As a body that is no text in its middle.
fn broken() -> Vec<u8> {
    let job = json!({
        "id": "broken", "origin": "scheduled", "kind": "tagging", "model": "claude-haiku-4-5", "max_tokens": 64,
        "prompt": "five|tags",
    });
    let text = job.to_string();
    let (head, tail) = text.split_once('|').unwrap();
    [head.as_bytes(), b"\xff\xfe", tail.as_bytes()].concat()
}

async fn letter(fleet: &Fleet) -> Value {
    fleet.publish("acme", broken()).await;
    let viewer = fleet.console().with(VIEWER);
    eventually(PATIENCE, "a dead letter", || async {
        let told = viewer.get("/v1/dead-letters").await.json();
        match told["letters"].as_array().map(Vec::as_slice) {
            Some([letter]) => Ok(letter.clone()),
            _ => Err(told),
        }
    })
    .await
}

#[tokio::test]
async fn the_page_is_open_and_its_calls_are_not() {
    let fleet = Fleet::start(PROGRAM, with_console(&[])).await;
    let nobody = fleet.console();
    for way in ["/", "/console", "/console/"] {
        let page = nobody.get(way).await;
        assert_eq!(page.status, 200, "{way}");
        assert!(page.text.contains("<title>Fairlane</title>"), "{way}");
        let policy = page.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'"), "{policy}");
    }
    assert_eq!(nobody.get("/console/none.js").await.status, 404);
    let viewer = nobody.with(VIEWER);
    for path in [
        "/v1/whoami",
        "/v1/fleet",
        "/v1/tenants",
        "/v1/tenants/acme",
        "/v1/jobs?id=x",
        "/v1/dead-letters",
        "/v1/redrives",
    ] {
        assert_eq!(nobody.get(path).await.status, 401, "{path}");
        let told = viewer.get(path).await;
        assert_eq!(told.status, 200, "{path}: {}", told.text);
    }
    let set = viewer.request(Method::PUT, "/v1/tenants/acme");
    let set = set.json(&json!({"weight": 2})).send().await.unwrap();
    assert_eq!(set.status(), 403);
    // What the scheduler tells anybody is as it was, and it takes no jobs.
    assert_ne!(nobody.get("/v1/autoscale").await.status, 401);
    assert_eq!(nobody.get("/livez").await.status, 200);
    let operator = nobody.with(OPERATOR);
    assert_eq!(operator.get("/v1/ledger").await.status, 404);
    let sent = operator.post("/v1/messages", &json!({})).await;
    assert_eq!(sent.status, 404);
}

#[tokio::test]
async fn a_watcher_is_told_everything_and_then_what_changes() {
    let fleet = Fleet::start(PROGRAM, with_console(&[])).await;
    let request = fleet
        .console()
        .with(VIEWER)
        .request(Method::GET, "/v1/fleet/events");
    let mut stream = request.send().await.unwrap();
    assert_eq!(stream.status(), 200);
    assert_eq!(stream.headers()["cache-control"], "no-store");
    let first = read_until(&mut stream, "\n\n").await;
    assert!(first.starts_with("event: fleet\ndata: {"), "{first}");
    assert!(first.contains("\"term\":"), "{first}");
    fleet
        .publish("acme", fairlane_fleet_tests::job("told", "five tags"))
        .await;
    let next = read_until(&mut stream, "\"tenant\":\"acme\"").await;
    assert!(next.contains("event: change"), "{next}");
    fleet.phase("acme", "told", Phase::Done).await;
    let found = fleet.console().with(VIEWER).get("/v1/jobs?id=told").await;
    let wanted = json!({"count": 1, "jobs": [{"tenant": "acme", "job": "told"}]});
    assert_eq!(found.json(), wanted);
}

#[tokio::test]
async fn letters_are_sent_again_and_weights_changed_with_the_operators_key() {
    let fleet = Fleet::start(PROGRAM, with_console(&[])).await;
    let operator = fleet.console().with(OPERATOR);
    let letter = letter(&fleet).await;
    let path = format!("/v1/dead-letters/{}/repair", letter["seq"]);
    let repaired = operator.post(&path, &json!({"strip": true})).await.json();
    assert_eq!(repaired["sendable"], true, "{repaired}");
    assert!(repaired["cost_usd"].as_f64().unwrap() > 0.0, "{repaired}");
    let mut wanted = json!({
        "filter": {"ids": [{"letter": letter["seq"]}]}, "repair": {"strip": true}, "dry_run": true,
    });
    let tried = operator.post("/v1/redrives", &wanted).await.json();
    assert_eq!(
        (&tried["sendable"], &tried["unpriced"]),
        (&json!(1), &json!(0))
    );
    assert_eq!(tried["cost_usd"], repaired["cost_usd"]);
    wanted["dry_run"] = json!(false);
    let run = operator.post("/v1/redrives", &wanted).await;
    assert_eq!(run.status, 202, "{}", run.text);
    fleet.phase("acme", "broken", Phase::Done).await;
    let set = operator.request(Method::PUT, "/v1/tenants/acme");
    let set = set.json(&json!({"weight": 3})).send().await.unwrap();
    assert_eq!(set.status(), 200);
    eventually(PATIENCE, "the weight in the fleet", || async {
        let why = operator.get("/v1/tenants/acme/why").await.json();
        if why["weight"] == 3_000 {
            Ok(())
        } else {
            Err(why)
        }
    })
    .await;
}

#[tokio::test]
async fn without_the_operators_key_everything_is_shown_and_nothing_changed() {
    let fleet = Fleet::start(
        PROGRAM,
        with_console(&[("scheduler.operator_nkey_file", "")]),
    )
    .await;
    let operator = fleet.console().with(OPERATOR);
    let letter = letter(&fleet).await;
    let filter = json!({"ids": [{"letter": letter["seq"]}]});
    for (method, path, body) in [
        (Method::PUT, "/v1/tenants/acme", json!({"weight": 3})),
        (
            Method::POST,
            "/v1/redrives",
            json!({"filter": filter, "repair": {"strip": true}}),
        ),
    ] {
        let sent = operator.request(method, path).json(&body).send().await;
        let told = Answer::read(sent.unwrap()).await;
        assert_eq!(told.status, 403, "{path}: {}", told.text);
        assert!(
            told.text.contains("scheduler.operator_nkey_file"),
            "{}",
            told.text
        );
    }
    // Nothing was tried that NATS would refuse: that is seen when the fleet ends.
    let tried = json!({"filter": filter, "repair": {"strip": true}, "dry_run": true});
    let tried = operator.post("/v1/redrives", &tried).await.json();
    assert_eq!(tried["sendable"], 1);
}
