//! A whole fleet for one test: a nats-server, the simulator, and real processes of every role.
//!
//! The simulator runs inside the test, so that its log, the upstream's own truth, can be read
//! without asking anybody. Everything else is what a user would run: NATS lets each process in as its role, with the
//! permissions of an installation.

pub mod api;
mod books;
pub mod cluster;
mod collector;
pub mod live;
pub mod load;
mod process;

use std::path::{Path, PathBuf};
use std::time::Duration;

use fairlane_core::{JobId, TenantId};
use fairlane_nats::auth::User;
use fairlane_nats::objects::ObjectOptions;
use fairlane_nats::{HeaderMap, Nats, Records};
use fairlane_sim::{Sim, SimConfig, SimHandle};
use fairlane_support::{TestNats, eventually};
use fairlane_wire::{JobRecord, Phase};

pub use books::Books;
pub use collector::{Collector, Seen, Series, page};
pub use process::{Process, cpu_seconds, resident_mib};

/// How long a fleet may take for something that takes it seconds.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// What a test wants.
#[derive(Debug, Clone)]
pub struct Setup {
    pub producers: usize,
    pub schedulers: usize,
    pub workers: usize,
    pub sim: SimConfig,
    /// Settings beside the usual ones, as `section.key` and value.
    pub settings: Vec<(&'static str, String)>,
    /// What stands in the configuration file, for keys with dots in them.
    pub config: &'static str,
    /// Tenants that have users of their own on NATS.
    pub tenants: &'static [&'static str],
    /// Limits of what NATS keeps.
    pub objects: ObjectOptions,
    /// Whether the producer, of which there can be but one then, serves the HTTP API.
    pub api: bool,
    /// Whether the scheduler, of which there can be but one then, serves the console.
    pub console: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            producers: 1,
            schedulers: 1,
            workers: 1,
            sim: SimConfig::instant(),
            settings: Vec::new(),
            config: "",
            tenants: &[],
            objects: ObjectOptions::default(),
            api: false,
            console: false,
        }
    }
}

/// The NATS that a fleet runs on.
pub trait Home {
    /// A connection that may do everything.
    fn client(&self) -> &Nats;
    /// What a process of this user has to be told to get in: settings as `section.key` and value.
    fn settings(&self, user: &User) -> Vec<(&'static str, String)>;
}

impl Home for TestNats {
    fn client(&self) -> &Nats {
        &self.nats
    }

    fn settings(&self, user: &User) -> Vec<(&'static str, String)> {
        let keys = self.keys.as_ref().expect("a server with keys");
        vec![
            ("nats.url", self.url().to_owned()),
            ("nats.nkey_file", keys.seed(user).display().to_string()),
        ]
    }
}

/// A running fleet. Everything ends with it.
#[derive(Debug)]
pub struct Fleet<N = TestNats> {
    pub nats: N,
    pub sim: SimHandle,
    pub producers: Vec<Process>,
    pub schedulers: Vec<Process>,
    pub workers: Vec<Process>,
    settings: Vec<(&'static str, String)>,
    api: Option<String>,
    console: Option<String>,
    dir: tempfile::TempDir,
    program: PathBuf,
}

impl Fleet {
    /// Starts everything and waits until there is a leader. `program` is
    /// `env!("CARGO_BIN_EXE_fairlane-under-test")`.
    ///
    /// # Panics
    /// With the reason, if something does not start.
    pub async fn start(program: &str, setup: Setup) -> Self {
        let nats = TestNats::secured_with(setup.tenants, "", &setup.objects).await;
        Self::start_on(nats, program, setup).await
    }
}

impl<N: Home> Fleet<N> {
    /// The same on a NATS that runs already and has all objects.
    ///
    /// # Panics
    /// With the reason, if something does not start.
    pub async fn start_on(nats: N, program: &str, setup: Setup) -> Self {
        let sim = Sim::start(setup.sim).await.expect("the simulator starts");
        let mut fleet = Self {
            nats,
            sim,
            producers: Vec::new(),
            schedulers: Vec::new(),
            workers: Vec::new(),
            settings: setup.settings,
            api: None,
            console: None,
            dir: tempfile::tempdir().expect("a directory for logs"),
            program: program.into(),
        };
        std::fs::write(fleet.config(), setup.config).expect("a configuration file");
        if setup.api {
            fleet.open_api();
        }
        if setup.console {
            fleet.open_console();
        }
        for _ in 0..setup.producers {
            let producer = fleet.spawn("producer");
            fleet.producers.push(producer);
        }
        for _ in 0..setup.schedulers {
            let scheduler = fleet.spawn("scheduler");
            fleet.schedulers.push(scheduler);
        }
        for _ in 0..setup.workers {
            let worker = fleet.spawn("worker");
            fleet.workers.push(worker);
        }
        if setup.schedulers > 0 {
            fleet.leader().await;
        }
        for served in [&fleet.api, &fleet.console].into_iter().flatten() {
            let address = served.trim_start_matches("http://");
            eventually(PATIENCE, "somebody who listens", || async {
                let connected = tokio::net::TcpStream::connect(address).await;
                connected.map_err(|error| error.to_string())
            })
            .await;
        }
        fleet
    }

    /// A producer that starts again serves at the same address.
    fn open_api(&mut self) {
        let keys = [
            "producer.api_addr",
            "producer.api_tokens_file",
            "producer.operator_nkey_file",
        ];
        self.api = Some(self.open(keys));
    }

    /// A scheduler that starts again serves at the same address.
    fn open_console(&mut self) {
        let keys = [
            "scheduler.http_addr",
            "scheduler.console_tokens_file",
            "scheduler.operator_nkey_file",
        ];
        self.console = Some(self.open(keys));
    }

    /// Settings of a server: address, tokens, and the operator's key, unless the test says otherwise. Returns where it
    /// will be.
    fn open(&mut self, [addr, tokens_file, operator_file]: [&'static str; 3]) -> String {
        let port = fairlane_nats::embedded::free_port().expect("a port");
        let tokens = self.dir.path().join("tokens");
        api::write_tokens(&tokens);
        let address = format!("127.0.0.1:{port}");
        self.settings.extend([
            (addr, address.clone()),
            (tokens_file, tokens.display().to_string()),
        ]);
        let let_in = self.nats.settings(&User::Operator);
        let seed = let_in.into_iter().find(|(key, _)| *key == "nats.nkey_file");
        if let Some((_, seed)) = seed
            && self
                .settings
                .iter()
                .all(|(known, _)| *known != operator_file)
        {
            self.settings.push((operator_file, seed));
        }
        format!("http://{address}")
    }

    /// A caller of the console's server without a secret.
    ///
    /// # Panics
    /// If the fleet has none.
    #[must_use]
    pub fn console(&self) -> api::Caller {
        api::Caller::new(self.console.as_deref().expect("a fleet with a console"))
    }

    /// A caller of the HTTP API without a secret.
    ///
    /// # Panics
    /// If the fleet has none.
    #[must_use]
    pub fn caller(&self) -> api::Caller {
        api::Caller::new(self.api.as_deref().expect("a fleet with an API"))
    }

    /// A caller with a new key of a tenant, as soon as that is let in.
    ///
    /// # Panics
    /// If that does not happen.
    pub async fn caller_of(&self, tenant: &str) -> api::Caller {
        let made = self.run(&["tenant", "key", "create", tenant]).await;
        assert!(made.status.success(), "{made:?}");
        let secret = String::from_utf8(made.stdout).expect("a secret");
        let caller = self.caller().with(secret.trim());
        eventually(PATIENCE, "the key to be let in", || async {
            let models = caller.request(reqwest::Method::GET, "/v1/models").send();
            match models.await {
                Ok(answer) if answer.status() == 200 => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        caller
    }

    /// Starts a process of a role; the caller keeps it.
    #[must_use]
    pub fn spawn(&self, role: &'static str) -> Process {
        let config = self.config();
        let arguments = [role, "--config", config.to_str().expect("a plain path")];
        Process::spawn(
            &self.program,
            role,
            &arguments,
            &self.environment(role),
            self.dir.path(),
        )
    }

    fn config(&self) -> PathBuf {
        self.dir.path().join("fairlane.toml")
    }

    /// Runs a command of the program to its end.
    pub async fn run(&self, arguments: &[&str]) -> std::process::Output {
        process::run(&self.program, arguments, &self.environment("operator")).await
    }

    /// Runs a script in which `fairlane` is the program, at the top of the repository. The shell shows
    /// each command and stops at the first one that fails.
    pub async fn shell(&self, script: &str) -> std::process::Output {
        let bin = self.dir.path().join("bin");
        std::fs::create_dir_all(&bin).expect("a directory for the program");
        let name = bin.join("fairlane");
        if !name.exists() {
            std::os::unix::fs::symlink(&self.program, &name).expect("a link to the program");
        }
        let path = std::env::var("PATH").unwrap_or_default();
        let mut environment = self.environment("operator");
        environment.push(("PATH".to_owned(), format!("{}:{path}", bin.display())));
        let top = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let script = format!("cd {top}\nset -ex\n{script}");
        process::run(Path::new("/bin/sh"), &["-c", &script], &environment).await
    }

    /// Every process is let into NATS as what it is, with the permissions of an installation.
    fn environment(&self, user: &str) -> Vec<(String, String)> {
        let of_name = |known: &User| known.name() == user;
        let user = User::ROLES.into_iter().find(of_name).expect("a role");
        let mut settings = self.nats.settings(&user);
        settings.extend([
            ("claude.base_url", self.sim.url()),
            ("claude.api_key", "sk-test-key".to_owned()),
            // Tests count the calls of jobs.
            ("claude.models_every_ms", "0".to_owned()),
            ("limits.preset", "unlimited".to_owned()),
            ("telemetry.log", "info".to_owned()),
        ]);
        settings.extend(self.settings.iter().cloned());
        let name = |key: &str| format!("FAIRLANE__{}", key.replace('.', "__").to_uppercase());
        settings
            .into_iter()
            .map(|(key, value)| (name(key), value))
            .collect()
    }

    /// The connection of the test itself.
    #[must_use]
    pub fn client(&self) -> &Nats {
        self.nats.client()
    }

    /// Publishes a job as any NATS client would. Waits until it is stored.
    ///
    /// # Panics
    /// If it is not stored.
    pub async fn publish(&self, tenant: &str, body: impl Into<bytes::Bytes>) {
        let subject = format!("fl.submit.{tenant}");
        let jetstream = &self.client().jetstream;
        let ack = jetstream
            .publish_with_headers(subject, HeaderMap::new(), body.into())
            .await;
        ack.expect("sent").await.expect("stored");
    }

    /// The record of a job, if there is one.
    ///
    /// # Panics
    /// If it cannot be read.
    pub async fn record(&self, tenant: &str, job: &str) -> Option<JobRecord> {
        let records = Records::new(self.client(), Duration::from_secs(60));
        let tenant = TenantId::parse(tenant).expect("a tenant");
        let job = JobId::parse(job).expect("a job id");
        records
            .get(&tenant, &job)
            .await
            .expect("records can be read")
            .record
    }

    /// Waits until the job is in this phase.
    ///
    /// # Panics
    /// After [`PATIENCE`].
    pub async fn phase(&self, tenant: &str, job: &str, wanted: Phase) -> JobRecord {
        eventually(
            PATIENCE,
            &format!("{tenant}/{job} to be {}", wanted.as_str()),
            || async {
                match self.record(tenant, job).await {
                    Some(record) if record.phase == wanted => Ok(record),
                    other => Err(format!("{other:?}")),
                }
            },
        )
        .await
    }

    /// The holder of the leader's lease, and its revision.
    ///
    /// # Panics
    /// After [`PATIENCE`] without a leader.
    pub async fn leader(&self) -> (String, u64) {
        let nats = self.client();
        let bucket = nats.bucket(&nats.names.control_bucket());
        eventually(PATIENCE, "a leader", || async {
            let entry = bucket
                .get(nats.names.leader_key())
                .await
                .map_err(|e| e.to_string())?;
            let entry = entry.ok_or("nobody leads")?;
            let value = entry.value().ok_or("the lease is free")?;
            let leader: fairlane_wire::lease::Leader =
                serde_json::from_slice(value).map_err(|e| e.to_string())?;
            Ok::<_, String>((leader.holder, entry.revision.0))
        })
        .await
    }

    /// Which of the schedulers leads, by what they log.
    ///
    /// # Panics
    /// After [`PATIENCE`].
    pub async fn leading_scheduler(&self) -> usize {
        let (holder, _) = self.leader().await;
        eventually(PATIENCE, "the leader's process", || async {
            let leads = |process: &Process| process.log().contains(&holder);
            self.schedulers
                .iter()
                .position(leads)
                .ok_or("nobody says so")
        })
        .await
    }

    /// Reads the books until nothing is queued or running.
    ///
    /// # Panics
    /// After [`PATIENCE`].
    pub async fn settled(&self) -> Books {
        eventually(PATIENCE, "all jobs to be settled", || async {
            let books = Books::read(self.client())
                .await
                .map_err(|error| format!("{error:#}"))?;
            if books.is_settled() {
                Ok(books)
            } else {
                Err(format!("{books:?}"))
            }
        })
        .await
    }
}

impl<N> Fleet<N> {
    /// Where the logs of the processes are.
    #[must_use]
    pub fn logs(&self) -> &Path {
        self.dir.path()
    }
}

impl<N> Drop for Fleet<N> {
    /// What a role lacks a permission for only times out, and mostly something else goes on in its place.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let logs = std::fs::read_dir(self.logs())
            .into_iter()
            .flatten()
            .flatten();
        let texts = logs.filter_map(|log| std::fs::read_to_string(log.path()).ok());
        let texts: Vec<String> = texts.collect();
        let refused = texts.iter().flat_map(|text| text.lines());
        let refused: Vec<&str> = refused
            .filter(|line| line.contains("NATS refused something"))
            .collect();
        assert!(
            refused.is_empty(),
            "permissions are missing in crates/nats/src/auth.rs: {refused:#?}"
        );
    }
}

/// A job for the simulator.
#[must_use]
pub fn job(id: &str, prompt: &str) -> String {
    serde_json::json!({
        "id": id, "origin": "user_action", "kind": "tagging",
        "request": {"model": "claude-haiku-4-5", "max_tokens": 64,
            "messages": [{"role": "user", "content": prompt}]},
    })
    .to_string()
}

/// The status of a plain HTTP answer of a server at `address`.
///
/// # Errors
/// If there is no such server, or no answer within five seconds.
pub async fn status(address: &str, path: &str) -> Result<u16, String> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let asking = async {
        let mut stream = tokio::net::TcpStream::connect(address).await?;
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = tokio::time::timeout(Duration::from_secs(5), asking).await;
    let answer = answer.map_err(|_| "no answer".to_owned())?;
    let answer = answer.map_err(|error| error.to_string())?;
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    status.ok_or(answer)
}

/// The body of a plain HTTP answer, from a server of the test's own.
///
/// # Panics
/// If there is none.
pub async fn get(url: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let rest = url.strip_prefix("http://").expect("an http URL");
    let (host, path) = rest.split_once('/').expect("a path");
    let mut stream = tokio::net::TcpStream::connect(host)
        .await
        .expect("it listens");
    let request = format!("GET /{path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
    stream
        .write_all(request.as_bytes())
        .await
        .expect("it reads");
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .await
        .expect("it answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a body");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    body.to_owned()
}
