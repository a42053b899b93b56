use super::*;

fn parcel(line: u64, tenant: &str, job: &str) -> Parcel {
    Parcel {
        line,
        tenant: TenantId::parse(tenant).unwrap(),
        job: JobId::parse(job).unwrap(),
        is_named_by_us: false,
        body: "{}".into(),
    }
}

/// A book that follows these jobs of acme, on lines 1, 2 ...
fn following(jobs: &[&str]) -> Book {
    let mut book = Book::new(true, false);
    for (job, line) in jobs.iter().zip(1..) {
        book.publish(&parcel(line, "acme", job));
    }
    book
}

fn record(job: &str, phase: Phase) -> JobRecord {
    let (tenant, job) = (TenantId::parse("acme").unwrap(), JobId::parse(job).unwrap());
    let mut record = JobRecord::new(tenant, job, phase, 1);
    record.usage = Some(UsageRecord {
        input_tokens: 100,
        output_tokens: 10,
        ..UsageRecord::default()
    });
    record.cost_usd = Some(0.5);
    record
}

fn failed(job: &str, reason: DeadReason) -> JobRecord {
    let mut record = record(job, Phase::Failed);
    record.failure = Some(Failure::new(reason, "it is wrong").fix("mend it"));
    record
}

/// Gives the book a record with a revision.
fn read(book: &mut Book, record: JobRecord, revision: u64, taken: bool) -> Option<String> {
    let key = Namespace::status_key(&record.tenant, &record.job);
    let seen = Seen {
        record,
        revision: Revision(revision),
    };
    book.record(&key, &seen, taken)
}

fn balances(book: &Book) -> bool {
    let total = book.total();
    let accounted = total.same_job + total.done + total.failed + total.cancelled + total.waiting;
    book.lines == book.skipped + book.refused + book.unsent + total.published
        && total.published == accounted
        && total.waiting == book.open
}

fn outcomes(book: &Book) -> Vec<(u64, FindingKind, &str)> {
    let kept = book.findings.kept.values();
    kept.map(|finding| (finding.line, finding.outcome, finding.message.as_str()))
        .collect()
}

#[test]
fn every_line_is_counted_once_and_outcomes_add_up() {
    let mut book = following(&["a", "b", "c"]);
    book.skip();
    book.refuse(Refusal {
        line: 5,
        id: Some("x\ny".to_owned()),
        failure: Failure::new(DeadReason::InvalidTenant, "no tenant"),
    });
    assert!(balances(&book) && !book.is_complete());
    assert_eq!(read(&mut book, record("a", Phase::Done), 1, false), None);
    assert_eq!(
        read(&mut book, failed("b", DeadReason::Schema), 2, false),
        None
    );
    assert_eq!(
        read(&mut book, record("c", Phase::Cancelled), 3, false),
        None
    );
    assert!(balances(&book) && book.is_complete());
    let total = book.total();
    assert_eq!((total.done, total.failed, total.cancelled), (1, 1, 1));
    assert_eq!(book.failed_by_reason, BTreeMap::from([("schema", 1)]));
    assert_eq!(total.spent.cost_usd, 1.5);
    assert_eq!(
        outcomes(&book),
        [
            (2, FindingKind::Failed, "it is wrong"),
            (3, FindingKind::Cancelled, "cancelled by its owner"),
            (5, FindingKind::Refused, "no tenant"),
        ]
    );
    assert_eq!(book.findings.kept[&5].job.as_deref(), Some("x y"));
}

#[test]
fn an_outcome_that_is_heard_twice_counts_once() {
    let mut book = following(&["a"]);
    for revision in [1, 2] {
        read(&mut book, record("a", Phase::Done), revision, false);
    }
    assert_eq!(book.total().done, 1);
    assert!(!book.glimpse("acme.a", Some(Phase::Failed)));
    assert!(balances(&book));
}

#[test]
fn two_lines_with_one_id_are_one_job() {
    let mut book = following(&["a", "b", "a"]);
    assert_eq!(
        outcomes(&book),
        [(3, FindingKind::SameJob, "same job as line 1")]
    );
    read(&mut book, record("a", Phase::Done), 1, false);
    read(&mut book, record("b", Phase::Done), 2, false);
    let total = book.total();
    assert_eq!((total.published, total.same_job, total.done), (3, 1, 2));
    assert!(balances(&book) && book.is_complete());
    // The same id of another tenant is another job.
    book.publish(&parcel(4, "other", "a"));
    assert_eq!(book.total().same_job, 1);
}

#[test]
fn a_job_that_is_the_same_as_one_of_ours_counts_with_it() {
    let mut book = following(&["a", "b"]);
    let mut alias = record("b", Phase::Queued);
    alias.same_as = Some("a".to_owned());
    assert_eq!(read(&mut book, alias, 1, false), None);
    assert_eq!(
        outcomes(&book),
        [(2, FindingKind::SameJob, "same job as line 1")]
    );
    read(&mut book, failed("a", DeadReason::Refusal), 2, false);
    let total = book.total();
    assert_eq!((total.same_job, total.failed), (1, 1));
    assert!(balances(&book) && book.is_complete());
}

#[test]
fn a_job_that_is_the_same_as_a_foreign_one_ends_like_it_and_costs_nothing() {
    let mut book = following(&["b"]);
    let mut alias = record("b", Phase::Queued);
    alias.same_as = Some("owner".to_owned());
    for _ in 0..2 {
        let asked = read(&mut book, alias.clone(), 1, false);
        assert_eq!(asked.as_deref(), Some("acme.owner"));
    }
    read(&mut book, record("owner", Phase::Generating), 2, false);
    assert!(!book.is_complete());
    assert!(book.glimpse("acme.owner", Some(Phase::Done)));
    read(&mut book, record("owner", Phase::Done), 3, false);
    let total = book.total();
    assert_eq!((total.done, total.spent.cost_usd), (1, 0.0));
    assert!(balances(&book) && book.is_complete());
}

#[test]
fn an_end_from_before_counts_only_once_our_submissions_were_taken() {
    let mut book = following(&["a", "b"]);
    book.baseline = 10;
    read(&mut book, record("a", Phase::Done), 9, false);
    read(&mut book, failed("b", DeadReason::Exhausted), 10, false);
    assert_eq!(book.total().waiting, 2);
    assert!(book.next_open(9).is_empty());
    // b is run again, a is not.
    assert!(!book.glimpse("acme.b", Some(Phase::Queued)));
    assert_eq!(
        (book.next_open(9), book.some_old(9)),
        (vec!["acme.b".to_owned()], vec!["acme.a".to_owned()])
    );
    read(&mut book, record("a", Phase::Done), 9, true);
    read(&mut book, record("b", Phase::Done), 12, true);
    let total = book.total();
    assert_eq!(
        (total.done, book.done_before, total.spent.cost_usd),
        (2, 1, 0.5)
    );
    assert!(balances(&book) && book.is_complete());
}

#[test]
fn headers_tell_which_bodies_are_worth_reading() {
    let mut book = following(&["a"]);
    assert!(!book.glimpse("acme.stranger", Some(Phase::Done)));
    assert!(!book.glimpse("acme.a", Some(Phase::Generating)));
    assert_eq!(book.progress().generating, 1);
    assert!(!book.glimpse("acme.a", Some(Phase::Retrying)));
    assert_eq!(book.progress().generating, 0);
    assert!(book.glimpse("acme.a", None));
    assert!(book.glimpse("acme.a", Some(Phase::Failed)));
}

#[test]
fn a_line_nats_did_not_take_is_neither_published_nor_waiting() {
    let mut book = following(&["a", "b", "a"]);
    book.not_stored(&parcel(2, "acme", "b"), "no stream".to_owned());
    book.not_stored(&parcel(3, "acme", "a"), "no stream".to_owned());
    let total = book.total();
    assert_eq!((book.unsent, total.published, total.waiting), (2, 1, 1));
    assert!(balances(&book));
}

#[test]
fn what_has_not_ended_is_listed_with_its_phase() {
    let mut book = following(&["a", "b"]);
    book.glimpse("acme.b", Some(Phase::Retrying));
    book.give_up();
    assert_eq!(
        outcomes(&book),
        [
            (1, FindingKind::Waiting, "not ended: not accepted yet"),
            (2, FindingKind::Waiting, "not ended: retrying"),
        ]
    );
}

#[test]
fn findings_are_bounded_and_the_first_lines_are_kept() {
    let mut book = Book::new(true, true);
    let lines = FINDINGS_MAX as u64 + 5;
    for line in (1..=lines).rev() {
        let failure = Failure::new(DeadReason::InvalidTenant, "no tenant");
        book.refuse(Refusal {
            line,
            id: None,
            failure,
        });
    }
    assert_eq!(book.findings.kept.len(), FINDINGS_MAX);
    assert_eq!(book.findings.omitted, 5);
    assert!(book.findings.kept.contains_key(&1));
    assert_eq!(book.findings.take_fresh().len() as u64, lines);
    assert!(book.findings.take_fresh().is_empty());
}

#[test]
fn a_book_that_does_not_follow_keeps_no_jobs() {
    let mut book = Book::new(false, false);
    for line in 1..=3 {
        book.publish(&parcel(line, "acme", "a"));
    }
    assert!(book.jobs.is_empty());
    assert_eq!(book.total().published, 3);
}

#[test]
fn every_open_job_gets_its_turn_to_be_looked_at() {
    let mut book = following(&["a", "b", "c", "d", "e"]);
    read(&mut book, record("c", Phase::Done), 1, false);
    let mut seen: Vec<String> = (0..3).flat_map(|_| book.next_open(2)).collect();
    seen.sort();
    seen.dedup();
    assert_eq!(seen, ["acme.a", "acme.b", "acme.d", "acme.e"]);
}
