//! From a submission that cannot be a job to a dead letter and a record that says why.

use async_nats::HeaderMap;
use bytes::Bytes;
use fairlane_core::TenantId;
use fairlane_nats::WriteError;
use fairlane_nats::letters::own_headers;
use fairlane_nats::publish::Stored;
use fairlane_runtime::metrics::Outcome as Ended;
use fairlane_wire::letter::{DeadReason, Letter, unknown_tenant};
use fairlane_wire::names::header;

use crate::intake::{Refuse, is_refused_at_the_door};
use crate::store::{Store, Submitted};
use crate::trouble::Trouble;

/// Bytes of the publisher's own headers that a dead letter keeps. The server takes 64 KiB in all,
/// and a submission that is nearly all headers must be buried too.
const HEADER_BYTES_MAX: usize = 16 * 1024;

impl Store {
    /// Writes letter and record, in this order.
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
        }
        Ok(())
    }

    async fn write_letter(
        &self,
        submitted: &Submitted<'_>,
        refuse: &Refuse,
    ) -> Result<(), Trouble> {
        let id = Letter::submission_message_id(&refuse.assigned);
        let mut headers = headers(submitted);
        let body = submitted.body.clone();
        let mut stored = self.store_letter(&id, refuse, &headers, body).await;
        if let Err(WriteError::TooLarge { .. }) = stored {
            let tenant = tenant_of(refuse);
            self.set_aside(&tenant, submitted, &mut headers).await?;
            stored = self.store_letter(&id, refuse, &headers, Bytes::new()).await;
        }
        // A repetition of a letter that is there does not count again.
        if !stored?.duplicate {
            let is_late = refuse.letter.failure.reason == DeadReason::Expired;
            self.metrics
                .job_ended(if is_late { Ended::Expired } else { Ended::Dead });
        }
        Ok(())
    }

    async fn store_letter(
        &self,
        id: &str,
        refuse: &Refuse,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Result<Stored, WriteError> {
        self.nats.bury_as(id, &refuse.letter, headers, body).await
    }
}

fn tenant_of(refuse: &Refuse) -> TenantId {
    let tenant = refuse.record.as_ref().map(|record| record.tenant.clone());
    tenant.unwrap_or_else(unknown_tenant)
}

/// The publisher's own headers, within bounds, and the trace.
fn headers(submitted: &Submitted<'_>) -> HeaderMap {
    let own = own_headers(submitted.headers);
    let mut names: Vec<_> = own.iter().collect();
    // Ours first: one of them may say where the body is.
    names.sort_by_key(|(name, _)| (!name.to_string().starts_with("Fl-"), name.to_string()));
    let mut headers = HeaderMap::new();
    let mut room = HEADER_BYTES_MAX;
    for (name, values) in names {
        for value in values {
            let bytes = name.to_string().len() + value.as_str().len();
            if let Some(left) = room.checked_sub(bytes) {
                room = left;
                headers.append(name.clone(), value.clone());
            }
        }
    }
    headers.insert(header::TRACEPARENT, submitted.trace.traceparent());
    if let Some(state) = submitted.trace.tracestate() {
        headers.insert(header::TRACESTATE, state);
    }
    headers
}
