//! What is written about a delivery: record, ledger entry, dead letter, settlement. Data only.

use fairlane_claude::{CallReport, UsageBasis};
use fairlane_core::attempt::{Cause, History, Hold};
use fairlane_core::failure::{self, Class, Ending, Paid, Reason, StopReason, Verdict, happened};
use fairlane_core::models::Catalog;
use fairlane_core::price::{PriceTable, Usage, Usd};
use fairlane_core::{Millis, Priority, Tokens};
use fairlane_wire::failure::Upstream;
use fairlane_wire::lease::{
    Credit, DeliveryOutcome, Health, LimitSeen, LimitsSeen, Pause, Refused, Settlement,
};
use fairlane_wire::letter::Try;
use fairlane_wire::{
    DeadReason, Failure, JobHeaders, JobRecord, LedgerEntry, LimitKind, Phase, UsageRecord,
};

/// What a job has behind it, by its record.
pub(crate) fn history(record: &JobRecord) -> History {
    History {
        attempts: record.attempts,
        ambiguous: record.ambiguous,
        had_more_room: record.max_tokens_raised.is_some(),
    }
}

/// The record of a job that has none. One that was delivered before had a record that has expired; what
/// stood there is assumed to its disadvantage, or it might be tried and paid without end. It always
/// gets the try that it was granted.
pub(crate) fn record(credit: &Credit, headers: &JobHeaders, attempts_max: u32) -> JobRecord {
    let (tenant, job) = (credit.tenant.clone(), credit.job.clone());
    let record = JobRecord::new(tenant, job, Phase::Queued, headers.accepted_ms);
    let before = credit.delivery.saturating_sub(1);
    JobRecord {
        attempts: before.min(attempts_max.saturating_sub(1)),
        ambiguous: before.min(1),
        deliveries: before,
        parent: headers.parent.clone(),
        truncated: headers.truncated.clone(),
        original_claim: headers.original.clone(),
        ..record.describing(&headers.kind, credit.priority, &headers.model)
    }
}

/// What a call cost, if its model has a price.
pub(crate) fn cost(
    prices: &PriceTable,
    catalog: &Catalog,
    model: &str,
    report: &CallReport,
    at_ms: Millis,
) -> Option<Usd> {
    let model = catalog.find(model)?;
    match prices.cost(&model.id, &report.usage, report.terms, at_ms) {
        Ok(cost) => Some(cost),
        Err(error) => {
            tracing::warn!(%error, "a call cannot be priced");
            None
        }
    }
}

/// Tokens as they are recorded.
pub(crate) fn usage(usage: &Usage) -> UsageRecord {
    UsageRecord {
        input_tokens: usage.input,
        cache_write_5m_tokens: usage.cache_write_5m,
        cache_write_1h_tokens: usage.cache_write_1h,
        cache_read_tokens: usage.cache_read,
        output_tokens: usage.output,
    }
}

/// Adds what a call used and cost to what the job used and cost before.
pub(crate) fn add_usage(record: &mut JobRecord, more: &Usage, cost: Option<Usd>) {
    let sum = record.usage.get_or_insert_default();
    let more = usage(more);
    sum.input_tokens += more.input_tokens;
    sum.cache_write_5m_tokens += more.cache_write_5m_tokens;
    sum.cache_write_1h_tokens += more.cache_write_1h_tokens;
    sum.cache_read_tokens += more.cache_read_tokens;
    sum.output_tokens += more.output_tokens;
    if let Some(cost) = cost {
        record.cost_usd = Some(record.cost_usd.unwrap_or(0.0) + usd(cost));
    }
}

/// What a job asked of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    /// The job's own, however it is served.
    pub(crate) priority: Priority,
    pub(crate) max_tokens: u64,
}

/// The booking of a call.
pub(crate) fn ledger_entry(
    credit: &Credit,
    headers: &JobHeaders,
    report: &CallReport,
    verdict: &Verdict,
    asked: Asked,
    cost: Option<Usd>,
    at_ms: Millis,
) -> LedgerEntry {
    let own = (asked.priority != credit.priority).then(|| asked.priority.as_str().to_owned());
    LedgerEntry {
        tenant: credit.tenant.clone(),
        job: credit.job.clone(),
        kind: headers.kind.to_string(),
        priority: credit.priority.as_str().to_owned(),
        own_priority: own,
        pool: credit.pool.to_string(),
        seq: credit.seq.0,
        delivery: credit.delivery,
        model_asked: headers.model.to_string(),
        model_used: report.model.clone(),
        by_fallback: false,
        usage: usage(&report.usage),
        estimated_input_tokens: headers.tokens.input,
        estimated_output_tokens: headers.tokens.output,
        max_tokens: asked.max_tokens,
        cost_pico_usd: cost.and_then(|cost| u64::try_from(cost.0).ok()),
        outcome: verdict.reason.as_str().to_owned(),
        ambiguous: is_ambiguous(verdict),
        request_id: report.request_id.clone(),
        status: report.status,
        limit: limit_met(verdict.reason, report),
        retry_after_ms: asked_wait(verdict),
        accepted_ms: headers.accepted_ms,
        not_before_ms: headers.not_before_ms,
        granted_ms: credit.granted_ms,
        latency_ms: report.timings.total_ms,
        waited_ms: None,
        at_ms,
    }
}

/// The limit of which nothing remained when a call was turned away by one; the nearest to its end, if the
/// headers of the answer tell of several.
fn limit_met(reason: Reason, report: &CallReport) -> Option<LimitKind> {
    if reason != Reason::RateLimit {
        return None;
    }
    let limits = [
        (LimitKind::Requests, report.limits.requests),
        (LimitKind::InputTokens, report.limits.input),
        (LimitKind::OutputTokens, report.limits.output),
    ];
    let left = limits.into_iter().filter_map(|(kind, bucket)| {
        let bucket = bucket?;
        let (limit, left) = (bucket.limit?.max(1), bucket.remaining?);
        Some((left.saturating_mul(1_000) / limit, kind))
    });
    left.min_by_key(|(part, _)| *part).map(|(_, kind)| kind)
}

/// How long the upstream asked the job, or the whole pool, to wait.
fn asked_wait(verdict: &Verdict) -> Option<Millis> {
    let paused = verdict.pause.and_then(|pause| match pause.until {
        failure::Until::For(wait) => Some(wait),
        failure::Until::Probe { .. } => None,
    });
    verdict.retry_after.or(paused).map(failure::RetryAfter::ms)
}

/// Whether the call may have been answered and paid without our seeing it.
pub(crate) fn is_ambiguous(verdict: &Verdict) -> bool {
    verdict.class == Class::Ambiguous && verdict.paid != Paid::No
}

/// The end of a delivery for the scheduler's books.
pub(crate) fn settlement(
    credit: &Credit,
    outcome: DeliveryOutcome,
    call: Option<(&CallReport, &Verdict)>,
    hold: Option<Hold>,
    now: Millis,
) -> Settlement {
    Settlement {
        credit: credit.clone(),
        outcome,
        used: call.and_then(|(report, verdict)| used(credit, report, verdict)),
        limits: call.map(|(report, _)| limits(report, now)),
        refused: call.and_then(|(_, verdict)| refused(verdict.reason)),
        pause: hold.map(|hold| Pause {
            scope: hold.scope,
            until_ms: now + hold.ms,
            probe: hold.probe,
        }),
        health: call.and_then(|(_, verdict)| health(verdict)),
    }
}

/// What the call took from the upstream's limits. A call that was turned away took nothing; one
/// that broke before it said what it used took what was estimated for it.
fn used(credit: &Credit, report: &CallReport, verdict: &Verdict) -> Option<Tokens> {
    match (verdict.paid, report.usage_basis) {
        (Paid::No, _) => None,
        (Paid::Yes | Paid::Maybe, UsageBasis::None) => Some(credit.tokens),
        (Paid::Yes | Paid::Maybe, UsageBasis::Estimated | UsageBasis::Final) => {
            Some(report.usage.limited())
        }
    }
}

fn health(verdict: &Verdict) -> Option<Health> {
    match verdict.health {
        failure::Health::NoSample => None,
        failure::Health::Good => Some(Health::Good),
        failure::Health::UpstreamBad => Some(Health::UpstreamBad),
        failure::Health::NetworkBad => Some(Health::NetworkBad),
    }
}

fn refused(reason: Reason) -> Option<Refused> {
    if reason == Reason::RateLimit {
        Some(Refused::RateLimit)
    } else if reason == Reason::Overloaded {
        Some(Refused::Overloaded)
    } else {
        None
    }
}

fn limits(report: &CallReport, now: Millis) -> LimitsSeen {
    let seen = |bucket: Option<fairlane_claude::Bucket>| {
        let bucket = bucket?;
        Some(LimitSeen {
            limit: bucket.limit?,
            remaining: bucket.remaining?,
        })
    };
    let headers_ms = report.timings.headers_ms;
    let since = report.timings.total_ms - headers_ms.unwrap_or(0).min(report.timings.total_ms);
    LimitsSeen {
        at_ms: now.saturating_sub(since),
        requests: seen(report.limits.requests),
        input_tokens: seen(report.limits.input),
        output_tokens: seen(report.limits.output),
    }
}

/// Why a job is tried again: one stable word, and what happened.
pub(crate) fn retry_reason(reason: Reason, report: &CallReport) -> String {
    // As in a failure, so that text from outside stays short and on one line.
    let failure = Failure::new(DeadReason::Exhausted, what_happened(report));
    format!("{}: {}", reason.as_str(), failure.message)
}

fn what_happened(report: &CallReport) -> String {
    let happened = happened(&report.ending);
    match &report.error_message {
        Some(said) => format!("{happened}; the upstream said: {said}"),
        None => happened,
    }
}

/// A call's failure in the owner's words.
pub(crate) fn failure(cause: Cause, report: &CallReport) -> Failure {
    let (reason, fix) = match cause {
        Cause::Reason(reason) => (dead_reason(reason), reason.advice()),
        Cause::Exhausted(reason) => (DeadReason::Exhausted, reason.advice()),
        Cause::Ambiguous(reason) => (DeadReason::Ambiguous, reason.advice()),
    };
    let upstream = Upstream {
        status: report.status,
        message: report.error_message.clone(),
        request_id: report.request_id.clone(),
    };
    Failure::new(reason, happened(&report.ending))
        .detail(detail(cause, report))
        .answered(upstream)
        .fix(fix)
}

/// What within the reason: the category of a refusal, or the word for the last end.
fn detail(cause: Cause, report: &CallReport) -> String {
    let (Cause::Reason(reason) | Cause::Exhausted(reason) | Cause::Ambiguous(reason)) = cause;
    match &report.ending {
        Ending::Message(StopReason::Refusal(category)) => {
            category.as_str().unwrap_or("no_category").to_owned()
        }
        _ => reason.as_str().to_owned(),
    }
}

/// The dead letter's reason for an ending that is final by itself.
fn dead_reason(reason: Reason) -> DeadReason {
    match reason {
        Reason::Refusal => DeadReason::Refusal,
        Reason::MaxTokens => DeadReason::MaxTokens,
        Reason::Schema => DeadReason::Schema,
        Reason::Oversize | Reason::ContextWindow => DeadReason::Oversize,
        Reason::InvalidRequest | Reason::NotFound => DeadReason::InvalidRequest,
        Reason::ModelUnavailable => DeadReason::UnknownModel,
        // None of these is final by itself; if one becomes so, its attempts are at an end.
        Reason::Done
        | Reason::PauseTurn
        | Reason::Compaction
        | Reason::UnknownStop
        | Reason::RateLimit
        | Reason::RampLimit
        | Reason::ConcurrencyLimit
        | Reason::UnexplainedLimit
        | Reason::SpendLimit
        | Reason::CreditExhausted
        | Reason::Billing
        | Reason::AccountOnHold
        | Reason::Authentication
        | Reason::Permission
        | Reason::Endpoint
        | Reason::EncryptionKey
        | Reason::Overloaded
        | Reason::UpstreamError
        | Reason::UpstreamTimeout
        | Reason::Conflict
        | Reason::Connect
        | Reason::Cut
        | Reason::Timeout
        | Reason::UndecodableAnswer
        | Reason::Cancelled
        | Reason::Unknown => DeadReason::Exhausted,
    }
}

/// A call as the job's record remembers it.
pub(crate) fn tried(
    model: &str,
    report: &CallReport,
    verdict: &Verdict,
    cost: Option<Usd>,
    at_ms: Millis,
) -> Try {
    Try {
        at_ms,
        model: Some(report.model.clone().unwrap_or_else(|| model.to_owned())),
        outcome: verdict.reason.as_str().to_owned(),
        status: report.status,
        request_id: report.request_id.clone(),
        input_tokens: report.usage.prompt(),
        output_tokens: report.usage.output,
        cost_usd: cost.map(usd),
        latency_ms: report.timings.total_ms,
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "for showing; the ledger has it exactly"
)]
pub(crate) fn usd(cost: Usd) -> f64 {
    cost.0 as f64 / 1e12
}
