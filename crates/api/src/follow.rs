//! A job from its submission to its end, for somebody who waits.
//!
//! Word of a change comes by a plain subscription to the record's subject, made before the job is
//! published: it costs the server nothing. What is heard there was sent, but perhaps not stored, so it is
//! only a reason to read the record. After a reconnect, and once in a while, the record is read anyway.

use std::sync::Arc;
use std::time::Duration;

use async_nats::Subscriber;
use bytes::Bytes;
use fairlane_core::{JobId, TenantId};
use fairlane_nats::payloads::PayloadError;
use fairlane_nats::{HeaderMap, Nats, RecordError, WriteError};
use fairlane_wire::{Answer, Ask, AskOutcome, AskReply, JobRecord, Namespace, Phase, header};
use futures::StreamExt;
use serde_json::Value;
use tokio::sync::watch;

use crate::Shared;
use crate::error::{ApiError, Kind, Result};

/// The record is read at least this often.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// A final record that was heard of and is not there yet is looked for again after these pauses.
const SOON: [Duration; 5] = [
    Duration::from_millis(1),
    Duration::from_millis(5),
    Duration::from_millis(20),
    Duration::from_millis(100),
    Duration::from_millis(500),
];
/// Jobs followed from one to the one whose outcome it shares.
const LINKS_MAX: usize = 4;
/// How long a producer may take to answer what is asked.
const ASK_TIMEOUT: Duration = Duration::from_secs(10);
/// A call that is given up may not have become a job yet: asked again this often.
const CALL_OFF_TRIES: u32 = 6;
const CALL_OFF_PAUSE: Duration = Duration::from_millis(250);
/// Largest result fetched from the store of large bodies.
const RESULT_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Room in a message for headers, ours and those the producer adds.
const HEADERS_BYTES_MAX: usize = 8 * 1024;

/// A job that somebody waits for.
#[derive(Debug)]
pub(crate) struct Follower {
    shared: Arc<Shared>,
    tenant: TenantId,
    job: JobId,
    hints: Subscriber,
    connections: watch::Receiver<u64>,
}

impl Follower {
    /// Listens for the end of a job, which need not exist yet.
    ///
    /// # Errors
    /// `overloaded_error` without NATS.
    pub(crate) async fn start(
        shared: &Arc<Shared>,
        tenant: &TenantId,
        job: &JobId,
    ) -> Result<Self> {
        let mut connections = shared.nats.connections();
        connections.mark_unchanged();
        Ok(Self {
            hints: listen(&shared.nats, tenant, job).await?,
            shared: shared.clone(),
            tenant: tenant.clone(),
            job: job.clone(),
            connections,
        })
    }

    /// The record of the job's end; of the job whose outcome it shares, if there is one.
    ///
    /// # Errors
    /// `overloaded_error` if the record cannot be read, `timeout_error` after the longest wait.
    pub(crate) async fn end(&mut self) -> Result<JobRecord> {
        let wait_max = self.shared.wait_max;
        match tokio::time::timeout(wait_max, self.wait()).await {
            Ok(ended) => ended,
            Err(_) => {
                let text = format!("no answer within {} s", wait_max.as_secs());
                Err(ApiError::new(Kind::Timeout, text))
            }
        }
    }

    /// As [`Follower::end`], for a job whose record was read after this began to listen.
    ///
    /// # Errors
    /// As [`Follower::end`].
    pub(crate) async fn end_from(&mut self, read: &JobRecord) -> Result<JobRecord> {
        if let Some(owner) = read.same_as.as_deref().and_then(|id| JobId::parse(id).ok()) {
            self.hints = listen(&self.shared.nats, &self.tenant, &owner).await?;
            self.job = owner;
            if let Some(record) = self
                .look(&[])
                .await?
                .filter(|record| record.same_as.is_none())
            {
                return Ok(record);
            }
        }
        self.end().await
    }

    /// The record once it is another one than `last`; None if it was looked at in vain.
    ///
    /// # Errors
    /// `overloaded_error` if the record cannot be read.
    pub(crate) async fn change(&mut self, last: &JobRecord) -> Result<Option<JobRecord>> {
        tokio::select! {
            hint = self.hints.next() => if hint.is_none() {
                tokio::time::sleep(LOOK_EVERY).await;
            },
            _ = self.connections.changed() => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        let mut pauses = SOON.iter();
        loop {
            let slot = self.shared.records.get(&self.tenant, &self.job).await;
            let record = slot.map_err(|error| unreadable(&error))?.record;
            match (record.filter(|record| record != last), pauses.next()) {
                (None, Some(pause)) => tokio::time::sleep(*pause).await,
                (changed, _) => return Ok(changed),
            }
        }
    }

    async fn wait(&mut self) -> Result<JobRecord> {
        let mut links = 0;
        let mut found = None;
        loop {
            let record = match found.take() {
                Some(record) => record,
                None => {
                    let was_said = self.news().await;
                    let pauses = if was_said { &SOON[..] } else { &[] };
                    match self.look(pauses).await? {
                        Some(record) => record,
                        None => continue,
                    }
                }
            };
            let owner = record.same_as.as_deref().map(JobId::parse);
            match owner {
                None => return Ok(record),
                Some(Ok(owner)) if links < LINKS_MAX => {
                    links += 1;
                    self.hints = listen(&self.shared.nats, &self.tenant, &owner).await?;
                    self.job = owner;
                    // It may be over for long.
                    found = self.look(&[]).await?;
                }
                Some(_) => {
                    return Err(ApiError::new(
                        Kind::Api,
                        "the job shares an outcome that is not there",
                    ));
                }
            }
        }
    }

    /// Waits for a reason to look. True if it was said that the job is over or shares another's outcome.
    async fn news(&mut self) -> bool {
        loop {
            tokio::select! {
                hint = self.hints.next() => {
                    let Some(hint) = hint else {
                        // The client itself has ended, and with it soon the process.
                        tokio::time::sleep(LOOK_EVERY).await;
                        return false;
                    };
                    if is_worth_a_look(&hint) {
                        return true;
                    }
                }
                _ = self.connections.changed() => return false,
                () = tokio::time::sleep(LOOK_EVERY) => return false,
            }
        }
    }

    /// The record, if it says that the job is over or shares another's outcome.
    async fn look(&self, pauses: &[Duration]) -> Result<Option<JobRecord>> {
        let records = &self.shared.records;
        let mut pauses = pauses.iter();
        loop {
            let slot = records.get(&self.tenant, &self.job).await;
            let slot = slot.map_err(|error| unreadable(&error))?;
            let told = slot
                .record
                .filter(|record| record.phase.is_final() || record.same_as.is_some());
            match (told, pauses.next()) {
                (None, Some(pause)) => tokio::time::sleep(*pause).await,
                (told, _) => return Ok(told),
            }
        }
    }
}

fn is_worth_a_look(hint: &async_nats::Message) -> bool {
    let phase = hint
        .headers
        .as_ref()
        .and_then(|headers| headers.get(header::PHASE));
    let phase = phase.and_then(|word| Phase::parse(word.as_str()));
    // A record in phase accepted may be a pointer to another one.
    phase.is_some_and(|phase| phase.is_final() || phase == Phase::Accepted)
}

async fn listen(nats: &Nats, tenant: &TenantId, job: &JobId) -> Result<Subscriber> {
    let key = Namespace::status_key(tenant, job);
    let subject = Namespace::kv_subject(&nats.names.status_bucket(), &key);
    let subscribed = nats.client.subscribe(subject).await;
    subscribed.map_err(|error| ApiError::unavailable("listen for the answer", &error))
}

pub(crate) fn unreadable(error: &RecordError) -> ApiError {
    ApiError::unavailable("read the job's record", error)
}

/// Calls a job off when it is dropped: its caller has gone away.
#[derive(Debug)]
pub(crate) struct CallOff {
    shared: Arc<Shared>,
    tenant: TenantId,
    job: JobId,
    is_armed: bool,
}

impl CallOff {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        tenant: &TenantId,
        job: &JobId,
        is_armed: bool,
    ) -> Self {
        Self {
            shared: shared.clone(),
            tenant: tenant.clone(),
            job: job.clone(),
            is_armed,
        }
    }

    /// The job is over: nothing is to be called off.
    pub(crate) fn disarm(&mut self) {
        self.is_armed = false;
    }
}

impl Drop for CallOff {
    fn drop(&mut self) {
        if !self.is_armed {
            return;
        }
        let (shared, tenant, job) = (self.shared.clone(), self.tenant.clone(), self.job.clone());
        self.shared.tasks.spawn(async move {
            for _ in 0..CALL_OFF_TRIES {
                match shared.ask(Ask::Cancel, &tenant, &job, None).await {
                    Ok(reply)
                        if !matches!(reply.outcome, AskOutcome::NotFound | AskOutcome::Busy) =>
                    {
                        tracing::info!(%tenant, %job, "called off: its caller has gone");
                        return;
                    }
                    Ok(_) | Err(_) => tokio::time::sleep(CALL_OFF_PAUSE).await,
                }
            }
            tracing::warn!(%tenant, %job, "the caller has gone, but the job cannot be called off");
        });
    }
}

impl Shared {
    /// Publishes a submission. It is stored when this returns. While the tenant has more submissions waiting to be taken than it
    /// may, waits for room, at most `patience`.
    ///
    /// # Errors
    /// `request_too_large`, `rate_limit_error` if there is no room, or `overloaded_error` if it may not be stored.
    pub(crate) async fn submit(
        &self,
        tenant: &TenantId,
        job: &JobId,
        body: Vec<u8>,
        patience: Duration,
    ) -> Result<()> {
        let max_payload = self.nats.client.server_info().max_payload;
        let mut headers = HeaderMap::new();
        headers.insert(header::JOB, job.as_str());
        let mut body = Bytes::from(body);
        if body.len() > max_payload.saturating_sub(HEADERS_BYTES_MAX) {
            let name = format!("{tenant}.{}", uuid::Uuid::now_v7());
            let put = self
                .nats
                .payloads()
                .put(&name, &body, self.body_bytes_max)
                .await;
            put.map_err(|error| match error {
                PayloadError::TooLarge { .. } => ApiError::new(Kind::TooLarge, error.to_string()),
                PayloadError::Missing { .. }
                | PayloadError::Damaged { .. }
                | PayloadError::Store { .. } => ApiError::unavailable("store the request", &error),
            })?;
            headers.insert(header::CLAIM, name);
            body = Bytes::new();
        }
        let subject = self.nats.names.submit_subject(tenant);
        let id = format!("submit-{tenant}-{job}");
        let stored = self
            .nats
            .jobs()
            .publish_patiently(&subject, Some(&id), headers, body, patience)
            .await;
        match stored {
            Ok(_) => Ok(()),
            Err(error @ WriteError::TooLarge { .. }) => {
                Err(ApiError::new(Kind::TooLarge, error.to_string()))
            }
            Err(WriteError::SubjectFull { .. }) => {
                let words = "this account has more requests waiting to be taken than it may";
                Err(ApiError::new(Kind::RateLimit, words).retry_after(10))
            }
            Err(error) => Err(ApiError::unavailable("store the request", &error)),
        }
    }

    /// Asks a producer for something about a job.
    ///
    /// # Errors
    /// `overloaded_error` if none answers.
    pub(crate) async fn ask(
        &self,
        ask: Ask,
        tenant: &TenantId,
        job: &JobId,
        answer: Option<Answer>,
    ) -> Result<AskReply> {
        let subject = self.nats.names.ask_subject(ask, tenant, job);
        let body = answer.map_or("", Answer::as_str);
        let request = async_nats::Request::new()
            .payload(body.into())
            .timeout(Some(ASK_TIMEOUT));
        let reply = self.nats.client.send_request(subject, request).await;
        let reply = reply.map_err(|error| ApiError::unavailable("ask a producer", &error))?;
        serde_json::from_slice(&reply.payload)
            .map_err(|error| ApiError::unavailable("read a producer's answer", &error))
    }

    /// The message of a job that is done.
    ///
    /// # Errors
    /// `api_error` if it was not kept, `overloaded_error` if it cannot be read now.
    pub(crate) async fn result(&self, record: &JobRecord) -> Result<Value> {
        match (&record.result, &record.result_claim) {
            (Some(message), _) => Ok(message.clone()),
            (None, Some(name)) => {
                let body = self.nats.payloads().get(name, RESULT_BYTES_MAX).await;
                let body =
                    body.map_err(|error| ApiError::unavailable("read the answer", &error))?;
                serde_json::from_slice(&body)
                    .map_err(|error| ApiError::unavailable("read the answer", &error))
            }
            (None, None) => Err(ApiError::new(Kind::Api, "the answer was not kept")),
        }
    }
}
