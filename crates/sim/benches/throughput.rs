//! Calls a second that one simulator serves with no latency, client included, over keep-alive connections.
//!
//! `cargo bench -p fairlane-sim --bench throughput -- [CONNECTIONS] [SECONDS]`; 32 connections and 4 seconds when
//! nothing is given. The client writes prepared bytes to a socket and looks only for the end of the answer: a real
//! HTTP client would cost more than the simulator and hide it.

#![expect(clippy::print_stdout, reason = "a benchmark prints its numbers")]

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use fairlane_sim::{Sim, SimConfig};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
};

const CONNECTIONS: usize = 32;
const SECONDS: u64 = 4;
const WARM_UP: Duration = Duration::from_millis(500);

fn main() -> anyhow::Result<()> {
    // Cargo itself adds --bench.
    let numbers: Vec<u64> = std::env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with("--"))
        .map(|arg| {
            arg.parse()
                .with_context(|| format!("`{arg}` is not a number"))
        })
        .collect::<anyhow::Result<_>>()?;
    let connections = match numbers.first() {
        Some(n) => usize::try_from(*n)?,
        None => CONNECTIONS,
    };
    let time = Duration::from_secs(numbers.get(1).copied().unwrap_or(SECONDS));
    tokio::runtime::Runtime::new()?.block_on(measure(connections, time))
}

async fn measure(connections: usize, time: Duration) -> anyhow::Result<()> {
    let sim = Sim::start(SimConfig::instant()).await?;
    println!("connections {connections}, {} s each", time.as_secs());
    for stream in [false, true] {
        rate(sim.addr(), stream, connections, WARM_UP).await?;
        let before = sim.stats().totals.calls;
        let (calls, seconds, mut waits) = rate(sim.addr(), stream, connections, time).await?;
        let served = sim.stats().totals.calls - before;
        if calls != served
            || sim
                .stats()
                .totals
                .by_status
                .keys()
                .any(|status| *status != 200)
        {
            bail!(
                "{calls} calls were answered, but {served} booked: {:?}",
                sim.stats().totals
            );
        }
        waits.sort_unstable();
        let at = |share: usize| waits[(waits.len() - 1) * share / 100].as_micros();
        println!(
            "{:<9} {:>8.0} calls/s   p50 {} us  p99 {} us",
            if stream { "streaming" } else { "plain" },
            f64::from(u32::try_from(calls)?) / seconds,
            at(50),
            at(99),
        );
    }
    sim.shutdown().await
}

async fn rate(
    addr: SocketAddr,
    stream: bool,
    connections: usize,
    time: Duration,
) -> anyhow::Result<(u64, f64, Vec<Duration>)> {
    let begun = Instant::now();
    let mut clients = JoinSet::new();
    for number in 0..connections {
        clients.spawn(client(addr, stream, number, begun + time));
    }
    let mut waits = Vec::new();
    while let Some(client) = clients.join_next().await {
        waits.extend(client??);
    }
    let calls = u64::try_from(waits.len())?;
    Ok((calls, begun.elapsed().as_secs_f64(), waits))
}

async fn client(
    addr: SocketAddr,
    stream: bool,
    number: usize,
    until: Instant,
) -> anyhow::Result<Vec<Duration>> {
    let mut socket = TcpStream::connect(addr).await?;
    socket.set_nodelay(true)?;
    let body = format!(
        r#"{{"model":"claude-haiku-4-5","max_tokens":128,"stream":{stream},"messages":[{{"role":"user","content":"Give five search tags for wallpaper {number}."}}]}}"#
    );
    let request = format!(
        "POST /v1/messages HTTP/1.1\r\nhost: sim\r\nx-api-key: sk-bench\r\nanthropic-version: 2023-06-01\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut waits = Vec::new();
    let mut buffer = Vec::with_capacity(64 * 1024);
    while Instant::now() < until {
        let sent = Instant::now();
        socket.write_all(request.as_bytes()).await?;
        buffer.clear();
        while !is_whole(&buffer)? {
            if socket.read_buf(&mut buffer).await? == 0 {
                bail!("the connection ended in the middle of an answer");
            }
        }
        waits.push(sent.elapsed());
    }
    Ok(waits)
}

/// Whether a whole answer is in the buffer: by its length, or by the chunk of length zero.
fn is_whole(buffer: &[u8]) -> anyhow::Result<bool> {
    let Some(head_end) = buffer.windows(4).position(|part| part == b"\r\n\r\n") else {
        return Ok(false);
    };
    let head = std::str::from_utf8(&buffer[..head_end])?;
    if !head.starts_with("HTTP/1.1 200") {
        bail!("refused: {head}");
    }
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    match length {
        Some(length) => Ok(buffer.len() == head_end + 4 + length.parse::<usize>()?),
        None => Ok(buffer.ends_with(b"\r\n0\r\n\r\n")),
    }
}
