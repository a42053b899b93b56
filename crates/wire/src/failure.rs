//! Why a job failed, in a form for programs and for its owner.

use serde::{Deserialize, Serialize};

/// Why a job ended as a dead letter. A small fixed set; the details are in [`Failure`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeadReason {
    /// Not UTF-8, not JSON, or nested too deeply.
    Undecodable,
    /// JSON, but not a job: a field is missing or wrong.
    InvalidJob,
    /// Published under a name that cannot be a tenant.
    InvalidTenant,
    /// The model is not one this fleet knows.
    UnknownModel,
    /// Larger than the model can read.
    Oversize,
    /// The tenant's queue is full.
    BacklogFull,
    /// Refused by the upstream as a bad request.
    InvalidRequest,
    /// The model refused for safety.
    Refusal,
    /// The answer was cut at `max_tokens`, even with more room.
    MaxTokens,
    /// The answer violates the job's output schema.
    Schema,
    /// Transient failures used up all attempts.
    Exhausted,
    /// The outcome of a paid call is unknown and it was retried once already.
    Ambiguous,
    /// The deadline passed before the job could run.
    Expired,
    /// A submission that no producer could finish, however often it was delivered.
    MaxDeliver,
    /// Workers died with it in hand, the last time when it ran alone.
    CrashSuspect,
}

impl DeadReason {
    /// Every reason.
    pub const ALL: [Self; 15] = [
        Self::Undecodable,
        Self::InvalidJob,
        Self::InvalidTenant,
        Self::UnknownModel,
        Self::Oversize,
        Self::BacklogFull,
        Self::InvalidRequest,
        Self::Refusal,
        Self::MaxTokens,
        Self::Schema,
        Self::Exhausted,
        Self::Ambiguous,
        Self::Expired,
        Self::MaxDeliver,
        Self::CrashSuspect,
    ];

    /// The stable word used in subjects, records and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Undecodable => "undecodable",
            Self::InvalidJob => "invalid_job",
            Self::InvalidTenant => "invalid_tenant",
            Self::UnknownModel => "unknown_model",
            Self::Oversize => "oversize",
            Self::BacklogFull => "backlog_full",
            Self::InvalidRequest => "invalid_request",
            Self::Refusal => "refusal",
            Self::MaxTokens => "max_tokens",
            Self::Schema => "schema",
            Self::Exhausted => "exhausted",
            Self::Ambiguous => "ambiguous",
            Self::Expired => "expired",
            Self::MaxDeliver => "max_deliver",
            Self::CrashSuspect => "crash_suspect",
        }
    }

    /// Whether the job itself is the reason. Otherwise its owner sees a failure that somebody else has caused.
    #[must_use]
    pub fn is_fault_of_the_job(self) -> bool {
        match self {
            Self::Undecodable
            | Self::InvalidJob
            | Self::InvalidTenant
            | Self::UnknownModel
            | Self::Oversize
            | Self::InvalidRequest
            | Self::Refusal
            | Self::MaxTokens
            | Self::Schema => true,
            Self::BacklogFull
            | Self::Exhausted
            | Self::Ambiguous
            | Self::Expired
            | Self::MaxDeliver
            | Self::CrashSuspect => false,
        }
    }

    /// The reason of a stable word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == word)
    }

    /// What happened, as a sentence.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Undecodable => "The body is not UTF-8, not JSON, or nested too deeply.",
            Self::InvalidJob => "The body is JSON and not a job: a field is missing or wrong.",
            Self::InvalidTenant => "It was published under a name that cannot be a tenant.",
            Self::UnknownModel => "The model is not one that this fleet knows.",
            Self::Oversize => "It is larger than its model can read.",
            Self::BacklogFull => "The queue of its tenant was full.",
            Self::InvalidRequest => "The Claude API refused it as a bad request.",
            Self::Refusal => "The model refused it for safety.",
            Self::MaxTokens => "The answer was cut off at `max_tokens`, with more room too.",
            Self::Schema => "The answer breaks the job's output schema.",
            Self::Exhausted => "All attempts failed for reasons that pass.",
            Self::Ambiguous => "Twice nobody said how a call ended that may have been paid.",
            Self::Expired => "Its deadline passed before it could run.",
            Self::MaxDeliver => {
                "No producer could finish taking it in, however often it was delivered."
            }
            Self::CrashSuspect => "Workers died with it in hand, the last one when it ran alone.",
        }
    }

    /// What usually helps whoever looks after the letter, in Markdown.
    #[must_use]
    pub fn cure(self) -> &'static str {
        match self {
            Self::Undecodable => "`--strip`, or `--body FILE` if the document is cut off",
            Self::InvalidJob => "`--patch`, as `fairlane dlq show` says",
            Self::InvalidTenant => "`--for-tenant NAME`",
            Self::UnknownModel => "`--model NAME`",
            Self::Oversize => {
                "`--trim`, or `--model` with a larger context; for a kind that is often too long, \
                 `[kinds.KIND] oversize = \"summarise\"` or `\"truncate\"`. Detail `part`: a part was not summarised; \
                 when its cause is gone, send the whole again, parts that are done are not paid again"
            }
            Self::InvalidRequest => "`--patch`, as the upstream's words in the letter say",
            Self::Refusal => "a person reads it; the same text is refused again",
            Self::MaxTokens => "`--max-tokens N`",
            Self::Schema => "review the prompt: `--patch`, then send",
            Self::BacklogFull | Self::Exhausted | Self::Ambiguous | Self::MaxDeliver => {
                "nothing: `fairlane dlq redrive` when the cause is gone"
            }
            Self::Expired => {
                "`fairlane dlq repair --patch '{\"deadline_ms\": null}'`, if it is still wanted"
            }
            Self::CrashSuspect => "find what kills the workers first",
        }
    }

    /// Whether the job was turned away before it was queued, so that nothing was ever called.
    #[must_use]
    pub fn is_refusal_at_the_door(self) -> bool {
        match self {
            Self::Undecodable
            | Self::InvalidJob
            | Self::InvalidTenant
            | Self::UnknownModel
            | Self::Oversize
            | Self::BacklogFull
            | Self::MaxDeliver => true,
            Self::InvalidRequest
            | Self::Refusal
            | Self::MaxTokens
            | Self::Schema
            | Self::Exhausted
            | Self::Ambiguous
            | Self::Expired
            | Self::CrashSuspect => false,
        }
    }
}

impl std::fmt::Display for DeadReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// What went wrong, for the owner of the job: never a stack trace, always what would be right.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub reason: DeadReason,
    /// What within the reason: a stable word, such as `invalid_utf8` or a category of refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Box<str>>,
    pub message: String,
    /// Path of the field at fault, for example `request.messages[0].content`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// Byte offset in the body at which decoding failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<usize>,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
    /// What the upstream answered, if it was called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream: Option<Box<Upstream>>,
}

/// The answer of the upstream's that a failure is about.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Upstream {
    /// HTTP status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// In its own words, on one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Its own id of the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

/// Messages from outside are cut to this many bytes; they travel in headers.
const MESSAGE_BYTES_MAX: usize = 1_000;

impl Failure {
    /// A failure for `reason`, described by `message`, which is cut to 1 000 bytes and one line.
    #[must_use]
    pub fn new(reason: DeadReason, message: impl Into<String>) -> Self {
        Self {
            reason,
            detail: None,
            message: one_line(message.into()),
            field: None,
            offset: None,
            fix: None,
            upstream: None,
        }
    }

    #[must_use]
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(one_line(detail.into()).into());
        self
    }

    /// What the upstream answered; its message is cut like ours.
    pub fn answered(mut self, upstream: Upstream) -> Self {
        let message = upstream.message.map(one_line);
        self.upstream = Some(Box::new(Upstream {
            message,
            ..upstream
        }));
        self
    }

    #[must_use]
    pub fn field(mut self, field: impl Into<String>) -> Self {
        self.field = Some(one_line(field.into()));
        self
    }

    #[must_use]
    pub fn at(mut self, offset: usize) -> Self {
        self.offset = Some(offset);
        self
    }

    #[must_use]
    pub fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(one_line(fix.into()));
        self
    }

    /// What the upstream said.
    #[must_use]
    pub fn said(&self) -> Option<&str> {
        self.upstream.as_ref()?.message.as_deref()
    }

    /// The failure in one line: reason, message, and the fix if there is one.
    #[must_use]
    pub fn line(&self) -> String {
        let said = self.said();
        let said = said.map_or_else(String::new, |said| format!("; the upstream said: {said}"));
        let fix = self.fix.as_deref();
        let fix = fix.map_or_else(String::new, |fix| format!("; {fix}"));
        format!("{}: {}{said}{fix}", self.reason, self.message)
    }
}

fn one_line(text: String) -> String {
    let mut text = if text.contains(char::is_control) {
        text.chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect()
    } else {
        text
    };
    if text.len() > MESSAGE_BYTES_MAX {
        let end = (0..=MESSAGE_BYTES_MAX)
            .rev()
            .find(|&at| text.is_char_boundary(at))
            .unwrap_or(0);
        text.truncate(end);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_one_word_in_code_and_on_the_wire() {
        for reason in DeadReason::ALL {
            assert_eq!(DeadReason::parse(reason.as_str()), Some(reason));
            assert_eq!(serde_json::to_value(reason).unwrap(), reason.as_str());
        }
    }

    #[test]
    fn text_from_outside_stays_on_one_line_and_short() {
        let failure = Failure::new(
            DeadReason::InvalidRequest,
            "a\r\nNats-TTL: 1\u{0}é".repeat(1_000),
        );
        assert!(!failure.message.contains(['\r', '\n', '\0']));
        assert!(failure.message.len() <= MESSAGE_BYTES_MAX);
    }

    #[test]
    fn the_line_tells_what_the_upstream_said_and_what_to_do() {
        let failure = Failure::new(DeadReason::InvalidRequest, "refused").fix("correct it");
        assert_eq!(failure.line(), "invalid_request: refused; correct it");
        let failure = failure.answered(Upstream {
            message: Some("bad role".into()),
            ..Upstream::default()
        });
        assert_eq!(
            failure.line(),
            "invalid_request: refused; the upstream said: bad role; correct it"
        );
    }
}
