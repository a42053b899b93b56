//! What can be wrong with a configuration, in words that say what would be right.

use std::fmt;
use std::path::PathBuf;

/// Where a value comes from. Later variants win over earlier ones.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// Nobody set it.
    Default,
    /// The configuration file.
    File(PathBuf),
    /// The environment variable of this name.
    Env(String),
    /// A command-line flag.
    Flag,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Env(name) => write!(f, "env {name}"),
            Self::Flag => f.write_str("flag"),
        }
    }
}

/// A configuration that cannot be used. Lists every mistake, so that one run is enough to mend them all.
#[derive(Debug, thiserror::Error)]
pub struct ConfigError {
    problems: Vec<Problem>,
}

impl ConfigError {
    /// `Err` with all of `problems`, or `Ok` when there are none.
    pub(crate) fn unless_none(problems: Vec<Problem>) -> Result<(), Self> {
        if problems.is_empty() {
            Ok(())
        } else {
            Err(Self { problems })
        }
    }

    /// The mistakes in the order they were found; at least one.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl From<Problem> for ConfigError {
    fn from(problem: Problem) -> Self {
        Self {
            problems: vec![problem],
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "config: {problem}")?;
        }
        Ok(())
    }
}

/// One mistake.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The file cannot be read. The cause is part of the text, because a list of mistakes has no single source.
    #[error("cannot read {}: {detail}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        detail: String,
    },
    /// The file is not TOML.
    #[error("{} is not valid TOML: {detail}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// What the parser said, with line and column.
        detail: String,
    },
    /// No such key.
    #[error("unknown key {key:?} (from {origin}); {hint}")]
    UnknownKey {
        /// The key as written, dotted.
        key: String,
        /// Where it was written.
        origin: Origin,
        /// The nearest right name, or the names that exist here.
        hint: String,
    },
    /// The value is of the wrong type or out of range.
    #[error("{key} is {value} (from {origin}); expected {expected}")]
    WrongValue {
        /// The dotted key.
        key: String,
        /// The value as written; masked if it is a secret.
        value: String,
        /// Where it was written.
        origin: Origin,
        /// What would be right.
        expected: String,
    },
    /// Two values do not fit each other.
    #[error("{key} is {value} (from {origin}), which {conflict}")]
    Conflict {
        /// The dotted key.
        key: String,
        /// Its value; masked if it is a secret.
        value: String,
        /// Where it was written.
        origin: Origin,
        /// The other key, its value and what would be right.
        conflict: String,
    },
}
