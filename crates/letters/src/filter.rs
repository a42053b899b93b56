//! Which letters are meant: all conditions that are given must hold.

use fairlane_wire::DeadReason;
use serde::{Deserialize, Serialize};

use crate::index::Entry;

/// Whether letters that were sent again count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// Only letters that nobody has sent again.
    #[default]
    Open,
    /// Only letters that were.
    Redriven,
    All,
}

/// Conditions on letters. An empty list does not restrict anything.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Filter {
    pub standing: Standing,
    /// Letters by sequence, and jobs as `tenant/job` or `job`: one of these.
    pub ids: Vec<Id>,
    pub reasons: Vec<DeadReason>,
    pub tenants: Vec<String>,
    pub kinds: Vec<String>,
    /// Beginnings of fingerprints.
    pub fingerprints: Vec<String>,
    /// Written at this time or later, unix milliseconds.
    pub since_ms: Option<u64>,
    /// Written before this time, unix milliseconds.
    pub until_ms: Option<u64>,
}

/// How a person names a letter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Id {
    /// Its sequence, written `#17`.
    Letter(u64),
    /// The letters of a job; of any tenant if none is given.
    Job { tenant: Option<String>, job: String },
}

impl Id {
    /// Reads `#17`, `tenant/job` or `job`.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        if let Some(seq) = text.strip_prefix('#').and_then(|seq| seq.parse().ok()) {
            return Self::Letter(seq);
        }
        match text.split_once('/') {
            Some((tenant, job)) => Self::Job {
                tenant: Some(tenant.to_owned()),
                job: job.to_owned(),
            },
            None => Self::Job {
                tenant: None,
                job: text.to_owned(),
            },
        }
    }

    fn means(&self, entry: &Entry) -> bool {
        match self {
            Self::Letter(seq) => entry.seq == *seq,
            Self::Job { tenant, job } => {
                let is_tenant = tenant.as_ref().is_none_or(|name| *name == entry.tenant);
                is_tenant && entry.job == *job
            }
        }
    }
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Letter(seq) => write!(f, "#{seq}"),
            Self::Job {
                tenant: Some(tenant),
                job,
            } => write!(f, "{tenant}/{job}"),
            Self::Job { tenant: None, job } => f.write_str(job),
        }
    }
}

impl Filter {
    /// Whether the letter is meant.
    #[must_use]
    pub fn means(&self, entry: &Entry) -> bool {
        let stands = match self.standing {
            Standing::Open => entry.redriven.is_none(),
            Standing::Redriven => entry.redriven.is_some(),
            Standing::All => true,
        };
        stands && self.describes(entry)
    }

    /// The same, whether or not the letter was sent again.
    #[must_use]
    pub fn describes(&self, entry: &Entry) -> bool {
        let kind = entry.kind.as_deref().unwrap_or_default();
        let print = &entry.fingerprint;
        any(&self.ids, |id| id.means(entry))
            && any(&self.reasons, |reason| *reason == entry.reason)
            && any(&self.tenants, |tenant| *tenant == entry.tenant)
            && any(&self.kinds, |wanted| wanted == kind)
            && any(&self.fingerprints, |start| print.starts_with(start))
            && self.since_ms.is_none_or(|since| entry.at_ms >= since)
            && self.until_ms.is_none_or(|until| entry.at_ms < until)
    }

    /// Whether nothing at all is asked for, so that every open letter is meant.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let standing = self.standing;
        *self
            == Self {
                standing,
                ..Self::default()
            }
    }
}

fn any<T>(wanted: &[T], holds: impl Fn(&T) -> bool) -> bool {
    wanted.is_empty() || wanted.iter().any(holds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::tests::entry;

    #[test]
    fn letters_are_named_by_sequence_by_job_or_by_tenant_and_job() {
        for (text, means) in [
            ("#7", true),
            ("#8", false),
            ("wp-1", true),
            ("acme/wp-1", true),
            ("other/wp-1", false),
            ("7", false),
        ] {
            let filter = Filter {
                ids: vec![Id::parse(text)],
                ..Filter::default()
            };
            assert_eq!(filter.means(&entry(7, "acme", "wp-1")), means, "{text}");
            assert_eq!(Id::parse(text).to_string(), text);
        }
    }

    #[test]
    fn all_conditions_must_hold() {
        let entry = entry(7, "acme", "wp-1");
        let fits = Filter {
            reasons: vec![DeadReason::Refusal, DeadReason::Schema],
            tenants: vec!["acme".into()],
            kinds: vec!["tagging".into()],
            fingerprints: vec!["abc".into()],
            since_ms: Some(5),
            until_ms: Some(6),
            ..Filter::default()
        };
        assert!(fits.means(&entry));
        let breaks: [fn(&mut Filter); 7] = [
            |filter| filter.reasons = vec![DeadReason::Refusal],
            |filter| filter.tenants = vec!["other".into()],
            |filter| filter.kinds = vec!["other".into()],
            |filter| filter.fingerprints = vec!["abd".into()],
            |filter| filter.since_ms = Some(6),
            |filter| filter.until_ms = Some(5),
            |filter| filter.standing = Standing::Redriven,
        ];
        for (number, change) in breaks.into_iter().enumerate() {
            let mut filter = fits.clone();
            change(&mut filter);
            assert!(!filter.means(&entry), "{number}");
        }
    }
}
