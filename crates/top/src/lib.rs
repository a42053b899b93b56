//! The live view of a fleet: what is shown, and how it answers to keys. Pure: a picture and a view in, a frame
//! out; whoever has a terminal and a fleet brings both together.
//!
//! It stays readable whatever the fleet and the terminal are like. Pools and workers are summed up when there is
//! no room for each; tenants are sorted, filtered and paged, and lose columns from the right as the terminal
//! narrows. Nothing is said by colour alone, and bars are ASCII.

mod bars;
mod draw;
mod tenants;
mod view;

pub use draw::{Picture, draw, text};
pub use view::{Key, Sort, Stay, View};
