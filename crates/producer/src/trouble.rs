//! When a store does not answer: what went wrong, when to try again, and how often to say so.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use fairlane_nats::jobs::ReadError;
use fairlane_nats::payloads::PayloadError;
use fairlane_nats::records::RecordError;
use fairlane_nats::{AckError, ApiError, BuryError, WriteError};
use tokio::time::Instant;

/// Longest pause before a submission is delivered again.
const DELAY_MAX: Duration = Duration::from_secs(120);
/// Troubles within this time of a logged one are counted, not logged.
const BURST: Duration = Duration::from_secs(10);

/// Why a submission has to be delivered again. Nothing is lost: it stays in the stream.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    #[error("a message or key could not be stored for certain")]
    Write(#[from] WriteError),
    #[error("a dead letter could not be written")]
    Bury(#[from] BuryError),
    #[error("a job record could not be read")]
    Record(#[from] RecordError),
    #[error("a message or key could not be read")]
    Read(#[from] ReadError),
    #[error("a large body could not be stored or read")]
    Payload(#[from] PayloadError),
    #[error("the submission could not be acknowledged")]
    Ack(#[from] AckError),
    #[error("idempotency key {key} has a value that names no job: {text}")]
    Owner { key: String, text: String },
    #[error("{what} was written by somebody else each time")]
    Contended { what: String },
    #[error("a call of the server was not answered as it should be: {0}")]
    Call(String),
    #[error("a message could not be deleted")]
    Delete(#[from] ApiError),
    #[error("the submission could not be parsed: the task was cut off")]
    CutOff,
}

/// An error with all its causes in one line.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |line, cause| format!("{line}: {cause}"))
}

/// Pause before delivery `count` + 1: doubles from one second.
pub(crate) fn delay(count: u64) -> Duration {
    let exponent = u32::try_from(count.saturating_sub(1)).unwrap_or(u32::MAX);
    let seconds = 2_u64.saturating_pow(exponent.min(16));
    Duration::from_secs(seconds).min(DELAY_MAX)
}

/// Lets one line per burst through, so that an outage with a thousand submissions waiting does
/// not fill the log.
#[derive(Debug, Default)]
pub(crate) struct Bursts(Mutex<Burst>);

#[derive(Debug, Default)]
struct Burst {
    logged: Option<Instant>,
    silent: u64,
}

impl Bursts {
    /// Notes a trouble. Some with the number kept silent since the last line, if it is to be logged.
    pub(crate) fn note(&self, now: Instant) -> Option<u64> {
        // A panic elsewhere cannot leave two numbers half changed.
        let mut burst = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if burst.logged.is_some_and(|logged| now < logged + BURST) {
            burst.silent += 1;
            return None;
        }
        burst.logged = Some(now);
        Some(std::mem::take(&mut burst.silent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trouble_is_told_with_its_cause() {
        let cause = WriteError::Unknown {
            subject: "fl.jobs.batch.acme".to_owned(),
        };
        let told = with_causes(&Trouble::from(cause));
        assert_eq!(
            told,
            "a message or key could not be stored for certain: fl.jobs.batch.acme: no ack in \
             time; the write may or may not be stored"
        );
    }

    #[test]
    fn delays_double_up_to_the_limit() {
        let seconds: Vec<u64> = [0, 1, 2, 3, 7, 8, 9, u64::MAX]
            .map(|n| delay(n).as_secs())
            .into();
        assert_eq!(seconds, [1, 1, 2, 4, 64, 120, 120, 120]);
    }

    #[test]
    fn a_burst_is_logged_once_and_counted() {
        let (bursts, start) = (Bursts::default(), Instant::now());
        assert_eq!(bursts.note(start), Some(0));
        assert_eq!(bursts.note(start), None);
        assert_eq!(bursts.note(start + BURST / 2), None);
        assert_eq!(bursts.note(start + BURST), Some(2));
        assert_eq!(bursts.note(start + BURST), None);
    }
}
