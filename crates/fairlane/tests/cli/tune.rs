//! `fairlane tune`, over ledgers as workers write them.

use bytes::Bytes;
use fairlane_nats::HeaderMap;
use fairlane_support::TestNats;
use fairlane_wire::LedgerEntry;
use futures::StreamExt;
use serde_json::json;

use crate::world::{Ran, World};

/// A pool of one request a second, so that a queue is soon there.
const LIMITS: [&str; 4] = [
    "--set",
    "limits.pools.slow.requests_per_minute=60",
    "--set",
    "scheduler.daily_input_tokens=",
];

fn entry(seq: u64, tenant: &str, accepted_ms: u64) -> LedgerEntry {
    let entry = json!({
        "tenant": tenant, "job": format!("j{seq}"), "kind": "tagging", "priority": "standard", "pool": "slow",
        "seq": seq, "delivery": 1, "model_asked": "claude-haiku-4-5",
        "usage": {"input_tokens": 500, "output_tokens": 100},
        "estimated_input_tokens": 500, "estimated_output_tokens": 100, "max_tokens": 256,
        "cost_pico_usd": 1_000_000_000, "outcome": "done", "ambiguous": false, "accepted_ms": accepted_ms,
        "granted_ms": accepted_ms + 10, "latency_ms": 800, "at_ms": accepted_ms + 810,
    });
    serde_json::from_value(entry).unwrap()
}

/// Half an hour: one tenant sends 300 jobs at once, four others a job every ten seconds.
async fn half_an_hour(server: &TestNats) {
    let now = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap();
    let start = now - 1_800_000;
    let mut seq = 0;
    let mut entries = Vec::new();
    let mut add = |tenant: &str, at: u64| {
        seq += 1;
        entries.push(entry(seq, tenant, at));
    };
    (0..300).for_each(|n| add("noisy", start + n));
    for n in 0..80 {
        add(&format!("small-{}", n % 4), start + n * 2_500);
    }
    for entry in entries {
        book(server, &entry).await;
    }
}

async fn book(server: &TestNats, entry: &LedgerEntry) {
    let mut headers = HeaderMap::new();
    for (name, value) in entry.headers() {
        headers.insert(name, value);
    }
    let subject = server.nats.names.ledger_subject(&entry.tenant);
    let body = Bytes::from(serde_json::to_vec(entry).unwrap());
    let jobs = server.nats.jobs();
    jobs.publish(&subject, None, headers, body).await.unwrap();
}

async fn tune(world: &World, more: &[&str]) -> Ran {
    world.run(&[&["tune"][..], &LIMITS, more].concat()).await
}

#[tokio::test]
async fn a_bad_quantum_is_found_in_the_ledger_and_a_good_one_left_alone() {
    let server = TestNats::start().await;
    half_an_hour(&server).await;
    let world = World::on(&server);
    let bad = ["--set", "scheduler.quantum=5000", "-o", "json"];
    let found = tune(&world, &bad).await;
    assert_eq!(found.code, Some(0), "{found:#?}");
    let found = found.json();
    assert_eq!(found["recorded"]["jobs"], 380);
    assert_eq!(found["recorded"]["noisy"], json!(["noisy"]));
    assert_eq!(
        found["steps"][0]["setting"], "scheduler.quantum",
        "{found:#}"
    );
    let better = found["settings"][0].as_str().unwrap().to_owned();
    assert_eq!(found["well_tuned"], false);
    let p99 = |when: &str| found[when]["quiet_wait_ms"]["p99"].as_u64().unwrap();
    assert!(p99("recommended") * 2 < p99("today"), "{found:#}");

    // The very line it says is taken as it is.
    world.write("fairlane.toml", &better);
    let good = tune(&world, &[]).await;
    assert_eq!(good.code, Some(0), "{good:#?}");
    assert!(
        good.out.contains("Well tuned: nothing to change"),
        "{good:#?}"
    );
    assert!(good.out.contains("quiet tenants, wait p99"), "{good:#?}");

    // Of a ledger that is too large, what is left out is said.
    let part = tune(&world, &["--calls-max", "1"]).await;
    let hours = part.out.contains("busiest hours") || part.out.contains("in 1 hours");
    assert!(hours, "{part:#?}");
}

#[tokio::test]
async fn answers_that_are_cut_off_are_told_with_the_room_they_need() {
    let server = TestNats::start().await;
    for seq in 0..100 {
        let mut done = entry(seq, "acme", 1_700_000_000_000 + seq);
        if seq % 5 == 0 {
            let mut cut = done.clone();
            cut.outcome = "max_tokens".to_owned();
            (cut.max_tokens, cut.usage.output_tokens) = (64, 64);
            book(&server, &cut).await;
        }
        done.max_tokens = 64;
        book(&server, &done).await;
    }
    let found = tune(&World::on(&server), &[]).await;
    assert!(
        found
            .out
            .contains("max_tokens of tagging: 128 instead of 64 saves"),
        "{found:#?}"
    );
    assert!(found.out.contains("  tagging: 128"), "{found:#?}");
}

#[tokio::test]
async fn an_empty_ledger_is_told_with_what_to_do() {
    let server = TestNats::start().await;
    let found = tune(&World::on(&server), &[]).await;
    assert_eq!(found.code, Some(3), "{found:#?}");
    assert!(found.talk.contains("--since"), "{found:#?}");
}

#[tokio::test]
async fn limits_that_the_upstream_told_stand_over_the_configuration() {
    let server = TestNats::start().await;
    half_an_hour(&server).await;
    let world = World::on(&server);
    let configured = tune(&world, &["-o", "json"]).await;
    assert!(
        configured.talk.contains("no scheduler answers"),
        "{configured:#?}"
    );
    assert_eq!(configured.json()["limits_told"], json!([]));

    // A leader that has heard of twice as many requests a minute.
    let lanes = ["critical", "standard", "batch"]
        .map(|priority| json!({"priority": priority, "queued": 0, "oldest_ms": 0}));
    let record = json!({
        "term": 1, "at_ms": 1, "version": "0", "in_flight": 0, "workers": [], "tenants": [],
        "lanes": lanes,
        "active_tenants": 0, "active_weight": 0, "granted": 0,
        "pools": [{
            "pool": "slow", "left": [0, 0, 0], "per_minute": [120, 1_000_000, 1_000_000], "heard": true,
            "missing": [0, 0, 0], "breaker": "closed", "granted": [0, 0, 0]
        }]
    });
    let record: fairlane_wire::FleetRecord = serde_json::from_value(record).unwrap();
    let client = server.nats.client.clone();
    let mut asked = client
        .subscribe(server.nats.names.why_subject())
        .await
        .unwrap();
    client.flush().await.unwrap();
    let leader = tokio::spawn(async move {
        while let Some(question) = asked.next().await {
            let answer = serde_json::to_vec(&record).unwrap();
            let to = question.reply.unwrap();
            client.publish(to, answer.into()).await.unwrap();
        }
    });
    let told = tune(&world, &["-o", "json"]).await;
    assert_eq!(told.json()["limits_told"], json!(["slow"]), "{told:#?}");
    let mean = |ran: &Ran| {
        ran.json()["today"]["noisy_wait_ms"]["mean"]
            .as_f64()
            .unwrap()
    };
    assert!(
        mean(&told) < 0.7 * mean(&configured),
        "{} {}",
        mean(&told),
        mean(&configured)
    );
    leader.abort();
}
