//! Which failures are the same one: a short hash of what went wrong without what differs from job
//! to job (ids, numbers, quoted values, positions in lists).

use sha2::{Digest, Sha256};

use crate::failure::Failure;

/// What stands for anything that differs between two failures of one sort.
const ANY: char = '#';

/// Twelve hexadecimal digits that failures of one sort share.
#[must_use]
pub fn fingerprint(failure: &Failure) -> String {
    let mut hash = Sha256::new();
    let status = failure.upstream.as_ref().and_then(|up| up.status);
    let status = status.map(|status| status.to_string());
    let said = failure.said().map(shape);
    let parts = [
        Some(failure.reason.as_str().to_owned()),
        failure.detail.as_deref().map(str::to_owned),
        failure.field.as_deref().map(shape),
        status,
        Some(shape(&failure.message)),
        said,
    ];
    for part in parts {
        hash.update(part.unwrap_or_default().as_bytes());
        hash.update([0]);
    }
    let hex = hash.finalize();
    hex[..6].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `text` without what differs from job to job: each quoted part, and each word with a digit in it
/// (numbers, ids, hashes), becomes one sign; case and white space do not count.
fn shape(text: &str) -> String {
    let mut shape = String::with_capacity(text.len());
    let mut rest = text;
    let mut before = ' ';
    while let Some(c) = rest.chars().next() {
        let taken = if let Some(length) = quoted(rest, before) {
            shape.push(ANY);
            length
        } else if is_word(c) {
            let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            let word = &rest[..length];
            if word.contains(|c: char| c.is_numeric()) {
                shape.push(ANY);
            } else {
                shape.push_str(&word.to_lowercase());
            }
            length
        } else {
            if !c.is_whitespace() {
                shape.push(c);
            } else if !shape.ends_with(' ') {
                shape.push(' ');
            }
            c.len_utf8()
        };
        before = rest[..taken].chars().next_back().unwrap_or(' ');
        rest = &rest[taken..];
    }
    shape.trim().to_owned()
}

/// Length of the quoted part that `text` begins with. An apostrophe within a word is no quote, and
/// neither is one that nothing closes.
fn quoted(text: &str, before: char) -> Option<usize> {
    let quote = text.chars().next().filter(|c| "\"'`".contains(*c))?;
    if is_word(before) {
        return None;
    }
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        let ends = c == quote && !escaped;
        escaped = c == '\\' && !escaped;
        let after = &text[at + c.len_utf8()..];
        if ends && !after.starts_with(is_word) {
            return Some(at + c.len_utf8());
        }
    }
    None
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '-'
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{DeadReason, Upstream};

    #[test]
    fn what_differs_from_job_to_job_is_not_part_of_a_shape() {
        let same = [
            (
                "invalid UTF-8 at byte 71",
                "Invalid  utf-8 at byte 9000",
                "invalid # at byte #",
            ),
            (
                "model \"claude-x-9\" isn't known (req_011Ab)",
                "model \"a \\\" b\" isn't known (req_9Zz)",
                "model # isn't known (#)",
            ),
            (
                "'tags' has 2 items",
                "'labels' has 31 items",
                "# has # items",
            ),
        ];
        for (one, other, want) in same {
            assert_eq!(shape(one), want);
            assert_eq!(shape(other), want);
        }
        assert_eq!(shape("it's the dog's \"open"), "it's the dog's \"open");
        assert_eq!(shape("淡い '🎴' é"), "淡い # é");
    }

    #[test]
    fn failures_of_one_sort_share_a_fingerprint_and_others_do_not() {
        let failure =
            |message: &str, field: &str| Failure::new(DeadReason::InvalidJob, message).field(field);
        let print = |message, field| fingerprint(&failure(message, field));
        let one = print("content is 7", "request.messages[0].content");
        assert_eq!(one, print("content is 12", "request.messages[31].content"));
        assert_ne!(one, print("content is 7", "request.messages[0].role"));
        assert_ne!(
            one,
            print("content is missing", "request.messages[0].content")
        );
        let mut other = failure("content is 7", "request.messages[0].content");
        other = other.answered(Upstream {
            status: Some(400),
            ..Upstream::default()
        });
        assert_ne!(one, fingerprint(&other));
        other.upstream = None;
        other.reason = DeadReason::Schema;
        assert_ne!(one, fingerprint(&other));
        assert_eq!(one, "f076fb1cb763", "yesterday's groups must stay together");
    }
}
