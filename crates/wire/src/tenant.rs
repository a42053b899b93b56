//! A tenant's settings as people change them at run time: the value of its key in the tenants bucket.
//!
//! Everything is optional: what is not set comes from the configuration. Anyone with a KV client may
//! write a record, so it is read field by field, and an error names the field, what stands there, and
//! what would be right.

use serde::Serialize;
use serde_json::{Map, Value};

/// Settings of one tenant.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct TenantRecord {
    /// Decides the weight, unless `weight` is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<Plan>,
    /// Share relative to other tenants of the same priority.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
    /// Budget of input tokens per day (UTC).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub daily_input_tokens: Option<u64>,
    /// Jobs that may run at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight_max: Option<u32>,
    /// Its standard work is served as batch until then, unix milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub demoted_until_ms: Option<u64>,
}

/// What a tenant pays for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Plan {
    Standard,
    Pro,
}

impl Plan {
    /// Its word, as in records and configurations.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Standard => "standard",
            Self::Pro => "pro",
        }
    }

    /// The plan of this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Standard, Self::Pro]
            .into_iter()
            .find(|plan| plan.as_str() == name)
    }
}

/// Why a record is not usable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TenantRecordError {
    #[error("it is no JSON object: {0}")]
    NotAnObject(String),
    #[error("field {field:?} (with the value {value}) is not known; the fields are {}", FIELDS.join(", "))]
    Unknown { field: String, value: String },
    #[error("field {field} is {value}; {right}")]
    Wrong {
        field: &'static str,
        value: String,
        right: &'static str,
    },
}

const FIELDS: [&str; 5] = [
    "plan",
    "weight",
    "daily_input_tokens",
    "in_flight_max",
    "demoted_until_ms",
];

/// Bounds as in the configuration.
const WEIGHT: std::ops::RangeInclusive<f64> = 0.01..=1_000.0;
const DAILY_INPUT_TOKENS: std::ops::RangeInclusive<u64> = 0..=1_000_000_000_000;
const IN_FLIGHT_MAX: std::ops::RangeInclusive<u32> = 1..=1_000_000;

/// Characters of a wrong value that are repeated in an error.
const SHOWN_MAX: usize = 60;

impl TenantRecord {
    /// Reads a stored record.
    ///
    /// # Errors
    /// [`TenantRecordError`].
    pub fn parse(stored: &[u8]) -> Result<Self, TenantRecordError> {
        let fields: Map<String, Value> = serde_json::from_slice(stored)
            .map_err(|error| TenantRecordError::NotAnObject(error.to_string()))?;
        Self::from_fields(&fields)
    }

    /// Reads a record from its fields; null is the same as not being there.
    ///
    /// # Errors
    /// [`TenantRecordError`].
    pub fn from_fields(fields: &Map<String, Value>) -> Result<Self, TenantRecordError> {
        let mut record = Self::default();
        for (field, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
            record.set(field, value)?;
        }
        Ok(record)
    }

    fn set(&mut self, field: &str, value: &Value) -> Result<(), TenantRecordError> {
        let wrong = |field, right| TenantRecordError::Wrong {
            field,
            value: shown(value),
            right,
        };
        let number = || value.as_u64();
        match field {
            "plan" => {
                let plan = value.as_str().and_then(Plan::parse);
                self.plan = Some(plan.ok_or_else(|| wrong("plan", "use \"standard\" or \"pro\""))?);
            }
            "weight" => {
                let weight = value.as_f64().filter(|weight| WEIGHT.contains(weight));
                let right = "use a number from 0.01 to 1000";
                self.weight = Some(weight.ok_or_else(|| wrong("weight", right))?);
            }
            "daily_input_tokens" => {
                let tokens = number().filter(|tokens| DAILY_INPUT_TOKENS.contains(tokens));
                let right = "use a whole number from 0 to 1000000000000";
                let tokens = tokens.ok_or_else(|| wrong("daily_input_tokens", right))?;
                self.daily_input_tokens = Some(tokens);
            }
            "in_flight_max" => {
                let jobs = number().and_then(|jobs| u32::try_from(jobs).ok());
                let jobs = jobs.filter(|jobs| IN_FLIGHT_MAX.contains(jobs));
                let right = "use a whole number from 1 to 1000000";
                self.in_flight_max = Some(jobs.ok_or_else(|| wrong("in_flight_max", right))?);
            }
            "demoted_until_ms" => {
                let right = "use unix milliseconds, as a whole number";
                self.demoted_until_ms =
                    Some(number().ok_or_else(|| wrong("demoted_until_ms", right))?);
            }
            unknown => {
                return Err(TenantRecordError::Unknown {
                    field: unknown.chars().take(SHOWN_MAX).collect(),
                    value: shown(value),
                });
            }
        }
        Ok(())
    }

    /// The record as it is stored.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a record is plain data")
    }
}

fn shown(value: &Value) -> String {
    value.to_string().chars().take(SHOWN_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_as_it_is_stored() {
        let record = TenantRecord {
            plan: Some(Plan::Pro),
            weight: Some(2.5),
            daily_input_tokens: Some(1_000_000),
            in_flight_max: Some(20),
            demoted_until_ms: Some(1_700_000_000_000),
        };
        let text = r#"{"plan":"pro","weight":2.5,"daily_input_tokens":1000000,"in_flight_max":20,"demoted_until_ms":1700000000000}"#;
        assert_eq!(String::from_utf8(record.to_bytes()).unwrap(), text);
        assert_eq!(TenantRecord::parse(text.as_bytes()), Ok(record));
    }

    #[test]
    fn everything_is_optional() {
        let nothing = TenantRecord::default();
        assert_eq!(nothing.to_bytes(), b"{}");
        assert_eq!(TenantRecord::parse(b"{}"), Ok(nothing.clone()));
        assert_eq!(TenantRecord::parse(br#"{"weight": null}"#), Ok(nothing));
    }

    #[test]
    fn what_is_wrong_is_named_with_what_would_be_right() {
        let error = |text: &str| {
            TenantRecord::parse(text.as_bytes())
                .unwrap_err()
                .to_string()
        };
        for (text, told) in [
            (
                r#"{"plan": "gold"}"#,
                r#"field plan is "gold"; use "standard" or "pro""#,
            ),
            (
                r#"{"weight": "3"}"#,
                r#"field weight is "3"; use a number from 0.01 to 1000"#,
            ),
            (
                r#"{"weight": 0}"#,
                "field weight is 0; use a number from 0.01 to 1000",
            ),
            (
                r#"{"daily_input_tokens": -1}"#,
                "field daily_input_tokens is -1; use a whole number from 0 to 1000000000000",
            ),
            (
                r#"{"in_flight_max": 0}"#,
                "field in_flight_max is 0; use a whole number from 1 to 1000000",
            ),
            (
                r#"{"demoted_until_ms": 1.5}"#,
                "field demoted_until_ms is 1.5; use unix milliseconds, as a whole number",
            ),
            (
                r#"{"wieght": 3}"#,
                "field \"wieght\" (with the value 3) is not known; the fields are plan, weight, daily_input_tokens, in_flight_max, demoted_until_ms",
            ),
        ] {
            assert_eq!(error(text), told);
        }
        for text in ["", "7", "[]", "{"] {
            assert!(
                error(text).starts_with("it is no JSON object: "),
                "{text:?}"
            );
        }
        assert!(error(&format!(r#"{{"plan": "{}"}}"#, "x".repeat(5_000))).len() < 200);
    }
}
