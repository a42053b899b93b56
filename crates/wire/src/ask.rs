//! The answer to what an owner asks for: a request on `fl.ask.<what>.<tenant>.<job>`, answered by a
//! producer. The body of the request is empty, except for an answer, which is `yes` or `no`.

use fairlane_core::JobId;
use serde::{Deserialize, Serialize};

use crate::record::Phase;
use crate::text;

/// What became of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskReply {
    pub outcome: AskOutcome,
    /// The job that was asked about.
    #[serde(with = "text::job")]
    pub job: JobId,
    /// Its phase now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Another job that matters: the new one, or the one to ask about instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other: Option<String>,
    /// For people.
    pub text: String,
}

/// A stable word for each way a request can end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AskOutcome {
    /// It is done as asked, now or before.
    Ok,
    /// The job had ended.
    Ended,
    /// There is no such job.
    NotFound,
    /// The job shares the outcome of another one, which can be asked about.
    SameAs,
    /// This cannot be asked of this job.
    NotPossible,
    /// The request is not one.
    Invalid,
    /// Not now; ask again.
    Busy,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_as_it_travels() {
        let reply = AskReply {
            outcome: AskOutcome::Ended,
            job: JobId::parse("wp-1").unwrap(),
            phase: Some(Phase::Done),
            other: None,
            text: "it was done before".to_owned(),
        };
        let text = serde_json::to_string(&reply).unwrap();
        assert_eq!(
            text,
            r#"{"outcome":"ended","job":"wp-1","phase":"done","text":"it was done before"}"#
        );
        assert_eq!(serde_json::from_str::<AskReply>(&text).unwrap(), reply);
    }
}
