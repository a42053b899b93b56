//! The report of a submission, as lines that people read and scripts grep, and as one JSON document.
//!
//! The first word of a line, and what follows a line number, do not change: `done 783`, `failed schema 1`,
//! `line 343  wp-0342  pixel-walls  invalid_job: request.messages is missing; ...`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use crate::exit::Exit;
use crate::out::{Ink, Paint};
use crate::submit::book::{Book, Finding, FindingKind, Spent, Tally};
use crate::text;

/// Findings and tenants shown as text; the rest is counted. JSON has more.
const FINDINGS_SHOWN: usize = 50;
const TENANTS_SHOWN: usize = 40;

/// What a submission came to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Summary {
    pub(crate) lines: u64,
    pub(crate) skipped: u64,
    pub(crate) refused: u64,
    pub(crate) unsent: u64,
    pub(crate) published: u64,
    /// Absent if nobody waited for them.
    #[serde(flatten)]
    pub(crate) outcomes: Option<Outcomes>,
    pub(crate) tenants: BTreeMap<String, Tally>,
    /// By line.
    pub(crate) findings: Vec<Finding>,
    pub(crate) findings_omitted: u64,
    pub(crate) elapsed_ms: u64,
}

/// What the published lines came to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Outcomes {
    pub(crate) same_job: u64,
    pub(crate) done: u64,
    /// Part of `done`: answered before this submission.
    pub(crate) done_before: u64,
    pub(crate) failed: u64,
    pub(crate) failed_by_reason: BTreeMap<&'static str, u64>,
    pub(crate) cancelled: u64,
    pub(crate) waiting: u64,
    pub(crate) spent: Spent,
    pub(crate) jobs_per_second: f64,
}

impl Summary {
    /// The state of the books after `elapsed_ms`.
    pub(crate) fn of(book: &Book, elapsed_ms: u64) -> Self {
        let total = book.total();
        let ended = total.done + total.failed + total.cancelled;
        let outcomes = book.is_following().then(|| Outcomes {
            same_job: total.same_job,
            done: total.done,
            done_before: book.done_before,
            failed: total.failed,
            failed_by_reason: book.failed_by_reason.clone(),
            cancelled: total.cancelled,
            waiting: total.waiting,
            spent: total.spent,
            jobs_per_second: per_second(ended, elapsed_ms),
        });
        let tenants = book.tenants.iter();
        Self {
            lines: book.lines,
            skipped: book.skipped,
            refused: book.refused,
            unsent: book.unsent,
            published: total.published,
            outcomes,
            tenants: tenants
                .map(|(id, tally)| (id.to_string(), tally.clone()))
                .collect(),
            findings: book.findings.kept.values().cloned().collect(),
            findings_omitted: book.findings.omitted,
            elapsed_ms,
        }
    }

    /// Success is: every line was sent, and (if we waited) every job is done.
    pub(crate) fn exit(&self) -> Exit {
        let all_sent = self.refused == 0 && self.unsent == 0;
        let all_done = self
            .outcomes
            .as_ref()
            .is_none_or(|o| o.failed == 0 && o.cancelled == 0 && o.waiting == 0);
        if all_sent && all_done {
            Exit::Ok
        } else {
            Exit::Failed
        }
    }

    /// The report for people.
    pub(crate) fn text(&self, paint: Paint) -> String {
        let mut text = String::new();
        for (name, count) in [
            ("lines", self.lines),
            ("skipped", self.skipped),
            ("refused", self.refused),
            ("published", self.published),
        ] {
            line(&mut text, format_args!("{name} {count}"));
        }
        if self.unsent > 0 {
            line(&mut text, format_args!("unsent {}", self.unsent));
        }
        if let Some(outcomes) = &self.outcomes {
            self.outcomes_text(outcomes, paint, &mut text);
        } else {
            line(
                &mut text,
                format_args!("time {}", text::span(self.elapsed_ms)),
            );
        }
        self.tenants_text(paint, &mut text);
        self.findings_text(paint, &mut text);
        text.truncate(text.trim_end().len());
        text
    }

    fn outcomes_text(&self, outcomes: &Outcomes, paint: Paint, text: &mut String) {
        line(text, format_args!("same-job {}", outcomes.same_job));
        let done = format!("done {}", outcomes.done);
        line(text, paint.paint(Ink::Good, done));
        if outcomes.done_before > 0 {
            line(text, format_args!("done-before {}", outcomes.done_before));
        }
        let ink = if outcomes.failed == 0 {
            Ink::Good
        } else {
            Ink::Bad
        };
        line(
            text,
            paint.paint(ink, format_args!("failed {}", outcomes.failed)),
        );
        for (reason, count) in &outcomes.failed_by_reason {
            line(text, format_args!("failed {reason} {count}"));
        }
        line(text, format_args!("cancelled {}", outcomes.cancelled));
        line(text, format_args!("waiting {}", outcomes.waiting));
        let spent = &outcomes.spent;
        line(
            text,
            format_args!(
                "tokens {} in, {} out",
                spent.input_tokens, spent.output_tokens
            ),
        );
        if spent.cache_read_tokens + spent.cache_write_tokens > 0 {
            line(
                text,
                format_args!(
                    "cache-tokens {} read, {} written",
                    spent.cache_read_tokens, spent.cache_write_tokens
                ),
            );
        }
        line(text, format_args!("cost {}", text::dollars(spent.cost_usd)));
        line(
            text,
            format_args!(
                "time {}, {:.1} jobs/s",
                text::span(self.elapsed_ms),
                outcomes.jobs_per_second
            ),
        );
    }

    fn tenants_text(&self, paint: Paint, text: &mut String) {
        if self.tenants.is_empty() {
            return;
        }
        let shown: Vec<_> = self.tenants.iter().take(TENANTS_SHOWN).collect();
        let width = shown
            .iter()
            .map(|(name, _)| name.len())
            .max()
            .unwrap_or(0)
            .max(6);
        let heading = match &self.outcomes {
            Some(_) => format!(
                "{:width$}  published  same-job      done    failed  cancelled  waiting        cost",
                "tenant"
            ),
            None => format!("{:width$}  published", "tenant"),
        };
        text.push('\n');
        line(text, paint.paint(Ink::Heading, heading));
        for (name, tally) in shown {
            let mut row = format!("{name:width$}  {:>9}", tally.published);
            if self.outcomes.is_some() {
                let cost = text::dollars(tally.spent.cost_usd);
                let Tally {
                    same_job,
                    done,
                    failed,
                    cancelled,
                    waiting,
                    ..
                } = tally;
                let _infallible = write!(
                    row,
                    "  {same_job:>8}  {done:>8}  {failed:>8}  {cancelled:>9}  {waiting:>7}  {cost:>10}"
                );
            }
            line(text, row);
        }
        let more = self.tenants.len().saturating_sub(TENANTS_SHOWN);
        if more > 0 {
            line(
                text,
                format_args!("... and {more} more tenants (-o json shows them)"),
            );
        }
    }

    fn findings_text(&self, paint: Paint, text: &mut String) {
        if self.findings.is_empty() {
            return;
        }
        text.push('\n');
        for finding in self.findings.iter().take(FINDINGS_SHOWN) {
            let ink = match finding.outcome {
                FindingKind::SameJob => Ink::Aside,
                FindingKind::Refused
                | FindingKind::Unsent
                | FindingKind::Failed
                | FindingKind::Cancelled
                | FindingKind::Waiting => Ink::Bad,
            };
            let (row, told) = finding_text(finding);
            line(text, format_args!("{row}  {}", paint.paint(ink, told)));
        }
        let hidden = self.findings.len().saturating_sub(FINDINGS_SHOWN) as u64;
        let more = hidden + self.findings_omitted;
        if more > 0 {
            line(
                text,
                format_args!("... and {more} more (--failures FILE writes all of them)"),
            );
        }
    }
}

/// Which line, and what about it.
fn finding_text(finding: &Finding) -> (String, String) {
    let job = finding.job.as_deref().unwrap_or("-");
    let tenant = finding.tenant.as_deref().unwrap_or("-");
    let mut told = match finding.reason {
        Some(reason) => format!("{reason}: {}", finding.message),
        None => finding.message.clone(),
    };
    if let Some(fix) = &finding.fix {
        told = format!("{told}; {fix}");
    }
    (format!("line {}  {job}  {tenant}", finding.line), told)
}

fn line(text: &mut String, line: impl std::fmt::Display) {
    let _infallible = writeln!(text, "{line}");
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn per_second(count: u64, elapsed_ms: u64) -> f64 {
    count as f64 * 1_000.0 / elapsed_ms.max(1) as f64
}

#[cfg(test)]
mod tests {
    use fairlane_core::{JobId, TenantId};
    use fairlane_nats::Revision;
    use fairlane_wire::{DeadReason, Failure, JobRecord, Phase, UsageRecord};

    use super::*;
    use crate::submit::address::{Parcel, Refusal};
    use crate::submit::book::Seen;

    fn book(waits: bool) -> Book {
        let mut book = Book::new(waits, false);
        let jobs = [("a", "acme"), ("b", "acme"), ("c", "best"), ("a", "acme")];
        for ((job, tenant), line) in jobs.into_iter().zip(1..) {
            book.publish(&Parcel {
                line,
                tenant: TenantId::parse(tenant).unwrap(),
                job: JobId::parse(job).unwrap(),
                is_named_by_us: false,
                body: "{}".into(),
            });
        }
        book.skip();
        book.refuse(Refusal {
            line: 6,
            id: None,
            failure: Failure::new(DeadReason::Undecodable, "not JSON").fix("publish JSON"),
        });
        book
    }

    fn end(book: &mut Book, tenant: &str, job: &str, phase: Phase, failure: Option<Failure>) {
        let (tenant, job) = (TenantId::parse(tenant).unwrap(), JobId::parse(job).unwrap());
        let mut record = JobRecord::new(tenant.clone(), job.clone(), phase, 1);
        record.usage = Some(UsageRecord {
            input_tokens: 120,
            output_tokens: 40,
            ..UsageRecord::default()
        });
        record.cost_usd = Some(0.000_42);
        record.failure = failure;
        let seen = Seen {
            record,
            revision: Revision(1),
        };
        book.record(&format!("{tenant}.{job}"), &seen, false);
    }

    fn complete() -> Book {
        let mut book = book(true);
        end(&mut book, "acme", "a", Phase::Done, None);
        end(&mut book, "acme", "b", Phase::Done, None);
        let failure = Failure::new(DeadReason::InvalidJob, "request.messages is missing")
            .fix("give at least one message");
        end(&mut book, "best", "c", Phase::Failed, Some(failure));
        book
    }

    #[test]
    fn the_report_of_a_submission_that_was_waited_for() {
        let summary = Summary::of(&complete(), 1_500);
        assert_eq!(
            summary.text(Paint::plain()),
            "\
lines 6
skipped 1
refused 1
published 4
same-job 1
done 2
failed 1
failed invalid_job 1
cancelled 0
waiting 0
tokens 360 in, 120 out
cost $0.001260
time 1.5 s, 2.0 jobs/s

tenant  published  same-job      done    failed  cancelled  waiting        cost
acme            3         1         2         0          0        0   $0.000840
best            1         0         0         1          0        0   $0.000420

line 3  c  best  invalid_job: request.messages is missing; give at least one message
line 4  a  acme  same job as line 1
line 6  -  -  undecodable: not JSON; publish JSON"
        );
        assert_eq!(summary.exit(), Exit::Failed);
    }

    #[test]
    fn the_report_of_a_submission_that_was_only_sent() {
        let summary = Summary::of(&book(false), 20);
        assert_eq!(
            summary.text(Paint::plain()),
            "\
lines 6
skipped 1
refused 1
published 4
time 20 ms

tenant  published
acme            3
best            1

line 6  -  -  undecodable: not JSON; publish JSON"
        );
    }

    #[test]
    fn the_document_has_every_number_of_the_text() {
        let document = serde_json::to_value(Summary::of(&complete(), 1_500)).unwrap();
        assert_eq!(document["lines"], 6);
        assert_eq!(document["done"], 2);
        assert_eq!(document["failed_by_reason"]["invalid_job"], 1);
        assert_eq!(document["tenants"]["acme"]["done"], 2);
        assert_eq!(document["spent"]["input_tokens"], 360);
        let finding = &document["findings"][0];
        assert_eq!(finding["line"], 3);
        assert_eq!(finding["reason"], "invalid_job");
        assert_eq!(finding["outcome"], "failed");
    }

    #[test]
    fn only_a_submission_without_any_trouble_succeeds() {
        let mut book = Book::new(true, false);
        book.skip();
        assert_eq!(Summary::of(&book, 1).exit(), Exit::Ok);
        let tally = |book: &mut Book, tally: Tally| {
            book.tenants.insert(TenantId::parse("acme").unwrap(), tally);
        };
        let one = |of: fn(&mut Tally)| {
            let mut one = Tally::default();
            of(&mut one);
            one
        };
        let [failed, cancelled, waiting] = [
            one(|t| t.failed = 1),
            one(|t| t.cancelled = 1),
            one(|t| t.waiting = 1),
        ];
        for trouble in [
            &(|book: &mut Book| book.refused += 1) as &dyn Fn(&mut Book),
            &|book| book.unsent += 1,
            &|book| tally(book, failed.clone()),
            &|book| tally(book, cancelled.clone()),
            &|book| tally(book, waiting.clone()),
        ] {
            let mut book = Book::new(true, false);
            trouble(&mut book);
            assert_eq!(Summary::of(&book, 1).exit(), Exit::Failed);
        }
    }

    #[test]
    fn long_lists_are_cut_and_counted() {
        let mut book = Book::new(false, false);
        for line in 1..=60 {
            let failure = Failure::new(DeadReason::InvalidTenant, "no tenant");
            book.refuse(Refusal {
                line,
                id: None,
                failure,
            });
        }
        let text = Summary::of(&book, 1).text(Paint::plain());
        assert_eq!(
            text.lines()
                .filter(|line| line.starts_with("line "))
                .count(),
            50
        );
        assert!(
            text.ends_with("... and 10 more (--failures FILE writes all of them)"),
            "{text}"
        );
    }
}
