//! Client of the Messages API.
//!
//! One call is one attempt: [`Client::call`] sends a request, reads the stream, and comes back with a
//! [`CallReport`] whose [`Ending`](fairlane_core::failure::Ending) says what became of it. What follows
//! from an ending is decided in [`fairlane_core::failure`], not here; nothing is retried here.
//!
//! Reading is split in two parts without IO: [`sse`] turns bytes into events, [`assemble`] turns events
//! into the message. Success is only a message that came to its `message_stop`; a status of 200 is not.

pub mod assemble;
mod call;
mod client;
pub mod error_body;
mod key;
mod limits;
mod lookup;
mod report;
mod request;
pub mod sse;
pub mod usage;

pub use client::{Client, ClientError, Http, Options};
pub use key::{ApiKey, KeyError};
pub use limits::{Bucket, Limits};
pub use lookup::{LookupError, ModelInfo};
pub use report::{CallReport, Progress, Stage, Timings, UsageBasis};
pub use request::{CallRequest, RequestError};
