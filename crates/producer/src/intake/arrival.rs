//! A message of the submit stream without its body: who published what, when, and under which id.

use fairlane_core::{JobId, TenantId};
use fairlane_nats::HeaderMap;
use fairlane_runtime::TraceContext;
use fairlane_wire::cut::Truncation;
use fairlane_wire::job::assigned_id;
use fairlane_wire::letter::{DeadReason, Failure};
use fairlane_wire::lineage::Redrive;
use fairlane_wire::names::{Namespace, header};
use fairlane_wire::record::{Descent, Link};
use fairlane_wire::submission::{self, Submission};

use super::Body;

/// Longest name of an object, bytes: the name is part of a subject.
const CLAIM_BYTES_MAX: usize = 255;

/// What a message says besides its body.
#[derive(Debug, Clone)]
pub struct Arrival {
    /// Subject it was published to.
    pub subject: String,
    /// Position in the submit stream.
    pub seq: u64,
    /// When it was stored, unix milliseconds.
    pub stored_ms: u64,
    /// The trace it belongs to, if it came with a valid one.
    pub trace: Option<TraceContext>,
    /// The place in an earlier trace that it comes from.
    pub trace_link: Option<TraceContext>,
    /// The dead letter that it sends again.
    pub redrive: Option<Redrive>,
    /// The job that it comes from, if it is made from one.
    pub parent: Option<Link>,
    /// What was cut of the body by an earlier run of the job, if it is sent again without that.
    pub truncated: Vec<Truncation>,
    /// How often its text has been summarised by now.
    pub rounds: u32,
    tenant: Result<TenantId, Failure>,
    named_job: Option<JobId>,
    claim: Option<String>,
}

/// Where the body is.
#[derive(Debug, Clone, PartialEq)]
pub enum Claim<'a> {
    /// In the message.
    None,
    /// In this object.
    Object(&'a str),
    /// Nowhere it could be fetched from.
    Refused(Failure),
}

impl Arrival {
    /// Reads what a message says. Nothing can be so wrong that there is no arrival.
    #[must_use]
    pub fn read(
        names: &Namespace,
        subject: &str,
        headers: &HeaderMap,
        seq: u64,
        stored_ms: u64,
    ) -> Self {
        let get = |name: &str| headers.get(name).map(|value| value.as_str());
        Self {
            subject: subject.to_owned(),
            seq,
            stored_ms,
            trace: get(header::TRACEPARENT)
                .and_then(|parent| TraceContext::parse(parent, get(header::TRACESTATE))),
            trace_link: get(header::TRACE_LINK).and_then(|link| TraceContext::parse(link, None)),
            redrive: get(header::REDRIVE).and_then(Redrive::parse),
            // What comes after a job that failed is for us to find out.
            parent: get(header::PARENT)
                .and_then(Link::parse)
                .filter(|link| link.how != Descent::Again),
            // Of others only what we cut ourselves counts.
            truncated: get(header::TRUNCATED)
                .filter(|_| get(header::REDRIVE).or(get(header::PARENT)).is_some())
                .and_then(|cut| serde_json::from_str(cut).ok())
                .unwrap_or_default(),
            rounds: 0,
            tenant: tenant_of(names, subject),
            named_job: get(header::JOB).and_then(|id| JobId::parse(id).ok()),
            claim: get(header::CLAIM).map(str::to_owned),
        }
    }

    /// Whose submission it is.
    ///
    /// # Errors
    /// The failure to bury it with, if the subject names no possible tenant.
    pub fn tenant(&self) -> Result<&TenantId, Failure> {
        self.tenant.as_ref().map_err(Clone::clone)
    }

    /// Where the body is, given how many bytes are in the message.
    #[must_use]
    pub fn claim(&self, bytes_in_message: usize) -> Claim<'_> {
        let (Some(name), Ok(tenant)) = (&self.claim, &self.tenant) else {
            return Claim::None;
        };
        let own = name
            .strip_prefix(tenant.as_str())
            .and_then(|rest| rest.strip_prefix('.'));
        let refused = |message: String, fix: String| {
            let failure = Failure::new(DeadReason::InvalidJob, message);
            Claim::Refused(failure.field(header::CLAIM).fix(fix))
        };
        match own {
            None | Some("") => refused(
                format!("object {:?} is not one of tenant {tenant}", shown(name)),
                format!("name an object that starts with \"{tenant}.\""),
            ),
            Some(_) if name.len() > CLAIM_BYTES_MAX => refused(
                format!("the name of the object has {} bytes", name.len()),
                format!("use a name of at most {CLAIM_BYTES_MAX} bytes"),
            ),
            Some(_) if bytes_in_message > 0 => refused(
                format!("the message names an object and has a body of {bytes_in_message} bytes"),
                "publish the body in one of the two places".to_owned(),
            ),
            Some(_) => Claim::Object(name),
        }
    }

    /// Name of the object that holds the body, as published.
    #[must_use]
    pub fn claim_name(&self) -> Option<&str> {
        self.claim.as_deref()
    }

    /// Name of the object with the body as it was published, for a job that has another one: the object it
    /// came in, or one of its own.
    #[must_use]
    pub fn original_name(&self, tenant: &TenantId) -> String {
        let own = || format!("{tenant}.original-{}", self.assigned_id());
        self.claim.clone().unwrap_or_else(own)
    }

    /// Whether it summarises a piece of another job.
    #[must_use]
    pub fn is_part(&self) -> bool {
        let is_part = |link: &Link| link.how == Descent::Part;
        self.parent.as_ref().is_some_and(is_part)
    }

    /// Id that no other submission has, the same on every delivery.
    #[must_use]
    pub fn assigned_id(&self) -> JobId {
        assigned_id(self.stored_ms, self.seq)
    }

    pub(super) fn id_of(&self, job: &Submission) -> JobId {
        let before = self.redrive.as_ref().map(|redrive| &redrive.job);
        let named = job.id.as_ref().or(self.named_job.as_ref()).or(before);
        named.cloned().unwrap_or_else(|| self.assigned_id())
    }

    pub(super) fn id_of_unparsed(&self, body: &Body<'_>) -> JobId {
        let (Body::Here(bytes) | Body::Unusable(bytes, _)) = body;
        let peeked = || JobId::parse(&submission::peek(bytes).id?).ok();
        let before = || self.redrive.as_ref().map(|redrive| redrive.job.clone());
        let named = self.named_job.clone().or_else(peeked).or_else(before);
        named.unwrap_or_else(|| self.assigned_id())
    }
}

fn tenant_of(names: &Namespace, subject: &str) -> Result<TenantId, Failure> {
    let token = names.submit_tenant(subject).unwrap_or(subject);
    TenantId::parse(token).map_err(|error| {
        Failure::new(DeadReason::InvalidTenant, error.to_string())
            .fix("publish to the submit subject of a tenant whose name has that form")
    })
}

/// A name as it appears in a message: short, whatever it was.
fn shown(name: &str) -> String {
    if name.chars().count() <= 80 {
        return name.to_owned();
    }
    name.chars().take(77).collect::<String>() + "..."
}
