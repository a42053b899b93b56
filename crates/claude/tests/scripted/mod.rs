//! A server that follows a script: for each request, in order of arrival, what to send and how to end.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// One step of an answer.
#[derive(Debug, Clone)]
pub(crate) enum Act {
    Send(Vec<u8>),
    /// Sends the bytes again and again, with a pause between, until the client goes away.
    Repeat(Vec<u8>, Duration),
    Wait(Duration),
    /// Ends the connection in good order.
    Close,
    /// Ends it with a TCP reset.
    Reset,
    /// Says nothing more until the client goes away.
    Stall,
}

/// What the client sent.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    /// Request line and header lines, in lower case.
    pub(crate) head: String,
    pub(crate) body: String,
}

#[derive(Debug, Default)]
struct State {
    scripts: VecDeque<Vec<Act>>,
    seen: Vec<Seen>,
}

/// The server. It ends, with all its connections, when it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) url: String,
    state: Arc<Mutex<State>>,
    /// Connections accepted, and connections the client has ended.
    counts: watch::Receiver<(usize, usize)>,
    _tasks: JoinSet<()>,
}

impl Server {
    /// A server that answers its n-th request with the n-th script, and further ones not at all.
    pub(crate) async fn start(scripts: Vec<Vec<Act>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(State {
            scripts: scripts.into(),
            seen: Vec::new(),
        }));
        let (count, counts) = watch::channel((0, 0));
        let mut tasks = JoinSet::new();
        let shared = Arc::clone(&state);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let Ok((stream, _)) = listener.accept().await else {
                    return;
                };
                count.send_modify(|(accepted, _)| *accepted += 1);
                let (state, count) = (Arc::clone(&shared), count.clone());
                connections.spawn(async move {
                    // An error means that the client went away, which some scripts wait for.
                    drop(serve(stream, &state).await);
                    count.send_modify(|(_, ended)| *ended += 1);
                });
            }
        });
        Self {
            url,
            state,
            counts,
            _tasks: tasks,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.state().seen.clone()
    }

    pub(crate) fn connections(&self) -> usize {
        self.counts.borrow().0
    }

    /// Waits until so many connections have ended.
    pub(crate) async fn ended(&self, count: usize) {
        let mut counts = self.counts.clone();
        let ended = counts.wait_for(|(_, ended)| *ended >= count);
        tokio::time::timeout(Duration::from_secs(10), ended)
            .await
            .unwrap()
            .unwrap();
    }
}

async fn serve(mut stream: TcpStream, state: &Mutex<State>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    loop {
        let seen = read_request(&mut stream).await?;
        let script = {
            let mut state = state.lock().unwrap();
            state.seen.push(seen);
            state
                .scripts
                .pop_front()
                .unwrap_or_else(|| vec![Act::Stall])
        };
        for act in script {
            match act {
                Act::Send(bytes) => stream.write_all(&bytes).await?,
                Act::Repeat(bytes, pause) => loop {
                    stream.write_all(&bytes).await?;
                    tokio::time::sleep(pause).await;
                },
                Act::Wait(pause) => tokio::time::sleep(pause).await,
                Act::Close => return stream.shutdown().await,
                Act::Reset => return stream.set_zero_linger(),
                Act::Stall => {
                    stream.read_u8().await?;
                }
            }
        }
    }
}

async fn read_request(stream: &mut TcpStream) -> io::Result<Seen> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    };
    let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
    let length: usize = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .map_or(0, |length| length.parse().unwrap());
    let mut body = bytes.split_off(end + 4);
    while body.len() < length {
        if stream.read_buf(&mut body).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(Seen {
        head,
        body: String::from_utf8_lossy(&body).into_owned(),
    })
}

/// An answer with a body of known length.
pub(crate) fn answer(status: &str, headers: &[(&str, &str)], body: impl AsRef<[u8]>) -> Act {
    let body = body.as_ref();
    let mut bytes = head(status, headers);
    bytes.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
    bytes.extend_from_slice(body);
    Act::Send(bytes)
}

/// The beginning of a chunked answer.
pub(crate) fn chunked(status: &str, headers: &[(&str, &str)]) -> Act {
    let mut bytes = head(status, headers);
    bytes.extend_from_slice(b"transfer-encoding: chunked\r\n\r\n");
    Act::Send(bytes)
}

fn head(status: &str, headers: &[(&str, &str)]) -> Vec<u8> {
    let mut text = format!("HTTP/1.1 {status}\r\n");
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    text.into_bytes()
}

/// A chunk of a chunked answer.
pub(crate) fn chunk(body: impl AsRef<[u8]>) -> Act {
    let body = body.as_ref();
    let mut bytes = format!("{:x}\r\n", body.len()).into_bytes();
    bytes.extend_from_slice(body);
    bytes.extend_from_slice(b"\r\n");
    Act::Send(bytes)
}

/// The end of a chunked answer.
pub(crate) fn last_chunk() -> Act {
    Act::Send(b"0\r\n\r\n".to_vec())
}

/// The bytes in gzip form, without compressing them.
pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
    let mut parts = bytes.chunks(1_000).peekable();
    while let Some(part) = parts.next() {
        let length = u16::try_from(part.len()).unwrap();
        out.push(u8::from(parts.peek().is_none()));
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(&(!length).to_le_bytes());
        out.extend_from_slice(part);
    }
    out.extend_from_slice(&crc32(bytes).to_le_bytes());
    out.extend_from_slice(&u32::try_from(bytes.len()).unwrap().to_le_bytes());
    out
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            if crc & 1 == 1 {
                crc >> 1 ^ 0xedb8_8320
            } else {
                crc >> 1
            }
        })
    })
}
