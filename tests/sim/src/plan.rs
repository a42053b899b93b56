//! What a world is made of, as data. A plan and its seed decide everything that happens.

use std::collections::BTreeMap;

use fairlane_core::election::Times;
use fairlane_core::limiter::Limits;

use fairlane_core::drr::Weight;
use fairlane_core::scheduler::{Config, Policy};
use fairlane_core::share::ShareRules;
use fairlane_core::{Cost, CostWeights, Millis, PoolId, Priority, TenantId, Tokens};

use crate::upstream::Answer;

/// Everything about one world.
#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    pub config: Config,
    pub times: Times,
    pub jobs: Vec<JobPlan>,
    /// Slots of each worker.
    pub workers: Vec<u32>,
    /// Whether a new leader gets the books of the last one.
    pub keeps_books: bool,
    /// Candidates for leading.
    pub leaders: usize,
    /// What the upstream really allows, per pool; others allow everything.
    pub upstream: BTreeMap<PoolId, Limits>,
    /// Pools whose answers carry the rate headers.
    pub headers: bool,
    /// Calls the upstream lets run at once.
    pub concurrent: Option<usize>,
    pub storms: Vec<Storm>,
    pub network: Network,
    pub leases: LeaseTimes,
    pub faults: Vec<(Millis, Fault)>,
    pub attempts_max: u32,
    /// Jobs that are in line for longer than this, with room and a free slot, break a rule.
    /// None where it cannot be said from outside whether there is room.
    pub tick: Option<Millis>,
    /// The world must be idle by then.
    pub until: Millis,
    /// Whether the end is looked at: all jobs done, nothing remembered.
    pub ends_idle: bool,
}

/// A job and what will happen to it.
#[derive(Debug, Clone)]
pub struct JobPlan {
    pub at: Millis,
    pub tenant: TenantId,
    pub priority: Priority,
    pub kind: &'static str,
    pub pool: PoolId,
    /// Where it may run while its own pool is closed, and what it takes there.
    pub fallback: Option<(PoolId, Tokens)>,
    pub estimate: Tokens,
    pub actual: Tokens,
    pub service: Millis,
    pub not_before: Option<Millis>,
    pub deadline: Option<Millis>,
    pub nature: Nature,
}

impl JobPlan {
    /// What it takes in `pool`, its own or the other one.
    #[must_use]
    pub fn actual_in(&self, pool: &PoolId) -> Tokens {
        match &self.fallback {
            Some((other, tokens)) if other == pool => *tokens,
            Some(_) | None => self.actual,
        }
    }
}

/// How calls for a job end, when the upstream takes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nature {
    Good,
    Poison,
    Refused,
    /// Truncated until it is given more room.
    Truncated,
    /// The first call is cut off after it was sent.
    CutOnce,
    /// Whoever runs it dies.
    Deadly,
}

/// A time in which the upstream refuses calls.
#[derive(Debug, Clone)]
pub struct Storm {
    /// Those of this pool; None: of all.
    pub pool: Option<PoolId>,
    /// Those of this kind of job; None: of all.
    pub kind: Option<&'static str>,
    pub from: Millis,
    pub to: Millis,
    pub answer: Answer,
}

impl Storm {
    /// 529 for all calls of a pool, or of all pools.
    #[must_use]
    pub fn overload(pool: Option<PoolId>, from: Millis, to: Millis) -> Self {
        Self {
            pool,
            kind: None,
            from,
            to,
            answer: Answer::Overloaded,
        }
    }
}

/// Delays and losses between processes, in milliseconds and thousandths.
#[derive(Debug, Clone, Copy)]
pub struct Network {
    pub delay: (Millis, Millis),
    /// Grants that never reach their worker.
    pub grants_lost: u64,
    /// Grants that arrive twice.
    pub grants_twice: u64,
    /// Writes of grants whose fate the leader does not learn: told as refused, stored or not.
    pub writes_unknown: u64,
    /// Index entries shown a second time.
    pub jobs_twice: u64,
    /// Changes of leases that a watch reports again, late and out of order.
    pub leases_twice: u64,
}

/// Lifetimes of what is in the lease bucket.
#[derive(Debug, Clone, Copy)]
pub struct LeaseTimes {
    pub unstarted: Millis,
    pub held: Millis,
    pub renew: Millis,
    pub tombstone: Millis,
    pub marker: Millis,
    /// A parked lease outlives its time by this much.
    pub parked_margin: Millis,
}

impl Default for LeaseTimes {
    fn default() -> Self {
        Self {
            unstarted: 5_000,
            held: 15_000,
            renew: 5_000,
            tombstone: 60_000,
            marker: 60_000,
            parked_margin: 60_000,
        }
    }
}

/// Something that goes wrong, or is done to the fleet. Processes are named by their place in
/// the plan, modulo how many there are.
#[derive(Debug, Clone)]
pub enum Fault {
    /// Dies; another starts after the time given.
    KillWorker {
        worker: usize,
        restart: Millis,
    },
    PauseWorker {
        worker: usize,
        length: Millis,
    },
    /// Drains, and another starts.
    DrainWorker {
        worker: usize,
        restart: Millis,
    },
    KillLeader {
        restart: Millis,
    },
    PauseLeader {
        length: Millis,
    },
    /// The leader resigns.
    HandOver,
    /// All schedulers die at once.
    KillSchedulers {
        restart: Millis,
    },
    /// The leader's view of the leases stops for a while.
    BreakWatch {
        length: Millis,
    },
    /// The leader's clock steps by this much.
    StepClock {
        by: i64,
    },
    /// Tokens of the pool are used by somebody else.
    Foreign {
        pool: PoolId,
        tokens: Tokens,
    },
    /// Other settings for a tenant.
    Policy {
        tenant: TenantId,
        policy: Policy,
    },
    /// Another weight for a tenant.
    Reweigh {
        tenant: TenantId,
        weight: u32,
    },
}

#[must_use]
pub fn tenant(name: &str) -> TenantId {
    TenantId::parse(name).expect("a plan's tenants have names")
}

#[must_use]
pub fn pool(name: &str) -> PoolId {
    PoolId::parse(name).expect("a plan's pools have names")
}

/// Limits that are never reached.
pub const UNLIMITED: Limits = Limits {
    requests: 100_000_000,
    input_tokens: 1_000_000_000_000,
    output_tokens: 1_000_000_000_000,
};

/// The defaults of the product.
#[must_use]
pub fn config() -> Config {
    Config {
        quantum: Cost(5_000),
        cost_weights: CostWeights::default(),
        shares: ShareRules::default(),
        limits: BTreeMap::new(),
        default_limits: UNLIMITED,
        tenants: BTreeMap::new(),
        default_policy: Policy::default(),
        max_deliver: 8,
        worker_silence_max: 3_500,
        breaker: fairlane_core::breaker::Rules::default(),
        demotion: fairlane_core::demotion::Rules::default(),
    }
}

impl Plan {
    /// Gives a tenant a weight, in thousandths.
    pub fn weigh(&mut self, name: &str, weight: u32) {
        let policy = Policy {
            weight: Weight(weight),
            ..self.config.default_policy
        };
        self.config.tenants.insert(tenant(name), policy);
    }

    /// A world without faults, limits and jobs.
    #[must_use]
    pub fn calm(seed: u64) -> Self {
        Self {
            seed,
            config: config(),
            times: Times {
                heartbeat: 500,
                takeover_after: 2_000,
                ttl: 15_000,
            },
            jobs: Vec::new(),
            workers: vec![8],
            keeps_books: true,
            leaders: 1,
            upstream: BTreeMap::new(),
            headers: true,
            concurrent: None,
            storms: Vec::new(),
            network: Network {
                delay: (1, 3),
                grants_lost: 0,
                grants_twice: 0,
                writes_unknown: 0,
                jobs_twice: 0,
                leases_twice: 0,
            },
            leases: LeaseTimes::default(),
            faults: Vec::new(),
            attempts_max: 4,
            tick: None,
            until: 600_000,
            ends_idle: true,
        }
    }

    /// The upstream and the scheduler agree on the limits of `name`.
    pub fn limit(&mut self, name: &str, requests: u64, input_tokens: u64, output_tokens: u64) {
        let limits = Limits {
            requests,
            input_tokens,
            output_tokens,
        };
        self.config.limits.insert(pool(name), limits);
        self.upstream.insert(pool(name), limits);
    }

    /// A job that is what it seems, to be changed as needed.
    pub fn job(
        &mut self,
        at: Millis,
        name: &str,
        priority: Priority,
        pool_name: &str,
        tokens: Tokens,
    ) -> &mut JobPlan {
        self.jobs.push(JobPlan {
            at,
            tenant: tenant(name),
            priority,
            kind: "sim",
            pool: pool(pool_name),
            fallback: None,
            estimate: tokens,
            actual: tokens,
            service: 500,
            not_before: None,
            deadline: None,
            nature: Nature::Good,
        });
        self.jobs.last_mut().expect("just pushed")
    }
}
