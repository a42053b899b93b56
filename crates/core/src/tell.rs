//! What people are told without asking, and when: the decisions behind the webhook.
//!
//! Told is what somebody may want to act on: a breaker that opens and closes, a pause of about a minute or more, a lead
//! that changes too often, and a new sort of dead letter. Each once: a state is told when it begins and when it ends, and
//! a group of letters with its first letter, its hundredth and its ten thousandth. With it goes the likely cause, from
//! the failures that led there.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use crate::Millis;
use crate::failure::Scope;
use crate::ids::PoolId;
use crate::scheduler::Pause;

/// Failures of a pool that are looked back on.
const FAILURES_MAX: usize = 100;
const FAILURES_FOR: Millis = 60_000;

/// Pauses shorter than this are the upstream's daily business. A refused key is tried again after a minute, less what it
/// takes to hear of it.
pub const PAUSE_WORTH_TELLING: Millis = 55_000;

/// An account that is tried again this soon was refused for its key; for money it is an hour.
const KEY_PAUSE_MAX: Millis = 300_000;

/// So many changes of leaders within ten minutes are a storm.
const CHANGES_MIN: usize = 3;
pub const CHANGES_WITHIN: Millis = 600_000;

/// Pauses, groups and pools that are remembered.
const REMEMBERED_MAX: usize = 10_000;

/// Whose trouble it most likely is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    /// It answers, with failures.
    Upstream,
    /// It is not reached.
    Network,
    Key,
    Account,
    Limit,
    Model,
    Permission,
}

impl fmt::Display for Blame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Upstream => "upstream overloaded or failing: it answers, with errors",
            Self::Network => "our network: the upstream is not reached, or connections break",
            Self::Key => "our key: it is wrong, or was revoked",
            Self::Account => "our account: a spend limit, billing, or a hold",
            Self::Limit => "a rate limit: this key is used for more than it may",
            Self::Model => "the model: it does not exist, or no longer",
            Self::Permission => "our key: it is not allowed what one kind of jobs asks for",
        })
    }
}

/// Something to tell people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub title: String,
    pub text: String,
}

/// Remembers what was told.
#[derive(Debug, Default)]
pub struct Teller {
    /// Of each pool: when calls failed, and whether the upstream was not even reached.
    failures: BTreeMap<PoolId, VecDeque<(Millis, bool)>>,
    open_since: BTreeMap<PoolId, Millis>,
    /// Pauses that were told, by whom they concern, until when.
    paused: BTreeMap<(u8, PoolId), Millis>,
}

impl Teller {
    /// A call to a pool failed.
    pub fn failed(&mut self, pool: &PoolId, unreachable: bool, now: Millis) {
        if self.failures.len() >= REMEMBERED_MAX && !self.failures.contains_key(pool) {
            return;
        }
        let failures = self.failures.entry(pool.clone()).or_default();
        failures.push_back((now, unreachable));
        if failures.len() > FAILURES_MAX {
            failures.pop_front();
        }
    }

    /// The breaker of a pool opened.
    pub fn breaker_opened(&mut self, pool: &PoolId, until: Millis, now: Millis) -> Option<Message> {
        if self.open_since.len() >= REMEMBERED_MAX || self.open_since.contains_key(pool) {
            return None;
        }
        self.open_since.insert(pool.clone(), now);
        let blame = self.blame(pool, now);
        let seconds = until.saturating_sub(now) / 1_000;
        Some(Message {
            title: format!("Breaker of {pool} opened"),
            text: format!(
                "Most calls to {pool} fail. Likely cause: {blame}. Jobs wait, or fall back where they may; none is lost. In {seconds} s one call goes out to see."
            ),
        })
    }

    /// The breaker of a pool closed.
    pub fn breaker_closed(&mut self, pool: &PoolId, now: Millis) -> Message {
        let open = self.open_since.remove(pool);
        self.failures.remove(pool);
        let how_long = open.map_or_else(String::new, |since| {
            format!(" after {} s", now.saturating_sub(since) / 1_000)
        });
        Message {
            title: format!("Breaker of {pool} closed"),
            text: format!(
                "Calls to {pool} are answered again{how_long}. Jobs that waited run now."
            ),
        }
    }

    /// The upstream made us wait; `pool` is that of the call that was told so.
    pub fn paused(&mut self, pool: &PoolId, pause: Pause, now: Millis) -> Option<Message> {
        let ms = pause.until.saturating_sub(now);
        if ms < PAUSE_WORTH_TELLING {
            return None;
        }
        let (whom, blame) = match pause.scope {
            // Learnt by being refused, and told by the number of calls; nobody waits for a time.
            Scope::Concurrency => return None,
            Scope::Pool => (0, Blame::Limit),
            Scope::Model => (1, Blame::Model),
            Scope::Kind => (2, Blame::Permission),
            Scope::Account if ms <= KEY_PAUSE_MAX => (3, Blame::Key),
            Scope::Account => (3, Blame::Account),
        };
        // The account is one, whichever pool it was noticed in; and every probe that is refused again is no news.
        let at = if whom == 3 {
            self.account()
        } else {
            pool.clone()
        };
        self.paused
            .retain(|_, until| until.saturating_add(ms) > now);
        let key = (whom, at);
        let is_known = self.paused.contains_key(&key);
        if !is_known && self.paused.len() >= REMEMBERED_MAX {
            return None;
        }
        self.paused.insert(key, pause.until);
        let what = match pause.scope {
            Scope::Account => "everything".to_owned(),
            Scope::Pool | Scope::Concurrency => pool.to_string(),
            Scope::Model => format!("a model of {pool}"),
            Scope::Kind => format!("one kind of jobs for {pool}"),
        };
        (!is_known).then(|| Message {
            title: format!("Upstream refuses {what} for {} s", ms.div_ceil(1_000)),
            text: format!(
                "Likely cause: {blame}. Jobs wait and burn no attempts. Then {}.",
                if pause.probe {
                    "one call goes out to see"
                } else {
                    "they go on"
                }
            ),
        })
    }

    /// What everything waits for is remembered under one name, which no pool has by accident.
    fn account(&self) -> PoolId {
        PoolId::parse("account").expect("a plain word is a name")
    }

    fn blame(&self, pool: &PoolId, now: Millis) -> Blame {
        let failures = self.failures.get(pool).into_iter().flatten();
        let recent = failures.filter(|(at, _)| at.saturating_add(FAILURES_FOR) > now);
        let (all, unreachable) = recent.fold((0, 0), |(all, unreachable), failure| {
            (all + 1, unreachable + usize::from(failure.1))
        });
        if unreachable * 2 > all {
            Blame::Network
        } else {
            Blame::Upstream
        }
    }
}

/// A scheduler began to lead; `changes` are the times at which the lead changed. Only the change that makes it a storm is told,
/// and every tenth after it.
#[must_use]
pub fn led(changes: &[Millis], now: Millis) -> Option<Message> {
    let recent = changes
        .iter()
        .filter(|at| at.saturating_add(CHANGES_WITHIN) > now);
    let count = recent.count();
    (count >= CHANGES_MIN && (count - CHANGES_MIN).is_multiple_of(10)).then(|| Message {
        title: format!("The lead changed {count} times within ten minutes"),
        text: "Likely cause: our network, between the schedulers and NATS, or schedulers that are stopped again and again (memory, CPU, a roll-out). Grants pause for a moment at each change.".to_owned(),
    })
}

/// Groups of dead letters, and how many letters each has.
#[derive(Debug, Default)]
pub struct Groups {
    counts: BTreeMap<String, u64>,
}

impl Groups {
    /// A letter of a group was written. `detail` is the stable word within its reason. Its message in words is not told:
    /// it may quote what its job says.
    pub fn letter(
        &mut self,
        fingerprint: &str,
        reason: &str,
        detail: Option<&str>,
    ) -> Option<Message> {
        let is_known = self.counts.contains_key(fingerprint);
        if !is_known && self.counts.len() >= REMEMBERED_MAX {
            return None;
        }
        let count = self.counts.entry(fingerprint.to_owned()).or_default();
        *count += 1;
        let count = *count;
        let within = detail.map_or(String::new(), |detail| format!(" ({detail})"));
        matches!(count, 1 | 100 | 10_000).then(|| Message {
            title: match count {
                1 => format!("Dead letters of a new sort: {reason}{within}"),
                _ => format!("{count} dead letters of one sort: {reason}{within}"),
            },
            text: format!(
                "What is wrong, and what to do: `fairlane dlq ls --fingerprint {fingerprint}`. Further ones of this sort are not told one by one."
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Millis = 1_700_000_000_000;

    fn pool(name: &str) -> PoolId {
        PoolId::parse(name).unwrap()
    }

    fn pause(scope: Scope, ms: Millis) -> Pause {
        Pause {
            scope,
            until: NOW + ms,
            probe: true,
        }
    }

    #[test]
    fn a_breaker_is_told_once_when_it_opens_with_whose_fault_it_is_and_once_when_it_closes() {
        let sonnet = pool("sonnet");
        for (unreachable, told) in [(1, "upstream overloaded"), (9, "our network")] {
            let mut teller = Teller::default();
            for call in 0..12 {
                teller.failed(&sonnet, call < unreachable, NOW);
            }
            let opened = teller.breaker_opened(&sonnet, NOW + 90_000, NOW).unwrap();
            assert!(opened.title.contains("sonnet opened"), "{opened:?}");
            assert!(opened.text.contains(told), "{opened:?}");
            assert_eq!(teller.breaker_opened(&sonnet, NOW + 90_000, NOW), None);
            let closed = teller.breaker_closed(&sonnet, NOW + 91_000);
            assert!(closed.text.contains("after 91 s"), "{closed:?}");
            let again = teller.breaker_opened(&sonnet, NOW + 90_000, NOW);
            assert!(
                again.unwrap().text.contains("upstream"),
                "the past is forgotten"
            );
        }
    }

    #[test]
    fn failures_of_long_ago_blame_nobody() {
        let mut teller = Teller::default();
        let sonnet = pool("sonnet");
        for call in 0..500 {
            teller.failed(&sonnet, true, NOW + call);
        }
        assert_eq!(teller.failures[&sonnet].len(), FAILURES_MAX);
        assert_eq!(teller.blame(&sonnet, NOW + 500), Blame::Network);
        assert_eq!(teller.blame(&sonnet, NOW + 120_000), Blame::Upstream);
    }

    #[test]
    fn a_long_pause_is_told_once_while_its_probes_are_refused() {
        let mut teller = Teller::default();
        let sonnet = pool("sonnet");
        assert_eq!(
            teller.paused(&sonnet, pause(Scope::Pool, 54_999), NOW),
            None
        );
        for (scope, ms, told) in [
            (Scope::Pool, 60_000, "a rate limit"),
            (Scope::Account, 59_000, "our key: it is wrong"),
            (Scope::Model, 60_000, "the model"),
            (Scope::Kind, 60_000, "not allowed"),
        ] {
            let message = teller.paused(&sonnet, pause(scope, ms), NOW).unwrap();
            assert!(message.text.contains(told), "{message:?}");
            assert_eq!(teller.paused(&sonnet, pause(scope, ms), NOW + 1), None);
        }
        // Of the account every pool hears.
        assert_eq!(
            teller.paused(&pool("haiku"), pause(Scope::Account, 59_000), NOW),
            None
        );
        let mut other = Teller::default();
        let money = other.paused(&sonnet, pause(Scope::Account, 3_600_000), NOW);
        assert!(money.unwrap().text.contains("spend limit"));
        assert_eq!(
            other.paused(&sonnet, pause(Scope::Concurrency, 90_000), NOW),
            None
        );
        // Refused again at its end: no news. Long after: news.
        let later = |at, ms| {
            (
                Pause {
                    scope: Scope::Pool,
                    until: at + ms,
                    probe: true,
                },
                at,
            )
        };
        let (again, at) = later(NOW + 61_000, 60_000);
        assert_eq!(teller.paused(&sonnet, again, at), None);
        let (again, at) = later(NOW + 600_000, 60_000);
        assert!(teller.paused(&sonnet, again, at).is_some());
    }

    #[test]
    fn a_lead_that_changes_too_often_is_told_and_not_with_every_change() {
        let changes: Vec<Millis> = (0..40).map(|change| NOW + change * 1_000).collect();
        let told = |count: usize| led(&changes[..count], NOW + 40_000).is_some();
        let counts: Vec<usize> = (0..=40).filter(|&count| told(count)).collect();
        assert_eq!(counts, [3, 13, 23, 33]);
        assert_eq!(led(&changes, NOW + 40_000 + CHANGES_WITHIN), None);
    }

    #[test]
    fn a_group_of_letters_is_told_with_its_first_and_not_for_each_letter() {
        let mut groups = Groups::default();
        let told = (0..10_001).filter_map(|_| groups.letter("00ff", "schema", Some("answer")));
        let titles: Vec<String> = told.map(|message| message.title).collect();
        assert_eq!(titles.len(), 3, "{titles:?}");
        assert!(
            titles[0].ends_with("new sort: schema (answer)") && titles[1].starts_with("100 dead")
        );
        for group in 0..2 * REMEMBERED_MAX {
            groups.letter(&group.to_string(), "schema", None);
        }
        assert_eq!(groups.counts.len(), REMEMBERED_MAX);
    }
}
