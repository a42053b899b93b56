//! Dead letters, for the people who work with them: what there is, how a letter is repaired, and
//! how it is sent again.
//!
//! | module | what it is | IO |
//! |---|---|---|
//! | [`index`] | all letters without their bodies, in groups of one cause | none |
//! | [`filter`] | which letters are meant | none |
//! | [`repair`] | a body made runnable | none |
//! | [`ready`] | a letter, repaired and judged, as the submission that sends it again | none |
//! | [`price`] | what sending a letter again is expected to cost | none |
//! | [`copy`] | a letter as one line of a file | none |
//! | [`reader`] | the index, read from the stream | reads |
//! | [`claim`] | the right to send a letter again, given once | writes |
//! | [`run`] | a chosen set of letters that is sent again, stored so that it can stop and go on | writes |
//!
//! The stream of letters is the truth and the only one. That a letter was sent again is a note in
//! the same stream, and the first note wins; whoever loses the index has lost nothing.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test may panic"))]

pub mod claim;
pub mod copy;
pub mod filter;
pub mod index;
pub mod price;
pub mod reader;
pub mod ready;
pub mod repair;
pub mod run;
