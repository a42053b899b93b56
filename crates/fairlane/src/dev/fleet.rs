//! A whole fleet on one machine: NATS, the simulator and all roles, started in order and stopped in reverse.
//!
//! Every role is a child process with its own restarts; a nats-server of our own has its own guard against outliving
//! us. What happens to them comes out as notices.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use fairlane_nats::EmbeddedServer;
use fairlane_nats::embedded::{ServerOptions, free_port};
use fairlane_runtime::config::Secret;
use fairlane_runtime::drain::Signal;
use fairlane_runtime::install_crypto;
use fairlane_sim::config::Preset;
use fairlane_wire::TenantKey;
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::log::Log;
use super::member::{Member, Notice, Surroundings, url};
use super::plan::{Group, Plan, Spec, Upstream, api_env, console_env};
use super::state::Running;
use crate::exit::{Exit, Stop};
use crate::out::say;

/// Notices not yet heard; more are lost.
const NOTICES_MAX: usize = 256;
/// How long everything together may take to become ready.
const READY_MAX: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(25);
const LOOK_TIMEOUT: Duration = Duration::from_secs(2);
/// Deaths of one member before it was ready after which the start has failed.
const DEATHS_MAX: u32 = 3;
/// Pause before a nats-server that ended is started again.
const NATS_PAUSE: Duration = Duration::from_secs(1);

/// What to run.
#[derive(Debug)]
pub(crate) struct Options {
    /// A server that runs already.
    pub(crate) nats_url: Option<String>,
    /// Where everything is kept; a temporary directory if None.
    pub(crate) data: Option<PathBuf>,
    pub(crate) claude: Claude,
    pub(crate) preset: Preset,
    pub(crate) producers: u8,
    pub(crate) schedulers: u8,
    pub(crate) workers: u8,
    pub(crate) echo_logs: bool,
    pub(crate) config: Config,
}

/// Who answers jobs.
#[derive(Debug)]
pub(crate) enum Claude {
    Simulated { time_scale: f64 },
    Real { key: Secret, url: String },
}

/// Configuration passed on to all roles.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) file: Option<PathBuf>,
    pub(crate) namespace: String,
    pub(crate) set: Vec<(String, String)>,
    /// Only what is said here counts: no variables, and no file in the working directory.
    pub(crate) is_hermetic: bool,
}

/// A running fleet.
#[derive(Debug)]
pub(crate) struct Fleet {
    nats: Option<EmbeddedServer>,
    nats_url: String,
    namespace: String,
    upstream: Upstream,
    claude_url: String,
    members: Vec<Member>,
    notices: mpsc::Receiver<Notice>,
    kill: CancellationToken,
    logs: PathBuf,
    dir: PathBuf,
    /// Goes with us if it is a temporary one.
    temporary: Option<TempDir>,
    api_urls: Vec<String>,
    console_urls: Vec<String>,
    /// Keeps others out of the directory.
    _lock: File,
}

/// Something worth telling.
#[derive(Debug)]
pub(crate) enum News {
    Member(Notice),
    /// Our nats-server ended; it runs again, or this is why not.
    Nats(Result<(), String>),
}

impl Fleet {
    /// Starts everything and waits until it is ready. On failure, or a signal, all of it is stopped again.
    ///
    /// # Errors
    /// What did not start, with the end of its log.
    pub(crate) async fn start(
        options: Options,
        signals: &mut mpsc::Receiver<Signal>,
    ) -> Result<Self, Stop> {
        let mut fleet = tokio::select! {
            fleet = Box::pin(Self::prepare(&options)) => fleet?,
            Some(_) = signals.recv() => return Err(interrupted()),
        };
        let started = tokio::select! {
            started = Box::pin(fleet.start_members(options)) => started.map_err(Stop::from),
            Some(_) = signals.recv() => Err(interrupted()),
        };
        match started {
            Ok(()) => Ok(fleet),
            Err(stop) => {
                let logs = fleet.keep_logs();
                say(format_args!("logs are in {}", logs.display()));
                fleet.stop(signals).await;
                Err(stop)
            }
        }
    }

    /// NATS, and a place for everything.
    async fn prepare(options: &Options) -> anyhow::Result<Self> {
        install_crypto();
        let (dir, temporary) = directory(options.data.as_deref())?;
        let lock = lock(&dir)?;
        let logs = dir.join("logs");
        std::fs::create_dir_all(&logs)
            .with_context(|| format!("cannot create {}", logs.display()))?;
        let nats = match &options.nats_url {
            Some(_) => None,
            None => Some(own_nats(&dir).await?),
        };
        let nats_url = match (&nats, &options.nats_url) {
            (Some(server), _) => server.url().to_owned(),
            (None, url) => url.clone().unwrap_or_default(),
        };
        let simulator_port = free_port().context("cannot find a free port")?;
        let (upstream, claude_url) = match &options.claude {
            Claude::Real { key, url } => (Upstream::Claude { key: key.clone() }, url.clone()),
            Claude::Simulated { time_scale } => {
                let upstream = Upstream::Simulator {
                    preset: options.preset,
                    time_scale: *time_scale,
                    url: url(simulator_port),
                };
                (upstream, url(simulator_port))
            }
        };
        Ok(Self {
            nats,
            nats_url,
            namespace: options.config.namespace.clone(),
            upstream,
            claude_url,
            members: Vec::new(),
            // Replaced when members are started.
            notices: mpsc::channel(1).1,
            kill: CancellationToken::new(),
            logs,
            dir,
            api_urls: Vec::new(),
            console_urls: Vec::new(),
            temporary,
            _lock: lock,
        })
    }

    fn api_tokens(&self) -> PathBuf {
        self.dir.join("api-tokens")
    }

    async fn start_members(&mut self, options: Options) -> anyhow::Result<()> {
        write_token(&self.api_tokens())?;
        let inherited: Vec<String> = std::env::vars_os()
            .filter_map(|(name, _)| name.into_string().ok())
            .collect();
        let (sender, notices) = mpsc::channel(NOTICES_MAX);
        self.notices = notices;
        let around = Surroundings {
            program: std::env::current_exe().context("cannot find this program's file")?,
            notices: sender,
            kill: self.kill.clone(),
        };
        let plan = Plan {
            nats_url: self.nats_url.clone(),
            upstream: self.upstream.clone(),
            preset: options.preset,
            config: self.config_file(&options.config)?,
            namespace: Some(self.namespace.clone()),
            set: options.config.set,
            is_hermetic: options.config.is_hermetic,
        };
        if let (Some(spec), Upstream::Simulator { url, .. }) =
            (plan.simulator(&inherited), &self.upstream)
        {
            let port = port_of(url).context("the simulator has no port")?;
            self.start_member(spec, port, options.echo_logs, &around)?;
        }
        for (group, count) in [
            (Group::Producer, options.producers),
            (Group::Scheduler, options.schedulers),
            (Group::Worker, options.workers),
        ] {
            for number in 1..=count {
                let mut spec = plan.role(group, number, &inherited);
                let port = free_port().context("cannot find a free port")?;
                if group == Group::Scheduler {
                    spec.env.push(console_env(&self.api_tokens()));
                    self.console_urls.push(format!("{}/console/", url(port)));
                }
                if group == Group::Producer {
                    let port = free_port().context("cannot find a free port")?;
                    spec.env.extend(api_env(port, &self.api_tokens()));
                    self.api_urls.push(url(port));
                }
                self.start_member(spec, port, options.echo_logs, &around)?;
            }
        }
        self.ready().await
    }

    /// Without a file of its own a hermetic fleet would read the one in the working directory.
    fn config_file(&self, config: &Config) -> anyhow::Result<Option<PathBuf>> {
        if config.file.is_some() || !config.is_hermetic {
            return Ok(config.file.clone());
        }
        let path = self.dir.join("empty.toml");
        std::fs::write(&path, "").with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Some(path))
    }

    fn start_member(
        &mut self,
        spec: Spec,
        port: u16,
        echo: bool,
        around: &Surroundings,
    ) -> anyhow::Result<()> {
        let log = Log::open(&self.logs, &spec.name, echo)
            .with_context(|| format!("cannot write logs to {}", self.logs.display()))?;
        let member = Member::start(spec, port, log, around.clone());
        self.members.push(member);
        Ok(())
    }

    /// Waits until every member says that it is ready.
    async fn ready(&mut self) -> anyhow::Result<()> {
        let http = reqwest::Client::builder()
            .timeout(LOOK_TIMEOUT)
            .no_proxy()
            .build()
            .context("cannot make an HTTP client")?;
        let give_up = Instant::now() + READY_MAX;
        let mut deaths: Vec<(String, u32)> = Vec::new();
        for at in 0..self.members.len() {
            let url = self.members[at].ready_url();
            while !is_ready(&http, &url).await {
                while let Ok(notice) = self.notices.try_recv() {
                    count_deaths(&mut deaths, notice)?;
                }
                let name = self.members[at].process().name;
                anyhow::ensure!(
                    Instant::now() < give_up,
                    "{name} is not ready after {READY_MAX:?}; see {}",
                    self.logs.join(format!("{name}.log")).display()
                );
                sleep(LOOK_EVERY).await;
            }
        }
        // That they were started is no news any more.
        while let Ok(notice) = self.notices.try_recv() {
            count_deaths(&mut deaths, notice)?;
        }
        Ok(())
    }

    /// What happens next. Dropping the future loses nothing but a restart of NATS, which is then tried again.
    pub(crate) async fn news(&mut self) -> News {
        let nats_ended = async {
            match &mut self.nats {
                Some(server) => server.ended().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(notice) = self.notices.recv() => return News::Member(notice),
            () = nats_ended => {}
        }
        sleep(NATS_PAUSE).await;
        match &mut self.nats {
            Some(server) => {
                let restarted = server.restart().await;
                News::Nats(restarted.map_err(|error| format!("{:#}", anyhow::Error::new(error))))
            }
            None => News::Nats(Ok(())),
        }
    }

    /// Everything about it, for the note to other commands and for people.
    pub(crate) fn running(&self) -> Running {
        Running {
            pid: std::process::id(),
            nats_url: self.nats_url.clone(),
            namespace: self.namespace.clone(),
            claude_url: self.claude_url.clone(),
            is_simulated: matches!(self.upstream, Upstream::Simulator { .. }),
            nats_pid: self.nats.as_ref().and_then(EmbeddedServer::pid),
            logs: self.logs.clone(),
            api_urls: self.api_urls.clone(),
            console_urls: self.console_urls.clone(),
            api_tokens: self.api_tokens(),
            members: self.members.iter().map(Member::process).collect(),
        }
    }

    /// What the nats-server is, if it is ours.
    pub(crate) fn own_nats(&self) -> Option<String> {
        let server = self.nats.as_ref()?;
        let (version, dir) = (server.binary().version, server.dir().display());
        Some(format!("nats-server {version}, data in {dir}"))
    }

    /// Leaves a temporary directory behind, because its logs explain something.
    /// Says where they are.
    pub(crate) fn keep_logs(&mut self) -> &Path {
        if let Some(dir) = self.temporary.take() {
            self.dir = dir.keep();
        }
        &self.logs
    }

    /// Stops everything in order: workers finish what they have, then the others, NATS last. A signal ends the
    /// patience.
    pub(crate) async fn stop(mut self, signals: &mut mpsc::Receiver<Signal>) {
        let kill = self.kill.clone();
        let mut in_order = Box::pin(self.stop_in_order());
        tokio::select! {
            () = &mut in_order => return,
            Some(_) = signals.recv() => kill.cancel(),
        }
        in_order.await;
    }

    async fn stop_in_order(&mut self) {
        for group in Group::STOP_ORDER {
            let (now, later) = std::mem::take(&mut self.members)
                .into_iter()
                .partition(|member| member.group == group);
            self.members = later;
            let now: Vec<Member> = now;
            now.iter().for_each(Member::stop);
            for member in now {
                member.ended().await;
            }
        }
        if let Some(server) = &mut self.nats {
            tokio::select! {
                () = server.stop() => {}
                // Dropping the attempt kills the server.
                () = self.kill.cancelled() => {}
            }
        }
    }
}

/// Makes an operator's token for the HTTP API, if there is none from before.
fn write_token(path: &Path) -> anyhow::Result<()> {
    if path.exists() {
        return Ok(());
    }
    let token = TenantKey::secret(rand::random());
    let mut options = OpenOptions::new();
    let opened = options.write(true).create_new(true).mode(0o600).open(path);
    let written = opened.and_then(|mut file| writeln!(file, "operator {token}"));
    written.with_context(|| format!("cannot write {}", path.display()))
}

fn interrupted() -> Stop {
    Stop::saying(Exit::Interrupted, "interrupted while starting")
}

fn directory(wanted: Option<&Path>) -> anyhow::Result<(PathBuf, Option<TempDir>)> {
    match wanted {
        None => {
            let dir = tempfile::Builder::new().prefix("fairlane-dev-").tempdir();
            let dir = dir.context("cannot create a temporary directory")?;
            Ok((dir.path().to_owned(), Some(dir)))
        }
        Some(dir) => {
            let cannot = || format!("cannot use {}", dir.display());
            std::fs::create_dir_all(dir).with_context(cannot)?;
            Ok((dir.canonicalize().with_context(cannot)?, None))
        }
    }
}

/// Two servers on one store would ruin it.
fn lock(dir: &Path) -> anyhow::Result<File> {
    let path = dir.join("lock");
    let lock = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    lock.try_lock()
        .with_context(|| format!("{} is in use by another `fairlane dev`", dir.display()))?;
    Ok(lock)
}

async fn own_nats(dir: &Path) -> anyhow::Result<EmbeddedServer> {
    let options = ServerOptions {
        dir: Some(dir.join("nats")),
        ..ServerOptions::default()
    };
    Ok(EmbeddedServer::start(options).await?)
}

fn port_of(url: &str) -> Option<u16> {
    url.rsplit_once(':')?.1.parse().ok()
}

async fn is_ready(http: &reqwest::Client, url: &str) -> bool {
    match http.get(url).send().await {
        Ok(answer) => answer.status().is_success(),
        Err(_) => false,
    }
}

/// # Errors
/// When a member has died too often to become ready.
fn count_deaths(deaths: &mut Vec<(String, u32)>, notice: Notice) -> anyhow::Result<()> {
    let (name, why) = match notice {
        Notice::Started { .. } => return Ok(()),
        Notice::Died {
            name, status, tail, ..
        } => (name, format!("{status}; its last words:\n{tail}")),
        Notice::CannotStart { name, error, .. } => (name, error),
    };
    let at = match deaths.iter().position(|(known, _)| *known == name) {
        Some(at) => at,
        None => {
            deaths.push((name, 0));
            deaths.len() - 1
        }
    };
    let (name, count) = &mut deaths[at];
    *count += 1;
    anyhow::ensure!(*count < DEATHS_MAX, "{name} does not start: {why}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_keeps_dying_fails_the_start_with_its_last_words() {
        let died = |name: &str| Notice::CannotStart {
            name: name.to_owned(),
            error: "no such file".to_owned(),
            pause: Duration::ZERO,
        };
        let mut deaths = Vec::new();
        for name in ["worker-1", "worker-2", "worker-1", "worker-2"] {
            count_deaths(&mut deaths, died(name)).unwrap();
        }
        let error = count_deaths(&mut deaths, died("worker-1")).unwrap_err();
        assert_eq!(error.to_string(), "worker-1 does not start: no such file");
    }

    #[test]
    fn a_directory_belongs_to_one_fleet_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let first = lock(dir.path()).unwrap();
        let error = lock(dir.path()).unwrap_err().to_string();
        assert!(error.contains("is in use by another"), "{error}");
        drop(first);
        lock(dir.path()).unwrap();
    }

    #[test]
    fn the_port_is_the_end_of_the_address() {
        assert_eq!(port_of("http://127.0.0.1:81"), Some(81));
        assert_eq!(port_of("http://localhost"), None);
    }
}
