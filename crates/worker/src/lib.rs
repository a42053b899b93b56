//! The worker role: spends credits.
//!
//! A worker announces its slots, receives credits, and for each credit runs one delivery: read the
//! job, take the lease, call Claude, and then in this order: durable result, settlement in the
//! ledger, delete the job, release the credit. Each step can be repeated, so a crash between any two
//! is harmless. What becomes of a job after a call is decided in `fairlane_core::attempt`.
//!
//! | module | what |
//! |---|---|
//! | `slots` | announces, receives grants, drains |
//! | `delivery` | one credit from start to end; `delivery::end` the ways it ends, `delivery::steps` the steps of that |
//! | `lease` | the credit: start, renew, release, park |
//! | `request` | the request that is sent, to which model |
//! | `call` | the call under its lease |
//! | `chat` | its span |
//! | `parts` | the parts of an answer while it is written, for those who listen |
//! | `count` | how many tokens a request has, for those who have no key |
//! | `models` | what is known of the models, by the upstream's word too |
//! | `key` | the API key of the moment |
//! | `books` | record, ledger entry, letter and settlement as data |
//! | `schema` | checks structured output |

mod books;
mod call;
mod chat;
mod count;
mod delivery;
mod key;
mod lease;
mod models;
mod options;
mod parts;
mod request;
mod schema;
mod slots;

use std::sync::Arc;

use anyhow::Context as _;
use fairlane_core::failure::{Reason, classify};
use fairlane_nats::Nats;
use fairlane_runtime::config::Settings;
use fairlane_runtime::{Frame, Rule};

pub use key::ReadError as KeyReadError;
pub use options::{Options, OptionsError};

/// Why a key is of no use, or nobody knows whether it is.
#[derive(Debug, thiserror::Error)]
pub enum KeyTrouble {
    #[error(transparent)]
    Settings(#[from] OptionsError),
    #[error("the upstream refuses the API key: {0}")]
    Refused(String),
    #[error("cannot ask the upstream at {url}: {text}")]
    Unanswered { url: String, text: String },
}

/// Asks the upstream, with the key that a worker with these settings would use, for its models: that costs
/// nothing. Returns how many there are.
///
/// # Errors
/// [`KeyTrouble`].
pub async fn try_key(settings: &Settings) -> Result<usize, KeyTrouble> {
    let options = Options::from_settings(settings)?;
    let unanswered = |text: String| KeyTrouble::Unanswered {
        url: settings.claude.base_url.clone(),
        text,
    };
    let client = fairlane_claude::Client::new(options.claude.clone());
    let client = client.map_err(|error| unanswered(error.to_string()))?;
    let key = options.keys.current(std::time::Instant::now());
    match client.models(&key).await {
        Ok(models) => Ok(models.len()),
        Err(error) if refuses_key(classify(&error.ending).reason) => {
            Err(KeyTrouble::Refused(error.to_string()))
        }
        Err(error) => Err(unanswered(error.to_string())),
    }
}

/// Whether a call that asks for nothing but the models fails for the key it was made with.
fn refuses_key(reason: Reason) -> bool {
    match reason {
        Reason::Authentication | Reason::Permission | Reason::AccountOnHold => true,
        // About money, which looking at models does not cost.
        Reason::SpendLimit | Reason::CreditExhausted | Reason::Billing => false,
        Reason::RateLimit
        | Reason::RampLimit
        | Reason::ConcurrencyLimit
        | Reason::UnexplainedLimit => false,
        Reason::Endpoint
        | Reason::EncryptionKey
        | Reason::ModelUnavailable
        | Reason::NotFound
        | Reason::InvalidRequest
        | Reason::Oversize
        | Reason::Conflict => false,
        Reason::Overloaded
        | Reason::UpstreamError
        | Reason::UpstreamTimeout
        | Reason::Connect
        | Reason::Cut
        | Reason::Timeout
        | Reason::UndecodableAnswer
        | Reason::Cancelled
        | Reason::Unknown => false,
        // Ends of messages, which this is none of.
        Reason::Done
        | Reason::PauseTurn
        | Reason::Compaction
        | Reason::MaxTokens
        | Reason::Refusal
        | Reason::ContextWindow
        | Reason::UnknownStop
        | Reason::Schema => false,
    }
}

/// Runs the worker until it is asked to stop: finishes what is in flight, hands back the rest.
///
/// # Errors
/// Settings that do not fit together, or a task that failed.
pub async fn run(settings: Settings, nats: Nats, mut frame: Frame) -> anyhow::Result<()> {
    let options = Options::from_settings(&settings)?;
    let claude = fairlane_claude::Client::new(options.claude.clone()).context("claude")?;
    let context = Arc::new(delivery::Context::new(
        nats,
        options,
        claude,
        frame.metrics.clone(),
    ));
    let connected = frame.health.check("nats");
    let shutdown = frame.shutdown.clone();
    frame.spawn(
        "slots",
        Rule::Essential,
        slots::run(context.clone(), shutdown.clone(), connected),
    );
    frame.spawn(
        "counts",
        Rule::Essential,
        count::serve(context.clone(), shutdown.clone()),
    );
    frame.spawn("models", Rule::Logged, models::refresh(context, shutdown));
    frame.run().await?;
    Ok(())
}
