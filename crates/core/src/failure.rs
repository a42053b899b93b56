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
//!
#![doc = include_str!("failure.md")]

mod advice;
mod delay;
mod ending;
pub mod retry_after;
#[cfg(test)]
mod tests;
mod verdict;

pub use advice::{describe, happened};
pub use delay::{pause_ms, retry_delay_ms};

pub use ending::{
    Cancelled, Cut, Ending, ErrorAnswer, ErrorCode, ErrorKind, Hint, NotConnected, Place,
    RefusalCategory, StopReason, Timeout, WORD_LENGTH_MAX,
};
pub use retry_after::RetryAfter;
pub use verdict::{Class, Health, Next, Paid, Pause, Reason, Scope, Until, Verdict};

/// Pause after a rate limit that names no time.
const PAUSE_DEFAULT: RetryAfter = RetryAfter::from_secs(15);
/// A spend limit ends with the month, or when somebody raises it.
const SPEND_PROBE_INTERVAL_MS: u64 = 3_600_000;
/// A fault in the set-up ends when somebody mends it.
const FAULT_PROBE_INTERVAL_MS: u64 = 60_000;
/// A key that was refused is replaced by a file, which takes effect without anybody saying so.
const KEY_PROBE_INTERVAL_MS: u64 = 8_000;

/// Decides what follows from a call's end. Total: every ending has a verdict.
#[must_use]
pub fn classify(ending: &Ending) -> Verdict {
    let verdict = Verdict::of(reason(ending), paid(ending));
    match ending {
        Ending::Error(answer) => heed(answer, verdict),
        Ending::Message(_)
        | Ending::NotConnected(_)
        | Ending::Cut(_)
        | Ending::Timeout(_)
        | Ending::Undecodable { .. }
        | Ending::SchemaViolated
        | Ending::Cancelled(_) => verdict,
    }
}

/// What an error answer's headers change: they set the times, and may keep a job alive.
fn heed(answer: &ErrorAnswer, mut verdict: Verdict) -> Verdict {
    if verdict.next == Next::Retry {
        verdict.retry_after = answer.retry_after;
    }
    if let (Some(pause), Some(wait)) = (&mut verdict.pause, answer.retry_after)
        && let Until::For(_) = pause.until
    {
        pause.until = Until::For(wait);
    }
    if verdict.class == Class::Poison && answer.should_retry == Some(true) {
        verdict.class = Class::Transient;
        verdict.next = Next::Retry;
    }
    verdict
}

fn reason(ending: &Ending) -> Reason {
    match ending {
        Ending::Message(stop) => match stop {
            StopReason::EndTurn | StopReason::ToolUse | StopReason::StopSequence => Reason::Done,
            StopReason::MaxTokens => Reason::MaxTokens,
            StopReason::Refusal(_) => Reason::Refusal,
            StopReason::PauseTurn => Reason::PauseTurn,
            StopReason::ContextWindowExceeded => Reason::ContextWindow,
            StopReason::Compaction => Reason::Compaction,
            StopReason::Unknown(_) => Reason::UnknownStop,
        },
        Ending::Error(answer) => answer_reason(answer),
        Ending::NotConnected(NotConnected::Failed | NotConnected::Timeout) => Reason::Connect,
        Ending::Cut(_) => Reason::Cut,
        Ending::Timeout(_) => Reason::Timeout,
        Ending::Undecodable { .. } => Reason::UndecodableAnswer,
        Ending::SchemaViolated => Reason::Schema,
        Ending::Cancelled(_) => Reason::Cancelled,
    }
}

/// The code is the most precise, then the status; the type decides where the status says little.
fn answer_reason(answer: &ErrorAnswer) -> Reason {
    if let Some(reason) = answer.code.as_ref().and_then(code_reason) {
        return reason;
    }
    match answer.status {
        // An error event in a stream that began with success.
        200..=299 => kind_reason(answer),
        // Redirects are not followed: they would carry the key elsewhere.
        300..=399 => Reason::Endpoint,
        400 | 422 => request_reason(answer),
        401 => Reason::Authentication,
        402 => Reason::Billing,
        403 => Reason::Permission,
        404 => not_found_reason(answer),
        408 => Reason::UpstreamTimeout,
        409 => Reason::Conflict,
        413 | 431 => Reason::Oversize,
        429 => limit_reason(answer),
        499 => Reason::Cut,
        // The API uses the invalid-request type for other statuses too.
        405..=407 | 410..=412 | 414..=421 | 423..=428 | 430 | 432..=498 => match answer.kind {
            ErrorKind::InvalidRequest => request_reason(answer),
            ErrorKind::Authentication
            | ErrorKind::Billing
            | ErrorKind::Permission
            | ErrorKind::NotFound
            | ErrorKind::Conflict
            | ErrorKind::RequestTooLarge
            | ErrorKind::RateLimit
            | ErrorKind::Api
            | ErrorKind::Timeout
            | ErrorKind::Overloaded
            | ErrorKind::Missing
            | ErrorKind::Unknown(_) => Reason::Unknown,
        },
        504 => Reason::UpstreamTimeout,
        529 => Reason::Overloaded,
        500..=503 | 505..=528 | 530..=599 => match answer.kind {
            ErrorKind::Overloaded => Reason::Overloaded,
            ErrorKind::Timeout => Reason::UpstreamTimeout,
            ErrorKind::InvalidRequest
            | ErrorKind::Authentication
            | ErrorKind::Billing
            | ErrorKind::Permission
            | ErrorKind::NotFound
            | ErrorKind::Conflict
            | ErrorKind::RequestTooLarge
            | ErrorKind::RateLimit
            | ErrorKind::Api
            | ErrorKind::Missing
            | ErrorKind::Unknown(_) => Reason::UpstreamError,
        },
        0..=199 | 600..=u16::MAX => Reason::Unknown,
    }
}

/// `None`: the code adds nothing to status and type.
fn code_reason(code: &ErrorCode) -> Option<Reason> {
    match code {
        ErrorCode::RampLimitExceeded => Some(Reason::RampLimit),
        ErrorCode::EnforcedSpendLimitReached
        | ErrorCode::ContractSpendLimitReached
        | ErrorCode::LinkedOrganizationSpendLimitReached => Some(Reason::SpendLimit),
        ErrorCode::LinkedOrganizationBillingUnavailable => Some(Reason::Billing),
        ErrorCode::OrganizationOnHold => Some(Reason::AccountOnHold),
        ErrorCode::CmekKeyDisabled | ErrorCode::CmekKeyNetworkBlocked => {
            Some(Reason::EncryptionKey)
        }
        ErrorCode::CmekKeyUnreachable => Some(Reason::UpstreamError),
        ErrorCode::WorkspaceHumanReviewDisabled | ErrorCode::UserProfileNotBillable => {
            Some(Reason::Permission)
        }
        ErrorCode::UserProfileRequired
        | ErrorCode::ImageDimensionsTooLarge
        | ErrorCode::RequestBodyEncoding => Some(Reason::InvalidRequest),
        ErrorCode::RequestBodyTooLargeAfterDecoding => Some(Reason::Oversize),
        ErrorCode::CompactionUnavailable => Some(Reason::Overloaded),
        ErrorCode::Thread | ErrorCode::Compaction | ErrorCode::Unknown(_) => None,
    }
}

/// The type alone, as in an error event.
fn kind_reason(answer: &ErrorAnswer) -> Reason {
    match answer.kind {
        ErrorKind::InvalidRequest => request_reason(answer),
        ErrorKind::Authentication => Reason::Authentication,
        ErrorKind::Billing => Reason::Billing,
        ErrorKind::Permission => Reason::Permission,
        ErrorKind::NotFound => not_found_reason(answer),
        ErrorKind::Conflict => Reason::Conflict,
        ErrorKind::RequestTooLarge => Reason::Oversize,
        ErrorKind::RateLimit => limit_reason(answer),
        ErrorKind::Api => Reason::UpstreamError,
        ErrorKind::Timeout => Reason::UpstreamTimeout,
        ErrorKind::Overloaded => Reason::Overloaded,
        ErrorKind::Missing | ErrorKind::Unknown(_) => Reason::Unknown,
    }
}

/// A refused request is the job's fault, unless the account is what is exhausted.
fn request_reason(answer: &ErrorAnswer) -> Reason {
    match answer.hint {
        Some(Hint::SpendLimit) => Reason::SpendLimit,
        Some(Hint::CreditTooLow) => Reason::CreditExhausted,
        Some(Hint::PromptTooLong) => Reason::Oversize,
        Some(Hint::ConcurrentConnections | Hint::Model) | None => {
            if answer.kind == ErrorKind::Billing {
                Reason::Billing
            } else {
                Reason::InvalidRequest
            }
        }
    }
}

/// A missing model concerns all who use it; a missing file or container only the job that names it;
/// and an answer the API did not write says that we are calling somebody else.
fn not_found_reason(answer: &ErrorAnswer) -> Reason {
    match (&answer.kind, answer.hint) {
        (ErrorKind::Missing, _) => Reason::Endpoint,
        (_, Some(Hint::Model)) => Reason::ModelUnavailable,
        (
            _,
            Some(
                Hint::SpendLimit
                | Hint::CreditTooLow
                | Hint::ConcurrentConnections
                | Hint::PromptTooLong,
            )
            | None,
        ) => Reason::NotFound,
    }
}

/// The kinds of 429. One without a time is no rate limit: it must not be retried on a timer.
fn limit_reason(answer: &ErrorAnswer) -> Reason {
    if answer.kind == ErrorKind::Billing {
        return Reason::SpendLimit;
    }
    match answer.hint {
        Some(Hint::SpendLimit) => Reason::SpendLimit,
        Some(Hint::CreditTooLow) => Reason::CreditExhausted,
        Some(Hint::ConcurrentConnections) => Reason::ConcurrencyLimit,
        Some(Hint::Model | Hint::PromptTooLong) | None => {
            if answer.retry_after.is_some() || answer.should_retry == Some(true) {
                Reason::RateLimit
            } else {
                Reason::UnexplainedLimit
            }
        }
    }
}

fn paid(ending: &Ending) -> Paid {
    match ending {
        Ending::Message(StopReason::Refusal(category)) => match category {
            RefusalCategory::Bio
            | RefusalCategory::FrontierLlm
            | RefusalCategory::ReasoningExtraction => Paid::Yes,
            // Billed only when some output came before it.
            RefusalCategory::None
            | RefusalCategory::Cyber
            | RefusalCategory::GeneralHarms
            | RefusalCategory::Unknown(_) => Paid::Maybe,
        },
        Ending::Message(
            StopReason::EndTurn
            | StopReason::ToolUse
            | StopReason::StopSequence
            | StopReason::MaxTokens
            | StopReason::PauseTurn
            | StopReason::ContextWindowExceeded
            | StopReason::Compaction
            | StopReason::Unknown(_),
        )
        | Ending::SchemaViolated => Paid::Yes,
        Ending::Error(answer) => match (answer.place, answer.status) {
            (Place::InStream { progressed: true }, _) => Paid::Yes,
            (Place::InStream { progressed: false }, _) => Paid::Maybe,
            // Somebody in between gave up; the API may have gone on.
            (Place::BeforeStream, 408 | 499 | 502 | 504 | 520..=524) => Paid::Maybe,
            (Place::BeforeStream, _) => Paid::No,
        },
        Ending::NotConnected(_) | Ending::Cancelled(Cancelled::BeforeSending) => Paid::No,
        Ending::Cut(Cut::AfterProgress | Cut::WithoutMessageStop)
        | Ending::Timeout(Timeout::Progress { progressed: true })
        | Ending::Undecodable { progressed: true }
        | Ending::Cancelled(Cancelled::AfterProgress) => Paid::Yes,
        Ending::Cut(Cut::BeforeHeaders | Cut::AfterHeaders)
        | Ending::Timeout(Timeout::FirstByte | Timeout::Progress { progressed: false })
        | Ending::Undecodable { progressed: false }
        | Ending::Cancelled(Cancelled::AfterSending) => Paid::Maybe,
    }
}

impl Verdict {
    /// What follows from a reason. `paid` matters to one reason only: a call cancelled before
    /// anything was sent is not ambiguous.
    fn of(reason: Reason, paid: Paid) -> Self {
        let base = |class, next, burns_attempt, health| Self {
            class,
            reason,
            next,
            burns_attempt,
            health,
            pause: None,
            paid,
            retry_after: None,
        };
        let transient = |health| base(Class::Transient, Next::Retry, true, health);
        let ambiguous = |health| base(Class::Ambiguous, Next::RetryOnce, true, health);
        let poison = || base(Class::Poison, Next::DeadLetter, true, Health::NoSample);
        let grey = |next| base(Class::Grey, next, true, Health::Good);
        let wait = |class, scope, until| Self {
            pause: Some(Pause { scope, until }),
            ..base(class, Next::Wait, false, Health::NoSample)
        };
        let limited = |scope| wait(Class::Transient, scope, Until::For(PAUSE_DEFAULT));
        let fault =
            |scope, interval_ms| wait(Class::ConfigFault, scope, Until::Probe { interval_ms });
        let closing =
            |scope, interval_ms| wait(Class::PoolClosing, scope, Until::Probe { interval_ms });

        match reason {
            Reason::Done => base(Class::Success, Next::Keep, true, Health::Good),
            Reason::PauseTurn | Reason::Compaction => {
                base(Class::Continue, Next::Continue, false, Health::Good)
            }
            Reason::MaxTokens => grey(Next::RetryWithMoreRoom),
            Reason::Refusal | Reason::ContextWindow => grey(Next::DeadLetter),
            Reason::UnknownStop => transient(Health::Good),
            Reason::Schema => Self {
                health: Health::Good,
                ..poison()
            },
            Reason::InvalidRequest | Reason::Oversize | Reason::NotFound => poison(),
            Reason::RateLimit | Reason::RampLimit => limited(Scope::Pool),
            Reason::ConcurrencyLimit => limited(Scope::Concurrency),
            Reason::UnexplainedLimit => closing(Scope::Pool, FAULT_PROBE_INTERVAL_MS),
            Reason::SpendLimit
            | Reason::CreditExhausted
            | Reason::Billing
            | Reason::AccountOnHold => closing(Scope::Account, SPEND_PROBE_INTERVAL_MS),
            Reason::Authentication => fault(Scope::Account, KEY_PROBE_INTERVAL_MS),
            Reason::Endpoint | Reason::EncryptionKey => {
                fault(Scope::Account, FAULT_PROBE_INTERVAL_MS)
            }
            Reason::Permission => fault(Scope::Kind, FAULT_PROBE_INTERVAL_MS),
            Reason::ModelUnavailable => fault(Scope::Model, FAULT_PROBE_INTERVAL_MS),
            // No pause, even when a time is given: the breaker decides for the model, and it needs samples.
            Reason::Overloaded | Reason::UpstreamError | Reason::UpstreamTimeout => {
                transient(Health::UpstreamBad)
            }
            Reason::Conflict | Reason::Unknown => transient(Health::NoSample),
            // Nothing was tried, so nothing is lost: a broken network must not use up jobs.
            Reason::Connect => Self {
                burns_attempt: false,
                ..transient(Health::NetworkBad)
            },
            Reason::Cut => ambiguous(Health::NetworkBad),
            Reason::Timeout | Reason::UndecodableAnswer => ambiguous(Health::UpstreamBad),
            Reason::Cancelled => {
                let tried = match paid {
                    Paid::No => transient(Health::NoSample),
                    Paid::Yes | Paid::Maybe => ambiguous(Health::NoSample),
                };
                Self {
                    burns_attempt: false,
                    ..tried
                }
            }
        }
    }
}
