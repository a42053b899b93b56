//! `fairlane dlq` where it asks, and what it prints for programs.

use std::time::Duration;

use crate::world::{World, on_a_terminal, take_submissions};
use fairlane_core::JobId;
use fairlane_nats::{HeaderMap, Nats, Original};
use fairlane_support::TestNats;
use fairlane_wire::{DeadReason, Failure, Letter};
use serde_json::{Value, json};

const NOW_MS: u64 = 1_700_000_000_000;

/// A dead letter of a submission; returns its body.
async fn bury(nats: &Nats, tenant: Option<&str>, job: &str, seq: u64) -> String {
    let body = json!({
        "id": job, "origin": "batch_job", "kind": "tagging", "model": "claude-haiku-4-5",
        "prompt": "five tags, please",
    })
    .to_string();
    let failure = Failure::new(DeadReason::InvalidTenant, "no such name");
    let id = JobId::parse(job).unwrap();
    let letter = Letter::new(tenant.map(str::to_owned), id, failure, NOW_MS);
    let letter = letter.read_from("fl.submit.x", seq);
    let original = Original {
        headers: &HeaderMap::new(),
        raw_headers: None,
        body: body.clone().into(),
    };
    nats.bury(&letter, original).await.unwrap();
    body
}

async fn letters(nats: &Nats) -> u64 {
    nats.jobs().count("FL_DLQ").await.unwrap()
}

#[tokio::test]
async fn nothing_is_deleted_unless_somebody_says_yes() {
    let server = TestNats::start().await;
    let (world, nats) = (World::on(&server), &server.nats);
    for seq in 1..=3 {
        bury(nats, Some("acme"), &format!("j{seq}"), seq).await;
    }
    let ran = world.run(&["dlq", "purge", "--export", "gone.jsonl"]).await;
    assert_eq!(ran.code, Some(2), "{ran:#?}");
    assert!(ran.talk.contains("say which letters"), "{ran:#?}");

    let purge = ["dlq", "purge", "acme/j1", "--export", "gone.jsonl"];
    let ran = world.run(&purge).await;
    assert_eq!(ran.code, Some(2), "{ran:#?}");
    assert!(
        ran.talk.contains("Nobody can answer here: add --yes"),
        "{ran:#?}"
    );

    let line = purge.join(" ");
    for typed in ["n\n", "\n", "maybe\n"] {
        let ran = on_a_terminal(&world, &line, typed).await;
        assert_ne!(ran.code, Some(0), "{typed:?} {ran:#?}");
        assert!(
            ran.out.contains("1 letters will be written to gone.jsonl"),
            "{ran:#?}"
        );
        assert!(ran.out.contains("nothing was deleted"), "{ran:#?}");
    }
    assert_eq!(letters(nats).await, 3);
    assert!(!world.path("gone.jsonl").exists());

    let ran = on_a_terminal(&world, &line, "y\n").await;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    assert_eq!(letters(nats).await, 2);
    let kept = std::fs::read_to_string(world.path("gone.jsonl")).unwrap();
    assert_eq!(kept.lines().count(), 1);

    // A file that is there is never overwritten, and then nothing goes.
    let again = ["dlq", "purge", "acme/j2", "--export", "gone.jsonl", "--yes"];
    let ran = world.run(&again).await;
    assert_ne!(ran.code, Some(0), "{ran:#?}");
    assert_eq!(letters(nats).await, 2);

    let ran = world
        .run(&["dlq", "import", "gone.jsonl", "-o", "json"])
        .await;
    assert_eq!(ran.json(), json!({"added": 1, "known": 0}));
    assert_eq!(letters(nats).await, 3);
}

#[tokio::test]
async fn a_letter_without_a_usable_tenant_is_sent_for_another_one_and_told_in_one_document() {
    let server = TestNats::start().await;
    let (world, nats) = (World::on(&server), &server.nats);
    let body = bury(nats, None, "j1", 1).await;
    let ran = world.run(&["dlq", "redrive", "#1", "--dry-run"]).await;
    assert!(
        ran.out
            .contains("say for whom to send it with --for-tenant"),
        "{ran:#?}"
    );

    let repair = ["dlq", "repair", "#1", "-o", "json", "--for-tenant"];
    let wrong = [&repair[..], &["a b", "--dry-run"]].concat();
    let ran = world.run(&wrong).await;
    assert!(
        ran.json()["letters"][0]["stays"]
            .as_str()
            .unwrap()
            .contains("a b"),
        "{ran:#?}"
    );
    let look = [&repair[..], &["acme", "--dry-run"]].concat();
    let ran = world.run(&look).await;
    assert_eq!(ran.json()["letters"][0]["changes"], json!([]), "{ran:#?}");
    assert_eq!(nats.jobs().count("FL_SUBMIT").await.unwrap(), 0);

    let send = [&repair[..], &["acme", "--yes"]].concat();
    let ran = world.run(&send).await;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    let told: Value = ran.json();
    assert_eq!(told["run"]["tally"]["sent"], 1, "{told}");
    assert_eq!(told["letters"].as_array().unwrap().len(), 1, "{told}");
    let (sent, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let take = take_submissions(nats, 1, |message| {
        sent.send((message.subject.to_string(), message.payload.clone()))
            .unwrap();
        async {}
    });
    tokio::time::timeout(Duration::from_secs(30), take)
        .await
        .unwrap();
    assert_eq!(
        seen.recv().await,
        Some(("fl.submit.acme".to_owned(), body.into()))
    );
}
