//! From a submission that cannot be a job to a dead letter and a record that says why.

use fairlane_nats::Original;
use fairlane_runtime::metrics::Outcome;
use fairlane_wire::Ended;
use fairlane_wire::letter::{DeadReason, Letter};

use crate::intake::{Refuse, is_refused_at_the_door};
use crate::store::{Store, Submitted};
use crate::trouble::Trouble;

impl Store {
    /// Writes letter and record, in this order, and leaves word.
    pub(crate) async fn bury(
        &self,
        submitted: &Submitted<'_>,
        refuse: Refuse,
    ) -> Result<(), Trouble> {
        let Some(record) = &refuse.record else {
            return self.write_letter(submitted, &refuse).await;
        };
        let slot = self.record(&record.tenant, &record.job).await?;
        let is_free = slot.record.as_ref().is_none_or(is_refused_at_the_door);
        if !is_free {
            return self.bury_apart(submitted, refuse).await;
        }
        self.write_letter(submitted, &refuse).await?;
        if self
            .save_over(record, slot.revision, is_refused_at_the_door)
            .await?
        {
            self.call_back(&refuse).await;
            return Ok(());
        }
        // A job of this id came in between.
        self.bury_apart(submitted, refuse).await
    }

    /// As [`Store::bury`] under the assigned id: the intended one names a job whose record must
    /// not suffer.
    async fn bury_apart(&self, submitted: &Submitted<'_>, refuse: Refuse) -> Result<(), Trouble> {
        let refuse = refuse.under_assigned_id();
        self.write_letter(submitted, &refuse).await?;
        if let Some(record) = &refuse.record {
            let slot = self.record(&record.tenant, &record.job).await?;
            self.save_over(record, slot.revision, is_refused_at_the_door)
                .await?;
            self.call_back(&refuse).await;
        }
        Ok(())
    }

    pub(crate) async fn call_back(&self, refuse: &Refuse) {
        let ended = refuse.record.as_ref();
        let ended = ended.and_then(|record| Ended::of(record, None));
        let (to, run) = (refuse.callback.as_ref(), refuse.assigned.as_str());
        self.nats.call_back(to, ended, run).await;
    }

    pub(crate) async fn write_letter(
        &self,
        submitted: &Submitted<'_>,
        refuse: &Refuse,
    ) -> Result<(), Trouble> {
        let id = Letter::submission_message_id(&refuse.assigned);
        let original = Original {
            headers: submitted.headers,
            raw_headers: submitted.raw_headers.clone(),
            body: submitted.body.clone(),
        };
        let letter = refuse.letter.clone();
        let letter = letter.traced(Some(&submitted.trace.traceparent()));
        let stored = self.nats.bury_as(&id, &letter, original).await?;
        // A repetition of a letter that is there does not count again.
        if !stored.duplicate {
            let is_late = refuse.letter.failure.reason == DeadReason::Expired;
            self.metrics.job_ended(if is_late {
                Outcome::Expired
            } else {
                Outcome::Dead
            });
        }
        Ok(())
    }
}
