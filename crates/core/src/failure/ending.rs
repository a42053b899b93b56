//! What a call can end as. Text from the upstream becomes enums here and nowhere else.

use super::retry_after::RetryAfter;

/// Everything one call to the Messages API can end as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// A complete message arrived (with `message_stop` when it was streamed).
    Message(StopReason),
    /// The upstream, or something in front of it, answered with an error.
    Error(ErrorAnswer),
    /// No connection: nothing of the request left this machine.
    NotConnected(NotConnected),
    /// The connection ended after the request was, or may have been, sent.
    Cut(Cut),
    /// We gave up waiting after the request was sent.
    Timeout(Timeout),
    /// A 2xx answer that is not what the Messages API sends.
    Undecodable {
        /// Parts of a message had been read before.
        progressed: bool,
    },
    /// A complete message whose structured output breaks its schema.
    SchemaViolated,
    /// We stopped the call ourselves: the job was cancelled, or this process is ending.
    Cancelled(Cancelled),
}

/// Why a complete message stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopReason {
    EndTurn,
    ToolUse,
    StopSequence,
    MaxTokens,
    Refusal(RefusalCategory),
    PauseTurn,
    ContextWindowExceeded,
    Compaction,
    /// A word this version does not know, at most [`WORD_LENGTH_MAX`] bytes of it.
    Unknown(String),
}

/// `stop_details.category` of a refusal. The upstream bills some categories even before any output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RefusalCategory {
    /// No category given.
    None,
    Cyber,
    Bio,
    FrontierLlm,
    ReasoningExtraction,
    GeneralHarms,
    Unknown(String),
}

/// An error answer, reduced to what decisions need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorAnswer {
    /// HTTP status; 2xx when the error came as an event inside a stream.
    pub status: u16,
    /// `error.type` of the body.
    pub kind: ErrorKind,
    /// `error.details.error_code` of the body.
    pub code: Option<ErrorCode>,
    /// What only the message text says.
    pub hint: Option<Hint>,
    pub retry_after: Option<RetryAfter>,
    /// The `x-should-retry` header.
    pub should_retry: Option<bool>,
    pub place: Place,
}

/// Where an error answer arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// As the answer's status and body: no message had begun.
    BeforeStream,
    /// As an `error` event after a 200.
    InStream {
        /// Parts of a message had been read before.
        progressed: bool,
    },
}

/// `error.type`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ErrorKind {
    InvalidRequest,
    Authentication,
    Billing,
    Permission,
    NotFound,
    Conflict,
    RequestTooLarge,
    RateLimit,
    Api,
    Timeout,
    Overloaded,
    /// The body is not an API error: written by a proxy or CDN, cut off, or empty.
    Missing,
    Unknown(String),
}

/// `error.details.error_code`; an unknown one means no more than the bare type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ErrorCode {
    RampLimitExceeded,
    EnforcedSpendLimitReached,
    ContractSpendLimitReached,
    LinkedOrganizationSpendLimitReached,
    LinkedOrganizationBillingUnavailable,
    OrganizationOnHold,
    CmekKeyDisabled,
    CmekKeyNetworkBlocked,
    CmekKeyUnreachable,
    WorkspaceHumanReviewDisabled,
    UserProfileRequired,
    UserProfileNotBillable,
    ImageDimensionsTooLarge,
    RequestBodyTooLargeAfterDecoding,
    /// `request_body_encoding_*`
    RequestBodyEncoding,
    /// `thread_*`
    Thread,
    CompactionUnavailable,
    /// any other `compaction_*`
    Compaction,
    Unknown(String),
}

/// What an error means that only its message text tells. The texts are not promised by the
/// upstream, so a hint sharpens a verdict and never carries one alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hint {
    /// The spend limit set by the customer.
    SpendLimit,
    CreditTooLow,
    ConcurrentConnections,
    /// The model is what was not found.
    Model,
    /// Prompt, or prompt and `max_tokens`, exceed the model's context.
    PromptTooLong,
}

/// Why no connection came about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotConnected {
    /// Name not resolved, connection refused or unreachable, TLS failed.
    Failed,
    /// Not connected within the connect timeout.
    Timeout,
}

/// How far a call had come when its connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    BeforeHeaders,
    /// After the status line, before any part of a message.
    AfterHeaders,
    /// After parts of a message had been read.
    AfterProgress,
    /// The body ended in good order after parts of a message, but without `message_stop`.
    WithoutMessageStop,
}

/// What we waited for in vain after sending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timeout {
    FirstByte,
    /// The stream is open, but for too long brought nothing, or only pings.
    Progress {
        /// Parts of a message had been read before.
        progressed: bool,
    },
}

/// How far a call had come when we stopped it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    BeforeSending,
    AfterSending,
    AfterProgress,
}

/// Longest unknown word kept, in bytes.
pub const WORD_LENGTH_MAX: usize = 64;

/// An unknown word of the upstream, cut to [`WORD_LENGTH_MAX`].
fn bounded(word: &str) -> String {
    word[..word.floor_char_boundary(WORD_LENGTH_MAX)].to_owned()
}

impl StopReason {
    /// Reads `stop_reason` and, for refusals, `stop_details.category`.
    #[must_use]
    pub fn parse(word: &str, refusal_category: Option<&str>) -> Self {
        match word {
            "end_turn" => Self::EndTurn,
            "tool_use" => Self::ToolUse,
            "stop_sequence" => Self::StopSequence,
            "max_tokens" => Self::MaxTokens,
            "refusal" => Self::Refusal(RefusalCategory::parse(refusal_category)),
            "pause_turn" => Self::PauseTurn,
            "model_context_window_exceeded" => Self::ContextWindowExceeded,
            "compaction" => Self::Compaction,
            other => Self::Unknown(bounded(other)),
        }
    }

    /// The word as the upstream spells it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::EndTurn => "end_turn",
            Self::ToolUse => "tool_use",
            Self::StopSequence => "stop_sequence",
            Self::MaxTokens => "max_tokens",
            Self::Refusal(_) => "refusal",
            Self::PauseTurn => "pause_turn",
            Self::ContextWindowExceeded => "model_context_window_exceeded",
            Self::Compaction => "compaction",
            Self::Unknown(word) => word,
        }
    }
}

impl RefusalCategory {
    /// Reads `stop_details.category`.
    #[must_use]
    pub fn parse(word: Option<&str>) -> Self {
        match word {
            None => Self::None,
            Some("cyber") => Self::Cyber,
            Some("bio") => Self::Bio,
            Some("frontier_llm") => Self::FrontierLlm,
            Some("reasoning_extraction") => Self::ReasoningExtraction,
            Some("general_harms") => Self::GeneralHarms,
            Some(other) => Self::Unknown(bounded(other)),
        }
    }

    /// The category's word; None if none was given.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        Some(match self {
            Self::None => return None,
            Self::Cyber => "cyber",
            Self::Bio => "bio",
            Self::FrontierLlm => "frontier_llm",
            Self::ReasoningExtraction => "reasoning_extraction",
            Self::GeneralHarms => "general_harms",
            Self::Unknown(word) => word,
        })
    }
}

impl ErrorKind {
    /// Reads `error.type`; `None` when the body is not an API error.
    #[must_use]
    pub fn parse(word: Option<&str>) -> Self {
        match word {
            None => Self::Missing,
            Some("invalid_request_error") => Self::InvalidRequest,
            Some("authentication_error") => Self::Authentication,
            Some("billing_error") => Self::Billing,
            Some("permission_error") => Self::Permission,
            Some("not_found_error") => Self::NotFound,
            Some("conflict_error") => Self::Conflict,
            Some("request_too_large") => Self::RequestTooLarge,
            Some("rate_limit_error") => Self::RateLimit,
            Some("api_error") => Self::Api,
            Some("timeout_error") => Self::Timeout,
            Some("overloaded_error") => Self::Overloaded,
            Some(other) => Self::Unknown(bounded(other)),
        }
    }
}

impl ErrorCode {
    /// Reads `error.details.error_code`.
    #[must_use]
    pub fn parse(word: &str) -> Self {
        match word {
            "ramp_limit_exceeded" => Self::RampLimitExceeded,
            "enforced_spend_limit_reached" => Self::EnforcedSpendLimitReached,
            "contract_spend_limit_reached" => Self::ContractSpendLimitReached,
            "linked_organization_spend_limit_reached" => Self::LinkedOrganizationSpendLimitReached,
            "linked_organization_billing_unavailable" => Self::LinkedOrganizationBillingUnavailable,
            "organization_on_hold" => Self::OrganizationOnHold,
            "cmek_key_disabled" => Self::CmekKeyDisabled,
            "cmek_key_network_blocked" => Self::CmekKeyNetworkBlocked,
            "cmek_key_unreachable" => Self::CmekKeyUnreachable,
            "workspace_human_review_disabled" => Self::WorkspaceHumanReviewDisabled,
            "user_profile_required" => Self::UserProfileRequired,
            "user_profile_not_billable" => Self::UserProfileNotBillable,
            "image_dimensions_too_large" => Self::ImageDimensionsTooLarge,
            "request_body_too_large_after_decoding" => Self::RequestBodyTooLargeAfterDecoding,
            "compaction_unavailable" => Self::CompactionUnavailable,
            other if other.starts_with("request_body_encoding_") => Self::RequestBodyEncoding,
            other if other.starts_with("thread_") => Self::Thread,
            other if other.starts_with("compaction_") => Self::Compaction,
            other => Self::Unknown(bounded(other)),
        }
    }
}

impl Hint {
    /// Reads an error's message text.
    #[must_use]
    pub fn read(message: &str) -> Option<Self> {
        // Only the front, and where money hangs on it only the beginning: further on a message may
        // repeat the caller's own words, and no tenant may close the account by choosing them.
        let front = &message[..message.floor_char_boundary(300)];
        let text = front.to_ascii_lowercase();
        let starts = |part: &str| text.starts_with(part);
        if starts("you have reached your specified") {
            Some(Self::SpendLimit)
        } else if starts("your credit balance") || starts("credit balance") {
            Some(Self::CreditTooLow)
        } else if text.contains("concurrent connections") {
            Some(Self::ConcurrentConnections)
        } else if starts("model:") || starts("model ") {
            Some(Self::Model)
        } else if starts("prompt is too long") || text.contains("exceed context limit") {
            Some(Self::PromptTooLong)
        } else {
            None
        }
    }
}
