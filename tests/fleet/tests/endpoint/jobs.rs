//! The job API: submitting, watching, changing; dead letters and sending them again.

use fairlane_fleet_tests::api::OPERATOR;
use fairlane_fleet_tests::{Fleet, PATIENCE, Setup, job};
use fairlane_support::eventually;
use fairlane_wire::Phase;
use reqwest::Method;
use serde_json::{Value, json};

use crate::{PROGRAM, read_until, setup};

fn parsed(job: &str) -> Value {
    serde_json::from_str(job).unwrap()
}

#[tokio::test]
async fn jobs_are_submitted_watched_and_read() {
    let fleet = Fleet::start(PROGRAM, setup(&[])).await;
    let acme = fleet.caller_of("acme").await;
    let made = acme.post("/v1/jobs", &parsed(&job("one", "tags"))).await;
    assert_eq!((made.status, &made.json()["job"]), (202, &json!("one")));
    let result = acme.get("/v1/jobs/one/result?wait=30").await;
    assert_eq!(
        (result.status, &result.json()["type"]),
        (200, &json!("message"))
    );
    // What has ended is told, and the stream with it.
    let events = acme.get("/v1/jobs/one/events").await;
    assert_eq!(
        events.header("content-type"),
        Some("text/event-stream; charset=utf-8")
    );
    assert!(
        events.text.starts_with("event: done\ndata: {"),
        "{}",
        events.text
    );
    assert_eq!(acme.get("/v1/jobs/one/why").await.json()["reason"], "ended");
    // Several, of which one is none: that is told and leaves no letter.
    let lines = [job("two", "x"), "{\"id\": 3}".to_owned(), job("four", "x")].join("\n");
    let request = acme.request(Method::POST, "/v1/jobs").body(lines);
    let told: Value = request.send().await.unwrap().json().await.unwrap();
    assert_eq!(
        (&told["accepted"], &told["refused"]),
        (&json!(2), &json!(1))
    );
    assert!(told["jobs"][1]["error"].is_string(), "{told}");
    fleet.phase("acme", "four", Phase::Done).await;
    for (path, status) in [
        ("/v1/jobs/nobody", 404),
        ("/v1/jobs/a%20b", 404),
        ("/v1/jobs/nobody/events", 404),
        ("/v1/jobs/nobody/result", 404),
        ("/v1/jobs/nobody/why", 404),
    ] {
        assert_eq!(acme.get(path).await.status, status, "{path}");
    }
    let books = fleet.settled().await;
    assert_eq!(
        (books.in_phase(Phase::Done), books.letters),
        (3, 0),
        "{books:?}"
    );
}

#[tokio::test]
async fn a_job_that_waits_says_why_and_is_called_off_before_the_eyes_of_who_watches() {
    let setup = Setup {
        workers: 0,
        ..setup(&[])
    };
    let fleet = Fleet::start(PROGRAM, setup).await;
    let acme = fleet.caller_of("acme").await;
    acme.post("/v1/jobs", &parsed(&job("one", "tags"))).await;
    fleet.phase("acme", "one", Phase::Queued).await;
    let why = eventually(PATIENCE, "the leader to know the job", || async {
        let why = acme.get("/v1/jobs/one/why").await;
        if why.status == 200 && why.json()["reason"] == "no_worker" {
            Ok(why.json())
        } else {
            Err(why.text)
        }
    })
    .await;
    assert!(why.is_object(), "{why}");
    let early = acme.get("/v1/jobs/one/result").await;
    assert_eq!(
        (early.status, early.header("x-should-retry")),
        (409, Some("false"))
    );
    let mut events = acme
        .request(Method::GET, "/v1/jobs/one/events")
        .send()
        .await
        .unwrap();
    read_until(&mut events, "event: queued\n").await;
    let asked = acme.post("/v1/jobs/one/cancel", &json!({})).await;
    assert_eq!(asked.status, 200, "{}", asked.text);
    read_until(&mut events, "event: cancelled\n").await;
    assert_eq!(
        events.chunk().await.unwrap(),
        None,
        "the stream ends with the job"
    );
    let result = acme.get("/v1/jobs/one/result").await;
    assert_eq!(
        (result.status, result.error().as_str()),
        (409, "invalid_request_error")
    );
    let again = acme.post("/v1/jobs/one/cancel", &json!({})).await;
    assert_eq!(
        again.status, 200,
        "whoever asks twice has what they asked for"
    );
    // What cannot be asked is told with what is wrong.
    for (path, body, status) in [
        ("/v1/jobs/one/regenerate", json!({}), 409),
        ("/v1/jobs/one/answer", json!({"answer": "yes"}), 409),
        ("/v1/jobs/one/answer", json!({"answer": "perhaps"}), 400),
        ("/v1/jobs/nobody/cancel", json!({}), 404),
        ("/v1/jobs/nobody/regenerate", json!({}), 404),
    ] {
        let told = acme.post(path, &body).await;
        assert_eq!(told.status, status, "{path} {body}: {}", told.text);
        assert!(!told.error().is_empty());
    }
}

#[tokio::test]
async fn letters_are_seen_by_their_tenant_and_sent_again_by_operators() {
    let fleet = Fleet::start(PROGRAM, setup(&[])).await;
    let (acme, other) = (
        fleet.caller_of("acme").await,
        fleet.caller_of("other").await,
    );
    let operator = fleet.caller().with(OPERATOR);
    let poison = json!({
        "id": "bad", "origin": "user_action", "kind": "tagging", "model": "claude-nobody-9", "prompt": "tags",
    });
    fleet.publish("acme", poison.to_string()).await;
    fleet.phase("acme", "bad", Phase::Failed).await;
    let listed = acme.get("/v1/dead-letters").await.json();
    assert_eq!(listed["count"], 1, "{listed}");
    let letter = listed["letters"][0]["seq"].as_u64().unwrap();
    assert_eq!(other.get("/v1/dead-letters").await.json()["count"], 0);
    let path = format!("/v1/dead-letters/{letter}");
    assert_eq!(other.get(&path).await.status, 404);
    assert!(acme.get(&path).await.text.contains("claude-nobody-9"));
    assert_eq!(
        acme.get("/v1/dead-letters/export")
            .await
            .text
            .lines()
            .count(),
        1
    );
    let repair = json!({"model": "claude-haiku-4-5"});
    let tried = acme.post(&format!("{path}/repair"), &repair).await;
    assert_eq!(tried.json()["sendable"], true, "{}", tried.text);
    let filter = json!({"ids": [{"letter": letter}]});
    // A misspelt condition must not mean all letters, nor a misspelt repair none.
    for wrong in [
        json!({"filter": {"id": [{"letter": letter}]}}),
        json!({"filter": filter, "repair": {"modle": "claude-haiku-4-5"}}),
        json!({"filter": {}}),
    ] {
        let refused = operator.post("/v1/redrives", &wrong).await;
        assert_eq!(refused.error(), "invalid_request_error", "{wrong}");
    }
    let wanted = json!({"filter": filter, "repair": repair, "dry_run": true});
    let dry = operator.post("/v1/redrives", &wanted).await;
    assert!(dry.status < 300, "{}", dry.text);
    assert_eq!(fleet.sim.log().len(), 0, "nothing was sent");
    let wanted = json!({"filter": filter, "repair": repair});
    let run = operator.post("/v1/redrives", &wanted).await;
    assert_eq!(run.status, 202, "{}", run.text);
    fleet.phase("acme", "bad", Phase::Done).await;
    let runs = operator.get("/v1/redrives").await.json();
    let id = runs["runs"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(
        operator.get(&format!("/v1/redrives/{id}")).await.status,
        200
    );
    assert_eq!(operator.send(Method::DELETE, &path).await.status, 200);
    assert_eq!(operator.get(&path).await.status, 404);
}
