//! The frame every Fairlane process stands in: configuration, telemetry, metrics, health, signals and tasks.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod config;
