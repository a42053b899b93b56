//! Jobs that are too long for their model: summarised first, by visible jobs of the same tenant, whatever
//! happens meanwhile.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::time::Duration;

use fairlane_core::{JobId, TenantId};
use fairlane_fleet_tests::{Fleet, PATIENCE, Setup};
use fairlane_nats::records::Slot;
use fairlane_nats::{Records, watch};
use fairlane_sim::SimConfig;
use fairlane_support::{eventually, within};
use fairlane_wire::{Descent, JobRecord, Phase};

const PROGRAM: &str = env!("CARGO_BIN_EXE_fairlane-under-test");

/// A small model, so that four parts are not four million characters.
const CONFIG: &str = r#"
[kinds.tagging]
oversize = "summarise"

[models."claude-haiku-4-5"]
context_tokens = 8000
"#;

fn setup() -> Setup {
    Setup {
        config: CONFIG,
        ..Setup::default()
    }
}

/// About 17 000 tokens, with `middle` in the third quarter.
fn long(id: &str, middle: &str) -> String {
    let text = "The quick brown fox went on. ".repeat(2_000);
    let at = text.len() * 5 / 8;
    let text = format!("{} {middle} {}", &text[..at], &text[at..]);
    fairlane_fleet_tests::job(id, &text)
}

/// Calls that were paid, by job.
fn paid(fleet: &Fleet) -> BTreeMap<String, usize> {
    let mut paid = BTreeMap::new();
    for call in fleet.sim.log().into_iter().filter(|call| call.billed) {
        *paid.entry(call.job.unwrap().to_string()).or_default() += 1;
    }
    paid
}

/// Waits until no large body is left.
async fn no_objects(fleet: &Fleet) {
    eventually(PATIENCE, "no large bodies", async || {
        let jobs = fleet.client().jobs();
        let counts = jobs.counts("OBJ_fl_payloads", "$O.fl_payloads.C.>");
        match counts.await.unwrap().len() {
            0 => Ok(()),
            left => Err(left),
        }
    })
    .await;
}

#[tokio::test]
async fn a_job_that_is_too_long_is_summarised_by_jobs_that_can_be_seen_and_runs_on_their_summaries()
{
    let fleet = Fleet::start(PROGRAM, setup()).await;
    let records = Records::new(fleet.client(), Duration::from_secs(60));
    let (tenant, job) = (
        TenantId::parse("acme").unwrap(),
        JobId::parse("big").unwrap(),
    );
    let mut changes = records.watch(&tenant, &job);
    fleet.publish("acme", long("big", "")).await;
    let mut seen: Vec<JobRecord> = Vec::new();
    within(PATIENCE, "the job to end", async {
        while !seen.last().is_some_and(|record| record.phase.is_final()) {
            if let Some(watch::Event::Change(entry)) = changes.next().await {
                seen.extend(Slot::of(&entry).unwrap().record);
            }
        }
    })
    .await;
    let mut phases: Vec<Phase> = seen.iter().map(|record| record.phase).collect();
    phases.dedup();
    assert_eq!(
        (phases[0], phases[1]),
        (Phase::Accepted, Phase::Queued),
        "{phases:?}"
    );
    let progress: Vec<(u32, u32)> = seen
        .iter()
        .filter_map(|record| record.parts.as_ref())
        .map(|parts| (parts.done, parts.of))
        .collect();
    assert_eq!(progress[0], (0, 4));
    assert!(
        progress.is_sorted() && progress.last() == Some(&(4, 4)),
        "{progress:?}"
    );

    let done = seen.last().unwrap();
    assert_eq!((done.phase, done.children.len()), (Phase::Done, 4));
    for child in &done.children {
        assert_eq!(child.how, Descent::Part);
        let part = fleet.phase("acme", child.job.as_str(), Phase::Done).await;
        assert_eq!(part.parent.unwrap().job, job);
        assert_eq!(
            (part.kind.as_deref(), part.priority),
            (Some("oversize_part"), done.priority.clone())
        );
        assert!(part.cost_usd > Some(0.0), "charged like any other");
    }
    let books = fleet.settled().await;
    assert_eq!(
        (books.in_phase(Phase::Done), books.calls, books.letters),
        (5, 5, 0)
    );
    assert!(paid(&fleet).values().all(|calls| *calls == 1));
    no_objects(&fleet).await;
}

#[tokio::test]
async fn a_part_that_dies_makes_a_dead_letter_of_the_whole_and_what_was_paid_is_used_when_it_is_sent_again()
 {
    let fleet = Fleet::start(PROGRAM, setup()).await;
    let body = long("big", "[[sim:once=400]]");
    fleet.publish("acme", body.clone()).await;
    let failed = fleet.phase("acme", "big", Phase::Failed).await;
    let failure = failed.failure.unwrap();
    assert_eq!(
        (failure.reason.as_str(), failure.detail.as_deref()),
        ("oversize", Some("part"))
    );
    assert!(
        failure.message.contains("part 3 of 4") && failure.message.contains("invalid_request"),
        "{failure:?}"
    );
    let books = fleet.settled().await;
    assert_eq!(
        (books.letters, books.in_phase(Phase::Accepted)),
        (2, 0),
        "{books:?}"
    );
    let client = fleet.client();
    let mut whole = None;
    for seq in 1..=2 {
        let letter = client.letter(seq).await.unwrap().unwrap();
        if letter.letter.job.as_str() == "big" {
            whole = Some(letter);
        }
    }
    assert_eq!(whole.unwrap().body, body, "byte for byte");

    let before = paid(&fleet);
    let output = fleet.run(&["dlq", "redrive", "acme/big", "--yes"]).await;
    assert!(output.status.success(), "{output:?}");
    let done = fleet.phase("acme", "big", Phase::Done).await;
    assert_eq!(done.priority.as_deref(), Some("batch"));
    fleet.settled().await;
    let after = paid(&fleet);
    assert!(
        after.len() == 5 && after.values().all(|calls| *calls == 1),
        "{before:?} {after:?}"
    );
}

#[tokio::test]
async fn a_job_that_is_called_off_takes_its_parts_with_it() {
    let sim = SimConfig {
        zero_latency: false,
        first_byte_ms: 50,
        tokens_per_second: 20.0,
        ..SimConfig::instant()
    };
    let fleet = Fleet::start(PROGRAM, Setup { sim, ..setup() }).await;
    fleet.publish("acme", long("big", "[[sim:out=2000]]")).await;
    let record = fleet.phase("acme", "big", Phase::Accepted).await;
    let third = record.children[2].job.clone();
    fleet.phase("acme", third.as_str(), Phase::Generating).await;
    let output = fleet.run(&["cancel", "acme/big"]).await;
    assert!(output.status.success(), "{output:?}");
    fleet.phase("acme", third.as_str(), Phase::Cancelled).await;
    let books = fleet.settled().await;
    assert_eq!(
        (books.letters, books.in_phase(Phase::Accepted)),
        (0, 0),
        "{books:?}"
    );
    // Its key is free: published again it runs.
    fleet.publish("acme", long("big", "[[sim:out=20]]")).await;
    fleet.phase("acme", "big", Phase::Done).await;
    fleet.settled().await;
}

#[tokio::test]
async fn summaries_that_are_too_long_are_summarised_once_more() {
    let sim = SimConfig::instant();
    let config: &'static str = r#"
[kinds.tagging]
oversize = "summarise"

[models."claude-haiku-4-5"]
context_tokens = 4000
"#;
    let fleet = Fleet::start(
        PROGRAM,
        Setup {
            sim,
            config,
            ..Setup::default()
        },
    )
    .await;
    // The rest of the request leaves room for little, and the summaries take all they may have.
    let text = "[[sim:out=256]] The quick brown fox went on, and on. ".repeat(700);
    let body = fairlane_fleet_tests::job("big", &text);
    let mut body: serde_json::Value = serde_json::from_str(&body).unwrap();
    body["request"]["system"] = "s".repeat(9_000).into();
    let body = body.to_string();
    fleet.publish("acme", body.clone()).await;
    let ended = eventually(PATIENCE, "an end", async || {
        match fleet.record("acme", "big").await {
            Some(record) if record.phase.is_final() => Ok(record),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    let rounds = ended.parts.as_ref().unwrap().round;
    assert_eq!((ended.phase, rounds), (Phase::Done, 2), "{ended:?}");
    fleet.settled().await;
}

#[tokio::test]
async fn producers_that_are_killed_between_any_two_steps_leave_one_outcome_and_pay_no_part_twice() {
    const JOBS: usize = 6;
    let mut fleet = Fleet::start(PROGRAM, setup()).await;
    for number in 0..JOBS {
        let id = format!("big-{number}");
        fleet.publish("acme", long(&id, &id)).await;
        // Steps take milliseconds; each job is hit at another one.
        let wanted = number;
        eventually(PATIENCE, "some of its parts", async || {
            let log = fleet.sim.log();
            let calls = log
                .iter()
                .filter(|call| call.job.as_ref().is_some_and(|job| job.starts_with(&id)));
            let record = fleet.record("acme", &id).await;
            let is_far = record.is_some_and(|record| record.phase != Phase::Accepted);
            let calls = calls.count();
            if is_far || calls >= wanted {
                Ok(())
            } else {
                Err(calls)
            }
        })
        .await;
        fleet.producers[0].kill9();
        fleet.producers[0] = fleet.spawn("producer");
    }
    for number in 0..JOBS {
        fleet
            .phase("acme", &format!("big-{number}"), Phase::Done)
            .await;
    }
    let books = fleet.settled().await;
    assert_eq!(
        (books.in_phase(Phase::Done), books.letters),
        (5 * JOBS, 0),
        "{books:?}"
    );
    let paid = paid(&fleet);
    assert!(
        paid.len() == 5 * JOBS && paid.values().all(|calls| *calls == 1),
        "{paid:?}"
    );
    let jobs = fleet.client().jobs();
    let plans = jobs.counts("KV_fl_idem", "$KV.fl_idem._parts.>");
    assert!(plans.await.unwrap().len() <= JOBS);
    no_objects(&fleet).await;
}

#[tokio::test]
async fn a_job_that_was_cut_is_sent_again_whole_if_it_can_be_and_says_in_any_case_that_it_was_cut()
{
    let config: &'static str = r#"
[kinds.tagging]
oversize = "truncate"

[models."claude-haiku-4-5"]
context_tokens = 8000
"#;
    let fleet = Fleet::start(
        PROGRAM,
        Setup {
            config,
            ..Setup::default()
        },
    )
    .await;
    // The simulator tells calls apart by their prompt.
    let fox = "The quick brown fox. ".repeat(3_000);
    let text = |id: &str| format!("[[sim:once=400]] {id}. {fox}");
    let bodies = ["kept", "lost"].map(|id| (id, fairlane_fleet_tests::job(id, &text(id))));
    for (id, body) in &bodies {
        fleet.publish("acme", body.clone()).await;
        let failed = fleet.phase("acme", id, Phase::Failed).await;
        let original = failed.original_claim.unwrap();
        if *id == "lost" {
            let payloads = fleet.client().payloads();
            payloads.delete(&original).await.unwrap();
        }
    }
    fleet.settled().await;
    let client = fleet.client();
    let (kept, lost) = (client.letter(1).await, client.letter(2).await);
    let (kept, lost) = (kept.unwrap().unwrap(), lost.unwrap().unwrap());
    assert_eq!((kept.body, kept.cut), (bodies[0].1.clone().into(), None));
    assert!(lost.body.len() < bodies[1].1.len() && lost.cut.is_some());
    let output = fleet
        .run(&["dlq", "redrive", "--tenant", "acme", "--yes"])
        .await;
    assert!(output.status.success(), "{output:?}");
    for (id, _) in &bodies {
        let done = fleet.phase("acme", id, Phase::Done).await;
        assert_eq!(done.truncated.len(), 1, "{id}: {:?}", done.truncated);
        assert_eq!(done.truncated[0].from_chars, text(id).len() as u64);
    }
    fleet.settled().await;
}
