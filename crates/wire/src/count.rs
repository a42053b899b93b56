//! The answer of a worker that was asked how many tokens a request has: a request on `fl.ctl.count`
//! whose body is a Messages API body.

use serde::{Deserialize, Serialize};

/// What the upstream said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CountReply {
    InputTokens(u64),
    /// It turned the request away.
    Refused {
        status: u16,
        message: String,
    },
    /// It could not be asked.
    Unavailable {
        message: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_as_they_travel() {
        for (reply, text) in [
            (CountReply::InputTokens(7), r#"{"input_tokens":7}"#),
            (
                CountReply::Refused {
                    status: 400,
                    message: "no".to_owned(),
                },
                r#"{"refused":{"status":400,"message":"no"}}"#,
            ),
        ] {
            assert_eq!(serde_json::to_string(&reply).unwrap(), text);
            assert_eq!(serde_json::from_str::<CountReply>(text).unwrap(), reply);
        }
    }
}
