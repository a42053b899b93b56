//! A tenant's settings as people change them at run time: the value of its key in the tenants bucket.
//!
//! Everything is optional: what is not set comes from the configuration. Anyone with a KV client may
//! write a record, so it is read field by field, and an error names the field, what stands there, and
//! what would be right.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

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
    /// What its callers of the HTTP API show; see [`TenantKey`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<TenantKey>,
}

/// An API key of a tenant, by the hash of its secret. A secret is 256 random bits, so a plain hash keeps
/// it: there is nothing to guess.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantKey {
    /// What it is called in lists, logs, and to revoke it: the beginning of the hash.
    pub id: String,
    /// SHA-256 of the secret, hexadecimal.
    pub sha256: String,
    /// Unix milliseconds.
    pub created_ms: u64,
    /// What it is for, in its maker's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// What the secret of every key begins with.
pub const KEY_PREFIX: &str = "flk_";

/// Keys that a tenant may have.
pub const KEYS_MAX: usize = 32;

/// Characters of a hash that name its key.
const KEY_ID_CHARS: usize = 12;

impl TenantKey {
    /// The key of this secret.
    #[must_use]
    pub fn of(secret: &str, created_ms: u64, note: Option<String>) -> Self {
        let sha256 = Self::hash(secret);
        Self {
            id: sha256[..KEY_ID_CHARS].to_owned(),
            sha256,
            created_ms,
            note,
        }
    }

    /// The secret made of these random bytes.
    #[must_use]
    pub fn secret(random: [u8; 32]) -> String {
        KEY_PREFIX.to_owned() + &hex(&random)
    }

    /// What is stored of a secret.
    #[must_use]
    pub fn hash(secret: &str) -> String {
        hex(&Sha256::digest(secret.as_bytes()))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
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

const FIELDS: [&str; 6] = [
    "plan",
    "weight",
    "daily_input_tokens",
    "in_flight_max",
    "demoted_until_ms",
    "keys",
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
            "keys" => {
                let right = "use a list of up to 32 keys as `fairlane tenant key` writes them";
                let keys: Option<Vec<TenantKey>> = serde_json::from_value(value.clone()).ok();
                let keys = keys.filter(|keys| keys.len() <= KEYS_MAX);
                self.keys = keys.ok_or_else(|| wrong("keys", right))?;
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
            keys: vec![TenantKey {
                id: "5e8d".to_owned(),
                sha256: "5e8dcc".to_owned(),
                created_ms: 7,
                note: Some("ci".to_owned()),
            }],
        };
        let text = r#"{"plan":"pro","weight":2.5,"daily_input_tokens":1000000,"in_flight_max":20,"demoted_until_ms":1700000000000,"keys":[{"id":"5e8d","sha256":"5e8dcc","created_ms":7,"note":"ci"}]}"#;
        assert_eq!(String::from_utf8(record.to_bytes()).unwrap(), text);
        assert_eq!(TenantRecord::parse(text.as_bytes()), Ok(record));
    }

    #[test]
    fn a_key_is_stored_as_a_hash_and_named_by_its_beginning() {
        let secret = TenantKey::secret([0xab; 32]);
        assert_eq!(secret, format!("flk_{}", "ab".repeat(32)));
        let key = TenantKey::of(&secret, 7, None);
        // As sha256sum says.
        assert_eq!(
            TenantKey::hash("abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(key.sha256, TenantKey::hash(&secret));
        assert!(key.sha256.starts_with(&key.id) && key.id.len() == 12);
        let text = serde_json::to_string(&key).unwrap();
        assert!(!text.contains(&secret[4..]), "{text}");
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
                "field \"wieght\" (with the value 3) is not known; the fields are plan, weight, daily_input_tokens, in_flight_max, demoted_until_ms, keys",
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
