//! What a job's owner may choose besides the request: what happens during an overload, and which
//! version of the API and which betas the request relies on.

use serde_json::Value;

use super::{invalid, shown, sort_of};
use crate::letter::Failure;

/// `on_overload`: what may become of the job while its model is overloaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OnOverload {
    pub fallback: FallbackChoice,
    pub defer: DeferChoice,
}

/// Whether a smaller model may answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FallbackChoice {
    /// If the fleet allows it for the job's kind.
    #[default]
    ByKind,
    Never,
}

/// Whether the job may wait until the next day, when the smaller model is overloaded too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeferChoice {
    /// The owner is asked through the job record.
    #[default]
    Ask,
    Yes,
    No,
}

/// `stop_reasons`: which complete answers are results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StopReasons {
    /// Those that are whole: `end_turn`, `tool_use`, `stop_sequence`.
    #[default]
    Whole,
    /// All: the owner reads the stop reason, as a caller of the Claude API does.
    Any,
}

/// Most betas of one job, and the longest name of one, bytes.
const BETAS_MAX: usize = 16;
const BETA_BYTES_MAX: usize = 64;

/// Reads `on_overload`.
pub(super) fn on_overload(value: Option<Value>) -> Result<OnOverload, Failure> {
    let mut choice = OnOverload::default();
    let fields = match value {
        None | Some(Value::Null) => return Ok(choice),
        Some(Value::Object(fields)) => fields,
        Some(other) => {
            let message = format!("on_overload is {}", sort_of(&other));
            return Err(invalid("on_overload", message)
                .fix(r#"give an object such as {"fallback": "never", "defer": "yes"}"#));
        }
    };
    for (name, value) in fields {
        match name.as_str() {
            "fallback" => {
                choice.fallback = match value.as_str() {
                    Some("by_kind") => FallbackChoice::ByKind,
                    Some("never") => FallbackChoice::Never,
                    Some(_) | None => {
                        return Err(wrong("on_overload.fallback", &value, "by_kind or never"));
                    }
                }
            }
            "defer" => {
                choice.defer = match value.as_str() {
                    Some("ask") => DeferChoice::Ask,
                    Some("yes") => DeferChoice::Yes,
                    Some("no") => DeferChoice::No,
                    Some(_) | None => {
                        return Err(wrong("on_overload.defer", &value, "ask, yes or no"));
                    }
                }
            }
            other => {
                let name: String = other.chars().take(60).collect();
                let message = format!("unknown field \"on_overload.{name}\"");
                return Err(invalid("on_overload", message).fix("give fallback, defer or both"));
            }
        }
    }
    Ok(choice)
}

/// Reads `stream`.
pub(super) fn stream(value: Option<Value>) -> Result<bool, Failure> {
    match value {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(stream)) => Ok(stream),
        Some(other) => Err(wrong("stream", &other, "true or false")),
    }
}

/// Reads `stop_reasons`.
pub(super) fn stop_reasons(value: Option<Value>) -> Result<StopReasons, Failure> {
    match value.as_ref().map(|value| (value, value.as_str())) {
        None | Some((Value::Null, _) | (_, Some("whole"))) => Ok(StopReasons::Whole),
        Some((_, Some("any"))) => Ok(StopReasons::Any),
        Some((other, _)) => Err(wrong("stop_reasons", other, "whole or any")),
    }
}

/// Reads `api_version`: the `anthropic-version` the request is written for.
pub(super) fn api_version(value: Option<Value>) -> Result<Option<String>, Failure> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(version)) if is_date(&version) => Ok(Some(version)),
        Some(other) => Err(wrong(
            "api_version",
            &other,
            "a version of the API such as 2023-06-01",
        )),
    }
}

/// Reads `betas`: the names for `anthropic-beta`.
pub(super) fn betas(value: Option<Value>) -> Result<Vec<String>, Failure> {
    let right = format!(
        "a list of up to {BETAS_MAX} names such as output-300k-2026-03-24, of lower-case letters, digits and dashes"
    );
    let names = match value {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(names)) if names.len() <= BETAS_MAX => names,
        Some(other) => return Err(wrong("betas", &other, &right)),
    };
    names
        .into_iter()
        .map(|name| match name {
            Value::String(name) if is_beta(&name) => Ok(name),
            other => Err(wrong("betas", &other, &right)),
        })
        .collect()
}

fn is_date(text: &str) -> bool {
    text.len() == 10
        && text.bytes().enumerate().all(|(at, byte)| match at {
            4 | 7 => byte == b'-',
            _ => byte.is_ascii_digit(),
        })
}

fn is_beta(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=BETA_BYTES_MAX).contains(&name.len()) && name.bytes().all(allowed)
}

fn wrong(field: &str, value: &Value, right: &str) -> Failure {
    invalid(field, format!("{field} is {}", shown(value))).fix(format!("give {right}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_not_chosen_is_left_to_the_fleet() {
        assert_eq!(on_overload(None), Ok(OnOverload::default()));
        let never = on_overload(Some(json!({"fallback": "never"}))).unwrap();
        assert_eq!(never.fallback, FallbackChoice::Never);
        assert_eq!(never.defer, DeferChoice::Ask);
        let yes = on_overload(Some(json!({"fallback": "by_kind", "defer": "yes"}))).unwrap();
        assert_eq!(
            (yes.fallback, yes.defer),
            (FallbackChoice::ByKind, DeferChoice::Yes)
        );
    }

    #[test]
    fn a_wrong_choice_is_named() {
        for (value, field) in [
            (json!("never"), "on_overload"),
            (json!({"fallback": true}), "on_overload.fallback"),
            (json!({"defer": "maybe"}), "on_overload.defer"),
            (json!({"fall_back": "never"}), "on_overload"),
        ] {
            let failure = on_overload(Some(value)).unwrap_err();
            assert_eq!(failure.field.as_deref(), Some(field));
        }
    }

    #[test]
    fn versions_and_betas_cannot_smuggle_anything_into_a_header() {
        let version = |text: &str| api_version(Some(text.into()));
        assert_eq!(version("2026-10-21"), Ok(Some("2026-10-21".to_owned())));
        for bad in ["", "2026", "2026-10-2x", "2026-10-21\r\nx: y"] {
            assert!(version(bad).is_err(), "{bad:?}");
        }
        let good = betas(Some(json!(["output-300k-2026-03-24"])));
        assert_eq!(good, Ok(vec!["output-300k-2026-03-24".to_owned()]));
        for bad in [
            json!("a"),
            json!(["a,b"]),
            json!(["a\n"]),
            json!([""]),
            json!([7]),
        ] {
            assert!(betas(Some(bad.clone())).is_err(), "{bad}");
        }
    }
}
