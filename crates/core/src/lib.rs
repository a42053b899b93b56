//! Fairlane's decisions, and nothing else.
//!
//! Everything here is plain synchronous code: time, randomness and input are arguments, output is
//! data. There is no clock, no IO, no async runtime and no wire format in this crate, so the
//! same code runs in production and in simulation.

#![cfg_attr(test, allow(clippy::cast_possible_truncation, clippy::cast_sign_loss))]

pub mod attempt;
pub mod autoscale;
pub mod breaker;
pub mod concurrency;
pub mod defer;
pub mod demotion;
pub mod drr;
pub mod election;
pub mod failure;
pub mod fairness;
pub mod fallback;
pub mod hour;
pub mod ids;
pub mod invariants;
pub mod job;
pub mod learn;
pub mod limiter;
pub mod models;
pub mod oversize;
pub mod pace;
pub mod price;
pub mod recent;
pub mod scheduler;
pub mod share;
pub mod tell;

pub use ids::{JobId, JobSeq, Kind, ModelId, NameError, PoolId, TenantId, Term, WorkerId};
pub use job::{BATCH_SLA_SECONDS, Cost, CostWeights, Origin, Priority, Tokens, classify};

/// Unix time or a process's own time in milliseconds; which one is said where it is used.
pub type Millis = u64;
