//! Faults, statistics and reset.

use std::time::Duration;

use fairlane_sim::{CallRecord, SimConfig};
use serde_json::{Value, json};

use crate::support::{World, prompt};

async fn status_of(world: &World, model: &str) -> u16 {
    let mut body = prompt("x");
    body["model"] = model.into();
    world.send(&body).await.status().as_u16()
}

#[tokio::test]
async fn a_model_fault_leaves_other_models_alone_until_it_is_cleared() {
    let world = World::instant().await;
    world
        .fault(json!({"model": "claude-sonnet-4-6", "status": 529}))
        .await;
    assert_eq!(status_of(&world, "claude-sonnet-4-6").await, 529);
    assert_eq!(status_of(&world, "claude-haiku-4-5").await, 200);
    let listed: Value = world
        .get("/sim/faults")
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(listed["faults"][0]["hits"], 1);
    let url = format!("{}/sim/faults", world.sim.url());
    let removed: Value = world
        .client
        .delete(&url)
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(removed["removed"], 1);
    assert_eq!(status_of(&world, "claude-sonnet-4-6").await, 200);
}

#[tokio::test]
async fn several_faults_can_be_posted_and_one_removed() {
    let world = World::instant().await;
    world.fault(json!([{"pool": "haiku-4.5", "status": 500, "count": 1}, {"pool": "sonnet-4.x", "status": 503}])).await;
    assert_eq!(status_of(&world, "claude-haiku-4-5").await, 500);
    assert_eq!(status_of(&world, "claude-haiku-4-5").await, 200);
    assert_eq!(status_of(&world, "claude-sonnet-4-6").await, 503);
    let one = world
        .client
        .delete(format!("{}/sim/faults/2", world.sim.url()))
        .send()
        .await
        .unwrap();
    assert_eq!(one.status(), 200);
    assert_eq!(status_of(&world, "claude-sonnet-4-6").await, 200);
    let none = world
        .client
        .delete(format!("{}/sim/faults/2", world.sim.url()))
        .send()
        .await
        .unwrap();
    assert_eq!(none.status(), 404);
}

#[tokio::test]
async fn a_timed_fault_ends_by_itself() {
    let world = World::instant().await;
    let begun = tokio::time::Instant::now();
    world.fault(json!({"status": 529, "for_ms": 400})).await;
    let mut failed = 0;
    while status_of(&world, "claude-haiku-4-5").await == 529 {
        failed += 1;
        assert!(begun.elapsed() < crate::support::LIMIT);
    }
    assert!(failed > 0);
    assert!(begun.elapsed() >= Duration::from_millis(400));
}

#[tokio::test]
async fn faults_can_be_there_from_the_start() {
    let config: SimConfig = serde_json::from_value(json!({
        "preset": "unlimited", "zero_latency": true, "faults": [{"status": 529, "probability": 1.0, "count": 2}]
    }))
    .unwrap();
    let world = World::start(config).await;
    assert_eq!(world.ask("x").await.0, 529);
    assert_eq!(world.ask("x").await.0, 529);
    assert_eq!(world.ask("x").await.0, 200);
}

#[tokio::test]
async fn actions_hit_calls_without_a_directive() {
    let world = World::instant().await;
    world
        .fault(json!({"action": "error_event", "count": 1}))
        .await;
    let response = world.send(&crate::support::streamed("x")).await;
    assert_eq!(response.status(), 200);
    assert!(response.text().await.unwrap().contains("overloaded_error"));
    world.fault(json!({"action": "reset", "count": 1})).await;
    assert!(
        world
            .post("/v1/messages")
            .json(&prompt("x"))
            .send()
            .await
            .is_err()
    );
}

#[tokio::test]
async fn wrong_faults_are_refused_and_none_of_them_is_added() {
    let world = World::instant().await;
    for (spec, part) in [
        (json!({"status": 529, "pools": "haiku"}), "unknown field"),
        (json!([{"status": 529}, {"status": 200}]), "400 to 599"),
        (json!({"pool": "haiku", "status": 529}), "unknown variant"),
        (json!(7), "invalid type"),
    ] {
        let response = world.post("/sim/faults").json(&spec).send().await.unwrap();
        assert_eq!(response.status(), 400);
        let error = response.text().await.unwrap();
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(status_of(&world, "claude-haiku-4-5").await, 200);
}

#[tokio::test]
async fn statistics_add_up() {
    let world = World::instant().await;
    world.ask("one").await;
    world.ask("[[sim:status=429]]").await;
    world.stream("two").await;
    let stats: Value = world
        .get("/sim/stats")
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(stats["calls"], 3);
    assert_eq!(stats["by_status"], json!({"200": 2, "429": 1}));
    assert_eq!(stats["by_ending"], json!({"completed": 2, "error": 1}));
    assert_eq!(
        stats["by_pool"]["haiku-4.5"],
        json!({"calls": 3, "throttled": 1})
    );
    assert_eq!(stats["billed"]["calls"], 2);
    assert_eq!(
        (&stats["in_flight"], &stats["in_flight_peak"]),
        (&0.into(), &1.into())
    );
    let log = world.sim.log();
    let output: u64 = log.iter().map(|call| call.output_tokens).sum();
    assert_eq!(stats["billed"]["output_tokens"], output);
    let nano: u64 = log.iter().map(CallRecord::cost_nano_usd).sum();
    assert!(nano > 0);
    let cost = stats["billed"]["cost_usd"].to_string();
    assert_eq!(
        cost,
        format!("{:?}", f64::from(u32::try_from(nano).unwrap()) / 1e9)
    );
    assert_eq!(
        stats["pools"]["haiku-4.5"]["requests"]["limit"],
        1_000_000_000
    );
}

#[tokio::test]
async fn reset_clears_the_log_and_fills_the_buckets() {
    let world = World::start(SimConfig {
        pools: vec!["all:rpm=5".parse().unwrap()],
        ..SimConfig::instant()
    })
    .await;
    let mut last = 200;
    for _ in 0..20 {
        last = world.ask("x").await.0;
    }
    assert_eq!(last, 429);
    let reset = world.post("/sim/reset").send().await.unwrap();
    assert_eq!(reset.status(), 200);
    assert!(world.sim.log().is_empty());
    assert_eq!(world.sim.stats().totals.calls, 0);
    assert_eq!(world.ask("x").await.0, 200);
    assert_eq!(world.sim.log()[0].seq, 21);
}

#[tokio::test]
async fn health_is_ok() {
    let world = World::instant().await;
    assert_eq!(world.get("/sim/health").send().await.unwrap().status(), 200);
}
