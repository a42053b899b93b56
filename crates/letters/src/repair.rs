//! A body made runnable: what a person asks for, in a fixed order.
//!
//! First the bytes (replaced as a whole, or without what cannot be decoded), then the document
//! (merge patch, model, room for the answer), last the length, because all of that decides what
//! fits. Bytes that nothing changes stay as they are. Whether the result is a job is for the judge
//! of submissions to say.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What is to be done to a body.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Repair {
    /// Take this instead of the body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// Leave out bytes that are not UTF-8, control characters and half surrogate pairs.
    #[serde(skip_serializing_if = "is_false")]
    pub strip: bool,
    /// Merge this into the document (RFC 7396): null takes a field away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patch: Option<Value>,
    /// The tenant it is sent for, if it was published under another name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// Cut the ends of these texts until the job fits its model, such as
    /// `request.messages[0].content`. An empty name means the longest text.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub trim: Vec<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_false(flag: &bool) -> bool {
    !*flag
}

/// A body after its repair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repaired {
    pub body: Vec<u8>,
    /// What was changed, a short sentence each. Empty if nothing was.
    pub changes: Vec<String>,
}

/// Why a body cannot be repaired in this way.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RepairError {
    #[error("the body is not JSON ({0}), so only its bytes can be changed; use --strip or --body")]
    NotJson(String),
    #[error("the body is not a JSON object, so it has no fields to change; use --body")]
    NotAnObject,
    #[error("the body has no text {0:?} to cut; name it as in request.messages[0].content")]
    NoText(String),
    #[error("the job does not fit its model even without the texts named; name more of them")]
    StillTooLong,
}

impl Repair {
    /// Whether it asks for anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What it asks for, for the history of a job: short, without any of the text.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut parts = Vec::new();
        parts.extend(self.body.as_ref().map(|_| "new body".to_owned()));
        parts.extend(self.strip.then(|| "strip".to_owned()));
        if let Some(patch) = &self.patch {
            let fields = patch.as_object().into_iter().flat_map(|patch| patch.keys());
            let fields: Vec<&str> = fields.take(5).map(String::as_str).collect();
            parts.push(format!("patch {}", fields.join(",")));
        }
        parts.extend(self.tenant.as_ref().map(|name| format!("tenant {name}")));
        parts.extend(self.model.as_ref().map(|model| format!("model {model}")));
        parts.extend(self.max_tokens.map(|max| format!("max_tokens {max}")));
        parts.extend((!self.trim.is_empty()).then(|| "trim".to_owned()));
        let mut summary = parts.join("; ");
        summary.truncate(summary.floor_char_boundary(200));
        summary
    }
}

/// Repairs `body`. `fits` says whether a body is short enough for its model.
///
/// # Errors
/// [`RepairError`].
pub fn repair(
    body: &[u8],
    repair: &Repair,
    fits: impl Fn(&[u8]) -> bool,
) -> Result<Repaired, RepairError> {
    let mut changes = Vec::new();
    let mut bytes = body.to_vec();
    if let Some(new) = &repair.body {
        bytes = new.clone().into_bytes();
        if bytes != body {
            changes.push("the body was replaced".to_owned());
        }
    }
    if repair.strip {
        let stripped = strip(&bytes);
        if stripped.len() < bytes.len() {
            let gone = bytes.len() - stripped.len();
            changes.push(format!("{gone} bytes that cannot be decoded were left out"));
            bytes = stripped;
        }
    }
    let bytes_only = Repair {
        body: repair.body.clone(),
        strip: repair.strip,
        ..Repair::default()
    };
    if *repair == bytes_only {
        return Ok(Repaired {
            body: bytes,
            changes,
        });
    }
    let before: Value =
        serde_json::from_slice(&bytes).map_err(|error| RepairError::NotJson(error.to_string()))?;
    if !before.is_object() {
        return Err(RepairError::NotAnObject);
    }
    let mut document = before.clone();
    edit(&mut document, repair, &mut changes);
    if document != before {
        bytes = document.to_string().into_bytes();
    }
    trim(&mut document, &repair.trim, &mut bytes, &fits, &mut changes)?;
    Ok(Repaired {
        body: bytes,
        changes,
    })
}

fn edit(document: &mut Value, repair: &Repair, changes: &mut Vec<String>) {
    if let Some(patch) = &repair.patch {
        let before = document.clone();
        json_patch::merge(document, patch);
        if *document != before {
            changes.push("the patch was merged".to_owned());
        }
    }
    if let (Some(tenant), Some(named)) = (&repair.tenant, document.get_mut("tenant"))
        && named != tenant.as_str()
    {
        changes.push(format!("tenant was {named} and is {tenant:?}"));
        *named = tenant.as_str().into();
    }
    let model = repair
        .model
        .as_ref()
        .map(|model| Value::from(model.as_str()));
    let max_tokens = repair.max_tokens.map(Value::from);
    for (name, value) in [("model", model), ("max_tokens", max_tokens)] {
        let Some(value) = value else { continue };
        // A job names them in its request, or beside its prompt.
        let place = if document.get("prompt").is_some() {
            &mut *document
        } else {
            &mut document["request"]
        };
        if let Some(fields) = place.as_object_mut() {
            let shown = value.to_string();
            let old = fields.insert(name.to_owned(), value);
            let old = old.map_or_else(|| "missing".to_owned(), |old| old.to_string());
            if old != shown {
                changes.push(format!("{name} was {old} and is {shown}"));
            }
        }
    }
}

/// Cuts the texts at `paths`, one after the other and each as little as possible, until `bytes`,
/// which is the document as text, fits.
fn trim(
    document: &mut Value,
    paths: &[String],
    bytes: &mut Vec<u8>,
    fits: &impl Fn(&[u8]) -> bool,
    changes: &mut Vec<String>,
) -> Result<(), RepairError> {
    for path in paths {
        let path = if path.is_empty() {
            longest_text(document).ok_or_else(|| RepairError::NoText(String::new()))?
        } else {
            path.clone()
        };
        let text = text_at(document, &path)?.clone();
        if fits(bytes) {
            continue;
        }
        let ends: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        // The most characters that fit: `kept` do, `kept + 1` do not.
        let mut with = |characters: usize| -> Result<Vec<u8>, RepairError> {
            text[..ends[characters]].clone_into(text_at(document, &path)?);
            Ok(document.to_string().into_bytes())
        };
        if ends.is_empty() {
            continue;
        }
        let (mut kept, mut too_many) = (0, ends.len());
        while too_many - kept > 1 {
            let middle = usize::midpoint(kept, too_many);
            if fits(&with(middle)?) {
                kept = middle;
            } else {
                too_many = middle;
            }
        }
        *bytes = with(kept)?;
        let (gone, all) = (ends.len() - kept, ends.len());
        changes.push(format!(
            "{path} lost the last {gone} of its {all} characters"
        ));
    }
    if !paths.is_empty() && !fits(bytes) {
        return Err(RepairError::StillTooLong);
    }
    Ok(())
}

/// The text at a path such as `request.messages[0].content`.
fn text_at<'a>(document: &'a mut Value, path: &str) -> Result<&'a mut String, RepairError> {
    let pointer = path.replace('[', ".").replace(']', "").replace('.', "/");
    match document.pointer_mut(&format!("/{pointer}")) {
        Some(Value::String(text)) => Ok(text),
        Some(_) | None => Err(RepairError::NoText(path.to_owned())),
    }
}

/// Path of the longest text that the model will read.
fn longest_text(document: &Value) -> Option<String> {
    fn walk(value: &Value, path: &str, found: &mut Option<(usize, String)>) {
        match value {
            Value::String(text) if found.as_ref().is_none_or(|(most, _)| text.len() > *most) => {
                *found = Some((text.len(), path.to_owned()));
            }
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    walk(item, &format!("{path}[{index}]"), found);
                }
            }
            Value::Object(fields) if value["type"] != "image" => {
                for (name, item) in fields {
                    walk(item, &format!("{path}.{name}"), found);
                }
            }
            Value::String(_) | Value::Object(_) => {}
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
    let mut found = None;
    for place in ["prompt", "system"] {
        walk(&document[place], place, &mut found);
    }
    for place in ["system", "messages"] {
        walk(
            &document["request"][place],
            &format!("request.{place}"),
            &mut found,
        );
    }
    found.map(|(_, path)| path)
}

/// `bytes` without what keeps JSON from being decoded: bytes that are not UTF-8, a byte order
/// mark, control characters (in text JSON wants them escaped) and half surrogate pairs.
#[must_use]
pub fn strip(bytes: &[u8]) -> Vec<u8> {
    let text: String = bytes.utf8_chunks().map(|chunk| chunk.valid()).collect();
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let mut out = String::with_capacity(text.len());
    let mut in_text = false;
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let mut taken = c.len_utf8();
        match c {
            '\\' if in_text => {
                taken = escape_length(rest);
                if !is_half_pair(&rest[..taken]) {
                    out.push_str(&rest[..taken]);
                }
            }
            '"' => {
                in_text = !in_text;
                out.push(c);
            }
            '\u{0}'..='\u{1f}' if in_text || !c.is_ascii_whitespace() => {}
            _ => out.push(c),
        }
        rest = &rest[taken..];
    }
    out.into_bytes()
}

/// Length of the escape that `text` begins with; a surrogate pair is one.
fn escape_length(text: &str) -> usize {
    let unit = |text: &str| -> Option<u16> {
        let digits = text.strip_prefix("\\u")?.get(..4)?;
        u16::from_str_radix(digits, 16).ok()
    };
    let second = text.chars().nth(1).map_or(0, char::len_utf8);
    match unit(text) {
        Some(0xd800..=0xdbff) if matches!(unit(&text[6..]), Some(0xdc00..=0xdfff)) => 12,
        Some(_) => 6,
        None => 1 + second,
    }
}

fn is_half_pair(escape: &str) -> bool {
    let digits = escape.strip_prefix("\\u").filter(|rest| rest.len() == 4);
    let unit = digits.and_then(|digits| u16::from_str_radix(digits, 16).ok());
    matches!(unit, Some(0xd800..=0xdfff))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn anything_fits(_: &[u8]) -> bool {
        true
    }

    fn job() -> Value {
        json!({"id": "a", "request": {"model": "m", "max_tokens": 64, "messages": [
            {"role": "user", "content": "淡淡淡淡 long text"}]}})
    }

    #[test]
    fn what_cannot_be_decoded_is_left_out_and_nothing_else() {
        let cases: [(&[u8], &[u8]); 8] = [
            (b"{\"a\":\"x\xff\xfey\"}", b"{\"a\":\"xy\"}"),
            (b"\xef\xbb\xbf{}", b"{}"),
            (b"{\"a\":\"x\0\ny\"}", b"{\"a\":\"xy\"}"),
            (b"{\r\n\t\"a\" : 1\0}", b"{\r\n\t\"a\" : 1}"),
            (br#"{"a":"\ud83dx"}"#, br#"{"a":"x"}"#),
            (
                br#"{"a":"\ude00\ud83d\ude00\ud83d"}"#,
                br#"{"a":"\ud83d\ude00"}"#,
            ),
            (br#"{"a":"\\ud83d\" \n"}"#, br#"{"a":"\\ud83d\" \n"}"#),
            (b"{\"a\":\"\\\xff", b"{\"a\":\"\\"),
        ];
        for (body, want) in cases {
            let stripped = strip(body);
            assert_eq!(stripped, want, "{}", body.escape_ascii());
            assert_eq!(strip(&stripped), stripped, "a second time");
        }
    }

    #[test]
    fn a_body_that_needs_no_change_stays_as_it_is() {
        let body = br#"{ "request": {"model": "m", "max_tokens": 64} }"#;
        let asked = Repair {
            strip: true,
            model: Some("m".into()),
            max_tokens: Some(64),
            patch: Some(json!({})),
            ..Repair::default()
        };
        let repaired = repair(body, &asked, anything_fits).unwrap();
        assert_eq!(repaired.body, body);
        assert_eq!(repaired.changes, Vec::<String>::new());
    }

    #[test]
    fn a_patch_changes_and_takes_away_fields() {
        let body = json!({"priority": "high", "origin": "human", "request": {"model": "m"}});
        let asked = Repair {
            patch: Some(json!({"priority": null, "origin": "user_action"})),
            ..Repair::default()
        };
        let repaired = repair(body.to_string().as_bytes(), &asked, anything_fits).unwrap();
        let found: Value = serde_json::from_slice(&repaired.body).unwrap();
        assert_eq!(
            found,
            json!({"origin": "user_action", "request": {"model": "m"}})
        );
        assert_eq!(asked.summary(), "patch origin,priority");
    }

    #[test]
    fn model_and_room_are_set_where_the_job_names_them() {
        let asked = Repair {
            model: Some("n".into()),
            max_tokens: Some(9),
            ..Repair::default()
        };
        for (body, want) in [
            (
                json!({"request": {"model": "m"}}),
                json!({"request": {"model": "n", "max_tokens": 9}}),
            ),
            (
                json!({"prompt": "hi", "model": "m"}),
                json!({"prompt": "hi", "model": "n", "max_tokens": 9}),
            ),
        ] {
            let repaired = repair(body.to_string().as_bytes(), &asked, anything_fits).unwrap();
            let found: Value = serde_json::from_slice(&repaired.body).unwrap();
            assert_eq!(found, want);
            assert_eq!(
                repaired.changes,
                [
                    r#"model was "m" and is "n""#,
                    "max_tokens was missing and is 9"
                ]
            );
        }
    }

    #[test]
    fn a_body_that_is_no_document_can_only_be_replaced() {
        let asked = Repair {
            model: Some("n".into()),
            ..Repair::default()
        };
        let refused = repair(b"wp-0017;broken", &asked, anything_fits);
        assert!(matches!(refused, Err(RepairError::NotJson(_))));
        assert_eq!(
            repair(b"[1]", &asked, anything_fits),
            Err(RepairError::NotAnObject)
        );
        let asked = Repair {
            body: Some(job().to_string()),
            ..asked
        };
        let repaired = repair(b"wp-0017;broken", &asked, anything_fits).unwrap();
        assert!(repaired.changes[0].contains("replaced"));
    }

    #[test]
    fn texts_that_are_none_are_named() {
        for path in [
            "request.messages[7].content",
            "request.max_tokens",
            "request",
        ] {
            let asked = Repair {
                trim: vec![path.into()],
                ..Repair::default()
            };
            let refused = repair(job().to_string().as_bytes(), &asked, anything_fits);
            assert_eq!(refused, Err(RepairError::NoText(path.into())));
        }
        let asked = Repair {
            trim: vec![String::new()],
            ..Repair::default()
        };
        let refused = repair(job().to_string().as_bytes(), &asked, |_| false);
        assert_eq!(refused, Err(RepairError::StillTooLong));
    }

    proptest! {
        #[test]
        fn a_text_is_cut_exactly_as_much_as_is_needed(
            text in "[a-z淡\"\\\\]{1,60}", other in "[a-z]{0,5}", limit in 60_usize..300
        ) {
            let body = json!({"request": {"messages": [
                {"content": text}, {"content": [{"type": "text", "text": other}]}]}});
            let body = body.to_string().into_bytes();
            let asked = Repair { trim: vec!["request.messages[0].content".into()], ..Repair::default() };
            let repaired = repair(&body, &asked, |body| body.len() <= limit);
            let empty = json!({"request": {"messages": [
                {"content": ""}, {"content": [{"type": "text", "text": other}]}]}});
            if empty.to_string().len() > limit {
                prop_assert_eq!(repaired, Err(RepairError::StillTooLong));
                return Ok(());
            }
            let repaired = repaired.unwrap();
            prop_assert!(repaired.body.len() <= limit);
            let found: Value = serde_json::from_slice(&repaired.body).unwrap();
            let kept = found["request"]["messages"][0]["content"].as_str().unwrap();
            prop_assert!(text.starts_with(kept));
            if let Some(next) = text[kept.len()..].chars().next() {
                let more = json!({"request": {"messages": [
                    {"content": format!("{kept}{next}")}, {"content": [{"type": "text", "text": other}]}]}});
                prop_assert!(more.to_string().len() > limit);
            } else {
                prop_assert_eq!(&repaired.body, &body);
            }
        }

        #[test]
        fn stripping_any_bytes_gives_text_and_changes_nothing_twice(
            bytes in proptest::collection::vec(any::<u8>(), 0..200)
        ) {
            let stripped = strip(&bytes);
            prop_assert!(std::str::from_utf8(&stripped).is_ok());
            prop_assert_eq!(strip(&stripped), stripped);
        }

        #[test]
        fn a_document_with_foreign_bytes_in_its_text_is_readable_again(
            text in "[ -~é淡]{0,40}", garbage in proptest::collection::vec(0x80_u8..=0xff, 1..6), at in any::<prop::sample::Index>()
        ) {
            let whole = json!({"id": text}).to_string();
            let mut damaged = whole.clone().into_bytes();
            let start = whole.find(':').unwrap() + 2;
            let boundaries: Vec<usize> = (start..whole.len() - 1)
                .filter(|at| whole.is_char_boundary(*at) && !whole[..*at].ends_with('\\')).collect();
            let at = boundaries[at.index(boundaries.len())];
            for byte in garbage {
                damaged.insert(at, if byte == 0xc3 { 0xff } else { byte });
            }
            prop_assert!(serde_json::from_slice::<Value>(&strip(&damaged)).is_ok());
        }
    }
}
