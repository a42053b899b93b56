//! What becomes of a job after a call: keep the answer, go on, try again, or bury it.
//!
//! [`crate::failure`] says what a call's end means by itself; this adds what the job has behind it and
//! how much it may still cost.

use crate::failure::{Health, Next, Paid, Reason, Verdict, pause_ms, retry_delay_ms};
use crate::{Millis, failure};

/// What earlier deliveries of the job left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct History {
    /// Tries that counted.
    pub attempts: u32,
    /// Calls whose outcome is unknown.
    pub ambiguous: u32,
    /// Whether the output limit was raised before.
    pub had_more_room: bool,
}

/// What the job may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    /// Tries that count, the first one included.
    pub attempts_max: u32,
    /// Output limit of the call that ended.
    pub max_tokens: u64,
    /// Largest output limit the model takes.
    pub output_tokens_max: u64,
    /// The call was made to see whether its pool is well again. If it is not, that is no try of the
    /// job's: in a long outage the same job may have to look many times.
    pub is_probe: bool,
}

/// Chance for delays, from 0 to 1 each.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Jitter {
    pub retry: f64,
    pub pause: f64,
}

/// What to do with the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The answer is the result.
    Keep,
    /// Call again at once, with the answer added to the conversation.
    Continue,
    /// Park it.
    Retry(Retry),
    /// Dead-letter it.
    Bury(Cause),
}

/// A further try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// Milliseconds from now until it may run.
    pub after_ms: Millis,
    /// What the job then has behind it.
    pub history: History,
    /// Output limit of the next call, if it changes.
    pub max_tokens: Option<u64>,
    /// Whom else to leave alone, and for how long.
    pub hold: Option<Hold>,
}

/// What a call's end asks for beyond its own job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
    pub scope: failure::Scope,
    pub ms: Millis,
    /// Nobody knows whether the time will do: one call goes first, to see.
    pub probe: bool,
}

/// Why a job ends as a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The last end itself is final.
    Reason(Reason),
    /// All attempts are used up; this was the last end.
    Exhausted(Reason),
    /// A second call ended without an outcome.
    Ambiguous(Reason),
}

/// Calls whose outcome is unknown that a job may have: one, which is retried.
const AMBIGUOUS_MAX: u32 = 1;

/// How much more room a truncated answer gets.
const MORE_ROOM_FACTOR: u64 = 4;

/// Delay of a retry for which no attempt is counted, so nothing makes it grow: like the first one.
const FREE_RETRY: u32 = 1;

/// Decides what becomes of the job.
#[must_use]
pub fn decide(
    verdict: &Verdict,
    history: History,
    allowance: Allowance,
    jitter: Jitter,
) -> Decision {
    let burns_attempt = verdict.burns_attempt && !found_pool_unwell(verdict, allowance);
    let history = History {
        attempts: history.attempts + u32::from(burns_attempt),
        ..history
    };
    let exhausted = history.attempts >= allowance.attempts_max;
    match verdict.next {
        Next::Keep => Decision::Keep,
        Next::Continue => Decision::Continue,
        Next::DeadLetter => Decision::Bury(Cause::Reason(verdict.reason)),
        Next::Wait => Decision::Retry(wait(verdict, history, jitter)),
        // We stopped it ourselves, for a deploy: that is not the job's fault, however often.
        Next::Retry | Next::RetryOnce if verdict.reason == Reason::Cancelled => {
            Decision::Retry(Retry {
                after_ms: 0,
                history,
                max_tokens: None,
                hold: None,
            })
        }
        Next::Retry if burns_attempt && exhausted => {
            Decision::Bury(Cause::Exhausted(verdict.reason))
        }
        Next::Retry => Decision::Retry(later(verdict, history, jitter)),
        Next::RetryOnce => {
            // A call that was certainly not paid leaves nothing ambiguous behind.
            let unknown = u32::from(verdict.paid != Paid::No);
            let history = History {
                ambiguous: history.ambiguous + unknown,
                ..history
            };
            if history.ambiguous > AMBIGUOUS_MAX || (verdict.burns_attempt && exhausted) {
                return Decision::Bury(Cause::Ambiguous(verdict.reason));
            }
            Decision::Retry(later(verdict, history, jitter))
        }
        Next::RetryWithMoreRoom => {
            let roomier = allowance
                .max_tokens
                .saturating_mul(MORE_ROOM_FACTOR)
                .min(allowance.output_tokens_max);
            if history.had_more_room || exhausted || roomier <= allowance.max_tokens {
                return Decision::Bury(Cause::Reason(verdict.reason));
            }
            let history = History {
                had_more_room: true,
                ..history
            };
            let retry = later(verdict, history, jitter);
            Decision::Retry(Retry {
                max_tokens: Some(roomier),
                ..retry
            })
        }
    }
}

fn found_pool_unwell(verdict: &Verdict, allowance: Allowance) -> bool {
    let is_unwell = match verdict.health {
        Health::UpstreamBad | Health::NetworkBad => true,
        Health::Good | Health::NoSample => false,
    };
    allowance.is_probe && verdict.next == Next::Retry && is_unwell
}

fn later(verdict: &Verdict, history: History, jitter: Jitter) -> Retry {
    let number = if verdict.burns_attempt {
        history.attempts
    } else {
        FREE_RETRY
    };
    let delay = retry_delay_ms(number, jitter.retry);
    let asked = verdict
        .retry_after
        .map_or(0, |wait| pause_ms(wait, jitter.pause));
    Retry {
        after_ms: delay.max(asked),
        history,
        max_tokens: None,
        hold: None,
    }
}

fn wait(verdict: &Verdict, history: History, jitter: Jitter) -> Retry {
    let hold = verdict.pause.map(|pause| match pause.until {
        failure::Until::For(wait) => Hold {
            scope: pause.scope,
            ms: pause_ms(wait, jitter.pause),
            probe: false,
        },
        failure::Until::Probe { interval_ms } => Hold {
            scope: pause.scope,
            ms: interval_ms,
            probe: true,
        },
    });
    Retry {
        after_ms: hold.map_or_else(|| retry_delay_ms(FREE_RETRY, jitter.retry), |hold| hold.ms),
        history,
        max_tokens: None,
        hold,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{
        Cancelled, Cut, Ending, ErrorAnswer, ErrorKind, NotConnected, Place, RefusalCategory,
        RetryAfter, StopReason, classify,
    };

    const ALLOWANCE: Allowance = Allowance {
        attempts_max: 4,
        max_tokens: 128,
        output_tokens_max: 64_000,
        is_probe: false,
    };
    const NO_JITTER: Jitter = Jitter {
        retry: 0.0,
        pause: 0.0,
    };

    fn status(status: u16, kind: ErrorKind, retry_after: Option<u64>) -> Ending {
        Ending::Error(ErrorAnswer {
            status,
            kind,
            code: None,
            hint: None,
            retry_after: retry_after.and_then(|secs| RetryAfter::from_ms(secs * 1_000)),
            should_retry: None,
            place: Place::BeforeStream,
        })
    }

    fn after(ending: &Ending, history: History) -> Decision {
        decide(&classify(ending), history, ALLOWANCE, NO_JITTER)
    }

    #[test]
    fn a_job_may_look_for_ever_whether_its_pool_is_well() {
        let overloaded = classify(&status(529, ErrorKind::Overloaded, None));
        let last = History {
            attempts: 3,
            ..History::default()
        };
        let decided = |is_probe| {
            let allowance = Allowance {
                is_probe,
                ..ALLOWANCE
            };
            decide(&overloaded, last, allowance, NO_JITTER)
        };
        let Decision::Retry(retry) = decided(true) else {
            panic!("buried for an outage");
        };
        assert_eq!(retry.history, last);
        assert!(matches!(decided(false), Decision::Bury(_)));
    }

    #[test]
    fn transient_failures_are_retried_with_growing_delays_until_attempts_run_out() {
        let overloaded = status(529, ErrorKind::Overloaded, None);
        let mut history = History::default();
        for delay in [2_000, 4_000, 8_000] {
            let Decision::Retry(retry) = after(&overloaded, history) else {
                panic!()
            };
            assert_eq!(retry.after_ms, delay);
            assert_eq!(retry.hold, None);
            history = retry.history;
        }
        let cause = Cause::Exhausted(Reason::Overloaded);
        assert_eq!(after(&overloaded, history), Decision::Bury(cause));
    }

    #[test]
    fn a_429_pauses_the_pool_for_the_servers_time_and_burns_nothing() {
        let limited = status(429, ErrorKind::RateLimit, Some(16));
        let history = History {
            attempts: 3,
            ..History::default()
        };
        let Decision::Retry(retry) = after(&limited, history) else {
            panic!()
        };
        assert_eq!(retry.history, history);
        assert_eq!(
            (retry.after_ms, retry.hold),
            (
                16_000,
                Some(Hold {
                    scope: failure::Scope::Pool,
                    ms: 16_000,
                    probe: false
                })
            )
        );
    }

    #[test]
    fn a_second_call_without_an_outcome_ends_the_job() {
        let cut = Ending::Cut(Cut::WithoutMessageStop);
        let Decision::Retry(retry) = after(&cut, History::default()) else {
            panic!()
        };
        assert_eq!(retry.history.ambiguous, 1);
        assert_eq!(
            after(&cut, retry.history),
            Decision::Bury(Cause::Ambiguous(Reason::Cut))
        );
    }

    #[test]
    fn a_truncated_answer_gets_more_room_once() {
        let truncated = Ending::Message(StopReason::MaxTokens);
        let Decision::Retry(retry) = after(&truncated, History::default()) else {
            panic!()
        };
        assert_eq!(retry.max_tokens, Some(512));
        let cause = Cause::Reason(Reason::MaxTokens);
        assert_eq!(after(&truncated, retry.history), Decision::Bury(cause));
        let full = Allowance {
            max_tokens: 64_000,
            ..ALLOWANCE
        };
        let verdict = classify(&truncated);
        let decision = decide(&verdict, History::default(), full, NO_JITTER);
        assert_eq!(
            decision,
            Decision::Bury(cause),
            "the model has no more room"
        );
    }

    #[test]
    fn poison_and_refusals_are_buried_after_one_call() {
        let cases = [
            (
                status(400, ErrorKind::InvalidRequest, None),
                Reason::InvalidRequest,
            ),
            (
                Ending::Message(StopReason::Refusal(RefusalCategory::None)),
                Reason::Refusal,
            ),
            (Ending::SchemaViolated, Reason::Schema),
        ];
        for (ending, reason) in cases {
            let decision = after(&ending, History::default());
            assert_eq!(
                decision,
                Decision::Bury(Cause::Reason(reason)),
                "{ending:?}"
            );
        }
    }

    #[test]
    fn what_never_left_this_machine_burns_nothing_however_often() {
        let refused = Ending::NotConnected(NotConnected::Failed);
        let mut history = History::default();
        for _ in 0..100 {
            let Decision::Retry(retry) = after(&refused, history) else {
                panic!()
            };
            history = retry.history;
        }
        assert_eq!(history, History::default());
    }

    #[test]
    fn a_deploy_sends_the_job_back_at_once_and_burns_nothing() {
        for cancelled in [
            Cancelled::BeforeSending,
            Cancelled::AfterSending,
            Cancelled::AfterProgress,
        ] {
            let history = History {
                ambiguous: 1,
                attempts: 3,
                ..History::default()
            };
            let Decision::Retry(retry) = after(&Ending::Cancelled(cancelled), history) else {
                panic!()
            };
            assert_eq!((retry.after_ms, retry.history), (0, history));
        }
    }

    #[test]
    fn a_good_answer_is_kept_and_a_paused_turn_goes_on() {
        let end = Ending::Message(StopReason::EndTurn);
        assert_eq!(after(&end, History::default()), Decision::Keep);
        let pause = Ending::Message(StopReason::PauseTurn);
        assert_eq!(after(&pause, History::default()), Decision::Continue);
    }
}
