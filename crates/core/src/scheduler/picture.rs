//! What the scheduler knows of jobs and their leases.

use super::Credit;
use super::lanes::{Flow, QueueKey};
use super::pools::PoolIx;
use super::tenants::TenantIx;
use crate::Millis;
use crate::ids::{JobId, Kind, ModelId};
use crate::job::{Cost, Priority, Tokens};
use crate::learn::Profile;

/// A job in the stream.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) job: JobId,
    pub(super) tenant: TenantIx,
    pub(super) priority: Priority,
    pub(super) kind: Kind,
    /// Where it runs: as it was asked for, unless that model turned it away.
    pub(super) own: Run,
    /// Where it may run while that is closed.
    pub(super) spare: Option<Box<Run>>,
    pub(super) not_before: Millis,
    pub(super) deadline: Option<Millis>,
    /// Number of the last credit handed out for it that is over.
    pub(super) deliveries: u32,
    /// Credits that ended with their worker.
    pub(super) lost: u32,
    pub(super) leaving: Leaving,
    /// Its owner does not want it any more.
    pub(super) called_off: bool,
}

/// Whether a job is being moved out of the stream. That takes a while and is asked for once at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leaving {
    No,
    /// It is asked for.
    Asked,
    /// It could not be done, and is to be asked for again.
    Again,
}

/// What it means to run a job on a model.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) model: ModelId,
    pub(super) pool: PoolIx,
    /// It is not the model that was asked for.
    pub(super) is_fallback: bool,
    pub(super) profile: Profile,
    /// As the producer estimated it.
    pub(super) estimate: Tokens,
    /// As such jobs were seen to take.
    pub(super) tokens: Tokens,
    pub(super) cost: Cost,
}

impl Job {
    pub(super) fn is_late(&self, now: Millis) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    pub(super) fn queue(&self) -> QueueKey {
        QueueKey {
            pool: self.own.pool,
            spare: self.spare.as_ref().map(|run| run.pool),
            priority: self.priority,
            tenant: self.tenant,
        }
    }

    /// How it runs in `pool`, which is its own or the spare one.
    pub(super) fn run_in(&self, pool: PoolIx) -> &Run {
        match &self.spare {
            Some(spare) if spare.pool == pool => spare,
            Some(_) | None => &self.own,
        }
    }

    pub(super) fn run_in_mut(&mut self, pool: PoolIx) -> &mut Run {
        match &mut self.spare {
            Some(spare) if spare.pool == pool => spare,
            Some(_) | None => &mut self.own,
        }
    }

    /// The model it runs on turned it away as overloaded: the other one comes first from now on.
    pub(super) fn swap_models(&mut self, refused: PoolIx) {
        if let Some(spare) = &mut self.spare
            && self.own.pool == refused
        {
            std::mem::swap(&mut self.own, spare);
        }
    }

    /// The model that was asked for comes first again.
    pub(super) fn go_home(&mut self) {
        if self.own.is_fallback {
            self.swap_models(self.own.pool);
        }
    }

    /// It keeps to the model that was asked for, whatever happens there.
    pub(super) fn stay_home(&mut self) {
        self.go_home();
        self.spare = None;
    }
}

/// A job, and the flow in which its turn has come.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turn {
    pub(super) flow: Flow,
    pub(super) seq: crate::ids::JobSeq,
}

/// The newest revision we know of the lease on a job, and what it means.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) revision: u64,
    pub(super) state: LeaseState,
}

#[derive(Debug)]
pub(super) enum LeaseState {
    /// A worker holds it. Until `stored`, that is only what we asked for.
    Held {
        credit: Box<Credit>,
        stored: bool,
        /// Its worker has begun.
        started: bool,
    },
    /// Nobody may have it before `until`; `delivery` is the number of its last credit. If it `asks`,
    /// its owner has until then to answer.
    Parked {
        until: Millis,
        delivery: u32,
        asks: bool,
    },
    /// Nobody holds it; only the revision matters.
    Over,
    /// Its job is gone from the stream, though we have not seen it there yet.
    Finished,
}

impl Lease {
    /// A credit that we ask to be stored over `expected`.
    pub(super) fn asked(expected: u64, credit: Credit) -> Self {
        Self {
            revision: expected,
            state: LeaseState::Held {
                credit: Box::new(credit),
                stored: false,
                started: false,
            },
        }
    }

    /// A credit as it is stored.
    pub(super) fn held(revision: u64, credit: Credit, started: bool) -> Self {
        Self {
            revision,
            state: LeaseState::Held {
                credit: Box::new(credit),
                stored: true,
                started,
            },
        }
    }

    /// The lease is as we knew it, now at `revision`.
    pub(super) fn stored_as(&mut self, revision: u64, has_started: bool) {
        if let LeaseState::Held {
            stored, started, ..
        } = &mut self.state
        {
            *stored = true;
            *started |= has_started;
            self.revision = revision;
        }
    }

    /// Whether the bucket holds it: a marker there would have another revision.
    pub(super) fn is_in_bucket(&self) -> bool {
        match self.state {
            LeaseState::Held { stored, .. } => stored,
            LeaseState::Parked { .. } => self.revision > 0,
            LeaseState::Over | LeaseState::Finished => false,
        }
    }

    /// Whether this is the lease that `credit` opened. A grant that is repeated, because the first seemed
    /// to have failed, differs from it only in when it was made, and in what is set aside.
    pub(super) fn holds(&self, credit: &Credit) -> bool {
        match &self.state {
            LeaseState::Held { credit: held, .. } => {
                held.term == credit.term
                    && held.worker == credit.worker
                    && held.delivery == credit.delivery
                    && held.granted_at == credit.granted_at
            }
            LeaseState::Parked { .. } | LeaseState::Over | LeaseState::Finished => false,
        }
    }
}
