//! `fairlane submit` against a real server, with the producer played by the test.

use std::sync::Mutex;

use crate::world::{World, finish, header, record, save, take_submissions};
use fairlane_nats::embedded::ServerOptions;
use fairlane_nats::objects::ObjectOptions;
use fairlane_support::{LIMIT, TestNats, eventually};
use fairlane_wire::{DeadReason, Failure, Phase, UsageRecord};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const FILE: &str = concat!(
    "{\"id\":\"j1\",\"tenant\":\"acme\"}\r\n",
    "\n",
    "{\"tenant\":\"acme\",\"n\": 2}\n",
    "no JSON at all\n",
    "{\"id\":\"j4\",\"tenant\":\"a.b\"}\n",
    "{\"id\":\"j5\",\"tenant\":\"best\",\"request\":{\"mod",
);

#[tokio::test]
async fn lines_travel_byte_for_byte_and_what_has_no_tenant_stays() {
    let server = TestNats::start().await;
    let world = World::on(&server);
    world.write("jobs.jsonl", FILE);
    let ran = world
        .run(&["submit", "jobs.jsonl", "--failures", "failures.jsonl"])
        .await;
    assert_eq!(ran.code, Some(1), "{ran:#?}");
    for line in ["lines 6", "skipped 1", "refused 2", "published 3"] {
        ran.has(line);
    }
    ran.has(
        "line 4  -  -  undecodable: not JSON: expected ident at byte 1; publish one JSON object",
    );
    assert!(
        ran.out
            .contains("line 5  j4  -  invalid_tenant: tenant \"a.b\" contains '.'"),
        "{ran:#?}"
    );
    let failures = std::fs::read_to_string(world.path("failures.jsonl")).unwrap();
    assert_eq!(failures.lines().count(), 2);

    let seen = Mutex::new(Vec::new());
    take_submissions(&server.nats, 3, |message| {
        let text = String::from_utf8(message.payload.to_vec()).unwrap();
        let of = |name| header(&message, name).map(str::to_owned);
        let row = (
            message.subject.to_string(),
            text,
            of("Fl-Line"),
            of("Fl-Job"),
        );
        seen.lock().unwrap().push(row);
        async {}
    })
    .await;
    let seen = seen.into_inner().unwrap();
    let parts = |at: usize| {
        (
            seen[at].0.as_str(),
            seen[at].1.as_str(),
            seen[at].2.as_deref(),
        )
    };
    assert_eq!(
        parts(0),
        (
            "fl.submit.acme",
            "{\"id\":\"j1\",\"tenant\":\"acme\"}",
            Some("1")
        )
    );
    assert_eq!(
        parts(1),
        (
            "fl.submit.acme",
            "{\"tenant\":\"acme\",\"n\": 2}",
            Some("3")
        )
    );
    let cut = "{\"id\":\"j5\",\"tenant\":\"best\",\"request\":{\"mod";
    assert_eq!(parts(2), ("fl.submit.best", cut, Some("6")));
    // Only the line without an id of its own was given one.
    assert_eq!((&seen[0].3, &seen[2].3), (&None, &None));
    assert!(
        seen[1].3.as_ref().is_some_and(|id| id.starts_with("job-")),
        "{seen:?}"
    );
}

#[tokio::test]
async fn a_line_too_large_for_a_message_goes_to_the_store() {
    let options = ServerOptions {
        max_payload: Some(256 * 1024),
        ..ServerOptions::default()
    };
    let server = TestNats::with(options, &ObjectOptions::default()).await;
    let world = World::on(&server);
    let line = format!("{{\"id\":\"big\",\"text\":\"{}\"}}", "x".repeat(400_000));
    let ran = world
        .run_with_input(&["submit", "-", "--tenant", "acme"], &line)
        .await;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    let claim = Mutex::new(String::new());
    take_submissions(&server.nats, 1, |message| {
        assert!(message.payload.is_empty());
        assert_eq!(header(&message, "Fl-Job"), Some("big"));
        *claim.lock().unwrap() = header(&message, "Fl-Claim").unwrap().to_owned();
        async {}
    })
    .await;
    let claim = claim.into_inner().unwrap();
    assert!(claim.starts_with("acme."), "{claim}");
    let body = server.nats.payloads().get(&claim, 1_000_000).await.unwrap();
    assert_eq!(body, line.as_bytes());
}

/// Plays a producer whose jobs end at once: done, failed, or the same as another, by the id of the job.
async fn end_at_once(server: &TestNats, count: usize) {
    take_submissions(&server.nats, count, async |message| {
        let seen = fairlane_wire::peek(&message.payload);
        let (id, tenant) = (seen.id.unwrap(), seen.tenant.unwrap());
        let phase = match &id[..2] {
            "ok" => Phase::Done,
            "no" => Phase::Failed,
            "be" => Phase::Cancelled,
            _ => Phase::Accepted,
        };
        let mut ended = record(&tenant, &id, phase);
        match phase {
            Phase::Done => {
                ended.usage = Some(UsageRecord {
                    input_tokens: 10,
                    output_tokens: 5,
                    ..UsageRecord::default()
                });
                ended.cost_usd = Some(0.25);
            }
            Phase::Failed => {
                let failure = Failure::new(DeadReason::InvalidJob, "kind is missing");
                ended.failure = Some(failure.fix("say what sort of work it is"));
            }
            Phase::Accepted => ended.same_as = Some("ok-1".to_owned()),
            _ => {}
        }
        save(&server.nats, &ended).await;
    })
    .await;
}

const MIXED: &str = concat!(
    "{\"id\":\"ok-1\",\"tenant\":\"acme\"}\n",
    "{\"id\":\"no-2\",\"tenant\":\"acme\"}\n",
    "{\"id\":\"ok-3\",\"tenant\":\"best\"}\n",
    "{\"id\":\"same-4\",\"tenant\":\"acme\"}\n",
    "{\"id\":\"ok-1\",\"tenant\":\"acme\"}\n",
    "{\"id\":\"be-6\",\"tenant\":\"best\"}\n",
);

#[tokio::test]
async fn waiting_ends_with_the_outcome_of_every_line() {
    let server = TestNats::start().await;
    let world = World::on(&server);
    world.write("jobs.jsonl", MIXED);
    let child = world.start(&["submit", "jobs.jsonl", "--wait"]);
    end_at_once(&server, 6).await;
    let ran = finish(child).await;
    assert_eq!(ran.code, Some(1), "{ran:#?}");
    for line in [
        "lines 6",
        "published 6",
        "same-job 2",
        "done 2",
        "failed 1",
        "failed invalid_job 1",
        "cancelled 1",
        "waiting 0",
        "tokens 20 in, 10 out",
        "cost $0.500000",
        "line 2  no-2  acme  invalid_job: kind is missing; say what sort of work it is",
        "line 4  same-4  acme  same job as line 1",
        "line 5  ok-1  acme  same job as line 1",
        "line 6  be-6  best  cancelled by its owner",
    ] {
        ran.has(line);
    }
}

#[tokio::test]
async fn the_same_file_again_costs_nothing_and_says_so() {
    let server = TestNats::start().await;
    let world = World::on(&server);
    world.write("jobs.jsonl", "{\"id\":\"ok-1\",\"tenant\":\"acme\"}\n");
    let args = ["submit", "jobs.jsonl", "--wait", "-o", "json"];
    let child = world.start(&args);
    end_at_once(&server, 1).await;
    let first = finish(child).await;
    assert_eq!(first.code, Some(0), "{first:#?}");
    assert_eq!(first.json()["spent"]["cost_usd"], 0.25);

    let child = world.start(&args);
    // The producer finds it answered and leaves its record alone.
    take_submissions(&server.nats, 1, async |_| {}).await;
    let second = finish(child).await;
    let document = second.json();
    assert_eq!(
        (&document["done"], &document["done_before"]),
        (&1.into(), &1.into())
    );
    assert_eq!(document["spent"]["cost_usd"], 0.0);
    assert_eq!(second.code, Some(0));
}

#[tokio::test]
async fn an_outcome_from_before_is_not_taken_for_that_of_a_job_that_runs_again() {
    let server = TestNats::start().await;
    let world = World::on(&server);
    let mut refused = record("acme", "j1", Phase::Failed);
    refused.failure = Some(Failure::new(DeadReason::InvalidJob, "kind is missing"));
    save(&server.nats, &refused).await;
    world.write("jobs.jsonl", "{\"id\":\"j1\",\"tenant\":\"acme\"}\n");
    let child = world.start(&["submit", "jobs.jsonl", "--wait"]);
    take_submissions(&server.nats, 1, async |_| {
        save(&server.nats, &record("acme", "j1", Phase::Queued)).await;
    })
    .await;
    save(&server.nats, &record("acme", "j1", Phase::Done)).await;
    let ran = finish(child).await;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    ran.has("done 1");
    ran.has("failed 0");
}

#[tokio::test]
async fn a_job_without_an_id_is_followed_by_the_one_it_was_given() {
    let server = TestNats::start().await;
    let world = World::on(&server);
    world.write("jobs.jsonl", "{\"kind\":\"tagging\"}\n");
    let child = world.start(&["submit", "jobs.jsonl", "--tenant", "acme", "--wait"]);
    take_submissions(&server.nats, 1, async |message| {
        let id = header(&message, "Fl-Job").unwrap();
        save(&server.nats, &record("acme", id, Phase::Done)).await;
    })
    .await;
    let ran = finish(child).await;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    ran.has("done 1");
}

#[tokio::test]
async fn waiting_has_an_end() {
    let server = TestNats::start().await;
    let world = World::on(&server);
    world.write("jobs.jsonl", "{\"id\":\"j1\",\"tenant\":\"acme\"}\n");
    let ran = world
        .run(&["submit", "jobs.jsonl", "--wait", "--timeout", "1"])
        .await;
    assert_eq!(ran.code, Some(1), "{ran:#?}");
    ran.has("waiting 1");
    ran.has("line 1  j1  acme  not ended: not accepted yet");
    assert!(
        ran.talk.contains("stopped waiting; the jobs go on"),
        "{ran:#?}"
    );
}

#[tokio::test]
async fn ctrl_c_ends_the_wait_with_a_report() {
    let server = TestNats::start().await;
    let world = World::on(&server);
    world.write("jobs.jsonl", "{\"id\":\"j1\",\"tenant\":\"acme\"}\n");
    let child = world.start(&["submit", "jobs.jsonl", "--wait"]);
    take_submissions(&server.nats, 1, async |_| {}).await;
    let pid = Pid::from_raw(child.id().unwrap().try_into().unwrap());
    kill(pid, Signal::SIGINT).unwrap();
    let ran = finish(child).await;
    assert_eq!(ran.code, Some(130), "{ran:#?}");
    ran.has("waiting 1");
}

#[tokio::test]
async fn without_a_stream_nothing_is_lost_silently() {
    let server = TestNats::bare(ServerOptions::default()).await;
    let world = World::on(&server);
    world.write("jobs.jsonl", "{\"id\":\"j1\",\"tenant\":\"acme\"}\n");
    let ran = world.run(&["submit", "jobs.jsonl"]).await;
    assert_eq!(ran.code, Some(5), "{ran:#?}");
    ran.has("unsent 1");
    ran.has("published 0");
    assert!(ran.talk.contains("fairlane init"), "{ran:#?}");
}

#[tokio::test]
async fn a_running_dev_is_found_without_flags() {
    let server = TestNats::start().await;
    let world = World::without_nats();
    let note = serde_json::json!({
        "pid": std::process::id(),
        "nats_url": server.url(),
        "namespace": "fl",
        "claude_url": "http://127.0.0.1:1",
        "is_simulated": true,
        "nats_pid": null,
        "logs": "/tmp",
        "members": [],
    });
    world.write("dev.json", note.to_string());
    let ran = world
        .run_with_input(&["submit", "-", "--tenant", "acme"], "{}\n")
        .await;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    assert!(
        ran.talk.contains("from the running `fairlane dev`"),
        "{ran:#?}"
    );
    eventually(LIMIT, "the submission", async || {
        let name = server.nats.names.submit_stream();
        let stream = server.nats.jetstream.get_stream(name).await.unwrap();
        match stream.cached_info().state.messages {
            1 => Ok(()),
            other => Err(format!("{other} messages")),
        }
    })
    .await;
}

#[tokio::test]
async fn the_jobs_are_not_overwritten_by_their_failures() {
    let world = World::without_nats();
    world.write("jobs.jsonl", FILE);
    std::os::unix::fs::symlink(world.path("jobs.jsonl"), world.path("link.jsonl")).unwrap();
    for failures in ["jobs.jsonl", "./jobs.jsonl", "link.jsonl"] {
        let ran = world
            .run(&["submit", "jobs.jsonl", "--failures", failures])
            .await;
        assert_eq!(ran.code, Some(2), "{ran:#?}");
        assert!(
            ran.talk.contains("is the file of the jobs itself"),
            "{ran:#?}"
        );
    }
    let mut command = world.command(&["submit", "-", "--failures", "jobs.jsonl"]);
    command.stdin(std::fs::File::open(world.path("jobs.jsonl")).unwrap());
    let ran = finish(command.spawn().unwrap()).await;
    assert_eq!(ran.code, Some(2), "{ran:#?}");
    let jobs = std::fs::read_to_string(world.path("jobs.jsonl")).unwrap();
    assert_eq!(jobs, FILE);
}

#[tokio::test]
async fn a_directory_is_no_file_of_jobs() {
    let world = World::without_nats();
    let ran = world.run(&["submit", "."]).await;
    assert_eq!(ran.code, Some(2), "{ran:#?}");
    assert!(ran.talk.contains("cannot read .: "), "{ran:#?}");
}
