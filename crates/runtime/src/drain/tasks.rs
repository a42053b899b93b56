//! The long-running tasks of a process: each has a name, and a rule for what its end means.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use tokio::task::{Id, JoinError, JoinSet};

use super::Shutdown;

/// Time between "stop at once" and being cut off: enough to hand work back, short enough for a human.
pub const LAST_WORDS: Duration = Duration::from_secs(4);

/// What it means when a task fails, or ends before the process is draining.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// The process is of no use without it: drain the others and end with an error.
    Essential,
    /// The process goes on; the end is logged.
    Logged,
}

/// How an essential task ended that should not have.
#[derive(Debug)]
pub enum Cause {
    /// It returned an error.
    Failed(anyhow::Error),
    /// It panicked with this message.
    Panicked(String),
    /// It returned although nobody had asked the process to stop.
    EndedEarly,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) => write!(f, "failed: {error:#}"),
            Self::Panicked(message) => write!(f, "panicked: {message}"),
            Self::EndedEarly => f.write_str("ended although nobody asked it to"),
        }
    }
}

/// All tasks have ended as they should.
#[derive(Debug, PartialEq, Eq)]
pub struct Ended {
    /// Names of tasks that were still running after the last moment, sorted.
    pub cut_off: Vec<&'static str>,
}

/// An essential task ended as it should not.
#[derive(Debug, thiserror::Error)]
#[error("task {task} {cause}")]
pub struct TaskError {
    /// Its name.
    pub task: &'static str,
    /// How it ended.
    pub cause: Cause,
    /// Names of other tasks that were cut off afterwards, sorted.
    pub cut_off: Vec<&'static str>,
}

/// A set of named tasks that lives as long as the process.
#[derive(Debug)]
pub struct Tasks {
    shutdown: Shutdown,
    running: JoinSet<anyhow::Result<()>>,
    known: HashMap<Id, (&'static str, Rule)>,
    last_words: Duration,
}

impl Tasks {
    /// An empty set that obeys `shutdown`.
    pub fn new(shutdown: Shutdown) -> Self {
        Self {
            shutdown,
            running: JoinSet::new(),
            known: HashMap::new(),
            last_words: LAST_WORDS,
        }
    }

    /// Starts a task. It should end by itself once the process drains, and quickly once it must stop at once.
    pub fn spawn(
        &mut self,
        name: &'static str,
        rule: Rule,
        task: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) {
        let id = self.running.spawn(task).id();
        self.known.insert(id, (name, rule));
    }

    /// Waits until every task has ended or was cut off. An essential task that fails makes the others drain.
    ///
    /// # Errors
    /// The first essential task that failed, panicked, or ended before the process was draining.
    pub async fn run(mut self) -> Result<Ended, TaskError> {
        let mut failed: Option<(&'static str, Cause)> = None;
        let stop_now = self.shutdown.stop_now().clone();
        loop {
            let ended = tokio::select! {
                ended = self.running.join_next_with_id() => ended,
                () = stop_now.cancelled() => break,
            };
            match ended {
                None => break,
                Some(ended) => self.settle(ended, &mut failed),
            }
        }
        let cut_off = self.cut_off(&mut failed).await;
        match failed {
            None => Ok(Ended { cut_off }),
            Some((task, cause)) => Err(TaskError {
                task,
                cause,
                cut_off,
            }),
        }
    }

    /// Lets tasks say their last words, then ends them; returns the names of those that did not end by themselves.
    async fn cut_off(&mut self, failed: &mut Option<(&'static str, Cause)>) -> Vec<&'static str> {
        let end = tokio::time::sleep(self.last_words);
        tokio::pin!(end);
        loop {
            tokio::select! {
                ended = self.running.join_next_with_id() => match ended {
                    None => return Vec::new(),
                    Some(ended) => self.settle(ended, failed),
                },
                () = &mut end => break,
            }
        }
        let mut names: Vec<&'static str> = self.known.values().map(|(name, _)| *name).collect();
        names.sort_unstable();
        tracing::warn!(tasks = ?names, "cut off");
        self.running.shutdown().await;
        names
    }

    fn settle(
        &mut self,
        ended: Result<(Id, anyhow::Result<()>), JoinError>,
        failed: &mut Option<(&'static str, Cause)>,
    ) {
        let id = match &ended {
            Ok((id, _)) => *id,
            Err(error) => error.id(),
        };
        let (name, rule) = self
            .known
            .remove(&id)
            .expect("every task of the set was entered under its id");
        let cause = match ended {
            Ok((_, Ok(()))) if self.shutdown.is_draining() => return,
            Ok((_, Ok(()))) => Cause::EndedEarly,
            Ok((_, Err(error))) => Cause::Failed(error),
            Err(error) => Cause::Panicked(panic_message(error)),
        };
        match rule {
            Rule::Logged => tracing::warn!(task = name, %cause, "task ended"),
            Rule::Essential => {
                tracing::error!(task = name, %cause, "essential task ended");
                failed.get_or_insert((name, cause));
                self.shutdown.begin();
            }
        }
    }
}

fn panic_message(error: JoinError) -> String {
    let payload: Box<dyn Any + Send> = match error.try_into_panic() {
        Ok(payload) => payload,
        Err(error) => return error.to_string(),
    };
    match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => match payload.downcast::<&'static str>() {
            Ok(text) => (*text).to_owned(),
            Err(_) => "a value that is not text".to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;
    use tokio::time::Instant;

    use super::*;

    /// Ends when asked to.
    fn obedient(shutdown: &Shutdown) -> impl Future<Output = anyhow::Result<()>> + use<> {
        let draining = shutdown.draining().clone();
        async move {
            draining.cancelled().await;
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_that_end_while_draining_end_well() {
        let shutdown = Shutdown::new();
        let mut tasks = Tasks::new(shutdown.clone());
        tasks.spawn("loop", Rule::Essential, obedient(&shutdown));
        tasks.spawn("sweep", Rule::Logged, obedient(&shutdown));
        let run = tokio::spawn(tasks.run());
        shutdown.begin();
        assert_eq!(run.await.unwrap().unwrap(), Ended { cut_off: vec![] });
        assert!(!shutdown.stop_now().is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn an_essential_failure_drains_the_others_and_is_the_result() {
        let shutdown = Shutdown::new();
        let mut tasks = Tasks::new(shutdown.clone());
        tasks.spawn("loop", Rule::Essential, async { Err(anyhow!("no leader")) });
        tasks.spawn("http", Rule::Essential, obedient(&shutdown));
        let error = tasks.run().await.unwrap_err();
        assert_eq!(error.to_string(), "task loop failed: no leader");
        assert!(shutdown.is_draining());
        assert!(error.cut_off.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn an_essential_task_may_not_end_early_or_panic() {
        let mut tasks = Tasks::new(Shutdown::new());
        tasks.spawn("loop", Rule::Essential, async { Ok(()) });
        let error = tasks.run().await.unwrap_err();
        assert!(matches!(error.cause, Cause::EndedEarly), "{error}");

        let mut tasks = Tasks::new(Shutdown::new());
        tasks.spawn("loop", Rule::Essential, async { panic!("slot {}", 7) });
        let error = tasks.run().await.unwrap_err();
        assert_eq!(error.to_string(), "task loop panicked: slot 7");
    }

    #[tokio::test(start_paused = true)]
    async fn a_logged_task_may_fail_without_ending_the_process() {
        let shutdown = Shutdown::new();
        let mut tasks = Tasks::new(shutdown.clone());
        tasks.spawn("sweep", Rule::Logged, async { Err(anyhow!("no answer")) });
        tasks.spawn("sweep", Rule::Logged, async { panic!("bug") });
        tasks.spawn("loop", Rule::Essential, obedient(&shutdown));
        let mut run = tokio::spawn(tasks.run());
        let hour = Duration::from_secs(3_600);
        assert!(tokio::time::timeout(hour, &mut run).await.is_err());
        assert!(!shutdown.is_draining());
        shutdown.begin();
        assert!(run.await.unwrap().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_end_is_cut_off_and_named() {
        let shutdown = Shutdown::new();
        let mut tasks = Tasks::new(shutdown.clone());
        let stop_now = shutdown.stop_now().clone();
        tasks.spawn("polite", Rule::Essential, async move {
            stop_now.cancelled().await;
            tokio::time::sleep(LAST_WORDS / 2).await;
            Ok(())
        });
        tasks.spawn("stuck", Rule::Essential, std::future::pending());
        tasks.spawn("also stuck", Rule::Logged, std::future::pending());
        let run = tokio::spawn(tasks.run());
        let start = Instant::now();
        shutdown.stop();
        let ended = run.await.unwrap().unwrap();
        assert_eq!(ended.cut_off, ["also stuck", "stuck"]);
        assert_eq!(start.elapsed(), LAST_WORDS);
    }
}
