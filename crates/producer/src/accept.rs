//! From an acceptable submission to a job: key, message and record, in this order.

use std::time::Duration;

use async_nats::HeaderMap;
use bytes::Bytes;
use fairlane_core::JobId;
use fairlane_nats::WriteError;
use fairlane_nats::lease::Revision;
use fairlane_nats::publish::Stored;
use fairlane_nats::records::Slot;
use fairlane_runtime::metrics::Destination;
use fairlane_wire::job::key_hash;
use fairlane_wire::record::{JobRecord, KeyOwner, Link, Phase};

use crate::intake::{Accept, KeyHolder, Next, Refuse, has_no_job, next};
use crate::producer::now_ms;
use crate::store::{Outcome, Store, Submitted, TRIES_MAX};
use crate::trouble::Trouble;

/// How long a key that was given back leaves a trace.
const FREED_KEY_TRACE: Duration = Duration::from_secs(60);

/// An idempotency key as its job holds it.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) holder: KeyHolder,
    revision: Revision,
}

/// How storing a job ended.
#[derive(Debug)]
pub(crate) enum Lane {
    At(Stored),
    Full,
}

impl Store {
    /// Makes a job of a submission, or finds that it is one already.
    pub(crate) async fn accept(
        &self,
        submitted: &Submitted<'_>,
        mut accept: Accept,
    ) -> Result<Outcome, Trouble> {
        if let Some(redrive) = &accept.headers.redrive {
            let letter = redrive.letter;
            return Box::pin(self.accept_again(submitted, accept, letter)).await;
        }
        let key = idem_key(&accept);
        let (held, slot) = tokio::join!(
            self.take_key(&key, &accept),
            self.record_nearby(&accept.tenant, &accept.headers.job)
        );
        let (held, slot) = (held?, slot?);
        let holders = match &held.holder {
            KeyHolder::This => Slot::EMPTY,
            KeyHolder::Other(owner) => self.record(&accept.tenant, owner).await?,
        };
        let stored_ms = submitted.arrival.stored_ms;
        let is_new = match next(&held.holder, &slot, &holders, stored_ms) {
            Next::Already => false,
            Next::SameAs(owner) => {
                accept.record.phase = Phase::Accepted;
                accept.record.same_as = Some(owner.to_string());
                self.save_over(&accept.record, slot.revision, has_no_job)
                    .await?;
                false
            }
            Next::Again(link) => {
                self.pass_key(&key, &held, &accept).await?;
                accept.headers.parent = Some(link.clone());
                accept.record.parent = Some(link.clone());
                match self.queue(submitted, &accept, message_id(&accept)).await? {
                    Some(Lane::At(stored)) => {
                        accept.record.sequence = Some(stored.seq);
                        self.succeed(&link, &accept, &slot, &holders).await?;
                        true
                    }
                    Some(Lane::Full) => {
                        return self.turn_back(submitted, accept, &key, &held).await;
                    }
                    None => false,
                }
            }
            Next::Publish => match self.queue(submitted, &accept, message_id(&accept)).await? {
                Some(Lane::At(stored)) => {
                    accept.record.sequence = Some(stored.seq);
                    // If a worker or an earlier delivery was faster, its record says more.
                    self.save_over(&accept.record, slot.revision, has_no_job)
                        .await?;
                    true
                }
                Some(Lane::Full) => return self.turn_back(submitted, accept, &key, &held).await,
                None => false,
            },
        };
        Ok(if is_new {
            self.metrics.message_sent(Destination::Jobs);
            Outcome::Accepted
        } else {
            Outcome::Duplicate
        })
    }

    /// Takes the key for the job, or learns which job has it.
    pub(crate) async fn take_key(&self, key: &str, accept: &Accept) -> Result<Held, Trouble> {
        let job = &accept.headers.job;
        let value = owner_value(job);
        let mut expected = Revision::ABSENT;
        for _ in 0..TRIES_MAX {
            let life = Some(self.key_life);
            match self.keys.put_if(key, value.clone(), expected, life).await {
                Ok(revision) => {
                    return Ok(Held {
                        holder: KeyHolder::This,
                        revision,
                    });
                }
                Err(WriteError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            let Some(entry) = self.keys.get(key).await? else {
                expected = Revision::ABSENT;
                continue;
            };
            let Some(value) = entry.value() else {
                // Given back, or its life ended; the trace of that is in the way.
                expected = entry.revision;
                continue;
            };
            let found: KeyOwner =
                serde_json::from_slice(value).map_err(|error| Trouble::Owner {
                    key: key.to_owned(),
                    text: error.to_string(),
                })?;
            let holder = if found.job == *job {
                KeyHolder::This
            } else {
                KeyHolder::Other(found.job)
            };
            return Ok(Held {
                holder,
                revision: entry.revision,
            });
        }
        Err(Trouble::Contended {
            what: format!("idempotency key {key}"),
        })
    }

    /// Passes the key of a job that ended without a result to the next one.
    pub(crate) async fn pass_key(
        &self,
        key: &str,
        held: &Held,
        accept: &Accept,
    ) -> Result<(), Trouble> {
        if held.holder == KeyHolder::This {
            return Ok(());
        }
        let life = Some(self.key_life);
        let (value, expected) = (owner_value(&accept.headers.job), held.revision);
        // A conflict means that another one was faster: the next delivery will see it.
        self.keys.put_if(key, value, expected, life).await?;
        Ok(())
    }

    /// Writes the record of a job that comes after another one: in its place, or beside it, and then the
    /// other one says what came after it.
    async fn succeed(
        &self,
        link: &Link,
        accept: &Accept,
        slot: &Slot,
        earlier: &Slot,
    ) -> Result<(), Trouble> {
        let may_go = |found: &JobRecord| has_no_job(found) || found.sequence == link.sequence;
        self.save_over(&accept.record, slot.revision, may_go)
            .await?;
        self.note_successor(link, accept, earlier).await;
        Ok(())
    }

    /// Notes in the record of an earlier job, if it is another one, which job comes after it. Worth no
    /// trouble: the later one says it as well.
    pub(crate) async fn note_successor(&self, link: &Link, accept: &Accept, earlier: &Slot) {
        let Some(record) = earlier.record.clone().filter(|found| found.job == link.job) else {
            return;
        };
        let mut record = record;
        record.children.push(Link {
            how: link.how,
            job: accept.headers.job.clone(),
            sequence: accept.record.sequence,
        });
        if let Err(error) = self.records.save(&record, earlier.revision).await {
            tracing::debug!(job = %record.job, %error, "cannot note what came after a job");
        }
    }

    /// Stores the job. None if it turns out to have been stored and to have ended.
    pub(crate) async fn queue(
        &self,
        submitted: &Submitted<'_>,
        accept: &Accept,
        id: String,
    ) -> Result<Option<Lane>, Trouble> {
        let stored = match self.publish(submitted, accept, &id).await? {
            Lane::At(stored) if stored.duplicate => stored,
            lane => return Ok(Some(lane)),
        };
        let stream = self.nats.names.jobs_stream();
        if self.jobs.get(&stream, stored.seq).await?.is_some() {
            return Ok(Some(Lane::At(stored)));
        }
        // Stored before and gone: a job leaves only after its outcome was recorded.
        let slot = self.record(&accept.tenant, &accept.headers.job).await?;
        let before = accept
            .headers
            .parent
            .as_ref()
            .and_then(|link| link.sequence);
        let is_its_own = |record: &JobRecord| !has_no_job(record) && record.sequence != before;
        if slot.record.as_ref().is_some_and(is_its_own) {
            return Ok(None);
        }
        // Even its record is gone, so this is a job anew, under an id the stream does not know.
        let id = format!("{id}:{}", submitted.arrival.assigned_id());
        Ok(Some(self.publish(submitted, accept, &id).await?))
    }

    pub(crate) async fn publish(
        &self,
        submitted: &Submitted<'_>,
        accept: &Accept,
        id: &str,
    ) -> Result<Lane, Trouble> {
        let subject = self.nats.names.job_subject(accept.priority, &accept.tenant);
        let mut headers = HeaderMap::new();
        for (name, value) in accept.headers.to_pairs() {
            headers.insert(name, value);
        }
        let body = accept.body.as_ref().unwrap_or(submitted.body);
        if let Some(original) = &accept.headers.original
            && !submitted.body.is_empty()
        {
            // Otherwise what was published is in an object already.
            self.payloads
                .put(original, submitted.body, usize::MAX)
                .await?;
        }
        let publish = |headers, body| self.jobs.publish(&subject, Some(id), headers, body);
        let mut stored = publish(headers.clone(), body.clone()).await;
        if let Err(WriteError::TooLarge { .. }) = stored {
            // It was published with fewer headers than a job has, or in an object.
            self.set_aside(&accept.tenant, submitted.arrival, body, &mut headers)
                .await?;
            stored = publish(headers, Bytes::new()).await;
        }
        match stored {
            Ok(stored) => Ok(Lane::At(stored)),
            Err(WriteError::SubjectFull { .. }) => Ok(Lane::Full),
            Err(error) => Err(error.into()),
        }
    }

    /// Refuses a job for want of room, and gives its key back: the same job may come again.
    pub(crate) async fn turn_back(
        &self,
        submitted: &Submitted<'_>,
        accept: Accept,
        key: &str,
        held: &Held,
    ) -> Result<Outcome, Trouble> {
        let jobs_max = self.backlog_max().await;
        let refuse: Refuse = accept.backlog_full(submitted.arrival, jobs_max, now_ms());
        self.bury(submitted, refuse).await?;
        let released = self
            .keys
            .tombstone_if(key, held.revision, Bytes::new(), FREED_KEY_TRACE)
            .await;
        match released {
            // A conflict means that the key's life ended and somebody else has it now.
            Ok(_) | Err(WriteError::Conflict { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Outcome::Refused)
    }
}

pub(crate) fn idem_key(accept: &Accept) -> String {
    format!("{}.{}", accept.tenant, key_hash(&accept.headers.key))
}

/// The same for every submission that is the same job; another one for each job after it.
pub(crate) fn message_id(accept: &Accept) -> String {
    let id = format!("{}:{}", accept.tenant, key_hash(&accept.headers.key));
    match accept
        .headers
        .parent
        .as_ref()
        .and_then(|link| link.sequence)
    {
        Some(before) => format!("{id}:after-{before}"),
        None => id,
    }
}

fn owner_value(job: &JobId) -> Bytes {
    let owner = KeyOwner { job: job.clone() };
    let value = serde_json::to_vec(&owner).expect("one field that is text");
    value.into()
}
