//! Where a job that was sent again comes from: the letters before it, the oldest first.
//!
//! It travels with the submission that sends a letter again, then with its job, and ends in the
//! next letter if the job fails again. Publishers can write it as well; all that gains them is
//! another run of a failed job of their own.

use fairlane_core::JobId;
use serde::{Deserialize, Serialize};

use crate::failure::DeadReason;
use crate::text;

/// Letters remembered; of longer histories the oldest one and the latest ones stay.
pub const ANCESTORS_MAX: usize = 10;

/// What sends a letter again. It travels in a header, as JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Redrive {
    /// Sequence of the letter in the stream of dead letters.
    pub letter: u64,
    /// The run that sends it.
    pub run: String,
    /// Id of the job the letter is about; it runs again under this id, unless its body has another.
    #[serde(with = "text::job")]
    pub job: JobId,
    /// The letters so far; the last one is the one that is sent again.
    pub lineage: Vec<Ancestor>,
}

impl Redrive {
    /// Reads the value of the header; None if it is not one.
    #[must_use]
    pub fn parse(value: &str) -> Option<Self> {
        serde_json::from_str(value).ok()
    }

    /// The value of the header.
    #[must_use]
    pub fn to_value(&self) -> String {
        text::ascii_json(self)
    }
}

/// One letter of a job's past.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ancestor {
    /// Sequence in the stream of dead letters.
    pub letter: u64,
    pub reason: DeadReason,
    /// Unix milliseconds at which it was written.
    pub at_ms: u64,
    pub attempts: u32,
    /// What its attempts cost, in US dollars.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// What was changed before it was sent again; None if nothing was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repair: Option<String>,
}

/// `lineage` with one more letter.
#[must_use]
pub fn descend(mut lineage: Vec<Ancestor>, last: Ancestor) -> Vec<Ancestor> {
    lineage.push(last);
    let surplus = lineage.len().saturating_sub(ANCESTORS_MAX);
    // The first one is the original.
    lineage.drain(1..=surplus);
    lineage
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ancestor(letter: u64) -> Ancestor {
        Ancestor {
            letter,
            reason: DeadReason::Schema,
            at_ms: 5,
            attempts: 1,
            cost_usd: None,
            repair: Some("merge patch".to_owned()),
        }
    }

    #[test]
    fn a_redrive_as_it_travels() {
        let redrive = Redrive {
            letter: 7,
            run: "r-1".to_owned(),
            job: JobId::parse("wp-1").unwrap(),
            lineage: vec![ancestor(7)],
        };
        let value = redrive.to_value();
        assert_eq!(
            value,
            r#"{"letter":7,"run":"r-1","job":"wp-1","lineage":[{"letter":7,"reason":"schema","at_ms":5,"attempts":1,"repair":"merge patch"}]}"#
        );
        assert_eq!(Redrive::parse(&value), Some(redrive));
        assert_eq!(Redrive::parse("{}"), None);
    }

    #[test]
    fn a_long_history_keeps_its_beginning_and_its_end() {
        let mut lineage = Vec::new();
        for letter in 1..=12 {
            lineage = descend(lineage, ancestor(letter));
        }
        let letters: Vec<u64> = lineage.iter().map(|ancestor| ancestor.letter).collect();
        assert_eq!(letters, [1, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
    }
}
