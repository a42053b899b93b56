//! What becomes of a request that is too long for its model: policy by kind of work.
//!
//! A kind that nobody has named is turned away: to leave out what somebody wrote is theirs to allow.

use std::collections::BTreeMap;

use crate::Kind;

/// A part of a request whose texts may be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The last message of the user.
    LastUserMessage,
    /// All messages.
    Messages,
    /// The system prompt.
    System,
}

impl Place {
    /// Every place.
    pub const ALL: [Self; 3] = [Self::LastUserMessage, Self::Messages, Self::System];

    /// The stable word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::LastUserMessage => "last_user_message",
            Self::Messages => "messages",
            Self::System => "system",
        }
    }

    /// The place of a stable word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|place| place.as_str() == word)
    }
}

/// What is done so that a request fits. The places are tried in the order given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Policy {
    /// Texts lose their ends.
    Truncate(Vec<Place>),
    /// Texts are split, their parts summarised, and the summaries stand in their place.
    Summarise(Vec<Place>),
}

/// What becomes of requests that are too long, by kind of work.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Policies(BTreeMap<Kind, Policy>);

impl Policies {
    /// Exactly these kinds.
    #[must_use]
    pub fn of(kinds: impl IntoIterator<Item = (Kind, Policy)>) -> Self {
        Self(kinds.into_iter().collect())
    }

    /// What is done with jobs of a kind; None, if they are to be turned away.
    #[must_use]
    pub fn of_kind(&self, kind: &Kind) -> Option<&Policy> {
        self.0.get(kind)
    }
}
