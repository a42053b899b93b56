//! The ledger: one entry per attempt that reached the upstream. What was paid, and for what.

use fairlane_core::{JobId, TenantId, Term};
use serde::{Deserialize, Serialize};

use crate::header;
use crate::record::UsageRecord;
use crate::text;

/// Settlement of one attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LedgerEntry {
    #[serde(with = "text::tenant")]
    pub tenant: TenantId,
    #[serde(with = "text::job")]
    pub job: JobId,
    pub kind: String,
    /// As it was served: standard work of a demoted tenant is served as batch.
    pub priority: String,
    /// The job's own priority, if it was served as another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_priority: Option<String>,
    /// Pool of the model that was called.
    pub pool: String,
    /// Sequence of the job in the job stream.
    pub seq: u64,
    pub delivery: u32,
    pub model_asked: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_used: Option<String>,
    /// A smaller model was called than the job's own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_fallback: bool,
    pub usage: UsageRecord,
    /// Tokens that the producer estimated: input, and output while nothing is known of the kind.
    pub estimated_input_tokens: u64,
    pub estimated_output_tokens: u64,
    /// The longest answer that was asked for, in tokens.
    pub max_tokens: u64,
    /// US dollars times 10^12, exact; absent if the model has no price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_pico_usd: Option<u64>,
    /// The stable word for what the call ended as, for example `done` or `overloaded`.
    pub outcome: String,
    /// The call may have been answered and paid without us seeing it.
    pub ambiguous: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The rate limit that turned the call away, if the answer says which one was used up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<LimitKind>,
    /// How long the upstream asked to wait, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// When the submission was stored, in Unix milliseconds.
    pub accepted_ms: u64,
    /// Before which the job was not to run, in Unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before_ms: Option<u64>,
    /// When the credit for the call was granted, in Unix milliseconds.
    pub granted_ms: u64,
    /// Milliseconds from sending to the end of the answer.
    pub latency_ms: u64,
    /// On a job's first call: milliseconds from when it could run to when it was granted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_ms: Option<u64>,
    /// When it was booked, in Unix milliseconds.
    pub at_ms: u64,
}

/// One of a pool's limits per minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitKind {
    Requests,
    InputTokens,
    OutputTokens,
}

impl LedgerEntry {
    /// What its message says in headers, so that budgets are kept and hours are summed up without reading bodies.
    #[must_use]
    pub fn headers(&self) -> Vec<(&'static str, String)> {
        let mut headers = vec![
            (header::INPUT_TOKENS, self.usage.prompt().to_string()),
            (header::OUTCOME, self.outcome.clone()),
            (header::PRIORITY, self.priority.clone()),
        ];
        if let Some(waited) = self.waited_ms {
            headers.push((header::WAITED, waited.to_string()));
        }
        if self.by_fallback {
            headers.push((header::BY_FALLBACK, "1".to_owned()));
        }
        headers
    }

    /// Deduplication id: a delivery is booked once. Only with the `term` of its credit has a delivery
    /// a number of its own: a new leader does not always know how many there were.
    #[must_use]
    pub fn message_id(&self, term: Term) -> String {
        format!(
            "ledger-{}:{}:{}:{}",
            self.tenant, self.seq, term.0, self.delivery
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_as_it_travels() {
        let entry = LedgerEntry {
            tenant: TenantId::parse("acme").unwrap(),
            job: JobId::parse("wp-1").unwrap(),
            kind: "tagging".into(),
            priority: "batch".into(),
            own_priority: Some("standard".into()),
            pool: "haiku-4.5".into(),
            seq: 7,
            delivery: 1,
            model_asked: "claude-haiku-4-5".into(),
            model_used: None,
            by_fallback: true,
            usage: UsageRecord {
                input_tokens: 120,
                output_tokens: 60,
                ..UsageRecord::default()
            },
            estimated_input_tokens: 110,
            estimated_output_tokens: 256,
            max_tokens: 1_024,
            cost_pico_usd: Some(420_000_000),
            outcome: "success".into(),
            ambiguous: false,
            request_id: Some("req_1".into()),
            status: Some(200),
            limit: None,
            retry_after_ms: None,
            accepted_ms: 1_699_999_990_000,
            not_before_ms: None,
            granted_ms: 1_699_999_999_000,
            latency_ms: 900,
            waited_ms: Some(40),
            at_ms: 1_700_000_000_000,
        };
        let text = serde_json::to_string(&entry).unwrap();
        assert_eq!(
            text,
            r#"{"tenant":"acme","job":"wp-1","kind":"tagging","priority":"batch","own_priority":"standard","pool":"haiku-4.5","seq":7,"delivery":1,"model_asked":"claude-haiku-4-5","by_fallback":true,"usage":{"input_tokens":120,"cache_write_5m_tokens":0,"cache_write_1h_tokens":0,"cache_read_tokens":0,"output_tokens":60},"estimated_input_tokens":110,"estimated_output_tokens":256,"max_tokens":1024,"cost_pico_usd":420000000,"outcome":"success","ambiguous":false,"request_id":"req_1","status":200,"accepted_ms":1699999990000,"granted_ms":1699999999000,"latency_ms":900,"waited_ms":40,"at_ms":1700000000000}"#
        );
        assert_eq!(serde_json::from_str::<LedgerEntry>(&text).unwrap(), entry);
        let refused = LedgerEntry {
            limit: Some(LimitKind::InputTokens),
            retry_after_ms: Some(3_000),
            ..entry.clone()
        };
        let text = serde_json::to_string(&refused).unwrap();
        assert!(
            text.contains(r#""limit":"input_tokens","retry_after_ms":3000,"#),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<LedgerEntry>(&text).unwrap(), refused);
        let headers = entry.headers();
        let headers: Vec<(&str, &str)> = headers
            .iter()
            .map(|(name, value)| (*name, &**value))
            .collect();
        assert_eq!(
            headers,
            [
                ("Fl-Input-Tokens", "120"),
                ("Fl-Outcome", "success"),
                ("Fl-Priority", "batch"),
                ("Fl-Waited-Ms", "40"),
                ("Fl-By-Fallback", "1"),
            ]
        );
        assert_eq!(entry.message_id(Term(4)), "ledger-acme:7:4:1");
        assert_ne!(entry.message_id(Term(4)), entry.message_id(Term(5)));
    }
}
