//! Bad hours of the upstream, as whole fleets live through them. What was called and billed is read from
//! the upstream's own log.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::time::{Duration, SystemTime};

use fairlane_fleet_tests::{Fleet, PATIENCE, Setup};
use fairlane_sim::{CallRecord, FaultSpec, SimConfig};
use fairlane_support::eventually;
use fairlane_wire::{DeadReason, JobRecord, Phase, SnapshotRecord};
use serde_json::{Value, json};

const PROGRAM: &str = env!("CARGO_BIN_EXE_fairlane-under-test");

fn job(id: &str, kind: &str, model: &str, request: &Value) -> String {
    let mut whole = json!({"model": model, "max_tokens": 4_096,
        "messages": [{"role": "user", "content": format!("{id}: tags")}]});
    for (name, value) in request.as_object().unwrap() {
        whole[name] = value.clone();
    }
    json!({"id": id, "origin": "user_action", "kind": kind, "request": whole}).to_string()
}

fn saying(id: &str, prompt: &str) -> String {
    let message = json!({"messages": [{"role": "user", "content": prompt}]});
    job(id, "tagging", "claude-haiku-4-5", &message)
}

fn fault(fields: Value) -> FaultSpec {
    serde_json::from_value(fields).unwrap()
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(since.unwrap().as_millis()).unwrap()
}

async fn start(faults: Vec<FaultSpec>, settings: &[(&'static str, &str)]) -> Fleet {
    let own = |(key, value): &(&'static str, &str)| (*key, (*value).to_owned());
    let setup = Setup {
        settings: settings.iter().map(own).collect(),
        sim: SimConfig {
            faults,
            ..SimConfig::instant()
        },
        ..Setup::default()
    };
    Fleet::start(PROGRAM, setup).await
}

/// What the leader says a job waits for.
async fn waits_for(fleet: &Fleet, job: &str, what: &str) {
    eventually(PATIENCE, what, || async {
        let output = fleet.run(&["why", job]).await;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if text.contains(what) {
            Ok(())
        } else {
            Err(text)
        }
    })
    .await;
}

/// Waits until the leader's books say that something is refused.
async fn gate_shut(fleet: &Fleet) {
    let nats = fleet.client();
    let bucket = nats.bucket(&nats.names.control_bucket());
    eventually(PATIENCE, "a gate in the books", || async {
        let entry = bucket.get(nats.names.books_key()).await.ok().flatten();
        let value = entry.as_ref().and_then(|entry| entry.value());
        let books = value.and_then(|value| serde_json::from_slice::<SnapshotRecord>(value).ok());
        match books {
            Some(books) if !books.gates.is_empty() => Ok(()),
            Some(_) => Err("no gate"),
            None => Err("no books"),
        }
    })
    .await;
}

fn calls_of(fleet: &Fleet, job: &str) -> Vec<CallRecord> {
    let log = fleet.sim.log();
    log.into_iter()
        .filter(|call| call.job.as_deref() == Some(job))
        .collect()
}

#[tokio::test]
async fn o3_a_smaller_model_answers_while_a_model_is_overloaded() {
    let overload = fault(json!({"model": "claude-sonnet-4-6", "status": 529}));
    let fleet = start(vec![overload], &[]).await;
    // What Haiku 4.5 does not take by these names.
    let request = json!({"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}});
    for number in 0..12 {
        let id = format!("tags-{number}");
        let body = job(&id, "tagging", "claude-sonnet-4-6", &request);
        fleet.publish("acme", body).await;
    }
    let model = "claude-sonnet-4-6";
    fleet
        .publish("acme", job("essay", "long_form_writing", model, &request))
        .await;
    fleet
        .publish(
            "acme",
            job("other", "tagging", "claude-haiku-5-5", &json!({})),
        )
        .await;
    for number in 0..12 {
        let id = format!("tags-{number}");
        let record = fleet.phase("acme", &id, Phase::Done).await;
        assert_eq!(record.model.as_deref(), Some(model));
        assert_eq!(
            record.model_used.as_deref(),
            Some("claude-haiku-4-5-20251001")
        );
        let fallback = record.fallback.unwrap();
        assert_eq!(
            (fallback.model.as_str(), fallback.why.as_str()),
            ("claude-haiku-4-5", "overloaded")
        );
    }
    fleet.phase("acme", "other", Phase::Done).await;
    let essay = fleet.record("acme", "essay").await.unwrap();
    assert!(!essay.phase.is_final(), "{essay:?}");
    assert_eq!(
        essay.no_fallback.as_deref(),
        Some("no fallback: jobs of kind long_form_writing do not fall back")
    );
    let log = fleet.sim.log();
    assert!(log.iter().all(|call| call.status != Some(400)), "{log:?}");
    let paid = log.iter().filter(|call| call.billed).count();
    assert_eq!(paid, 13);
}

#[tokio::test]
async fn an_exhausted_account_closes_the_gate_and_loses_nothing() {
    let spent = [
        json!({"status": 429, "no_retry_after": true, "error_code": "enforced_spend_limit_reached"}),
        json!({"status": 400, "message": "You have reached your specified API usage limits."}),
        json!({"status": 429, "error_type": "billing_error", "should_retry": false, "retry_after": 2_000_000}),
    ];
    for spent in spent {
        let fleet = start(vec![fault(spent.clone())], &[]).await;
        fleet.publish("acme", saying("first", "tags")).await;
        let first = fleet.phase("acme", "first", Phase::Retrying).await;
        let wait = first.retry_at_ms.unwrap().saturating_sub(now_ms());
        assert!(wait > 3_500_000, "one probe an hour: {wait} ms, {spent}");
        assert_eq!(first.attempts, 0, "{spent}");
        gate_shut(&fleet).await;
        // Whatever else comes, on whatever model, waits without a call.
        let calls = fleet.sim.log().len();
        for number in 0..20 {
            let model = ["claude-haiku-4-5", "claude-sonnet-5-5"][number % 2];
            let body = job(&format!("next-{number}"), "tagging", model, &json!({}));
            fleet.publish("acme", body).await;
        }
        waits_for(&fleet, "acme/next-19", "refuse").await;
        for number in 0..20 {
            let record = fleet.record("acme", &format!("next-{number}")).await;
            assert_eq!(record.unwrap().phase, Phase::Queued, "{spent}");
        }
        assert_eq!(fleet.sim.log().len(), calls, "{spent}");
    }
}

#[tokio::test]
async fn a_time_to_wait_is_kept_in_every_form_it_comes_in() {
    let at = http_date(now_ms() / 1_000 + 7_200);
    let once = |model: &str, retry_after: &str| {
        fault(json!({"model": model, "status": 429, "retry_after": retry_after, "count": 1}))
    };
    let faults = vec![
        once("claude-haiku-4-5", "13262"),
        once("claude-sonnet-4-6", &at),
        once("claude-haiku-5-5", "-5"),
        once("claude-sonnet-5-5", "0.5"),
    ];
    let fleet = start(faults, &[]).await;
    for (id, model) in [
        ("hours", "claude-haiku-4-5"),
        ("date", "claude-sonnet-4-6"),
        ("negative", "claude-haiku-5-5"),
        ("float", "claude-sonnet-5-5"),
    ] {
        let body = job(id, "long_form_writing", model, &json!({}));
        fleet.publish("acme", body).await;
    }
    let wait = |record: JobRecord| record.retry_at_ms.unwrap().saturating_sub(now_ms());
    let hours = wait(fleet.phase("acme", "hours", Phase::Retrying).await);
    assert!((13_200_000..19_200_000).contains(&hours), "{hours}");
    let date = wait(fleet.phase("acme", "date", Phase::Retrying).await);
    assert!((7_100_000..10_400_000).contains(&date), "{date}");
    for id in ["negative", "float"] {
        let record = fleet.phase("acme", id, Phase::Done).await;
        assert_eq!(
            (record.attempts, calls_of(&fleet, id).len()),
            (1, 2),
            "{id}"
        );
    }
    // The pool waits as long as its job.
    fleet.publish("acme", saying("behind", "tags")).await;
    waits_for(&fleet, "acme/behind", "asked").await;
    assert!(calls_of(&fleet, "behind").is_empty());
}

/// An HTTP date.
fn http_date(unix_seconds: u64) -> String {
    let output = std::process::Command::new("date")
        .args([
            "-u",
            "-d",
            &format!("@{unix_seconds}"),
            "+%a, %d %b %Y %H:%M:%S GMT",
        ])
        .env("LC_ALL", "C")
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[tokio::test]
async fn a_stream_that_stands_still_is_given_up_and_its_lease_kept_until_then() {
    let settings = [
        ("claude.progress_timeout_ms", "2500"),
        ("scheduler.unstarted_ttl_ms", "1000"),
        ("scheduler.credit_ttl_ms", "1000"),
        ("worker.renew_ms", "200"),
    ];
    let sim = SimConfig {
        ping_ms: 100,
        ..SimConfig::instant()
    };
    let own = |(key, value): &(&'static str, &str)| (*key, (*value).to_owned());
    let setup = Setup {
        sim,
        settings: settings.iter().map(own).collect(),
        ..Setup::default()
    };
    let fleet = Fleet::start(PROGRAM, setup).await;
    for (id, trouble) in [("pings", "hang_stream"), ("silence", "hang_silent")] {
        let prompt = format!("{id} [[sim:once={trouble}]] tags");
        fleet.publish("acme", saying(id, &prompt)).await;
    }
    for id in ["pings", "silence"] {
        let record = fleet.phase("acme", id, Phase::Done).await;
        // Longer than the lease lives: had it not been renewed, there would be a third call.
        assert_eq!((record.deliveries, record.ambiguous), (2, 1), "{id}");
        let calls = calls_of(&fleet, id);
        assert_eq!(calls.len(), 2, "{id}: {calls:?}");
    }
    let books = fleet.settled().await;
    assert_eq!((books.calls, books.ambiguous), (4, 2));
}

#[tokio::test]
async fn a_broken_stream_is_never_a_result() {
    let fleet = start(Vec::new(), &[]).await;
    let cases = [
        ("event", "once=error_event"),
        ("cut", "once=cut"),
        ("always-cut", "cut"),
        ("always-event", "error_event"),
    ];
    for (id, trouble) in cases {
        let body = saying(id, &format!("{id} [[sim:{trouble}]] tags"));
        let body = body.replacen('{', r#"{"max_attempts":2,"on_overload":{"defer":"no"},"#, 1);
        fleet.publish("acme", body).await;
    }
    for id in ["event", "cut"] {
        let record = fleet.phase("acme", id, Phase::Done).await;
        assert_eq!(record.result.unwrap()["stop_reason"], "end_turn");
        assert_eq!(
            (record.attempts, calls_of(&fleet, id).len()),
            (2, 2),
            "{id}"
        );
    }
    for (id, reason) in [
        ("always-cut", DeadReason::Ambiguous),
        ("always-event", DeadReason::Exhausted),
    ] {
        let record = fleet.phase("acme", id, Phase::Failed).await;
        assert_eq!(record.failure.unwrap().reason, reason, "{id}");
        assert_eq!(
            (record.result, calls_of(&fleet, id).len()),
            (None, 2),
            "{id}"
        );
    }
    let books = fleet.settled().await;
    assert_eq!((books.calls, books.letters), (8, 2));
}

#[tokio::test]
async fn operations_3_a_key_that_is_replaced_is_used_and_a_refused_one_costs_no_job() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("key");
    std::fs::write(&file, "sk-revoked").unwrap();
    let setup = Setup {
        sim: SimConfig {
            api_keys: vec!["sk-good".into()],
            ..SimConfig::instant()
        },
        settings: vec![
            ("claude.api_key", String::new()),
            ("claude.api_key_file", file.to_str().unwrap().to_owned()),
        ],
        workers: 2,
        ..Setup::default()
    };
    let fleet = Fleet::start(PROGRAM, setup).await;
    for number in 0..30 {
        let id = format!("j-{number}");
        fleet
            .publish("acme", saying(&id, &format!("{id} tags")))
            .await;
    }
    eventually(PATIENCE, "a refused call", || async {
        let log = fleet.sim.log();
        log.iter()
            .any(|call| call.status == Some(401))
            .then_some(())
            .ok_or("none")
    })
    .await;
    waits_for(&fleet, "acme/j-29", "until").await;
    std::fs::write(&file, "sk-good").unwrap();
    let replaced = now_ms();
    for number in 0..30 {
        let record = fleet
            .phase("acme", &format!("j-{number}"), Phase::Done)
            .await;
        assert_eq!(record.attempts, 1);
    }
    let log = fleet.sim.log();
    let first = log.iter().find(|call| call.status == Some(200)).unwrap();
    let after = Duration::from_micros(first.at.0).as_millis();
    let after = u64::try_from(after).unwrap().saturating_sub(replaced);
    assert!(after < 10_000, "{after} ms");
    let refused = log.iter().filter(|call| call.status == Some(401)).count();
    assert!(refused <= 34, "a storm of {refused}");
    assert_eq!(fleet.settled().await.letters, 0);
}

#[tokio::test]
async fn a_schema_is_kept_by_the_model_or_the_answer_is_no_result() {
    let fleet = start(Vec::new(), &[]).await;
    let strict = json!({"type": "object", "additionalProperties": false, "required": ["mood"],
        "properties": {"mood": {"enum": ["calm", "wild"]}}});
    let with = |id: &str, prompt: &str, schema: &Value| {
        let body: Value = serde_json::from_str(&saying(id, prompt)).unwrap();
        let mut body = body;
        body["output_schema"] = schema.clone();
        body.to_string()
    };
    // The model was not asked for it in words, so only the format can have told it.
    fleet
        .publish("acme", with("asked", "a word please", &strict))
        .await;
    let record = fleet.phase("acme", "asked", Phase::Done).await;
    let text = &record.result.unwrap()["content"][0]["text"];
    let answer: Value = serde_json::from_str(text.as_str().unwrap()).unwrap();
    assert!(answer["mood"].is_string(), "{answer}");

    let broken = with("broken", "a word [[sim:bad_tool_json]]", &strict);
    fleet.publish("acme", broken).await;
    // Cannot be sent as a format, so it is only checked; and prose is no object.
    let loose = json!({"type": "object", "minProperties": 1});
    fleet
        .publish("acme", with("prose", "a word please", &loose))
        .await;
    for id in ["broken", "prose"] {
        let record = fleet.phase("acme", id, Phase::Failed).await;
        assert_eq!(record.failure.unwrap().reason, DeadReason::Schema);
        assert_eq!(calls_of(&fleet, id).len(), 1, "{id}");
    }
    assert_eq!(fleet.settled().await.letters, 2);
}

#[tokio::test]
async fn a_request_refused_with_an_output_format_of_ours_is_sent_once_more_without_and_checked_here()
 {
    let fleet = Fleet::start(PROGRAM, Setup::default()).await;
    let with_schema = |id: &str, prompt: &str| {
        let mut body: Value = serde_json::from_str(&saying(id, prompt)).unwrap();
        body["output_schema"] = json!({
            "type": "object", "properties": {"tags": {"type": "string"}}, "required": ["tags"],
            "additionalProperties": false,
        });
        body.to_string()
    };
    let calls = |id: &str| -> Vec<u16> {
        let log = fleet.sim.log().into_iter();
        let own = log.filter(|call| call.job.as_deref() == Some(id));
        own.filter_map(|call| call.status).collect()
    };
    // With the format the answer keeps to the schema.
    fleet.publish("acme", with_schema("kept", "tags")).await;
    fleet.phase("acme", "kept", Phase::Done).await;
    assert_eq!(calls("kept"), [200]);
    // Without it the answer is prose, and that is noticed here.
    fleet
        .publish("acme", with_schema("dropped", "[[sim:once=400]] tags"))
        .await;
    let failed = fleet.phase("acme", "dropped", Phase::Failed).await;
    assert_eq!(failed.failure.unwrap().reason.as_str(), "schema");
    assert_eq!(calls("dropped"), [400, 200]);
    // What is refused without it as well is not sent a third time.
    fleet
        .publish(
            "acme",
            with_schema("wrong", "[[sim:once=400 times=2]] tags"),
        )
        .await;
    let failed = fleet.phase("acme", "wrong", Phase::Failed).await;
    assert_eq!(failed.failure.unwrap().reason.as_str(), "invalid_request");
    assert_eq!(calls("wrong"), [400, 400]);
    // A request of the owner's own is refused once.
    fleet
        .publish("acme", saying("own", "[[sim:once=400]] other tags"))
        .await;
    fleet.phase("acme", "own", Phase::Failed).await;
    assert_eq!(calls("own"), [400]);
    fleet.settled().await;
}
