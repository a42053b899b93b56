//! One process of the fleet.

#![allow(clippy::print_stdout, reason = "a failed test shows the logs")]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use fairlane_support::eventually;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::PATIENCE;

/// A running process with its log in a file. Killed when dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: PathBuf,
}

static NUMBER: AtomicU32 = AtomicU32::new(0);

impl Process {
    pub(crate) fn spawn(
        program: &Path,
        name: &str,
        arguments: &[&str],
        environment: &[(String, String)],
        dir: &Path,
    ) -> Self {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let log = dir.join(format!("{name}-{number}.log"));
        let file = File::create(&log).expect("a log file");
        let child = command(program, arguments, environment)
            .stdout(file.try_clone().expect("a second handle"))
            .stderr(file)
            .spawn()
            .expect("the program starts");
        Self { child, log }
    }

    /// What it logged so far.
    ///
    /// # Panics
    /// If the file is gone.
    #[must_use]
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).expect("the log is there")).into_owned()
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// If the process is gone.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).expect("a pid");
        kill(Pid::from_raw(pid), signal).expect("the process is there");
    }

    /// Ends it without warning, as a crash would.
    ///
    /// # Panics
    /// If it cannot be killed.
    pub fn kill9(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it can be waited for");
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// After [`PATIENCE`].
    pub async fn end(&mut self) -> ExitStatus {
        let child = std::cell::RefCell::new(&mut self.child);
        eventually(PATIENCE, "a process to end", || async {
            child
                .borrow_mut()
                .try_wait()
                .map_err(|e| e.to_string())?
                .ok_or("still running".to_owned())
        })
        .await
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Already ended, or ends now.
        drop(self.child.kill());
        drop(self.child.wait());
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let tail = lines[lines.len().saturating_sub(30)..].join("\n");
            println!("---- end of {} ----\n{tail}", self.log.display());
        }
    }
}

/// Processor time a process has used so far, in seconds; 0 if it is gone. Linux only.
#[must_use]
pub fn cpu_seconds(pid: u32) -> f64 {
    const TICKS_PER_SECOND: f64 = 100.0;
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return 0.0;
    };
    // The name, in parentheses, may hold spaces; user and system time are the 12th and 13th after it.
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = after_name.split_whitespace().skip(11).take(2);
    ticks
        .filter_map(|ticks| ticks.parse::<f64>().ok())
        .sum::<f64>()
        / TICKS_PER_SECOND
}

/// Memory a process has resident, in MiB; None if it is gone. Linux only.
#[must_use]
pub fn resident_mib(pid: u32) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    Some(kib / 1_024.0)
}

pub(crate) async fn run(
    program: &Path,
    arguments: &[&str],
    environment: &[(String, String)],
) -> Output {
    let command = command(program, arguments, environment);
    let output = tokio::process::Command::from(command)
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(PATIENCE * 2, output).await;
    output
        .expect("the command ends")
        .expect("the program starts")
}

fn command(program: &Path, arguments: &[&str], environment: &[(String, String)]) -> Command {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .env("NO_COLOR", "1")
        .stdin(Stdio::null());
    command
}
