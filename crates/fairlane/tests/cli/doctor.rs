//! `fairlane doctor`: each fault is named, with what to do, and tells itself by the exit code.

use fairlane_nats::embedded::{EmbeddedServer, ServerOptions, free_port};
use fairlane_sim::{Sim, SimConfig};
use fairlane_support::{LIMIT, TestNats, eventually, old_server};
use serde_json::{Value, json};

use crate::world::{Ran, World};

/// A check of this name: its state, its fault, and all it says.
#[track_caller]
fn check(ran: &Ran, name: &str) -> (String, String, String) {
    let document = ran.json();
    let checks = document["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["check"] == name).unwrap();
    let word = |field: &str| check[field].as_str().unwrap_or_default().to_owned();
    (
        word("state"),
        word("fault"),
        format!("{} {}", word("found"), word("remedy")),
    )
}

/// The check found this fault, and says `remedy`.
#[track_caller]
fn faulty(ran: &Ran, name: &str, fault: &str, remedy: &str) {
    let (state, found, said) = check(ran, name);
    assert_eq!((state.as_str(), found.as_str()), ("bad", fault), "{ran:#?}");
    assert!(said.contains(remedy), "no {remedy:?} in {said:?}");
}

async fn doctor(world: &World, more: &[&str]) -> Ran {
    let args = [&["doctor", "-o", "json", "--listen", "2"][..], more].concat();
    world.run(&args).await
}

#[tokio::test]
async fn nats_that_is_down_is_told_apart_from_everything_else() {
    let url = format!("nats://127.0.0.1:{}", free_port().unwrap());
    let ran = doctor(&World::without_nats(), &["--nats-url", &url]).await;
    assert_eq!(ran.code, Some(5), "{ran:#?}");
    faulty(&ran, "nats", "nats_down", "start nats-server");
    assert_eq!(check(&ran, "leader").0, "skipped");
}

#[tokio::test]
async fn credentials_that_are_wrong_are_named() {
    let options = ServerOptions {
        extra_config: "authorization { user: fleet, password: right }".to_owned(),
        ..ServerOptions::default()
    };
    let server = EmbeddedServer::start(options).await.unwrap();
    let wrong = [
        "--set",
        "nats.user=fleet",
        "--set",
        "nats.password=wrong",
        "--nats-url",
        server.url(),
    ];
    let ran = doctor(&World::without_nats(), &wrong).await;
    assert_eq!(ran.code, Some(5), "{ran:#?}");
    faulty(&ran, "nats", "nats_credentials", "nats.creds_file");
}

#[tokio::test]
async fn a_server_that_is_too_old_is_named() {
    let options = ServerOptions {
        binary: Some(old_server().unwrap()),
        ..ServerOptions::default()
    };
    let server = EmbeddedServer::start(options).await.unwrap();
    let ran = doctor(&World::without_nats(), &["--nats-url", server.url()]).await;
    assert_eq!(ran.code, Some(1), "{ran:#?}");
    faulty(&ran, "server", "server_too_old", "upgrade nats-server");
    assert!(check(&ran, "server").2.contains("2.12.8"), "{ran:#?}");
}

#[tokio::test]
async fn no_leader_and_no_worker_are_two_faults() {
    let server = TestNats::start().await;
    let ran = doctor(&World::on(&server), &[]).await;
    assert_eq!(ran.code, Some(1), "{ran:#?}");
    faulty(&ran, "leader", "no_leader", "start `fairlane scheduler`");
    faulty(&ran, "workers", "no_worker", "start `fairlane worker`");
    assert_eq!(check(&ran, "clock").0, "ok", "{ran:#?}");
    assert_eq!(check(&ran, "objects").0, "ok", "{ran:#?}");
    let text = World::on(&server).run(&["doctor", "--listen", "1"]).await;
    assert!(
        text.out.contains("do: start `fairlane scheduler`"),
        "{text:#?}"
    );
}

#[tokio::test]
async fn a_clock_that_is_ten_seconds_off_is_named_in_both_directions() {
    let server = TestNats::start().await;
    for (ahead, word) in [("10000", "ahead of"), ("-10000", "behind")] {
        let ran = doctor(&World::on(&server), &["--clock-ahead-ms", ahead]).await;
        faulty(&ran, "clock", "clock_skew", "chrony");
        assert!(check(&ran, "clock").2.contains(word), "{ran:#?}");
    }
}

#[tokio::test]
async fn a_stream_that_drifted_is_named_by_field_and_one_that_is_gone() {
    let server = TestNats::start().await;
    let stream = async |call: &str, body: Value| {
        let subject = format!("$JS.API.STREAM.{call}.FL_JOBS");
        let body = serde_json::to_vec(&body).unwrap();
        let reply = server
            .nats
            .client
            .request(subject, body.into())
            .await
            .unwrap();
        serde_json::from_slice::<Value>(&reply.payload).unwrap()
    };
    let mut config = stream("INFO", Value::Null).await["config"].clone();
    config["allow_direct"] = json!(false);
    let changed = stream("UPDATE", config).await;
    assert_eq!(changed["error"], Value::Null, "{changed}");
    let ran = doctor(&World::on(&server), &[]).await;
    faulty(&ran, "objects", "drift", "fairlane init");
    let said = check(&ran, "objects").2;
    assert!(
        said.contains("stream FL_JOBS: allow_direct is false, wanted true"),
        "{said}"
    );

    let deleted = server.nats.jetstream.delete_stream("FL_JOBS").await;
    deleted.unwrap();
    let ran = doctor(&World::on(&server), &[]).await;
    faulty(&ran, "objects", "objects_missing", "fairlane init");
}

#[tokio::test]
async fn a_stream_without_room_for_another_consumer_is_named() {
    let server = TestNats::bare(ServerOptions::default()).await;
    let call = async |call: &str, body: Value| {
        let body = serde_json::to_vec(&body).unwrap();
        let subject = format!("$JS.API.{call}");
        let reply = server
            .nats
            .client
            .request(subject, body.into())
            .await
            .unwrap();
        let reply = serde_json::from_slice::<Value>(&reply.payload).unwrap();
        assert_eq!(reply["error"], Value::Null, "{reply}");
    };
    let jobs = json!({"name": "FL_JOBS", "subjects": ["fl.jobs.*.*"], "storage": "file", "retention": "limits",
        "max_consumers": 1, "num_replicas": 1, "discard": "old"});
    call("STREAM.CREATE.FL_JOBS", jobs).await;
    let consumer = json!({"stream_name": "FL_JOBS", "config": {"durable_name": "one", "ack_policy": "explicit"}});
    call("CONSUMER.DURABLE.CREATE.FL_JOBS.one", consumer).await;
    let ran = doctor(&World::on(&server), &[]).await;
    faulty(&ran, "consumers", "consumer_cap", "max_consumers");
    assert!(
        check(&ran, "consumers").2.contains("FL_JOBS has 1 of 1"),
        "{ran:#?}"
    );
}

#[tokio::test]
async fn a_fleet_that_works_is_healthy_and_a_key_that_was_revoked_is_not() {
    let server = TestNats::start().await;
    let config = SimConfig {
        api_keys: vec!["sk-good".to_owned()],
        ..SimConfig::instant()
    };
    let sim = Sim::start(config).await.unwrap();
    let world = World::on(&server);
    let upstream = format!("claude.base_url={}", sim.url());
    let good = ["--set", &upstream, "--set", "claude.api_key=sk-good"];
    let _scheduler = world.start(&["scheduler"]);
    let _worker = world.start(&[&["worker"][..], &good].concat());
    let ran = eventually(LIMIT, "a healthy fleet", || async {
        let ran = doctor(&world, &good).await;
        match ran.code {
            Some(0) => Ok(ran),
            _ => Err(format!("{ran:#?}")),
        }
    })
    .await;
    assert_eq!(ran.json()["healthy"], true);
    assert_eq!(check(&ran, "key").0, "ok");
    assert_eq!(check(&ran, "workers").2.trim(), "1 with 64 slots");
    // Nothing was called yet: a warning, and no fault.
    let (state, fault, said) = check(&ran, "limits");
    assert_eq!((state.as_str(), fault.as_str()), ("warn", "limits_unknown"));
    assert!(said.contains("limits.preset"), "{said}");

    // The same fleet under a small load.
    let bench = ["bench", "--jobs", "60", "--rate", "60", "-o", "json"];
    let ran = world.run(&bench).await;
    assert_eq!(ran.code, Some(2), "{ran:#?}");
    assert!(ran.talk.contains("60 calls"), "{ran:#?}");
    let _producer = world.start(&["producer"]);
    let ran = world.run(&[&bench[..], &["--yes"]].concat()).await;
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    let document = ran.json();
    assert_eq!(document["all"]["done"], 60, "{document:#}");
    assert_eq!(document["tenants"]["bench-2"]["done"], 20, "{document:#}");
    assert!(
        document["jain"].as_f64().is_some_and(|index| index > 0.9),
        "{document:#}"
    );
    // With the first answers the limits are known.
    let ran = doctor(&world, &good).await;
    assert_eq!(check(&ran, "limits").0, "ok", "{ran:#?}");

    let revoked = ["--set", &upstream, "--set", "claude.api_key=sk-revoked"];
    let ran = doctor(&world, &revoked).await;
    assert_eq!(ran.code, Some(1), "{ran:#?}");
    faulty(&ran, "key", "key_refused", "Claude Console");
}
