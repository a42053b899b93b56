//! How long the server wants to be left alone: the `retry-after` header.
//!
//! Seen in the wild: whole seconds, floats, HTTP dates, zero, negative numbers, hours (13 262 s), and
//! nonsense. What is believable is obeyed in full; what is not counts as not given.

/// A wait asked for by the server, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RetryAfter(u64);

impl RetryAfter {
    /// The longest believable wait: a spend cap that ends with the month.
    pub const MAX: Self = Self(31 * 24 * 3_600 * 1_000);

    /// A wait of `ms` milliseconds; `None` above [`RetryAfter::MAX`].
    #[must_use]
    pub fn from_ms(ms: u64) -> Option<Self> {
        (ms <= Self::MAX.0).then_some(Self(ms))
    }

    /// The wait in milliseconds.
    #[must_use]
    pub fn ms(self) -> u64 {
        self.0
    }
}
