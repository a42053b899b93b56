//! A simulator of the Claude API: limits, latency, failures and bookkeeping, without a model.
//!
//! Deciding is apart from doing. What a call needs, costs and gets is computed by plain functions over plain values
//! ([`bucket`], [`limits`], [`cache`], [`validate`], [`matrix`], [`request`], [`answer`], [`message`], [`pace`],
//! [`fault`], [`directive`], [`once`]); time and randomness are arguments there. The HTTP shell around them reads
//! bodies, waits, sends, and leaves exactly one line in the log for every call.
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use fairlane_sim::{Sim, SimConfig};
//! let sim = Sim::start(SimConfig::instant()).await?;
//! println!("POST {}/v1/messages", sim.url());
//! let paid = sim.log().iter().filter(|call| call.billed).count();
//! # let _ = paid;
//! sim.shutdown().await
//! # }
//! ```

pub mod answer;
pub mod bucket;
pub mod cache;
pub mod clock;
pub mod config;
pub mod directive;
pub mod failure;
pub mod fault;
pub mod limits;
pub mod log;
pub mod matrix;
pub mod message;
pub mod models;
pub mod once;
pub mod pace;
pub mod request;
pub mod schema;
pub mod state;
pub mod tokens;
pub mod validate;

mod admin;
mod call;
mod catalog;
mod conn;
mod hash;
mod messages;
mod playback;
mod prose;
mod respond;
mod server;

pub use crate::{
    config::{Limits, OtpmMode, PoolOverride, Preset, SimConfig},
    fault::FaultSpec,
    log::{CallRecord, Ending},
    models::PoolId,
    server::{Sim, SimHandle, serve},
    state::Stats,
};
