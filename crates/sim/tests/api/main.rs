//! The simulator over real HTTP.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod admin;
mod books;
mod directives;
mod limits;
mod messages;
mod support;
