//! Names of everything Fairlane keeps on NATS: subjects, streams, buckets, headers.
//!
//! This is the only place where a subject is put together or taken apart. All names
//! hang on one namespace (`fl` by default), so several fleets can share one NATS.

use fairlane_core::{JobId, JobSeq, Priority, TenantId, WorkerId};

use crate::failure::DeadReason;

/// Prefix of every name: `[a-z][a-z0-9]{0,15}`. `fl` gives `fl.submit.*` and `FL_SUBMIT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    lower: String,
    upper: String,
}

/// What the owner of a job can ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ask {
    /// Call the job off.
    Cancel,
    /// Say whether it may be put off.
    Answer,
    /// Run it again on the model it was meant for.
    Regenerate,
}

impl Ask {
    /// Every one.
    pub const ALL: [Self; 3] = [Self::Cancel, Self::Answer, Self::Regenerate];

    /// The stable word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Answer => "answer",
            Self::Regenerate => "regenerate",
        }
    }
}

/// A namespace that cannot be used as subject prefix and stream name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "namespace {0:?} is not usable; use 1 to 16 lower-case letters and digits, starting with a letter"
)]
pub struct NamespaceError(String);

impl Default for Namespace {
    fn default() -> Self {
        Self {
            lower: "fl".to_owned(),
            upper: "FL".to_owned(),
        }
    }
}

impl Namespace {
    /// # Errors
    /// [`NamespaceError`] with the value and the rule.
    pub fn parse(value: &str) -> Result<Self, NamespaceError> {
        let fits = (1..=16).contains(&value.len())
            && value.starts_with(|c: char| c.is_ascii_lowercase())
            && value
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
        if !fits {
            return Err(NamespaceError(value.to_owned()));
        }
        Ok(Self {
            lower: value.to_owned(),
            upper: value.to_ascii_uppercase(),
        })
    }

    /// The namespace as given, for example `fl`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.lower
    }

    fn stream(&self, suffix: &str) -> String {
        format!("{}_{suffix}", self.upper)
    }

    fn bucket(&self, suffix: &str) -> String {
        format!("{}_{suffix}", self.lower)
    }

    /// Stream of submissions as published by anyone.
    #[must_use]
    pub fn submit_stream(&self) -> String {
        self.stream("SUBMIT")
    }

    /// Stream of accepted jobs: the truth about what is still to be done.
    #[must_use]
    pub fn jobs_stream(&self) -> String {
        self.stream("JOBS")
    }

    /// Stream of dead letters.
    #[must_use]
    pub fn dlq_stream(&self) -> String {
        self.stream("DLQ")
    }

    /// Where the server tells that a submission is given to nobody any more.
    #[must_use]
    pub fn stranded_advisory(&self) -> String {
        let (stream, consumer) = (self.submit_stream(), self.producer_consumer());
        format!("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{stream}.{consumer}")
    }

    /// Stream of settlements, one per attempt.
    #[must_use]
    pub fn ledger_stream(&self) -> String {
        self.stream("LEDGER")
    }

    /// Stream of word to submitters that their jobs ended, until it is delivered.
    #[must_use]
    pub fn callbacks_stream(&self) -> String {
        self.stream("CALLBACKS")
    }

    /// Durable consumer of that stream shared by all producers.
    #[must_use]
    pub fn callbacks_consumer(&self) -> &'static str {
        "callbacks"
    }

    /// Where word to the submitter of a job of `tenant` waits for its delivery.
    #[must_use]
    pub fn callbacks_subject(&self, tenant: &TenantId) -> String {
        format!("{}.callbacks.{tenant}", self.lower)
    }

    /// All of it.
    #[must_use]
    pub fn callbacks_filter(&self) -> String {
        format!("{}.callbacks.*", self.lower)
    }

    /// What subjects begin with on which `tenant` may always be told that its jobs ended.
    #[must_use]
    pub fn own_callback_prefix(&self, tenant: &TenantId) -> String {
        format!("{}.callback.{tenant}.", self.lower)
    }

    /// KV bucket of the leader lease and the scheduler's snapshot.
    #[must_use]
    pub fn control_bucket(&self) -> String {
        self.bucket("control")
    }

    /// KV bucket of live credits and parked jobs, one key per job sequence.
    #[must_use]
    pub fn credits_bucket(&self) -> String {
        self.bucket("credits")
    }

    /// KV bucket of tenants' plans, weights and limits.
    #[must_use]
    pub fn tenants_bucket(&self) -> String {
        self.bucket("tenants")
    }

    /// KV bucket of job records.
    #[must_use]
    pub fn status_bucket(&self) -> String {
        self.bucket("status")
    }

    /// KV bucket from idempotency key to job.
    #[must_use]
    pub fn idem_bucket(&self) -> String {
        self.bucket("idem")
    }

    /// KV bucket of the runs that send dead letters again.
    #[must_use]
    pub fn redrives_bucket(&self) -> String {
        self.bucket("redrives")
    }

    /// Object store of bodies too large for a message.
    #[must_use]
    pub fn payload_store(&self) -> String {
        self.bucket("payloads")
    }

    /// Durable consumer of the submit stream shared by all producers.
    #[must_use]
    pub fn producer_consumer(&self) -> &'static str {
        "producer"
    }

    /// Where `tenant` publishes jobs.
    #[must_use]
    pub fn submit_subject(&self, tenant: &TenantId) -> String {
        format!("{}.submit.{tenant}", self.lower)
    }

    /// All submissions.
    #[must_use]
    pub fn submit_filter(&self) -> String {
        format!("{}.submit.*", self.lower)
    }

    /// The last token of a submit subject, unchecked. None if the subject is not one.
    #[must_use]
    pub fn submit_tenant<'a>(&self, subject: &'a str) -> Option<&'a str> {
        subject
            .strip_prefix(self.lower.as_str())?
            .strip_prefix(".submit.")
    }

    /// The lane of `tenant` at `priority`.
    #[must_use]
    pub fn job_subject(&self, priority: Priority, tenant: &TenantId) -> String {
        format!("{}.jobs.{}.{tenant}", self.lower, priority.as_str())
    }

    /// All jobs.
    #[must_use]
    pub fn jobs_filter(&self) -> String {
        format!("{}.jobs.*.*", self.lower)
    }

    /// All jobs of `priority`.
    #[must_use]
    pub fn priority_filter(&self, priority: Priority) -> String {
        format!("{}.jobs.{}.*", self.lower, priority.as_str())
    }

    /// Priority of a job subject, whatever stands in the place of the tenant. None if it has none.
    #[must_use]
    pub fn job_priority(&self, subject: &str) -> Option<Priority> {
        let lane = subject
            .strip_prefix(self.lower.as_str())?
            .strip_prefix(".jobs.")?;
        Priority::parse(lane.split_once('.')?.0)
    }

    /// Priority and tenant of a job subject. None if it is not one.
    #[must_use]
    pub fn parse_job_subject(&self, subject: &str) -> Option<(Priority, TenantId)> {
        let lane = subject
            .strip_prefix(self.lower.as_str())?
            .strip_prefix(".jobs.")?;
        let (priority, tenant) = lane.split_once('.')?;
        Some((Priority::parse(priority)?, TenantId::parse(tenant).ok()?))
    }

    /// Where a dead letter of `reason` (its stable word) for `tenant` goes.
    #[must_use]
    pub fn dlq_subject(&self, reason: &str, tenant: &TenantId) -> String {
        format!("{}.dlq.{reason}.{tenant}", self.lower)
    }

    /// Reason and tenant of a dead letter's subject. None if it is not one.
    #[must_use]
    pub fn parse_dlq_subject<'a>(&self, subject: &'a str) -> Option<(DeadReason, &'a str)> {
        let rest = subject
            .strip_prefix(self.lower.as_str())?
            .strip_prefix(".dlq.")?;
        let (reason, tenant) = rest.split_once('.')?;
        Some((DeadReason::parse(reason)?, tenant))
    }

    /// Where it is noted that the dead letter at `seq` is sent again. Only the first note under
    /// this subject counts.
    #[must_use]
    pub fn redriven_subject(&self, seq: u64) -> String {
        format!("{}.redriven.{seq}", self.lower)
    }

    /// All such notes.
    #[must_use]
    pub fn redriven_filter(&self) -> String {
        format!("{}.redriven.*", self.lower)
    }

    /// The letter that a note is about. None if the subject is not that of a note.
    #[must_use]
    pub fn parse_redriven_subject(&self, subject: &str) -> Option<u64> {
        subject
            .strip_prefix(self.lower.as_str())?
            .strip_prefix(".redriven.")?
            .parse()
            .ok()
    }

    /// All dead letters.
    #[must_use]
    pub fn dlq_filter(&self) -> String {
        format!("{}.dlq.*.*", self.lower)
    }

    /// Settlements of `tenant`.
    #[must_use]
    pub fn ledger_subject(&self, tenant: &TenantId) -> String {
        format!("{}.ledger.{tenant}", self.lower)
    }

    /// All settlements.
    #[must_use]
    pub fn ledger_filter(&self) -> String {
        format!("{}.ledger.*", self.lower)
    }

    /// The tenant of a settlement. None if the subject is not one.
    #[must_use]
    pub fn parse_ledger_subject(&self, subject: &str) -> Option<TenantId> {
        let tenant = subject
            .strip_prefix(self.lower.as_str())?
            .strip_prefix(".ledger.")?;
        TenantId::parse(tenant).ok()
    }

    /// Where the owner of a job asks for something: a request, which a producer answers.
    #[must_use]
    pub fn ask_subject(&self, ask: Ask, tenant: &TenantId, job: &JobId) -> String {
        format!("{}.ask.{}.{tenant}.{job}", self.lower, ask.as_str())
    }

    /// Everything that owners ask for.
    #[must_use]
    pub fn ask_filter(&self) -> String {
        format!("{}.ask.*.*.*", self.lower)
    }

    /// What is asked for, of which job. None if the subject is not one of these.
    #[must_use]
    pub fn parse_ask_subject(&self, subject: &str) -> Option<(Ask, TenantId, JobId)> {
        let rest = subject
            .strip_prefix(self.lower.as_str())?
            .strip_prefix(".ask.")?;
        let mut parts = rest.splitn(3, '.');
        let word = parts.next()?;
        let ask = Ask::ALL.into_iter().find(|ask| ask.as_str() == word)?;
        let tenant = TenantId::parse(parts.next()?).ok()?;
        Some((ask, tenant, JobId::parse(parts.next()?).ok()?))
    }

    /// Where the parts of an answer are told while they are written, to whoever listens.
    #[must_use]
    pub fn stream_subject(&self, tenant: &TenantId, job: &JobId) -> String {
        format!("{}.stream.{tenant}.{job}", self.lower)
    }

    /// Where workers are asked how many tokens a request has.
    #[must_use]
    pub fn count_subject(&self) -> String {
        format!("{}.ctl.count", self.lower)
    }

    /// KV bucket of batches of the HTTP API.
    #[must_use]
    pub fn batches_bucket(&self) -> String {
        self.bucket("batches")
    }

    /// Object with the names of a batch's messages, by the batch's key in its bucket: `<tenant>.<batch>`.
    #[must_use]
    pub fn batch_object(key: &str) -> String {
        match key.split_once('.') {
            Some((tenant, batch)) => format!("{tenant}.batch-{batch}"),
            None => format!("batch-{key}"),
        }
    }

    /// Where workers and the leader hear that a job was called off.
    #[must_use]
    pub fn cancel_subject(&self) -> String {
        format!("{}.ctl.cancel", self.lower)
    }

    /// Where processes hear of traces that are to be sent although they were not chosen.
    #[must_use]
    pub fn trace_subject(&self) -> String {
        format!("{}.ctl.trace", self.lower)
    }

    /// Where workers announce themselves and their free slots; the leader listens.
    #[must_use]
    pub fn ready_subject(&self) -> String {
        format!("{}.ctl.ready", self.lower)
    }

    /// Where the leader is asked why a job is not running.
    #[must_use]
    pub fn why_subject(&self) -> String {
        format!("{}.ctl.why", self.lower)
    }

    /// Where a new leader asks all workers to announce themselves at once.
    #[must_use]
    pub fn call_subject(&self) -> String {
        format!("{}.ctl.call", self.lower)
    }

    /// Where the leader sends stored credits to `worker`.
    #[must_use]
    pub fn credit_subject(&self, worker: &WorkerId) -> String {
        format!("{}.ctl.credit.{worker}", self.lower)
    }

    /// Subject under which a key of `bucket` is stored.
    #[must_use]
    pub fn kv_subject(bucket: &str, key: &str) -> String {
        format!("$KV.{bucket}.{key}")
    }

    /// Key of the leader lease in the control bucket.
    #[must_use]
    pub fn leader_key(&self) -> &'static str {
        "leader"
    }

    /// Key of the leading scheduler's books in the control bucket.
    #[must_use]
    pub fn books_key(&self) -> &'static str {
        "scheduler"
    }

    /// Key of the autoscaling signal in the control bucket.
    #[must_use]
    pub fn autoscale_key(&self) -> &'static str {
        "autoscale"
    }

    /// Key of the lease on one job in the credits bucket.
    #[must_use]
    pub fn lease_key(seq: JobSeq) -> String {
        seq.0.to_string()
    }

    /// Key of a job record in the status bucket.
    #[must_use]
    pub fn status_key(tenant: &TenantId, job: &JobId) -> String {
        format!("{tenant}.{job}")
    }
}

/// Headers on messages. `Fl-*` are Fairlane's own, the rest are standards.
pub mod header {
    /// Which part of an answer a message is: attempt, first event, events.
    pub const PART: &str = "Fl-Part";
    /// Job id.
    pub const JOB: &str = "Fl-Job";
    /// Idempotency key.
    pub const KEY: &str = "Fl-Key";
    /// Kind of work.
    pub const KIND: &str = "Fl-Kind";
    /// Model asked for.
    pub const MODEL: &str = "Fl-Model";
    /// Pool of the model.
    pub const POOL: &str = "Fl-Pool";
    /// Estimated input tokens.
    pub const INPUT_TOKENS: &str = "Fl-Input-Tokens";
    /// Expected output tokens.
    pub const OUTPUT_TOKENS: &str = "Fl-Output-Tokens";
    /// On a booking: the stable word for what the call ended as.
    pub const OUTCOME: &str = "Fl-Outcome";
    /// On a booking: priority as which the job was served.
    pub const PRIORITY: &str = "Fl-Priority";
    /// On a booking of a job's first call: milliseconds it had waited for it.
    pub const WAITED: &str = "Fl-Waited-Ms";
    /// On a booking: a smaller model was called than the job's own.
    pub const BY_FALLBACK: &str = "Fl-By-Fallback";
    /// Not before, unix milliseconds.
    pub const NOT_BEFORE: &str = "Fl-Not-Before";
    /// Deadline, unix milliseconds.
    pub const DEADLINE: &str = "Fl-Deadline";
    pub const FALLBACK_MODEL: &str = "Fl-Fallback-Model";
    pub const FALLBACK_POOL: &str = "Fl-Fallback-Pool";
    pub const FALLBACK_INPUT_TOKENS: &str = "Fl-Fallback-Input-Tokens";
    pub const FALLBACK_OUTPUT_TOKENS: &str = "Fl-Fallback-Output-Tokens";
    /// When the submission was stored, unix milliseconds.
    pub const ACCEPTED: &str = "Fl-Accepted";
    /// Name of the object that holds the body.
    pub const CLAIM: &str = "Fl-Claim";
    /// The job that this one comes from, and how.
    pub const PARENT: &str = "Fl-Parent";
    /// Texts of the submission that were cut to fit the model.
    pub const TRUNCATED: &str = "Fl-Truncated";
    /// Object with the body as it was published, when the job has another one.
    pub const ORIGINAL: &str = "Fl-Original";
    /// Objects that a job record names, one value each, so that many records can be searched without their
    /// bodies.
    pub const CLAIMS: &str = "Fl-Claims";
    /// Phase of a job record, so that many can be followed without their bodies.
    pub const PHASE: &str = "Fl-Phase";
    /// Reason of a dead letter, on the letter and on the record of its job.
    pub const REASON: &str = "Fl-Reason";
    /// Facts about a dead letter, JSON.
    pub const LETTER: &str = "Fl-Letter";
    /// On what sends a dead letter again: where it comes from, JSON.
    pub const REDRIVE: &str = "Fl-Redrive";
    /// Line of the file a submission came from, for messages to people.
    pub const LINE: &str = "Fl-Line";
    /// Who hears of the end of a job.
    pub const CALLBACK: &str = "Fl-Callback";
    /// W3C trace context.
    pub const TRACEPARENT: &str = "traceparent";
    /// W3C trace context, vendor part.
    pub const TRACESTATE: &str = "tracestate";
    /// The traceparent of what a submission comes from, whose trace is not its own: sent again, made again.
    pub const TRACE_LINK: &str = "Fl-Trace-Link";
    /// Deduplication id within a stream.
    pub const MSG_ID: &str = "Nats-Msg-Id";
    /// Expected revision of a key.
    pub const EXPECTED_SUBJECT_SEQUENCE: &str = "Nats-Expected-Last-Subject-Sequence";
    /// Time to live of a message.
    pub const TTL: &str = "Nats-TTL";
    /// Set on KV tombstones.
    pub const KV_OPERATION: &str = "KV-Operation";
    /// Set by the server on markers: `MaxAge` when a TTL ended.
    pub const MARKER_REASON: &str = "Nats-Marker-Reason";
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> TenantId {
        TenantId::parse(name).unwrap()
    }

    #[test]
    fn a_job_subject_comes_apart_as_it_was_put_together() {
        let ns = Namespace::default();
        for priority in Priority::ALL {
            let subject = ns.job_subject(priority, &tenant("acme"));
            assert_eq!(
                ns.parse_job_subject(&subject),
                Some((priority, tenant("acme")))
            );
        }
        for bad in [
            "fl.jobs.urgent.acme",
            "fl.jobs.batch",
            "fl.jobs.batch.a.b",
            "xx.jobs.batch.a",
            "flx.jobs.batch.a",
        ] {
            assert_eq!(ns.parse_job_subject(bad), None, "{bad}");
        }
    }

    #[test]
    fn subjects_of_letters_and_of_notes_on_them_come_apart() {
        let ns = Namespace::default();
        for reason in DeadReason::ALL {
            let subject = ns.dlq_subject(reason.as_str(), &tenant("acme"));
            assert_eq!(ns.parse_dlq_subject(&subject), Some((reason, "acme")));
        }
        assert_eq!(ns.parse_dlq_subject("fl.dlq.bad_luck.acme"), None);
        assert_eq!(ns.parse_redriven_subject(&ns.redriven_subject(7)), Some(7));
        assert_eq!(ns.parse_redriven_subject("fl.dlq.schema.7"), None);
    }

    #[test]
    fn a_request_of_an_owner_comes_apart_as_it_was_put_together() {
        let (ns, job) = (Namespace::default(), JobId::parse("wp-1").unwrap());
        for ask in Ask::ALL {
            let subject = ns.ask_subject(ask, &tenant("acme"), &job);
            let parsed = ns.parse_ask_subject(&subject);
            assert_eq!(parsed, Some((ask, tenant("acme"), job.clone())));
        }
        for bad in ["fl.ask.stop.a.b", "fl.ask.cancel.a", "fl.ask.cancel.a.b.c"] {
            assert_eq!(ns.parse_ask_subject(bad), None, "{bad}");
        }
    }

    #[test]
    fn two_namespaces_share_no_name() {
        let a = Namespace::parse("fl").unwrap();
        let b = Namespace::parse("fl2").unwrap();
        assert_eq!(b.submit_subject(&tenant("acme")), "fl2.submit.acme");
        assert_eq!(a.submit_tenant("fl2.submit.acme"), None);
        assert_ne!(a.jobs_stream(), b.jobs_stream());
    }

    #[test]
    fn odd_namespaces_are_refused() {
        for bad in ["", "FL", "1a", "a.b", "a-b", "abcdefghijklmnopq"] {
            assert!(Namespace::parse(bad).is_err(), "{bad}");
        }
    }
}
