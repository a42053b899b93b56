//! What cannot be taken back: it is shown, asked for, refused where nobody can answer, and done with --yes.

use fairlane_support::{LIMIT, TestNats, eventually};
use serde_json::{Value, json};

use crate::world::{World, on_a_terminal};

/// What stands there that the commands would take away.
async fn state(world: &World) -> [Value; 4] {
    let tenant = world.run(&["tenant", "show", "acme", "-o", "json"]).await;
    let keys = world.run(&["tenant", "key", "ls", "acme", "-o", "json"]);
    let keys = keys.await;
    let contexts = world.run(&["context", "ls", "-o", "json"]).await;
    let mut phases = Vec::new();
    for job in ["acme/a", "acme/b"] {
        let ran = world.run(&["status", job, "-o", "json"]).await;
        phases.push(ran.json()["phase"].clone());
    }
    [tenant.json(), keys.json(), contexts.json(), json!(phases)]
}

async fn queued(world: &World, job: &str) {
    eventually(LIMIT, "the job in line", async || {
        let name = format!("acme/{job}");
        let ran = world.run(&["status", &name, "-o", "json"]).await;
        if ran.code == Some(0) && ran.json()["phase"] == "queued" {
            Ok(())
        } else {
            Err(format!("{ran:#?}"))
        }
    })
    .await;
}

#[tokio::test]
async fn it_is_shown_asked_refused_and_done() {
    let server = TestNats::start().await;
    let world = World::on(&server);
    let _producer = world.start(&["producer"]);
    let lines = ["a", "b"].map(|id| {
        json!({"id": id, "tenant": "acme", "origin": "batch_job", "kind": "tagging", "model": "claude-haiku-4-5",
            "prompt": "five tags"})
        .to_string()
    });
    world.write("jobs.jsonl", lines.join("\n"));
    let ran = world.run(&["submit", "jobs.jsonl"]).await;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    queued(&world, "a").await;
    queued(&world, "b").await;
    world.run(&["tenant", "set", "acme", "--weight", "2"]).await;
    world.run(&["tenant", "key", "create", "acme"]).await;
    let add = [
        "context",
        "add",
        "prod",
        "--nats-url",
        "nats://nowhere:4222",
    ];
    assert_eq!(world.run(&add).await.code, Some(0));
    let before = state(&world).await;
    let key = before[1][0]["id"].as_str().unwrap();

    let verbs: [(&[&str], &str); 4] = [
        (
            &["cancel", "acme/a", "acme/b"],
            "2 jobs will be called off.",
        ),
        (
            &["tenant", "key", "revoke", "acme", key],
            "will be refused for good.",
        ),
        (
            &["tenant", "unset", "acme"],
            "All settings of acme but its keys will be taken away.",
        ),
        (
            &["context", "rm", "prod"],
            "Context prod (nats://nowhere:4222) will be removed.",
        ),
    ];
    for (verb, what) in verbs {
        let ran = world.run(verb).await;
        assert_eq!(ran.code, Some(2), "{ran:#?}");
        let refusal = "Nobody can answer here: add --yes, or --dry-run to look first";
        assert!(
            ran.talk.contains(what) && ran.talk.contains(refusal),
            "{ran:#?}"
        );

        let ran = world.run(&[verb, &["--dry-run"]].concat()).await;
        assert_eq!(ran.code, Some(0), "{ran:#?}");
        assert!(ran.talk.contains("nothing was c"), "{ran:#?}");
        assert!(!ran.out.is_empty(), "{ran:#?}");

        let ran = on_a_terminal(&world, &verb.join(" "), "no\n").await;
        assert_eq!(ran.code, Some(130), "{ran:#?}");
        assert!(ran.out.contains(what), "{ran:#?}");
        assert_eq!(
            state(&world).await,
            before,
            "{verb:?} was done nevertheless"
        );
    }
    for (verb, _) in verbs {
        let ran = world.run(&[verb, &["--yes"]].concat()).await;
        assert_eq!(ran.code, Some(0), "{ran:#?}");
    }
    let after = state(&world).await;
    assert_eq!(after[0], json!({"tenant": "acme"}));
    assert_eq!(
        after[1..],
        [json!([]), json!([]), json!(["cancelled", "cancelled"])]
    );

    // What is not there is told before anybody is asked.
    for (verb, _) in &verbs[1..] {
        let ran = world.run(verb).await;
        assert_eq!(ran.code, Some(3), "{ran:#?}");
    }
}
