//! A dead letter that is sent again: its job runs once more under its own id and key.
//!
//! The record is the guard. It names the letter whose job runs, and letters are numbered as they
//! come, so a repetition of this submission, or an older letter, finds that it came too late. The
//! record is written before the job: a worker that found the failed one would take the job for
//! done.

use fairlane_nats::WriteError;
use fairlane_wire::record::{JobRecord, Phase};

use crate::accept::{Lane, idem_key, message_id};
use crate::intake::{Accept, Next, next_again};
use crate::store::{Outcome, Store, Submitted};
use crate::trouble::Trouble;

impl Store {
    /// Makes a job of the letter at `letter` again, unless it has its outcome or runs already.
    pub(crate) async fn accept_again(
        &self,
        submitted: &Submitted<'_>,
        mut accept: Accept,
        letter: u64,
    ) -> Result<Outcome, Trouble> {
        let key = idem_key(&accept);
        let (held, slot) = tokio::join!(
            self.take_key(&key, &accept),
            self.record(&accept.tenant, &accept.headers.job)
        );
        let (held, slot) = (held?, slot?);
        accept.record.redrive_of = Some(letter);
        match next_again(letter, &held.holder, slot.record.as_ref()) {
            Next::Already => return Ok(Outcome::Duplicate),
            Next::SameAs(owner) => {
                accept.record.phase = Phase::Accepted;
                accept.record.same_as = Some(owner.to_string());
                self.replace(&accept.record, slot.revision).await?;
                return Ok(Outcome::Duplicate);
            }
            Next::Publish | Next::Again(_) => {}
        }
        let revision = self.replace(&accept.record, slot.revision).await?;
        let id = format!("{}:again-{letter}", message_id(&accept));
        match self.publish(submitted, &accept, &id).await? {
            Lane::At(stored) => {
                accept.record.sequence = Some(stored.seq);
                match self.records.save(&accept.record, revision).await {
                    // A worker was faster; its record says more.
                    Ok(_) | Err(WriteError::Conflict { .. }) => Ok(Outcome::Accepted),
                    Err(error) => Err(error.into()),
                }
            }
            Lane::Full => {
                let failed = JobRecord {
                    phase: Phase::Failed,
                    ..accept.record.clone()
                };
                self.replace(&failed, revision).await?;
                self.turn_back(submitted, accept, &key, &held).await
            }
        }
    }

    /// Replaces exactly the record that was read. If it has changed, all is decided anew when the
    /// submission is delivered again.
    pub(crate) async fn replace(
        &self,
        record: &JobRecord,
        expected: fairlane_nats::Revision,
    ) -> Result<fairlane_nats::Revision, Trouble> {
        match self.records.save(record, expected).await {
            Err(WriteError::Conflict { .. }) => Err(Trouble::Contended {
                what: format!("the record of job {}", record.job),
            }),
            saved => Ok(saved?),
        }
    }
}
