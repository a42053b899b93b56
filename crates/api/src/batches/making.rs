//! Batches that are being made, and what is done with those whose maker has died.
//!
//! While it publishes a batch's jobs, its maker holds the key `making.<tenant>.<batch>` and writes it anew every few
//! seconds. Nobody was told the id of a batch whose maker died, and whoever wanted it makes another one: so
//! every producer looks for keys that have gone stale, takes them over, calls off what was published, and ends the
//! batch. Each write names the revision that it replaces: a maker that only stood still finds that it has lost.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fairlane_core::{JobId, TenantId};
use fairlane_nats::watch::Event;
use fairlane_nats::{Bucket, Content, Entry, Revision, WriteError};
use fairlane_wire::Ask;
use futures::StreamExt;
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior};

use super::{ASKS_MAX, Batches, LIST_TIMEOUT, tally};
use crate::Shared;
use crate::error::{ApiError, Result, with_causes};

/// How often a maker says that it is at work.
const BEAT: Duration = Duration::from_secs(3);
/// A maker that has said nothing for so long, by the server's clock and ours, is taken for dead.
const STALE_MS: u64 = 20_000;
/// How often producers look for dead makers.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// A trace that is left of a key.
const TRACE: Duration = Duration::from_secs(60);
/// Pause between two looks at what is left of a batch.
const PAUSE: Duration = Duration::from_millis(500);
/// How long submissions of the tenant are waited for that may be jobs of the batch, and its jobs to end. What comes
/// later than that ends by itself.
const SUBMISSIONS_WAIT: Duration = Duration::from_secs(60);
const ENDS_WAIT: Duration = Duration::from_secs(120);

/// The right to make, or to clear away, one batch.
#[derive(Debug)]
pub(super) struct Making {
    bucket: Bucket,
    key: String,
    /// What is written there: no two holders write the same.
    value: Bytes,
    revision: Revision,
}

impl Making {
    /// Says that a batch is being made.
    ///
    /// # Errors
    /// `overloaded_error` if that cannot be stored.
    pub(super) async fn begin(batches: &Batches<'_>, id: &str) -> Result<Self> {
        let mut making = Self::of(
            &batches.bucket,
            format!("making.{}", batches.key(id)),
            Revision::ABSENT,
        );
        let begun = making.beat().await;
        begun.map_err(|error| ApiError::unavailable("store the batch", &error))?;
        Ok(making)
    }

    fn of(bucket: &Bucket, key: String, revision: Revision) -> Self {
        let holder = json!({"holder": uuid::Uuid::now_v7().simple().to_string()});
        Self {
            bucket: bucket.clone(),
            key,
            value: holder.to_string().into(),
            revision,
        }
    }

    /// Takes over what nobody seems to be at work at. None if somebody is.
    async fn take_over(bucket: &Bucket, stale: &Entry) -> Option<Self> {
        let mut making = Self::of(bucket, stale.key.clone(), stale.revision);
        making.beat().await.ok()?;
        Some(making)
    }

    async fn beat(&mut self) -> std::result::Result<(), WriteError> {
        let bucket = &self.bucket;
        let written = bucket.put_if(&self.key, self.value.clone(), self.revision, None);
        self.revision = written.await?;
        Ok(())
    }

    /// Works for as long as the right lasts. None if it was lost.
    pub(super) async fn beside<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = std::pin::pin!(work);
        let mut beats = tokio::time::interval_at(Instant::now() + BEAT, BEAT);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                done = &mut work => return Some(done),
                _ = beats.tick() => match self.beat().await {
                    Ok(()) => {}
                    Err(WriteError::Conflict { .. }) => return None,
                    // Written or not, it can be told by the next one.
                    Err(error) => {
                        tracing::debug!(%error, "cannot say that a batch is being made");
                        self.catch_up().await;
                    }
                },
            }
        }
    }

    /// Finds out whether a write arrived whose acknowledgement did not.
    async fn catch_up(&mut self) {
        if let Ok(Some(entry)) = self.bucket.get(&self.key).await
            && entry.value() == Some(&self.value)
        {
            self.revision = entry.revision;
        }
    }

    /// Gives the right back. False if it was lost.
    ///
    /// # Errors
    /// `overloaded_error` if that cannot be told.
    pub(super) async fn end(self) -> Result<bool> {
        let gone = self
            .bucket
            .tombstone_if(&self.key, self.revision, Default::default(), TRACE);
        match gone.await {
            Ok(_) => Ok(true),
            Err(WriteError::Conflict { .. }) => Ok(false),
            Err(error) => Err(ApiError::unavailable("store the batch", &error)),
        }
    }
}

/// Looks for batches whose makers have died, until the process drains.
pub(crate) async fn look_after(shared: Arc<Shared>) {
    let mut looks = tokio::time::interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = looks.tick() => {}
            () = shared.shutdown.draining().cancelled() => return,
        }
        let bucket = shared.nats.bucket(&shared.nats.names.batches_bucket());
        for entry in stale(&bucket).await {
            if let Some(making) = Making::take_over(&bucket, &entry).await {
                let shared = shared.clone();
                shared.tasks.clone().spawn(clear_away(shared, making));
            }
        }
    }
}

async fn stale(bucket: &Bucket) -> Vec<Entry> {
    let mut watch = bucket.watch_keys("making.*.*");
    let mut found = Vec::new();
    let reading = async {
        while let Some(event) = watch.next().await {
            match event {
                Event::Change(entry) => found.push(entry),
                Event::Current => return,
                Event::Stale => {}
            }
        }
    };
    if tokio::time::timeout(LIST_TIMEOUT, reading).await.is_err() {
        return Vec::new();
    }
    let now = crate::now_ms();
    found.retain(|entry| match entry.content {
        Content::Live(_) => now.saturating_sub(entry.stored_ms) > STALE_MS,
        Content::Deleted(_) | Content::Expired => false,
    });
    found
}

/// Calls off what there is of a batch that was not made to its end, and ends it. If this process dies as well,
/// another one does it.
pub(super) async fn clear_away(shared: Arc<Shared>, mut making: Making) {
    let name = making.key.strip_prefix("making.").unwrap_or_default();
    let Some((Ok(tenant), id)) = name
        .split_once('.')
        .map(|(tenant, id)| (TenantId::parse(tenant), id.to_owned()))
    else {
        return;
    };
    let batches = Batches::of(&shared, &tenant);
    let cleared = tokio::select! {
        cleared = making.beside(clear(&batches, &id)) => cleared,
        () = shared.shutdown.stop_now().cancelled() => None,
    };
    match cleared {
        Some(Ok(())) => {
            tracing::warn!(%tenant, batch = id, "called off a batch that was not made to its end");
            if let Err(error) = making.end().await {
                tracing::debug!(
                    error = error.message,
                    "the key of a batch stays for a while"
                );
            }
        }
        Some(Err(error)) => {
            tracing::warn!(%tenant, batch = id, error = error.message, "a batch that was not made to its end stays for now");
        }
        None => {}
    }
}

async fn clear(batches: &Batches<'_>, id: &str) -> Result<()> {
    if !batches.exists(id).await? {
        // Its maker died before anything was published.
        let names = batches.names_object(id);
        let deleted = batches.shared.nats.payloads().delete(&names).await;
        return deleted.map_err(|error| ApiError::unavailable("delete the batch", &error));
    }
    let now = crate::now_ms();
    let batch = batches
        .change(id, |batch| {
            batch.is_interrupted = true;
            batch.cancelled_ms.get_or_insert(now);
        })
        .await?;
    call_off(batches, id).await;
    let (mut tally, _) = tally::look_at(&batches.shared.nats, batches.tenant, id).await;
    tally.cancel_rest(batch.requests);
    batches
        .change(id, |batch| {
            batch.ended_ms.get_or_insert_with(crate::now_ms);
            batch.tally = Some(tally);
        })
        .await?;
    Ok(())
}

/// Calls off every job of a batch there is, also those that are still to be taken in.
pub(super) async fn call_off(batches: &Batches<'_>, id: &str) {
    let (shared, tenant) = (batches.shared, batches.tenant);
    let began = Instant::now();
    loop {
        let is_all_in = began.elapsed() > SUBMISSIONS_WAIT || !has_submissions(batches).await;
        let (_, open) = tally::look_at(&shared.nats, tenant, id).await;
        if open.is_empty() && is_all_in || began.elapsed() > ENDS_WAIT {
            return;
        }
        let asks = futures::stream::iter(open).map(|job: JobId| async move {
            if let Err(error) = shared.ask(Ask::Cancel, tenant, &job, None).await {
                tracing::debug!(%job, error = error.message, "cannot call off a job yet");
            }
        });
        asks.buffer_unordered(ASKS_MAX).collect::<()>().await;
        tokio::time::sleep(PAUSE).await;
    }
}

/// Whether submissions of the tenant are still to be taken in.
async fn has_submissions(batches: &Batches<'_>) -> bool {
    let names = &batches.shared.nats.names;
    let (stream, subject) = (names.submit_stream(), names.submit_subject(batches.tenant));
    match batches.shared.nats.jobs().counts(&stream, &subject).await {
        Ok(counts) => !counts.is_empty(),
        Err(error) => {
            tracing::debug!(error = with_causes(&error), "cannot count submissions");
            true
        }
    }
}
