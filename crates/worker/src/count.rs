//! Counting the tokens of a request for those who have no key of their own.

use std::sync::Arc;

use anyhow::Context as _;
use fairlane_claude::LookupError;
use fairlane_core::failure::Ending;
use fairlane_runtime::Shutdown;
use fairlane_wire::CountReply;
use futures::StreamExt;
use serde_json::{Map, Value};

use crate::delivery::Context;

/// Requests counted at once by one worker.
const COUNTS_MAX: usize = 32;
/// All workers share the requests.
const GROUP: &str = "workers";

/// Answers until `shutdown` says to drain.
pub(crate) async fn serve(context: Arc<Context>, shutdown: Shutdown) -> anyhow::Result<()> {
    let nats = &context.nats;
    let requests = nats
        .client
        .queue_subscribe(nats.names.count_subject(), GROUP.to_owned())
        .await
        .context("cannot listen for requests to be counted")?;
    requests
        .take_until(shutdown.draining().clone().cancelled_owned())
        .for_each_concurrent(COUNTS_MAX, |message| answer(&context, message))
        .await;
    shutdown.draining().cancelled().await;
    Ok(())
}

async fn answer(context: &Context, message: async_nats::Message) {
    let Some(reply_to) = message.reply else {
        return;
    };
    let reply = match serde_json::from_slice::<Map<String, Value>>(&message.payload) {
        Ok(body) => count(context, &body).await,
        Err(error) => CountReply::Refused {
            status: 400,
            message: error.to_string(),
        },
    };
    let body = serde_json::to_vec(&reply).expect("a reply is plain data");
    if let Err(error) = context.nats.client.publish(reply_to, body.into()).await {
        tracing::debug!(%error, "cannot tell how many tokens a request has");
    }
}

async fn count(context: &Context, body: &Map<String, Value>) -> CountReply {
    let key = context.options.keys.current(std::time::Instant::now());
    match Box::pin(context.claude.count_tokens(&key, body)).await {
        Ok(tokens) => CountReply::InputTokens(tokens),
        Err(error) => refusal(error),
    }
}

fn refusal(error: LookupError) -> CountReply {
    let message = error.message.clone().unwrap_or_else(|| error.to_string());
    match error.ending {
        Ending::Error(answer) => CountReply::Refused {
            status: answer.status,
            message,
        },
        Ending::Message(_)
        | Ending::SchemaViolated
        | Ending::NotConnected(_)
        | Ending::Cut(_)
        | Ending::Timeout(_)
        | Ending::Undecodable { .. }
        | Ending::Cancelled(_) => CountReply::Unavailable { message },
    }
}
