//! The dead letter: a job that ended without a result, with all that is known of it.
//!
//! Its body is the job's own, byte for byte, and so are its headers (see [`was`]). What Fairlane
//! knows stands in one header as JSON, so that letters are listed, filtered and grouped without
//! reading a single body.

use fairlane_core::{JobId, TenantId};
use serde::{Deserialize, Serialize};

pub use crate::failure::{DeadReason, Failure};
use crate::fingerprint::fingerprint;
use crate::job::JobHeaders;
use crate::lineage::Ancestor;
use crate::names::header;
use crate::record::{JobRecord, UsageRecord};
use crate::text;

/// Tries told in a letter, the latest ones.
pub const TRIES_MAX: usize = 10;

/// One call for a job and how it ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Try {
    /// Unix milliseconds at which it ended.
    pub at_ms: u64,
    /// Model that answered, or was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// How it ended: a stable word.
    pub outcome: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The upstream's own id of the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    pub input_tokens: u64,
    pub output_tokens: u64,
    /// US dollars.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    pub latency_ms: u64,
}

/// The facts of a dead letter. They travel in a header; the body is the job's own, byte for byte.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Letter {
    /// None if it was published under a name that cannot be a tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    #[serde(with = "text::job")]
    pub job: JobId,
    #[serde(flatten)]
    pub failure: Failure,
    /// Shared by all failures of one sort.
    pub fingerprint: String,
    /// Subject the body was read from.
    pub subject: String,
    /// Sequence of the message the body was read from, in its stream.
    #[serde(default)]
    pub seq: u64,
    pub attempts: u32,
    pub deliveries: u32,
    /// The latest calls, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tries: Vec<Try>,
    /// Tokens of all calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<UsageRecord>,
    /// What all calls cost, in US dollars.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// Model asked for, when one could be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The trace the job belongs to: 32 hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
    /// Object that holds the publisher's headers, when they have no room here or cannot be headers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headers_claim: Option<String>,
    /// Unix milliseconds.
    pub at_ms: u64,
    /// The letters of earlier runs, the original first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lineage: Vec<Ancestor>,
}

impl Letter {
    /// A letter that knows whose job failed, and why.
    #[must_use]
    pub fn new(tenant: Option<String>, job: JobId, failure: Failure, at_ms: u64) -> Self {
        Self {
            tenant,
            job,
            fingerprint: fingerprint(&failure),
            failure,
            subject: String::new(),
            seq: 0,
            attempts: 0,
            deliveries: 0,
            tries: Vec::new(),
            usage: None,
            cost_usd: None,
            model: None,
            kind: None,
            trace_id: None,
            headers_claim: None,
            at_ms,
            lineage: Vec::new(),
        }
    }

    /// The letter of a job that was queued, with what its record knows.
    #[must_use]
    pub fn of_job(
        tenant: &TenantId,
        headers: &JobHeaders,
        record: &JobRecord,
        failure: Failure,
        at_ms: u64,
    ) -> Self {
        let redrive = headers.redrive.as_ref();
        let letter = Self {
            attempts: record.attempts,
            deliveries: record.deliveries,
            tries: record.tries.clone(),
            usage: record.usage,
            cost_usd: record.cost_usd,
            model: Some(headers.model.to_string()),
            kind: Some(headers.kind.to_string()),
            lineage: redrive.map_or_else(Vec::new, |redrive| redrive.lineage.clone()),
            ..Self::new(
                Some(tenant.to_string()),
                headers.job.clone(),
                failure,
                at_ms,
            )
        }
        .traced(headers.traceparent.as_deref());
        match &record.trace_id {
            // It may have been put off to the next day, and have another trace since.
            Some(trace_id) => Self {
                trace_id: Some(trace_id.clone()),
                ..letter
            },
            None => letter,
        }
    }

    /// The same letter, read from message `seq` on `subject`.
    #[must_use]
    pub fn read_from(mut self, subject: &str, seq: u64) -> Self {
        subject.clone_into(&mut self.subject);
        self.seq = seq;
        self
    }

    /// Takes the id of the trace from a W3C `traceparent`.
    #[must_use]
    pub fn traced(mut self, traceparent: Option<&str>) -> Self {
        let id = traceparent.and_then(|parent| parent.split('-').nth(1));
        self.trace_id = id.filter(|id| id.len() == 32).map(str::to_owned);
        self
    }

    /// How often the job was sent again before it came here: 0 for the original.
    #[must_use]
    pub fn version(&self) -> usize {
        self.lineage.len()
    }

    /// The value of the header.
    #[must_use]
    pub fn to_value(&self) -> String {
        text::ascii_json(self)
    }

    /// Reads the value of the header.
    ///
    /// # Errors
    /// The JSON error, with the place.
    pub fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// Deduplication id: a run of a job has one dead letter, however often it is written.
    #[must_use]
    pub fn message_id(&self) -> String {
        let tenant = self.tenant.as_deref().unwrap_or("?");
        format!("dlq-{tenant}:{}:{}", self.job, self.seq)
    }

    /// Deduplication id of a submission that never became a job, by its
    /// [assigned id](crate::assigned_id). Not by its own: the same id may be published again,
    /// repaired or differently broken, and each of these needs its own letter.
    #[must_use]
    pub fn submission_message_id(assigned: &JobId) -> String {
        format!("dlq-submit:{assigned}")
    }
}

/// Tenant token of dead letters whose own tenant name is unusable.
#[must_use]
pub fn unknown_tenant() -> TenantId {
    TenantId::parse("unknown").expect("a plain word is a tenant")
}

/// Headers that mean something on a letter and may stand on the message it was made from as well.
const OURS: [&str; 4] = [header::JOB, header::REASON, header::LETTER, header::MSG_ID];
const WAS: &str = "Fl-Was-";

/// Name under which a letter keeps the header `name` of the message it was made from: its own,
/// unless that means something on the letter, or to the server.
#[must_use]
pub fn was(name: &str) -> String {
    let starts = |prefix: &str| {
        let start = name.as_bytes().get(..prefix.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(prefix.as_bytes()))
    };
    let taken =
        starts("Nats-") || starts(WAS) || OURS.iter().any(|own| own.eq_ignore_ascii_case(name));
    if taken {
        format!("{WAS}{name}")
    } else {
        name.to_owned()
    }
}

/// The header of the original message that a letter keeps as `name`; None if it is the letter's.
#[must_use]
pub fn original_header(name: &str) -> Option<&str> {
    if let Some(name) = name.strip_prefix(WAS) {
        return Some(name);
    }
    (was(name) == name).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Upstream;

    fn letter() -> Letter {
        let failure = Failure::new(DeadReason::Schema, "tags has 2 items")
            .detail("min_items")
            .field("tags")
            .answered(Upstream {
                message: Some("ok".into()),
                ..Upstream::default()
            });
        let job = JobId::parse("wp-1").unwrap();
        Letter::new(Some("acme".into()), job, failure, 1_700_000_000_000)
            .read_from("fl.jobs.batch.acme", 9)
            .traced(Some(
                "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            ))
    }

    #[test]
    fn a_young_letter_as_it_travels() {
        let letter = letter();
        let text = letter.to_value();
        assert_eq!(
            text,
            r#"{"tenant":"acme","job":"wp-1","reason":"schema","detail":"min_items","message":"tags has 2 items","field":"tags","upstream":{"message":"ok"},"fingerprint":"127114a91e58","subject":"fl.jobs.batch.acme","seq":9,"attempts":0,"deliveries":0,"trace_id":"4bf92f3577b34da6a3ce929d0e0e4736","at_ms":1700000000000}"#
        );
        assert_eq!(Letter::from_json(&text).unwrap(), letter);
    }

    #[test]
    fn a_letter_with_a_past_as_it_travels() {
        let tried = Try {
            at_ms: 5,
            model: Some("claude-haiku-4-5".into()),
            outcome: "schema".into(),
            status: Some(200),
            request_id: Some("req_1".into()),
            input_tokens: 120,
            output_tokens: 60,
            cost_usd: Some(0.5),
            latency_ms: 850,
        };
        let before = Ancestor {
            letter: 3,
            reason: DeadReason::Refusal,
            at_ms: 4,
            attempts: 1,
            cost_usd: None,
            repair: None,
        };
        let letter = Letter {
            attempts: 1,
            deliveries: 2,
            tries: vec![tried],
            usage: Some(UsageRecord {
                input_tokens: 120,
                ..UsageRecord::default()
            }),
            cost_usd: Some(0.5),
            model: Some("claude-haiku-4-5".into()),
            kind: Some("tagging".into()),
            lineage: vec![before],
            headers_claim: Some("acme.a".into()),
            ..letter()
        };
        let text = letter.to_value();
        let tail = text.split_once(r#""attempts":1,"#).unwrap().1;
        assert_eq!(
            tail,
            r#""deliveries":2,"tries":[{"at_ms":5,"model":"claude-haiku-4-5","outcome":"schema","status":200,"request_id":"req_1","input_tokens":120,"output_tokens":60,"cost_usd":0.5,"latency_ms":850}],"usage":{"input_tokens":120,"cache_write_5m_tokens":0,"cache_write_1h_tokens":0,"cache_read_tokens":0,"output_tokens":0},"cost_usd":0.5,"model":"claude-haiku-4-5","kind":"tagging","trace_id":"4bf92f3577b34da6a3ce929d0e0e4736","headers_claim":"acme.a","at_ms":1700000000000,"lineage":[{"letter":3,"reason":"refusal","at_ms":4,"attempts":1}]}"#
        );
        assert_eq!(letter.version(), 1);
        assert_eq!(Letter::from_json(&text).unwrap(), letter);
    }

    #[test]
    fn letters_of_two_submissions_of_one_id_are_told_apart() {
        let [one, two] =
            [7, 8].map(|seq| Letter::submission_message_id(&crate::assigned_id(255, seq)));
        assert_eq!(one, "dlq-submit:jff-7");
        assert_ne!(one, two);
    }

    #[test]
    fn letters_of_two_runs_of_one_job_are_told_apart() {
        let again = letter().read_from("fl.jobs.batch.acme", 10);
        assert_ne!(letter().message_id(), again.message_id());
    }

    #[test]
    fn every_header_of_the_original_is_found_again() {
        for name in [
            "X-Own",
            "traceparent",
            "Fl-Job",
            "Nats-Msg-Id",
            "nats-TTL",
            "Fl-Letter",
            "fl-reason",
            "Fl-Was-X",
            "Fl-Was-Fl-Was-X",
            "",
        ] {
            assert_eq!(original_header(&was(name)), Some(name));
        }
        for own in OURS {
            assert_eq!(original_header(own), None);
        }
    }
}
