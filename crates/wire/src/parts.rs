//! A job that is too long, in parts: which pieces of its text are summarised by jobs of their own, and what
//! it becomes when their summaries stand in the place of the text.
//!
//! Everything here follows from the body and a few numbers, so whoever goes on with a job that somebody
//! else began finds the same pieces. The [`Plan`] is all that is kept meanwhile, one key per job.

use fairlane_core::oversize::Place;
use fairlane_core::{JobId, TenantId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::cut::{Text, texts};
use crate::text;

/// Jobs that summarise pieces are of this kind.
pub const KIND: &str = "oversize_part";
/// Pieces of one round at most.
pub const PARTS_MAX: usize = 32;
/// Rounds at most: summaries that are too long themselves are summarised once more.
pub const ROUNDS_MAX: u32 = 2;
/// Tokens a summary may have.
const SUMMARY_TOKENS: std::ops::RangeInclusive<u64> = 256..=2_048;
/// A text with fewer characters is not worth a summary.
const TEXT_CHARS_MIN: usize = 1_000;
/// A piece ends at a white space that is within this part of its length before the exact place.
const SOFT_PARTS: u64 = 16;

/// A piece of a text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// As in `request.messages[0].content`.
    pub field: String,
    /// Bytes of the text.
    pub from: usize,
    pub to: usize,
}

/// What decides how a request is split.
#[derive(Debug, Clone, Copy)]
pub struct Room<'a> {
    /// Texts that may be summarised.
    pub places: &'a [Place],
    /// Tokens the request may have in the end.
    pub request_tokens: u64,
    /// Tokens of text that fit into one part.
    pub part_tokens: u64,
}

/// The pieces, and the tokens that the summary of each may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pieces {
    pub pieces: Vec<Piece>,
    pub summary_tokens: u64,
}

/// Splits texts of `request`, the longest first, until what is left and the summaries fit into `room`.
/// None if that takes too many pieces, or is not enough. `tokens` measures a request, `weight` a character
/// in thousandths of a token.
#[must_use]
pub fn split(
    request: &Map<String, Value>,
    room: Room<'_>,
    tokens: impl Fn(&Map<String, Value>) -> u64,
    weight: impl Fn(char) -> u64,
) -> Option<Pieces> {
    let mut work = request.clone();
    let mut pieces = Vec::new();
    let left = |work: &Map<String, Value>| room.request_tokens.saturating_sub(tokens(work));
    for place in room.places {
        let mut texts = texts(&work, *place);
        texts.retain(|text| text.chars >= TEXT_CHARS_MIN);
        texts.sort_by_key(|text| std::cmp::Reverse(text.chars));
        for text in texts {
            if left(&work) >= SUMMARY_TOKENS.start() * pieces.len().max(1) as u64 {
                break;
            }
            let slot = text.of(&mut work)?;
            pieces.extend(cut_up(&text, slot, room.part_tokens, &weight)?);
            slot.clear();
            if pieces.len() > PARTS_MAX {
                return None;
            }
        }
    }
    let left = left(&work);
    if pieces.is_empty() || left < *SUMMARY_TOKENS.start() {
        return None;
    }
    let each = left / 10 * 9 / pieces.len() as u64;
    Some(Pieces {
        pieces,
        summary_tokens: each.clamp(*SUMMARY_TOKENS.start(), *SUMMARY_TOKENS.end()),
    })
}

/// About equal pieces of a text, each of at most `part_tokens`.
fn cut_up(
    text: &Text,
    whole: &str,
    part_tokens: u64,
    weight: &impl Fn(char) -> u64,
) -> Option<Vec<Piece>> {
    let all: u64 = whole.chars().map(weight).sum();
    let piece_max = part_tokens.saturating_mul(1_000) / (SOFT_PARTS + 1) * SOFT_PARTS;
    if piece_max == 0 {
        return None;
    }
    let count = all.div_ceil(piece_max).max(1);
    if count > PARTS_MAX as u64 {
        return None;
    }
    let field = text.field();
    let (mut pieces, mut from, mut weighed) = (Vec::new(), 0, 0);
    // The latest white space, and what everything up to it weighs.
    let mut gap = (0, 0);
    for (at, character) in whole.char_indices() {
        let end = all * (pieces.len() as u64 + 1) / count;
        if weighed >= end && at > from {
            let soft = gap.0 > from && weighed - gap.1 <= all / count / SOFT_PARTS;
            let to = if soft { gap.0 } else { at };
            pieces.push(Piece {
                field: field.clone(),
                from,
                to,
            });
            from = to;
        }
        weighed += weight(character);
        if character.is_whitespace() {
            gap = (at + character.len_utf8(), weighed);
        }
    }
    pieces.push(Piece {
        field,
        from,
        to: whole.len(),
    });
    Some(pieces)
}

/// The text at `field`, if it is one that may be summarised.
fn find(request: &Map<String, Value>, field: &str) -> Option<Text> {
    let mut all = texts(request, Place::Messages);
    all.extend(texts(request, Place::System));
    all.into_iter().find(|text| text.field() == field)
}

/// The text of a piece.
#[must_use]
pub fn text_of<'a>(request: &'a Map<String, Value>, piece: &Piece) -> Option<&'a str> {
    let whole = find(request, &piece.field)?.read(request)?;
    whole.get(piece.from..piece.to)
}

/// Everything that is to be remembered of a job in parts: a key of the bucket of idempotency keys.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    #[serde(with = "text::tenant")]
    pub tenant: TenantId,
    #[serde(with = "text::job")]
    pub job: JobId,
    /// Subject, sequence, time (unix milliseconds) and headers of what was published.
    pub subject: String,
    pub submission: u64,
    pub stored_ms: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
    pub traceparent: String,
    /// Object with the body that was published.
    pub original: String,
    /// Object with the body that is split: the original, or what the first round made of it.
    pub source: String,
    pub round: u32,
    pub summary_tokens: u64,
    pub parts: Vec<Part>,
    /// Unix milliseconds at which the parts were submitted last.
    pub sent_ms: u64,
}

/// A piece, and the job that summarises it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    #[serde(with = "text::job")]
    pub job: JobId,
    #[serde(flatten)]
    pub piece: Piece,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
}

impl Plan {
    /// Key of the plan of a job. No tenant's name begins so.
    #[must_use]
    pub fn key(tenant: &TenantId, job: &JobId) -> String {
        format!("_parts.{tenant}.{job}")
    }

    /// All plans.
    #[must_use]
    pub fn keys() -> &'static str {
        "_parts.*.*"
    }

    /// Tenant and job of a key. None if it is not a plan's.
    #[must_use]
    pub fn parse_key(key: &str) -> Option<(TenantId, JobId)> {
        let (tenant, job) = key.strip_prefix("_parts.")?.split_once('.')?;
        Some((TenantId::parse(tenant).ok()?, JobId::parse(job).ok()?))
    }

    /// Parts that have their summary.
    #[must_use]
    pub fn done(&self) -> u32 {
        let done = self.parts.iter().filter(|part| part.summary.is_some());
        u32::try_from(done.count()).unwrap_or(u32::MAX)
    }

    /// The request with the summaries in the place of their texts. None if one is missing, or a text.
    #[must_use]
    pub fn joined(&self, request: &Map<String, Value>) -> Option<Map<String, Value>> {
        let mut joined = request.clone();
        let mut fields: Vec<&str> = self
            .parts
            .iter()
            .map(|part| part.piece.field.as_str())
            .collect();
        fields.dedup();
        for field in fields {
            let parts: Vec<&Part> = self
                .parts
                .iter()
                .filter(|it| it.piece.field == field)
                .collect();
            let mut text = match parts.len() {
                1 => "(Summary of a text that was too long.)".to_owned(),
                count => format!("(Summaries of the {count} parts of a text that was too long.)"),
            };
            for (index, part) in parts.iter().enumerate() {
                let summary = part.summary.as_ref()?.trim();
                text.push_str(&format!("\n\n[{}] {summary}", index + 1));
            }
            *find(&joined, field)?.of(&mut joined)? = text;
        }
        Some(joined)
    }
}

/// The request that has part `number` (from 1) of `count` summarised.
#[must_use]
pub fn request(model: &str, summary_tokens: u64, number: usize, count: usize, text: &str) -> Value {
    let words = summary_tokens / 2;
    json!({
        "model": model,
        "max_tokens": summary_tokens,
        "system": "You condense one part of a long text. Your summary is read in the place of the part.",
        "messages": [{"role": "user", "content": format!(
            "What follows is part {number} of {count} of a text that is too long to be read at once. Say what \
             it says in its own language and in at most {words} words. Keep names, numbers, dates and \
             instructions; leave out what is said twice. Answer with the summary alone.\n\n{text}"
        )}],
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::measure;

    /// Four characters a token.
    fn tokens(request: &Map<String, Value>) -> u64 {
        measure(request).characters / 4
    }

    fn weight(_: char) -> u64 {
        250
    }

    fn whole(text: &str) -> Map<String, Value> {
        json!({"system": "be brief", "messages": [
            {"role": "user", "content": [{"type": "text", "text": "What is this?"},
             {"type": "document", "source": {"type": "text", "data": text}}]}]})
        .as_object()
        .unwrap()
        .clone()
    }

    const FIELD: &str = "request.messages[0].content[1].source.data";

    fn room(request_tokens: u64, part_tokens: u64) -> Room<'static> {
        Room {
            places: &[Place::LastUserMessage],
            request_tokens,
            part_tokens,
        }
    }

    #[test]
    fn the_longest_text_is_split_at_white_space_into_pieces_that_fit() {
        let text = "some words. ".repeat(2_000);
        let request = whole(&text);
        let split = split(&request, room(2_000, 2_000), tokens, weight).unwrap();
        let pieces = &split.pieces;
        assert_eq!(pieces.len(), 4);
        assert!(pieces.iter().all(|piece| piece.field == FIELD));
        let texts: Vec<&str> = pieces
            .iter()
            .map(|piece| text_of(&request, piece).unwrap())
            .collect();
        assert_eq!(texts.concat(), text);
        assert!(texts.iter().all(|text| text.ends_with(". ")), "{texts:?}");
        assert!(texts.iter().all(|text| text.len() <= 8_000));
        assert!((256..500).contains(&split.summary_tokens));
    }

    #[test]
    fn what_takes_too_many_pieces_or_does_not_help_is_not_split() {
        let request = whole(&"x".repeat(100_000));
        assert_eq!(split(&request, room(2_000, 100), tokens, weight), None);
        assert_eq!(split(&request, room(2_000, 0), tokens, weight), None);
        // Even without the text there is no room for a summary.
        assert_eq!(split(&request, room(100, 10_000), tokens, weight), None);
        let nowhere = Room {
            places: &[Place::System],
            ..room(2_000, 10_000)
        };
        assert_eq!(split(&request, nowhere, tokens, weight), None);
    }

    fn plan(parts: Vec<Part>) -> Plan {
        Plan {
            tenant: TenantId::parse("acme").unwrap(),
            job: JobId::parse("wp-1").unwrap(),
            subject: "fl.submit.acme".into(),
            submission: 7,
            stored_ms: 5,
            headers: vec![("X-Own".into(), "1".into())],
            traceparent: "00-1-2-01".into(),
            original: "acme.original-j5-7".into(),
            source: "acme.original-j5-7".into(),
            round: 1,
            summary_tokens: 300,
            parts,
            sent_ms: 6,
        }
    }

    fn part(number: usize, summary: Option<&str>) -> Part {
        Part {
            job: JobId::parse(&format!("wp-1-part{number}")).unwrap(),
            piece: Piece {
                field: FIELD.to_owned(),
                from: 0,
                to: 9,
            },
            summary: summary.map(str::to_owned),
        }
    }

    #[test]
    fn a_plan_as_it_is_stored() {
        let plan = plan(vec![part(1, Some("one")), part(2, None)]);
        let text = serde_json::to_string(&plan).unwrap();
        assert_eq!(
            text,
            r#"{"tenant":"acme","job":"wp-1","subject":"fl.submit.acme","submission":7,"stored_ms":5,"headers":[["X-Own","1"]],"traceparent":"00-1-2-01","original":"acme.original-j5-7","source":"acme.original-j5-7","round":1,"summary_tokens":300,"parts":[{"job":"wp-1-part1","field":"request.messages[0].content[1].source.data","from":0,"to":9,"summary":"one"},{"job":"wp-1-part2","field":"request.messages[0].content[1].source.data","from":0,"to":9}],"sent_ms":6}"#
        );
        assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan);
        let key = Plan::key(&plan.tenant, &plan.job);
        assert_eq!(Plan::parse_key(&key), Some((plan.tenant, plan.job)));
        assert_eq!(Plan::parse_key("acme.wp-1"), None);
    }

    #[test]
    fn summaries_take_the_place_of_their_text_once_all_are_there() {
        let request = whole("a long text");
        assert_eq!(
            plan(vec![part(1, Some("one")), part(2, None)]).joined(&request),
            None
        );
        let joined = plan(vec![part(1, Some(" one\n")), part(2, Some("two"))]).joined(&request);
        let want =
            whole("(Summaries of the 2 parts of a text that was too long.)\n\n[1] one\n\n[2] two");
        assert_eq!(joined, Some(want));
    }

    proptest! {
        #[test]
        fn no_piece_is_too_large_and_together_they_are_the_text(
            text in "[a-z é水🌊\\n]{1000,4000}",
            part_tokens in 100_u64..600,
        ) {
            let request = whole(&text);
            if let Some(split) = split(&request, room(600, part_tokens), tokens, weight) {
                let texts: Vec<&str> =
                    split.pieces.iter().map(|piece| text_of(&request, piece).unwrap()).collect();
                prop_assert_eq!(texts.concat(), text);
                for text in &texts {
                    prop_assert!(text.chars().count() as u64 <= part_tokens * 4 + 1, "{}", text.len());
                }
            }
        }
    }
}
