//! A job that the lighter model answered, made again on the model it was meant for: a new submission of the
//! same tenant with the same body, under an id and a key that follow from the first, so that asking twice
//! gives one job.

use anyhow::Context as _;
use async_nats::HeaderMap;
use bytes::Bytes;
use fairlane_core::JobId;
use fairlane_nats::{Nats, WriteError};
use fairlane_wire::job::key_hash;
use fairlane_wire::names::header;
use fairlane_wire::record::{Descent, JobRecord, Link};
use serde_json::{Map, Value, json};

/// Longest body that is read back.
const BODY_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Characters of the first id in the new one, which has a limit.
const ID_CHARS: usize = 80;

/// Why a job cannot be made again.
pub(crate) enum Refused {
    /// It has no answer of the lighter model.
    NotLighter,
    /// Its body is gone.
    NoBody,
}

/// Submits the job again. Gives the id of the new one.
pub(crate) async fn submit(
    nats: &Nats,
    record: &JobRecord,
) -> anyhow::Result<Result<JobId, Refused>> {
    if record.fallback.is_none() {
        return Ok(Err(Refused::NotLighter));
    }
    let Some(name) = &record.body_claim else {
        return Ok(Err(Refused::NoBody));
    };
    let payloads = nats.payloads();
    let original = match &record.original_claim {
        Some(original) => payloads.get(original, BODY_BYTES_MAX).await.ok(),
        None => None,
    };
    let is_cut = original.is_none() && !record.truncated.is_empty();
    let body = match original {
        Some(original) => original,
        None => payloads
            .get(name, BODY_BYTES_MAX)
            .await
            .context("the body")?,
    };
    let body: Map<String, Value> = serde_json::from_slice(&body)?;
    let id = id_after(record);
    let body = Bytes::from(Value::Object(again(body, record, &id)).to_string());
    let link = Link {
        how: Descent::Regenerated,
        job: record.job.clone(),
        sequence: record.sequence,
    };
    let mut headers = HeaderMap::new();
    headers.insert(header::PARENT, link.to_header());
    if is_cut {
        let cut = serde_json::to_string(&record.truncated).context("what was cut")?;
        headers.insert(header::TRUNCATED, cut);
    }
    if let (Some(trace), Some(span)) = (&record.trace_id, &record.span_id) {
        headers.insert(header::TRACE_LINK, format!("00-{trace}-{span}-01"));
    }
    let subject = nats.names.submit_subject(&record.tenant);
    let jobs = nats.jobs();
    match jobs
        .publish(&subject, None, headers.clone(), body.clone())
        .await
    {
        Err(WriteError::TooLarge { .. }) => {
            let name = format!("{}.body-{id}", record.tenant);
            nats.payloads().put(&name, &body, usize::MAX).await?;
            headers.insert(header::CLAIM, name);
            jobs.publish(&subject, None, headers, Bytes::new()).await?;
        }
        stored => {
            stored?;
        }
    }
    Ok(Ok(id))
}

/// The id of the job that `record`'s is made again as. Always the same.
fn id_after(record: &JobRecord) -> JobId {
    let first: String = record.job.as_str().chars().take(ID_CHARS).collect();
    let hash = key_hash(&format!("{} {:?}", record.job, record.sequence));
    JobId::parse(&format!("{first}-r{}", &hash[..8])).expect("an id, a dash, letters and digits")
}

/// The body of the new job.
fn again(mut body: Map<String, Value>, record: &JobRecord, id: &JobId) -> Map<String, Value> {
    let key = record.key.as_deref().unwrap_or(record.job.as_str());
    body.insert("id".to_owned(), json!(id.as_str()));
    let key = format!("regenerate {} {:?}", key_hash(key), record.sequence);
    body.insert("idempotency_key".to_owned(), json!(key));
    // What it was meant for, however long that takes; its times are over.
    for field in ["deadline_ms", "not_before_ms"] {
        body.remove(field);
    }
    let choices = body.entry("on_overload").or_insert_with(|| json!({}));
    match choices {
        Value::Object(choices) => {
            choices.insert("fallback".to_owned(), json!("never"));
        }
        other => *other = json!({"fallback": "never"}),
    }
    body
}

#[cfg(test)]
mod tests {
    use fairlane_core::TenantId;
    use fairlane_wire::{Phase, submission};

    use super::*;

    #[test]
    fn the_new_job_is_the_same_work_under_an_id_and_a_key_that_follow_from_the_first() {
        let tenant = TenantId::parse("acme").unwrap();
        let body = r#"{"id":"a","idempotency_key":"k","origin":"user_action","kind":"tagging",
            "deadline_ms":5,"model":"claude-sonnet-4-6","prompt":"hi"}"#;
        let job = JobId::parse("a").unwrap();
        let mut record = JobRecord::new(tenant.clone(), job, Phase::Done, 1);
        record.key = Some("k".to_owned());
        let id = id_after(&record);
        assert_eq!(id, id_after(&record));
        let again = again(serde_json::from_str(body).unwrap(), &record, &id);
        let text = Value::Object(again).to_string();
        let parsed = submission::parse(text.as_bytes(), &tenant).unwrap();
        let first = submission::parse(body.as_bytes(), &tenant).unwrap();
        assert_eq!(parsed.request, first.request);
        assert_eq!((parsed.kind, parsed.origin), (first.kind, first.origin));
        assert_eq!((parsed.id, parsed.deadline_ms), (Some(id), None));
        assert_ne!(parsed.idempotency_key, first.idempotency_key);
    }
}
