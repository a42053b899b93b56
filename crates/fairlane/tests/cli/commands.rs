//! The other commands: one job, set-up, and how the program behaves in a pipe.

use std::process::Stdio;

use crate::world::{World, finish, record, save};
use fairlane_nats::embedded::ServerOptions;
use fairlane_support::{LIMIT, TestNats, within};
use fairlane_wire::{DeadReason, Failure, Phase};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};

#[tokio::test]
async fn the_answer_of_a_job_is_printed_alone() {
    let server = TestNats::start().await;
    let world = World::on(&server);
    let mut done = record("acme", "j1", Phase::Done);
    let message = json!({"content": [{"type": "text", "text": "[\"sky\"]"}], "role": "assistant"});
    done.result = Some(message.clone());
    save(&server.nats, &done).await;
    for args in [
        &["result", "j1"][..],
        &["result", "acme/j1"],
        &["result", "j1", "--tenant", "acme"],
    ] {
        let ran = world.run(args).await;
        assert_eq!(
            (ran.code, ran.out.as_str()),
            (Some(0), "[\"sky\"]\n"),
            "{ran:#?}"
        );
    }
    let ran = world.run(&["result", "j1", "-o", "json"]).await;
    assert_eq!(ran.json(), message);
}

#[tokio::test]
async fn a_large_answer_comes_from_the_store() {
    let server = TestNats::start().await;
    let world = World::on(&server);
    let message = json!({"content": [{"type": "text", "text": "y".repeat(300_000)}]});
    let body = message.to_string().into();
    server
        .nats
        .payloads()
        .put("acme.r1", &body, 1_000_000)
        .await
        .unwrap();
    let mut done = record("acme", "j1", Phase::Done);
    done.result_claim = Some("acme.r1".to_owned());
    save(&server.nats, &done).await;
    let ran = world.run(&["result", "j1"]).await;
    assert_eq!(ran.code, Some(0));
    assert_eq!(ran.out.len(), 300_001);
}

#[tokio::test]
async fn a_job_without_an_answer_says_why_and_fails() {
    let server = TestNats::start().await;
    let world = World::on(&server);
    save(&server.nats, &record("acme", "j1", Phase::Generating)).await;
    let mut failed = record("acme", "j2", Phase::Failed);
    failed.failure = Some(Failure::new(DeadReason::Refusal, "the model declined"));
    save(&server.nats, &failed).await;
    let ran = world.run(&["result", "j1"]).await;
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.talk
            .contains("acme/j1 has no answer yet: it is generating"),
        "{ran:#?}"
    );
    let ran = world.run(&["result", "j2"]).await;
    assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""));
    assert!(
        ran.talk.contains("it failed: refusal: the model declined"),
        "{ran:#?}"
    );
}

#[tokio::test]
async fn a_job_is_looked_up_in_all_tenants_and_never_guessed() {
    let server = TestNats::start().await;
    let world = World::on(&server);
    for tenant in ["acme", "best"] {
        save(&server.nats, &record(tenant, "twice", Phase::Queued)).await;
    }
    save(&server.nats, &record("best", "once", Phase::Queued)).await;
    let ran = world.run(&["status", "once"]).await;
    ran.has("job       best/once");
    ran.has("phase     queued");
    let ran = world.run(&["status", "twice"]).await;
    assert_eq!(ran.code, Some(2));
    assert!(
        ran.talk
            .contains("several tenants have a job twice: acme, best"),
        "{ran:#?}"
    );
    let ran = world
        .run(&["status", "twice", "--tenant", "acme", "-o", "json"])
        .await;
    assert_eq!(ran.json()["tenant"], "acme");
    for args in [
        &["status", "never"][..],
        &["status", "acme/once"],
        &["result", "never"],
    ] {
        let ran = world.run(args).await;
        assert_eq!((ran.code, ran.out.as_str()), (Some(3), ""), "{args:?}");
    }
}

#[tokio::test]
async fn a_job_with_a_borrowed_outcome_shows_that_of_its_owner() {
    let server = TestNats::start().await;
    let world = World::on(&server);
    let mut owner = record("acme", "owner", Phase::Done);
    owner.result = Some(json!({"content": [{"type": "text", "text": "hello"}]}));
    save(&server.nats, &owner).await;
    let mut alias = record("acme", "alias", Phase::Queued);
    alias.same_as = Some("owner".to_owned());
    save(&server.nats, &alias).await;
    world.run(&["status", "alias"]).await.has("phase     done");
    assert_eq!(world.run(&["result", "alias"]).await.out, "hello\n");
}

#[tokio::test]
async fn init_creates_everything_once_and_fails_on_drift() {
    let server = TestNats::bare(ServerOptions::default()).await;
    let world = World::on(&server);
    let ran = world.run(&["init"]).await;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    ran.has("created    stream FL_JOBS");
    let ran = world
        .run(&["init", "--set", "results.dead_letters_keep_ms=60000"])
        .await;
    assert_eq!(ran.code, Some(1), "{ran:#?}");
    assert!(
        ran.out
            .contains("different  stream FL_DLQ: max_age is 2592000000000000, wanted 60000000000"),
        "{ran:#?}"
    );
    let ran = world.run(&["init", "-o", "json"]).await;
    assert_eq!(ran.code, Some(0));
    assert_eq!(ran.json()["differences"], json!([]));
}

#[tokio::test]
async fn secrets_are_masked_wherever_they_come_from() {
    let world = World::without_nats();
    let ran = world
        .run(&[
            "config",
            "show",
            "--set",
            "claude.api_key=sk-secret",
            "-o",
            "json",
        ])
        .await;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    assert_eq!(ran.json()["claude.api_key"]["value"], "***");
    assert!(!ran.out.contains("sk-secret") && !ran.talk.contains("sk-secret"));
}

#[tokio::test]
async fn wrong_configuration_is_code_2_and_no_server_is_code_5() {
    let world = World::without_nats();
    let ran = world.run(&["init", "--set", "worker.slot=3"]).await;
    assert_eq!(ran.code, Some(2));
    assert!(ran.talk.contains("worker.slots"), "{ran:#?}");
    let ran = world.run(&["init", "--config", "missing.toml"]).await;
    assert_eq!(ran.code, Some(2), "{ran:#?}");
    let ran = world.run(&["submit", "missing.jsonl"]).await;
    assert_eq!(ran.code, Some(2), "{ran:#?}");
    // Nothing listens on the discard port.
    let ran = world
        .run(&["init", "--nats-url", "nats://127.0.0.1:9"])
        .await;
    assert_eq!(ran.code, Some(5));
    assert!(
        ran.talk.contains("nats://127.0.0.1:9 (from --nats-url)"),
        "{ran:#?}"
    );
}

#[tokio::test]
async fn a_reader_that_goes_away_is_no_error() {
    let world = World::without_nats();
    let mut child = world.start(&["config", "show"]);
    drop(child.stdout.take());
    let ran = finish(child).await;
    assert_eq!((ran.code, ran.talk.as_str()), (Some(0), ""));
}

#[tokio::test]
async fn the_simulator_prints_its_address_and_ends_with_its_parent() {
    let world = World::without_nats();
    let mut child = world
        .command(&["sim", "--zero-latency", "--die-with-parent"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = within(LIMIT, "the address", lines.next_line())
        .await
        .unwrap();
    let address = line.unwrap().replace("http://", "");
    tokio::net::TcpStream::connect(&address).await.unwrap();
    drop(child.stdin.take());
    let status = within(LIMIT, "the end", child.wait()).await.unwrap();
    assert!(!status.success());
    assert!(tokio::net::TcpStream::connect(&address).await.is_err());
}

#[tokio::test]
async fn dev_and_demo_do_not_let_the_simulator_be_replaced_by_accident() {
    let world = World::without_nats();
    for command in ["dev", "demo"] {
        let ran = world
            .run(&[
                command,
                "--set",
                "claude.base_url=https://api.anthropic.com",
            ])
            .await;
        assert_eq!(ran.code, Some(2), "{ran:#?}");
        assert!(ran.talk.contains("claude.base_url"), "{ran:#?}");
    }
    let ran = world.run(&["demo", "--live"]).await;
    assert_eq!(ran.code, Some(2));
    assert!(
        ran.talk.contains("--live needs ANTHROPIC_API_KEY"),
        "{ran:#?}"
    );
    assert!(!world.path("dev.json").exists());
}
