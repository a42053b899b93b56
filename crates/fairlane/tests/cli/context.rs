//! Contexts, completions, and what all commands have in common.

use std::collections::BTreeSet;

use fairlane_nats::auth::User;
use fairlane_nats::embedded::free_port;
use fairlane_support::TestNats;

use crate::world::World;

#[tokio::test]
async fn a_fleet_is_named_used_and_forgotten() {
    let server = TestNats::start().await;
    let world = World::without_nats();
    let add = ["context", "add", "here", "--nats-url", server.url()];
    let ran = world.run(&add).await;
    ran.has("context here is used from now on");
    let ran = world.run(&["tenant", "set", "acme", "--weight", "2"]).await;
    assert_eq!(ran.code, Some(0), "{ran:#?}");

    let nowhere = format!("nats://127.0.0.1:{}", free_port().unwrap());
    let ran = world
        .run(&[
            "context",
            "add",
            "gone",
            "--nats-url",
            &nowhere,
            "--namespace",
            "other",
        ])
        .await;
    assert!(ran.out.contains("--context gone"), "{ran:#?}");
    let ran = world.run(&["tenant", "ls", "--context", "gone"]).await;
    assert_eq!(ran.code, Some(5), "{ran:#?}");
    assert!(ran.talk.contains("from context gone"), "{ran:#?}");
    let ran = world.run(&["context", "ls", "-o", "jsonl"]).await;
    let lines: Vec<serde_json::Value> = ran
        .out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(
        (lines[0]["name"].as_str(), lines[0]["namespace"].as_str()),
        (Some("gone"), Some("other"))
    );
    assert_eq!(lines[1]["current"], true);

    world.run(&["context", "use", "gone"]).await;
    assert_eq!(world.run(&["tenant", "ls"]).await.code, Some(5));
    let ran = world.run(&["context", "rm", "gone", "--yes"]).await;
    ran.has("context gone is gone");
    let ran = world.run(&["context", "use", "gone"]).await;
    assert_eq!(ran.code, Some(3), "{ran:#?}");
    assert!(ran.talk.contains("there are here"), "{ran:#?}");
    let ran = world.run(&["context", "add", "x"]).await;
    assert_eq!(ran.code, Some(2), "{ran:#?}");
    assert!(ran.talk.contains("--nats-url nats://HOST:4222"), "{ran:#?}");
}

#[tokio::test]
async fn a_context_names_the_key_that_lets_its_user_in() {
    let server = TestNats::secured(&[], "").await;
    let world = World::without_nats();
    let key = server.keys.as_ref().unwrap().seed(&User::Operator);
    let (url, key) = (server.url(), key.to_str().unwrap());
    let add = ["context", "add", "here", "--nats-url", url];
    world.run(&add).await;
    let ran = world.run(&["tenant", "ls"]).await;
    assert_ne!(ran.code, Some(0), "nobody comes in without a key: {ran:#?}");
    let ran = world.run(&[&add[..], &["--nkey", key]].concat()).await;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    let ran = world.run(&["tenant", "ls"]).await;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    let ran = world.run(&["context", "ls"]).await;
    assert!(ran.out.contains("operator.nk"), "{ran:#?}");
    let ran = world
        .run(&[&add[..], &["--ca", "/nowhere/ca.crt"]].concat())
        .await;
    assert_eq!(ran.code, Some(2), "{ran:#?}");
    assert!(
        ran.talk
            .contains("cannot find the certificate file /nowhere/ca.crt"),
        "{ran:#?}"
    );
}

#[tokio::test]
async fn a_change_that_is_only_tried_changes_nothing_and_lists_go_a_line_each() {
    let server = TestNats::start().await;
    let world = World::on(&server);
    let ran = world
        .run(&[
            "tenant",
            "set",
            "acme",
            "--weight",
            "2",
            "--dry-run",
            "-o",
            "json",
        ])
        .await;
    assert_eq!(ran.json()["weight"], 2.0);
    assert!(ran.talk.contains("nothing was changed"), "{ran:#?}");
    world
        .run(&["tenant", "ls"])
        .await
        .has("no tenant has settings of its own; the configuration decides");
    for tenant in ["a", "b"] {
        world.run(&["tenant", "set", tenant, "--weight", "3"]).await;
    }
    let ran = world
        .run(&["tenant", "unset", "a", "--dry-run", "-o", "jsonl"])
        .await;
    assert_eq!(ran.out, "{\"tenant\":\"a\"}\n");
    let ran = world.run(&["tenant", "ls", "-o", "jsonl"]).await;
    assert_eq!(ran.out.lines().count(), 2, "{ran:#?}");
}

/// All commands below `path` that have none below them, by asking the program.
async fn leaves(world: &World, path: Vec<String>, found: &mut Vec<(Vec<String>, String)>) {
    let mut args: Vec<&str> = path.iter().map(String::as_str).collect();
    args.push("--help");
    let ran = world.run(&args).await;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    let below = ran
        .out
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1);
    // An entry stands two columns in; its text may go on further in.
    let names = below.take_while(|line| !line.is_empty());
    let names = names.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names: Vec<String> = names
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect();
    if names.is_empty() {
        found.push((path, ran.out));
        return;
    }
    for name in names {
        let path = [path.clone(), vec![name]].concat();
        Box::pin(leaves(world, path, found)).await;
    }
}

/// What each command needs beside its name, to get as far as NATS.
const NEEDS: [(&str, &[&str]); 34] = [
    ("init", &[]),
    ("submit", &["jobs.jsonl"]),
    ("status", &["acme/a"]),
    ("watch", &["acme/a"]),
    ("ledger", &[]),
    ("top", &["--once"]),
    ("tune", &[]),
    ("cancel", &["acme/a"]),
    ("answer", &["acme/a", "yes"]),
    ("regenerate", &["acme/a"]),
    ("why", &["acme/a"]),
    ("result", &["acme/a"]),
    ("tenant ls", &[]),
    ("tenant show", &["acme"]),
    ("tenant set", &["acme", "--weight", "2"]),
    ("tenant demote", &["acme", "--for", "1m"]),
    ("tenant restore", &["acme"]),
    ("tenant unset", &["acme", "--yes"]),
    ("tenant key create", &["acme"]),
    ("tenant key ls", &["acme"]),
    ("tenant key revoke", &["acme", "1a2b3c4d5e6f", "--yes"]),
    ("dlq ls", &[]),
    ("dlq show", &["acme/a"]),
    ("dlq repair", &["acme/a", "--trim"]),
    ("dlq redrive", &["acme/a", "--yes"]),
    ("dlq runs", &[]),
    ("dlq pause", &["r-0198c"]),
    ("dlq resume", &["r-0198c"]),
    ("dlq cancel", &["r-0198c"]),
    ("dlq purge", &["acme/a", "--yes", "--export", "out.jsonl"]),
    ("dlq export", &["--all"]),
    ("dlq import", &["jobs.jsonl"]),
    ("doctor", &[]),
    ("bench", &["--yes"]),
];

/// Commands that need no NATS, wait for it as long as it takes, or bring their own.
const OTHERS: [&str; 13] = [
    "auth",
    "producer",
    "scheduler",
    "worker",
    "sim",
    "dev",
    "demo",
    "completions",
    "config show",
    "context add",
    "context ls",
    "context use",
    "context rm",
];

#[tokio::test]
async fn every_command_has_an_example_and_says_what_to_do_when_it_cannot() {
    let world = World::without_nats();
    world.write("jobs.jsonl", "{\"id\":\"a\",\"tenant\":\"acme\"}\n");
    let nowhere = format!("nats://127.0.0.1:{}", free_port().unwrap());
    let mut found = Vec::new();
    leaves(&world, Vec::new(), &mut found).await;
    let names: BTreeSet<String> = found.iter().map(|(path, _)| path.join(" ")).collect();
    let known: BTreeSet<String> = NEEDS
        .iter()
        .map(|(name, _)| *name)
        .chain(OTHERS)
        .map(str::to_owned)
        .collect();
    assert_eq!(
        names, known,
        "commands that this test does not know, or that are gone"
    );

    for (path, help) in &found {
        let name = path.join(" ");
        assert!(help.contains("Example"), "{name} has no example");
        let args: Vec<&str> = path.iter().map(String::as_str).collect();
        let ran = world.run(&[&args[..], &["--no-such-flag"]].concat()).await;
        assert_eq!(ran.code, Some(2), "{name}: {ran:#?}");
        assert!(ran.talk.contains("--help"), "{name}: {ran:#?}");
    }
    let runs = NEEDS.iter().map(|(name, needs)| {
        let args: Vec<&str> = name
            .split(' ')
            .chain(needs.iter().copied())
            .chain(["--nats-url", &nowhere])
            .collect();
        let child = world.start(&args);
        async move { (name, crate::world::finish(child).await) }
    });
    for (name, ran) in futures::future::join_all(runs).await {
        assert_eq!(ran.code, Some(5), "{name}: {ran:#?}");
        // The doctor's findings are its data.
        let said = if *name == "doctor" {
            &ran.out
        } else {
            &ran.talk
        };
        assert!(
            said.contains("hint: `fairlane doctor`") || said.contains("do: start nats-server"),
            "{name}: {ran:#?}"
        );
    }
}

#[tokio::test]
async fn shells_are_told_all_commands() {
    let world = World::without_nats();
    for shell in ["bash", "zsh", "fish"] {
        let ran = world.run(&["completions", shell]).await;
        assert_eq!(ran.code, Some(0), "{ran:#?}");
        for word in ["redrive", "doctor", "tune"] {
            assert!(ran.out.contains(word), "{shell} is not told of {word}");
        }
    }
}

#[tokio::test]
async fn only_what_looks_can_be_watched() {
    let server = TestNats::start().await;
    let world = World::on(&server);
    let ran = world.run(&["tenant", "unset", "acme", "--watch"]).await;
    assert_eq!(ran.code, Some(2), "{ran:#?}");
    let mut child = world.start(&["tenant", "ls", "-o", "jsonl", "--watch=1"]);
    world.run(&["tenant", "set", "acme", "--weight", "2"]).await;
    let out = child.stdout.take().unwrap();
    let mut lines = tokio::io::AsyncBufReadExt::lines(tokio::io::BufReader::new(out));
    for _ in 0..2 {
        let line =
            fairlane_support::within(fairlane_support::LIMIT, "a picture", lines.next_line()).await;
        assert!(line.unwrap().unwrap().contains("acme"));
    }
}
