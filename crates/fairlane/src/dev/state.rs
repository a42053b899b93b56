//! The note that a running `fairlane dev` leaves, so that other commands find it without flags.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use fairlane_nats::embedded::Search;
use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

/// Names another place for the note.
const VARIABLE: &str = "FAIRLANE_DEV_STATE";

/// What runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Running {
    /// The process that holds everything together.
    pub(crate) pid: u32,
    pub(crate) nats_url: String,
    pub(crate) namespace: String,
    /// Where jobs are sent: the simulator or the Claude API.
    pub(crate) claude_url: String,
    /// True if that is the simulator.
    pub(crate) is_simulated: bool,
    /// None if the server is not ours.
    pub(crate) nats_pid: Option<u32>,
    pub(crate) logs: PathBuf,
    /// The HTTP API of each producer.
    #[serde(default)]
    pub(crate) api_urls: Vec<String>,
    /// The console of each scheduler.
    #[serde(default)]
    pub(crate) console_urls: Vec<String>,
    /// File with an operator's token for both.
    #[serde(default)]
    pub(crate) api_tokens: PathBuf,
    pub(crate) members: Vec<Process>,
}

/// One of our processes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    /// Such as `worker-1`.
    pub(crate) name: String,
    /// None while it is being started again.
    pub(crate) pid: Option<u32>,
    /// Health, metrics, and what else it serves.
    pub(crate) url: String,
}

/// Where the note is: a directory that only this user can write to. None if there is no such place.
pub(crate) fn path() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(path) = variable(VARIABLE) {
        return Some(path.into());
    }
    if let Some(dir) = variable("XDG_RUNTIME_DIR") {
        return Some(PathBuf::from(dir).join("fairlane-dev.json"));
    }
    Some(Search::from_env().cache?.join("dev.json"))
}

/// The `fairlane dev` that runs now, if there is one.
pub(crate) fn running() -> Option<Running> {
    read(&path()?)
}

/// The note at `path`, unless whoever wrote it has gone.
pub(crate) fn read(path: &Path) -> Option<Running> {
    let text = fs::read(path).ok()?;
    let running: Running = serde_json::from_slice(&text).ok()?;
    is_alive(running.pid).then_some(running)
}

fn is_alive(pid: u32) -> bool {
    let Ok(pid) = i32::try_from(pid) else {
        return false;
    };
    // Zero and below would ask about process groups.
    pid > 0
        && match kill(Pid::from_raw(pid), None) {
            Ok(()) | Err(Errno::EPERM) => true,
            Err(_) => false,
        }
}

/// Our note; goes when this is dropped.
#[derive(Debug)]
pub(crate) struct Note {
    path: PathBuf,
}

impl Note {
    /// Writes the note. None if another `fairlane dev` has one there.
    pub(crate) fn write(path: PathBuf, running: &Running) -> io::Result<Option<Self>> {
        if read(&path).is_some_and(|other| other.pid != running.pid) {
            return Ok(None);
        }
        let note = Self { path };
        note.update(running)?;
        Ok(Some(note))
    }

    /// Replaces what it says; readers see the old or the new one, never a part.
    pub(crate) fn update(&self, running: &Running) -> io::Result<()> {
        if let Some(dir) = self.path.parent() {
            fs::create_dir_all(dir)?;
        }
        let mut next = self.path.clone().into_os_string();
        next.push(format!(".{}", running.pid));
        let text = serde_json::to_vec_pretty(running)?;
        fs::write(&next, text)?;
        fs::rename(&next, &self.path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(%error, "cannot remove the note of a running dev");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pid: u32) -> Running {
        Running {
            pid,
            nats_url: "nats://127.0.0.1:1".to_owned(),
            ..Running::default()
        }
    }

    /// The process that runs the tests, and init, which is always there.
    fn two_alive() -> [u32; 2] {
        [std::process::id(), 1]
    }

    #[test]
    fn a_note_is_found_while_its_writer_lives_and_goes_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/dev.json");
        let [us, _] = two_alive();
        let note = Note::write(path.clone(), &of(us)).unwrap().unwrap();
        assert_eq!(read(&path), Some(of(us)));
        drop(note);
        assert_eq!(read(&path), None);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 0);
    }

    #[test]
    fn the_note_of_a_dead_process_counts_for_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("dev.json");
        let [us, _] = two_alive();
        for gone in [0, u32::MAX, i32::MAX as u32] {
            fs::write(&path, serde_json::to_vec(&of(gone)).unwrap()).unwrap();
            assert_eq!(read(&path), None);
        }
        fs::write(&path, "{").unwrap();
        assert_eq!(read(&path), None);
        assert!(Note::write(path, &of(us)).unwrap().is_some());
    }

    #[test]
    fn the_first_of_two_keeps_its_note() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("dev.json");
        let [us, other] = two_alive();
        let _note = Note::write(path.clone(), &of(other)).unwrap().unwrap();
        assert!(Note::write(path.clone(), &of(us)).unwrap().is_none());
        assert_eq!(read(&path), Some(of(other)));
    }
}
