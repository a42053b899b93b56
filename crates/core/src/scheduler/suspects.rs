//! Jobs that were in hand when workers died.
//!
//! One of them may be what killed the workers, or it was only there. So before such a job is given up
//! it runs once more, on a worker that has nothing else: if that one dies too, nobody else is hurt and
//! the job is the cause. One such job runs at a time, for which one worker is emptied; it does not stand
//! in line, but is charged to its tenant like any other. Once its worker is empty its pool waits for it:
//! smaller jobs in line would for ever take what it needs.

use super::gates::Passage;
use super::lanes::Flow;
use super::picture::{Job, Turn};
use super::{Scheduler, Why};
use crate::Millis;
use crate::breaker::Gate;
use crate::ids::JobSeq;

/// Whether its pool, or the emptied worker, is ready is looked at this often.
const LOOK_AGAIN: Millis = 1_000;

/// Jobs of which it is remembered. There are few: each of them cost a worker.
pub(super) const LOST_MAX: usize = 2_000;

impl Scheduler {
    /// A worker died with the job in hand. The job may not be known yet: leases are read before jobs.
    pub(super) fn count_lost(&mut self, seq: JobSeq) {
        let lost = self.lost.entry(seq).or_default();
        *lost += 1;
        if let Some(job) = self.jobs.get_mut(&seq) {
            job.lost = *lost;
        }
        if self.lost.len() > LOST_MAX {
            // The oldest is the likeliest to be gone.
            self.lost.pop_first();
        }
    }

    /// Whether a job may only run alone: its next worker is the last that it gets.
    pub(super) fn is_suspect(&self, job: &Job) -> bool {
        job.lost > 0 && job.lost + 1 >= self.config.max_deliver
    }

    /// Whether a worker is kept from others, for a job that runs alone or is to.
    #[must_use]
    pub fn keeps_a_worker(&self) -> bool {
        !self.suspects.is_empty() || self.fleet.has_loner()
    }

    /// Grants the oldest suspect that can run, once a worker is empty.
    pub(super) fn grant_suspect(&mut self) {
        self.pool_waits = None;
        if self.suspects.is_empty() || self.fleet.has_loner() {
            return;
        }
        self.ask_again(Some(self.now + LOOK_AGAIN));
        if self.account_is_open().is_none() {
            return;
        }
        let suspects: Vec<JobSeq> = self.suspects.iter().copied().collect();
        let turns = suspects
            .into_iter()
            .filter_map(|seq| self.suspect_turn(seq));
        let turns: Vec<Turn> = turns.collect();
        let has_room = turns.iter().find(|turn| self.suspect_room(turn).is_ok());
        let Some(&turn) = has_room.or(turns.first()) else {
            return;
        };
        let silence_max = self.config.worker_silence_max;
        let Some(worker) = self.fleet.empty(self.now, silence_max) else {
            return;
        };
        if let Err(at) = self.suspect_room(&turn) {
            self.pool_waits = Some(turn.flow.pool);
            self.ask_again(at);
        } else {
            self.suspects.remove(&turn.seq);
            self.fleet.run_alone(&worker);
            let cost = self.jobs[&turn.seq].run_in(turn.flow.pool).cost;
            let weight = self.weight(turn.flow.tenant);
            self.lanes.replay(turn.flow, weight, cost);
            self.grant(turn, worker);
        }
    }

    fn suspect_room(&mut self, turn: &Turn) -> Result<(), Option<Millis>> {
        let tokens = self.jobs[&turn.seq].run_in(turn.flow.pool).tokens;
        self.room(turn.flow, tokens)
    }

    /// The flow of a suspect that may run now, if there is room.
    fn suspect_turn(&mut self, seq: JobSeq) -> Option<Turn> {
        let flow = self.flow_of_job(seq);
        let job = self.jobs.get(&seq)?;
        if !self.complete[job.priority.index()] || self.tenants.is_at_cap(flow.tenant) {
            return None;
        }
        let gates = Self::gates_of(job, flow.pool);
        // It may be the probe: perhaps nobody else is there to go.
        let is_free = gates.iter().all(|gate| {
            matches!(
                self.gates.passage(gate, self.now),
                Passage::Free | Passage::Ajar
            )
        });
        let gate = self.pools.breaker(flow.pool).gate(self.now);
        let is_well = matches!(gate, Gate::Closed | Gate::HalfOpen);
        let is_paused = self.pools.limits(flow.pool).paused_until() > self.now;
        (is_free && is_well && !is_paused).then_some(Turn { flow, seq })
    }

    /// What a suspect waits for, if it is one that waits.
    pub(super) fn why_suspect(&self, seq: JobSeq) -> Option<(Why, Flow)> {
        let workers = self.jobs.get(&seq)?.lost;
        let waits = self.suspects.contains(&seq);
        waits.then(|| (Why::Suspect { workers }, self.flow_of_job(seq)))
    }
}
