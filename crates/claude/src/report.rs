//! What a call comes back with, whatever became of it.

use fairlane_core::failure::{Ending, Verdict, classify};
use fairlane_core::price::{Terms, Usage};
use serde_json::Value;

use crate::limits::Limits;
use crate::sse::Event;

/// The whole outcome of one call. There is no error beside it: a failed call is a report too.
#[derive(Debug, Clone, PartialEq)]
pub struct CallReport {
    pub ending: Ending,
    /// The message, when it came to its end; also when that end is no success.
    pub message: Option<Value>,
    pub usage: Usage,
    pub usage_basis: UsageBasis,
    /// The circumstances that change the price, as the upstream reports them.
    pub terms: Terms,
    /// The model that answered, as the upstream spells it.
    pub model: Option<String>,
    /// The upstream's id of the request.
    pub request_id: Option<String>,
    /// HTTP status, once there was one.
    pub status: Option<u16>,
    pub limits: Limits,
    pub timings: Timings,
    /// What the error said, on one line and of bounded length. May repeat parts of the request: for dead
    /// letters, not for logs.
    pub error_message: Option<String>,
}

impl CallReport {
    /// What follows from the ending.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        classify(&self.ending)
    }
}

/// How good the usage of a report is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UsageBasis {
    /// Nothing was seen; the usage is zero.
    None,
    /// The stream broke: as last seen, and what was written since is estimated.
    Estimated,
    /// The final numbers.
    Final,
}

/// Times since the call began, in milliseconds; absent when it did not come so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Timings {
    /// Until status and headers were there, connecting included.
    pub headers_ms: Option<u64>,
    /// Until the first part of thinking or answer.
    pub first_output_ms: Option<u64>,
    pub total_ms: u64,
}

/// How far a running call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress<'a> {
    pub stage: Stage,
    /// The event that brought it here, if it came in one.
    pub event: Option<&'a Event>,
    /// Output tokens so far; an estimate until the end.
    pub output_tokens: u64,
}

/// The stages of a call, in their order; thinking and writing may take turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// The upstream has answered with success.
    Accepted,
    /// The message has begun.
    Started,
    Thinking,
    Writing,
    /// The content is complete.
    Closing,
}
