//! The upstream's own log: one line per call, whatever happens to the call.

use std::time::Duration;

use fairlane_sim::{Ending, Preset, Sim, SimConfig};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{World, prompt, streamed};

fn slow() -> SimConfig {
    SimConfig {
        preset: Preset::Unlimited,
        first_byte_ms: 1,
        ..SimConfig::default()
    }
}

fn lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[tokio::test]
async fn each_call_is_one_line_that_agrees_with_its_answer() {
    let world = World::instant().await;
    let mut body = prompt("hello");
    body["metadata"] = serde_json::json!({"user_id": "from-metadata"});
    let with_header = world
        .post("/v1/messages")
        .json(&body)
        .header("x-fairlane-job", "job-1")
        .header("x-fairlane-tenant", "calm");
    let answer: Value = with_header.send().await.unwrap().json().await.unwrap();
    world.send(&body).await;
    world.stream("hello").await;
    world.ask("[[sim:status=529]]").await;

    let text = world
        .get("/sim/log")
        .send()
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    let log = lines(&text);
    assert_eq!(log.len(), 4);
    let first = &log[0];
    assert_eq!(first["seq"], 1);
    assert_eq!(
        (&first["job"], &first["tenant"], &first["key"]),
        (&"job-1".into(), &"calm".into(), &"1234".into())
    );
    assert_eq!(
        (&first["model"], &first["pool"]),
        (&"claude-haiku-4-5-20251001".into(), &"haiku-4.5".into())
    );
    assert_eq!(
        (&first["ending"], &first["stop_reason"], &first["billed"]),
        (&"completed".into(), &"end_turn".into(), &true.into())
    );
    for field in ["input_tokens", "output_tokens"] {
        assert_eq!(first[field], answer["usage"][field]);
    }
    assert!(first["at_ms"].as_u64().unwrap() <= first["end_ms"].as_u64().unwrap());
    assert_eq!(log[1]["job"], "from-metadata");
    assert_eq!(
        (&log[2]["stream"], &log[2]["prompt_hash"]),
        (&true.into(), &first["prompt_hash"])
    );
    assert_eq!(
        (&log[3]["status"], &log[3]["ending"], &log[3]["billed"]),
        (&529.into(), &"error".into(), &false.into())
    );
    assert_eq!(log[3]["output_tokens"], 0);
}

#[tokio::test]
async fn the_log_can_be_read_from_a_position_and_in_pieces() {
    let world = World::instant().await;
    for n in 0..30 {
        world.ask(&format!("call {n}")).await;
    }
    let read = async |query: &str| {
        let response = world.get(&format!("/sim/log{query}")).send().await.unwrap();
        lines(&response.text().await.unwrap())
    };
    let tail = read("?since=25").await;
    assert_eq!((tail.len(), &tail[0]["seq"]), (5, &26.into()));
    let piece = read("?since=10&limit=3").await;
    assert_eq!((piece.len(), &piece[2]["seq"]), (3, &13.into()));
    assert!(read("?since=30").await.is_empty());
    assert_eq!(
        world.get("/sim/log?since=x").send().await.unwrap().status(),
        400
    );
}

#[tokio::test]
async fn a_client_that_leaves_a_stream_is_noticed_and_billed_as_far_as_generated() {
    let world = World::start(SimConfig {
        tokens_per_second: 20.0,
        ..slow()
    })
    .await;
    let mut response = world.send(&streamed("[[sim:out=100]]")).await;
    let mut text = String::new();
    while !text.contains("content_block_delta") {
        let chunk = response.chunk().await.unwrap().unwrap();
        text.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    drop(response);
    let record = world.record(1).await;
    assert_eq!(
        (record.ending, record.status, record.billed),
        (Ending::ClientGone, Some(200), true)
    );
    assert!(
        (1..100).contains(&record.output_tokens),
        "{}",
        record.output_tokens
    );
    assert_eq!(world.sim.stats().in_flight, 0);
}

#[tokio::test]
async fn a_client_that_leaves_a_plain_call_stops_its_work() {
    let world = World::start(slow()).await;
    let sending = world
        .post("/v1/messages")
        .json(&prompt("[[sim:out=100 ms=20000]]"));
    let gave_up = sending.timeout(Duration::from_millis(900)).send().await;
    assert!(gave_up.is_err());
    let record = world.record(1).await;
    assert_eq!((record.ending, record.status), (Ending::ClientGone, None));
    assert!(record.output_tokens < 100);
}

#[tokio::test]
async fn a_client_that_leaves_while_sending_its_body_is_noticed() {
    let world = World::instant().await;
    let mut socket = tokio::net::TcpStream::connect(world.sim.addr())
        .await
        .unwrap();
    let head = "POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: k\r\ncontent-length: 1000\r\n\r\n{\"model\":";
    socket.write_all(head.as_bytes()).await.unwrap();
    world
        .until("the call to begin", || world.sim.stats().in_flight == 1)
        .await;
    drop(socket);
    let record = world.record(1).await;
    assert_eq!((record.ending, record.billed), (Ending::ClientGone, false));
    assert_eq!(world.sim.stats().in_flight, 0);
}

#[tokio::test]
async fn concurrency_counts_the_calls_in_flight() {
    let world = World::start(slow()).await;
    let calls = (0..5).map(|n| {
        let sending = world
            .post("/v1/messages")
            .json(&prompt(&format!("[[sim:ms=1500]] {n}")))
            .send();
        async { sending.await.unwrap().status().as_u16() }
    });
    let statuses = futures::future::join_all(calls).await;
    assert_eq!(statuses, [200; 5]);
    let log = world.sim.log();
    let most = log.iter().map(|call| call.concurrency).max();
    assert_eq!(most, Some(5));
    assert_eq!(world.sim.stats().in_flight_peak, 5);
}

#[tokio::test]
async fn the_file_holds_every_line_after_shutdown() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("calls.jsonl");
    let world = World::start(SimConfig {
        log_file: Some(path.clone()),
        log_capacity: 10,
        ..SimConfig::instant()
    })
    .await;
    for n in 0..2_000 {
        assert_eq!(world.ask(&format!("call {n}")).await.0, 200);
    }
    assert!(world.sim.log().len() < 2_000, "the ring is bounded");
    world.sim.shutdown().await.unwrap();
    let log = lines(&std::fs::read_to_string(path).unwrap());
    let seqs: Vec<u64> = log
        .iter()
        .map(|line| line["seq"].as_u64().unwrap())
        .collect();
    assert_eq!(seqs, (1..=2_000).collect::<Vec<u64>>());
}

#[tokio::test]
async fn an_unusable_log_file_or_value_stops_the_start() {
    let config = SimConfig {
        log_file: Some("/nowhere/at/all.jsonl".into()),
        ..SimConfig::instant()
    };
    let error = format!("{:#}", Sim::start(config).await.unwrap_err());
    assert!(error.contains("/nowhere/at/all.jsonl"), "{error}");
    let config = SimConfig {
        time_scale: -1.0,
        ..SimConfig::default()
    };
    assert!(
        Sim::start(config)
            .await
            .unwrap_err()
            .to_string()
            .contains("time_scale")
    );
}

#[tokio::test]
async fn stopping_lets_calls_finish_within_the_grace_period() {
    let world = World::start(SimConfig {
        stop_grace_ms: 600_000,
        ..slow()
    })
    .await;
    let sending = tokio::spawn(
        world
            .post("/v1/messages")
            .json(&streamed("[[sim:ms=500]]"))
            .send(),
    );
    world
        .until("the call to begin", || world.sim.stats().in_flight == 1)
        .await;
    let hanging = tokio::spawn(
        world
            .post("/v1/messages")
            .json(&prompt("[[sim:hang]]"))
            .send(),
    );
    world
        .until("both calls to be in flight", || {
            world.sim.stats().in_flight == 2
        })
        .await;
    let stopped = tokio::time::timeout(crate::support::LIMIT, world.sim.shutdown()).await;
    stopped.unwrap().unwrap();
    let text = sending.await.unwrap().unwrap().text().await.unwrap();
    assert!(text.contains("message_stop"));
    assert!(hanging.await.unwrap().is_err());
}

#[tokio::test]
async fn stopping_does_not_wait_for_what_hangs_on_purpose() {
    let world = World::start(SimConfig {
        stop_grace_ms: 600_000,
        ..slow()
    })
    .await;
    let mut hanging = Vec::new();
    for how in ["stream", "silent"] {
        let body = streamed(&format!("[[sim:hang={how}]]"));
        hanging.push(world.send(&body).await);
    }
    let stopped = tokio::time::timeout(crate::support::LIMIT, world.sim.shutdown()).await;
    stopped.unwrap().unwrap();
    for response in hanging {
        assert!(response.text().await.is_err());
    }
}

#[tokio::test]
async fn stopping_breaks_off_what_outlives_the_grace_period() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("calls.jsonl");
    let world = World::start(SimConfig {
        stop_grace_ms: 100,
        tokens_per_second: 0.01,
        log_file: Some(path.clone()),
        ..slow()
    })
    .await;
    let mut endless = world.send(&streamed("[[sim:out=100]]")).await;
    let plain = tokio::spawn(
        world
            .post("/v1/messages")
            .json(&prompt("an endless answer"))
            .send(),
    );
    // A connection that never finishes its request's head.
    let mut idle = tokio::net::TcpStream::connect(world.sim.addr())
        .await
        .unwrap();
    idle.write_all(b"POST /v1/mess").await.unwrap();
    world
        .until("both calls to be in flight", || {
            world.sim.stats().in_flight == 2
        })
        .await;
    tokio::time::timeout(Duration::from_secs(10), world.sim.shutdown())
        .await
        .unwrap()
        .unwrap();
    assert!(plain.await.unwrap().is_err());
    let broken = async {
        while endless.chunk().await?.is_some() {}
        Ok::<(), reqwest::Error>(())
    };
    assert!(broken.await.is_err());
    let mut rest = Vec::new();
    let _reset_or_end = idle.read_to_end(&mut rest).await;
    let log = lines(&std::fs::read_to_string(path).unwrap());
    assert_eq!(log.len(), 2);
    assert!(
        log.iter().all(|line| line["ending"] == "stopped"),
        "{log:?}"
    );
}
