//! One child process: started, watched, started again when it dies, stopped when asked to.
//!
//! A child is in a process group of its own, so that Ctrl-C reaches only us and we can stop in order. It holds the
//! other end of a pipe as its standard input: when we die, even by SIGKILL, that end closes and the child ends too.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::log::Log;
use super::plan::{Group, Listening, Spec};
use super::state::Process;

/// Pause before the first restart; it doubles up to the maximum, and starts over after a long life.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(10);
const LONG_LIFE: Duration = Duration::from_secs(30);
/// How long the last log lines of a dead child may take.
const LAST_LINES: Duration = Duration::from_secs(1);

/// What happened to a member.
#[derive(Debug)]
pub(crate) enum Notice {
    /// It runs (again).
    Started { name: String, pid: u32 },
    /// It ended although nobody asked it to, and will be started again after `pause`.
    Died {
        name: String,
        pid: u32,
        status: ExitStatus,
        tail: String,
        pause: Duration,
    },
    /// It cannot be run; tried again after `pause`.
    CannotStart {
        name: String,
        error: String,
        pause: Duration,
    },
}

/// What members need to know of the world.
#[derive(Debug, Clone)]
pub(crate) struct Surroundings {
    pub(crate) program: PathBuf,
    pub(crate) notices: mpsc::Sender<Notice>,
    /// Do not wait for anybody to end in order.
    pub(crate) kill: CancellationToken,
}

/// A watched child process.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) group: Group,
    process: Arc<Mutex<Process>>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Member {
    /// Starts it and keeps it running.
    pub(crate) fn start(spec: Spec, port: u16, log: Log, around: Surroundings) -> Self {
        let process = Arc::new(Mutex::new(Process {
            name: spec.name.clone(),
            pid: None,
            url: url(port),
        }));
        let stop = CancellationToken::new();
        let group = spec.group;
        let keeper = Keeper {
            spec,
            port,
            log,
            around,
            process: Arc::clone(&process),
            stop: stop.clone(),
        };
        Self {
            group,
            process,
            stop,
            task: tokio::spawn(keeper.keep_running()),
        }
    }

    /// What it is now.
    pub(crate) fn process(&self) -> Process {
        lock(&self.process).clone()
    }

    /// Where it tells that it is ready.
    pub(crate) fn ready_url(&self) -> String {
        format!("{}{}", self.process().url, self.group.ready_path())
    }

    /// Asks it to end in order, and not to come back.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    /// Waits for its end after [`Member::stop`].
    pub(crate) async fn ended(self) {
        if let Err(error) = self.task.await {
            tracing::warn!(%error, "the keeper of a process failed");
        }
    }
}

pub(crate) fn url(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}

fn lock(process: &Mutex<Process>) -> std::sync::MutexGuard<'_, Process> {
    process.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Keeper {
    spec: Spec,
    port: u16,
    log: Log,
    around: Surroundings,
    process: Arc<Mutex<Process>>,
    stop: CancellationToken,
}

/// How one life of a child ended.
enum Life {
    /// As asked.
    Stopped,
    Died(Notice),
}

impl Keeper {
    async fn keep_running(self) {
        let mut pause = PAUSE_MIN;
        loop {
            let begin = Instant::now();
            let notice = match self.live(pause).await {
                Life::Stopped => return,
                Life::Died(notice) => notice,
            };
            self.tell(notice);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.stop.cancelled() => return,
            }
            pause = if begin.elapsed() > LONG_LIFE {
                PAUSE_MIN
            } else {
                (pause * 2).min(PAUSE_MAX)
            };
        }
    }

    /// From the start of a child to its end.
    async fn live(&self, pause: Duration) -> Life {
        let name = self.spec.name.clone();
        let mut child = match command(&self.spec, self.port, &self.around.program).spawn() {
            Ok(child) => child,
            Err(error) => {
                let error = error.to_string();
                return Life::Died(Notice::CannotStart { name, error, pause });
            }
        };
        let pid = child.id().unwrap_or_default();
        lock(&self.process).pid = Some(pid);
        self.tell(Notice::Started {
            name: name.clone(),
            pid,
        });
        // Held until the child has ended: closing it is the sign of our own death.
        let _tether = child.stdin.take();
        let log = self.log.clone();
        let stderr = child.stderr.take();
        let mut reading = tokio::spawn(async move {
            if let Some(stderr) = stderr {
                log.take(stderr).await;
            }
        });
        let ended = tokio::select! {
            ended = child.wait() => Some(ended),
            () = self.stop.cancelled() => None,
        };
        if ended.is_none() {
            self.end(&mut child, pid).await;
        }
        lock(&self.process).pid = None;
        if timeout(LAST_LINES, &mut reading).await.is_err() {
            reading.abort();
        }
        match ended {
            None => Life::Stopped,
            Some(Ok(status)) => Life::Died(Notice::Died {
                name,
                pid,
                status,
                tail: self.log.tail(),
                pause,
            }),
            Some(Err(error)) => {
                let error = error.to_string();
                Life::Died(Notice::CannotStart { name, error, pause })
            }
        }
    }

    /// Asks a child to end, and kills it if there is no time.
    async fn end(&self, child: &mut Child, pid: u32) {
        if let Ok(pid) = i32::try_from(pid)
            && let Err(error) = kill(Pid::from_raw(pid), Signal::SIGTERM)
        {
            tracing::debug!(%error, "cannot signal a child");
        }
        let ended = tokio::select! {
            ended = child.wait() => ended.is_ok(),
            () = self.around.kill.cancelled() => false,
        };
        if !ended && let Err(error) = child.kill().await {
            tracing::debug!(%error, "cannot kill a child; it has ended already");
        }
    }

    fn tell(&self, notice: Notice) {
        // Nobody may be listening any more, or slowly; the process goes on either way.
        if let Err(error) = self.around.notices.try_send(notice) {
            tracing::debug!(%error, "a notice was lost");
        }
    }
}

fn command(spec: &Spec, port: u16, program: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(&spec.args);
    for name in &spec.env_removed {
        command.env_remove(name);
    }
    command.envs(spec.env.iter().map(|(name, value)| (name, value)));
    match spec.listening(port) {
        Listening::Args(args) => command.args(args),
        Listening::Variable(name, value) => command.env(name, value),
    };
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    command
}

#[cfg(test)]
mod tests {
    use fairlane_support::{LIMIT, within};

    use super::*;

    struct World {
        notices: mpsc::Receiver<Notice>,
        member: Member,
        kill: CancellationToken,
        _dir: tempfile::TempDir,
    }

    /// Keeps a shell with this script running.
    fn keep(script: &str) -> World {
        let dir = tempfile::tempdir().unwrap();
        let (sender, notices) = mpsc::channel(16);
        let kill = CancellationToken::new();
        let around = Surroundings {
            program: "/bin/sh".into(),
            notices: sender,
            kill: kill.clone(),
        };
        let spec = Spec {
            name: "worker-1".to_owned(),
            group: Group::Worker,
            args: vec!["-c".into(), script.into()],
            env: vec![("GREETING".to_owned(), "hello".to_owned())],
            env_removed: vec!["HOME".to_owned()],
        };
        let log = Log::open(dir.path(), &spec.name, false).unwrap();
        World {
            notices,
            member: Member::start(spec, 9, log, around),
            kill,
            _dir: dir,
        }
    }

    impl World {
        async fn notice(&mut self) -> Notice {
            let notice = within(LIMIT, "a notice", self.notices.recv()).await;
            notice.expect("the keeper lives")
        }

        async fn started(&mut self) -> u32 {
            match self.notice().await {
                Notice::Started { pid, .. } => pid,
                other => panic!("{other:?}"),
            }
        }
    }

    #[tokio::test]
    async fn a_child_that_is_killed_comes_back_and_its_last_words_are_told() {
        let mut world =
            keep("echo \"$GREETING $FAIRLANE__WORKER__HTTP_ADDR [$HOME]\" >&2; read -r x");
        let first = world.started().await;
        assert_eq!(world.member.process().pid, Some(first));
        // It has spoken once its words are in the log.
        let log = world._dir.path().join("worker-1.log");
        fairlane_support::eventually(LIMIT, "a greeting", async || {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            if text.contains("hello") {
                Ok(())
            } else {
                Err(text)
            }
        })
        .await;
        kill(Pid::from_raw(first.try_into().unwrap()), Signal::SIGKILL).unwrap();
        match world.notice().await {
            Notice::Died {
                pid, tail, status, ..
            } => {
                assert_eq!(pid, first);
                assert_eq!(tail, "    hello 127.0.0.1:9 []\n");
                assert!(!status.success());
            }
            other => panic!("{other:?}"),
        }
        let second = world.started().await;
        assert_ne!(first, second);
        world.member.stop();
        within(LIMIT, "the end", world.member.ended()).await;
    }

    #[tokio::test]
    async fn a_child_that_dies_again_and_again_is_started_ever_more_slowly() {
        let mut world = keep("exit 3");
        let mut pauses = Vec::new();
        while pauses.len() < 3 {
            match world.notice().await {
                Notice::Died { pause, .. } => pauses.push(pause.as_millis()),
                Notice::Started { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(pauses, [200, 400, 800]);
        world.member.stop();
        within(LIMIT, "the end", world.member.ended()).await;
    }

    #[tokio::test]
    async fn a_child_that_does_not_end_when_asked_is_killed_on_the_second_word() {
        let mut world =
            keep("trap '' TERM; echo ready >&2; while :; do read -r x || sleep 1; done");
        world.started().await;
        let log = world._dir.path().join("worker-1.log");
        fairlane_support::eventually(LIMIT, "the trap", async || {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            if text.contains("ready") {
                Ok(())
            } else {
                Err(text)
            }
        })
        .await;
        world.member.stop();
        tokio::task::yield_now().await;
        assert!(world.member.process().pid.is_some());
        world.kill.cancel();
        within(LIMIT, "the end", world.member.ended()).await;
    }

    #[tokio::test]
    async fn a_program_that_is_not_there_is_told_and_tried_again() {
        let (sender, mut notices) = mpsc::channel(16);
        let dir = tempfile::tempdir().unwrap();
        let around = Surroundings {
            program: dir.path().join("missing"),
            notices: sender,
            kill: CancellationToken::new(),
        };
        let spec = Spec {
            name: "x".to_owned(),
            group: Group::Simulator,
            args: Vec::new(),
            env: Vec::new(),
            env_removed: Vec::new(),
        };
        let log = Log::open(dir.path(), "x", false).unwrap();
        let member = Member::start(spec, 9, log, around);
        for _ in 0..2 {
            let notice = within(LIMIT, "a notice", notices.recv()).await;
            assert!(
                matches!(notice, Some(Notice::CannotStart { .. })),
                "{notice:?}"
            );
        }
        member.stop();
        within(LIMIT, "the end", member.ended()).await;
    }
}
