//! A job whose text is summarised first: its parts are submitted as jobs of the same tenant, and when all of
//! them are done it is stored with their summaries in the place of the text.
//!
//! Nothing is held in a process. What there is of such a job: its record (`accepted`, with its progress and
//! its parts as children), what was published as an object, and a plan under a key of its own. A producer
//! that hears of the end of a part, or finds the plan when it looks for plans that got stuck, does the next
//! step; every step can be repeated by any of them:
//!
//! | step | repeated, it |
//! |---|---|
//! | write the record | finds that it is of this submission |
//! | write the plan | finds it, and goes on from it |
//! | submit the parts | makes duplicates: the id of a part follows from its piece |
//! | note their summaries | replaces the plan it read, or reads it again |
//! | store the job | is a duplicate, by message id |
//! | write its record | leaves the one that is there |
//! | delete the plan | comes last |
//!
//! The record decides what becomes of the job, as ever: one that was called off, or failed, ends its parts.

use std::time::Duration;

use async_nats::HeaderMap;
use bytes::Bytes;
use fairlane_core::{JobId, JobSeq, TenantId};
use fairlane_nats::lease::Revision;
use fairlane_nats::records::Slot;
use fairlane_nats::{WriteError, owner};
use fairlane_runtime::TraceContext;
use fairlane_wire::letter::{DeadReason, Failure};
use fairlane_wire::names::header;
use fairlane_wire::record::{Descent, JobRecord, Link, Parts, Phase};
use fairlane_wire::{Callback, PartsPlan, submission};
use futures::future::join_all;
use serde_json::Value;

use crate::accept::{Held, Lane, idem_key, message_id};
use crate::intake::{
    Accept, Arrival, Body, Decision, Intake, KeyHolder, Next, Refuse, Split, next, next_again,
};
use crate::producer::{Producer, now_ms};
use crate::store::{Outcome, Submitted};
use crate::trouble::Trouble;

/// Plans looked at by one sweep.
const PLANS_MAX: usize = 1_000;
/// A part that has no record so long after it was submitted is submitted again: a producer may have died
/// between writing the plan and submitting the parts.
const SEND_AGAIN_MS: u64 = 2 * 60 * 1_000;
/// How long a plan that was deleted leaves a trace.
const TRACE_LIFE: Duration = Duration::from_secs(60);

/// A plan as it was read.
pub(crate) struct Found {
    pub(crate) plan: PartsPlan,
    revision: Revision,
}

/// What there is of a part.
enum State {
    Summary(String),
    /// It ended without one, with this to say.
    Dead(String),
    /// It is under way; whether there is a record that says so.
    Open(bool),
}

impl Producer {
    /// Begins with a job that is too long, or goes on where a producer was cut off.
    pub(crate) async fn begin(
        &self,
        submitted: &Submitted<'_>,
        split: Split,
    ) -> Result<Outcome, Trouble> {
        let store = self.store();
        let Submitted { arrival, body, .. } = submitted;
        let Split {
            mut accept,
            parts,
            summary_tokens,
        } = split;
        let (tenant, job) = (accept.tenant.clone(), accept.headers.job.clone());
        let original = arrival.original_name(&tenant);
        let key = idem_key(&accept);
        let (held, slot) = tokio::join!(store.take_key(&key, &accept), store.record(&tenant, &job));
        let (held, slot) = (held?, slot?);
        match slot
            .record
            .as_ref()
            .filter(|found| is_of(found, arrival.seq))
        {
            Some(found) if found.is_in_parts() => {}
            Some(_) => return Ok(Outcome::Duplicate),
            None => {
                accept.record.original_claim = Some(original.clone());
                if !self.enter(submitted, &mut accept, &held, &slot).await? {
                    return Ok(Outcome::Duplicate);
                }
            }
        }
        if arrival.claim_name().is_none() {
            store.payloads.put(&original, body, usize::MAX).await?;
        }
        let plan = PartsPlan {
            subject: arrival.subject.clone(),
            submission: arrival.seq,
            stored_ms: arrival.stored_ms,
            headers: pairs(submitted.headers),
            traceparent: submitted.trace.traceparent().to_owned(),
            source: original.clone(),
            original,
            round: arrival.rounds + 1,
            summary_tokens,
            parts,
            sent_ms: now_ms(),
            tenant,
            job,
        };
        let plan = self.write_first(plan).await?;
        self.send_parts(&plan).await?;
        // They may all have their summaries from an earlier run. If this does not work now, whoever looks
        // for plans does it.
        if let Err(error) = Box::pin(self.gather(&plan.tenant, &plan.job)).await {
            tracing::debug!(%error, "the parts of a job are looked at later");
        }
        Ok(Outcome::Accepted)
    }

    /// Writes the record of a job that is in parts. False if it is one already, in whatever form.
    async fn enter(
        &self,
        submitted: &Submitted<'_>,
        accept: &mut Accept,
        held: &Held,
        slot: &Slot,
    ) -> Result<bool, Trouble> {
        let store = self.store();
        let holders = match &held.holder {
            KeyHolder::This => Slot::EMPTY,
            KeyHolder::Other(owner) => store.record(&accept.tenant, owner).await?,
        };
        let letter = accept.headers.redrive.as_ref().map(|it| it.letter);
        accept.record.redrive_of = letter;
        let next = match letter {
            Some(letter) => next_again(letter, &held.holder, slot.record.as_ref()),
            None => next(&held.holder, slot, &holders, submitted.arrival.stored_ms),
        };
        match next {
            Next::Already => return Ok(false),
            Next::SameAs(owner) => {
                accept.record.same_as = Some(owner.to_string());
                accept.record.parts = None;
                accept.record.children.clear();
                store.replace(&accept.record, slot.revision).await?;
                return Ok(false);
            }
            Next::Again(link) => {
                store.pass_key(&idem_key(accept), held, accept).await?;
                accept.record.parent = Some(link.clone());
                store.replace(&accept.record, slot.revision).await?;
                store.note_successor(&link, accept, &holders).await;
            }
            Next::Publish => {
                store.replace(&accept.record, slot.revision).await?;
            }
        }
        Ok(true)
    }

    /// Writes a plan, unless there is one of the same submission, which is then the one that counts.
    async fn write_first(&self, plan: PartsPlan) -> Result<PartsPlan, Trouble> {
        let keys = &self.store().keys;
        let key = PartsPlan::key(&plan.tenant, &plan.job);
        match keys.create(&key, encoded(&plan), None).await {
            Ok(_) => return Ok(plan),
            Err(WriteError::Conflict { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        match self.plan(&plan.tenant, &plan.job).await? {
            Some(found) if found.plan.submission == plan.submission => Ok(found.plan),
            Some(found) => {
                keys.put_if(&key, encoded(&plan), found.revision, None)
                    .await?;
                Ok(plan)
            }
            None => Err(contended(&plan.job)),
        }
    }

    pub(crate) async fn plan(
        &self,
        tenant: &TenantId,
        job: &JobId,
    ) -> Result<Option<Found>, Trouble> {
        let key = PartsPlan::key(tenant, job);
        let Some(entry) = self.store().keys.get(&key).await? else {
            return Ok(None);
        };
        let Some(value) = entry.value() else {
            return Ok(None);
        };
        let plan = serde_json::from_slice(value).map_err(|error| Trouble::Owner {
            key,
            text: error.to_string(),
        })?;
        Ok(Some(Found {
            plan,
            revision: entry.revision,
        }))
    }

    /// Submits the parts that have no summary. Those that were submitted before become duplicates.
    async fn send_parts(&self, plan: &PartsPlan) -> Result<(), Trouble> {
        let store = self.store();
        let source = store.payloads.get(&plan.source, usize::MAX).await?;
        let (intake, of) = (self.intake().clone(), plan.clone());
        let bodies = tokio::task::spawn_blocking(move || intake.part_bodies(&of, &source));
        let bodies = bodies.await.map_err(|_| Trouble::CutOff)?;
        let bodies = bodies.ok_or_else(|| Trouble::Owner {
            key: PartsPlan::key(&plan.tenant, &plan.job),
            text: "its pieces are not those of its body".to_owned(),
        })?;
        let link = Link {
            how: Descent::Part,
            job: plan.job.clone(),
            sequence: None,
        };
        let subject = store.nats.names.submit_subject(&plan.tenant);
        for (part, body) in plan.parts.iter().zip(bodies) {
            if part.summary.is_some() {
                continue;
            }
            let mut headers = HeaderMap::new();
            headers.insert(header::PARENT, link.to_header());
            headers.insert(header::TRACEPARENT, plan.traceparent.as_str());
            let id = format!("{}:{}:{}", plan.tenant, part.job, plan.sent_ms);
            let publish = |headers, body| store.jobs.publish(&subject, Some(&id), headers, body);
            match publish(headers.clone(), body.clone()).await {
                Err(WriteError::TooLarge { .. }) => {
                    let name = format!("{}.body-{}", plan.tenant, part.job);
                    store.payloads.put(&name, &body, usize::MAX).await?;
                    headers.insert(header::CLAIM, name);
                    publish(headers, Bytes::new()).await?;
                }
                stored => {
                    stored?;
                }
            }
        }
        Ok(())
    }

    /// Looks at every plan there is: a net for steps that nobody took.
    pub(crate) async fn sweep_plans(&self) -> Result<(), Trouble> {
        for (tenant, job) in self.plans().await? {
            Box::pin(self.gather(&tenant, &job)).await?;
        }
        Ok(())
    }

    /// Jobs that have a plan.
    pub(crate) async fn plans(&self) -> Result<Vec<(TenantId, JobId)>, Trouble> {
        let store = self.store();
        let bucket = store.nats.names.idem_bucket();
        let filter = format!("$KV.{bucket}.{}", PartsPlan::keys());
        let prefix = format!("$KV.{bucket}.");
        let stream = format!("KV_{bucket}");
        let found = store.jobs.counts(&stream, &filter).await?;
        let keys = found.keys().filter_map(|key| key.strip_prefix(&prefix));
        let plans = keys.filter_map(PartsPlan::parse_key).take(PLANS_MAX);
        Ok(plans.collect())
    }

    /// Takes the next step with a job that is in parts, if there is one to take.
    pub(crate) async fn gather(&self, tenant: &TenantId, job: &JobId) -> Result<(), Trouble> {
        // Within this process one at a time; between processes revisions decide.
        let _alone = self.gathering().lock().await;
        while let Some(found) = self.plan(tenant, job).await? {
            let slot = self.store().record(tenant, job).await?;
            let record = slot.record.filter(|it| is_of(it, found.plan.submission));
            match record {
                Some(record) if record.is_in_parts() => {
                    if !Box::pin(self.step(found, record, slot.revision)).await? {
                        return Ok(());
                    }
                }
                Some(record) if record.phase == Phase::Failed && record.sequence.is_none() => {
                    // By us, and perhaps without its letter.
                    return self.bury_whole(found, record).await;
                }
                Some(record) if record.phase == Phase::Cancelled => {
                    self.call_off_parts(&record).await?;
                    return self.forget(&found).await;
                }
                // It is queued, or another one has its id.
                Some(_) | None => return self.forget(&found).await,
            }
        }
        Ok(())
    }

    /// One step of a job that is in parts. True if there may be another one at once.
    async fn step(
        &self,
        mut found: Found,
        mut record: JobRecord,
        mut revision: Revision,
    ) -> Result<bool, Trouble> {
        let store = self.store();
        let key = PartsPlan::key(&found.plan.tenant, &found.plan.job);
        let before = found.plan.done();
        let mut is_one_missing = false;
        for index in 0..found.plan.parts.len() {
            if found.plan.parts[index].summary.is_some() {
                continue;
            }
            match self.state(&found.plan, index).await? {
                State::Summary(text) => found.plan.parts[index].summary = Some(text),
                State::Open(is_known) => is_one_missing |= !is_known,
                State::Dead(said) => {
                    let failure = part_failure(&found.plan, index, &said);
                    return self.fail(found, record, revision, failure).await;
                }
            }
        }
        let done = found.plan.done();
        let is_late = now_ms().saturating_sub(found.plan.sent_ms) >= SEND_AGAIN_MS;
        if is_one_missing && is_late {
            found.plan.sent_ms = now_ms();
            self.send_parts(&found.plan).await?;
        }
        if done > before || (is_one_missing && is_late) {
            let expected = found.revision;
            found.revision = store
                .keys
                .put_if(&key, encoded(&found.plan), expected, None)
                .await?;
        }
        if let Some(parts) = &mut record.parts
            && parts.done != done
        {
            parts.done = done;
            revision = store.replace(&record, revision).await?;
        }
        if (done as usize) < found.plan.parts.len() {
            return Ok(false);
        }
        Box::pin(self.join(found, record, revision)).await
    }

    async fn state(&self, plan: &PartsPlan, index: usize) -> Result<State, Trouble> {
        let store = self.store();
        let part = &plan.parts[index];
        let slot = store.record(&plan.tenant, &part.job).await?;
        let Some(record) = slot.record else {
            return Ok(State::Open(false));
        };
        match record.phase {
            Phase::Done => {
                let message = match (record.result, &record.result_claim) {
                    (Some(message), _) => message,
                    (None, Some(claim)) => {
                        let body = store.payloads.get(claim, usize::MAX).await?;
                        serde_json::from_slice(&body).unwrap_or_default()
                    }
                    (None, None) => Value::Null,
                };
                Ok(match text_of(&message) {
                    Some(text) => State::Summary(text),
                    None => State::Dead("its answer has no text".to_owned()),
                })
            }
            // Of an earlier run, about to be replaced.
            Phase::Failed | Phase::Cancelled if slot.stored_ms < plan.stored_ms => {
                Ok(State::Open(false))
            }
            Phase::Failed => Ok(State::Dead(match &record.failure {
                Some(failure) => format!("{}: {}", failure.reason.as_str(), failure.message),
                None => "it failed".to_owned(),
            })),
            Phase::Cancelled => Ok(State::Dead("it was called off".to_owned())),
            Phase::Accepted
            | Phase::Queued
            | Phase::Generating
            | Phase::Refining
            | Phase::Retrying
            | Phase::Deferred
            | Phase::NeedsDecision => Ok(State::Open(true)),
        }
    }

    /// All summaries are there: the job is stored with them, or its summaries are split once more.
    async fn join(
        &self,
        found: Found,
        record: JobRecord,
        revision: Revision,
    ) -> Result<bool, Trouble> {
        let store = self.store();
        let plan = &found.plan;
        let source = store.payloads.get(&plan.source, usize::MAX).await?;
        let job = submission::parse(&source, &plan.tenant).ok();
        let request = job.and_then(|job| plan.joined(&job.request));
        let body = request.and_then(|request| submission::with_request(&source, &request).ok());
        let body = Bytes::from(body.ok_or_else(|| Trouble::Owner {
            key: PartsPlan::key(&plan.tenant, &plan.job),
            text: "its pieces are not those of its body".to_owned(),
        })?);
        let headers = headers_of(plan);
        let arrival = self.arrival_of(plan, &headers);
        let trace = self.trace_of(plan);
        let intake = self.intake();
        match intake.decide(&arrival, Body::Here(&body), &trace, now_ms()) {
            Decision::Accept(mut accept) => {
                accept.headers.claim = None;
                accept.headers.original = Some(plan.original.clone());
                accept.headers.parent.clone_from(&record.parent);
                accept.body = Some(body);
                self.store_joined(found, *accept, record, revision).await?;
                Ok(false)
            }
            Decision::Split(split) => {
                self.again(found, *split, body, record, revision).await?;
                Ok(true)
            }
            Decision::Refuse(refuse) => {
                let failure = refuse.letter.failure;
                self.fail(found, record, revision, failure).await
            }
        }
    }

    async fn store_joined(
        &self,
        found: Found,
        mut accept: Accept,
        record: JobRecord,
        revision: Revision,
    ) -> Result<(), Trouble> {
        let store = self.store();
        let headers = headers_of(&found.plan);
        let arrival = self.arrival_of(&found.plan, &headers);
        let submitted = Submitted {
            arrival: &arrival,
            headers: &headers,
            raw_headers: None,
            body: &Bytes::new(),
            trace: self.trace_of(&found.plan),
        };
        let id = match record.redrive_of {
            Some(letter) => format!("{}:again-{letter}", message_id(&accept)),
            None => message_id(&accept),
        };
        match store.queue(&submitted, &accept, id).await? {
            Some(Lane::At(stored)) => {
                accept.record = JobRecord {
                    sequence: Some(stored.seq),
                    parts: record.parts,
                    children: record.children,
                    parent: record.parent,
                    redrive_of: record.redrive_of,
                    original_claim: record.original_claim,
                    ..accept.record
                };
                match store.records.save(&accept.record, revision).await {
                    Ok(_) => {}
                    Err(WriteError::Conflict { .. }) => {
                        self.after_conflict(&accept, stored.seq).await?;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            Some(Lane::Full) => {
                return Err(Trouble::Contended {
                    what: format!("the lane of tenant {} is full; it", accept.tenant),
                });
            }
            None => {}
        }
        self.forget(&found).await?;
        self.delete_round(&found.plan).await
    }

    /// Somebody else wrote the record of a job that was just stored: a worker, whose record says more, or
    /// its owner, who called it off before it had a sequence.
    async fn after_conflict(&self, accept: &Accept, seq: u64) -> Result<(), Trouble> {
        let store = self.store();
        let slot = store.record(&accept.tenant, &accept.headers.job).await?;
        let Some(mut record) = slot.record else {
            return Ok(());
        };
        if record.phase == Phase::Cancelled && record.sequence.is_none() {
            record.sequence = Some(seq);
            store.replace(&record, slot.revision).await?;
            owner::tell_called_off(&store.nats, JobSeq(seq)).await;
        }
        Ok(())
    }

    /// The summaries are too long themselves.
    async fn again(
        &self,
        found: Found,
        split: Split,
        body: Bytes,
        mut record: JobRecord,
        revision: Revision,
    ) -> Result<(), Trouble> {
        let store = self.store();
        let source = format!("{}-round{}", found.plan.original, found.plan.round);
        store.payloads.put(&source, &body, usize::MAX).await?;
        let plan = PartsPlan {
            source,
            round: found.plan.round + 1,
            summary_tokens: split.summary_tokens,
            parts: split.parts,
            sent_ms: now_ms(),
            ..found.plan
        };
        for child in split.accept.record.children {
            if !record.children.contains(&child) {
                record.children.push(child);
            }
        }
        record.parts = Some(Parts {
            submission: plan.submission,
            round: plan.round,
            done: 0,
            of: u32::try_from(plan.parts.len()).unwrap_or(u32::MAX),
        });
        store.replace(&record, revision).await?;
        let key = PartsPlan::key(&plan.tenant, &plan.job);
        store
            .keys
            .put_if(&key, encoded(&plan), found.revision, None)
            .await?;
        self.send_parts(&plan).await
    }

    /// The job becomes a dead letter, as it was published.
    async fn fail(
        &self,
        found: Found,
        record: JobRecord,
        revision: Revision,
        failure: Failure,
    ) -> Result<bool, Trouble> {
        let record = JobRecord {
            phase: Phase::Failed,
            finished_ms: Some(now_ms()),
            failure: Some(failure),
            ..record
        };
        self.store().replace(&record, revision).await?;
        self.bury_whole(found, record).await?;
        Ok(false)
    }

    /// Writes the letter of a job whose record says that it failed, and ends its parts.
    async fn bury_whole(&self, found: Found, record: JobRecord) -> Result<(), Trouble> {
        let store = self.store();
        let plan = &found.plan;
        let headers = headers_of(plan);
        let arrival = self.arrival_of(plan, &headers);
        // In an object of its publisher's the body stays where it is, as the headers say.
        let is_ours = arrival.claim_name().is_none();
        let body = match is_ours {
            true => store.payloads.get(&plan.original, usize::MAX).await?,
            false => Bytes::new(),
        };
        let failure = record
            .failure
            .clone()
            .unwrap_or_else(|| Failure::new(DeadReason::Oversize, "it could not be summarised"));
        let at = record.finished_ms.unwrap_or_else(now_ms);
        let callback = self.callback_of(plan).await;
        let refuse = Refuse {
            callback,
            ..Intake::refuse(&arrival, record.clone(), failure, at)
        };
        let submitted = Submitted {
            arrival: &arrival,
            headers: &headers,
            raw_headers: None,
            body: &body,
            trace: self.trace_of(plan),
        };
        store.write_letter(&submitted, &refuse).await?;
        store.call_back(&refuse).await;
        self.call_off_parts(&record).await?;
        self.forget(&found).await?;
        if is_ours {
            store.payloads.delete(&plan.original).await?;
        }
        self.delete_round(plan).await
    }

    /// Who hears of the end of a job, by its body.
    async fn callback_of(&self, plan: &PartsPlan) -> Option<Callback> {
        let body = self.store().payloads.get(&plan.original, usize::MAX).await;
        submission::parse(&body.ok()?, &plan.tenant).ok()?.callback
    }

    /// Calls off what is left of a job's parts. One that no producer has taken yet gets a record that says
    /// so.
    async fn call_off_parts(&self, record: &JobRecord) -> Result<(), Trouble> {
        let store = self.store();
        let mut running = Vec::new();
        for child in record.children.iter().filter(|it| it.how == Descent::Part) {
            let slot = store.record(&record.tenant, &child.job).await?;
            let mut part = match slot.record {
                Some(part) if part.phase.is_final() => continue,
                Some(part) => part,
                None => {
                    let (tenant, job) = (record.tenant.clone(), child.job.clone());
                    JobRecord::new(tenant, job, Phase::Accepted, now_ms())
                }
            };
            part.phase = Phase::Cancelled;
            part.finished_ms = Some(now_ms());
            part.retry_at_ms = None;
            part.retry_reason = None;
            part.question = None;
            store.replace(&part, slot.revision).await?;
            running.extend(part.sequence.map(JobSeq));
        }
        let tell = |seq| owner::tell_called_off(&store.nats, seq);
        join_all(running.into_iter().map(tell)).await;
        Ok(())
    }

    /// Deletes a plan, the very one that was read.
    async fn forget(&self, found: &Found) -> Result<(), Trouble> {
        let keys = &self.store().keys;
        let key = PartsPlan::key(&found.plan.tenant, &found.plan.job);
        let gone = keys
            .tombstone_if(&key, found.revision, Bytes::new(), TRACE_LIFE)
            .await;
        match gone {
            Ok(_) | Err(WriteError::Conflict { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes what the first round made of the body.
    async fn delete_round(&self, plan: &PartsPlan) -> Result<(), Trouble> {
        if plan.source != plan.original {
            self.store().payloads.delete(&plan.source).await?;
        }
        Ok(())
    }

    fn arrival_of(&self, plan: &PartsPlan, headers: &HeaderMap) -> Arrival {
        let names = &self.nats().names;
        let mut arrival = Arrival::read(
            names,
            &plan.subject,
            headers,
            plan.submission,
            plan.stored_ms,
        );
        arrival.rounds = plan.round;
        arrival
    }

    fn trace_of(&self, plan: &PartsPlan) -> TraceContext {
        let trace = TraceContext::parse(&plan.traceparent, None);
        trace.unwrap_or_else(TraceContext::generate)
    }
}

fn is_of(record: &JobRecord, submission: u64) -> bool {
    let parts = record.parts.as_ref();
    parts.is_some_and(|parts| parts.submission == submission)
}

fn part_failure(plan: &PartsPlan, index: usize, said: &str) -> Failure {
    let (number, of, job) = (index + 1, plan.parts.len(), &plan.parts[index].job);
    Failure::new(
        DeadReason::Oversize,
        format!("it is too long, and part {number} of {of} (job {job}) was not summarised: {said}"),
    )
    .detail("part")
    .field(&plan.parts[index].piece.field)
    .fix("shorten it, or send it again when the cause is gone; parts that are done are not paid again")
}

/// The text of an answer. None if it has none.
fn text_of(message: &Value) -> Option<String> {
    let blocks = message.get("content")?.as_array()?;
    let texts: Vec<&str> = blocks
        .iter()
        .filter_map(|block| block.get("text")?.as_str())
        .collect();
    let text = texts.concat();
    (!text.trim().is_empty()).then_some(text)
}

fn pairs(headers: &HeaderMap) -> Vec<(String, String)> {
    let each = headers.iter().flat_map(|(name, values)| {
        let pair = move |value: &async_nats::HeaderValue| (name.to_string(), value.to_string());
        values.iter().map(pair)
    });
    each.collect()
}

fn headers_of(plan: &PartsPlan) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in &plan.headers {
        headers.append(name.as_str(), value.as_str());
    }
    headers
}

fn encoded(plan: &PartsPlan) -> Bytes {
    serde_json::to_vec(plan)
        .expect("a plan is plain data")
        .into()
}

fn contended(job: &JobId) -> Trouble {
    Trouble::Contended {
        what: format!("the plan of job {job}"),
    }
}
