//! What the configuration may contain: names, rules and their words.
//!
//! Serde alone cannot say "did you mean", cannot tell which source a wrong value came from, and stops at the first
//! mistake. So every section describes its keys as data, next to the Rust field, in one declaration (`described!`):
//! the same line gives the type, the default, the doc comment and the rule. Sources are checked against this
//! description leaf by leaf before anything is merged; after that, deserialising cannot fail.

use std::net::SocketAddr;

use config::ValueKind;

/// One name in the tree: a leaf, a table of further names, or a map whose keys the user chooses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Node {
    pub(crate) name: &'static str,
    /// Its documentation, line by line.
    pub(crate) docs: &'static [&'static str],
    pub(crate) kind: Kind,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    /// Always has a value; the default stands when nobody sets it.
    Leaf(Rule),
    /// May be absent. The empty text in any source means "not set", so a later source can take a value away.
    Optional(Rule),
    Table(&'static [Node]),
    /// Keys are free, each entry has these names.
    Map(&'static [Node]),
}

/// A type whose fields are described as nodes.
pub(crate) trait Described {
    const NODES: &'static [Node];
}

/// What a value has to look like.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Rule {
    /// Any text but the empty one.
    Text,
    /// Letters, digits, `_` and `-`: goes into NATS subjects and bucket names.
    Token,
    /// One or more comma-separated addresses with one of these schemes, without user and password.
    Url(&'static [&'static str]),
    /// `ip:port`.
    Address,
    /// A file path.
    Path,
    /// Text that is never shown.
    Secret,
    Whole {
        min: u64,
        max: u64,
    },
    Number {
        min: f64,
        max: f64,
    },
    Choice(&'static [&'static str]),
}

impl Rule {
    pub(crate) fn is_secret(self) -> bool {
        matches!(self, Self::Secret)
    }

    /// Says what would be right, to follow "expected".
    pub(crate) fn expected(self) -> String {
        match self {
            Self::Text => "text".to_owned(),
            Self::Token => "a name of letters, digits, _ and -".to_owned(),
            Self::Url(schemes) => format!(
                "an address starting with {}, without user and password",
                alternatives(schemes.iter().map(|scheme| format!("{scheme}://")))
            ),
            Self::Address => "an ip address and port such as 0.0.0.0:9090".to_owned(),
            Self::Path => "a file path".to_owned(),
            Self::Secret => "text (the value is not shown)".to_owned(),
            Self::Whole { min, max } => format!("a whole number from {min} to {max}"),
            Self::Number { min, max } => format!("a number from {min} to {max}"),
            Self::Choice(words) => alternatives(words.iter().map(|word| format!("{word:?}"))),
        }
    }

    /// Checks a typed value (from TOML). `Err` means: not what [`Rule::expected`] says.
    pub(crate) fn check(self, value: &ValueKind) -> Result<ValueKind, Mismatch> {
        match (self, value) {
            (Self::Whole { min, max }, ValueKind::I64(number)) => {
                let number = u64::try_from(*number).map_err(|_| Mismatch)?;
                within(number, min, max).map(ValueKind::U64)
            }
            (Self::Whole { min, max }, ValueKind::U64(number)) => {
                within(*number, min, max).map(ValueKind::U64)
            }
            (Self::Whole { .. }, _) => Err(Mismatch),
            (Self::Number { min, max }, ValueKind::Float(number)) => {
                within(*number, min, max).map(ValueKind::Float)
            }
            (Self::Number { min, max }, ValueKind::I64(number)) => {
                let small = i32::try_from(*number).map_err(|_| Mismatch)?;
                within(f64::from(small), min, max).map(ValueKind::Float)
            }
            (Self::Number { .. }, _) => Err(Mismatch),
            (_, ValueKind::String(text)) => self.check_text(text),
            (_, _) => Err(Mismatch),
        }
    }

    /// Reads text (from the environment or a flag) as this rule's type.
    pub(crate) fn parse(self, text: &str) -> Result<ValueKind, Mismatch> {
        let text = text.trim();
        match self {
            Self::Whole { min, max } => {
                let digits = text.replace('_', "");
                let number: u64 = digits.parse().map_err(|_| Mismatch)?;
                within(number, min, max).map(ValueKind::U64)
            }
            Self::Number { min, max } => {
                let number: f64 = text.parse().map_err(|_| Mismatch)?;
                within(number, min, max).map(ValueKind::Float)
            }
            Self::Text
            | Self::Token
            | Self::Url(_)
            | Self::Address
            | Self::Path
            | Self::Secret
            | Self::Choice(_) => self.check_text(text),
        }
    }

    fn check_text(self, text: &str) -> Result<ValueKind, Mismatch> {
        let fits = match self {
            Self::Text | Self::Path | Self::Secret => !text.is_empty(),
            Self::Token => {
                !text.is_empty()
                    && text
                        .bytes()
                        .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
            }
            Self::Url(schemes) => text.split(',').all(|url| is_plain_url(url, schemes)),
            Self::Address => text.parse::<SocketAddr>().is_ok(),
            Self::Choice(words) => words.contains(&text),
            Self::Whole { .. } | Self::Number { .. } => false,
        };
        if fits {
            Ok(ValueKind::String(text.to_owned()))
        } else {
            Err(Mismatch)
        }
    }
}

/// A value that is not what its rule expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mismatch;

fn within<T: PartialOrd>(value: T, min: T, max: T) -> Result<T, Mismatch> {
    // Written so that NaN, which compares with nothing, is refused.
    if value >= min && value <= max {
        Ok(value)
    } else {
        Err(Mismatch)
    }
}

/// A password inside an address would end up in logs and in `config show`; it has keys of its own.
fn is_plain_url(url: &str, schemes: &[&str]) -> bool {
    let Some((scheme, rest)) = url.trim().split_once("://") else {
        return false;
    };
    let host = rest.split(['/', '?', '#']).next().unwrap_or("");
    schemes.contains(&scheme) && !host.is_empty() && !host.contains(['@', ' '])
}

/// `a, b or c`.
pub(crate) fn alternatives(words: impl Iterator<Item = String>) -> String {
    let mut words: Vec<String> = words.collect();
    match words.pop() {
        None => String::new(),
        Some(last) if words.is_empty() => last,
        Some(last) => format!("{} or {last}", words.join(", ")),
    }
}

/// Declares one section: struct, defaults and description in a single place.
///
/// `name: Type = default, Kind;` per key. The doc comment of each key is its documentation.
macro_rules! described {
    (
        $(#[$struct_meta:meta])*
        pub struct $section:ident {
            $(
                $(#[doc = $doc:expr])*
                $field:ident: $type:ty = $default:expr, $kind:expr;
            )*
        }
    ) => {
        $(#[$struct_meta])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $section {
            $(
                $(#[doc = $doc])*
                pub $field: $type,
            )*
        }

        impl Default for $section {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl $crate::config::schema::Described for $section {
            const NODES: &'static [$crate::config::schema::Node] = &[
                $($crate::config::schema::Node {
                    name: stringify!($field),
                    docs: &[$($doc),*],
                    kind: $kind,
                },)*
            ];
        }
    };
}
pub(crate) use described;

#[cfg(test)]
mod tests {
    use super::*;

    fn text(value: &str) -> ValueKind {
        ValueKind::String(value.to_owned())
    }

    #[test]
    fn whole_numbers_are_checked_in_both_spellings() {
        let rule = Rule::Whole { min: 1, max: 5 };
        assert_eq!(rule.check(&ValueKind::I64(5)), Ok(ValueKind::U64(5)));
        assert_eq!(rule.parse(" 5 "), Ok(ValueKind::U64(5)));
        assert_eq!(rule.parse("0_5"), Ok(ValueKind::U64(5)));
        for wrong in [
            ValueKind::I64(6),
            ValueKind::I64(0),
            ValueKind::I64(-1),
            ValueKind::Float(2.0),
            text("2"),
            ValueKind::Boolean(true),
        ] {
            assert_eq!(rule.check(&wrong), Err(Mismatch), "{wrong:?}");
        }
        for wrong in ["6", "-1", "2.0", "", "two"] {
            assert_eq!(rule.parse(wrong), Err(Mismatch), "{wrong:?}");
        }
    }

    #[test]
    fn numbers_refuse_what_compares_with_nothing() {
        let rule = Rule::Number { min: 0.0, max: 1.0 };
        assert_eq!(rule.check(&ValueKind::I64(1)), Ok(ValueKind::Float(1.0)));
        assert_eq!(rule.parse("0.25"), Ok(ValueKind::Float(0.25)));
        for wrong in ["nan", "inf", "1.01", "-0.1"] {
            assert_eq!(rule.parse(wrong), Err(Mismatch), "{wrong}");
        }
    }

    #[test]
    fn addresses_with_a_password_are_refused() {
        let rule = Rule::Url(&["nats", "tls"]);
        assert!(rule.parse("nats://a:4222,tls://b:4222").is_ok());
        for wrong in [
            "nats://user:secret@a:4222",
            "nats://a:4222,http://b",
            "a:4222",
            "nats://",
            "nats://a,",
        ] {
            assert_eq!(rule.parse(wrong), Err(Mismatch), "{wrong}");
        }
    }

    #[test]
    fn tokens_cannot_break_a_subject() {
        for wrong in ["a.b", "*", ">", "a b", ""] {
            assert_eq!(Rule::Token.parse(wrong), Err(Mismatch), "{wrong:?}");
        }
        assert!(Rule::Token.parse("fl-2_b").is_ok());
    }
}
