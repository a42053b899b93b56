//! How full the streams are, for whoever watches: every scheduler asks the server now and then.

use std::time::Duration;

use fairlane_nats::Nats;
use fairlane_nats::objects::{ObjectOptions, specs};
use fairlane_runtime::metrics::StreamSize;
use fairlane_runtime::{Metrics, Shutdown};
use tokio::time::MissedTickBehavior;

/// How often the server is asked.
const ASK_EVERY: Duration = Duration::from_secs(15);

/// Tells sizes until the process drains. What the server does not say is not told.
pub(crate) async fn watch(nats: Nats, metrics: Metrics, shutdown: Shutdown) -> anyhow::Result<()> {
    let specs = specs(&nats.names, &ObjectOptions::default());
    let streams: Vec<String> = specs
        .into_iter()
        .filter(|spec| spec.consumer_of.is_none())
        .map(|spec| spec.server_name)
        .collect();
    let mut ticks = tokio::time::interval(ASK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = shutdown.draining().cancelled() => return Ok(()),
            _ = ticks.tick() => {}
        }
        tokio::select! {
            () = shutdown.draining().cancelled() => return Ok(()),
            () = tell(&nats, &streams, &metrics) => {}
        }
    }
}

async fn tell(nats: &Nats, streams: &[String], metrics: &Metrics) {
    let jobs = nats.jobs();
    for stream in streams {
        match jobs.size(stream).await {
            Ok(size) => metrics.stream(
                stream,
                StreamSize {
                    messages: size.messages,
                    bytes: size.bytes,
                    bytes_max: size.bytes_max,
                },
            ),
            Err(error) => {
                tracing::debug!(stream, %error, "cannot learn how full a stream is");
                return;
            }
        }
    }
    match jobs.storage().await {
        Ok(Some((bytes, bytes_max))) => metrics.storage(bytes, bytes_max),
        Ok(None) => {}
        Err(error) => tracing::debug!(%error, "cannot learn how full the storage is"),
    }
}
