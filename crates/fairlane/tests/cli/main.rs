//! The program as its users run it: as a process, against a real nats-server.

#![allow(clippy::unwrap_used, reason = "a test may end where it stands")]

mod commands;
mod consent;
mod context;
mod doctor;
mod letters;
mod submit;
mod tenants;
mod top;
mod tune;
mod why;
mod world;
