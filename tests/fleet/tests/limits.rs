//! Limits and pauses hold for the whole fleet, whoever leads. By the upstream's own log.

use fairlane_core::Millis;
use fairlane_fleet_tests::{Fleet, PATIENCE, Setup, job};
use fairlane_sim::{CallRecord, SimConfig, fault::FaultSpec};
use fairlane_support::eventually;
use fairlane_wire::Phase;
use nix::sys::signal::Signal;

const PROGRAM: &str = env!("CARGO_BIN_EXE_fairlane-under-test");

/// An upstream that allows `limits` and takes a tenth of a second for a call.
fn upstream(limits: &str) -> SimConfig {
    SimConfig {
        zero_latency: false,
        first_byte_ms: 100,
        prompt_ms_per_1k: 0.0,
        tokens_per_second: 10_000.0,
        pools: vec![limits.parse().expect("limits")],
        ..SimConfig::instant()
    }
}

async fn publish(fleet: &Fleet, name: &str, model: &str, jobs: usize) {
    // 2 000 tokens each.
    let prompt = "wall ".repeat(1_000);
    for number in 0..jobs {
        let tenant = ["acme", "bolt", "core"][number % 3];
        let job = job(&format!("{name}-{number}"), &format!("{number} {prompt}"));
        let job = job.replace("claude-haiku-4-5", model);
        fleet.publish(tenant, job).await;
    }
}

async fn calls(fleet: &Fleet, at_least: usize) {
    eventually(PATIENCE, &format!("{at_least} calls upstream"), || async {
        let calls = fleet.sim.log().len();
        if calls >= at_least {
            Ok(())
        } else {
            Err(format!("{calls} so far"))
        }
    })
    .await;
}

/// Calls of models with this in their name, in the order they began.
fn calls_of(fleet: &Fleet, model: &str) -> Vec<CallRecord> {
    let mut calls = fleet.sim.log();
    calls.retain(|call| call.model_name().is_some_and(|name| name.contains(model)));
    calls.sort_by_key(|call| call.at.0);
    calls
}

fn ms(call: &CallRecord) -> Millis {
    call.at.0 / 1_000
}

/// One 429 with a time to wait, for the first call of a pool.
fn refuse_once(pool: &str, retry_after: &str) -> FaultSpec {
    let fault = serde_json::json!({
        "pool": pool, "status": 429, "count": 1, "retry_after": retry_after,
    });
    serde_json::from_value(fault).expect("a fault")
}

/// By how much calls exceed what a bucket of ten seconds' worth that refills continuously allows, at
/// the worst moment.
#[expect(clippy::cast_precision_loss, reason = "a few thousand calls")]
fn beyond(calls: &[CallRecord], per_minute: f64) -> f64 {
    let (full, per_micro) = (per_minute / 6.0, per_minute / 60e6);
    let (mut level, mut last, mut worst) = (full, calls[0].at.0, 0.0_f64);
    for call in calls {
        level = (level + (call.at.0 - last) as f64 * per_micro).min(full) - 1.0;
        last = call.at.0;
        worst = worst.max(-level);
    }
    worst
}

async fn another_leader(fleet: &Fleet, holder: &str) {
    eventually(PATIENCE, "another leader", || async {
        let (now, _) = fleet.leader().await;
        if now == holder {
            Err("still the old one")
        } else {
            Ok(())
        }
    })
    .await;
}

#[tokio::test]
async fn two_leaders_at_once_keep_to_the_limits_and_grant_nothing_twice() {
    const PER_MINUTE: f64 = 1_800.0;
    const JOBS: usize = 700;
    let setup = Setup {
        schedulers: 2,
        workers: 2,
        sim: upstream("haiku-4.5:rpm=1800"),
        config: "[limits.pools.\"haiku-4.5\"]\nrequests_per_minute = 1800\n",
        ..Setup::default()
    };
    let fleet = Fleet::start(PROGRAM, setup).await;
    publish(&fleet, "job", "claude-haiku-4-5", JOBS).await;
    calls(&fleet, 350).await;
    let stopped = fleet.leading_scheduler().await;
    let (holder, _) = fleet.leader().await;
    fleet.schedulers[stopped].signal(Signal::SIGSTOP);
    another_leader(&fleet, &holder).await;
    // The new one grants when the old one wakes up.
    let before = fleet.sim.log().len();
    calls(&fleet, before + 20).await;
    fleet.schedulers[stopped].signal(Signal::SIGCONT);

    let books = fleet.settled().await;
    assert_eq!(books.in_phase(Phase::Done), JOBS, "{books:?}");
    let calls = calls_of(&fleet, "haiku");
    assert_eq!(calls.len(), JOBS, "a job was granted twice, or refused");
    // Two per cent of a minute's worth.
    let beyond = beyond(&calls, PER_MINUTE);
    assert!(
        beyond <= PER_MINUTE * 0.02,
        "{beyond} calls too many at once"
    );
    let log = fleet.schedulers[stopped].log();
    assert!(log.contains("lost the lease"), "it found out: {log}");
}

#[tokio::test]
async fn a_429_stops_its_pool_for_the_whole_fleet_and_no_other() {
    const WAIT: Millis = 6_000;
    let setup = Setup {
        workers: 4,
        sim: upstream("haiku-4.5:rpm=1200"),
        settings: vec![("worker.slots", "10".to_owned())],
        config: "[limits.pools.\"haiku-4.5\"]\nrequests_per_minute = 1200\n",
        ..Setup::default()
    };
    let fleet = Fleet::start(PROGRAM, setup).await;
    let refusal = refuse_once("haiku-4.5", "6");
    fleet.sim.add_faults(vec![refusal]).expect("a fault");
    publish(&fleet, "hai", "claude-haiku-4-5", 120).await;
    publish(&fleet, "son", "claude-sonnet-4-6", 20).await;

    let books = fleet.settled().await;
    assert_eq!(books.in_phase(Phase::Done), 140, "{books:?}");
    let calls = calls_of(&fleet, "haiku");
    let refused: Vec<_> = calls
        .iter()
        .filter(|call| call.status == Some(429))
        .collect();
    assert_eq!(refused.len(), 1, "none after the pause");
    let known = refused[0].end.0 / 1_000;
    // What was granted before the 429 was known is on its way for a moment.
    let early = calls
        .iter()
        .filter(|call| (known + 1_000..known + WAIT).contains(&ms(call)))
        .count();
    assert_eq!(early, 0, "calls into the pause");
    let opens = calls.iter().map(ms).find(|&at| at >= known + WAIT);
    let opens = opens.expect("it goes on");
    let rush = calls
        .iter()
        .filter(|call| (opens..opens + 1_000).contains(&ms(call)))
        .count();
    assert!(rush <= 24, "{rush} in the first second, 20 is the limit");
    let others = calls_of(&fleet, "sonnet");
    let meanwhile = others.iter().filter(|call| ms(call) < opens).count();
    assert_eq!(meanwhile, 20, "the other pool runs on");

    let job = refused[0].job.clone().expect("named");
    let number: usize = job
        .rsplit('-')
        .next()
        .and_then(|n| n.parse().ok())
        .expect("its number");
    let tenant = ["acme", "bolt", "core"][number % 3];
    let record = fleet.record(tenant, &job).await.expect("its record");
    assert_eq!(record.attempts, 1, "a 429 is no attempt: {record:?}");
}

#[tokio::test]
async fn a_pause_ends_on_time_though_all_schedulers_were_restarted() {
    const WAIT: Millis = 8_000;
    let setup = Setup {
        schedulers: 2,
        sim: upstream("haiku-4.5:rpm=1200"),
        ..Setup::default()
    };
    let mut fleet = Fleet::start(PROGRAM, setup).await;
    let refusal = refuse_once("haiku-4.5", "8");
    fleet.sim.add_faults(vec![refusal]).expect("a fault");
    fleet.publish("acme", job("first", "tags")).await;
    fleet.phase("acme", "first", Phase::Retrying).await;
    publish(&fleet, "job", "claude-haiku-4-5", 10).await;
    for scheduler in &mut fleet.schedulers {
        scheduler.kill9();
    }
    fleet.schedulers = vec![fleet.spawn("scheduler"), fleet.spawn("scheduler")];

    // Nothing is published after this: the time alone wakes them.
    let books = fleet.settled().await;
    assert_eq!(books.in_phase(Phase::Done), 11, "{books:?}");
    let calls = calls_of(&fleet, "haiku");
    let known = calls[0].end.0 / 1_000;
    assert_eq!(calls[0].status, Some(429));
    let resumed = ms(&calls[1]);
    assert!(resumed >= known + WAIT, "after {} ms", resumed - known);
    // Up to 1.44 times what the upstream asked for, and two seconds.
    let latest = known + WAIT * 144 / 100 + 2_000;
    assert!(resumed <= latest, "after {} ms", resumed - known);
}

#[tokio::test]
async fn a_tenant_at_its_cap_with_a_long_queue_slows_nobody() {
    let setup = Setup {
        sim: upstream("haiku-4.5:rpm=1000000"),
        settings: vec![
            ("worker.slots", "12".to_owned()),
            ("scheduler.tenant_in_flight_max", "4".to_owned()),
        ],
        ..Setup::default()
    };
    let fleet = Fleet::start(PROGRAM, setup).await;
    for number in 0..1_500 {
        let id = format!("noisy-{number}");
        fleet
            .publish("noisy", job(&id, &format!("tags {number}")))
            .await;
    }
    calls(&fleet, 8).await;
    for number in 0..40 {
        let id = format!("quiet-{number}");
        fleet
            .publish("quiet", job(&id, &format!("tags {number}")))
            .await;
    }
    fleet.phase("quiet", "quiet-39", Phase::Done).await;
    eventually(PATIENCE, "the quiet tenant's calls", || async {
        let calls = fleet.sim.log();
        let quiet = calls
            .iter()
            .filter(|call| call.tenant.as_deref() == Some("quiet"));
        match quiet.count() {
            40 => Ok(()),
            some => Err(format!("{some} so far")),
        }
    })
    .await;
    let mut calls = fleet.sim.log();
    calls.sort_by_key(|call| call.at.0);
    let is_quiet = |call: &&CallRecord| call.tenant.as_deref() == Some("quiet");
    let first = calls.iter().position(|call| is_quiet(&call)).expect("one");
    let last = calls.iter().rposition(|call| is_quiet(&call)).expect("one");
    // Both have four slots of their own: as many calls as the other, give or take a few.
    let noisy = calls[first..last].len() - 39;
    assert!(noisy <= 60, "{noisy} calls of the noisy tenant went first");
    let most = calls.iter().map(|call| call.concurrency).max();
    assert!(most <= Some(8), "{most:?} at once: the cap does not hold");
}
