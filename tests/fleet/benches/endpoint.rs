//! What a call costs in time by going through the HTTP API instead of to the upstream directly.
//!
//! ```text
//! cargo bench -p fairlane-fleet-tests --bench endpoint [-- PAIRS]
//! ```
//!
//! Idle fleet, real processes, loopback, a simulator without latency. PAIRS (500) times the same call is made to
//! the simulator and to the endpoint, taking turns in who is first, plain and streamed:
//!
//! - plain: from sending the request to having the whole answer;
//! - streamed: from sending the request to the first text of the answer, and to its end.
//!
//! The simulator, NATS, the fleet and this bench share the machine, so what is added is the processor time of all
//! of them, one after the other. Where that goes is told from the job's record and from the processes' own times.

#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

use std::time::{Duration, Instant};

use fairlane_fleet_tests::api::{Caller, message};
use fairlane_fleet_tests::load::processor;
use fairlane_fleet_tests::{Fleet, Setup};
use futures::StreamExt;
use reqwest::Method;

const PROGRAM: &str = env!("CARGO_BIN_EXE_fairlane-under-test");
const PAIRS: usize = 500;
/// The first calls open connections and fill caches.
const WARM: usize = 50;
const TARGET: Duration = Duration::from_millis(4);
const FIRST_TEXT: &[u8] = b"content_block_delta";

#[tokio::main]
async fn main() {
    let pairs = std::env::args()
        .find_map(|argument| argument.parse().ok())
        .unwrap_or(PAIRS);
    let setup = Setup {
        schedulers: 2,
        workers: 2,
        settings: vec![("telemetry.log", "info".to_owned())],
        api: true,
        ..Setup::default()
    };
    let fleet = Fleet::start(PROGRAM, setup).await;
    let endpoint = fleet.caller_of("bench").await;
    let direct = Caller::new(&fleet.sim.url()).with("sk-test-key");
    for number in 0..WARM {
        plain(&direct, number).await;
        plain(&endpoint, number).await;
        streamed(&endpoint, number).await;
    }
    let began = Instant::now();
    let before = processor(&fleet);
    let (mut plain_times, mut first, mut whole) =
        (Pairs::default(), Pairs::default(), Pairs::default());
    for number in 0..pairs {
        // Who is first meets a machine that was busy with the other one.
        if number % 2 == 0 {
            plain_times.direct.push(plain(&direct, number).await);
            plain_times.endpoint.push(plain(&endpoint, number).await);
        } else {
            plain_times.endpoint.push(plain(&endpoint, number).await);
            plain_times.direct.push(plain(&direct, number).await);
        }
        let (direct_times, endpoint_times) = if number % 2 == 0 {
            let direct = streamed(&direct, number).await;
            (direct, streamed(&endpoint, number).await)
        } else {
            let endpoint = streamed(&endpoint, number).await;
            (streamed(&direct, number).await, endpoint)
        };
        first.direct.push(direct_times.0);
        first.endpoint.push(endpoint_times.0);
        whole.direct.push(direct_times.1);
        whole.endpoint.push(endpoint_times.1);
    }
    println!("{pairs} pairs in {:.1} s", began.elapsed().as_secs_f64());
    plain_times.print("plain, whole answer", true);
    first.print("streamed, first text", true);
    whole.print("streamed, whole answer", false);
    let calls = 2 * pairs;
    let used = before.iter().zip(processor(&fleet));
    let used = used.map(|((name, before), (_, after))| {
        #[expect(clippy::cast_precision_loss, reason = "a few thousand calls")]
        let micros = (after - before) * 1e6 / calls as f64;
        format!("{name} {micros:.0}")
    });
    let used: Vec<String> = used.collect();
    println!(
        "processor microseconds per call through the endpoint: {}",
        used.join(", ")
    );
}

#[derive(Default)]
struct Pairs {
    direct: Vec<Duration>,
    endpoint: Vec<Duration>,
}

impl Pairs {
    fn print(mut self, what: &str, has_target: bool) {
        self.direct.sort_unstable();
        self.endpoint.sort_unstable();
        let at = |times: &[Duration], part: usize| {
            times[(times.len() * part / 100).min(times.len() - 1)]
        };
        let parts: Vec<String> = [50, 95]
            .into_iter()
            .map(|part| {
                let (direct, endpoint) = (at(&self.direct, part), at(&self.endpoint, part));
                let added = endpoint.saturating_sub(direct);
                format!(
                    "p{part} direct {direct:>9.2?} endpoint {endpoint:>9.2?} added {added:>9.2?}"
                )
            })
            .collect();
        let added = at(&self.endpoint, 50).saturating_sub(at(&self.direct, 50));
        let verdict = match (has_target, added <= TARGET) {
            (false, _) => "",
            (true, true) => "  within 4 ms",
            (true, false) => "  MORE THAN 4 ms",
        };
        println!("{what:<24} {}{verdict}", parts.join("   "));
    }
}

/// How long a whole answer takes.
async fn plain(caller: &Caller, number: usize) -> Duration {
    let began = Instant::now();
    let answer = caller
        .post("/v1/messages", &message(&format!("tags {number}")))
        .await;
    let took = began.elapsed();
    assert_eq!(answer.status, 200, "{}", answer.text);
    took
}

/// How long the first text takes, and the whole answer.
async fn streamed(caller: &Caller, number: usize) -> (Duration, Duration) {
    let mut body = message(&format!("tags {number}"));
    body["stream"] = true.into();
    let began = Instant::now();
    let request = caller.request(Method::POST, "/v1/messages").json(&body);
    let answer = request.send().await.expect("an answer");
    assert_eq!(answer.status(), 200);
    let mut chunks = answer.bytes_stream();
    let (mut read, mut first) = (Vec::new(), None);
    while let Some(chunk) = chunks.next().await {
        read.extend_from_slice(&chunk.expect("a whole stream"));
        if first.is_none()
            && read
                .windows(FIRST_TEXT.len())
                .any(|found| found == FIRST_TEXT)
        {
            first = Some(began.elapsed());
        }
    }
    let text = String::from_utf8_lossy(&read);
    assert!(text.contains("event: message_stop"), "{text}");
    (first.expect("some text"), began.elapsed())
}
