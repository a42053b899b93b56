//! Values of labels: the ones we choose, and a bound for those that others choose.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// Label value of tenants, kinds and models beyond their cap.
pub const OTHER_TENANTS: &str = "other";

/// Declares an enum of label values.
macro_rules! values {
    ($(#[$meta:meta])* $name:ident { $($(#[doc = $doc:expr])* $variant:ident = $word:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[doc = $doc])* $variant,)* }

        impl $name {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            pub(super) fn label(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }
        }
    };
}

values! {
    /// Label values of `priority`.
    Priority {
        /// Somebody waits for it.
        Critical = "critical",
        /// Has a deadline.
        Standard = "standard",
        /// Fills what is left.
        Batch = "batch",
    }
}

values! {
    /// Label values of `outcome`: the ways a job can end.
    Outcome {
        /// A result is stored.
        Done = "done",
        /// It became a dead letter.
        Dead = "dead",
        /// Its owner took it back.
        Cancelled = "cancelled",
        /// Its deadline passed first.
        Expired = "expired",
    }
}

values! {
    /// Label values of `outcome`: how a try at delivering a callback ended.
    CallbackOutcome {
        /// It was taken.
        Delivered = "delivered",
        /// It was not, and is tried again.
        Retried = "retried",
        /// It is not tried again.
        Dropped = "dropped",
    }
}

values! {
    /// Label values of `outcome`: what became of a message to the webhook.
    WebhookOutcome {
        /// It was taken.
        Sent = "sent",
        /// It was not, and is tried again.
        Failed = "failed",
        /// It is not tried again, or there was no room for it.
        Dropped = "dropped",
    }
}

values! {
    /// Label values of `bucket`: what a limit counts, in the order in which limits are told.
    Bucket {
        /// Requests.
        Requests = "requests",
        /// Input tokens.
        InputTokens = "input_tokens",
        /// Output tokens.
        OutputTokens = "output_tokens",
    }
}

/// States of a breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Breaker {
    /// Calls pass.
    Closed,
    /// One call goes through, to see.
    HalfOpen,
    /// Nothing passes.
    Open,
}

/// Bounds the distinct values of a label: the first ones are kept, later ones become `other`.
#[derive(Debug)]
pub struct LabelCap {
    max: usize,
    seen: Mutex<HashSet<Box<str>>>,
}

impl LabelCap {
    /// Keeps at most `max` distinct values.
    pub fn new(max: usize) -> Self {
        Self {
            max,
            seen: Mutex::default(),
        }
    }

    /// The value to use as label: `value` itself, or [`OTHER_TENANTS`] beyond the cap.
    pub fn label<'v>(&self, value: &'v str) -> &'v str {
        // A panic elsewhere cannot leave a set of names half changed.
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.contains(value) {
            return value;
        }
        if seen.len() >= self.max {
            return OTHER_TENANTS;
        }
        seen.insert(value.into());
        value
    }
}
