//! The job record: what its owner can read about a job, from acceptance to outcome.

use fairlane_core::{JobId, Kind, ModelId, Priority, TenantId};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cut::Truncation;
use crate::letter::{Failure, TRIES_MAX, Try};
use crate::names::Namespace;
use crate::notice::Notice;
use crate::text;

/// Where a job is. Its life has three stages, taken in, under way and over, and never goes back to
/// an earlier one; the phases of the middle stage take turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Taken in, and not in the queue itself: it shares another job's outcome, or its parts are
    /// worked on first.
    Accepted,
    /// Stored, waiting for its turn.
    Queued,
    /// The model is at work on it.
    Generating,
    /// There is an answer, which is being checked or continued.
    Refining,
    /// Failed in passing; runs again at `retry_at_ms`.
    Retrying,
    /// Put off to `retry_at_ms`, because the upstream has been overloaded for too long.
    Deferred,
    /// As deferred would be, but its owner has not been asked yet: see `question`.
    NeedsDecision,
    /// Has its result.
    Done,
    /// Ended as a dead letter.
    Failed,
    /// Called off by its owner.
    Cancelled,
}

impl Phase {
    /// Every phase.
    pub const ALL: [Self; 10] = [
        Self::Accepted,
        Self::Queued,
        Self::Generating,
        Self::Refining,
        Self::Retrying,
        Self::Deferred,
        Self::NeedsDecision,
        Self::Done,
        Self::Failed,
        Self::Cancelled,
    ];

    /// The stable word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Queued => "queued",
            Self::Generating => "generating",
            Self::Refining => "refining",
            Self::Retrying => "retrying",
            Self::Deferred => "deferred",
            Self::NeedsDecision => "needs_decision",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// The phase of a stable word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|phase| phase.as_str() == word)
    }

    /// Whether nothing more will happen to the job.
    #[must_use]
    pub fn is_final(self) -> bool {
        self.stage() == Stage::Over
    }

    fn stage(self) -> Stage {
        match self {
            Self::Accepted | Self::Queued => Stage::TakenIn,
            Self::Generating
            | Self::Refining
            | Self::Retrying
            | Self::Deferred
            | Self::NeedsDecision => Stage::UnderWay,
            Self::Done | Self::Failed | Self::Cancelled => Stage::Over,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    TakenIn,
    UnderWay,
    Over,
}

/// Tokens as the upstream counted them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct UsageRecord {
    pub input_tokens: u64,
    pub cache_write_5m_tokens: u64,
    pub cache_write_1h_tokens: u64,
    pub cache_read_tokens: u64,
    pub output_tokens: u64,
}

impl UsageRecord {
    /// The whole prompt: uncached, written and read.
    #[must_use]
    pub fn prompt(&self) -> u64 {
        self.input_tokens
            .saturating_add(self.cache_write_5m_tokens)
            .saturating_add(self.cache_write_1h_tokens)
            .saturating_add(self.cache_read_tokens)
    }
}

/// The lighter model that a job was given to, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FallbackUse {
    pub model: String,
    /// A stable word, for example `overloaded`.
    pub why: String,
}

/// What the owner of a job is asked: shall it wait until the upstream is better?
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// Unix milliseconds to which the job is put off if the answer is yes.
    pub defer_until_ms: u64,
    /// Unix milliseconds after which no answer counts as no.
    pub answer_by_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Answer>,
}

/// The owner's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    Yes,
    No,
}

impl Answer {
    /// Its word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::No => "no",
        }
    }

    /// The answer of its word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "yes" => Some(Self::Yes),
            "no" => Some(Self::No),
            _ => None,
        }
    }
}

/// How one job comes from another of the same tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    pub how: Descent,
    #[serde(with = "text::job")]
    pub job: JobId,
    /// Sequence of the other job in the job stream, when its id alone does not name it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence: Option<u64>,
}

impl Link {
    /// As it travels in a header: the kind, the job, and its sequence if it has one.
    #[must_use]
    pub fn to_header(&self) -> String {
        let (how, job) = (self.how.as_str(), &self.job);
        match self.sequence {
            Some(seq) => format!("{how} {job} {seq}"),
            None => format!("{how} {job}"),
        }
    }

    /// Reads what [`Link::to_header`] wrote. None if it is anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(' ');
        let (how, job) = (Descent::parse(parts.next()?)?, parts.next()?);
        let sequence = parts.next().map(str::parse).transpose().ok()?;
        parts.next().is_none().then_some(())?;
        Some(Self {
            how,
            job: JobId::parse(job).ok()?,
            sequence,
        })
    }
}

impl Descent {
    /// The stable word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Again => "again",
            Self::Regenerated => "regenerated",
            Self::Part => "part",
        }
    }

    fn parse(word: &str) -> Option<Self> {
        let all = [Self::Again, Self::Regenerated, Self::Part];
        all.into_iter().find(|how| how.as_str() == word)
    }
}

/// Why there is another job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Descent {
    /// Submitted again after it had failed or was called off.
    Again,
    /// Answered by the lighter model, and run again on the model that was asked for.
    Regenerated,
    /// A part of a body that was too large.
    Part,
}

/// How far a job is whose text is summarised in parts before it runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parts {
    /// Sequence of the submission that was split.
    pub submission: u64,
    /// 1, or 2 when the first summaries were too long as well.
    pub round: u32,
    /// Parts of this round that have their summary.
    pub done: u32,
    pub of: u32,
}

/// Record of one job in the status bucket.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobRecord {
    #[serde(with = "text::tenant")]
    pub tenant: TenantId,
    #[serde(with = "text::job")]
    pub job: JobId,
    pub phase: Phase,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<String>,
    /// Model asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Model that answered, as the upstream names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_used: Option<String>,
    /// The lighter model it was given to instead of the one asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<FallbackUse>,
    /// Its idempotency key, when that is not its id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Smaller model that may answer while the job's own is overloaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback_to: Option<String>,
    /// Why none may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_fallback: Option<String>,
    /// Sequence of the one true message of this job in the job stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence: Option<u64>,
    /// Real tries at the upstream that counted.
    #[serde(default)]
    pub attempts: u32,
    /// Credits handed out for the job.
    #[serde(default)]
    pub deliveries: u32,
    /// Calls whose outcome is unknown.
    #[serde(default)]
    pub ambiguous: u32,
    /// Output limit of the next try, once it was raised above the request's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens_raised: Option<u64>,
    /// Unix milliseconds.
    pub accepted_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_ms: Option<u64>,
    /// Unix milliseconds at which a retrying job may run again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_at_ms: Option<u64>,
    /// What its owner is asked, or was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<Question>,
    /// Why it is tried again: a stable word and what happened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_reason: Option<String>,
    /// Output tokens seen so far while generating.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tokens_so_far: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<UsageRecord>,
    /// What all attempts of the job cost, in US dollars.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// The latest calls, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tries: Vec<Try>,
    /// Sequence of the dead letter that was sent again as this run of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redrive_of: Option<u64>,
    /// The trace of the job: 32 hexadecimal digits. One that was put off to the next day has a new one then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
    /// The span of that trace under which the job runs: 16 hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub span_id: Option<String>,
    /// The upstream's message, once done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// Object that holds the result, when it is too large for a record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_claim: Option<String>,
    /// Object that holds the body, kept to run the job again on the model it was meant for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_claim: Option<String>,
    /// Texts of the request that were cut to fit the model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub truncated: Vec<Truncation>,
    /// The parts in which its text was summarised; which jobs they are stands in `children`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<Parts>,
    /// Object that holds the body as it was published, when the job has another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub original_claim: Option<String>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// The job that owns this job's idempotency key and whose outcome is this one's too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub same_as: Option<String>,
    /// The job that this one comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Link>,
    /// Jobs that come from this one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<Link>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl JobRecord {
    /// A record that knows only who and when.
    #[must_use]
    pub fn new(tenant: TenantId, job: JobId, phase: Phase, accepted_ms: u64) -> Self {
        Self {
            tenant,
            job,
            phase,
            kind: None,
            priority: None,
            model: None,
            model_used: None,
            fallback: None,
            key: None,
            fallback_to: None,
            no_fallback: None,
            sequence: None,
            attempts: 0,
            deliveries: 0,
            ambiguous: 0,
            max_tokens_raised: None,
            accepted_ms,
            started_ms: None,
            finished_ms: None,
            retry_at_ms: None,
            question: None,
            retry_reason: None,
            tokens_so_far: 0,
            usage: None,
            cost_usd: None,
            tries: Vec::new(),
            redrive_of: None,
            trace_id: None,
            span_id: None,
            result: None,
            result_claim: None,
            body_claim: None,
            truncated: Vec::new(),
            parts: None,
            original_claim: None,
            failure: None,
            same_as: None,
            parent: None,
            children: Vec::new(),
        }
    }

    /// Adds what is known of a job that parsed.
    #[must_use]
    pub fn describing(mut self, kind: &Kind, priority: Priority, model: &ModelId) -> Self {
        self.kind = Some(kind.to_string());
        self.priority = Some(priority.as_str().to_owned());
        self.model = Some(model.to_string());
        self
    }

    /// Adds where the job is in its trace, from a W3C `traceparent`.
    #[must_use]
    pub fn traced(mut self, traceparent: Option<&str>) -> Self {
        let parts: Option<Vec<&str>> = traceparent.map(|parent| parent.split('-').collect());
        if let Some([_, trace, span, ..]) = parts.as_deref()
            && (trace.len(), span.len()) == (32, 16)
        {
            self.trace_id = Some((*trace).to_owned());
            self.span_id = Some((*span).to_owned());
        }
        self
    }

    /// Notes a call; of many, the latest ones stay.
    pub fn note(&mut self, tried: Try) {
        self.tries.push(tried);
        let surplus = self.tries.len().saturating_sub(TRIES_MAX);
        self.tries.drain(..surplus);
    }

    /// Whether this may be written over `found`: of the same job, not over, not at an earlier stage,
    /// and not by the worker of an earlier delivery.
    #[must_use]
    pub fn may_follow(&self, found: &Self) -> bool {
        !found.phase.is_final()
            && self.phase.stage() >= found.phase.stage()
            && self.deliveries >= found.deliveries
            && (found.sequence.is_none() || self.sequence == found.sequence)
    }

    /// Whether its parts are worked on, and the job itself is not queued yet.
    #[must_use]
    pub fn is_in_parts(&self) -> bool {
        self.phase == Phase::Accepted && self.parts.is_some() && self.sequence.is_none()
    }

    /// Whether the job ended without a result: another one may have its key.
    #[must_use]
    pub fn ended_without_result(&self) -> bool {
        matches!(self.phase, Phase::Failed | Phase::Cancelled)
    }

    /// # Errors
    /// The JSON error, with the place.
    pub fn from_json(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }

    /// The record as stored, with the words for the end user that go with it. Whoever reads it takes
    /// them as they are; here they are never read back, so they cannot disagree with the rest.
    #[must_use]
    pub fn to_json(&self, names: &Namespace) -> Vec<u8> {
        #[derive(Serialize)]
        struct Stored<'a> {
            #[serde(flatten)]
            record: &'a JobRecord,
            #[serde(skip_serializing_if = "Option::is_none")]
            notice: Option<Notice>,
        }
        let stored = Stored {
            record: self,
            notice: Notice::of(self, names),
        };
        serde_json::to_vec(&stored).expect("a record has no map keys that are not text")
    }
}

/// What a record says about the job at a sequence of the job stream.
#[derive(Debug, Clone, PartialEq)]
pub enum Standing {
    /// It is to be run; with its record, if it has one yet.
    Open(Option<JobRecord>),
    /// It has this outcome; only the clean-up is missing.
    Over(JobRecord),
    /// The record is of another job under this id: the one at this sequence is a copy, or was replaced.
    Elsewhere,
}

impl Standing {
    /// What `record`, found under the id of the job at `seq` with `parent`, says about that job.
    #[must_use]
    pub fn of(record: Option<JobRecord>, seq: u64, parent: Option<&Link>) -> Self {
        let Some(mut record) = record else {
            return Self::Open(None);
        };
        match record.sequence {
            // The refusal of an earlier submission under this id, which is about to be replaced.
            None if record.phase.is_final() => Self::Open(None),
            None => {
                record.same_as = None;
                Self::Open(Some(record))
            }
            Some(of) if of == seq && record.phase.is_final() => Self::Over(record),
            Some(of) if of == seq => Self::Open(Some(record)),
            // The record of its predecessor, which is about to be replaced.
            Some(of) if record.ended_without_result() && is_again(parent, of) => Self::Open(None),
            Some(_) => Self::Elsewhere,
        }
    }
}

fn is_again(parent: Option<&Link>, seq: u64) -> bool {
    parent.is_some_and(|link| link.how == Descent::Again && link.sequence == Some(seq))
}

/// Whose key it is: the value of an idempotency key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyOwner {
    #[serde(with = "text::job")]
    pub job: JobId,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(phase: Phase) -> JobRecord {
        let (tenant, job) = (
            TenantId::parse("acme").unwrap(),
            JobId::parse("wp-1").unwrap(),
        );
        JobRecord::new(tenant, job, phase, 1_700_000_000_000)
    }

    fn stored(record: &JobRecord) -> String {
        String::from_utf8(record.to_json(&Namespace::default())).unwrap()
    }

    #[test]
    fn a_young_record_as_it_is_stored() {
        let record = record(Phase::Queued);
        let text = stored(&record);
        assert_eq!(
            text,
            r#"{"tenant":"acme","job":"wp-1","phase":"queued","attempts":0,"deliveries":0,"ambiguous":0,"accepted_ms":1700000000000}"#
        );
        assert_eq!(JobRecord::from_json(text.as_bytes()).unwrap(), record);
    }

    #[test]
    fn a_record_of_a_job_that_asks_as_it_is_stored() {
        let mut record = record(Phase::NeedsDecision);
        record.question = Some(Question {
            defer_until_ms: 1_700_100_000_000,
            answer_by_ms: 1_700_050_000_000,
            answer: None,
        });
        let text = stored(&record);
        assert!(
            text.contains(r#""phase":"needs_decision","attempts":0"#),
            "{text}"
        );
        assert!(
            text.contains(
                r#""question":{"defer_until_ms":1700100000000,"answer_by_ms":1700050000000},"notice":{"code":"needs_decision","#
            ),
            "{text}"
        );
        assert_eq!(JobRecord::from_json(text.as_bytes()).unwrap(), record);
    }

    #[test]
    fn a_job_of_the_lighter_model_and_its_regeneration_as_they_are_stored() {
        let mut record = record(Phase::Done);
        record.fallback = Some(FallbackUse {
            model: "claude-haiku-4-5".into(),
            why: "overloaded".into(),
        });
        record.children = vec![Link {
            how: Descent::Regenerated,
            job: JobId::parse("wp-1-r").unwrap(),
            sequence: None,
        }];
        let text = stored(&record);
        for part in [
            r#""fallback":{"model":"claude-haiku-4-5","why":"overloaded"}"#,
            r#""children":[{"how":"regenerated","job":"wp-1-r"}]"#,
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(JobRecord::from_json(text.as_bytes()).unwrap(), record);
    }

    #[test]
    fn a_job_that_was_cut_as_it_is_stored() {
        let mut record = record(Phase::Queued);
        record.truncated = vec![Truncation {
            field: "request.messages[0].content".into(),
            from_chars: 900_000,
            to_chars: 600_000,
        }];
        let text = stored(&record);
        let cut = r#""truncated":[{"field":"request.messages[0].content","from_chars":900000,"to_chars":600000}]"#;
        assert!(text.contains(cut), "{text}");
        assert_eq!(JobRecord::from_json(text.as_bytes()).unwrap(), record);
    }

    #[test]
    fn every_phase_has_one_word_in_code_and_on_the_wire() {
        for phase in Phase::ALL {
            assert_eq!(Phase::parse(phase.as_str()), Some(phase));
            assert_eq!(serde_json::to_value(phase).unwrap(), phase.as_str());
        }
    }

    #[test]
    fn a_phase_never_goes_back_and_nothing_follows_an_end() {
        use Phase::{Accepted, Cancelled, Done, Generating, Queued, Retrying};
        let follows = |new, found| record(new).may_follow(&record(found));
        assert!(follows(Queued, Accepted) && follows(Generating, Queued));
        assert!(follows(Retrying, Generating) && follows(Generating, Retrying));
        assert!(follows(Done, Generating) && follows(Cancelled, Queued));
        assert!(!follows(Queued, Generating) && !follows(Queued, Retrying));
        for end in Phase::ALL.into_iter().filter(|phase| phase.is_final()) {
            for phase in Phase::ALL {
                assert!(!follows(phase, end), "{phase:?} after {end:?}");
            }
        }
    }

    #[test]
    fn a_job_stands_where_the_record_of_its_own_sequence_says() {
        let at = |phase, sequence| JobRecord {
            sequence,
            ..record(phase)
        };
        let stands = |record, parent| Standing::of(Some(record), 7, parent);
        let again = Link {
            how: Descent::Again,
            job: JobId::parse("wp-1").unwrap(),
            sequence: Some(3),
        };
        let (queued, done) = (at(Phase::Queued, Some(7)), at(Phase::Done, Some(7)));
        assert_eq!(Standing::of(None, 7, None), Standing::Open(None));
        assert_eq!(stands(queued.clone(), None), Standing::Open(Some(queued)));
        assert_eq!(stands(done.clone(), None), Standing::Over(done));
        let refused = at(Phase::Failed, None);
        assert_eq!(stands(refused, None), Standing::Open(None));
        for phase in [Phase::Queued, Phase::Done, Phase::Failed] {
            assert_eq!(stands(at(phase, Some(3)), None), Standing::Elsewhere);
        }
        for phase in [Phase::Failed, Phase::Cancelled] {
            let before = at(phase, Some(3));
            assert_eq!(stands(before, Some(&again)), Standing::Open(None));
        }
        for found in [at(Phase::Done, Some(3)), at(Phase::Failed, Some(4))] {
            assert_eq!(stands(found, Some(&again)), Standing::Elsewhere);
        }
    }

    #[test]
    fn an_earlier_delivery_and_another_job_of_the_same_id_write_nothing() {
        let mut found = record(Phase::Generating);
        (found.deliveries, found.sequence) = (2, Some(7));
        let mut ours = found.clone();
        assert!(ours.may_follow(&found));
        ours.deliveries = 1;
        assert!(!ours.may_follow(&found));
        (ours.deliveries, ours.sequence) = (2, Some(8));
        assert!(!ours.may_follow(&found));
    }
}
