//! What one leader hands on to the next, so that a change of leaders loses no charge and refunds
//! none twice.
//!
//! A snapshot is taken now and then; after it more was granted and settled. Both can be told from
//! the leases, which the next leader reads anyway: a grant is in the books if it was decided before
//! the snapshot, a settlement if its revision had been seen by then. Everything else is booked when it is
//! read. Tombstones with their settlements stay in the bucket longer than a change of leaders takes.

use super::books::flow_of;
use super::gates::GateKey;
use super::suspects::LOST_MAX;
use super::{Cost, Credit, FlowKey, PoolIx, Scheduler, TenantIx, Tokens};
use crate::Millis;
use crate::demotion::Demotion;
use crate::ids::{JobSeq, Kind, ModelId, PoolId, TenantId};
use crate::job::Priority;
use crate::learn::Means;
use crate::limiter::PoolLimits;

/// The books of a leader at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Unix milliseconds.
    pub at: Millis,
    /// Highest revision of any lease that is in these books.
    pub revision: u64,
    pub pools: Vec<PoolState>,
    pub accounts: Vec<Account>,
    pub gates: Vec<GateState>,
    pub demotions: Vec<(TenantId, Demotion)>,
    pub learned: Vec<LearnedState>,
    /// Jobs that workers died with, and how many did.
    pub lost: Vec<(JobSeq, u32)>,
}

/// A pool's limits, pause, breaker, and what its priorities are owed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolState {
    pub pool: PoolId,
    /// Requests, input tokens and output tokens that are left; negative when overdrawn.
    pub left: [i64; 3],
    pub paused_until: Millis,
    pub breaker_open_until: Option<Millis>,
    pub owed: [i64; 3],
}

/// What a tenant may spend in a pool and priority; negative is debt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    pub pool: PoolId,
    pub priority: Priority,
    pub tenant: TenantId,
    pub balance: Cost,
}

/// What is refused until somebody looks whether it still is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateState {
    pub concerns: Concerns,
    /// Nothing passes before.
    pub until: Millis,
}

/// Whom a refusal concerns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Concerns {
    Account,
    Pool(PoolId),
    Model(ModelId),
    Kind {
        tenant: TenantId,
        kind: Kind,
        model: ModelId,
    },
}

/// What was learned of one sort of job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LearnedState {
    /// None: of all tenants together.
    pub tenant: Option<TenantId>,
    pub kind: Kind,
    pub model: ModelId,
    pub means: Means,
}

/// A snapshot must fit a message of a megabyte, with the longest names there are. Of more accounts,
/// those nearest to even are left out; of the rest whatever comes last.
const ACCOUNTS_MAX: usize = 3_000;
const LEARNED_MAX: usize = 1_000;
const GATES_MAX: usize = 200;
const DEMOTIONS_MAX: usize = 500;

/// What is in the books we began with. Nothing, without a snapshot.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Booked {
    /// None: there was no snapshot, and what ended before our time is nobody's debt.
    upto: Option<(Millis, u64)>,
}

impl Booked {
    /// Whether a grant of an earlier term is booked.
    pub(super) fn grant(&self, credit: &Credit) -> bool {
        self.upto.is_some_and(|(at, _)| credit.granted_at <= at)
    }

    /// Whether a settlement is booked, or not to be.
    pub(super) fn settlement(&self, revision: u64) -> bool {
        self.upto.is_some_and(|(_, seen)| revision <= seen)
    }
}

impl Scheduler {
    /// The books as they are now.
    pub fn snapshot(&mut self, now: Millis) -> Snapshot {
        self.now = self.now.max(now);
        let pools: Vec<PoolIx> = self.pools.all().collect();
        let mut accounts = Vec::new();
        for &pool in &pools {
            for priority in Priority::ALL {
                let balances: Vec<_> = self.lanes.ring(pool, priority).accounts().collect();
                accounts.extend(balances.into_iter().map(|(flow, balance)| Account {
                    pool: self.pools.name(pool).clone(),
                    priority,
                    tenant: self.tenants.name(TenantIx(flow.0)).clone(),
                    balance,
                }));
            }
        }
        accounts.sort_by_key(|account| std::cmp::Reverse(account.balance.0.unsigned_abs()));
        accounts.truncate(ACCOUNTS_MAX);
        let states = pools
            .into_iter()
            .map(|pool| self.pool_state(pool))
            .collect();
        let at = self.now;
        let snapshot = Snapshot {
            at,
            revision: self.revision_seen,
            pools: states,
            accounts,
            gates: self.gate_states(),
            demotions: self.demotions().take(DEMOTIONS_MAX).collect(),
            learned: self.learned_states(),
            lost: self.lost.iter().map(|(seq, lost)| (*seq, *lost)).collect(),
        };
        // What is granted from now on has a later time than all that is in these books.
        self.now = at + 1;
        snapshot
    }

    /// Tenants that are demoted.
    pub fn demotions(&self) -> impl Iterator<Item = (TenantId, Demotion)> {
        self.tenants.demoted().filter_map(|tenant| {
            let demotion = self.tenants.standing(tenant).demotion()?;
            Some((self.tenants.name(tenant).clone(), demotion))
        })
    }

    pub(super) fn gate_states(&self) -> Vec<GateState> {
        let states = self.gates.all().map(|(key, until)| GateState {
            concerns: match key {
                GateKey::Account => Concerns::Account,
                GateKey::Pool(pool) => Concerns::Pool(self.pools.name(*pool).clone()),
                GateKey::Model(model) => Concerns::Model(model.clone()),
                GateKey::Kind(tenant, kind, model) => Concerns::Kind {
                    tenant: self.tenants.name(*tenant).clone(),
                    kind: kind.clone(),
                    model: model.clone(),
                },
            },
            until,
        });
        states.take(GATES_MAX).collect()
    }

    fn learned_states(&self) -> Vec<LearnedState> {
        let known = self.learned.all().take(LEARNED_MAX);
        known
            .map(|(tenant, kind, model, means)| LearnedState {
                tenant: tenant.map(|number| self.tenants.name(TenantIx(number)).clone()),
                kind: kind.clone(),
                model: model.clone(),
                means,
            })
            .collect()
    }

    fn pool_state(&mut self, pool: PoolIx) -> PoolState {
        let now = self.now;
        let limits = self.pools.limits(pool);
        let (left, paused_until) = (limits.left(now), limits.paused_until());
        PoolState {
            pool: self.pools.name(pool).clone(),
            left,
            paused_until,
            breaker_open_until: self.pools.breaker(pool).open_until(),
            owed: self.lanes.shares(pool).owed(),
        }
    }

    /// Takes over the books of an earlier leader. Before any event.
    pub fn restore(&mut self, snapshot: Snapshot) {
        let Snapshot {
            at,
            revision,
            pools,
            accounts,
            gates,
            demotions,
            learned,
            lost,
        } = snapshot;
        self.lost = lost.into_iter().take(LOST_MAX).collect();
        self.booked = Booked {
            upto: Some((at, revision)),
        };
        for state in pools {
            let pool = self.pool(&state.pool);
            let limits = self.limits_of(&state.pool);
            let limits = PoolLimits::restored(limits, state.left, state.paused_until, at);
            self.pools.restore_limits(pool, limits);
            self.pools.breaker(pool).restore(state.breaker_open_until);
            self.lanes.shares(pool).restore(state.owed);
            self.divert(pool);
        }
        for account in accounts {
            let pool = self.pool(&account.pool);
            let tenant = self.tenant(&account.tenant);
            let weight = self.weight(tenant);
            let ring = self.lanes.ring(pool, account.priority);
            ring.restore(FlowKey(tenant.0), weight, account.balance);
        }
        for GateState { concerns, until } in gates {
            let key = match concerns {
                Concerns::Account => GateKey::Account,
                Concerns::Pool(pool) => GateKey::Pool(self.pool(&pool)),
                Concerns::Model(model) => GateKey::Model(model),
                Concerns::Kind {
                    tenant,
                    kind,
                    model,
                } => GateKey::Kind(self.tenant(&tenant), kind, model),
            };
            self.gates.shut(key, until, self.now);
        }
        for (name, demotion) in demotions {
            let tenant = self.tenant(&name);
            self.tenants
                .judge(tenant, |standing, _, _| standing.restore(demotion));
        }
        for state in learned {
            let tenant = state.tenant.map(|name| self.tenant(&name).0);
            self.learned
                .restore(tenant, &state.kind, &state.model, state.means);
        }
    }

    /// Books a delivery whose lease we have not seen: it was settled after the snapshot and before our
    /// time, or a grant of ours seemed to have failed.
    pub(super) fn book_late(&mut self, pool: PoolIx, credit: &Credit, used: Option<Tokens>) {
        let is_ours = credit.term == self.term;
        if self.booked.upto.is_none() && !is_ours {
            return;
        }
        let tenant = self.tenant(&credit.tenant);
        if self.booked.grant(credit) && !is_ours {
            self.pools.limits(pool).settle(credit.tokens, used);
        } else {
            self.replay(pool, tenant, credit);
            if let Some(used) = used {
                self.pools.limits(pool).charge(used);
            }
        }
        let cost = used.map_or(Cost(0), |used| Cost::of(used, self.config.cost_weights));
        let weight = self.weight(tenant);
        self.lanes
            .correct(flow_of(pool, tenant, credit), weight, cost - credit.cost);
    }

    /// Lets the turn pass that another leader gave. Its grants were fair when it made them, so only
    /// what they cost beyond the estimate is anybody's debt.
    pub(super) fn replay(&mut self, pool: PoolIx, tenant: TenantIx, credit: &Credit) {
        let weight = self.weight(tenant);
        let flow = flow_of(pool, tenant, credit);
        self.lanes.replay(flow, weight, credit.cost);
        self.refresh(flow);
    }
}
