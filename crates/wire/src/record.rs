//! The job record: what its owner can read about a job, from acceptance to outcome.

use fairlane_core::{JobId, Kind, ModelId, Priority, TenantId};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::letter::{Failure, TRIES_MAX, Try};
use crate::text;

/// Where a job is. Phases go forward; `queued`, `generating` and `retrying` may alternate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Stored, waiting for its turn.
    Queued,
    /// The model is at work on it.
    Generating,
    /// Failed in passing; runs again at `retry_at_ms`.
    Retrying,
    /// Has its result.
    Done,
    /// Ended as a dead letter.
    Failed,
    /// Called off by its owner.
    Cancelled,
}

impl Phase {
    /// Every phase.
    pub const ALL: [Self; 6] = [
        Self::Queued,
        Self::Generating,
        Self::Retrying,
        Self::Done,
        Self::Failed,
        Self::Cancelled,
    ];

    /// The stable word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Generating => "generating",
            Self::Retrying => "retrying",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// The phase of a stable word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|phase| phase.as_str() == word)
    }

    /// Whether nothing more will happen to the job.
    #[must_use]
    pub fn is_final(self) -> bool {
        match self {
            Self::Done | Self::Failed | Self::Cancelled => true,
            Self::Queued | Self::Generating | Self::Retrying => false,
        }
    }
}

/// Tokens as the upstream counted them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct UsageRecord {
    pub input_tokens: u64,
    pub cache_write_5m_tokens: u64,
    pub cache_write_1h_tokens: u64,
    pub cache_read_tokens: u64,
    pub output_tokens: u64,
}

impl UsageRecord {
    /// The whole prompt: uncached, written and read.
    #[must_use]
    pub fn prompt(&self) -> u64 {
        self.input_tokens
            .saturating_add(self.cache_write_5m_tokens)
            .saturating_add(self.cache_write_1h_tokens)
            .saturating_add(self.cache_read_tokens)
    }
}

/// What a smaller model has to do with a job, while the job's own is overloaded.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct FallbackRecord {
    /// Model that may answer instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Why none may.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub barred: Option<String>,
    /// Why it was asked; absent as long as only the job's own model was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_because: Option<String>,
}

/// Record of one job in the status bucket.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobRecord {
    #[serde(with = "text::tenant")]
    pub tenant: TenantId,
    #[serde(with = "text::job")]
    pub job: JobId,
    pub phase: Phase,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<String>,
    /// Model asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Model that answered, as the upstream names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_used: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<FallbackRecord>,
    /// Sequence of the one true message of this job in the job stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence: Option<u64>,
    /// Real tries at the upstream that counted.
    #[serde(default)]
    pub attempts: u32,
    /// Credits handed out for the job.
    #[serde(default)]
    pub deliveries: u32,
    /// Calls whose outcome is unknown.
    #[serde(default)]
    pub ambiguous: u32,
    /// Output limit of the next try, once it was raised above the request's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens_raised: Option<u64>,
    /// Unix milliseconds.
    pub accepted_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_ms: Option<u64>,
    /// Unix milliseconds at which a retrying job may run again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_at_ms: Option<u64>,
    /// Why it is tried again: a stable word and what happened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_reason: Option<String>,
    /// Output tokens seen so far while generating.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tokens_so_far: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<UsageRecord>,
    /// What all attempts of the job cost, in US dollars.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// The latest calls, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tries: Vec<Try>,
    /// Sequence of the dead letter that was sent again as this run of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redrive_of: Option<u64>,
    /// The upstream's message, once done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// Object that holds the result, when it is too large for a record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_claim: Option<String>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// The job that owns this job's idempotency key and whose outcome is this one's too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub same_as: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl JobRecord {
    /// A record that knows only who and when.
    #[must_use]
    pub fn new(tenant: TenantId, job: JobId, phase: Phase, accepted_ms: u64) -> Self {
        Self {
            tenant,
            job,
            phase,
            kind: None,
            priority: None,
            model: None,
            model_used: None,
            fallback: None,
            sequence: None,
            attempts: 0,
            deliveries: 0,
            ambiguous: 0,
            max_tokens_raised: None,
            accepted_ms,
            started_ms: None,
            finished_ms: None,
            retry_at_ms: None,
            retry_reason: None,
            tokens_so_far: 0,
            usage: None,
            cost_usd: None,
            tries: Vec::new(),
            redrive_of: None,
            result: None,
            result_claim: None,
            failure: None,
            same_as: None,
        }
    }

    /// Adds what is known of a job that parsed.
    #[must_use]
    pub fn describing(mut self, kind: &Kind, priority: Priority, model: &ModelId) -> Self {
        self.kind = Some(kind.to_string());
        self.priority = Some(priority.as_str().to_owned());
        self.model = Some(model.to_string());
        self
    }

    /// Notes a call; of many, the latest ones stay.
    pub fn note(&mut self, tried: Try) {
        self.tries.push(tried);
        let surplus = self.tries.len().saturating_sub(TRIES_MAX);
        self.tries.drain(..surplus);
    }

    /// # Errors
    /// The JSON error, with the place.
    pub fn from_json(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }

    /// The record as stored.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a record has no map keys that are not text")
    }
}

/// Whose key it is: the value of an idempotency key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyOwner {
    #[serde(with = "text::job")]
    pub job: JobId,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_young_record_as_it_is_stored() {
        let record = JobRecord::new(
            TenantId::parse("acme").unwrap(),
            JobId::parse("wp-1").unwrap(),
            Phase::Queued,
            1_700_000_000_000,
        );
        let text = String::from_utf8(record.to_json()).unwrap();
        assert_eq!(
            text,
            r#"{"tenant":"acme","job":"wp-1","phase":"queued","attempts":0,"deliveries":0,"ambiguous":0,"accepted_ms":1700000000000}"#
        );
        assert_eq!(JobRecord::from_json(text.as_bytes()).unwrap(), record);
    }

    #[test]
    fn every_phase_has_one_word_in_code_and_on_the_wire() {
        for phase in Phase::ALL {
            assert_eq!(Phase::parse(phase.as_str()), Some(phase));
            assert_eq!(serde_json::to_value(phase).unwrap(), phase.as_str());
        }
    }
}
