//! The program under test, in a world of its own.

use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::Duration;

use async_nats::jetstream::consumer::PullConsumer;
use fairlane_core::{JobId, TenantId};
use fairlane_nats::Nats;
use fairlane_nats::records::Records;
use fairlane_support::{LIMIT, TestNats, within};
use fairlane_wire::{JobRecord, Phase};
use futures::StreamExt;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

/// How a run of the program ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) talk: String,
}

impl Ran {
    /// Whether the output has exactly this line.
    #[track_caller]
    pub(crate) fn has(&self, line: &str) {
        assert!(
            self.out.lines().any(|found| found == line),
            "no {line:?} in {self:#?}"
        );
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        match serde_json::from_str(&self.out) {
            Ok(value) => value,
            Err(error) => panic!("{error} in {self:#?}"),
        }
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            talk: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// A directory to run the program in, where nothing of the machine's own configuration is found.
#[derive(Debug)]
pub(crate) struct World {
    dir: tempfile::TempDir,
    url: Option<String>,
}

impl World {
    pub(crate) fn on(server: &TestNats) -> Self {
        Self {
            url: Some(server.url().to_owned()),
            ..Self::without_nats()
        }
    }

    pub(crate) fn without_nats() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            url: None,
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), text).unwrap();
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fairlane"));
        let foreign = |name: &str| {
            name.to_ascii_uppercase().starts_with("FAIRLANE") || name == "ANTHROPIC_API_KEY"
        };
        for (name, _) in std::env::vars().filter(|(name, _)| foreign(name)) {
            command.env_remove(name);
        }
        if let Some(url) = &self.url {
            command.env("FAIRLANE_NATS_URL", url);
        }
        command
            .env("FAIRLANE_DEV_STATE", self.path("dev.json"))
            .env("FAIRLANE_CONTEXTS", self.path("contexts.json"))
            .current_dir(self.dir.path())
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    pub(crate) fn start(&self, args: &[&str]) -> Child {
        self.command(args).spawn().unwrap()
    }

    pub(crate) async fn run(&self, args: &[&str]) -> Ran {
        finish(self.start(args)).await
    }

    pub(crate) async fn run_with_input(&self, args: &[&str], input: &str) -> Ran {
        let mut child = self.command(args).stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(input.as_bytes()).await.unwrap();
        drop(stdin);
        finish(child).await
    }
}

pub(crate) async fn finish(child: Child) -> Ran {
    within(LIMIT, "the program", child.wait_with_output())
        .await
        .unwrap()
        .into()
}

pub(crate) fn tenant(name: &str) -> TenantId {
    TenantId::parse(name).unwrap()
}

pub(crate) fn record(tenant_name: &str, job: &str, phase: Phase) -> JobRecord {
    JobRecord::new(
        tenant(tenant_name),
        JobId::parse(job).unwrap(),
        phase,
        1_700_000_000_000,
    )
}

/// Writes a record over whatever is there.
pub(crate) async fn save(nats: &Nats, record: &JobRecord) {
    let records = Records::new(nats, Duration::from_secs(60));
    let slot = records.get(&record.tenant, &record.job).await.unwrap();
    records.save(record, slot.revision).await.unwrap();
}

/// The next `count` submissions, acknowledged after `judge` has seen them.
pub(crate) async fn take_submissions<F: Future<Output = ()>>(
    nats: &Nats,
    count: usize,
    mut judge: impl FnMut(async_nats::Message) -> F,
) {
    let consumer: PullConsumer = nats
        .jetstream
        .get_consumer_from_stream(nats.names.producer_consumer(), nats.names.submit_stream())
        .await
        .unwrap();
    let mut messages = consumer.messages().await.unwrap();
    for _ in 0..count {
        let message = within(LIMIT, "a submission", messages.next()).await;
        let (message, acker) = message.unwrap().unwrap().split();
        judge(message).await;
        acker.ack().await.unwrap();
    }
}

/// One header of a message.
pub(crate) fn header<'a>(message: &'a async_nats::Message, name: &str) -> Option<&'a str> {
    message
        .headers
        .as_ref()?
        .get(name)
        .map(|value| value.as_str())
}

/// Runs the program on a terminal on which somebody types.
pub(crate) async fn on_a_terminal(world: &World, line: &str, typed: &str) -> Ran {
    let program = env!("CARGO_BIN_EXE_fairlane");
    let command = world.command(&[]);
    let plain = command.as_std();
    let mut script = tokio::process::Command::new("script");
    script
        .args(["-qec", &format!("{program} {line}"), "/dev/null"])
        .current_dir(plain.get_current_dir().unwrap())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => script.env(name, value),
            None => script.env_remove(name),
        };
    }
    let mut child = script.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(typed.as_bytes()).await.unwrap();
    stdin.flush().await.unwrap();
    // Held open: a terminal does not end when nobody types.
    let ran = finish(child).await;
    drop(stdin);
    ran
}
