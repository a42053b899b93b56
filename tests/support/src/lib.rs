//! What tests against a real server share: a nats-server of their own, and waiting without sleeping.

pub mod jobs;
pub mod jwt;
pub mod keys;
pub mod server;
pub mod wait;

pub use jobs::{backlog, job_headers, queue};
pub use jwt::Credentials;
pub use keys::Keys;
pub use server::{TestNats, old_server};
pub use wait::{LIMIT, eventually, within};
