//! A term on a server of its own, for tests that look inside.

use fairlane_core::{Millis, Term};
use fairlane_nats::Nats;
use fairlane_runtime::Metrics;
use fairlane_runtime::config::Settings;
use fairlane_wire::{WhyAnswer, WhyRequest};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Leader, Shell};
use crate::clock::Clock;
use crate::fairness::Fairness;
use crate::options::Options;

/// A leader that has read everything but jobs, and what ends it.
pub(super) async fn leader(nats: &Nats) -> (Leader, CancellationToken) {
    let stop = CancellationToken::new();
    let (_, trust) = watch::channel(Millis::MAX);
    let shell = Shell {
        nats: nats.clone(),
        options: Options::from_settings(&Settings::default()).unwrap(),
        metrics: Metrics::new("scheduler"),
        fairness: Fairness::new(),
        letters: crate::letters::Recent::channel().1,
        outbox: crate::webhook::Outbox::channel(Metrics::new("scheduler")).0,
        clock: Clock::start(),
        trust,
        stop: stop.clone(),
    };
    (Leader::learn(shell, Term(1)).await.unwrap(), stop)
}

/// What the leader says a job waits for, as its stable word.
pub(super) async fn why(nats: &Nats, seq: u64) -> Result<String, String> {
    let body = serde_json::to_vec(&WhyRequest::Job { seq }).unwrap();
    let asked = nats.client.request(nats.names.why_subject(), body.into());
    let reply = asked.await.map_err(|error| error.to_string())?;
    let answer: WhyAnswer =
        serde_json::from_slice(&reply.payload).map_err(|error| error.to_string())?;
    Ok(answer.reason)
}
