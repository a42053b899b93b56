//! Traces of whole fleets, as a collector gets them.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::time::Duration;

use fairlane_fleet_tests::{Collector, Fleet, PATIENCE, Seen, Setup, get, job};
use fairlane_nats::HeaderMap;
use fairlane_sim::SimConfig;
use fairlane_support::{eventually, within};
use fairlane_wire::{JobRecord, Phase};
use nix::sys::signal::Signal;
use serde_json::json;

const PROGRAM: &str = env!("CARGO_BIN_EXE_fairlane-under-test");
const SECRET_PROMPT: &str = "zanzibar-quokka-7731";

fn tagging(id: &str) -> String {
    json!({"id": id, "origin": "user_action", "kind": "tagging", "request": {
        "model": "claude-sonnet-4-6", "max_tokens": 4_096,
        "messages": [{"role": "user", "content": format!("{id}: {SECRET_PROMPT}")}]}})
    .to_string()
}

fn plus(
    collector: &Collector,
    protocol: &str,
    more: &[(&'static str, &str)],
) -> Vec<(&'static str, String)> {
    let mut settings = collector.settings(protocol);
    let more = more.iter().map(|(key, value)| (*key, (*value).to_owned()));
    settings.extend(more);
    settings
}

/// The trace of a job, once it has as many spans of these names.
async fn trace_with(
    collector: &Collector,
    record: &JobRecord,
    wanted: &[(&str, usize)],
) -> Vec<Seen> {
    trace_once(collector, record, wanted, |_| true).await
}

/// The same, once the parents of all are there too: each process sends its spans when it likes.
async fn tree_with(
    collector: &Collector,
    record: &JobRecord,
    wanted: &[(&str, usize)],
) -> Vec<Seen> {
    let spans = trace_once(collector, record, wanted, has_all_parents).await;
    is_one_tree(&spans);
    spans
}

async fn trace_once(
    collector: &Collector,
    record: &JobRecord,
    wanted: &[(&str, usize)],
    is_whole: impl Fn(&[Seen]) -> bool,
) -> Vec<Seen> {
    let id = record.trace_id.clone().expect("the record names its trace");
    eventually(PATIENCE, "the whole trace", async || {
        let spans = collector.trace(&id);
        let count = |name: &str| spans.iter().filter(|span| span.name == name).count();
        if wanted.iter().all(|(name, times)| count(name) >= *times) && is_whole(&spans) {
            Ok(spans)
        } else {
            let names: Vec<String> = spans.iter().map(|span| span.name.clone()).collect();
            Err(format!("{id}: {names:?}"))
        }
    })
    .await
}

fn named<'a>(spans: &'a [Seen], name: &str) -> Vec<&'a Seen> {
    spans.iter().filter(|span| span.name == name).collect()
}

fn parent<'a>(spans: &'a [Seen], span: &Seen) -> &'a Seen {
    let parent = spans.iter().find(|other| other.id == span.parent);
    parent.unwrap_or_else(|| panic!("{} has a parent outside its trace", span.name))
}

fn has_all_parents(spans: &[Seen]) -> bool {
    let mut below = spans.iter().filter(|span| !span.parent.is_empty());
    below.all(|span| spans.iter().any(|other| other.id == span.parent))
}

/// One tree: one root, and every other span's parent is in it.
fn is_one_tree(spans: &[Seen]) {
    let roots: Vec<&Seen> = spans.iter().filter(|span| span.parent.is_empty()).collect();
    assert_eq!(roots.len(), 1, "{roots:?}");
    for span in spans.iter().filter(|span| !span.parent.is_empty()) {
        let parent = parent(spans, span);
        assert_ne!(parent.id, span.id);
        assert!(span.start <= span.end, "{span:?}");
    }
}

/// A fleet whose primary model is overloaded: jobs are tried, tried again, and answered by the lighter one.
async fn a_retry_and_a_fallback(protocol: &str) {
    let collector = Collector::start().await;
    let overload = serde_json::from_value(json!({"model": "claude-sonnet-4-6", "status": 529}));
    let setup = Setup {
        settings: plus(&collector, protocol, &[]),
        sim: SimConfig {
            faults: vec![overload.unwrap()],
            ..SimConfig::instant()
        },
        ..Setup::default()
    };
    let fleet = Fleet::start(PROGRAM, setup).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("jobs.jsonl");
    let lines: Vec<String> = (0..12)
        .map(|number| tagging(&format!("tags-{number}")))
        .collect();
    std::fs::write(&file, lines.join("\n")).unwrap();
    let file = file.to_str().unwrap();
    let submitted = fleet.run(&["submit", file, "--tenant", "acme"]).await;
    assert!(submitted.status.success(), "{submitted:?}");
    let mut tried = None;
    for number in 0..12 {
        let record = fleet
            .phase("acme", &format!("tags-{number}"), Phase::Done)
            .await;
        if record.tries.len() == 2 {
            tried.get_or_insert(record);
        }
    }
    let record = tried.expect("a job that was tried again, and then answered by the lighter model");
    let spans = tree_with(
        &collector,
        &record,
        &[
            ("submit fl.submit", 1),
            ("accept fl.submit", 1),
            ("queue wait", 2),
            ("grant fl.credit", 2),
            ("process fl.jobs", 2),
            ("chat claude-sonnet-4-6", 1),
            ("chat claude-haiku-4-5", 1),
            ("settle fl_credits", 2),
        ],
    )
    .await;

    let submit = named(&spans, "submit fl.submit")[0];
    assert_eq!(
        (submit.kind, submit.service.as_str()),
        ("producer", "fairlane-submit")
    );
    let accept = named(&spans, "accept fl.submit")[0];
    assert_eq!(
        (accept.kind, accept.service.as_str()),
        ("consumer", "fairlane-producer")
    );
    assert_eq!(parent(&spans, accept).id, submit.id);
    assert_eq!(accept.get("messaging.system"), "nats");
    assert_eq!(accept.get("messaging.operation.type"), "process");
    assert_eq!(accept.get("messaging.destination.name"), "fl.submit.acme");
    let waits = named(&spans, "queue wait");
    let grants = named(&spans, "grant fl.credit");
    assert_eq!((waits.len(), grants.len()), (2, 2));
    for (wait, grant) in waits.iter().zip(&grants) {
        assert_eq!(wait.service, "fairlane-scheduler");
        assert_eq!((wait.kind, grant.kind), ("internal", "producer"));
        assert_eq!(wait.parent, accept.id);
        assert_eq!(grant.parent, accept.id);
        assert!(wait.end <= grant.start, "it waits until it is granted");
    }
    let deliveries = named(&spans, "process fl.jobs");
    for (number, delivery) in deliveries.iter().enumerate() {
        assert_eq!(
            (delivery.kind, delivery.service.as_str()),
            ("consumer", "fairlane-worker")
        );
        assert_eq!(delivery.parent, grants[number].id);
        for (name, value) in [
            ("tenant", "acme"),
            ("job", record.job.as_str()),
            ("kind", "tagging"),
            ("priority", "critical"),
            ("delivery", &(number + 1).to_string()),
            ("attempt", &(number + 1).to_string()),
        ] {
            assert_eq!(delivery.get(name), value, "{name}");
        }
    }
    assert_eq!(deliveries[0].get("outcome"), "retry");
    assert_eq!(deliveries[1].get("outcome"), "done");

    let first = named(&spans, "chat claude-sonnet-4-6")[0];
    let second = named(&spans, "chat claude-haiku-4-5")[0];
    assert_eq!((first.kind, second.kind), ("client", "client"));
    assert_eq!(first.parent, deliveries[0].id);
    assert_eq!(second.parent, deliveries[1].id);
    assert!(first.failed && !second.failed);
    assert_eq!(first.get("error.type"), "overloaded");
    assert_eq!(first.get("http.response.status_code"), "529");
    for (name, value) in [
        ("gen_ai.operation.name", "chat"),
        ("gen_ai.provider.name", "anthropic"),
        ("gen_ai.request.model", "claude-haiku-4-5"),
        ("gen_ai.response.model", "claude-haiku-4-5-20251001"),
        ("gen_ai.response.finish_reasons", "end_turn"),
        ("attempt", "2"),
        ("priority", "critical"),
        ("pool", "haiku-4.5"),
    ] {
        assert_eq!(second.get(name), value, "{name}");
    }
    let usage = record.usage.unwrap();
    assert_eq!(
        second.get("gen_ai.usage.input_tokens"),
        usage.prompt().to_string()
    );
    assert_eq!(
        second.get("gen_ai.usage.output_tokens"),
        usage.output_tokens.to_string()
    );
    assert!(
        second.get("gen_ai.response.id").starts_with("msg_"),
        "{second:?}"
    );
    assert_eq!(
        Some(second.get("anthropic.request_id")),
        record.tries[1].request_id.as_deref()
    );
    let result = named(&spans, "result");
    assert_eq!(result.len(), 1, "an outcome is stored once");
    assert_eq!(result[0].parent, deliveries[1].id);
    let settled = named(&spans, "settle fl_credits");
    assert_eq!(settled[1].parent, deliveries[1].id);

    // The upstream was told where it is.
    let calls = fleet.sim.log();
    let ours = calls
        .iter()
        .filter(|call| call.job.as_deref() == Some(record.job.as_str()));
    assert_eq!(ours.count(), 2);
    assert!(
        collector.keys().iter().all(|key| key == "open sesame"),
        "headers are sent"
    );
    assert!(!collector.keys().is_empty());

    let shown = fleet
        .run(&["status", &format!("acme/{}", record.job)])
        .await;
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(
        shown.contains(record.trace_id.as_deref().unwrap()),
        "{shown}"
    );
}

#[tokio::test]
async fn a_job_with_a_retry_and_a_fallback_is_one_tree_over_http() {
    a_retry_and_a_fallback("http/protobuf").await;
}

#[tokio::test]
async fn a_job_with_a_retry_and_a_fallback_is_one_tree_over_grpc() {
    a_retry_and_a_fallback("grpc").await;
}

#[tokio::test]
async fn a_letter_sent_again_has_a_trace_of_its_own_that_points_to_the_first_one() {
    let collector = Collector::start().await;
    let setup = Setup {
        settings: plus(&collector, "http/protobuf", &[]),
        ..Setup::default()
    };
    let fleet = Fleet::start(PROGRAM, setup).await;
    fleet
        .publish("acme", job("bad", "[[sim:refusal]] no"))
        .await;
    let first = fleet.phase("acme", "bad", Phase::Failed).await;
    let shown = fleet.run(&["dlq", "show", "acme/bad"]).await;
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(
        shown.contains(first.trace_id.as_deref().unwrap()),
        "{shown}"
    );
    let spans = tree_with(
        &collector,
        &first,
        &[("settle fl_credits", 1), ("accept fl.submit", 1)],
    )
    .await;
    let delivery = named(&spans, "process fl.jobs")[0];
    assert!(delivery.failed);
    assert_eq!(delivery.get("error.type"), "refusal");

    let sent = fleet.run(&["dlq", "redrive", "acme/bad", "--yes"]).await;
    assert!(sent.status.success(), "{sent:?}");
    let again = eventually(PATIENCE, "it to fail again", async || {
        let record = fleet.record("acme", "bad").await.unwrap();
        match (record.phase, record.redrive_of) {
            (Phase::Failed, Some(_)) => Ok(record),
            _ => Err(format!("{record:?}")),
        }
    })
    .await;
    assert_ne!(again.trace_id, first.trace_id);
    let later = tree_with(
        &collector,
        &again,
        &[("settle fl_credits", 1), ("accept fl.submit", 1)],
    )
    .await;
    let accept = named(&spans, "accept fl.submit")[0];
    let linked = &named(&later, "accept fl.submit")[0].links;
    assert_eq!(linked[..], [(accept.trace.clone(), accept.id.clone())]);
}

#[tokio::test]
async fn a_publishers_trace_goes_on_and_its_choice_counts_unless_the_job_fails() {
    let collector = Collector::start().await;
    let slow = [("telemetry.keep_slow_critical_ms", "0")];
    let setup = Setup {
        settings: plus(&collector, "http/protobuf", &slow),
        ..Setup::default()
    };
    let fleet = Fleet::start(PROGRAM, setup).await;
    let trace = |number: u32| format!("4bf92f3577b34da6a3ce929d0e0e47{number:02}");
    for (number, sampled, prompt) in [
        (1, "01", "tags"),
        (2, "00", "tags"),
        (3, "00", "[[sim:refusal]] no"),
    ] {
        let mut headers = HeaderMap::new();
        let parent = format!("00-{}-00f067aa0ba902b7-{sampled}", trace(number));
        headers.insert("traceparent", parent);
        let body = job(&format!("job-{number}"), prompt);
        let jetstream = &fleet.client().jetstream;
        let sent = jetstream.publish_with_headers("fl.submit.acme", headers, body.into());
        sent.await.unwrap().await.unwrap();
        let phase = if number == 3 {
            Phase::Failed
        } else {
            Phase::Done
        };
        let record = fleet.phase("acme", &format!("job-{number}"), phase).await;
        assert_eq!(record.trace_id, Some(trace(number)));
    }
    // The one that failed was not chosen, and every process sends its part of it.
    let names = [
        "accept fl.submit",
        "queue wait",
        "grant fl.credit",
        "process fl.jobs",
        "chat claude-haiku-4-5",
        "result",
    ];
    for number in [1, 3] {
        let spans = eventually(PATIENCE, "a trace", async || {
            let spans = collector.trace(&trace(number));
            if names.iter().all(|name| !named(&spans, name).is_empty()) {
                Ok(spans)
            } else {
                Err(format!(
                    "{:?}",
                    spans.iter().map(|span| &span.name).collect::<Vec<_>>()
                ))
            }
        })
        .await;
        assert_eq!(
            named(&spans, "accept fl.submit")[0].parent,
            "00f067aa0ba902b7"
        );
    }
    // Nothing of the other one is under way any more once the processes have sent all they have.
    drop(stop(fleet).await);
    assert_eq!(collector.trace(&trace(2)), []);
}

/// Ends all roles in good order.
async fn stop(mut fleet: Fleet) -> Fleet {
    let (producers, schedulers, workers) = (
        &mut fleet.producers,
        &mut fleet.schedulers,
        &mut fleet.workers,
    );
    for process in producers.iter_mut().chain(schedulers).chain(workers) {
        process.signal(Signal::SIGTERM);
        assert!(process.end().await.success());
    }
    fleet
}

#[tokio::test]
async fn what_people_say_and_what_opens_doors_stands_in_no_log_and_no_span() {
    let collector = Collector::start().await;
    let settings = [
        ("claude.api_key", "sk-very-secret-key-9"),
        ("telemetry.log", "debug"),
    ];
    let setup = Setup {
        settings: plus(&collector, "http/protobuf", &settings),
        ..Setup::default()
    };
    let fleet = Fleet::start(PROGRAM, setup).await;
    let said = |flags: &str| format!("{flags} {SECRET_PROMPT}");
    let mut bodies: Vec<(String, Phase)> = [
        ("good", "", Phase::Done),
        ("again", "[[sim:once=529]]", Phase::Done),
        ("refused", "[[sim:refusal]]", Phase::Failed),
        ("poison", "[[sim:status=400]]", Phase::Failed),
    ]
    .map(|(id, flags, phase)| (job(id, &said(flags)), phase))
    .to_vec();
    // What is wrong before it is a job.
    let wrong = json!({"id": "wrong", "origin": SECRET_PROMPT, "kind": "tagging", "request": {}});
    bodies.push((wrong.to_string(), Phase::Failed));
    let schema = json!({"type": "object", "required": [SECRET_PROMPT]});
    let mut broken: serde_json::Value = serde_json::from_str(&job("broken", &said(""))).unwrap();
    broken["output_schema"] = schema;
    bodies.push((broken.to_string(), Phase::Failed));
    for (body, _) in &bodies {
        fleet.publish("acme", body.clone()).await;
    }
    fleet
        .publish("acme", format!("no job: {SECRET_PROMPT}"))
        .await;
    for (body, phase) in &bodies {
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        fleet
            .phase("acme", body["id"].as_str().unwrap(), *phase)
            .await;
    }
    let record = fleet.record("acme", "good").await.unwrap();
    trace_with(&collector, &record, &[("chat claude-haiku-4-5", 1)]).await;
    let fleet = stop(fleet).await;
    for entry in std::fs::read_dir(fleet.logs()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "log") {
            continue;
        }
        let log = std::fs::read_to_string(&path).unwrap();
        for secret in [SECRET_PROMPT, "sk-very-secret-key-9", "sesame"] {
            let line = log.lines().find(|line| line.contains(secret));
            assert_eq!(line, None, "{}", path.display());
        }
        assert!(
            log.lines().all(|line| line.starts_with('{')),
            "JSON, line by line"
        );
        if path
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .starts_with("worker")
        {
            let retry = log
                .lines()
                .find(|line| line.contains("\"retrying\""))
                .unwrap();
            let retry: serde_json::Value = serde_json::from_str(retry).unwrap();
            let record = fleet.record("acme", "again").await.unwrap();
            assert_eq!(retry["span"]["job"], "again");
            assert_eq!(retry["span"]["trace_id"], record.trace_id.unwrap());
        }
    }
    for secret in [SECRET_PROMPT, "sk-very-secret-key-9"] {
        assert!(!collector.has_seen(secret), "{secret}");
    }
}

#[tokio::test]
async fn prompts_and_answers_stand_in_spans_if_that_is_wanted() {
    let collector = Collector::start().await;
    let settings = [
        ("telemetry.content", "yes"),
        ("telemetry.content_chars_max", "60"),
    ];
    let setup = Setup {
        settings: plus(&collector, "http/protobuf", &settings),
        ..Setup::default()
    };
    let fleet = Fleet::start(PROGRAM, setup).await;
    let prompt = format!("{SECRET_PROMPT} {}", "x".repeat(500));
    fleet.publish("acme", job("told", &prompt)).await;
    let record = fleet.phase("acme", "told", Phase::Done).await;
    let spans = trace_with(&collector, &record, &[("chat claude-haiku-4-5", 1)]).await;
    let chat = named(&spans, "chat claude-haiku-4-5")[0];
    let (input, output) = (
        chat.get("gen_ai.input.messages"),
        chat.get("gen_ai.output.messages"),
    );
    assert!(
        input.contains(SECRET_PROMPT) && input.ends_with("..."),
        "{input}"
    );
    assert_eq!(input.chars().count(), 63);
    assert!(!output.is_empty());
}

#[tokio::test]
async fn a_collector_that_hangs_or_refuses_costs_nothing_but_a_counter() {
    // Accepts and never answers.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hanging = format!("http://{}", silent.local_addr().unwrap());
    let held = tokio::spawn(async move {
        let mut connections = Vec::new();
        while let Ok((connection, _)) = silent.accept().await {
            connections.push(connection);
        }
    });
    // Nothing listens on the discard port.
    for (endpoint, protocol) in [
        (hanging.as_str(), "http/protobuf"),
        (hanging.as_str(), "grpc"),
        ("http://127.0.0.1:9", "http/protobuf"),
        ("http://127.0.0.1:9", "grpc"),
    ] {
        let port = fairlane_nats::embedded::free_port().unwrap();
        let settings = [
            ("telemetry.otlp_endpoint", endpoint.to_owned()),
            ("telemetry.otlp_protocol", protocol.to_owned()),
            ("worker.http_addr", format!("127.0.0.1:{port}")),
        ];
        let setup = Setup {
            settings: settings.to_vec(),
            ..Setup::default()
        };
        let fleet = Fleet::start(PROGRAM, setup).await;
        for number in 0..20 {
            fleet
                .publish("acme", job(&format!("job-{number}"), "tags"))
                .await;
        }
        for number in 0..20 {
            fleet
                .phase("acme", &format!("job-{number}"), Phase::Done)
                .await;
        }
        let metrics = format!("http://127.0.0.1:{port}/metrics");
        eventually(PATIENCE, "the loss to be counted", async || {
            let metrics = get(&metrics).await;
            let counted = metrics.lines().find_map(|line| {
                line.strip_prefix("fairlane_spans_dropped_total{reason=\"not_taken\"} ")
            });
            match counted.and_then(|count| count.parse::<f64>().ok()) {
                Some(count) if count > 0.0 => Ok(()),
                other => Err(format!("{endpoint} {protocol}: {other:?}")),
            }
        })
        .await;
        let began = std::time::Instant::now();
        let fleet = within(PATIENCE, "a fleet to stop", stop(fleet)).await;
        assert!(
            began.elapsed() < Duration::from_secs(30),
            "the last flush is bounded"
        );
        let log = fleet.workers[0].log();
        let told = log
            .lines()
            .filter(|line| line.contains("does not take traces"));
        assert_eq!(told.count(), 1, "it is told once");
    }
    held.abort();
}
