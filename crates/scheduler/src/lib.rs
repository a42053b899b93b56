//! The scheduler role: stands by or leads.
//!
//! All decisions are `fairlane_core`'s. This crate waits for events, hands them to the core in order,
//! and carries out its effects: [`lead`] for the lease, [`term`] for everything a leader does,
//! `books` for what it hands on, `aside` for jobs that the leader itself takes out of the queue,
//! `fairness` and `autoscale` for what it tells over HTTP.

mod aside;
mod autoscale;
mod books;
mod clock;
mod convert;
mod fairness;
mod lead;
mod letters;
mod options;
mod strangers;
mod streams;
mod tenants;
mod term;
mod webhook;

use std::time::Duration;

use axum::Router;
use fairlane_nats::Nats;
use fairlane_runtime::config::Settings;
use fairlane_runtime::health::Check;
use fairlane_runtime::{Frame, Metrics, Rule, Shutdown};

pub use options::{Options, OptionsError};
pub use tenants::policy_with;

/// Runs the scheduler until it is asked to stop; hands the lease over at once if it leads. Serves `beside` next to what
/// it tells itself.
///
/// # Errors
/// Settings that do not fit together, or a task that failed.
pub async fn run(
    settings: Settings,
    nats: Nats,
    mut frame: Frame,
    beside: Router,
) -> anyhow::Result<()> {
    let options = Options::from_settings(&settings)?;
    let connected = frame.health.check("nats");
    let fairness = fairness::Fairness::new();
    let routes = fairness.routes().merge(autoscale::routes(nats.clone()));
    frame.health.mount(routes.merge(beside));
    let (counted, recent) = letters::Recent::channel();
    let (outbox, messages) = webhook::Outbox::channel(frame.metrics.clone());
    let letters = letters::watch(
        nats.clone(),
        counted,
        outbox.clone(),
        Duration::from_millis(settings.results.dead_letters_keep_ms),
        frame.metrics.clone(),
        frame.shutdown.clone(),
    );
    let watched = nats.clone();
    let lead = lead::run(lead::Context {
        nats,
        options,
        metrics: frame.metrics.clone(),
        fairness,
        letters: recent,
        outbox,
        shutdown: frame.shutdown.clone(),
        connected,
    });
    let streams = streams::watch(watched, frame.metrics.clone(), frame.shutdown.clone());
    let webhook = webhook::serve(
        settings,
        messages,
        frame.metrics.clone(),
        frame.shutdown.clone(),
    );
    frame.spawn("lead", Rule::Essential, lead);
    frame.spawn("webhook", Rule::Essential, webhook);
    // For whoever watches; jobs run without it.
    frame.spawn("letters", Rule::Essential, letters);
    frame.spawn("streams", Rule::Essential, streams);
    frame.run().await?;
    Ok(())
}

/// Stands by and leads in turn until `shutdown` begins: [`run`] without a process around it.
///
/// # Errors
/// None that it knows of; a term that fails gives up the lease.
pub async fn lead(
    options: Options,
    nats: Nats,
    metrics: Metrics,
    shutdown: Shutdown,
    connected: Check,
) -> anyhow::Result<()> {
    let fairness = fairness::Fairness::new();
    lead::run(lead::Context {
        nats,
        options,
        outbox: webhook::Outbox::channel(metrics.clone()).0,
        metrics,
        fairness,
        letters: letters::Recent::channel().1,
        shutdown,
        connected,
    })
    .await
}
