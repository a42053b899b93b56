//! Traces that are sent although they were not chosen: what one process decides, all hear.
//!
//! Plain messages, since nothing depends on them: who misses one lacks a part of a trace.

use fairlane_nats::Nats;
use fairlane_runtime::spans;
use futures::StreamExt;
use tokio_util::task::AbortOnDropHandle;

/// Tells and hears, until it is dropped. None if this process sends no traces, or holds none back.
pub(crate) fn exchange(nats: &Nats) -> Option<AbortOnDropHandle<()>> {
    let mut decided = spans::kept_here()?;
    let nats = nats.clone();
    let exchange = async move {
        let subject = nats.names.trace_subject();
        let mut heard = match nats.client.subscribe(subject.clone()).await {
            Ok(heard) => heard,
            Err(error) => {
                tracing::warn!(%error, "traces that others decide to send will lack a part");
                return;
            }
        };
        loop {
            tokio::select! {
                Some(trace) = decided.recv() => {
                    if let Err(error) = nats.client.publish(subject.clone(), trace.into()).await {
                        tracing::debug!(%error, "cannot tell that a trace is sent");
                    }
                }
                Some(message) = heard.next() => {
                    if let Ok(trace) = std::str::from_utf8(&message.payload) {
                        spans::keep(trace);
                    }
                }
                else => return,
            }
        }
    };
    Some(AbortOnDropHandle::new(tokio::spawn(exchange)))
}
