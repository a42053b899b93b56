//! What must always hold, as predicates over plain data.
//!
//! A predicate knows nothing of the code that made the data: it is given what happened, as the
//! bucket, the job stream and the upstream saw it, and says whether that was allowed. Simulation
//! and tests share them, so that a rule has one wording.

use std::collections::BTreeMap;
use std::fmt;

use crate::Millis;
use crate::ids::{JobSeq, Term};
use crate::job::Cost;

/// The rules, by the names they have in the documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    SettledOnce,
    WithinLimits,
    Fair,
    Floor,
    WorkConserving,
    OneOutcome,
    PaidOnce,
    Fenced,
    Bounded,
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::SettledOnce => "settled-once",
            Self::WithinLimits => "within-limits",
            Self::Fair => "fair",
            Self::Floor => "floor",
            Self::WorkConserving => "work-conserving",
            Self::OneOutcome => "one-outcome",
            Self::PaidOnce => "paid-once",
            Self::Fenced => "fenced",
            Self::Bounded => "bounded",
        })
    }
}

/// A rule that was broken, and how.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{invariant}: {detail}")]
pub struct Broken {
    pub invariant: Invariant,
    pub detail: String,
}

fn broken(invariant: Invariant, detail: String) -> Result<(), Broken> {
    Err(Broken { invariant, detail })
}

/// One stored credit and what became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CreditLife {
    pub seq: JobSeq,
    /// Revision under which it was stored.
    pub revision: u64,
    /// How often it was settled, returned, or ended by the server.
    pub ends: u32,
    pub live: bool,
}

/// Every credit has exactly one end, or is live and has none; when `idle`, none is live.
///
/// # Errors
/// The first credit that breaks the rule.
pub fn settled_once(credits: &[CreditLife], idle: bool) -> Result<(), Broken> {
    let wrong = credits
        .iter()
        .find(|credit| credit.ends + u32::from(credit.live) != 1 || (idle && credit.live));
    match wrong {
        None => Ok(()),
        Some(credit) => broken(
            Invariant::SettledOnce,
            format!("{credit:?}{}", if idle { ", all is idle" } else { "" }),
        ),
    }
}

/// Something taken out of an upstream bucket; negative is put back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draw {
    pub at: Millis,
    pub amount: i64,
}

/// No window holds more than a full bucket and its refill, times `slack` thousandths.
///
/// `draws` are in the order of time. One draw larger than the bucket needs a full one.
///
/// # Errors
/// The draw that went over, and by how much.
pub fn within_limits(draws: &[Draw], per_minute: u64, slack: u32) -> Result<(), Broken> {
    // In 1/60 000 of a unit, so that the refill of a millisecond is whole.
    let rate = i128::from(per_minute) * i128::from(slack) / 1_000;
    let full = rate * 60_000;
    let (mut level, mut at) = (full, draws.first().map_or(0, |draw| draw.at));
    for draw in draws {
        let passed = i128::from(draw.at.saturating_sub(at));
        at = at.max(draw.at);
        level = (level + passed * rate).min(full);
        let amount = i128::from(draw.amount) * 60_000;
        if amount > 0 && level < amount.min(full) {
            let over = (amount.min(full) - level) / 60_000 + 1;
            return broken(
                Invariant::WithinLimits,
                format!(
                    "{draw:?} is {over} over {per_minute} per minute (slack {slack} per mille)"
                ),
            );
        }
        level -= amount;
    }
    Ok(())
}

/// What a flow got while it always had work waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Served {
    /// Cost of what it was granted, by actual usage.
    pub cost: Cost,
    /// Thousandths.
    pub weight: u32,
    /// The largest cost of one of its jobs, estimated or actual.
    pub job_max: Cost,
    /// By how much the jobs in flight may yet turn out dearer or cheaper than charged.
    pub in_doubt: Cost,
}

/// Flows of one pool and priority that all wait get service by weight, up to a bound that does not
/// grow with time: a quantum, and per flow one job and what is in doubt.
///
/// # Errors
/// The first pair with a larger gap.
pub fn fair(flows: &[Served], quantum: Cost) -> Result<(), Broken> {
    let per_weight =
        |cost: Cost, flow: &Served| i128::from(cost.0) * 1_000 / i128::from(flow.weight.max(1));
    for (index, one) in flows.iter().enumerate() {
        for other in &flows[index + 1..] {
            let gap = (per_weight(one.cost, one) - per_weight(other.cost, other)).abs();
            let bound = i128::from(quantum.0)
                + [one, other]
                    .map(|flow| per_weight(flow.job_max + flow.in_doubt, flow))
                    .iter()
                    .sum::<i128>();
            if gap > bound {
                return broken(
                    Invariant::Fair,
                    format!("gap {gap} exceeds {bound} between {one:?} and {other:?}"),
                );
            }
        }
    }
    Ok(())
}

/// What always waited got at least `share` thousandths of `total`, give or take `slack`.
///
/// # Errors
/// The share it got instead.
pub fn floor(cost: Cost, total: Cost, share: u32, slack: Cost) -> Result<(), Broken> {
    let due = i128::from(total.0) * i128::from(share) / 1_000;
    if i128::from(cost.0) + i128::from(slack.0) >= due {
        return Ok(());
    }
    broken(
        Invariant::Floor,
        format!(
            "{} of {} is less than {share} per mille, slack {}",
            cost.0, total.0, slack.0
        ),
    )
}

/// A job that could have run did not wait for longer than `tick`.
///
/// # Errors
/// How long it waited.
pub fn work_conserving(seq: JobSeq, waited: Millis, tick: Millis) -> Result<(), Broken> {
    if waited <= tick {
        return Ok(());
    }
    broken(
        Invariant::WorkConserving,
        format!(
            "job {seq} waited {waited} ms with room in its pool and a free slot (tick {tick} ms)"
        ),
    )
}

/// One accepted job and what became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobLife {
    pub seq: JobSeq,
    /// Results, dead letters and cancellations that were stored as its outcome.
    pub outcomes: u32,
    pub in_stream: bool,
}

/// A job has at most one outcome and leaves the stream only with one; when `idle`, all have.
///
/// # Errors
/// The first job that breaks the rule.
pub fn one_outcome(jobs: &[JobLife], idle: bool) -> Result<(), Broken> {
    let wrong = jobs.iter().find(|job| {
        let is_lost = !job.in_stream && job.outcomes == 0;
        let is_left = idle && job.in_stream;
        job.outcomes > 1 || is_lost || is_left
    });
    match wrong {
        None => Ok(()),
        Some(job) => broken(
            Invariant::OneOutcome,
            format!("{job:?}{}", if idle { ", all is idle" } else { "" }),
        ),
    }
}

/// What was paid for one job, by the upstream's own log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Payments {
    pub seq: JobSeq,
    /// Calls with a usable answer.
    pub successes: u32,
    /// Calls that were in flight, or answered and not yet saved, when their worker died or lost
    /// its lease, or whose outcome nobody told us.
    pub excused: u32,
}

/// No job is paid for twice, but for what crashed or is ambiguous.
///
/// # Errors
/// The first job that breaks the rule.
pub fn paid_once(jobs: &[Payments]) -> Result<(), Broken> {
    match jobs.iter().find(|job| job.successes > 1 + job.excused) {
        None => Ok(()),
        Some(job) => broken(Invariant::PaidOnce, format!("{job:?}")),
    }
}

/// A write of the lease on a job that matters to fencing, at its revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fence {
    Granted { seq: JobSeq, term: Term },
    Started { seq: JobSeq, term: Term },
}

/// Nothing of an older term starts after a newer term's grant for the same job. `writes` are in
/// the order of their revisions.
///
/// # Errors
/// The start that came too late.
pub fn fenced(writes: &[Fence]) -> Result<(), Broken> {
    let mut newest: BTreeMap<JobSeq, Term> = BTreeMap::new();
    for &write in writes {
        match write {
            Fence::Granted { seq, term } => {
                let known = newest.entry(seq).or_insert(term);
                *known = (*known).max(term);
            }
            Fence::Started { seq, term } => {
                if let Some(&known) = newest.get(&seq)
                    && known > term
                {
                    return broken(
                        Invariant::Fenced,
                        format!(
                            "job {seq} was started in {term:?} after it was granted in {known:?}"
                        ),
                    );
                }
            }
        }
    }
    Ok(())
}

/// Something that must not grow did not.
///
/// # Errors
/// How many there are.
pub fn bounded(what: &str, count: usize, bound: usize) -> Result<(), Broken> {
    if count <= bound {
        return Ok(());
    }
    broken(
        Invariant::Bounded,
        format!("{count} {what}, the bound is {bound}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broke(result: Result<(), Broken>) -> Option<Invariant> {
        result.err().map(|broken| broken.invariant)
    }

    #[test]
    fn a_credit_has_one_end() {
        let life = |ends, live| CreditLife {
            seq: JobSeq(1),
            revision: 1,
            ends,
            live,
        };
        assert_eq!(
            broke(settled_once(&[life(1, false), life(0, true)], false)),
            None
        );
        for wrong in [life(0, false), life(2, false), life(1, true)] {
            assert_eq!(
                broke(settled_once(&[wrong], false)),
                Some(Invariant::SettledOnce)
            );
        }
        assert_eq!(
            broke(settled_once(&[life(0, true)], true)),
            Some(Invariant::SettledOnce)
        );
    }

    #[test]
    fn a_window_holds_a_full_bucket_and_its_refill() {
        let draws =
            |second: Millis, amount| [Draw { at: 0, amount: 60 }, Draw { at: second, amount }];
        assert_eq!(broke(within_limits(&draws(1_000, 1), 60, 1_000)), None);
        assert_eq!(
            broke(within_limits(&draws(999, 1), 60, 1_000)),
            Some(Invariant::WithinLimits)
        );
        assert_eq!(broke(within_limits(&draws(999, 1), 60, 1_020)), None);
        assert_eq!(
            broke(within_limits(&draws(60_000, 100), 60, 1_000)),
            None,
            "needs a full one"
        );
        let back = [60, -1, 1].map(|amount| Draw { at: 0, amount });
        assert_eq!(broke(within_limits(&back, 60, 1_000)), None);
    }

    #[test]
    fn service_follows_weights_up_to_one_job() {
        let flow = |cost, weight| Served {
            cost: Cost(cost),
            weight,
            job_max: Cost(1_000),
            in_doubt: Cost(0),
        };
        assert_eq!(
            broke(fair(
                &[flow(50_000, 1_000), flow(100_000, 2_000)],
                Cost(5_000)
            )),
            None
        );
        let apart = [flow(50_000, 1_000), flow(57_001, 1_000)];
        assert_eq!(broke(fair(&apart, Cost(5_000))), Some(Invariant::Fair));
    }

    #[test]
    fn the_floor_is_a_part_of_the_whole() {
        assert_eq!(broke(floor(Cost(50), Cost(1_000), 50, Cost(0))), None);
        assert_eq!(
            broke(floor(Cost(49), Cost(1_000), 50, Cost(0))),
            Some(Invariant::Floor)
        );
        assert_eq!(broke(floor(Cost(49), Cost(1_000), 50, Cost(1))), None);
    }

    #[test]
    fn waiting_for_nothing_is_noticed_after_a_tick() {
        assert_eq!(broke(work_conserving(JobSeq(1), 10, 10)), None);
        assert_eq!(
            broke(work_conserving(JobSeq(1), 11, 10)),
            Some(Invariant::WorkConserving)
        );
    }

    #[test]
    fn a_job_ends_once_and_leaves_with_its_outcome() {
        let life = |outcomes, in_stream| JobLife {
            seq: JobSeq(1),
            outcomes,
            in_stream,
        };
        for (job, running, idle) in [
            (life(0, true), true, false),
            (life(1, true), true, false),
            (life(1, false), true, true),
            (life(0, false), false, false),
            (life(2, false), false, false),
        ] {
            assert_eq!(one_outcome(&[job], false).is_ok(), running, "{job:?}");
            assert_eq!(one_outcome(&[job], true).is_ok(), idle, "{job:?}");
        }
    }

    #[test]
    fn a_second_payment_needs_an_excuse() {
        let paid = |successes, excused| {
            [Payments {
                seq: JobSeq(1),
                successes,
                excused,
            }]
        };
        assert_eq!(broke(paid_once(&paid(2, 1))), None);
        assert_eq!(broke(paid_once(&paid(2, 0))), Some(Invariant::PaidOnce));
    }

    #[test]
    fn an_older_term_starts_nothing_after_a_newer_one_granted_it() {
        let granted = |term| Fence::Granted {
            seq: JobSeq(1),
            term: Term(term),
        };
        let started = |term| Fence::Started {
            seq: JobSeq(1),
            term: Term(term),
        };
        assert_eq!(
            broke(fenced(&[granted(1), started(1), granted(2), started(2)])),
            None
        );
        assert_eq!(
            broke(fenced(&[granted(2), started(1)])),
            Some(Invariant::Fenced)
        );
    }

    #[test]
    fn what_grows_is_named() {
        let error = bounded("leases remembered", 3, 0).unwrap_err().to_string();
        assert_eq!(error, "bounded: 3 leases remembered, the bound is 0");
    }
}
