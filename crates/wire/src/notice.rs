//! Words for the person behind a job: what to show instead of an error.
//!
//! A notice says nothing about statuses, limits or failures, and it never repeats anything that came
//! from the upstream. Its code is stable, so that a product can show words of its own.

use serde::Serialize;

use crate::names::{Ask, Namespace};
use crate::record::{JobRecord, Phase};

/// Words to show, in English and Japanese.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Notice {
    pub code: Code,
    pub en: &'static str,
    pub ja: &'static str,
    /// What can be done about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<Action>,
}

/// What a notice is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// It is being tried again.
    TakingLonger,
    /// The person is asked whether it may wait.
    NeedsDecision,
    /// It waits until another day.
    Deferred,
    /// The answer is the lighter model's.
    LighterModel,
    /// There is no answer; what the person wrote is not lost.
    DraftKept,
    /// The person called it off.
    Cancelled,
}

/// One request that does what is offered: to a subject, or with a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Action {
    /// What it does.
    #[serde(rename = "do")]
    pub ask: &'static str,
    /// Subject of a plain NATS request.
    pub subject: String,
    /// The same on the command line.
    pub command: String,
}

impl Notice {
    /// The words that go with a record. None while everything goes as usual.
    #[must_use]
    pub fn of(record: &JobRecord, names: &Namespace) -> Option<Self> {
        let code = code(record)?;
        let (en, ja) = words(code);
        let action = match code {
            Code::LighterModel => Some(Ask::Regenerate),
            Code::NeedsDecision => Some(Ask::Answer),
            Code::TakingLonger | Code::Deferred | Code::DraftKept | Code::Cancelled => None,
        };
        Some(Self {
            code,
            en,
            ja,
            action: action.map(|ask| Action::of(ask, record, names)),
        })
    }
}

impl Action {
    fn of(ask: Ask, record: &JobRecord, names: &Namespace) -> Self {
        let JobRecord { tenant, job, .. } = record;
        let rest = match ask {
            Ask::Answer => " yes|no",
            Ask::Cancel | Ask::Regenerate => "",
        };
        Self {
            ask: ask.as_str(),
            subject: names.ask_subject(ask, tenant, job),
            command: format!("fairlane {} {tenant}/{job}{rest}", ask.as_str()),
        }
    }
}

fn code(record: &JobRecord) -> Option<Code> {
    let has_failed_before = record.attempts > 0 || record.deliveries > 1;
    match record.phase {
        Phase::Accepted | Phase::Queued | Phase::Generating | Phase::Refining => {
            has_failed_before.then_some(Code::TakingLonger)
        }
        Phase::Retrying => Some(Code::TakingLonger),
        Phase::Deferred => Some(Code::Deferred),
        Phase::NeedsDecision => Some(Code::NeedsDecision),
        Phase::Done => record.fallback.is_some().then_some(Code::LighterModel),
        Phase::Failed => Some(Code::DraftKept),
        Phase::Cancelled => Some(Code::Cancelled),
    }
}

fn words(code: Code) -> (&'static str, &'static str) {
    match code {
        Code::TakingLonger => (
            "This is taking longer than usual. Your draft is kept, and we are still on it.",
            "いつもより時間がかかっています。入力内容は保存されており、処理を続けています。",
        ),
        Code::NeedsDecision => (
            "We are very busy right now. Shall we do this tomorrow instead? Your draft is kept.",
            "ただいま大変混み合っています。明日あらためて処理してもよろしいですか。入力内容は保存されています。",
        ),
        Code::Deferred => (
            "We are very busy right now and will do this tomorrow. Your draft is kept.",
            "ただいま大変混み合っているため、明日あらためて処理します。入力内容は保存されています。",
        ),
        Code::LighterModel => (
            "This was made by the lighter model, because the usual one was busy. You can have it made again by the usual one.",
            "混み合っていたため、軽量モデルで作成しました。通常のモデルで作り直すことができます。",
        ),
        Code::DraftKept => (
            "This could not be finished. Your draft is kept, so nothing you wrote is lost.",
            "今回は完了できませんでした。入力内容は保存されていますので、失われていません。",
        ),
        Code::Cancelled => (
            "This was called off as you asked. Your draft is kept.",
            "ご依頼のとおり取り消しました。入力内容は保存されています。",
        ),
    }
}

#[cfg(test)]
mod tests {
    use fairlane_core::{JobId, TenantId};

    use super::*;
    use crate::letter::{DeadReason, Failure};
    use crate::record::FallbackUse;

    fn record(phase: Phase) -> JobRecord {
        let (tenant, job) = (
            TenantId::parse("acme").unwrap(),
            JobId::parse("wp-1").unwrap(),
        );
        JobRecord::new(tenant, job, phase, 1)
    }

    fn notice(record: &JobRecord) -> Option<Notice> {
        Notice::of(record, &Namespace::default())
    }

    #[test]
    fn a_job_that_goes_as_usual_needs_no_words() {
        for phase in [
            Phase::Queued,
            Phase::Generating,
            Phase::Refining,
            Phase::Done,
        ] {
            assert_eq!(notice(&record(phase)), None, "{phase:?}");
        }
    }

    #[test]
    fn what_is_offered_can_be_done_with_one_request() {
        let mut done = record(Phase::Done);
        done.fallback = Some(FallbackUse {
            model: "claude-haiku-4-5".into(),
            why: "overloaded".into(),
        });
        let notice = serde_json::to_value(notice(&done)).unwrap();
        assert_eq!(notice["code"], "lighter_model");
        assert_eq!(
            notice["action"],
            serde_json::json!({"do": "regenerate", "subject": "fl.ask.regenerate.acme.wp-1",
                "command": "fairlane regenerate acme/wp-1"})
        );
    }

    #[test]
    fn nobody_is_shown_what_went_wrong() {
        let raw = "529 overloaded_error: Overloaded, request_id req_1";
        for phase in Phase::ALL {
            let mut record = record(phase);
            record.attempts = 2;
            record.retry_reason = Some(raw.into());
            record.failure = Some(Failure::new(DeadReason::Exhausted, raw));
            let text = serde_json::to_string(&notice(&record)).unwrap();
            for part in ["529", "overloaded", "req_1", "exhausted", "error"] {
                assert!(!text.contains(part), "{phase:?}: {text}");
            }
        }
    }

    #[test]
    fn a_job_that_failed_before_takes_longer() {
        let mut again = record(Phase::Generating);
        again.deliveries = 2;
        assert_eq!(notice(&again).unwrap().code, Code::TakingLonger);
        assert_eq!(
            notice(&record(Phase::Retrying)).unwrap().code,
            Code::TakingLonger
        );
    }
}
