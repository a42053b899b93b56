//! The producer: turns submissions into jobs, and what cannot be one into a dead letter.
//!
//! Any number of them share one durable consumer. Delivery is at least once, and a producer may
//! die between any two of its steps, so every step can be repeated:
//!
//! | step | repeated, it |
//! |---|---|
//! | take the idempotency key | finds its own job as the owner |
//! | store the job | is a duplicate, by message id `<tenant>:<key hash>` |
//! | write the record | leaves the one that is there |
//! | acknowledge the submission | comes last: until then it is delivered again |
//!
//! Jobs whose text is summarised first go a longer way (`parts`).
//!
//! Submissions that the server gives to nobody any more are found by a sweep (`stranded`), and such that
//! nobody can receive by another one (`quarantine`).
//!
//! A refusal goes the same way: dead letter, failed record, acknowledgement. What to do is decided
//! in [`intake`], without any IO; the rest of the crate carries it out.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod accept;
mod again;
mod asks;
pub mod callbacks;
pub mod intake;
mod judge;
mod orphans;
mod parts;
mod producer;
mod quarantine;
mod refuse;
mod regenerate;
mod store;
mod stranded;
mod traced;
mod trouble;

use anyhow::Context;
use fairlane_api::Api;
use fairlane_nats::Nats;
use fairlane_runtime::config::Settings;
use fairlane_runtime::{Frame, Rule};

pub use asks::Asks;
pub use callbacks::Callbacks;
pub use judge::Judgement;
pub use producer::Producer;

/// Runs a producer until the process is asked to stop and what is in hand has been finished. Its HTTP API does what
/// operators ask on the connection `operators`, if there is one.
///
/// # Errors
/// If the model table, the callbacks or the API of the configuration cannot be used, or the connection to NATS has ended for good.
pub async fn run(
    settings: Settings,
    nats: Nats,
    operators: Option<Nats>,
    mut frame: Frame,
) -> anyhow::Result<()> {
    let producer = Producer::new(&settings, &nats, frame.metrics.clone())
        .context("the model table of the configuration cannot be used")?;
    let callbacks = Callbacks::new(&settings, &producer, frame.metrics.clone())
        .context("the configuration of callbacks cannot be used")?;
    let shutdown = frame.shutdown.clone();
    let judge = producer.judgement();
    if let Some(api) = Api::bind(&settings, &nats, operators, judge, shutdown.clone()).await? {
        tracing::info!(addr = %api.addr()?, "serving the HTTP API");
        frame.spawn("api", Rule::Essential, async move {
            api.serve().await;
            Ok(())
        });
    }
    let check = frame.health.check("nats");
    frame.spawn(
        "connection",
        Rule::Essential,
        producer::watch_connection(nats, check, shutdown.clone()),
    );
    frame.spawn(
        "asks",
        Rule::Essential,
        producer.asks().serve(shutdown.clone()),
    );
    frame.spawn(
        "callbacks",
        Rule::Essential,
        callbacks.serve(shutdown.clone()),
    );
    frame.spawn("submissions", Rule::Essential, async move {
        producer.serve(&shutdown).await;
        Ok(())
    });
    frame.run().await?;
    Ok(())
}
