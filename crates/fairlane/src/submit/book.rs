//! The books of one submission: every line is counted exactly once, whatever becomes of it.
//!
//! Plain data and plain functions: lines and records go in, counts and findings come out. At any time
//! lines = skipped + refused + unsent + published, and published = same job + done + failed + cancelled + waiting.

use std::collections::{BTreeMap, HashMap};

use fairlane_core::{JobId, TenantId};
use fairlane_nats::Revision;
use fairlane_wire::{DeadReason, Failure, JobRecord, Namespace, Phase, UsageRecord};
use serde::Serialize;

use super::address::{Parcel, Refusal};

/// Findings kept for the report; all of them can go to a file.
pub(crate) const FINDINGS_MAX: usize = 1_000;

/// What one line came to, where that is worth a line of the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) line: u64,
    pub(crate) tenant: Option<String>,
    pub(crate) job: Option<String>,
    pub(crate) outcome: FindingKind,
    /// The stable word of the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<DeadReason>,
    pub(crate) message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) field: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fix: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FindingKind {
    /// Not sent: it names no usable tenant, or is too long.
    Refused,
    /// Not sent: NATS did not take it.
    Unsent,
    Failed,
    Cancelled,
    /// Not ended when we stopped waiting.
    Waiting,
    /// Another line is the same job.
    SameJob,
}

impl Finding {
    fn new(line: u64, key: Option<&str>, outcome: FindingKind, message: String) -> Self {
        let (tenant, job) = key.and_then(|key| key.split_once('.')).unzip();
        Self {
            line,
            tenant: tenant.map(str::to_owned),
            job: job.map(str::to_owned),
            outcome,
            reason: None,
            message,
            field: None,
            fix: None,
        }
    }

    fn failure(line: u64, key: Option<&str>, outcome: FindingKind, failure: Failure) -> Self {
        Self {
            reason: Some(failure.reason),
            field: failure.field,
            fix: failure.fix,
            ..Self::new(line, key, outcome, failure.message)
        }
    }
}

/// What a tenant's lines came to.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Tally {
    pub(crate) published: u64,
    pub(crate) same_job: u64,
    pub(crate) done: u64,
    pub(crate) failed: u64,
    pub(crate) cancelled: u64,
    pub(crate) waiting: u64,
    #[serde(flatten)]
    pub(crate) spent: Spent,
}

/// What answers cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct Spent {
    pub(crate) input_tokens: u64,
    pub(crate) cache_write_tokens: u64,
    pub(crate) cache_read_tokens: u64,
    pub(crate) output_tokens: u64,
    pub(crate) cost_usd: f64,
}

impl Spent {
    fn add(&mut self, record: &JobRecord) {
        let UsageRecord {
            input_tokens,
            cache_write_5m_tokens,
            cache_write_1h_tokens,
            cache_read_tokens,
            output_tokens,
        } = record.usage.unwrap_or_default();
        self.input_tokens += input_tokens;
        self.cache_write_tokens += cache_write_5m_tokens + cache_write_1h_tokens;
        self.cache_read_tokens += cache_read_tokens;
        self.output_tokens += output_tokens;
        self.cost_usd += record.cost_usd.unwrap_or(0.0);
    }

    fn plus(mut self, other: &Self) -> Self {
        self.input_tokens += other.input_tokens;
        self.cache_write_tokens += other.cache_write_tokens;
        self.cache_read_tokens += other.cache_read_tokens;
        self.output_tokens += other.output_tokens;
        self.cost_usd += other.cost_usd;
        self
    }
}

/// Where a followed job is, as far as we know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// No record yet.
    Unseen,
    Open(Phase),
    /// Ended before this submission began; it may be run again now.
    Old(Phase),
    Ended,
}

#[derive(Debug)]
struct Followed {
    line: u64,
    state: State,
}

/// A record as it was read.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) record: JobRecord,
    pub(crate) revision: Revision,
}

/// Counts of jobs that have not ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) jobs: u64,
    pub(crate) ended: u64,
    pub(crate) done: u64,
    pub(crate) failed: u64,
    pub(crate) generating: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Book {
    /// Keep each job, to find out what becomes of it.
    follows: bool,
    pub(crate) lines: u64,
    pub(crate) skipped: u64,
    pub(crate) refused: u64,
    pub(crate) unsent: u64,
    /// Jobs that had been answered before this submission; they cost nothing now.
    pub(crate) done_before: u64,
    pub(crate) tenants: BTreeMap<TenantId, Tally>,
    pub(crate) failed_by_reason: BTreeMap<&'static str, u64>,
    pub(crate) findings: Findings,
    /// Published lines that have not come to anything yet: the sum of all `waiting`.
    open: u64,
    generating: u64,
    jobs: HashMap<Box<str>, Followed>,
    /// Jobs whose outcome is that of the key, which is none of ours.
    borrowers: HashMap<Box<str>, Vec<Box<str>>>,
    /// Where in `jobs` the next look begins.
    next_look: usize,
    /// Highest sequence of our submissions.
    pub(crate) last_submission: u64,
    /// Records up to this revision are older than this submission.
    pub(crate) baseline: u64,
}

/// Findings by line: the first ones kept, all of them passed on.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) kept: BTreeMap<u64, Finding>,
    pub(crate) omitted: u64,
    fresh: Option<Vec<Finding>>,
}

impl Findings {
    fn add(&mut self, finding: Finding) {
        if let Some(fresh) = &mut self.fresh {
            fresh.push(finding.clone());
        }
        self.kept.insert(finding.line, finding);
        if self.kept.len() > FINDINGS_MAX {
            self.kept.pop_last();
            self.omitted += 1;
        }
    }

    /// What was found since the last call; only if asked for at the start.
    pub(crate) fn take_fresh(&mut self) -> Vec<Finding> {
        self.fresh.as_mut().map(std::mem::take).unwrap_or_default()
    }
}

impl Book {
    /// An empty book. `follows`: remember the jobs. `passes_on`: keep findings for [`Findings::take_fresh`].
    pub(crate) fn new(follows: bool, passes_on: bool) -> Self {
        let mut book = Self {
            follows,
            ..Self::default()
        };
        book.findings.fresh = passes_on.then(Vec::new);
        book
    }

    pub(crate) fn is_following(&self) -> bool {
        self.follows
    }

    pub(crate) fn skip(&mut self) {
        self.lines += 1;
        self.skipped += 1;
    }

    pub(crate) fn refuse(&mut self, refusal: Refusal) {
        self.lines += 1;
        self.refused += 1;
        let mut finding =
            Finding::failure(refusal.line, None, FindingKind::Refused, refusal.failure);
        finding.job = refusal.id.map(|id| shown(&id));
        self.findings.add(finding);
    }

    /// A line is about to be published.
    pub(crate) fn publish(&mut self, parcel: &Parcel) {
        self.lines += 1;
        let tally = self.tenants.entry(parcel.tenant.clone()).or_default();
        tally.published += 1;
        tally.waiting += 1;
        self.open += 1;
        if !self.follows {
            return;
        }
        let key = Namespace::status_key(&parcel.tenant, &parcel.job);
        let line = parcel.line;
        match self.jobs.get(key.as_str()) {
            None => {
                let state = State::Unseen;
                self.jobs.insert(key.into(), Followed { line, state });
            }
            Some(first) => {
                let first = first.line;
                self.same_job(&key, line, first);
            }
        }
    }

    fn same_job(&mut self, key: &str, line: u64, owner_line: u64) {
        self.open -= 1;
        let tally = self.tally(key);
        tally.waiting -= 1;
        tally.same_job += 1;
        let message = format!("same job as line {owner_line}");
        let finding = Finding::new(line, Some(key), FindingKind::SameJob, message);
        self.findings.add(finding);
    }

    /// The stream has it.
    pub(crate) fn stored(&mut self, seq: u64) {
        self.last_submission = self.last_submission.max(seq);
    }

    /// NATS did not take a line that was about to be published.
    pub(crate) fn not_stored(&mut self, parcel: &Parcel, message: String) {
        self.unsent += 1;
        let key = Namespace::status_key(&parcel.tenant, &parcel.job);
        let is_first = self
            .jobs
            .get(key.as_str())
            .is_none_or(|job| job.line == parcel.line);
        let tally = self.tally(&key);
        tally.published -= 1;
        if is_first {
            tally.waiting -= 1;
            self.open -= 1;
            self.jobs.remove(key.as_str());
        } else {
            tally.same_job -= 1;
        }
        let finding = Finding::new(parcel.line, Some(&key), FindingKind::Unsent, message);
        self.findings.add(finding);
    }

    fn tally(&mut self, key: &str) -> &mut Tally {
        let tenant = key.split_once('.').map_or(key, |(tenant, _)| tenant);
        let tenant = TenantId::parse(tenant).expect("the key was made of a tenant and a job");
        self.tenants.entry(tenant).or_default()
    }

    /// A record has changed. True if its body should be read: it may tell how one of our jobs ended. `phase` is None
    /// if the headers do not tell.
    pub(crate) fn glimpse(&mut self, key: &str, phase: Option<Phase>) -> bool {
        let tells_an_end = phase.is_none_or(Phase::is_final);
        let Some(job) = self.jobs.get_mut(key) else {
            return tells_an_end && self.borrowers.contains_key(key);
        };
        if job.state == State::Ended {
            return false;
        }
        if let Some(phase) = phase.filter(|phase| !phase.is_final()) {
            let before = std::mem::replace(&mut job.state, State::Open(phase));
            self.count_generating(before, phase);
        }
        tells_an_end
    }

    fn count_generating(&mut self, before: State, now: Phase) {
        self.generating += u64::from(now == Phase::Generating);
        self.generating -= u64::from(before == State::Open(Phase::Generating));
    }

    /// A record was read. `submissions_are_taken`: all our lines have been judged, so what is recorded as ended will not
    /// be run again. Gives the key of another job whose record must be read to know.
    pub(crate) fn record(
        &mut self,
        key: &str,
        seen: &Seen,
        submissions_are_taken: bool,
    ) -> Option<String> {
        let Seen { record, revision } = seen;
        let is_old = revision.0 <= self.baseline;
        if record.phase.is_final() {
            for borrower in self.borrowers.remove(key).unwrap_or_default() {
                self.settle(&borrower, record, Paid::ByOthers);
            }
        }
        let job = self.jobs.get_mut(key)?;
        if job.state == State::Ended {
            return None;
        }
        let owner = record
            .same_as
            .as_deref()
            .and_then(|id| JobId::parse(id).ok());
        if let Some(owner) = owner.filter(|owner| *owner != record.job) {
            let owner = Namespace::status_key(&record.tenant, &owner);
            return self.borrow(key, owner);
        }
        if !record.phase.is_final() {
            let before = std::mem::replace(&mut job.state, State::Open(record.phase));
            self.count_generating(before, record.phase);
        } else if is_old && !submissions_are_taken {
            job.state = State::Old(record.phase);
        } else {
            self.settle(key, record, if is_old { Paid::Before } else { Paid::Now });
        }
        None
    }

    /// The outcome of `key` is that of `owner`.
    fn borrow(&mut self, key: &str, owner: String) -> Option<String> {
        let line = self.jobs.get(key)?.line;
        if let Some(owning) = self.jobs.get(owner.as_str()) {
            let owner_line = owning.line;
            self.end(key);
            self.same_job(key, line, owner_line);
            return None;
        }
        let borrowers = self.borrowers.entry(owner.clone().into()).or_default();
        if !borrowers.iter().any(|known| **known == *key) {
            borrowers.push(key.into());
        }
        Some(owner)
    }

    fn end(&mut self, key: &str) -> Option<u64> {
        let job = self.jobs.get_mut(key)?;
        let before = std::mem::replace(&mut job.state, State::Ended);
        self.generating -= u64::from(before == State::Open(Phase::Generating));
        (before != State::Ended).then_some(job.line)
    }

    fn settle(&mut self, key: &str, record: &JobRecord, paid: Paid) {
        let Some(line) = self.end(key) else { return };
        self.open -= 1;
        let tally = self.tally(key);
        tally.waiting -= 1;
        if paid == Paid::Now {
            tally.spent.add(record);
        }
        match record.phase {
            Phase::Done => {
                tally.done += 1;
                self.done_before += u64::from(paid != Paid::Now);
            }
            Phase::Failed => {
                tally.failed += 1;
                self.fail(line, key, record.failure.clone());
            }
            Phase::Cancelled => {
                tally.cancelled += 1;
                let message = "cancelled by its owner".to_owned();
                let finding = Finding::new(line, Some(key), FindingKind::Cancelled, message);
                self.findings.add(finding);
            }
            Phase::Accepted
            | Phase::Queued
            | Phase::Generating
            | Phase::Refining
            | Phase::Retrying
            | Phase::Deferred
            | Phase::NeedsDecision => {
                unreachable!("only records of ended jobs are settled")
            }
        }
    }

    fn fail(&mut self, line: u64, key: &str, failure: Option<Failure>) {
        let word = failure.as_ref().map_or("unknown", |f| f.reason.as_str());
        *self.failed_by_reason.entry(word).or_default() += 1;
        let finding = match failure {
            Some(failure) => Finding::failure(line, Some(key), FindingKind::Failed, failure),
            None => {
                let message = "the record names no reason".to_owned();
                Finding::new(line, Some(key), FindingKind::Failed, message)
            }
        };
        self.findings.add(finding);
    }

    /// At most `limit` jobs that have not ended, others each time: to look at although nothing was heard of them.
    pub(crate) fn next_open(&mut self, limit: usize) -> Vec<String> {
        let count = self.jobs.len();
        let (mut found, mut looked_at) = (Vec::new(), 0);
        for (key, job) in self.jobs.iter().cycle().skip(self.next_look).take(count) {
            if found.len() == limit {
                break;
            }
            looked_at += 1;
            match job.state {
                State::Unseen | State::Open(_) => found.push(key.to_string()),
                State::Old(_) | State::Ended => {}
            }
        }
        self.next_look = (self.next_look + looked_at) % count.max(1);
        found
    }

    /// At most `limit` jobs that had ended before this submission: to look at once it is certain that they will not run
    /// again.
    pub(crate) fn some_old(&self, limit: usize) -> Vec<String> {
        let old = self
            .jobs
            .iter()
            .filter(|(_, job)| matches!(job.state, State::Old(_)));
        old.take(limit).map(|(key, _)| key.to_string()).collect()
    }

    /// Adds a finding for every job that has not ended.
    pub(crate) fn give_up(&mut self) {
        for (key, job) in &self.jobs {
            let phase = match job.state {
                State::Unseen => "not accepted yet",
                State::Open(phase) | State::Old(phase) => phase.as_str(),
                State::Ended => continue,
            };
            let message = format!("not ended: {phase}");
            let finding = Finding::new(job.line, Some(key), FindingKind::Waiting, message);
            self.findings.add(finding);
        }
    }

    /// All tenants together.
    pub(crate) fn total(&self) -> Tally {
        let zero = Tally::default();
        self.tenants.values().fold(zero, |sum, tally| Tally {
            published: sum.published + tally.published,
            same_job: sum.same_job + tally.same_job,
            done: sum.done + tally.done,
            failed: sum.failed + tally.failed,
            cancelled: sum.cancelled + tally.cancelled,
            waiting: sum.waiting + tally.waiting,
            spent: sum.spent.plus(&tally.spent),
        })
    }

    pub(crate) fn progress(&self) -> Progress {
        let total = self.total();
        Progress {
            jobs: total.published - total.same_job,
            ended: total.done + total.failed + total.cancelled,
            done: total.done,
            failed: total.failed,
            generating: self.generating,
        }
    }

    /// Whether every job that was published has ended.
    pub(crate) fn is_complete(&self) -> bool {
        self.open == 0
    }
}

/// Who paid for an outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Paid {
    /// This submission.
    Now,
    /// An earlier submission of the same job.
    Before,
    /// Another job with the same idempotency key.
    ByOthers,
}

/// Text from outside, on one line and short.
fn shown(text: &str) -> String {
    let clean = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    clean.take(80).collect()
}

#[cfg(test)]
mod tests;
