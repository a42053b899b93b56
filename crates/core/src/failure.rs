//! The one failure function: what a call ended as, and what follows from it.
//!
//! [`classify`] is the only place where statuses, error types and stop reasons turn into decisions.
//! The mission's "transient" is split in two here, because money hangs on it: after
//! [`Class::Transient`] the upstream told us that it failed, or never saw the request; after
//! [`Class::Ambiguous`] nobody told us anything, the call may have succeeded and been billed, so it
//! is retried at most once. What is unknown is transient, and the attempt limit catches it.
//!
//! Two rules decide doubtful cases. A header may keep a job alive, never kill it:
//! `x-should-retry: true` turns poison into transient, `false` does not turn transient into poison.
//! And what may be one job's own fault never pauses its neighbours.

mod ending;
pub mod retry_after;

pub use ending::{
    Cancelled, Cut, Ending, ErrorAnswer, ErrorCode, ErrorKind, Hint, NotConnected, Place,
    RefusalCategory, StopReason, Timeout, WORD_LENGTH_MAX,
};
pub use retry_after::RetryAfter;

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
    /// For a time. The caller spreads it with [`RetryAfter`] and its own jitter.
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
    /// The server's wish for this job: no retry earlier than this.
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
