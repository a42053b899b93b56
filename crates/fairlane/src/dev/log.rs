//! The log of a child process: a file of bounded size, the last lines in memory, and the terminal if asked for.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncRead, BufReader};

use crate::lines::{Content, Lines};
use crate::out::say;

/// Lines kept to explain a death.
const TAIL_LINES: usize = 12;
/// Longest line kept.
const LINE_BYTES_MAX: usize = 64 * 1024;
/// Size at which a file is put aside (as `.1`) and begun anew.
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// A log. Cheap to clone; all clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Log {
    shared: Arc<Mutex<Inner>>,
}

#[derive(Debug)]
struct Inner {
    name: String,
    path: PathBuf,
    file: File,
    written: u64,
    tail: VecDeque<String>,
    echo: bool,
}

impl Log {
    /// Appends to `<name>.log` in `dir`. `echo`: also show each line, with the name in front.
    pub(crate) fn open(dir: &Path, name: &str, echo: bool) -> io::Result<Self> {
        let path = dir.join(format!("{name}.log"));
        let file = append(&path)?;
        let inner = Inner {
            name: name.to_owned(),
            written: file.metadata()?.len(),
            path,
            file,
            tail: VecDeque::new(),
            echo,
        };
        Ok(Self {
            shared: Arc::new(Mutex::new(inner)),
        })
    }

    /// Takes over what `source` says, until it ends.
    pub(crate) async fn take(&self, source: impl AsyncRead + Unpin) {
        let mut lines = Lines::new(BufReader::new(source), LINE_BYTES_MAX);
        loop {
            let text = match lines.next().await {
                Ok(Some(line)) => match line.content {
                    Content::Text(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
                    Content::TooLong(bytes) => format!("(a line of {bytes} bytes)"),
                },
                Ok(None) | Err(_) => return,
            };
            self.inner().add(text);
        }
    }

    /// The last lines, for people.
    pub(crate) fn tail(&self) -> String {
        let inner = self.inner();
        let lines = inner.tail.iter().map(|line| format!("    {line}\n"));
        lines.collect()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // A panic elsewhere cannot leave a line half added that matters.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn add(&mut self, line: String) {
        if self.echo {
            say(format_args!("{:11} | {line}", self.name));
        }
        // A full disk must not stop the fleet; the last lines are in memory anyway.
        if let Err(error) = self.write(&line) {
            tracing::debug!(%error, "cannot write a log file");
        }
        if self.tail.len() == TAIL_LINES {
            self.tail.pop_front();
        }
        self.tail.push_back(line);
    }

    fn write(&mut self, line: &str) -> io::Result<()> {
        if self.written > FILE_BYTES_MAX {
            let mut aside = self.path.clone().into_os_string();
            aside.push(".1");
            fs::rename(&self.path, aside)?;
            self.file = append(&self.path)?;
            self.written = 0;
        }
        self.written += line.len() as u64 + 1;
        self.file.write_all(format!("{line}\n").as_bytes())
    }
}

fn append(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn everything_goes_to_the_file_and_the_end_is_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(dir.path(), "worker-1", false).unwrap();
        let text: String = (1..=30).map(|n| format!("line {n}\n")).collect();
        log.take(text.as_bytes()).await;
        log.take(&b"last words"[..]).await;
        let file = fs::read_to_string(dir.path().join("worker-1.log")).unwrap();
        assert_eq!(file, text + "last words\n");
        let tail = log.tail();
        assert_eq!(tail.lines().count(), TAIL_LINES);
        assert!(
            tail.starts_with("    line 20\n") && tail.ends_with("    last words\n"),
            "{tail}"
        );
    }

    #[test]
    fn a_file_that_is_full_is_put_aside() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(dir.path(), "x", false).unwrap();
        log.inner().add("old".to_owned());
        log.inner().written = FILE_BYTES_MAX + 1;
        log.inner().add("new".to_owned());
        let read = |name| fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!(
            (read("x.log.1"), read("x.log")),
            ("old\n".into(), "new\n".into())
        );
    }
}
