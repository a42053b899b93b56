//! How an acceptable submission relates to what is already known under its key and its id.

use fairlane_core::JobId;
use fairlane_wire::record::{JobRecord, Phase};

/// Who holds the idempotency key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyHolder {
    /// This job, since now or since an earlier delivery.
    This,
    /// Another job of the tenant.
    Other(JobId),
}

/// What to do with an acceptable submission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Store it as a job.
    Publish,
    /// It is the job of this id, which has its key: write a record that says so.
    SameAs(JobId),
    /// Its job is there already.
    Already,
}

/// Decides from the holder of the key and the record under the job's id.
#[must_use]
pub fn next(holder: &KeyHolder, record: Option<&JobRecord>) -> Next {
    match (record, holder) {
        // Whatever the key says: this id has a job or an outcome.
        (Some(record), _) if !has_no_job(record) => Next::Already,
        (Some(record), KeyHolder::Other(owner))
            if record.same_as.as_deref() == Some(owner.as_str()) =>
        {
            Next::Already
        }
        (Some(_) | None, KeyHolder::Other(owner)) => Next::SameAs(owner.clone()),
        // New, or cut off before its record was written, or turned away before; or the job that
        // had the key has lost it.
        (Some(_) | None, KeyHolder::This) => Next::Publish,
    }
}

/// Decides the same for a job that comes from the dead letter at `letter`. Letters are numbered as
/// they are written, and the record says which one its job comes from.
#[must_use]
pub fn next_again(letter: u64, holder: &KeyHolder, record: Option<&JobRecord>) -> Next {
    let may_run = record.is_none_or(|record| {
        let has_failed = record.phase == Phase::Failed && record.redrive_of < Some(letter);
        let was_cut_off = record.redrive_of == Some(letter)
            && record.sequence.is_none()
            && !record.phase.is_final();
        let is_pointer = record.same_as.is_some() && !record.phase.is_final();
        has_failed || was_cut_off || is_pointer
    });
    match holder {
        _ if !may_run => Next::Already,
        KeyHolder::Other(owner) => Next::SameAs(owner.clone()),
        KeyHolder::This => Next::Publish,
    }
}

/// Whether no job was ever queued under the id of this record: an accepted submission may replace
/// it. The record of a job is never replaced.
#[must_use]
pub fn has_no_job(record: &JobRecord) -> bool {
    let is_pointer = record.phase == Phase::Accepted && record.same_as.is_some();
    is_pointer || is_refused_at_the_door(record)
}

/// Whether a record only says that a submission was turned away: the next refusal may replace it.
#[must_use]
pub fn is_refused_at_the_door(record: &JobRecord) -> bool {
    record.phase == Phase::Failed
        && record.sequence.is_none()
        && record.attempts == 0
        && record.deliveries == 0
}

#[cfg(test)]
mod tests {
    use fairlane_core::TenantId;

    use super::*;

    fn id(text: &str) -> JobId {
        JobId::parse(text).unwrap()
    }

    fn record(phase: Phase, sequence: Option<u64>) -> JobRecord {
        let mut record = JobRecord::new(TenantId::parse("acme").unwrap(), id("a"), phase, 1);
        record.sequence = sequence;
        record
    }

    #[test]
    fn a_letter_runs_again_once_and_only_while_its_job_has_failed() {
        use KeyHolder::{Other, This};
        use Next::{Already, Publish, SameAs};
        let of = |phase, sequence, letter| {
            let mut record = record(phase, sequence);
            record.redrive_of = letter;
            Some(record)
        };
        let cases = [
            (None, Publish),
            (of(Phase::Failed, Some(7), None), Publish),
            (of(Phase::Failed, None, None), Publish),
            (of(Phase::Failed, Some(7), Some(19)), Publish),
            (of(Phase::Failed, Some(7), Some(20)), Already),
            (of(Phase::Failed, Some(7), Some(21)), Already),
            (of(Phase::Queued, None, Some(20)), Publish),
            (of(Phase::Queued, Some(8), Some(20)), Already),
            (of(Phase::Queued, None, Some(19)), Already),
            (of(Phase::Generating, Some(7), None), Already),
            (of(Phase::Done, Some(7), None), Already),
            (of(Phase::Done, None, Some(20)), Already),
            (of(Phase::Cancelled, Some(7), None), Already),
        ];
        for (record, want) in cases {
            assert_eq!(next_again(20, &This, record.as_ref()), want, "{record:?}");
        }
        let failed = of(Phase::Failed, Some(7), None);
        let other = Other(id("b"));
        assert_eq!(next_again(20, &other, failed.as_ref()), SameAs(id("b")));
    }

    #[test]
    fn the_record_comes_first_then_the_key() {
        use KeyHolder::{Other, This};
        use Next::{Already, Publish, SameAs};
        let other = || Other(id("b"));
        let pointer = |owner: &str| {
            let mut record = record(Phase::Accepted, None);
            record.same_as = Some(owner.to_owned());
            record
        };
        let cases = [
            (This, None, Publish),
            (other(), None, SameAs(id("b"))),
            (This, Some(record(Phase::Failed, None)), Publish),
            (other(), Some(record(Phase::Failed, None)), SameAs(id("b"))),
            (This, Some(record(Phase::Failed, Some(7))), Already),
            (This, Some(record(Phase::Queued, Some(7))), Already),
            (This, Some(record(Phase::Queued, None)), Already),
            (This, Some(record(Phase::Generating, Some(7))), Already),
            (This, Some(record(Phase::Done, Some(7))), Already),
            (This, Some(record(Phase::Cancelled, None)), Already),
            (other(), Some(record(Phase::Done, Some(7))), Already),
            (other(), Some(pointer("b")), Already),
            (other(), Some(pointer("c")), SameAs(id("b"))),
            (This, Some(pointer("b")), Publish),
        ];
        for (holder, record, want) in cases {
            assert_eq!(
                next(&holder, record.as_ref()),
                want,
                "{holder:?} {record:?}"
            );
        }
    }
}
