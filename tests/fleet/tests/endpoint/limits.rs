//! Limits of calls and what is told beyond them.

use fairlane_fleet_tests::api::message;
use fairlane_fleet_tests::{Fleet, PATIENCE, Setup, job};
use fairlane_support::eventually;
use fairlane_wire::Phase;
use reqwest::Method;
use serde_json::json;

use crate::{PROGRAM, setup};

#[tokio::test]
async fn bodies_and_heads_that_are_too_large_are_refused() {
    let fleet = Fleet::start(PROGRAM, setup(&[("producer.body_bytes_max", "4096")])).await;
    let acme = fleet.caller_of("acme").await;
    let long = message(&"word ".repeat(2_000));
    let said = acme.post("/v1/messages", &long).await;
    assert_eq!(
        (said.status, said.error().as_str()),
        (413, "request_too_large")
    );
    // One that does not say how long it is.
    let chunks = (0..10).map(|_| Ok::<_, std::io::Error>(vec![b'x'; 1_000]));
    let body = reqwest::Body::wrap_stream(futures::stream::iter(chunks));
    let request = acme.request(Method::POST, "/v1/messages").body(body);
    let unsaid = request.send().await.unwrap();
    assert_eq!(unsaid.status(), 413);
    let request = acme
        .request(Method::GET, "/v1/models")
        .header("x-long", "y".repeat(100_000));
    // The server may close before all of it was sent.
    if let Ok(answer) = request.send().await {
        assert_eq!(answer.status(), 431);
    }
    for (path, body) in [
        ("/v1/jobs", "[1, 2]"),
        ("/v1/messages", "{"),
        ("/v1/messages", "\u{0}\u{1}"),
    ] {
        let request = acme.request(Method::POST, path).body(body);
        let answer = fairlane_fleet_tests::api::Answer::read(request.send().await.unwrap()).await;
        assert_eq!(
            (answer.status, answer.error().as_str()),
            (400, "invalid_request_error")
        );
    }
    let wrong = acme.send(Method::DELETE, "/v1/messages").await;
    assert_eq!(
        (wrong.status, wrong.error().as_str()),
        (405, "invalid_request_error")
    );
    let lost = acme.get("/v1/nowhere").await;
    assert_eq!(
        (lost.status, lost.error().as_str()),
        (404, "not_found_error")
    );
    // And it goes on.
    assert_eq!(acme.post("/v1/messages", &message("x")).await.status, 200);
}

#[tokio::test]
async fn a_tenant_with_too_many_open_calls_is_told_when_to_come_back_and_others_are_served() {
    let setup = Setup {
        workers: 0,
        ..setup(&[
            ("producer.api_calls_per_tenant_max", "2"),
            ("producer.api_calls_max", "3"),
        ])
    };
    let fleet = Fleet::start(PROGRAM, setup).await;
    let (acme, other) = (
        fleet.caller_of("acme").await,
        fleet.caller_of("other").await,
    );
    let mut open = tokio::task::JoinSet::new();
    for number in 0..2 {
        let acme = acme.clone();
        open.spawn(async move {
            acme.post("/v1/messages", &message(&format!("tags {number}")))
                .await
        });
    }
    let queued = async |wanted: u64| {
        let stream = fleet.client().names.jobs_stream();
        eventually(PATIENCE, "the calls to be queued", || async {
            match fleet.client().jobs().count(&stream).await {
                Ok(count) if count == wanted => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    };
    queued(2).await;
    let refused = acme.post("/v1/messages", &message("third")).await;
    assert_eq!(
        (refused.status, refused.error().as_str()),
        (429, "rate_limit_error")
    );
    assert_eq!(refused.header("retry-after"), Some("1"));
    // What needs no place is answered all the same.
    assert_eq!(acme.get("/v1/models").await.status, 200);
    let others = {
        let other = other.clone();
        tokio::spawn(async move { other.post("/v1/messages", &message("x")).await })
    };
    queued(3).await;
    let full = other.post("/v1/messages", &message("y")).await;
    assert_eq!(
        (full.status, full.error().as_str()),
        (529, "overloaded_error")
    );
    assert_eq!(full.header("retry-after"), Some("1"));
    // Callers who go away give their places back, and take their jobs along.
    open.shutdown().await;
    others.abort();
    queued(0).await;
    let mut fleet = fleet;
    let worker = fleet.spawn("worker");
    fleet.workers.push(worker);
    assert_eq!(
        acme.post("/v1/messages", &message("fourth")).await.status,
        200
    );
}

#[tokio::test]
async fn a_tenant_whose_backlog_is_full_is_told_so_in_its_own_words() {
    let setup = Setup {
        workers: 0,
        ..setup(&[])
    };
    let fleet = Fleet::start(PROGRAM, setup).await;
    let acme = fleet.caller_of("acme").await;
    let jetstream = &fleet.client().jetstream;
    let stream = jetstream
        .get_stream(fleet.client().names.jobs_stream())
        .await
        .unwrap();
    let mut config = stream.cached_info().config.clone();
    config.max_messages_per_subject = 2;
    jetstream.update_stream(config).await.unwrap();
    for id in ["a", "b"] {
        fleet.publish("acme", job(id, "tags")).await;
        fleet.phase("acme", id, Phase::Queued).await;
    }
    let full = acme.post("/v1/messages", &message("one more")).await;
    assert_eq!(
        (full.status, full.error().as_str()),
        (429, "rate_limit_error"),
        "{}",
        full.text
    );
    assert!(full.header("retry-after").is_some());
    assert!(full.text.contains("jobs waiting"), "{}", full.text);
    let mut streamed = message("streamed");
    streamed["stream"] = json!(true);
    let full = acme.post("/v1/messages", &streamed).await;
    assert_eq!(
        (full.status, full.error().as_str()),
        (429, "rate_limit_error")
    );
}
