//! What the lines of the bundled file must come to.

use fairlane_wire::DeadReason;

use crate::submit::book::{Finding, FindingKind};
use crate::summary::Summary;

/// Said when everything is as it must be.
pub(crate) const EXPLANATION: &str = "\
The outcome is exactly what the file demands: 21 of its 800 lines are odd on purpose (no JSON, a refused prompt, an \
unknown model, a connection cut in the middle, ...), and each ended as it must, without harm to its neighbours.
Every job that failed has a dead letter with its original body, the reason and what to do about it.";

/// Lines of the file.
const LINES: u64 = 800;

/// What an odd line must come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    Done,
    /// Nothing on the line.
    Skipped,
    /// Not sent at all.
    RefusedHere(DeadReason),
    SameAs(u64),
    /// Failed for one of these reasons.
    Dead(&'static [DeadReason]),
    /// Failed for this reason, or done.
    DeadOrDone(DeadReason),
}

/// The odd lines; `tests/data/wallpapers-800.expected.json` says more about each of them.
const ODD: [(u64, &str, Expect); 21] = {
    use DeadReason as R;
    use Expect::{Dead, DeadOrDone, Done, RefusedHere, SameAs, Skipped};
    [
        (18, "line 18", RefusedHere(R::Undecodable)),
        (112, "line 112", Dead(&[R::Undecodable])),
        (204, "wp-0203", Done),
        (205, "wp-0204", Dead(&[R::Oversize])),
        (301, "wp-0300", Dead(&[R::Refusal])),
        (302, "wp-0301", Dead(&[R::MaxTokens])),
        (343, "wp-0342", Dead(&[R::InvalidJob])),
        (378, "wp-0377", Dead(&[R::UnknownModel])),
        (402, "wp-0401", Dead(&[R::Schema])),
        (403, "wp-0402", Dead(&[R::InvalidJob])),
        (456, "wp-0455", Dead(&[R::InvalidJob])),
        (501, "line 501", Dead(&[R::Undecodable])),
        (502, "line 502", Skipped),
        (556, "line 556", SameAs(101)),
        (601, "wp-0600", Dead(&[R::InvalidRequest])),
        (621, "wp-0620", DeadOrDone(R::Undecodable)),
        (651, "line 651", Dead(&[R::Undecodable, R::InvalidJob])),
        (667, "wp-0666", Done),
        (701, "wp-0700", Done),
        (721, "wp-0720", RefusedHere(R::InvalidTenant)),
        (761, "wp-0760", Done),
    ]
};

/// Everything that is not as it must be; empty if all is well.
pub(crate) fn check(summary: &Summary) -> Vec<String> {
    let mut wrong = Vec::new();
    for line in 1..=LINES {
        let odd = ODD.iter().find(|(odd, ..)| *odd == line);
        let (name, expect) = odd.map_or(("a plain job", Expect::Done), |(_, name, e)| (*name, *e));
        let finding = summary.findings.iter().find(|found| found.line == line);
        if !fits(expect, finding) {
            let came_to = finding.map_or("done or skipped".to_owned(), |found| {
                let reason = found.reason.map_or("", DeadReason::as_str);
                format!("{:?} {reason}: {}", found.outcome, found.message)
            });
            wrong.push(format!(
                "line {line} ({name}) came to {came_to}; expected {expect:?}"
            ));
        }
    }
    check_counts(summary, &mut wrong);
    wrong
}

fn fits(expect: Expect, finding: Option<&Finding>) -> bool {
    let is = |kind: FindingKind, reasons: &[DeadReason]| {
        finding.is_some_and(|found| {
            found.outcome == kind && found.reason.is_some_and(|reason| reasons.contains(&reason))
        })
    };
    match expect {
        Expect::Done | Expect::Skipped => finding.is_none(),
        Expect::RefusedHere(reason) => is(FindingKind::Refused, &[reason]),
        Expect::Dead(reasons) => is(FindingKind::Failed, reasons),
        Expect::DeadOrDone(reason) => finding.is_none() || is(FindingKind::Failed, &[reason]),
        Expect::SameAs(line) => finding.is_some_and(|found| {
            found.outcome == FindingKind::SameJob
                && found.message == format!("same job as line {line}")
        }),
    }
}

/// The counts follow from the lines, unless something was counted twice or not at all.
fn check_counts(summary: &Summary, wrong: &mut Vec<String>) {
    let count = |wanted: fn(&Expect) -> bool| ODD.iter().filter(|(.., e)| wanted(e)).count() as u64;
    let skipped = count(|e| matches!(e, Expect::Skipped));
    let refused = count(|e| matches!(e, Expect::RefusedHere(_)));
    let same_job = count(|e| matches!(e, Expect::SameAs(_)));
    let dead = count(|e| matches!(e, Expect::Dead(_)));
    let either = count(|e| matches!(e, Expect::DeadOrDone(_)));
    let jobs = LINES - skipped - refused - same_job;
    let outcomes = summary.outcomes.as_ref();
    let get = |of: fn(&crate::summary::Outcomes) -> u64| outcomes.map_or(0, of);
    let failed = get(|o| o.failed);
    for (name, found, least, most) in [
        ("lines", summary.lines, LINES, LINES),
        ("skipped", summary.skipped, skipped, skipped),
        ("refused", summary.refused, refused, refused),
        ("same-job", get(|o| o.same_job), same_job, same_job),
        ("failed", failed, dead, dead + either),
        (
            "done",
            get(|o| o.done),
            jobs - failed.min(jobs),
            jobs - failed.min(jobs),
        ),
    ] {
        if !(least..=most).contains(&found) {
            wrong.push(format!("{name} is {found}; expected {least} to {most}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::Value;

    use super::*;
    use crate::submit::book::Spent;
    use crate::summary::Outcomes;

    const EXPECTED: &str = include_str!("../../../../tests/data/wallpapers-800.expected.json");

    /// A summary in which every line came to what it must.
    fn perfect() -> Summary {
        let finding = |line, outcome, reason, message: &str| Finding {
            line,
            tenant: None,
            job: None,
            outcome,
            reason,
            message: message.to_owned(),
            field: None,
            fix: None,
        };
        let findings = ODD.iter().filter_map(|(line, _, expect)| match *expect {
            Expect::Done | Expect::Skipped => None,
            Expect::RefusedHere(r) => Some(finding(*line, FindingKind::Refused, Some(r), "")),
            Expect::Dead(r) => Some(finding(*line, FindingKind::Failed, Some(r[0]), "")),
            Expect::DeadOrDone(r) => Some(finding(*line, FindingKind::Failed, Some(r), "")),
            Expect::SameAs(n) => {
                let message = format!("same job as line {n}");
                Some(finding(*line, FindingKind::SameJob, None, &message))
            }
        });
        Summary {
            lines: 800,
            skipped: 1,
            refused: 2,
            unsent: 0,
            published: 797,
            outcomes: Some(Outcomes {
                same_job: 1,
                done: 783,
                done_before: 0,
                failed: 13,
                failed_by_reason: BTreeMap::new(),
                cancelled: 0,
                waiting: 0,
                spent: Spent::default(),
                jobs_per_second: 0.0,
            }),
            tenants: BTreeMap::new(),
            findings: findings.collect(),
            findings_omitted: 0,
            elapsed_ms: 1,
        }
    }

    #[test]
    fn the_odd_lines_are_those_of_the_file_of_expectations() {
        let expected: Value = serde_json::from_str(EXPECTED).unwrap();
        let mut named: Vec<&str> = expected["others"]
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        named.sort_unstable();
        let mut ours: Vec<&str> = ODD.iter().map(|(_, name, _)| *name).collect();
        ours.sort_unstable();
        assert_eq!(ours, named);
        assert_eq!(expected["lines"], LINES);
        assert_eq!(expected["done_plain"], LINES - ODD.len() as u64);
    }

    #[test]
    fn a_perfect_outcome_has_nothing_wrong() {
        assert_eq!(check(&perfect()), Vec::<String>::new());
    }

    #[test]
    fn a_single_deviation_is_named() {
        let mut one_plain_failed = perfect();
        one_plain_failed.findings.push(Finding {
            line: 5,
            ..one_plain_failed.findings[1].clone()
        });
        assert!(check(&one_plain_failed)[0].starts_with("line 5 (a plain job) came to Failed"));

        let mut wrong_reason = perfect();
        wrong_reason.findings[2].reason = Some(DeadReason::Exhausted);
        assert!(check(&wrong_reason)[0].starts_with("line 205 (wp-0204)"));

        let mut one_missing = perfect();
        one_missing.outcomes.as_mut().unwrap().done -= 1;
        assert_eq!(check(&one_missing), ["done is 782; expected 783 to 783"]);
    }
}
