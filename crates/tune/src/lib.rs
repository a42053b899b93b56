//! Tuning: better settings for the scheduler, proved by replaying what was recorded.
//!
//! What ran within a month is replayed through the real scheduler core in virtual time: every job arrives when
//! it did, takes what it took, and the upstream refuses calls when it did. Only the settings differ. A setting is
//! recommended when its replay is better by a stated margin ([`Figures::gain_over`]) and worse in nothing; so
//! a fleet that is well tuned gets no advice.
//!
//! What a replay leaves out: failures other than rate limits (each job succeeds when it is called), falling back
//! to other models, workers that come and go. What was recorded beside what is replayed shows how far that
//! carries.
//!
//! Bounds: at most [`JOBS_MAX`] jobs are replayed, [`REPLAYS_MAX`] times; memory is a few hundred bytes a job.
//! Pure: no clock, no IO, no chance.

mod advice;
mod figures;
mod month;
mod replay;
mod room;
mod upstream;

pub use advice::{Advice, Change, REPLAYS_MAX, Step, advise};
pub use figures::{Figures, GAIN_PERCENT, LOSS_PERCENT, Wait};
pub use month::{Job, Month, Spent, Squall};
pub use replay::replay;
pub use room::{Answer, RoomAdvice, SAVING_PERCENT, room};

/// The most jobs that one replay takes; of a larger month, the busiest hours.
pub const JOBS_MAX: usize = 200_000;
