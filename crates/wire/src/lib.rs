//! Formats and names: what Fairlane's parts and its users say to each other.

pub mod names;

pub use names::{Namespace, header};
