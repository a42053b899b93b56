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
    pub priority: String,
    /// Sequence of the job in the job stream.
    pub seq: u64,
    pub delivery: u32,
    pub model_asked: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_used: Option<String>,
    pub usage: UsageRecord,
    /// US dollars times 10^12, exact; absent if the model has no price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_pico_usd: Option<u64>,
    /// Class of the outcome, for example `success` or `transient`.
    pub outcome: String,
    /// The call may have been answered and paid without us seeing it.
    pub ambiguous: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Milliseconds from sending to the end of the answer.
    pub latency_ms: u64,
    /// Unix milliseconds.
    pub at_ms: u64,
}

impl LedgerEntry {
    /// What its message says in headers, so that budgets are kept without reading bodies.
    #[must_use]
    pub fn headers(&self) -> [(&'static str, String); 1] {
        [(header::INPUT_TOKENS, self.usage.prompt().to_string())]
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
            seq: 7,
            delivery: 1,
            model_asked: "claude-haiku-4-5".into(),
            model_used: None,
            usage: UsageRecord {
                input_tokens: 120,
                output_tokens: 60,
                ..UsageRecord::default()
            },
            cost_pico_usd: Some(420_000_000),
            outcome: "success".into(),
            ambiguous: false,
            request_id: Some("req_1".into()),
            status: Some(200),
            latency_ms: 900,
            at_ms: 1_700_000_000_000,
        };
        let text = serde_json::to_string(&entry).unwrap();
        assert_eq!(
            text,
            r#"{"tenant":"acme","job":"wp-1","kind":"tagging","priority":"batch","seq":7,"delivery":1,"model_asked":"claude-haiku-4-5","usage":{"input_tokens":120,"cache_write_5m_tokens":0,"cache_write_1h_tokens":0,"cache_read_tokens":0,"output_tokens":60},"cost_pico_usd":420000000,"outcome":"success","ambiguous":false,"request_id":"req_1","status":200,"latency_ms":900,"at_ms":1700000000000}"#
        );
        assert_eq!(serde_json::from_str::<LedgerEntry>(&text).unwrap(), entry);
        assert_eq!(entry.headers(), [("Fl-Input-Tokens", "120".to_owned())]);
        assert_eq!(entry.message_id(Term(4)), "ledger-acme:7:4:1");
        assert_ne!(entry.message_id(Term(4)), entry.message_id(Term(5)));
    }
}
