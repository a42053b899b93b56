//! Words for people: what happened, and what to do next.

use std::fmt;

use super::ending::{
    Cancelled, Cut, Ending, ErrorAnswer, NotConnected, Place, StopReason, Timeout,
};
use super::{Reason, classify};

/// One short sentence about a call's end: what happened, and what to do next. Contains nothing of the
/// request or the answer.
#[must_use]
pub fn describe(ending: &Ending) -> String {
    format!("{}: {}", What(ending), classify(ending).reason.advice())
}

/// What happened, without what to do about it. Contains nothing of the request or the answer.
#[must_use]
pub fn happened(ending: &Ending) -> String {
    What(ending).to_string()
}

impl Reason {
    /// What a person can do about it, as half a sentence; used alone where only the reason was kept.
    #[must_use]
    pub fn advice(self) -> &'static str {
        match self {
            Self::Done => "the answer is the job's result",
            Self::PauseTurn | Self::Compaction => "the call goes on by itself",
            Self::MaxTokens => "raise max_tokens or ask for a shorter answer, then send it again",
            Self::Refusal => "have a person read the request; the same text will be refused again",
            Self::ContextWindow => {
                "shorten the input or use a model with a larger context, then send it again"
            }
            Self::UnknownStop => "this version does not know the word; update, then send it again",
            Self::Schema => "review the prompt or the schema, then send it again",
            Self::InvalidRequest => "correct the request, then send it again",
            Self::Oversize => "shorten or summarise the input, then send it again",
            Self::NotFound => {
                "correct the file, container or other id in the request, then send it again"
            }
            Self::RateLimit | Self::RampLimit => "the pool pauses and goes on by itself",
            Self::ConcurrencyLimit => "fewer calls run at a time for a while; nothing to do",
            Self::UnexplainedLimit => {
                "the pool is closed and tried again now and then; check the limits of the account"
            }
            Self::SpendLimit => {
                "jobs stay queued; raise the spend limit or wait for the next month"
            }
            Self::CreditExhausted => "jobs stay queued; buy credit for the account",
            Self::Billing => "jobs stay queued; put the account's billing in order",
            Self::AccountOnHold => "jobs stay queued; contact the provider about the organisation",
            Self::Authentication => "jobs stay queued; replace the API key",
            Self::Permission => {
                "this kind waits; allow the key's workspace to do this, or change the kind"
            }
            Self::ModelUnavailable => {
                "jobs for this model wait; correct the model's name or choose another"
            }
            Self::Endpoint => "jobs stay queued; correct the base URL",
            Self::EncryptionKey => "jobs stay queued; enable the workspace's encryption key",
            Self::Overloaded | Self::UpstreamError => {
                "it is tried again; if it became a dead letter, send it again later"
            }
            Self::UpstreamTimeout => {
                "it is tried again; split the job or lower max_tokens if it keeps happening"
            }
            Self::Conflict => "it is tried again; send it again if it became a dead letter",
            Self::Connect => "it is tried again; check network, name resolution and proxy",
            Self::Cut | Self::Timeout | Self::UndecodableAnswer => {
                "it is tried once more, and may be billed twice; send it again if it became a dead letter"
            }
            Self::Cancelled => "a cancelled job is over; any other job goes on elsewhere",
            Self::Unknown => {
                "it is tried again; report it with its request id if it keeps happening"
            }
        }
    }
}

struct What<'a>(&'a Ending);

impl fmt::Display for What<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Ending::Message(stop) => message(stop, f),
            Ending::Error(answer) => error(answer, f),
            Ending::NotConnected(NotConnected::Failed) => f.write_str("no connection to the API"),
            Ending::NotConnected(NotConnected::Timeout) => {
                f.write_str("no connection to the API within the connect timeout")
            }
            Ending::Cut(cut) => f.write_str(match cut {
                Cut::BeforeHeaders => "the connection was cut before the API answered",
                Cut::AfterHeaders => "the connection was cut before the answer began",
                Cut::AfterProgress => "the connection was cut in the middle of the answer",
                Cut::WithoutMessageStop => "the answer ended without its last part",
            }),
            Ending::Timeout(Timeout::FirstByte) => f.write_str("the API did not answer in time"),
            Ending::Timeout(Timeout::Progress { progressed: false }) => {
                f.write_str("the answer never began")
            }
            Ending::Timeout(Timeout::Progress { progressed: true }) => {
                f.write_str("the answer stood still for too long")
            }
            Ending::Undecodable { progressed: _ } => {
                f.write_str("the answer is not what the API sends")
            }
            Ending::SchemaViolated => f.write_str("the answer breaks its schema"),
            Ending::Cancelled(Cancelled::BeforeSending) => f.write_str("stopped before the call"),
            Ending::Cancelled(Cancelled::AfterSending | Cancelled::AfterProgress) => {
                f.write_str("stopped during the call")
            }
        }
    }
}

fn message(stop: &StopReason, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match stop {
        StopReason::EndTurn | StopReason::ToolUse | StopReason::StopSequence => {
            f.write_str("complete answer")
        }
        StopReason::MaxTokens => f.write_str("the answer was cut off at max_tokens"),
        StopReason::Refusal(category) => match category.as_str() {
            None => f.write_str("the model refused"),
            Some(word) => write!(f, "the model refused (category {word})"),
        },
        StopReason::PauseTurn => f.write_str("the model paused in a chain of tools"),
        StopReason::ContextWindowExceeded => {
            f.write_str("the answer was cut off because the model's context is full")
        }
        StopReason::Compaction => f.write_str("the conversation was compacted"),
        StopReason::Unknown(word) => write!(f, "the answer stopped for an unknown reason ({word})"),
    }
}

fn error(answer: &ErrorAnswer, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let what = match super::answer_reason(answer) {
        Reason::InvalidRequest => "the API refused the request as invalid",
        Reason::Oversize => "the request is too large",
        Reason::NotFound => "something the request names does not exist",
        Reason::RateLimit => "rate limit reached",
        Reason::RampLimit => "traffic grew faster than the API allows",
        Reason::ConcurrencyLimit => "too many calls at a time",
        Reason::UnexplainedLimit => "a limit was reached that names no time",
        Reason::SpendLimit => "spend limit reached",
        Reason::CreditExhausted => "no credit left",
        Reason::Billing => "the account cannot be billed",
        Reason::AccountOnHold => "the organisation is on hold",
        Reason::Authentication => "the API key was refused",
        Reason::Permission => "the API key may not do this",
        Reason::ModelUnavailable => "the model does not exist or is retired",
        Reason::Endpoint => "what answered is not the Messages API",
        Reason::EncryptionKey => "the workspace's encryption key is disabled",
        Reason::Overloaded => "the API is overloaded",
        Reason::UpstreamError => "the API failed",
        Reason::UpstreamTimeout => "the API took too long",
        Reason::Conflict => "the request met a concurrent change",
        Reason::Cut => "the API saw the connection end",
        Reason::Done
        | Reason::PauseTurn
        | Reason::Compaction
        | Reason::MaxTokens
        | Reason::Refusal
        | Reason::ContextWindow
        | Reason::UnknownStop
        | Reason::Schema
        | Reason::Connect
        | Reason::Timeout
        | Reason::UndecodableAnswer
        | Reason::Cancelled
        | Reason::Unknown => "the API answered with an unknown error",
    };
    match answer.place {
        Place::BeforeStream => write!(f, "{what} (HTTP {})", answer.status),
        Place::InStream { .. } => write!(f, "{what} (in the middle of the answer)"),
    }
}
