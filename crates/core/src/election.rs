//! Who leads: a lease with a heartbeat, decided without a clock of its own.
//!
//! The lease is one key. Its holder replaces it every `heartbeat`; a standby that has seen the
//! same revision for `takeover_after` on its own clock replaces it itself. Both writes name the
//! revision they replace, so exactly one of them succeeds, and the loser knows. The revision of the
//! winning acquisition is the term. The key also has a server-side TTL, so a lease whose fleet
//! is gone disappears.
//!
//! A leader trusts its lease only for `trust`, counted from the moment it *sent* its last
//! successful renewal. `trust` is shorter than `takeover_after`, so a leader that was stopped and
//! comes back finds its lease stale before it acts on it.

use crate::Millis;
use crate::ids::Term;

/// Times of the election, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// Between two renewals.
    pub heartbeat: Millis,
    /// Silence after which a standby takes over.
    pub takeover_after: Millis,
    /// Server-side lifetime of the key.
    pub ttl: Millis,
}

impl Times {
    /// How long after sending a renewal the leader may act on it.
    #[must_use]
    pub fn trust(self) -> Millis {
        self.takeover_after - self.takeover_after / 4
    }

    /// Whether the times fit together: two heartbeats within the trust, takeover within the TTL.
    #[must_use]
    pub fn are_sound(self) -> bool {
        self.heartbeat > 0 && self.heartbeat * 2 <= self.trust() && self.takeover_after < self.ttl
    }
}

/// What is known of the leader key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Revision of its last write, marker or tombstone; 0 if it never existed.
    pub revision: u64,
    /// Whether somebody holds it.
    pub held: bool,
}

/// What happened. Times are this process's own and never go back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The key was seen, by watch or by reading it.
    Seen(Seen),
    /// Our write that was sent at `sent` is stored.
    Stored { sent: Millis, revision: u64 },
    /// Our write was refused: the key has another revision.
    Refused,
    /// Our write has an unknown fate.
    Unknown,
    /// Time passed.
    Tick,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Replace `expected` by our own name, as a new term.
    Acquire { expected: u64 },
    /// Replace `expected`, keeping the term.
    Renew { expected: u64, term: Term },
    /// Begin to lead.
    Lead { term: Term },
    /// Stop leading at once.
    StepDown,
    /// Find out what the key holds.
    Read,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Standby,
    Acquiring,
    Leading {
        term: Term,
        revision: u64,
        sent: Millis,
        renewing: bool,
    },
}

/// One candidate.
#[derive(Debug)]
pub struct Election {
    times: Times,
    state: State,
    seen: Option<Seen>,
    /// When the revision in `seen` was first seen.
    seen_at: Millis,
    next_at: Millis,
}

impl Election {
    /// A candidate that has not yet seen the key.
    #[must_use]
    pub fn new(times: Times, now: Millis) -> Self {
        Self {
            times,
            state: State::Standby,
            seen: None,
            seen_at: now,
            next_at: now,
        }
    }

    /// The term, while we lead and may trust it.
    #[must_use]
    pub fn leads(&self, now: Millis) -> Option<Term> {
        match self.state {
            State::Leading { term, sent, .. } if now < sent + self.times.trust() => Some(term),
            State::Leading { .. } | State::Standby | State::Acquiring => None,
        }
    }

    /// Until when the lease may be trusted; 0 if we do not lead.
    #[must_use]
    pub fn trusted_until(&self) -> Millis {
        match self.state {
            State::Leading { sent, .. } => sent + self.times.trust(),
            State::Standby | State::Acquiring => 0,
        }
    }

    /// Stops leading of our own will. Returns the revision of the lease, to be put down; None if
    /// we do not hold it. Stands back for a while, so that somebody else gets it.
    pub fn resign(&mut self, now: Millis) -> Option<u64> {
        match self.state {
            State::Leading { revision, .. } => {
                self.state = State::Standby;
                self.seen = None;
                self.next_at = now + self.times.takeover_after;
                Some(revision)
            }
            State::Standby | State::Acquiring => None,
        }
    }

    /// When to call with [`Event::Tick`] next.
    #[must_use]
    pub fn next_deadline(&self) -> Millis {
        self.next_at
    }

    /// Takes in one event.
    pub fn handle(&mut self, now: Millis, event: Event) -> Vec<Effect> {
        match event {
            Event::Seen(seen) => self.saw(now, seen),
            Event::Stored { sent, revision } => self.stored(now, sent, revision),
            Event::Refused => self.refused(now),
            Event::Unknown => self.unknown(now),
            Event::Tick => self.tick(now),
        }
    }

    fn saw(&mut self, now: Millis, seen: Seen) -> Vec<Effect> {
        if self
            .seen
            .is_none_or(|known| known.revision != seen.revision || known.held != seen.held)
        {
            if self
                .seen
                .is_some_and(|known| known.revision > seen.revision && seen.revision != 0)
            {
                return Vec::new();
            }
            self.seen = Some(seen);
            self.seen_at = now;
        }
        match self.state {
            // Somebody replaced our lease: it was taken over while we were away.
            State::Leading {
                revision, renewing, ..
            } if seen.revision > revision && !renewing => self.step_down(now),
            State::Leading { .. } | State::Acquiring => Vec::new(),
            State::Standby => self.tick(now),
        }
    }

    fn stored(&mut self, now: Millis, sent: Millis, revision: u64) -> Vec<Effect> {
        self.seen = Some(Seen {
            revision,
            held: true,
        });
        self.seen_at = now;
        self.next_at = sent + self.times.heartbeat;
        match self.state {
            State::Acquiring => {
                let term = Term(revision);
                self.state = State::Leading {
                    term,
                    revision,
                    sent,
                    renewing: false,
                };
                vec![Effect::Lead { term }]
            }
            State::Leading { term, .. } => {
                self.state = State::Leading {
                    term,
                    revision,
                    sent,
                    renewing: false,
                };
                Vec::new()
            }
            State::Standby => Vec::new(),
        }
    }

    fn refused(&mut self, now: Millis) -> Vec<Effect> {
        // What we knew is wrong, and what is read next is believed whatever its revision: should the
        // bucket have been lost and made again, revisions begin anew.
        self.seen = None;
        match self.state {
            State::Leading { .. } => {
                let mut effects = self.step_down(now);
                effects.push(Effect::Read);
                effects
            }
            State::Acquiring | State::Standby => {
                self.state = State::Standby;
                self.next_at = now + self.times.heartbeat;
                vec![Effect::Read]
            }
        }
    }

    fn unknown(&mut self, now: Millis) -> Vec<Effect> {
        match &mut self.state {
            State::Leading { renewing, .. } => {
                // A repeated renewal with the same expectation is refused if this one landed after
                // all; then we step down and another term begins. Rare, and safe.
                *renewing = false;
                self.next_at = now;
                self.tick(now)
            }
            State::Acquiring | State::Standby => {
                self.state = State::Standby;
                self.next_at = now + self.times.heartbeat;
                vec![Effect::Read]
            }
        }
    }

    fn tick(&mut self, now: Millis) -> Vec<Effect> {
        match self.state {
            State::Leading { sent, .. } if now >= sent + self.times.trust() => {
                let mut effects = self.step_down(now);
                effects.push(Effect::Read);
                effects
            }
            State::Leading {
                renewing: true,
                sent,
                ..
            } => {
                self.next_at = sent + self.times.trust();
                Vec::new()
            }
            State::Leading {
                term,
                revision,
                sent,
                renewing: false,
            } => {
                if now < self.next_at {
                    return Vec::new();
                }
                self.state = State::Leading {
                    term,
                    revision,
                    sent,
                    renewing: true,
                };
                self.next_at = sent + self.times.trust();
                vec![Effect::Renew {
                    expected: revision,
                    term,
                }]
            }
            State::Acquiring => {
                self.next_at = now + self.times.heartbeat;
                Vec::new()
            }
            State::Standby => self.tick_standby(now),
        }
    }

    fn tick_standby(&mut self, now: Millis) -> Vec<Effect> {
        let Some(seen) = self.seen else {
            self.next_at = now + self.times.heartbeat;
            return vec![Effect::Read];
        };
        let silent_at = self.seen_at + self.times.takeover_after;
        if !seen.held || now >= silent_at {
            self.state = State::Acquiring;
            self.next_at = now + self.times.heartbeat;
            return vec![Effect::Acquire {
                expected: seen.revision,
            }];
        }
        // The watch is a hint only: look again before the silence counts.
        let read = now >= self.next_at;
        self.next_at = silent_at.min(now + self.times.heartbeat);
        if read { vec![Effect::Read] } else { Vec::new() }
    }

    fn step_down(&mut self, now: Millis) -> Vec<Effect> {
        self.state = State::Standby;
        self.next_at = now + self.times.heartbeat;
        vec![Effect::StepDown]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: Times = Times {
        heartbeat: 500,
        takeover_after: 2_000,
        ttl: 15_000,
    };

    fn held(revision: u64) -> Event {
        Event::Seen(Seen {
            revision,
            held: true,
        })
    }

    fn leader(now: Millis) -> Election {
        let mut election = Election::new(TIMES, now);
        let free = Event::Seen(Seen {
            revision: 0,
            held: false,
        });
        assert_eq!(
            election.handle(now, free),
            [Effect::Acquire { expected: 0 }]
        );
        let stored = Event::Stored {
            sent: now,
            revision: 7,
        };
        assert_eq!(
            election.handle(now, stored),
            [Effect::Lead { term: Term(7) }]
        );
        election
    }

    #[test]
    fn a_free_lease_is_taken_and_renewed_by_revision() {
        let mut election = leader(0);
        assert_eq!(election.handle(499, Event::Tick), []);
        assert_eq!(
            election.handle(500, Event::Tick),
            [Effect::Renew {
                expected: 7,
                term: Term(7)
            }]
        );
        election.handle(
            501,
            Event::Stored {
                sent: 500,
                revision: 9,
            },
        );
        assert_eq!(election.leads(1_999), Some(Term(7)), "the term stays");
        assert_eq!(
            election.handle(1_000, Event::Tick),
            [Effect::Renew {
                expected: 9,
                term: Term(7)
            }]
        );
    }

    #[test]
    fn a_standby_takes_over_after_silence_and_not_while_the_leader_renews() {
        let mut standby = Election::new(TIMES, 0);
        for beat in 0..20 {
            let effects = standby.handle(beat * 500, held(10 + beat));
            assert!(
                !effects.iter().any(|e| matches!(e, Effect::Acquire { .. })),
                "{effects:?}"
            );
        }
        let last = 19 * 500;
        assert!(
            !standby
                .handle(last + 1_999, Event::Tick)
                .contains(&Effect::Acquire { expected: 29 })
        );
        assert_eq!(
            standby.handle(last + 2_000, Event::Tick),
            [Effect::Acquire { expected: 29 }]
        );
    }

    #[test]
    fn a_leader_that_was_stopped_does_not_lead_when_it_comes_back() {
        let mut election = leader(0);
        assert_eq!(election.leads(1_499), Some(Term(7)));
        assert_eq!(
            election.leads(1_500),
            None,
            "before anyone may take over at 2 000"
        );
        let effects = election.handle(5_000, Event::Tick);
        assert_eq!(effects, [Effect::StepDown, Effect::Read]);
    }

    #[test]
    fn of_two_standbys_the_refused_one_stands_by() {
        let mut standby = Election::new(TIMES, 0);
        standby.handle(0, held(5));
        assert_eq!(
            standby.handle(2_000, Event::Tick),
            [Effect::Acquire { expected: 5 }]
        );
        assert_eq!(standby.handle(2_001, Event::Refused), [Effect::Read]);
        standby.handle(2_002, held(6));
        assert_eq!(standby.leads(2_003), None);
        let effects = standby.handle(2_600, Event::Tick);
        assert!(
            !effects.iter().any(|e| matches!(e, Effect::Acquire { .. })),
            "{effects:?}"
        );
    }

    #[test]
    fn a_released_lease_is_taken_at_once() {
        let mut standby = Election::new(TIMES, 0);
        standby.handle(0, held(5));
        let released = Event::Seen(Seen {
            revision: 6,
            held: false,
        });
        assert_eq!(
            standby.handle(10, released),
            [Effect::Acquire { expected: 6 }]
        );
    }

    #[test]
    fn a_refused_renewal_ends_the_term_at_once() {
        let mut election = leader(0);
        election.handle(500, Event::Tick);
        assert_eq!(
            election.handle(510, Event::Refused),
            [Effect::StepDown, Effect::Read]
        );
        assert_eq!(election.leads(511), None);
    }

    #[test]
    fn replays_of_old_revisions_do_not_keep_a_dead_leader_alive() {
        let mut standby = Election::new(TIMES, 0);
        standby.handle(0, held(5));
        standby.handle(1_000, held(6));
        standby.handle(2_500, held(5));
        assert_eq!(
            standby.handle(3_000, Event::Tick),
            [Effect::Acquire { expected: 6 }]
        );
    }

    #[test]
    fn the_times_must_fit_together() {
        assert!(TIMES.are_sound());
        assert!(
            !Times {
                heartbeat: 1_000,
                ..TIMES
            }
            .are_sound()
        );
        assert!(
            !Times {
                takeover_after: 20_000,
                ..TIMES
            }
            .are_sound()
        );
    }

    #[test]
    fn a_key_that_began_anew_is_believed_once_a_write_was_refused() {
        let mut election = Election::new(TIMES, 0);
        let seen = |revision, held| Event::Seen(Seen { revision, held });
        election.handle(0, seen(1_000, true));
        // Its bucket was lost and made again, and another took the lease there.
        election.handle(10, seen(3, true));
        assert_eq!(
            election.handle(2_000, Event::Tick),
            [Effect::Acquire { expected: 1_000 }]
        );
        assert_eq!(election.handle(2_001, Event::Refused), [Effect::Read]);
        election.handle(2_002, seen(3, true));
        assert_eq!(
            election.handle(4_002, Event::Tick),
            [Effect::Acquire { expected: 3 }]
        );
    }
}
