//! What the owner of a job sees, and what it can ask for.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::time::Duration;

use fairlane_core::{JobId, TenantId};
use fairlane_fleet_tests::{Books, Fleet, PATIENCE, Setup, job};
use fairlane_nats::records::Slot;
use fairlane_nats::{Records, watch};
use fairlane_sim::SimConfig;
use fairlane_support::{eventually, within};
use fairlane_wire::{Descent, JobRecord, Phase};

const PROGRAM: &str = env!("CARGO_BIN_EXE_fairlane-under-test");

/// Answers that are written at this speed.
fn writing(tokens_per_second: f64) -> SimConfig {
    SimConfig {
        zero_latency: false,
        first_byte_ms: 50,
        tokens_per_second,
        ..SimConfig::instant()
    }
}

fn long(id: &str, prompt: &str) -> String {
    job(id, prompt).replace("\"max_tokens\":64", "\"max_tokens\":4000")
}

/// Every state of the record from now on, to the end of the job.
async fn history(fleet: &Fleet, id: &str) -> Vec<JobRecord> {
    let records = Records::new(fleet.client(), Duration::from_secs(60));
    let (tenant, job) = (TenantId::parse("acme").unwrap(), JobId::parse(id).unwrap());
    let mut changes = records.watch(&tenant, &job);
    let mut seen = Vec::new();
    within(PATIENCE, "the job to end", async {
        while let Some(event) = changes.next().await {
            let watch::Event::Change(entry) = event else {
                continue;
            };
            let record = Slot::of(&entry).unwrap().record.unwrap();
            seen.push(record);
            if seen.last().is_some_and(|record| record.phase.is_final()) {
                break;
            }
        }
    })
    .await;
    seen
}

fn phases(seen: &[JobRecord]) -> Vec<Phase> {
    let mut phases: Vec<Phase> = seen.iter().map(|record| record.phase).collect();
    phases.dedup();
    phases
}

/// The record of a job of acme as it is stored: how long it lives, in seconds, and how much of that lies behind the time
/// at which the job is tried again.
async fn life(fleet: &Fleet, id: &str) -> (Option<u64>, Option<u64>) {
    let subject = format!("$KV.fl_status.acme.{id}");
    let stored = fleet.client().jobs().last("KV_fl_status", &subject).await;
    let stored = stored.unwrap().unwrap();
    let record = JobRecord::from_json(&stored.payload).unwrap();
    let ttl = stored.headers.get("Nats-TTL");
    let ttl = ttl.map(|seconds| seconds.as_str().parse().unwrap());
    let wait = record.retry_at_ms.map(|at| (at - stored.stored_ms) / 1_000);
    (ttl, ttl.zip(wait).map(|(ttl, wait)| ttl - wait))
}

#[tokio::test]
async fn o1_submitting_returns_at_once_and_the_record_stays_for_as_long_as_it_is_of_use() {
    let setup = Setup {
        workers: 0,
        ..Setup::default()
    };
    let mut fleet = Fleet::start(PROGRAM, setup).await;
    let jobs = [
        ("answered", "tags"),
        ("refused", "[[sim:refusal]] tags"),
        ("again", "[[sim:once=529 retry_after=3600]] tags"),
    ];
    let lines = jobs.map(|(id, prompt)| {
        let mut line: serde_json::Value = serde_json::from_str(&job(id, prompt)).unwrap();
        line["tenant"] = "acme".into();
        line.to_string()
    });
    let file = fleet.logs().join("jobs.jsonl");
    std::fs::write(&file, lines.join("\n")).unwrap();
    // Nobody is there who could run them.
    let output = fleet.run(&["submit", file.to_str().unwrap()]).await;
    assert!(output.status.success(), "{output:?}");
    for (id, _) in jobs {
        fleet.phase("acme", id, Phase::Queued).await;
        assert_eq!(life(&fleet, id).await.0, None, "{id} stays until it is run");
    }

    fleet.workers.push(fleet.spawn("worker"));
    fleet.phase("acme", "answered", Phase::Done).await;
    fleet.phase("acme", "refused", Phase::Failed).await;
    fleet.phase("acme", "again", Phase::Retrying).await;
    for id in ["answered", "refused"] {
        assert_eq!(life(&fleet, id).await.0, Some(24 * 3_600), "{id}");
    }
    let (_, beyond) = life(&fleet, "again").await;
    let beyond = beyond.unwrap();
    assert!((600..660).contains(&beyond), "{beyond} s");
}

#[tokio::test]
async fn o2_the_phases_of_a_job_are_told_as_they_happen() {
    let setup = Setup {
        sim: writing(100.0),
        ..Setup::default()
    };
    let fleet = Fleet::start(PROGRAM, setup).await;
    let body = long("slow", "[[sim:out=350 pause_turn]] tags");
    let (seen, ()) = tokio::join!(history(&fleet, "slow"), fleet.publish("acme", body));
    assert_eq!(
        phases(&seen),
        [
            Phase::Queued,
            Phase::Generating,
            Phase::Refining,
            Phase::Done
        ]
    );
    let told: Vec<u64> = seen
        .iter()
        .filter(|record| record.phase == Phase::Generating)
        .map(|record| record.tokens_so_far)
        .collect();
    assert!(told.is_sorted() && told.last() > Some(&50), "{told:?}");
    assert!(told.len() <= 6, "about one a second: {told:?}");
    let done = seen.last().unwrap();
    assert!(done.cost_usd > Some(0.0) && done.usage.unwrap().output_tokens > 600);

    let output = fleet.run(&["watch", "acme/slow", "-o", "json"]).await;
    assert!(output.status.success(), "{output:?}");
    let line: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(line["phase"], "done");
}

#[tokio::test]
async fn a_job_that_is_tried_again_says_why_and_until_when_and_has_words_for_its_user() {
    let fleet = Fleet::start(PROGRAM, Setup::default()).await;
    fleet
        .publish("acme", job("again", "[[sim:once=500]] tags"))
        .await;
    let seen = history(&fleet, "again").await;
    let retrying = seen
        .iter()
        .find(|record| record.phase == Phase::Retrying)
        .expect("it was tried again");
    assert!(retrying.retry_at_ms.is_some() && retrying.retry_reason.is_some());
    let text = String::from_utf8(retrying.to_json(&fleet.client().names)).unwrap();
    assert!(
        text.contains(r#""notice":{"code":"taking_longer""#),
        "{text}"
    );
    let done = seen.last().unwrap();
    assert_eq!((done.phase, done.attempts), (Phase::Done, 2));
    assert_eq!(
        (done.retry_at_ms, done.retry_reason.as_deref()),
        (None, None)
    );
}

/// What a command says as JSON, and whether it succeeded.
async fn says(fleet: &Fleet, arguments: &[&str]) -> (bool, serde_json::Value) {
    let output = fleet.run(&[arguments, &["-o", "json"]].concat()).await;
    let said = serde_json::from_slice(&output.stdout);
    let said = said.unwrap_or_else(|error| panic!("{error}: {output:?}"));
    (output.status.success(), said)
}

/// Nothing is left in the job stream and no lease is held.
async fn is_clear(fleet: &Fleet) -> Books {
    eventually(PATIENCE, "nothing to be left", || async {
        let books = Books::read(fleet.client())
            .await
            .map_err(|error| error.to_string())?;
        match (books.queued, books.leases) {
            (0, 0) => Ok(books),
            _ => Err(format!("{books:?}")),
        }
    })
    .await
}

#[tokio::test]
async fn a_job_that_is_called_off_while_it_waits_is_never_called() {
    let setup = Setup {
        workers: 0,
        ..Setup::default()
    };
    let fleet = Fleet::start(PROGRAM, setup).await;
    fleet.publish("acme", job("waits", "tags")).await;
    fleet.phase("acme", "waits", Phase::Queued).await;
    // As any NATS client would.
    let reply = fleet
        .client()
        .client
        .request("fl.ask.cancel.acme.waits", "".into())
        .await
        .unwrap();
    let reply: serde_json::Value = serde_json::from_slice(&reply.payload).unwrap();
    assert_eq!(
        (&reply["outcome"], &reply["phase"]),
        (&"ok".into(), &"cancelled".into())
    );
    is_clear(&fleet).await;

    let _worker = fleet.spawn("worker");
    fleet.publish("acme", job("runs", "tags")).await;
    fleet.phase("acme", "runs", Phase::Done).await;
    assert_eq!(fleet.sim.log().len(), 1, "only the other one");
    let (ok, again) = says(&fleet, &["cancel", "acme/waits"]).await;
    assert!(ok && again["phase"] == "cancelled", "{again}");
    let (ok, done) = says(&fleet, &["cancel", "acme/runs"]).await;
    assert!(
        !ok && done["outcome"] == "ended" && done["phase"] == "done",
        "{done}"
    );
    let output = fleet.run(&["cancel", "acme/nobody"]).await;
    assert_eq!(output.status.code(), Some(3));
}

#[tokio::test]
async fn a_job_that_is_called_off_while_it_waits_for_a_time_leaves_at_once() {
    let fleet = Fleet::start(PROGRAM, Setup::default()).await;
    fleet
        .publish(
            "acme",
            job("later", "[[sim:once=429 retry_after=3600]] tags"),
        )
        .await;
    fleet.phase("acme", "later", Phase::Retrying).await;
    assert!(says(&fleet, &["cancel", "acme/later"]).await.0);
    is_clear(&fleet).await;
    fleet.phase("acme", "later", Phase::Cancelled).await;
}

#[tokio::test]
async fn a_running_job_that_is_called_off_stops_and_pays_what_it_used() {
    let setup = Setup {
        sim: writing(100.0),
        ..Setup::default()
    };
    let fleet = Fleet::start(PROGRAM, setup).await;
    // It would take far longer than the test has patience.
    let endless = long("endless", "[[sim:out=20000]] tags").replace("4000", "30000");
    fleet.publish("acme", endless).await;
    eventually(PATIENCE, "the answer to be under way", || async {
        match fleet.record("acme", "endless").await {
            Some(record) if record.tokens_so_far > 0 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    assert!(says(&fleet, &["cancel", "acme/endless"]).await.0);
    let books = is_clear(&fleet).await;
    assert_eq!((books.calls, books.letters), (1, 0), "{books:?}");
    let record = fleet.phase("acme", "endless", Phase::Cancelled).await;
    let used = record.usage.unwrap().output_tokens;
    assert!((1..20_000).contains(&used), "{used}");
    assert!(record.cost_usd > Some(0.0) && record.result.is_none());
}

#[tokio::test]
async fn of_a_result_and_a_cancellation_at_the_same_moment_one_is_the_outcome() {
    let setup = Setup {
        sim: writing(10_000.0),
        ..Setup::default()
    };
    let fleet = Fleet::start(PROGRAM, setup).await;
    const JOBS: usize = 60;
    let (fleet, client) = (&fleet, &fleet.client().client);
    let race = |number: usize| async move {
        let id = format!("job-{number}");
        fleet.publish("acme", job(&id, "tags")).await;
        // Some before, some during, some after the answer. Enough jobs are called for the last ones.
        eventually(PATIENCE, "some calls", || async {
            let calls = fleet.sim.log().len();
            (calls >= number / 10).then_some(()).ok_or(calls)
        })
        .await;
        eventually(PATIENCE, "the job to be taken", || async {
            let subject = format!("fl.ask.cancel.acme.{id}");
            let reply = client.request(subject, "".into()).await;
            let reply = reply.map_err(|error| serde_json::json!(error.to_string()))?;
            let reply: serde_json::Value = serde_json::from_slice(&reply.payload).unwrap();
            match reply["outcome"].as_str() {
                Some("not_found") => Err(reply),
                _ => Ok(reply),
            }
        })
        .await
    };
    let replies = futures::future::join_all((0..JOBS).map(race)).await;
    let books = fleet.settled().await;
    assert_eq!(books.letters, 0);
    let mut cancelled = 0;
    for (number, reply) in replies.iter().enumerate() {
        let record = fleet
            .record("acme", &format!("job-{number}"))
            .await
            .unwrap();
        match record.phase {
            Phase::Done => assert!(record.result.is_some() && reply["outcome"] != "ok"),
            Phase::Cancelled => {
                cancelled += 1;
                assert!(
                    record.result.is_none() && reply["outcome"] == "ok",
                    "{reply}"
                );
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(cancelled > 0, "some were in time");
}

/// A job that nothing answers, as the simulator goes.
fn overloaded(id: &str, defer: Option<&str>) -> String {
    let body = job(id, &format!("[[sim:status=529]] tags of {id}"));
    let mut body: serde_json::Value = serde_json::from_str(&body).unwrap();
    body["max_attempts"] = 1.into();
    body["on_overload"] = match defer {
        Some(defer) => serde_json::json!({"fallback": "never", "defer": defer}),
        None => serde_json::json!({"fallback": "never"}),
    };
    body.to_string()
}

#[tokio::test]
async fn o4_an_overloaded_job_asks_its_owner_and_waits_across_restarts_if_it_may() {
    let mut fleet = Fleet::start(PROGRAM, Setup::default()).await;
    for (id, defer) in [
        ("asks", None),
        ("asks-no", None),
        ("may", Some("yes")),
        ("must", Some("no")),
    ] {
        fleet.publish("acme", overloaded(id, defer)).await;
    }
    let asks = fleet.phase("acme", "asks", Phase::NeedsDecision).await;
    let question = asks.question.unwrap();
    assert!(question.answer_by_ms <= question.defer_until_ms);
    assert_eq!(question.defer_until_ms % 86_400_000, 3 * 3_600_000);
    fleet.phase("acme", "may", Phase::Deferred).await;
    fleet.phase("acme", "must", Phase::Failed).await;
    fleet.phase("acme", "asks-no", Phase::NeedsDecision).await;

    fleet.schedulers[0].kill9();
    fleet.schedulers[0] = fleet.spawn("scheduler");
    fleet.workers[0].kill9();
    fleet.workers[0] = fleet.spawn("worker");
    let (ok, said) = says(&fleet, &["answer", "acme/asks", "yes"]).await;
    assert!(ok && said["phase"] == "deferred", "{said}");
    let (ok, said) = says(&fleet, &["answer", "acme/asks-no", "no"]).await;
    assert!(ok && said["phase"] == "failed", "{said}");
    let (ok, said) = says(&fleet, &["answer", "acme/asks", "no"]).await;
    assert!(!ok && said["outcome"] == "ended", "{said}");
    let (ok, said) = says(&fleet, &["answer", "acme/must", "yes"]).await;
    assert!(!ok && said["outcome"] == "not_possible", "{said}");

    // The two that may wait do, until the time that was told.
    eventually(PATIENCE, "the others to leave", || async {
        let books = Books::read(fleet.client())
            .await
            .map_err(|error| error.to_string())?;
        match (books.queued, books.leases, books.letters) {
            (2, 2, 2) => Ok(()),
            _ => Err(format!("{books:?}")),
        }
    })
    .await;
    for id in ["asks", "may"] {
        let record = fleet.phase("acme", id, Phase::Deferred).await;
        let (_, why) = says(&fleet, &["why", &format!("acme/{id}")]).await;
        assert_eq!(why["until_ms"], record.retry_at_ms.unwrap(), "{why}");
    }
    assert_eq!(fleet.sim.log().len(), 4, "none was called again");
    // One that waits can be called off.
    assert!(says(&fleet, &["cancel", "acme/asks"]).await.0);
    assert!(says(&fleet, &["cancel", "acme/may"]).await.0);
    is_clear(&fleet).await;
}

#[tokio::test]
async fn a_question_that_nobody_answers_in_time_ends_as_a_dead_letter() {
    let setup = Setup {
        settings: vec![("worker.defer_answer_ms", "1000".to_owned())],
        ..Setup::default()
    };
    let fleet = Fleet::start(PROGRAM, setup).await;
    fleet.publish("acme", overloaded("asks", None)).await;
    let record = fleet.phase("acme", "asks", Phase::Failed).await;
    assert!(record.question.is_some(), "it was asked");
    assert!(
        record
            .failure
            .unwrap()
            .message
            .contains("nobody said in time")
    );
    let books = is_clear(&fleet).await;
    assert_eq!((books.letters, books.calls), (1, 1), "{books:?}");
}

#[tokio::test]
async fn an_answer_of_the_lighter_model_can_be_made_again_by_the_one_it_was_meant_for() {
    let fleet = Fleet::start(PROGRAM, Setup::default()).await;
    let body =
        job("light", "[[sim:once=529]] tags").replace("claude-haiku-4-5", "claude-sonnet-4-6");
    fleet.publish("acme", body).await;
    let light = fleet.phase("acme", "light", Phase::Done).await;
    let fallback = light.fallback.clone().expect("the lighter model answered");
    let text = String::from_utf8(light.to_json(&fleet.client().names)).unwrap();
    assert!(
        text.contains(r#""command":"fairlane regenerate acme/light""#),
        "{text}"
    );

    let (ok, said) = says(&fleet, &["regenerate", "acme/light"]).await;
    assert!(ok, "{said}");
    let new = said["other"].as_str().unwrap();
    let (_, again) = says(&fleet, &["regenerate", "acme/light"]).await;
    assert_eq!(again["other"], new, "asked twice, it is one job");
    let done = fleet.phase("acme", new, Phase::Done).await;
    assert_eq!(
        (done.model.as_deref(), done.fallback),
        (Some("claude-sonnet-4-6"), None)
    );
    assert_ne!(done.model_used, light.model_used, "{fallback:?}");
    assert_eq!(done.kind, light.kind);
    let parent = done.parent.unwrap();
    assert_eq!(
        (parent.how, parent.job.as_str()),
        (Descent::Regenerated, "light")
    );
    let light = fleet.record("acme", "light").await.unwrap();
    assert_eq!(light.children[0].job.as_str(), new);
    // A job of the model it was meant for cannot be.
    let (ok, said) = says(&fleet, &["regenerate", &format!("acme/{new}")]).await;
    assert!(!ok && said["outcome"] == "not_possible", "{said}");
    fleet.settled().await;
    assert_eq!(
        fleet
            .sim
            .log()
            .into_iter()
            .filter(|call| call.billed)
            .count(),
        2
    );
}
