//! Announcing free slots, receiving credits, and draining.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use fairlane_runtime::health::Check;
use fairlane_runtime::{Shutdown, TraceContext};
use fairlane_wire::header;
use fairlane_wire::lease::{CalledOff, Grant, Ready};
use futures::StreamExt;
use tokio_util::task::TaskTracker;

use crate::delivery::{self, Context};

/// The leader takes a worker to be gone after a few of these.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(1);

/// Receives credits until asked to stop, then finishes or hands back what is in hand.
pub(crate) async fn run(
    context: Arc<Context>,
    shutdown: Shutdown,
    connected: Check,
) -> anyhow::Result<()> {
    let nats = context.nats.clone();
    let subject = nats.names.credit_subject(&context.worker);
    let mut grants = nats
        .client
        .subscribe(subject)
        .await
        .context("cannot listen for credits")?;
    let call = nats.names.call_subject();
    let mut calls = nats
        .client
        .subscribe(call)
        .await
        .context("cannot listen for the leader")?;
    let cancel = nats.names.cancel_subject();
    let mut cancels = nats
        .client
        .subscribe(cancel)
        .await
        .context("cannot listen for jobs that are called off")?;
    // Announce only once the subscriptions are known to the server.
    nats.client.flush().await.context("cannot reach NATS")?;
    tracing::info!(worker = %context.worker, slots = context.options.slots, "ready for credits");

    let deliveries = TaskTracker::new();
    let mut announce = tokio::time::interval(ANNOUNCE_EVERY);
    let draining = shutdown.draining();
    loop {
        tokio::select! {
            biased;
            () = draining.cancelled() => break,
            Some(message) = grants.next() => accept(&context, &shutdown, &deliveries, &message),
            Some(message) = cancels.next() => call_off(&context, &message),
            Some(_) = calls.next() => say(&context, false).await,
            _ = announce.tick() => {
                connected.set(nats.is_connected());
                say(&context, false).await;
            }
        }
    }
    say(&context, true).await;
    tracing::info!(in_flight = deliveries.len(), "draining");
    deliveries.close();
    loop {
        tokio::select! {
            biased;
            () = deliveries.wait() => break,
            Some(message) = cancels.next() => call_off(&context, &message),
            // Granted before the leader heard that we drain: hand it back.
            Some(message) = grants.next() => hand_back(&context, &deliveries, &message),
            _ = announce.tick() => say(&context, true).await,
        }
    }
    Ok(())
}

async fn say(context: &Context, draining: bool) {
    let ready = Ready {
        worker: context.worker.clone(),
        slots: context.options.slots,
        draining,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let body = serde_json::to_vec(&ready).expect("an announcement is plain data");
    let subject = context.nats.names.ready_subject();
    if let Err(error) = context.nats.client.publish(subject, body.into()).await {
        tracing::debug!(%error, "cannot announce");
    }
}

fn accept(
    context: &Arc<Context>,
    shutdown: &Shutdown,
    deliveries: &TaskTracker,
    message: &async_nats::Message,
) {
    let Some(grant) = parse(message) else { return };
    let headers = message.headers.as_ref();
    let trace = headers.and_then(|headers| {
        let parent = headers.get(header::TRACEPARENT)?;
        TraceContext::parse(parent.as_str(), None)
    });
    let context = context.clone();
    let stop = shutdown.stop_now().clone();
    deliveries.spawn(delivery::run(context, grant, trace, stop));
}

fn hand_back(context: &Arc<Context>, deliveries: &TaskTracker, message: &async_nats::Message) {
    let Some(grant) = parse(message) else { return };
    deliveries.spawn(delivery::hand_back(context.clone(), grant));
}

fn call_off(context: &Context, message: &async_nats::Message) {
    match serde_json::from_slice::<CalledOff>(&message.payload) {
        Ok(CalledOff { seq }) => context.in_hand.call_off(seq),
        Err(error) => tracing::warn!(%error, "not a job that is called off"),
    }
}

fn parse(message: &async_nats::Message) -> Option<Grant> {
    match serde_json::from_slice(&message.payload) {
        Ok(grant) => Some(grant),
        Err(error) => {
            tracing::warn!(%error, "not a credit");
            None
        }
    }
}
