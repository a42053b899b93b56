//! The jobs that summarise the pieces of another one.
//!
//! Their ids follow from their parent's key and from what they are to do. So the same piece is the same job
//! however often its parent is begun, and one that has its summary is not paid again, not even when the
//! parent is sent again as a dead letter.

use bytes::Bytes;
use fairlane_core::JobId;
use fairlane_core::models::{Catalog, Thinking, ThinkingDefault};
use fairlane_wire::job::key_hash;
use fairlane_wire::parts::{self, Part, Pieces};
use fairlane_wire::record::{Descent, JobRecord, Link, Parts, Phase};
use fairlane_wire::submission::Submission;
use fairlane_wire::{JobHeaders, PartsPlan, header};
use serde_json::{Map, Value, json};

use super::Arrival;

/// Characters of the parent's id in a part's, which has a limit.
const ID_CHARS: usize = 80;
/// Fields of a submission that its parts have as well.
const INHERITED: [&str; 8] = [
    "origin",
    "sla_seconds",
    "deadline_ms",
    "not_before_ms",
    "on_overload",
    "api_version",
    "betas",
    "max_attempts",
];

/// The parts of a job.
pub(super) fn parts(
    arrival: &Arrival,
    job: &Submission,
    headers: &JobHeaders,
    pieces: &Pieces,
) -> Vec<Part> {
    let first: String = headers.job.as_str().chars().take(ID_CHARS).collect();
    let round = arrival.rounds + 1;
    let part = |(index, piece): (usize, &parts::Piece)| {
        let text = parts::text_of(&job.request, piece).unwrap_or_default();
        let JobHeaders { key, model, .. } = headers;
        let hash = key_hash(&format!(
            "{key}\n{round}\n{model}\n{}\n{text}",
            pieces.summary_tokens
        ));
        let id = format!("{first}-part{}-{}", index + 1, &hash[..12]);
        Part {
            job: JobId::parse(&id).expect("an id, letters, digits and dashes"),
            piece: piece.clone(),
            summary: None,
        }
    };
    pieces.pieces.iter().enumerate().map(part).collect()
}

/// The record of a job that has these parts.
pub(super) fn record(arrival: &Arrival, mut record: JobRecord, parts: &[Part]) -> JobRecord {
    record.phase = Phase::Accepted;
    record.parts = Some(Parts {
        submission: arrival.seq,
        round: arrival.rounds + 1,
        done: 0,
        of: u32::try_from(parts.len()).unwrap_or(u32::MAX),
    });
    record.children = parts
        .iter()
        .map(|part| Link {
            how: Descent::Part,
            job: part.job.clone(),
            sequence: None,
        })
        .collect();
    record
}

/// The bodies of the parts, given the body that is split. None if `source` is not that body.
pub(super) fn bodies(catalog: &Catalog, plan: &PartsPlan, source: &[u8]) -> Option<Vec<Bytes>> {
    let job = fairlane_wire::submission::parse(source, &plan.tenant).ok()?;
    let mut fields: Map<String, Value> = serde_json::from_slice(source).ok()?;
    fields.retain(|field, _| INHERITED.contains(&field.as_str()));
    if plan.headers.iter().any(|(name, _)| name == header::REDRIVE) {
        // As of everything that is sent again, nobody waits for it.
        fields.insert("origin".to_owned(), json!("batch_job"));
        fields.remove("sla_seconds");
    }
    let body = |index| body(catalog, plan, &job, fields.clone(), index);
    (0..plan.parts.len()).map(body).collect()
}

fn body(
    catalog: &Catalog,
    plan: &PartsPlan,
    job: &Submission,
    mut fields: Map<String, Value>,
    index: usize,
) -> Option<Bytes> {
    let part = plan.parts.get(index)?;
    let text = parts::text_of(&job.request, &part.piece)?;
    let (model, tokens) = (job.model.as_str(), plan.summary_tokens);
    let mut request = parts::request(model, tokens, index + 1, plan.parts.len(), text);
    // A summary needs no thought, and thoughts would take its room.
    let known = catalog.find(model)?;
    if known.thinking_default == ThinkingDefault::On && known.thinking.contains(&Thinking::Disabled)
    {
        request["thinking"] = json!({"type": "disabled"});
    }
    fields.insert("id".to_owned(), json!(part.job.as_str()));
    fields.insert("kind".to_owned(), json!(parts::KIND));
    fields.insert("request".to_owned(), request);
    Some(Value::Object(fields).to_string().into())
}
