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

/// What may be cut, by kind of work.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cuts(BTreeMap<Kind, Vec<Place>>);

impl Cuts {
    /// Exactly these kinds, each with its places in the order in which they are cut.
    #[must_use]
    pub fn of(kinds: impl IntoIterator<Item = (Kind, Vec<Place>)>) -> Self {
        Self(kinds.into_iter().collect())
    }

    /// Where jobs of a kind may be cut; nowhere, if they are to be turned away.
    #[must_use]
    pub fn places(&self, kind: &Kind) -> &[Place] {
        self.0.get(kind).map_or(&[], Vec::as_slice)
    }
}
