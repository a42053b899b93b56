//! Word to whoever submitted a job that it has ended: where it goes, and what it says.
//!
//! It says no more than where to look: neither prompt nor answer leaves the fleet this way. Between the
//! end of a job and its delivery it is a message of FL_CALLBACKS, whose header `Fl-Callback` is the
//! address and whose body is what is delivered, byte for byte.

use fairlane_core::{JobId, TenantId};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::letter::{DeadReason, Failure};
use crate::names::Namespace;
use crate::record::{JobRecord, Phase};
use crate::text;

/// Longest address, bytes: it travels in the headers of its job.
const ADDRESS_BYTES_MAX: usize = 512;

/// Where word of a job's end goes. Whether the fleet allows it is for the producer to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Callback {
    /// A NATS subject without wildcards.
    Subject(String),
    /// An address for an HTTP POST.
    Url(String),
    /// The job that this one is a part of: a producer looks at how far that one is. Not for submissions to
    /// choose.
    Parent(JobId),
}

impl Callback {
    /// Reads `callback` of a submission.
    ///
    /// # Errors
    /// A [`Failure`] with the field, its value and what would be right.
    pub fn read(value: Option<Value>) -> Result<Option<Self>, Failure> {
        let fields = match value {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::Object(fields)) => fields,
            Some(other) => return Err(wrong(&other.to_string())),
        };
        let mut entries = fields.iter();
        let (Some((name, Value::String(address))), None) = (entries.next(), entries.next()) else {
            return Err(wrong(&Value::Object(fields).to_string()));
        };
        match name.as_str() {
            "subject" if is_subject(address) => Ok(Some(Self::Subject(address.clone()))),
            "url" if is_address(address) => Ok(Some(Self::Url(address.clone()))),
            _ => Err(wrong(&Value::Object(fields).to_string())),
        }
    }

    /// As a header.
    #[must_use]
    pub fn to_header(&self) -> String {
        match self {
            Self::Subject(subject) => format!("subject {subject}"),
            Self::Url(url) => format!("url {url}"),
            Self::Parent(job) => format!("parent {job}"),
        }
    }

    /// Reads a header. None if it is none.
    #[must_use]
    pub fn parse(header: &str) -> Option<Self> {
        let (way, address) = header.split_once(' ')?;
        match way {
            "subject" if is_subject(address) => Some(Self::Subject(address.to_owned())),
            "url" if is_address(address) => Some(Self::Url(address.to_owned())),
            "parent" => JobId::parse(address).ok().map(Self::Parent),
            _ => None,
        }
    }
}

fn wrong(value: &str) -> Failure {
    let shown: String = value.chars().take(80).collect();
    Failure::new(DeadReason::InvalidJob, format!("callback is {shown}"))
        .field("callback")
        .fix(format!(
            r#"give {{"subject": "..."}} with a NATS subject without wildcards, or {{"url": "https://..."}}, of at most {ADDRESS_BYTES_MAX} bytes"#
        ))
}

/// One line of visible ASCII of a bounded length: it goes into headers.
fn is_address(text: &str) -> bool {
    (1..=ADDRESS_BYTES_MAX).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic())
}

fn is_subject(text: &str) -> bool {
    is_address(text)
        && text
            .split('.')
            .all(|token| !token.is_empty() && !token.contains(['*', '>']))
}

/// What is delivered: that a job has ended, and where its record is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    #[serde(with = "text::job")]
    pub job: JobId,
    #[serde(with = "text::tenant")]
    pub tenant: TenantId,
    /// `done`, `failed` or `cancelled`.
    pub phase: Phase,
    /// Why it failed, if it did.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<DeadReason>,
    /// Key of its record in the bucket of records.
    pub record: String,
    /// Sequence of the job, as in its record; none for what never became one. With `job` it tells one
    /// run from the next, also when this is delivered twice.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sequence: Option<u64>,
}

impl Ended {
    /// What to say of a record that is final; None if it is not.
    #[must_use]
    pub fn of(record: &JobRecord, sequence: Option<u64>) -> Option<Self> {
        record.phase.is_final().then(|| Self {
            job: record.job.clone(),
            tenant: record.tenant.clone(),
            phase: record.phase,
            reason: record.failure.as_ref().map(|failure| failure.reason),
            record: Namespace::status_key(&record.tenant, &record.job),
            sequence,
        })
    }

    /// The same for every repetition: `run` is the sequence of the job, or the id of a submission that
    /// never became one.
    #[must_use]
    pub fn message_id(&self, run: &str) -> String {
        format!("{}:{}:{run}", self.tenant, self.job)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_delivered_says_where_to_look_and_nothing_else() {
        let tenant = TenantId::parse("acme").unwrap();
        let job = JobId::parse("wp-1").unwrap();
        let mut record = JobRecord::new(tenant, job, Phase::Queued, 1);
        assert_eq!(Ended::of(&record, Some(7)), None);
        record.phase = Phase::Done;
        record.result = Some(json!("secret"));
        let done = Ended::of(&record, Some(7)).unwrap();
        assert_eq!(
            serde_json::to_string(&done).unwrap(),
            r#"{"job":"wp-1","tenant":"acme","phase":"done","record":"acme.wp-1","sequence":7}"#
        );
        record.phase = Phase::Failed;
        record.failure = Some(Failure::new(DeadReason::Refusal, "no"));
        let failed = Ended::of(&record, None).unwrap();
        let text = r#"{"job":"wp-1","tenant":"acme","phase":"failed","reason":"refusal","record":"acme.wp-1"}"#;
        assert_eq!(serde_json::to_string(&failed).unwrap(), text);
        assert_eq!(serde_json::from_str::<Ended>(text).unwrap(), failed);
        assert_eq!(done.message_id("7"), "acme:wp-1:7");
    }

    #[test]
    fn an_address_travels_in_a_header() {
        let to = |value| Callback::read(Some(value)).unwrap().unwrap();
        let subject = to(json!({"subject": "fl.callback.acme.done"}));
        assert_eq!(subject.to_header(), "subject fl.callback.acme.done");
        let url = to(json!({"url": "https://acme.example/hook?a=1"}));
        assert_eq!(url.to_header(), "url https://acme.example/hook?a=1");
        for callback in [subject, url] {
            assert_eq!(Callback::parse(&callback.to_header()), Some(callback));
        }
        assert_eq!(Callback::read(None), Ok(None));
        assert_eq!(Callback::parse("pigeon home"), None);
    }

    #[test]
    fn what_is_no_address_is_named() {
        for bad in [
            json!("fl.callback.acme.x"),
            json!({}),
            json!({"subject": 7}),
            json!({"subject": "a..b"}),
            json!({"subject": "a.*"}),
            json!({"subject": "a.>"}),
            json!({"subject": "a b"}),
            json!({"subject": "a", "url": "https://b"}),
            json!({"url": "https://b/\r\nx: y"}),
            json!({"url": format!("https://{}", "a".repeat(600))}),
            json!({"email": "a@b"}),
        ] {
            let failure = Callback::read(Some(bad.clone())).unwrap_err();
            assert_eq!(failure.field.as_deref(), Some("callback"), "{bad}");
            assert!(failure.message.starts_with("callback is "), "{failure:?}");
            assert!(failure.fix.is_some(), "{failure:?}");
        }
    }
}
