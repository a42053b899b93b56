//! A job in the job stream: its body is the submission byte for byte (unless its text was cut to fit
//! the model), its headers are what the producer found out. The scheduler reads headers only, the worker reads both.

use fairlane_core::{JobId, Kind, ModelId, PoolId, Tokens};
use sha2::{Digest, Sha256};

use crate::callback::Callback;
use crate::cut::Truncation;
use crate::header;
use crate::lineage::Redrive;
use crate::record::Link;

/// The headers of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct JobHeaders {
    pub job: JobId,
    pub key: String,
    pub kind: Kind,
    pub model: ModelId,
    pub pool: PoolId,
    /// Estimated input tokens and expected output tokens.
    pub tokens: Tokens,
    /// Unix milliseconds at which the submission was stored.
    pub accepted_ms: u64,
    pub not_before_ms: Option<u64>,
    pub deadline_ms: Option<u64>,
    /// The model that may run the job instead, while its own is overloaded.
    pub fallback: Option<Fallback>,
    /// Object that holds the body, when it is too large for a message.
    pub claim: Option<String>,
    /// The dead letter that is sent again as this job.
    pub redrive: Option<Redrive>,
    /// The job that this one comes from.
    pub parent: Option<Link>,
    /// Texts of the submission that were cut.
    pub truncated: Vec<Truncation>,
    /// Object with the body as it was published, when the job's own is another one.
    pub original: Option<String>,
    /// Who hears of its end.
    pub callback: Option<Callback>,
    pub traceparent: Option<String>,
    pub tracestate: Option<String>,
}

/// What else may run a job: the request fits it, and its owner allows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fallback {
    pub model: ModelId,
    pub pool: PoolId,
    /// As that model counts them.
    pub tokens: Tokens,
}

/// A message in the job stream whose headers are not a job's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JobHeaderError {
    #[error("header {0} is missing")]
    Missing(&'static str),
    #[error("header {name} is {value:?}; {right}")]
    Wrong {
        name: &'static str,
        value: String,
        right: String,
    },
}

impl JobHeaders {
    /// The headers as name and value, in a fixed order.
    #[must_use]
    pub fn to_pairs(&self) -> Vec<(&'static str, String)> {
        let mut pairs = vec![
            (header::JOB, self.job.to_string()),
            (header::KEY, self.key.clone()),
            (header::KIND, self.kind.to_string()),
            (header::MODEL, self.model.to_string()),
            (header::POOL, self.pool.to_string()),
            (header::INPUT_TOKENS, self.tokens.input.to_string()),
            (header::OUTPUT_TOKENS, self.tokens.output.to_string()),
            (header::ACCEPTED, self.accepted_ms.to_string()),
        ];
        let optional = [
            (
                header::NOT_BEFORE,
                self.not_before_ms.map(|ms| ms.to_string()),
            ),
            (header::DEADLINE, self.deadline_ms.map(|ms| ms.to_string())),
            (header::CLAIM, self.claim.clone()),
            (
                header::REDRIVE,
                self.redrive.as_ref().map(Redrive::to_value),
            ),
            (header::PARENT, self.parent.as_ref().map(Link::to_header)),
            (
                header::TRUNCATED,
                (!self.truncated.is_empty()).then(|| {
                    serde_json::to_string(&self.truncated).expect("a list of plain structs")
                }),
            ),
            (header::ORIGINAL, self.original.clone()),
            (
                header::CALLBACK,
                self.callback.as_ref().map(Callback::to_header),
            ),
            (header::TRACEPARENT, self.traceparent.clone()),
            (header::TRACESTATE, self.tracestate.clone()),
        ];
        if let Some(fallback) = &self.fallback {
            pairs.extend([
                (header::FALLBACK_MODEL, fallback.model.to_string()),
                (header::FALLBACK_POOL, fallback.pool.to_string()),
                (
                    header::FALLBACK_INPUT_TOKENS,
                    fallback.tokens.input.to_string(),
                ),
                (
                    header::FALLBACK_OUTPUT_TOKENS,
                    fallback.tokens.output.to_string(),
                ),
            ]);
        }
        pairs.extend(
            optional
                .into_iter()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        pairs
    }

    /// Reads the headers through `get`.
    ///
    /// # Errors
    /// [`JobHeaderError`] with the header that is missing or wrong.
    pub fn parse<'a>(get: impl Fn(&str) -> Option<&'a str>) -> Result<Self, JobHeaderError> {
        let need = |name| get(name).ok_or(JobHeaderError::Missing(name));
        let number = |name| -> Result<Option<u64>, JobHeaderError> {
            get(name)
                .map(|value| value.parse().map_err(|_| wrong(name, value, "a number")))
                .transpose()
        };
        let number_needed = |name| number(name)?.ok_or(JobHeaderError::Missing(name));
        let fallback = match get(header::FALLBACK_MODEL) {
            None => None,
            Some(model) => Some(Fallback {
                model: named(header::FALLBACK_MODEL, model, ModelId::parse)?,
                pool: named(
                    header::FALLBACK_POOL,
                    need(header::FALLBACK_POOL)?,
                    PoolId::parse,
                )?,
                tokens: Tokens {
                    input: number_needed(header::FALLBACK_INPUT_TOKENS)?,
                    output: number_needed(header::FALLBACK_OUTPUT_TOKENS)?,
                },
            }),
        };
        Ok(Self {
            job: named(header::JOB, need(header::JOB)?, JobId::parse)?,
            key: need(header::KEY)?.to_owned(),
            kind: named(header::KIND, need(header::KIND)?, Kind::parse)?,
            model: named(header::MODEL, need(header::MODEL)?, ModelId::parse)?,
            pool: named(header::POOL, need(header::POOL)?, PoolId::parse)?,
            tokens: Tokens {
                input: number_needed(header::INPUT_TOKENS)?,
                output: number_needed(header::OUTPUT_TOKENS)?,
            },
            accepted_ms: number_needed(header::ACCEPTED)?,
            not_before_ms: number(header::NOT_BEFORE)?,
            deadline_ms: number(header::DEADLINE)?,
            fallback,
            claim: get(header::CLAIM).map(str::to_owned),
            redrive: get(header::REDRIVE)
                .map(|value| {
                    Redrive::parse(value)
                        .ok_or_else(|| wrong(header::REDRIVE, value, "JSON with a lineage"))
                })
                .transpose()?,
            parent: get(header::PARENT)
                .map(|value| {
                    let right = "how it comes from which job, such as again wp-1 7";
                    Link::parse(value).ok_or_else(|| wrong(header::PARENT, value, right))
                })
                .transpose()?,
            truncated: get(header::TRUNCATED)
                .map(|value| {
                    let right = "a JSON list of texts that were cut";
                    serde_json::from_str(value).map_err(|_| wrong(header::TRUNCATED, value, right))
                })
                .transpose()?
                .unwrap_or_default(),
            original: get(header::ORIGINAL).map(str::to_owned),
            callback: get(header::CALLBACK)
                .map(|value| {
                    let right = "an address such as subject fl.callback.acme.done";
                    Callback::parse(value).ok_or_else(|| wrong(header::CALLBACK, value, right))
                })
                .transpose()?,
            traceparent: get(header::TRACEPARENT).map(str::to_owned),
            tracestate: get(header::TRACESTATE).map(str::to_owned),
        })
    }
}

fn wrong(name: &'static str, value: &str, right: impl std::fmt::Display) -> JobHeaderError {
    JobHeaderError::Wrong {
        name,
        value: value.chars().take(60).collect(),
        right: right.to_string(),
    }
}

fn named<T>(
    name: &'static str,
    value: &str,
    parse: fn(&str) -> Result<T, fairlane_core::NameError>,
) -> Result<T, JobHeaderError> {
    parse(value).map_err(|error| wrong(name, value, error))
}

/// An idempotency key as a KV key: 32 hexadecimal digits of its SHA-256. Keys are the tenant's
/// own text and may hold anything.
#[must_use]
pub fn key_hash(key: &str) -> String {
    Sha256::digest(key.as_bytes())[..16]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Id of a job whose owner named none: when and where it was stored, so that it is the same on
/// every delivery of the submission and never comes again.
#[must_use]
pub fn assigned_id(stored_ms: u64, submit_seq: u64) -> JobId {
    JobId::parse(&format!("j{stored_ms:x}-{submit_seq}")).expect("letters, digits and a dash")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Descent;

    fn headers() -> JobHeaders {
        JobHeaders {
            job: JobId::parse("wp-1").unwrap(),
            key: "wp-1".into(),
            kind: Kind::parse("tagging").unwrap(),
            model: ModelId::parse("claude-haiku-4-5").unwrap(),
            pool: PoolId::parse("haiku-4.5").unwrap(),
            tokens: Tokens {
                input: 120,
                output: 60,
            },
            accepted_ms: 1_700_000_000_000,
            not_before_ms: None,
            deadline_ms: Some(1_700_000_600_000),
            fallback: Some(Fallback {
                model: ModelId::parse("claude-haiku-5-5").unwrap(),
                pool: PoolId::parse("haiku-5.5").unwrap(),
                tokens: Tokens {
                    input: 156,
                    output: 78,
                },
            }),
            claim: None,
            redrive: None,
            parent: Some(Link {
                how: Descent::Again,
                job: JobId::parse("wp-1").unwrap(),
                sequence: Some(3),
            }),
            truncated: vec![Truncation {
                field: "request.system".into(),
                from_chars: 900,
                to_chars: 300,
            }],
            original: Some("acme.original-j5-7".into()),
            callback: Some(Callback::Subject("fl.callback.acme.done".into())),
            traceparent: None,
            tracestate: None,
        }
    }

    #[test]
    fn headers_as_they_travel() {
        let pairs = headers().to_pairs();
        let text: Vec<String> = pairs
            .iter()
            .map(|(name, value)| format!("{name}: {value}"))
            .collect();
        assert_eq!(
            text.join("\n"),
            "Fl-Job: wp-1\nFl-Key: wp-1\nFl-Kind: tagging\nFl-Model: claude-haiku-4-5\n\
             Fl-Pool: haiku-4.5\nFl-Input-Tokens: 120\nFl-Output-Tokens: 60\n\
             Fl-Accepted: 1700000000000\nFl-Fallback-Model: claude-haiku-5-5\n\
             Fl-Fallback-Pool: haiku-5.5\nFl-Fallback-Input-Tokens: 156\n\
             Fl-Fallback-Output-Tokens: 78\nFl-Deadline: 1700000600000\n\
             Fl-Parent: again wp-1 3\n\
             Fl-Truncated: [{\"field\":\"request.system\",\"from_chars\":900,\"to_chars\":300}]\n\
             Fl-Original: acme.original-j5-7\n\
             Fl-Callback: subject fl.callback.acme.done"
        );
        let get = |name: &str| {
            pairs
                .iter()
                .find(|(n, _)| *n == name)
                .map(|(_, v)| v.as_str())
        };
        assert_eq!(JobHeaders::parse(get), Ok(headers()));
    }

    #[test]
    fn a_wrong_header_is_named() {
        let mut pairs = headers().to_pairs();
        pairs.retain(|(name, _)| *name != header::POOL);
        let get = |name: &str| {
            pairs
                .iter()
                .find(|(n, _)| *n == name)
                .map(|(_, v)| v.as_str())
        };
        assert_eq!(
            JobHeaders::parse(get),
            Err(JobHeaderError::Missing("Fl-Pool"))
        );
    }

    #[test]
    fn keys_of_any_text_become_safe_kv_keys() {
        assert_eq!(key_hash("a"), "ca978112ca1bbdcafac231b39a23dc4d");
        assert_ne!(key_hash("a.*>"), key_hash("a.*"));
        assert_eq!(assigned_id(255, 7).as_str(), "jff-7");
    }
}
