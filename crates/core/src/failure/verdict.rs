//! What follows from a call's end, as data, and the stable words for it.

use super::retry_after::RetryAfter;

/// What sort of end a call had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// The answer is the job's result.
    Success,
    /// The answer is half a result: send its content back and call again.
    Continue,
    /// Failed for now; the same call may succeed later.
    Transient,
    /// Nobody said how the call ended; it may have been paid.
    Ambiguous,
    /// This request will never succeed as it is.
    Poison,
    /// The call worked, but its answer is not a result.
    Grey,
    /// Something is set up wrongly and will be put right: wait.
    ConfigFault,
    /// The account may not spend for now: wait, and look once in a while.
    PoolClosing,
}

/// Why, as one stable word (see [`Reason::as_str`]): in dead letters, subjects, metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    Done,
    PauseTurn,
    Compaction,
    MaxTokens,
    Refusal,
    ContextWindow,
    UnknownStop,
    Schema,
    InvalidRequest,
    Oversize,
    NotFound,
    RateLimit,
    RampLimit,
    ConcurrencyLimit,
    /// A 429 that names neither a time nor a cause.
    UnexplainedLimit,
    SpendLimit,
    CreditExhausted,
    Billing,
    AccountOnHold,
    Authentication,
    Permission,
    ModelUnavailable,
    /// Whatever answers at the base URL is not the Messages API.
    Endpoint,
    EncryptionKey,
    Overloaded,
    UpstreamError,
    UpstreamTimeout,
    Conflict,
    Connect,
    Cut,
    Timeout,
    UndecodableAnswer,
    Cancelled,
    Unknown,
}

/// What to do with the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Next {
    /// Store the answer as the result.
    Keep,
    /// Call again at once, with the answer's content added to the conversation.
    Continue,
    /// Call again after a delay, while attempts are left.
    Retry,
    /// Call again after a delay, but only once in the job's life after an ambiguous end.
    RetryOnce,
    /// Call again with a larger `max_tokens`, a limited number of times.
    RetryWithMoreRoom,
    /// Wait until the pause in [`Verdict::pause`] is over, then call again; no attempt is lost.
    Wait,
    /// Dead-letter now.
    DeadLetter,
}

/// Whom a pause concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Models that share the limits of the one called.
    Pool,
    /// The model called.
    Model,
    /// Jobs of this kind.
    Kind,
    /// Everything that uses the same key.
    Account,
    /// Not a pause of calls, but fewer at a time for the same key.
    Concurrency,
}

/// How long a pause lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Until {
    /// For a time, to be spread with [`pause_ms`](super::pause_ms).
    For(RetryAfter),
    /// Until a call succeeds; one is let through per interval.
    Probe { interval_ms: u64 },
}

/// A pause that a call's end asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pause {
    pub scope: Scope,
    pub until: Until,
}

/// What a call's end says about the health of the model it used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Health {
    /// Nothing: the request, the account or the pace was the matter.
    NoSample,
    /// The model answered.
    Good,
    /// The upstream failed.
    UpstreamBad,
    /// The way to the upstream failed.
    NetworkBad,
}

/// Whether the upstream bills the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Paid {
    No,
    /// At least for the input.
    Yes,
    /// Cannot be known from here.
    Maybe,
}

/// Everything that follows from a call's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    pub class: Class,
    pub reason: Reason,
    pub next: Next,
    /// Counts against the job's attempts.
    pub burns_attempt: bool,
    /// The sample for the model's breaker.
    pub health: Health,
    /// Whom to pause besides the job itself.
    pub pause: Option<Pause>,
    pub paid: Paid,
    /// The server's wish for a job that is retried: not earlier than this. Where a pause is asked for,
    /// the pause has the time.
    pub retry_after: Option<RetryAfter>,
}

impl Verdict {
    /// Whether the call counts as a failure of its model's breaker.
    #[must_use]
    pub fn feeds_breaker(&self) -> bool {
        match self.health {
            Health::UpstreamBad | Health::NetworkBad => true,
            Health::NoSample | Health::Good => false,
        }
    }
}

impl Class {
    /// The stable word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Continue => "continue",
            Self::Transient => "transient",
            Self::Ambiguous => "ambiguous",
            Self::Poison => "poison",
            Self::Grey => "grey",
            Self::ConfigFault => "config_fault",
            Self::PoolClosing => "pool_closing",
        }
    }
}

impl Reason {
    /// All reasons.
    pub const ALL: [Self; 34] = [
        Self::Done,
        Self::PauseTurn,
        Self::Compaction,
        Self::MaxTokens,
        Self::Refusal,
        Self::ContextWindow,
        Self::UnknownStop,
        Self::Schema,
        Self::InvalidRequest,
        Self::Oversize,
        Self::NotFound,
        Self::RateLimit,
        Self::RampLimit,
        Self::ConcurrencyLimit,
        Self::UnexplainedLimit,
        Self::SpendLimit,
        Self::CreditExhausted,
        Self::Billing,
        Self::AccountOnHold,
        Self::Authentication,
        Self::Permission,
        Self::ModelUnavailable,
        Self::Endpoint,
        Self::EncryptionKey,
        Self::Overloaded,
        Self::UpstreamError,
        Self::UpstreamTimeout,
        Self::Conflict,
        Self::Connect,
        Self::Cut,
        Self::Timeout,
        Self::UndecodableAnswer,
        Self::Cancelled,
        Self::Unknown,
    ];

    /// The stable word: lower case, digits and underscores only, fit for a subject token.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::PauseTurn => "pause_turn",
            Self::Compaction => "compaction",
            Self::MaxTokens => "max_tokens",
            Self::Refusal => "refusal",
            Self::ContextWindow => "context_window",
            Self::UnknownStop => "unknown_stop",
            Self::Schema => "schema",
            Self::InvalidRequest => "invalid_request",
            Self::Oversize => "oversize",
            Self::NotFound => "not_found",
            Self::RateLimit => "rate_limit",
            Self::RampLimit => "ramp_limit",
            Self::ConcurrencyLimit => "concurrency_limit",
            Self::UnexplainedLimit => "unexplained_limit",
            Self::SpendLimit => "spend_limit",
            Self::CreditExhausted => "credit_exhausted",
            Self::Billing => "billing",
            Self::AccountOnHold => "account_on_hold",
            Self::Authentication => "authentication",
            Self::Permission => "permission",
            Self::ModelUnavailable => "model_unavailable",
            Self::Endpoint => "endpoint",
            Self::EncryptionKey => "encryption_key",
            Self::Overloaded => "overloaded",
            Self::UpstreamError => "upstream_error",
            Self::UpstreamTimeout => "upstream_timeout",
            Self::Conflict => "conflict",
            Self::Connect => "connect",
            Self::Cut => "cut",
            Self::Timeout => "timeout",
            Self::UndecodableAnswer => "undecodable_answer",
            Self::Cancelled => "cancelled",
            Self::Unknown => "unknown",
        }
    }

    /// The reason of a stable word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == word)
    }
}
