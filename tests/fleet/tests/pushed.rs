//! Metrics of a fleet as a collector gets them over OTLP: the same as whoever scrapes it.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use fairlane_fleet_tests::{Collector, Fleet, PATIENCE, Setup, get, job, page};
use fairlane_nats::embedded::free_port;
use fairlane_support::{eventually, within};
use fairlane_wire::Phase;
use nix::sys::signal::Signal;

const PROGRAM: &str = env!("CARGO_BIN_EXE_fairlane-under-test");

/// Jobs that end in several ways.
async fn some_work(fleet: &Fleet) {
    for number in 0..12 {
        let prompt = match number % 4 {
            0 => "[[sim:refusal]] no",
            1 => "[[sim:once=529]] tags",
            _ => "tags",
        };
        let tenant = ["acme", "globex"][number % 2];
        fleet
            .publish(tenant, job(&format!("job-{number}"), prompt))
            .await;
    }
    for number in 0..12 {
        let wanted = if number % 4 == 0 {
            Phase::Failed
        } else {
            Phase::Done
        };
        let tenant = ["acme", "globex"][number % 2];
        fleet.phase(tenant, &format!("job-{number}"), wanted).await;
    }
    fleet.settled().await;
}

async fn what_is_pushed_is_what_is_scraped(protocol: &str) {
    let collector = Collector::start().await;
    let mut settings = collector.metrics_settings(protocol);
    let mut pages = Vec::new();
    for (role, key) in [
        ("producer", "producer.http_addr"),
        ("scheduler", "scheduler.http_addr"),
        ("worker", "worker.http_addr"),
    ] {
        let address = format!("127.0.0.1:{}", free_port().unwrap());
        pages.push((
            format!("fairlane-{role}"),
            format!("http://{address}/metrics"),
        ));
        settings.push((key, address));
    }
    let setup = Setup {
        settings,
        ..Setup::default()
    };
    let fleet = Fleet::start(PROGRAM, setup).await;
    some_work(&fleet).await;
    for (service, url) in &pages {
        // Some gauges move by themselves for a moment.
        eventually(PATIENCE, "push and scrape to agree", async || {
            let scraped = page(&get(url).await);
            let pushed = collector.series(service);
            let names = scraped.keys().chain(pushed.keys());
            let differ: Vec<String> = names
                .filter(|name| scraped.get(*name) != pushed.get(*name))
                .map(|name| format!("{name}: {:?} {:?}", scraped.get(name), pushed.get(name)))
                .collect();
            if differ.is_empty() && scraped.len() > 5 {
                Ok(())
            } else {
                Err(format!("{service}: {differ:#?}"))
            }
        })
        .await;
    }
    let worker = collector.series("fairlane-worker");
    assert_eq!(worker["fairlane_jobs_total{outcome=\"done\"}"], 9.0);
    assert_eq!(worker["fairlane_jobs_total{outcome=\"dead\"}"], 3.0);
    assert_eq!(worker["fairlane_metric_pushes_failed_total{}"], 0.0);
    let leader = collector.series("fairlane-scheduler");
    assert_eq!(leader["fairlane_leader{}"], 1.0);
    let keys = collector.keys();
    assert!(keys.iter().all(|key| key == "open sesame"), "{keys:?}");
    assert!(!keys.is_empty());
}

#[tokio::test]
async fn what_is_pushed_over_http_is_what_is_scraped() {
    what_is_pushed_is_what_is_scraped("http/protobuf").await;
}

#[tokio::test]
async fn what_is_pushed_over_grpc_is_what_is_scraped() {
    what_is_pushed_is_what_is_scraped("grpc").await;
}

#[tokio::test]
async fn a_process_that_ends_pushes_a_last_time() {
    let collector = Collector::start().await;
    let mut settings = collector.metrics_settings("http/protobuf");
    // So seldom that nothing but the end can be it.
    settings.push(("telemetry.otlp_metrics_every_ms", "3600000".to_owned()));
    let setup = Setup {
        settings,
        ..Setup::default()
    };
    let mut fleet = Fleet::start(PROGRAM, setup).await;
    some_work(&fleet).await;
    let done = "fairlane_jobs_total{outcome=\"done\"}";
    let before = collector.series("fairlane-worker");
    assert_ne!(before.get(done), Some(&9.0), "it was pushed before the end");
    fleet.workers[0].signal(Signal::SIGTERM);
    within(PATIENCE, "the worker to end", fleet.workers[0].end()).await;
    assert_eq!(collector.series("fairlane-worker")[done], 9.0);
}

#[tokio::test]
async fn a_collector_that_hangs_or_refuses_costs_nothing_but_a_counter() {
    // Accepts and never answers.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hanging = format!("http://{}", silent.local_addr().unwrap());
    // Nothing listens on the discard port.
    for (endpoint, protocol) in [
        (hanging.as_str(), "grpc"),
        ("http://127.0.0.1:9", "http/protobuf"),
    ] {
        let port = free_port().unwrap();
        let settings = [
            ("telemetry.otlp_metrics_endpoint", endpoint.to_owned()),
            ("telemetry.otlp_metrics_every_ms", "100".to_owned()),
            ("telemetry.otlp_protocol", protocol.to_owned()),
            ("worker.http_addr", format!("127.0.0.1:{port}")),
        ];
        let setup = Setup {
            settings: settings.to_vec(),
            ..Setup::default()
        };
        let mut fleet = Fleet::start(PROGRAM, setup).await;
        some_work(&fleet).await;
        let url = format!("http://127.0.0.1:{port}/metrics");
        eventually(PATIENCE, "the loss to be counted", async || {
            let failed = page(&get(&url).await)["fairlane_metric_pushes_failed_total{}"];
            if failed > 0.0 {
                Ok(())
            } else {
                Err(format!("{endpoint} {protocol}: {failed}"))
            }
        })
        .await;
        let worker = &mut fleet.workers[0];
        worker.signal(Signal::SIGTERM);
        within(PATIENCE, "the worker to end", worker.end()).await;
        let log = worker.log();
        let told = log
            .lines()
            .filter(|line| line.contains("does not take metrics"));
        assert_eq!(told.count(), 1, "it is told once:\n{log}");
    }
}
