//! Versions of nats-server.

use std::fmt;

/// A released version. Suffixes such as `-RC.1` are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    pub major: u32,
    pub minor: u32,
    pub patch: u32,
}

impl Version {
    /// The first version with the fixes Fairlane relies on.
    pub const MINIMUM: Self = Self {
        major: 2,
        minor: 14,
        patch: 1,
    };

    /// Finds a version in `2.15.1`, `v2.15.1` or `nats-server: v2.15.1`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let word = text.split_whitespace().last()?;
        let word = word.strip_prefix('v').unwrap_or(word);
        let release = word.split(['-', '+']).next()?;
        let mut numbers = release.split('.').map(str::parse);
        let version = Self {
            major: numbers.next()?.ok()?,
            minor: numbers.next()?.ok()?,
            patch: numbers.next()?.ok()?,
        };
        numbers.next().is_none().then_some(version)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            major,
            minor,
            patch,
        } = self;
        write!(f, "{major}.{minor}.{patch}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_servers_print() {
        let version = |major, minor, patch| {
            Some(Version {
                major,
                minor,
                patch,
            })
        };
        assert_eq!(Version::parse("nats-server: v2.15.1\n"), version(2, 15, 1));
        assert_eq!(Version::parse("2.14.0-RC.1"), version(2, 14, 0));
        for bad in ["", "nats-server", "2.15", "2.15.1.7", "v2.x.1"] {
            assert_eq!(Version::parse(bad), None, "{bad:?}");
        }
        assert!(version(2, 9, 30) < Some(Version::MINIMUM));
        assert!(version(2, 14, 10) > Some(Version::MINIMUM));
    }
}
