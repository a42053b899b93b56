//! Exit codes, and errors that know theirs.

use std::fmt;
use std::process::ExitCode;

/// How the program ends. The numbers are documented in `--help` and do not change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Everything went as asked.
    Ok,
    /// The command failed, or some jobs did.
    Failed,
    /// The command line or the configuration is wrong.
    Usage,
    /// There is no such job.
    NotFound,
    /// NATS cannot be reached.
    Unreachable,
    /// Ended by Ctrl-C or SIGTERM before the work was done.
    Interrupted,
}

impl Exit {
    /// Every way to end.
    pub(crate) const ALL: [Self; 6] = [
        Self::Ok,
        Self::Failed,
        Self::Usage,
        Self::NotFound,
        Self::Unreachable,
        Self::Interrupted,
    ];

    /// What the number means.
    pub(crate) fn meaning(self) -> &'static str {
        match self {
            Self::Ok => "success",
            Self::Failed => "the command failed, or a job did",
            Self::Usage => "wrong usage or configuration",
            Self::NotFound => "no such job, dead letter, run, key or context",
            Self::Unreachable => "NATS cannot be reached",
            Self::Interrupted => "interrupted, or answered with no",
        }
    }

    /// What to do next, when there is nothing better to say.
    pub(crate) fn hint(self) -> &'static str {
        match self {
            Self::Ok => "nothing is left to do",
            Self::Failed => "`fairlane doctor` finds what is usually wrong, and says what to do",
            Self::Usage => {
                "add --help to see how it is used, with examples; `fairlane config show` has all settings"
            }
            Self::NotFound => {
                "look for it with `fairlane status`, `fairlane dlq ls`, `fairlane tenant ls` or `fairlane context ls`"
            }
            Self::Unreachable => {
                "`fairlane doctor` says what is in the way; `fairlane context ls` shows the fleets you know"
            }
            Self::Interrupted => "run it again to go on",
        }
    }

    /// The number the shell sees.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::NotFound => 3,
            Self::Unreachable => 5,
            Self::Interrupted => 130,
        }
    }
}

/// The table at the end of every command's `--help`.
pub(crate) fn help() -> String {
    let lines = Exit::ALL.map(|exit| format!("\n  {:<4} {}", exit.code(), exit.meaning()));
    format!("Exit codes:{}", lines.concat())
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// What a command gives back.
pub(crate) type Outcome = Result<Exit, Stop>;

/// The end of a command before its time: an exit code, and what to tell (nothing, if the reader of our output has
/// gone away).
#[derive(Debug)]
pub(crate) struct Stop {
    pub(crate) exit: Exit,
    pub(crate) error: Option<anyhow::Error>,
}

impl Stop {
    pub(crate) fn new(exit: Exit, error: impl Into<anyhow::Error>) -> Self {
        Self {
            exit,
            error: Some(error.into()),
        }
    }

    /// A plain message.
    pub(crate) fn saying(exit: Exit, text: impl fmt::Display) -> Self {
        Self::new(exit, anyhow::anyhow!("{text}"))
    }

    /// Nobody reads on: end without a word.
    pub(crate) fn quietly() -> Self {
        Self {
            exit: Exit::Ok,
            error: None,
        }
    }
}

/// An error and its causes on one line. A cause that only repeats what was said is left out.
pub(crate) fn told(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Whatever is not told apart is a plain failure.
impl From<anyhow::Error> for Stop {
    fn from(error: anyhow::Error) -> Self {
        Self::new(Exit::Failed, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_that_repeats_what_was_said_is_left_out() {
        let error = anyhow::anyhow!("refused")
            .context("io: refused")
            .context("cannot connect");
        assert_eq!(told(&error), "cannot connect: io: refused");
    }

    #[test]
    fn codes_differ_and_the_help_lists_them() {
        let help = help();
        let codes = Exit::ALL.map(Exit::code);
        assert!(codes.is_sorted_by(|one, other| one < other), "{codes:?}");
        for exit in Exit::ALL {
            let line = format!("  {:<4} {}", exit.code(), exit.meaning());
            assert!(help.lines().any(|found| found == line), "{help}");
        }
    }
}
