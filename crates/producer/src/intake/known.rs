//! How an acceptable submission relates to what is already known under its key and its id.

use fairlane_core::JobId;
use fairlane_nats::records::Slot;
use fairlane_wire::record::{Descent, JobRecord, Link, Phase};

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
    /// Store it as a job that comes after one that failed or was called off, and has its key now.
    Again(Link),
    /// It is the job of this id, which has its key: write a record that says so.
    SameAs(JobId),
    /// Its job is there already.
    Already,
}

/// Decides from the holder of the key, the record under the job's id, the record of another holder, and
/// when the submission was stored.
///
/// A job that has a result, or may yet have one, owns its key. One that failed or was called off
/// owns it against submissions from before its end, which were meant to be the same job, and frees it
/// for later ones, which are meant to be tried again.
#[must_use]
pub fn next(holder: &KeyHolder, own: &Slot, holders: &Slot, stored_ms: u64) -> Next {
    let frees = |slot: &Slot| {
        let record = slot.record.as_ref()?;
        let frees = record.ended_without_result() && slot.stored_ms < stored_ms;
        // One that was called off before it was queued has no sequence; one that failed then never was a
        // job.
        let was_one = record.sequence.is_some() || record.phase == Phase::Cancelled;
        (frees && was_one).then(|| Link {
            how: Descent::Again,
            job: record.job.clone(),
            sequence: record.sequence,
        })
    };
    let has_job = own
        .record
        .as_ref()
        .is_some_and(|record| !has_no_job(record));
    match holder {
        KeyHolder::This => match frees(own) {
            Some(link) => Next::Again(link),
            None if has_job => Next::Already,
            // New, or cut off before its record was written, or turned away before; or the job that
            // had the key has lost it.
            None => Next::Publish,
        },
        KeyHolder::Other(owner) => {
            let points = |record: &JobRecord| record.same_as.as_deref() == Some(owner.as_str());
            match (frees(own), frees(holders)) {
                // Whatever the key says: this id has a job or an outcome.
                (None, _) if has_job => Next::Already,
                (Some(link), Some(_)) | (None, Some(link)) => Next::Again(link),
                (Some(_), None) => Next::Already,
                (None, None) if own.record.as_ref().is_some_and(points) => Next::Already,
                (None, None) => Next::SameAs(owner.clone()),
            }
        }
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

    /// A record that was stored at this time.
    fn slot(record: Option<JobRecord>, stored_ms: u64) -> Slot {
        Slot {
            record,
            stored_ms,
            ..Slot::EMPTY
        }
    }

    fn again(job: &str, sequence: u64) -> Next {
        Next::Again(Link {
            how: Descent::Again,
            job: id(job),
            sequence: Some(sequence),
        })
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
        for (holder, own, want) in cases {
            // Published before any of these ended.
            let next = next(&holder, &slot(own.clone(), 10), &Slot::EMPTY, 5);
            assert_eq!(next, want, "{holder:?} {own:?}");
        }
    }

    #[test]
    fn a_job_that_ended_without_a_result_frees_its_key_for_later_submissions_only() {
        use KeyHolder::{Other, This};
        let other = Other(id("b"));
        let owner = |phase| {
            let mut owner = record(phase, Some(7));
            owner.job = id("b");
            Some(owner)
        };
        for phase in [Phase::Failed, Phase::Cancelled] {
            let own = slot(Some(record(phase, Some(7))), 10);
            assert_eq!(next(&This, &own, &Slot::EMPTY, 10), Next::Already);
            assert_eq!(next(&This, &own, &Slot::EMPTY, 11), again("a", 7));
            let holders = slot(owner(phase), 10);
            let before = next(&other, &Slot::EMPTY, &holders, 10);
            assert_eq!(before, Next::SameAs(id("b")));
            assert_eq!(next(&other, &Slot::EMPTY, &holders, 11), again("b", 7));
        }
        for phase in [Phase::Done, Phase::Queued, Phase::Retrying] {
            let own = slot(Some(record(phase, Some(7))), 10);
            assert_eq!(next(&This, &own, &Slot::EMPTY, 11), Next::Already);
            let holders = slot(owner(phase), 10);
            let after = next(&other, &Slot::EMPTY, &holders, 11);
            assert_eq!(after, Next::SameAs(id("b")));
        }
    }
}
