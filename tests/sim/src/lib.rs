//! A simulated fleet around the real decisions.
//!
//! `core` is driven as the shells drive it: one candidate or several hold an election, the leader
//! learns leases and jobs and grants, workers start, call and settle. Everything else is a model: the
//! bucket of leases, the index of jobs, the upstream with its limits, the network between them, and
//! what goes wrong. One seed is one world, always the same.

mod bucket;
mod leader;
pub mod plan;
pub mod rng;
pub mod seeds;
mod upstream;
mod worker;
mod world;

pub use bucket::Bucket;
pub use plan::{Fault, JobPlan, Nature, Network, Plan, Storm};
pub use rng::Rng;
pub use upstream::{Answer, Call, Upstream};
pub use world::{Granted, JobState, Tally, World};
