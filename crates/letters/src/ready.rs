//! A letter as the submission that sends it again: repaired, judged, with its history.

use async_nats::HeaderMap;
use fairlane_core::{ModelId, TenantId, Tokens};
use fairlane_nats::StoredLetter;
use fairlane_wire::lineage::{Ancestor, Redrive, descend};
use fairlane_wire::{DeadReason, Failure, header};

use crate::repair::{Repair, RepairError, repair};

/// What a job will take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Size {
    pub model: ModelId,
    /// As the producer estimates them.
    pub tokens: Tokens,
}

/// The judge of submissions.
pub trait Judge {
    /// What the job takes that `body`, published for `tenant`, would become.
    ///
    /// # Errors
    /// The failure it would be turned away with.
    fn judge(&self, tenant: &TenantId, body: &[u8]) -> Result<Size, Failure>;
}

/// A letter that may be sent.
#[derive(Debug, Clone, PartialEq)]
pub struct Ready {
    pub tenant: TenantId,
    pub body: Vec<u8>,
    /// What the repair changed.
    pub changes: Vec<String>,
    pub size: Size,
}

/// Why a letter cannot be sent as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unready {
    #[error("it has no tenant; say for whom to send it with --for-tenant")]
    NoTenant,
    #[error("{0:?} cannot be a tenant")]
    WrongTenant(String),
    #[error(transparent)]
    Repair(#[from] RepairError),
    #[error("it would be turned away again: {}", .0.line())]
    Refused(Box<Failure>),
}

/// Repairs a letter and judges the result.
///
/// # Errors
/// [`Unready`]: the letter stays.
pub fn ready(letter: &StoredLetter, wanted: &Repair, judge: &impl Judge) -> Result<Ready, Unready> {
    let name = wanted.tenant.as_ref().or(letter.letter.tenant.as_ref());
    let name = name.ok_or(Unready::NoTenant)?;
    let tenant = TenantId::parse(name).map_err(|_| Unready::WrongTenant(name.clone()))?;
    let judged = |body: &[u8]| judge.judge(&tenant, body);
    let fits = |body: &[u8]| match judged(body) {
        Err(failure) => failure.reason != DeadReason::Oversize,
        Ok(_) => true,
    };
    let repaired = repair(&letter.body, wanted, fits)?;
    let size = judged(&repaired.body).map_err(|failure| Unready::Refused(Box::new(failure)))?;
    Ok(Ready {
        tenant,
        body: repaired.body,
        changes: repaired.changes,
        size,
    })
}

/// The headers that send a letter again: the publisher's own, a link to its trace, and the history.
#[must_use]
pub fn headers(letter: &StoredLetter, run: &str, wanted: &Repair, ready: &Ready) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, values) in letter.headers.iter() {
        let text = name.to_string().to_ascii_lowercase();
        let is_ours = text.starts_with("fl-") || text.starts_with("nats-");
        let is_trace = text == header::TRACEPARENT || text == header::TRACESTATE;
        if !is_ours && !is_trace {
            for value in values {
                headers.append(name.clone(), value.clone());
            }
        }
    }
    // Days later it is another trace, which points to the first one.
    if let Some(trace) = &letter.letter.trace_id {
        let was = letter.headers.get(header::TRACEPARENT);
        let was = was
            .map(|was| was.as_str())
            .filter(|was| was.contains(trace.as_str()));
        let unknown_span = || format!("00-{trace}-{:016x}-01", letter.seq);
        let link = was.map_or_else(unknown_span, str::to_owned);
        headers.insert(header::TRACE_LINK, link);
    }
    let facts = &letter.letter;
    let last = Ancestor {
        letter: letter.seq,
        reason: facts.failure.reason,
        at_ms: facts.at_ms,
        attempts: facts.attempts,
        cost_usd: facts.cost_usd,
        repair: (!ready.changes.is_empty()).then(|| wanted.summary()),
    };
    let redrive = Redrive {
        letter: letter.seq,
        run: run.to_owned(),
        job: facts.job.clone(),
        lineage: descend(facts.lineage.clone(), last),
    };
    headers.insert(header::REDRIVE, redrive.to_value());
    if let (Some(cut), None) = (&letter.cut, &wanted.body) {
        // Its history goes with it.
        headers.insert(header::TRUNCATED, cut.as_str());
    }
    headers
}

#[cfg(test)]
pub(crate) mod tests {
    use bytes::Bytes;
    use fairlane_core::JobId;
    use fairlane_wire::letter::Letter;
    use fairlane_wire::submission;
    use serde_json::json;

    use super::*;

    /// Takes whatever parses and has at most 300 bytes.
    #[derive(Debug)]
    pub(crate) struct Simple;

    impl Judge for Simple {
        fn judge(&self, tenant: &TenantId, body: &[u8]) -> Result<Size, Failure> {
            let job = submission::parse(body, tenant)?;
            if body.len() > 300 {
                return Err(Failure::new(DeadReason::Oversize, "too long"));
            }
            let input = body.len() as u64 / 4;
            Ok(Size {
                model: job.model,
                tokens: Tokens { input, output: 10 },
            })
        }
    }

    fn body(content: &str) -> String {
        json!({"id": "a", "tenant": "acme", "origin": "scheduled", "kind": "tagging", "prompt": content,
            "model": "claude-haiku-4-5"})
        .to_string()
    }

    fn letter(tenant: Option<&str>, body: &[u8]) -> StoredLetter {
        let failure = Failure::new(DeadReason::Undecodable, "x");
        let job = JobId::parse("a").unwrap();
        let mut headers = HeaderMap::new();
        headers.insert("X-Own", "1");
        headers.insert("Fl-Claim", "acme.1");
        headers.insert("Nats-TTL", "1");
        StoredLetter {
            seq: 20,
            letter: Letter {
                trace_id: Some("4bf92f3577b34da6a3ce929d0e0e4736".into()),
                ..Letter::new(tenant.map(str::to_owned), job, failure, 5)
            },
            headers,
            body: Bytes::copy_from_slice(body),
            cut: None,
        }
    }

    #[test]
    fn a_letter_is_sent_as_it_came_or_as_it_was_repaired() {
        let whole = body("hi");
        let stored = letter(Some("acme"), whole.as_bytes());
        let sent = ready(&stored, &Repair::default(), &Simple).unwrap();
        assert_eq!(sent.body, whole.as_bytes());

        let long = letter(Some("acme"), body(&"x".repeat(400)).as_bytes());
        let refused = ready(&long, &Repair::default(), &Simple);
        assert!(matches!(refused, Err(Unready::Refused(_))));
        let wanted = Repair {
            trim: vec![String::new()],
            ..Repair::default()
        };
        let sent = ready(&long, &wanted, &Simple).unwrap();
        assert_eq!(sent.body.len(), 300);
    }

    #[test]
    fn a_letter_without_a_tenant_needs_one() {
        let stored = letter(None, body("hi").as_bytes());
        let sent = |tenant: Option<&str>| {
            let wanted = Repair {
                tenant: tenant.map(str::to_owned),
                ..Repair::default()
            };
            ready(&stored, &wanted, &Simple)
        };
        assert_eq!(sent(None), Err(Unready::NoTenant));
        assert_eq!(sent(Some("a b")), Err(Unready::WrongTenant("a b".into())));
        let sent = sent(Some("beta")).unwrap();
        assert_eq!(sent.tenant.as_str(), "beta");
        assert_eq!(sent.changes, [r#"tenant was "acme" and is "beta""#]);
    }

    #[test]
    fn a_sent_letter_has_its_publishers_headers_a_link_to_its_trace_and_its_history() {
        let stored = letter(Some("acme"), body("hi").as_bytes());
        let wanted = Repair {
            strip: true,
            ..Repair::default()
        };
        let mut sent = ready(&stored, &wanted, &Simple).unwrap();
        let history = |sent: &Ready| {
            let headers = headers(&stored, "r-1", &wanted, sent);
            Redrive::parse(headers.get(header::REDRIVE).unwrap().as_str()).unwrap()
        };
        assert_eq!(history(&sent).lineage[0].repair, None, "it changed nothing");
        sent.changes = vec!["x".into()];
        let redrive = history(&sent);
        assert_eq!((redrive.letter, redrive.job.as_str()), (20, "a"));
        assert_eq!(redrive.lineage[0].repair.as_deref(), Some("strip"));
        let headers = headers(&stored, "r-1", &wanted, &sent);
        assert_eq!(headers.get("X-Own").unwrap().as_str(), "1");
        assert!(headers.get("Fl-Claim").is_none() && headers.get("Nats-TTL").is_none());
        assert_eq!(
            headers.get(header::TRACE_LINK).unwrap().as_str(),
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000014-01",
            "the letter's own sequence, for want of a span"
        );
        assert!(
            headers.get(header::TRACEPARENT).is_none(),
            "a trace of its own"
        );
    }
}
