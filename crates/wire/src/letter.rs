//! Why a job failed, and the dead letter that carries it.

use fairlane_core::{JobId, TenantId};
use serde::{Deserialize, Serialize};

use crate::text;

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
    /// Workers died on it too often.
    MaxDeliver,
}

impl DeadReason {
    /// Every reason.
    pub const ALL: [Self; 14] = [
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
        }
    }

    /// The reason of a stable word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == word)
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
            | Self::BacklogFull => true,
            Self::InvalidRequest
            | Self::Refusal
            | Self::MaxTokens
            | Self::Schema
            | Self::Exhausted
            | Self::Ambiguous
            | Self::Expired
            | Self::MaxDeliver => false,
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
    /// Status of the upstream's answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream_status: Option<u16>,
    /// The upstream's own id of the failed call.
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
            message: one_line(message.into()),
            field: None,
            offset: None,
            fix: None,
            upstream_status: None,
            request_id: None,
        }
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

    /// The failure in one line: reason, message, and the fix if there is one.
    #[must_use]
    pub fn line(&self) -> String {
        match &self.fix {
            Some(fix) => format!("{}: {}; {fix}", self.reason, self.message),
            None => format!("{}: {}", self.reason, self.message),
        }
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

/// The facts of a dead letter. It travels in a header; the body is the job's own, byte for byte.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Letter {
    /// None if it was published under a name that cannot be a tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    #[serde(with = "text::job")]
    pub job: JobId,
    #[serde(flatten)]
    pub failure: Failure,
    /// Subject the body was read from.
    pub subject: String,
    pub attempts: u32,
    pub deliveries: u32,
    /// Model asked for, when one could be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Unix milliseconds.
    pub at_ms: u64,
}

impl Letter {
    /// Deduplication id: a job has one dead letter, however often it is written.
    #[must_use]
    pub fn message_id(&self) -> String {
        format!("dlq-{}:{}", self.tenant.as_deref().unwrap_or("?"), self.job)
    }

    /// Deduplication id of a submission that never became a job, by its
    /// [assigned id](crate::assigned_id). Not by its own: the same id may be published again,
    /// repaired or differently broken, and each of these needs its own letter.
    #[must_use]
    pub fn submission_message_id(assigned: &JobId) -> String {
        format!("dlq-submit:{assigned}")
    }
}

/// Tenant token of dead letters whose own tenant name is unusable.
#[must_use]
pub fn unknown_tenant() -> TenantId {
    TenantId::parse("unknown").expect("a plain word is a tenant")
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
    fn a_letter_as_it_travels() {
        let letter = Letter {
            tenant: Some("acme".into()),
            job: JobId::parse("wp-1").unwrap(),
            failure: Failure::new(DeadReason::Schema, "tags has 2 items").field("tags"),
            subject: "fl.jobs.batch.acme".into(),
            attempts: 1,
            deliveries: 1,
            model: Some("claude-haiku-4-5".into()),
            kind: Some("tagging".into()),
            at_ms: 1_700_000_000_000,
        };
        let text = serde_json::to_string(&letter).unwrap();
        assert_eq!(
            text,
            r#"{"tenant":"acme","job":"wp-1","reason":"schema","message":"tags has 2 items","field":"tags","subject":"fl.jobs.batch.acme","attempts":1,"deliveries":1,"model":"claude-haiku-4-5","kind":"tagging","at_ms":1700000000000}"#
        );
        assert_eq!(serde_json::from_str::<Letter>(&text).unwrap(), letter);
    }

    #[test]
    fn letters_of_two_submissions_of_one_id_are_told_apart() {
        let [one, two] =
            [7, 8].map(|seq| Letter::submission_message_id(&crate::assigned_id(255, seq)));
        assert_eq!(one, "dlq-submit:jff-7");
        assert_ne!(one, two);
    }
}
