//! How large a job is, in bytes, levels and tokens, and which of that its model does not take.

use bytes::Bytes;
use fairlane_core::models::{Catalog, Lifecycle, Model};
use fairlane_core::oversize::Place;
use fairlane_wire::cut::{Truncation, cut};
use fairlane_wire::letter::{DeadReason, Failure};
use fairlane_wire::parts::{self, Pieces, Room};
use fairlane_wire::submission::{Submission, measure, with_request};
use serde_json::{Map, Value};

/// Tokens the upstream adds around the messages.
const FRAME_TOKENS: u64 = 16;
/// What is cut leaves this part of the context free, because tokens are only estimated.
const MARGIN_PARTS: u64 = 20;
/// Models named when the one asked for is not known.
const SUGGESTIONS_MAX: usize = 3;

/// Estimated tokens of everything the model will read.
pub(super) fn input_tokens(job: &Submission, model: &Model) -> u64 {
    let measure = measure(&job.request);
    model
        .tokens_of_chars(measure.characters.saturating_add(schema_chars(job)))
        .saturating_add(measure.images.saturating_mul(model.image_tokens))
        .saturating_add(FRAME_TOKENS)
}

/// The prompt and the longest answer have to fit into the model's context together.
pub(super) fn check_context(input: u64, max_tokens: u64, model: &Model) -> Result<(), Failure> {
    let limit = model.context_tokens;
    if input.saturating_add(max_tokens) <= limit {
        return Ok(());
    }
    let id = &model.id;
    Err(Failure::new(
        DeadReason::Oversize,
        format!(
            "about {input} input tokens and {max_tokens} of max_tokens do not fit into the {limit} tokens of {id}"
        ),
    )
    .detail("context")
    .field("request.messages")
    .fix("shorten it, or use a model with a larger context"))
}

/// A job that did not fit its model, after its text was cut.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Shortened {
    /// To be stored instead of what was published.
    pub(super) body: Bytes,
    pub(super) truncated: Vec<Truncation>,
}

/// Cuts `job`, published as `body`, at `places` if it does not fit `model`. None, and the job as it was,
/// if it fits or cannot be cut enough.
pub(super) fn shorten(
    job: &mut Submission,
    body: &[u8],
    places: &[Place],
    model: &Model,
) -> Option<Shortened> {
    if places.is_empty() || check_context(input_tokens(job, model), job.max_tokens, model).is_ok() {
        return None;
    }
    let schema = schema_chars(job);
    let room = model.context_tokens - model.context_tokens / MARGIN_PARTS;
    let fits = |request: &Map<String, Value>| {
        let tokens = careful_tokens(request, schema, model);
        tokens.saturating_add(job.max_tokens) <= room
    };
    let mut request = job.request.clone();
    let truncated = cut(&mut request, places, fits)?;
    let body = with_request(body, &request).ok()?.into();
    job.request = request;
    Some(Shortened { body, truncated })
}

/// Tokens of a part besides the piece it summarises, and of its summary.
const PART_FRAME_TOKENS: u64 = 200;
const PART_SUMMARY_TOKENS: u64 = 2_048;

/// The pieces to summarise so that `job` fits `model`. None if that does not help.
pub(super) fn split(job: &Submission, places: &[Place], model: &Model) -> Option<Pieces> {
    let schema = schema_chars(job);
    let context = model.context_tokens - model.context_tokens / MARGIN_PARTS;
    let room = Room {
        places,
        request_tokens: context.saturating_sub(job.max_tokens),
        part_tokens: context.saturating_sub(PART_FRAME_TOKENS + PART_SUMMARY_TOKENS),
    };
    let plain = model.tokens_of_chars(1_000);
    let weight = |character: char| if character.is_ascii() { plain } else { 1_000 };
    let tokens = |request: &Map<String, Value>| careful_tokens(request, schema, model);
    parts::split(&job.request, room, tokens, weight)
}

/// As [`input_tokens`], with a token for each character that is not ASCII: of a text that is to be cut
/// to what just fits, the estimate must not be too low in any language.
fn careful_tokens(request: &Map<String, Value>, schema_chars: u64, model: &Model) -> u64 {
    let measure = measure(request);
    let plain = measure.characters.saturating_sub(measure.not_ascii);
    model
        .tokens_of_chars(plain.saturating_add(schema_chars))
        .saturating_add(measure.not_ascii)
        .saturating_add(measure.images.saturating_mul(model.image_tokens))
        .saturating_add(FRAME_TOKENS)
}

fn schema_chars(job: &Submission) -> u64 {
    let schema = job.output_schema.as_ref();
    schema.map_or(0, |schema| schema.to_string().chars().count() as u64)
}

pub(super) fn too_long_an_answer(max_tokens: u64, model: &Model) -> Failure {
    let (id, limit) = (&model.id, model.output_tokens_max);
    Failure::new(
        DeadReason::InvalidJob,
        format!("request.max_tokens is {max_tokens}; {id} gives at most {limit}"),
    )
    .field("request.max_tokens")
    .fix(format!("give {limit} or less"))
}

pub(super) fn unknown_model(catalog: &Catalog, name: &str) -> Failure {
    let mut known: Vec<(usize, &str)> = catalog
        .models()
        .filter(|model| model.lifecycle != Lifecycle::Retired)
        .map(|model| model.id.as_str())
        .map(|id| (strsim::damerau_levenshtein(name, id), id))
        .collect();
    known.sort_unstable();
    let nearest: Vec<&str> = known
        .iter()
        .take(SUGGESTIONS_MAX)
        .map(|(_, id)| *id)
        .collect();
    let failure = Failure::new(
        DeadReason::UnknownModel,
        format!("model {name:?} is not known to this fleet"),
    )
    .field("request.model");
    if nearest.is_empty() {
        return failure.fix("add it to the models of the configuration");
    }
    failure.fix(format!("use for example {}", nearest.join(", ")))
}

pub(super) fn too_many_bytes(bytes: usize, bytes_max: usize) -> Failure {
    Failure::new(
        DeadReason::Oversize,
        format!("the body has {bytes} bytes; at most {bytes_max} are accepted"),
    )
    .detail("body_bytes")
    .fix("shorten it, or raise producer.body_bytes_max")
}

/// Refuses JSON with more than `levels_max` levels. `json` is valid, which keeps this simple.
pub(super) fn check_nesting(json: &[u8], levels_max: usize) -> Result<(), Failure> {
    // Each level takes two bytes.
    if json.len() <= 2 * levels_max {
        return Ok(());
    }
    let (mut level, mut in_text, mut escaped) = (0, false, false);
    for (offset, byte) in json.iter().enumerate() {
        match (in_text, byte) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (_, b'"') => in_text = !in_text,
            (false, b'{' | b'[') => {
                level += 1;
                if level > levels_max {
                    return Err(too_deep(offset, levels_max));
                }
            }
            (false, b'}' | b']') => level -= 1,
            (true | false, _) => {}
        }
    }
    Ok(())
}

fn too_deep(offset: usize, levels_max: usize) -> Failure {
    Failure::new(
        DeadReason::Undecodable,
        format!("nested too deeply: more than {levels_max} levels at byte {offset}"),
    )
    .detail("too_deep")
    .at(offset)
    .fix("flatten the document")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_counted_outside_of_text_only() {
        let two = br#"{"a": ["[[[[\"{{{{", "\\"], "b": {}, "c": [1, 2, 3]}"#;
        assert_eq!(check_nesting(two, 2), Ok(()));
        let failure = check_nesting(two, 1).unwrap_err();
        assert_eq!(
            (failure.reason, failure.offset),
            (DeadReason::Undecodable, Some(6))
        );
        assert!(check_nesting(br#"{"a":"\\","b":[[1]]}"#, 2).is_err());
    }

    #[test]
    fn retired_models_are_not_suggested() {
        let failure = unknown_model(&Catalog::default(), "claude-sonnet-4-55");
        let fix = failure.fix.unwrap();
        assert!(!fix.contains("claude-sonnet-4-5,"), "{fix}");
        assert!(fix.contains("claude-sonnet-5-5"), "{fix}");
        assert!(unknown_model(&Catalog::empty(), "x").fix.is_some());
    }
}
