//! Between what travels and what the core decides on.

use fairlane_core::JobSeq;
use fairlane_core::breaker::Sample;
use fairlane_core::limiter::{Observation, Observed};
use fairlane_core::scheduler::{self as core, Event, Outcome};
use fairlane_nats::{Content, Entry, IndexItem};
use fairlane_wire::lease::{
    Credit, DeliveryOutcome, Health, Lease, LimitSeen, LimitsSeen, ParkReason, Parked, Refused,
    Settlement,
};
use fairlane_wire::{JobHeaders, Namespace};

/// A job as the index shows it, or why it is not one.
pub(crate) fn job(names: &Namespace, item: &IndexItem) -> Result<core::JobSeen, String> {
    let (priority, tenant) = names
        .parse_job_subject(&item.subject)
        .ok_or_else(|| format!("{:?} is not a lane", item.subject))?;
    // Looking one up in the library's map costs an allocation; of a million jobs that is seconds.
    let pairs: Vec<(&str, &str)> = item
        .headers
        .iter()
        .filter_map(|(name, values)| Some((name.as_ref(), values.first()?.as_str())))
        .collect();
    let header = |name: &str| {
        let pair = pairs.iter().find(|(known, _)| *known == name);
        pair.map(|(_, value)| *value)
    };
    let headers = JobHeaders::parse(header).map_err(|error| error.to_string())?;
    Ok(core::JobSeen {
        seq: JobSeq(item.seq),
        priority,
        tenant,
        job: headers.job,
        kind: headers.kind,
        model: headers.model,
        pool: headers.pool,
        tokens: headers.tokens,
        fallback: headers.fallback.map(|fallback| core::Fallback {
            model: fallback.model,
            pool: fallback.pool,
            tokens: fallback.tokens,
        }),
        not_before: headers.not_before_ms,
        deadline: headers.deadline_ms,
    })
}

/// What a change of a lease means, or why it means nothing.
pub(crate) fn lease(entry: &Entry) -> Result<Event, String> {
    let seq = entry
        .key
        .parse()
        .map(JobSeq)
        .map_err(|_| format!("{:?} is no sequence", entry.key))?;
    let revision = entry.revision.0;
    let event = match &entry.content {
        Content::Live(value) => match json::<Lease>(value)? {
            Lease::Granted(credit) => held(credit, false, revision),
            Lease::Running(credit) => held(credit, true, revision),
            Lease::Parked(parked) => park(seq, parked, revision),
        },
        // A tombstone without a body was not written by a worker: treat it as a lost lease.
        Content::Deleted(body) if body.is_empty() => Event::LeaseEnded { seq, revision },
        Content::Deleted(body) => {
            let settlement = json::<Settlement>(body)?;
            let outcome = match settlement.outcome {
                DeliveryOutcome::Done | DeliveryOutcome::Dead | DeliveryOutcome::Gone => {
                    Outcome::Finished
                }
                DeliveryOutcome::Returned | DeliveryOutcome::Retry => Outcome::Returned,
            };
            Event::Settled {
                settlement: settled(settlement, outcome),
                revision,
            }
        }
        Content::Expired => Event::LeaseEnded { seq, revision },
    };
    Ok(event)
}

fn park(seq: JobSeq, parked: Parked, revision: u64) -> Event {
    let until = parked.until_ms;
    let outcome = match parked.why {
        ParkReason::Retry => Outcome::Parked { until },
        ParkReason::Asks => Outcome::Asked { until },
        ParkReason::Moved => {
            return Event::Moved {
                seq,
                until,
                revision,
            };
        }
    };
    Event::Settled {
        settlement: settled(parked.settlement, outcome),
        revision,
    }
}

fn held(credit: Credit, started: bool, revision: u64) -> Event {
    Event::Held {
        credit: credit_from_wire(credit),
        started,
        revision,
    }
}

fn json<'a, T: serde::Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(bytes).map_err(|error| error.to_string())
}

fn settled(settlement: Settlement, outcome: Outcome) -> core::Settlement {
    core::Settlement {
        credit: credit_from_wire(settlement.credit),
        outcome,
        used: settlement.used,
        observed: settlement.limits.map(observation).unwrap_or_default(),
        refused: settlement.refused.map(|refused| match refused {
            Refused::RateLimit => core::Refused::RateLimit,
            Refused::Overloaded => core::Refused::Overloaded,
        }),
        pause: settlement.pause.map(|pause| core::Pause {
            scope: pause.scope,
            until: pause.until_ms,
            probe: pause.probe,
        }),
        sample: settlement.health.map(|health| match health {
            Health::Good => Sample::Good,
            Health::UpstreamBad => Sample::Bad,
            Health::NetworkBad => Sample::Unreachable,
        }),
    }
}

fn observation(limits: LimitsSeen) -> Observation {
    let observed = |seen: LimitSeen| Observed {
        limit: seen.limit,
        remaining: seen.remaining,
    };
    Observation {
        at: limits.at_ms,
        requests: limits.requests.map(observed),
        input_tokens: limits.input_tokens.map(observed),
        output_tokens: limits.output_tokens.map(observed),
    }
}

fn credit_from_wire(credit: Credit) -> core::Credit {
    core::Credit {
        seq: credit.seq,
        priority: credit.priority,
        tenant: credit.tenant,
        job: credit.job,
        model: credit.model,
        pool: credit.pool,
        worker: credit.worker,
        delivery: credit.delivery,
        tokens: credit.tokens,
        cost: credit.cost,
        term: credit.term,
        granted_at: credit.granted_ms,
        probe: credit.probe,
    }
}

/// A credit as it is stored.
pub(crate) fn credit_to_wire(credit: core::Credit) -> Credit {
    Credit {
        seq: credit.seq,
        tenant: credit.tenant,
        job: credit.job,
        priority: credit.priority,
        model: credit.model,
        pool: credit.pool,
        worker: credit.worker,
        delivery: credit.delivery,
        tokens: credit.tokens,
        cost: credit.cost,
        term: credit.term,
        granted_ms: credit.granted_at,
        probe: credit.probe,
    }
}
