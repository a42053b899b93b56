//! What tracing costs: jobs per second and processor time with all traces sent, against none.
//!
//! ```text
//! cargo bench -p fairlane-fleet-tests --bench tracing [-- JOBS]
//! ```
//!
//! Two fleets stand side by side, at a simulator without latency; they are loaded in turns, in pairs, so that a slow
//! moment of the machine meets both. The collector takes everything and looks at nothing: it would be elsewhere.

#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

use fairlane_fleet_tests::load::{processor, throughput};
use fairlane_fleet_tests::{Fleet, Setup};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const PROGRAM: &str = env!("CARGO_BIN_EXE_fairlane-under-test");
const PAIRS: usize = 7;

#[tokio::main]
async fn main() {
    // cargo passes `--bench`; a number is the number of jobs.
    let jobs = std::env::args()
        .find_map(|argument| argument.parse().ok())
        .unwrap_or(3_000);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let endpoint = format!("http://{}", listener.local_addr().expect("its address"));
    let sink = tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            tokio::spawn(swallow(connection));
        }
    });
    let off = start(Vec::new()).await;
    let on = start(vec![("telemetry.otlp_endpoint", endpoint)]).await;
    // The first jobs find cold caches.
    run(&off, "warm", jobs).await;
    run(&on, "warm", jobs).await;
    let (mut rates, mut times) = (Vec::new(), Vec::new());
    for pair in 0..PAIRS {
        let name = format!("pair-{pair}");
        // Each comes first as often.
        let (without, with) = if pair % 2 == 0 {
            let without = run(&off, &name, jobs).await;
            (without, run(&on, &name, jobs).await)
        } else {
            let with = run(&on, &name, jobs).await;
            (run(&off, &name, jobs).await, with)
        };
        println!(
            "off {:>6.0} jobs/s {:>6.0} us/job    on {:>6.0} jobs/s {:>6.0} us/job",
            without.0, without.1, with.0, with.1
        );
        rates.push(with.0 / without.0);
        times.push(with.1 / without.1);
    }
    sink.abort();
    println!("median of {PAIRS} pairs, on / off, {jobs} jobs each:");
    println!("jobs per second  {:>6.3}", median(&mut rates));
    println!("processor time   {:>6.3}", median(&mut times));
}

async fn start(mut settings: Vec<(&'static str, String)>) -> Fleet {
    settings.extend([
        ("worker.slots", "128".to_owned()),
        ("telemetry.log", "warn".to_owned()),
    ]);
    let setup = Setup {
        workers: 2,
        settings,
        ..Setup::default()
    };
    Fleet::start(PROGRAM, setup).await
}

/// Jobs per second, and processor microseconds per job of the fleet's processes and its nats-server.
#[expect(clippy::cast_precision_loss, reason = "a few thousand jobs")]
async fn run(fleet: &Fleet, name: &str, jobs: usize) -> (f64, f64) {
    let used = |fleet: &Fleet| -> f64 {
        let parts = processor(fleet);
        let of_fleet = parts.iter().filter(|(part, _)| !part.starts_with("bench"));
        of_fleet.map(|(_, seconds)| seconds).sum()
    };
    let before = used(fleet);
    let rate = throughput(fleet, name, jobs).await;
    (rate, (used(fleet) - before) * 1e6 / jobs as f64)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Answers each request with success.
async fn swallow(mut connection: TcpStream) {
    let mut buffer = vec![0; 64 * 1024];
    let mut seen = Vec::new();
    loop {
        let (Some(head), length) = head_and_length(&seen) else {
            match connection.read(&mut buffer).await {
                Ok(0) | Err(_) => return,
                Ok(read) => seen.extend_from_slice(&buffer[..read]),
            }
            continue;
        };
        let mut missing = (head + length).saturating_sub(seen.len());
        while missing > 0 {
            match connection.read(&mut buffer).await {
                Ok(0) | Err(_) => return,
                Ok(read) => missing = missing.saturating_sub(read),
            }
        }
        seen.clear();
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        if connection.write_all(answer).await.is_err() {
            return;
        }
    }
}

/// Where the head of a request ends, and how long its body is.
fn head_and_length(seen: &[u8]) -> (Option<usize>, usize) {
    let Some(end) = seen.windows(4).position(|part| part == b"\r\n\r\n") else {
        return (None, 0);
    };
    let head = String::from_utf8_lossy(&seen[..end]).to_ascii_lowercase();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length:"));
    let length = length.and_then(|length| length.trim().parse().ok());
    (Some(end + 4), length.unwrap_or(0))
}
