//! A request that is too long, cut where its owner allows it.
//!
//! Places are cut in the order given, in each the longest text first (that is the document, the
//! question about it is shorter), and each text as little as possible, at its end. Only text that a
//! person or a document wrote is cut: nothing that names, signs or structures something, and no image.

use fairlane_core::oversize::Place;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Characters that stay of every text: what is shorter says nothing any more.
const CHARS_MIN: usize = 200;
/// Texts that are cut in one request, at most: each stands in a header and in the record.
const TEXTS_MAX: usize = 8;

/// A text that lost its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Truncation {
    /// As in `request.messages[0].content`.
    pub field: String,
    pub from_chars: u64,
    pub to_chars: u64,
}

/// Cuts texts at `places` until the request `fits`; None, and `request` as it was, if that is not enough.
///
/// `fits` has to hold for what is shorter than something that fits.
#[must_use]
pub fn cut(
    request: &mut Map<String, Value>,
    places: &[Place],
    fits: impl Fn(&Map<String, Value>) -> bool,
) -> Option<Vec<Truncation>> {
    let mut work = request.clone();
    let mut cuts = Vec::new();
    for place in places {
        let mut texts = texts(&work, *place);
        // Stable: of two that are equally long, the earlier one.
        texts.sort_by_key(|text| std::cmp::Reverse(text.chars));
        for text in texts {
            if fits(&work) {
                break;
            }
            if cuts.len() == TEXTS_MAX {
                return None;
            }
            cuts.extend(shorten(&mut work, &text, &fits));
        }
    }
    if !fits(&work) {
        return None;
    }
    *request = work;
    Some(cuts)
}

/// A text in a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Text {
    /// Keys and indices that lead to it.
    path: Vec<Step>,
    pub(crate) chars: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Key(&'static str),
    At(usize),
}

impl Text {
    pub(crate) fn field(&self) -> String {
        self.path
            .iter()
            .fold("request".to_owned(), |path, step| match step {
                Step::Key(key) => format!("{path}.{key}"),
                Step::At(index) => format!("{path}[{index}]"),
            })
    }

    pub(crate) fn read<'a>(&self, request: &'a Map<String, Value>) -> Option<&'a str> {
        let (Step::Key(first), rest) = self.path.split_first()? else {
            return None;
        };
        let mut value = request.get(*first)?;
        for step in rest {
            value = match step {
                Step::Key(key) => value.get(*key)?,
                Step::At(index) => value.get(*index)?,
            };
        }
        value.as_str()
    }

    pub(crate) fn of<'a>(&self, request: &'a mut Map<String, Value>) -> Option<&'a mut String> {
        let (Step::Key(first), rest) = self.path.split_first()? else {
            return None;
        };
        let mut value = request.get_mut(*first)?;
        for step in rest {
            value = match step {
                Step::Key(key) => value.get_mut(*key)?,
                Step::At(index) => value.get_mut(*index)?,
            };
        }
        match value {
            Value::String(text) => Some(text),
            _ => None,
        }
    }
}

/// Cuts one text as little as possible, or down to what always stays. None if nothing was cut.
fn shorten(
    request: &mut Map<String, Value>,
    text: &Text,
    fits: &impl Fn(&Map<String, Value>) -> bool,
) -> Option<Truncation> {
    let whole = text.of(request)?.clone();
    let ends: Vec<usize> = whole.char_indices().map(|(at, _)| at).collect();
    // An answer must not begin, nor a block consist of, white space.
    let head = |chars: usize| whole[..ends[chars]].trim_end();
    if ends.len() <= CHARS_MIN || head(CHARS_MIN).is_empty() {
        return None;
    }
    let mut with = |chars: usize| {
        if let Some(slot) = text.of(request) {
            head(chars).clone_into(slot);
        }
        fits(request)
    };
    // The most characters that fit: `kept` do, `too_many` do not.
    let (mut kept, mut too_many) = (CHARS_MIN, ends.len());
    while too_many - kept > 1 {
        let middle = usize::midpoint(kept, too_many);
        if with(middle) {
            kept = middle;
        } else {
            too_many = middle;
        }
    }
    with(kept);
    Some(Truncation {
        field: text.field(),
        from_chars: ends.len() as u64,
        to_chars: head(kept).chars().count() as u64,
    })
}

/// The texts of a place, in their order.
pub(crate) fn texts(request: &Map<String, Value>, place: Place) -> Vec<Text> {
    let mut found = Vec::new();
    let messages = request.get("messages").and_then(Value::as_array);
    let messages = messages.map_or(&[][..], Vec::as_slice);
    match place {
        Place::System => {
            if let Some(system) = request.get("system") {
                walk(system, &mut vec![Step::Key("system")], &mut found);
            }
        }
        Place::Messages => {
            for (index, message) in messages.iter().enumerate() {
                walk_message(index, message, &mut found);
            }
        }
        Place::LastUserMessage => {
            let last = messages.iter().rposition(|one| one["role"] == "user");
            if let Some(index) = last {
                walk_message(index, &messages[index], &mut found);
            }
        }
    }
    found
}

fn walk_message(index: usize, message: &Value, found: &mut Vec<Text>) {
    let mut path = vec![Step::Key("messages"), Step::At(index), Step::Key("content")];
    walk(&message["content"], &mut path, found);
}

/// Collects the texts of a content: a text, blocks, or one block. The depth is that of known blocks.
fn walk(content: &Value, path: &mut Vec<Step>, found: &mut Vec<Text>) {
    let mut under = |step: Step, value: &Value| {
        path.push(step);
        walk(value, path, found);
        path.pop();
    };
    match content {
        Value::Array(blocks) => {
            for (index, block) in blocks.iter().enumerate() {
                under(Step::At(index), block);
            }
        }
        Value::Object(block) => {
            let inner = match block.get("type").and_then(Value::as_str) {
                // Of a source, or of a block.
                Some("text") if block.contains_key("data") => "data",
                Some("text") => "text",
                Some("document") => "source",
                Some("tool_result" | "content") => "content",
                Some(_) | None => return,
            };
            if let Some(value) = block.get(inner) {
                under(Step::Key(inner), value);
            }
        }
        Value::String(text) => found.push(Text {
            path: path.clone(),
            chars: text.chars().count(),
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::measure;

    fn request(messages: Value, system: Value) -> Map<String, Value> {
        let request = json!({"model": "m", "system": system, "messages": messages});
        request.as_object().unwrap().clone()
    }

    /// So many characters at most, names included.
    fn within(most: u64) -> impl Fn(&Map<String, Value>) -> bool {
        move |request| measure(request).characters <= most
    }

    fn told(cuts: Option<Vec<Truncation>>) -> Vec<String> {
        let cut = |cut: Truncation| format!("{} {} {}", cut.field, cut.from_chars, cut.to_chars);
        cuts.unwrap().into_iter().map(cut).collect()
    }

    #[test]
    fn the_last_user_message_loses_its_end_at_a_character() {
        // Two, three and four bytes a character.
        let text = "é水🌊".repeat(200);
        let messages = json!([
            {"role": "user", "content": "x".repeat(900)},
            {"role": "user", "content": text},
            {"role": "assistant", "content": "y".repeat(900)},
        ]);
        let mut request = request(messages, json!(""));
        let around = measure(&request).characters - 600;
        let cuts = cut(
            &mut request,
            &[Place::LastUserMessage],
            within(around + 401),
        );
        assert_eq!(told(cuts), ["request.messages[1].content 600 401"]);
        let kept = request["messages"][1]["content"].as_str().unwrap();
        assert_eq!(kept, format!("{}é水", "é水🌊".repeat(133)));
        assert_eq!(measure(&request).characters, around + 401);
    }

    #[test]
    fn of_nested_blocks_the_longest_is_cut_first_and_only_text() {
        let long = |c: &str| c.repeat(1_000);
        let messages = json!([{"role": "user", "content": [
            {"type": "text", "text": "What is this about?"},
            {"type": "image", "source": {"type": "base64", "data": long("i")}},
            {"type": "document", "source": {"type": "base64", "data": long("b")}},
            {"type": "document", "title": long("t"),
             "source": {"type": "text", "media_type": "text/plain", "data": "d".repeat(3_000)}},
            {"type": "tool_result", "tool_use_id": long("u"),
             "content": [{"type": "text", "text": "r".repeat(2_000)}]},
            {"type": "thinking", "thinking": long("k"), "signature": long("s")},
        ]}]);
        let whole = request(messages, json!("z".repeat(1_000)));
        let all = measure(&whole).characters;
        let cut_to = |gone: u64, places: &[Place]| {
            let mut request = whole.clone();
            (cut(&mut request, places, within(all - gone)), request)
        };
        let (cuts, after) = cut_to(2_700, &[Place::LastUserMessage]);
        assert_eq!(
            told(cuts),
            ["request.messages[0].content[3].source.data 3000 300"]
        );
        assert_eq!(
            after["messages"][0]["content"][4],
            whole["messages"][0]["content"][4]
        );
        let (cuts, _) = cut_to(3_000, &[Place::LastUserMessage]);
        assert_eq!(
            told(cuts),
            [
                "request.messages[0].content[3].source.data 3000 200",
                "request.messages[0].content[4].content[0].text 2000 1800",
            ]
        );
        // A second place is cut once the first one has nothing left, and by no more than it takes.
        let (cuts, _) = cut_to(5_000, &[Place::Messages, Place::System]);
        assert_eq!(told(cuts)[2], "request.system 1000 600");
    }

    #[test]
    fn what_cannot_be_cut_enough_stays_as_it_was() {
        let messages = json!([{"role": "user", "content": "x".repeat(1_000)}]);
        let before = request(messages, json!("y".repeat(1_000)));
        for (places, most) in [
            (&[Place::LastUserMessage][..], 1_000),
            (&[], 1_500),
            (&Place::ALL, 0),
        ] {
            let mut request = before.clone();
            assert_eq!(cut(&mut request, places, within(most)), None);
            assert_eq!(request, before);
        }
        // Nothing to say is worse than nothing.
        let blank = json!([{"role": "user", "content": " ".repeat(1_000)}]);
        let mut blank = request(blank, json!(""));
        assert_eq!(cut(&mut blank, &Place::ALL, within(500)), None);
    }

    proptest! {
        #[test]
        fn whatever_is_cut_fits_and_is_the_beginning_of_what_was_there(
            text in "[a-z é水🌊\\n]{150,600}",
            most in 100_u64..700,
        ) {
            let before = request(json!([{"role": "user", "content": text}]), json!(""));
            let mut after = before.clone();
            let cuts = cut(&mut after, &[Place::LastUserMessage], within(most));
            let kept = after["messages"][0]["content"].as_str().unwrap();
            prop_assert!(text.starts_with(kept));
            match cuts {
                None => prop_assert_eq!(&after, &before),
                Some(cuts) => {
                    prop_assert!(measure(&after).characters <= most);
                    prop_assert_eq!(cuts.is_empty(), kept == text);
                }
            }
        }
    }
}
