//! People are told of a bad hour, once, by the leader, through a receiver that is out of order at first.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::{Arc, Mutex};

use fairlane_fleet_tests::{Fleet, PATIENCE, Setup};
use fairlane_sim::{FaultSpec, SimConfig};
use fairlane_support::eventually;
use fairlane_wire::Phase;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const PROGRAM: &str = env!("CARGO_BIN_EXE_fairlane-under-test");

/// Texts that were posted, the one that was refused among them.
#[derive(Clone, Default)]
struct Receiver(Arc<Mutex<Vec<String>>>);

impl Receiver {
    async fn start() -> (Self, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hooks/T1", listener.local_addr().unwrap());
        let receiver = Self::default();
        let own = receiver.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                own.answer(stream).await;
            }
        });
        (receiver, url)
    }

    async fn answer(&self, mut stream: TcpStream) {
        let mut request = Vec::new();
        let body: Value = loop {
            let mut part = [0; 4_096];
            let read = stream.read(&mut part).await.unwrap();
            request.extend_from_slice(&part[..read]);
            let text = String::from_utf8_lossy(&request);
            let body = text.split_once("\r\n\r\n").map(|(_, body)| body);
            if let Some(Ok(body)) = body.map(serde_json::from_str) {
                break body;
            }
            assert!(read > 0, "{text}");
        };
        let is_first = {
            let mut told = self.0.lock().unwrap();
            told.push(body["text"].as_str().unwrap().to_owned());
            told.len() == 1
        };
        let status = if is_first { "503 Busy" } else { "200 OK" };
        let answer =
            format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok");
        stream.write_all(answer.as_bytes()).await.unwrap();
    }

    fn told(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

#[tokio::test]
async fn a_storm_is_told_when_it_begins_and_ends_and_its_letters_as_one_group() {
    let (receiver, url) = Receiver::start().await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("{url}\n")).unwrap();
    let storm: FaultSpec =
        serde_json::from_value(json!({"model": "claude-haiku-4-5", "status": 529, "count": 14}))
            .unwrap();
    let fleet = Fleet::start(
        PROGRAM,
        Setup {
            schedulers: 2,
            sim: SimConfig {
                faults: vec![storm],
                ..SimConfig::instant()
            },
            settings: vec![
                ("webhook.url_file", file.path().to_str().unwrap().to_owned()),
                ("scheduler.breaker.open_ms", "1000".to_owned()),
            ],
            ..Setup::default()
        },
    )
    .await;
    // One after the other: what is on the wire when a breaker opens goes on.
    for number in 0..20 {
        let (tenant, id) = (["acme", "beta"][number % 2], format!("essay-{number}"));
        let body = json!({"id": id, "origin": "user_action", "kind": "long_form_writing",
            "max_attempts": 1, "on_overload": {"defer": "no"},
            "request": {"model": "claude-haiku-4-5", "max_tokens": 64,
                "messages": [{"role": "user", "content": format!("{id} words")}]}});
        fleet.publish(tenant, body.to_string()).await;
        if number < 10 {
            fleet.phase(tenant, &id, Phase::Failed).await;
        }
    }
    let count =
        |told: &[String], what: &str| told.iter().filter(|text| text.contains(what)).count();
    let told = eventually(PATIENCE, "word of the end of the storm", || async {
        let told = receiver.told();
        let all = ["opened", "closed", "new sort: exhausted"];
        let is_all = all.iter().all(|what| count(&told, what) > 0);
        if is_all {
            Ok(told)
        } else {
            Err(told.join("; "))
        }
    })
    .await;
    assert!(told[0].starts_with('*'), "{told:?}");
    let opened = told.iter().find(|text| text.contains("opened")).unwrap();
    assert!(opened.contains("haiku-4.5"), "{opened}");
    assert!(opened.contains("upstream overloaded"), "{opened}");
    let books = fleet.settled().await;
    assert!(books.letters >= 10, "{books:?}");
    let told = receiver.told();
    // The first post was answered 503 and came again.
    assert_eq!(told[0], told[1], "{told:?}");
    let mut told = told[1..].to_vec();
    told.sort();
    let posts = told.len();
    told.dedup();
    assert_eq!(told.len(), posts, "told twice: {told:?}");
    for what in ["opened", "closed", "new sort: exhausted"] {
        assert_eq!(count(&told, what), 1, "{told:?}");
    }
}
