//! The identifiers of the domain. None of them can exist in a wrong form.
//!
//! Tenants and jobs become NATS subject tokens and KV keys, so their alphabet is
//! the safe part of both: no dots, wildcards, spaces or slashes.

use std::fmt;
use std::sync::Arc;

/// Why a name was refused. The text says what would be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("{what} is empty; {rule}")]
    Empty {
        what: &'static str,
        rule: &'static str,
    },
    #[error("{what} {value:?} is {length} characters long; {rule}")]
    TooLong {
        what: &'static str,
        value: String,
        length: usize,
        rule: &'static str,
    },
    #[error("{what} {value:?} contains {bad:?}; {rule}")]
    Character {
        what: &'static str,
        value: String,
        bad: char,
        rule: &'static str,
    },
}

/// What an identifier may look like: first character, further characters, length.
struct Rule {
    what: &'static str,
    text: &'static str,
    first: fn(char) -> bool,
    rest: fn(char) -> bool,
    length_max: usize,
}

impl Rule {
    fn check(&self, value: &str) -> Result<(), NameError> {
        let Rule {
            what, text: rule, ..
        } = *self;
        let mut chars = value.chars();
        let Some(first) = chars.next() else {
            return Err(NameError::Empty { what, rule });
        };
        let length = value.chars().count();
        if length > self.length_max {
            let value = value.chars().take(40).collect::<String>() + "...";
            return Err(NameError::TooLong {
                what,
                value,
                length,
                rule,
            });
        }
        let bad = if (self.first)(first) {
            chars.find(|&c| !(self.rest)(c))
        } else {
            Some(first)
        };
        match bad {
            Some(bad) => Err(NameError::Character {
                what,
                value: value.to_owned(),
                bad,
                rule,
            }),
            None => Ok(()),
        }
    }
}

fn alphanumeric(c: char) -> bool {
    c.is_ascii_alphanumeric()
}

fn word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

fn model_char(c: char) -> bool {
    word(c) || c == '.' || c == ':' || c == '@' || c == '/'
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident, $rule:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            const RULE: Rule = $rule;

            /// Checks `value` and wraps it.
            ///
            /// # Errors
            /// A [`NameError`] that says which character or length is wrong and what would be right.
            pub fn parse(value: &str) -> Result<Self, NameError> {
                Self::RULE.check(value)?;
                Ok(Self(value.into()))
            }

            /// The identifier as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &self.0)
            }
        }
    };
}

name_type!(
    /// Who a job belongs to: `[A-Za-z0-9][A-Za-z0-9_-]{0,62}`.
    TenantId,
    Rule {
        what: "tenant",
        text: "a tenant is 1 to 63 letters, digits, '_' or '-', and starts with a letter or digit",
        first: alphanumeric,
        rest: word,
        length_max: 63,
    }
);

name_type!(
    /// A job's id, unique within its tenant: `[A-Za-z0-9][A-Za-z0-9_-]{0,127}`.
    JobId,
    Rule {
        what: "id",
        text: "a job id is 1 to 128 letters, digits, '_' or '-', and starts with a letter or digit",
        first: alphanumeric,
        rest: word,
        length_max: 128,
    }
);

name_type!(
    /// What sort of work a job is, for example `tagging`: `[A-Za-z0-9][A-Za-z0-9_-]{0,62}`.
    Kind,
    Rule {
        what: "kind",
        text: "a kind is 1 to 63 letters, digits, '_' or '-', and starts with a letter or digit",
        first: alphanumeric,
        rest: word,
        length_max: 63,
    }
);

name_type!(
    /// A model id as the upstream spells it.
    ModelId,
    Rule {
        what: "model",
        text: "a model id is 1 to 128 letters, digits or any of '_-.:@/', and starts with a letter or digit",
        first: alphanumeric,
        rest: model_char,
        length_max: 128,
    }
);

name_type!(
    /// Models that share one upstream limit, for example `sonnet-4.x`.
    PoolId,
    Rule {
        what: "pool",
        text: "a pool is 1 to 63 letters, digits or any of '_-.', and starts with a letter or digit",
        first: alphanumeric,
        rest: model_char,
        length_max: 63,
    }
);

name_type!(
    /// One worker process, new at every start: `[A-Za-z0-9][A-Za-z0-9_-]{0,62}`.
    WorkerId,
    Rule {
        what: "worker",
        text: "a worker is 1 to 63 letters, digits, '_' or '-', and starts with a letter or digit",
        first: alphanumeric,
        rest: word,
        length_max: 63,
    }
);

/// Position of a job in the job stream; names it for the whole fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobSeq(pub u64);

impl fmt::Display for JobSeq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Leader epoch: the revision of the lease acquisition that began it. Strictly increasing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Term(pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_reach_into_other_subjects_are_refused() {
        for bad in [
            "",
            "Wallpaper Pro/../*>",
            "a.b",
            "*",
            ">",
            "a b",
            "-a",
            "_a",
            "é",
            "a\0",
            "a\n",
        ] {
            assert!(TenantId::parse(bad).is_err(), "{bad:?}");
            assert!(JobId::parse(bad).is_err(), "{bad:?}");
        }
        for good in ["a", "Acme", "wallpaper-pro", "0_1", &"x".repeat(63)] {
            assert_eq!(TenantId::parse(good).unwrap().as_str(), good);
        }
        assert!(TenantId::parse(&"x".repeat(64)).is_err());
    }

    #[test]
    fn a_refusal_names_the_field_the_value_and_the_rule() {
        let error = TenantId::parse("a/b").unwrap_err().to_string();
        assert_eq!(
            error,
            "tenant \"a/b\" contains '/'; a tenant is 1 to 63 letters, digits, '_' or '-', and starts with a letter or digit"
        );
    }

    #[test]
    fn model_ids_of_other_platforms_parse() {
        for good in [
            "claude-haiku-4-5-20251001",
            "anthropic.claude-sonnet-4-6",
            "claude-opus-5@20260101",
        ] {
            assert!(ModelId::parse(good).is_ok(), "{good}");
        }
        assert!(ModelId::parse("claude haiku").is_err());
    }
}
