//! Directives inside a prompt: `[[sim:FLAG key=value ...]]`.
//!
//! They let the text of a job decide how its call goes, so one file of jobs carries its own troubles through every
//! part of the system. A directive that is not understood is an error, never ignored: a typing mistake would
//! otherwise look like a healthy upstream.

use crate::{
    answer::RefusalCategory,
    failure::{ErrorType, Order},
};

const OPEN: &str = "[[sim:";
const CLOSE: &str = "]]";
/// The longest directive; what is longer is not closed.
const LENGTH_MAX: usize = 1_024;

/// What a prompt asks the simulator to do. Later directives win over earlier ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directives {
    /// Stop with `refusal`.
    pub refusal: Option<RefusalCategory>,
    /// Stop with `max_tokens`.
    pub max_tokens: bool,
    /// Stop with `pause_turn`, unless the call already continues one.
    pub pause_turn: bool,
    /// Stop with the request's first stop sequence.
    pub stop_sequence: bool,
    /// Stop with `model_context_window_exceeded`.
    pub context_exceeded: bool,
    /// Call the first tool although nothing forces it.
    pub tool_use: bool,
    /// Structured output or tool input that is broken.
    pub bad_json: bool,
    /// Send an event type nobody knows.
    pub unknown_event: bool,
    /// What happens to the call instead of an answer, always.
    pub always: Option<Trouble>,
    /// What happens to the first `times` calls with this prompt.
    pub once: Option<Trouble>,
    /// How many calls `once` hits; 1 when not given.
    pub times: Option<u32>,
    /// Output tokens.
    pub out: Option<u64>,
    /// Thinking tokens.
    pub think: Option<u64>,
    /// Service time in milliseconds before scaling.
    pub ms: Option<u64>,
    /// Details of a failure.
    pub order: Order,
}

/// Something other than an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// This HTTP status.
    Status(u16),
    /// 200, some output, then the connection breaks.
    Cut,
    /// 200, some output, then an error event; a plain call gets 529.
    ErrorEvent,
    /// Nothing until the client goes away.
    Hang,
    /// 200 and `message_start`, then only pings.
    HangPings,
    /// 200 and `message_start`, then nothing.
    HangSilent,
    /// The connection breaks before any answer; nothing is billed.
    Reset,
    /// The answer is generated and billed, then the connection breaks before any of it is sent.
    LostAnswer,
}

impl Trouble {
    /// The trouble of that name: a status from 400 to 599, or a word.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "cut" => Some(Self::Cut),
            "error_event" => Some(Self::ErrorEvent),
            "hang" => Some(Self::Hang),
            "hang_stream" => Some(Self::HangPings),
            "hang_silent" => Some(Self::HangSilent),
            "reset" => Some(Self::Reset),
            "lost_answer" => Some(Self::LostAnswer),
            number => match number.parse() {
                Ok(status @ 400..=599) => Some(Self::Status(status)),
                _ => None,
            },
        }
    }
}

/// A directive that was not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DirectiveError {
    /// No closing brackets.
    #[error("sim directive is not closed by ]] within {LENGTH_MAX} bytes")]
    NotClosed,
    /// Nobody knows this word.
    #[error("unknown sim directive `{0}`")]
    Unknown(String),
    /// The value does not fit.
    #[error("sim directive {key} cannot be `{value}`; use {expected}")]
    Value {
        /// Which directive.
        key: String,
        /// What was given.
        value: String,
        /// What would be right.
        expected: &'static str,
    },
}

/// Reads every directive in `text` into `into`.
///
/// # Errors
/// Names the first directive that was not understood.
pub fn read(text: &str, into: &mut Directives) -> Result<(), DirectiveError> {
    let mut rest = text;
    while let Some(at) = rest.find(OPEN) {
        let inner = &rest[at + OPEN.len()..];
        let end = inner
            .find(CLOSE)
            .filter(|end| *end <= LENGTH_MAX)
            .ok_or(DirectiveError::NotClosed)?;
        for word in words(&inner[..end]) {
            apply(word, into)?;
        }
        rest = &inner[end + CLOSE.len()..];
    }
    Ok(())
}

/// Splits at white space, except inside double quotes.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    text.split(move |c: char| {
        quoted ^= c == '"';
        c.is_whitespace() && !quoted
    })
    .filter(|word| !word.is_empty())
}

fn apply(word: &str, into: &mut Directives) -> Result<(), DirectiveError> {
    let (key, value) = match word.split_once('=') {
        Some((key, value)) => (key, value.trim_matches('"')),
        None => (word, ""),
    };
    let wrong = |expected| DirectiveError::Value {
        key: key.to_owned(),
        value: value.to_owned(),
        expected,
    };
    let number = || value.parse().map_err(|_| wrong("a whole number"));
    let trouble = |expected| Trouble::parse(value).ok_or_else(|| wrong(expected));
    match key {
        "refusal" => {
            let category = if value.is_empty() {
                "general_harms"
            } else {
                value
            };
            into.refusal = Some(RefusalCategory::parse(category).ok_or_else(|| {
                wrong("cyber, bio, frontier_llm, reasoning_extraction, general_harms or null")
            })?);
        }
        "max_tokens" => into.max_tokens = true,
        "pause_turn" => into.pause_turn = true,
        "stop_sequence" => into.stop_sequence = true,
        "context_exceeded" => into.context_exceeded = true,
        "tool_use" => into.tool_use = true,
        "bad_tool_json" => into.bad_json = true,
        "unknown_event" => into.unknown_event = true,
        "status" => into.always = Some(trouble("a status from 400 to 599")?),
        "once" => {
            into.once = Some(trouble(
                "a status from 400 to 599, cut, error_event, hang, hang_stream, hang_silent, reset or lost_answer",
            )?);
        }
        "times" => into.times = Some(value.parse().map_err(|_| wrong("a whole number"))?),
        "hang" => {
            into.always = Some(match value {
                "" => Trouble::Hang,
                "stream" => Trouble::HangPings,
                "silent" => Trouble::HangSilent,
                _ => return Err(wrong("nothing, stream or silent")),
            });
        }
        "cut" => into.always = Some(Trouble::Cut),
        "error_event" => into.always = Some(Trouble::ErrorEvent),
        "reset" => into.always = Some(Trouble::Reset),
        "lost_answer" => into.always = Some(Trouble::LostAnswer),
        "out" => into.out = Some(number()?),
        "think" => into.think = Some(number()?),
        "ms" => into.ms = Some(number()?),
        "retry_after" => {
            let raw = axum::http::HeaderValue::from_str(value);
            raw.map_err(|_| wrong("a header value"))?;
            into.order.retry_after = Some(value.to_owned());
        }
        "no_retry_after" => into.order.no_retry_after = true,
        "code" => into.order.code = Some(value.to_owned()),
        "message" => into.order.message = Some(value.to_owned()),
        "type" => {
            let kind = serde_json::from_value::<ErrorType>(value.into());
            into.order.kind = Some(kind.map_err(|_| wrong("an error type such as billing_error"))?);
        }
        "should_retry" => {
            into.order.should_retry = Some(value.parse().map_err(|_| wrong("true or false"))?);
        }
        "strip_headers" => into.order.strip_headers = true,
        _ => return Err(DirectiveError::Unknown(key.to_owned())),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Directives {
        let mut directives = Directives::default();
        read(text, &mut directives).unwrap();
        directives
    }

    fn error(text: &str) -> String {
        read(text, &mut Directives::default())
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn plain_text_has_none() {
        assert_eq!(
            parsed("tags please, [[not]] [sim:refusal]"),
            Directives::default()
        );
    }

    #[test]
    fn several_in_one_bracket_and_in_several_brackets_combine() {
        let all = parsed("a [[sim:once=429 retry_after=16]] b [[sim:out=300 ms=50]] c");
        assert_eq!(all.once, Some(Trouble::Status(429)));
        assert_eq!(all.order.retry_after.as_deref(), Some("16"));
        assert_eq!((all.out, all.ms), (Some(300), Some(50)));
    }

    #[test]
    fn each_flag_sets_its_field() {
        assert_eq!(
            parsed("[[sim:refusal]]").refusal,
            Some(RefusalCategory::GeneralHarms)
        );
        assert_eq!(
            parsed("[[sim:refusal=bio]]").refusal,
            Some(RefusalCategory::Bio)
        );
        assert!(parsed("[[sim:max_tokens]]").max_tokens);
        assert!(parsed("[[sim:pause_turn]]").pause_turn);
        assert!(parsed("[[sim:bad_tool_json]]").bad_json);
        assert_eq!(
            parsed("[[sim:status=529]]").always,
            Some(Trouble::Status(529))
        );
        assert_eq!(parsed("[[sim:hang]]").always, Some(Trouble::Hang));
        assert_eq!(
            parsed("[[sim:hang=stream]]").always,
            Some(Trouble::HangPings)
        );
        assert_eq!(
            parsed("[[sim:error_event]]").always,
            Some(Trouble::ErrorEvent)
        );
        assert_eq!(parsed("[[sim:once=cut times=3]]").once, Some(Trouble::Cut));
    }

    #[test]
    fn quoted_values_keep_their_spaces() {
        let order = parsed(
            r#"[[sim:status=400 message="You have reached your specified API usage limits"]]"#,
        )
        .order;
        assert_eq!(
            order.message.as_deref(),
            Some("You have reached your specified API usage limits")
        );
    }

    #[test]
    fn mistakes_are_named() {
        assert_eq!(error("[[sim:refusel]]"), "unknown sim directive `refusel`");
        assert!(error("[[sim:out=many]]").contains("sim directive out cannot be `many`"));
        assert!(error("[[sim:status=200]]").contains("400 to 599"));
        assert!(error("[[sim:out=3").contains("not closed"));
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "(\\[\\[sim:)?[a-z_=\"\\] 0-9é]{0,40}(\\]\\])?") {
            let _ignored = read(&text, &mut Directives::default());
        }
    }
}
