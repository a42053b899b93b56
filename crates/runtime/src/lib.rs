//! The frame every Fairlane process stands in: configuration, logs and traces, metrics, health, signals and tasks.
//!
//! A role's `main` is: [`config::load`], [`Frame::start`], connect, [`Frame::spawn`], [`Frame::run`]. This crate knows
//! nothing of jobs, NATS or HTTP calls. Of the other crates it uses the core alone, for the model table that the
//! configuration changes.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod catalog;
pub mod config;
pub mod crypto;
pub mod drain;
pub mod frame;
pub mod health;
pub mod metrics;
pub mod prices;
pub mod spans;
pub mod telemetry;
pub mod trace;

pub use catalog::{CatalogError, catalog, configured, fallback_kinds, oversize_policies};
pub use crypto::install_crypto;
pub use drain::{Rule, Shutdown};
pub use frame::{Frame, FrameOptions, StartError};
pub use health::Health;
pub use metrics::Metrics;
pub use prices::{PricesError, prices};
pub use trace::TraceContext;
