//! What a repair changes, line by line.

use serde_json::Value;
use similar::{ChangeTag, TextDiff};

use crate::out::{Ink, Paint};

/// Unchanged lines shown around a change.
const CONTEXT: usize = 2;
/// Characters of a line that are shown.
const LINE_MAX: usize = 160;

/// The lines that differ between two bodies, with some around them.
pub(crate) fn diff(before: &[u8], after: &[u8], paint: Paint) -> String {
    // Of two forms of text everything would differ.
    let (before, after) = match (indented(before), indented(after)) {
        (Some(before), Some(after)) => (before, after),
        (None, _) | (_, None) => (escaped(before), escaped(after)),
    };
    let diff = TextDiff::from_lines(&before, &after);
    let mut lines = Vec::new();
    for group in diff.grouped_ops(CONTEXT) {
        if !lines.is_empty() {
            lines.push(paint.paint(Ink::Aside, "..."));
        }
        for change in group.iter().flat_map(|op| diff.iter_changes(op)) {
            let line = short(change.value().trim_end_matches('\n'));
            lines.push(match change.tag() {
                ChangeTag::Equal => format!("  {line}"),
                ChangeTag::Delete => paint.paint(Ink::Bad, format!("- {line}")),
                ChangeTag::Insert => paint.paint(Ink::Good, format!("+ {line}")),
            });
        }
    }
    lines.join("\n")
}

fn indented(body: &[u8]) -> Option<String> {
    let value: Value = serde_json::from_slice(body).ok()?;
    Some(format!("{value:#}\n"))
}

/// The body as it is, what cannot be shown escaped.
fn escaped(body: &[u8]) -> String {
    let mut text = String::new();
    for chunk in body.utf8_chunks() {
        text.push_str(chunk.valid());
        let bytes = chunk.invalid();
        text.extend(bytes.iter().map(|byte| format!("\\x{byte:02x}")));
    }
    // A long line says nothing about where it changed.
    text.replace(',', ",\n") + "\n"
}

fn short(line: &str) -> String {
    let line: String = line
        .chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect();
    if line.chars().count() <= LINE_MAX {
        return line;
    }
    let head: String = line.chars().take(LINE_MAX / 2).collect();
    let tail: Vec<char> = line.chars().rev().take(LINE_MAX / 2 - 3).collect();
    head + "..." + &tail.into_iter().rev().collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_changes_and_its_surroundings_are_shown() {
        let before = br#"{"a":1,"b":2,"c":3,"d":4,"e":5,"priority":"high"}"#;
        let after = br#"{"a":1,"b":2,"c":3,"d":4,"e":5}"#;
        assert_eq!(
            diff(before, after, Paint::plain()),
            "    \"c\": 3,\n    \"d\": 4,\n-   \"e\": 5,\n-   \"priority\": \"high\"\n+   \"e\": 5\n  }"
        );
    }

    #[test]
    fn bytes_that_are_no_text_are_told() {
        let shown = diff(
            b"{\"a\":\"x\xff\",\"b\":1",
            b"{\"a\":\"x\",\"b\":1",
            Paint::plain(),
        );
        assert_eq!(shown, "- {\"a\":\"x\\xff\",\n+ {\"a\":\"x\",\n  \"b\":1");
        assert!(short(&"x".repeat(500)).len() <= LINE_MAX);
    }
}
